//! How the ranks of a group connect.
//!
//! ```text
//! init_all    one process: every edge is made at once
//! init_rank   1. bootstrap: find each other, exchange PeerInfo on the way, then InitParams
//!             2. choose the transport of each edge, the same on both ends
//!             3. offer a receive region to all, map a part of everybody's
//!             4. make the tables that kernels read
//!             5. barrier; from here on the bootstrap only watches for lost peers
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use ferroccl_proxy::collnet::CollNet;
use ferroccl_proxy::net::Net;

use super::affinity::{self, PinnedThread};
use super::builder::{BlockLimits, CommBuilder, allowed, check_peers, open_net, ranks_on_device};
use super::collnet_heads;
use super::device_memory::MemoryCount;
use super::exchange::{self, exchange};
use super::graphs::{self, CommGraphs, GraphQuery, HostFindings};
use super::init_params::{GroupToken, InitParams, TuningParams, agree, heartbeat, random_number};
use super::nodes::Nodes;
use super::out_of_band::{LocalGroup, OutOfBand};
use super::recv_region::{ConnectedEdges, OpenRecvRegion, PeerHandles};
use super::{AbortHandle, CommConfig, Communicator, gpu_graphs, mesh};
use crate::buffer::Device;
use crate::config::Config;
use crate::encoding;
use crate::error::{Error, Result};
use crate::transport::{self, PeerInfo};
use ferroccl_bootstrap::{Bootstrap, GatheredBlocks, News, Stop, UniqueId};
use ferroccl_topology::CpuSet;

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
        let env = Config::from_env_with(&config.registry)?;
        let config = &config.or(&CommConfig::from_env(&env));
        let peers: Arc<[PeerInfo]> = (0..)
            .zip(devices)
            .map(|(rank, device)| peer_info(rank, device, config))
            .collect::<Result<_>>()?;
        // Every rank takes the least of what the ranks' devices have.
        let mut layout = config.layout(devices[0].runtime().buffers(), false)?;
        let ranks = || (0..nranks).zip(devices);
        let blocks = ranks()
            .map(|(rank, device)| device.runtime().resident_blocks(ranks_on_device(&peers, rank)))
            .min();
        let blocks = BlockLimits::of(blocks.unwrap_or(1));
        let natural = ranks().map(|(_, device)| device.runtime().parallelism()).min();
        let natural = natural.unwrap_or(1).min(blocks.collectives);
        let natural = natural.min(gpu_graphs::most_channels(&peers, allowed(config, &env, None)));
        let (channels, all_channels) = config.channels(natural)?;
        let tuning = TuningParams::new(config, &env);
        let all = (0..nranks).map(|rank| Nodes::new(rank, &peers, config.ranks_per_node));
        let all: Vec<Nodes> = all.collect();
        let token = GroupToken::new()?;
        let open = |rank, too_far| open_net(rank, &peers, (config, &env), too_far, token.secret);
        let nets: Vec<Option<Arc<dyn Net>>> =
            (0..nranks).map(|rank| open(rank, None)).collect::<Result<_>>()?;
        let found = (0..nranks).zip(&all).zip(&nets).map(|((rank, nodes), net)| {
            let (net, driven) = (net.as_deref(), devices[0].runtime().is_driven());
            GraphQuery { peers: &peers, nodes, env: &env, config, net, driven }.search(rank)
        });
        let found: Vec<HostFindings> = found.collect::<Result<_>>()?;
        let graphs = CommGraphs::agree(&all[0], &found, blocks.collectives)?.map(Arc::new);
        let too_far = graphs::too_far(&all[0], &found)?;
        if mesh::possible(&peers, allowed(config, &env, Some(&too_far)))? {
            layout = layout.with_mesh(nranks);
        }
        // GPUs that are too far apart for P2P may need it, too.
        let again = (0..).zip(nets).map(|(rank, net)| match net {
            None => open(rank, Some(&too_far)),
            net => Ok(net),
        });
        let nets: Vec<Option<Arc<dyn Net>>> = again.collect::<Result<_>>()?;
        let channels = match &graphs {
            Some(graphs) if !all_channels => graphs.channels,
            _ => channels,
        };
        let rings: Vec<_> =
            all.iter().map(|nodes| nodes.rings(graphs.as_deref(), channels)).collect();
        let cores =
            (0..).zip(&all).map(|(rank, nodes)| affinity::cores_of(rank, nodes, &found, &env));
        let cores: Vec<CpuSet> = cores.collect();
        let counts: Vec<MemoryCount> = devices.iter().map(|_| MemoryCount::default()).collect();
        let builder = |rank: u32| CommBuilder {
            device: &devices[rank as usize],
            memory: &counts[rank as usize],
            config,
            env: &env,
            tuning,
            token,
            rank,
            nranks,
            layout,
            channels,
            all_channels,
            blocks,
            graphs: graphs.as_ref(),
            too_far: &too_far,
            cores: &cores[rank as usize],
            rings: &rings[rank as usize],
            net: nets[rank as usize].as_ref(),
        };
        if nranks == 1 {
            return Ok(vec![builder(0).build(vec![None], &peers, None, None)?]);
        }
        let regions: Vec<OpenRecvRegion> = (0..nranks)
            .map(|rank| {
                let _pinned = PinnedThread::to(&cores[rank as usize]);
                builder(rank).open_recv_region(&peers)
            })
            .collect::<Result<_>>()?;
        let handles: Vec<PeerHandles> =
            regions.iter().map(|region| region.handles.clone()).collect();
        let network = collnet_network(config, &env, &peers, true)?;
        let heads = collnet_heads::join_all(network.as_ref(), all)?;
        // The regions stay open until all ranks have mapped them.
        let mapped = (0..nranks)
            .zip(&regions)
            .map(|(rank, region)| builder(rank).map_peers(region, &peers, &handles))
            .collect::<Result<Vec<_>>>()?;
        let made = (0..nranks).zip(regions).zip(mapped).zip(heads);
        let ranks = made.map(|(((rank, mut region), (edges, relays)), heads)| {
            let builder = builder(rank);
            let _pinned = PinnedThread::to(builder.cores);
            let net = builder.net_connections(&mut region, &edges, &handles, relays.as_ref())?;
            builder.build(edges, &peers, net, heads)
        });
        let ranks = ranks.collect::<Result<Vec<_>>>()?;
        LocalGroup::form(&ranks);
        Ok(ranks)
    }

    /// One rank of a group, in a thread or process of its own: `rank` of `nranks`. One process makes the `id`
    /// ([`UniqueId::new`]) and gives it to the others (NCCL's `ncclCommInitRank`). Returns when all ranks have connected.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `rank` is not below `nranks`; [`Error::Bootstrap`] when the ranks do not
    /// find each other or disagree; [`Error::Unavailable`] when no transport reaches a neighbour.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, UniqueId, config::Config};
    ///
    /// let id = UniqueId::new(&Config::from_env()?.bootstrap())?;
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
        Self::connect_rank(device, nranks, id, rank, config, &stop).map_err(|error| {
            if !stop.is_set() {
                return error;
            }
            Error::Aborted { rank, cause: format!("while the ranks came together: {error}") }
        })
    }

    /// Connects with the group of `id`, unless `stop` is set meanwhile.
    pub(super) fn connect_rank(
        device: &Device,
        nranks: u32,
        id: &UniqueId,
        rank: u32,
        config: &CommConfig,
        stop: &Stop,
    ) -> Result<Communicator> {
        let env = Config::from_env_with(&config.registry)?;
        let mine = peer_info(rank, device, &config.or(&CommConfig::from_env(&env)));
        let met = Bootstrap::connect_with(
            &introduction(&mine)?,
            stop.clone(),
            id,
            rank,
            nranks,
            &env.bootstrap(),
        )?;
        Self::from_bootstrap(device, mine.and(Ok(met))?, config)
    }

    /// All-gathers of the bootstrap, one after the other, in which ranks that are connected make a communicator, those of the ranks'
    /// addresses and of barriers among them. A network that reduces takes another one. With
    /// [`gather_rounds`](crate::bootstrap::rounds::gather_rounds) it says how many messages one after the other an init takes.
    pub const INIT_GATHERS: u32 = 4;

    /// A rank of a group that has come together, where each rank's introduction is its [`introduction`].
    pub(super) fn from_bootstrap(
        device: &Device,
        (bootstrap, introductions): (Bootstrap, GatheredBlocks),
        config: &CommConfig,
    ) -> Result<Communicator> {
        let env = Config::from_env_with(&config.registry)?;
        let config = &config.or(&CommConfig::from_env(&env));
        let (rank, nranks) = (bootstrap.rank(), bootstrap.nranks());
        if introductions.iter().any(<[u8]>::is_empty) {
            // A rank that gives none leaves, and the bootstrap says which one it is.
            bootstrap.barrier()?;
        }
        let peers = exchange::read::<PeerInfo, Arc<[PeerInfo]>>(&bootstrap, introductions)?;
        let peers: Arc<[PeerInfo]> = Arc::clone(&peers);
        check_peers(&peers)?;

        let host = &peers[rank as usize].host;
        let local: HashSet<u64> =
            peers.iter().filter(|p| p.host == *host).map(|p| p.process).collect();
        device.runtime().share_host(local.len());
        let runtime = device.runtime();
        let resident = runtime.resident_blocks(ranks_on_device(&peers, rank));
        let most = BlockLimits::of(resident).collectives;
        let most = most.min(gpu_graphs::most_channels(&peers, allowed(config, &env, None)));
        let (natural, all_channels) = config.channels(runtime.parallelism().min(most))?;
        let several_hosts = peers.iter().any(|peer| peer.host != *host);
        let mine = InitParams {
            layout: config.layout(runtime.buffers(), several_hosts)?,
            registry: config.registry.digest(nranks),
            channels: natural,
            blocks: resident,
            all_channels,
            tuning: TuningParams::new(config, &env),
            collnet: config.collnet.is_some() || env.collnet_enable,
            group: random_number()?,
            timeout_ns: config.timeout_ns(),
            heartbeat_ns: config.heartbeat_ns()?,
        };
        let nodes = Nodes::new(rank, &peers, config.ranks_per_node);
        let secret = GroupToken::of(&bootstrap, 0).secret;
        let open = |too_far| open_net(rank, &peers, (config, &env), too_far, secret);
        let net = open(None)?;
        let query = GraphQuery {
            peers: &peers,
            nodes: &nodes,
            env: &env,
            config,
            net: net.as_deref(),
            driven: runtime.is_driven(),
        };
        let found = query.search(rank)?;
        let all = exchange::<_, (Vec<InitParams>, Vec<HostFindings>)>(&bootstrap, &(mine, found))?;
        let (params, found) = &**all;
        let (channels, blocks) = agree(rank, &mine, params)?;
        let most = BlockLimits::of(blocks).collectives;
        let graphs = CommGraphs::agree(&nodes, found, most)?.map(Arc::new);
        let too_far = graphs::too_far(&nodes, found)?;
        let mut layout = mine.layout;
        if mesh::possible(&peers, allowed(config, &env, Some(&too_far)))? {
            layout = layout.with_mesh(nranks);
        }
        // GPUs that are too far apart for P2P may need it, too.
        let net = if net.is_none() { open(Some(&too_far))? } else { net };
        let channels = match &graphs {
            Some(graphs) if !all_channels => graphs.channels,
            _ => channels,
        };

        let rings = nodes.rings(graphs.as_deref(), channels);
        let cores = affinity::cores_of(rank, &nodes, found, &env);
        let _pinned = PinnedThread::to(&cores);
        let memory = &MemoryCount::default();
        let builder = CommBuilder {
            device,
            memory,
            config,
            env: &env,
            tuning: mine.tuning,
            token: GroupToken::of(&bootstrap, params[0].group),
            rank,
            nranks,
            layout,
            channels,
            all_channels,
            blocks: BlockLimits::of(blocks),
            graphs: graphs.as_ref(),
            too_far: &too_far,
            cores: &cores,
            rings: &rings,
            net: net.as_ref(),
        };
        if nranks == 1 {
            return builder.build(vec![None], &peers, None, None);
        }
        let meeting_place = bootstrap.meeting_socket()?;
        let ConnectedEdges { edges, net, addresses, open } =
            builder.connect(&bootstrap, &peers, meeting_place.address())?;
        let meeting_place = meeting_place.with(addresses)?;
        let one_process = peers.iter().all(|peer| peer.process == peers[0].process);
        let network = collnet_network(config, &env, &peers, one_process)?;
        let heads = collnet_heads::join(network.as_ref(), &nodes, |handle| {
            Ok(exchange::<_, Vec<Vec<u8>>>(&bootstrap, handle)?.to_vec())
        })?;
        let communicator = builder.build(edges, &peers, net, heads)?;
        // From here on all have mapped the memory, and the counters of every edge have their first values, so that kernels may start.
        bootstrap.barrier()?;
        drop(open);
        let of_collnet = u32::from(communicator.0.collnet.is_some());
        debug_assert_eq!(bootstrap.gathers(), Communicator::INIT_GATHERS + of_collnet);
        let comm = communicator.0.downgrade();
        let listener = comm.clone();
        let on_peer_lost = move |departure| {
            // Weak: the watch must not keep a communicator alive.
            if let Some(comm) = comm.visit() {
                comm.on_peer_lost(departure);
            }
        };
        let watch =
            bootstrap.watch_and_hear(heartbeat(params), on_peer_lost, move |teller, news| {
                if let Some(comm) = listener.visit() {
                    match news {
                        News::First(fault) => comm.on_remote_fault(teller, fault),
                        News::Status(report) => comm.on_report(teller, report),
                    }
                }
            })?;
        // The cells are new.
        let _ = communicator.0.out_of_band.set(OutOfBand::Ring(watch));
        let _ = communicator.0.meeting_place.set(Arc::new(meeting_place));
        if let Some(net) = &communicator.0.net {
            net.serve(&communicator.0)?;
        }
        Ok(communicator)
    }
}

/// The network that reduces, if there is one.
///
/// # Errors
/// [`Error::Unavailable`] for GPUs: what there is reduces the host's memory.
fn collnet_network(
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

/// What a rank gives to its peers when they connect: what it says of itself. One that does not know that gives nothing. It connects
/// all the same and leaves, so that nobody waits for it.
pub(super) fn introduction(mine: &Result<PeerInfo>) -> Result<Vec<u8>> {
    mine.as_ref().map_or(Ok(Vec::new()), encoding::to_bytes)
}

/// What this rank tells its peers of itself.
pub(super) fn peer_info(rank: u32, device: &Device, config: &CommConfig) -> Result<PeerInfo> {
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
        host: config.host_id.clone().map_or_else(boot_id, Ok)?,
        pid_namespace: namespace,
        cores: affinity::own_cores().unwrap_or_default(),
    })
}
