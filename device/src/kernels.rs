//! The one table of kernels: (collective, algorithm, protocol, reduction, type) -> PTX entry, CPU function.
//!
//! A row of the table below is an element type with the reductions it is specialised for; every row is made
//! in all three protocols. From it come the PTX entries, the CPU functions and their names, so that the
//! three cannot differ. Signed and unsigned integers share what is the same bit for bit (sum, product):
//! [`lookup`] sends `int32` sum to the `uint32` kernel.

use crate::abi::Work;
use crate::collectives::ring_all_reduce;
use crate::element::{Bf16, F16};
use crate::prims::{Ll, Ll128, Simple};
use crate::reduce::{Avg, Max, Min, Prod, Sum};

/// Threads of a block that a kernel is compiled for; launches use at most as many. NCCL's most is 640; the
/// registers of a multiprocessor allow 512 threads of 128.
pub const MAX_THREADS: u32 = 512;

/// Calls `$row!` with the whole table.
macro_rules! table {
    ($row:ident) => {
        $row! {
            "uint8" U8 u8: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            "int8" I8 i8: "min" Min, "max" Max, "avg" Avg;
            "uint32" U32 u32: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            "int32" I32 i32: "min" Min, "max" Max, "avg" Avg;
            "uint64" U64 u64: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            "int64" I64 i64: "min" Min, "max" Max, "avg" Avg;
            "half" F16 F16: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            "bfloat16" Bf16 Bf16: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            "float" F32 f32: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            "double" F64 f64: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
        }
    };
}

/// The name of a kernel, the same on every machine.
macro_rules! kernel_name {
    ($protocol:literal, $op:literal, $type:literal) => {
        concat!("all_reduce_ring_", $protocol, "_", $op, "_", $type)
    };
}

#[cfg(target_arch = "nvptx64")]
mod entries {
    use super::*;

    macro_rules! entry {
        ($protocol:literal, $P:ty, $op:literal, $R:ty, $type:literal, $T:ty) => {
            const _: () = {
                /// # Safety
                /// `work` is the call, in memory that the device reads, until all blocks have ended.
                #[unsafe(export_name = kernel_name!($protocol, $op, $type))]
                unsafe extern "ptx-kernel" fn entry(work: *const Work) {
                    crate::gpu::launch_bounds::<MAX_THREADS>();
                    // SAFETY: the launch's contract.
                    unsafe { ring_all_reduce::<$T, $R, $P>(work) }
                }
            };
        };
    }
    macro_rules! entries {
        ($($type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => { $($(
            #[cfg(any(not(split), module = $type))]
            entry!("simple", Simple, $op, $R, $type, $T);
            #[cfg(any(not(split), module = $type))]
            entry!("ll", Ll, $op, $R, $type, $T);
            #[cfg(any(not(split), module = $type))]
            entry!("ll128", Ll128, $op, $R, $type, $T);
        )*)* };
    }
    table!(entries);
}

#[cfg(not(target_arch = "nvptx64"))]
pub use cpu::{Kernel, all, kernel_fn, lookup};

#[cfg(not(target_arch = "nvptx64"))]
mod cpu {
    use super::*;
    use crate::abi::{Algorithm, Collective, DataType, ProtocolId, ReduceOp};
    use crate::element::Element;
    use crate::prims::Protocol;
    use crate::reduce::Reduction;

    /// A kernel, for every machine.
    #[derive(Clone, Copy, Debug)]
    pub struct Kernel {
        /// Name of its PTX entry.
        pub name: &'static str,
        /// Its CPU function; the argument is the address of the call's [`Work`].
        pub cpu: unsafe fn(*const Work),
    }

    /// The CPU function of an all-reduce kernel, also for protocols and reductions that the table has not:
    /// an experiment launches its own protocol with it.
    #[must_use]
    pub fn kernel_fn<T: Element, R: Reduction, P: Protocol>() -> unsafe fn(*const Work) {
        ring_all_reduce::<T, R, P>
    }

    macro_rules! rows {
        ($($type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
            static KERNELS: &[(ProtocolId, ReduceOp, DataType, Kernel)] = &[$($(
                (ProtocolId::Simple, ReduceOp::$R, DataType::$D, Kernel {
                    name: kernel_name!("simple", $op, $type), cpu: ring_all_reduce::<$T, $R, Simple>,
                }),
                (ProtocolId::Ll, ReduceOp::$R, DataType::$D, Kernel {
                    name: kernel_name!("ll", $op, $type), cpu: ring_all_reduce::<$T, $R, Ll>,
                }),
                (ProtocolId::Ll128, ReduceOp::$R, DataType::$D, Kernel {
                    name: kernel_name!("ll128", $op, $type), cpu: ring_all_reduce::<$T, $R, Ll128>,
                }),
            )*)*];
        };
    }
    table!(rows);

    /// All kernels of the table.
    pub fn all() -> impl ExactSizeIterator<Item = Kernel> {
        KERNELS.iter().map(|row| row.3)
    }

    /// The kernel of a call; `None` when the table has none.
    #[must_use]
    pub fn lookup(
        collective: Collective,
        algorithm: Algorithm,
        protocol: ProtocolId,
        op: ReduceOp,
        data_type: DataType,
    ) -> Option<Kernel> {
        let (Collective::AllReduce, Algorithm::Ring) = (collective, algorithm);
        let same_bits = matches!(op, ReduceOp::Sum | ReduceOp::Prod);
        let data_type = match data_type {
            DataType::I8 if same_bits => DataType::U8,
            DataType::I32 if same_bits => DataType::U32,
            DataType::I64 if same_bits => DataType::U64,
            other => other,
        };
        KERNELS
            .iter()
            .find(|row| (row.0, row.1, row.2) == (protocol, op, data_type))
            .map(|row| row.3)
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
            assert_eq!(names.len(), all().len());
        }
    }
}
