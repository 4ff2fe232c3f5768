//! Operators of reductions: the built-in ones, and pre-multiplied sums.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicI32, Ordering};

use ferroccl::{DataType, Element, Operator, ReduceOp};

use crate::answer::{Done, Failure, out};
use crate::buffers::buffer;
use crate::handles::{self, Comm};
use crate::typed::data_type;
use crate::types::*;

/// An operator that a program has made.
#[derive(Clone, Debug)]
pub(crate) struct UserOperator {
    data_type: DataType,
    scalar: Scalar,
}

#[derive(Clone, Debug)]
enum Scalar {
    /// Its bytes, as the call that made it found them.
    Host([u8; 8]),
    /// Its address in the device's memory, which is read while a call runs.
    Device(usize),
}

/// The operator of this number, for a call of elements of type `T`.
pub(crate) fn operator<T: Element>(comm: &Comm, op: ncclRedOp_t) -> Result<Operator<T>, Failure> {
    let wrong = |reason: &str| Failure::argument("op", format!("{op} {reason}"));
    let built_in = match op {
        0 => ReduceOp::Sum,
        1 => ReduceOp::Prod,
        2 => ReduceOp::Max,
        3 => ReduceOp::Min,
        4 => ReduceOp::Avg,
        _ => {
            let own = comm.operators.lock().unwrap_or_else(PoisonError::into_inner);
            let own = own.get(&op).ok_or_else(|| {
                wrong(
                    "is neither a ncclRedOp_t nor an operator that was made for this communicator",
                )
            })?;
            if own.data_type != T::TYPE {
                return Err(wrong(&format!(
                    "was made for {}, and the call is of {}",
                    own.data_type,
                    T::TYPE
                )));
            }
            return Ok(match own.scalar {
                Scalar::Host(bytes) => {
                    Operator::pre_mul_sum(bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()]))
                }
                Scalar::Device(address) => {
                    let pointer = std::ptr::with_exposed_provenance(address);
                    Operator::pre_mul_sum_at(&buffer::<T>(&comm.place, "op", pointer, 1)?)
                }
            });
        }
    };
    Ok(built_in.into())
}

export! {
    /// An operator that multiplies what a rank gives by a scalar, and sums.
    answer ncclRedOpCreatePreMulSum, pncclRedOpCreatePreMulSum(
        op: *mut ncclRedOp_t, scalar: *mut c_void, datatype: ncclDataType_t, residence: c_int, comm: ncclComm_t,
    ) {
        /// Numbers of operators, of all communicators: another's is found in none.
        static NEXT: AtomicI32 = AtomicI32::new(ncclNumOps);
        let comm = handles::find(comm)?;
        comm.ready()?;
        let at = out(op, "op")?;
        let data_type = data_type(datatype)?;
        if scalar.is_null() {
            return Err(Failure::argument("scalar", "is NULL"));
        }
        let scalar = match residence {
            // ncclScalarDevice
            0 => {
                typed!(data_type, T => buffer::<T>(&comm.place, "scalar", scalar, 1).map(drop))?;
                Scalar::Device(scalar.expose_provenance())
            }
            // ncclScalarHostImmediate
            1 => {
                let mut bytes = [0; 8];
                scalar.cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr(), data_type.size());
                Scalar::Host(bytes)
            }
            _ => {
                let reason = format!("{residence} is no ncclScalarResidence_t");
                return Err(Failure::argument("residence", reason));
            }
        };
        let mut own = comm.operators.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: only that numbers differ matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        if number < ncclNumOps {
            return Err(Failure::usage("there are no numbers left for operators"));
        }
        own.insert(number, UserOperator { data_type, scalar });
        at.write(number);
        Ok(Done::Yes)
    }

    /// Forgets such an operator. Calls that were made with it keep it.
    answer ncclRedOpDestroy, pncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) {
        let comm = handles::find(comm)?;
        if (0..ncclNumOps).contains(&op) {
            return Err(Failure::argument("op", format!("{op} is a built-in operator")));
        }
        let mut own = comm.operators.lock().unwrap_or_else(PoisonError::into_inner);
        match own.remove(&op) {
            Some(_) => Ok(Done::Yes),
            None => Err(Failure::argument("op", format!("{op} is no operator of this communicator"))),
        }
    }
}
