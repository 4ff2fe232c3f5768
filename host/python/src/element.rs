//! Types of elements: of Python's buffers and of torch's tensors.

use std::ffi::CStr;

use ferroccl::{DataType, Element, F8E4M3, F8E5M2, ReduceOp};
use half::{bf16, f16};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementType {
    /// One that the library reduces.
    Known(DataType),
    /// A truth value, a byte of 0 or 1: its sum is "or", its product "and".
    Bool,
    /// A complex number of two floats: there are sums of such.
    Complex(DataType),
    /// So many bytes, which calls move and do not reduce.
    Opaque(usize),
}
use ElementType::{Bool, Complex, Known, Opaque};

/// All of them by the names that `ferroccl.torch` knows them by. Opaque ones are those of 1, 2, 4, 8 and 16 bytes.
const NUMBERED: [(&str, ElementType); 20] = [
    ("int8", Known(DataType::I8)),
    ("uint8", Known(DataType::U8)),
    ("int32", Known(DataType::I32)),
    ("uint32", Known(DataType::U32)),
    ("int64", Known(DataType::I64)),
    ("uint64", Known(DataType::U64)),
    ("float16", Known(DataType::F16)),
    ("bfloat16", Known(DataType::Bf16)),
    ("float32", Known(DataType::F32)),
    ("float64", Known(DataType::F64)),
    ("float8_e4m3fn", Known(DataType::F8E4M3)),
    ("float8_e5m2", Known(DataType::F8E5M2)),
    ("bool", Bool),
    ("complex64", Complex(DataType::F32)),
    ("complex128", Complex(DataType::F64)),
    ("opaque1", Opaque(1)),
    ("opaque2", Opaque(2)),
    ("opaque4", Opaque(4)),
    ("opaque8", Opaque(8)),
    ("opaque16", Opaque(16)),
];

/// The numbers of the types, by name.
pub(crate) fn numbers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    NUMBERED.iter().enumerate().try_for_each(|(i, (name, _))| dict.set_item(name, i))?;
    Ok(dict)
}

impl ElementType {
    pub(crate) fn numbered(number: usize) -> Option<Self> {
        NUMBERED.get(number).map(|(_, element)| *element)
    }

    /// The type that a buffer's format and size say (the module `struct` has the formats).
    pub(crate) fn of_format(format: &CStr, size: usize) -> Result<Self, String> {
        let text = format.to_string_lossy();
        let native = text.strip_prefix(['@', '=']).unwrap_or(&text);
        let little = native.strip_prefix('<');
        let foreign =
            native.starts_with(['>', '!']) || (little.is_some() && cfg!(target_endian = "big"));
        if foreign && size > 1 {
            return Err(format!(
                "its bytes are in another order than this machine's (format {text})"
            ));
        }
        let integer = |signed| {
            Ok(match (signed, size) {
                (true, 1) => Known(DataType::I8),
                (true, 4) => Known(DataType::I32),
                (true, 8) => Known(DataType::I64),
                (false, 1) => Known(DataType::U8),
                (false, 4) => Known(DataType::U32),
                (false, 8) => Known(DataType::U64),
                (_, size) => Opaque(size),
            })
        };
        match little.unwrap_or(native) {
            "b" | "h" | "i" | "l" | "q" | "n" => integer(true),
            "B" | "H" | "I" | "L" | "Q" | "N" => integer(false),
            "e" => Ok(Known(DataType::F16)),
            "f" => Ok(Known(DataType::F32)),
            "d" => Ok(Known(DataType::F64)),
            "Zf" => Ok(Complex(DataType::F32)),
            "Zd" => Ok(Complex(DataType::F64)),
            "?" => Ok(Bool),
            "O" => Err("its elements are Python objects".to_owned()),
            _ => Ok(Opaque(size)),
        }
    }

    /// What errors call it.
    pub(crate) fn name(self) -> &'static str {
        let found = NUMBERED.iter().find(|(_, element)| *element == self);
        found.map_or("of unknown size", |(name, _)| name)
    }

    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        match self {
            Known(data_type) => data_type.size(),
            Bool => 1,
            Complex(part) => 2 * part.size(),
            Opaque(size) => size,
        }
    }

    /// The type by which elements are moved: a whole number of its elements makes one.
    pub(crate) fn moved(self) -> DataType {
        match self {
            Known(data_type) | Complex(data_type) => data_type,
            Bool | Opaque(_) => DataType::U8,
        }
    }

    /// The type and the operator by which elements are reduced.
    pub(crate) fn reduced(self, op: ReduceOp) -> Result<(DataType, ReduceOp), String> {
        match self {
            Known(data_type) => Ok((data_type, op)),
            Bool => match op {
                ReduceOp::Sum | ReduceOp::Max => Ok((DataType::U8, ReduceOp::Max)),
                ReduceOp::Prod | ReduceOp::Min => Ok((DataType::U8, ReduceOp::Min)),
                ReduceOp::Avg | ReduceOp::PreMulSum => Err(format!("there is no {op} of booleans")),
            },
            Complex(part) => match op {
                ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => Ok((part, op)),
                _ => Err(format!("there is no {op} of complex numbers")),
            },
            Opaque(size) => Err(format!(
                "elements of this type, of {size} bytes, cannot be reduced: integers of 8, 32 and 64 bits and floats can"
            )),
        }
    }
}

/// An element made of a factor.
pub(crate) trait OfFactor: Element {
    fn of_factor(factor: f64) -> Self;
}

macro_rules! of_factor {
    ($($t:ty: |$f:ident| $value:expr;)*) => { $(
        impl OfFactor for $t {
            fn of_factor($f: f64) -> Self {
                $value
            }
        }
    )* };
}
of_factor! {
    i8: |f| f as i8;
    u8: |f| f as u8;
    i32: |f| f as i32;
    u32: |f| f as u32;
    i64: |f| f as i64;
    u64: |f| f as u64;
    f16: |f| f16::from_f64(f);
    bf16: |f| bf16::from_f64(f);
    f32: |f| f as f32;
    f64: |f| f;
    F8E4M3: |f| F8E4M3::from(f as f32);
    F8E5M2: |f| F8E5M2::from(f as f32);
}

/// `$body`, with `$t` for the Rust type of a [`DataType`].
macro_rules! typed {
    ($data_type:expr, $t:ident => $body:expr) => {
        typed!(@ $data_type, $t, $body,
            I8 i8, U8 u8, I32 i32, U32 u32, I64 i64, U64 u64, F16 ::half::f16, Bf16 ::half::bf16, F32 f32, F64 f64,
            F8E4M3 ::ferroccl::F8E4M3, F8E5M2 ::ferroccl::F8E5M2)
    };
    (@ $data_type:expr, $t:ident, $body:expr, $($name:ident $rust:ty),*) => {
        match $data_type {
            $(::ferroccl::DataType::$name => {
                type $t = $rust;
                $body
            })*
        }
    };
}
