//! A rank that has found its group.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

use ferroccl_handshake::{Key, Nonce, nonce};

use crate::blocks::GatheredBlocks;
use crate::departure::Departure;
use crate::error::{BootstrapError, Result};
use crate::id::UniqueId;
use crate::limit::{Limit, Stop};
use crate::links::Links;
use crate::p2p::{Inbox, Outbox};
use crate::peers::PeerAcceptor;
use crate::settings::{LOG_TARGET, Settings};
use crate::sync::lock;
use crate::watch::{Heartbeat, News, Watch};
use crate::{acceptor, interface, join, p2p, root, wire};

impl UniqueId {
    /// Makes an id: starts a root that listens in this process, until the group is complete or has failed.
    /// With [`Settings::comm_id`] the id is derived from that and from [`Settings::secret`], and rank 0 runs the root when it connects.
    ///
    /// # Errors
    /// When no interface is allowed, when the system refuses a socket or a thread, and when
    /// `NCCL_COMM_ID` names a host that cannot be looked up.
    pub fn new(settings: &Settings) -> Result<Self> {
        if let Some(comm_id) = &settings.comm_id {
            let id = Self::from_comm_id(comm_id, settings.socket_family)?;
            return Ok(id.mixed_with(settings.secret.as_ref()));
        }
        let interfaces = interface::interfaces()?;
        let (filter, family) = (settings.socket_ifname.as_ref(), settings.socket_family);
        let interface = interface::choose(&interfaces, filter, family)?;
        tracing::info!(target: LOG_TARGET, "using {} ({})", interface.name, interface.address.ip());
        Self::listening_at(interface.address)
    }

    /// As [`UniqueId::new`], on one address of this machine; port 0 is any free one.
    ///
    /// # Errors
    /// When the system refuses a socket or a thread.
    pub fn listening_at(address: SocketAddr) -> Result<Self> {
        let listener = acceptor::listen(address)
            .map_err(|e| BootstrapError::system(format!("root listening on {address}"), e))?;
        let bound = listener
            .local_addr()
            .map_err(|e| BootstrapError::system("address of the root's socket", e))?;
        let id = UniqueId::published(bound)?;
        root::spawn_detached(listener, join::root_key(&id), acceptor::PATIENCE)?;
        Ok(id)
    }
}

/// A rank that has found its group. Its calls may be made from several threads; those that are collective
/// must come in the same order on every rank.
///
/// ```
/// use ferroccl_bootstrap::{Bootstrap, BootstrapError, Settings, UniqueId};
///
/// let settings = Settings::default();
/// let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into())?;
/// let sums: Vec<u32> = std::thread::scope(|scope| {
///     let ranks: Vec<_> = (0..3u8).map(|rank| {
///         let (id, settings) = (&id, &settings);
///         scope.spawn(move || {
///             let group = Bootstrap::connect(id, rank.into(), 3, settings)?;
///             let all = group.all_gather(&[10 * rank])?;
///             Ok::<u32, BootstrapError>(all.iter().map(|bytes| u32::from(bytes[0])).sum())
///         })
///     }).collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_, _>>()
/// })?;
/// assert_eq!(sums, [30, 30, 30]);
/// # Ok::<(), BootstrapError>(())
/// ```
#[derive(Debug)]
pub struct Bootstrap {
    rank: u32,
    nranks: u32,
    /// The limit of each call.
    limit: Limit,
    /// What only the ranks of this group have.
    key: Key,
    /// `None` in a group of one, and after [`Bootstrap::watch`].
    group: Option<Group>,
    /// What a group of one sends to itself.
    own: Mutex<p2p::Queues>,
}

/// Bytes of an address in text at most: `[IPv6%scope]:port`.
const MAX_ADDRESS: usize = 1 + 39 + 1 + 10 + 1 + 1 + 5;

/// The address that a rank's block of the first all-gather begins with, and the bytes before its introduction.
fn address_of(block: &[u8]) -> Option<(SocketAddr, usize)> {
    let (length, rest) = block.split_first()?;
    let text = rest.get(..usize::from(*length))?;
    Some((std::str::from_utf8(text).ok()?.parse().ok()?, 1 + text.len()))
}

/// What is only there with other ranks.
#[derive(Debug)]
struct Group {
    links: Mutex<Links>,
    inbox: Mutex<Inbox>,
    outbox: Mutex<Outbox>,
}

