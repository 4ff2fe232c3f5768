//! Ranks as processes over shared memory: right results, and nothing left when one is killed.
//!
//! The test binary starts itself: with `FERROCCL_TEST_RANK` set, `member` is one rank and the rest does nothing.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use ferroccl::config::Config;
use ferroccl::{
    Algorithm, ChannelPeers, CommConfig, Communicator, Device, DeviceBuffer, DeviceChannels,
    DeviceCommConfig, Error, Grid, ProtocolId, ReduceOp, ShrinkMode, UniqueId, Window,
};

use crate::again::again;
use crate::pipes::{self, PIPES, Pipes};
use crate::puts::{NONE, PUTS, Puts, expected, relays, result_words};
use crate::random::Random;

fn start(id: &UniqueId, rank: u32, n: u32, job: &str) -> Child {
    command(id, rank, n, job).spawn().unwrap()
}

fn command(id: &UniqueId, rank: u32, n: u32, job: &str) -> Command {
    let mut command = again(module_path!(), "member");
    command
        .env("FERROCCL_TEST_RANK", rank.to_string())
        .env("FERROCCL_TEST_RANKS", n.to_string())
        .env("FERROCCL_TEST_JOB", job)
        .env("FERROCCL_UNIQUE_ID", id.to_secret_hex())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

/// One rank, when this process was started as one.
#[test]
fn member() {
    let Ok(rank) = std::env::var("FERROCCL_TEST_RANK") else { return };
    let get = |name: &str| std::env::var(name).unwrap();
    let (rank, n): (u32, u32) =
        (rank.parse().unwrap(), get("FERROCCL_TEST_RANKS").parse().unwrap());
    let id: UniqueId = get("FERROCCL_UNIQUE_ID").parse().unwrap();
    match get("FERROCCL_TEST_JOB").as_str() {
        "sums" => sums(&id, rank, n),
        "for_ever" => for_ever(&id, rank, n),
        "mismatch" => mismatch(&id, rank, n),
        "goes_on" => goes_on(&id, rank, n),
        "windows" => windows(&id, rank, n),
        "puts" => puts(&id, rank, n),
        "pipes" => primitives(&id, rank, n),
        "direct_for_ever" => direct_for_ever(&id, rank, n),
        other => panic!("no job {other}"),
    }
}

fn sums(id: &UniqueId, rank: u32, n: u32) {
    let device = Device::cpu();
    let stream = device.stream().unwrap();
    let communicator = Communicator::init_rank(&device, n, id, rank).unwrap();
    // Every rank draws the same numbers, so that each knows all inputs.
    let mut random = Random(u64::from(n));
    for call in 0..200 {
        let count = [1, 7, 1000, 40_000, 300_000][random.below(5)];
        let shift = random.below(100) as i64;
        let input: Vec<i64> =
            (0..count as i64).map(|i| (i + shift) * i64::from(rank + 1)).collect();
        let want: Vec<i64> =
            (0..count as i64).map(|i| (i + shift) * i64::from(n * (n + 1) / 2)).collect();
        let send = device.upload(&input).unwrap();
        let recv = if call % 2 == 0 { send.clone() } else { device.alloc(count).unwrap() };
        communicator.all_reduce(&send, &recv, ReduceOp::Sum, &stream).unwrap();
        assert!(recv.to_vec(&stream).unwrap() == want, "rank {rank} call {call} count {count}");
    }
}

/// A communicator whose calls are direct, and a registered buffer.
fn registered(
    id: &UniqueId,
    rank: u32,
    n: u32,
    len: usize,
) -> (Communicator, DeviceBuffer<u32>, Window) {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.algorithm = Some(Algorithm::Direct);
    let comm = Communicator::init_rank_with(&device, n, id, rank, &config).unwrap();
    let buffer = device.alloc_shared::<u32>(len).unwrap();
    let window = comm.register_window(&buffer).unwrap();
    assert!(window.is_direct(), "{:?}", window.why_not_direct());
    (comm, buffer, window)
}

/// Sums and all-gathers in memory that all processes have mapped.
fn windows(id: &UniqueId, rank: u32, n: u32) {
    let (comm, buffer, window) = registered(id, rank, n, 50_000);
    let stream = comm.device().stream().unwrap();
    let mut random = Random(u64::from(n));
    for call in 0..100 {
        let at = random.below(20);
        let part = buffer.slice(at..at + [1, 7, 1000, 40_000][random.below(4)]);
        part.copy_from(&vec![rank + call; part.len()], &stream).unwrap();
        comm.all_reduce(&part, &part, ReduceOp::Sum, &stream).unwrap();
        let want = n * (n - 1) / 2 + n * call;
        assert!(part.to_vec(&stream).unwrap().iter().all(|sum| *sum == want), "call {call}");
        let each = random.below(10_000);
        let all = buffer.slice(at..at + n as usize * each);
        let block = |rank: u32| rank as usize * each..(rank as usize + 1) * each;
        all.slice(block(rank)).copy_from(&vec![rank ^ call; each], &stream).unwrap();
        comm.all_gather(&all.slice(block(rank)), &all, &stream).unwrap();
        for peer in 0..n {
            let got = all.slice(block(peer)).to_vec(&stream).unwrap();
            assert!(got.iter().all(|x| *x == peer ^ call), "call {call}, rank {peer}");
        }
    }
    // All ranks let go between the same two calls.
    drop(window);
    comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
    stream.synchronize().unwrap();
}

/// A kernel that puts to all ranks, on hosts of two processes each, and of what is left.
fn puts(id: &UniqueId, rank: u32, n: u32) {
    let (device, mut config) = (Device::cpu(), CommConfig::default());
    config.host_id = Some(format!("host {}", rank / 2));
    config.timeout = Some(std::time::Duration::from_secs(60));
    let comm = Communicator::init_rank_with(&device, n, id, rank, &config).unwrap();
    let (blocks, count, rounds, ranks) = (2_u32, 5000_usize, 5_usize, n as usize);
    let nodes: Vec<usize> = (0..ranks).map(|rank| rank / 2).collect();
    let part = blocks as usize * count;
    let lens = [ranks * part, ranks * part, part, blocks as usize * (ranks + 1)];
    let buffers = lens.map(|len| device.alloc_shared::<u64>(len).unwrap());
    let windows = buffers.each_ref().map(|buffer| comm.register_window(buffer).unwrap());
    let words = result_words(n.into(), count as u64) as usize;
    let results = device.alloc_shared::<u64>(blocks as usize * rounds * words).unwrap();
    let table = device.upload(&relays(rank as usize, &nodes)).unwrap();
    let mut wanted = DeviceCommConfig::default();
    (wanted.barriers, wanted.signals, wanted.requests) = (2 * blocks, 3 * blocks, 8);
    let of_kernels = comm.device_comm(&wanted).unwrap();
    let stream = device.stream().unwrap();
    let [source, inbox, give, mail] = windows.each_ref().map(|window| window.value().unwrap());
    let argument = Puts {
        comm: of_kernels.value(),
        source,
        inbox,
        give,
        mail,
        relays: table.address(),
        results: results.address(),
        count: count as u64,
        rounds: rounds as u64,
        mistake: NONE,
    };
    for _ in 0..3 {
        // SAFETY: the buffers have what the kernel reads and writes, and outlive the stream's work.
        unsafe { of_kernels.launch(&PUTS, Grid { blocks, threads: 32 }, &argument, &stream) }
            .unwrap();
        let want = expected(rank.into(), &nodes, (blocks.into(), count as u64, rounds as u64));
        assert!(results.to_vec(&stream).unwrap() == want, "rank {rank}");
    }
}

/// A kernel in which blocks use primitives, with ranks that are all connected; the sums of all are what is looked at.
fn primitives(id: &UniqueId, rank: u32, n: u32) {
    let device = Device::cpu();
    let comm = Communicator::init_rank(&device, n, id, rank).unwrap();
    let (blocks, count, rounds) = (2_u64, 3000_u64, 4_u64);
    let mut wanted = DeviceCommConfig::default();
    wanted.channels = DeviceChannels::new(blocks as u32, ChannelPeers::All);
    let of_kernels = comm.device_comm(&wanted).unwrap();
    let (stream, each) = (device.stream().unwrap(), pipes::results_of(n.into(), count));
    let own = device.alloc::<u32>((blocks * u64::from(n) * count) as usize).unwrap();
    let results = device.alloc::<u32>((blocks * rounds * each) as usize).unwrap();
    for first in [0, rounds, 2 * rounds] {
        let (comm, given, results_at) = (of_kernels.value(), own.address(), results.address());
        let argument = Pipes { comm, given, results: results_at, count, rounds, first, all: 1 };
        let grid = Grid { blocks: blocks as u32, threads: 32 };
        // SAFETY: the buffers have what the kernel reads and writes, and outlive the stream's work.
        unsafe { of_kernels.launch(&PIPES, grid, &argument, &stream) }.unwrap();
        let got = results.to_vec(&stream).unwrap();
        for (number, got) in (0..).zip(got.chunks(each as usize)) {
            let (block, round) = (number / rounds, first + number % rounds);
            for (i, sum) in (0..).zip(&got[..(u64::from(n) * count) as usize]) {
                let given = |r| pipes::given(r, block, round, i);
                let want = (0..n.into()).map(given).fold(0, u32::wrapping_add);
                assert_eq!(*sum, want, "rank {rank}, block {block}, round {round}, element {i}");
            }
        }
    }
}

/// Makes direct calls until one fails.
fn direct_for_ever(id: &UniqueId, rank: u32, n: u32) {
    let (comm, buffer, _window) = registered(id, rank, n, 100_000);
    let stream = comm.device().stream().unwrap();
    println!("\nrank {rank} runs");
    loop {
        let error = comm
            .all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)
            .and_then(|()| stream.synchronize());
        if let Err(error) = error {
            println!("\nrank {rank} ends: {error}");
            return;
        }
    }
}

