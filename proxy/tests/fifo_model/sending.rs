//! The sender's half: a kernel fills slots, its proxy sends them.

use ferroccl_device::abi::{ProtocolId, fifo_bytes, fifo_entry};
use ferroccl_proxy::connection::orders::{self, sending};
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use super::*;

/// The orders of a model, the kernel's first.
#[derive(Clone, Copy)]
struct Orders {
    /// `ConnState::has_credit`.
    has_credit: Ordering,
    /// `ConnState::post_tail`.
    post_tail: Ordering,
    /// The flag in `gpu::st_line`.
    st_line: Ordering,
    /// The acknowledged in `has_signature_room`.
    has_signature_room: Ordering,
    /// The tail in `write_signature`.
    write_signature: Ordering,
    tail: Ordering,
    lines: Ordering,
    head: Ordering,
    signatures: Ordering,
    acknowledged: Ordering,
}

const ORDERS: Orders = Orders {
    has_credit: Ordering::Acquire,
    post_tail: Ordering::Release,
    st_line: Ordering::Release,
    has_signature_room: Ordering::Acquire,
    write_signature: Ordering::Release,
    tail: sending::TAIL,
    lines: sending::LINES,
    head: sending::HEAD,
    signatures: sending::SIGNATURES,
    acknowledged: sending::ACKNOWLEDGED,
};

/// What a proxy may do wrong.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Gives credit when it calls isend, and not when that is done.
    EarlyCredit,
    /// Takes what an entry of the FIFO says for the step at its turn.
    AnyEntry,
}

/// A slot of each protocol: of Simple some data, of the others a line.
struct Slot {
    data: Plain,
    halves: [AtomicU64; 2],
    line: Plain,
    flag: AtomicU64,
}

struct Memory {
    fifo: [AtomicU64; SLOTS],
    slots: [Slot; SLOTS],
    tail: AtomicU64,
    head: AtomicU64,
    /// Of LL.
    read: [Read; STEPS as usize],
}

impl Memory {
    fn new() -> Self {
        let word = |_| AtomicU64::new(0);
        let slot = || Slot {
            data: Plain::new(),
            halves: [0; 2].map(word),
            line: Plain::new(),
            flag: word(0),
        };
        Memory {
            fifo: [0; SLOTS].map(word),
            slots: [(); SLOTS].map(|()| slot()),
            tail: word(0),
            head: word(0),
            read: [(); STEPS as usize].map(|()| Read::new()),
        }
    }
}

/// The bytes that a step is said to have.
fn bytes(step: u64) -> u32 {
    16 * (step as u32 + 1)
}

fn ll_flag(step: u64) -> u64 {
    u64::from((step << 1 | 1) as u32)
}

/// The kernel: `Protocol::step` of a verb that sends.
fn kernel<L: KernelRules>(memory: &Memory, protocol: ProtocolId, orders: Orders) {
    for step in 0..STEPS {
        let slot = &memory.slots[index(step)];
        let announce = || {
            memory.fifo[index(step)].store(fifo_entry(step, bytes(step)), Ordering::Relaxed);
        };
        let publish = || memory.tail.store(step + 1, orders.post_tail);
        if L::WAIT_FOR_CREDIT {
            until(|| memory.head.load(orders.has_credit) + SLOTS as u64 > step);
        }
        match protocol {
            ProtocolId::Simple => {
                if !L::DATA_BEFORE_TAIL {
                    publish();
                }
                slot.data.write(data(step));
                announce();
                if L::DATA_BEFORE_TAIL {
                    publish();
                }
            }
            // Another crate's, between `begin_step` and `end_step`.
            ProtocolId::Own(_) => {
                announce();
                slot.data.write(data(step));
                publish();
            }
            ProtocolId::Ll => {
                announce();
                if let Some(before) = step.checked_sub(SLOTS as u64) {
                    memory.read[before as usize].overwrites();
                }
                for half in &slot.halves {
                    half.store(u64::from(data(step)) | ll_flag(step) << 32, Ordering::Relaxed);
                }
            }
            ProtocolId::Ll128 => {
                announce();
                if !L::FLAG_LAST {
                    slot.flag.store(step + 1, Ordering::Relaxed);
                }
                slot.line.write(data(step));
                if L::FLAG_LAST {
                    slot.flag.store(step + 1, orders.st_line);
                }
            }
        }
    }
}

