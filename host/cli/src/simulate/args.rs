//! The command line of `ferroccl simulate`.

use std::path::PathBuf;

use clap::Args;
use ferroccl::ProtocolId;
use ferroccl::graph::tuning::{Algorithm, Collective};
use ferroccl::topology::System;
use ferroccl_simulator::Fault;

use crate::perf::size::Bytes;
use crate::perf::values::one_of;
use crate::source::{ASSUME_HELP, Source};

const AFTER_HELP: &str = "\
All times are SIMULATED, in microseconds: the plans are the library's own (channels, rings and trees, the steps of its kernels), and \
what a step takes comes from the tuner's tables. Nothing is measured. busbw is what every link must have carried, 10^9 bytes a second; \
limit is the part of the time that the fullest link needs for its bytes; tuner is what the tuner predicts; finish is when the first rank \
has ended and the one in the middle; detail says how closely was simulated (docs/simulate.md).

SPEC of --fabric, with what is taken where a key is left out:
  rail:hosts=32,groups=32,oversubscription=1,switch-us=0.26       a port of each host on a leaf
  fat-tree:hosts=4,groups=32,oversubscription=1,switch-us=0.26    all ports of a host on a leaf
  dragonfly:hosts=2,routers=16,oversubscription=1,switch-us=0.26  all ports of a host on a router
  FILE                                                            JSON (docs/simulate.md)

FAULT is one of
  slow-link:host=0,port=0,part=0.5      a port's link has a part of its bandwidth
  dead-port:host=0,port=0               a port is not there when the communicator is made
  dead-node:host=0                      a host is not there; with --what-if it dies in a job
  straggler:rank=0,us=1000              a rank calls late
  background:links=0.1,load=0.5         other traffic on a part of the links between hosts

Examples:
  ferroccl simulate all_reduce --file dgx-a100.xml --nodes 16 --bytes 8..1G
  ferroccl simulate all_reduce --file dgx-a100.xml --nodes 3072 --bytes 1G --algo ring,tree
  ferroccl simulate all_reduce --file dgx-a100.xml --nodes 3072 --algo ring --skew 36
  ferroccl simulate all_reduce --file dgx-a100.xml --nodes 16 --fabric fat-tree:oversubscription=4
  ferroccl simulate all_reduce --file dgx-a100.xml --nodes 16 --bytes 64M --what-if
  ferroccl simulate all_reduce --file dgx-a100.xml --nodes 2 --bytes 1M --trace trace.json
  ferroccl simulate all_reduce --file dgx-a100.xml --nodes 2 -f 2 --fit times.json

Exit status: 0 when something was simulated, 1 when nothing was or a file is wrong, 2 for a bad command line.";

/// Simulate calls on a cluster that is described: hosts of a topology file, joined by a network
#[derive(Args, Clone, Debug)]
#[command(after_long_help = format!("{ASSUME_HELP}\n\n{AFTER_HELP}"), after_help = "Networks, faults and examples: --help")]
#[command(args_override_self = true)]
pub(crate) struct SimulateArgs {
    /// What is called
    #[arg(value_name = "COLLECTIVE", value_parser = one_of::<Collective>())]
    pub(super) collective: Collective,

    /// Sizes, separated by commas, or FROM..TO [default: 8..1G]
    #[arg(long, value_name = "SIZE,...", help_heading = "Sizes")]
    bytes: Option<String>,
    /// From each size of FROM..TO to the next: this many times as many
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value_t = 8, help_heading = "Sizes",
          value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,

