//! Ranks that share no memory: everything over a network, the way it goes between hosts.
//!
//! P2P and SHM are off, or each rank is a host of its own (`NCCL_HOSTID`). Under the seeded adversary it is a network within
//! the process, so that a run replays. The test binary starts itself: with `FERROCCL_TEST_RANK` set, `member` is one rank
//! and the rest does nothing.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;

use ferroccl::config::Config;
use ferroccl::device::abi::SIGNATURES;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp, UniqueId};
use ferroccl_proxy::net::{FaultNet, LocalNet};

use crate::again::{again, elsewhere, here};
use crate::random::Random;
use crate::team::{COUNTS, team, team_on};
use crate::tier;

/// Nothing but the network.
fn remote(local: bool) -> CommConfig {
    let mut config = CommConfig::default();
    (config.p2p, config.shm) = (Some(false), Some(false));
    if local {
        config.net = Some(Arc::new(LocalNet::default()));
    }
    config
}

/// Two slots of the smallest size, three channels.
fn hostile(config: &mut CommConfig) {
    config.slots = Some(2);
    config.buffer_bytes = [Some(512); 3];
    config.channels = Some(3);
}

#[test]
fn every_collective_over_sockets() {
    for (n, small) in [(2, false), (3, true), (5, false)] {
        let mut config = remote(false);
        if small {
            hostile(&mut config);
        }
        let team = team(&config, n, "sockets");
        team.collectives(n.into(), &COUNTS[..7]);
        team.messages(n.into(), &COUNTS[..7]);
    }
}

#[test]
fn every_protocol_and_algorithm() {
    let algorithms = [
        None,
        Some(Algorithm::Ring),
        Some(Algorithm::Tree),
        Some(Algorithm::Chain),
        Some(Algorithm::OneShot),
        Some(Algorithm::Bruck),
        Some(Algorithm::Doubling),
        Some(Algorithm::Linear),
        Some(Algorithm::Hierarchical),
    ];
    for &protocol in ProtocolId::ALL {
        for algorithm in algorithms {
            for small in [false, true] {
                let mut config = remote(true);
                (config.protocol, config.algorithm) = (Some(protocol), algorithm);
                config.ranks_per_node = Some(2);
                if small {
                    hostile(&mut config);
                }
                let name = format!("local, {protocol}, {algorithm:?}, small {small}");
                team(&config, 5, &name).collectives(7, &[0, 1, 33, 4099]);
            }
        }
    }
}

/// The step counters where 32 bits of them come to an end.
#[test]
fn steps_beyond_32_bits() {
    for &protocol in ProtocolId::ALL {
        for first in [(1 << 31) - 3, (1 << 32) - 3] {
            let mut config = remote(true);
            hostile(&mut config);
            (config.protocol, config.first_step) = (Some(protocol), first);
            let team = team(&config, 3, &format!("from step {first}, {protocol}"));
            team.collectives(1, &[1, 700]);
            team.messages(1, &[1, 700]);
        }
    }
}

/// Stores late, out of order and in pieces, blocks preempted anywhere, and the proxies in between: from a seed.
#[test]
fn under_the_adversary() {
    for seed in 0..3 {
        println!("seed {seed}");
        for &protocol in ProtocolId::ALL {
            let mut config = remote(true);
            hostile(&mut config);
            config.protocol = Some(protocol);
            let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed))));
            let team = team_on(device, &config, 3, &format!("seed {seed}, {protocol}"));
            // Of some dozens of steps on each connection: slots are used again and again.
            team.collectives(seed, &[0, 3, 1500]);
            team.messages(seed, &[0, 3, 1500]);
        }
    }
}

