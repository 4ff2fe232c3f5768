//! Ranks in processes of their own, which are this test program, started again: [`member`] is then its body, in a test of
//! that name, in the program's root.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use ferroccl::runtime::ptx::PtxRuntime;
use ferroccl::{CommConfig, Communicator, Device, ReduceOp, UniqueId};

use crate::again::only;
use crate::random::Random;

/// The variable that says how many calls `sums` makes.
pub(crate) const CALLS: &str = "FERROCCL_TEST_CALLS";

/// The variable that says what the ranks run on: `ptx` is the emulator.
pub(crate) const RUNTIME: &str = "FERROCCL_TEST_RUNTIME";

/// Ranks, and what they say.
pub(crate) struct Job {
    pub(crate) ranks: Vec<(Child, Lines<BufReader<ChildStdout>>)>,
}

impl Job {
    /// `n` ranks, each by a command of its own for this program, that do this work.
    pub(crate) fn start(
        n: usize,
        id: &UniqueId,
        work: &str,
        env: &[(&str, &str)],
        command: impl Fn(usize) -> Command,
    ) -> Job {
        let ranks = (0..n).map(|rank| {
            let mut child = command(rank)
                .args(only("", "member"))
                .env("FERROCCL_TEST_RANK", rank.to_string())
                .env("FERROCCL_TEST_RANKS", n.to_string())
                .env("FERROCCL_TEST_JOB", work)
                .env("FERROCCL_UNIQUE_ID", id.to_secret_hex())
                .envs(env.iter().copied())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            (child, lines)
        });
        Job { ranks: ranks.collect() }
    }

    /// The next line of a rank that begins so, without that.
    pub(crate) fn told(&mut self, rank: usize, word: &str) -> String {
        let lines = self.ranks[rank].1.by_ref().map_while(Result::ok);
        let found = lines.map(|line| line.strip_prefix(word).map(str::to_owned)).find_map(|l| l);
        found.unwrap_or_else(|| panic!("rank {rank} does not say {word:?}"))
    }

    pub(crate) fn all_told(&mut self, word: &str) -> Vec<String> {
        (0..self.ranks.len()).map(|rank| self.told(rank, word)).collect()
    }

    pub(crate) fn end(self) {
        for (rank, (mut child, _)) in self.ranks.into_iter().enumerate() {
            assert!(child.wait().unwrap().success(), "rank {rank}");
        }
    }
}

/// One rank, when this process was started as one.
pub(crate) fn member() {
    let Ok(rank) = std::env::var("FERROCCL_TEST_RANK") else { return };
    if std::env::var_os("NCCL_DEBUG").is_some() {
        ferroccl::log::init_from_env().unwrap();
    }
    let get = |name: &str| std::env::var(name).unwrap();
    let (rank, n): (u32, u32) =
        (rank.parse().unwrap(), get("FERROCCL_TEST_RANKS").parse().unwrap());
    let id: UniqueId = get("FERROCCL_UNIQUE_ID").parse().unwrap();
    let mut config = CommConfig::default();
    config.protocol = std::env::var("FERROCCL_TEST_PROTOCOL").ok().map(|p| p.parse().unwrap());
    let device = match std::env::var(RUNTIME).as_deref() {
        Ok("ptx") => Device::new(Arc::new(PtxRuntime::on_threads(1))),
        _ => Device::cpu(),
    };
    let communicator = Communicator::init_rank_with(&device, n, &id, rank, &config).unwrap();
    match get("FERROCCL_TEST_JOB").as_str() {
        "sums" => sums(&communicator),
        "every_collective" => every_collective(&communicator),
        "large" => large(&communicator),
        "timed" => timed(&communicator),
        "for_ever" => for_ever(&communicator),
        "messages" => messages(&communicator),
        other => panic!("no job {other}"),
    }
}

fn sums(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let (rank, n) = (communicator.rank(), communicator.world_size());
    let calls: usize = std::env::var(CALLS).unwrap().parse().unwrap();
    // Every rank draws the same numbers, so that each knows all inputs.
    let mut random = Random(u64::from(n));
    for call in 0..calls {
        let count = random.pick(&[1usize, 7, 1000, 40_001]);
        let shift = random.below(100) as i32;
        let values = |factor: u32| -> Vec<i32> {
            (0..count as i32).map(|i| (i + shift) * factor as i32).collect()
        };
        let send = device.upload(&values(rank + 1)).unwrap();
        let recv = if call % 2 == 0 { send.clone() } else { device.alloc(count).unwrap() };
        communicator.all_reduce(&send, &recv, ReduceOp::Sum, &stream).unwrap();
        let want = values(n * (n + 1) / 2);
        assert!(recv.to_vec(&stream).unwrap() == want, "rank {rank} call {call} count {count}");
    }
    println!("\nended well");
}