fn for_ever(id: &UniqueId, rank: u32, n: u32) {
    let device = Device::cpu();
    let stream = device.stream().unwrap();
    let communicator = Communicator::init_rank(&device, n, id, rank).unwrap();
    let buffer = device.alloc::<f32>(100_000).unwrap();
    println!("\nrank {rank} runs");
    loop {
        let error = communicator
            .all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)
            .and_then(|()| stream.synchronize());
        if let Err(error) = error {
            println!("\nrank {rank} ends: {error}");
            return;
        }
    }
}

/// Makes calls until one fails; then shrinks to who is left. A line of standard input says without whom: numbers, `blamed`, or
/// `end`.
fn goes_on(id: &UniqueId, old: u32, n: u32) {
    let device = Device::cpu();
    let mut comm = Communicator::init_rank(&device, n, id, old).unwrap();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let exclude: Vec<u32> = match line.as_str() {
            "end" => return,
            "run" => Vec::new(),
            "blamed" => comm.async_error().unwrap_err().blamed_ranks(),
            list => list.split(',').map(|rank| rank.parse().unwrap()).collect(),
        };
        if line != "run" {
            match comm.shrink(&exclude, ShrinkMode::Abort) {
                Ok(shrunk) => comm = shrunk,
                Err(error) => {
                    println!("\nshrink fails: {error}");
                    continue;
                }
            }
        }
        let (rank, size) = (comm.rank(), comm.world_size());
        // Streams and buffers of before may be used on.
        let stream = device.stream().unwrap();
        let sum = device.upload(&[1_u64 << old; 5000]).unwrap();
        comm.all_reduce(&sum, &sum, ReduceOp::Sum, &stream).unwrap();
        println!("\nruns as {rank} of {size}, sum {:x}", sum.to_vec(&stream).unwrap()[4999]);
        let buffer = device.alloc::<f32>(100_000).unwrap();
        let error = loop {
            let call = comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
            if let Err(error) = call.and_then(|()| stream.synchronize()) {
                break error;
            }
        };
        println!("\nends: {error}");
    }
}

