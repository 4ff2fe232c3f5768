//! All warps of all launches in one schedule.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_ptx::emu::{Lockstep, Options};

use super::emulated::{Emulated, Ready};
use crate::error::{Error, Result};
use crate::runtime::Launch;
use crate::runtime::op::{panic_message, panicked};
use crate::runtime::scheduler::{self, Scheduler, StreamId};

/// Warps that one schedule runs.
pub(super) struct Warps {
    emulated: Arc<Emulated>,
    options: Options,
    trace: AtomicU64,
}

type Launched = scheduler::Launched<Warps>;

/// What runs.
pub(super) struct Schedule {
    pub(super) lockstep: Lockstep,
    /// By the number that the machine has given the launch.
    launches: BTreeMap<u64, Launched>,
}

impl Warps {
    pub(super) fn new(emulated: &Arc<Emulated>, options: Options) -> Self {
        Warps { emulated: Arc::clone(emulated), options, trace: AtomicU64::new(0) }
    }

    pub(super) fn schedule(&self) -> Schedule {
        Schedule { lockstep: Lockstep::new(self.options), launches: BTreeMap::new() }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace.load(Ordering::Relaxed)
    }

    /// Ends all that runs.
    fn fail(&self, schedule: &mut Schedule, error: &Error, ended: &mut Vec<Launched>) {
        for launched in std::mem::take(&mut schedule.launches).into_values() {
            launched.fail(self.emulated.end_epoch(&launched.ready.epoch, error.clone()));
            ended.push(launched);
        }
    }
}

impl Scheduler for Warps {
    type Ready = Ready;
    type Schedule = Schedule;

    fn address_space(&self) -> u64 {
        self.emulated.space
    }

    fn prepare(&self, launch: &Launch, stream: StreamId, space: u64) -> Result<Ready> {
        if let Some(gpu) = self.options.clock.and_then(|_| self.emulated.gpu(space)) {
            // As many as on a GPU.
            let threads = crate::runtime::gpu_threads(&launch.kernel, launch.threads);
            return self.emulated.prepare(launch, gpu, Some(threads));
        }
        // Numbers wrap after 2^32 streams: they only tell neighbours apart.
        self.emulated.prepare(launch, stream as u32, None)
    }

    fn begin(&self, _: &mut Schedule) {}

    fn is_idle(&self, schedule: &Schedule) -> bool {
        schedule.lockstep.is_idle()
    }

    fn start(&self, schedule: &mut Schedule, launched: Launched, ended: &mut Vec<Launched>) {
        if let Some(error) = launched.ready.epoch.error() {
            launched.fail(error.clone());
            return ended.push(launched);
        }
        let Some(grid) = launched.ready.grid.clone() else { return ended.push(launched) };
        schedule.lockstep.start(&grid);
        schedule.launches.insert(grid.number(), launched);
    }

    fn step(&self, schedule: &mut Schedule, ended: &mut Vec<Launched>) {
        let stepped = catch_unwind(AssertUnwindSafe(|| schedule.lockstep.step()));
        self.trace.store(schedule.lockstep.trace(), Ordering::Relaxed);
        match stepped {
            Ok(Ok(None)) => {}
            Ok(Ok(Some((number, counts)))) => {
                if let Some(span) = schedule.lockstep.launch_span(number) {
                    self.emulated.ran(span);
                }
                if let Some(launched) = schedule.launches.remove(&number) {
                    self.emulated.count(launched.kernel.name, 1, counts);
                    ended.push(launched);
                }
            }
            Ok(Err(fault)) => self.fail(schedule, &Error::Emulator(Arc::new(*fault)), ended),
            Err(payload) => {
                schedule.lockstep = Lockstep::new(self.options);
                let error = panicked("(emulator)", panic_message(payload.as_ref()));
                self.fail(schedule, &error, ended);
            }
        }
    }

    fn touched(&self) {}
}
