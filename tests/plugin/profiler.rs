//! Profilers: `profiler.c` behind each version, and what it is told of calls.
//!
//! The plugin says what it is told, a line each. Here all of it is read, and must be sound: each event begins once and ends once, before
//! its communicator is finalized, and belongs to an event of the right kind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ferroccl::{CommConfig, Communicator, Device, DeviceBuffer, ReduceOp, Stream, UniqueId, group};

use crate::again::here;
use crate::{compile, passes, run, text};

const VERSIONS: std::ops::RangeInclusive<u32> = 1..=6;
/// Kinds of events.
const GROUP: u32 = 1;
const COLL: u32 = 2;
const P2P: u32 = 4;
const PROXY_OP: u32 = 8;
const PROXY_STEP: u32 = 16;
const KERNEL: u32 = 64;
const GROUP_API: u32 = 256;
const COLL_API: u32 = 512;
const P2P_API: u32 = 1024;
const LAUNCH: u32 = 2048;
const ALL: u32 = 4095;

fn plugin(version: u32, macros: &[&str]) -> PathBuf {
    let version_is = format!("PROFILER_VERSION={version}");
    let name = format!("profiler-{}-v{version}.so", macros.join("-"));
    compile("profiler.c", &name, &[&[version_is.as_str()], macros].concat())
}

/// An event as the plugin was told of it.
#[derive(Debug, Default)]
struct Told {
    kind: u32,
    parent: u32,
    group: u32,
    rank: u32,
    about: String,
    /// What else was said of it.
    more: String,
    states: Vec<(u32, u64)>,
    ended: bool,
}

impl Told {
    fn get(&self, name: &str) -> &str {
        let words = self.about.split(' ').chain(self.more.split(' '));
        let found = words.filter_map(|word| word.split_once('=')).find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no {name}: {self:?}")).1
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap()
    }
}

/// All that the plugin was told in a run.
struct Trace {
    version: u32,
    text: String,
    events: BTreeMap<u32, Told>,
}

impl Trace {
    /// Runs a test with a plugin of this version that wants these events.
    fn of(test: &str, version: u32, mask: u32, more: &[(&str, &str)]) -> Trace {
        let (path, mask) = (plugin(version, &[]), mask.to_string());
        let variables = [("NCCL_PROFILER_PLUGIN", text(&path)), ("TEST_MASK", &mask)];
        let text = passes(module_path!(), test, &[&variables, more].concat());
        Trace::read(version, text)
    }

    fn read(version: u32, text: String) -> Trace {
        assert!(!text.contains("WRONG"), "v{version}: {text}");
        let mut events: BTreeMap<u32, Told> = BTreeMap::new();
        let mut open: BTreeMap<u32, String> = BTreeMap::new();
        for line in text.lines().filter_map(|line| Some(line.split_once("profiler: ")?.1)) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |word: &str| word.rsplit('=').next().unwrap().parse::<u32>().unwrap();
            match words[0] {
                "about" => {
                    events.entry(number(words[1])).or_default().more = words[2..].join(" ");
                }
                "start" => {
                    let told = events.entry(number(words[1])).or_default();
                    told.kind = number(words[2]);
                    told.parent = number(words[3]);
                    told.group = number(words[4]);
                    told.rank = number(words[5]);
                    told.about = words[7..].join(" ");
                    open.insert(number(words[1]), words[6].rsplit('=').next().unwrap().to_owned());
                }
                "stop" => {
                    let event = events.get_mut(&number(words[1])).expect("it has begun");
                    assert!(!std::mem::replace(&mut event.ended, true), "{line}: {text}");
                    open.remove(&number(words[1]));
                }
                "state" => {
                    let event = events.get_mut(&number(words[1])).expect("it has begun");
                    event.states.push((number(words[2]), words[3].parse().unwrap()));
                }
                // Nothing of this context is left open.
                "finalize" => assert!(open.values().all(|of| of != words[1]), "{open:?}: {text}"),
                _ => {}
            }
        }
        let trace = Trace { version, text, events };
        trace.is_sound();
        trace
    }

    fn kind(&self, event: u32) -> u32 {
        self.events.get(&event).map_or(0, |told| told.kind)
    }

    /// All events have ended, and belong to what they may belong to.
    fn is_sound(&self) {
        let Trace { version, text, events } = self;
        for told in events.values() {
            assert!(told.ended, "{told:?}: {text}");
            let parent = self.kind(told.parent);
            let before_5 = *version < 5;
            let is_right = match told.kind {
                GROUP | GROUP_API => parent == 0,
                COLL_API | P2P_API | LAUNCH => parent == GROUP_API,
                COLL if before_5 => parent == GROUP,
                P2P if before_5 => parent == GROUP,
                COLL => parent == COLL_API && self.kind(told.group) == GROUP,
                P2P => parent == P2P_API && self.kind(told.group) == GROUP,
                PROXY_OP | KERNEL => parent == COLL || parent == P2P,
                PROXY_STEP => parent == PROXY_OP,
                _ => false,
            };
            assert!(is_right, "v{version}: {told:?} belongs to {parent}: {text}");
        }
        let count = |what: &str| text.matches(&format!("profiler: {what}")).count();
        assert!(count("finalize") == count("init") && count("init") > 0, "{text}");
    }

    fn of_kind(&self, kind: u32) -> Vec<(u32, &Told)> {
        let some = self.events.iter().filter(|(_, told)| told.kind == kind);
        some.map(|(number, told)| (*number, told)).collect()
    }

    fn children(&self, parent: u32, kind: u32) -> Vec<&Told> {
        let some = self.events.values();
        some.filter(|told| told.parent == parent && told.kind == kind).collect()
    }

    fn kinds(&self) -> BTreeSet<u32> {
        self.events.values().map(|told| told.kind).collect()
    }
}

