//! The kernels, a row each: a constant for the host, an entry for the GPU.

use ferroccl_device::collectives::AllReduceRing;
use ferroccl_device::reduce::Sum;

use crate::ll64::Ll64;

ferroccl_device::kernels! {
    /// A ring all-reduce, sums of floats.
    pub ALL_REDUCE = "all_reduce_ring_ll64_sum_float": AllReduceRing, f32, Sum, Ll64;
    /// The same of doubles.
    pub ALL_REDUCE_F64 = "all_reduce_ring_ll64_sum_double": AllReduceRing, f64, Sum, Ll64;
}
