//! How ranks find each other, before there is anything faster than TCP.
//!
//! ```text
//!            hello                          welcome, next
//!   rank 0 --------->          <---------------  root      then    0 --> 1
//!   rank 1 --------->   root   --------------->  ranks             ^     |
//!   ...    --------->                                              |     v
//!                                                                  3 <-- 2     the ring
//! ```
//!
//! A rank knows a [`UniqueId`], its rank and the group's size. The **root** (a thread in whoever made the id,
//! or in rank 0) gathers one authenticated hello of each and tells each where the next one listens. The ranks
//! close a **ring** of connections, around which [`Bootstrap::all_gather`] passes data; pairs of ranks talk by
//! [`Bootstrap::send`] and [`Bootstrap::recv`]. When set-up is done, [`Bootstrap::watch`] keeps the ring open:
//! a process that dies closes its connections, and that news travels around the ring in milliseconds.
//!
//! What this module deliberately does not know: what is sent, which devices there are, and what a collective
//! is. Its invariant: whatever connects, in whatever order, with whatever bytes, either it is a member with a
//! legal message or it is turned away with a reason, and nobody else waits for it. Every wait has a deadline.
//!
//! | file | |
//! |---|---|
//! | `id` | the 128 bytes |
//! | `interface` | which network |
//! | [`wire`] | bytes and legal messages (pure) |
//! | `auth` | who knows the secret |
//! | `limit` | how long anything may take |
//! | `link`, `door` | one connection; a listening socket that strangers reach |
//! | `root`, `join` | the two sides of coming together |
//! | `ring`, `mail` | all-gather; send and receive |
//! | `watch`, `gather` | who is still there; all-gathers later |

#[path = "../auth.rs"]
mod auth;
#[path = "acceptor.rs"]
mod door;
#[path = "../gather.rs"]
mod gather;
#[path = "../id.rs"]
mod id;
#[path = "../interface.rs"]
pub(crate) mod interface;
#[path = "../join.rs"]
mod join;
#[path = "../limit.rs"]
mod limit;
#[path = "../link.rs"]
mod link;
#[path = "../mail.rs"]
mod mail;
#[path = "../ring.rs"]
mod ring;
#[path = "../root.rs"]
mod root;
#[path = "../watch.rs"]
mod watch;
#[path = "../wire.rs"]
pub mod wire;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use id::{CommId, UNIQUE_ID_BYTES, UniqueId};
pub use interface::{AddressFamily, Interface, InterfaceFilter, choose, interfaces};
pub use watch::{Beat, Departure, Watch};
pub use wire::{MissingRanks, Refusal};

pub(crate) use gather::Gathers;
pub(crate) use limit::{Limit, Stop};

use self::auth::Key;
use self::mail::{Inbox, Outbox};
use self::ring::Ring;
use crate::config::Config;
use crate::{Error, Result, log};

