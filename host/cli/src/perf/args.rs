//! The command line of `ferroccl perf`: nccl-tests' flags, and a few of our own.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory};
use ferroccl::device::abi::MAX_CHANNELS;
use ferroccl::runtime::ptx::MachineModel;
use ferroccl::{Algorithm, DataType, ProtocolId, ReduceOp};

use super::accepted::Accepted;
use super::operation::{Operation, Shape};
use super::size::Bytes;
use super::sweep::{Step, Sweep};
use super::values::{
    Average, Blocking, Choice, PtxSchedule, Root, RuntimeKind, on_or_off, one_of, some_of,
};

const AFTER_HELP: &str = "\
Ranks = processes x threads x ranks per thread. Processes come from a launcher (ferroccl run, mpirun, \
srun, torchrun); without one there is a single process.

SIZE is a number of bytes, or of K, M, G, T (powers of 1024), of a rank's largest buffer: where it has a \
block for each of n ranks (all_gather, reduce_scatter, alltoall, gather, scatter, hypercube), blocks are \
multiples of 16 bytes, and the table has the size that is left. Bandwidths are in 10^9 bytes per second: algbw \
is size over time, busbw what every link must have carried: for all_reduce 2(n-1)/n x algbw, where there are \
blocks (n-1)/n x algbw, else algbw. A hypercube counts n-1 blocks. sendrecv sends to the next rank and receives \
from the one before; it and alltoall cannot be done in place. algo, proto and nch are the algorithm, the protocol and \
the channels that ran; p2p is messages, which have no algorithm. NCCL_ALGO and NCCL_PROTO are filters.

Examples:
  ferroccl perf all_reduce -b 8 -e 64M -f 2 -g 4       4 ranks, 8 B to 64 MiB
  ferroccl perf all_reduce -t 4 -o all -d all -e 1M    4 threads, every operator and type
  ferroccl perf all_reduce -g 4 --proto LL --json -    one protocol, results as JSON
  ferroccl perf reduce_scatter -g 8 --algo bruck       one algorithm
  ferroccl perf broadcast -g 4 -r all -e 1M            every rank as root
  ferroccl perf all_gather -g 4 -b 1M -e 64M -R 2      on registered buffers
  ferroccl perf all_reduce -g 4 -e 1M --runtime ptx    the GPU's kernels, emulated and counted
  ferroccl perf all_reduce -g 4 -e 64K --runtime ptx --model h100-nvlink   in simulated time
  ferroccl perf all_reduce -g 4 -e 1G --runtime cuda   4 ranks on the GPUs there are, or the one
  ferroccl perf all_reduce -g 4 -b 8 -f 2 --percentiles --report page.html   curves, for a browser
  ferroccl perf all_reduce -g 4 -b 8 -f 2 --compare before.json   beside an earlier run, or nccl-tests'
  ferroccl run -n 4 -- ferroccl perf all_reduce        4 processes

Exit status: 0 when all went well, 1 when an element was wrong or a call failed, 2 for a bad command \
line.

On GPUs the time is the GPU's own, between events in the ranks' streams; with -G calls are captured in a graph, \
which is what is then timed.

Buffers that are registered with -R 2 (windows) may be worked on directly; then algo says Direct, or NVLS where a switch sums and spreads.";

/// Measure a collective and check its results, as nccl-tests does
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP, after_help = "Examples and units: --help")]
#[command(args_override_self = true)] // of a flag given twice the last counts, as with getopt
pub(crate) struct PerfArgs {
    /// What to measure
    #[arg(value_name = "COLLECTIVE", value_parser = one_of::<Operation>())]
    pub(crate) collective: Operation,

    /// Threads of each process
    #[arg(short = 't', long = "nthreads", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Ranks")]
    pub(crate) threads: u32,
    /// Ranks of each thread (in nccl-tests: its GPUs)
    #[arg(short = 'g', long = "ngpus", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Ranks")]
    pub(crate) ranks_per_thread: u32,
    /// What the ranks run on
    #[arg(long, value_enum, default_value_t = RuntimeKind::Cpu, help_heading = "Ranks")]
    pub(crate) runtime: RuntimeKind,

