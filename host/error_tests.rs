//! Every error is in `docs/troubleshooting.md`, as it is printed.

use std::path::Path;

use super::*;
use crate::config::Config;
use crate::{CommConfig, Communicator, Device, DeviceBuffer, ReduceOp, Stream, UniqueId};
use ferroccl_topology::graph::tuning;

const PAGE: &str = include_str!("../docs/troubleshooting.md");

/// The variant. A new one does not compile until it is here, and then needs its place on the page.
fn variant(error: &Error) -> &'static str {
    match error {
        Error::InvalidArgument { .. } => "InvalidArgument",
        Error::InvalidSetting { .. } => "InvalidSetting",
        Error::System { .. } => "System",
        Error::Bootstrap(_) => "Bootstrap",
        Error::Topology(_) => "Topology",
        Error::Graph(_) => "Graph",
        Error::Network(_) => "Network",
        Error::PeerLost { .. } => "PeerLost",
        Error::Timeout { .. } => "Timeout",
        #[cfg(feature = "cuda")]
        Error::Cuda(_) => "Cuda",
        Error::Kernel(_) => "Kernel",
        #[cfg(feature = "emulator")]
        Error::Emulator(_) => "Emulator",
        Error::Aborted { .. } => "Aborted",
        Error::Revoked { .. } => "Revoked",
        Error::Panicked { .. } => "Panicked",
        Error::Unavailable { .. } => "Unavailable",
    }
}

/// Those that no test without a GPU, a second program or a broken library provokes, with the reason.
const NOT_PROVOKED: [(&str, &str); 4] = [
    ("Cuda", "needs a driver that fails: tests/cuda/errors.rs has one"),
    ("Emulator", "needs PTX: tests/emulator has it"),
    ("Network", "needs a network that fails: tests/communicators/net.rs has one"),
    ("Panicked", "needs a kernel that breaks an invariant of the library: host/runtime has one"),
];

/// The variants of an enum, by its source.
fn variants_in(source: &str, name: &str) -> Vec<String> {
    let body = source.split(&format!("pub enum {name} {{\n")).nth(1).expect(name);
    let body = body.split("\n}").next().unwrap();
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    let lines = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    let word = |line: &str| line.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
    lines.map(word).collect()
}

/// What the page says that the error's text begins with: the second part of its heading, up to the first "...".
fn beginning(path: &str) -> &'static str {
    let heading = format!("# `{path}`: `");
    let at = PAGE.find(&heading).unwrap_or_else(|| panic!("{path} is not on the page"));
    let rest = &PAGE[at + heading.len()..];
    rest.split('`').next().unwrap().split("...").next().unwrap()
}

#[test]
fn every_variant_is_on_the_page() {
    let of =
        |source, name| variants_in(source, name).into_iter().map(move |v| format!("{name}::{v}"));
    let all: Vec<String> = of(include_str!("error.rs"), "Error")
        .chain(of(include_str!("bootstrap/src/error.rs"), "BootstrapError"))
        .chain(of(include_str!("topology/src/error.rs"), "TopologyError"))
        .collect();
    assert!(all.len() > 25, "{all:?}");
    for path in all {
        let _ = beginning(&path);
        let section = PAGE.split(&format!("# `{path}`")).nth(1).unwrap();
        let section = section.split("\n#").next().unwrap();
        for part in ["Cause: ", "Remedy: "] {
            assert!(section.contains(part), "{path}: no {part:?}");
        }
    }
}

/// Two ranks with a stream and a buffer of `lens` elements each.
fn two(lens: [usize; 2]) -> Vec<(Communicator, Stream, DeviceBuffer<f32>)> {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let with = |(comm, len): (Communicator, usize)| {
        (comm, device.stream().unwrap(), device.alloc(len).unwrap())
    };
    ranks.into_iter().zip(lens).map(with).collect()
}