/// A stream and two buffers for each rank.
fn places(
    ranks: &[Communicator],
    count: usize,
) -> Vec<(Stream, DeviceBuffer<f32>, DeviceBuffer<f32>)> {
    let place = |rank: &Communicator| {
        let device = rank.device();
        let send = device.upload(&vec![1.0f32; count]).unwrap();
        (device.stream().unwrap(), send, device.alloc(count).unwrap())
    };
    ranks.iter().map(place).collect()
}

/// Runs in a process of its own: calls of two ranks that share memory, by themselves and in groups.
#[test]
fn calls() {
    if !here() {
        return;
    }
    let mut config = CommConfig::default();
    config.name = Some("named".to_owned());
    let ranks = Communicator::init_all_with(&Device::cpu(), 2, &config).unwrap();
    let places = places(&ranks, 1000);
    let sum = |r: usize| {
        let (stream, send, recv) = &places[r];
        ranks[r].all_reduce(send, recv, ReduceOp::Sum, stream)
    };
    (0..2).for_each(|r| sum(r).unwrap());
    group(|| {
        for (rank, (stream, send, _)) in ranks.iter().zip(&places) {
            rank.broadcast(send, send, 1, stream)?;
            rank.send(&send.slice(0..100), 1 - rank.rank(), stream)?;
            rank.recv(&places[rank.rank() as usize].2.slice(0..100), 1 - rank.rank(), stream)?;
        }
        Ok(())
    })
    .unwrap();
    places.iter().for_each(|(stream, ..)| stream.synchronize().unwrap());
    assert_eq!(places[0].2.to_vec(&places[0].0).unwrap()[0], 1.0);
}

#[test]
fn calls_and_kernels_are_told_with_their_parents() {
    for version in VERSIONS {
        let trace = Trace::of("calls", version, ALL, &[]);
        let text = &trace.text;
        let mut kinds = BTreeSet::from([GROUP, COLL, P2P]);
        kinds.extend((version >= 3).then_some(KERNEL));
        kinds.extend([GROUP_API, COLL_API, P2P_API, LAUNCH].into_iter().filter(|_| version >= 5));
        assert_eq!(trace.kinds(), kinds, "v{version}: {text}");
        if version >= 4 {
            assert!(text.contains("comm named 1 nodes 2 ranks 1 id"), "{text}");
            assert!(text.contains("profiler: comm named 1 nodes 2 ranks 0 id"), "{text}");
        }
        let collectives = trace.of_kind(COLL);
        // Two ranks' all-reduces and broadcasts.
        let names = if version == 1 { ["4", "0"] } else { ["AllReduce", "Broadcast"] };
        for (name, root) in names.into_iter().zip([0, 1]) {
            let these: Vec<_> =
                collectives.iter().filter(|(_, told)| told.get("function") == name).collect();
            assert_eq!(these.len(), 2, "v{version} {name}: {text}");
            for (number, told) in these {
                assert_eq!((told.number("count"), told.number("root")), (1000, root));
                assert_eq!(told.get("type"), if version == 1 { "7" } else { "ncclFloat32" });
                assert_eq!(told.number("in_place"), root);
                if version >= 3 {
                    let kernels = trace.children(*number, KERNEL);
                    assert_eq!(kernels.len() as u64, told.number("channels"), "{text}");
                    for kernel in kernels {
                        let [(22, end)] = kernel.states[..] else { panic!("{kernel:?}") };
                        assert!(
                            version < 4 || (1..=end).contains(&kernel.number("timer")),
                            "{kernel:?}"
                        );
                    }
                }
            }
        }
        let messages = trace.of_kind(P2P);
        assert_eq!(messages.len(), 4, "{text}");
        for (_, told) in &messages {
            assert_eq!(
                (told.number("count"), told.number("peer")),
                (100, u64::from(1 - told.rank))
            );
        }
        if version >= 5 {
            // Two calls by themselves, and a group of both ranks' calls.
            let groups = trace.of_kind(GROUP_API);
            let depths: Vec<u64> = groups.iter().map(|(_, told)| told.number("depth")).collect();
            assert_eq!(depths, [1, 1, 2], "{text}");
            let last = groups[2].0;
            assert_eq!(groups[2].1.states, [(23, 0), (24, 0)], "{text}");
            assert_eq!(trace.children(last, COLL_API).len(), 2, "{text}");
            assert_eq!(trace.children(last, P2P_API).len(), 4, "{text}");
            assert_eq!(trace.children(last, LAUNCH).len(), 4, "{text}");
        }
    }
}