    /// How the emulator of --runtime ptx runs [default: lockstep; threads where ranks are in several
    /// threads or processes]
    #[arg(long, value_name = "SCHEDULE", help_heading = "PTX emulator")]
    pub(crate) ptx_schedule: Option<PtxSchedule>,
    /// Draw the schedule from this seed instead of letting warps take turns
    #[arg(long, value_name = "N", help_heading = "PTX emulator")]
    pub(crate) seed: Option<u64>,
    /// Run in virtual time, on the GPUs of this machine: times are simulated then. Ranks take its GPUs in turn. A name, or a
    /// file (`ferroccl ptx models`)
    #[arg(long, value_name = "MACHINE", value_parser = crate::model::find, help_heading = "PTX emulator")]
    pub(crate) model: Option<MachineModel>,
    /// Say where the simulated time of each call goes: the chain of waits that ends last
    #[arg(long, requires = "model", help_heading = "PTX emulator")]
    pub(crate) critical_path: bool,
    /// Look for data races, on a memory system as unhelpful as allowed; the seed is 0 unless given
    #[arg(long, help_heading = "PTX emulator")]
    pub(crate) checks: bool,

    /// Smallest size [default: 32M, or the largest if that is smaller]
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", help_heading = "Sizes")]
    pub(crate) min_bytes: Option<Bytes>,
    /// Largest size [default: 32M, or the smallest if that is larger]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", help_heading = "Sizes")]
    pub(crate) max_bytes: Option<Bytes>,
    /// From each size to the next: this many bytes more [default: 1M]
    #[arg(
        short = 'i',
        long = "stepbytes",
        value_name = "SIZE",
        conflicts_with = "step_factor",
        help_heading = "Sizes"
    )]
    pub(crate) step_bytes: Option<Bytes>,
    /// From each size to the next: this many times as many
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", help_heading = "Sizes")]
    pub(crate) step_factor: Option<u64>,

    /// Reduction
    #[arg(short, long, default_value = "sum", ignore_case = true, help_heading = "Operation",
          value_parser = some_of::<ReduceOp>())]
    pub(crate) op: Choice<ReduceOp>,
    /// Type of the elements (i8, f16, bf16, f32 and the like are understood too)
    #[arg(short, long = "datatype", value_name = "TYPE", default_value = "float", ignore_case = true,
          help_heading = "Operation", value_parser = some_of::<DataType>())]
    pub(crate) datatype: Choice<DataType>,
    /// Root rank, or all, of collectives that have one: broadcast, reduce, gather, scatter
    #[arg(short, long, default_value = "0", help_heading = "Operation")]
    pub(crate) root: Root,
    /// Algorithm of every call, instead of the one chosen by size; one that cannot be had is an error
    #[arg(long = "algo", value_name = "ALGORITHM", ignore_case = true, help_heading = "Operation",
          value_parser = one_of::<Algorithm>())]
    pub(crate) algorithm: Option<Algorithm>,
    /// Protocol of every call, instead of the one chosen by size; one that cannot be had is an error
    #[arg(long = "proto", value_name = "PROTOCOL", ignore_case = true, help_heading = "Operation",
          value_parser = one_of::<ProtocolId>())]
    pub(crate) protocol: Option<ProtocolId>,
    /// Channels (blocks) of every call, instead of the number chosen by size
    #[arg(long, value_name = "N", help_heading = "Operation",
          value_parser = clap::value_parser!(u32).range(1..=MAX_CHANNELS as i64))]
    pub(crate) channels: Option<u32>,

    /// Timed iterations of each size; 1 in the emulator
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20,
          default_value_if("runtime", "ptx", "1"),
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Measuring")]
    pub(crate) iters: u32,
    /// Calls in each iteration; times are of one call
    #[arg(short = 'm', long = "agg_iters", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Measuring")]
    pub(crate) agg_iters: u32,
    /// Untimed iterations before those of each size; 0 in the emulator
    #[arg(
        short,
        long = "warmup_iters",
        value_name = "N",
        default_value_t = 5,
        default_value_if("runtime", "ptx", "0"),
        help_heading = "Measuring"
    )]
    pub(crate) warmup_iters: u32,
    /// Which ranks' times count: 0 rank 0's, 1 their mean, 2 the shortest, 3 the longest
    #[arg(
        short = 'a',
        long,
        value_name = "0-3",
        default_value = "1",
        help_heading = "Measuring",
        hide_possible_values = true
    )]
    pub(crate) average: Average,
    /// What to wait for: 0 nothing, 1 each call and then all ranks, 2 each call, 3 each iteration (-m calls) and then, untimed, all ranks
    #[arg(
        short = 'z',
        long,
        value_name = "0-3",
        default_value = "0",
        help_heading = "Measuring",
        hide_possible_values = true
    )]
    pub(crate) blocking: Blocking,
    /// Whether to report the time a thread spends to enqueue a call, instead of the call's
    #[arg(short = 'C', long = "report_cputime", value_name = "0|1", default_value = "0",
          help_heading = "Measuring", value_parser = on_or_off(), action = ArgAction::Set)]
    pub(crate) report_cputime: bool,
    /// Register buffers: 0 and 1 not, as a rank's own memory needs no registration; 2 with all ranks, as windows
    #[arg(short = 'R', long = "local_register", value_name = "0|1|2", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=2), help_heading = "Measuring")]
    pub(crate) local_register: u8,
    /// Capture the calls in a graph, and launch that so often; 0 does without (--runtime cuda)
    #[arg(
        short = 'G',
        long = "cudagraph",
        value_name = "N",
        default_value_t = 0,
        help_heading = "Measuring"
    )]
    pub(crate) cudagraph: u32,
    /// Whether the ranks of a process join through a unique id, each in a thread of its own; ranks of
    /// several processes always do
    #[arg(short, long = "parallel_init", value_name = "0|1", default_value = "0",
          help_heading = "Measuring", value_parser = on_or_off(), action = ArgAction::Set)]
    pub(crate) parallel_init: bool,

    /// Time each iteration by itself, too, each waited for before the next: columns for the shortest, the longest, the 99th percentile,
    /// and the standard deviation in percent of the mean
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0|1", default_value = "0", help_heading = "Measuring",
          value_parser = on_or_off(), action = ArgAction::Set)]
    pub(crate) per_iter: bool,
    /// The same as -I 1
    #[arg(long, help_heading = "Measuring")]
    pub(crate) percentiles: bool,
    /// Iterations that -I leaves out at the beginning
    #[arg(
        short = 'K',
        long = "per_iter_skip",
        value_name = "N",
        default_value_t = 0,
        help_heading = "Measuring"
    )]
    pub(crate) per_iter_skip: u32,
    /// How often all is measured; 0 goes on until it is interrupted
    #[arg(
        short = 'N',
        long = "run_cycles",
        value_name = "N",
        default_value_t = 1,
        help_heading = "Measuring"
    )]
    pub(crate) run_cycles: u32,
    /// Seconds in which a call must make progress, or it fails; 0 is the usual limit (FERROCCL_TIMEOUT)
    #[arg(
        short = 'T',
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        help_heading = "Measuring"
    )]
    pub(crate) timeout: u32,
    /// Element at which buffers begin, so that they are not aligned
    #[arg(
        short = 'u',
        long,
        value_name = "ELEMENT",
        default_value_t = 0,
        help_heading = "Measuring"
    )]
    pub(crate) unalign: u32,

    /// Measure the protocols of other crates beside the library's at two sizes (-b, -e), by one algorithm, and print their figures for the
    /// tuner, instead of all else
    #[arg(long, help_heading = "Measuring")]
    pub(crate) fit: bool,

    /// Checked iterations of each size; 0 checks nothing
    #[arg(short, long, value_name = "N", default_value_t = 1, help_heading = "Results")]
    pub(crate) check: u32,
    /// Write the results as JSON to a file; to standard output, in place of the table, with -. A measurement that fails or is
    /// interrupted leaves the rows that it has, marked as incomplete; without any, the file stays as it was
    #[arg(short = 'J', long, alias = "output_file", value_name = "FILE", help_heading = "Results")]
    pub(crate) json: Option<PathBuf>,
    /// Write the results as lines of comma-separated values to a file, with a line of names
    #[arg(short = 'F', long, value_name = "FILE", help_heading = "Results")]
    pub(crate) csv: Option<PathBuf>,
    /// Write a page with curves of time and bandwidth to a file, for any browser: it needs no other file
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(crate) report: Option<PathBuf>,
    /// Results to compare with: what --json wrote, or the output of nccl-tests, as text or as JSON. Shown beneath the table, and in
    /// the page of --report
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub(crate) compare: Option<PathBuf>,
    /// Whether each line says when it was measured
    #[arg(short = 'S', long = "report_timestamps", value_name = "0|1", default_value = "0",
          help_heading = "Results", value_parser = on_or_off(), action = ArgAction::Set)]
    pub(crate) report_timestamps: bool,
    /// Whether to say how much memory the communicators and the measurement take
    #[arg(short = 'M', long = "memory", value_name = "0|1", default_value = "0", help_heading = "Results",
          value_parser = on_or_off(), action = ArgAction::Set)]
    pub(crate) memory: bool,

    #[command(flatten)]
    pub(crate) accepted: Accepted,
}

