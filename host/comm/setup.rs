//! How a group comes together.
//!
//! ```text
//! init_all    one process: every edge is made on the spot
//! init_rank   1. bootstrap: find each other, tell each other PeerInfo and layout
//!             2. the transport of each edge, chosen alike on both ends
//!             3. offer an inbox to all, accept a part of everybody's
//!             4. barrier; from here on the bootstrap only watches for lost peers
//! ```

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ferroccl_device::abi::Peer;
use ferroccl_proxy::collnet::CollNet;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::info;

use super::collnet::{self, Heads};
use super::control::{Control, Frame};
use super::inbox::{Handles, OwnInbox};
use super::net::Remote;
use super::nodes::{Nodes, Trees};
use super::oob::{OutOfBand, Room};
use super::terms::{Asked, Terms, Token, agree, settings};
use super::{AbortHandle, CommConfig, Communicator, Inner, gpus, inbox, machine};
use crate::bootstrap::{Beat, Bootstrap, Stop, UniqueId};
use crate::buffer::Device;
use crate::channel::{ConnLayout, EdgeEnd, Edges, Set};
use crate::config::Config;
use crate::enqueue::{NetworkOps, Shape};
use crate::graph::tuning::{Devices, Settings, Situation, Tuner};
use crate::log;
use crate::runtime::Keep;
use crate::transport::{self, PeerInfo};
use crate::{Error, Result};

/// What a rank has settled before it is a communicator.
pub(super) struct Member<'a> {
    pub device: &'a Device,
    pub config: &'a CommConfig,
    pub env: &'a Config,
    pub settings: Asked,
    pub token: Token,
    pub rank: u32,
    pub nranks: u32,
    pub layout: ConnLayout,
    pub channels: u32,
    pub all_channels: bool,
    pub blocks: Blocks,
}

/// The blocks that a rank's calls may have at most, so that all of them are there at a time: a collective may be under way
/// beside messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub collectives: u32,
    pub messages: u32,
}

impl Blocks {
    /// Of so many. Messages need fewer: a block goes through several, in turns.
    fn of(resident: u32) -> Self {
        let messages = (resident / 4).clamp(1, 16);
        Blocks { collectives: resident.saturating_sub(messages).max(1), messages }
    }
}

impl Communicator {
    /// All ranks of a group in this process, on one device; element `i` is rank `i`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `nranks` is 0, [`Error::System`] when there is not enough memory.
    ///
    /// ```
    /// let ranks = ferroccl::Communicator::init_all(&ferroccl::Device::cpu(), 3)?;
    /// assert_eq!(ranks[2].rank(), 2);
    /// assert_eq!(ranks[2].world_size(), 3);
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn init_all(device: &Device, nranks: u32) -> Result<Vec<Communicator>> {
        Self::init_all_with(device, nranks, &CommConfig::default())
    }

    /// [`Communicator::init_all`] with settings.
    ///
    /// # Errors
    /// As there, and [`Error::InvalidSetting`] when a setting makes no sense.
    pub fn init_all_with(
        device: &Device,
        nranks: u32,
        config: &CommConfig,
    ) -> Result<Vec<Communicator>> {
        if nranks == 0 {
            return Err(Error::argument("nranks", "a group has at least one rank"));
        }
        Self::init_all_on(&vec![device.clone(); nranks as usize], config)
    }