/// Every collective, over the channels that a topology's search finds: hosts of two ranks each, whose GPUs are last in the file,
/// so that no rank's own card is one of theirs.
#[test]
fn over_the_cards_of_a_topology() {
    let at = |file: &str| format!("{}/tests/topology_files/{file}.xml", env!("CARGO_MANIFEST_DIR"));
    for (machine, file, gpus, cards) in [
        ("0", "hgx-h100", "6,7", "6,7"),
        ("1", "dgx-a100", "6-7", "6,7"),
        ("2", "azure-ndv4-topo", "7,6", "6"),
        ("3", "aws-p4d-24xl-topo", "6,7", "3"),
    ] {
        let variables = [
            ("NCCL_TOPO_FILE", &*at(file)),
            ("FERROCCL_TOPO_RANKS", gpus),
            (CARDS, cards),
            (MACHINE, machine),
        ];
        elsewhere(module_path!(), "over_many_cards", &variables);
    }
}

/// As above, with cards that are one: those of a switch, and two that are named. Each carries half of every message.
#[test]
fn over_cards_that_are_merged() {
    let at = |file: &str| format!("{}/tests/topology_files/{file}.xml", env!("CARGO_MANIFEST_DIR"));
    for (machine, file, gpus, cards, setting) in [
        ("1", "dgx-a100", "6-7", "6,7", ("NCCL_NET_MERGE_LEVEL", "PIX")),
        ("2", "aws-p4d-24xl-topo", "6,7", "2,3", ("NCCL_NET_FORCE_MERGE", "local2,local3")),
    ] {
        let variables = [
            ("NCCL_TOPO_FILE", &*at(file)),
            ("FERROCCL_TOPO_RANKS", gpus),
            (CARDS, cards),
            (MACHINE, machine),
            (MERGED, "1"),
            setting,
        ];
        elsewhere(module_path!(), "over_many_cards", &variables);
    }
}

/// Whether the cards are one.
const MERGED: &str = "FERROCCL_TEST_MERGED";

const CARDS: &str = "FERROCCL_TEST_CARDS";

/// The number of the machine in its list, which says what is tested on it.
const MACHINE: &str = "FERROCCL_TEST_MACHINE";

/// Its part in a process with the topology's settings, from a seed.
#[test]
fn over_many_cards() {
    if !here() {
        return;
    }
    let cards = std::env::var(CARDS).unwrap();
    let cards: Vec<usize> = cards.split(',').map(|card| card.parse().unwrap()).collect();
    let algorithms = [Algorithm::Ring, Algorithm::Tree, Algorithm::Chain];
    let machine: u64 = std::env::var(MACHINE).unwrap().parse().unwrap();
    for (seed, protocol) in (0..).zip(ProtocolId::ALL) {
        for algorithm in algorithms {
            // Each protocol once on the first machine, and one on each of the others. In the nightly tier all protocols by all algorithms, and
            // each once.
            let once = algorithms[seed as usize % 3] == algorithm;
            let runs = match (machine, tier::is_nightly()) {
                (0, all) => all || once,
                (_, true) => once,
                (_, false) => once && seed == machine % 3,
            };
            if !runs {
                continue;
            }
            let net = Arc::new(LocalNet::with_devices(8));
            let mut config = remote(true);
            hostile(&mut config);
            (config.protocol, config.algorithm) = (Some(*protocol), Some(algorithm));
            config.buffer_bytes = [Some(4096); 3];
            config.net = Some(Arc::<LocalNet>::clone(&net));
            (config.ranks_per_node, config.channels) = (Some(2), None);
            let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed))));
            let name = format!("seed {seed}, {protocol}, {algorithm}");
            println!("{name}");
            let team = team_on(device, &config, 6, &name);
            // The last one is of two channels, 32 KiB each.
            team.collectives(seed, &[0, 3, 16_400]);
            team.messages(seed, &[0, 3, 150]);
            let sent = net.sent();
            assert!(cards.iter().all(|card| sent[*card] > 50_000), "{name}: {sent:?}");
            if std::env::var_os(MERGED).is_some() {
                let [one, other] = [sent[cards[0]], sent[cards[1]]];
                assert!(one.abs_diff(other) < one / 50, "{name}: {sent:?}");
            }
        }
    }
}

