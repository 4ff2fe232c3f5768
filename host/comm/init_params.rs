//! The parameters that ranks compare before they connect.

use std::time::Duration;

use ferroccl_device::abi::ProtocolId;
use serde::{Deserialize, Serialize};

use super::CommConfig;
use crate::channel::ConnLayout;
use crate::config::{Config, LEAST_HEARTBEAT, Setting as _, TunerFile};
use crate::error::{Error, Result};
use ferroccl_bootstrap::{Bootstrap, BootstrapError, Heartbeat};
use ferroccl_topology::graph::tuning::Algorithm;
use ferroccl_topology::graph::tuning::Selection;

/// A rank's parameters. Those that must not differ are equal on all ranks; of channels and blocks all ranks take the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InitParams {
    pub layout: ConnLayout,
    /// What is registered of other crates.
    pub registry: u64,
    pub channels: u32,
    /// Blocks of a rank that its device runs at the same time.
    pub blocks: u32,
    pub all_channels: bool,
    pub tuning: TuningParams,
    pub collnet: bool,
    /// A number for the group; rank 0's is used.
    pub group: u64,
    /// The budget of a kernel's wait in nanoseconds; 0 is no limit.
    pub timeout_ns: u64,
    /// The limit of a rank's silence in nanoseconds; 0 is no limit.
    pub heartbeat_ns: u64,
}

impl InitParams {
    /// The parameters with those left out that may differ.
    fn must_be_equal(&self) -> Self {
        let channels = if self.all_channels { self.channels } else { 0 };
        let (blocks, group, timeout_ns, heartbeat_ns) = (0, 0, 0, 0);
        InitParams { channels, blocks, group, timeout_ns, heartbeat_ns, ..*self }
    }

    /// The numbers of which all ranks take the least are some that a rank can have.
    ///
    /// # Errors
    /// [`BootstrapError::Malformed`] for what no rank of this version sends.
    fn check(&self, rank: usize) -> Result<()> {
        let wrong = |what: &str, value: u64| {
            Err(Error::malformed(format!("rank {rank} says that it has {value} {what}")))
        };
        let least = u64::try_from(LEAST_HEARTBEAT.as_nanos()).unwrap_or(u64::MAX);
        match self {
            InitParams { channels: 0, .. } => wrong("channels", 0),
            InitParams { blocks: 0, .. } => wrong("blocks", 0),
            &InitParams { heartbeat_ns, .. } if (1..least).contains(&heartbeat_ns) => {
                wrong("ns for its heartbeat", heartbeat_ns)
            }
            _ => Ok(()),
        }
    }
}

/// Identifies the group, and proves that a peer is of it. It is never sent: only the group's ranks know or derive the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupToken {
    /// The number of the group.
    pub group: u64,
    /// The key of the ranks' proofs.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for GroupToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GroupToken({:x})", self.group) // a secret does not belong in a log
    }
}

impl GroupToken {
    /// A random token.
    pub(super) fn new() -> Result<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(no_random)?;
        Ok(GroupToken { group: random_number()?, secret })
    }

    /// The token of the ranks of `bootstrap`.
    pub(super) fn of(bootstrap: &Bootstrap, group: u64) -> Self {
        GroupToken { group, secret: bootstrap.secret("networks") }
    }
}

/// A random number for a group.
pub(super) fn random_number() -> Result<u64> {
    getrandom::u64().map_err(no_random)
}

fn no_random(error: getrandom::Error) -> Error {
    Error::system("cannot get random bytes", std::io::Error::other(error.to_string()))
}

/// The settings that restrict the choice of algorithms and protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TuningParams {
    pub protocols: Selection<ProtocolId>,
    pub algorithms: Selection<Algorithm>,
    pub deterministic: bool,
    pub algorithm: Option<u8>,
    pub ranks_per_node: Option<u32>,
    /// Which file of fitted times there is; 0 is none.
    pub fitted: u64,
}

