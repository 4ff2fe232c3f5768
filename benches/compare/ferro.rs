//! FerroCCL's side: the same measurement whether this thread drives one rank or all of them.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use ferroccl::enqueue::CollectiveCall;
use ferroccl::{Collective, Communicator, DataType, Device, DeviceBuffer, ReduceOp, Stream};

use crate::Outcome;
use crate::peer::{Request, Sample, Way};

/// Operations that wait in a stream at most: beyond some hundreds the mean does not change.
const LONGEST_QUEUE: usize = 1000;
/// Samples of one figure at most.
const MAX_SAMPLES: usize = 1000;

/// The ranks that one thread drives.
#[derive(Debug)]
pub(crate) struct Group {
    device: Device,
    ranks: Vec<(Communicator, Stream)>,
    /// The same ranks with a way of their own each, made when it is asked for.
    ways: Mutex<BTreeMap<Way, Arc<[Communicator]>>>,
}

/// How the operations of a batch follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Enqueue all, wait once.
    Queued,
    /// Wait after each.
    Blocking,
}

impl Group {
    /// A group of ranks driven by the calling thread.
    pub(crate) fn new(device: &Device, ranks: Vec<Communicator>) -> Outcome<Self> {
        let ranks = ranks
            .into_iter()
            .map(|rank| Ok((rank, device.stream()?)))
            .collect::<ferroccl::Result<_>>()?;
        Ok(Group { device: device.clone(), ranks, ways: Mutex::default() })
    }

    /// Measures; to be called with the same request for every rank of the communicator.
    pub(crate) fn measure(&self, request: Request) -> Outcome<Sample> {
        let count = usize::try_from(request.bytes)? / size_of::<f32>();
        let ranks = self.ranks.first().map_or(1, |(rank, _)| rank.world_size() as usize);
        let shape = Shape::new(request.collective, count, ranks);
        let buffers = self
            .ranks
            .iter()
            .map(|(rank, _)| {
                let inputs = inputs(rank.rank(), shape.send);
                Ok((self.device.upload(&inputs)?, self.device.alloc(shape.recv)?))
            })
            .collect::<ferroccl::Result<Vec<_>>>()?;
        let own = request.way.map(|way| self.with_way(way)).transpose()?;
        let data = Data { shape, buffers, own };
        let way = match self.plan(&data) {
            // A group of sends and receives has no plan; what else may be wrong the calls themselves say.
            Err(_) if request.collective == Collective::AllToAll => None,
            plan => Some(plan?),
        };
        let name = way.map_or_else(|| "sends and receives".to_owned(), |way| way.to_string());
        if request.way.is_some() && request.way != way {
            let error = Some(format!("it would be done by {name}"));
            return Ok(Sample { error, ..Sample::default() });
        }

        let mut wrong = self.check(&data)?;
        self.batch(&data, Pace::Blocking, 3)?;
        let one = (self.batch(&data, Pace::Blocking, 3)? / 3.0).max(1e-7);
        // Of a way there are fewer batches, as it is asked for more often.
        let batches = if request.way.is_some() { 4.0 } else { 20.0 };
        let length = ((request.seconds / batches / one) as usize).clamp(1, LONGEST_QUEUE);
        let figure =
            |length, pace| self.median(request.seconds, length, || self.batch(&data, pace, length));
        let others = request.way.is_none();
        let queued_us = others.then(|| figure(length, Pace::Queued)).transpose()?;
        let batch_us = figure(length, Pace::Blocking)?;
        let each_us = if others { figure(1, Pace::Blocking)? } else { 0.0 };
        wrong += self.check(&data)?;
        Ok(Sample { queued_us, batch_us, each_us, wrong, way: Some(name), error: None })
    }

