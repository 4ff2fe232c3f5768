//! What all targets have in common: an input may not take memory out of proportion to its length.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

pub use libfuzzer_sys;

/// Bytes that any input may have allocated at a time: buffers of a fixed size, such as those of a connection, and tables
/// that are made once.
const ANYWAY: usize = 1 << 20;
/// Bytes for each byte of an input. An element of a topology file, `<a/>`, is some hundred bytes in memory, and is there several times.
const PER_BYTE: usize = 4 << 10;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// Counts what this thread has allocated.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: isize) {
    // Threads that end have none of it left.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as isize - layout.size() as isize);
        // SAFETY: the caller's.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

/// Gives an input to a target, and looks at what it takes.
pub fn run(data: &[u8], target: impl FnOnce(&[u8])) {
    let before = HELD.get();
    MOST.set(before);
    target(data);
    let most = (MOST.get() - before) as usize;
    assert!(most <= ANYWAY + PER_BYTE * data.len(), "{} bytes take {most} bytes", data.len());
}

/// A target of one function of bytes.
#[macro_export]
macro_rules! target {
    ($function:path) => {
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::run(data, $function));
    };
}
