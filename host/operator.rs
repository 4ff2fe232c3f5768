//! Operators of reductions, with their scalars.

use std::sync::Arc;

use ferroccl_device::abi::{DataType, ReduceOp};

use crate::buffer::{DeviceBuffer, Element};
use crate::error::{Error, Result};
use crate::runtime::Memory;

/// The operator of a reduction of elements of type `T`: a [`ReduceOp`], or a pre-multiplied sum with its scalar (NCCL's
/// `ncclRedOpCreatePreMulSum`).
///
/// In a pre-multiplied sum each rank multiplies its own values by its own scalar, and the products are
/// summed. Small floats are multiplied in f32 and rounded once; integers wrap. The ranks may have different scalars, some
/// of them in the memory of the host and some in that of the device.
///
/// ```
/// use ferroccl::{Communicator, Device, Operator, ReduceOp};
///
/// let device = Device::cpu();
/// let ranks = Communicator::init_all(&device, 2)?;
/// let (a, b) = (device.stream()?, device.stream()?);
/// let (x, y) = (device.upload(&[1.0f32, 2.0])?, device.upload(&[10.0f32, 20.0])?);
///
/// let half = device.upload(&[0.5f32])?; // might come out of another kernel
/// ranks[0].all_reduce(&x, &x, Operator::pre_mul_sum(3.0), &a)?;
/// ranks[1].all_reduce(&y, &y, Operator::pre_mul_sum_at(&half), &b)?;
/// assert_eq!(x.to_vec(&a)?, [8.0, 16.0]);
///
/// ranks[0].all_reduce(&x, &x, ReduceOp::Max, &a)?;
/// ranks[1].all_reduce(&y, &y, ReduceOp::Max, &b)?;
/// # b.synchronize()?; a.synchronize()?;
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Operator<T> {
    op: ReduceOp,
    factor: ScalarSource<T>,
}

#[derive(Clone, Debug)]
enum ScalarSource<T> {
    None,
    Host(T),
    Device(DeviceBuffer<T>),
}

impl<T> From<ReduceOp> for Operator<T> {
    /// The operator without a scalar. A call with [`ReduceOp::PreMulSum`] fails, because that needs one.
    fn from(op: ReduceOp) -> Self {
        Operator { op, factor: ScalarSource::None }
    }
}

impl<T: Element> Operator<T> {
    /// A pre-multiplied sum by `factor`.
    #[must_use]
    pub fn pre_mul_sum(factor: T) -> Self {
        Operator { op: ReduceOp::PreMulSum, factor: ScalarSource::Host(factor) }
    }

    /// A pre-multiplied sum by the first element of `factor`, as it is when the call runs. The buffer's memory is kept
    /// until the call has ended. The element must not be written meanwhile.
    #[must_use]
    pub fn pre_mul_sum_at(factor: &DeviceBuffer<T>) -> Self {
        Operator { op: ReduceOp::PreMulSum, factor: ScalarSource::Device(factor.clone()) }
    }

    /// The operator without its scalar.
    #[must_use]
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// The scalar that the kernel of a call of `ranks` ranks gets.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] named `op` when the scalar is missing, or its buffer is empty.
    pub(crate) fn scalar(&self, ranks: u32) -> Result<ScalarArg> {
        let by_value = |value| ScalarArg { value, by_address: false, keep: None };
        match &self.factor {
            ScalarSource::Host(factor) => Ok(by_value(factor.scalar())),
            ScalarSource::Device(factor) if factor.is_empty() => {
                Err(Error::argument("op", "the buffer of its scalar is empty"))
            }
            ScalarSource::Device(factor) => Ok(ScalarArg {
                value: factor.address(),
                by_address: true,
                keep: Some(Arc::clone(factor.memory())),
            }),
            ScalarSource::None => match self.op {
                ReduceOp::PreMulSum => {
                    Err(Error::argument("op", "mulsum needs a scalar: Operator::pre_mul_sum"))
                }
                ReduceOp::Avg => Ok(by_value(mean(T::TYPE, ranks))),
                ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Min | ReduceOp::Max => Ok(by_value(0)),
            },
        }
    }
}

/// The scalar of an average: a factor for floats, the number of ranks for integers.
fn mean(data_type: DataType, ranks: u32) -> u64 {
    match data_type {
        DataType::F64 => (1.0 / f64::from(ranks)).to_bits(),
        float if float.is_float() => (1.0 / ranks as f32).to_bits().into(),
        _ => ranks.into(),
    }
}

/// The scalar of a call, as in [`Work`](ferroccl_device::abi::Work).
#[derive(Clone, Debug)]
pub(crate) struct ScalarArg {
    /// Its bits, or its address.
    pub(crate) value: u64,
    /// Whether `value` is an address in device memory.
    pub(crate) by_address: bool,
    /// The memory at that address, which is kept until the call has ended.
    pub(crate) keep: Option<Arc<dyn Memory>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    fn value<T: Element>(op: impl Into<Operator<T>>) -> u64 {
        op.into().scalar(3).expect("a scalar").value
    }

    #[test]
    fn scalars_are_wide_and_extended_with_zeros() {
        let single = |value: f32| u64::from(value.to_bits());
        assert_eq!(value::<f32>(ReduceOp::Avg), single(1.0 / 3.0));
        assert_eq!(value::<half::f16>(ReduceOp::Avg), single(1.0 / 3.0));
        assert_eq!(value::<ferroccl_device::element::F8E5M2>(ReduceOp::Avg), single(1.0 / 3.0));
        assert_eq!(value::<f64>(ReduceOp::Avg), (1.0f64 / 3.0).to_bits());
        assert_eq!(value::<i64>(ReduceOp::Avg), 3);
        assert_eq!(value(Operator::pre_mul_sum(-2i8)), 0xfe);
        assert_eq!(value(Operator::pre_mul_sum(-2i32)), 0xffff_fffe);
        assert_eq!(value(Operator::pre_mul_sum(half::bf16::from_f32(-2.0))), single(-2.0));
        assert_eq!(
            value(Operator::pre_mul_sum(ferroccl_device::element::F8E4M3::from(0.5))),
            single(0.5)
        );
    }

    #[test]
    fn a_scalar_must_be_there() {
        let error = Operator::<f32>::from(ReduceOp::PreMulSum).scalar(2).expect_err("no scalar");
        assert!(matches!(error, Error::InvalidArgument { argument: "op", .. }), "{error}");
        let empty = Device::cpu().alloc::<u8>(0).expect("a buffer");
        let error = Operator::pre_mul_sum_at(&empty).scalar(2).expect_err("an empty buffer");
        assert!(error.to_string().contains("op: the buffer of its scalar is empty"), "{error}");
    }

    #[test]
    fn a_scalar_in_device_memory_is_an_address() {
        let buffer = Device::cpu().upload(&[1i32, 2]).expect("a buffer");
        let scalar = Operator::pre_mul_sum_at(&buffer.slice(1..)).scalar(2).expect("a scalar");
        assert_eq!((scalar.value, scalar.by_address), (buffer.address() + 4, true));
        assert!(scalar.keep.is_some_and(|memory| Arc::ptr_eq(&memory, buffer.memory())));
    }
}
