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
use std::sync::{Arc, Mutex, OnceLock};

use ferroccl_device::abi::{Peer, ProtocolId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::collnet::{self, Heads};
use super::control::{Control, Frame};
use super::nodes::{Nodes, Trees};
use super::{CommConfig, Communicator, Inner, machine};
use crate::bootstrap::{Bootstrap, BootstrapError, UniqueId};
use crate::buffer::Device;
use crate::channel::{ConnLayout, EdgeEnd, Edges, Set};
use crate::config::{Config, Selection, Setting as _};
use crate::enqueue::{NetworkOps, Shape};
use crate::graph::tuning::{Algorithm, Devices, Settings, Situation, Tuner};
use crate::log;
use crate::runtime::Keep;
use crate::transport::{self, Allowed, Inbox, PeerInfo, Transport};
use crate::{Error, Result};

/// What a rank has settled before it is a communicator.
struct Member<'a> {
    device: &'a Device,
    config: &'a CommConfig,
    settings: Asked,
    rank: u32,
    nranks: u32,
    layout: ConnLayout,
    channels: u32,
    all_channels: bool,
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
        let env = Config::from_env()?;
        let config = &config.or(&env);
        let layout = config.layout()?;
        let (channels, all_channels) = config.channels(device.runtime().parallelism())?;
        let settings = settings(config, &env);
        machine::look(&env)?;
        let member = |rank| Member {
            device,
            config,
            settings,
            rank,
            nranks,
            layout,
            channels,
            all_channels,
        };
        if nranks == 1 {
            return Ok(vec![member(0).join(
                vec![None],
                &[process_info(0, device, &env)?],
                None,
            )?]);
        }
        let process = process_info(0, device, &env)?;
        let peers = vec![process; nranks as usize];
        let inboxes: Vec<OwnInbox> =
            (0..nranks).map(|rank| member(rank).open_inbox(&peers)).collect::<Result<_>>()?;
        let handles: Vec<Handles> = inboxes.iter().map(|inbox| inbox.handles.clone()).collect();
        let all = (0..nranks).map(|rank| Nodes::new(rank, &peers, config.ranks_per_node)).collect();
        let heads = collnet::join_all(config.collnet(&env, true).as_ref(), all)?;
        (0..nranks)
            .zip(&inboxes)
            .zip(heads)
            .map(|((rank, inbox), heads)| {
                let member = member(rank);
                let edges = member.edges(inbox, &peers, &handles)?;
                member.join(edges, &peers, heads)
            })
            .collect()
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
        let env = Config::from_env()?;
        let config = &config.or(&env);
        if rank == 0 {
            machine::look(&env)?;
        }
        let bootstrap = Bootstrap::connect(id, rank, nranks, &env)?;
        let peers: Vec<PeerInfo> = exchange(&bootstrap, &process_info(rank, device, &env)?)?;

        let host = &peers[rank as usize].host;
        let local: HashSet<u64> =
            peers.iter().filter(|p| p.host == *host).map(|p| p.process).collect();
        device.runtime().share_host(local.len());
        let (natural, all_channels) = config.channels(device.runtime().parallelism())?;
        let mine = Terms {
            layout: config.layout()?,
            channels: natural,
            all_channels,
            settings: settings(config, &env),
            collnet: config.collnet.is_some() || env.collnet_enable,
        };
        let terms: Vec<Terms> = exchange(&bootstrap, &mine)?;
        let channels = agree(rank, &mine, &terms)?;

        let member = Member {
            device,
            config,
            settings: mine.settings,
            rank,
            nranks,
            layout: mine.layout,
            channels,
            all_channels,
        };
        if nranks == 1 {
            return member.join(vec![None], &peers, None);
        }
        let edges = member.connect(&bootstrap, &peers)?;
        let one_process = peers.iter().all(|peer| peer.process == peers[0].process);
        let net = config.collnet(&env, one_process);
        let nodes = Nodes::new(rank, &peers, config.ranks_per_node);
        let heads = collnet::join(net.as_ref(), &nodes, |handle| exchange(&bootstrap, handle))?;
        let communicator = member.join(edges, &peers, heads)?;
        // The counters of every edge are in place: kernels may start.
        bootstrap.barrier()?;
        let inner = Arc::downgrade(&communicator.0);
        let watch = bootstrap.watch(move |departure| {
            // Weak: the watch must not keep a communicator alive.
            if let Some(inner) = inner.upgrade() {
                inner.gone(departure);
            }
        })?;
        // The cell is new.
        let _ = communicator.0.watch.set(watch);
        Ok(communicator)
    }
}

/// What ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Terms {
    layout: ConnLayout,
    channels: u32,
    all_channels: bool,
    settings: Asked,
    collnet: bool,
}

