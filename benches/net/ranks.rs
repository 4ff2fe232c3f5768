//! How large groups come together: bootstrap, set-up, and the first calls, which make the connections.
//!
//! Four processes, each a host of its own (`NCCL_HOSTID`) with a quarter of the ranks as threads: so ranks meet by the
//! bootstrap over loopback as over any network, and what goes from process to process goes through the proxies. Times
//! are from the word to begin until the last rank is through:
//!
//! ```text
//! begin ── threads, bootstrap, edges with all, barrier ──► connected ── all_reduce of 8 B ──► first ── again ──► second
//! ```
//!
//! Each process says every two seconds how far it is, so that a group that does not come together leaves a word of it. A
//! group gets [`LIMIT`], and is then killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use ferroccl::config::Config;
use ferroccl::{Communicator, Device, ReduceOp, UniqueId};
use serde::{Deserialize, Serialize};

use crate::{Failure, Outcome};

const HOSTS: u32 = 4;
const RANKS: [u32; 4] = [8, 64, 256, 1024];
/// How long a group may take, all in all.
const LIMIT: Duration = Duration::from_secs(240);
/// Threads hold little on their stacks.
const STACK: usize = 512 << 10;

/// What a process says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Report {
    host: u32,
    /// Ranks of it that have come so far.
    connected: u32,
    first: u32,
    second: u32,
    /// When the last did, in milliseconds since it was told to begin.
    connected_ms: f64,
    first_ms: f64,
    second_ms: f64,
    descriptors: usize,
    threads: usize,
    mappings: usize,
    resident_mib: f64,
    virtual_gib: f64,
    /// Of the processor.
    cpu_s: f64,
    failed: Option<String>,
    /// It has got to the end.
    done: bool,
}

/// The table.
pub(crate) fn run(numbers: &[u32]) -> Outcome<()> {
    println!("\n## Groups of ranks: {HOSTS} processes, a host each\n");
    println!("Times in ms; the rest is of the process that has most of it.\n");
    println!(
        "| ranks | connected | first all-reduce of 8 B | second | descriptors | threads | mappings | resident MiB | virtual GiB | processor's time, all, s |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let numbers = if numbers.is_empty() { &RANKS[..] } else { numbers };
    for &ranks in numbers {
        if ranks == 0 || ranks % HOSTS != 0 {
            return Err(format!("{ranks} ranks: {HOSTS} processes have as many each").into());
        }
        row(ranks, &group(ranks)?);
    }
    Ok(())
}

fn row(ranks: u32, reports: &[Report]) {
    let most = |of: fn(&Report) -> f64| reports.iter().map(of).fold(0.0, f64::max);
    let count = |of: fn(&Report) -> u32| reports.iter().map(of).sum::<u32>();
    let time = |have: u32, ms: f64| {
        if have == ranks { format!("{ms:.0}") } else { format!("{have} of {ranks} ranks") }
    };
    println!(
        "| {ranks} | {} | {} | {} | {} | {} | {} | {:.0} | {:.1} | {:.1} |",
        time(count(|r| r.connected), most(|r| r.connected_ms)),
        time(count(|r| r.first), most(|r| r.first_ms) - most(|r| r.connected_ms)),
        time(count(|r| r.second), most(|r| r.second_ms) - most(|r| r.first_ms)),
        most(|r| r.descriptors as f64),
        most(|r| r.threads as f64),
        most(|r| r.mappings as f64),
        most(|r| r.resident_mib),
        most(|r| r.virtual_gib),
        reports.iter().map(|r| r.cpu_s).sum::<f64>(),
    );
    for Report { host, failed, .. } in reports {
        if let Some(why) = failed {
            println!("\n{ranks} ranks, host {host}: {why}\n");
        }
    }
}

/// One group: the last report of each process.
fn group(ranks: u32) -> Outcome<Vec<Report>> {
    let program = std::env::current_exe()?;
    let (say, said) = channel();
    let (mut children, mut inputs, mut id) = (Vec::new(), Vec::new(), String::new());
    for host in 0..HOSTS {
        let mut child = Command::new(&program)
            .args(["--bench", "--member", &format!("{host}/{HOSTS}/{ranks}")])
            .env("NCCL_HOSTID", format!("host{host}"))
            .env("NCCL_SOCKET_IFNAME", "=lo")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no pipe from a member")?);
        inputs.push(child.stdin.take().ok_or("no pipe to a member")?);
        children.push(Killed(child));
        let mut line = String::new();
        output.read_line(&mut line)?; // it is up; the first has the id
        id = if host == 0 { line } else { id };
        let say = say.clone();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if say.send(line).is_err() {
                    return;
                }
            }
        });
    }
    drop(say);
    for input in &mut inputs {
        input.write_all(id.as_bytes())?;
    }
    let begun = Instant::now();
    let mut reports = vec![Report::default(); HOSTS as usize];
    while reports.iter().any(|report| !report.done) {
        match said.recv_timeout(LIMIT.saturating_sub(begun.elapsed())) {
            Ok(line) => {
                let report: Report =
                    serde_json::from_str(&line).map_err(|e| format!("{line}: {e}"))?;
                let host = report.host as usize;
                *reports.get_mut(host).ok_or("a report of no host")? = report;
            }
            Err(why) => {
                let what = match why {
                    RecvTimeoutError::Timeout => format!("killed after {LIMIT:?}"),
                    RecvTimeoutError::Disconnected => "ended".to_owned(),
                };
                for report in reports.iter_mut().filter(|report| !report.done) {
                    report.failed.get_or_insert_with(|| what.clone());
                }
                break;
            }
        }
    }
    Ok(reports)
}