impl Bootstrap {
    /// Joins the group of `id` as `rank` of `nranks`; returns when all ranks are there. A group of one
    /// needs no network; it only tells the id's root, if there is one, that nobody will come. Each id is for one group, unless it is a rendezvous: that is free again when its group
    /// is complete.
    ///
    /// # Errors
    /// [`BootstrapError::InvalidArgument`] when `rank` is not of such a group. [`BootstrapError`] when the root cannot
    /// be reached or turns this rank away, and, when [`Settings::timeout`] is over, naming the ranks
    /// that are missing. [`BootstrapError::PeerLost`] when a neighbour leaves meanwhile. [`BootstrapError::System`].
    pub fn connect(id: &UniqueId, rank: u32, nranks: u32, settings: &Settings) -> Result<Self> {
        Self::connect_unless(Stop::default(), id, rank, nranks, settings)
    }

    /// As [`Bootstrap::connect`]; it, and what the rank does later, fails soon after `stop` is set.
    ///
    /// # Errors
    /// As there.
    pub fn connect_unless(
        stop: Stop,
        id: &UniqueId,
        rank: u32,
        nranks: u32,
        settings: &Settings,
    ) -> Result<Self> {
        Ok(Self::connect_with(&[], stop, id, rank, nranks, settings)?.0)
    }

    /// As [`Bootstrap::connect_unless`], and an all-gather in one: gives every rank's `introduction` to every rank. It takes no messages of its
    /// own. A rank is in the group whatever its introduction says.
    ///
    /// # Errors
    /// As there, and [`BootstrapError::InvalidArgument`] when `introduction` is longer than [`wire::MAX_DATA`] less 256 bytes.
    ///
    /// ```
    /// use ferroccl_bootstrap::{Bootstrap, Settings, Stop, UniqueId};
    ///
    /// let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into())?;
    /// let settings = Settings::default();
    /// let (group, introductions) = Bootstrap::connect_with(b"mine", Stop::default(), &id, 0, 1, &settings)?;
    /// assert_eq!((group.nranks(), introductions.iter().next()), (1, Some(&b"mine"[..])));
    /// # Ok::<(), ferroccl_bootstrap::BootstrapError>(())
    /// ```
    pub fn connect_with(
        introduction: &[u8],
        stop: Stop,
        id: &UniqueId,
        rank: u32,
        nranks: u32,
        settings: &Settings,
    ) -> Result<(Self, GatheredBlocks)> {
        Self::connect_at(None, introduction, stop, id, rank, nranks, settings)
    }

    /// The same. Where rank 0 runs the root it does so on `listener`, if there is one.
    pub(crate) fn connect_at(
        listener: Option<TcpListener>,
        introduction: &[u8],
        stop: Stop,
        id: &UniqueId,
        rank: u32,
        nranks: u32,
        settings: &Settings,
    ) -> Result<(Self, GatheredBlocks)> {
        if introduction.len() > wire::MAX_DATA - MAX_ADDRESS - 1 {
            let reason = format!("{} bytes are too long for an all-gather", introduction.len());
            return Err(BootstrapError::argument("introduction", reason));
        }
        if nranks == 0 || nranks > wire::MAX_RANKS {
            let most = wire::MAX_RANKS;
            return Err(BootstrapError::argument("nranks", format!("{nranks} is not 1 to {most}")));
        }
        if rank >= nranks {
            return Err(BootstrapError::argument(
                "rank",
                format!("{rank} is not of a group of {nranks}"),
            ));
        }
        let limit = Limit { time: settings.timeout, stop };
        let own = Mutex::new(p2p::Queues::default());
        if nranks == 1 {
            join::dismiss(id);
            let session = nonce().map_err(|e| BootstrapError::system("random nonce", e))?;
            let key = join::group_key(id, &session);
            let alone = Bootstrap { rank, nranks, limit, key, group: None, own };
            return Ok((alone, GatheredBlocks::alone(introduction)));
        }
        let deadline = limit.start();
        let joined = join::join(listener, id, rank, nranks, settings, deadline.clone())?;
        let peers = PeerAcceptor::start(joined.acceptor, rank, nranks)?;
        let mut links = Links::open(rank, nranks, &peers, &joined.key, &joined.called, &deadline)?;
        let address = peers.address().to_string();
        // An address has no more bytes than MAX_ADDRESS, in any family.
        let mine = [&[address.len() as u8], address.as_bytes(), introduction].concat();
        let (addresses, introductions) = links
            .all_gather(&mine, &limit)?
            .split(address_of)
            .ok_or_else(|| BootstrapError::Malformed("a rank's address is none".to_owned()))?;
        tracing::info!(target: LOG_TARGET, "rank {rank} of {nranks} is connected");
        let group = Group {
            links: Mutex::new(links),
            inbox: Mutex::new(Inbox::new(rank, peers)),
            outbox: Mutex::new(Outbox::new(rank, addresses, joined.key.clone())),
        };
        Ok((
            Bootstrap { rank, nranks, limit, key: joined.key, group: Some(group), own },
            introductions,
        ))
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

    /// A secret of this group for one `purpose`: the same on each of its ranks, unknown to all others, and never sent.
    #[must_use]
    pub fn secret(&self, purpose: &str) -> [u8; 32] {
        // The key is that of this group alone, so that the nonce need not vary.
        self.key.secret(purpose, &Nonce::default())
    }

    /// Gives every rank's bytes to every rank, in the order of ranks. Collective; lengths may differ, each
    /// at most [`wire::MAX_DATA`].
    ///
    /// # Errors
    /// [`BootstrapError::InvalidArgument`] when `mine` is too long. [`BootstrapError::PeerLost`] when a rank is gone, and
    /// [`BootstrapError`] when it takes too long or ranks are in different calls: every later call then gives the same
    /// error.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.gather_blocks(mine)?.to_vecs())
    }