/// What the user asks of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    protocols: Selection<ProtocolId>,
    algorithms: Selection<Algorithm>,
    deterministic: bool,
    algorithm: Option<u8>,
    ranks_per_node: Option<u32>,
}

fn settings(config: &CommConfig, env: &Config) -> Asked {
    Asked {
        protocols: config.protocols(env),
        algorithms: env.algo,
        deterministic: config.deterministic.unwrap_or(env.deterministic),
        algorithm: config.algorithm.map(|algorithm| algorithm as u8),
        ranks_per_node: config.ranks_per_node,
    }
}

/// The channels of a group: as many as every rank has. All else must be equal.
fn agree(rank: u32, mine: &Terms, terms: &[Terms]) -> Result<u32> {
    for (peer, theirs) in terms.iter().enumerate() {
        let differs = |what: &str, ours: String, theirs: String| {
            let text = format!(
                "{what} of rank {rank} is {ours}, of rank {peer} {theirs}: all ranks need the same"
            );
            Err(BootstrapError::Mismatch(text).into())
        };
        if theirs.layout.slots != mine.layout.slots {
            return differs(
                "slots (FERROCCL_SLOTS)",
                mine.layout.slots.to_string(),
                theirs.layout.slots.to_string(),
            );
        }
        if theirs.layout != mine.layout {
            let show = |t: &Terms| format!("{:?}", t.layout.slot_bytes);
            let what = "slot bytes for LL, LL128 and Simple (NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE)";
            return differs(what, show(mine), show(theirs));
        }
        for (what, show) in [
            ("NCCL_PROTO", (|t| t.settings.protocols.show()) as fn(&Terms) -> String),
            ("NCCL_ALGO", |t| t.settings.algorithms.show()),
            ("FERROCCL_DETERMINISTIC", |t| t.settings.deterministic.show()),
            ("the algorithm", |t| format!("{:?}", t.settings.algorithm)),
            ("FERROCCL_RANKS_PER_NODE", |t| format!("{:?}", t.settings.ranks_per_node)),
        ] {
            if show(mine) != show(theirs) {
                return differs(what, show(mine), show(theirs));
            }
        }
        if theirs.collnet != mine.collnet {
            let what = "whether there may be a network that reduces (NCCL_COLLNET_ENABLE)";
            return differs(what, mine.collnet.to_string(), theirs.collnet.to_string());
        }
        if theirs.all_channels != mine.all_channels
            || (mine.all_channels && theirs.channels != mine.channels)
        {
            return differs("channels", mine.channels.to_string(), theirs.channels.to_string());
        }
    }
    Ok(terms.iter().map(|t| t.channels).min().unwrap_or(1))
}

