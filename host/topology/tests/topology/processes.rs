//! The choice between processes of one host beside what was measured there.

use std::collections::BTreeMap;

use ferroccl_topology::graph::tuning::{
    Algorithm, Collective, Devices, ProtocolId, Settings, Situation, choose,
};

/// The record has a table: collective, processes, algorithm, protocol, and then microseconds by size.
const RECORD: &str = include_str!("../../../../benches/records/2026-11-26-processes.md");
/// The sizes of its columns, in bytes.
const SIZES: [u64; 6] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10];
/// The cores of its machine.
const CORES: u32 = 2;

type Times = BTreeMap<(String, u32, u64), Vec<(String, String, f64)>>;

fn measured() -> Times {
    let mut times = Times::new();
    for line in RECORD.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [collective, processes, algorithm, protocol, by_size @ ..] = &cells[..] else {
            continue;
        };
        let (Ok(processes), true) = (processes.parse(), by_size.len() == SIZES.len()) else {
            continue;
        };
        for (bytes, time) in SIZES.iter().zip(by_size) {
            let row = times.entry(((*collective).to_owned(), processes, *bytes)).or_default();
            row.push(((*algorithm).to_owned(), (*protocol).to_owned(), time.parse().unwrap()));
        }
    }
    times
}

#[test]
fn what_is_chosen_between_processes_is_about_the_fastest_that_was_measured() {
    let times = measured();
    assert_eq!(times.len(), 4 * 4 * SIZES.len(), "four collectives, four numbers of processes");
    let named = |name: &str| Collective::ALL.iter().find(|c| c.to_string() == name).copied();
    let mut ratios = Vec::new();
    for ((collective, processes, bytes), ways) in &times {
        let situation = Situation::new(1, *processes, Devices::Cpu { ring: None });
        let situation = situation.with_processes(*processes, CORES);
        let collective = named(collective).unwrap();
        let choice = choose(&situation, collective, *bytes, &Settings::default()).unwrap();
        let way = (choice.algorithm.to_string(), choice.protocol.to_string());
        let chosen = ways.iter().find(|(a, p, _)| (a, p) == (&way.0, &way.1));
        let best = ways.iter().min_by(|a, b| a.2.total_cmp(&b.2)).unwrap();
        let chosen = chosen.unwrap_or_else(|| panic!("{way:?} of {collective} was not measured"));
        ratios.push((chosen.2 / best.2, collective, *processes, *bytes, way, best.clone()));
    }
    ratios.sort_by(|a, b| b.0.total_cmp(&a.0));
    let within = |limit: f64| ratios.iter().filter(|r| r.0 <= limit).count();
    println!("of {}: {} within 1.1, {} within 1.25", ratios.len(), within(1.1), within(1.25));
    ratios.iter().take(12).for_each(|r| println!("{r:?}"));
    // The record's figures differ by up to 2.5 times from one second to another: it is the bulk of them that counts.
    assert!(within(1.1) * 10 >= ratios.len() * 6, "{:?}", &ratios[..12]);
    assert!(within(1.5) * 10 >= ratios.len() * 9, "{:?}", &ratios[..12]);
}

#[test]
fn processes_with_a_core_each_and_one_process_are_told_from_those_that_share_cores() {
    let fastest = |processes: u32, cores: u32| {
        let situation = Situation::new(1, 8, Devices::Cpu { ring: None });
        let situation = situation.with_processes(processes, cores);
        choose(&situation, Collective::AllReduce, 8, &Settings::default()).unwrap()
    };
    let time = |processes, cores| fastest(processes, cores).cost.time_us;
    assert!(time(8, 8) < time(8, 4) && time(8, 4) < time(8, 2) && time(8, 2) < time(8, 1));
    // No process, no core, and more processes than ranks are numbers that a caller may have.
    assert_eq!(fastest(0, 0).algorithm, fastest(1, 2).algorithm);
    assert_eq!(fastest(u32::MAX, 0).cost, fastest(8, 1).cost);
    // Several hosts have the network in between.
    let hosts = Situation::new(2, 8, Devices::Cpu { ring: None });
    let cost = |s: &Situation<'_>| choose(s, Collective::AllReduce, 8, &Settings::default());
    assert_eq!(cost(&hosts.clone().with_processes(8, 2)), cost(&hosts));
    assert_ne!(fastest(8, 2).algorithm, Algorithm::Chain);
    assert_eq!(fastest(1, 2).protocol, ProtocolId::Ll);
}