fn mismatch(id: &UniqueId, rank: u32, n: u32) {
    let device = Device::cpu();
    let stream = device.stream().unwrap();
    let communicator = Communicator::init_rank(&device, n, id, rank).unwrap();
    let buffer = device.alloc::<f32>(100 + rank as usize / (n as usize - 1)).unwrap();
    let called = communicator.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
    // Who comes late finds that the others have ended it.
    let error = called.err().unwrap_or_else(|| {
        let error = stream.synchronize().unwrap_err();
        assert!(matches!(error, Error::Kernel(_)), "{error}");
        error
    });
    println!("\nrank {rank} ends: {error}");
}

fn group(n: u32, job: &str) -> Vec<Child> {
    let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
    (0..n).map(|rank| start(&id, rank, n, job)).collect()
}

fn all_sums(n: u32) {
    all_end_well(n, "sums");
}

fn all_end_well(n: u32, job: &str) {
    for (rank, child) in group(n, job).into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "rank {rank}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
}

#[test]
fn two_processes_agree() {
    all_sums(2);
}

#[test]
fn four_processes_agree() {
    all_sums(4);
}

#[test]
fn eight_processes_agree() {
    all_sums(8);
}

#[test]
fn processes_work_on_each_others_buffers() {
    for n in [2, 5] {
        all_end_well(n, "windows");
    }
}

