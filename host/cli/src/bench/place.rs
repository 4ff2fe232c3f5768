//! Where `ferroccl bench` measures, and the clock there.

use std::sync::Arc;
use std::time::Instant;

use ferroccl::runtime::ptx::{MachineModel, Options, PtxRuntime};
use ferroccl::{Device, Error, Result, Stream};

use crate::perf::values::RuntimeKind;

/// A machine for the emulator's clock, with what is measured on the first GPU, and `base`'s figures for the rest: as a file.
pub(super) fn model(base: &MachineModel) -> Result<String> {
    let mut machine = base.clone();
    gpu::measure_model(&mut machine)?;
    let text = serde_json::to_string_pretty(&machine);
    Ok(text.map_err(|error| Error::argument("model", error.to_string()))? + "\n")
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Rounds, of which the median counts.
    pub(super) rounds: usize,
    /// Calls of a round, and how often a kernel does its thing.
    pub(super) calls: u32,
}

/// A kind of device.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Cpu,
    /// GPUs of a machine, in virtual time.
    Emulator(Vec<Arc<PtxRuntime>>, MachineModel),
    /// The first GPU: what is measured are the kernels, without links.
    Gpu,
}

impl Place {
    pub(super) fn new(runtime: RuntimeKind, model: &MachineModel) -> Result<Place> {
        Ok(match runtime {
            RuntimeKind::Cpu => Place::Cpu,
            RuntimeKind::Ptx => {
                let gpus = PtxRuntime::simulated_with(model.clone(), Options::plain());
                Place::Emulator(gpus.into_iter().map(Arc::new).collect(), model.clone())
            }
            RuntimeKind::Cuda => {
                gpu::device()?;
                Place::Gpu
            }
        })
    }

    /// A device for each of `n` ranks.
    pub(super) fn devices(&self, n: usize) -> Result<Vec<Device>> {
        Ok(match self {
            Place::Cpu => vec![Device::cpu(); n],
            Place::Emulator(gpus, _) => {
                gpus.iter().cycle().take(n).map(|gpu| Device::new(gpu.clone())).collect()
            }
            Place::Gpu => vec![gpu::device()?; n],
        })
    }

    /// Its name, for people.
    pub(super) fn name(&self) -> String {
        match self {
            Place::Cpu => format!("[cpu] {}", crate::machine::cpu_name()),
            Place::Emulator(_, model) => format!("[ptx] {}, SIMULATED", model.name),
            Place::Gpu => gpu::name(),
        }
    }

    /// Whether times are of the emulator's clock.
    pub(super) fn is_simulated(&self) -> bool {
        matches!(self, Place::Emulator(..))
    }

    /// How much is enough to know.
    pub(super) fn effort(&self, quick: bool) -> Effort {
        match (self, quick) {
            // The same each time.
            (Place::Emulator(..), _) => Effort { rounds: 1, calls: 4 },
            (_, true) => Effort { rounds: 3, calls: 20 },
            (_, false) => Effort { rounds: 11, calls: 200 },
        }
    }

    /// The most bytes of a buffer, where nothing else is asked for.
    pub(super) fn most_bytes(&self, quick: bool) -> u64 {
        match self {
            Place::Emulator(..) => 64 << 10,
            Place::Cpu | Place::Gpu if quick => 1 << 20,
            Place::Cpu | Place::Gpu => 16 << 20,
        }
    }

