//! The closed sets of the library, with NCCL's names.

/// A closed set of names: an enum whose values are array indices, on both sides of the launch for those of this file.
#[doc(hidden)]
#[macro_export]
macro_rules! names {
    ($(#[$m:meta])* pub enum $name:ident ($what:literal) { $($(#[$vm:meta])* $var:ident = $text:literal,)* }) => {
        $(#[$m])*
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vm])* $var,)* }

        impl $name {
            /// Every value, in the order of its index.
            pub const ALL: &'static [$name] = &[$($name::$var,)*];

            /// Its name on command lines, and in kernel names.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($name::$var => $text,)* }
            }

            /// The value with this index, or `None` when there is none.
            #[must_use]
            pub fn from_index(index: u64) -> Option<Self> {
                Self::ALL.get(usize::try_from(index).ok()?).copied()
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }

        impl core::str::FromStr for $name {
            type Err = $crate::abi::UnknownName;
            /// Reads [`Self::name`], whatever the case.
            ///
            /// # Errors
            /// `UnknownName` when no value has this name.
            fn from_str(text: &str) -> Result<Self, $crate::abi::UnknownName> {
                Self::ALL.iter().copied().find(|v| v.name().eq_ignore_ascii_case(text))
                    .ok_or($crate::abi::UnknownName { what: $what, known: &[$($text),*] })
            }
        }
    };
}

/// A name that is not of the set it was looked up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// What was looked up: `"data type"`, `"protocol"`, ...
    pub what: &'static str,
    /// The names there are.
    pub known: &'static [&'static str],
}

impl core::fmt::Display for UnknownName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "unknown {}; one of", self.what)?;
        self.known.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

impl core::error::Error for UnknownName {}

names! {
    /// The type of a buffer's elements (NCCL's `ncclDataType_t`).
    pub enum DataType ("data type") {
        /// Signed 8-bit integer.
        I8 = "int8",
        /// Unsigned 8-bit integer.
        U8 = "uint8",
        /// Signed 32-bit integer.
        I32 = "int32",
        /// Unsigned 32-bit integer.
        U32 = "uint32",
        /// Signed 64-bit integer.
        I64 = "int64",
        /// Unsigned 64-bit integer.
        U64 = "uint64",
        /// IEEE 754 binary16.
        F16 = "half",
        /// bfloat16: the upper half of a binary32.
        Bf16 = "bfloat16",
        /// IEEE 754 binary32.
        F32 = "float",
        /// IEEE 754 binary64.
        F64 = "double",
        /// A float of 8 bits, 3 of them mantissa: up to 448, no infinity.
        F8E4M3 = "f8e4m3",
        /// A float of 8 bits, 2 of them mantissa: binary16's upper half.
        F8E5M2 = "f8e5m2",
    }
}

impl DataType {
    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::F8E4M3 | DataType::F8E5M2 => 1,
            DataType::F16 | DataType::Bf16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }

    /// Whether its elements are floating-point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        match self {
            DataType::I8
            | DataType::U8
            | DataType::I32
            | DataType::U32
            | DataType::I64
            | DataType::U64 => false,
            DataType::F16
            | DataType::Bf16
            | DataType::F32
            | DataType::F64
            | DataType::F8E4M3
            | DataType::F8E5M2 => true,
        }
    }
}

names! {
    /// How the ranks' elements are combined (NCCL's `ncclRedOp_t`).
    pub enum ReduceOp ("reduction") {
        /// Sum; integers wrap.
        Sum = "sum",
        /// Product; integers wrap.
        Prod = "prod",
        /// Smallest; of a NaN and a number, the number; -0 is smaller than +0.
        Min = "min",
        /// Largest; of a NaN and a number, the number; +0 is larger than -0.
        Max = "max",
        /// Average: a float is multiplied by 1/ranks before it is summed, an integer's (wrapping) sum is
        /// divided by ranks, truncating towards zero.
        Avg = "avg",
        /// Pre-multiplied sum: each rank multiplies its own values by a scalar before they are summed; integers
        /// wrap. The scalar comes with the call.
        PreMulSum = "mulsum",
    }
}

impl ReduceOp {
    /// Whether each rank's own value is scaled before it is combined, where elements are floats.
    #[must_use]
    pub const fn scales(self) -> bool {
        matches!(self, ReduceOp::Avg | ReduceOp::PreMulSum)
    }
}

