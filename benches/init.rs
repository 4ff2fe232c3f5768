//! How long ranks on one host take to come together and to leave, and what memory they hold meanwhile.
//!
//! ```text
//! cargo bench --bench init -- 16 256 1024                  ranks as threads of one process
//! cargo bench --bench init -- --processes 256 256          shared by so many processes
//! cargo bench --bench init -- --runs 5 --in-a-row 1024     5 runs; each process drops its ranks one after the other
//! ```
//!
//! Each run has processes of its own. Each rank is a thread that calls `Communicator::init_rank`; then all are dropped, each by its
//! thread. Times are from the word to begin until the last rank is through; the processor's time and the memory are of all
//! processes together. All is on the CPU and over loopback.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Instant;
use std::{fs, thread};

use clap::Parser;
use ferroccl::config::Config;
use ferroccl::{Communicator, Device, UniqueId};

/// Whatever went wrong; this program reports it and ends.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T> = Result<T, Failure>;

/// Threads hold little on their stacks.
const STACK: usize = 512 << 10;

#[derive(Parser)]
struct Arguments {
    /// Ranks of the groups.
    ranks: Vec<u32>,
    /// Processes that share the ranks.
    #[arg(long, default_value_t = 1)]
    processes: u32,
    /// Runs of each group.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// A process drops its ranks one after the other.
    #[arg(long)]
    in_a_row: bool,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
    /// Which of the processes this is.
    #[arg(long, hide = true)]
    member: Option<u32>,
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    if let Some(member) = arguments.member {
        return serve(&arguments, member);
    }
    if !arguments.bench {
        println!("init: run as `cargo bench --bench init`"); // `cargo test` starts benches too
        return Ok(());
    }
    println!(
        "| ranks | processes | together, s | processor, s | memory, MiB | dropped, s | processor, s |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    let default = [16, 64, 256, 1024];
    let all = if arguments.ranks.is_empty() { &default[..] } else { &arguments.ranks };
    for ranks in all {
        for _ in 0..arguments.runs {
            run(&arguments, *ranks)?;
        }
    }
    Ok(())
}

/// A process that does not outlive this one's interest in it.
struct Member {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill(); // already gone: nothing to do
        let _ = self.child.wait();
    }
}

impl Member {
    fn tell(&mut self, what: &str) -> Outcome<()> {
        Ok(writeln!(self.input, "{what}")?)
    }

    fn hear(&mut self) -> Outcome<String> {
        Ok(self.output.next().ok_or("a process has ended")??)
    }
}

/// One group: its line of the table.
fn run(arguments: &Arguments, ranks: u32) -> Outcome<()> {
    let processes = arguments.processes.min(ranks);
    let program = std::env::current_exe()?;
    let start = |member: u32| -> Outcome<Member> {
        let mut command = Command::new(&program);
        command.arg(ranks.to_string()).args(["--processes", &processes.to_string()]);
        command.args(["--member", &member.to_string()]);
        command.args(arguments.in_a_row.then_some("--in-a-row"));
        command.env("NCCL_SOCKET_IFNAME", "=lo").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or("no pipe to a process")?;
        let output = child.stdout.take().ok_or("no pipe from a process")?;
        Ok(Member { child, input, output: BufReader::new(output).lines() })
    };
    let mut members: Vec<Member> = (0..processes).map(start).collect::<Outcome<_>>()?;
    // The first makes the id.
    let said: Vec<String> = members.iter_mut().map(Member::hear).collect::<Outcome<_>>()?;
    let mut stage = |word: &str| -> Outcome<(f64, f64)> {
        let begun = Instant::now();
        members.iter_mut().try_for_each(|member| member.tell(word))?;
        let mut processor = 0.0;
        for member in &mut members {
            processor += member.hear()?.parse::<f64>()?;
        }
        Ok((begun.elapsed().as_secs_f64(), processor))
    };
    let (together, of_together) = stage(&said[0])?;
    // What processes share is counted once.
    let kib = stage("memory")?.1;
    let (dropped, of_dropped) = stage("drop")?;
    println!(
        "| {ranks} | {processes} | {together:.3} | {of_together:.2} | {:.0} | {dropped:.3} | {of_dropped:.2} |",
        kib / 1024.0,
    );
    Ok(())
}

/// One process: makes the ranks that are its own when it is told the id, and drops them at the next word.
fn serve(arguments: &Arguments, member: u32) -> Outcome<()> {
    let ranks = *arguments.ranks.first().ok_or("no number of ranks")?;
    let first = |member: u32| {
        (u64::from(ranks) * u64::from(member) / u64::from(arguments.processes)) as u32
    };
    let id = match member {
        0 => UniqueId::new(&Config::from_env()?.bootstrap())?.to_secret_hex(),
        _ => String::new(),
    };
    println!("{id}");
    let begun = processor()?;
    let mut words = std::io::stdin().lines();
    let mut word = || -> Outcome<String> { Ok(words.next().ok_or("nobody is interested")??) };
    let id: UniqueId = word()?.parse()?;
    let mine = first(member)..first(member + 1);
    let threads = mine.len();
    let (made, drops) = (Arc::new(Barrier::new(threads + 1)), Arc::new(Barrier::new(threads + 1)));
    let mut running = Vec::with_capacity(threads);
    for rank in mine {
        let (made, drops, in_a_row) = (Arc::clone(&made), Arc::clone(&drops), arguments.in_a_row);
        let one = move || -> Result<Option<Communicator>, ferroccl::Error> {
            let communicator = Communicator::init_rank(&Device::cpu(), ranks, &id, rank);
            if communicator.is_err() {
                // Nobody waits for the others.
                eprintln!("rank {rank}: {:?}", communicator.as_ref().err());
                std::process::exit(1);
            }
            made.wait();
            drops.wait();
            let communicator = communicator?;
            Ok(in_a_row.then_some(communicator))
        };
        running.push(thread::Builder::new().stack_size(STACK).spawn(one)?);
    }
    made.wait();
    let made = processor()?;
    println!("{}", made - begun);
    word()?;
    println!("{}", memory()?);
    word()?;
    let begun = processor()?;
    drops.wait();
    let mut kept = Vec::new();
    for thread in running {
        kept.push(thread.join().map_err(|_| "a rank panicked")??);
    }
    drop(kept);
    println!("{}", processor()? - begun);
    word().map(drop).or(Ok(()))
}

/// This process's part of the memory that it has, in KiB: what several share is divided among them, proc(5).
fn memory() -> Outcome<f64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no Pss")?;
    Ok(line.split_whitespace().next().ok_or("no number")?.parse()?)
}

/// The processor's time of this process, in seconds; that in /proc/self/stat is in ticks, which are longer than a process of one rank
/// takes.
fn processor() -> Outcome<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the time to a place of ours.
    if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}
