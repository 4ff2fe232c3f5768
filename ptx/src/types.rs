//! The types of PTX: what an instruction takes its operands for.
//!
//! Source: PTX ISA 9.0, 5.2.1 "Fundamental Types", 5.2.3 "Alternate Floating-Point Data Formats" and 5.2.5
//! "Packed Data Types".

use std::fmt;

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident $text:literal $bits:literal;)*) => {
        /// A type, as it stands at the end of an instruction's name: `.u32`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Type {
            $($(#[$doc])* $name,)*
        }

        impl Type {
            /// All of them.
            pub const ALL: &[Type] = &[$(Type::$name),*];

            /// Its name, without the dot.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Type::$name => $text,)* }
            }

            /// The type of this name (without the dot), if there is one.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Type> {
                match name { $($text => Some(Type::$name),)* _ => None }
            }

            /// Its width in bits; 1 for a predicate.
            #[must_use]
            pub const fn bits(self) -> u32 {
                match self { $(Type::$name => $bits,)* }
            }
        }
    };
}
types! {
    /// Untyped bits.
    B8 "b8" 8; /// Untyped bits.
    B16 "b16" 16; /// Untyped bits.
    B32 "b32" 32; /// Untyped bits.
    B64 "b64" 64; /// Untyped bits; for atomics, vectors and moves alone.
    B128 "b128" 128; /// Unsigned.
    U8 "u8" 8; /// Unsigned.
    U16 "u16" 16; /// Unsigned.
    U32 "u32" 32; /// Unsigned.
    U64 "u64" 64; /// Two unsigned halves.
    U16x2 "u16x2" 32; /// Signed.
    S8 "s8" 8; /// Signed.
    S16 "s16" 16; /// Signed.
    S32 "s32" 32; /// Signed.
    S64 "s64" 64; /// Two signed halves.
    S16x2 "s16x2" 32; /// IEEE 754 binary16.
    F16 "f16" 16; /// Two binary16.
    F16x2 "f16x2" 32; /// IEEE 754 binary32.
    F32 "f32" 32; /// Two binary32.
    F32x2 "f32x2" 64; /// IEEE 754 binary64.
    F64 "f64" 64; /// bfloat16.
    Bf16 "bf16" 16; /// Two bfloat16.
    Bf16x2 "bf16x2" 32; /// binary32 with a mantissa of 10 bits.
    Tf32 "tf32" 32; /// 8 bits: 4 of exponent, 3 of mantissa.
    E4m3 "e4m3" 8; /// 8 bits: 5 of exponent, 2 of mantissa.
    E5m2 "e5m2" 8; /// Two e4m3.
    E4m3x2 "e4m3x2" 16; /// Two e5m2.
    E5m2x2 "e5m2x2" 16; /// A truth value.
    Pred "pred" 1;
}

impl Type {
    /// Its width in bytes, rounded up.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Whether it is a signed integer.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64 | Type::S16x2)
    }

    /// Whether it is a floating-point type, packed or not.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Type::F16
                | Type::F16x2
                | Type::F32
                | Type::F32x2
                | Type::F64
                | Type::Bf16
                | Type::Bf16x2
                | Type::Tf32
                | Type::E4m3
                | Type::E5m2
                | Type::E4m3x2
                | Type::E5m2x2
        )
    }
}

/// With the dot: `.u32`.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".{}", self.name())
    }
}
