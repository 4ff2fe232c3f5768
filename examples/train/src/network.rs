//! The network: three layers of candle's, of parameters that the backward pass tells of.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Linear, Module};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::digits::{CLASSES, PIXELS};
use crate::gradients::GradientSync;

/// Sizes of the layers.
const SIZES: [usize; 4] = [PIXELS, 128, 64, CLASSES];

/// A multilayer perceptron.
pub struct Network {
    /// Weight and bias of each layer.
    layers: Vec<(Var, Var)>,
}

impl Network {
    /// With zeroes for parameters.
    pub fn zeroed() -> Result<Self> {
        let zeroed = |shape: &[usize]| Var::zeros(shape, DType::F32, &Device::Cpu);
        let layer = |size: &[usize]| Ok((zeroed(&[size[1], size[0]])?, zeroed(&[size[1]])?));
        Ok(Network { layers: SIZES.windows(2).map(layer).collect::<Result<_>>()? })
    }

    /// Draws the weights, as wide as candle's own are: uniform, by the number of inputs.
    pub fn draw(&self, seed: u64) -> Result<()> {
        let mut random = StdRng::seed_from_u64(seed);
        for (weight, _) in &self.layers {
            let bound = 1.0 / (weight.dim(1)? as f32).sqrt();
            let values: Vec<f32> =
                (0..weight.elem_count()).map(|_| random.random_range(-bound..bound)).collect();
            weight.set(&Tensor::from_vec(values, weight.shape(), &Device::Cpu)?)?;
        }
        Ok(())
    }

    /// All parameters, from the input on.
    pub fn parameters(&self) -> Vec<Var> {
        self.layers.iter().flat_map(|(weight, bias)| [weight.clone(), bias.clone()]).collect()
    }

    /// A score for each image and class. With `sync` gradients are summed over the ranks in the backward pass.
    pub fn forward(&self, images: &Tensor, sync: Option<&GradientSync>) -> Result<Tensor> {
        let mut x = images.clone();
        for (i, (weight, bias)) in self.layers.iter().enumerate() {
            let (weight, bias) = match sync {
                Some(sync) => (sync.watch(weight)?, sync.watch(bias)?),
                None => (weight.as_tensor().clone(), bias.as_tensor().clone()),
            };
            let y = Linear::new(weight, Some(bias)).forward(&x)?;
            x = if i + 1 < self.layers.len() { y.relu()? } else { y };
        }
        Ok(x)
    }
}