fn provoked() -> Vec<Error> {
    let missing = || ferroccl_topology::xml::read(Path::new("/no/such/file.xml")).unwrap_err();
    let aborted = {
        let ranks = two([1, 1]);
        ranks[0].0.abort();
        ranks[0].0.barrier(&ranks[0].1).unwrap_err()
    };
    let revoked = {
        let ranks = two([1, 1]);
        ranks[0].0.revoke().unwrap();
        ranks[1].0.barrier(&ranks[1].1).unwrap_err()
    };
    let differs = {
        let ranks = two([8, 9]);
        for (comm, stream, buffer) in &ranks {
            comm.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
        }
        let results: Vec<_> = ranks.iter().map(|(_, stream, _)| stream.synchronize()).collect();
        results.into_iter().find_map(Result::err).unwrap()
    };
    let timeout = {
        let timeout = Some(std::time::Duration::from_millis(50));
        let config = CommConfig { timeout, ..CommConfig::default() };
        let ranks = Communicator::init_all_with(&Device::cpu(), 2, &config).unwrap();
        let stream = ranks[0].device().stream().unwrap();
        ranks[0].barrier(&stream).unwrap();
        stream.synchronize().unwrap_err()
    };
    let gone = {
        let mut ranks = two([1, 1]);
        let stays = ranks.remove(0);
        drop(ranks);
        stays.0.split(Some(0), 0).unwrap_err()
    };
    // An address of nobody's (RFC 5737), on which nothing can listen.
    let nowhere = ([203, 0, 113, 1], 0).into();
    let ranks = two([1, 1]);
    let (comm, stream, buffer) = &ranks[0];
    let none = without_algorithm();
    vec![
        comm.broadcast(buffer, buffer, 9, stream).unwrap_err(),
        Config::from_lookup(|n| (n == "NCCL_SHM_DISABLE").then(|| "frog".into())).unwrap_err(),
        UniqueId::listening_at(nowhere).unwrap_err().into(),
        "frog".parse::<UniqueId>().unwrap_err().into(),
        TopologyError::from(missing()).into(),
        GraphError::from(missing()).into(),
        gone,
        differs,
        timeout,
        aborted,
        revoked,
        none,
    ]
}

/// Settings that leave no algorithm for an all-reduce.
fn without_algorithm() -> Error {
    let call = crate::enqueue::CollectiveCall {
        collective: crate::Collective::AllReduce,
        count: 1,
        data_type: crate::DataType::F32,
        op: ReduceOp::Sum,
        root: None,
    };
    // Only what no all-reduce is made of.
    let algorithms = [crate::Algorithm::Bruck].into_iter().collect();
    let settings = tuning::Settings { algorithms, ..tuning::Settings::default() };
    let cores = tuning::Situation::new(1, 2, tuning::Devices::Cpu { ring: None });
    let context = crate::enqueue::PlanContext {
        ranks: 2,
        nodes: 1,
        channels: 1,
        blocks: u32::MAX,
        tuner: tuning::Tuner::new(&cores, &settings),
        all_channels: false,
        algorithm: None,
        registry: crate::Registry::new(),
        network: crate::enqueue::NetworkOps::default(),
    };
    crate::enqueue::choose(&call, &context, crate::enqueue::Registration::None).unwrap_err().into()
}

#[test]
fn what_is_provoked_reads_as_on_the_page() {
    let provoked = provoked();
    for error in &provoked {
        let (text, path) = (error.to_string(), format!("Error::{}", variant(error)));
        let begins = beginning(&path);
        assert!(text.starts_with(begins), "{path}: {text:?} does not begin with {begins:?}");
        assert_eq!(format!("{error:?}"), text, "what main prints is what is meant");
        for raw in ["Some(", "None", "Ok(", "{ ", "\n"] {
            assert!(!text.contains(raw), "{path}: {raw:?} in {text:?}");
        }
    }
    let mut seen: Vec<&str> = provoked.iter().map(variant).collect();
    seen.extend(NOT_PROVOKED.iter().map(|(name, why)| {
        assert!(!provoked.iter().any(|e| variant(e) == *name), "{name} is provoked: {why}");
        *name
    }));
    for name in variants_in(include_str!("error.rs"), "Error") {
        assert!(seen.contains(&name.as_str()), "{name} is neither provoked nor excused");
    }
}
