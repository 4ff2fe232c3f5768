//! How a function of values becomes a function of registers.
//!
//! [`Lane`] says what the 64 bits of a lane are read as. The macros put a body between reading and
//! writing and loop over the lanes: each use is a function of its own, in which types, roundings and
//! flags are constants. Nothing is decided in the loop, so it can be vectorised.

use crate::types::Type;

/// A value that a lane of a register holds.
pub(super) trait Lane: Copy {
    /// Its type in PTX.
    const TYPE: Type;

    /// The value of a register's low bits.
    fn read(bits: u64) -> Self;

    /// Its bits, zero-extended.
    fn write(self) -> u64;
}

macro_rules! integers {
    ($($T:ident $unsigned:ident $name:ident;)*) => {
        $(impl Lane for $T {
            const TYPE: Type = Type::$name;

            #[inline(always)]
            fn read(bits: u64) -> $T {
                bits as $T
            }

            #[inline(always)]
            fn write(self) -> u64 {
                self as $unsigned as u64
            }
        })*
    };
}
integers! {
    u8 u8 U8; u16 u16 U16; u32 u32 U32; u64 u64 U64;
    i8 u8 S8; i16 u16 S16; i32 u32 S32; i64 u64 S64;
}

impl Lane for f32 {
    const TYPE: Type = Type::F32;

    #[inline(always)]
    fn read(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }

