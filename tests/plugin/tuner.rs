//! Tuners: `tuner.c` behind each version, and what becomes of its answers.

use std::path::PathBuf;

use ferroccl::config::Config;
use ferroccl::enqueue::CollectiveCall;
use ferroccl::flight_recorder;
use ferroccl::{Algorithm, Collective, CommConfig, Communicator, DataType, Device, ReduceOp};

use crate::again::here;
use crate::{compile, passes, run, text};

const VERSIONS: [u32; 5] = [2, 3, 4, 5, 6];
/// NCCL's numbers of algorithms and protocols.
const TREE: u32 = 0;
const RING: u32 = 1;
const PAT: u32 = 6;
const LL: u32 = 0;
const SIMPLE: u32 = 2;

fn plugin(version: u32, macros: &[&str]) -> PathBuf {
    let version_is = format!("TUNER_VERSION={version}");
    let name = format!("tuner-{}-v{version}.so", macros.join("-"));
    compile("tuner.c", &name, &[&[version_is.as_str()], macros].concat())
}

/// What the plugin of a version does with four ranks' calls, told to do `answer`.
fn answered(version: u32, answer: &str, more: &[(&str, &str)]) -> String {
    let path = plugin(version, &[]);
    let variables = [("NCCL_TUNER_PLUGIN", text(&path)), ("TEST_TUNER", answer)];
    passes(module_path!(), "calls", &[&variables, more].concat())
}

/// The lines that begin so.
fn lines<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| Some(line[line.find(start)?..].trim_end())).collect()
}

/// Runs in a process of its own: makes calls of four ranks, and says how they were to be done, and how they were.
#[test]
fn calls() {
    if !here() {
        return;
    }
    ferroccl::log::init(&Config::from_env().unwrap()).unwrap();
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.min_channels = Some(4);
    config.max_channels = Some(4);
    if std::env::var_os("TEST_ALGORITHM").is_some() {
        config.algorithm = Some(Algorithm::Ring);
    }
    let ranks = Communicator::init_all_with(&device, 4, &config).unwrap();
    let (data_type, op) = (DataType::I32, ReduceOp::Sum);
    let all = [
        (Collective::AllReduce, 2, None),
        (Collective::AllReduce, 300_000, None),
        (Collective::AllGather, 10, None),
        (Collective::ReduceScatter, 10, None),
        (Collective::Broadcast, 100, Some(3)),
        (Collective::Reduce, 100, Some(1)),
    ];
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    for (collective, count, root) in all {
        let call = CollectiveCall { collective, count, data_type, op, root };
        match ranks[0].plan(&call) {
            Ok(choice) => println!("planned {collective} {count} {choice:?}"),
            Err(error) => println!("planned {collective} {count}: {error}"),
        }
        let blocks = 4 * count;
        let buffers: Vec<_> = (0..4)
            .map(|rank| {
                let values: Vec<i32> = (0..blocks as i32).map(|i| i + rank).collect();
                (device.upload(&values).unwrap(), device.alloc::<i32>(blocks).unwrap())
            })
            .collect();
        let made = ferroccl::group(|| {
            for (rank, (stream, (send, recv))) in ranks.iter().zip(streams.iter().zip(&buffers)) {
                let (from, to) = (send.slice(0..count), recv.slice(0..count));
                let called = match collective {
                    Collective::AllReduce => rank.all_reduce(&from, &to, op, stream),
                    Collective::AllGather => rank.all_gather(&from, recv, stream),
                    Collective::ReduceScatter => rank.reduce_scatter(send, &to, op, stream),
                    Collective::Broadcast => rank.broadcast(&from, &to, 3, stream),
                    _ => rank.reduce(&from, &to, op, 1, stream),
                };
                called?;
            }
            Ok(())
        });
        if let Err(error) = made {
            println!("refused {collective} {count}: {error}");
            continue;
        }
        for (rank, (stream, (_, recv))) in (0..).zip(streams.iter().zip(&buffers)) {
            let got = match recv.to_vec(stream) {
                Ok(got) => got,
                Err(error) => {
                    println!("failed {collective} {count} on {rank}: {error}");
                    continue;
                }
            };
            for (at, i) in (0..count).zip(0i32..) {
                let is_right = match collective {
                    Collective::AllReduce => got[at] == 4 * i + 6,
                    Collective::AllGather => (0..4).all(|r| got[r * count + at] == i + r as i32),
                    Collective::ReduceScatter => got[at] == 4 * (i + rank * count as i32) + 6,
                    Collective::Broadcast => got[at] == i + 3,
                    _ => rank != 1 || got[at] == 4 * i + 6,
                };
                assert!(is_right, "{collective} {count} on {rank}: element {at} is {}", got[at]);
            }
        }
    }
    for rank in flight_recorder::query(std::process::id()).unwrap().communicators {
        for call in rank.calls {
            println!("ran {} by {} on {}", call.collective, call.plan.unwrap(), call.channels);
        }
    }
}

