//! The lists that the table of kernels is made of: families, and element types with their reductions.
//!
//! They are macros, so that whoever needs a part of them takes that part from here: the device crate its entries and
//! functions, and `build/modules.rs`, which includes this file, the modules of PTX that there are to make.
//! A row may say which cargo features it is for, as `#[cfg(feature = "...")]`, one or several, of which it needs all.
//!
//! A list's name is given to `families!`'s rows in place of the list itself: `bytes`, `transfers`, `sums` or `reductions`.

/// Calls `$row!` with every family of kernels: its name, the collective and algorithm, the type that runs it, and
/// the list of its reductions.
macro_rules! families {
    ($row:ident) => {
        $row! {
            "all_reduce_ring" AllReduce Ring AllReduceRing: reductions;
            #[cfg(feature = "tree")]
            "all_reduce_tree" AllReduce Tree AllReduceTree: sums;
            #[cfg(feature = "doubling")]
            "all_reduce_doubling" AllReduce Doubling AllReduceDoubling: sums;
            #[cfg(feature = "one-shot")]
            "all_reduce_one_shot" AllReduce OneShot AllReduceOneShot: mesh_sums;
            #[cfg(feature = "one-shot")]
            "all_reduce_two_shot" AllReduce TwoShot AllReduceTwoShot: mesh_sums;
            #[cfg(feature = "direct")]
            "all_reduce_direct" AllReduce Direct AllReduceDirect: direct_sums;
            #[cfg(feature = "nvls")]
            "all_reduce_nvls" AllReduce Nvls AllReduceNvls: multicast_sums;
            #[cfg(feature = "all-gather")]
            "all_gather_ring" AllGather Ring AllGatherRing: bytes;
            #[cfg(feature = "all-gather")]
            #[cfg(feature = "bruck")]
            "all_gather_bruck" AllGather Bruck AllGatherBruck: bytes;
            #[cfg(feature = "all-gather")]
            #[cfg(feature = "linear")]
            "all_gather_linear" AllGather Linear AllGatherLinear: bytes;
            #[cfg(feature = "all-gather")]
            #[cfg(feature = "one-shot")]
            "all_gather_one_shot" AllGather OneShot AllGatherOneShot: mesh_bytes;
            #[cfg(feature = "all-gather")]
            #[cfg(feature = "direct")]
            "all_gather_direct" AllGather Direct AllGatherDirect: direct_bytes;
            #[cfg(feature = "all-gather")]
            #[cfg(feature = "nvls")]
            "all_gather_nvls" AllGather Nvls AllGatherNvls: direct_bytes;
            #[cfg(feature = "reduce-scatter")]
            "reduce_scatter_ring" ReduceScatter Ring ReduceScatterRing: reductions;
            #[cfg(feature = "reduce-scatter")]
            #[cfg(feature = "bruck")]
            "reduce_scatter_bruck" ReduceScatter Bruck ReduceScatterBruck: sums;
            #[cfg(feature = "reduce-scatter")]
            #[cfg(feature = "linear")]
            "reduce_scatter_linear" ReduceScatter Linear ReduceScatterLinear: sums;
            #[cfg(feature = "reduce-scatter")]
            #[cfg(feature = "one-shot")]
            "reduce_scatter_one_shot" ReduceScatter OneShot ReduceScatterOneShot: mesh_sums;
            #[cfg(feature = "reduce-scatter")]
            #[cfg(feature = "direct")]
            "reduce_scatter_direct" ReduceScatter Direct ReduceScatterDirect: direct_sums;
            #[cfg(feature = "reduce-scatter")]
            #[cfg(feature = "nvls")]
            "reduce_scatter_nvls" ReduceScatter Nvls ReduceScatterNvls: multicast_sums;
            #[cfg(feature = "broadcast")]
            "broadcast_ring" Broadcast Ring BroadcastRing: bytes;
            #[cfg(feature = "broadcast")]
            #[cfg(feature = "tree")]
            "broadcast_tree" Broadcast Tree BroadcastTree: bytes;
            #[cfg(feature = "broadcast")]
            #[cfg(feature = "linear")]
            "broadcast_linear" Broadcast Linear BroadcastLinear: bytes;
            #[cfg(feature = "reduce")]
            "reduce_chain" Reduce Chain Chain: reductions;
            #[cfg(feature = "linear")]
            "all_to_all_linear" AllToAll Linear AllToAllLinear: bytes;
            #[cfg(feature = "one-shot")]
            "all_to_all_one_shot" AllToAll OneShot AllToAllOneShot: mesh_bytes;
            #[cfg(feature = "direct")]
            "all_to_all_direct" AllToAll Direct AllToAllDirect: direct_bytes;
            #[cfg(feature = "send-recv")]
            "sendrecv" SendRecv Ring SendRecv: transfers;
        }
    };
}

