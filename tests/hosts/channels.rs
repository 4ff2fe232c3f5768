//! The channels that the search finds are those that a job runs on: ranks on the CPU stand for the GPUs of topology files
//! (`FERROCCL_TOPO_RANKS`), on hosts with several cards.

use ferroccl::UniqueId;
use ferroccl::config::Config;

use crate::hosts::Hosts;
use crate::members::{CALLS, Job};

fn hosts(n: usize, cards: usize) -> Option<Hosts> {
    Hosts::with_cards(n, cards).map_err(|why| crate::skip::skip(&why)).ok()
}

/// The path of a topology file.
fn topology(name: &str) -> String {
    format!("{}/tests/topology_files/{name}.xml", env!("CARGO_MANIFEST_DIR"))
}

/// `per_host` ranks in each host; ranks of a host are neighbours in number, or come in turn.
fn start(
    hosts: &Hosts,
    per_host: usize,
    in_turn: bool,
    file: &str,
    work: &str,
    env: &[(&str, &str)],
) -> Job {
    let id = hosts.within(0, || {
        let config = Config::from_lookup(|name| {
            (name == "NCCL_SOCKET_IFNAME").then(|| format!("={}", crate::hosts::INTERFACE))
        });
        UniqueId::new(&config.unwrap().bootstrap()).unwrap()
    });
    let file = topology(file);
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

/// Two hosts of 8 GPUs and 8 cards: each channel crosses by a card of its own, and all carry the same.
#[test]
fn each_card_carries_what_its_channels_do() {
    let Some(hosts) = hosts(2, 8) else { return };
    let before = [hosts.sent(0), hosts.sent(1)];
    let env = [(CALLS, "32"), ("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];
    let mut job = start(&hosts, 8, false, "hgx-h100", "large", &env);
    job.all_told("ended well");
    job.end();
    // A ring of 16 ranks passes 2 * 15 / 16 of the data over each of its edges, one of which leaves each host.
    let each = 32.0 * f64::from(1 << 20) * 30.0 / 16.0 / 8.0;
    for (h, before) in before.into_iter().enumerate() {
        for (card, (after, before)) in hosts.sent(h).into_iter().zip(before).enumerate() {
            let share = (after - before) as f64 / each;
            println!("host {h}, eth{card}: {share:.3} of its share");
            assert!((0.95..1.05).contains(&share), "host {h}, eth{card}: {share}");
        }
    }
}

/// The other cards, and the bootstrap, do not hear of it.
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
    let one = format!("={}", crate::hosts::INTERFACE);
    let mut rounds: [Vec<f64>; 2] = Default::default();
    for round in 0..3 {
        for (which, extra) in [
            &[][..],
            &[("FERROCCL_TOPO_RANKS", ""), ("NCCL_TOPO_FILE", ""), ("NCCL_SOCKET_IFNAME", &*one)],
        ]
        .into_iter()
        .enumerate()
        {
            let calls = [(CALLS, "16"), ("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];
            let env = [&calls, extra].concat();
            let mut job = start(&hosts, 8, false, "hgx-h100", "timed", &env);
            for _ in 0..5 {
                let took = job.all_told("took ");
                let slowest = took.iter().map(|ms| ms.parse::<f64>().unwrap()).fold(0.0, f64::max);
                rounds[which].push(slowest);
            }
            job.all_told("ended well");
            job.end();
        }
        println!("round {round}: {rounds:.0?} ms");
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let [by_cards, by_one] = rounds.each_mut().map(median);
    println!(
        "16 MiB, medians: {by_cards:.0} ms by 8 cards, {by_one:.0} ms by one: {:.2} times",
        by_one / by_cards
    );
}
