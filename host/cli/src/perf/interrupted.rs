//! What becomes of the results of a measurement that fails, or is interrupted: the rows that there are go into the record.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::report::Report;

/// The report, for the thread that leads and for who ends the measurement early. Who ends it takes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(Arc<Mutex<Option<Report>>>);

/// How long the thread that leads may take to finish what it writes: a reader that does not read must not keep the program.
const PATIENCE: Duration = Duration::from_secs(1);

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Report>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the record of the rows that there are, if nobody has written one.
    pub(super) fn end_early(&self, reason: &str) {
        let deadline = Instant::now() + PATIENCE;
        let mut report = loop {
            match self.0.try_lock() {
                Ok(report) => break report,
                Err(std::sync::TryLockError::Poisoned(report)) => break report.into_inner(),
                Err(_) if Instant::now() > deadline => return,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        if let Some(Err(error)) = report.take().map(|report| report.end_early(reason)) {
            crate::complain("perf", format_args!("output: {error}"));
        }
    }
}

/// Has SIGINT and SIGTERM write the record before they end the program as they always do.
pub(super) fn watch(report: &Shared) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let report = report.clone();
    let work = move || {
        if let Some(number) = signals.forever().next() {
            let name = Signal::try_from(number).map_or("a signal", Signal::as_str);
            report.end_early(&format!("interrupted by {name}"));
            let _ = emulate_default_handler(number); // ends the process
        }
    };
    thread::Builder::new().name("signals".into()).spawn(work).map(drop)
}
