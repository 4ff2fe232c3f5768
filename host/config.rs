//! Every knob in one table: its variable, its type, what is legal, its default and its meaning.
//!
//! A knob that is not in [`KNOBS`] does not exist. The same table declares the fields of [`Config`], reads
//! them, and prints them; nothing can be in one and not in the others. Variables keep NCCL's names where
//! NCCL has the knob; the rest begin with `FERROCCL_`.
//!
//! A [`Config`] is a value: it is read once, by whoever asks ([`Config::from_env`]), and handed down. Nothing
//! here is global, and nothing here knows what a knob does. What other crates and modules need of it they get as small
//! values of their own types ([`Config::bootstrap`], [`Config::policy`], [`Config::tuning`], ...): no module below the
//! communicator reads the environment. A variable that is set to nothing counts as
//! not set, as with NCCL. A variable that makes no sense is an error, never a silent default.

mod device;
mod names;
mod parts;
mod secret;
mod setting;
mod topo_ranks;
mod tuner_file;
mod unknown;

use std::time::Duration;

pub use device::LibraryDevice;
use ferroccl_proxy::net::{Faults, HcaFilter};
pub use names::Names;
pub use secret::SecretFile;
pub use setting::{Level, Limit, Setting, Size};
pub use topo_ranks::TopoRanks;
pub use tuner_file::TunerFile;
pub use unknown::{UnknownVariable, unknown_in_env, unknown_variables};

use crate::error::{Error, Result};
use crate::flight_recorder::DumpSignal;
use crate::log::{LogLevel, Subsystems};
use ferroccl_bootstrap::{AddressFamily, CommId, InterfaceFilter, Secret};
use ferroccl_device::abi::ProtocolId;
use ferroccl_topology::graph::tuning::Algorithm;
use ferroccl_topology::merge::{MergeGroups, MergeLevel};

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// The environment variable.
    pub name: &'static str,
    /// What it does.
    pub meaning: &'static str,
    legal: fn() -> String,
    default: fn() -> String,
    quote: fn(&str) -> String,
}

impl Knob {
    /// What may be written, in words.
    #[must_use]
    pub fn legal(&self) -> String {
        (self.legal)()
    }

    /// The default as it would be written; empty when the default is "not set".
    #[must_use]
    pub fn default(&self) -> String {
        (self.default)()
    }
}

macro_rules! knobs {
    ($($name:literal $field:ident: $ty:ty = $default:expr, $legal:expr, $meaning:literal;)*) => {
        /// Every knob there is, in the order they are printed.
        pub static KNOBS: &[Knob] = &[$(Knob {
            name: $name,
            meaning: $meaning,
            legal: || <$ty as Setting>::describe(&$legal),
            default: || { let default: $ty = $default; default.show() },
            quote: <$ty as Setting>::quote,
        },)*];

        /// The value of every knob.
        ///
        /// ```
        /// use ferroccl::config::Config;
        ///
        /// let config = Config::from_lookup(|name| (name == "NCCL_BUFFSIZE").then(|| "2M".to_owned()))?;
        /// assert_eq!(config.buffsize.map(|s| s.0), Some(2 << 20));
        /// assert!(config.is_set("NCCL_BUFFSIZE"));
        /// # Ok::<(), ferroccl::Error>(())
        /// ```
        #[derive(Clone, Debug)]
        pub struct Config {
            $(#[doc = concat!("`", $name, "`: ", $meaning)] pub $field: $ty,)*
            set: Vec<&'static str>,
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($field: $default,)* set: Vec::new() }
            }
        }

        impl Config {
            /// Reads every knob through `get`, which is given a variable's name.
            ///
            /// # Errors
            /// [`Error::InvalidSetting`] for the first value that makes no sense.
            pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
                let mut config = Config::default();
                $(if let Some(value) = read::<$ty>($name, &$legal, &get)? {
                    config.$field = value;
                    config.set.push($name);
                })*
                config.check_together()?;
                Ok(config)
            }

            /// Every knob with its value as it would be written.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static Knob, String)> {
                KNOBS.iter().zip([$(self.$field.show()),*]).collect()
            }
        }
    };
}

