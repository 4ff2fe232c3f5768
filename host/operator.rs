//! How the values of all ranks become one.

use std::marker::PhantomData;
use std::sync::Arc;

use ferroccl_device::abi::ReduceOp;

use crate::Result;
use crate::buffer::Element;
use crate::runtime::Memory;

/// The operator of a call on elements of type `T`.
#[derive(Clone, Debug)]
pub struct Operator<T> {
    op: ReduceOp,
    marker: PhantomData<T>,
}

impl<T> From<ReduceOp> for Operator<T> {
    fn from(op: ReduceOp) -> Self {
        Operator { op, marker: PhantomData }
    }
}

impl<T: Element> Operator<T> {
    /// What is done.
    #[must_use]
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    pub(crate) fn scalar(&self, ranks: u32) -> Result<Scalar> {
        Ok(Scalar { value: ranks.into(), by_address: false, keep: None })
    }
}

/// The scalar of a call.
#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) value: u64,
    pub(crate) by_address: bool,
    pub(crate) keep: Option<Arc<dyn Memory>>,
}