/// Calls without data are nothing but signatures: a root goes on with them as long as there is room for those on the way,
/// however late the others are.
#[test]
fn signatures_wait_for_room() {
    let device = Device::cpu();
    let ranks = Communicator::init_all_with(&device, 2, &remote(true)).unwrap();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let (none, some) = (device.alloc::<u32>(0).unwrap(), device.upload(&[7u32; 5]).unwrap());
    let calls = 10 * SIGNATURES;
    for (rank, stream) in ranks.iter().zip(&streams) {
        for _ in 0..calls {
            rank.broadcast(&none, &none, 0, stream).unwrap();
        }
        // The root's calls are under way alone.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let got = device.alloc::<u32>(5).unwrap();
    ranks[0].broadcast(&some, &some, 0, &streams[0]).unwrap();
    ranks[1].broadcast(&got, &got, 0, &streams[1]).unwrap();
    assert_eq!(got.to_vec(&streams[1]).unwrap(), [7; 5]);
    streams[0].synchronize().unwrap();
}

/// A network on which something goes wrong, over one within the process.
fn faulty(faults: &str) -> CommConfig {
    let mut config = remote(true);
    let local = Arc::new(LocalNet::default());
    config.net = Some(Arc::new(FaultNet::new(local, faults.parse().unwrap())));
    config
}

#[test]
fn delays_change_nothing() {
    for (seed, protocol) in ProtocolId::ALL.iter().enumerate() {
        let mut config = faulty(&format!("seed={seed},delay=7"));
        hostile(&mut config);
        config.protocol = Some(*protocol);
        let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed as u64))));
        let team = team_on(device, &config, 3, &format!("delays, {protocol}"));
        team.collectives(seed as u64, &[1, 150]);
        team.messages(seed as u64, &[1, 150]);
    }
}

/// A connection that breaks is an error of all ranks, wherever in a call it does, and of all later calls.
#[test]
fn a_broken_connection_is_an_error_of_all_ranks() {
    for after in [0, 1, 2, 7, 40] {
        let mut config = faulty(&format!("seed={after},cut={after}"));
        hostile(&mut config);
        let device = Device::cpu();
        let ranks = Communicator::init_all_with(&device, 3, &config).unwrap();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        let buffers: Vec<_> = ranks.iter().map(|_| device.alloc::<f32>(20_000).unwrap()).collect();
        let mut calls = Vec::new();
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            let call = rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream);
            calls.push(call.map_err(|error| error.to_string()));
        }
        for (rank, (stream, call)) in streams.iter().zip(calls).enumerate() {
            let error = call.and_then(|()| stream.synchronize().map_err(|e| e.to_string()));
            let error = error.unwrap_err();
            assert!(error.contains("NET/Local"), "cut after {after}, rank {rank}: {error}");
            assert!(error.contains("lost rank"), "cut after {after}, rank {rank}: {error}");
        }
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            let again = rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap_err();
            assert!(again.to_string().contains("NET/Local"), "{again}");
        }
    }
}

/// What is lost on the way stalls the call until the kernels' time is up.
#[test]
fn a_lost_message_is_an_error_of_all_ranks() {
    for after in [0, 3] {
        let mut config = faulty(&format!("seed={after},drop={after}"));
        config.timeout = Some(std::time::Duration::from_millis(700));
        let device = Device::cpu();
        let ranks = Communicator::init_all_with(&device, 3, &config).unwrap();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        let buffers: Vec<_> = ranks.iter().map(|_| device.alloc::<f32>(500_000).unwrap()).collect();
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            let _ = rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream);
        }
        for stream in &streams {
            let error = stream.synchronize().unwrap_err().to_string();
            assert!(error.contains("timeout: rank"), "drop after {after}: {error}");
        }
    }
}

