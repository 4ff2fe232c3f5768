//! From the number of a data type to a Rust type.

use ferroccl::DataType;

use crate::answer::Failure;
use crate::types::ncclDataType_t;

/// The type of this number.
pub(crate) fn data_type(number: ncclDataType_t) -> Result<DataType, Failure> {
    Ok(match number {
        0 => DataType::I8,
        1 => DataType::U8,
        2 => DataType::I32,
        3 => DataType::U32,
        4 => DataType::I64,
        5 => DataType::U64,
        6 => DataType::F16,
        7 => DataType::F32,
        8 => DataType::F64,
        9 => DataType::Bf16,
        10 => DataType::F8E4M3,
        11 => DataType::F8E5M2,
        _ => return Err(Failure::argument("datatype", format!("{number} is no ncclDataType_t"))),
    })
}

/// `$body`, with `$t` for the element type of `$data_type`.
macro_rules! typed {
    ($data_type:expr, $t:ident => $body:expr) => {{
        use ::ferroccl::DataType as D;
        match $data_type {
            D::I8 => {
                type $t = i8;
                $body
            }
            D::U8 => {
                type $t = u8;
                $body
            }
            D::I32 => {
                type $t = i32;
                $body
            }
            D::U32 => {
                type $t = u32;
                $body
            }
            D::I64 => {
                type $t = i64;
                $body
            }
            D::U64 => {
                type $t = u64;
                $body
            }
            D::F16 => {
                type $t = ::half::f16;
                $body
            }
            D::F32 => {
                type $t = f32;
                $body
            }
            D::F64 => {
                type $t = f64;
                $body
            }
            D::Bf16 => {
                type $t = ::half::bf16;
                $body
            }
            D::F8E4M3 => {
                type $t = ::ferroccl::F8E4M3;
                $body
            }
            D::F8E5M2 => {
                type $t = ::ferroccl::F8E5M2;
                $body
            }
        }
    }};
}