#[test]
fn the_answer_is_how_calls_are_done() {
    for version in VERSIONS {
        for (algorithm, protocol, name) in
            [(RING, SIMPLE, "Ring"), (RING, LL, "Ring"), (TREE, SIMPLE, "Tree")]
        {
            let answer = format!("take {algorithm} {protocol} 3");
            let debug = [("NCCL_DEBUG", "TRACE"), ("NCCL_DEBUG_SUBSYS", "COLL,TUNING")];
            let text = answered(version, &answer, &debug);
            let protocol = if protocol == SIMPLE { "Simple" } else { "Ll" };
            for count in [2, 300_000] {
                let planned = format!(
                    "planned all_reduce {count} AlgoChoice {{ algorithm: {name}, protocol: {protocol}, channels: 3, threads: 1 }}"
                );
                assert!(text.contains(&planned), "v{version} {answer}: {text}");
            }
            // What has run, on each rank.
            let ran = format!("ran all_reduce by {name} {} on 3", protocol.replace("Ll", "LL"));
            assert_eq!(lines(&text, &ran).len(), 8, "{text}");
            // Once for a call of each rank, and once for the plan.
            assert_eq!(lines(&text, "tuner: asked 4 of 8 bytes").len(), 5, "{text}");
            assert_eq!(lines(&text, "tuner: end").len(), 4, "{text}");
            assert!(text.contains("tuner logs 42 words"), "{text}");
            assert!(!text.contains("failed all") && !text.contains("refused"), "{text}");
        }
    }
}

#[test]
fn the_table_has_what_can_be_had() {
    let all = |text: &str, asked: &str| {
        let after = &text[text.find(asked).unwrap()..];
        let costs = lines(after, "tuner: cost ").into_iter().take(21);
        costs
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f32>().unwrap())
            .collect::<Vec<_>>()
    };
    for version in 3..=6 {
        let text =
            answered(version, "nothing", &[("NCCL_ALGO", "ring;allreduce:tree,ring,oneshot")]);
        let had = |asked: &str| {
            let costs = all(&text, asked);
            (0..21).filter(|i| costs[*i] >= 0.0).collect::<Vec<_>>()
        };
        // A tree and a ring, each with three protocols; one-shot has no place.
        assert_eq!(had("asked 4 of 8 bytes"), [0, 1, 2, 3, 4, 5], "{text}");
        assert_eq!(had("asked 2 of 160 bytes"), [3, 4, 5], "{text}");
        assert!(all(&text, "asked 4 of 8 bytes")[6..].iter().all(|cost| *cost == -1.0));
        // Larger calls take longer.
        assert!(all(&text, "asked 4 of 1200000 bytes")[5] > all(&text, "asked 4 of 8 bytes")[5]);
        if version >= 5 {
            // NCCL's figures of a tree with LL, PAT over a network, a tree of NVLS.
            assert!(text.contains("domains 1 4 4 constants 6.8 14 80"), "{text}");
        }
        assert!(text.contains("init 4 ranks 1 nodes"), "{text}");
    }
    // A setting of the communicator leaves one algorithm.
    let text = answered(4, "nothing", &[("TEST_ALGORITHM", "")]);
    let costs = all(&text, "asked 4 of 8 bytes");
    assert!((0..21).all(|i| (3..6).contains(&i) == (costs[i] >= 0.0)), "{text}");
    // All-gathers have Bruck, which is NCCL's PAT.
    let text = answered(4, &format!("take {PAT} {LL} 1"), &[]);
    let bruck = "planned all_gather 10 AlgoChoice { algorithm: Bruck, protocol: Ll, channels: 1, threads: 1 }";
    assert!(text.contains(bruck), "{text}");
}

/// The calls' plans, as without a plugin.
fn as_without() -> Vec<String> {
    let text = passes(module_path!(), "calls", &[]);
    lines(&text, "planned ").into_iter().map(str::to_owned).collect()
}

#[test]
fn a_table_that_is_left_as_it_is_changes_nothing() {
    let without = as_without();
    for version in VERSIONS {
        for answer in ["nothing", "fail"] {
            let text = answered(version, answer, &[("NCCL_DEBUG", "WARN")]);
            assert_eq!(lines(&text, "planned "), without, "v{version} {answer}");
            let warned =
                lines(&text, "TUNER/Plugin: getCollInfo of test answers ncclInternalError");
            assert_eq!(warned.len(), if answer == "fail" { 4 } else { 0 }, "once a rank: {text}");
        }
        // Channels alone; as many as there are at most, and none that are no number of channels.
        let channels = |answer: &str| {
            let text = answered(version, answer, &[]);
            let planned = lines(&text, "planned all_reduce 300000")[0].to_owned();
            planned.split("channels: ").nth(1).unwrap()[..1].parse::<u32>().unwrap()
        };
        let usual = without[1].split("channels: ").nth(1).unwrap()[..1].parse().unwrap();
        assert_eq!(["channels 3", "channels 1000", "channels -7"].map(channels), [3, 4, usual]);
    }
}

