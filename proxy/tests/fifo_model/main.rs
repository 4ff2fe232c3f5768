//! Models of a connection between hosts, of which [loom](https://docs.rs/loom) tries the orders of events (see
//! [`PREEMPTIONS`]) and all that the memory orders allow: nothing is read that is not there, and nothing overwritten that is
//! still read.
//!
//! ```text
//! sending    kernel ─ signature, FIFO, slots, tail, head ─ Sending      each half by itself: they share no memory
//! receiving  Receiving ─ signature, slots, tail, head ─ kernel
//! puts       a user's kernel ─ requests, done, words of signals ─ Puts
//! ```
//!
//! What stands for the proxy takes its orders from `connection::orders`, where `Sending` and `Receiving` have theirs. What
//! stands for the kernel breaks the same `prims::Rules` as the kernels in `tests/cpu/adversity.rs`; its orders are those of the
//! accesses that it is made of (`gpu::ld_acquire`, `gpu::st_release`, `gpu::st_line`). There are 2 slots and 3 steps, so that
//! the first slot is used twice.
//!
//! A model that cannot fail proves nothing: each order is made weaker by itself, each rule is broken, and bugs are put in;
//! all of them must be found. `orders::sending::{ENTRY, FLAG}` and `orders::OWN` are as weak as there is, and
//! `orders::sending::LINES` has nothing to order in LL.
//!
//! What loom does not try is a store that overtakes a load before it in its thread. Where the load is of plain memory loom
//! reports a race all the same. The lines of an LL slot are atomic: there a [`Read`] beside them stands for the memory that
//! is read and then overwritten.

mod puts;
mod receiving;
mod sending;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferroccl_device::prims::{Correct, Rules};
use loom::cell::UnsafeCell;

/// Slots of a connection, and entries of a ring of signatures.
const SLOTS: usize = 2;
/// Steps, and signatures. More than slots.
const STEPS: u64 = 3;
/// How often threads are stopped where they could go on, at most. Once is enough for all that is put in here to be found;
/// the others are for what nobody thought of. With 3 the tests take seconds, with 5 a minute.
const PREEMPTIONS: usize = 3;

/// Data of a step.
fn data(step: u64) -> u32 {
    100 + step as u32
}

/// Where a step or signature is.
fn index(step: u64) -> usize {
    (step % SLOTS as u64) as usize
}

/// Plain memory: loom reports an access that is not ordered after the other thread's.
struct Plain(UnsafeCell<u32>);

impl Plain {
    fn new() -> Self {
        Plain(UnsafeCell::new(0))
    }

    fn write(&self, value: u32) {
        // SAFETY: loom fails when there is another access meanwhile.
        self.0.with_mut(|data| unsafe { *data = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|data| unsafe { *data })
    }
}

/// That what a step has put into a slot is read before something else overwrites it.
struct Read(Plain);

impl Read {
    fn new() -> Self {
        Read(Plain::new())
    }

    fn reads(&self) {
        self.0.read();
    }

    fn overwrites(&self) {
        self.0.write(0);
    }
}

/// Waits for the other thread.
fn until(ready: impl Fn() -> bool) {
    while !ready() {
        loom::thread::yield_now();
    }
}

/// Two threads over a memory.
fn two<M: 'static>(memory: M, a: impl FnOnce(&M) + 'static, b: impl FnOnce(&M)) {
    let memory = loom::sync::Arc::new(memory);
    let thread = {
        let memory = memory.clone();
        loom::thread::spawn(move || a(&memory))
    };
    b(&memory);
    thread.join().unwrap();
}

/// Tries all that can happen in a model; what goes wrong, or how many ways there are.
fn explore(model: impl Fn() + Send + Sync + 'static) -> Result<usize, String> {
    let ways = Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    let count = ways.clone();
    let explored = catch_unwind(AssertUnwindSafe(|| {
        builder.check(move || {
            count.fetch_add(1, Ordering::Relaxed);
            model();
        });
    }));
    match explored {
        Ok(()) => Ok(ways.load(Ordering::Relaxed)),
        Err(panic) => Err(match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"?").to_string(),
        }),
    }
}

fn holds(what: &str, model: impl Fn() + Send + Sync + 'static) {
    match explore(model) {
        Ok(ways) => println!("{what}: {ways} ways"),
        Err(why) => panic!("{what}: {why}"),
    }
}

/// `why` tells a bug from a model that does not end.
fn is_caught(what: &str, model: impl Fn() + Send + Sync + 'static) {
    match explore(model) {
        Ok(ways) => panic!("{what}: not found in {ways} ways"),
        Err(why) => {
            println!("{what}: {}", why.lines().next().unwrap_or_default());
            let race = why.starts_with("Causality violation");
            assert!(race || why.contains("of step"), "{what}: {why}");
        }
    }
}

/// What a kernel keeps: a protocol's rules, and the order in which it stores.
trait KernelRules: Rules {
    /// The flag of an LL128 line comes after the line's data.
    const FLAG_LAST: bool = true;
    /// The tail comes after the data of the step.
    const DATA_BEFORE_TAIL: bool = true;
}

impl KernelRules for Correct {}

macro_rules! broken {
    ($name:ident: $broken:ident $rule:ident, $kept:ident) => {
        struct $name;
        impl $broken for $name {
            const $rule: bool = false;
        }
        impl $kept for $name {}
    };
}
broken!(NoCredit: Rules WAIT_FOR_CREDIT, KernelRules);
broken!(OneFlag: Rules CHECK_BOTH_FLAGS, KernelRules);
broken!(FlagFirst: KernelRules FLAG_LAST, Rules);
broken!(TailFirst: KernelRules DATA_BEFORE_TAIL, Rules);
