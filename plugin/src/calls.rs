//! Calls of a plugin's functions that do not return. They are warned of: whoever waits for the plugin then is told nothing else,
//! and no thread can be taken out of a plugin.
//!
//! ```text
//! call ─► the thread's slot: which function, the number of the call ◄── the watching thread, while there is a plugin
//! ```

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often calls are looked at, at most and at least.
const EVERY: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread does in plugins.
#[derive(Default)]
struct Slot {
    thread: String,
    call: Mutex<Call>,
}

#[derive(Clone, Default)]
struct Call {
    /// Of the thread's calls; no two have the same.
    number: u64,
    /// The plugin and its function, while it runs.
    running: Option<(Arc<str>, &'static str)>,
    /// Whether it was warned of.
    warned: bool,
}

thread_local! {
    static SLOT: OnceCell<Arc<Slot>> = const { OnceCell::new() };
}

static WATCH: Mutex<Watch> =
    Mutex::new(Watch { slots: Vec::new(), plugins: Vec::new(), next: 0, running: false });
/// A plugin has come or gone.
static CHANGED: Condvar = Condvar::new();

struct Watch {
    slots: Vec<Weak<Slot>>,
    /// The plugins that there are, by number, and how long their functions may take.
    plugins: Vec<(u64, Duration)>,
    next: u64,
    running: bool,
}

/// While this lives, calls are watched.
#[derive(Debug)]
pub struct Watched(u64);

impl Watched {
    /// Warns of calls that take longer than `after`; of none if that is 0.
    #[must_use]
    pub fn new(after: Duration) -> Self {
        let mut watch = lock(&WATCH);
        watch.next += 1;
        let number = watch.next;
        if !after.is_zero() {
            watch.plugins.push((number, after));
            let thread = std::thread::Builder::new().name("ferroccl-plugin".to_owned());
            // Without the thread nobody is warned, and nothing else is missing.
            watch.running = watch.running || thread.spawn(run).is_ok();
            CHANGED.notify_all();
        }
        Watched(number)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&WATCH).plugins.retain(|(number, _)| *number != self.0);
        CHANGED.notify_all();
    }
}

/// Calls a function of a plugin.
pub fn call<T>(plugin: &Arc<str>, function: &'static str, f: impl FnOnce() -> T) -> T {
    // A thread that ends has no slot any more.
    let slot = SLOT.try_with(|slot| Arc::clone(slot.get_or_init(register))).ok();
    if let Some(slot) = &slot {
        let mut call = lock(&slot.call);
        let (number, running) = (call.number + 1, Some((Arc::clone(plugin), function)));
        *call = Call { number, running, warned: false };
    }
    let result = f();
    if let Some(slot) = &slot {
        let mut call = lock(&slot.call);
        call.running = None;
        if call.warned {
            tracing::info!(target: "ferroccl::init", "Plugin: {function} of {plugin} has returned");
        }
    }
    result
}

fn register() -> Arc<Slot> {
    let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
    let slot = Arc::new(Slot { thread, ..Slot::default() });
    let mut watch = lock(&WATCH);
    watch.slots.retain(|slot| slot.strong_count() > 0);
    watch.slots.push(Arc::downgrade(&slot));
    slot
}

/// The thread that looks at calls: ends with the last plugin.
fn run() {
    // By slot: the call that was seen there, since when, and after what time it is warned of.
    let mut seen: HashMap<usize, (u64, Instant, Duration)> = HashMap::new();
    let mut watch = lock(&WATCH);
    loop {
        let Some(after) = watch.plugins.iter().map(|(_, after)| *after).min() else {
            watch.running = false;
            return;
        };
        let every = (after / 8).clamp(EVERY[0], EVERY[1]);
        watch = match CHANGED.wait_timeout(watch, every) {
            Ok((watch, _)) => watch,
            Err(poisoned) => poisoned.into_inner().0,
        };
        watch.slots.retain(|slot| slot.strong_count() > 0);
        let slots: Vec<_> = watch.slots.iter().filter_map(Weak::upgrade).collect();
        seen.retain(|at, _| slots.iter().any(|slot| Arc::as_ptr(slot).addr() == *at));
        for slot in slots {
            look_at(&slot, &mut seen, after);
        }
    }
}

fn look_at(slot: &Arc<Slot>, seen: &mut HashMap<usize, (u64, Instant, Duration)>, after: Duration) {
    let mut call = lock(&slot.call);
    let Some((plugin, function)) = call.running.clone() else { return };
    let now = Instant::now();
    let entry = seen.entry(Arc::as_ptr(slot).addr()).or_insert((call.number, now, after));
    if entry.0 != call.number {
        *entry = (call.number, now, after);
    }
    let waited = entry.1.elapsed();
    if waited >= entry.2 {
        entry.2 = waited * 2;
        call.warned = true;
        drop(call);
        tracing::warn!(target: "ferroccl::init",
            "Plugin: {function} of {plugin} has not returned for {:.1} s: thread {} is held up in the plugin",
            waited.as_secs_f64(), slot.thread);
    }
}
