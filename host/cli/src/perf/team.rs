//! The ranks of a measurement: who they are, how they join, how their threads tell each other numbers.
//!
//! Ranks are numbered as nccl-tests numbers them: by process, then by thread, then within the thread.
//! Every thread of every process runs the same sequence of steps; where they must agree they call
//! [`Member::all_gather`], which is a barrier too. It goes through memory within a process and over the
//! bootstrap between processes, as nccl-tests' goes over MPI: a collective that is broken cannot hide that
//! it is.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use ferroccl::bootstrap::Bootstrap;
use ferroccl::bootstrap::wire::MAX_RANKS;
use ferroccl::config::Config;
use ferroccl::launcher::RankEnv;
use ferroccl::{CommConfig, Communicator, Device, Error, Result, Stream, UniqueId};

/// How ranks are spread over processes and threads. Made by [`Layout::new`], so no product overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// This process.
    pub(crate) process: u32,
    /// Processes.
    pub(crate) processes: u32,
    /// Threads of each process.
    pub(crate) threads: u32,
    /// Ranks of each thread.
    pub(crate) per_thread: u32,
}

impl Layout {
    /// A layout whose ranks can be numbered.
    pub(crate) fn new(process: u32, processes: u32, threads: u32, per_thread: u32) -> Result<Self> {
        let ranks = threads.checked_mul(per_thread).and_then(|n| n.checked_mul(processes));
        if ranks.is_none_or(|n| n > MAX_RANKS) {
            let product = format!("{processes} processes x {threads} threads x {per_thread}");
            return Err(Error::argument("ranks", format!("{product} are more than {MAX_RANKS}")));
        }
        Ok(Layout { process, processes, threads, per_thread })
    }

    /// Ranks of this process.
    pub(crate) fn local_ranks(self) -> u32 {
        self.threads * self.per_thread
    }

    /// Ranks of all processes.
    pub(crate) fn world_size(self) -> u32 {
        self.processes * self.local_ranks()
    }

    /// The ranks of this process.
    pub(crate) fn ranks(self) -> impl Iterator<Item = u32> {
        let first = self.process * self.local_ranks();
        first..first + self.local_ranks()
    }
}

/// The processes of a measurement, as a group that talks over the bootstrap.
///
/// It takes the id that the launcher has given them; the ranks' own group has another, made by process 0.
pub(crate) fn processes(env: Option<&RankEnv>, config: &Config) -> Result<Option<Bootstrap>> {
    let Some(env) = env.filter(|env| env.world_size > 1) else { return Ok(None) };
    let id = env.unique_id(config)?;
    Ok(Some(Bootstrap::connect(&id, env.rank, env.world_size, &config.bootstrap())?))
}

