//! The receiver's half: its proxy fills slots with what arrives, a kernel reads them.

use ferroccl_proxy::connection::orders::{self, receiving};
use loom::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// The orders of a model, the kernel's first.
#[derive(Clone, Copy)]
struct Orders {
    /// `ConnState::has_tail`.
    has_tail: Ordering,
    /// `ConnState::post_head`.
    post_head: Ordering,
    /// The tail in `has_signature`.
    has_signature: Ordering,
    /// The acknowledged in `check_signature`.
    compare: Ordering,
    head: Ordering,
    tail: Ordering,
    acknowledged: Ordering,
    signatures: Ordering,
}

const ORDERS: Orders = Orders {
    has_tail: Ordering::Acquire,
    post_head: Ordering::Release,
    has_signature: Ordering::Acquire,
    compare: Ordering::Release,
    head: receiving::HEAD,
    tail: receiving::TAIL,
    acknowledged: receiving::ACKNOWLEDGED,
    signatures: receiving::SIGNATURES,
};

/// What may be done wrong.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The proxy has a slot filled that the kernel may still read.
    NoCredit,
    /// The proxy publishes a step when it calls irecv, and not when that is done.
    EarlyTail,
    /// The kernel gives a slot back before it has read it.
    EarlyCredit,
    /// The kernel of LL or LL128 looks at flags only: `Conn::wait_tail_first` is not set.
    NotGated,
}

/// How a step is to be recognised.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Simple,
    /// LL or LL128, which do not differ here: a network writes lines in pieces.
    Lines,
}

struct Slot {
    flag: AtomicU64,
    data: Plain,
}

struct Memory {
    tail: AtomicU64,
    head: AtomicU64,
    slots: [Slot; SLOTS],
}

impl Memory {
    fn new() -> Self {
        let slot = || Slot { flag: AtomicU64::new(0), data: Plain::new() };
        Memory { tail: AtomicU64::new(0), head: AtomicU64::new(0), slots: [slot(), slot()] }
    }
}

/// The network, at any time from irecv until that is done; the flag first, as nothing keeps it from that.
fn fill(memory: &Memory, protocol: Protocol, step: u64) {
    let slot = &memory.slots[index(step)];
    if protocol == Protocol::Lines {
        slot.flag.store(step + 1, Ordering::Relaxed);
    }
    slot.data.write(data(step));
}

/// The proxy: `Receiving::progress`.
fn proxy(memory: &Memory, protocol: Protocol, orders: Orders, bug: Bug) {
    let (mut posted, mut done) = (0, 0);
    while done < STEPS {
        let has_credit =
            |step| bug == Bug::NoCredit || memory.head.load(orders.head) + SLOTS as u64 > step;
        while posted < STEPS && has_credit(posted) {
            // As early as it can be.
            if bug != Bug::EarlyTail {
                fill(memory, protocol, posted);
            }
            posted += 1;
        }
        if done == posted {
            loom::thread::yield_now();
            continue;
        }
        memory.tail.store(done + 1, orders.tail);
        if bug == Bug::EarlyTail {
            fill(memory, protocol, done);
        }
        done += 1;
    }
}

/// The kernel: `Protocol::step` of a verb that receives.
fn kernel(memory: &Memory, protocol: Protocol, orders: Orders, bug: Bug) {
    for step in 0..STEPS {
        let slot = &memory.slots[index(step)];
        if bug != Bug::NotGated {
            until(|| memory.tail.load(orders.has_tail) > step);
        }
        if protocol == Protocol::Lines {
            until(|| {
                let flag = slot.flag.load(Ordering::Acquire);
                // Else it would wait for good.
                assert!(
                    flag <= step + 1,
                    "the flag of a later step instead of that of step {step}"
                );
                flag == step + 1
            });
        }
        if bug == Bug::EarlyCredit {
            memory.head.store(step + 1, orders.post_head);
        }
        let (found, want) = (slot.data.read(), data(step));
        assert!(found == want, "{found} instead of {want} of step {step}");
        if bug != Bug::EarlyCredit {
            memory.head.store(step + 1, orders.post_head);
        }
    }
}