/// Why ranks did not become a group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A unique id was cut off, mistyped or made by another version.
    #[error("this is not a unique id: {0}")]
    InvalidId(String),
    /// No network interface is as the settings want it.
    #[error("no network interface is allowed by {wanted}; there are: {found}")]
    NoInterface {
        /// The settings.
        wanted: String,
        /// The interfaces of this machine that are up.
        found: String,
    },
    /// The root cannot be reached.
    #[error(
        "no root at {address} within {:.1} s ({trouble}): has the process that made the unique id ended, \
         or is its group complete already?", waited.as_secs_f64()
    )]
    NoRoot {
        /// Where it should be.
        address: SocketAddr,
        /// How long it was tried.
        waited: Duration,
        /// What was wrong the last time.
        trouble: String,
    },
    /// Something else listens where the root should.
    #[error("what listens at {address} is not a root of this library: {what}")]
    NotARoot {
        /// Where.
        address: SocketAddr,
        /// How one can tell.
        what: String,
    },
    /// The root turned this rank away.
    #[error("the root at {root} turned this rank away: {refusal}")]
    Refused {
        /// The root.
        root: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
    /// This rank came, others did not.
    #[error("{0}")]
    MissingRanks(MissingRanks),
    /// Something took longer than `FERROCCL_BOOTSTRAP_TIMEOUT`.
    #[error("{what} took longer than {:.1} s", limit.as_secs_f64())]
    Timeout {
        /// What was waited for.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// Ranks do not do the same thing at the same time.
    #[error("ranks disagree: {0}")]
    Mismatch(String),
    /// What a member of the group sent makes no sense.
    #[error("{0}")]
    Malformed(String),
}

impl UniqueId {
    /// Makes an id: starts a root that listens in this process, until the group is complete or has failed.
    /// With `NCCL_COMM_ID` the id is derived from that, and rank 0 runs the root when it connects.
    ///
    /// # Errors
    /// When no interface is allowed, when the system refuses a socket or a thread, and when
    /// `NCCL_COMM_ID` names a host that cannot be looked up.
    pub fn new(config: &Config) -> Result<Self> {
        if let Some(comm_id) = &config.comm_id {
            return Self::from_comm_id(comm_id, config.socket_family);
        }
        let interfaces = interface::interfaces()?;
        let (filter, family) = (config.socket_ifname.as_ref(), config.socket_family);
        let interface = interface::choose(&interfaces, filter, family)?;
        tracing::info!(target: log::BOOTSTRAP, "using {} ({})", interface.name, interface.address.ip());
        Self::listening_at(interface.address)
    }

    /// As [`UniqueId::new`], on one address of this machine; port 0 is any free one.
    ///
    /// # Errors
    /// When the system refuses a socket or a thread.
    pub fn listening_at(address: SocketAddr) -> Result<Self> {
        let listener = door::listen(address)
            .map_err(|e| Error::system(format!("root listening on {address}"), e))?;
        let bound =
            listener.local_addr().map_err(|e| Error::system("address of the root's socket", e))?;
        let id = UniqueId::published(bound)?;
        root::spawn_detached(listener, Key::new(*id.secret()), door::PATIENCE)?;
        Ok(id)
    }
}

/// A rank that has found its group. Its calls may be made from several threads; those that are collective
/// must come in the same order on every rank.
///
/// ```
/// use ferroccl::bootstrap::{Bootstrap, UniqueId};
/// use ferroccl::config::Config;
///
/// let config = Config::from_env()?;
/// let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into())?;
/// let sums: Vec<u32> = std::thread::scope(|scope| {
///     let ranks: Vec<_> = (0..3u8).map(|rank| {
///         let (id, config) = (&id, &config);
///         scope.spawn(move || {
///             let group = Bootstrap::connect(id, rank.into(), 3, config)?;
///             let all = group.all_gather(&[10 * rank])?;
///             Ok::<u32, ferroccl::Error>(all.iter().map(|bytes| u32::from(bytes[0])).sum())
///         })
///     }).collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_, _>>()
/// })?;
/// assert_eq!(sums, [30, 30, 30]);
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Debug)]
pub struct Bootstrap {
    rank: u32,
    nranks: u32,
    /// The limit of each call.
    limit: Limit,
    /// `None` in a group of one, and after [`Bootstrap::watch`].
    group: Option<Group>,
    /// What a group of one sends to itself.
    own: Mutex<mail::Queues>,
}

/// What is only there with other ranks.
#[derive(Debug)]
struct Group {
    ring: Mutex<Ring>,
    inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here panics with a lock held and a value half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bootstrap {
    /// Joins the group of `id` as `rank` of `nranks`; returns when all ranks are there. A group of one
    /// needs no network; it only tells the id's root, if there is one, that nobody will come. Each id is for one group, unless it is a rendezvous: that is free again when its group
    /// is complete.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `rank` is not of such a group. [`Error::Bootstrap`] when the root cannot
    /// be reached or turns this rank away, and, when `FERROCCL_BOOTSTRAP_TIMEOUT` is over, naming the ranks
    /// that are missing. [`Error::PeerLost`] when a neighbour leaves meanwhile. [`Error::System`].
    pub fn connect(id: &UniqueId, rank: u32, nranks: u32, config: &Config) -> Result<Self> {
        Self::connect_unless(Stop::default(), id, rank, nranks, config)
    }

    /// As [`Bootstrap::connect`]; it, and what the rank does later, fails soon after `stop` is set.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn connect_unless(
        stop: Stop,
        id: &UniqueId,
        rank: u32,
        nranks: u32,
        config: &Config,
    ) -> Result<Self> {
        if nranks == 0 || nranks > wire::MAX_RANKS {
            let most = wire::MAX_RANKS;
            return Err(Error::argument("nranks", format!("{nranks} is not 1 to {most}")));
        }
        if rank >= nranks {
            return Err(Error::argument("rank", format!("{rank} is not of a group of {nranks}")));
        }
        let limit = Limit { time: config.bootstrap_timeout, stop };
        let own = Mutex::new(mail::Queues::default());
        if nranks == 1 {
            join::dismiss(id);
            return Ok(Bootstrap { rank, nranks, limit, group: None, own });
        }
        let deadline = limit.start();
        let joined = join::join(id, rank, nranks, config, deadline.clone())?;
        let mut door = joined.door;
        let mine = door.address().map_err(|e| Error::system("address of the rank's socket", e))?;
        let mut ring = Ring::close(rank, nranks, &mut door, &joined.key, joined.next, &deadline)?;
        let addresses = ring
            .all_gather(mine.to_string().as_bytes(), &limit)?
            .iter()
            .map(|bytes| std::str::from_utf8(bytes).ok()?.parse().ok())
            .collect::<Option<Vec<SocketAddr>>>()
            .ok_or_else(|| BootstrapError::Malformed("a rank's address is none".to_owned()))?;
        tracing::info!(target: log::BOOTSTRAP, "rank {rank} of {nranks} is connected");
        let group = Group {
            ring: Mutex::new(ring),
            inbox: Mutex::new(Inbox::new(rank, nranks, door)),
            outbox: Mutex::new(Outbox::new(rank, addresses, joined.key)),
        };
        Ok(Bootstrap { rank, nranks, limit, group: Some(group), own })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks of the group.
    #[must_use]
    pub fn nranks(&self) -> u32 {
        self.nranks
    }

    /// Gives every rank's bytes to every rank, in the order of ranks. Collective; lengths may differ, each
    /// at most [`wire::MAX_DATA`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `mine` is too long. [`Error::PeerLost`] when a rank is gone, and
    /// [`Error::Bootstrap`] when it takes too long or ranks are in different calls: the ring is then
    /// broken, and every later call gives the same error.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        mail::check_length("mine", mine)?;
        match &self.group {
            Some(group) => lock(&group.ring).all_gather(mine, &self.limit),
            None => Ok(vec![mine.to_vec()]),
        }
    }

