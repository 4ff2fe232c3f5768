//! The one table of kernels: (collective, algorithm, protocol, reduction, type) -> PTX entry, CPU function.
//!
//! Two lists make it, in `kernels/lists.rs`. `families!` has a row for each algorithm of a collective and says which
//! reductions it has: all of them, sums, or none, as it only moves bytes. `reductions!` and `sums!` have the element types
//! with their kernels. Every row is made in all three protocols, in LL and LL128 where it is over
//! the mesh, or in Simple where it works on the ranks' buffers themselves. From the table come the PTX entries, the CPU functions and
//! their names, so that the three cannot differ. Cargo features leave rows out ([`left_out`] says which one a call would
//! need).
//!
//! | a kernel's name has | it is for |
//! |---|---|
//! | `sum`, `mulsum` | that operator |
//! | `any` | the type's other operators: it looks at the call's, once for all that a lane has in flight |
//!
//! What is the same bit for bit has one kernel: signed and unsigned integers share sums and products, and the
//! average of floats is a pre-multiplied sum by 1/ranks ([`lookup`] knows).
//!
//! A family with one element type is a module of PTX: `all_reduce_ring_float`; see `build/modules.rs`. The entries are a crate
//! of their own, `kernels/entries.rs`, which is compiled on top of this one for each module.
#![allow(unused_imports, unused_macros)] // features leave rows out

#[macro_use]
mod lists;

use crate::abi::{ReduceOp, Work};
use crate::collectives::{
    AllGatherBruck, AllGatherDirect, AllGatherNvls, AllGatherOneShot, AllGatherRing,
    AllReduceDirect, AllReduceNvls, AllReduceOneShot, AllReduceRing, AllReduceTree,
    AllReduceTwoShot, AllToAllDirect, BroadcastRing, BroadcastTree, Chain, DirectCode, KernelCode,
    MeshCode, ReduceScatterBruck, ReduceScatterDirect, ReduceScatterNvls, ReduceScatterOneShot,
    ReduceScatterRing, SendRecv,
};
use crate::element::{Bf16, Element, F8E4M3, F8E5M2, F16};
use crate::prims::{Ll, Ll128, Simple};
use crate::reduce::{AnyFloat, AnyFloat8, AnySigned, AnyUnsigned, PreMulSum, Reduction, Sum};

/// Threads of a block that every kernel takes. Most take more: [`Kernel::threads`].
pub const MAX_THREADS: u32 = 512;

/// Threads of a block of a kernel, at most, of `most` that its algorithm has. What does more than to add needs some more registers.
#[must_use]
pub const fn threads<R: Reduction>(most: u32) -> u32 {
    if matches!(R::OPS, [ReduceOp::Sum]) { most } else { MAX_THREADS }
}

/// A [`Work`] as rustc passes it to a PTX entry by value: with the alignment that a parameter can have.
#[doc(hidden)]
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub struct Argument([u64; size_of::<Work>() / 8]);

const _: () = assert!(size_of::<Argument>() == size_of::<Work>());
const _: () = assert!(align_of::<Argument>() == align_of::<Work>());

