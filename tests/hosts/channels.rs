//! The channels that the search finds are those that a job runs on: ranks on the CPU stand for the GPUs of topology files
//! (`FERROCCL_TOPO_RANKS`), on hosts with several cards.

use std::net::Ipv4Addr;

use ferroccl::UniqueId;
use ferroccl::config::Config;
use ferroccl::graph::{HostGraphs, SearchSettings};
use ferroccl::ptx;
use ferroccl::topology::{self, Assume, Node, Paths, Policy};

use crate::hosts::Hosts;
use crate::members::{CALLS, Job, RUNTIME};

pub(crate) fn hosts(n: usize, cards: usize) -> Option<Hosts> {
    Hosts::with_cards(n, cards).map_err(|why| crate::skip::skip(&why)).ok()
}

/// The path of a topology file: one of the tree's by its name, or any.
fn file(name: &str) -> String {
    if name.ends_with(".xml") {
        return name.to_owned();
    }
    format!("{}/tests/topology_files/{name}.xml", env!("CARGO_MANIFEST_DIR"))
}

/// `per_host` ranks in each host; ranks of a host are neighbours in number, or come in turn.
pub(crate) fn start(
    hosts: &Hosts,
    per_host: usize,
    in_turn: bool,
    topology: &str,
    work: &str,
    env: &[(&str, &str)],
) -> Job {
    let id = hosts.within(0, || {
        let config = Config::from_lookup(|name| {
            (name == "NCCL_SOCKET_IFNAME").then(|| format!("={}", crate::hosts::INTERFACE))
        });
        UniqueId::new(&config.unwrap().bootstrap()).unwrap()
    });
    let file = file(topology);
    let graphs = [("NCCL_TOPO_FILE", file.as_str()), ("FERROCCL_TOPO_RANKS", "all")];
    let env = [&graphs, env].concat();
    Job::start(hosts.len() * per_host, &id, work, &env, |rank| {
        let host = if in_turn { rank % hosts.len() } else { rank / per_host };
        hosts.command(host, std::env::current_exe().unwrap())
    })
}