    /// Returns when every rank has called it. Collective.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`].
    pub fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(drop)
    }

    /// Sends bytes to a rank, this one included. Returns when the system has taken them: a message larger than
    /// the sockets' buffers waits until the peer receives.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such peer or `bytes` is longer than [`wire::MAX_DATA`];
    /// [`Error::PeerLost`] when the peer is gone; [`Error::Bootstrap`] when it takes too long.
    pub fn send(&self, peer: u32, tag: u64, bytes: &[u8]) -> Result<()> {
        self.check_peer(peer)?;
        mail::check_length("bytes", bytes)?;
        match &self.group {
            Some(group) if peer != self.rank => {
                lock(&group.outbox).send(peer, tag, bytes, &self.limit)
            }
            _ => {
                lock(&self.own).push(peer, tag, bytes.to_vec());
                Ok(())
            }
        }
    }

    /// Receives the oldest bytes that `peer` sent with `tag`. What arrives for other peers and tags is kept
    /// for later calls. Threads that receive at the same time are served one after the other.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such peer; [`Error::PeerLost`] when the peer has closed its
    /// connection and nothing of it is left; [`Error::Bootstrap`] when it takes too long.
    pub fn recv(&self, peer: u32, tag: u64) -> Result<Vec<u8>> {
        self.check_peer(peer)?;
        match &self.group {
            Some(group) if peer != self.rank => lock(&group.inbox).recv(peer, tag, &self.limit),
            _ => lock(&self.own).pop(peer, tag).ok_or_else(|| {
                let what = format!("rank {peer} has sent itself nothing with tag {tag}");
                BootstrapError::Mismatch(what).into()
            }),
        }
    }

    fn check_peer(&self, peer: u32) -> Result<()> {
        if peer < self.nranks {
            return Ok(());
        }
        Err(Error::argument("peer", format!("{peer} is not of a group of {}", self.nranks)))
    }

    /// Ends set-up and keeps the ring as a life line: `on_gone` is called once for every rank that is lost or
    /// leaves, from a thread that otherwise sleeps. It must not block, and may drop the [`Watch`].
    ///
    /// # Errors
    /// [`Error::System`] when there can be no thread.
    pub fn watch(self, on_gone: impl FnMut(Departure) + Send + 'static) -> Result<Watch> {
        self.watch_and_hear(None, on_gone, |_, _| {})
    }

    /// As [`Bootstrap::watch`]; neighbours that keep no `beat` are lost, and `on_news` is called, on the same terms, with what a rank has told all others
    /// ([`Watch::tell`]).
    ///
    /// # Errors
    /// As there.
    pub fn watch_and_hear(
        mut self,
        beat: Option<Beat>,
        on_gone: impl FnMut(Departure) + Send + 'static,
        on_news: impl FnMut(u32, &[u8]) + Send + 'static,
    ) -> Result<Watch> {
        let Some(group) = self.group.take() else { return Ok(Watch::alone()) };
        let ring = group.ring.into_inner().unwrap_or_else(PoisonError::into_inner);
        let address = lock(&group.inbox).address();
        let address = address.map_err(|e| Error::system("address of the rank's socket", e))?;
        Watch::start(ring, address, beat, on_gone, on_news)
    }
}

impl Drop for Bootstrap {
    /// Tells the neighbours that this rank leaves.
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            lock(&group.ring).say_goodbye();
        }
    }
}