/// `Sending::slot`: whether the kernel has filled it.
fn is_full<L: KernelRules>(
    memory: &Memory,
    protocol: ProtocolId,
    orders: Orders,
    bug: Bug,
    step: u64,
) -> bool {
    let slot = &memory.slots[index(step)];
    let entry = memory.fifo[index(step)].load(sending::ENTRY);
    let said = match bug {
        Bug::AnyEntry => (entry != 0).then_some(entry as u32),
        _ => fifo_bytes(entry, step),
    };
    let Some(said) = said else { return false };
    let full = match protocol {
        ProtocolId::Simple | ProtocolId::Own(_) => memory.tail.load(orders.tail) > step,
        ProtocolId::Ll => {
            let flag = ll_flag(step);
            let halves = if L::CHECK_BOTH_FLAGS { &slot.halves[..] } else { &slot.halves[..1] };
            halves.iter().all(|half| half.load(sending::FLAG) >> 32 == flag)
        }
        ProtocolId::Ll128 => slot.flag.load(sending::FLAG) == step + 1,
    };
    // There is no fence that orders nothing.
    let by_lines = matches!(protocol, ProtocolId::Ll | ProtocolId::Ll128);
    if full && by_lines && orders.lines != Ordering::Relaxed {
        fence(orders.lines);
    }
    assert!(!full || said == bytes(step), "{said} bytes of step {step}");
    full
}

/// The network, at any time from isend until that is done.
fn send(memory: &Memory, protocol: ProtocolId, step: u64) {
    let slot = &memory.slots[index(step)];
    let [first, second] = match protocol {
        ProtocolId::Simple | ProtocolId::Own(_) => [slot.data.read(); 2],
        ProtocolId::Ll => {
            memory.read[step as usize].reads();
            // A copy, which is ordered by nothing but that it comes after the flags.
            slot.halves.each_ref().map(|half| half.load(Ordering::Relaxed) as u32)
        }
        ProtocolId::Ll128 => [slot.line.read(); 2],
    };
    let want = data(step);
    assert!(
        first == want && second == want,
        "{first} and {second} instead of {want} of step {step}"
    );
}

/// The proxy: `Sending::progress`.
fn proxy<L: KernelRules>(memory: &Memory, protocol: ProtocolId, orders: Orders, bug: Bug) {
    let (mut transmitted, mut done) = (0, 0);
    while done < STEPS {
        while transmitted < STEPS && is_full::<L>(memory, protocol, orders, bug, transmitted) {
            transmitted += 1;
            if bug == Bug::EarlyCredit {
                memory.head.store(transmitted, orders.head);
            }
        }
        if done == transmitted {
            loom::thread::yield_now();
            continue;
        }
        // As late as it can be.
        send(memory, protocol, done);
        done += 1;
        if bug != Bug::EarlyCredit {
            memory.head.store(done, orders.head);
        }
    }
}

fn steps<L: KernelRules>(
    protocol: ProtocolId,
    orders: Orders,
    bug: Bug,
) -> impl Fn() + Send + Sync + 'static {
    move || {
        two(
            Memory::new(),
            move |memory| kernel::<L>(memory, protocol, orders),
            |memory| proxy::<L>(memory, protocol, orders, bug),
        );
    }
}

/// Signatures on their way to the proxy.
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
        // `has_signature_room`, `write_signature`.
        let kernel = move |ring: &Ring| {
            for n in 0..STEPS {
                until(|| ring.ack.load(orders.has_signature_room) + SLOTS as u64 > n);
                ring.entries[index(n)].write(data(n));
                ring.tail.store(n + 1, orders.write_signature);
            }
        };
        two(ring, kernel, |ring| {
            let (mut told, mut sent) = (0, 0);
            while sent < STEPS {
                let acknowledge = || {
                    ring.ack.store(ring.ack.load(orders::OWN) + 1, orders.acknowledged);
                };
                while told < STEPS && ring.tail.load(orders.signatures) > told {
                    told += 1;
                    if bug == Bug::EarlyCredit {
                        acknowledge();
                    }
                }
                if sent == told {
                    loom::thread::yield_now();
                    continue;
                }
                let found = ring.entries[index(sent)].read();
                assert!(found == data(sent), "signature {found} instead of that of step {sent}");
                sent += 1;
                if bug != Bug::EarlyCredit {
                    acknowledge();
                }
            }
        });
    }
}