/// A process that does not outlive this one's interest in it.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill(); // already gone: nothing to do
        let _ = self.0.wait();
    }
}

/// How far the ranks of this process are.
#[derive(Default)]
struct Progress {
    /// Connected, first, second.
    counts: [AtomicU32; 3],
    last_ms: Mutex<[f64; 3]>,
    failed: Mutex<Option<String>>,
}

impl Progress {
    fn reached(&self, stage: usize, begun: Instant) -> Outcome<()> {
        let mut last = self.last_ms.lock().map_err(|_| "a rank panicked")?;
        last[stage] = begun.elapsed().as_secs_f64() * 1e3;
        // Read by a thread that needs no more than the number, or under the lock.
        self.counts[stage].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// One process; `place` is `HOST/HOSTS/RANKS`.
pub(crate) fn member(place: &str) -> Outcome<()> {
    let place: Vec<u32> = place.split('/').map(str::parse).collect::<Result<_, _>>()?;
    let &[host, hosts, ranks] = &place[..] else { return Err("HOST/HOSTS/RANKS".into()) };
    let id = if host == 0 {
        UniqueId::new(&Config::from_env()?.bootstrap())?.to_secret_hex()
    } else {
        host.to_string()
    };
    println!("{id}");
    let mut id = String::new();
    std::io::stdin().lock().read_line(&mut id)?;
    let id: UniqueId = id.trim().parse()?;
    let (begun, device, progress) = (Instant::now(), Device::cpu(), Progress::default());
    let each = ranks / hosts;
    let communicators = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let mut running = Vec::new();
        for rank in host * each..(host + 1) * each {
            let (device, progress, keep) = (&device, &progress, &communicators);
            let run = move || {
                let result = one(device, ranks, &id, rank, begun, progress);
                match (result, keep.lock(), progress.failed.lock()) {
                    (Ok(communicator), Ok(mut keep), _) => keep.push(communicator),
                    (Err(e), _, Ok(mut failed)) => {
                        failed.get_or_insert(format!("rank {rank}: {e}"));
                    }
                    _ => {}
                }
            };
            let builder = thread::Builder::new().stack_size(STACK);
            match builder.spawn_scoped(scope, run) {
                Ok(thread) => running.push(thread),
                Err(e) => return Err(format!("a thread for rank {rank}: {e}").into()),
            }
        }
        let mut told = Instant::now();
        while running.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(10));
            if told.elapsed() > Duration::from_secs(2) {
                told = Instant::now();
                tell(&progress, host, false)?;
            }
        }
        tell(&progress, host, true)
    })?;
    // Until nobody is interested any more: then it is killed. Leaving is not measured.
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// One rank's way.
fn one(
    device: &Device,
    ranks: u32,
    id: &UniqueId,
    rank: u32,
    begun: Instant,
    progress: &Progress,
) -> Outcome<Communicator> {
    let communicator = Communicator::init_rank(device, ranks, id, rank)?;
    progress.reached(0, begun)?;
    let stream = device.stream()?;
    for stage in [1, 2] {
        let data = device.upload(&[1.0f32, 2.0])?;
        communicator.all_reduce(&data, &data, ReduceOp::Sum, &stream)?;
        let sum = data.to_vec(&stream)?;
        if sum != [ranks as f32, 2.0 * ranks as f32] {
            return Err(Failure::from(format!("the sum is {sum:?}")));
        }
        progress.reached(stage, begun)?;
    }
    Ok(communicator)
}

fn tell(progress: &Progress, host: u32, done: bool) -> Outcome<()> {
    let last = *progress.last_ms.lock().map_err(|_| "a rank panicked")?;
    let counts = progress.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    let entries = |path: &str| fs::read_dir(path).map_or(0, |entries| entries.count());
    // utime and stime, in ticks of 10 ms, which are the 12th and 13th behind the name: proc(5).
    let stat = fs::read_to_string("/proc/self/stat")?;
    let ticks = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let report = Report {
        host,
        connected: counts[0],
        first: counts[1],
        second: counts[2],
        connected_ms: last[0],
        first_ms: last[1],
        second_ms: last[2],
        descriptors: entries("/proc/self/fd"),
        threads: entries("/proc/self/task"),
        mappings: fs::read_to_string("/proc/self/maps")?.lines().count(),
        resident_mib: kib("VmRSS:") / 1024.0,
        virtual_gib: kib("VmSize:") / (1 << 20) as f64,
        cpu_s: ticks.filter_map(|t| t.parse::<f64>().ok()).sum::<f64>() / 100.0,
        failed: progress.failed.lock().map_err(|_| "a rank panicked")?.clone(),
        done,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
