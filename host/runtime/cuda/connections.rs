//! Hardware queues: streams that have one of their own run beside each other, whatever they wait for.
//!
//! A process has 8 on a GPU unless `CUDA_DEVICE_MAX_CONNECTIONS` says otherwise, up to 32 ("CUDA Environment Variables" in
//! NVIDIA's programming guide), and streams beyond that share. In a shared queue work is taken in the order in which it was put in,
//! so a stream's next step, which waits for its own kernel, holds up the other streams of the queue. A kernel that waits for one
//! of those waits for ever. The driver has no function for it: it reads the variable when it is initialised.

use std::ffi::OsStr;
use std::path::Path;

use tracing::{debug, warn};

use crate::log;

/// How the driver is told.
pub(super) const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// What it takes where it is told nothing.
const DEFAULT: u32 = 8;
/// The most.
const MOST: u32 = 32;

/// The hardware queues that streams of this process have on a GPU. Asks for all of them if nobody has said how many, and this
/// is the process's only thread: before the driver is initialised.
pub(super) fn ask() -> u32 {
    if let Some(value) = std::env::var_os(VARIABLE) {
        return parse(&value);
    }
    if !is_only_thread(Path::new("/proc/self/task")) {
        debug!(target: log::INIT, "{VARIABLE} is not set, and other threads may be reading the environment: {DEFAULT} queues");
        return DEFAULT;
    }
    // SAFETY: nothing else reads or writes the environment meanwhile, in Rust or in C: there is no other thread, and this one
    // starts none before it has returned. The name is new, so that no value goes that somebody has a pointer to.
    unsafe { std::env::set_var(VARIABLE, MOST.to_string()) };
    MOST
}

/// Whether a folder of the process's threads has one entry. What cannot be read is not known to have one.
fn is_only_thread(threads: &Path) -> bool {
    std::fs::read_dir(threads).is_ok_and(|threads| threads.take(2).count() == 1)
}

/// What the driver makes of a value. What is no number it does not say; the least is assumed then.
fn parse(value: &OsStr) -> u32 {
    let value = value.to_str().and_then(|text| text.trim().parse().ok());
    value.unwrap_or(1).clamp(1, MOST)
}

/// Warns of the stream that is the first to share a queue: a GPU has `streams` now.
pub(super) fn watch_out(gpu: &str, streams: u32, queues: u32) {
    if streams != queues + 1 {
        return;
    }
    let way_out = if queues < MOST {
        format!("set {VARIABLE}={MOST} before the program starts")
    } else {
        "use fewer ranks in a process".to_owned()
    };
    warn!(
        target: log::INIT,
        "{gpu} has {streams} streams of this process and {queues} hardware queues for them: ranks whose streams share a queue may \
         wait for each other for ever; {way_out}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_variable_says() {
        for (text, queues) in [("8", 8), (" 32", 32), ("0", 1), ("99", 32), ("many", 1)] {
            assert_eq!(parse(OsStr::new(text)), queues, "{text:?}");
        }
    }

    #[test]
    fn one_thread_is_one_entry() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_only_thread(folder.path()));
        std::fs::write(folder.path().join("1"), "").unwrap();
        assert!(is_only_thread(folder.path()));
        std::fs::write(folder.path().join("2"), "").unwrap();
        assert!(!is_only_thread(folder.path()));
        assert!(!is_only_thread(&folder.path().join("none")));
    }
}