#[test]
fn processes_put_to_each_other() {
    for n in [2, 3, 4] {
        all_end_well(n, "puts");
    }
}

#[test]
fn kernels_of_processes_have_primitives() {
    for n in [2, 3] {
        all_end_well(n, "pipes");
    }
}

fn shared_memory_names() -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir("/dev/shm")
        .map(|dir| dir.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.retain(|name: &String| name.contains("ferroccl"));
    names
}

#[test]
fn a_killed_process_is_an_error_elsewhere_and_leaves_nothing() {
    is_noticed("for_ever");
}

#[test]
fn a_killed_process_is_an_error_where_its_buffers_are_mapped() {
    is_noticed("direct_for_ever");
}

/// Kills each process of a job, in turn.
fn is_noticed(job: &str) {
    for victim in 0..4usize {
        let mut group = group(4, job);
        let mut lines: Vec<_> =
            group.iter_mut().map(|c| BufReader::new(c.stdout.take().unwrap()).lines()).collect();
        let mut find = |rank: usize, what: &str| {
            lines[rank].by_ref().map_while(Result::ok).find(|line| line.contains(what))
        };
        for rank in 0..4 {
            assert!(find(rank, "runs").is_some(), "rank {rank} does not start");
        }
        // SIGKILL, in the middle of whatever it does.
        group[victim].kill().unwrap();
        for rank in (0..4).filter(|&r| r != victim) {
            let end = find(rank, "ends: ")
                .unwrap_or_else(|| panic!("rank {rank} does not say how it ends"));
            assert!(end.contains(&format!("lost rank {victim}")), "victim {victim}: {end}");
        }
        for mut child in group {
            child.wait().unwrap();
        }
        assert_eq!(shared_memory_names(), Vec::<String>::new());
    }
}

/// The processes of a job that goes on: what they are told, and what they say.
struct Survivors(Vec<(Child, Box<dyn Iterator<Item = String>>)>);

impl Survivors {
    fn start(n: u32, variables: impl Fn(u32) -> Variables) -> Self {
        let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
        let start = |rank| {
            let mut child = command(&id, rank, n, "goes_on")
                .stdin(Stdio::piped())
                .env("FERROCCL_HEARTBEAT_TIMEOUT", "15")
                .envs(variables(rank))
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let lines: Box<dyn Iterator<Item = String>> =
                Box::new(lines.map_while(std::io::Result::ok));
            (child, lines)
        };
        Survivors((0..n).map(start).collect())
    }

    fn tell(&mut self, who: &[usize], line: &str) {
        for &rank in who {
            writeln!(self.0[rank].0.stdin.as_mut().unwrap(), "{line}").unwrap();
        }
    }

    /// The next line of each that begins so.
    fn hear(&mut self, who: &[usize], start: &str) -> Vec<String> {
        let next = |&rank: &usize| {
            let line = self.0[rank].1.find(|line| line.starts_with(start));
            line.unwrap_or_else(|| panic!("process {rank} does not say {start:?}"))
        };
        who.iter().map(next).collect()
    }

    fn kill(&mut self, who: &[usize]) {
        who.iter().for_each(|&rank| self.0[rank].0.kill().unwrap());
    }

    /// They work, as ranks of a group of their own.
    fn work(&mut self, who: &[usize]) {
        let (size, sum) = (who.len(), who.iter().map(|rank| 1_u64 << rank).sum::<u64>());
        for (rank, line) in self.hear(who, "runs as ").into_iter().enumerate() {
            assert_eq!(line, format!("runs as {rank} of {size}, sum {sum:x}"));
        }
    }

    fn end(mut self, who: &[usize]) {
        self.kill(who); // they are in the middle of calls
        for (mut child, _) in self.0 {
            child.wait().unwrap();
        }
        assert_eq!(shared_memory_names(), Vec::<String>::new());
    }
}