/// Each collective, with odd sizes and every root.
fn every_collective(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let (rank, n) = (communicator.rank(), communicator.world_size());
    let value = |rank: u32, i: usize| (i as i32 % 1000 + 1) * (rank + 1) as i32;
    let of = |rank: u32, len: usize| (0..len).map(|i| value(rank, i)).collect::<Vec<i32>>();
    let sums = |len: usize| -> Vec<i32> {
        (0..len).map(|i| (0..n).map(|rank| value(rank, i)).sum()).collect()
    };
    let blocks = n as usize;
    // In the emulator a word takes as long as a thousand do elsewhere.
    let counts: &[usize] =
        if std::env::var_os(RUNTIME).is_some() { &[257] } else { &[1, 257, 20_011] };
    for &count in counts {
        let up = |len: usize| device.upload(&of(rank, len)).unwrap();
        let down = |buffer: &ferroccl::DeviceBuffer<i32>, want: &[i32], what: &str| {
            let found = buffer.to_vec(&stream).unwrap();
            let wrong = found.iter().zip(want).position(|(found, want)| found != want);
            assert_eq!((found.len(), wrong), (want.len(), None), "rank {rank}: {what} of {count}");
        };
        let out = |len: usize| device.alloc::<i32>(len).unwrap();
        let to = out(count);
        communicator.all_reduce(&up(count), &to, ReduceOp::Sum, &stream).unwrap();
        down(&to, &sums(count), "all-reduce");
        let to = out(count * blocks);
        communicator.all_gather(&up(count), &to, &stream).unwrap();
        let all: Vec<i32> = (0..n).flat_map(|rank| of(rank, count)).collect();
        down(&to, &all, "all-gather");
        let to = out(count);
        communicator.reduce_scatter(&up(count * blocks), &to, ReduceOp::Sum, &stream).unwrap();
        let at = rank as usize * count;
        down(&to, &sums(count * blocks)[at..at + count], "reduce-scatter");
        let to = out(count * blocks);
        communicator.all_to_all(&up(count * blocks), &to, &stream).unwrap();
        let mine = |from: u32| of(from, count * blocks)[at..at + count].to_vec();
        down(&to, &(0..n).flat_map(mine).collect::<Vec<_>>(), "all-to-all");
        for root in 0..n {
            let to = up(count);
            communicator.broadcast(&to, &to, root, &stream).unwrap();
            down(&to, &of(root, count), "broadcast");
            let to = up(count);
            communicator.reduce(&to, &to, ReduceOp::Sum, root, &stream).unwrap();
            if rank == root {
                down(&to, &sums(count), "reduce");
            }
        }
    }
    stream.synchronize().unwrap();
    println!("\nended well");
}

/// One all-reduce of so many MiB as [`CALLS`] says.
fn large(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let count = std::env::var(CALLS).unwrap().parse::<usize>().unwrap() << 18;
    let buffer = device.upload(&vec![communicator.rank(); count]).unwrap();
    communicator.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
    let n = communicator.world_size();
    assert!(buffer.to_vec(&stream).unwrap() == vec![n * (n - 1) / 2; count]);
    println!("\nended well");
}

/// The milliseconds of each of five all-reduces of so many MiB as [`CALLS`] says, behind one that is not measured.
fn timed(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let count = std::env::var(CALLS).unwrap().parse::<usize>().unwrap() << 18;
    let buffer = device.upload(&vec![1f32; count]).unwrap();
    for round in 0..6 {
        communicator.barrier(&stream).unwrap();
        stream.synchronize().unwrap();
        let begin = std::time::Instant::now();
        communicator.all_reduce(&buffer, &buffer, ReduceOp::Max, &stream).unwrap();
        stream.synchronize().unwrap();
        if round > 0 {
            println!("\ntook {}", begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    println!("\nended well");
}

/// So many messages of 1 MiB as [`CALLS`] says from rank 0 to the second rank of the second half; each waits for a word back.
/// The other ranks leave at once.
fn messages(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let calls: i64 = std::env::var(CALLS).unwrap().parse().unwrap();
    let (rank, to) = (communicator.rank(), communicator.world_size() / 2 + 1);
    for call in 0..calls {
        let values: Vec<i64> = (0..1 << 17).map(|i| i * 3 + call).collect();
        if rank == 0 {
            let (large, word) = (device.upload(&values).unwrap(), device.alloc::<i64>(1).unwrap());
            communicator.send(&large, to, &stream).unwrap();
            communicator.recv(&word, to, &stream).unwrap();
            assert_eq!(word.to_vec(&stream).unwrap(), [call]);
        } else if rank == to {
            let (large, word) =
                (device.alloc::<i64>(1 << 17).unwrap(), device.upload(&[call]).unwrap());
            communicator.recv(&large, 0, &stream).unwrap();
            assert!(large.to_vec(&stream).unwrap() == values, "message {call}");
            communicator.send(&word, 0, &stream).unwrap();
            stream.synchronize().unwrap();
        } else {
            break;
        }
        if call == 0 {
            println!("\nruns");
        }
    }
    println!("\nended well");
}

fn for_ever(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(100_000).unwrap();
    for call in 0u64.. {
        let done = communicator.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
        if let Err(error) = done.and_then(|()| stream.synchronize()) {
            println!("\nended {error}");
            return;
        }
        if call == 3 {
            println!("\nruns");
        }
    }
}
