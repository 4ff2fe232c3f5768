//! The kernels as PTX has them: a crate of its own, of which each module of PTX is made.
//!
//! `ferroccl-build` compiles it on top of the device crate, once for each module; cargo does not know it. So the device crate is
//! type-checked once for an architecture and not for each of its modules, which is a third of a module's time. `cfg`s say
//! which module it is to be: `build/modules.rs` has them.
#![no_std]
#![feature(abi_ptx)]
#![allow(unused_imports, unused_macros)] // a module does not use what the others do

#[macro_use]
mod lists;

use ferroccl_device::collectives::{
    AllGatherBruck, AllGatherDirect, AllGatherLinear, AllGatherNvls, AllGatherOneShot,
    AllGatherRing, AllReduceDirect, AllReduceDoubling, AllReduceNvls, AllReduceOneShot,
    AllReduceRing, AllReduceTree, AllReduceTwoShot, AllToAllDirect, AllToAllLinear,
    AllToAllOneShot, BroadcastLinear, BroadcastRing, BroadcastTree, Chain, DirectCode, KernelCode,
    MeshCode, ReduceScatterBruck, ReduceScatterDirect, ReduceScatterLinear, ReduceScatterNvls,
    ReduceScatterOneShot, ReduceScatterRing, SendRecv,
};
use ferroccl_device::element::{Bf16, F8E4M3, F8E5M2, F16};
use ferroccl_device::kernels::{Argument, threads};
use ferroccl_device::prims::{Ll, Ll128, Simple};
use ferroccl_device::reduce::{AnyFloat, AnyFloat8, AnySigned, AnyUnsigned, PreMulSum, Sum};

// What a build has no use for it does not ask for: see `build/modules.rs`.
macro_rules! entry {
    ($family:literal $module:literal $protocol:literal $op:literal $name:expr, $K:ident $A:ty, $P:ty, $R:ty, $T:ty) => {
        #[cfg(all(family = $family, module = $module))]
        #[cfg(any(not(alone), all(protocol = $protocol, op = $op)))]
        const _: () = {
            /// # Safety
            /// The argument is the call.
            #[unsafe(export_name = $name)]
            unsafe extern "ptx-kernel" fn entry(_: Argument) {
                ferroccl_device::gpu::launch_bounds::<{ threads::<$R>(<$A as $K>::THREADS) }>();
                // SAFETY: the launch's contract; `gpu::argument` finds the argument without its address.
                unsafe { <$A as $K>::run::<$T, $R, $P>(core::ptr::null()) }
            }
        };
    };
}
macro_rules! family {
    ($($(#[cfg(feature = $f:literal)])* $family:literal $C:ident $G:ident $A:ident: $list:ident;)*) => {
        $( $list!(rows $family $A:); )*
    };
}
macro_rules! rows {
    ($family:literal $A:ident: mesh;) => {
        entry!($family "bytes" "simple" "none" name!($family "simple"), MeshCode $A, Simple, Sum, u8);
        entry!($family "bytes" "ll" "none" name!($family "ll"), MeshCode $A, Ll, Sum, u8);
        entry!($family "bytes" "ll128" "none" name!($family "ll128"), MeshCode $A, Ll128, Sum, u8);
    };
    ($family:literal $A:ident: mesh;
        $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => { $($(
        entry!($family $type "simple" $op name!($family "simple" $op $type), MeshCode $A, Simple, $R, $T);
        entry!($family $type "ll" $op name!($family "ll" $op $type), MeshCode $A, Ll, $R, $T);
        entry!($family $type "ll128" $op name!($family "ll128" $op $type), MeshCode $A, Ll128, $R, $T);
    )*)* };
    ($family:literal $A:ident: direct;) => {
        entry!($family "bytes" "simple" "none" name!($family "simple"), DirectCode $A, Simple, Sum, u8);
    };
    ($family:literal $A:ident: direct;
        $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => { $($(
        entry!($family $type "simple" $op name!($family "simple" $op $type), DirectCode $A, Simple, $R, $T);
    )*)* };
    ($family:literal $A:ident: any) => {
        entry!($family "bytes" "any" "none" $family, KernelCode $A, Simple, Sum, u8);
    };
    ($family:literal $A:ident:) => {
        entry!($family "bytes" "simple" "none" name!($family "simple"), KernelCode $A, Simple, Sum, u8);
        entry!($family "bytes" "ll" "none" name!($family "ll"), KernelCode $A, Ll, Sum, u8);
        entry!($family "bytes" "ll128" "none" name!($family "ll128"), KernelCode $A, Ll128, Sum, u8);
    };
    ($family:literal $A:ident:
        $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => { $($(
        entry!($family $type "simple" $op name!($family "simple" $op $type), KernelCode $A, Simple, $R, $T);
        entry!($family $type "ll" $op name!($family "ll" $op $type), KernelCode $A, Ll, $R, $T);
        entry!($family $type "ll128" $op name!($family "ll128" $op $type), KernelCode $A, Ll128, $R, $T);
    )*)* };
}
families!(family);
