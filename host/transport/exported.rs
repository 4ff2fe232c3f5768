//! Device memory of ours that other processes have mapped (CUDA IPC): it is freed when the last of them has let go.
//!
//! A sender's kernels write to the receiver's device memory. A receiver that has failed, or has been dropped, must not give it
//! back to the driver while a sender is in mid-copy: the driver says of an allocation that is freed before other processes
//! have closed it that the behaviour is undefined (CUDA Driver API, cuIpcGetMemHandle). So each sender says in a word
//! that both processes share, as in the edge's header, whether it has the memory mapped:
//!
//! ```text
//! sender     NEVER ─► MAPPED, before it opens the memory ─► CLOSED, when it has closed it
//! receiver   drops the memory ─► nobody has it mapped: freed ─► else a thread looks again, until nobody has, or lives
//! ```

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::debug;

use super::{HostRegion, PeerInfo};
use crate::log;
use crate::runtime::Memory;

/// The sender has opened the memory, or is about to.
const MAPPED: u64 = 1;
/// It has closed it.
const CLOSED: u64 = 2;
/// How often kept memory is looked at.
const EVERY: Duration = Duration::from_millis(20);

/// The word at the beginning of `region`.
fn word(region: &HostRegion) -> &AtomicU64 {
    // SAFETY: the region is made for this word: it is aligned, lives as long as the region, and is only accessed atomically.
    unsafe { AtomicU64::from_ptr(region.address() as *mut u64) }
}

/// A sender in another process.
#[derive(Debug)]
pub(crate) struct Importer {
    /// Where it says whether it has the memory mapped.
    word: HostRegion,
    /// Its process, where this one can see it, and when that was started: numbers of processes are used again.
    process: Option<(u32, u64)>,
}

impl Importer {
    /// The sender `peer`, as this rank, `me`, sees it. It says by a `word`, which is 0 at first, whether it has the memory mapped.
    pub(crate) fn new(word: HostRegion, peer: &PeerInfo, me: &PeerInfo) -> Self {
        let visible = peer.pid_namespace == me.pid_namespace;
        let process = visible.then(|| Some((peer.pid, started(peer.pid)?))).flatten();
        Importer { word, process }
    }

    /// Whether it may still write to the memory. The mappings of a process end with it.
    fn has_mapping(&self) -> bool {
        // Pairs with the release in `Imported::drop`: what its kernels have written comes before.
        word(&self.word).load(Ordering::Acquire) == MAPPED
            && self.process.is_none_or(|(pid, then)| started(pid) == Some(then))
    }
}

/// When a process was started, in ticks since the system was: field 22 of proc_pid_stat(5). `None` when it is gone or has
/// ended; such a process has no memory any more.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have blanks and parentheses itself; the state, field 3, is behind it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Memory that senders in other processes may have mapped.
#[derive(Debug)]
pub(crate) struct Exported {
    /// There until the drop.
    memory: Option<Arc<dyn Memory>>,
    importers: Vec<Importer>,
}

impl Exported {
    pub(crate) fn new(memory: Arc<dyn Memory>, importers: Vec<Importer>) -> Self {
        Exported { memory: Some(memory), importers }
    }
}

// SAFETY: the memory's own promise; it is there until this is dropped.
unsafe impl Memory for Exported {
    fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.address())
    }

    fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }

    fn address_space(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.address_space())
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        let importers = std::mem::take(&mut self.importers);
        let Some(memory) = self.memory.take() else { return };
        let kept = Kept { memory, importers };
        if kept.in_use() {
            keep(kept);
        }
    }
}

/// Memory that is to be freed when nobody has it mapped.
struct Kept {
    memory: Arc<dyn Memory>,
    importers: Vec<Importer>,
}

impl Kept {
    fn in_use(&self) -> bool {
        self.importers.iter().any(Importer::has_mapping)
    }
}

/// What is kept, and whether a thread looks after it.
static KEPT: Mutex<(Vec<Kept>, bool)> = Mutex::new((Vec::new(), false));

fn kept() -> MutexGuard<'static, (Vec<Kept>, bool)> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(memory: Kept) {
    let bytes = memory.memory.len();
    debug!(target: log::P2P, "{bytes} bytes of device memory are kept: other processes have them mapped");
    let mut kept = kept();
    kept.0.push(memory);
    if !kept.1 {
        let thread = thread::Builder::new().name("ferroccl-ipc".to_owned());
        // Without a thread it is looked at when the next memory is dropped.
        kept.1 = thread.spawn(look_after).is_ok();
    }
}

