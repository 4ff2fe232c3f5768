//! Times of calls, algorithm beside algorithm.

use std::fmt;

use ferroccl::graph::tuning::{Algorithm, Collective, FittedCosts, predict};
use ferroccl_simulator::{Detail, Fault, Options, Outcome, SimulateError};
use serde_json::{Value, json};

use super::{Failure, Setting};
use crate::perf::size::Bytes;
use crate::plot::{Curve, Plot};

/// What cannot be simulated, why not, and what the tuner predicts for the last size.
type Refused = (Algorithm, String, Option<f64>);

/// What was simulated.
pub(super) struct Results {
    title: String,
    conditions: Conditions,
    outcomes: Vec<Outcome>,
    refused: Vec<Refused>,
    names: [String; 2],
    hosts: u32,
    collective: Collective,
    fitted: FittedCosts,
}

impl Results {
    pub(super) fn new(
        setting: &Setting,
        faults: &[Fault],
        collective: Collective,
    ) -> Result<Results, Failure> {
        let cluster = setting.cluster(faults)?;
        let (mut outcomes, mut refused) = (Vec::<Outcome>::new(), Vec::<Refused>::new());
        for call in &setting.calls {
            let algorithm = call.algorithm.map_or_else(String::new, |a| a.name().to_owned());
            setting.progress.set_message(format!("{} {algorithm}", Bytes(call.bytes)));
            match cluster.simulate(call, &setting.options) {
                Ok(outcome) => outcomes.push(outcome),
                Err(SimulateError::CannotBeHad { algorithm, reason, .. }) => {
                    let s = cluster.situation();
                    let of = |p: &ferroccl::ProtocolId| {
                        let settings = cluster.settings();
                        predict(&s, call.collective, algorithm, *p, call.bytes, settings).cost
                    };
                    let all = ferroccl::ProtocolId::ALL.iter().filter_map(of);
                    let best = all.map(|cost| cost.time_us).min_by(f64::total_cmp);
                    refused.retain(|known| known.0 != algorithm);
                    refused.push((algorithm, reason, best));
                }
                Err(error) => return Err(error.into()),
            }
            setting.progress.inc(1);
        }
        if outcomes.is_empty() {
            for (algorithm, reason, _) in &refused {
                crate::complain("simulate", format!("{algorithm}: {reason}"));
            }
            return Err(Failure::Nothing);
        }
        // In a protocol of several an algorithm may be refused; it was simulated all the same.
        refused.retain(|(algorithm, ..)| {
            outcomes.iter().all(|outcome| outcome.choice.algorithm != *algorithm)
        });
        let fitted = cluster.fit(&outcomes);
        let (hosts, ranks) = (cluster.hosts(), cluster.local_ranks());
        let [file, fabric] = &setting.names;
        let title = match hosts {
            1 => format!("{collective} on 1 host of {ranks} ranks, {file}"),
            _ => format!("{collective} on {hosts} hosts of {ranks} ranks, {file}, {fabric}"),
        };
        Ok(Results {
            title,
            conditions: Conditions::new(setting, faults),
            outcomes,
            refused,
            names: setting.names.clone(),
            hosts,
            collective,
            fitted,
        })
    }

    /// The fastest of each size.
    pub(super) fn fastest(&self) -> Vec<&Outcome> {
        let mut fastest: Vec<&Outcome> = Vec::new();
        for outcome in &self.outcomes {
            match fastest.last_mut() {
                Some(best) if best.call.bytes == outcome.call.bytes => {
                    if outcome.time_us < best.time_us {
                        *best = outcome;
                    }
                }
                _ => fastest.push(outcome),
            }
        }
        fastest
    }

    fn is_fastest(&self, outcome: &Outcome) -> bool {
        self.fastest().into_iter().any(|best| std::ptr::eq(best, outcome))
    }

    pub(super) fn json(&self) -> String {
        let outcome = |outcome: &Outcome| {
            let mut finish = outcome.finish_us.clone();
            finish.sort_by(f64::total_cmp);
            let at = |part: f64| finish.get(((finish.len() - 1) as f64 * part) as usize).copied();
            json!({
                "bytes": outcome.call.bytes,
                "algorithm": outcome.choice.algorithm.name(),
                "protocol": outcome.choice.protocol.name(),
                "channels": outcome.choice.channels,
                "time_us": outcome.time_us,
                "algbw": outcome.bandwidth(),
                "busbw": outcome.bus_bandwidth(),
                "limit": outcome.share_of_limit(),
                "tuner_us": outcome.predicted_us,
                "finish_us": { "first": at(0.0), "median": at(0.5), "last": at(1.0) },
                "steps": outcome.steps,
                "detail": details(outcome),
                "links": outcome.links,
            })
        };
        let refused = |(algorithm, reason, time): &Refused| json!({ "algorithm": algorithm.name(), "reason": reason, "tuner_us": time });
        let mut json = json!({
            "version": 1,
            "simulated": true,
            "collective": self.collective.name(),
            "hosts": self.hosts,
            "ranks": self.outcomes.first().map_or(0, |outcome| outcome.ranks),
            "machine": self.names[0],
            "fabric": self.names[1],
            "calls": self.outcomes.iter().map(outcome).collect::<Vec<Value>>(),
            "not_simulated": self.refused.iter().map(refused).collect::<Vec<Value>>(),
        });
        self.conditions.add_to(&mut json);
        serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
    }