const RELAXED: Ordering = Ordering::Relaxed;
/// Another crate's protocol.
const OWN: ProtocolId = ProtocolId::own(0, "own");

#[test]
fn what_a_kernel_sends_is_sent() {
    for protocol in [ProtocolId::Simple, ProtocolId::Ll, ProtocolId::Ll128, OWN] {
        holds(&format!("sending {protocol}"), steps::<Correct>(protocol, ORDERS, Bug::None));
    }
    holds("sending signatures", signatures(ORDERS, Bug::None));
}

/// All of them: a weaker order, and the protocols for which it counts.
#[test]
fn a_weaker_order_is_caught() {
    use ProtocolId::{Ll, Ll128, Simple};
    let all = [Simple, Ll, Ll128, OWN].as_slice();
    let weaker = [
        ("credit is not acquired", all, Orders { has_credit: RELAXED, ..ORDERS }),
        ("the tail is not released", &[Simple, OWN], Orders { post_tail: RELAXED, ..ORDERS }),
        ("a flag is not released", &[Ll128], Orders { st_line: RELAXED, ..ORDERS }),
        ("the tail is not acquired", &[Simple, OWN], Orders { tail: RELAXED, ..ORDERS }),
        ("flags are not acquired", &[Ll128], Orders { lines: RELAXED, ..ORDERS }),
        ("credit is not released", all, Orders { head: RELAXED, ..ORDERS }),
    ];
    for (what, protocols, orders) in weaker {
        for &protocol in protocols {
            let what = format!("sending {protocol}, {what}");
            is_caught(&what, steps::<Correct>(protocol, orders, Bug::None));
        }
    }
    // Why it is not in the table: a half of a line is data and flag in one.
    holds(
        "sending LL without a fence",
        steps::<Correct>(Ll, Orders { lines: RELAXED, ..ORDERS }, Bug::None),
    );
    let weaker = [
        ("room is not acquired", Orders { has_signature_room: RELAXED, ..ORDERS }),
        ("the tail is not released", Orders { write_signature: RELAXED, ..ORDERS }),
        ("the tail is not acquired", Orders { signatures: RELAXED, ..ORDERS }),
        ("room is not released", Orders { acknowledged: RELAXED, ..ORDERS }),
    ];
    for (what, orders) in weaker {
        is_caught(&format!("sending signatures, {what}"), signatures(orders, Bug::None));
    }
}

#[test]
fn a_broken_rule_is_caught() {
    use ProtocolId::{Ll, Ll128, Simple};
    for protocol in [Simple, Ll, Ll128] {
        let what = format!("sending {protocol} without waiting for credit");
        is_caught(&what, steps::<NoCredit>(protocol, ORDERS, Bug::None));
    }
    is_caught("the tail before the data", steps::<TailFirst>(Simple, ORDERS, Bug::None));
    is_caught("one flag of a line", steps::<OneFlag>(Ll, ORDERS, Bug::None));
    is_caught("the flag before the line", steps::<FlagFirst>(Ll128, ORDERS, Bug::None));
}

#[test]
fn a_proxys_bug_is_caught() {
    for protocol in [ProtocolId::Simple, ProtocolId::Ll, ProtocolId::Ll128] {
        let what = format!("sending {protocol}, credit before all is sent");
        is_caught(&what, steps::<Correct>(protocol, ORDERS, Bug::EarlyCredit));
        let what = format!("sending {protocol}, an old entry");
        is_caught(&what, steps::<Correct>(protocol, ORDERS, Bug::AnyEntry));
    }
    is_caught("sending signatures, room for more too early", signatures(ORDERS, Bug::EarlyCredit));
}