impl PerfArgs {
    /// Whether buffers are windows.
    pub(crate) fn windows(&self) -> bool {
        self.local_register == 2
    }

    /// Whether each iteration is timed by itself.
    pub(crate) fn per_iter_timing(&self) -> bool {
        self.per_iter || self.percentiles
    }

    /// Whether anything is written besides the table.
    pub(crate) fn writes_files(&self) -> bool {
        self.json.is_some() || self.csv.is_some() || self.report.is_some()
    }

    /// Why these flags do not go together, if that is so.
    pub(crate) fn conflict(&self) -> Option<&'static str> {
        match self {
            args if args.per_iter_timing() && args.cudagraph > 0 => {
                Some("-I times calls one by one; those of a graph (-G) are launched at once")
            }
            args if args.blocking == Blocking::Iteration && args.cudagraph > 0 => {
                Some("-z 3 waits for each iteration; those of a graph (-G) are launched at once")
            }
            args if args.per_iter_skip > 0 && !args.per_iter_timing() => {
                Some("-K leaves out iterations of -I")
            }
            args if args.per_iter_skip > 0 && args.per_iter_skip >= args.iters => {
                Some("-K leaves no iteration (-n)")
            }
            args if args.unalign > 0 && args.windows() => {
                Some("-u moves buffers within their memory; windows (-R 2) are whole allocations")
            }
            _ => None,
        }
    }

    /// The sizes to measure; a range that makes no sense ends the program as clap's own errors do.
    pub(crate) fn sweep(&self) -> Sweep {
        self.try_sweep().unwrap_or_else(|reason| {
            crate::Cli::command().error(ErrorKind::ValueValidation, reason).exit()
        })
    }

    /// The reductions to measure; nothing, once, where data only move.
    pub(crate) fn redops(&self) -> Vec<Option<ReduceOp>> {
        if self.collective.reduces() {
            self.op.0.iter().copied().map(Some).collect()
        } else {
            vec![None]
        }
    }

    /// The roots to measure; nothing, once, where there is none.
    pub(crate) fn roots(&self, ranks: u32) -> Vec<Option<u32>> {
        match self.root {
            _ if !self.collective.has_root() => vec![None],
            Root::Rank(root) => vec![Some(root)],
            Root::All => (0..ranks).map(Some).collect(),
        }
    }

    /// The sizes to measure as this collective has them; none comes twice.
    pub(crate) fn shapes(
        &self,
        sweep: Sweep,
        data_type: DataType,
        ranks: u32,
    ) -> impl Iterator<Item = Shape> {
        let (operation, mut last) = (self.collective, None);
        sweep
            .counts(data_type.size())
            .map(move |count| operation.shape(count, data_type, ranks))
            .filter(move |&shape| last.replace(shape) != Some(shape))
    }

    fn try_sweep(&self) -> Result<Sweep, String> {
        let usual = Bytes::mebi(32);
        let min = self.min_bytes.unwrap_or_else(|| self.max_bytes.map_or(usual, |e| e.min(usual)));
        let max = self.max_bytes.unwrap_or_else(|| min.max(usual));
        let step = match self.step_factor {
            Some(factor) => Step::Times(factor),
            None => Step::Add(self.step_bytes.unwrap_or(Bytes::mebi(1))),
        };
        Sweep::new(min, max, step)
    }

    /// The file that JSON goes to.
    pub(crate) fn json_file(&self) -> Option<&Path> {
        self.json.as_deref().filter(|_| !self.json_on_stdout())
    }

    /// Whether JSON takes the table's place on standard output.
    pub(crate) fn json_on_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(|path| path.as_os_str() == "-")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn parse(line: &str) -> Result<PerfArgs, clap::Error> {
        let words = ["ferroccl", "perf", "all_reduce"].into_iter().chain(line.split_whitespace());
        match crate::Cli::try_parse_from(words)?.command {
            crate::Command::Perf(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        crate::Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_nccl_tests() {
        let args = parse("").unwrap();
        assert_eq!((args.threads, args.ranks_per_thread), (1, 1));
        assert_eq!((args.iters, args.agg_iters, args.warmup_iters, args.check), (20, 1, 5, 1));
        assert_eq!(args.op, Choice(vec![ReduceOp::Sum]));
        assert_eq!(args.datatype, Choice(vec![DataType::F32]));
        assert_eq!((args.root, args.average), (Root::Rank(0), Average::Mean));
        assert!(args.blocking == Blocking::Nothing && !args.report_cputime && !args.parallel_init);
        assert_eq!((args.protocol, args.channels, args.json.clone()), (None, None, None));
        assert_eq!(args.algorithm, None);
        let Sweep { min, max, step } = args.try_sweep().unwrap();
        assert_eq!((min, max, step), (Bytes::mebi(32), Bytes::mebi(32), Step::Add(Bytes::mebi(1))));
    }

    #[test]
    fn the_emulator_is_not_asked_for_the_same_twenty_times() {
        let args = parse("--runtime ptx").unwrap();
        assert_eq!((args.iters, args.warmup_iters, args.check), (1, 0, 1));
        let args =
            parse("--runtime ptx -n 3 -w 2 --seed 7 --checks --ptx-schedule lockstep").unwrap();
        assert_eq!((args.iters, args.warmup_iters, args.seed, args.checks), (3, 2, Some(7), true));
        assert_eq!(args.ptx_schedule, Some(PtxSchedule::Lockstep));
    }

    #[test]
    fn roots_operators_and_sizes_are_the_collectives() {
        let of = |collective: &str, line: &str| {
            let words = ["ferroccl", "perf", collective].into_iter();
            let words = words.chain(line.split_whitespace());
            match crate::Cli::try_parse_from(words).unwrap().command {
                crate::Command::Perf(args) => *args,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(of("all_reduce", "-r all").roots(3), [None]);
        assert_eq!(of("reduce", "-r all").roots(3), [Some(0), Some(1), Some(2)]);
        assert_eq!(of("scatter", "-r 2").roots(3), [Some(2)]);
        assert_eq!(of("broadcast", "-o all").redops(), [None]);
        assert_eq!(of("reduce", "-o all").redops().len(), ReduceOp::ALL.len());
        let args = of("all_gather", "-b 8 -e 256 -f 2");
        let shapes = args.shapes(args.try_sweep().unwrap(), DataType::F32, 4);
        let sizes: Vec<usize> = shapes.map(|shape| shape.largest() * 4).collect();
        assert_eq!(sizes, [0, 64, 128, 256]);
    }

    #[test]
    fn one_end_of_the_sizes_is_enough() {
        let ends = |line: &str| {
            let Sweep { min, max, .. } = parse(line).unwrap().try_sweep().unwrap();
            (min.0, max.0)
        };
        assert_eq!(ends("-b 8"), (8, 32 << 20));
        assert_eq!(ends("-b 64M"), (64 << 20, 64 << 20));
        assert_eq!(ends("-e 1K"), (1024, 1024));
        assert_eq!(ends("-e 1G"), (32 << 20, 1 << 30));
        let error = parse("-b 8 -e 4").unwrap().try_sweep().unwrap_err();
        assert!(error.contains("-b 8") && error.contains("-e 4"), "{error}");
    }

    #[test]
    fn long_names_and_aliases() {
        let args = parse(
            "--nthreads 2 --ngpus 3 --minbytes 1 --maxbytes 2 --stepbytes 1 --iters 4 --agg_iters 5 \
             --warmup_iters 6 --check 7 --op ALL --datatype BF16 --root all --blocking 1 \
             --parallel_init 1 --report_cputime 1 --average 3 --algo onEshot --proto ll128 --channels 8 --json -",
        )
        .unwrap();
        assert_eq!((args.threads, args.ranks_per_thread, args.iters), (2, 3, 4));
        assert_eq!((args.agg_iters, args.warmup_iters, args.check), (5, 6, 7));
        assert_eq!(args.op.0, ReduceOp::ALL);
        assert_eq!(args.datatype.0, [DataType::Bf16]);
        assert_eq!((args.root, args.average), (Root::All, Average::Max));
        assert!(
            args.blocking == Blocking::CallAndRanks
                && args.report_cputime
                && args.parallel_init
                && args.json_on_stdout()
        );
        assert_eq!((args.protocol, args.channels), (Some(ProtocolId::Ll128), Some(8)));
        assert_eq!(args.algorithm, Some(Algorithm::OneShot));
    }
}
