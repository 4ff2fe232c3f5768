//! Every collective at 16 MiB on CPU devices, against the copies that it cannot do without:
//! `cargo bench --bench collectives`, about four minutes; `-- 4` for 4 ranks alone, `-- broadcast` for one collective,
//! `-- 64M` for another size.
//!
//! The ideal is the machine's: in each round, on the same buffers, every element of every rank's input is copied to
//! every place that its value must get to. That is a copy where a collective moves data, and at least the reading where it
//! combines them. An all-reduce is a reduce-scatter and an all-gather, as in its bus bandwidth:
//!
//! | | copies | bytes, of n ranks with buffers of S at most |
//! |---|---|---|
//! | all_reduce | reduce_scatter's, then all_gather's | 2 n S |
//! | all_gather, hypercube | each block to every output | n S |
//! | reduce_scatter | each block of each input to the output it counts for | n S |
//! | broadcast | the root's input to every output | n S |
//! | reduce | each input to the root's output | n S |
//! | sendrecv | each input to the next rank's output | n S |
//! | alltoall | each block of each input to its output | n S |
//! | gather, scatter | each block from, or to, the root | S |
//!
//! Copies are by the C library's `memcpy`, and by the fastest of several loops (benches/compare/memory.rs), each on one or
//! all cores, whichever is faster; several copies to one place follow each other piece by piece, so that it stays in cache.
//! Printed as a table for benches/records: `×` is the collective's time by that of the copies.

#[path = "compare/memory.rs"]
#[allow(dead_code, reason = "the bench `compare` uses the rest")]
mod memory;

use std::time::Instant;

use ferroccl::{Communicator, Device, DeviceBuffer, ReduceOp, Result as Done, Stream, group};
use memory::{Copied, Pair};

/// What a bench that cannot go on ends with.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const BYTES: usize = 16 << 20;
const MIB: usize = 1 << 20;
const RANKS: [u32; 2] = [4, 16];
const ROUNDS: usize = 5;
/// Seconds of a measurement of a round.
const SECONDS: f64 = 0.4;
/// Bytes that are copied to a place before the next copy to it.
const PIECE: usize = 256 << 10;

/// A collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    SendRecv,
    AllToAll,
    Gather,
    Scatter,
}

/// All, with nccl-tests' names.
const ALL: [(What, &str); 9] = [
    (What::AllReduce, "all_reduce"),
    (What::AllGather, "all_gather"),
    (What::ReduceScatter, "reduce_scatter"),
    (What::Broadcast, "broadcast"),
    (What::Reduce, "reduce"),
    (What::SendRecv, "sendrecv"),
    (What::AllToAll, "alltoall"),
    (What::Gather, "gather"),
    (What::Scatter, "scatter"),
];

impl What {
    /// `busbw` by size over time, as nccl-tests has it.
    fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            What::AllReduce => 2.0 * (n - 1.0) / n,
            What::Broadcast | What::Reduce | What::SendRecv => 1.0,
            _ => (n - 1.0) / n,
        }
    }

    /// Whether a rank's input is a block.
    fn sends_block(self) -> bool {
        matches!(self, What::AllGather | What::Gather)
    }

    /// Whether a rank's output is a block.
    fn receives_block(self) -> bool {
        matches!(self, What::ReduceScatter | What::Scatter)
    }
}

/// A rank, and buffers of the largest size.
struct Member {
    comm: Communicator,
    stream: Stream,
    send: DeviceBuffer<f32>,
    recv: DeviceBuffer<f32>,
}

/// The root of those that have one.
const ROOT: u32 = 0;

fn members(device: &Device, ranks: u32, bytes: usize) -> Done<Vec<Member>> {
    let data = vec![1.0f32; bytes / size_of::<f32>()];
    let member = |comm| {
        let (send, recv) = (device.upload(&data)?, device.upload(&data)?);
        Ok(Member { comm, stream: device.stream()?, send, recv })
    };
    Communicator::init_all(device, ranks)?.into_iter().map(member).collect()
}