fn start(id: &UniqueId, rank: u32, n: u32, hosts: u32, job: &str) -> Child {
    start_with(id, rank, n, hosts, job, &[])
}

fn start_with(
    id: &UniqueId,
    rank: u32,
    n: u32,
    hosts: u32,
    job: &str,
    variables: &[(&str, &str)],
) -> Child {
    again(module_path!(), "member")
        .env("FERROCCL_TEST_RANK", rank.to_string())
        .env("FERROCCL_TEST_RANKS", n.to_string())
        .env("FERROCCL_TEST_JOB", job)
        .env("FERROCCL_UNIQUE_ID", id.to_secret_hex())
        .env("NCCL_HOSTID", format!("host{}", rank * hosts / n))
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

fn group(n: u32, hosts: u32, job: &str) -> Vec<Child> {
    let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
    (0..n).map(|rank| start(&id, rank, n, hosts, job)).collect()
}

/// One rank, when this process was started as one.
#[test]
fn member() {
    let Ok(rank) = std::env::var("FERROCCL_TEST_RANK") else { return };
    let get = |name: &str| std::env::var(name).unwrap();
    let (rank, n): (u32, u32) =
        (rank.parse().unwrap(), get("FERROCCL_TEST_RANKS").parse().unwrap());
    let id: UniqueId = get("FERROCCL_UNIQUE_ID").parse().unwrap();
    let device = Device::cpu();
    let communicator = Communicator::init_rank(&device, n, &id, rank).unwrap();
    match get("FERROCCL_TEST_JOB").as_str() {
        "sums" => sums(&communicator),
        "for_ever" => for_ever(&communicator),
        "mismatch" => mismatch(&communicator),
        "leaves" => leaves(&communicator),
        "abort" => abort(&communicator),
        "absent" => absent(&communicator),
        other => panic!("no job {other}"),
    }
}

fn sums(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let (rank, n) = (communicator.rank(), communicator.world_size());
    // Every rank draws the same numbers, so that each knows all inputs.
    let mut random = Random(u64::from(n));
    for call in 0..60 {
        let count = random.pick(&[1usize, 7, 1000, 40_000, 300_000]);
        let shift = random.below(100) as i64;
        let values = |factor: u32| -> Vec<i64> {
            (0..count as i64).map(|i| (i + shift) * i64::from(factor)).collect()
        };
        let send = device.upload(&values(rank + 1)).unwrap();
        let recv = if call % 2 == 0 { send.clone() } else { device.alloc(count).unwrap() };
        communicator.all_reduce(&send, &recv, ReduceOp::Sum, &stream).unwrap();
        let want = values(n * (n + 1) / 2);
        assert!(recv.to_vec(&stream).unwrap() == want, "rank {rank} call {call} count {count}");
    }
}

fn for_ever(communicator: &Communicator) {
    let (device, rank) = (communicator.device(), communicator.rank());
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(100_000).unwrap();
    println!("\nrank {rank} runs");
    loop {
        let call = communicator.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
        if let Err(error) = call.and_then(|()| stream.synchronize()) {
            println!("\nrank {rank} ends: {error}");
            return;
        }
    }
}

fn mismatch(communicator: &Communicator) {
    let (device, rank) = (communicator.device(), communicator.rank());
    let stream = device.stream().unwrap();
    let last = rank + 1 == communicator.world_size();
    let buffer = device.alloc::<f32>(100 + usize::from(last)).unwrap();
    let call = communicator.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
    let error = call.and_then(|()| stream.synchronize()).unwrap_err();
    println!("\nrank {rank} ends: {error}");
}

/// Rank 0 leaves at once, and with it what it has sent must not be lost: the last rank is late.
fn leaves(communicator: &Communicator) {
    let (device, rank) = (communicator.device(), communicator.rank());
    let stream = device.stream().unwrap();
    let buffer = device.upload(&vec![rank; 50_000]).unwrap();
    if rank + 1 == communicator.world_size() {
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    communicator.broadcast(&buffer, &buffer, 0, &stream).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0; 50_000]);
    println!("\nrank {rank} ends: well");
}