    /// All ranks of a group in this process, each on a device of its own or of several (NCCL's `ncclCommInitAll`); element
    /// `i` is rank `i`, on `devices[i]`.
    ///
    /// # Errors
    /// As [`Communicator::init_all_with`].
    ///
    /// ```
    /// use ferroccl::{CommConfig, Communicator, Device};
    ///
    /// let devices = vec![Device::cpu(); 2]; // or Device::cuda(0)?, Device::cuda(1)?
    /// let ranks = Communicator::init_all_on(&devices, &CommConfig::default())?;
    /// assert_eq!(ranks[1].world_size(), 2);
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn init_all_on(devices: &[Device], config: &CommConfig) -> Result<Vec<Communicator>> {
        let nranks = u32::try_from(devices.len()).ok().filter(|n| *n > 0);
        let nranks =
            nranks.ok_or_else(|| Error::argument("devices", "a group has at least one rank"))?;
        let env = Config::from_env()?;
        let config = &config.or(&CommConfig::from_env(&env));
        let peers: Vec<PeerInfo> = (0..)
            .zip(devices)
            .map(|(rank, device)| process_info(rank, device, &env))
            .collect::<Result<_>>()?;
        // What each rank would have; all take the least.
        let layout = config.layout(devices[0].runtime().buffers(), false)?;
        let ranks = || (0..nranks).zip(devices);
        let blocks = ranks()
            .map(|(rank, device)| device.runtime().resident_blocks(sharing(&peers, rank)))
            .min();
        let blocks = Blocks::of(blocks.unwrap_or(1));
        let natural = ranks().map(|(_, device)| device.runtime().parallelism()).min();
        let natural = natural.unwrap_or(1).min(blocks.collectives);
        let natural = natural.min(gpus::most_channels(&peers, inbox::allowed(config, &env)));
        let (channels, all_channels) = config.channels(natural)?;
        let settings = settings(config, &env);
        machine::look(&env)?;
        let token = Token::new()?;
        let member = |rank: u32| Member {
            device: &devices[rank as usize],
            config,
            env: &env,
            settings,
            token,
            rank,
            nranks,
            layout,
            channels,
            all_channels,
            blocks,
        };
        if nranks == 1 {
            return Ok(vec![member(0).join(vec![None], &peers, None, None)?]);
        }
        let inboxes: Vec<OwnInbox> =
            (0..nranks).map(|rank| member(rank).open_inbox(&peers)).collect::<Result<_>>()?;
        let handles: Vec<Handles> = inboxes.iter().map(|inbox| inbox.handles.clone()).collect();
        let all = (0..nranks).map(|rank| Nodes::new(rank, &peers, config.ranks_per_node)).collect();
        let net = reducing(config, &env, &peers, true)?;
        let heads = collnet::join_all(net.as_ref(), all)?;
        // What is offered stays open until all have accepted.
        let edges = (0..nranks)
            .zip(&inboxes)
            .map(|(rank, inbox)| member(rank).edges(inbox, &peers, &handles))
            .collect::<Result<Vec<_>>>()?;
        let made = (0..nranks).zip(inboxes).zip(edges).zip(heads);
        let ranks = made.map(|(((rank, inbox), edges), heads)| {
            let member = member(rank);
            let remote = member.remote(inbox.listening, &edges, &handles)?;
            member.join(edges, &peers, remote, heads)
        });
        let ranks = ranks.collect::<Result<Vec<_>>>()?;
        Room::seat(&ranks);
        Ok(ranks)
    }

