//! The settings of a communicator.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ferroccl_device::abi::{Algorithm, LL128_LINE, MAX_CHANNELS, ProtocolId};

use ferroccl_proxy::collnet::{CollNet, SoftwareCollNet};
use ferroccl_proxy::net::Net;

use super::AbortHandle;
use crate::channel::ConnLayout;
use crate::config::{Config, LEAST_HEARTBEAT};
use crate::enqueue::ConnShape;
use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::runtime::GPU_BUFFERS;
use ferroccl_bootstrap::Heartbeat;
use ferroccl_topology::graph::tuning::Selection;

/// The settings of a communicator (NCCL's `ncclConfig_t`). All ranks of a group need the same ones. What is `None`, as
/// everything in [`CommConfig::default`], comes from the environment (`NCCL_PROTO`, `NCCL_BUFFSIZE`, ...; see
/// [`config`](crate::config)), or has a default.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CommConfig {
    /// The protocol of every call, instead of the one chosen by size.
    pub protocol: Option<ProtocolId>,
    /// The algorithm of every call for which it exists, instead of the one chosen by size.
    pub algorithm: Option<Algorithm>,
    /// Whether values are always combined in the order of the ranks, so that a result has the same bits from run to run and
    /// on every device (`FERROCCL_DETERMINISTIC`). Large all-reduces take about as long, small
    /// ones longer: see [`Chain`](ferroccl_device::collectives::Chain).
    pub deterministic: Option<bool>,
    /// Ranks of a node: so many ranks in a row count as one node, instead of the ranks of one host. Trees and the
    /// hierarchical all-reduce are built over nodes.
    pub ranks_per_node: Option<u32>,
    /// A network that reduces, for all-reduces over several nodes of as many ranks each. With `None`, and
    /// `NCCL_COLLNET_ENABLE`, it is [`SoftwareCollNet`] where all ranks are in one process.
    pub collnet: Option<Arc<dyn CollNet>>,
    /// The network between ranks that share no memory, instead of the one of `NCCL_NET`.
    pub net: Option<Arc<dyn Net>>,
    /// Channels of every call, 1 to 32, instead of the number chosen by size.
    pub channels: Option<u32>,
    /// The most channels of a call, where `channels` does not fix them.
    pub max_channels: Option<u32>,
    /// The fewest channels there are, where `channels` does not fix them.
    pub min_channels: Option<u32>,
    /// Slots of a connection, 2 to 1024.
    pub slots: Option<u32>,
    /// Bytes of a connection's buffer, by protocol; each is divided into the slots.
    pub buffer_bytes: [Option<usize>; 3],
    /// Kernels of other crates: protocols, with buffers that each has to itself, algorithms, and the kernels that calls may take.
    pub registry: Registry,
    /// How long a kernel waits for a peer before its call fails; zero is for ever.
    pub timeout: Option<Duration>,
    /// How long a call waits before a warning in the log says for whom, and again after twice the time; zero is never.
    pub warn_after: Option<Duration>,
    /// How long a rank may say nothing before it is lost (`FERROCCL_HEARTBEAT_TIMEOUT`), 100 ms at least; zero: for ever, so
    /// that a process can be stopped in a debugger. With `None` it is half of `timeout`, from 1 to 30 s, and 30 s without
    /// a timeout. The least of all ranks counts, and none where it is zero on any rank. Ranks of one process have none.
    pub heartbeat: Option<Duration>,
    /// The communicator's name, for profilers (NCCL's `commName`).
    pub name: Option<String>,
    /// A handle that aborts the communicator from another thread, also while it is made.
    pub abort: Option<AbortHandle>,
    /// Whether ranks of one process may write each other's memory; `None` is yes.
    pub p2p: Option<bool>,
    /// Whether processes of one host may share memory; `None` is yes.
    pub shm: Option<bool>,
    /// The host that this rank counts as being on, instead of the one it runs on (`NCCL_HOSTID`): ranks of different hosts
    /// share no memory, and talk over the network. So one process can have the ranks of several hosts, each of them made by
    /// [`Communicator::init_rank_with`](crate::Communicator::init_rank_with) with its own.
    pub host_id: Option<String>,
    /// The value the step counters start with: for tests of their wrap.
    #[doc(hidden)]
    pub first_step: u64,
}