type Variables = Vec<(&'static str, String)>;

/// One host over shared memory, and as many hosts as ranks, over sockets.
fn layouts() -> [fn(u32) -> Variables; 2] {
    [
        |_| Vec::new(),
        |rank| vec![("NCCL_HOSTID", format!("host {rank}")), ("NCCL_NET", "Socket".into())],
    ]
}

#[test]
fn who_is_left_goes_on() {
    for variables in layouts() {
        // The rank 0 of all others is where a group meets first.
        for victim in [0, 2] {
            let mut job = Survivors::start(4, variables);
            job.tell(&[0, 1, 2, 3], "run");
            job.work(&[0, 1, 2, 3]);
            job.kill(&[victim]);
            let left: Vec<_> = (0..4).filter(|&rank| rank != victim).collect();
            for end in job.hear(&left, "ends: ") {
                assert!(end.contains(&format!("lost rank {victim}")), "{end}");
            }
            job.tell(&left, "blamed");
            job.work(&left);
            // And once more, in the new group's numbers.
            let (second, left) = (left[1], [left[0], left[2]]);
            job.kill(&[second]);
            job.hear(&left, "ends: ");
            job.tell(&left, "blamed");
            job.work(&left);
            job.end(&left);
        }
    }
}

/// Two at once, of which one may be blamed; and one in the middle of a shrink, which can be tried again.
#[test]
fn a_shrink_that_fails_names_who_is_missing_and_can_be_repeated() {
    for variables in layouts() {
        let all = |rank| {
            let mut variables = variables(rank);
            variables.push(("FERROCCL_BOOTSTRAP_TIMEOUT", "6".to_owned()));
            variables
        };
        let mut job = Survivors::start(5, all);
        job.tell(&[0, 1, 2, 3, 4], "run");
        job.work(&[0, 1, 2, 3, 4]);
        job.kill(&[1, 3]);
        let left = [0, 2, 4];
        job.hear(&left, "ends: ");
        // Rank 3 is dead, too.
        job.tell(&left, "1");
        for line in job.hear(&left, "shrink fails: ") {
            assert!(line.contains("rank 3") && line.contains("did not come"), "{line}");
        }
        job.tell(&left, "1,3");
        job.work(&left);
        // Rank 1 of these dies while the others wait for it.
        job.kill(&[0]);
        job.hear(&[2, 4], "ends: ");
        job.tell(&[4], "0");
        std::thread::sleep(std::time::Duration::from_millis(300));
        job.kill(&[2]);
        let lines = job.hear(&[4], "shrink fails: ");
        assert!(lines[0].contains("rank 1 is not there"), "{lines:?}");
        job.tell(&[4], "0,1");
        job.work(&[4]);
        job.end(&[4]);
    }
}

#[test]
fn another_count_in_another_process_is_an_error_everywhere() {
    for child in group(3, "mismatch") {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("count 100") && text.contains("count 101"),
            "{text}"
        );
    }
}

/// Threads of one process by `init_rank`, over P2P, and over shared memory where P2P is off.
#[test]
fn threads_come_together_by_id() {
    for p2p in [true, false] {
        for protocol in ProtocolId::ALL {
            let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
            let mut config = CommConfig::default();
            config.protocol = Some(*protocol);
            config.p2p = Some(p2p);
            std::thread::scope(|threads| {
                for rank in 0..5 {
                    let config = &config;
                    threads.spawn(move || {
                        let device = Device::cpu();
                        let communicator =
                            Communicator::init_rank_with(&device, 5, &id, rank, config).unwrap();
                        let stream = device.stream().unwrap();
                        let buffer = device.upload(&vec![rank; 12_345]).unwrap();
                        communicator.all_reduce(&buffer, &buffer, ReduceOp::Max, &stream).unwrap();
                        assert_eq!(buffer.to_vec(&stream).unwrap(), [4; 12_345]);
                    });
                }
            });
        }
    }
}

#[test]
fn settings_that_differ_are_named() {
    let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
    let errors: Vec<String> = std::thread::scope(|threads| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                threads.spawn(move || {
                    let mut config = CommConfig::default();
                    config.slots = Some(4 + rank);
                    Communicator::init_rank_with(&Device::cpu(), 2, &id, rank, &config)
                        .unwrap_err()
                        .to_string()
                })
            })
            .collect();
        ranks.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for text in errors {
        assert!(text.contains("slots (FERROCCL_SLOTS)"), "{text}");
    }
}
