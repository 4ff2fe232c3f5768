//! Images as MNIST has them, made up: 28 by 28 grey pixels, ten classes. A class is a few strokes; an image is a class moved by some pixels,
//! with noise. An image is a function of its number, so that every process can make those that it needs.

use candle_core::{Device, Result, Tensor};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// Pixels of a side.
const SIDE: usize = 28;
/// Pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;
/// What an image may be.
pub const CLASSES: usize = 10;
/// Strokes of a class.
const STROKES: usize = 4;
/// How far an image may be moved, in pixels, and what noise is added to a pixel, at most.
const MOVED: i32 = 2;
const NOISE: f32 = 0.6;

/// All images.
pub struct Digits {
    classes: Vec<[f32; PIXELS]>,
}

impl Digits {
    /// The ten classes, the same each time.
    pub fn drawn() -> Self {
        let mut random = StdRng::seed_from_u64(0x0d16_1757);
        let classes = (0..CLASSES).map(|_| class(&mut random)).collect();
        Digits { classes }
    }

    /// Images of these numbers, a row each, and their classes.
    pub fn batch(&self, numbers: &[usize]) -> Result<(Tensor, Tensor)> {
        let mut pixels = Vec::with_capacity(numbers.len() * PIXELS);
        let mut classes = Vec::with_capacity(numbers.len());
        for number in numbers {
            let mut random = StdRng::seed_from_u64(*number as u64);
            let class = random.random_range(0..CLASSES);
            let (right, down) =
                (random.random_range(-MOVED..=MOVED), random.random_range(-MOVED..=MOVED));
            for at in 0..PIXELS {
                let (x, y) = ((at % SIDE) as i32 - right, (at / SIDE) as i32 - down);
                let inside = (0..SIDE as i32).contains(&x) && (0..SIDE as i32).contains(&y);
                let ink =
                    if inside { self.classes[class][y as usize * SIDE + x as usize] } else { 0.0 };
                pixels.push((ink + random.random_range(0.0..NOISE)).min(1.0));
            }
            classes.push(class as u32);
        }
        let images = Tensor::from_vec(pixels, (numbers.len(), PIXELS), &Device::Cpu)?;
        Ok((images, Tensor::from_vec(classes, numbers.len(), &Device::Cpu)?))
    }
}

/// Strokes from one point to another, one pixel and its neighbours wide.
fn class(random: &mut StdRng) -> [f32; PIXELS] {
    let mut pixels = [0.0; PIXELS];
    let mut point = || [random.random_range(5.0..23.0), random.random_range(5.0..23.0f32)];
    for _ in 0..STROKES {
        let (from, to) = (point(), point());
        for step in 0..=40 {
            let along = step as f32 / 40.0;
            let [x, y] = [0, 1].map(|i| (from[i] + along * (to[i] - from[i])) as usize);
            for (x, y) in [(x, y), (x + 1, y), (x, y + 1)] {
                pixels[y * SIDE + x] = 1.0;
            }
        }
    }
    pixels
}

/// The numbers of the training images in the order of an epoch: the same on every rank.
pub fn shuffled(images: usize, epoch: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..images).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(epoch as u64));
    numbers
}
