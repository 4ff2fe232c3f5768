//! The one table of kernels: (collective, algorithm, protocol, reduction, type) -> PTX entry, CPU function.
//!
//! Two lists make it, in `kernels/lists.rs`. `families!` has a row for each algorithm of a collective and says which
//! reductions it has: all of them, sums, or none, as it only moves bytes. `reductions!` and `sums!` have the element types
//! with their kernels. Every row is made in all three protocols, or in Simple where it works on the ranks' buffers themselves.
//! From the table come the PTX entries, the CPU functions and their names, so that the three cannot differ. Cargo features leave
//! rows out ([`left_out`] says which one a call would need).
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
mod own;
#[cfg(not(target_arch = "nvptx64"))]
mod user;

use crate::abi::{ReduceOp, Work};
use crate::collectives::{
    AllGatherBruck, AllGatherDirect, AllGatherLinear, AllGatherNvls, AllGatherOneShot,
    AllGatherRing, AllReduceDirect, AllReduceDoubling, AllReduceNvls, AllReduceOneShot,
    AllReduceRing, AllReduceTree, AllReduceTwoShot, AllToAllDirect, AllToAllLinear,
    AllToAllOneShot, BroadcastLinear, BroadcastRing, BroadcastTree, Chain, DirectCode, KernelCode,
    MeshCode, ReduceScatterBruck, ReduceScatterDirect, ReduceScatterLinear, ReduceScatterNvls,
    ReduceScatterOneShot, ReduceScatterRing, SendRecv,
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

#[cfg(not(target_arch = "nvptx64"))]
pub use cpu::{Kernel, PtxText, Row, all, left_out, lookup, rows};
#[cfg(not(target_arch = "nvptx64"))]
pub use user::UserKernel;

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
        /// Its CPU function; the argument is the address of the call's [`Work`], or of what it takes instead.
        pub cpu: unsafe fn(*const Work),
        /// Threads of a block at most, on a GPU.
        pub threads: u32,
        /// The same function under [`Counted`]: what proxies of other hosts need to know. A kernel without runs only
        /// where ranks reach each other's memory.
        pub steps: Option<unsafe fn(*const Work)>,
        /// Blocks of a channel: 1, or 2 where one goes each way.
        pub blocks: u32,
        /// The module of PTX that has its entry, of a kernel of another crate. The library's own modules have those of its table.
        pub ptx: Option<PtxText>,
        /// Bytes of its argument: of a [`Work`], or of what a [`UserKernel`](super::UserKernel) takes.
        pub argument: usize,
    }

    /// A module of PTX as text.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct PtxText(pub &'static str);

    /// Without the text, which may be megabytes.
    impl core::fmt::Debug for PtxText {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            write!(f, "PtxText({} bytes)", self.0.len())
        }
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
        ///
        /// Collectives that only move data do so byte by byte, whatever the type of a call: their kernels are of `u8`, and of another type
        /// this does not compile.
        #[must_use]
        pub const fn of<A: KernelCode, T: Element, R: Reduction, P: Protocol>(
            name: &'static str,
        ) -> Self {
            Kernel {
                name,
                cpu: A::run::<T, R, P>,
                threads: threads::<R>(A::THREADS),
                steps: Some(A::run::<T, Sum, Counted<P>>),
                blocks: A::BLOCKS,
                ptx: None,
                argument: size_of::<Work>(),
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

    impl Row {
        /// The row of an algorithm with one element type, reduction and protocol, whose PTX entry is called `name`.
        /// [`kernels!`](crate::kernels!) makes both.
        #[must_use]
        pub const fn of<A: KernelCode, T: Element, R: Reduction, P: Protocol>(
            name: &'static str,
        ) -> Self {
            const {
                let bytes = !Self::moves(A::COLLECTIVE) || size_of::<T>() == 1;
                assert!(bytes, "a kernel that moves data is of u8");
            }
            Row {
                collective: A::COLLECTIVE,
                algorithm: A::ALGORITHM,
                protocol: Some(P::ID),
                reduction: if Self::moves(A::COLLECTIVE) { None } else { Some((R::OPS, T::TYPE)) },
                kernel: Kernel::of::<A, T, R, P>(name),
            }
        }

        /// Whether a collective only moves data.
        const fn moves(collective: Collective) -> bool {
            matches!(
                collective,
                Collective::AllGather
                    | Collective::Broadcast
                    | Collective::AllToAll
                    | Collective::SendRecv
            )
        }

        /// The same with the module of PTX that has its entry, as a GPU and the emulator take it; an empty text is none.
        #[must_use]
        pub const fn with_ptx(mut self, text: &'static str) -> Self {
            self.kernel.ptx = if text.is_empty() { None } else { Some(PtxText(text)) };
            self
        }

        /// The row for a call, among rows that are not the library's: as [`lookup`].
        #[must_use]
        pub fn find(
            rows: &[Row],
            collective: Collective,
            algorithm: Algorithm,
            protocol: ProtocolId,
            op: ReduceOp,
            data_type: DataType,
        ) -> Option<&Row> {
            let (op, data_type) = same_bits(op, data_type);
            let family = rows.iter().filter(|row| row.serves(collective, algorithm));
            family.into_iter().find(|row| row.fits(protocol, op, data_type))
        }

        /// Whether it is of the family of kernels that do a collective by an algorithm: those of a tree's all-reduce also reduce.
        #[must_use]
        pub fn serves(&self, collective: Collective, algorithm: Algorithm) -> bool {
            (self.collective, self.algorithm) == shared(collective, algorithm)
        }

        /// Whether it does for a call of its family, as [`same_bits`] has it.
        fn fits(&self, protocol: ProtocolId, op: ReduceOp, data_type: DataType) -> bool {
            self.protocol.is_none_or(|p| p == protocol)
                && self.reduction.is_none_or(|(ops, t)| t == data_type && ops.contains(&op))
        }
    }

    /// The operator and type whose kernel does the same, bit for bit.
    fn same_bits(op: ReduceOp, data_type: DataType) -> (ReduceOp, DataType) {
        let op = match op {
            ReduceOp::Avg if data_type.is_float() => ReduceOp::PreMulSum,
            other => other,
        };
        let same = matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::PreMulSum);
        let data_type = match data_type {
            DataType::I8 if same => DataType::U8,
            DataType::I32 if same => DataType::U32,
            DataType::I64 if same => DataType::U64,
            other => other,
        };
        (op, data_type)
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
        ($family:literal $C:ident $G:ident $A:ident: mesh;) => {
            &[&[
                row!($C $G Some(ProtocolId::Simple), None, name!($family "simple"), mesh $A, Simple, Sum, Sum, u8),
                row!($C $G Some(ProtocolId::Ll), None, name!($family "ll"), mesh $A, Ll, Sum, Sum, u8),
                row!($C $G Some(ProtocolId::Ll128), None, name!($family "ll128"), mesh $A, Ll128, Sum, Sum, u8),
            ]]
        };
        ($family:literal $C:ident $G:ident $A:ident: mesh;
            $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
            &[ $( $(#[cfg(feature = $f)])* &[ $(
                row!($C $G Some(ProtocolId::Simple), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "simple" $op $type), mesh $A, Simple, $R, Any, $T),
                row!($C $G Some(ProtocolId::Ll), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "ll" $op $type), mesh $A, Ll, $R, Any, $T),
                row!($C $G Some(ProtocolId::Ll128), Some((<$R as Reduction>::OPS, DataType::$D)),
                    name!($family "ll128" $op $type), mesh $A, Ll128, $R, Any, $T),
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
        ($C:ident $G:ident $protocol:expr, $reduction:expr, $name:expr, mesh $($more:tt)*) => {
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
                    blocks: 1,
                    ptx: None,
                    argument: size_of::<Work>(),
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
                    blocks: <$A as KernelCode>::BLOCKS,
                    ptx: None,
                    argument: size_of::<Work>(),
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
        let (op, data_type) = same_bits(op, data_type);
        let wanted = shared(collective, algorithm);
        let family = TABLE.iter().copied().find(|family| {
            let first = family.first().and_then(|rows| rows.first());
            first.is_some_and(|row| (row.collective, row.algorithm) == wanted)
        })?;
        family
            .iter()
            .copied()
            .flatten()
            .find(|row| row.fits(protocol, op, data_type))
            .map(|row| row.kernel)
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