names! {
    /// What a call does.
    pub enum Collective ("collective") {
        /// Every rank gets the reduction of all ranks' buffers.
        AllReduce = "all_reduce",
        /// Every rank gets all ranks' buffers.
        AllGather = "all_gather",
        /// Every rank gets its part of the reduction of all ranks' buffers.
        ReduceScatter = "reduce_scatter",
        /// Every rank gets the root's buffer.
        Broadcast = "broadcast",
        /// The root gets the reduction of all ranks' buffers.
        Reduce = "reduce",
        /// Pairs of ranks pass buffers: one sends, the other receives.
        SendRecv = "sendrecv",
        /// No rank goes on before all have come.
        Barrier = "barrier",
        /// Every rank gets a block of each rank's buffer.
        AllToAll = "all_to_all",
    }
}

impl Collective {
    /// How much more (or less) than a call's bytes each link must carry: `busbw` is `algbw` times this.
    /// Source: the performance page of nccl-tests.
    ///
    /// ```
    /// use ferroccl_device::abi::Collective;
    ///
    /// assert_eq!(Collective::AllReduce.bus_factor(8), 1.75);
    /// assert_eq!(Collective::Broadcast.bus_factor(8), 1.0);
    /// ```
    #[must_use]
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(if ranks == 0 { 1 } else { ranks });
        match self {
            Collective::AllReduce | Collective::Barrier => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => {
                (n - 1.0) / n
            }
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
        }
    }
}

/// How a collective goes about it (`NCCL_ALGO`). The first four are in the order of NCCL's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Up a tree and down again.
    Tree,
    /// Around a ring of all ranks.
    Ring,
    /// Within a node every GPU to every other, between nodes a network that reduces.
    CollnetDirect,
    /// Within a node along a chain, between nodes a network that reduces.
    CollnetChain,
    /// Within a node to its first rank, between these around a ring, and back.
    Hierarchical,
    /// Every rank to every other, in one step.
    OneShot,
    /// Every rank reduces its part of what all others send it, and sends it to all others.
    TwoShot,
    /// Straight from and to the buffers of all ranks, which each has registered as a window.
    Direct,
    /// As [`Algorithm::Direct`], by a switch that sends what is stored to all ranks and sums what it loads from all (NVLink
    /// SHARP): windows that have a multicast object.
    Nvls,
    /// To ranks at distances of 1, 2, 4, ...: as many steps as the number of ranks has binary digits
    /// (NCCL's PAT is of this kind).
    Bruck,
    /// Along the ranks from 0 to the last, and on around the ring: whatever the size, values are combined in the
    /// order of the ranks.
    Chain,
    /// In pairs at distances of 1, 2, 4, ..., each with all that it has: recursive doubling.
    Doubling,
    /// Who has data sends it to all who want it, one after the other.
    Linear,
    /// One of another crate.
    Own(OwnAlgorithm),
}

impl Algorithm {
    /// The library's, in the order of their indices.
    pub const ALL: &'static [Algorithm] = &[
        Self::Tree,
        Self::Ring,
        Self::CollnetDirect,
        Self::CollnetChain,
        Self::Hierarchical,
        Self::OneShot,
        Self::TwoShot,
        Self::Direct,
        Self::Nvls,
        Self::Bruck,
        Self::Chain,
        Self::Doubling,
        Self::Linear,
    ];
    /// The names of the library's.
    const NAMES: &'static [&'static str] = &[
        "Tree",
        "Ring",
        "CollnetDirect",
        "CollnetChain",
        "Hierarchical",
        "OneShot",
        "TwoShot",
        "Direct",
        "NVLS",
        "Bruck",
        "Chain",
        "Doubling",
        "Linear",
    ];
    /// Algorithms that there can be, those of other crates included.
    pub const MOST: usize = Self::ALL.len() + OwnAlgorithm::MOST as usize;

    /// One of another crate; see [`OwnAlgorithm::new`].
    ///
    /// ```
    /// use ferroccl_device::abi::Algorithm;
    ///
    /// const HALVING: Algorithm = Algorithm::own(0, "Halving");
    /// assert_eq!((HALVING.name(), HALVING.index()), ("Halving", 13));
    /// ```
    #[must_use]
    pub const fn own(number: u8, name: &'static str) -> Self {
        Algorithm::Own(OwnAlgorithm::new(number, name))
    }

    /// Its place in tables of algorithms, less than [`Algorithm::MOST`]: the library's come first.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Algorithm::Tree => 0,
            Algorithm::Ring => 1,
            Algorithm::CollnetDirect => 2,
            Algorithm::CollnetChain => 3,
            Algorithm::Hierarchical => 4,
            Algorithm::OneShot => 5,
            Algorithm::TwoShot => 6,
            Algorithm::Direct => 7,
            Algorithm::Nvls => 8,
            Algorithm::Bruck => 9,
            Algorithm::Chain => 10,
            Algorithm::Doubling => 11,
            Algorithm::Linear => 12,
            Algorithm::Own(OwnAlgorithm { number, .. }) => {
                let last = OwnAlgorithm::MOST - 1;
                Self::ALL.len() + (if number < last { number } else { last }) as usize
            }
        }
    }

    /// The algorithm with this index, or `None` when there is none. The name of another crate's is not known then.
    #[must_use]
    pub fn from_index(index: u64) -> Option<Self> {
        let index = usize::try_from(index).ok()?;
        if let Some(known) = Self::ALL.get(index) {
            return Some(*known);
        }
        let number = u8::try_from(index - Self::ALL.len()).ok()?;
        (number < OwnAlgorithm::MOST).then(|| Self::own(number, ""))
    }

    /// Its name on command lines. Empty for another crate's of which only the index is known.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Own(OwnAlgorithm { name, .. }) => name,
            known => Self::NAMES[known.index()],
        }
    }
}

