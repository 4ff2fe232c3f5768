//! The lists that the table of kernels is made of: families, and element types with their reductions.
//!
//! They are macros, so that whoever needs a part of them takes that part from here: the device crate its entries and
//! functions, and the library's `build.rs`, which includes this file, the modules of PTX that there are to make.
//! A row may say which cargo features it is for, as `#[cfg(feature = "...")]`, one or several, of which it needs all.
//!
//! A list's name is given to `families!`'s rows in place of the list itself: `bytes` or `reductions`.

/// Calls `$row!` with every family of kernels: its name, the collective and algorithm, the type that runs it, and
/// the list of its reductions.
macro_rules! families {
    ($row:ident) => {
        $row! {
            "all_reduce_ring" AllReduce Ring AllReduceRing: reductions;
            #[cfg(feature = "all-gather")]
            "all_gather_ring" AllGather Ring AllGatherRing: bytes;
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
            #[cfg(feature = "integers")]
            "uint8" U8 u8: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            #[cfg(feature = "integers")]
            "int8" I8 i8: "min" Min, "max" Max, "avg" Avg;
            #[cfg(feature = "integers")]
            "uint32" U32 u32: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            #[cfg(feature = "integers")]
            "int32" I32 i32: "min" Min, "max" Max, "avg" Avg;
            #[cfg(feature = "integers")]
            "uint64" U64 u64: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            #[cfg(feature = "integers")]
            "int64" I64 i64: "min" Min, "max" Max, "avg" Avg;
            #[cfg(feature = "half")]
            "half" F16 F16: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            #[cfg(feature = "half")]
            "bfloat16" Bf16 Bf16: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            "float" F32 f32: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
            #[cfg(feature = "double")]
            "double" F64 f64: "sum" Sum, "prod" Prod, "min" Min, "max" Max, "avg" Avg;
        }
    };
}
