//! Ranks that make calls, and the numbers that a seed gives.

use std::cell::RefCell;
use std::ops::Range;

use ferroccl_device::kernels::Row;

use crate::{CommConfig, Communicator, Device, DeviceBuffer, KernelSpec, ReduceOp, Stream};

/// What calls move.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    /// Small integers, whose sums are exact.
    Integers,
    /// Small numbers as the bits of floats: words that look like flags.
    Flags,
}

/// Ranks of one process.
pub(super) struct Ranks {
    pub device: Device,
    pub ranks: Vec<Communicator>,
    pub streams: Vec<Stream>,
    /// What the buffers of calls are called, the last one last.
    buffers: RefCell<Vec<(Range<u64>, String)>>,
}

impl Ranks {
    pub(super) fn new(device: Device, n: usize, config: &CommConfig) -> Result<Self, String> {
        let ranks = Communicator::init_all_with(&device, n as u32, config).map_err(words)?;
        let streams = ranks.iter().map(|_| device.stream());
        let streams = streams.collect::<crate::Result<_>>().map_err(words)?;
        Ok(Ranks { device, ranks, streams, buffers: RefCell::default() })
    }

    /// What lies at an address.
    pub(super) fn name(&self, address: u64) -> String {
        let place = self.ranks.iter().find_map(|rank| rank.place_of(address));
        place
            .or_else(|| self.buffer_at(address))
            .unwrap_or_else(|| "memory that the suite does not know".to_owned())
    }

    /// Says what a buffer is called.
    pub(super) fn name_buffer(&self, buffer: &DeviceBuffer<f32>, name: String) {
        let range = buffer.address()..buffer.address() + 4 * buffer.len() as u64;
        self.buffers.borrow_mut().push((range, name));
    }

    /// The element of a call's buffer at an address.
    pub(super) fn buffer_at(&self, address: u64) -> Option<String> {
        let buffers = self.buffers.borrow();
        let (range, name) = buffers.iter().rev().find(|(range, _)| range.contains(&address))?;
        Some(format!("element {} of {name}", (address - range.start) / 4))
    }

    /// An all-reduce by a kernel, or as the library does it, of which every element is checked.
    pub(super) fn call(
        &self,
        by: Option<Row>,
        count: usize,
        random: &mut Random,
    ) -> Result<(), String> {
        let data = if by.is_some() { Data::Integers } else { Data::Flags };
        let mut value = |i: usize| match data {
            Data::Integers => random.below(1000) as f32,
            Data::Flags if i.is_multiple_of(2) => f32::from_bits(random.below(40) as u32),
            Data::Flags => 0.0,
        };
        let mut input = || (0..count).map(&mut value).collect();
        let inputs: Vec<Vec<f32>> = self.ranks.iter().map(|_| input()).collect();
        let mut outputs: Vec<DeviceBuffer<f32>> = Vec::new();
        for ((rank, stream), input) in self.ranks.iter().zip(&self.streams).zip(&inputs) {
            let send = self.device.upload(input).map_err(words)?;
            let recv: DeviceBuffer<f32> = self.device.alloc(count).map_err(words)?;
            for (what, buffer) in [("input", &send), ("output", &recv)] {
                self.name_buffer(buffer, format!("rank {}'s {what}", rank.rank()));
            }
            match by {
                // SAFETY: the kernel is the ring all-reduce of f32.
                Some(row) => unsafe {
                    let spec = KernelSpec::new(row, count);
                    rank.launch(&spec, &send, &recv, ReduceOp::Sum, stream)
                },
                None => rank.all_reduce(&send, &recv, ReduceOp::Sum, stream),
            }
            .map_err(words)?;
            outputs.push(recv);
        }
        for (r, (output, stream)) in outputs.iter().zip(&self.streams).enumerate() {
            let got = output.to_vec(stream).map_err(|error| format!("rank {r}: {error}"))?;
            for (i, got) in got.into_iter().enumerate() {
                let want: f32 = inputs.iter().map(|input| input[i]).sum();
                if got != want {
                    return Err(format!("rank {r}, element {i} of {count}: {got}, not {want}"));
                }
            }
        }
        Ok(())
    }
}

pub(super) fn words(error: crate::Error) -> String {
    error.to_string()
}

/// Numbers that a seed gives.
pub(super) struct Random(pub u64);

impl Random {
    /// Knuth's multiplier for 64 bits (MMIX), of which the upper bits are good.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// True so many times of a hundred.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