knobs! {
    "NCCL_DEBUG" debug: LogLevel = LogLevel::None, LogLevel::NAMES,
        "how much is logged";
    "NCCL_DEBUG_SUBSYS" debug_subsys: Subsystems = Subsystems::DEFAULT, Subsystems::NAMES,
        "whose INFO and TRACE lines are logged; ^ before the list: all but these";
    "NCCL_DEBUG_FILE" debug_file: Option<String> = None, "a path; %h is the host, %p the process, %% a percent sign",
        "where the log goes instead of stderr";
    "NCCL_SOCKET_IFNAME" socket_ifname: Option<InterfaceFilter> = None, InterfaceFilter::FORM,
        "network interfaces that ranks may use, to find each other and for data";
    "NCCL_SOCKET_FAMILY" socket_family: Option<AddressFamily> = None, "AF_INET or AF_INET6",
        "use only addresses of this family";
    "NCCL_NET" net: Option<String> = None, "IB, Socket, none, or a plugin's name",
        "the network between hosts; not set: a plugin's if there is one, else IB, else sockets";
    "NCCL_NET_PLUGIN" net_plugin: Option<String> = None, "a library, the NAME of libnccl-net-NAME.so, or none",
        "the plugin whose network may be used; not set: libnccl-net.so if there is one";
    "NCCL_TUNER_PLUGIN" tuner_plugin: Option<String> = None, "a library, the NAME of libnccl-tuner-NAME.so, or none",
        "the plugin that chooses algorithm, protocol and channels; not set: libnccl-tuner.so, or the network's plugin if it is a tuner, too";
    "NCCL_PROFILER_PLUGIN" profiler_plugin: Option<String> = None, "a library, the NAME of libnccl-profiler-NAME.so, or none",
        "the plugin that is told of calls; not set: libnccl-profiler.so, or the network's plugin if it is a profiler, too";
    "FERROCCL_NET_FAULTS" net_faults: Option<Faults> = None,
        "seed=1,delay=200ms,cut=100,drop=100,corrupt=100, of which all may be left out",
        "what goes wrong on the network between hosts on purpose: for tests";
    "NCCL_SOCKET_NTHREADS" socket_nthreads: Option<u32> = None, 0..=16,
        "threads of a connection over sockets that move its data; 0: the proxy does; not set: by the card";
    "NCCL_NSOCKS_PERTHREAD" nsocks_perthread: Option<u32> = None, 1..=64,
        "sockets of each of these threads, 64 in all; not set: by the card";
    "NCCL_IB_DISABLE" ib_disable: bool = false, (),
        "InfiniBand and RoCE devices are not used";
    "NCCL_IB_HCA" ib_hca: Option<HcaFilter> = None, HcaFilter::FORM,
        "InfiniBand and RoCE devices that may be used, and their ports";
    "NCCL_IB_GID_INDEX" ib_gid_index: Option<u32> = None, 0..=255,
        "which of its addresses a port uses; not set: RoCE v2 before v1, IPv4 before IPv6, and those before link-local ones";
    "NCCL_IB_TC" ib_tc: u32 = 0, 0..=255,
        "traffic class of packets over InfiniBand and RoCE";
    "NCCL_IB_SL" ib_sl: u32 = 0, 0..=15,
        "service level of packets over InfiniBand and RoCE";
    "NCCL_IB_PKEY" ib_pkey: u32 = 0, 0..=65535,
        "which entry of a port's table of partition keys is used";
    "NCCL_IB_TIMEOUT" ib_timeout: u32 = 20, 1..=31,
        "how long a card waits for an answer: 4.096 us times two to this power";
    "NCCL_IB_RETRY_CNT" ib_retry_cnt: u32 = 7, 0..=7,
        "how often a card sends again before a connection is broken";
    "NCCL_IB_QPS_PER_CONNECTION" ib_qps_per_connection: u32 = 1, 1..=128,
        "queue pairs of a connection";
    "NCCL_IB_SPLIT_DATA_ON_QPS" ib_split_data_on_qps: bool = false, (),
        "each message goes over all queue pairs of its connection, instead of over one in turn";
    "NCCL_IB_ADAPTIVE_ROUTING" ib_adaptive_routing: Option<bool> = None, (),
        "switches may route each packet as they like; not set: on InfiniBand";
    "NCCL_IB_AR_THRESHOLD" ib_ar_threshold: Size = Size(8192), Size(0)..=Size(1 << 30),
        "if so, longer messages are notified by a write of their own, so that their bytes may come in any order";
    "NCCL_IB_PCI_RELAXED_ORDERING" ib_pci_relaxed_ordering: u32 = 2, 0..=2,
        "whether a card may reorder its writes to memory; 2: if it can";
    "NCCL_IB_USE_INLINE" ib_use_inline: bool = true, (),
        "small writes take their bytes along, if the card can";
    "NCCL_IB_MERGE_NICS" ib_merge_nics: bool = true, (),
        "InfiniBand and RoCE devices may be used as one, if their link layers are alike";
    "NCCL_COMM_ID" comm_id: Option<CommId> = None, CommId::FORM,
        "where rank 0 waits for the others, instead of an id that is handed around";
    "FERROCCL_SECRET" secret: Option<Secret> = None, "at least 16 bytes, the same on all ranks",
        "what keeps others from joining a group that meets by NCCL_COMM_ID or by what a launcher says";
    "FERROCCL_SECRET_FILE" secret_file: Option<SecretFile> = None, "a file that belongs to this user and that no other may read",
        "has that secret, instead of FERROCCL_SECRET";
    "NCCL_HOSTID" hostid: Option<String> = None, "any text",
        "stands for the host's identity: ranks whose texts differ do not share memory";
    "NCCL_PROTO" proto: Names<ProtocolId> = Names::all(), [],
        "protocols that may be chosen; ^ before a list: all but these; ;allreduce:LL: a list for one collective";
    "NCCL_ALGO" algo: Names<Algorithm> = Names::all(),
        // NCCL's other algorithms: a list may name them, the model does not know them.
        ["NVLS", "NVLSTree"],
        "algorithms that may be chosen, with lists as NCCL_PROTO has them; PAT is Bruck";
    "FERROCCL_DETERMINISTIC" deterministic: bool = false, (),
        "what is reduced is reduced in the order of the ranks, whatever the size: the same bits each time";
    "NCCL_MIN_NCHANNELS" min_nchannels: Option<u32> = None, 1..=64, // 64 is NCCL's MAXCHANNELS
        "the fewest channels (blocks) a call uses";
    "NCCL_MAX_NCHANNELS" max_nchannels: Option<u32> = None, 1..=64,
        "the most channels (blocks) a call uses";
    "NCCL_MIN_CTAS" min_ctas: Option<u32> = None, 1..=64,
        "as NCCL_MIN_NCHANNELS, of which the larger counts";
    "NCCL_MAX_CTAS" max_ctas: Option<u32> = None, 1..=64,
        "as NCCL_MAX_NCHANNELS, of which the smaller counts";
    "NCCL_BUFFSIZE" buffsize: Option<Size> = None, Size(4 << 10)..=Size(1 << 30),
        "bytes of the Simple protocol's buffer per channel and peer, all slots together; not set: the runtime's choice";
    "NCCL_LL_BUFFSIZE" ll_buffsize: Option<Size> = None, Size(4 << 10)..=Size(1 << 30),
        "the same for the LL protocol, flags included";
    "NCCL_LL128_BUFFSIZE" ll128_buffsize: Option<Size> = None, Size(4 << 10)..=Size(1 << 30),
        "the same for the LL128 protocol, flags included";
    "FERROCCL_SLOTS" slots: Option<u32> = None, 2..=64,
        "slots of each of these buffers: steps a sender may be ahead of its receiver; not set: the runtime's choice";
    "NCCL_COLLNET_ENABLE" collnet_enable: bool = false, (),
        "all-reduces may go through a network that reduces, between nodes: one in software, for the ranks of a process";
    "FERROCCL_RANKS_PER_NODE" ranks_per_node: Option<u32> = None, 1..=65536,
        "so many ranks in a row count as a node for trees and hierarchies; not set: those of a host";
    "NCCL_P2P_DISABLE" p2p_disable: bool = false, (),
        "ranks of one process do not read each other's memory directly";
    "NCCL_SHM_DISABLE" shm_disable: bool = false, (),
        "processes of one host do not share memory";
    "NCCL_WIN_ENABLE" win_enable: bool = true, (),
        "kernels work directly on buffers that are registered as windows";
    "NCCL_NVLS_ENABLE" nvls_enable: u32 = 2, 0..=2,
        "1 and 2: windows have a multicast object where the switch between the ranks' GPUs has them, for NVLS";
    "NCCL_NET_DISABLE_INTRA" net_disable_intra: bool = false, (),
        "GPUs of one host do not talk over the network where that is faster than between them";
    "NCCL_NET_MERGE_LEVEL" net_merge_level: MergeLevel = MergeLevel::Port, MergeLevel::FORM,
        "how near network cards are to each other that are used as one; LOC: none are";
    "NCCL_NET_FORCE_MERGE" net_force_merge: Option<MergeGroups> = None, MergeGroups::FORM,
        "network cards that are used as one, however far apart they are";
    "NCCL_IGNORE_CPU_AFFINITY" ignore_cpu_affinity: bool = false, (),
        "threads run on the cores near their GPU, also where the process was started for others";
    "NCCL_P2P_LEVEL" p2p_level: Option<Level> = None, Level::FORM,
        "the farthest two GPUs may be to write each other's memory; not set: what the CPU is good for";
    "NCCL_NET_GDR_LEVEL" net_gdr_level: Option<Level> = None, Level::FORM,
        "the farthest a network card may be from a GPU whose memory it reaches; not set: P2C";
    "NCCL_NET_GDR_C2C" net_gdr_c2c: bool = true, (),
        "a network card reaches a GPU's memory through the CPU of the GPU's module (P2C) where NCCL_NET_GDR_LEVEL is not set";
    "NCCL_NET_GDR_READ" net_gdr_read: bool = true, (),
        "a network card that reaches a GPU's memory also reads it, to send";
    "NCCL_NET_FORCE_FLUSH" net_force_flush: bool = false, (),
        "what a network card writes to a GPU's memory is flushed even where the GPU sees such writes in order";
    "NCCL_DMABUF_ENABLE" dmabuf_enable: bool = true, (),
        "network cards may reach a GPU's memory as a DMA buffer";
    "NCCL_NVB_DISABLE" nvb_disable: bool = false, (),
        "no path goes through a GPU by NVLink";
    "NCCL_PXN_DISABLE" pxn_disable: bool = false, (),
        "no GPU uses a network card that is near another one";
    "NCCL_PXN_C2C" pxn_c2c: bool = true, (),
        "a GPU that sends for others may reach the network card through the CPU of its module (P2C)";
    "NCCL_P2P_PXN_LEVEL" p2p_pxn_level: u32 = 2, 0..=2,
        "messages leave by the card of the GPU with the receiver's number: 0: never, 1: where its path is PXN, 2: where NVLink leads there";
    "NCCL_CROSS_NIC" cross_nic: u32 = 2, 0..=2,
        "whether a ring may leave a host by another port than it came in by; 2: when that is faster";
    "NCCL_TOPO_FILE" topo_file: Option<String> = None, "a path",
        "the machine's topology, instead of what is found";
    "NCCL_TOPO_DUMP_FILE" topo_dump_file: Option<String> = None, "a path",
        "where the topology is written";
    "FERROCCL_TOPO_RANKS" topo_ranks: Option<TopoRanks> = None, TopoRanks::FORM,
        "which GPUs of NCCL_TOPO_FILE the ranks of a host stand for, that run on the CPU: they connect as those would";
    "NCCL_GRAPH_FILE" graph_file: Option<String> = None, "a path",
        "the channels, instead of what a search finds";
    "FERROCCL_TUNER_FILE" tuner_file: Option<TunerFile> = None, "a path",
        "times of calls, which count in place of the model's for communicators of as many hosts and ranks; `ferroccl simulate --fit` writes such a file";
    "NCCL_GRAPH_DUMP_FILE" graph_dump_file: Option<String> = None, "a path",
        "where the channels are written";
    "NCCL_NTHREADS" nthreads: Option<u32> = None, 64..=512,
        "threads of a block that runs LL or Simple, a multiple of 32; not set: what the tuner chooses";
    "NCCL_LL128_NTHREADS" ll128_nthreads: Option<u32> = None, 160..=640,
        "threads of a block that runs LL128, a multiple of 32";
    "NCCL_LL128_C2C" ll128_c2c: bool = true, (),
        "LL128 is safe on the way to a network card through the CPU of a GPU's module (P2C), and by another GPU's (PXN), from sm_90 on";
    "FERROCCL_TIMEOUT" timeout: Limit = Limit(Some(Duration::from_secs(600))), 0.0..=604_800.0,
        // 10 minutes is what PyTorch gives its NCCL process group before its watchdog steps in.
        "seconds a kernel may wait for a peer; 0: for ever";
    "FERROCCL_WARN_AFTER" warn_after: Duration = Duration::from_secs(10), 0.0..=604_800.0,
        "seconds a call waits before a warning says which ranks have not entered it; 0: never";
    "FERROCCL_DUMP_FILE" dump_file: Option<String> = None, "a path; %h is the host, %p the process, %% a percent sign",
        "where a process writes its last calls when a communicator fails, as JSON that Perfetto opens; later files have .2, .3 behind their names";
    "FERROCCL_DUMP_SIGNAL" dump_signal: Option<DumpSignal> = None, DumpSignal::FORM,
        "a signal at which it writes such a file, too";
    "FERROCCL_STATUS" status: bool = true, (),
        "`ferroccl status` of the same user, or of root, may ask this process what its communicators do";
    "FERROCCL_HEARTBEAT_TIMEOUT" heartbeat_timeout: Option<Limit> = None, 0.0..=86_400.0,
        "seconds after which a rank that says nothing is lost, 0.1 at least; 0: never, for a process in a debugger; not set: half of FERROCCL_TIMEOUT, 1 to 30";
    "FERROCCL_BOOTSTRAP_TIMEOUT" bootstrap_timeout: Duration = Duration::from_secs(120), 0.1..=86_400.0,
        "seconds ranks may take to find each other, and to answer one bootstrap message";
    "FERROCCL_DEVICE" device: LibraryDevice = LibraryDevice::Cuda, LibraryDevice::NAMES,
        "what programs that call libnccl.so.2 run on: the GPU that is current to the calling thread, or the CPU";
    "FERROCCL_WORKERS" workers: Option<u32> = None, 1..=1024,
        "worker threads of the CPU and PTX devices; not set: the cores this process may use";
    "FERROCCL_CUDA_CACHE" cuda_cache: Option<String> = None, "a directory, or none",
        "where kernels are kept as the driver has assembled them; not set: ferroccl in the user's cache directory";
    "FERROCCL_PTX_THREADS" ptx_threads: u32 = 128, 32..=512, // MAX_THREADS of the kernels
        "threads of a block on the PTX device, a multiple of 32";
}