#[test]
fn only_what_is_wanted_is_told_with_its_parents() {
    for (mask, kinds) in [
        (0, &[][..]),
        (GROUP, &[GROUP, GROUP_API]),
        (COLL, &[GROUP, COLL, GROUP_API, COLL_API]),
        (P2P, &[GROUP, P2P, GROUP_API, P2P_API]),
        (KERNEL, &[GROUP, COLL, P2P, KERNEL, GROUP_API, COLL_API, P2P_API]),
        (LAUNCH, &[GROUP_API, LAUNCH]),
        (COLL_API, &[GROUP_API, COLL_API]),
    ] {
        let trace = Trace::of("calls", 5, mask, &[]);
        assert_eq!(trace.kinds(), kinds.iter().copied().collect(), "{mask}: {}", trace.text);
    }
    // Handles that are none, and errors, are nothing to end and no parents.
    for wrong in ["null", "fail"] {
        let path = plugin(5, &[]);
        let mask = ALL.to_string();
        let variables =
            [("NCCL_PROFILER_PLUGIN", text(&path)), ("TEST_MASK", &mask), ("TEST_PROFILER", wrong)];
        let said = passes(module_path!(), "calls", &variables);
        assert!(!said.contains("WRONG") && said.contains("profiler: finalize"), "{said}");
        let started = said.lines().filter(|line| line.contains("profiler: start")).count();
        assert_eq!(started > 0, wrong == "fail", "{said}");
        assert!(
            said.lines()
                .filter(|line| line.contains("profiler: start"))
                .all(|line| line.contains("parent=0")),
            "{said}"
        );
    }
}

/// Runs in a process of its own: calls of two ranks that share no memory.
#[test]
fn calls_over_a_network() {
    if !here() {
        return;
    }
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    let member = |rank: u32| {
        let mut config = CommConfig::default();
        config.host_id = Some(format!("host {rank}"));
        let device = Device::cpu();
        let ranks = [Communicator::init_rank_with(&device, 2, &id, rank, &config).unwrap()];
        let (stream, send, recv) = &places(&ranks, 300_000)[0];
        ranks[0].all_reduce(send, recv, ReduceOp::Sum, stream).unwrap();
        group(|| {
            ranks[0].send(send, 1 - rank, stream)?;
            ranks[0].recv(recv, 1 - rank, stream)
        })
        .unwrap();
        stream.synchronize().unwrap();
        ranks[0].finalize().unwrap();
    };
    std::thread::scope(|threads| {
        for rank in 0..2 {
            threads.spawn(move || member(rank));
        }
    });
}

