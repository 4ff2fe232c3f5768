//! Every way to do FerroCCL's calls, an algorithm and a protocol each, beside the one that a communicator chooses.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use clap::ValueEnum;
use ferroccl::{Collective, Communicator, Device};

use crate::ferro::{Group, Threads};
use crate::peer::{self, Peer, Request, Sample, Way};
use crate::{Options, Outcome, has_elements, machine, record};

/// How often all ways of a size are measured in a round, one after the other: the machine has states of its own, which last for milliseconds
/// or seconds.
const PASSES: usize = 5;
/// A way takes no part in larger sizes when it has taken so many times as long as the fastest.
const HOPELESS: f64 = 8.0;
/// What is chosen is right if it takes at most so many times as long as the fastest.
const RIGHT: f64 = 1.1;

/// Where ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Place {
    /// All in one thread.
    OneThread,
    /// A thread each.
    Threads,
    /// A process each.
    Processes,
}

impl Place {
    fn title(self) -> &'static str {
        match self {
            Place::OneThread => "Ranks of one thread",
            Place::Threads => "A thread a rank",
            Place::Processes => "A process a rank",
        }
    }
}

/// Ranks that wait for requests.
enum Ranks {
    OneThread(Group),
    Threads(Threads),
    Processes(Peer),
}

impl Ranks {
    fn start(place: Place, ranks: u32) -> Outcome<Ranks> {
        let device = Device::cpu();
        let all = || Communicator::init_all(&device, ranks);
        Ok(match place {
            Place::OneThread => Ranks::OneThread(Group::new(&device, all()?)?),
            Place::Threads => Ranks::Threads(Threads::start(&device, all()?)?),
            Place::Processes => Ranks::Processes(Peer::ferro(ranks, 1)?),
        })
    }

    fn measure(&mut self, request: Request) -> Outcome<Sample> {
        let sample = match self {
            Ranks::OneThread(group) => group.measure(request)?,
            Ranks::Threads(threads) => threads.measure(request)?,
            Ranks::Processes(processes) => processes.ask(request)?,
        };
        if sample.wrong > 0 {
            return Err(format!("{request}: {} wrong elements", sample.wrong).into());
        }
        Ok(sample)
    }
}

/// What disturbs makes a time longer, so it is not the median.
fn lower_quartile(times: &[f64]) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(times.len().saturating_sub(1) / 4).copied()
}

type Case = (Place, Collective, u32, u64);

/// What was measured.
#[derive(Debug, Default)]
struct Times {
    /// Microseconds, [`PASSES`] a round.
    ways: BTreeMap<Case, BTreeMap<Way, Vec<f64>>>,
    chosen: BTreeMap<Case, Way>,
    foreign: Vec<f64>,
}

/// Measures all ways, and prints the record of it.
pub(crate) fn compare(options: &Options) -> Outcome<()> {
    let mut times = Times::default();
    for round in 0..options.rounds {
        for &place in &options.ways {
            for &ranks in &options.ranks {
                measure(options, (place, ranks), round, &mut times)?;
            }
        }
        if let Some(path) = record::path(options) {
            std::fs::write(&path, times.markdown(options, round + 1)?)?;
            eprintln!("written: {}", path.display());
        }
    }
    println!("{}", times.markdown(options, options.rounds)?);
    Ok(())
}

/// One round at a place. Ranks are started anew, so that one placement in memory is not in every round.
fn measure(
    options: &Options,
    (place, ranks): (Place, u32),
    round: usize,
    times: &mut Times,
) -> Outcome<()> {
    let mut group = Ranks::start(place, ranks)?;
    for &collective in &options.collectives {
        let mut ways: Vec<Way> = Way::all().collect();
        let turn = round * ways.len() / options.rounds;
        ways.rotate_left(turn);
        let mut sizes = options.sizes.clone();
        sizes.sort_unstable();
        sizes.retain(|bytes| has_elements(collective, ranks, *bytes));
        for bytes in sizes {
            times.foreign.push(machine::wait_for_quiet(options.patience));
            let case = (place, collective, ranks, bytes);
            let name = peer::name(collective);
            eprint!("{}, {name}, {ranks} ranks, round {}, {bytes} B:", place.title(), round + 1);
            let request =
                Request { collective, ring: false, bytes, seconds: options.seconds, way: None };
            let own = group.measure(Request { seconds: 0.0, ..request })?;
            let chosen = own.way.ok_or("a rank did not say what it has chosen")?;
            let Ok(chosen) = chosen.parse() else {
                eprintln!(" by {chosen}, which are not compared with kernels");
                continue;
            };
            times.chosen.insert(case, chosen);
            if !ways.contains(&chosen) {
                ways.push(chosen);
            }
            let mut now = BTreeMap::<Way, Vec<f64>>::new();
            let seconds = options.seconds / PASSES as f64;
            for _ in 0..PASSES {
                let mut can = Vec::new();
                for way in ways {
                    let sample = group.measure(Request { way: Some(way), seconds, ..request })?;
                    if sample.error.is_none() {
                        can.push(way);
                        now.entry(way).or_default().push(sample.batch_us);
                    }
                }
                ways = can;
            }
            for (way, samples) in &now {
                times.ways.entry(case).or_default().entry(*way).or_default().extend(samples);
            }
            let of = |way: &Way| now.get(way).and_then(|samples| lower_quartile(samples));
            let least = now.keys().filter_map(of).fold(f64::INFINITY, f64::min);
            ways.retain(|way| of(way).is_some_and(|us| us < HOPELESS * least));
            let us = of(&chosen).unwrap_or(f64::NAN);
            eprintln!(" {chosen} {us:.2}, the least {least:.2}");
        }
    }
    Ok(())
}

