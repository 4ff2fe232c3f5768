//! How a group comes together.
//!
//! ```text
//! init_all    one process: every edge is made on the spot
//! init_rank   1. bootstrap: find each other, tell each other PeerInfo and layout
//!             2. the transport of each edge, chosen alike on both ends
//!             3. offer memory to the previous rank, accept the next one's
//!             4. barrier; from here on the bootstrap only watches for lost peers
//! ```

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};

use ferroccl_device::abi::{Channel, ProtocolId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::{CommConfig, Communicator, Control, Edges, Inner, machine};
use crate::bootstrap::{Bootstrap, BootstrapError, UniqueId};
use crate::buffer::Device;
use crate::channel::{ConnLayout, EdgeEnd};
use crate::config::{Config, Selection, Setting as _};
use crate::enqueue::Shape;
use crate::graph::tuning::{Algorithm, Devices, Settings, Situation, Tuner};
use crate::log;
use crate::runtime::Keep;
use crate::transport::{self, Allowed, PeerInfo};
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
            return Ok(vec![member(0).join(None)?]);
        }
        // Edge i leads from rank i to rank i + 1.
        let process = process_info(0, device, &env)?;
        let mut ends = Vec::new();
        for _ in 0..nranks {
            let transport = transport::select(&process, &process, allowed(config))?;
            let bytes = channels as usize * layout.channel_bytes();
            let offer = transport.offer(bytes)?;
            let sender = transport.accept(&offer.handle, bytes)?;
            ends.push((sender, offer.region, transport.direct(&process, &process)));
        }
        let (mut senders, mut receivers): (Vec<_>, Vec<_>) = ends
            .into_iter()
            .map(|(sender, receiver, direct)| ((sender, direct), (receiver, direct)))
            .unzip();
        // Rank i receives on edge i - 1.
        receivers.rotate_right(1);
        (0..nranks)
            .zip(senders.drain(..).zip(receivers))
            .map(|(rank, ((send, send_direct), (recv, recv_direct)))| {
                let (next, previous) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
                member(rank).join(Some(Edges {
                    send: EdgeEnd {
                        region: send,
                        peer: next,
                        direct: send_direct,
                        receiving: false,
                    },
                    recv: EdgeEnd {
                        region: recv,
                        peer: previous,
                        direct: recv_direct,
                        receiving: true,
                    },
                }))
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
            return member.join(None);
        }
        let edges = member.connect(&bootstrap, &peers)?;
        let communicator = member.join(Some(edges))?;
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
}

/// What the user asks of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    protocols: Selection<ProtocolId>,
    algorithms: Selection<Algorithm>,
    deterministic: bool,
}

fn settings(config: &CommConfig, env: &Config) -> Asked {
    Asked {
        protocols: config.protocols(env),
        algorithms: env.algo,
        deterministic: env.deterministic,
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
        ] {
            if show(mine) != show(theirs) {
                return differs(what, show(mine), show(theirs));
            }
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
    /// Makes the edges to both neighbours, over the bootstrap.
    fn connect(&self, bootstrap: &Bootstrap, peers: &[PeerInfo]) -> Result<Edges> {
        const HANDLE: u64 = 1;
        let (rank, nranks) = (self.rank, self.nranks);
        let (next, previous) = ((rank + 1) % nranks, (rank + nranks - 1) % nranks);
        let [me, after, before] = [rank, next, previous].map(|r| &peers[r as usize]);
        let bytes = self.channels as usize * self.layout.channel_bytes();

        let from = transport::select(before, me, allowed(self.config))?;
        let offer = from.offer(bytes)?;
        bootstrap.send(previous, HANDLE, &offer.handle)?;

        let to = transport::select(me, after, allowed(self.config))?;
        let region = to.accept(&bootstrap.recv(next, HANDLE)?, bytes)?;
        let (to_direct, from_direct) = (to.direct(me, after), from.direct(before, me));
        for channel in 0..self.channels {
            info!(target: log::INIT, "Channel {channel:02} : {rank} -> {next} via {}{}", to.name(),
                  if to_direct { "/direct pointer" } else { "" });
        }
        // What was offered stays open until the previous rank has mapped it; all have at the next barrier.
        bootstrap.barrier()?;
        Ok(Edges {
            send: EdgeEnd { region, peer: next, direct: to_direct, receiving: false },
            recv: EdgeEnd {
                region: offer.region,
                peer: previous,
                direct: from_direct,
                receiving: true,
            },
        })
    }

    /// How calls are done. Of what all ranks have agreed on only: they must choose alike.
    fn tuner(&self) -> Tuner {
        let situation = Situation::new(1, self.nranks, Devices::Cpu { ring: None });
        let Asked { protocols, algorithms, deterministic } = self.settings;
        let settings = Settings { protocols, algorithms, deterministic, ..Settings::default() };
        Tuner::new(&situation.with_channels(self.channels), &settings)
    }

    /// The communicator over its edges.
    fn join(self, edges: Option<Edges>) -> Result<Communicator> {
        let first = self.config.first_step;
        let channels: Box<[Channel]> = (0..self.channels as usize)
            .map(|channel| {
                let mut view = Channel { index: self.rank.into(), ..Channel::default() };
                if let Some(edges) = &edges {
                    view.send = edges.send.conn(&self.layout, channel, first);
                    view.recv = edges.recv.conn(&self.layout, channel, first);
                }
                view
            })
            .collect();
        let tuner = self.tuner();
        let timeout = self.config.timeout_ns();
        let control = Control::new(self.rank, self.nranks, timeout, channels);
        let registered = self.register(edges.as_ref(), &control)?;
        info!(target: log::INIT, rank = self.rank, nranks = self.nranks, channels = self.channels,
              runtime = self.device.runtime().name(), "Init COMPLETE");
        Ok(Communicator(Arc::new(Inner {
            rank: self.rank,
            nranks: self.nranks,
            device: self.device.clone(),
            shape: Shape {
                ranks: self.nranks,
                channels: self.channels,
                tuner,
                all_channels: self.all_channels,
            },
            layout: self.layout,
            _registered: registered,
            edges,
            control,
            seq: Mutex::new(0),
            cause: OnceLock::new(),
            watch: OnceLock::new(),
        })))
    }

    /// Lets this rank's kernels reach what they share with the host and with the neighbours.
    fn register(&self, edges: Option<&Edges>, control: &Control) -> Result<Vec<Keep>> {
        let mut memory = control.memory().to_vec();
        for (end, what) in edges.iter().flat_map(|edges| {
            [
                (&edges.send, "the edge to the next rank"),
                (&edges.recv, "the edge from the previous rank"),
            ]
        }) {
            memory.push((end.region.address(), end.region.len(), what));
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
