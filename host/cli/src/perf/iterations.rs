//! `-I`, `--percentiles`: the time of each iteration by itself, and how these times are spread.
//!
//! They are measured after the others and apart from them, as each iteration is waited for before the next is begun. On GPUs their
//! time is between events in the ranks' streams.

use std::time::Instant;

use ferroccl::Result;

use super::args::PerfArgs;
use super::emulated::Emulator;
use super::gpus::Clock;
use super::team::Member;

/// How the times of iterations are spread, in microseconds of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Spread {
    /// The shortest.
    #[serde(rename = "min_us")]
    pub(crate) min: f64,
    /// Half of them take no longer.
    #[serde(rename = "p50_us")]
    pub(crate) p50: f64,
    /// 90 % of them take no longer.
    #[serde(rename = "p90_us")]
    pub(crate) p90: f64,
    /// 99 % of them take no longer; of fewer than 100 it is the longest.
    #[serde(rename = "p99_us")]
    pub(crate) p99: f64,
    /// The longest.
    #[serde(rename = "max_us")]
    pub(crate) max: f64,
    /// Their standard deviation in percent of their mean.
    #[serde(rename = "jitter_percent")]
    pub(crate) jitter: f64,
}

impl Spread {
    /// Of these times; `None` where there are none.
    pub(crate) fn of(mut times: Vec<f64>) -> Option<Spread> {
        times.sort_by(f64::total_cmp);
        let (&min, &max) = (times.first()?, times.last()?);
        let n = times.len();
        // By the nearest rank: the least time that so many of them do not exceed.
        let percentile = |percent: usize| times[(n * percent).div_ceil(100).clamp(1, n) - 1];
        let mean = times.iter().sum::<f64>() / n as f64;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / n as f64;
        let jitter = if mean > 0.0 { variance.sqrt() / mean * 100.0 } else { 0.0 };
        let [p50, p90, p99] = [50, 90, 99].map(percentile);
        Some(Spread { min, p50, p90, p99, max, jitter })
    }

    fn words(self) -> [u64; 6] {
        [self.min, self.p50, self.p90, self.p99, self.max, self.jitter].map(f64::to_bits)
    }

    /// Of all ranks: each figure as their times become one (`-a`).
    fn of_ranks(self, member: &Member, args: &PerfArgs) -> Result<Spread> {
        let all = member.all_gather(&self.words())?;
        let figure = |i: usize| {
            let ranks = all.iter().filter_map(|words| words.get(i)).map(|w| f64::from_bits(*w));
            args.average.of(&ranks.collect::<Vec<_>>())
        };
        let [min, p50, p90, p99, max, jitter] = std::array::from_fn(figure);
        Ok(Spread { min, p50, p90, p99, max, jitter })
    }
}

/// Times each iteration of `call`, and gives their spread; `None` where that was not asked for. Every thread calls it.
pub(crate) fn measure(
    member: &Member,
    args: &PerfArgs,
    emulator: Option<&Emulator>,
    mut call: impl FnMut() -> Result<()>,
) -> Result<Option<Spread>> {
    if !args.per_iter_timing() {
        return Ok(None);
    }
    let mut times = Vec::with_capacity(args.iters as usize);
    for _ in 0..args.iters {
        if let Some(emulator) = emulator {
            emulator.begin(member)?;
        }
        let clock = Clock::start(member)?;
        let start = Instant::now();
        (0..args.agg_iters).try_for_each(|_| call())?;
        clock.stop(member)?;
        member.synchronize()?;
        let seconds = clock.seconds(member)?.unwrap_or_else(|| start.elapsed().as_secs_f64());
        let seconds = emulator.and_then(Emulator::simulated).unwrap_or(seconds);
        times.push(seconds * 1e6 / f64::from(args.agg_iters));
    }
    let times = times.split_off(times.len().min(args.per_iter_skip as usize));
    // Every thread has as many times.
    Spread::of(times).map(|spread| spread.of_ranks(member, args)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let of = |times: &[f64]| Spread::of(times.to_vec());
        assert_eq!(of(&[]), None);
        let one = of(&[3.0]).unwrap();
        assert_eq!(one, Spread { min: 3.0, p50: 3.0, p90: 3.0, p99: 3.0, max: 3.0, jitter: 0.0 });
        // 1 to 200, in no order.
        let many: Vec<f64> = (0..200).map(|i| f64::from(i * 77 % 200 + 1)).collect();
        let many = of(&many).unwrap();
        assert_eq!((many.min, many.p50, many.p90), (1.0, 100.0, 180.0));
        assert_eq!((many.p99, many.max), (198.0, 200.0));
        // Two of a mean of 2, each 1 apart.
        assert_eq!(of(&[1.0, 3.0]).unwrap().jitter, 50.0);
        assert_eq!(of(&[0.0, 0.0]).unwrap().jitter, 0.0);
        // Of few the longest is the 99th.
        assert_eq!(of(&[1.0, 2.0, 9.0]).unwrap().p99, 9.0);
    }
}