impl Times {
    /// A way's time.
    fn us(&self, case: Case, way: Way) -> Option<f64> {
        lower_quartile(self.ways.get(&case)?.get(&way)?)
    }

    /// The fastest way of a case.
    fn fastest(&self, case: Case) -> Option<(Way, f64)> {
        let ways = self.ways.get(&case)?.keys();
        let times = ways.filter_map(|way| Some((*way, self.us(case, *way)?)));
        times.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn markdown(&self, options: &Options, rounds: usize) -> Result<String, fmt::Error> {
        let mut out = String::new();
        writeln!(out, "# Every algorithm and protocol, and what is chosen\n")?;
        record::machine(&mut out, &self.foreign)?;
        writeln!(
            out,
            "\nMade by `cargo bench --bench compare -- --ways ...`: f32, out of place, each call waited for, results compared exactly. Each way is asked for by the \
             settings of a communicator of its own, and a size is measured only where that is what runs. Microseconds, the lower quartile of {} \
             figures, of {rounds} rounds with {PASSES} passes over all ways; a figure is the median of several batches in {} s. Sizes are of a rank's largest buffer. A `-` was not measured: it cannot be done so, or \
             took more than {HOPELESS} times as long as the fastest at a smaller size.",
            rounds * PASSES,
            options.seconds / PASSES as f64
        )?;
        for &place in &options.ways {
            writeln!(out, "\n## {}\n", place.title())?;
            self.choices(&mut out, place)?;
            self.table(&mut out, options, place)?;
        }
        Ok(out)
    }

    /// Where what is chosen is not the fastest.
    fn choices(&self, out: &mut String, place: Place) -> fmt::Result {
        let mut slower = Vec::new();
        let cases = self.chosen.iter().filter(|(case, _)| case.0 == place);
        let mut all = 0;
        for (&case, &chosen) in cases {
            let (Some(us), Some((fastest, least))) = (self.us(case, chosen), self.fastest(case))
            else {
                continue;
            };
            all += 1;
            if us > RIGHT * least {
                slower.push((us / least, case, chosen, us, fastest, least));
            }
        }
        slower.sort_by(|a, b| b.0.total_cmp(&a.0));
        let right = all - slower.len();
        let part = 100.0 * right as f64 / (all as f64).max(1.0);
        writeln!(
            out,
            "What is chosen takes at most a tenth longer than the fastest in {right} of {all} cases, {part:.1} %."
        )?;
        if slower.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n| collective | ranks | size | chosen | µs | fastest | µs | × |")?;
        writeln!(out, "|---|---:|---:|---|---:|---|---:|---:|")?;
        for (factor, (_, collective, ranks, bytes), chosen, us, fastest, least) in slower {
            let (us, least) = (record::time(us), record::time(least));
            let size = record::size(bytes);
            let name = peer::name(collective);
            writeln!(
                out,
                "| {name} | {ranks} | {size} | {chosen} | {us} | {fastest} | {least} | {factor:.2} |"
            )?;
        }
        Ok(())
    }

    fn table(&self, out: &mut String, options: &Options, place: Place) -> fmt::Result {
        write!(out, "\n| collective | ranks | algorithm | protocol |")?;
        options.sizes.iter().try_for_each(|bytes| write!(out, " {} |", record::size(*bytes)))?;
        writeln!(out, "\n|---|---:|---|---|{}", "---:|".repeat(options.sizes.len()))?;
        for &collective in &options.collectives {
            for &ranks in &options.ranks {
                let of = |way, bytes| self.us((place, collective, ranks, bytes), way);
                for way in Way::all() {
                    let row: Vec<_> = options.sizes.iter().map(|bytes| of(way, *bytes)).collect();
                    if row.iter().all(Option::is_none) {
                        continue;
                    }
                    let (name, Way { algorithm, protocol }) = (peer::name(collective), way);
                    write!(out, "| {name} | {ranks} | {algorithm} | {protocol} |")?;
                    for us in row {
                        write!(out, " {} |", us.map_or_else(|| "-".to_owned(), record::time))?;
                    }
                    writeln!(out)?;
                }
            }
        }
        Ok(())
    }
}