    #[command(flatten)]
    pub(super) source: Source,
    /// Hosts, all alike
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Machine",
          value_parser = clap::value_parser!(u32).range(1..=1 << 17))]
    pub(super) nodes: u32,
    /// Ranks of all hosts together [default: one for each GPU]
    #[arg(long, value_name = "N", help_heading = "Machine",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks: Option<u32>,
    /// The network between hosts: rail, fat-tree or dragonfly with :KEY=VALUE,..., or a file
    #[arg(long, value_name = "SPEC", default_value = "rail", help_heading = "Machine")]
    pub(super) fabric: String,
    /// What is broken from the beginning; may be given several times
    #[arg(long = "fault", value_name = "FAULT", help_heading = "Machine")]
    pub(super) faults: Vec<Fault>,

    /// Algorithms [default: all of the collective]
    #[arg(long = "algo", value_name = "ALGORITHM,...", value_delimiter = ',', ignore_case = true, value_parser = one_of::<Algorithm>(),
          help_heading = "Calls")]
    pub(super) algorithms: Vec<Algorithm>,
    /// The protocol [default: the tuner's choice for each algorithm]
    #[arg(long = "proto", value_name = "PROTOCOL", ignore_case = true, value_parser = one_of::<ProtocolId>(), help_heading = "Calls")]
    pub(super) protocol: Option<ProtocolId>,
    /// The mean of the time by which ranks start late, each by an exponential distribution of its own, in microseconds
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = microseconds, help_heading = "Calls")]
    pub(super) skew: f64,
    /// What late starts and ways through the network are drawn from
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Calls")]
    pub(super) seed: u64,
    /// Steps at most that are simulated one by one; a call of more is simulated more coarsely [default: 20 million]
    #[arg(long, value_name = "N", help_heading = "Calls")]
    pub(super) steps: Option<u64>,

    /// What a fault costs, beside the same call without it; may be given several times [default: one of each]
    #[arg(long = "what-if", value_name = "FAULT", num_args = 0..=1, help_heading = "Results",
          conflicts_with_all = ["plot", "trace", "tuner", "fit", "finish"])]
    what_if: Option<Vec<Fault>>,
    /// Write the result as JSON to a file; to standard output, in place of the text, with -
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(super) json: Option<PathBuf>,
    /// Draw the times against the size, as SVG
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(super) plot: Option<PathBuf>,
    /// Write the steps of the last size's fastest algorithm for Perfetto, 200,000 at most
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(super) trace: Option<PathBuf>,
    /// Write the fastest algorithm of each size as the file that NCCL's example of a tuner plugin reads
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(super) tuner: Option<PathBuf>,
    /// Simulate every protocol, and sizes in the middle of FROM..TO, too, and write times fitted to all of that, as FERROCCL_TUNER_FILE
    /// reads them
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(super) fit: Option<PathBuf>,
    /// Write when each rank has ended, as CSV
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(super) finish: Option<PathBuf>,
}

fn microseconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if (0.0..=1e9).contains(&number) { Ok(number) } else { Err("0 to 1000000000".to_owned()) }
}

/// Sizes at most.
const MOST_SIZES: usize = 1000;

impl SimulateArgs {
    /// The sizes asked for, at least one.
    pub(super) fn sizes(&self) -> Result<Vec<u64>, String> {
        let text = match (self.collective, &self.bytes) {
            (Collective::Barrier, Some(_)) => return Err("a barrier has no size".to_owned()),
            (Collective::Barrier, None) => return Ok(vec![1]),
            (_, text) => text.as_deref().unwrap_or("8..1G"),
        };
        let Some((from, to)) = text.split_once("..") else {
            return text
                .split(',')
                .map(|size| size.parse::<Bytes>().map(|bytes| bytes.0))
                .collect();
        };
        let (from, to) = (from.parse::<Bytes>()?.0, to.parse::<Bytes>()?.0);
        if from > to || from == 0 {
            return Err(format!(
                "{text}: the first size is at least 1, and no larger than the last"
            ));
        }
        let mut sizes = vec![from];
        while let Some(next) = sizes.last().and_then(|size| size.checked_mul(self.factor)) {
            if next > to || sizes.len() >= MOST_SIZES {
                break;
            }
            sizes.push(next);
        }
        if sizes.last() != Some(&to) {
            sizes.push(to);
        }
        if self.fit.is_some() {
            // Lines go through these, too: between two sizes a time may have a step.
            let middle: Vec<u64> = sizes.windows(2).map(|pair| pair[0].midpoint(pair[1])).collect();
            sizes.extend(middle);
            sizes.sort_unstable();
            sizes.dedup();
        }
        Ok(sizes)
    }

    /// The host with as many of its GPUs as have ranks.
    pub(super) fn used(&self, system: &System) -> Result<System, String> {
        let gpus: Vec<_> = system.gpus().iter().map(|(id, _)| *id).collect();
        let Some(ranks) = self.ranks else { return Ok(system.clone()) };
        if !ranks.is_multiple_of(self.nodes) {
            return Err(format!("{ranks} ranks do not spread evenly over {} hosts", self.nodes));
        }
        let each = (ranks / self.nodes) as usize;
        if each > gpus.len() {
            return Err(format!("{each} ranks on a host that has {} GPUs", gpus.len()));
        }
        Ok(system.filtered(|id, _| gpus[..each].contains(&id) || !gpus.contains(&id)))
    }

    /// The faults whose cost is asked for; none where only times are.
    pub(super) fn what_if(&self) -> Vec<Fault> {
        match self.what_if.as_deref() {
            None => Vec::new(),
            Some([]) => {
                let host = self.nodes / 2;
                let mut all = vec![
                    Fault::SlowLink { host, port: 0, part: 0.5 },
                    Fault::DeadPort { host, port: 0 },
                    Fault::Straggler { rank: 0, late_us: 1000.0 },
                    Fault::Background { links: 0.1, load: 0.5 },
                ];
                // The last host leaves nobody.
                all.extend((self.nodes > 1).then_some(Fault::DeadNode { host }));
                all
            }
            Some(faults) => faults.to_vec(),
        }
    }
}