impl core::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Algorithm::Own(OwnAlgorithm { number, name: "" }) => {
                write!(f, "own algorithm {number}")
            }
            known => f.pad(known.name()),
        }
    }
}

impl core::str::FromStr for Algorithm {
    type Err = UnknownName;

    /// Reads the name of one of the library's, whatever the case.
    ///
    /// # Errors
    /// `UnknownName` when no value has this name.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let named = |a: &Algorithm| a.name().eq_ignore_ascii_case(text);
        let unknown = UnknownName { what: "algorithm", known: Self::NAMES };
        Self::ALL.iter().copied().find(named).ok_or(unknown)
    }
}

impl Algorithm {
    /// Whether its kernels work on the buffers of all ranks, which are in windows.
    #[must_use]
    pub const fn is_on_windows(self) -> bool {
        matches!(self, Algorithm::Direct | Algorithm::Nvls)
    }

    /// Whether its kernels talk to all other ranks at once, over the mesh.
    #[must_use]
    pub const fn is_over_mesh(self) -> bool {
        matches!(self, Algorithm::OneShot | Algorithm::TwoShot) || self.is_on_windows()
    }
}

/// How two ranks hand over data (`NCCL_PROTO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProtocolId {
    /// Low latency: every 8 bytes carry 4 bytes of flag, nothing else is needed.
    Ll,
    /// Low latency on 128-byte lines: 120 bytes of data, 8 of flag.
    Ll128,
    /// Slots of plain data, a step counter published after a fence.
    Simple,
    /// One of another crate, with buffers of its own.
    Own(OwnProtocol),
}

impl ProtocolId {
    /// The library's, in the order of their indices.
    pub const ALL: &'static [ProtocolId] = &[Self::Ll, Self::Ll128, Self::Simple];
    /// Protocols that a connection has buffers for, those of other crates included.
    pub const MOST: usize = Self::ALL.len() + OwnProtocol::MOST as usize;

    /// One of another crate; see [`OwnProtocol::new`].
    ///
    /// ```
    /// use ferroccl_device::abi::ProtocolId;
    ///
    /// const LL64: ProtocolId = ProtocolId::own(0, "LL64");
    /// assert_eq!((LL64.name(), LL64.index()), ("LL64", 3));
    /// ```
    #[must_use]
    pub const fn own(number: u8, name: &'static str) -> Self {
        ProtocolId::Own(OwnProtocol::new(number, name))
    }