    /// These ranks in communicators that do their calls so, where they can.
    fn with_way(&self, way: Way) -> Outcome<Arc<[Communicator]>> {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = ways.get(&way) {
            return Ok(Arc::clone(there));
        }
        let config = way.config();
        let split = |rank: &Communicator| rank.split_with(Some(0), 0, &config);
        // All at once: each waits for the others.
        let all = std::thread::scope(|scope| {
            let split = &split;
            let ranks = self.ranks.iter().map(|(rank, _)| rank);
            let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || split(rank))).collect();
            threads
                .into_iter()
                .map(|thread| {
                    Ok(thread.join().map_err(|_| "a thread panicked")??.ok_or("no rank")?)
                })
                .collect::<Outcome<Arc<[_]>>>()
        })?;
        ways.insert(way, Arc::clone(&all));
        Ok(all)
    }

    /// How an operation will be done.
    fn plan(&self, data: &Data) -> Outcome<Way> {
        let Shape { collective, send, recv, .. } = data.shape;
        let count =
            if collective == Collective::AllToAll { data.shape.block } else { send.min(recv) };
        let root = matches!(collective, Collective::Broadcast | Collective::Reduce).then_some(0);
        let (data_type, op) = (DataType::F32, ReduceOp::Sum);
        let call = CollectiveCall { collective, count, data_type, op, root };
        let rank = self.communicators(data).next().ok_or("no ranks")?;
        let choice = rank.plan(&call)?;
        Ok(Way { algorithm: choice.algorithm, protocol: choice.protocol })
    }

    /// The communicators of these ranks that do the operation.
    fn communicators<'a>(&'a self, data: &'a Data) -> impl Iterator<Item = &'a Communicator> {
        let own = data.own.as_deref();
        let usual = self.ranks.iter().map(|(rank, _)| rank);
        usual.enumerate().map(move |(i, rank)| own.map_or(rank, |own| &own[i]))
    }

    /// Microseconds an operation, in the median batch of those that fit into `seconds`. Every rank
    /// sees the same spans, so all of them stop together.
    fn median(
        &self,
        seconds: f64,
        length: usize,
        mut batch: impl FnMut() -> Outcome<f64>,
    ) -> Outcome<f64> {
        let (mut spans, mut spent) = (Vec::new(), 0.0);
        while spans.len() < 3 || (spent < seconds && spans.len() < MAX_SAMPLES) {
            let span = batch()?;
            spent += span;
            spans.push(span);
        }
        spans.sort_by(f64::total_cmp);
        Ok(spans[spans.len() / 2] / length as f64 * 1e6)
    }

    /// Seconds of `n` operations, on the slowest rank.
    fn batch(&self, data: &Data, pace: Pace, n: usize) -> Outcome<f64> {
        self.agree(0.0, ReduceOp::Max)?; // a barrier
        let start = Instant::now();
        for _ in 0..n {
            self.enqueue(data)?;
            if pace == Pace::Blocking {
                self.synchronize()?;
            }
        }
        self.synchronize()?;
        self.agree(start.elapsed().as_secs_f64(), ReduceOp::Max)
    }

    fn enqueue(&self, data: &Data) -> Outcome<()> {
        let streams = self.ranks.iter().map(|(_, stream)| stream);
        let ranks = self.communicators(data).zip(streams).zip(&data.buffers);
        for ((rank, stream), (send, recv)) in ranks {
            match data.shape.collective {
                Collective::AllGather => rank.all_gather(send, recv, stream)?,
                Collective::ReduceScatter => {
                    rank.reduce_scatter(send, recv, ReduceOp::Sum, stream)?;
                }
                Collective::Broadcast => rank.broadcast(send, recv, 0, stream)?,
                Collective::Reduce => rank.reduce(send, recv, ReduceOp::Sum, 0, stream)?,
                Collective::AllToAll => rank.all_to_all(send, recv, stream)?,
                _ => rank.all_reduce(send, recv, ReduceOp::Sum, stream)?,
            }
        }
        Ok(())
    }

    fn synchronize(&self) -> Outcome<()> {
        Ok(self.ranks.iter().try_for_each(|(_, stream)| stream.synchronize())?)
    }

    /// `op` of one number a rank, known to all of them.
    fn agree(&self, mine: f64, op: ReduceOp) -> Outcome<f64> {
        let mut cells = Vec::new();
        for (rank, stream) in &self.ranks {
            let cell = self.device.alloc(1)?;
            cell.copy_from(&[mine], stream)?;
            rank.all_reduce(&cell, &cell, op, stream)?;
            cells.push(cell);
        }
        let mut agreed = mine;
        for ((_, stream), cell) in self.ranks.iter().zip(&cells) {
            agreed = cell.to_vec(stream)?[0];
        }
        Ok(agreed)
    }

    /// Does one operation into poisoned memory and counts the wrong elements of all ranks.
    fn check(&self, data: &Data) -> Outcome<u64> {
        for ((_, stream), (_, recv)) in self.ranks.iter().zip(&data.buffers) {
            recv.copy_from(&vec![f32::NAN; recv.len()], stream)?;
        }
        self.enqueue(data)?;
        let mut wrong = 0u64;
        for ((rank, stream), (_, recv)) in self.ranks.iter().zip(&data.buffers) {
            // Only the root has a result.
            if data.shape.collective == Collective::Reduce && rank.rank() > 0 {
                continue;
            }
            let expected = |i| data.shape.expected(rank.rank() as usize, i);
            let found = recv.to_vec(stream)?;
            wrong += found.iter().enumerate().filter(|(i, x)| **x != expected(*i)).count() as u64;
        }
        // Every rank of the group puts the group's count in, hence the division.
        Ok((self.agree(wrong as f64, ReduceOp::Sum)? / self.ranks.len() as f64) as u64)
    }
}

