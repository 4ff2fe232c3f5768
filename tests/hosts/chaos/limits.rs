//! What a process does to itself: it dies at a line of its log, one of its threads stops, it runs out of something.

use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::seccomp;

pub(super) fn signal(number: i32) {
    // SAFETY: it takes no pointers.
    unsafe { libc::raise(number) };
}

/// SIGKILL at a line of the log, counted from 0.
pub(super) struct Killer {
    at: usize,
    lines: AtomicUsize,
}

impl Killer {
    /// From here on.
    pub(super) fn watch(at: usize) {
        let killer = Killer { at, lines: AtomicUsize::new(0) };
        tracing::subscriber::set_global_default(killer).unwrap();
    }
}

impl Subscriber for Killer {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        // Relaxed: only a count.
        if self.lines.fetch_add(1, Ordering::Relaxed) == self.at {
            signal(libc::SIGKILL);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The threads of this process that are called so.
pub(super) fn threads(is: impl Fn(&str) -> bool) -> Vec<(i32, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let named = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, name.trim_end().to_owned()))
    });
    named.filter(|(_, name)| is(name)).collect()
}

/// Threads of that name stop for ever.
pub(super) fn freeze(name: &str) {
    extern "C" fn stop(_: libc::c_int) {
        loop {
            // SAFETY: it takes nothing, and may be called from a handler (signal-safety(7)).
            unsafe { libc::pause() };
        }
    }
    // SAFETY: an action is plain data; the handler makes but that one call.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = stop as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(done, 0);
    for (thread, _) in threads(|of| of == name) {
        // SAFETY: it takes no pointers.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2) };
    }
}

/// The process may have `left` more of a resource than it `has`.
pub(super) fn limit(resource: libc::__rlimit_resource_t, has: u64, left: u64) {
    let limit = libc::rlimit { rlim_cur: has + left, rlim_max: has + left };
    // SAFETY: it reads a structure that is there.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Bytes of address space that are in use (proc(5), statm's first field, in pages).
pub(super) fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    // SAFETY: it takes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * page as u64
}

/// From here on neither this thread nor those that it has started since starts another: clone(2) is refused with EAGAIN, as
/// where the user has too many (pthread_create(3)). It is a filter of system calls (seccomp(2)), since root has no limit.
pub(super) fn no_more_threads() {
    seccomp::refuse(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
}

/// What the process's descriptors lead to. The stand-in for a driver has one for each piece of device memory, of which a GPU
/// keeps small ones for the next communicator.
pub(super) fn open() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links
        .map(|link| link.display().to_string())
        .filter(|link| !link.contains("memfd:fake-cuda"))
        .collect()
}
