//! How far a measurement is: by the sizes that are done, and by the calls of the one under way.
//!
//! A call counts itself with one store, as the thread that counts is the one that measures. Another thread looks, where standard
//! error is a terminal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often the bar is drawn.
const PERIOD: Duration = Duration::from_millis(200);

/// The calls of the size under way. All figures are of one thread, and read by another for show: no order is needed.
#[derive(Debug, Default)]
pub(crate) struct CallCount {
    done: AtomicU64,
    all: AtomicU64,
}

impl CallCount {
    /// A size begins that takes so many calls.
    pub(crate) fn begin(&self, all: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }

    /// Another call was made. Only one thread makes them.
    pub(crate) fn another(&self) {
        self.done.store(self.done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The part that is done.
    fn part(&self) -> f64 {
        let (done, all) = (self.done.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed));
        if all == 0 { 0.0 } else { (done as f64 / all as f64).min(1.0) }
    }
}

/// The bar, which is hidden unless standard error is a terminal.
#[derive(Debug)]
pub(crate) struct PerfProgress {
    bar: ProgressBar,
    calls: Arc<CallCount>,
    sizes: Arc<Sizes>,
}

/// The sizes, weighed.
#[derive(Debug, Default)]
struct Sizes {
    done: AtomicU64,
    /// What the one under way weighs.
    current: AtomicU64,
}

impl PerfProgress {
    /// Of sizes that together weigh so much; `None` where there is no end.
    pub(crate) fn new(all: Option<u64>) -> PerfProgress {
        let bar = all.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let template = match all {
            Some(_) => "{bar:30} {percent}%, {eta} left",
            None => "{spinner} {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let (calls, sizes) = (Arc::<CallCount>::default(), Arc::<Sizes>::default());
        if !bar.is_hidden() {
            let (calls, sizes) = (Arc::downgrade(&calls), Arc::downgrade(&sizes));
            let shown = bar.clone();
            // Without this thread the bar moves by whole sizes.
            let _ = thread::Builder::new()
                .name("progress".into())
                .spawn(move || show(&shown, &calls, &sizes));
        }
        PerfProgress { bar, calls, sizes }
    }

    /// What counts the calls of a size.
    pub(crate) fn calls(&self) -> Arc<CallCount> {
        Arc::clone(&self.calls)
    }

    /// A size begins that weighs so much.
    pub(crate) fn begin(&self, weight: u64) {
        self.sizes.current.store(weight, Ordering::Relaxed);
    }

    /// The size under way is done.
    pub(crate) fn end(&self) {
        let weight = self.sizes.current.swap(0, Ordering::Relaxed);
        let done = self.sizes.done.fetch_add(weight, Ordering::Relaxed) + weight;
        self.bar.set_position(done);
    }

    /// Prints while the bar is away.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn show(bar: &ProgressBar, calls: &Weak<CallCount>, sizes: &Weak<Sizes>) {
    while let (Some(calls), Some(sizes)) = (calls.upgrade(), sizes.upgrade()) {
        let current = sizes.current.load(Ordering::Relaxed) as f64 * calls.part();
        bar.set_position(sizes.done.load(Ordering::Relaxed) + current as u64);
        drop((calls, sizes));
        thread::sleep(PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_size_is_that_of_its_calls() {
        let calls = CallCount::default();
        assert_eq!(calls.part(), 0.0);
        calls.begin(4);
        calls.another();
        assert_eq!(calls.part(), 0.25);
        (0..9).for_each(|_| calls.another());
        assert_eq!(calls.part(), 1.0);
        calls.begin(2);
        assert_eq!(calls.part(), 0.0);
    }

    #[test]
    fn sizes_add_up() {
        let progress = PerfProgress::new(Some(30));
        for weight in [10, 20] {
            progress.begin(weight);
            progress.end();
        }
        assert_eq!(progress.bar.position(), 30);
        progress.finish();
    }
}