    #[inline(always)]
    fn write(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Lane for f64 {
    const TYPE: Type = Type::F64;

    #[inline(always)]
    fn read(bits: u64) -> f64 {
        f64::from_bits(bits)
    }

    #[inline(always)]
    fn write(self) -> u64 {
        self.to_bits()
    }
}

/// A value of which two fit a packed type.
pub(super) trait Packed: Lane {
    /// The packed type.
    const PAIR: Type;
}

impl Packed for u16 {
    const PAIR: Type = Type::U16x2;
}

impl Packed for i16 {
    const PAIR: Type = Type::S16x2;
}

impl Packed for f32 {
    const PAIR: Type = Type::F32x2;
}

/// Two values in one register, the lower half first.
#[derive(Clone, Copy)]
pub(super) struct Pair<T>(pub(super) T, pub(super) T);

impl<T: Packed> Lane for Pair<T> {
    const TYPE: Type = T::PAIR;

    #[inline(always)]
    fn read(bits: u64) -> Pair<T> {
        let half = T::TYPE.bits();
        Pair(T::read(bits & ((1 << half) - 1)), T::read(bits >> half))
    }

    #[inline(always)]
    fn write(self) -> u64 {
        self.0.write() | self.1.write() << T::TYPE.bits()
    }
}

/// The types of the sources, filled up to four.
pub(super) const fn from<const N: usize>(types: [Type; N]) -> [Type; 4] {
    let mut four = [Type::B32; 4];
    let mut i = 0;
    while i < N {
        four[i] = types[i];
        i += 1;
    }
    four
}

/// An instruction that computes a value: `value!(|a: u32, b: u32| -> u32 { a & b })`.
macro_rules! value {
    (|$($x:ident: $X:ty),+| -> $R:ty $body:block) => {{
        use $crate::emu::alu::lanes::{Lane, from};
        $crate::emu::alu::Alu {
            kind: $crate::emu::alu::Kind::Value(|d, s| {
                for i in 0..32 {
                    let mut _source = 0;
                    $(
                        let $x = <$X as Lane>::read(s[_source][i]);
                        _source += 1;
                    )+
                    let r: $R = $body;
                    d[i] = <$R as Lane>::write(r);
                }
            }),
            to: <$R as Lane>::TYPE,
            from: from([$(<$X as Lane>::TYPE),+]),
            sources: [$(<$X as Lane>::TYPE),+].len(),
        }
    }};
}

/// The same with the carry flag, before and after: `carry!(|a: u32, flag| -> u32 { (a, flag) })`.
macro_rules! carry {
    (|$($x:ident: $X:ty),+; $flag:ident| -> $R:ty $body:block) => {{
        use $crate::emu::alu::lanes::{Lane, from};
        $crate::emu::alu::Alu {
            kind: $crate::emu::alu::Kind::Carry(|d, s, flags| {
                let before = *flags;
                let mut after = 0;
                for i in 0..32 {
                    let mut _source = 0;
                    $(
                        let $x = <$X as Lane>::read(s[_source][i]);
                        _source += 1;
                    )+
                    let $flag = before >> i & 1 != 0;
                    let (r, carry): ($R, bool) = $body;
                    d[i] = <$R as Lane>::write(r);
                    after |= u32::from(carry) << i;
                }
                *flags = after;
            }),
            to: <$R as Lane>::TYPE,
            from: from([$(<$X as Lane>::TYPE),+]),
            sources: [$(<$X as Lane>::TYPE),+].len(),
        }
    }};
}

/// An instruction that compares: `compare!(Combine::No, |a: u32, b: u32| a < b)`.
macro_rules! compare {
    ($combine:expr, |$($x:ident: $X:ty),+| $body:expr) => {{
        use $crate::emu::alu::lanes::{Lane, from};
        $crate::emu::alu::Alu {
            kind: $crate::emu::alu::Kind::Compare(
                |s| {
                    let mut truths = 0;
                    for i in 0..32 {
                        let mut _source = 0;
                        $(
                            let $x = <$X as Lane>::read(s[_source][i]);
                            _source += 1;
                        )+
                        let truth: bool = $body;
                        truths |= u32::from(truth) << i;
                    }
                    truths
                },
                $combine,
            ),
            to: $crate::types::Type::Pred,
            from: from([$(<$X as Lane>::TYPE),+]),
            sources: [$(<$X as Lane>::TYPE),+].len(),
        }
    }};
}

/// The type that holds a value of a PTX type.
macro_rules! held {
    (U8) => { u8 };
    (U16) => { u16 };
    (U32) => { u32 };
    (U64) => { u64 };
    (B16) => { u16 };
    (B32) => { u32 };
    (B64) => { u64 };
    (S8) => { i8 };
    (S16) => { i16 };
    (S32) => { i32 };
    (S64) => { i64 };
    (U16x2) => { $crate::emu::alu::lanes::Pair<u16> };
    (S16x2) => { $crate::emu::alu::lanes::Pair<i16> };
    (F16) => { $crate::emu::alu::half::F16 };
    (Bf16) => { $crate::emu::alu::half::Bf16 };
    (F16x2) => { $crate::emu::alu::lanes::Pair<$crate::emu::alu::half::F16> };
    (Bf16x2) => { $crate::emu::alu::lanes::Pair<$crate::emu::alu::half::Bf16> };
    (F32) => { f32 };
    (F64) => { f64 };
    (F32x2) => { $crate::emu::alu::lanes::Pair<f32> };
}

/// The body with `T` for what holds values of the type: an `Ok` of it for the types listed, else an error.
macro_rules! for_type {
    ($m:expr, $ty:expr, $T:ident in [$($name:ident)+], $body:expr) => {
        match $ty {
            $($crate::types::Type::$name => {
                type $T = held!($name);
                Ok($body)
            })+
            other => Err($m.wrong(other.name())),
        }
    };
}

/// The body twice, with the flag as a constant.
macro_rules! for_flag {
    ($flag:expr => $C:ident, $body:expr) => {
        if $flag {
            const $C: bool = true;
            $body
        } else {
            const $C: bool = false;
            $body
        }
    };
}

/// The body once for each rounding, with the rounding as a type.
macro_rules! for_rounding {
    ($rounding:expr => $R:ident, $body:expr) => {
        match $rounding {
            $crate::emu::alu::round::Rounding::Nearest => {
                type $R = $crate::emu::alu::round::Nearest;
                $body
            }
            $crate::emu::alu::round::Rounding::Zero => {
                type $R = $crate::emu::alu::round::Zero;
                $body
            }
            $crate::emu::alu::round::Rounding::Down => {
                type $R = $crate::emu::alu::round::Down;
                $body
            }
            $crate::emu::alu::round::Rounding::Up => {
                type $R = $crate::emu::alu::round::Up;
                $body
            }
        }
    };
}

pub(super) use {carry, compare, for_flag, for_rounding, for_type, held, value};