#[test]
fn costs_that_are_none_are_not_taken() {
    // Version 2 has no table.
    for version in 3..=6 {
        for answer in ["ignore", "nan", "negative", "infinite"] {
            let text = answered(version, answer, &[]);
            let reason =
                "is not available: tuner plugin test leaves no algorithm and protocol for it";
            assert_eq!(lines(&text, "refused ").len(), 6, "{answer}: {text}");
            assert!(lines(&text, "refused ").iter().all(|line| line.ends_with(reason)), "{text}");
        }
        // One is left, beside NaN.
        let text = answered(version, &format!("only {RING} {SIMPLE}"), &[]);
        assert!(
            lines(&text, "planned ").iter().all(|line| line.contains("Ring, protocol: Simple")),
            "{text}"
        );
        // What cannot be had is not taken either: of the rest the first.
        let text = answered(version, "invent", &[("NCCL_ALGO", "ring;allgather:bruck")]);
        let planned = lines(&text, "planned ");
        assert!(
            planned[0].contains("Ring, protocol: Ll,")
                && planned[2].contains("Bruck, protocol: Ll,"),
            "{text}"
        );
    }
    let text = answered(2, "invent", &[]);
    assert_eq!(lines(&text, "planned "), as_without(), "{text}");
}

#[test]
fn ranks_whose_plugins_disagree_get_an_error() {
    let text = answered(4, "differ", &[("FERROCCL_TIMEOUT", "20")]);
    let failed = lines(&text, "failed all_reduce 2 on ");
    assert!(!failed.is_empty(), "{text}");
    assert!(
        failed.iter().any(|line| line.contains("differs between ranks") && line.contains("Ring")),
        "{failed:?}"
    );
}

#[test]
fn libraries_that_are_no_tuners() {
    let fails = |path: &str| {
        let (text, passed) = run(module_path!(), "calls", &[("NCCL_TUNER_PLUGIN", path)]);
        assert!(!passed, "{text}");
        text
    };
    for (macros, reason) in [
        (&["NO_INIT"][..], "has no function init in its table"),
        (&["NO_GET"], "has no function getCollInfo in its table"),
        (&["NO_END"], "in its table"),
        (&["NO_NAME"], "its name is NULL"),
        (&["INIT_FAILS"], "init: ncclSystemError"),
        (&["NO_TABLE"], "has none of ncclTunerPlugin_v6, ncclTunerPlugin_v5"),
    ] {
        for version in VERSIONS {
            let said = fails(text(&plugin(version, macros)));
            assert!(said.contains(reason), "v{version} {macros:?}: {said}");
        }
    }
    for version in [1, 7] {
        let said = fails(text(&plugin(version, &[])));
        assert!(said.contains(&format!(", only ncclTunerPlugin_v{version}")), "{said}");
    }
    assert!(fails("nobody-has").contains("tried nobody-has (nobody-has: "));
    assert!(fails("/dev/null").contains("no library: tried /dev/null"));
}

#[test]
fn names_are_resolved_as_by_nccl() {
    let place = |name: &str, version: u32| {
        let version = format!("TUNER_VERSION={version}");
        let path = compile("tuner.c", &format!("tuner-names/{name}"), &[&version]);
        path.parent().unwrap().to_owned()
    };
    let version_of = |directory: &std::path::Path, more: &[(&str, &str)]| {
        let debug = [
            ("LD_LIBRARY_PATH", text(directory)),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG_SUBSYS", "TUNING"),
        ];
        let said = passes(module_path!(), "calls", &[&debug, more].concat());
        let using = lines(&said, "TUNER/Plugin: Using ");
        using.first().map(|line| line.trim_start_matches("TUNER/Plugin: Using ").to_owned())
    };
    let all = place("all/libnccl-tuner.so", 2);
    place("all/libnccl-tuner-mine.so", 3);
    place("all/libnccl-net.so", 5);
    let expect = |directory: &std::path::Path, named: Option<&str>, using: Option<&str>| {
        let more: Vec<_> = named.map(|name| ("NCCL_TUNER_PLUGIN", name)).into_iter().collect();
        assert_eq!(version_of(directory, &more).as_deref(), using, "{named:?}");
    };
    expect(&all, None, Some("test (v2) from libnccl-tuner.so"));
    expect(&all, Some("mine"), Some("test (v3) from libnccl-tuner-mine.so"));
    expect(&all, Some("none"), None);
    // Without one of its own, the network's.
    let net = place("net/libnccl-net.so", 4);
    expect(&net, None, Some("test (v4) from libnccl-net.so"));
    expect(&net, Some("none"), None);
    let nobody = [("NCCL_NET_PLUGIN", "none")];
    assert_eq!(version_of(&net, &nobody), None);
}
