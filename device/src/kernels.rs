//! The one table of kernels: (collective, algorithm, protocol, reduction, type) -> PTX entry, CPU function.
//!
//! Two lists make it. [`families!`](self) has a row for each algorithm of a collective and says which reductions it
//! is specialised for: all of them, the common ones, or none, as it only moves bytes. [`reductions!`](self) has the
//! element types with their reductions. Every row is made in all three protocols. From the table come the PTX
//! entries, the CPU functions and their names, so that the three cannot differ.
//!
//! What is the same bit for bit has one kernel: signed and unsigned integers share sums and products, and the
//! average of floats is a pre-multiplied sum by 1/ranks ([`lookup`] knows).
//!
//! A family with one element type is a module of PTX: `all_reduce_ring_float`; see the library's `build.rs`.

use crate::abi::Work;
use crate::collectives::{
    AllGatherBruck, AllGatherRing, AllReduceOneShot, AllReduceRing, AllReduceTree, BroadcastRing,
    BroadcastTree, Chain, KernelCode, ReduceScatterBruck, ReduceScatterRing, SendRecv,
};
use crate::element::{Bf16, F8E4M3, F8E5M2, F16};
use crate::prims::{Ll, Ll128, Simple};
use crate::reduce::Sum;

/// Threads of a block that a kernel is compiled for; launches use at most as many. NCCL's most is 640; the
/// registers of a multiprocessor allow 512 threads of 128.
pub const MAX_THREADS: u32 = 512;

/// Calls `$row!` with every family of kernels: its name, the collective and algorithm, the type that runs it, and
/// the list of its reductions.
macro_rules! families {
    ($row:ident) => {
        $row! {
            "all_reduce_ring" AllReduce Ring AllReduceRing: reductions;
            "all_reduce_tree" AllReduce Tree AllReduceTree: reductions;
            "all_reduce_one_shot" AllReduce OneShot AllReduceOneShot: sums;
            "all_gather_ring" AllGather Ring AllGatherRing: bytes;
            "all_gather_bruck" AllGather Bruck AllGatherBruck: bytes;
            "reduce_scatter_ring" ReduceScatter Ring ReduceScatterRing: reductions;
            "reduce_scatter_bruck" ReduceScatter Bruck ReduceScatterBruck: sums;
            "broadcast_ring" Broadcast Ring BroadcastRing: bytes;
            "broadcast_tree" Broadcast Tree BroadcastTree: bytes;
            "reduce_chain" Reduce Chain Chain: reductions;
            "sendrecv" SendRecv Ring SendRecv: transfers;
        }
    };
}

/// Calls `$row!` with the sums: what algorithms for few bytes are specialised for.
macro_rules! sums {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)*
            "uint8" U8 u8: "sum" Sum;
            "uint32" U32 u32: "sum" Sum;
            "uint64" U64 u64: "sum" Sum;
            "half" F16 F16: "sum" Sum, "mulsum" PreMulSum;
            "bfloat16" Bf16 Bf16: "sum" Sum, "mulsum" PreMulSum;
            "float" F32 f32: "sum" Sum, "mulsum" PreMulSum;
            "double" F64 f64: "sum" Sum, "mulsum" PreMulSum;
        }
    };
}

/// Calls `$row!` for what only moves bytes.
macro_rules! bytes {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)* }
    };
}

/// Calls `$row!` with all reductions, each with its name and type; what else is given comes first.
macro_rules! reductions {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)*
            "uint8" U8 u8: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg, "mulsum" PreMulSum;
            "int8" I8 i8: "min" Min, "max" Max, "avg" Avg;
            "uint32" U32 u32: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg, "mulsum" PreMulSum;
            "int32" I32 i32: "min" Min, "max" Max, "avg" Avg;
            "uint64" U64 u64: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg, "mulsum" PreMulSum;
            "int64" I64 i64: "min" Min, "max" Max, "avg" Avg;
            "half" F16 F16: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "mulsum" PreMulSum;
            "bfloat16" Bf16 Bf16: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "mulsum" PreMulSum;
            "float" F32 f32: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "mulsum" PreMulSum;
            "double" F64 f64: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "mulsum" PreMulSum;
            "f8e4m3" F8E4M3 F8E4M3: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "mulsum" PreMulSum;
            "f8e5m2" F8E5M2 F8E5M2: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "mulsum" PreMulSum;
        }
    };
}

/// Calls `$row!` for what moves bytes in any protocol.
macro_rules! transfers {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)* any }
    };
}

/// The name of a kernel, the same on every machine.
macro_rules! name {
    ($family:literal $protocol:literal) => {
        concat!($family, "_", $protocol)
    };
    ($family:literal $protocol:literal $op:literal $type:literal) => {
        concat!($family, "_", $protocol, "_", $op, "_", $type)
    };
}

#[cfg(target_arch = "nvptx64")]
mod entries {
    use super::*;
    use crate::reduce::{Avg, Max, Min, PreMulSum, Prod};

