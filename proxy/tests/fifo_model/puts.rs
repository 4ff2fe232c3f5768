//! Puts of a user's kernel: requests on their way to the proxy, and what the proxy of another rank has told.

use ferroccl_proxy::puts::orders;
use loom::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// The orders of a model, the kernel's first.
#[derive(Clone, Copy)]
struct Orders {
    /// The store of a request's number in `BlockComm::request`.
    number: Ordering,
    /// The loads in `BlockComm::request` and `BlockComm::flush`.
    done: Ordering,
    /// The loads in `BlockComm::wait_for` and `BlockComm::meet`.
    word: Ordering,
    request: Ordering,
    tell_done: Ordering,
    tell_word: Ordering,
}

const ORDERS: Orders = Orders {
    number: Ordering::Release,
    done: Ordering::Acquire,
    word: Ordering::Acquire,
    request: orders::REQUEST,
    tell_done: orders::DONE,
    tell_word: orders::WORD,
};

/// What may be done wrong.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The kernel writes a request without waiting for room.
    NoRoom,
    /// The kernel overwrites what it has put without a flush.
    NoFlush,
    /// The kernel tells the number before the request is whole.
    EarlyNumber,
    /// The proxy tells that a request is done before its data is sent.
    EarlyDone,
    /// The proxy tells a signal before its data is there.
    EarlyWord,
}

struct Requests {
    done: AtomicU64,
    numbers: [AtomicU64; SLOTS],
    /// The rest of each.
    fields: [Plain; SLOTS],
    /// What is put.
    source: Plain,
}

/// Requests of a kernel that puts the same place again and again, behind a flush each time; or, without `flushes`, that only asks.
fn requests(orders: Orders, bug: Bug, flushes: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let memory = Requests {
            done: AtomicU64::new(0),
            numbers: [AtomicU64::new(0), AtomicU64::new(0)],
            fields: [Plain::new(), Plain::new()],
            source: Plain::new(),
        };
        // `Puts::take`, and what it sends.
        let proxy = move |memory: &Requests| {
            for n in 0..STEPS {
                until(|| memory.numbers[index(n)].load(orders.request) == n + 1);
                if bug == Bug::EarlyDone {
                    memory.done.store(n + 1, orders.tell_done);
                }
                let found = memory.fields[index(n)].read();
                assert!(found == data(n), "request {found} instead of that of step {n}");
                if flushes {
                    let found = memory.source.read();
                    assert!(found == data(n), "{found} instead of what is put of step {n}");
                }
                if bug != Bug::EarlyDone {
                    memory.done.store(n + 1, orders.tell_done);
                }
            }
        };
        two(memory, proxy, |memory| {
            for n in 0..STEPS {
                if flushes {
                    until(|| bug == Bug::NoFlush || memory.done.load(orders.done) >= n);
                    memory.source.write(data(n));
                }
                let room = SLOTS as u64;
                until(|| bug == Bug::NoRoom || memory.done.load(orders.done) + room > n);
                if bug == Bug::EarlyNumber {
                    memory.numbers[index(n)].store(n + 1, orders.number);
                }
                memory.fields[index(n)].write(data(n));
                if bug != Bug::EarlyNumber {
                    memory.numbers[index(n)].store(n + 1, orders.number);
                }
            }
        });
    }
}

struct Told {
    word: AtomicU64,
    window: Plain,
    /// The number of a request by which the kernel says that it has read.
    number: AtomicU64,
}

/// Signals behind data; the sender waits until the kernel has said that it has read, as users' kernels do.
fn signals(orders: Orders, bug: Bug) -> impl Fn() + Send + Sync + 'static {
    move || {
        let memory =
            Told { word: AtomicU64::new(0), window: Plain::new(), number: AtomicU64::new(0) };
        // `Incoming::receive`, `Incoming::tell`.
        let proxy = move |memory: &Told| {
            for n in 0..STEPS {
                until(|| memory.number.load(orders.request) == n);
                if bug == Bug::EarlyWord {
                    memory.word.store(n + 1, orders.tell_word);
                }
                memory.window.write(data(n));
                if bug != Bug::EarlyWord {
                    memory.word.store(n + 1, orders.tell_word);
                }
            }
        };
        two(memory, proxy, |memory| {
            for n in 0..STEPS {
                until(|| memory.word.load(orders.word) > n);
                let found = memory.window.read();
                assert!(found == data(n), "{found} instead of the data of step {n}");
                memory.number.store(n + 1, orders.number);
            }
        });
    }
}

const RELAXED: Ordering = Ordering::Relaxed;

#[test]
fn what_is_put_is_sent_and_told() {
    for flushes in [false, true] {
        holds(&format!("requests, flushes {flushes}"), requests(ORDERS, Bug::None, flushes));
    }
    holds("signals", signals(ORDERS, Bug::None));
}

#[test]
fn a_weaker_order_is_caught() {
    let weaker = [
        ("the number is not released", Orders { number: RELAXED, ..ORDERS }),
        ("the number is not acquired", Orders { request: RELAXED, ..ORDERS }),
        ("what is done is not released", Orders { tell_done: RELAXED, ..ORDERS }),
        ("what is done is not acquired", Orders { done: RELAXED, ..ORDERS }),
    ];
    for (what, orders) in weaker {
        for flushes in [false, true] {
            let model = requests(orders, Bug::None, flushes);
            is_caught(&format!("requests, flushes {flushes}, {what}"), model);
        }
    }
    let weaker = [
        ("the word is not released", Orders { tell_word: RELAXED, ..ORDERS }),
        ("the word is not acquired", Orders { word: RELAXED, ..ORDERS }),
    ];
    for (what, orders) in weaker {
        is_caught(&format!("signals, {what}"), signals(orders, Bug::None));
    }
}

#[test]
fn a_bug_is_caught() {
    for (what, bug, flushes) in [
        ("without room", Bug::NoRoom, false),
        ("without a flush", Bug::NoFlush, true),
        ("the number first", Bug::EarlyNumber, false),
        ("done too early", Bug::EarlyDone, false),
        ("done too early", Bug::EarlyDone, true),
    ] {
        is_caught(&format!("requests, {what}"), requests(ORDERS, bug, flushes));
    }
    is_caught("signals, the word first", signals(ORDERS, Bug::EarlyWord));
}
