//! A network of a file.
//!
//! ```text
//! { "version": 1,
//!   "attach": [ { "hosts": [0, 15], "port": 0, "switch": "leaf0" }, { "hosts": [16, 31], "switch": "leaf1" } ],
//!   "links":  [ { "from": "leaf0", "to": "spine0", "gb_per_s": 50, "latency_us": 0.3, "count": 4 } ] }
//! ```
//!
//! `attach` says on which switch ports are: of the hosts from the first number to the last, one port or, without `port`, all of them.
//! A link leads both ways; with `count` there are so many side by side. Messages take the fewest links; of several such ways, and of links
//! side by side, a hash takes one.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use serde::Deserialize;

use super::{FabricLink, Port, hash};
use crate::SimulateError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    attach: Vec<Attach>,
    #[serde(default)]
    links: Vec<Trunk>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attach {
    hosts: [u32; 2],
    port: Option<u32>,
    switch: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trunk {
    from: String,
    to: String,
    gb_per_s: f64,
    latency_us: Option<f64>,
    #[serde(default = "one")]
    count: u32,
}

fn one() -> u32 {
    1
}

/// The most links side by side.
const MOST_SIDE_BY_SIDE: u32 = 4096;

/// The switches of a file.
#[derive(Debug)]
pub(super) struct FileFabric {
    names: Vec<String>,
    /// By host and port: the switch.
    attached: Vec<u32>,
    ports: u32,
    /// From a switch to a switch.
    links: Vec<(u32, u32, FabricLink)>,
    /// By switch: the links that leave it.
    leaving: Vec<Vec<u32>>,
    /// By switch that is gone to: the links from each switch to it.
    distances: RefCell<HashMap<u32, Vec<u32>>>,
}

impl FileFabric {
    pub(super) fn new(
        text: &str,
        hosts: u32,
        ports: u32,
        switch_us: f64,
    ) -> Result<Self, SimulateError> {
        let wrong = |why: String| Err(SimulateError::Fabric(why));
        let file: File =
            serde_json::from_str(text).map_err(|e| SimulateError::Fabric(e.to_string()))?;
        if file.version != 1 {
            return wrong(format!("version {}; this is for version 1", file.version));
        }
        let mut names: Vec<String> = Vec::new();
        let mut number = |name: &String| {
            let known = names.iter().position(|known| known == name);
            known.unwrap_or_else(|| {
                names.push(name.clone());
                names.len() - 1
            }) as u32
        };
        let mut attached = vec![u32::MAX; hosts as usize * ports as usize];
        for Attach { hosts: [first, last], port, switch } in &file.attach {
            if port.is_some_and(|port| port >= ports) || first > last {
                return wrong(format!(
                    "hosts {first} to {last}, port {port:?}: there is no such port"
                ));
            }
            let switch = number(switch);
            for host in *first..(*last).saturating_add(1).min(hosts) {
                let which = port.map_or(0..ports, |port| port..port + 1);
                which.for_each(|port| attached[(host * ports + port) as usize] = switch);
            }
        }
        if let Some(at) = attached.iter().position(|switch| *switch == u32::MAX) {
            let (host, port) = (at as u32 / ports, at as u32 % ports);
            return wrong(format!("host {host}, port {port} is on no switch"));
        }
        let mut links = Vec::new();
        for Trunk { from, to, gb_per_s, latency_us, count } in &file.links {
            let latency_us = latency_us.unwrap_or(switch_us);
            let sound =
                gb_per_s.is_finite() && *gb_per_s > 0.0 && (0.0..=1e6).contains(&latency_us);
            if !sound || !(1..=MOST_SIDE_BY_SIDE).contains(count) {
                return wrong(format!("the link from {from} to {to} makes no sense"));
            }
            let (a, b) = (number(from), number(to));
            let link = FabricLink { bw: *gb_per_s, latency_us };
            for _ in 0..*count {
                links.extend([(a, b, link), (b, a, link)]);
            }
        }
        let mut leaving = vec![Vec::new(); names.len()];
        for (i, (from, _, _)) in (0..).zip(&links) {
            leaving[*from as usize].push(i);
        }
        let distances = RefCell::default();
        let fabric = FileFabric { names, attached, ports, links, leaving, distances };
        let start = fabric.attached.first().copied().unwrap_or(0);
        let far = |switch: &&u32| fabric.distance(**switch, start) == u32::MAX;
        if let Some(switch) = fabric.attached.iter().find(far) {
            let names = &fabric.names;
            let (a, b) = (&names[*switch as usize], &names[start as usize]);
            return wrong(format!("no links lead from {a} to {b}"));
        }
        Ok(fabric)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = FabricLink> + '_ {
        self.links.iter().map(|(_, _, link)| *link)
    }

    /// Links from a switch to another.
    fn distance(&self, from: u32, to: u32) -> u32 {
        let mut known = self.distances.borrow_mut();
        let to_there = known.entry(to).or_insert_with(|| {
            let mut far = vec![u32::MAX; self.names.len()];
            let mut queue = VecDeque::from([to]);
            far[to as usize] = 0;
            // Links lead both ways.
            while let Some(at) = queue.pop_front() {
                for link in &self.leaving[at as usize] {
                    let (_, next, _) = self.links[*link as usize];
                    if far[next as usize] == u32::MAX {
                        far[next as usize] = far[at as usize] + 1;
                        queue.push_back(next);
                    }
                }
            }
            far
        });
        to_there[from as usize]
    }

    pub(super) fn route(&self, from: Port, to: Port, flow: u64, mut pass: impl FnMut(u32)) {
        let switch = |(host, port): Port| self.attached[(host * self.ports + port) as usize];
        let (mut at, end) = (switch(from), switch(to));
        while at != end {
            let nearer = self.distance(at, end) - 1;
            let leads = |link: &&u32| self.distance(self.links[**link as usize].1, end) == nearer;
            let ways: Vec<u32> = self.leaving[at as usize].iter().filter(leads).copied().collect();
            let random =
                hash(&[flow, at.into(), from.0.into(), from.1.into(), to.0.into(), to.1.into()]);
            let Some(link) = ways.get((random % ways.len().max(1) as u64) as usize) else { return };
            pass(*link);
            at = self.links[*link as usize].1;
        }
    }

    pub(super) fn name(&self, link: u32) -> String {
        let (from, to, _) = self.links[link as usize];
        let name = |switch: u32| &self.names[switch as usize];
        format!("{} to {} (link {link})", name(from), name(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"{ "version": 1,
        "attach": [ { "hosts": [0, 1], "switch": "a" }, { "hosts": [2, 9], "port": 0, "switch": "b" },
                    { "hosts": [2, 9], "port": 1, "switch": "c" } ],
        "links": [ { "from": "a", "to": "b", "gb_per_s": 50, "count": 4 },
                   { "from": "b", "to": "c", "gb_per_s": 25, "latency_us": 1 } ] }"#;

    #[test]
    fn ways_are_the_shortest_there_are() {
        let fabric = FileFabric::new(TWO, 4, 2, 0.5).unwrap();
        let ways = |from, to| {
            let mut all = Vec::new();
            for flow in 0..50 {
                let mut way = Vec::new();
                fabric.route(from, to, flow, |link| way.push(link));
                all.push(way);
            }
            all.sort();
            all.dedup();
            all
        };
        assert_eq!(ways((0, 0), (1, 1)), [[0u32; 0]]);
        assert_eq!(ways((0, 0), (2, 0)).len(), 4, "links side by side are all used");
        assert!(ways((3, 1), (0, 0)).iter().all(|way| way.len() == 2));
        assert_eq!(fabric.name(8), "b to c (link 8)");
        assert_eq!(fabric.links().nth(8).unwrap(), FabricLink { bw: 25.0, latency_us: 1.0 });
    }

    #[test]
    fn files_that_make_no_sense_are_refused() {
        for (from, to, word) in [
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("[2, 9], \"port\": 1", "[3, 9], \"port\": 1", "host 2, port 1 is on no switch"),
            ("\"port\": 1", "\"port\": 7", "no such port"),
            ("\"gb_per_s\": 50", "\"gb_per_s\": 0", "makes no sense"),
            ("\"count\": 4", "\"count\": 0", "makes no sense"),
            ("\"to\": \"c\"", "\"to\": \"d\"", "no links lead"),
            ("\"links\"", "\"wires\"", "unknown field"),
        ] {
            let text = TWO.replacen(from, to, 1);
            let error = FileFabric::new(&text, 4, 2, 0.5).unwrap_err().to_string();
            assert!(error.contains(word), "{from} -> {to}: {error}");
        }
    }
}