fn steps(protocol: Protocol, orders: Orders, bug: Bug) -> impl Fn() + Send + Sync + 'static {
    move || {
        two(
            Memory::new(),
            move |memory| proxy(memory, protocol, orders, bug),
            |memory| kernel(memory, protocol, orders, bug),
        );
    }
}

/// Signatures on their way from the proxy.
fn signatures(orders: Orders, bug: Bug) -> impl Fn() + Send + Sync + 'static {
    struct Ring {
        tail: AtomicU64,
        entries: [Plain; SLOTS],
        ack: AtomicU64,
    }
    move || {
        let ring = Ring {
            tail: AtomicU64::new(0),
            entries: [Plain::new(), Plain::new()],
            ack: AtomicU64::new(0),
        };
        let proxy = move |ring: &Ring| {
            let (mut heard, mut arrived) = (0, 0);
            while arrived < STEPS {
                let has_room = |n| {
                    bug == Bug::NoCredit || ring.ack.load(orders.acknowledged) + SLOTS as u64 > n
                };
                while heard < STEPS && has_room(heard) {
                    ring.entries[index(heard)].write(data(heard));
                    heard += 1;
                }
                if arrived == heard {
                    loom::thread::yield_now();
                    continue;
                }
                arrived += 1;
                ring.tail.store(ring.tail.load(orders::OWN) + 1, orders.signatures);
            }
        };
        // `has_signature`, `check_signature`.
        two(ring, proxy, |ring| {
            for n in 0..STEPS {
                until(|| ring.tail.load(orders.has_signature) > n);
                if bug == Bug::EarlyCredit {
                    ring.ack.store(n + 1, orders.compare);
                }
                let found = ring.entries[index(n)].read();
                assert!(found == data(n), "signature {found} instead of that of step {n}");
                if bug != Bug::EarlyCredit {
                    ring.ack.store(n + 1, orders.compare);
                }
            }
        });
    }
}

const RELAXED: Ordering = Ordering::Relaxed;
const BOTH: [Protocol; 2] = [Protocol::Simple, Protocol::Lines];

#[test]
fn what_arrives_is_received() {
    for protocol in BOTH {
        holds(&format!("receiving {protocol:?}"), steps(protocol, ORDERS, Bug::None));
    }
    holds("receiving signatures", signatures(ORDERS, Bug::None));
}

#[test]
fn a_weaker_order_is_caught() {
    let weaker = [
        ("the tail is not acquired", Orders { has_tail: RELAXED, ..ORDERS }),
        ("credit is not released", Orders { post_head: RELAXED, ..ORDERS }),
        ("credit is not acquired", Orders { head: RELAXED, ..ORDERS }),
        ("the tail is not released", Orders { tail: RELAXED, ..ORDERS }),
    ];
    for (what, orders) in weaker {
        for protocol in BOTH {
            is_caught(
                &format!("receiving {protocol:?}, {what}"),
                steps(protocol, orders, Bug::None),
            );
        }
    }
    let weaker = [
        ("the tail is not acquired", Orders { has_signature: RELAXED, ..ORDERS }),
        ("room is not released", Orders { compare: RELAXED, ..ORDERS }),
        ("room is not acquired", Orders { acknowledged: RELAXED, ..ORDERS }),
        ("the tail is not released", Orders { signatures: RELAXED, ..ORDERS }),
    ];
    for (what, orders) in weaker {
        is_caught(&format!("receiving signatures, {what}"), signatures(orders, Bug::None));
    }
}

#[test]
fn a_bug_is_caught() {
    let bugs = [
        ("filled without credit", &BOTH[..], Bug::NoCredit),
        ("published before it has come", &BOTH, Bug::EarlyTail),
        ("given back before it is read", &BOTH, Bug::EarlyCredit),
        ("without waiting for the tail", &[Protocol::Lines], Bug::NotGated),
    ];
    for (what, protocols, bug) in bugs {
        for &protocol in protocols {
            is_caught(&format!("receiving {protocol:?}, {what}"), steps(protocol, ORDERS, bug));
        }
    }
    for (what, bug) in [("without room", Bug::NoCredit), ("read too late", Bug::EarlyCredit)] {
        is_caught(&format!("receiving signatures, {what}"), signatures(ORDERS, bug));
    }
}
