//! What a run does, from its seed.

use std::fmt::{self, Display};
use std::ops::Range;
use std::time::Duration;

use crate::random::Random;

/// What goes wrong at a call of one rank, the victim, or in its set-up. `behind` says that its part of the call is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Nothing,
    /// SIGKILL.
    Killed {
        behind: bool,
    },
    /// SIGKILL so long after the process's start: most of these hit the set-up.
    KilledAfter(Duration),
    /// SIGKILL at this line of the log, counted from the set-up's first; those of tracing's level TRACE count.
    KilledAtLine(usize),
    /// SIGSTOP for ever.
    Frozen,
    /// SIGSTOP, and SIGCONT before anybody's time is up.
    Paused,
    /// It does not make the call.
    Absent,
    /// The process ends without a word to anybody.
    Exits {
        behind: bool,
    },
    /// The communicator is dropped.
    Leaves {
        behind: bool,
    },
    Aborts {
        behind: bool,
    },
    Revokes {
        behind: bool,
    },
    /// It calls with another count.
    Mismatch,
    /// A child that has a copy of the communicator, uses it, and ends.
    Forks,
    /// One thread stops for ever, by its name.
    FrozenThread(&'static str),
    /// There are few descriptors left for the set-up.
    NoDescriptors {
        left: u64,
    },
    /// There is little address space left for the set-up and the calls.
    NoMemory {
        left: u64,
    },
    /// The thread that makes calls starts no other any more: from the set-up on, or from the call on.
    NoThreads {
        at_once: bool,
    },
    /// The cable of its host is pulled.
    Cut,
    /// The cable of its host is pulled for a moment.
    CutFor(Duration),
    /// What its host and this rank's send each other is lost.
    BlackHole {
        other: u32,
    },
    /// Every frame to and from its host takes so many milliseconds longer.
    Slow(u64),
    /// So many of a hundred frames to and from its host are lost.
    Lossy(u8),
    /// Its connection to the root is closed after so many bytes.
    RootCut(usize),
    /// The root is silent after so many bytes.
    RootSilent(usize),
    /// What it and the root send each other waits so long.
    RootSlow(Duration),
    /// This byte of what it and the root send each other is another one.
    RootCorrupt(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    AllReduce,
    Broadcast {
        root: u32,
    },
    AllGather,
    ReduceScatter,
    Barrier,
    /// To the next rank, from the one before.
    Around,
}

/// Where the processes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On one host: shared memory.
    OneHost,
    /// On one host, with GPUs that the stand-in for a driver plays: CUDA IPC.
    Gpus,
    /// Each takes itself for a host: sockets, over the loopback interface.
    Hosts,
    /// Each takes itself for a host with an RDMA device.
    Verbs,
    /// Each is a host with a network namespace of its own.
    Namespaces,
}

/// A run.
#[derive(Debug)]
pub(super) struct Plan {
    /// `seed` and a number, or the number of an end in [`ends`].
    pub(super) name: String,
    /// The ranks of each process: a thread each.
    pub(super) processes: Vec<Range<u32>>,
    pub(super) place: Place,
    pub(super) calls: Vec<(Call, usize)>,
    /// The first rank of its process.
    pub(super) victim: u32,
    /// The call at which the fault is.
    pub(super) at: usize,
    pub(super) fault: Fault,
}