#[test]
fn the_proxys_steps_are_told() {
    let network = [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_NET", "Socket")];
    for version in VERSIONS {
        let trace = Trace::of("calls_over_a_network", version, ALL, &network);
        let text = &trace.text;
        for (kind, calls) in [(COLL, 2), (P2P, 4)] {
            let of_kind = trace.of_kind(kind);
            assert_eq!(of_kind.len(), calls, "v{version}: {text}");
            for (number, call) in of_kind {
                let ops = trace.children(number, PROXY_OP);
                assert!(!ops.is_empty(), "{call:?}: {text}");
                for op in ops {
                    assert_eq!(
                        (op.number("peer"), op.number("here")),
                        (u64::from(1 - call.rank), 1)
                    );
                    assert!(op.number("chunk") == 1 && op.rank == call.rank);
                    assert_eq!(op.states, if version >= 4 { vec![(19, 0)] } else { vec![] });
                    if kind == P2P {
                        let sends = matches!(call.get("function"), "Send" | "6");
                        assert_eq!(op.number("send") == 1, sends, "{op:?}");
                    }
                }
            }
        }
        for (number, op) in trace.of_kind(PROXY_OP) {
            let steps = trace.children(number, PROXY_STEP);
            assert_eq!(steps.len() as u64, op.number("steps"), "{op:?}: {text}");
            for (i, step) in (0..).zip(steps) {
                assert_eq!(step.number("step"), i);
                let states: Vec<u32> = step.states.iter().map(|(state, _)| *state).collect();
                let sends = op.number("send") == 1;
                assert_eq!(states, if sends { vec![8, 9] } else { vec![10, 11, 12] }, "{step:?}");
                // Bytes are told where they are known.
                assert!(step.states[1].1 > 0, "{step:?}");
            }
        }
    }
}

/// Runs in a process of its own: calls that fail.
#[test]
fn calls_that_fail() {
    if !here() {
        return;
    }
    // One rank alone calls, and aborts.
    let ranks = Communicator::init_all(&Device::cpu(), 2).unwrap();
    let all = places(&ranks, 100_000);
    let (stream, send, recv) = &all[0];
    ranks[0].all_reduce(send, recv, ReduceOp::Sum, stream).unwrap();
    ranks[0].abort();
    assert!(stream.synchronize().is_err());
    // Nothing is launched of a group with a mistake, nor after the failure.
    let mistake = group(|| {
        ranks[1].all_reduce(&all[1].1, &all[1].2, ReduceOp::Sum, &all[1].0)?;
        ranks[1].send(&all[1].1, 7, &all[1].0)
    });
    assert!(mistake.is_err());
    assert!(ranks[1].all_reduce(&all[1].1, &all[1].2, ReduceOp::Sum, &all[1].0).is_err());
    drop(ranks);
    // Ranks that call different things, over a network.
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    let member = |rank: u32| {
        let mut config = CommConfig::default();
        config.host_id = Some(format!("host {rank}"));
        let ranks = [Communicator::init_rank_with(&Device::cpu(), 2, &id, rank, &config).unwrap()];
        let (stream, send, recv) = &places(&ranks, 300_000)[0];
        let count = 200_000 + 1000 * rank as usize;
        let (send, recv) = (send.slice(0..count), recv.slice(0..count));
        let made = ranks[0].all_reduce(&send, &recv, ReduceOp::Sum, stream);
        assert!(made.and_then(|()| stream.synchronize()).is_err());
    };
    std::thread::scope(|threads| {
        for rank in 0..2 {
            threads.spawn(move || member(rank));
        }
    });
}

#[test]
fn events_end_when_calls_fail() {
    let network = [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_NET", "Socket")];
    for version in VERSIONS {
        let trace = Trace::of("calls_that_fail", version, ALL, &network);
        let launched = trace.of_kind(COLL).len();
        assert_eq!(launched, 3, "the others were not launched: {}", trace.text);
        if version >= 5 {
            assert_eq!(trace.of_kind(COLL_API).len(), 5, "{}", trace.text);
        }
    }
}

#[test]
fn libraries_that_are_no_profilers() {
    let fails = |path: &str| {
        let (text, passed) = run(module_path!(), "calls", &[("NCCL_PROFILER_PLUGIN", path)]);
        assert!(!passed, "{text}");
        text
    };
    for (macros, reason) in [
        ("NO_INIT", "has no function init in its table"),
        ("NO_START", "has no function startEvent in its table"),
        ("NO_STOP", "has no function stopEvent in its table"),
        ("NO_RECORD", "has no function recordEventState in its table"),
        ("NO_FINALIZE", "has no function finalize in its table"),
        ("NO_NAME", "its name is NULL"),
    ] {
        for version in [1, 4, 6] {
            let said = fails(text(&plugin(version, &[macros])));
            assert!(said.contains(reason), "v{version} {macros}: {said}");
        }
    }
    assert!(fails(text(&plugin(7, &[]))).contains(", only ncclProfiler_v7"));
    assert!(fails("nobody-has").contains("tried nobody-has (nobody-has: "));
    // One that does not want to is done without, as with NCCL.
    for version in VERSIONS {
        let path = plugin(version, &["INIT_FAILS"]);
        let mask = ALL.to_string();
        let variables = [("NCCL_PROFILER_PLUGIN", text(&path)), ("TEST_MASK", &mask)];
        let said = passes(module_path!(), "calls", &variables);
        assert!(
            !said.contains("profiler: start") && !said.contains("profiler: finalize"),
            "{said}"
        );
    }
}
