//! Makes a communicator from its edges: connections for kernels, groups and trees, the tuner, registered memory.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use ferroccl_device::abi::Conn;
use tracing::{info, warn};

use super::affinity::{ProxyCores, processes_and_cores};
use super::builder::{CommBuilder, ranks_on_device};
use super::calling_threads::CallingThreads;
use super::collnet_heads::CollnetHeads;
use super::control::{ControlBlock, GroupParams};
use super::device_memory::MemoryFor;
use super::init_params::TuningParams;
use super::mesh::MeshTables;
use super::net::NetConnections;
use super::nodes::Nodes;
use super::preload::{self, Preloaded};
use super::recorder::FlightRecorder;
use super::shared::SharedComm;
use super::stall::{self, Reports};
use super::state::CommState;
use super::trees::Trees;
use super::window::Windows;
use super::{Communicator, gpu_graphs, log_topology};
use crate::channel::{ConnSet, EdgeEnd, Edges};
use crate::enqueue::{NetworkOps, PlanContext};
use crate::error::Result;
use crate::flight_recorder::DumpFile;
use crate::fork::Maker;
use crate::profiler::{ProfiledComm, Profiler};
use crate::runtime::Keep;
use crate::transport::PeerInfo;
use crate::tuner_plugin::{TunedComm, TunerPlugin};
use crate::{flight_recorder, log};
use ferroccl_topology::graph::tuning::{Devices, Settings, Situation, Tuner};