#[test]
fn every_collective_over_searched_channels() {
    for (n, per_host, cards, file) in [
        (1, 8, 1, "hgx-h100"),
        (2, 4, 4, "dgx-a100"),
        (2, 3, 2, "dgx1-v100"),
        (2, 2, 2, "pcie-2gpu-2nic"),
        (3, 2, 8, "azure-ndv4-topo"),
        (4, 1, 4, "aws-p4d-24xl-topo"),
    ] {
        let Some(hosts) = hosts(n, cards) else { return };
        for (in_turn, algorithm, protocol) in
            [(false, "", "Simple"), (true, "", "LL"), (false, "allreduce:tree", "LL128")]
        {
            println!(
                "{n} hosts of {per_host} ranks, {file}, in turn {in_turn}, {algorithm} {protocol}"
            );
            let env = [("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)];
            let mut job = start(&hosts, per_host, in_turn, file, "every_collective", &env);
            job.all_told("ended well");
            job.end();
        }
    }
}

/// Two GPUs of a host whose cards are faster than the way from one CPU to the other talk over these cards.
#[test]
fn ranks_of_a_host_talk_over_faster_cards() {
    for (env, over_cards) in [(&[][..], true), (&[("NCCL_NET_DISABLE_INTRA", "1")], false)] {
        let Some(hosts) = hosts(2, 2) else { return };
        let env = [&[("NCCL_ALGO", "Ring"), ("FERROCCL_TIMEOUT", "60")], env].concat();
        let mut job = start(&hosts, 2, false, "pcie-2gpu-2nic", "for_ever", &env);
        job.all_told("runs");
        // The second card of each host, and who has made connections to it.
        let cards = [0, 1].map(|host| Ipv4Addr::new(10, 214, host, 1));
        let pids: Vec<u32> = job.ranks.iter().map(|rank| rank.0.id()).collect();
        let connected = |card| {
            let to = |rank: &usize| crate::pxn::remote_addresses(pids[*rank]).contains(&card);
            (0..4).filter(to).collect::<Vec<_>>()
        };
        // The ring is 0, 1, 2, 3 or enters each host by the other GPU; ranks 1 and 3 have the second cards.
        let own_host =
            cards.map(connected).iter().enumerate().any(|(host, from)| from.contains(&(2 * host)));
        assert_eq!(own_host, over_cards, "{env:?}");
        job.ranks[0].0.kill().unwrap();
        for rank in 1..4 {
            job.told(rank, "ended ");
        }
    }
}

/// The same by the kernels' PTX, in the emulator.
#[test]
fn kernels_in_the_emulator_over_searched_channels() {
    if let Some(why) = ptx::unavailable() {
        return crate::skip::skip(why);
    }
    let Some(hosts) = hosts(2, 4) else { return };
    for (algorithm, protocol) in [("", "Simple"), ("", "LL"), ("allreduce:tree", "LL128")] {
        let env = [
            ("NCCL_ALGO", algorithm),
            ("NCCL_PROTO", protocol),
            ("NCCL_MAX_NCHANNELS", "4"),
            (RUNTIME, "ptx"),
        ];
        let mut job = start(&hosts, 2, false, "dgx-a100", "every_collective", &env);
        job.all_told("ended well");
        job.end();
    }
}

/// A topology file with all that it leaves to its machine.
struct Whole(std::path::PathBuf);

impl Whole {
    fn new(name: &str) -> Whole {
        let assume: Assume = "sm=80,nvswitch=12".parse().unwrap();
        let system = topology::load_file(file(name).as_ref(), &assume).unwrap();
        let path = std::env::temp_dir().join(format!("ferroccl-{name}-{}.xml", std::process::id()));
        std::fs::write(&path, topology::dump::to_xml(&system).unwrap().to_xml()).unwrap();
        Whole(path)
    }

    /// What part of a ring's traffic leaves each host by each of its cards, with ranks on its first GPUs.
    fn shares(&self, hosts: u32, per_host: usize, cards: usize) -> Vec<f64> {
        let system = topology::load_file(&self.0, &Assume::default()).unwrap();
        let first: Vec<_> = system.gpus()[..per_host].iter().map(|(id, _)| *id).collect();
        let gpu = |node: &Node| matches!(node, Node::Gpu(_));
        let system = system.filtered(|id, node| !gpu(node) || first.contains(&id));
        let system = topology::trim(&system);
        let paths = Paths::new(&system, &Policy::default());
        let settings = SearchSettings::default();
        let graphs = HostGraphs::search(&system, &paths, &settings, hosts).unwrap();
        let mut shares = vec![0.0; cards];
        for channel in &graphs.ring.channels {
            let (_, port) = system.nets()[channel.nets.unwrap()[1]];
            shares[port.dev as usize] += 1.0 / graphs.ring.channels.len() as f64;
        }
        shares
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Bytes leave each host by the cards that the graph says, in the parts that it says.
#[test]
fn each_card_carries_what_its_channels_do() {
    for (n, per_host, cards, name) in [
        (2, 8, 8, "hgx-h100"),
        (4, 4, 8, "dgx-a100"),
        (2, 8, 8, "azure-ndv4-topo"),
        (2, 8, 4, "aws-p4d-24xl-topo"),
    ] {
        let Some(hosts) = hosts(n, cards) else { return };
        let whole = Whole::new(name);
        let shares = whole.shares(n as u32, per_host, cards);
        assert!(shares.iter().filter(|share| **share > 0.0).count() >= 4, "{name}: {shares:?}");
        let before: Vec<Vec<u64>> = (0..n).map(|h| hosts.sent(h)).collect();
        let env = [(CALLS, "32"), ("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];
        let mut job = start(&hosts, per_host, false, whole.0.to_str().unwrap(), "large", &env);
        job.all_told("ended well");
        job.end();
        // A ring of so many ranks passes 2 * (ranks - 1) / ranks of the data over each of its edges, one of which leaves each
        // host.
        let ranks = (n * per_host) as f64;
        let all = 32.0 * f64::from(1 << 20) * 2.0 * (ranks - 1.0) / ranks;
        for (h, before) in before.into_iter().enumerate() {
            for (card, (after, before)) in hosts.sent(h).into_iter().zip(before).enumerate() {
                let part = (after - before) as f64 / all;
                println!(
                    "{name}, host {h}, eth{card}: {part:.4} of all, wanted {:.4}",
                    shares[card]
                );
                // Acknowledgements and the bootstrap leave by cards, too.
                let close =
                    (part / shares[card] - 1.0).abs() < 0.05 || part < 0.01 && shares[card] == 0.0;
                assert!(close, "{name}, host {h}, eth{card}: {part}");
            }
        }
    }
}

/// The other cards, and the bootstrap, do not hear of it. The calls' own limit is longer than it takes TCP to find out that
/// nobody is there (half a minute, `KEEPALIVE` in host/handshake).
#[test]
fn a_card_that_is_cut_is_named() {
    let Some(hosts) = hosts(2, 4) else { return };
    let env = [("FERROCCL_TIMEOUT", "100"), ("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];
    let mut job = start(&hosts, 4, false, "dgx-a100", "for_ever", &env);
    job.all_told("runs");
    hosts.cut_card(1, 2).unwrap();
    let errors = job.all_told("ended ");
    println!("{errors:#?}");
    // All hear who has lost whom, and those who have lost each other say by which card.
    let lost = |error: &&String| error.contains("through eth2") || error.contains("10.215.");
    assert!(errors.iter().any(|error| lost(&error)), "{errors:#?}");
    // Channel 2 joins rank 2 with 7, and 3 with 6.
    let of_a_pair = |error: &String| {
        let (_, peer) = error.split_once("lost rank ").unwrap();
        ["2", "3", "6", "7"].iter().any(|rank| peer.starts_with(rank))
    };
    assert!(errors.iter().all(of_a_pair), "{errors:#?}");
    job.end();
}

/// Whoever will not wait so long has an error in time.
#[test]
fn a_card_that_is_cut_is_an_error_within_the_time_limit() {
    let Some(hosts) = hosts(2, 4) else { return };
    let env = [("FERROCCL_TIMEOUT", "6"), ("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];
    let mut job = start(&hosts, 4, false, "dgx-a100", "for_ever", &env);
    job.all_told("runs");
    hosts.cut_card(1, 2).unwrap();
    let errors = job.all_told("ended ");
    assert!(errors.iter().all(|error| error.contains("timeout: ")), "{errors:#?}");
    job.end();
}

/// What the cards are worth: the same all-reduce by the channels that the search finds, and by one ring in the ranks'
/// order through each host's first card, with cards of 200 Mbit/s. A measurement, for `benches/records/`.
#[test]
#[ignore = "a measurement, whose figures are recorded by hand"]
fn cards_side_by_side() {
    let Some(hosts) = hosts(2, 8) else { return };
    for h in 0..2 {
        if let Err(why) = hosts.limit(h, 200) {
            return crate::skip::skip(&why);
        }
    }
    for mebibytes in ["16", "64"] {
        side_by_side(&hosts, mebibytes);
    }
}

fn side_by_side(hosts: &Hosts, mebibytes: &str) {
    let one = format!("={}", crate::hosts::INTERFACE);
    let by_one =
        [("FERROCCL_TOPO_RANKS", ""), ("NCCL_TOPO_FILE", ""), ("NCCL_SOCKET_IFNAME", one.as_str())];
    let mut rounds: [Vec<f64>; 2] = Default::default();
    for _ in 0..3 {
        for (which, extra) in [&[][..], &by_one].into_iter().enumerate() {
            let calls = [(CALLS, mebibytes), ("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];
            let env = [&calls, extra].concat();
            let mut job = start(hosts, 8, false, "hgx-h100", "timed", &env);
            for _ in 0..5 {
                let took = job.all_told("took ");
                let slowest = took.iter().map(|ms| ms.parse::<f64>().unwrap()).fold(0.0, f64::max);
                rounds[which].push(slowest);
            }
            job.all_told("ended well");
            job.end();
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[0], times[times.len() - 1])
    };
    let [(cards, least, most), (single, ..)] = rounds.each_mut().map(median);
    let ratio = single / cards;
    println!(
        "{mebibytes} MiB, medians of 15: {cards:.0} ms by 8 cards ({least:.0} to {most:.0}), {single:.0} ms by one: {ratio:.2} times"
    );
}
