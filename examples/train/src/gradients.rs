//! Gradients that are summed over the ranks while the backward pass goes on, as PyTorch's DistributedDataParallel does it.
//!
//! ```text
//! forward:    parameter ─► watch ─► layer ...            backward:  ... layer ─► gradient ─► watch's backward
//!                                                                                               │ arrived
//!                          bucket 1: the last layers' gradients   ◄──────────────────────────────┤
//!                          bucket 0: the first layers'            ◄──────────────────────────────┘
//!                             │ all of its gradients are there: one group of all-reduces, in place
//!                             ▼
//!                          the stream's, beside the rest of the backward pass ─► finish waits, and gives the sums
//! ```
//!
//! candle has no hooks. [`GradientSync::watch`] is an operation of our own on a parameter, whose backward candle calls with the gradient of
//! the parameter: as soon as it is whole, since candle goes through operations in the reverse order. It gives candle no gradient to go on
//! with, so that candle makes no sum of its own.
//!
//! Copies: gradients are reduced where candle has put them. The operation must return memory of its own in the forward pass, so that each
//! forward pass copies the parameters.
//!
//! Invariant: every rank starts the same buckets in the same order, whichever gradient comes first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, Tensor, TensorId, Var};
use ferroccl::{Communicator, ReduceOp, Stream};

use crate::host_memory::buffer_of;

/// The gradients of a step.
pub struct GradientSync {
    shared: Arc<Shared>,
}

struct Shared {
    comm: Arc<Communicator>,
    stream: Stream,
    parameters: Vec<Var>,
    numbers: HashMap<TensorId, usize>,
    /// Parameters by their numbers, in the order in which buckets are reduced: the last parameters first.
    buckets: Vec<Vec<usize>>,
    /// Backward passes of a step, whose gradients are added before they are summed over the ranks.
    passes: usize,
    step: Mutex<Step>,
}

/// What has come of a step.
struct Step {
    /// Of each parameter the sum of what came, and how many passes that was.
    gradients: Vec<(Option<Tensor>, usize)>,
    /// Buckets that are being reduced.
    started: usize,
}

impl Step {
    fn new(parameters: usize) -> Self {
        Step { gradients: vec![(None, 0); parameters], started: 0 }
    }
}

impl GradientSync {
    /// For these parameters, in the order of the forward pass, in buckets of `bucket_bytes` or more.
    pub fn new(
        comm: Arc<Communicator>,
        stream: Stream,
        parameters: Vec<Var>,
        bucket_bytes: usize,
        passes: usize,
    ) -> Self {
        let (mut buckets, mut bytes) = (Vec::<Vec<usize>>::new(), 0);
        for number in (0..parameters.len()).rev() {
            match buckets.last_mut().filter(|_| bytes < bucket_bytes) {
                Some(bucket) => bucket.push(number),
                None => {
                    buckets.push(vec![number]);
                    bytes = 0;
                }
            }
            bytes += parameters[number].elem_count() * size_of::<f32>();
        }
        let numbers = parameters.iter().enumerate().map(|(i, p)| (p.id(), i)).collect();
        let step = Mutex::new(Step::new(parameters.len()));
        let shared = Shared { comm, stream, parameters, numbers, buckets, passes, step };
        GradientSync { shared: Arc::new(shared) }
    }

    /// The parameter for a forward pass. Where a pass uses it more than once, all uses are of one `watch`.
    pub fn watch(&self, parameter: &Var) -> Result<Tensor> {
        let number = self.shared.numbers.get(&parameter.id()).copied();
        let number = number.ok_or_else(|| Error::msg("not one of the parameters"))?;
        parameter.apply_op1(Watch { shared: Arc::clone(&self.shared), number })
    }

    /// Buckets of this step whose sums have begun.
    pub fn started(&self) -> usize {
        self.shared.step().started
    }

    /// Waits for the sums, and gives them: what candle's optimizers take. The next step begins.
    ///
    /// An error is that of a call, or names a parameter that has no gradient.
    pub fn finish(&self) -> Result<GradStore> {
        let shared = &self.shared;
        let step = std::mem::replace(&mut *shared.step(), Step::new(shared.parameters.len()));
        let waited = shared.stream.synchronize().map_err(Error::wrap);
        if step.started < shared.buckets.len() {
            let lacks = step.gradients.iter().position(|(_, passes)| *passes < shared.passes);
            let lacks = lacks.map(|number| format!("parameter {number} has no gradient"));
            return Err(Error::msg(lacks.unwrap_or_else(|| "no backward pass".into())));
        }
        waited?;
        let mut sums = GradStore::default();
        for (parameter, (gradient, _)) in shared.parameters.iter().zip(step.gradients) {
            sums.insert(parameter, gradient.expect("all have arrived"));
        }
        Ok(sums)
    }
}

impl Shared {
    fn step(&self) -> MutexGuard<'_, Step> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A gradient of a pass is whole.
    fn arrived(&self, number: usize, gradient: &Tensor) -> Result<()> {
        let mut step = self.step();
        let (sum, passes) = &mut step.gradients[number];
        *sum = Some(match sum.take() {
            // Where candle has it already: no copy, but for a transposed one.
            None => gradient.contiguous()?,
            Some(sum) => (sum + gradient)?,
        });
        *passes += 1;
        while let Some(bucket) = self.buckets.get(step.started) {
            if bucket.iter().any(|member| step.gradients[*member].1 < self.passes) {
                break;
            }
            self.start(bucket, &step)?;
            step.started += 1;
        }
        Ok(())
    }

    /// Sums a bucket over the ranks. It is one group, and so one launch: nothing is packed into one buffer.
    fn start(&self, bucket: &[usize], step: &Step) -> Result<()> {
        let gradients = bucket.iter().filter_map(|member| step.gradients[*member].0.as_ref());
        // SAFETY: the step keeps the gradients, and gives them out when the stream has been waited for. candle makes a tensor of its own of
        // each (`GradStore::or_insert`), which nobody else has when it comes here.
        let buffers = gradients.map(|gradient| unsafe { buffer_of(gradient) });
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let calls = || {
            buffers.iter().try_for_each(|buffer| {
                self.comm.all_reduce(buffer, buffer, ReduceOp::Sum, &self.stream)
            })
        };
        ferroccl::group(calls).map_err(Error::wrap)
    }
}

/// The operation on a parameter: the same values, and news of the gradient.
struct Watch {
    shared: Arc<Shared>,
    number: usize,
}

impl CustomOp1 for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let values = storage.as_slice::<f32>()?;
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("a parameter is contiguous");
        };
        Ok((CpuStorage::F32(values[start..end].to_vec()), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        self.shared.arrived(self.number, gradient)?;
        Ok(None)
    }
}