/// The thread: ends when nothing is kept.
fn look_after() {
    loop {
        thread::sleep(EVERY);
        let mut list = kept();
        let (used, free): (Vec<_>, Vec<_>) =
            std::mem::take(&mut list.0).into_iter().partition(Kept::in_use);
        list.0 = used;
        list.1 = !list.0.is_empty();
        let over = !list.1;
        // A driver may take its time to free memory.
        drop(list);
        drop(free);
        if over {
            return;
        }
    }
}

/// Memory of a receiver in another process, as its sender has mapped it.
#[derive(Debug)]
pub(crate) struct Imported {
    /// There until the drop.
    memory: Option<Arc<dyn Memory>>,
    word: HostRegion,
}

impl Imported {
    /// Maps the memory with `open`, and says so to its owner by the `word` of this sender.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn open<E>(
        at: HostRegion,
        open: impl FnOnce() -> Result<Arc<dyn Memory>, E>,
    ) -> Result<Self, E> {
        // Before: the owner must not free what is just being mapped. Nothing is published by it.
        word(&at).store(MAPPED, Ordering::Relaxed);
        let mut imported = Imported { memory: None, word: at };
        imported.memory = Some(open()?);
        Ok(imported)
    }
}

// SAFETY: the memory's own promise; it is there until this is dropped.
unsafe impl Memory for Imported {
    fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.address())
    }

    fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }

    fn address_space(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.address_space())
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        drop(self.memory.take());
        // Pairs with the acquire in `Importer::has_mapping`.
        word(&self.word).store(CLOSED, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;
    use crate::channel::HEADER_BYTES;

    /// Memory that says when it is freed.
    #[derive(Debug)]
    struct Tracked(Arc<AtomicBool>);

    // SAFETY: it has no bytes.
    unsafe impl Memory for Tracked {
        fn address(&self) -> u64 {
            0
        }
        fn len(&self) -> usize {
            0
        }
        fn address_space(&self) -> u64 {
            0
        }
    }

    impl Drop for Tracked {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn tracked() -> (Arc<dyn Memory>, Arc<AtomicBool>) {
        let freed = Arc::new(AtomicBool::new(false));
        (Arc::new(Tracked(Arc::clone(&freed))), freed)
    }

    fn exported(edge: &HostRegion, process: Option<(u32, u64)>) -> (Exported, Arc<AtomicBool>) {
        let (memory, freed) = tracked();
        let importer = Importer { word: edge.clone(), process };
        (Exported::new(memory, vec![importer]), freed)
    }

    fn comes(freed: &AtomicBool) -> bool {
        let start = Instant::now();
        while !freed.load(Ordering::SeqCst) {
            if start.elapsed() > Duration::from_secs(30) {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    #[test]
    fn memory_is_freed_when_the_last_sender_has_closed_it() {
        let edge = HostRegion::anonymous(HEADER_BYTES).unwrap();
        let (memory, freed) = exported(&edge, None);
        drop(memory);
        assert!(freed.load(Ordering::SeqCst), "nobody has ever mapped it: at once");

        let (memory, freed) = exported(&edge, None);
        let (theirs, closed) = tracked();
        let mapped = Imported::open(edge.clone(), || Ok::<_, ()>(theirs)).unwrap();
        drop(memory);
        thread::sleep(10 * EVERY);
        assert!(!freed.load(Ordering::SeqCst), "a sender may be in mid-copy");
        drop(mapped);
        assert!(closed.load(Ordering::SeqCst) && comes(&freed));

        // The mapping that could not be made is none.
        let (memory, freed) = exported(&edge, None);
        assert!(Imported::open(edge.clone(), || Err::<Arc<dyn Memory>, _>(())).is_err());
        drop(memory);
        assert!(freed.load(Ordering::SeqCst));
    }

    #[test]
    fn a_sender_that_dies_closes_nothing_and_is_not_waited_for() {
        let edge = HostRegion::anonymous(HEADER_BYTES).unwrap();
        let mut sender = Command::new("sleep").arg("60").spawn().unwrap();
        let process = started(sender.id()).map(|then| (sender.id(), then));
        assert!(process.is_some());
        let (memory, freed) = exported(&edge, process);
        word(&edge).store(MAPPED, Ordering::Relaxed);
        drop(memory);
        thread::sleep(5 * EVERY);
        assert!(!freed.load(Ordering::SeqCst));
        sender.kill().unwrap();
        // A process that has ended and is not waited for has no memory either.
        assert!(comes(&freed));
        sender.wait().unwrap();
        // Its number may be somebody else's by now.
        let (memory, freed) = exported(&edge, Some((std::process::id(), 1)));
        drop(memory);
        assert!(freed.load(Ordering::SeqCst));
    }
}