/// The communicators of this process's ranks, in order, each on its device.
///
/// In one process they are made together, unless `parallel`; else each joins in a thread of its own.
pub(crate) fn connect(
    layout: Layout,
    processes: Option<&Bootstrap>,
    devices: &[Device],
    env: &Config,
    config: &CommConfig,
    parallel: bool,
) -> Result<Vec<Communicator>> {
    let nranks = layout.world_size();
    let id = match processes {
        None if !parallel => return Communicator::init_all_on(devices, config),
        None => UniqueId::new(&env.bootstrap())?,
        Some(group) => {
            // An invitation has no secret: it goes over the network.
            let made = (layout.process == 0).then(|| group.invite()).transpose()?;
            let text = made.map(|invitation| invitation.to_string()).unwrap_or_default();
            let texts = group.all_gather(text.as_bytes())?;
            group.accept(&String::from_utf8_lossy(&texts[0]).parse()?)
        }
    };
    thread::scope(|scope| {
        let join = |device, rank| Communicator::init_rank_with(device, nranks, &id, rank, config);
        let joining = layout.ranks().zip(devices).map(|(rank, device)| {
            let named = thread::Builder::new().name(format!("init {rank}"));
            let thread = named.spawn_scoped(scope, move || join(device, rank));
            thread.map_err(|e| Error::system("cannot start a thread", e))
        });
        // All are started before the first is waited for.
        let joining: Vec<_> = joining.collect::<Result<_>>()?;
        let joined = joining.into_iter().map(|thread| match thread.join() {
            Ok(comm) => comm,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    })
}

/// One rank, as its thread drives it.
#[derive(Debug)]
pub(crate) struct Rank {
    /// Its membership.
    pub(crate) comm: Communicator,
    /// Its queue of work.
    pub(crate) stream: Stream,
}

/// A thread and the ranks it drives.
#[derive(Debug)]
pub(crate) struct Member {
    /// The ranks.
    pub(crate) ranks: Vec<Rank>,
    layout: Layout,
    thread: u32,
    meeting: Arc<Meeting>,
    processes: Arc<Option<Bootstrap>>,
}

impl Member {
    /// Shares the ranks of this process out to its threads.
    pub(crate) fn team(
        layout: Layout,
        comms: Vec<Communicator>,
        processes: Option<Bootstrap>,
    ) -> Result<Vec<Member>> {
        let processes = Arc::new(processes);
        let meeting = Arc::new(Meeting::new(layout.threads as usize));
        let mut comms = comms.into_iter();
        (0..layout.threads)
            .map(|thread| {
                let ranks = comms.by_ref().take(layout.per_thread as usize);
                let ranks = ranks.map(|comm| {
                    let stream = comm.device().stream()?;
                    Ok(Rank { comm, stream })
                });
                let ranks = ranks.collect::<Result<_>>()?;
                Ok(Member {
                    ranks,
                    layout,
                    thread,
                    meeting: Arc::clone(&meeting),
                    processes: Arc::clone(&processes),
                })
            })
            .collect()
    }

    /// Whether this is the thread of rank 0: the one that speaks.
    pub(crate) fn leads(&self) -> bool {
        self.layout.process == 0 && self.thread == 0
    }

    /// Whether this is the first thread of its process.
    pub(crate) fn speaks_for_process(&self) -> bool {
        self.thread == 0
    }

    /// How the ranks are spread.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Waits until every thread of every process is here.
    pub(crate) fn barrier(&self) -> Result<()> {
        self.all_gather(&[0]).map(drop)
    }

    /// Waits until everything that this thread's ranks were given has ended.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // All of them, also after an error: buffers are in use until their streams are done.
        self.ranks.iter().map(|rank| rank.stream.synchronize()).fold(Ok(()), Result::and)
    }

    /// The words of every thread of every process, in the order of their ranks. All give equally many.
    pub(crate) fn all_gather(&self, mine: &[u64]) -> Result<Vec<Vec<u64>>> {
        let meet = |words| self.meeting.exchange(self.thread as usize, words);
        let ours = meet(mine.to_vec());
        let Some(processes) = self.processes.as_ref() else { return Ok(ours) };
        // The first thread speaks for its process, and tells the others what it has heard.
        let mut heard = Vec::new();
        if self.thread == 0 {
            let bytes: Vec<u8> =
                ours.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
            let all = processes.all_gather(&bytes)?.concat();
            heard = all.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        }
        let all = meet(heard).swap_remove(0);
        Ok(all.chunks(mine.len().max(1)).map(<[u64]>::to_vec).collect())
    }
}

/// Where the threads of a process meet and exchange words.
#[derive(Debug)]
struct Meeting {
    parties: usize,
    table: Mutex<Table>,
    complete: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    /// Meetings that were complete.
    round: u64,
    here: usize,
    cards: Vec<Vec<u64>>,
    /// The cards of the last complete meeting: read by all before the next one can be complete.
    last: Vec<Vec<u64>>,
}

impl Meeting {
    fn new(parties: usize) -> Self {
        let table = Table { cards: vec![Vec::new(); parties], ..Table::default() };
        Meeting { parties, table: Mutex::new(table), complete: Condvar::new() }
    }

    /// Lays down a card, waits for the others, and takes a copy of all. A thread that fails does not
    /// come any more; the process then ends without waiting for those that wait here.
    fn exchange(&self, party: usize, card: Vec<u64>) -> Vec<Vec<u64>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let round = table.round;
        table.cards[party] = card;
        table.here += 1;
        if table.here == self.parties {
            table.here = 0;
            table.round += 1;
            table.last = std::mem::replace(&mut table.cards, vec![Vec::new(); self.parties]);
            self.complete.notify_all();
        }
        while table.round == round {
            table = self.complete.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        table.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_go_by_process_then_thread() {
        let layout = Layout::new(2, 3, 2, 4).unwrap();
        assert_eq!((layout.local_ranks(), layout.world_size()), (8, 24));
        assert_eq!(layout.ranks().collect::<Vec<_>>(), (16..24).collect::<Vec<_>>());
        assert!(Layout::new(0, u32::MAX, 4096, 4096).is_err());
    }

    #[test]
    fn everybody_gets_the_cards_of_this_round() {
        let meeting = Meeting::new(4);
        std::thread::scope(|scope| {
            for party in 0..4 {
                let meeting = &meeting;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let want: Vec<_> = (0..4).map(|p| vec![round, p]).collect();
                        assert_eq!(meeting.exchange(party, vec![round, party as u64]), want);
                    }
                });
            }
        });
    }
}