/// The shortest silence after which a rank may be taken for lost: beats come eight times as often.
pub(crate) const LEAST_HEARTBEAT: Duration = Duration::from_millis(100);

/// Reads one knob; `None` when it is not set.
fn read<T: Setting>(
    name: &str,
    legal: &T::Legal,
    get: &impl Fn(&str) -> Option<String>,
) -> Result<Option<T>> {
    let Some(value) = get(name) else { return Ok(None) };
    let text = value.trim();
    if text.is_empty() {
        return Ok(None);
    }
    T::read(text, legal).map(Some).map_err(|reason| Error::InvalidSetting {
        name: name.to_owned(),
        value: T::quote(text),
        reason: format!("{reason}; legal: {}", T::describe(legal)),
    })
}

impl Config {
    /// Reads every knob from this process's environment. Warns in the log, once in the process, of variables that look like
    /// settings and are none ([`unknown_in_env`]).
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for the first value that makes no sense.
    pub fn from_env() -> Result<Self> {
        for knob in KNOBS {
            if let Some(value) = std::env::var_os(knob.name)
                && value.to_str().is_none()
            {
                return Err(Error::InvalidSetting {
                    name: knob.name.to_owned(),
                    value: (knob.quote)(&value.to_string_lossy()),
                    reason: "not UTF-8".to_owned(),
                });
            }
        }
        unknown::warn_once();
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Values that are within their range, and make no sense all the same.
    fn check_together(&self) -> Result<()> {
        if !self.ptx_threads.is_multiple_of(32) {
            return Err(Error::InvalidSetting {
                name: "FERROCCL_PTX_THREADS".to_owned(),
                value: self.ptx_threads.to_string(),
                reason: "not a multiple of 32, the lanes of a warp".to_owned(),
            });
        }
        self.check_secret()?;
        if let (Some(signal), None) = (self.dump_signal, &self.dump_file) {
            return Err(Error::InvalidSetting {
                name: "FERROCCL_DUMP_SIGNAL".to_owned(),
                value: signal.to_string(),
                reason: "FERROCCL_DUMP_FILE does not say where".to_owned(),
            });
        }
        if let Some(limit) = self.heartbeat_timeout
            && limit.0.is_some_and(|limit| limit < LEAST_HEARTBEAT)
        {
            return Err(Error::InvalidSetting {
                name: "FERROCCL_HEARTBEAT_TIMEOUT".to_owned(),
                value: limit.show(),
                reason: format!("less than {} seconds, and not 0", LEAST_HEARTBEAT.as_secs_f64()),
            });
        }
        match (self.min_channels(), self.max_channels()) {
            (Some(min), Some(max)) if min > max => {
                let of = |value: u32, ctas: Option<u32>, [name, other]: [&'static str; 2]| {
                    if ctas == Some(value) { other } else { name }
                };
                let least = of(min, self.min_ctas, ["NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"]);
                let most = of(max, self.max_ctas, ["NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"]);
                Err(Error::InvalidSetting {
                    name: least.to_owned(),
                    value: min.to_string(),
                    reason: format!("more than {most}={max}"),
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether the variable `name` was set when this was read.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.set.contains(&name)
    }

    /// Logs every variable that was set, with NCCL's words; once in the process also those that are no settings.
    pub fn log(&self) {
        unknown::warn_once();
        for (knob, value) in self.entries() {
            if self.is_set(knob.name) {
                tracing::info!(target: crate::log::targets::ENV, "{} set by environment to {value}", knob.name);
            }
        }
        unknown::tell_once();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroccl_device::abi::Collective;

    fn with(name: &'static str, value: &str) -> Result<Config> {
        Config::from_lookup(|n| (n == name).then(|| value.to_owned()))
    }

    #[test]
    fn a_default_reads_back_as_itself() {
        for (knob, value) in Config::default().entries() {
            assert_eq!(knob.default(), value, "{}", knob.name);
            let again = with(knob.name, &value).unwrap_or_else(|e| panic!("{}: {e}", knob.name));
            let shown = again.entries().into_iter().find(|(k, _)| k.name == knob.name).unwrap().1;
            assert_eq!(shown, value, "{}", knob.name);
            assert_eq!(again.is_set(knob.name), !value.is_empty());
        }
    }

    #[test]
    fn names_are_unique_and_explained() {
        for (i, knob) in KNOBS.iter().enumerate() {
            assert!(KNOBS[..i].iter().all(|k| k.name != knob.name), "{} twice", knob.name);
            assert!(!knob.meaning.is_empty() && !knob.legal().is_empty(), "{}", knob.name);
        }
    }

    #[test]
    fn nonsense_names_the_variable_the_value_and_what_is_legal() {
        for (name, value, legal) in [
            ("NCCL_DEBUG", "LOUD", "INFO"),
            ("NCCL_DEBUG_SUBSYS", "INIT,FROG", "COLL"),
            ("NCCL_SOCKET_FAMILY", "AF_UNIX", "AF_INET6"),
            ("NCCL_COMM_ID", "nowhere", "host:port"),
            ("NCCL_PROTO", "LL256", "LL128"),
            ("NCCL_ALGO", "NVLSTree", "Ring"),
            ("NCCL_ALGO", "ring;reduce:frog", "frog"),
            ("NCCL_MIN_NCHANNELS", "0", "1 to 64"),
            ("NCCL_MAX_NCHANNELS", "many", "1 to 64"),
            ("NCCL_BUFFSIZE", "4X", "4K to 1G"),
            ("NCCL_LL_BUFFSIZE", "2G", "4K to 1G"),
            ("NCCL_LL128_BUFFSIZE", "99999999999999999999G", "4K to 1G"),
            ("FERROCCL_SLOTS", "1", "2 to 64"),
            ("NCCL_P2P_DISABLE", "maybe", "0 or 1"),
            ("FERROCCL_TIMEOUT", "-1", "0 to 604800"),
            ("FERROCCL_TIMEOUT", "NaN", "0 to 604800"),
            ("FERROCCL_BOOTSTRAP_TIMEOUT", "0", "0.1 to 86400"),
            ("NCCL_SOCKET_IFNAME", "^", "prefixes"),
            ("NCCL_SOCKET_NTHREADS", "17", "0 to 16"),
            ("FERROCCL_NET_FAULTS", "cut=soon", "delay=200ms"),
            ("NCCL_IB_HCA", "mlx5_0:x", "DEVICE:PORT"),
            ("NCCL_IB_TIMEOUT", "0", "1 to 31"),
            ("NCCL_IB_QPS_PER_CONNECTION", "129", "1 to 128"),
            ("NCCL_NET_MERGE_LEVEL", "NVL", "LOC, PORT, PIX"),
            ("NCCL_NET_FORCE_MERGE", "mlx5_0,mlx5_1;mlx5_0", "is there twice"),
        ] {
            let read = with(name, value);
            let read = read.and_then(|mut config| config.know(&crate::Registry::new()));
            let text = read.unwrap_err().to_string();
            assert!(text.starts_with(&format!("invalid setting {name}={value}: ")), "{text}");
            assert!(text.contains(legal), "{text}");
        }
    }

    #[test]
    fn values_that_contradict_each_other_are_refused() {
        let channels = |min: &str, max: &str| {
            Config::from_lookup(|name| match name {
                "NCCL_MIN_NCHANNELS" => Some(min.to_owned()),
                "NCCL_MAX_NCHANNELS" => Some(max.to_owned()),
                _ => None,
            })
        };
        assert!(channels("4", "4").is_ok());
        let e = channels("5", "4").unwrap_err().to_string();
        assert_eq!(e, "invalid setting NCCL_MIN_NCHANNELS=5: more than NCCL_MAX_NCHANNELS=4");
        // The other names of the same, where the larger and the smaller count.
        let of = |pairs: &[(&str, &str)]| {
            let value = |name: &str| pairs.iter().find(|(known, _)| *known == name);
            Config::from_lookup(|name| value(name).map(|(_, value)| (*value).to_owned()))
        };
        let both = [("NCCL_MIN_NCHANNELS", "2"), ("NCCL_MIN_CTAS", "3"), ("NCCL_MAX_CTAS", "8")];
        let config = of(&both).unwrap();
        assert_eq!((config.min_channels(), config.max_channels()), (Some(3), Some(8)));
        let config = of(&[("NCCL_MAX_NCHANNELS", "6"), ("NCCL_MAX_CTAS", "8")]).unwrap();
        assert_eq!((config.min_channels(), config.max_channels()), (None, Some(6)));
        let e = of(&[("NCCL_MIN_CTAS", "9"), ("NCCL_MAX_NCHANNELS", "8")]).unwrap_err().to_string();
        assert_eq!(e, "invalid setting NCCL_MIN_CTAS=9: more than NCCL_MAX_NCHANNELS=8");
    }

    #[test]
    fn values_are_read() {
        assert_eq!(with("NCCL_BUFFSIZE", " 64k ").unwrap().buffsize, Some(Size(64 << 10)));
        assert_eq!(with("NCCL_BUFFSIZE", "8192").unwrap().buffsize, Some(Size(8192)));
        assert_eq!(with("FERROCCL_TIMEOUT", "0").unwrap().timeout, Limit(None));
        let half = with("FERROCCL_TIMEOUT", "0.5").unwrap();
        assert_eq!(half.timeout, Limit(Some(Duration::from_millis(500))));
        assert!(with("NCCL_P2P_DISABLE", "1").unwrap().p2p_disable);
        let proto = with("NCCL_PROTO", "^ll128").unwrap().proto;
        let all = Collective::AllReduce;
        assert!(!proto.allows(all, ProtocolId::Ll128) && proto.allows(all, ProtocolId::Simple));
        let algo = with("NCCL_ALGO", "Tree,RING").unwrap().algo;
        assert!(algo.allows(all, Algorithm::Ring) && algo.allows(all, Algorithm::Tree));
        assert!(!with("NCCL_ALGO", "^Tree").unwrap().algo.allows(all, Algorithm::Tree));
        assert!(with("NCCL_ALGO", "^NVLS").unwrap().algo.allows(all, Algorithm::Ring));
        assert!(with("FERROCCL_DETERMINISTIC", "1").unwrap().deterministic);
        assert!(!with("NCCL_DEBUG", "").unwrap().is_set("NCCL_DEBUG"), "empty is not set");
    }
}