    /// Its place in tables of protocols, less than [`ProtocolId::MOST`]: the library's come first.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            ProtocolId::Ll => 0,
            ProtocolId::Ll128 => 1,
            ProtocolId::Simple => 2,
            ProtocolId::Own(OwnProtocol { number, .. }) => {
                let last = OwnProtocol::MOST - 1;
                Self::ALL.len() + (if number < last { number } else { last }) as usize
            }
        }
    }

    /// The protocol with this index, or `None` when there is none. The name of another crate's is not known then.
    #[must_use]
    pub fn from_index(index: u64) -> Option<Self> {
        let index = usize::try_from(index).ok()?;
        if let Some(known) = Self::ALL.get(index) {
            return Some(*known);
        }
        let number = u8::try_from(index - Self::ALL.len()).ok()?;
        (number < OwnProtocol::MOST).then(|| Self::own(number, ""))
    }

    /// Its name on command lines, and in kernel names. Empty for another crate's of which only the index is known.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ProtocolId::Ll => "LL",
            ProtocolId::Ll128 => "LL128",
            ProtocolId::Simple => "Simple",
            ProtocolId::Own(OwnProtocol { name, .. }) => name,
        }
    }
}

impl core::fmt::Display for ProtocolId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ProtocolId::Own(OwnProtocol { number, name: "" }) => write!(f, "own protocol {number}"),
            known => f.pad(known.name()),
        }
    }
}

impl core::str::FromStr for ProtocolId {
    type Err = UnknownName;

    /// Reads the name of one of the library's, whatever the case.
    ///
    /// # Errors
    /// `UnknownName` when no value has this name.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let named = |p: &ProtocolId| p.name().eq_ignore_ascii_case(text);
        let unknown = UnknownName { what: "protocol", known: &["LL", "LL128", "Simple"] };
        Self::ALL.iter().copied().find(named).ok_or(unknown)
    }
}

/// Which one of another crate: a number and a name.
macro_rules! own {
    ($($(#[$m:meta])* pub struct $name:ident, $most:literal;)*) => { $(
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            number: u8,
            name: &'static str,
        }

        impl $name {
            /// How many a communicator can have at a time.
            pub const MOST: u8 = $most;

            /// `number` is less than [`Self::MOST`], and another one than that of each other one that the same communicator has. The
            /// communicator checks that when it is made.
            #[must_use]
            pub const fn new(number: u8, name: &'static str) -> Self {
                Self { number, name }
            }

            /// Its number.
            #[must_use]
            pub const fn number(self) -> u8 {
                self.number
            }

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                self.name
            }
        }
    )* };
}
own! {
    /// Which protocol of another crate: a number among those of a communicator, and a name.
    pub struct OwnProtocol, 5;
    /// Which algorithm of another crate: a number among those of a communicator, and a name.
    pub struct OwnAlgorithm, 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_indices_and_names() {
        for (i, &p) in ProtocolId::ALL.iter().enumerate() {
            assert_eq!((p.index(), ProtocolId::from_index(i as u64)), (i, Some(p)));
            assert_eq!(p.name().to_lowercase().parse::<ProtocolId>(), Ok(p));
        }
        let own = ProtocolId::own(4, "LL64");
        assert_eq!((own.index(), own.to_string()), (7, "LL64".to_owned()));
        assert_eq!(ProtocolId::from_index(7).unwrap().to_string(), "own protocol 4");
        assert_eq!((ProtocolId::from_index(8), ProtocolId::own(9, "").index()), (None, 7));
        assert!("LL64".parse::<ProtocolId>().is_err());
    }

    #[test]
    fn algorithms_have_indices_and_names() {
        for (i, &a) in Algorithm::ALL.iter().enumerate() {
            assert_eq!((a.index(), Algorithm::from_index(i as u64)), (i, Some(a)));
            assert_eq!(a.name().to_lowercase().parse::<Algorithm>(), Ok(a));
        }
        let own = Algorithm::own(3, "Halving");
        assert_eq!((own.index(), own.to_string()), (Algorithm::MOST - 1, "Halving".to_owned()));
        let index = own.index() as u64;
        assert_eq!(Algorithm::from_index(index).unwrap().to_string(), "own algorithm 3");
        assert_eq!(Algorithm::from_index(index + 1), None);
        let unknown = "Halving".parse::<Algorithm>().unwrap_err().to_string();
        assert!(unknown.contains("Tree Ring CollnetDirect"), "{unknown}");
    }

    #[test]
    fn names_read_back() {
        for &t in DataType::ALL {
            assert_eq!(t.name().to_uppercase().parse::<DataType>(), Ok(t));
            assert_eq!(DataType::from_index(t as u64), Some(t));
        }
        let e = "f99".parse::<DataType>().unwrap_err();
        assert!(e.to_string().starts_with("unknown data type; one of int8"), "{e}");
        assert_eq!(DataType::from_index(u64::MAX), None);
    }
}