impl Plan {
    /// The one of this name.
    pub(super) fn named(name: &str) -> Self {
        match name.strip_prefix("seed ") {
            Some(seed) => Self::new(seed.parse().unwrap()),
            None => PLACES
                .iter()
                .flat_map(|place| ends(*place))
                .find(|plan| plan.name == name)
                .unwrap_or_else(|| panic!("no plan is called {name:?}")),
        }
    }

    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(1));
        let n = if random.chance(10) { 6 + random.below(11) } else { 2 + random.below(4) };
        let mut ranks = 0;
        let mut processes = Vec::new();
        let threads = random.chance(20);
        while ranks < n as u32 || processes.len() < 2 {
            let first = ranks;
            ranks += if threads { 1 + random.below(3) as u32 } else { 1 };
            processes.push(first..ranks);
        }
        let len = 3 + random.below(12);
        let call = |random: &mut Random| {
            let count = [0, 1, 3, 64, 1001, 40_000, 200_003][random.below(7)];
            let call = match random.below(6) {
                0 => Call::Broadcast { root: random.below(ranks as usize) as u32 },
                1 => Call::AllGather,
                2 => Call::ReduceScatter,
                3 => Call::Barrier,
                4 => Call::Around,
                _ => Call::AllReduce,
            };
            (call, count)
        };
        let mut calls: Vec<_> = (0..len).map(|_| call(&mut random)).collect();
        let at = random.below(len);
        // The root is rank 0's.
        let of_root = (24..28).contains(&(seed % KINDS));
        let first = usize::from(of_root);
        let victim = processes[first + random.below(processes.len() - first)].start;
        let fault = fault(seed, &mut random, &processes, victim);
        if fault == Fault::Mismatch {
            calls[at] = (Call::AllReduce, 1 + random.below(5000));
        }
        if matches!(fault, Fault::Absent | Fault::Leaves { .. }) {
            // What no rank has to wait for would hide it.
            calls[at] = (Call::AllReduce, 100);
        }
        let name = format!("seed {seed}");
        let mut plan = Plan { name, processes, place: Place::OneHost, calls, victim, at, fault };
        plan.place = match random.below(if of_root { 2 } else { 3 }) {
            _ if plan.of_network() => Place::Namespaces,
            0 => Place::OneHost,
            1 => Place::Hosts,
            _ => Place::Namespaces,
        };
        plan
    }

    pub(super) fn ranks(&self) -> u32 {
        self.processes.last().map_or(0, |ranks| ranks.end)
    }

    /// The process of a rank.
    pub(super) fn process(&self, rank: u32) -> usize {
        self.processes.iter().position(|ranks| ranks.contains(&rank)).unwrap()
    }

    /// Whether all ranks get all results.
    pub(super) fn harmless(&self) -> bool {
        matches!(
            self.fault,
            Fault::Nothing
                | Fault::Paused
                | Fault::Forks
                | Fault::CutFor(_)
                | Fault::Slow(_)
                | Fault::Lossy(_)
                | Fault::RootSlow(_)
        )
    }

    /// Whether the run may end before the fault shows.
    pub(super) fn may_miss(&self) -> bool {
        matches!(
            self.fault,
            Fault::KilledAfter(_)
                | Fault::KilledAtLine(_)
                | Fault::FrozenThread(_)
                | Fault::NoDescriptors { .. }
                | Fault::NoMemory { .. }
                | Fault::NoThreads { .. }
                | Fault::Cut
                | Fault::BlackHole { .. }
                | Fault::RootCut(_)
                | Fault::RootSilent(_)
                | Fault::RootCorrupt(_)
        )
    }

    /// Whether the victim's process is no more, or is of no more use.
    pub(super) fn dies(&self) -> bool {
        matches!(
            self.fault,
            Fault::Killed { .. }
                | Fault::KilledAfter(_)
                | Fault::KilledAtLine(_)
                | Fault::Frozen
                | Fault::FrozenThread(_)
                | Fault::Exits { .. }
        )
    }

    /// Whether the fault is of a whole process, with all of its ranks.
    fn of_process(&self) -> bool {
        let lacks = matches!(self.fault, Fault::NoDescriptors { .. } | Fault::NoMemory { .. });
        let way = matches!(self.fault, Fault::Cut | Fault::BlackHole { .. });
        self.dies() || lacks || way || self.of_root()
    }

    /// Whether it is the network that fails, by what the driver does.
    pub(super) fn of_network(&self) -> bool {
        matches!(
            self.fault,
            Fault::Cut
                | Fault::CutFor(_)
                | Fault::BlackHole { .. }
                | Fault::Slow(_)
                | Fault::Lossy(_)
        )
    }

    /// Whether the victim's way to the root goes by a relay.
    pub(super) fn of_root(&self) -> bool {
        matches!(
            self.fault,
            Fault::RootCut(_) | Fault::RootSilent(_) | Fault::RootSlow(_) | Fault::RootCorrupt(_)
        )
    }

    /// The ranks that may be blamed.
    pub(super) fn culprits(&self) -> Vec<u32> {
        let whole = |rank| self.processes[self.process(rank)].clone();
        match self.fault {
            // Nobody can tell which end a flow is lost at.
            Fault::BlackHole { other } => whole(self.victim).chain(whole(other)).collect(),
            _ if self.of_process() => whole(self.victim).collect(),
            _ => vec![self.victim],
        }
    }

    /// The ranks that the others go on without.
    pub(super) fn excluded(&self) -> Vec<u32> {
        match self.fault {
            Fault::Aborts { .. } | Fault::Revokes { .. } | Fault::Mismatch => Vec::new(),
            _ if self.of_process() => self.processes[self.process(self.victim)].clone().collect(),
            _ => vec![self.victim],
        }
    }
}