impl TuningParams {
    /// From the communicator's settings, and where they are silent from the environment.
    pub(super) fn new(config: &CommConfig, env: &Config) -> Self {
        TuningParams {
            protocols: config.protocols(env),
            algorithms: *env.algo,
            deterministic: config.deterministic.unwrap_or(env.deterministic),
            algorithm: config.algorithm.map(|algorithm| algorithm.index() as u8),
            ranks_per_node: config.ranks_per_node,
            fitted: env.tuner_file.as_ref().map_or(0, TunerFile::digest),
        }
    }
}

/// How the group's ranks show that they are there: at the least limit of all, unless one of them wants none.
pub(super) fn heartbeat(params: &[InitParams]) -> Option<Heartbeat> {
    let least = params.iter().map(|params| params.heartbeat_ns).min().unwrap_or(0);
    (least > 0).then(|| Heartbeat::of_limit(Duration::from_nanos(least)))
}

/// The group's channels, and the most blocks of a call: the least of all ranks.
///
/// # Errors
/// [`BootstrapError::Mismatch`] when other parameters differ.
pub(super) fn agree(rank: u32, mine: &InitParams, params: &[InitParams]) -> Result<(u32, u32)> {
    for (peer, theirs) in params.iter().enumerate() {
        theirs.check(peer)?;
        // What is said below takes longer than comparing a group's 1024 ranks with each other.
        if theirs.must_be_equal() == mine.must_be_equal() {
            continue;
        }
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
        if theirs.registry != mine.registry {
            let show = |digest: u64| match digest {
                0 => "empty".to_owned(),
                digest => format!("{digest:016x} (a digest of protocols, kernels and figures)"),
            };
            let what = "the registry of other crates' kernels (CommConfig::registry)";
            return differs(what, show(mine.registry), show(theirs.registry));
        }
        if theirs.layout != mine.layout {
            let show = |t: &InitParams| {
                let bytes = t.layout.slot_bytes.iter().enumerate();
                let there = bytes.filter(|(i, bytes)| *i < ProtocolId::ALL.len() || **bytes > 0);
                there.map(|(_, bytes)| bytes.to_string()).collect::<Vec<_>>().join("/")
            };
            let what = "slot bytes for LL, LL128 and Simple (NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE), and other crates' protocols";
            return differs(what, show(mine), show(theirs));
        }
        for (what, show) in [
            ("NCCL_PROTO", (|t| t.tuning.protocols.to_string()) as fn(&InitParams) -> String),
            ("NCCL_ALGO", |t| t.tuning.algorithms.to_string()),
            ("FERROCCL_DETERMINISTIC", |t| t.tuning.deterministic.show()),
            ("the algorithm (CommConfig::algorithm)", |t| {
                let index = t.tuning.algorithm.map(u64::from);
                let algorithm = index.and_then(Algorithm::from_index);
                algorithm.map_or_else(|| "chosen by size".to_owned(), |a| a.to_string())
            }),
            ("FERROCCL_RANKS_PER_NODE", |t| {
                t.tuning.ranks_per_node.map_or_else(|| "not set".to_owned(), |n| n.to_string())
            }),
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
    let least = |of: fn(&InitParams) -> u32| params.iter().map(of).min().unwrap_or(1);
    Ok((least(|params| params.channels), least(|params| params.blocks)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    /// A rank's parameters with these settings, of one channel and one block.
    fn params(config: CommConfig) -> InitParams {
        InitParams {
            layout: config.layout(([1 << 20; 3], 8), false).unwrap(),
            registry: 0,
            channels: 1,
            blocks: 1,
            all_channels: false,
            tuning: TuningParams::new(&config, &Config::default()),
            collnet: false,
            group: 0,
            timeout_ns: 0,
            heartbeat_ns: 0,
        }
    }

    /// The limit of silence of one rank's settings, in seconds.
    fn limit(timeout: Option<u64>, heartbeat: Option<u64>) -> f64 {
        let config = CommConfig {
            timeout: timeout.map(Duration::from_secs),
            heartbeat: heartbeat.map(Duration::from_secs),
            ..CommConfig::default()
        };
        config.heartbeat_ns().unwrap() as f64 / 1e9
    }

    #[test]
    fn protocols_of_other_crates_have_buffers() {
        let of = |bytes: usize| {
            let registry = Registry::new().protocol_id(ProtocolId::own(1, "LL64"), bytes, 0);
            let registry = registry.protocol_id(ProtocolId::own(0, "LL32"), 8192, 0);
            CommConfig { registry, ..CommConfig::default() }.layout(([1 << 20; 3], 8), false)
        };
        assert_eq!(of(4096).unwrap().slot_bytes[3..], [1024, 512, 0, 0, 0]);
        let error = of(2047).unwrap_err().to_string();
        assert!(error.contains("buffer bytes of LL64=2047"), "{error}");
    }

    #[test]
    fn ranks_have_the_same_kernels_of_other_crates() {
        let params = params(CommConfig::default());
        let other = InitParams { registry: 7, ..params };
        let error = agree(0, &params, &[params, other]).unwrap_err().to_string();
        let said = "(CommConfig::registry) of rank 0 is empty, of rank 1 0000000000000007";
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn the_limit_of_silence_is_its_own_setting_and_follows_the_timeout_only_by_default() {
        assert_eq!(limit(None, None), 30.0);
        assert_eq!(limit(Some(10), None), 5.0);
        assert_eq!(limit(Some(1), None), 1.0);
        assert_eq!(limit(Some(0), None), 30.0, "no timeout is not no heartbeat");
        assert_eq!(limit(Some(0), Some(7)), 7.0);
        assert_eq!(limit(Some(600), Some(0)), 0.0);
        let short = Some(Duration::from_millis(1));
        let error = CommConfig { heartbeat: short, ..CommConfig::default() }.heartbeat_ns();
        assert!(error.unwrap_err().to_string().contains("CommConfig::heartbeat=1ms"));
    }

    #[test]
    fn ranks_agree_on_the_least_limit_and_one_that_wants_none_has_its_way() {
        let of = |limits: &[u64]| {
            let of_rank = |&seconds: &u64| {
                let heartbeat_ns = seconds * 1_000_000_000;
                InitParams { heartbeat_ns, ..params(CommConfig::default()) }
            };
            let all: Vec<_> = limits.iter().map(of_rank).collect();
            heartbeat(&all).map(|heartbeat| heartbeat.limit.as_secs())
        };
        assert_eq!(of(&[30, 5, 9]), Some(5));
        assert_eq!(of(&[30, 0, 9]), None);
    }

    #[test]
    fn numbers_that_no_rank_has_are_refused() {
        let plain = params(CommConfig::default());
        let good = InitParams { channels: 2, blocks: 3, heartbeat_ns: 100_000_000, ..plain };
        assert_eq!(agree(0, &good, &[good, good]).ok(), Some((2, 3)));
        for (bad, words) in [
            (InitParams { channels: 0, ..good }, "rank 1 says that it has 0 channels"),
            (InitParams { blocks: 0, ..good }, "rank 1 says that it has 0 blocks"),
            (InitParams { heartbeat_ns: 8, ..good }, "has 8 ns for its heartbeat"),
        ] {
            let text = agree(0, &good, &[good, bad]).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn what_differs_is_said_in_words() {
        let config = |algorithm, per_node| CommConfig {
            algorithm,
            ranks_per_node: per_node,
            ..CommConfig::default()
        };
        let plain = params(config(None, None));
        for (other, words) in [
            (config(Some(Algorithm::Tree), None), "of rank 0 is chosen by size, of rank 1 Tree"),
            (config(None, Some(2)), "of rank 0 is not set, of rank 1 2"),
            (
                CommConfig { buffer_bytes: [None, None, Some(1 << 16)], ..config(None, None) },
                "of rank 0 is 131072/131072/131072, of rank 1 131072/131072/8192",
            ),
        ] {
            let text = agree(0, &plain, &[plain, params(other)]).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
            assert!(!text.contains(['[', '(', '{']) || !text.contains("Some"), "{text}");
        }
    }
}