/// What this thread's ranks send from and receive into.
struct Data {
    shape: Shape,
    buffers: Vec<(DeviceBuffer<f32>, DeviceBuffer<f32>)>,
    /// The communicators, where a way is asked for.
    own: Option<Arc<[Communicator]>>,
}

/// A collective, and the elements of each rank's buffers.
#[derive(Clone, Copy, Debug)]
struct Shape {
    collective: Collective,
    ranks: usize,
    /// Of a rank, where there are such.
    block: usize,
    send: usize,
    recv: usize,
}

impl Shape {
    /// With `count` elements in the largest buffer, or as many less as blocks take to be alike.
    fn new(collective: Collective, count: usize, ranks: usize) -> Shape {
        let block = count / ranks;
        let all = block * ranks;
        let (send, recv) = match collective {
            Collective::AllGather => (block, all),
            Collective::ReduceScatter => (all, block),
            Collective::AllToAll => (all, all),
            _ => (count, count),
        };
        Shape { collective, ranks, block, send, recv }
    }

    /// The `i`-th element that `rank` receives.
    fn expected(&self, rank: usize, i: usize) -> f32 {
        let sum = (self.ranks * (self.ranks + 1) / 2) as f32;
        let block = self.block.max(1);
        match self.collective {
            Collective::AllGather => input(i / block, i % block),
            Collective::ReduceScatter => sum * input(0, rank * block + i),
            Collective::Broadcast => input(0, i),
            Collective::AllToAll => input(i / block, rank * block + i % block),
            _ => sum * input(0, i),
        }
    }
}

fn inputs(rank: u32, len: usize) -> Vec<f32> {
    (0..len).map(|i| input(rank as usize, i)).collect()
}

/// As in the MPI program: sums of 16 ranks stay below 700, exact in f32 in every order.
fn input(rank: usize, i: usize) -> f32 {
    ((rank + 1) * (i % 5 + 1)) as f32
}

/// Ranks as threads of this process, each driven by its own.
#[derive(Debug)]
pub(crate) struct Threads {
    requests: Vec<Sender<Request>>,
    answers: Receiver<Outcome<Sample>>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts a thread a rank.
    pub(crate) fn start(device: &Device, ranks: Vec<Communicator>) -> Outcome<Self> {
        let (answer, answers) = channel();
        let (mut requests, mut threads) = (Vec::new(), Vec::new());
        for rank in ranks {
            let group = Group::new(device, vec![rank])?;
            let answer = answer.clone();
            let (send, receive) = channel();
            requests.push(send);
            threads.push(std::thread::spawn(move || {
                for request in receive {
                    if answer.send(group.measure(request)).is_err() {
                        return;
                    }
                }
            }));
        }
        Ok(Threads { requests, answers, threads })
    }

    /// Measures on all of them.
    pub(crate) fn measure(&self, request: Request) -> Outcome<Sample> {
        for rank in &self.requests {
            rank.send(request)?;
        }
        let mut sample = Err("no ranks".into());
        for _ in &self.requests {
            sample = Ok(self.answers.recv()??);
        }
        sample
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.requests.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its panic has been printed, and its answer is missing
        }
    }
}
