//! The parts of a [`Config`] that are handed down, as the types of those who take them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Config;
use crate::{bootstrap, runtime};
use ferroccl_topology::graph::{SearchSettings, tuning};
use ferroccl_topology::merge::MergeRules;
use ferroccl_topology::{CrossNic, Files, MessagePxn, PathKind, Policy};

impl Config {
    /// How ranks find each other.
    #[must_use]
    pub fn bootstrap(&self) -> bootstrap::Settings {
        bootstrap::Settings {
            comm_id: self.comm_id.clone(),
            secret: self.secret().cloned(),
            socket_ifname: self.socket_ifname.clone(),
            socket_family: self.socket_family,
            timeout: self.bootstrap_timeout,
        }
    }

    /// What devices of this process run with.
    #[must_use]
    pub fn runtime(&self) -> runtime::Settings {
        runtime::Settings {
            workers: self.workers,
            ptx_threads: self.ptx_threads,
            cuda_cache: self.cuda_cache_directory(),
        }
    }

    /// Where assembled kernels are kept: as the user says, else in the user's cache directory; `None`: nowhere.
    fn cuda_cache_directory(&self) -> Option<PathBuf> {
        match self.cuda_cache.as_deref() {
            Some("none") => None,
            Some(path) => Some(path.into()),
            None => {
                let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
                let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
                let cache =
                    cache.or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")));
                cache.map(|cache| cache.join("ferroccl"))
            }
        }
    }

    /// The topology's files: `NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`.
    #[must_use]
    pub fn topology_files(&self) -> Files {
        Files { read: self.topo_file.clone(), dump: self.topo_dump_file.clone() }
    }

    /// The channels' files: `NCCL_GRAPH_FILE`, `NCCL_GRAPH_DUMP_FILE`.
    #[must_use]
    pub fn graph_files(&self) -> Files {
        Files { read: self.graph_file.clone(), dump: self.graph_dump_file.clone() }
    }

    /// Which network cards are used as one (`NCCL_NET_MERGE_LEVEL`, `NCCL_NET_FORCE_MERGE`).
    #[must_use]
    pub fn merge_rules(&self) -> MergeRules {
        MergeRules {
            level: self.net_merge_level,
            groups: self.net_force_merge.clone().unwrap_or_default(),
        }
    }

    /// Whether there is to be no network (`NCCL_NET=none`).
    #[must_use]
    pub fn has_no_net(&self) -> bool {
        self.net.as_deref().is_some_and(|net| net.eq_ignore_ascii_case("none"))
    }

    /// What may reach what.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let p2p_off = self.p2p_disable.then_some(PathKind::Loc);
        Policy {
            p2p_level: p2p_off.or(self.p2p_level.map(|level| level.0)),
            gdr_level: self.net_gdr_level.map(|level| level.0),
            gdr_c2c: self.net_gdr_c2c,
            shm: !self.shm_disable,
            nvb: !self.nvb_disable,
            pxn: !self.pxn_disable,
            pxn_c2c: self.pxn_c2c,
            message_pxn: match self.p2p_pxn_level {
                _ if self.pxn_disable => MessagePxn::Never,
                0 => MessagePxn::Never,
                1 => MessagePxn::OnPath,
                _ => MessagePxn::Always,
            },
            cross_nic: match self.cross_nic {
                0 => CrossNic::Never,
                1 => CrossNic::Always,
                _ => CrossNic::IfBetter,
            },
        }
    }

    /// The fewest channels there are (`NCCL_MIN_NCHANNELS`, `NCCL_MIN_CTAS`).
    #[must_use]
    pub fn min_channels(&self) -> Option<u32> {
        self.min_nchannels.max(self.min_ctas)
    }

    /// The most channels there are (`NCCL_MAX_NCHANNELS`, `NCCL_MAX_CTAS`).
    #[must_use]
    pub fn max_channels(&self) -> Option<u32> {
        self.max_nchannels.into_iter().chain(self.max_ctas).min()
    }

    /// The bounds of the search for channels.
    #[must_use]
    pub fn search(&self) -> SearchSettings {
        SearchSettings {
            min_channels: self.min_channels(),
            max_channels: self.max_channels(),
            cross_nic: self.policy().cross_nic,
        }
    }

    /// What may be chosen for a call.
    #[must_use]
    pub fn tuning(&self) -> tuning::Settings {
        let bytes = [self.ll_buffsize, self.ll128_buffsize, self.buffsize];
        tuning::Settings {
            algorithms: *self.algo,
            protocols: *self.proto,
            deterministic: self.deterministic,
            windows: false,
            no_multicast: self.nvls_enable == 0,
            threads: self.nthreads,
            ll128_threads: self.ll128_nthreads,
            buffers: bytes.map(|size| size.map(|size| size.0 as u64)),
            min_channels: self.min_channels(),
            max_channels: self.max_channels(),
            fitted: self.tuner_file.as_ref().map(|file| Arc::clone(file.costs())),
            no_ll128_c2c: !self.ll128_c2c,
            own: tuning::OwnKernels::default(),
        }
    }
}