/// Enqueues one operation on all ranks.
fn enqueue(what: What, members: &[Member]) -> Done<()> {
    let n = members.len();
    for Member { comm, stream, send, recv } in members {
        let block = send.len() / n;
        let send = if what.sends_block() { send.slice(..block) } else { send.clone() };
        let recv = if what.receives_block() { recv.slice(..block) } else { recv.clone() };
        let (op, rank, ranks) = (ReduceOp::Sum, comm.rank(), comm.world_size());
        match what {
            What::AllReduce => comm.all_reduce(&send, &recv, op, stream),
            What::AllGather => comm.all_gather(&send, &recv, stream),
            What::ReduceScatter => comm.reduce_scatter(&send, &recv, op, stream),
            What::Broadcast => comm.broadcast(&send, &recv, ROOT, stream),
            What::Reduce => comm.reduce(&send, &recv, op, ROOT, stream),
            What::SendRecv => group(|| {
                comm.send(&send, (rank + 1) % ranks, stream)?;
                comm.recv(&recv, (rank + ranks - 1) % ranks, stream)
            }),
            What::AllToAll => comm.all_to_all(&send, &recv, stream),
            What::Gather => comm.gather(&send, &recv, ROOT, stream),
            What::Scatter => comm.scatter(&send, &recv, ROOT, stream),
        }?;
    }
    Ok(())
}

fn run(what: What, members: &[Member], times: u32) -> Done<f64> {
    let start = Instant::now();
    for _ in 0..times {
        enqueue(what, members)?;
    }
    members.iter().try_for_each(|member| member.stream.synchronize())?;
    Ok(start.elapsed().as_secs_f64() / f64::from(times))
}