    /// The times as straight lines, as `FERROCCL_TUNER_FILE` reads them.
    pub(super) fn fitted_json(&self) -> String {
        serde_json::to_string_pretty(&self.fitted).unwrap_or_default() + "\n"
    }

    /// The plot: a line for each algorithm.
    pub(super) fn svg(&self) -> Result<String, Failure> {
        let mut curves: Vec<Curve> = Vec::new();
        for outcome in &self.outcomes {
            let label = outcome.choice.algorithm.name().to_owned();
            let point = (outcome.call.bytes as f64, outcome.time_us);
            match curves.iter_mut().find(|curve| curve.label == label) {
                Some(curve) => curve.points.push(point),
                None => {
                    let colour = curves.len();
                    curves.push(Curve { label, colour, radius: 3, points: vec![point] });
                }
            }
        }
        let caption = format!("SIMULATED: {}", self.title);
        let plot = Plot { caption, x: "bytes", y: "simulated time (us)", curves };
        plot.svg().map_err(Failure::Plot)
    }

    /// When each rank of each call has ended.
    pub(super) fn finish_csv(&self) -> String {
        let mut out = String::from("bytes,algorithm,protocol,rank,simulated_finish_us\n");
        for outcome in &self.outcomes {
            let (bytes, choice) = (outcome.call.bytes, outcome.choice);
            for (rank, time) in outcome.finish_us.iter().enumerate() {
                out +=
                    &format!("{bytes},{},{},{rank},{time:.3}\n", choice.algorithm, choice.protocol);
            }
        }
        out
    }
}

/// What is not as it should be from the beginning.
pub(super) struct Conditions {
    faults: Vec<Fault>,
    skew_us: f64,
    seed: u64,
}

impl Conditions {
    pub(super) fn new(setting: &Setting, faults: &[Fault]) -> Self {
        let Options { skew_us, seed, .. } = setting.options;
        Conditions { faults: faults.to_vec(), skew_us, seed }
    }

    /// What JSON has of them.
    pub(super) fn add_to(&self, json: &mut Value) {
        json["faults"] = self.faults.iter().map(ToString::to_string).collect();
        (json["skew_us"], json["seed"]) = (self.skew_us.into(), self.seed.into());
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            writeln!(f, "# with {fault}")?;
        }
        if self.skew_us > 0.0 {
            let Conditions { skew_us, seed, .. } = self;
            writeln!(f, "# with ranks that start late, by {skew_us} us on the mean (seed {seed})")?;
        }
        Ok(())
    }
}

/// How closely a call was simulated, in words.
pub(super) fn details(outcome: &Outcome) -> String {
    let mut details = outcome.details.clone();
    details.dedup();
    details.iter().map(Detail::to_string).collect::<Vec<_>>().join("; ")
}

/// A time in eight columns, whatever its size.
pub(super) fn time(us: f64) -> String {
    let digits = match us.abs() {
        us if us >= 10_000.0 => 0,
        us if us >= 100.0 => 1,
        _ => 2,
    };
    format!("{us:.digits$}")
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "# SIMULATED: {}\n{}", self.title, self.conditions)?;
        writeln!(
            f,
            "#\n# * the fastest; finish: when the first rank has ended, and the one in the middle\n#"
        )?;
        writeln!(
            f,
            "#    size  algorithm      proto   nch  time (us)    busbw  limit  tuner (us)          finish (us)  detail"
        )?;
        for outcome in &self.outcomes {
            let best = if self.is_fastest(outcome) { '*' } else { ' ' };
            let mut finish = outcome.finish_us.clone();
            finish.sort_by(f64::total_cmp);
            let at = |i: usize| finish.get(i).map_or_else(String::new, |us| time(*us));
            let choice = outcome.choice;
            writeln!(
                f,
                "{:>9} {best}{:<14} {:<6}  {:>4}  {:>9}  {:>7.2}  {:>4.0}%  {:>10}  {:>9}  {:>9}  {}",
                Bytes(outcome.call.bytes).to_string(),
                choice.algorithm.name(),
                choice.protocol.name(),
                choice.channels,
                time(outcome.time_us),
                outcome.bus_bandwidth(),
                100.0 * outcome.share_of_limit(),
                outcome.predicted_us.map_or_else(|| "-".to_owned(), time),
                at(0),
                at(finish.len() / 2),
                details(outcome),
            )?;
        }
        if let Some(last) = self.fastest().last() {
            // Of calls of few bytes all links are next to empty.
            let full: Vec<_> =
                last.links.iter().take(5).filter(|link| link.busy >= 0.005).collect();
            if !full.is_empty() {
                let bytes = Bytes(last.call.bytes);
                writeln!(f, "#\n# The fullest links of {bytes} by {}:", last.choice.algorithm)?;
            }
            for link in full {
                let waited = link.waited_us.map_or_else(String::new, |us| {
                    format!(", a message waits {} us at most", time(us))
                });
                writeln!(f, "#   {:>4.0}%  {}{waited}", 100.0 * link.busy, link.name)?;
            }
        }
        if !self.refused.is_empty() {
            writeln!(f, "#\n# Not simulated:")?;
        }
        for (algorithm, reason, predicted) in &self.refused {
            let predicted = predicted
                .map_or_else(String::new, |us| format!(" (the tuner predicts {} us)", time(us)));
            writeln!(f, "#   {algorithm}: {reason}{predicted}")?;
        }
        Ok(())
    }
}