/// Bytes of Simple's buffer where ranks are on several hosts: a slot is a message, and a network wants larger ones than a cache.
/// With 4 MiB, as NCCL has, sockets were no faster (`benches/records/2026-11-22-network.md`).
const NET_BUFFER_BYTES: usize = 1 << 20;
/// How long a kernel waits: what PyTorch gives an NCCL collective (`kProcessGroupNCCLDefaultTimeout`).
const TIMEOUT: Duration = Duration::from_secs(600);

impl CommConfig {
    /// The settings of the environment.
    pub(super) fn from_env(env: &Config) -> Self {
        let channels = |n: Option<u32>| n.map(|n| n.min(MAX_CHANNELS as u32));
        CommConfig {
            ranks_per_node: env.ranks_per_node,
            max_channels: channels(env.max_channels()),
            min_channels: channels(env.min_channels()),
            slots: env.slots,
            buffer_bytes: [env.ll_buffsize, env.ll128_buffsize, env.buffsize]
                .map(|size| size.map(|s| s.0)),
            timeout: Some(env.timeout.0.unwrap_or_default()),
            heartbeat: env.heartbeat_timeout.map(|limit| limit.0.unwrap_or_default()),
            p2p: Some(!env.p2p_disable),
            shm: Some(!env.shm_disable),
            host_id: env.hostid.clone(),
            ..CommConfig::default()
        }
    }

    /// These settings, with those of `other` where they are `None`. The abort handle is not taken over.
    pub(super) fn or(&self, other: &Self) -> Self {
        let bytes = self.buffer_bytes.iter().zip(other.buffer_bytes);
        let mut bytes = bytes.map(|(mine, theirs)| mine.or(theirs));
        CommConfig {
            protocol: self.protocol.or(other.protocol),
            algorithm: self.algorithm.or(other.algorithm),
            deterministic: self.deterministic.or(other.deterministic),
            ranks_per_node: self.ranks_per_node.or(other.ranks_per_node),
            collnet: self.collnet.clone().or_else(|| other.collnet.clone()),
            net: self.net.clone().or_else(|| other.net.clone()),
            channels: self.channels.or(other.channels),
            max_channels: self.max_channels.or(other.max_channels),
            min_channels: self.min_channels.or(other.min_channels),
            slots: self.slots.or(other.slots),
            buffer_bytes: std::array::from_fn(|_| bytes.next().flatten()),
            registry: if self.registry.is_empty() { &other.registry } else { &self.registry }
                .clone(),
            timeout: self.timeout.or(other.timeout),
            warn_after: self.warn_after.or(other.warn_after),
            heartbeat: self.heartbeat.or(other.heartbeat),
            name: self.name.clone().or_else(|| other.name.clone()),
            abort: self.abort.clone(),
            p2p: self.p2p.or(other.p2p),
            shm: self.shm.or(other.shm),
            host_id: self.host_id.clone().or_else(|| other.host_id.clone()),
            first_step: if self.first_step == 0 { other.first_step } else { self.first_step },
        }
    }

    /// The network that reduces, if there is one. The software one is for ranks of one process.
    pub(super) fn collnet(&self, env: &Config, one_process: bool) -> Option<Arc<dyn CollNet>> {
        static SOFTWARE: LazyLock<Arc<SoftwareCollNet>> = LazyLock::new(Arc::default);
        let software = || Arc::clone(&*SOFTWARE) as Arc<dyn CollNet>;
        self.collnet.clone().or_else(|| (env.collnet_enable && one_process).then(software))
    }

    /// The protocols that calls may run.
    pub(super) fn protocols(&self, env: &Config) -> Selection<ProtocolId> {
        self.protocol.map_or(*env.proto, Selection::only)
    }

    /// How ranks show each other that they are there, by the settings of the environment (`FERROCCL_HEARTBEAT_TIMEOUT`,
    /// `FERROCCL_TIMEOUT`); `None` where they do not.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] where the limit is too short.
    pub fn heartbeat_of(env: &Config) -> Result<Option<Heartbeat>> {
        let limit = CommConfig::from_env(env).heartbeat_ns()?;
        Ok((limit > 0).then(|| Heartbeat::of_limit(Duration::from_nanos(limit))))
    }