/// Median time of an operation, in microseconds: of spans of several in a row.
fn measure(what: What, members: &[Member]) -> Done<f64> {
    const SPAN: u32 = 8;
    let one = run(what, members, 2)?;
    let spans = (SECONDS / (one * f64::from(SPAN))).clamp(3.0, 100.0) as usize;
    let mut times = (0..spans).map(|_| run(what, members, SPAN)).collect::<Done<Vec<f64>>>()?;
    Ok(median(&mut times) * 1e6)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Where something must get to: a rank's output from a byte on, so many bytes; from each of these ranks' inputs, from a
/// byte on.
type Target = (usize, usize, usize, Vec<(usize, usize)>);

/// The copies: those to one place together, in pieces.
fn copies(what: What, device: &Device, ranks: u32, bytes: usize) -> Done<Vec<Vec<Pair>>> {
    let n = ranks as usize;
    let block = bytes / n;
    let buffer = |_| device.upload(&vec![1u8; bytes]);
    let (inputs, outputs) = (
        (0..n).map(buffer).collect::<Done<Vec<_>>>()?,
        (0..n).map(buffer).collect::<Done<Vec<_>>>()?,
    );
    let mut to: Vec<Target> = Vec::new();
    for rank in 0..n {
        let blocks = 0..n;
        match what {
            What::AllReduce => {
                to.push((rank, rank * block, block, blocks.map(|i| (i, rank * block)).collect()));
            }
            What::Broadcast => to.push((rank, 0, bytes, vec![(ROOT as usize, 0)])),
            What::SendRecv => to.push((rank, 0, bytes, vec![((rank + n - 1) % n, 0)])),
            What::AllGather => to.extend(blocks.map(|i| (rank, i * block, block, vec![(i, 0)]))),
            What::AllToAll => {
                to.extend(blocks.map(|i| (rank, i * block, block, vec![(i, rank * block)])));
            }
            What::ReduceScatter => {
                to.push((rank, 0, block, blocks.map(|i| (i, rank * block)).collect()));
            }
            What::Scatter => to.push((rank, 0, block, vec![(ROOT as usize, rank * block)])),
            What::Reduce if rank == ROOT as usize => {
                to.push((rank, 0, bytes, blocks.map(|i| (i, 0)).collect()));
            }
            What::Gather if rank == ROOT as usize => {
                to.extend(blocks.map(|i| (rank, i * block, block, vec![(i, 0)])));
            }
            What::Reduce | What::Gather => {}
        }
    }
    if what == What::AllReduce {
        let blocks = |rank| (0..n).map(move |i| (rank, i * block, block, vec![(i, i * block)]));
        to.extend((0..n).flat_map(blocks));
    }
    let mut pieces = Vec::new();
    for (rank, at, len, from) in to {
        for start in (0..len).step_by(PIECE) {
            let end = (start + PIECE).min(len);
            let target = outputs[rank].slice(at + start..at + end);
            let copy = |(rank, at): &(usize, usize)| {
                (inputs[*rank].slice(at + start..at + end), target.clone())
            };
            pieces.push(from.iter().map(copy).collect());
        }
    }
    Ok(pieces)
}

/// What came out of the rounds: medians.
struct Row {
    time_us: f64,
    memcpy: Ratio,
    fastest: Ratio,
    by: Copied,
}

/// Copies, and the collective by them.
struct Ratio {
    us: f64,
    factor: f64,
}

impl Ratio {
    fn of(copies: &mut [f64], factors: &mut [f64]) -> Self {
        Ratio { us: median(copies), factor: median(factors) }
    }
}

fn rounds(what: What, device: &Device, (ranks, bytes): (u32, usize), cores: usize) -> Outcome<Row> {
    let members = members(device, ranks, bytes)?;
    let copies = copies(what, device, ranks, bytes)?;
    let mut times = vec![];
    let (mut memcpy, mut fastest) = ((vec![], vec![]), (vec![], vec![]));
    let mut by = None;
    for _ in 0..ROUNDS {
        let time = measure(what, &members)?;
        let loops = memory::loops(&copies, cores, SECONDS / 2.0);
        times.push(time);
        let first = *loops.first().ok_or("no loop copies")?;
        let best = loops.into_iter().fold(first, |a, b| if b.us < a.us { b } else { a });
        for (copied, (us, factors)) in [(first, &mut memcpy), (best, &mut fastest)] {
            us.push(copied.us);
            factors.push(time / copied.us);
        }
        by = Some(best);
    }
    Ok(Row {
        time_us: median(&mut times),
        memcpy: Ratio::of(&mut memcpy.0, &mut memcpy.1),
        fastest: Ratio::of(&mut fastest.0, &mut fastest.1),
        by: by.ok_or("no round")?,
    })
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    if !std::env::args().any(|a| a == "--bench") {
        // `cargo test` builds it: that is enough.
        return Ok(());
    }
    let size = |word: &String| word.strip_suffix('M')?.parse::<usize>().ok().map(|n| n * MIB);
    let bytes = words.iter().find_map(size).unwrap_or(BYTES);
    let numbers: Vec<u32> = words.iter().filter_map(|w| w.parse().ok()).collect();
    let is_name = |w: &&String| w.parse::<u32>().is_err() && size(w).is_none();
    let names: Vec<&String> = words.iter().filter(is_name).collect();
    if let Some(other) = names.iter().find(|w| ALL.iter().all(|(_, name)| *name != w.as_str())) {
        return Err(format!("{other}: not a collective, a number of ranks, or a size (64M)").into());
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|w| *w == name);
    let device = Device::cpu();
    let cores = std::thread::available_parallelism()?.get();
    for ranks in if numbers.is_empty() { RANKS.to_vec() } else { numbers } {
        println!("\n### {ranks} ranks, {} MiB, out of place, f32\n", bytes / MIB);
        println!("| | µs | busbw GB/s | to copy MiB | memcpy µs | × | fastest µs | by | × |");
        println!("|---|---:|---:|---:|---:|---:|---:|---|---:|");
        for (what, name) in ALL.into_iter().filter(|(_, name)| wanted(name)) {
            let Row { time_us, memcpy, fastest, by } =
                rounds(what, &device, (ranks, bytes), cores)?;
            let n = ranks as usize;
            let buffers = match what {
                What::Gather | What::Scatter => 1,
                What::AllReduce => 2 * n,
                _ => n,
            };
            println!(
                "| {name} | {time_us:.0} | {:.2} | {} | {:.0} | {:.2} | {:.0} | {}, {} t | {:.2} |",
                bytes as f64 / time_us / 1e3 * what.bus_factor(ranks),
                bytes * buffers / MIB,
                memcpy.us,
                memcpy.factor,
                fastest.us,
                by.body.name(),
                by.threads,
                fastest.factor,
            );
        }
    }
    Ok(())
}