/// Kernels of another crate, a row each: where the crate is compiled for the host, a constant with the CPU function and the steps that
/// it counts; where it is compiled for a GPU, the PTX entry.
///
/// A row is the constant's name, the name of the PTX entry, and the algorithm, element type, reduction and
/// [`Protocol`](crate::prims::Protocol). A crate of PTX entries needs `#![no_std]` and `#![feature(abi_ptx)]`.
///
/// ```
/// use ferroccl_device::collectives::AllReduceRing;
/// use ferroccl_device::prims::Ll128;
/// use ferroccl_device::reduce::Sum;
///
/// ferroccl_device::kernels! {
///     /// Sums of floats around a ring.
///     pub SUM = "my_all_reduce_sum_float": AllReduceRing, f32, Sum, Ll128;
/// }
/// assert_eq!(SUM.name, "my_all_reduce_sum_float");
/// ```
#[macro_export]
macro_rules! kernels {
    ($($(#[$m:meta])* $vis:vis $CONST:ident = $name:literal: $A:ty, $T:ty, $R:ty, $P:ty;)*) => { $(
        #[cfg(not(target_arch = "nvptx64"))]
        $(#[$m])*
        $vis const $CONST: $crate::kernels::Kernel =
            $crate::kernels::Kernel::of::<$A, $T, $R, $P>($name);

        #[cfg(target_arch = "nvptx64")]
        const _: () = {
            /// # Safety
            /// The argument is the call.
            #[unsafe(export_name = $name)]
            unsafe extern "ptx-kernel" fn entry(_: $crate::kernels::Argument) {
                $crate::gpu::launch_bounds::<{
                    $crate::kernels::threads::<$R>(<$A as $crate::collectives::KernelCode>::THREADS)
                }>();
                // SAFETY: the launch's contract; the argument is found without its address.
                unsafe {
                    <$A as $crate::collectives::KernelCode>::run::<$T, $R, $P>(core::ptr::null())
                }
            }
        };
    )* };
}

#[cfg(not(target_arch = "nvptx64"))]
pub use cpu::{Kernel, Row, all, left_out, lookup, rows};

#[cfg(not(target_arch = "nvptx64"))]
mod cpu {
    use super::*;
    use crate::abi::{Algorithm, Collective, DataType, ProtocolId};
    use crate::prims::{Counted, Protocol};
    use crate::reduce::Any;

    /// A kernel, for every machine.
    #[derive(Clone, Copy, Debug)]
    pub struct Kernel {
        /// Name of its PTX entry.
        pub name: &'static str,
        /// Its CPU function; the argument is the address of the call's [`Work`].
        pub cpu: unsafe fn(*const Work),
        /// Threads of a block at most, on a GPU.
        pub threads: u32,
        /// The same function under [`Counted`]: what proxies of other hosts need to know. A kernel without runs only
        /// where ranks reach each other's memory.
        pub steps: Option<unsafe fn(*const Work)>,
    }

    /// A type whose elements are as large: the steps of a call depend on nothing else of it.
    trait AsLarge {
        type Twin: Element;
    }
    macro_rules! as_large {
        ($($t:ty: $twin:ty;)*) => { $( impl AsLarge for $t { type Twin = $twin; } )* };
    }
    as_large! {
        u8: u8; i8: u8; F8E4M3: u8; F8E5M2: u8; F16: F16; Bf16: F16;
        u32: f32; i32: f32; f32: f32; u64: f64; i64: f64; f64: f64;
    }

    impl Kernel {
        /// The kernel of an algorithm with one element type, reduction and protocol, whose PTX entry is called `name`.
        /// [`kernels!`](crate::kernels!) makes both.
        #[must_use]
        pub const fn of<A: KernelCode, T: Element, R: Reduction, P: Protocol>(
            name: &'static str,
        ) -> Self {
            Kernel {
                name,
                cpu: A::run::<T, R, P>,
                threads: threads::<R>(A::THREADS),
                steps: Some(A::run::<T, Sum, Counted<P>>),
            }
        }
    }

    /// A row of the table: what a kernel does, and the kernel.
    #[derive(Clone, Copy, Debug)]
    pub struct Row {
        /// The collective.
        pub collective: Collective,
        /// How it is done.
        pub algorithm: Algorithm,
        /// How data moves; `None` where a kernel knows every protocol.
        pub protocol: Option<ProtocolId>,
        /// The operators that it has, and the type; `None` where bytes are only moved.
        pub reduction: Option<(&'static [ReduceOp], DataType)>,
        /// The kernel.
        pub kernel: Kernel,
    }

    /// Cargo features, and whether this build has them.
    type Features = &'static [(&'static str, bool)];

    macro_rules! family {
        ($($(#[cfg(feature = $f:literal)])* $family:literal $C:ident $G:ident $A:ident: $list:ident;)*) => {
            /// By family and element type.
            static TABLE: &[&[&[Row]]] = &[ $( $(#[cfg(feature = $f)])* $list!(rows $family $C $G $A:) ),* ];
            /// What the families are for.
            static FAMILIES: &[(Collective, Algorithm, Features)] = &[ $(
                (Collective::$C, Algorithm::$G, &[ $( ($f, cfg!(feature = $f)) ),* ])
            ),* ];
        };
    }
    macro_rules! rows {
        ($family:literal $C:ident $G:ident $A:ident: lines;) => {
            &[&[
                row!($C $G Some(ProtocolId::Ll), None, name!($family "ll"), lines $A, Ll, Sum, Sum, u8),
                row!($C $G Some(ProtocolId::Ll128), None, name!($family "ll128"), lines $A, Ll128, Sum, Sum, u8),
            ]]
        };
        ($family:literal $C:ident $G:ident $A:ident: lines;
            $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
            &[ $( $(#[cfg(feature = $f)])* &[ $(
                row!($C $G Some(ProtocolId::Ll), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "ll" $op $type), lines $A, Ll, $R, Any, $T),
                row!($C $G Some(ProtocolId::Ll128), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "ll128" $op $type), lines $A, Ll128, $R, Any, $T),
            )*] ),* ]
        };
        ($family:literal $C:ident $G:ident $A:ident: direct;) => {
            &[&[row!($C $G Some(ProtocolId::Simple), None, name!($family "simple"), direct $A, Simple, Sum, Sum, u8)]]
        };
        ($family:literal $C:ident $G:ident $A:ident: direct;
            $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
            &[ $( $(#[cfg(feature = $f)])* &[ $(
                row!($C $G Some(ProtocolId::Simple), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "simple" $op $type), direct $A, Simple, $R, Any, $T),
            )*] ),* ]
        };
        ($family:literal $C:ident $G:ident $A:ident: any) => {
            &[&[row!($C $G None, None, $family, $A, Simple, Sum, Sum, u8)]]
        };
        ($family:literal $C:ident $G:ident $A:ident:) => {
            &[&[
                row!($C $G Some(ProtocolId::Simple), None, name!($family "simple"), $A, Simple, Sum, Sum, u8),
                row!($C $G Some(ProtocolId::Ll), None, name!($family "ll"), $A, Ll, Sum, Sum, u8),
                row!($C $G Some(ProtocolId::Ll128), None, name!($family "ll128"), $A, Ll128, Sum, Sum, u8),
            ]]
        };
        ($family:literal $C:ident $G:ident $A:ident:
            $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
            &[ $( $(#[cfg(feature = $f)])* &[ $(
                row!($C $G Some(ProtocolId::Simple), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "simple" $op $type), $A, Simple, $R, Any, $T),
                row!($C $G Some(ProtocolId::Ll), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "ll" $op $type), $A, Ll, $R, Any, $T),
                row!($C $G Some(ProtocolId::Ll128), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "ll128" $op $type), $A, Ll128, $R, Any, $T),
            )*] ),* ]
        };
    }
    macro_rules! row {
        ($C:ident $G:ident $protocol:expr, $reduction:expr, $name:expr, lines $($more:tt)*) => {
            row!($C $G $protocol, $reduction, $name, within MeshCode $($more)*)
        };
        ($C:ident $G:ident $protocol:expr, $reduction:expr, $name:expr, direct $($more:tt)*) => {
            row!($C $G $protocol, $reduction, $name, within DirectCode $($more)*)
        };
        ($C:ident $G:ident $protocol:expr, $reduction:expr, $name:expr,
            within $K:ident $A:ty, $P:ty, $R:ty, $Cpu:ty, $T:ty) => {
            Row {
                collective: Collective::$C,
                algorithm: Algorithm::$G,
                protocol: $protocol,
                reduction: $reduction,
                kernel: Kernel {
                    name: $name,
                    cpu: <$A as $K>::run::<$T, $Cpu, $P>,
                    threads: threads::<$R>(<$A as $K>::THREADS),
                    steps: None,
                },
            }
        };
        ($C:ident $G:ident $protocol:expr, $reduction:expr, $name:expr, $A:ty, $P:ty, $R:ty, $Cpu:ty, $T:ty) => {
            Row {
                collective: Collective::$C,
                algorithm: Algorithm::$G,
                protocol: $protocol,
                reduction: $reduction,
                kernel: Kernel {
                    name: $name,
                    cpu: <$A as KernelCode>::run::<$T, $Cpu, $P>,
                    threads: threads::<$R>(<$A as KernelCode>::THREADS),
                    steps: Some(<$A as KernelCode>::run::<<$T as AsLarge>::Twin, Sum, Counted<$P>>),
                },
            }
        };
    }
    macro_rules! types {
        ($($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
            /// What the element types are for.
            static TYPES: &[(DataType, Features)] = &[ $(
                (DataType::$D, &[ $( ($f, cfg!(feature = $f)) ),* ])
            ),* ];
        };
    }
    reductions!(types);
    families!(family);

    /// The table.
    pub fn rows() -> impl Iterator<Item = &'static Row> {
        TABLE.iter().copied().flatten().copied().flatten()
    }

    /// All kernels of the table.
    pub fn all() -> impl Iterator<Item = Kernel> {
        rows().map(|row| row.kernel)
    }

    /// The cargo feature that a call needs and this build was made without, if that is why it has no kernel.
    #[must_use]
    pub fn left_out(
        collective: Collective,
        algorithm: Algorithm,
        data_type: DataType,
    ) -> Option<&'static str> {
        let wanted = shared(collective, algorithm);
        let family = FAMILIES.iter().find(|f| (f.0, f.1) == wanted).map(|f| f.2);
        let element = TYPES.iter().find(|t| t.0 == data_type).map(|t| t.1);
        let needed = [family, element].into_iter().flatten().flatten();
        needed.copied().find(|(_, there)| !there).map(|(feature, _)| feature)
    }

    /// The kernel of a call; `None` when the table has none. Where bytes are only moved it is the same for all
    /// operators and types, and most operators of a type share one.
    #[must_use]
    pub fn lookup(
        collective: Collective,
        algorithm: Algorithm,
        protocol: ProtocolId,
        op: ReduceOp,
        data_type: DataType,
    ) -> Option<Kernel> {
        let op = match op {
            ReduceOp::Avg if data_type.is_float() => ReduceOp::PreMulSum,
            other => other,
        };
        let same_bits = matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::PreMulSum);
        let data_type = match data_type {
            DataType::I8 if same_bits => DataType::U8,
            DataType::I32 if same_bits => DataType::U32,
            DataType::I64 if same_bits => DataType::U64,
            other => other,
        };
        let wanted = shared(collective, algorithm);
        let family = TABLE.iter().copied().find(|family| {
            let first = family.first().and_then(|rows| rows.first());
            first.is_some_and(|row| (row.collective, row.algorithm) == wanted)
        })?;
        let fits = |row: &&Row| {
            row.protocol.is_none_or(|p| p == protocol)
                && row.reduction.is_none_or(|(ops, t)| t == data_type && ops.contains(&op))
        };
        family.iter().copied().flatten().find(fits).map(|row| row.kernel)
    }

    /// The family that does it, where that is another's.
    const fn shared(collective: Collective, algorithm: Algorithm) -> (Collective, Algorithm) {
        match (collective, algorithm) {
            (Collective::Barrier, algorithm) => (Collective::AllReduce, algorithm),
            (Collective::Reduce, Algorithm::Tree) => (Collective::AllReduce, Algorithm::Tree),
            (Collective::Reduce, Algorithm::Ring)
            | (Collective::AllReduce | Collective::ReduceScatter, Algorithm::Chain) => {
                (Collective::Reduce, Algorithm::Chain)
            }
            same => same,
        }
    }
}
