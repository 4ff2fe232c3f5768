//! The sums of gradients against candle's own backward pass, with the ranks as threads of one process.

use std::sync::{Arc, Mutex};
use std::thread;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, Var};
use ferroccl::{Communicator, Device};
use ferroccl_train::gradients::GradientSync;

const RANKS: u32 = 3;
/// Elements of a parameter, as if of layers.
const LENGTHS: [usize; 4] = [700, 3, 0, 41];

/// A parameter's values, and a rank's and pass's input of its layer.
fn values(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0).collect()
}

fn tensor(seed: usize, len: usize) -> Result<Tensor> {
    Tensor::from_vec(values(seed, len), len, &candle_core::Device::Cpu)
}

/// Calls a function in the backward pass, when the gradient of what came before is asked for.
struct Probe<F>(F);

impl<F: Fn() + Send + Sync> CustomOp1 for Probe<F> {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        (self.0)();
        Ok(Some(gradient.clone()))
    }
}

/// Each rank's part of a test, in a thread.
fn on_ranks(test: impl Fn(usize, Arc<Communicator>) -> Result<()> + Sync) {
    let ranks = Communicator::init_all(&Device::cpu(), RANKS).unwrap();
    thread::scope(|scope| {
        for (rank, comm) in ranks.into_iter().enumerate() {
            let test = &test;
            scope.spawn(move || test(rank, Arc::new(comm)).unwrap());
        }
    });
}

fn sync_of(
    comm: Arc<Communicator>,
    parameters: &[Var],
    bytes: usize,
    passes: usize,
) -> GradientSync {
    let stream = Device::cpu().stream().unwrap();
    GradientSync::new(comm, stream, parameters.to_vec(), bytes, passes)
}

fn parameters() -> Vec<Var> {
    let lengths = LENGTHS.iter().enumerate();
    lengths.map(|(i, len)| Var::from_tensor(&tensor(i, *len).unwrap()).unwrap()).collect()
}

/// The sum of products of parameters and inputs: a gradient is an input.
#[test]
fn gradients_are_summed_over_passes_and_ranks() {
    for (bytes, passes) in [(0, 1), (100, 3), (1 << 20, 2)] {
        on_ranks(|rank, comm| {
            let parameters = parameters();
            let sync = sync_of(comm, &parameters, bytes, passes);
            for step in 0..3 {
                let seed = |rank, pass, i| 1000 * step + 100 * rank + 10 * pass + i;
                for pass in 0..passes {
                    let mut loss = Tensor::new(0.0f32, &candle_core::Device::Cpu)?;
                    for (i, parameter) in parameters.iter().enumerate() {
                        let product =
                            (sync.watch(parameter)? * tensor(seed(rank, pass, i), LENGTHS[i])?)?;
                        loss = (loss + product.sum_all()?)?;
                    }
                    let left = loss.backward()?;
                    assert!(parameters.iter().all(|parameter| left.get(parameter).is_none()));
                }
                let sums = sync.finish()?;
                for (i, parameter) in parameters.iter().enumerate() {
                    let mut want = vec![0.0; LENGTHS[i]];
                    for (rank, pass) in
                        (0..RANKS as usize).flat_map(|r| (0..passes).map(move |p| (r, p)))
                    {
                        let input = values(seed(rank, pass, i), LENGTHS[i]);
                        want.iter_mut().zip(input).for_each(|(sum, x)| *sum += x);
                    }
                    assert_eq!(
                        sums.get(parameter).unwrap().to_vec1::<f32>()?,
                        want,
                        "parameter {i}"
                    );
                }
            }
            Ok(())
        });
    }
}

/// When the backward pass comes to the first layer, the sums of the last one have begun.
#[test]
fn sums_begin_in_the_backward_pass() {
    on_ranks(|_, comm| {
        let parameters: Vec<Var> =
            (0..2).map(|i| Var::from_tensor(&tensor(i, 50)?)).collect::<Result<_>>()?;
        let sync = Arc::new(sync_of(comm, &parameters, 0, 1));
        let (seen, asked) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&sync));
        let told = Arc::clone(&seen);
        let probe = Probe(move || told.lock().unwrap().push(asked.started()));
        let first = (sync.watch(&parameters[0])? * 2.0)?.apply_op1(probe)?;
        let second = (first * sync.watch(&parameters[1])?)?;
        second.sum_all()?.backward()?;
        assert_eq!(*seen.lock().unwrap(), [1]);
        assert_eq!(sync.started(), 2);
        sync.finish()?;
        Ok(())
    });
}

#[test]
fn a_parameter_without_a_gradient_is_named() {
    on_ranks(|_, comm| {
        let parameters = parameters();
        let sync = sync_of(comm, &parameters, 0, 1);
        sync.watch(&parameters[3])?.sum_all()?.backward()?;
        let error = sync.finish().unwrap_err().to_string();
        assert!(error.contains("parameter 0 has no gradient"), "{error}");
        let other = Var::from_tensor(&tensor(0, 5)?)?;
        assert!(sync.watch(&other).is_err());
        Ok(())
    });
}