    macro_rules! entry {
        ($family:literal $module:literal $name:expr, $A:ty, $P:ty, $R:ty, $T:ty) => {
            #[cfg(any(not(split), all(family = $family, module = $module)))]
            const _: () = {
                /// # Safety
                /// `work` is the call, in memory that the device reads, until all blocks have ended.
                #[unsafe(export_name = $name)]
                unsafe extern "ptx-kernel" fn entry(work: *const Work) {
                    crate::gpu::launch_bounds::<MAX_THREADS>();
                    // SAFETY: the launch's contract.
                    unsafe { <$A as KernelCode>::run::<$T, $R, $P>(work) }
                }
            };
        };
    }
    macro_rules! family {
        ($($family:literal $C:ident $G:ident $A:ident: $list:ident;)*) => { $( $list!(rows $family $A:); )* };
    }
    macro_rules! rows {
        ($family:literal $A:ident: any) => {
            entry!($family "bytes" $family, $A, Simple, Sum, u8);
        };
        ($family:literal $A:ident:) => {
            entry!($family "bytes" name!($family "simple"), $A, Simple, Sum, u8);
            entry!($family "bytes" name!($family "ll"), $A, Ll, Sum, u8);
            entry!($family "bytes" name!($family "ll128"), $A, Ll128, Sum, u8);
        };
        ($family:literal $A:ident: $($type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => { $($(
            entry!($family $type name!($family "simple" $op $type), $A, Simple, $R, $T);
            entry!($family $type name!($family "ll" $op $type), $A, Ll, $R, $T);
            entry!($family $type name!($family "ll128" $op $type), $A, Ll128, $R, $T);
        )*)* };
    }
    families!(family);
}

#[cfg(not(target_arch = "nvptx64"))]
pub use cpu::{Kernel, all, kernel_fn, lookup};

#[cfg(not(target_arch = "nvptx64"))]
mod cpu {
    use super::*;
    use crate::abi::{Algorithm, Collective, DataType, ProtocolId, ReduceOp};
    use crate::element::Element;
    use crate::prims::Protocol;
    use crate::reduce::{Any, Reduction};

    /// A kernel, for every machine.
    #[derive(Clone, Copy, Debug)]
    pub struct Kernel {
        /// Name of its PTX entry.
        pub name: &'static str,
        /// Its CPU function; the argument is the address of the call's [`Work`].
        pub cpu: unsafe fn(*const Work),
    }

    /// The CPU function of an algorithm, also for protocols and reductions that the table has not: an
    /// experiment launches its own protocol with it.
    #[must_use]
    pub fn kernel_fn<A: KernelCode, T: Element, R: Reduction, P: Protocol>()
    -> unsafe fn(*const Work) {
        A::run::<T, R, P>
    }

    /// What a kernel does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Key {
        collective: Collective,
        algorithm: Algorithm,
        /// `None` where it is any.
        protocol: Option<ProtocolId>,
        /// `None` where bytes are only moved.
        reduction: Option<(ReduceOp, DataType)>,
    }

    macro_rules! family {
        ($($family:literal $C:ident $G:ident $A:ident: $list:ident;)*) => {
            static KERNELS: &[&[(Key, Kernel)]] = &[ $( $list!(rows $family $C $G $A:) ),* ];
        };
    }
    macro_rules! rows {
        ($family:literal $C:ident $G:ident $A:ident: any) => {
            &[kernel!($C $G None, None, $family, $A, Simple, Sum, u8)]
        };
        ($family:literal $C:ident $G:ident $A:ident:) => {
            &[
                kernel!($C $G Some(ProtocolId::Simple), None, name!($family "simple"), $A, Simple, Sum, u8),
                kernel!($C $G Some(ProtocolId::Ll), None, name!($family "ll"), $A, Ll, Sum, u8),
                kernel!($C $G Some(ProtocolId::Ll128), None, name!($family "ll128"), $A, Ll128, Sum, u8),
            ]
        };
        ($family:literal $C:ident $G:ident $A:ident: $($type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
            &[$($(
                kernel!($C $G Some(ProtocolId::Simple), Some((ReduceOp::$R, DataType::$D)),
                    name!($family "simple" $op $type), $A, Simple, Any, $T),
                kernel!($C $G Some(ProtocolId::Ll), Some((ReduceOp::$R, DataType::$D)),
                    name!($family "ll" $op $type), $A, Ll, Any, $T),
                kernel!($C $G Some(ProtocolId::Ll128), Some((ReduceOp::$R, DataType::$D)),
                    name!($family "ll128" $op $type), $A, Ll128, Any, $T),
            )*)*]
        };
    }
    macro_rules! kernel {
        ($C:ident $G:ident $protocol:expr, $reduction:expr, $name:expr, $A:ty, $P:ty, $R:ty, $T:ty) => {
            (
                Key {
                    collective: Collective::$C,
                    algorithm: Algorithm::$G,
                    protocol: $protocol,
                    reduction: $reduction,
                },
                Kernel { name: $name, cpu: <$A as KernelCode>::run::<$T, $R, $P> },
            )
        };
    }
    families!(family);

    /// All kernels of the table.
    pub fn all() -> impl Iterator<Item = Kernel> {
        KERNELS.iter().flat_map(|family| family.iter()).map(|row| row.1)
    }

    /// The kernel of a call; `None` when the table has none. Where bytes are only moved it is the same for all
    /// operators and types.
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
        let family = shared(collective, algorithm);
        let family = KERNELS.iter().find(|rows| {
            let key = rows[0].0;
            (key.collective, key.algorithm) == family
        })?;
        let fits = |key: &Key| {
            key.protocol.is_none_or(|p| p == protocol)
                && key.reduction.is_none_or(|r| r == (op, data_type))
        };
        family.iter().find(|row| fits(&row.0)).map(|row| row.1)
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

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_call_has_a_kernel_and_every_kernel_a_name() {
            for &p in ProtocolId::ALL {
                for &op in ReduceOp::ALL {
                    for &t in DataType::ALL {
                        let kernel = lookup(Collective::AllReduce, Algorithm::Ring, p, op, t);
                        assert!(kernel.is_some(), "{p} {op} {t}");
                    }
                }
            }
            let mut names: Vec<_> = all().map(|k| k.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all().count());
        }
    }
}