/// How many kinds of faults there are: the seed says which in turn.
pub(super) const KINDS: u64 = 29;

fn fault(seed: u64, random: &mut Random, processes: &[Range<u32>], victim: u32) -> Fault {
    let milliseconds = |n: usize| Duration::from_millis(n as u64);
    let behind = random.chance(50);
    match seed % KINDS {
        0 | 1 => Fault::Killed { behind },
        2 | 3 => Fault::KilledAfter(milliseconds(random.below(120))),
        4..=6 => Fault::KilledAtLine(random.below(60)),
        7 => Fault::Frozen,
        8 => Fault::Paused,
        9 => Fault::Absent,
        10 => Fault::Exits { behind },
        11 => Fault::Leaves { behind },
        12 => Fault::Aborts { behind },
        13 => Fault::Revokes { behind },
        14 => Fault::Mismatch,
        15 => Fault::Forks,
        16 => Fault::FrozenThread(random.pick(&["ferroccl-watch", "ferroccl-proxy"])),
        17 => Fault::NoDescriptors { left: random.below(24) as u64 },
        18 => Fault::NoMemory { left: (random.below(64) << 20) as u64 },
        19 => Fault::NoThreads { at_once: random.chance(50) },
        20 => Fault::Cut,
        21 => Fault::CutFor(milliseconds(50 + random.below(500))),
        22 => {
            let others: Vec<_> = processes.iter().filter(|p| !p.contains(&victim)).collect();
            Fault::BlackHole { other: others[random.below(others.len())].start }
        }
        23 => random.pick(&[Fault::Slow(3), Fault::Slow(30), Fault::Lossy(1), Fault::Lossy(3)]),
        24 => Fault::RootCut(random.below(400)),
        25 => Fault::RootSilent(random.below(400)),
        26 => Fault::RootSlow(random.pick(&[1, 20, 200].map(milliseconds))),
        27 => Fault::RootCorrupt(random.below(400)),
        _ => Fault::Nothing,
    }
}

/// The places of [`ends`].
pub(super) const PLACES: [Place; 4] = [Place::OneHost, Place::Gpus, Place::Hosts, Place::Verbs];

/// How a rank can go, before and behind a call, and each kind of call: every combination, in this order.
pub(super) fn ends(place: Place) -> Vec<Plan> {
    let ways = [false, true].into_iter().flat_map(|behind| {
        [
            Fault::Killed { behind },
            Fault::Exits { behind },
            Fault::Leaves { behind },
            Fault::Aborts { behind },
            Fault::Revokes { behind },
        ]
    });
    let combinations = ways.flat_map(|fault| CALLS.map(|call| (fault, call)));
    let plan = |(number, (fault, call)): (usize, (Fault, Call))| Plan {
        name: format!("end {number} {place:?}"),
        processes: (0..3).map(|rank| rank..rank + 1).collect(),
        place,
        calls: vec![(Call::AllReduce, 1000), (call, 40_001), (Call::AllReduce, 1000)],
        victim: number as u32 % 3,
        at: 1,
        fault,
    };
    combinations.enumerate().map(plan).collect()
}

/// A call of each kind.
pub(super) const CALLS: [Call; 6] = [
    Call::AllReduce,
    Call::Broadcast { root: 0 },
    Call::AllGather,
    Call::ReduceScatter,
    Call::Barrier,
    Call::Around,
];

impl Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { name, processes, place, calls, victim, at, fault } = self;
        let place = match place {
            Place::OneHost => "on one host",
            Place::Gpus => "with GPUs of one host",
            Place::Hosts => "as hosts",
            Place::Verbs => "as hosts with RDMA",
            Place::Namespaces => "in namespaces",
        };
        let (ranks, count) = (self.ranks(), processes.len());
        write!(f, "{name}: {ranks} ranks of {count} processes {place}, ")?;
        write!(f, "rank {victim} {fault:?} at call {at}, {:?}, of {}", calls[*at], calls.len())
    }
}