    /// Slots and their sizes of a communicator's connections on GPUs, by the settings of the environment.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] where a buffer is too small for its slots.
    pub fn gpu_connections(env: &Config, several_hosts: bool) -> Result<ConnShape> {
        let layout = CommConfig::from_env(env).layout(GPU_BUFFERS, several_hosts)?;
        Ok(ConnShape { slots: layout.slots, slot_bytes: layout.slot_bytes })
    }

    /// Slots and their sizes, for ranks on one host or on several. `usual` are the runtime's defaults: bytes of the buffers,
    /// and slots of each.
    pub(super) fn layout(
        &self,
        usual: ([usize; 3], u32),
        several_hosts: bool,
    ) -> Result<ConnLayout> {
        let (usual_bytes, usual_slots) = usual;
        let slots = self.slots.unwrap_or(usual_slots);
        if !(2..=1024).contains(&slots) {
            return Err(setting("slots", slots, "2 to 1024"));
        }
        // A slot is whole pairs of LL128 lines.
        let grain = 2 * LL128_LINE;
        let slot_of = |name: String, buffer: usize| {
            let slot = buffer / slots as usize / grain * grain;
            u32::try_from(slot).ok().filter(|&b| b > 0 && b <= 1 << 30).ok_or_else(|| {
                let least = slots as usize * grain;
                let range = format!("{least} bytes ({slots} slots of {grain}) to {slots} GiB");
                setting(&name, buffer, &range)
            })
        };
        let mut slot_bytes = [0; ProtocolId::MOST];
        for (i, (&protocol, usual)) in ProtocolId::ALL.iter().zip(usual_bytes).enumerate() {
            let over_net = several_hosts && protocol == ProtocolId::Simple;
            let default = if over_net { usual.max(NET_BUFFER_BYTES) } else { usual };
            let buffer = self.buffer_bytes[i].unwrap_or(default);
            slot_bytes[protocol.index()] = slot_of(format!("buffer_bytes[{protocol}]"), buffer)?;
        }
        self.registry.check()?;
        for (protocol, bytes) in self.registry.buffers() {
            let name = format!("registry, buffer bytes of {}", protocol.name());
            slot_bytes[ProtocolId::Own(protocol).index()] = slot_of(name, bytes)?;
        }
        Ok(ConnLayout { slots, slot_bytes, mesh_slot_bytes: [0; 3] })
    }

    /// The number of channels for a rank whose device has `natural` of them, and whether every call uses all of them.
    pub(super) fn channels(&self, natural: u32) -> Result<(u32, bool)> {
        let most = MAX_CHANNELS as u32;
        for (name, value) in [
            ("channels", self.channels),
            ("max_channels", self.max_channels),
            ("min_channels", self.min_channels),
        ] {
            if let Some(n) = value.filter(|n| !(1..=most).contains(n)) {
                return Err(setting(name, n, &format!("1 to {most}")));
            }
        }
        if let Some(n) = self.channels {
            return Ok((n, true));
        }
        let max = self.max_channels.unwrap_or(most);
        Ok((natural.max(self.min_channels.unwrap_or(1)).clamp(1, max), false))
    }

    /// The limit of a rank's silence in nanoseconds; 0 is none.
    pub(super) fn heartbeat_ns(&self) -> Result<u64> {
        let limit = match self.heartbeat {
            Some(limit) if !limit.is_zero() && limit < LEAST_HEARTBEAT => {
                return Err(setting("heartbeat", format!("{limit:?}"), "0, or 100 ms at least"));
            }
            Some(limit) => limit,
            None => {
                let timeout = self.timeout.unwrap_or(TIMEOUT);
                let timeout = if timeout.is_zero() { Duration::MAX } else { timeout };
                Heartbeat::within(timeout).limit
            }
        };
        Ok(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The budget of a wait in nanoseconds; 0 is none.
    pub(super) fn timeout_ns(&self) -> u64 {
        u64::try_from(self.timeout.unwrap_or(TIMEOUT).as_nanos()).unwrap_or(u64::MAX)
    }
}

fn setting(name: &str, value: impl ToString, range: &str) -> Error {
    Error::InvalidSetting {
        name: format!("CommConfig::{name}"),
        value: value.to_string(),
        reason: format!("must be {range}"),
    }
}