    /// One rank of a group, in a thread or process of its own: `rank` of `nranks`, found by `id`, which one
    /// process makes ([`UniqueId::new`]) and hands to the others. Returns when all ranks have come.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `rank` is not below `nranks`; [`Error::Bootstrap`] when the ranks do not
    /// find each other or disagree; [`Error::Unavailable`] when no transport reaches a neighbour.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, UniqueId, config::Config};
    ///
    /// let id = UniqueId::new(&Config::from_env()?)?;
    /// std::thread::scope(|threads| {
    ///     let ranks: Vec<_> = (0..2)
    ///         .map(|r| threads.spawn(move || Communicator::init_rank(&Device::cpu(), 2, &id, r)))
    ///         .collect();
    ///     ranks.into_iter().map(|t| t.join().unwrap()).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn init_rank(
        device: &Device,
        nranks: u32,
        id: &UniqueId,
        rank: u32,
    ) -> Result<Communicator> {
        Self::init_rank_with(device, nranks, id, rank, &CommConfig::default())
    }

    /// [`Communicator::init_rank`] with settings.
    ///
    /// # Errors
    /// As there, and [`Error::InvalidSetting`] when a setting makes no sense.
    pub fn init_rank_with(
        device: &Device,
        nranks: u32,
        id: &UniqueId,
        rank: u32,
        config: &CommConfig,
    ) -> Result<Communicator> {
        if rank >= nranks {
            return Err(Error::argument(
                "rank",
                format!("{rank} is not below nranks, which is {nranks}"),
            ));
        }
        let stop = config.abort.as_ref().map(AbortHandle::stop).unwrap_or_default();
        Self::come(device, nranks, id, rank, config, &stop).map_err(|error| {
            if !stop.is_set() {
                return error;
            }
            Error::Aborted { rank, cause: format!("while the ranks came together: {error}") }
        })
    }

    /// Comes to the group of `id`, unless `stop` is set meanwhile.
    pub(super) fn come(
        device: &Device,
        nranks: u32,
        id: &UniqueId,
        rank: u32,
        config: &CommConfig,
        stop: &Stop,
    ) -> Result<Communicator> {
        let env = Config::from_env()?;
        let config = &config.or(&CommConfig::from_env(&env));
        if rank == 0 {
            machine::look(&env)?;
        }
        let bootstrap = Bootstrap::connect_unless(stop.clone(), id, rank, nranks, &env)?;
        let peers: Vec<PeerInfo> = exchange(&bootstrap, &process_info(rank, device, &env)?)?;

        let host = &peers[rank as usize].host;
        let local: HashSet<u64> =
            peers.iter().filter(|p| p.host == *host).map(|p| p.process).collect();
        device.runtime().share_host(local.len());
        let runtime = device.runtime();
        let resident = runtime.resident_blocks(sharing(&peers, rank));
        let most = Blocks::of(resident).collectives;
        let most = most.min(gpus::most_channels(&peers, inbox::allowed(config, &env)));
        let (natural, all_channels) = config.channels(runtime.parallelism().min(most))?;
        let several_hosts = peers.iter().any(|peer| peer.host != *host);
        let mine = Terms {
            layout: config.layout(runtime.buffers(), several_hosts)?,
            channels: natural,
            blocks: resident,
            all_channels,
            settings: settings(config, &env),
            collnet: config.collnet.is_some() || env.collnet_enable,
            token: Token::new()?,
            timeout_ns: config.timeout_ns(),
        };
        let terms: Vec<Terms> = exchange(&bootstrap, &mine)?;
        let (channels, blocks) = agree(rank, &mine, &terms)?;

        let member = Member {
            device,
            config,
            env: &env,
            settings: mine.settings,
            token: terms[0].token,
            rank,
            nranks,
            layout: mine.layout,
            channels,
            all_channels,
            blocks: Blocks::of(blocks),
        };
        if nranks == 1 {
            return member.join(vec![None], &peers, None, None);
        }
        let (edges, remote) = member.connect(&bootstrap, &peers)?;
        let one_process = peers.iter().all(|peer| peer.process == peers[0].process);
        let net = reducing(config, &env, &peers, one_process)?;
        let nodes = Nodes::new(rank, &peers, config.ranks_per_node);
        let heads = collnet::join(net.as_ref(), &nodes, |handle| exchange(&bootstrap, handle))?;
        let communicator = member.join(edges, &peers, remote, heads)?;
        // The counters of every edge are in place: kernels may start.
        bootstrap.barrier()?;
        let inner = Arc::downgrade(&communicator.0);
        let hears = inner.clone();
        let gone = move |departure| {
            // Weak: the watch must not keep a communicator alive.
            if let Some(inner) = inner.upgrade() {
                inner.gone(departure);
            }
        };
        let beat = terms.iter().map(|terms| terms.timeout_ns).filter(|ns| *ns > 0).min();
        let beat = beat.map(|ns| Beat::within(Duration::from_nanos(ns)));
        let watch = bootstrap.watch_and_hear(beat, gone, move |teller, news| {
            if let Some(inner) = hears.upgrade() {
                inner.heard(teller, news);
            }
        })?;
        // The cell is new.
        let _ = communicator.0.oob.set(OutOfBand::Ring(watch));
        Ok(communicator)
    }
}