fn abort(communicator: &Communicator) {
    let (device, rank) = (communicator.device(), communicator.rank());
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(1000).unwrap();
    if rank == 1 {
        std::thread::sleep(std::time::Duration::from_millis(200));
        communicator.abort();
        println!("\nrank {rank} ends: by itself");
        return;
    }
    let call = communicator.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
    let error = call.and_then(|()| stream.synchronize()).unwrap_err();
    println!("\nrank {rank} ends: {error}");
}

/// Rank 2 makes no call, and waits for what it is told.
fn absent(communicator: &Communicator) {
    let (device, rank) = (communicator.device(), communicator.rank());
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(1000).unwrap();
    let error = loop {
        if rank != 2 {
            let call = communicator.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
            break call.and_then(|()| stream.synchronize()).unwrap_err();
        }
        if let Err(error) = communicator.async_error() {
            break error;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    println!("\nrank {rank} ends: {error}");
}

/// What each rank has said at its end.
fn ends(group: Vec<Child>) -> Vec<String> {
    let end = |(rank, child): (usize, Child)| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "rank {rank}: {text}");
        let line = text.lines().find(|line| line.contains("ends: "));
        line.unwrap_or_default().to_owned()
    };
    group.into_iter().enumerate().map(end).collect()
}

#[test]
fn processes_of_several_hosts_agree() {
    for (n, hosts) in [(2, 2), (4, 2), (4, 4), (6, 3)] {
        ends(group(n, hosts, "sums"));
    }
}

#[test]
fn another_count_on_another_host_is_an_error_everywhere() {
    for end in ends(group(3, 3, "mismatch")) {
        assert!(end.contains("count 100") && end.contains("count 101"), "{end}");
    }
}

#[test]
fn what_was_sent_arrives_when_its_sender_has_left() {
    for end in ends(group(3, 3, "leaves")) {
        assert!(end.contains("well"), "{end}");
    }
}

#[test]
fn an_abort_ends_all_hosts() {
    for (rank, end) in ends(group(3, 3, "abort")).into_iter().enumerate() {
        let said = if rank == 1 { "by itself" } else { "rank 1 was aborted" };
        assert!(end.contains(said), "{end}");
    }
}

#[test]
fn a_killed_rank_is_an_error_on_every_host() {
    for victim in 0..4usize {
        let mut group = group(4, 2, "for_ever");
        let mut lines: Vec<_> =
            group.iter_mut().map(|c| BufReader::new(c.stdout.take().unwrap()).lines()).collect();
        let mut find = |rank: usize, what: &str| {
            lines[rank].by_ref().map_while(Result::ok).find(|line| line.contains(what))
        };
        for rank in 0..4 {
            assert!(find(rank, "runs").is_some(), "rank {rank} does not start");
        }
        // SIGKILL, in the middle of whatever it does.
        group[victim].kill().unwrap();
        for rank in (0..4).filter(|&r| r != victim) {
            let end = find(rank, "ends: ")
                .unwrap_or_else(|| panic!("rank {rank} does not say how it ends"));
            assert!(end.contains(&format!("lost rank {victim}")), "victim {victim}: {end}");
        }
        for mut child in group {
            child.wait().unwrap();
        }
    }
}

#[test]
fn who_makes_no_call_is_named_on_every_host() {
    for hosts in [1, 3] {
        let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
        let ranks = (0..5)
            .map(|rank| start_with(&id, rank, 5, hosts, "absent", &[("FERROCCL_TIMEOUT", "5")]));
        for end in ends(ranks.collect()) {
            let why = "ends: timeout: call 1, all_reduce(count 1000, type float, op sum), waits in vain: rank 2 has not entered it, nor any call before";
            assert!(end.contains(why), "{hosts} hosts: {end}");
        }
    }
}
