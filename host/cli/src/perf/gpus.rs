//! GPUs in `ferroccl perf`: whose they are, their clocks, and graphs.
//!
//! Without the feature `cuda` there are none, and asking for them says so.

use clap::CommandFactory;
use clap::error::ErrorKind;
use ferroccl::{Device, Result};

use super::args::PerfArgs;
use super::team::{Layout, Member};
use super::values::RuntimeKind;

/// The device of each rank of this process, if they are GPUs: in turn, by rank.
pub(super) fn devices(args: &PerfArgs, layout: Layout) -> Result<Option<Vec<Device>>> {
    if args.runtime != RuntimeKind::Cuda {
        if args.cudagraph > 0 {
            let reason = "--cudagraph is for --runtime cuda";
            crate::Cli::command().error(ErrorKind::ArgumentConflict, reason).exit();
        }
        return Ok(None);
    }
    all(layout).map(Some)
}

/// What stands for a GPU's name.
pub(super) fn name(device: &Device) -> Option<String> {
    device.runtime().device_info().ok().flatten().map(|info| info.name)
}

#[cfg(not(feature = "cuda"))]
mod absent {
    use ferroccl::{Device, Error, Result};

    use super::{Layout, Member, PerfArgs};

    pub(super) fn all(_: Layout) -> Result<Vec<Device>> {
        let reason = "this build is without the cargo feature `cuda`".to_owned();
        Err(Error::Unavailable { what: "--runtime cuda".to_owned(), reason })
    }

    pub(in super::super) struct Clock;

    impl Clock {
        pub(in super::super) fn start(_: &Member) -> Result<Self> {
            Ok(Clock)
        }

        pub(in super::super) fn stop(&self, _: &Member) -> Result<()> {
            Ok(())
        }

        pub(in super::super) fn seconds(&self, _: &Member) -> Result<Option<f64>> {
            Ok(None)
        }
    }

    pub(in super::super) struct Graph;

    impl Graph {
        pub(in super::super) fn capture(
            _: &PerfArgs,
            _: &Member,
            _: impl FnOnce() -> Result<()>,
        ) -> Result<Option<Self>> {
            Ok(None)
        }

        pub(in super::super) fn launch(&self, _: &Member) -> Result<()> {
            Ok(())
        }
    }
}
#[cfg(not(feature = "cuda"))]
use absent::all;
#[cfg(not(feature = "cuda"))]
pub(super) use absent::{Clock, Graph};

#[cfg(feature = "cuda")]
mod present {
    use ferroccl::runtime::cuda::{self, CudaGraph, CudaTimer};
    use ferroccl::{Device, Error, Result};

    use super::{Layout, Member, PerfArgs};

    pub(super) fn all(layout: Layout) -> Result<Vec<Device>> {
        let gpus = cuda::count()?;
        layout.ranks().map(|rank| Device::cuda(rank % gpus.max(1))).collect()
    }

    /// The GPUs' clocks, one a rank. What is timed is also what a profiler sees that was told to wait for it.
    pub(in super::super) struct Clock(Vec<CudaTimer>);

    impl Clock {
        pub(in super::super) fn start(member: &Member) -> Result<Self> {
            let gpus =
                member.ranks.iter().filter(|rank| rank.comm.device().runtime().name() == "cuda");
            let streams: Vec<_> = gpus.map(|rank| &rank.stream).collect();
            if let Some(first) = streams.first().filter(|_| member.speaks_for_process()) {
                cuda::profile(first, true)?;
            }
            streams.into_iter().map(CudaTimer::start).collect::<Result<_>>().map(Clock)
        }

        pub(in super::super) fn stop(&self, member: &Member) -> Result<()> {
            self.0.iter().zip(&member.ranks).try_for_each(|(timer, rank)| timer.stop(&rank.stream))
        }

        /// The slowest rank's time, when all is done; `None` where there are no GPUs.
        pub(in super::super) fn seconds(&self, member: &Member) -> Result<Option<f64>> {
            if let Some(first) = member.ranks.first().filter(|_| !self.0.is_empty())
                && member.speaks_for_process()
            {
                cuda::profile(&first.stream, false)?;
            }
            let times = self.0.iter().map(CudaTimer::seconds).collect::<Result<Vec<f64>>>()?;
            Ok(times.into_iter().reduce(f64::max))
        }
    }

    /// The calls of this thread's ranks, captured.
    pub(in super::super) struct Graph(CudaGraph);

    impl Graph {
        /// `None` where that was not asked for.
        pub(in super::super) fn capture(
            args: &PerfArgs,
            member: &Member,
            calls: impl FnOnce() -> Result<()>,
        ) -> Result<Option<Self>> {
            if args.cudagraph == 0 {
                return Ok(None);
            }
            let streams: Vec<_> = member.ranks.iter().map(|rank| &rank.stream).collect();
            let graph = CudaGraph::capture(&streams, calls)?;
            Ok(Some(Graph(graph)))
        }

        pub(in super::super) fn launch(&self, member: &Member) -> Result<()> {
            let first = member.ranks.first().ok_or_else(|| Error::argument("ranks", "none"))?;
            self.0.launch(&first.stream)
        }
    }
}
#[cfg(feature = "cuda")]
use present::all;
#[cfg(feature = "cuda")]
pub(super) use present::{Clock, Graph};