/// Calls `$row!` with the sums: what algorithms for few bytes, and the large kernels of trees, are specialised for.
macro_rules! sums {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)*
            #[cfg(feature = "integers")]
            "uint8" U8 u8: "sum" Sum;
            #[cfg(feature = "integers")]
            "uint32" U32 u32: "sum" Sum;
            #[cfg(feature = "integers")]
            "uint64" U64 u64: "sum" Sum;
            #[cfg(feature = "half")]
            "half" F16 F16: "sum" Sum, "mulsum" PreMulSum;
            #[cfg(feature = "half")]
            "bfloat16" Bf16 Bf16: "sum" Sum, "mulsum" PreMulSum;
            "float" F32 f32: "sum" Sum, "mulsum" PreMulSum;
            #[cfg(feature = "double")]
            "double" F64 f64: "sum" Sum, "mulsum" PreMulSum;
        }
    };
}

/// [`sums!`] over the mesh.
macro_rules! mesh_sums {
    ($row:ident $($more:tt)*) => {
        sums! { $row $($more)* mesh; }
    };
}

/// [`sums!`] of plain data only, which goes straight into other ranks' buffers or comes from there.
macro_rules! direct_sums {
    ($row:ident $($more:tt)*) => {
        sums! { $row $($more)* direct; }
    };
}

/// Calls `$row!` with the sums of plain data that a switch does (`multimem.ld_reduce`). Averages are multiplied when they have been
/// summed, so not of halves, whose sums overflow.
macro_rules! multicast_sums {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)* direct;
            #[cfg(feature = "half")]
            "half" F16 F16: "sum" Sum;
            #[cfg(feature = "half")]
            "bfloat16" Bf16 Bf16: "sum" Sum, "mulsum" PreMulSum;
            "float" F32 f32: "sum" Sum, "mulsum" PreMulSum;
        }
    };
}

/// Calls `$row!` for what moves bytes in any protocol.
macro_rules! transfers {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)* any }
    };
}

/// Calls `$row!` for what only moves bytes.
macro_rules! bytes {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)* }
    };
}

/// [`bytes!`] over the mesh.
macro_rules! mesh_bytes {
    ($row:ident $($more:tt)*) => {
        bytes! { $row $($more)* mesh; }
    };
}

/// [`bytes!`] of plain data only, as [`direct_sums!`].
macro_rules! direct_bytes {
    ($row:ident $($more:tt)*) => {
        bytes! { $row $($more)* direct; }
    };
}

/// Calls `$row!` with all reductions, each with its name and type; what else is given comes first. Sums of the usual types
/// have kernels of their own. What else a type has is one kernel, which looks at the call's operator.
macro_rules! reductions {
    ($row:ident $($more:tt)*) => {
        $row! { $($more)*
            #[cfg(feature = "integers")]
            "uint8" U8 u8: "sum" Sum, "any" AnyUnsigned;
            #[cfg(feature = "integers")]
            "int8" I8 i8: "any" AnySigned;
            #[cfg(feature = "integers")]
            "uint32" U32 u32: "sum" Sum, "any" AnyUnsigned;
            #[cfg(feature = "integers")]
            "int32" I32 i32: "any" AnySigned;
            #[cfg(feature = "integers")]
            "uint64" U64 u64: "sum" Sum, "any" AnyUnsigned;
            #[cfg(feature = "integers")]
            "int64" I64 i64: "any" AnySigned;
            #[cfg(feature = "half")]
            "half" F16 F16: "sum" Sum, "any" AnyFloat;
            #[cfg(feature = "half")]
            "bfloat16" Bf16 Bf16: "sum" Sum, "any" AnyFloat;
            "float" F32 f32: "sum" Sum, "any" AnyFloat;
            #[cfg(feature = "double")]
            "double" F64 f64: "sum" Sum, "any" AnyFloat;
            #[cfg(feature = "fp8")]
            "f8e4m3" F8E4M3 F8E4M3: "any" AnyFloat8;
            #[cfg(feature = "fp8")]
            "f8e5m2" F8E5M2 F8E5M2: "any" AnyFloat8;
        }
    };
}

/// The name of a kernel, the same on every machine.
#[allow(unused_macros, reason = "who takes the lists only has no use for it")]
macro_rules! name {
    ($family:literal $protocol:literal) => {
        concat!($family, "_", $protocol)
    };
    ($family:literal $protocol:literal $op:literal $type:literal) => {
        concat!($family, "_", $protocol, "_", $op, "_", $type)
    };
}