    /// Microseconds of a call that `enqueue` puts into the streams, `calls` in a row: of each round. The first round, which is
    /// not among them, warms up.
    pub(super) fn time(
        &self,
        (rounds, calls): (usize, u32),
        streams: &[&Stream],
        enqueue: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<f64>> {
        if let Place::Gpu = self {
            return gpu::time((rounds, calls), streams, enqueue);
        }
        let mut times = Vec::with_capacity(rounds);
        for round in 0..=rounds {
            if let Place::Emulator(gpus, _) = self {
                gpus[0].reset_counts();
            }
            let begun = Instant::now();
            (0..calls).try_for_each(|_| enqueue())?;
            streams.iter().try_for_each(|stream| stream.synchronize())?;
            let seconds = match self {
                Place::Emulator(gpus, _) => {
                    gpus[0].simulated_time().unwrap_or_default().as_secs_f64()
                }
                Place::Cpu | Place::Gpu => begun.elapsed().as_secs_f64(),
            };
            if round > 0 {
                times.push(seconds * 1e6 / f64::from(calls));
            }
        }
        Ok(times)
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use ferroccl::runtime::Settings;
    use ferroccl::runtime::cuda::{self, CudaGraph, CudaTimer};
    use ferroccl::runtime::ptx::MachineModel;
    use ferroccl::{Device, Error, Result, Stream};

    pub(super) fn device() -> Result<Device> {
        Device::cuda(0)
    }

    /// Puts in what is measured: the driver's figures, and the rate of its copies.
    pub(super) fn measure_model(machine: &mut MachineModel) -> Result<()> {
        /// Of the buffers that are copied: more than any L2 cache has.
        const BYTES: usize = 256 << 20;
        let info = cuda::shared(0, &Settings::default())?.info()?;
        machine.name = info.name.clone().into();
        (machine.gpus, machine.sms) = (1, info.multiprocessors);
        machine.capability = info.compute_capability;
        let device = device()?;
        let stream = device.stream()?;
        let [from, to] = [device.alloc::<u8>(BYTES)?, device.alloc::<u8>(BYTES)?];
        let mut times = time((11, 20), &[&stream], &|| cuda::copy(&from, &to, &stream))?;
        times.sort_by(f64::total_cmp);
        // What is copied is read and written.
        let rate = 2.0 * BYTES as f64 / times[times.len() / 2] * 1e-3;
        for (figure, value, how) in [
            ("clock_mhz", f64::from(info.clock_khz) / 1000.0, "the most that the driver says"),
            ("dram_gbs", rate, "the driver's copy, read and written"),
        ] {
            let source = format!("measured on {} by ferroccl bench: {how}", info.name);
            let replaced = machine.replace(figure, value.round().max(1.0) as u32, &source);
            replaced.map_err(|error| Error::argument("model", error.to_string()))?;
        }
        Ok(())
    }

    pub(super) fn name() -> String {
        let info = cuda::shared(0, &Settings::default()).and_then(|gpu| gpu.info());
        info.map_or_else(
            |error| format!("[cuda] {error}"),
            |info| {
                format!(
                    "[cuda] {} (sm_{}, {} multiprocessors, {:.2} GHz), driver of CUDA {}.{}",
                    info.name,
                    info.compute_capability,
                    info.multiprocessors,
                    f64::from(info.clock_khz) / 1e6,
                    info.driver_version / 1000,
                    info.driver_version % 1000 / 10
                )
            },
        )
    }

    /// Of a graph of the calls, by the GPU's clock: no launch of the host is in it.
    pub(super) fn time(
        (rounds, calls): (usize, u32),
        streams: &[&Stream],
        enqueue: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<f64>> {
        let graph = CudaGraph::capture(streams, || (0..calls).try_for_each(|_| enqueue()))?;
        let mut times = Vec::with_capacity(rounds);
        for round in 0..=rounds {
            let timer = CudaTimer::start(streams[0])?;
            graph.launch(streams[0])?;
            timer.stop(streams[0])?;
            streams[0].synchronize()?;
            if round > 0 {
                times.push(timer.seconds()? * 1e6 / f64::from(calls));
            }
        }
        Ok(times)
    }
}

#[cfg(not(feature = "cuda"))]
mod gpu {
    use ferroccl::runtime::ptx::MachineModel;
    use ferroccl::{Device, Error, Result, Stream};

    pub(super) fn measure_model(_: &mut MachineModel) -> Result<()> {
        device().map(drop)
    }

    pub(super) fn device() -> Result<Device> {
        let reason = "this build is without the cargo feature `cuda`".to_owned();
        Err(Error::Unavailable { what: "--runtime cuda".to_owned(), reason })
    }

    pub(super) fn name() -> String {
        "[cuda]".to_owned()
    }

    pub(super) fn time(
        _: (usize, u32),
        _: &[&Stream],
        _: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<f64>> {
        device().map(|_| Vec::new())
    }
}