/// Tells all ranks `mine`; element `i` is rank `i`'s.
fn exchange<T: Serialize + DeserializeOwned>(bootstrap: &Bootstrap, mine: &T) -> Result<Vec<T>> {
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
    /// Makes the edges with all peers, over the bootstrap.
    fn connect(&self, bootstrap: &Bootstrap, peers: &[PeerInfo]) -> Result<Vec<Option<Edges>>> {
        let inbox = self.open_inbox(peers)?;
        let handles: Vec<Handles> = exchange(bootstrap, &inbox.handles)?;
        let edges = self.edges(&inbox, peers, &handles)?;
        // What was offered stays open until everybody has mapped it.
        bootstrap.barrier()?;
        Ok(edges)
    }

    /// Bytes of an edge.
    fn edge_bytes(&self) -> usize {
        self.layout.edge_bytes(self.channels as usize)
    }

    /// Bytes of an inbox: an edge from each rank. Our own part stays untouched.
    fn inbox_bytes(&self) -> Result<usize> {
        self.edge_bytes()
            .checked_mul(self.nranks as usize)
            .filter(|n| *n <= isize::MAX as usize)
            .ok_or_else(|| {
                let reason = format!(
                    "{} connections of {} bytes are more than memory has",
                    self.nranks,
                    self.edge_bytes()
                );
                Error::argument("nranks", reason)
            })
    }

    /// The memory that this rank receives in, and the handles of it for all transports that its peers use.
    fn open_inbox(&self, peers: &[PeerInfo]) -> Result<OwnInbox> {
        let me = &peers[self.rank as usize];
        let mut used: Vec<&'static dyn Transport> = Vec::new();
        for (rank, peer) in (0..).zip(peers) {
            if rank != self.rank {
                let transport = transport::select(peer, me, allowed(self.config))?;
                if used.iter().all(|other| other.name() != transport.name()) {
                    used.push(transport);
                }
            }
        }
        let shared = used.iter().any(|transport| transport.shares());
        let inbox = Inbox::new(self.inbox_bytes()?, shared)?;
        let handles = used
            .iter()
            .map(|transport| Ok((transport.name().to_owned(), transport.offer(&inbox)?)));
        Ok(OwnInbox { handles: handles.collect::<Result<_>>()?, inbox })
    }

    /// This rank's ends of all its edges, by peer.
    fn edges(
        &self,
        mine: &OwnInbox,
        peers: &[PeerInfo],
        handles: &[Handles],
    ) -> Result<Vec<Option<Edges>>> {
        let me = &peers[self.rank as usize];
        let (bytes, len) = (self.edge_bytes(), self.inbox_bytes()?);
        let offset = |sender: u32| sender as usize * bytes;
        let edges = (0..).zip(peers).map(|(rank, peer)| {
            if rank == self.rank {
                return Ok(None);
            }
            let to = transport::select(me, peer, allowed(self.config))?;
            let from = transport::select(peer, me, allowed(self.config))?;
            let handle = handles[rank as usize].iter().find(|(name, _)| name == to.name());
            let (_, handle) = handle.ok_or_else(|| {
                Error::malformed(format!("rank {rank} offers no memory through {}", to.name()))
            })?;
            let (to_direct, from_direct) = (to.direct(me, peer), from.direct(peer, me));
            let region = to.accept(handle, len, offset(self.rank), bytes)?;
            if rank == (self.rank + 1) % self.nranks {
                for channel in 0..self.channels {
                    info!(target: log::INIT, "Channel {channel:02} : {} -> {rank} via {}{}", self.rank, to.name(),
                          if to_direct { "/direct pointer" } else { "" });
                }
            }
            let send = EdgeEnd { region, peer: rank, direct: to_direct, receiving: false };
            let region = mine.inbox.part(offset(rank), bytes);
            let recv = EdgeEnd { region, peer: rank, direct: from_direct, receiving: true };
            Ok(Some(Edges { send, recv }))
        });
        edges.collect()
    }

    /// How calls are done. Of what all ranks have agreed on only: they must choose alike.
    fn tuner(&self, nodes: u32, collnet: bool) -> Tuner {
        let situation = Situation::new(nodes, self.nranks, Devices::Cpu { ring: None });
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
        let tuner = self.tuner(nodes.count() as u32, heads.is_some());
        let control = Control::new(frame, views.into(), &nodes.rings(self.nranks));
        let registered = self.register(&edges, &control)?;
        info!(target: log::INIT, rank = self.rank, nranks = self.nranks, channels = self.channels,
              nodes = nodes.count(), runtime = self.device.runtime().name(), "Init COMPLETE");
        Ok(Communicator(Arc::new(Inner {
            rank: self.rank,
            nranks: self.nranks,
            device: self.device.clone(),
            shape: Shape {
                ranks: self.nranks,
                nodes: nodes.count() as u32,
                channels: self.channels,
                tuner,
                all_channels: self.all_channels,
                algorithm: self.config.algorithm,
                network: heads.as_ref().map_or_else(NetworkOps::default, Heads::ops),
            },
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
            watch: OnceLock::new(),
        })))
    }

    /// Lets this rank's kernels reach what they share with the host and with the other ranks.
    fn register(&self, edges: &[Option<Edges>], control: &Control) -> Result<Vec<Keep>> {
        let mut memory = control.memory();
        for Edges { send, recv } in edges.iter().flatten() {
            memory.push((send.region.address(), send.region.len(), "an edge to another rank"));
            memory.push((recv.region.address(), recv.region.len(), "an edge from another rank"));
        }
        let runtime = self.device.runtime();
        memory
            .into_iter()
            // SAFETY: the communicator keeps the memory for longer than what is returned here, and each launch
            // keeps the communicator; both sides access it through atomics or under the protocols' orders.
            .map(|(address, bytes, what)| unsafe { runtime.register(address, bytes, what) })
            .collect()
    }
}

/// Bytes of scratch memory of a channel: of what is combined step by step, one chunk of few bytes.
const SCRATCH_BYTES: usize = 128 << 10;

/// Bytes that barriers reduce, behind the scratch memory.
const BARRIER_BYTES: usize = 256;

/// What a rank's peers need to find its inbox: a handle for each transport, by name.
type Handles = Vec<(String, Vec<u8>)>;

/// A rank's inbox before its peers have found it.
struct OwnInbox {
    inbox: Inbox,
    handles: Handles,
}

fn allowed(config: &CommConfig) -> Allowed {
    Allowed { p2p: config.p2p.unwrap_or(true), shm: config.shm.unwrap_or(true) }
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
        host: env.hostid.clone().map_or_else(boot_id, Ok)?,
        pid_namespace: namespace,
    })
}