    /// The same; what large groups say is in one piece of memory.
    ///
    /// # Errors
    /// As there.
    pub fn gather_blocks(&self, mine: &[u8]) -> Result<GatheredBlocks> {
        p2p::check_length("mine", mine)?;
        match &self.group {
            Some(group) => lock(&group.links).all_gather(mine, &self.limit),
            None => Ok(GatheredBlocks::alone(mine)),
        }
    }

    /// All-gathers that this rank has taken part in: barriers, and that of the ranks' addresses, are among them.
    #[must_use]
    pub fn gathers(&self) -> u32 {
        self.group.as_ref().map_or(0, |group| lock(&group.links).gathers.call())
    }

    /// Returns when every rank has called it. Collective.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`].
    pub fn barrier(&self) -> Result<()> {
        self.gather_blocks(&[]).map(drop)
    }

    /// Sends bytes to a rank, this one included. Returns when the system has taken them: a message larger than
    /// the sockets' buffers waits until the peer receives.
    ///
    /// # Errors
    /// [`BootstrapError::InvalidArgument`] when there is no such peer or `bytes` is longer than [`wire::MAX_DATA`];
    /// [`BootstrapError::PeerLost`] when the peer is gone; [`BootstrapError`] when it takes too long.
    pub fn send(&self, peer: u32, tag: u64, bytes: &[u8]) -> Result<()> {
        self.check_peer(peer)?;
        p2p::check_length("bytes", bytes)?;
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
    /// [`BootstrapError::InvalidArgument`] when there is no such peer; [`BootstrapError::PeerLost`] when the peer has closed its
    /// connection and nothing of it is left; [`BootstrapError`] when it takes too long.
    pub fn recv(&self, peer: u32, tag: u64) -> Result<Vec<u8>> {
        self.check_peer(peer)?;
        match &self.group {
            Some(group) if peer != self.rank => lock(&group.inbox).recv(peer, tag, &self.limit),
            _ => lock(&self.own).pop(peer, tag).ok_or_else(|| {
                let what = format!("rank {peer} has sent itself nothing with tag {tag}");
                BootstrapError::Mismatch(what)
            }),
        }
    }

    /// Where this rank listens; of a group of one, loopback.
    pub(crate) fn address(&self) -> SocketAddr {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        self.group.as_ref().map_or(loopback, |group| lock(&group.inbox).address())
    }

    /// What only the ranks of this group have.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    fn check_peer(&self, peer: u32) -> Result<()> {
        if peer < self.nranks {
            return Ok(());
        }
        Err(BootstrapError::argument(
            "peer",
            format!("{peer} is not of a group of {}", self.nranks),
        ))
    }

    /// Ends set-up and keeps the ring as a life line: `on_gone` is called once for every rank that is lost or
    /// leaves, from a thread that otherwise sleeps. It must not block, and may drop the [`Watch`].
    ///
    /// # Errors
    /// [`BootstrapError::System`] when there can be no thread.
    pub fn watch(self, on_gone: impl FnMut(Departure) + Send + 'static) -> Result<Watch> {
        self.watch_and_hear(None, on_gone, |_, _| {})
    }

    /// As [`Bootstrap::watch`]; neighbours that keep no `heartbeat` are lost, and `on_news` is called, on the same terms, with
    /// what a rank has told all others ([`Watch::tell`], [`Watch::publish`]).
    ///
    /// # Errors
    /// As there.
    pub fn watch_and_hear(
        mut self,
        heartbeat: Option<Heartbeat>,
        on_gone: impl FnMut(Departure) + Send + 'static,
        on_news: impl FnMut(u32, News<'_>) + Send + 'static,
    ) -> Result<Watch> {
        let Some(group) = self.group.take() else { return Ok(Watch::alone(self.key.clone())) };
        let links = group.links.into_inner().unwrap_or_else(PoisonError::into_inner);
        let address = lock(&group.inbox).address();
        Watch::start(links, address, self.key.clone(), heartbeat, on_gone, on_news)
    }
}

impl Drop for Bootstrap {
    /// Tells the neighbours that this rank leaves.
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            lock(&group.links).say_goodbye();
        }
    }
}
