//! Times that were fitted to runs, simulated or measured: they count in place of the model's.
//!
//! A file has the times of a communicator's size: for each collective, algorithm and protocol that was fitted, straight lines over ranges
//! of sizes. What it does not have takes as long as the model says. `ferroccl simulate --fit` writes one, `FERROCCL_TUNER_FILE` names it.

use std::collections::BTreeSet;

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};
use serde::{Deserialize, Serialize};

use super::{Cost, Situation};

/// The version of the format.
const VERSION: u32 = 1;

/// The time of calls from a size on, up to the next line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedLine {
    /// The first size, in bytes as [`predict`](super::predict) counts them.
    pub from_bytes: u64,
    /// The part of the time that does not depend on the size, in microseconds. Where the line is not a call's first it may be negative.
    pub latency_us: f64,
    /// Bytes of the call by the rest of the time, 10^9 a second; without it the time does not depend on the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_per_s: Option<f64>,
}

impl FittedLine {
    /// The time of a call, in microseconds.
    #[must_use]
    pub fn time_us(&self, bytes: u64) -> f64 {
        self.latency_us + self.gb_per_s.map_or(0.0, |bandwidth| bytes as f64 / bandwidth * 1e-3)
    }
}

/// The times of a collective by an algorithm and protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedTimes {
    /// The collective's name.
    pub collective: String,
    /// The algorithm's name.
    pub algorithm: String,
    /// The protocol's name.
    pub protocol: String,
    /// By size, ascending; the first is from 0 on.
    pub lines: Vec<FittedLine>,
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedCosts {
    /// The version of the format: 1.
    pub version: u32,
    /// Whether the runs were simulated.
    pub simulated: bool,
    /// Hosts of the communicators that it is for.
    pub nodes: u32,
    /// Their ranks.
    pub ranks: u32,
    /// The times.
    pub times: Vec<FittedTimes>,
}

impl FittedCosts {
    /// Times of communicators of this size.
    #[must_use]
    pub fn new(simulated: bool, nodes: u32, ranks: u32, times: Vec<FittedTimes>) -> Self {
        FittedCosts { version: VERSION, simulated, nodes, ranks, times }
    }