/// Tells all ranks `mine`; element `i` is rank `i`'s.
pub(super) fn exchange<T: Serialize + DeserializeOwned>(
    bootstrap: &Bootstrap,
    mine: &T,
) -> Result<Vec<T>> {
    let bytes = serde_json::to_vec(mine).map_err(|e| Error::malformed(e.to_string()))?;
    bootstrap
        .all_gather(&bytes)?
        .iter()
        .enumerate()
        .map(|(peer, bytes)| {
            serde_json::from_slice(bytes)
                .map_err(|e| Error::malformed(format!("what rank {peer} says of itself: {e}")))
        })
        .collect()
}

impl Member<'_> {
    /// How calls are done. Of what all ranks have agreed on only: they must choose alike.
    fn tuner(&self, nodes: u32, collnet: bool, peers: &[PeerInfo]) -> Tuner {
        let allowed = inbox::allowed(self.config, self.env);
        let graphs = gpus::Graphs::new(peers, self.channels, allowed);
        let devices = graphs.as_ref().map_or(Devices::Cpu { ring: None }, gpus::Graphs::devices);
        let situation = Situation::new(nodes, self.nranks, devices);
        let Asked { protocols, algorithms, deterministic, .. } = self.settings;
        let settings = Settings { protocols, algorithms, deterministic, ..Settings::default() };
        let situation = situation.with_channels(self.channels).with_collnet(collnet);
        Tuner::new(&situation, &settings)
    }

    /// The communicator over its edges with all peers.
    fn join(
        self,
        edges: Vec<Option<Edges>>,
        peers: &[PeerInfo],
        remote: Option<Remote>,
        heads: Option<Heads>,
    ) -> Result<Communicator> {
        let first = self.config.first_step;
        let channels = self.channels as usize;
        let mut views = Vec::with_capacity(2 * channels * edges.len());
        for set in [Set::Collective, Set::P2p] {
            for channel in 0..channels {
                views.extend(edges.iter().map(|edges| {
                    edges.as_ref().map_or_else(Peer::default, |edges| {
                        edges.peer(&self.layout, channels, set, channel, first)
                    })
                }));
            }
        }
        let nodes = Nodes::new(self.rank, peers, self.config.ranks_per_node);
        let scratch = self.device.runtime().allocate(channels * SCRATCH_BYTES + BARRIER_BYTES)?;
        let frame = Frame {
            rank: self.rank,
            nranks: self.nranks,
            channels: self.channels,
            timeout_ns: self.config.timeout_ns(),
            scratch: (scratch.address(), SCRATCH_BYTES as u64),
        };
        let tuner = self.tuner(nodes.count() as u32, heads.is_some(), peers);
        let runtime = &**self.device.runtime();
        let control = Control::new(frame, &views, &nodes.rings(self.nranks), runtime)?;
        for Edges { send, recv } in edges.iter().flatten() {
            send.start_at(&self.layout, channels, first, runtime)?;
            recv.start_at(&self.layout, channels, first, runtime)?;
        }
        let registered = self.register(&edges, &control)?;
        info!(target: log::INIT, rank = self.rank, nranks = self.nranks, channels = self.channels,
              nodes = nodes.count(), runtime = self.device.runtime().name(), "Init COMPLETE");
        let abort = self.config.abort.clone().unwrap_or_default();
        let communicator = Communicator(Arc::new(Inner {
            rank: self.rank,
            nranks: self.nranks,
            device: self.device.clone(),
            config: self.config.clone(),
            shape: Shape {
                ranks: self.nranks,
                nodes: nodes.count() as u32,
                channels: self.channels,
                blocks: self.blocks.collectives,
                tuner,
                all_channels: self.all_channels,
                algorithm: self.config.algorithm,
                network: heads.as_ref().map_or_else(NetworkOps::default, Heads::ops),
            },
            remote: remote.map(Arc::new),
            heads,
            trees: Trees::new(self.rank, self.channels, &nodes),
            nodes,
            barrier: scratch.address() + (channels * SCRATCH_BYTES) as u64,
            _scratch: scratch,
            _registered: registered,
            edges: edges.into_iter().flatten().collect(),
            control,
            order: Mutex::default(),
            cause: OnceLock::new(),
            failed: Arc::new(AtomicBool::new(false)),
            abort,
            oob: OnceLock::new(),
            forming: Mutex::new(()),
            sharing: sharing(peers, self.rank),
            message_blocks: self.blocks.messages,
        }));
        communicator.0.abort.guard(&communicator.0);
        Ok(communicator)
    }

    /// Lets this rank's kernels reach what they share with the host and with the other ranks.
    fn register(&self, edges: &[Option<Edges>], control: &Control) -> Result<Vec<Keep>> {
        let mut memory = vec![(control.shared(), "a communicator's control block")];
        let shared = |end: &EdgeEnd| end.shared(&self.layout, self.channels as usize);
        for Edges { send, recv } in edges.iter().flatten() {
            memory.push((shared(send), "an edge to another rank"));
            memory.push((shared(recv), "an edge from another rank"));
        }
        let runtime = self.device.runtime();
        memory
            .into_iter()
            // SAFETY: the communicator keeps the memory for longer than what is returned here, and each launch
            // keeps the communicator; both sides access it through atomics or under the protocols' orders.
            .map(|((address, bytes), what)| unsafe { runtime.register(address, bytes, what) })
            .collect()
    }
}

