//! All-reduce over two hosts against OpenMPI over TCP, on the same switch.
//!
//! As in the bench `compare`: all contestants are up at once and asleep, and are asked one after the other at each size.
//! FerroCCL is started a process a rank, like MPI. Within a host both use shared memory. OpenMPI stands with the best of
//! its settings, chosen size by size.

use std::process::Command;

use ferroccl::Collective;

use crate::hosts::Hosts;
use crate::peer::{self, Peer, Request, Sample};
use crate::stats::median;
use crate::{Outcome, hosts, machine};

const HOSTS: usize = 2;
const ROUNDS: usize = 3;
const SIZES: [u64; 4] = [8, 64 << 10, 1 << 20, 64 << 20];
/// Of a figure.
const SECONDS: f64 = 0.2;
/// How long to wait at each size for others to be quiet.
const PATIENCE: f64 = 1.0;

const YIELD: [&str; 3] = ["--mca", "mpi_yield_when_idle", "1"];
const RING: [&str; 6] =
    ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"];

/// What OpenMPI is tried with: its own choice waits by spinning.
const MPI_SETTINGS: [(&str, &[&[&str]]); 3] =
    [("default", &[]), ("yielding", &[&YIELD]), ("yielding, ring", &[&YIELD, &RING])];

/// All tables.
pub(crate) fn run() -> Outcome<()> {
    let program = peer::OPEN_MPI.compile()?;
    let hosts = hosts(HOSTS)?;
    for each in [1, 2] {
        compare(&hosts, &program, each)?;
    }
    Ok(())
}

fn compare(hosts: &Hosts, program: &str, each: usize) -> Outcome<()> {
    let shell = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("net-remote-shell");
    hosts.remote_shell(&shell)?;
    let mut ours: Vec<Vec<Sample>> = vec![Vec::new(); SIZES.len()];
    let mut theirs = vec![ours.clone(); MPI_SETTINGS.len()];
    let mut busy = Vec::new();
    for round in 0..ROUNDS {
        let mut mpi = MPI_SETTINGS
            .iter()
            .map(|(name, setting)| {
                let command = mpirun(hosts, &shell, (program, each), setting);
                Peer::mpi_by(format!("mpirun, {name}"), command)
            })
            .collect::<Outcome<Vec<_>>>()?;
        let program = std::env::current_exe()?;
        let rank = |rank| hosts.command(rank / each, &program);
        let mut ferro = Peer::ferro_by((0..HOSTS * each).map(rank).collect())?;
        for (at, &bytes) in SIZES.iter().enumerate() {
            busy.push(machine::wait_for_quiet(PATIENCE));
            let request = Request {
                collective: Collective::AllReduce,
                ring: false,
                bytes,
                seconds: SECONDS,
                way: None,
            };
            let turns = MPI_SETTINGS.len() + 1;
            eprint!("{each} each, round {}, {bytes} B:", round + 1);
            for turn in 0..turns {
                let who = (turn + round) % turns;
                let (peer, to) = match theirs.get_mut(who) {
                    Some(theirs) => (&mut mpi[who], theirs),
                    None => (&mut ferro, &mut ours),
                };
                let sample = peer.ask(request)?;
                if sample.wrong > 0 {
                    return Err(format!("{} wrong elements at {bytes} B", sample.wrong).into());
                }
                eprint!(" {who}: {:.0}", sample.stream_us());
                to[at].push(sample);
            }
            eprintln!();
        }
    }
    println!("\n## All-reduce over {HOSTS} hosts, a rank a process, {each} on each\n");
    println!(
        "{ROUNDS} rounds; µs, medians of the rounds'; × is OpenMPI's time by FerroCCL's, within a round."
    );
    println!("Others had {:.0} % of the cores.\n", median(&mut busy) * 100.0);
    println!(
        "| B | in a row: FerroCCL | OpenMPI | × | each waited for: FerroCCL | × | one at a time: FerroCCL | OpenMPI | × | OpenMPI's best |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|");
    for (at, bytes) in SIZES.iter().enumerate() {
        row(*bytes, &ours[at], &theirs.iter().map(|t| &t[at][..]).collect::<Vec<_>>());
    }
    Ok(())
}

fn mpirun(
    hosts: &Hosts,
    shell: &std::path::Path,
    (program, each): (&str, usize),
    setting: &[&[&str]],
) -> Command {
    let mut command = hosts.command(0, "mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    command.args(["--mca", "plm_rsh_agent"]).arg(shell);
    command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader"]);
    command.args(["--mca", "btl_tcp_if_include", crate::hosts::INTERFACE]);
    let names: Vec<_> = (0..HOSTS).map(|h| format!("{}:{each}", hosts.ipv4(h))).collect();
    command.args(["-n", &(HOSTS * each).to_string(), "--host", &names.join(",")]);
    command.args(setting.iter().copied().flatten()).args([program, "--serve"]);
    command
}

/// A figure of a sample.
type Figure = fn(&Sample) -> f64;

fn row(bytes: u64, ours: &[Sample], theirs: &[&[Sample]]) {
    let middle =
        |samples: &[Sample], of: Figure| median(&mut samples.iter().map(of).collect::<Vec<_>>());
    let factor = |of_ours: Figure, of_theirs: Figure, theirs: &[Sample]| {
        let pairs = ours.iter().zip(theirs);
        median(&mut pairs.map(|(our, their)| of_theirs(their) / of_ours(our)).collect::<Vec<_>>())
    };
    let best = |of: Figure| {
        let times = theirs.iter().map(|samples| middle(samples, of)).enumerate();
        times.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(at, _)| at)
    };
    let batch: Figure = |sample| sample.batch_us;
    let each: Figure = |sample| sample.each_us;
    let (in_row, alone) = (best(batch), best(each));
    println!(
        "| {bytes} | {:.1} | {:.1} | {:.2} | {:.1} | {:.2} | {:.1} | {:.1} | {:.2} | {}; {} |",
        middle(ours, Sample::stream_us),
        middle(theirs[in_row], batch),
        factor(Sample::stream_us, batch, theirs[in_row]),
        middle(ours, batch),
        factor(batch, batch, theirs[in_row]),
        middle(ours, each),
        middle(theirs[alone], each),
        factor(each, each, theirs[alone]),
        MPI_SETTINGS[in_row].0,
        MPI_SETTINGS[alone].0,
    );
}