    /// That the file makes sense.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("version {}; {VERSION} is known", self.version));
        }
        let mut seen = BTreeSet::new();
        for FittedTimes { collective, algorithm, protocol, lines } in &self.times {
            let what = format!("{collective} by {algorithm} {protocol}");
            let wrong = |why: &str| Err(format!("{what}: {why}"));
            let known = Collective::ALL.iter().any(|known| known.name() == *collective)
                && Algorithm::ALL.iter().any(|known| known.name() == *algorithm)
                && ProtocolId::ALL.iter().any(|known| known.name() == *protocol);
            if !known {
                return wrong("there is no such collective, algorithm or protocol");
            }
            if !seen.insert(what.clone()) {
                return wrong("is there twice");
            }
            if lines.first().is_none_or(|line| line.from_bytes != 0) {
                return wrong("the first line is not from 0 bytes on");
            }
            if lines.windows(2).any(|pair| pair[0].from_bytes >= pair[1].from_bytes) {
                return wrong("its lines are not ascending");
            }
            let possible = |line: &FittedLine| {
                let time = line.time_us(line.from_bytes);
                time.is_finite()
                    && time > 0.0
                    && line.gb_per_s.is_none_or(|b| b.is_finite() && b > 0.0)
            };
            if !lines.iter().all(possible) {
                return wrong("a line has a time that is none");
            }
        }
        Ok(())
    }

    /// Whether it is for such communicators.
    pub(super) fn is_for(&self, s: &Situation<'_>) -> bool {
        (self.nodes, self.ranks) == (s.nodes(), s.ranks())
    }

    /// The cost of a call, where there are times of it.
    pub(super) fn cost(
        &self,
        s: &Situation<'_>,
        (collective, algorithm, protocol): (Collective, Algorithm, ProtocolId),
        bytes: u64,
    ) -> Option<Cost> {
        let names = (collective.name(), algorithm.name(), protocol.name());
        let is = |times: &&FittedTimes| {
            (times.collective.as_str(), times.algorithm.as_str(), times.protocol.as_str()) == names
        };
        let lines = &self.times.iter().filter(|_| self.is_for(s)).find(is)?.lines;
        let line = lines.iter().rev().find(|line| line.from_bytes <= bytes)?;
        let bandwidth = line.gb_per_s.unwrap_or(f64::INFINITY);
        Some(Cost { time_us: line.time_us(bytes), latency_us: line.latency_us, bandwidth })
    }

    /// The sizes at which lines begin.
    pub(super) fn starts(&self) -> impl Iterator<Item = u64> + '_ {
        self.times.iter().flat_map(|times| &times.lines).map(|line| line.from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Devices, Settings, Tuner, choose, predict, switches};
    use super::*;

    fn line(from_bytes: u64, latency_us: f64, gb_per_s: Option<f64>) -> FittedLine {
        FittedLine { from_bytes, latency_us, gb_per_s }
    }

    /// A ring that is slow for some sizes, and a tree that is never taken else.
    fn file() -> FittedCosts {
        let times = |algorithm: &str, lines| FittedTimes {
            collective: "all_reduce".to_owned(),
            algorithm: algorithm.to_owned(),
            protocol: "Simple".to_owned(),
            lines,
        };
        let ring =
            vec![line(0, 1e6, None), line(1000, 0.001, Some(1e6)), line(5000, 1e6, Some(1.0))];
        FittedCosts::new(
            true,
            1,
            4,
            vec![times("Ring", ring), times("Tree", vec![line(0, 0.01, None)])],
        )
    }

    #[test]
    fn times_of_a_file_count_in_place_of_the_models() {
        let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
        let all = Collective::AllReduce;
        let settings = Settings { fitted: Some(Arc::new(file())), ..Settings::default() };
        let time = |algorithm, bytes| {
            let cost = predict(&cores, all, algorithm, ProtocolId::Simple, bytes, &settings).cost;
            cost.unwrap().time_us
        };
        assert_eq!(time(Algorithm::Ring, 999), 1e6);
        assert_eq!(time(Algorithm::Ring, 1000), 0.001 + 1e-6);
        assert_eq!(time(Algorithm::Ring, 6000), 1e6 + 6.0);
        // The tuner's lines are the same, at each end of each range.
        let tuner = Tuner::new(&cores, &settings);
        for bytes in [0, 1, 999, 1000, 1001, 4999, 5000, 5001, 1 << 30] {
            let chosen = choose(&cores, all, bytes, &settings).unwrap();
            let fastest = tuner.fastest(all, bytes, |_, _| true);
            assert_eq!(fastest, Some((chosen.algorithm, chosen.protocol)), "{bytes}");
        }
        let found = switches(&cores, all, &settings, 8, 1 << 20);
        let found: Vec<_> = found.iter().map(|(from, algorithm, _)| (*from, *algorithm)).collect();
        assert_eq!(found, [(8, Algorithm::Tree), (1000, Algorithm::Ring), (5000, Algorithm::Tree)]);
        // It is of 4 ranks.
        let other = Situation::new(1, 5, Devices::Cpu { ring: None });
        let plain = Settings::default();
        for bytes in [8, 2000, 1 << 20] {
            let [with, without] =
                [&settings, &plain].map(|s| choose(&other, all, bytes, s).unwrap());
            assert_eq!(with, without);
        }
    }

    #[test]
    fn files_that_make_no_sense_are_refused() {
        assert_eq!(file().check(), Ok(()));
        let text = serde_json::to_string(&file()).unwrap();
        assert_eq!(serde_json::from_str::<FittedCosts>(&text).unwrap(), file());
        let mut wrong: Vec<(FittedCosts, &str)> = vec![(file(), "version 7"); 1];
        wrong[0].0.version = 7;
        let mut with = |why, change: fn(&mut FittedTimes)| {
            let mut one = file();
            change(&mut one.times[0]);
            wrong.push((one, why));
        };
        with("no such", |times| times.algorithm = "Spiral".to_owned());
        with("twice", |times| times.algorithm = "Tree".to_owned());
        with("from 0 bytes", |times| times.lines[0].from_bytes = 1);
        with("from 0 bytes", |times| times.lines.clear());
        with("ascending", |times| times.lines[2].from_bytes = 1000);
        with("a time that is none", |times| times.lines[1].latency_us = -1.0);
        with("a time that is none", |times| times.lines[1].gb_per_s = Some(0.0));
        with("a time that is none", |times| times.lines[0].latency_us = f64::NAN);
        for (file, why) in wrong {
            let error = file.check().unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
