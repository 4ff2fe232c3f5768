//! The kernels, a row each: a constant for the host, an entry for the GPU.

use ferroccl_device::collectives::{
    AllGatherRing, AllReduceRing, AllReduceTree, BroadcastRing, ReduceScatterRing,
};
use ferroccl_device::prims::{Ll, Ll128, Simple};
use ferroccl_device::reduce::{AnyFloat, Sum};

use crate::halving::AllReduceHalving;
use crate::ll64::Ll64;
use crate::scan::Scan;
use crate::stamped::Stamped;

ferroccl_device::kernels! {
    /// All of them.
    pub static KERNELS;
    /// A ring all-reduce, sums of floats.
    pub ALL_REDUCE = "all_reduce_ring_ll64_sum_float": AllReduceRing, f32, Sum, Ll64;
    /// The other operators.
    pub ALL_REDUCE_ANY = "all_reduce_ring_ll64_any_float": AllReduceRing, f32, AnyFloat, Ll64;
    /// Sums of doubles.
    pub ALL_REDUCE_F64 = "all_reduce_ring_ll64_sum_double": AllReduceRing, f64, Sum, Ll64;
    /// Up a tree and down.
    pub ALL_REDUCE_TREE = "all_reduce_tree_ll64_sum_float": AllReduceTree, f32, Sum, Ll64;
    /// A ring reduce-scatter.
    pub REDUCE_SCATTER = "reduce_scatter_ring_ll64_sum_float": ReduceScatterRing, f32, Sum, Ll64;
    /// A ring all-gather, of any type.
    pub ALL_GATHER = "all_gather_ring_ll64": AllGatherRing, u8, Sum, Ll64;
    /// A ring broadcast, of any type.
    pub BROADCAST = "broadcast_ring_ll64": BroadcastRing, u8, Sum, Ll64;
    /// A ring all-reduce in Stamped.
    pub ALL_REDUCE_STAMPED = "all_reduce_ring_stamped_sum_float": AllReduceRing, f32, Sum, Stamped;
    /// The library's own, whose PTX builds of it as a dependency do not have: to compare with.
    pub LL = "all_reduce_ring_ll_sum_float": AllReduceRing, f32, Sum, Ll;
    /// LL128.
    pub LL128 = "all_reduce_ring_ll128_sum_float": AllReduceRing, f32, Sum, Ll128;
    /// Simple.
    pub SIMPLE = "all_reduce_ring_simple_sum_float": AllReduceRing, f32, Sum, Simple;
    /// Recursive halving, in a protocol of the library's.
    pub HALVING_LL = "all_reduce_halving_ll_sum_float": AllReduceHalving, f32, Sum, Ll;
    /// The same in another.
    pub HALVING_SIMPLE = "all_reduce_halving_simple_sum_float": AllReduceHalving, f32, Sum, Simple;
    /// The same in the lab's own.
    pub HALVING_LL64 = "all_reduce_halving_ll64_sum_float": AllReduceHalving, f32, Sum, Ll64;
}

ferroccl_device::kernels! {
    /// A scan, which no call of the library's is: it is launched by itself, and not registered for calls.
    pub SCAN = "scan_ll_sum_float": Scan, f32, Sum, Ll;
}