impl CommBuilder<'_> {
    /// The tuner, from parameters that are equal on all ranks, so that they choose the same: of ranks that one thread calls for, or that are
    /// `apart`, a thread a rank.
    fn tuner(&self, (nodes, collnet): (u32, bool), peers: &[PeerInfo], apart: bool) -> Tuner {
        let allowed = self.allowed();
        let assumed = gpu_graphs::GpuGraphs::new(peers, self.channels, allowed);
        let devices = match (self.graphs, &assumed) {
            (Some(graphs), assumed) => graphs.devices(assumed.is_some()),
            (None, Some(assumed)) => assumed.devices(),
            (None, None) => Devices::Cpu { ring: None },
        };
        let situation = Situation::new(nodes, self.nranks, devices);
        let TuningParams { protocols, algorithms, deterministic, .. } = self.tuning;
        // Whether a call's buffers are in windows is looked at when it is made.
        let own = self.config.registry.own_kernels(self.nranks);
        let own = own.with_asked(self.config.algorithm);
        let settings = Settings {
            protocols,
            algorithms,
            deterministic,
            windows: true,
            own,
            fitted: self.env.tuner_file.as_ref().map(|file| Arc::clone(file.costs())),
            ..Settings::default()
        };
        let mesh = self.layout.mesh_slot_bytes != [0; 3];
        let situation = situation.with_channels(self.channels).with_collnet(collnet);
        let situation = situation.with_mesh(mesh);
        let (processes, cores) = processes_and_cores(peers);
        let situation = situation.with_processes(processes, cores);
        let threads = if apart { self.nranks } else { 1 };
        Tuner::new(&situation.with_threads(threads, cores), &settings)
    }

    /// Who calls for the ranks, where a process has all of them and it makes a difference. Several threads are noticed at a call whose
    /// number differs from run to run, so nobody looks where the user wants the same results in each run.
    fn calling_threads(
        &self,
        (nodes, collnet): (u32, bool),
        peers: &[PeerInfo],
    ) -> Option<Arc<CallingThreads>> {
        let within = nodes == 1 && self.nranks > 1 && processes_and_cores(peers).0 == 1;
        let matters = within
            && self.device.runtime().runs_small_calls_on_callers()
            && !self.tuning.deterministic;
        matters.then(|| {
            let threads = CallingThreads::of_group(self.token.group, self.nranks);
            threads.with_tuner(|| self.tuner((nodes, collnet), peers, true))
        })
    }

    /// Makes the communicator from its edges with all peers.
    pub(super) fn build(
        self,
        edges: Vec<Option<Edges>>,
        peers: &Arc<[PeerInfo]>,
        net: Option<NetConnections>,
        heads: Option<CollnetHeads>,
    ) -> Result<Communicator> {
        let first = self.config.first_step;
        let channels = self.channels as usize;
        // The entry of the rank itself is empty.
        let shape = edges.iter().flatten().next().map_or_else(Conn::default, |edges| {
            edges.peer(&self.layout, channels, ConnSet::Collective, 0, first).send
        });
        let nodes = Nodes::new(self.rank, peers, self.config.ranks_per_node);
        let scratch = self.device.runtime().allocate(channels * SCRATCH_BYTES + BARRIER_BYTES)?;
        let scratch = self.memory.counted(MemoryFor::Calls, scratch);
        let params = GroupParams {
            rank: self.rank,
            nranks: self.nranks,
            channels: self.channels,
            timeout_ns: self.config.timeout_ns(),
            scratch: (scratch.address(), SCRATCH_BYTES as u64),
        };
        let of_nodes = (nodes.count() as u32, heads.is_some());
        let tuner = self.tuner(of_nodes, peers, false);
        let calling_threads = self.calling_threads(of_nodes, peers);
        let runtime = &**self.device.runtime();
        let mut groups =
            vec![self.rings.to_vec(), vec![nodes.ring_in_rank_order()], vec![nodes.ring_in_node()]];
        groups.extend(nodes.ring_of_leaders().map(|ring| vec![ring]));
        let control = ControlBlock::new(params, shape, &groups, (runtime, self.memory))?;
        let of_mesh = (self.rank, first, self.tuning.deterministic);
        let mesh =
            MeshTables::new(of_mesh, &edges, &self.layout, channels, (runtime, self.memory))?;
        let may = (mesh.is_some(), self.env.win_enable, self.env.nvls_enable != 0);
        let windows = Windows::new(self.rank, peers, self.allowed(), may);
        let trees = Trees::new(self.rank, self.channels, &nodes, self.graphs);
        log_topology::log_channels(self.rank, &groups[0], self.channels, &trees);
        for Edges { send, recv, .. } in edges.iter().flatten() {
            send.set_first_step(&self.layout, channels, first, runtime)?;
            recv.set_first_step(&self.layout, channels, first, runtime)?;
        }
        let registered = self.register(&edges, &control)?;
        let (group, ranks) = (self.token.group, self.nranks);
        let sizes: Vec<usize> = nodes.members().iter().map(Vec::len).collect();
        let tuned = TunedComm { group, ranks, nodes: &sizes };
        let tuner_plugin = TunerPlugin::load(self.env, tuned)?;
        let (name, nodes_count) = (self.config.name.as_deref(), nodes.count());
        let profiled = ProfiledComm { name, group, nodes: nodes_count, ranks, rank: self.rank };
        let profiler = Profiler::load(self.env, profiled)?;
        if let (Some(net), Some(profiler)) = (&net, &profiler) {
            net.observe(profiler);
        }
        info!(target: log::INIT, rank = self.rank, nranks = self.nranks, channels = self.channels,
              nodes = nodes.count(), runtime = self.device.runtime().name(), "Init COMPLETE");
        let abort = self.config.abort.clone().unwrap_or_default();
        let communicator = Communicator(SharedComm::new(CommState {
            maker: Maker::this()?,
            _proxy_cores: ProxyCores::new(self.cores),
            group: self.token.group,
            rank: self.rank,
            nranks: self.nranks,
            device: self.device.clone(),
            memory: self.memory.clone(),
            config: self.config.clone(),
            plan_context: PlanContext {
                ranks: self.nranks,
                nodes: nodes.count() as u32,
                channels: self.channels,
                blocks: self.blocks.collectives,
                tuner,
                all_channels: self.all_channels,
                algorithm: self.config.algorithm,
                registry: self.config.registry.clone(),
                network: heads.as_ref().map_or_else(NetworkOps::default, CollnetHeads::ops),
            },
            calling_threads,
            net: net.map(Arc::new),
            collnet: heads,
            trees,
            mesh,
            windows,
            nodes,
            barrier_buffer: scratch.address() + (channels * SCRATCH_BYTES) as u64,
            _scratch: scratch,
            _registered: registered,
            layout: self.layout,
            edges: edges.into_iter().flatten().collect(),
            control,
            order: Mutex::default(),
            seq: AtomicU64::new(0),
            cause: OnceLock::new(),
            failed: Arc::new(AtomicBool::new(false)),
            peers_told: AtomicBool::new(false),
            dump: self.env.dump_file.clone().map(|pattern| DumpFile { pattern }),
            recorder: Arc::new(FlightRecorder::new()),
            reports: Reports::new(self.nranks),
            abort,
            out_of_band: OnceLock::new(),
            meeting_place: OnceLock::new(),
            growth: Mutex::default(),
            split_lock: Mutex::new(()),
            ranks_on_device: ranks_on_device(peers, self.rank),
            p2p_blocks: self.blocks.p2p,
            preloaded: Preloaded::default(),
            tuner_plugin,
            profiler,
        }));
        communicator.0.write_first_rows(peers[self.rank as usize].device.is_some())?;
        preload::preload_what_was_called(&communicator.0);
        communicator.0.abort.guard(communicator.0.downgrade());
        stall::watch(&communicator.0, self.config.warn_after.unwrap_or(self.env.warn_after))?;
        if let (Some(signal), Some(file)) = (self.env.dump_signal, &communicator.0.dump) {
            flight_recorder::watch_signal(signal, file)?;
        }
        if self.env.status
            && let Err(error) = flight_recorder::serve()
        {
            warn!(target: log::INIT, "this process cannot be asked for its status: {error}");
        }
        Ok(communicator)
    }

    /// Registers with the runtime the memory that this rank's kernels share with the host and with other ranks.
    fn register(&self, edges: &[Option<Edges>], control: &ControlBlock) -> Result<Vec<Keep>> {
        let mut memory = vec![(control.shared(), "a communicator's control block")];
        let host_memory = |end: &EdgeEnd| end.host_memory(&self.layout, self.channels as usize);
        for Edges { send, recv, .. } in edges.iter().flatten() {
            memory.extend(host_memory(send).map(|memory| (memory, "an edge to another rank")));
            memory.extend(host_memory(recv).map(|memory| (memory, "an edge from another rank")));
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

/// Bytes of a channel's scratch memory: algorithms that combine blocks of several ranks keep one small chunk there.
const SCRATCH_BYTES: usize = 128 << 10;

/// Bytes that barriers reduce, behind the scratch memory.
const BARRIER_BYTES: usize = 256;
