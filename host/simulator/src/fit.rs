//! The tuner's figures, fitted to simulated runs: the file that `FERROCCL_TUNER_FILE` names.
//!
//! The times of an algorithm and protocol lie on straight lines, latency and bytes by bandwidth, as far as a call has the same channels
//! and the same bottleneck. Beginning with the smallest size, a line goes on as long as every run is near it; the next one begins
//! at the last of its runs.

use ferroccl::graph::tuning::{FittedCosts, FittedLine, FittedTimes};

use crate::{Cluster, Outcome};

/// How far a line may be from a run, as a part of its time.
const NEAR: f64 = 0.02;

/// A run: bytes, and microseconds.
type Point = (u64, f64);

impl Cluster {
    /// The times of runs on this cluster: of each collective, algorithm and protocol, by lines over ranges of sizes.
    #[must_use]
    pub fn fit(&self, outcomes: &[Outcome]) -> FittedCosts {
        let mut runs: Vec<([&str; 3], Vec<Point>)> = Vec::new();
        for outcome in outcomes {
            let (call, choice) = (&outcome.call, &outcome.choice);
            let key = [call.collective.name(), choice.algorithm.name(), choice.protocol.name()];
            let point = (call.bytes, outcome.time_us);
            match runs.iter_mut().find(|known| known.0 == key) {
                Some((_, points)) => points.push(point),
                None => runs.push((key, vec![point])),
            }
        }
        let times = runs.into_iter().map(|([collective, algorithm, protocol], mut points)| {
            points.sort_by_key(|point| point.0);
            points.dedup_by_key(|point| point.0);
            FittedTimes {
                collective: collective.to_owned(),
                algorithm: algorithm.to_owned(),
                protocol: protocol.to_owned(),
                lines: lines(&points),
            }
        });
        FittedCosts::new(true, self.hosts(), self.ranks(), times.collect())
    }
}

/// The lines of runs, whose sizes ascend.
fn lines(points: &[Point]) -> Vec<FittedLine> {
    let mut lines = Vec::new();
    let mut first = 0;
    loop {
        let mut last = (first + 1).min(points.len() - 1);
        let mut line = through(&points[first..=last]);
        while last + 1 < points.len() {
            let longer = through(&points[first..=last + 1]);
            let near = |(bytes, us): &Point| (longer.time_us(*bytes) / us - 1.0).abs() <= NEAR;
            if !points[first..=last + 1].iter().all(near) {
                break;
            }
            (line, last) = (longer, last + 1);
        }
        line.from_bytes = if first == 0 { 0 } else { points[first].0 };
        lines.push(line);
        if last + 1 >= points.len() {
            return lines;
        }
        first = last;
    }
}

/// The line of least squares, of errors as parts of the times. No call is faster for being larger.
fn through(points: &[Point]) -> FittedLine {
    let sums = points.iter().fold([0.0; 5], |sums, (bytes, us)| {
        let (x, y) = (*bytes as f64, *us);
        let weight = 1.0 / (y * y);
        let of = [1.0, x, x * x, y, x * y];
        std::array::from_fn(|i| sums[i] + weight * of[i])
    });
    let [n, x, xx, y, xy] = sums;
    let spread = n * xx - x * x;
    let slope = if points.len() > 1 && spread > 0.0 { (n * xy - x * y) / spread } else { 0.0 };
    let slope = slope.max(0.0);
    let gb_per_s = (slope > 0.0).then(|| 1e-3 / slope);
    FittedLine { from_bytes: 0, latency_us: (y - slope * x) / n, gb_per_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_are_found_again() {
        let small = |bytes: u64| 20.0 + bytes as f64 / 10.0 * 1e-3;
        let large = |bytes: u64| -50.0 + bytes as f64 / 1.0 * 1e-3;
        let time = |bytes: u64| small(bytes).max(large(bytes));
        let points: Vec<Point> = (3..30).map(|i| (1 << i, time(1 << i))).collect();
        let lines = lines(&points);
        assert!(lines.len() <= 4, "{lines:?}");
        assert!((lines[0].latency_us - 20.0).abs() < 0.5, "{lines:?}");
        let last = lines[lines.len() - 1];
        assert!((last.gb_per_s.unwrap() - 1.0).abs() < 0.02, "{lines:?}");
        for (bytes, us) in points {
            let line = lines.iter().rev().find(|line| line.from_bytes <= bytes).unwrap();
            assert!((line.time_us(bytes) / us - 1.0).abs() < 0.03, "{bytes}: {lines:?}");
        }
    }

    #[test]
    fn few_runs_have_lines_too() {
        assert_eq!(
            lines(&[(8, 5.0)]),
            [FittedLine { from_bytes: 0, latency_us: 5.0, gb_per_s: None }]
        );
        // A larger call that is a little faster: no line goes down.
        let flat = lines(&[(8, 5.0), (16, 4.9)]);
        assert_eq!((flat.len(), flat[0].gb_per_s), (1, None));
    }
}