/// Bytes of scratch memory of a channel: of what is combined step by step, one chunk of few bytes.
const SCRATCH_BYTES: usize = 128 << 10;

/// Bytes that barriers reduce, behind the scratch memory.
const BARRIER_BYTES: usize = 256;

/// The network that reduces, if there is one.
///
/// # Errors
/// [`Error::Unavailable`] for GPUs: what there is reduces the host's memory.
fn reducing(
    config: &CommConfig,
    env: &Config,
    peers: &[PeerInfo],
    one_process: bool,
) -> Result<Option<Arc<dyn CollNet>>> {
    let net = config.collnet(env, one_process);
    if net.is_some() && peers.iter().any(|peer| peer.device.is_some()) {
        return Err(Error::Unavailable {
            what: "a network that reduces (NCCL_COLLNET_ENABLE), for GPUs".to_owned(),
            reason: "it reduces what is in the host's memory".to_owned(),
        });
    }
    Ok(net)
}

/// How many ranks have the device of `rank`, itself among them; 1 where devices have no memory of their own.
fn sharing(peers: &[PeerInfo], rank: u32) -> u32 {
    let me = &peers[rank as usize];
    let same = |peer: &&PeerInfo| match (&peer.device, &me.device) {
        (Some(theirs), Some(mine)) => peer.host == me.host && theirs.id == mine.id,
        _ => peer.rank == rank,
    };
    peers.iter().filter(same).count() as u32
}

/// What this process tells its peers.
fn process_info(rank: u32, device: &Device, env: &Config) -> Result<PeerInfo> {
    let boot_id = || {
        let path = "/proc/sys/kernel/random/boot_id";
        std::fs::read_to_string(path)
            .map(|s| s.trim().to_owned())
            .map_err(|e| Error::system(format!("reading {path}"), e))
    };
    let namespace = std::fs::read_link("/proc/self/ns/pid")
        .map(|p| p.display().to_string())
        .unwrap_or_default();
    Ok(PeerInfo {
        rank,
        pid: std::process::id(),
        process: transport::process_token()?,
        space: device.runtime().address_space(),
        device: device.runtime().device_info()?,
        host: env.hostid.clone().map_or_else(boot_id, Ok)?,
        pid_namespace: namespace,
    })
}
