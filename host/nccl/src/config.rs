//! `ncclConfig_t`: read as NCCL reads it. A program compiled with an older header has a shorter one; what it does not have, or
//! what is `NCCL_CONFIG_UNDEF_INT`, has its default.

use std::ffi::{CStr, c_char, c_int};

use ferroccl::config::Config;
use ferroccl::device::abi::MAX_CHANNELS;
use ferroccl::{AbortHandle, CommConfig, log};

use crate::answer::Failure;
use crate::types::*;

/// A communicator's settings.
#[derive(Clone, Debug)]
pub(crate) struct CommSettings {
    pub(crate) blocking: bool,
    min_ctas: Option<u32>,
    max_ctas: Option<u32>,
    /// Contexts of one-sided calls, each with signals of its own.
    pub(crate) rma_contexts: u32,
    name: Option<String>,
}

impl Default for CommSettings {
    fn default() -> Self {
        CommSettings { blocking: true, min_ctas: None, max_ctas: None, rma_contexts: 1, name: None }
    }
}

/// The fields, with the version from which on programs know of them, and what they may be.
type Field =
    (&'static str, c_int, fn(&mut ncclConfig_t) -> &mut c_int, std::ops::RangeInclusive<c_int>);

const NUMBERS: &[Field] = &[
    ("blocking", 21400, |c| &mut c.blocking, 0..=1),
    ("cgaClusterSize", 21700, |c| &mut c.cgaClusterSize, 0..=c_int::MAX),
    ("minCTAs", 21700, |c| &mut c.minCTAs, 1..=c_int::MAX),
    ("maxCTAs", 21700, |c| &mut c.maxCTAs, 1..=c_int::MAX),
    ("splitShare", 21800, |c| &mut c.splitShare, 0..=1),
    ("trafficClass", 22600, |c| &mut c.trafficClass, 0..=c_int::MAX),
    ("collnetEnable", 22700, |c| &mut c.collnetEnable, 0..=1),
    ("CTAPolicy", 22700, |c| &mut c.CTAPolicy, 0..=3),
    ("shrinkShare", 22700, |c| &mut c.shrinkShare, 0..=1),
    ("nvlsCTAs", 22700, |c| &mut c.nvlsCTAs, 1..=c_int::MAX),
    ("nChannelsPerNetPeer", 22800, |c| &mut c.nChannelsPerNetPeer, 1..=c_int::MAX),
    ("nvlinkCentricSched", 22800, |c| &mut c.nvlinkCentricSched, 0..=1),
    ("graphUsageMode", 22900, |c| &mut c.graphUsageMode, 0..=2),
    ("numRmaCtx", 22900, |c| &mut c.numRmaCtx, 1..=MOST_CONTEXTS),
    ("maxP2pPeers", 23000, |c| &mut c.maxP2pPeers, 1..=c_int::MAX),
    ("graphStreamOrdering", 23000, |c| &mut c.graphStreamOrdering, 0..=1),
];

/// Contexts of one-sided calls: a signal of each takes a word for each rank.
const MOST_CONTEXTS: c_int = 64;

/// What FerroCCL does by settings of its own, or not at all: accepted, and told in the log.
const WITHOUT_EFFECT: &[&str] = &[
    "cgaClusterSize",
    "splitShare",
    "trafficClass",
    "collnetEnable",
    "CTAPolicy",
    "shrinkShare",
    "nvlsCTAs",
    "nChannelsPerNetPeer",
    "nvlinkCentricSched",
    "graphUsageMode",
    "maxP2pPeers",
    "graphStreamOrdering",
];

const UNDEFINED: ncclConfig_t = ncclConfig_t {
    size: size_of::<ncclConfig_t>(),
    magic: 0,
    version: 0,
    blocking: NCCL_CONFIG_UNDEF_INT,
    cgaClusterSize: NCCL_CONFIG_UNDEF_INT,
    minCTAs: NCCL_CONFIG_UNDEF_INT,
    maxCTAs: NCCL_CONFIG_UNDEF_INT,
    netName: std::ptr::null(),
    splitShare: NCCL_CONFIG_UNDEF_INT,
    trafficClass: NCCL_CONFIG_UNDEF_INT,
    commName: std::ptr::null(),
    collnetEnable: NCCL_CONFIG_UNDEF_INT,
    CTAPolicy: NCCL_CONFIG_UNDEF_INT,
    shrinkShare: NCCL_CONFIG_UNDEF_INT,
    nvlsCTAs: NCCL_CONFIG_UNDEF_INT,
    nChannelsPerNetPeer: NCCL_CONFIG_UNDEF_INT,
    nvlinkCentricSched: NCCL_CONFIG_UNDEF_INT,
    graphUsageMode: NCCL_CONFIG_UNDEF_INT,
    numRmaCtx: NCCL_CONFIG_UNDEF_INT,
    maxP2pPeers: NCCL_CONFIG_UNDEF_INT,
    graphStreamOrdering: NCCL_CONFIG_UNDEF_INT,
};

impl CommSettings {
    /// Those of a program's `config`; without one, `otherwise`.
    ///
    /// # Safety
    /// Where it is not null, it leads to as many bytes as it says in its first field.
    pub(crate) unsafe fn read(
        config: *const ncclConfig_t,
        otherwise: CommSettings,
    ) -> Result<Self, Failure> {
        if config.is_null() {
            return Ok(otherwise);
        }
        let mut known = UNDEFINED;
        // SAFETY: the caller's. All bit patterns are settings.
        unsafe {
            let size = config.cast::<usize>().read_unaligned().min(size_of::<ncclConfig_t>());
            config.cast::<u8>().copy_to_nonoverlapping((&raw mut known).cast(), size);
        }
        if known.magic != NCCL_API_MAGIC {
            return Err(wrong("magic", "it is not of NCCL_CONFIG_INITIALIZER"));
        }
        let version = c_int::try_from(known.version).unwrap_or(c_int::MAX);
        let mut ignored = Vec::new();
        for (name, since, field, legal) in NUMBERS {
            let value = field(&mut known);
            if version < *since {
                *value = NCCL_CONFIG_UNDEF_INT;
            }
            if *value == NCCL_CONFIG_UNDEF_INT {
                continue;
            }
            if !legal.contains(value) {
                let (least, most) = (legal.start(), legal.end());
                let legal = if *most == c_int::MAX {
                    format!("{least} at least")
                } else {
                    format!("{least} to {most}")
                };
                return Err(wrong(name, &format!("{value} is not {legal}")));
            }
            if WITHOUT_EFFECT.contains(name) {
                ignored.push(*name);
            }
        }
        // SAFETY: the caller's: strings of C's.
        let (net, name) = unsafe {
            (
                if version < 21700 { None } else { text("netName", known.netName)? },
                if version < 22700 { None } else { text("commName", known.commName)? },
            )
        };
        if let (true, true) = (defined(known.minCTAs), defined(known.maxCTAs))
            && known.minCTAs > known.maxCTAs
        {
            let reason = format!("{} is more than maxCTAs, {}", known.minCTAs, known.maxCTAs);
            return Err(wrong("minCTAs", &reason));
        }
        if let Some(net) = net {
            check_net(&net)?;
        }
        if !ignored.is_empty() {
            tracing::info!(target: log::INIT, "ncclConfig_t: without effect here: {}", ignored.join(", "));
        }
        let ctas = |value: c_int| {
            let value = defined(value).then(|| value.unsigned_abs());
            value.map(|value| value.min(MAX_CHANNELS as u32))
        };
        Ok(CommSettings {
            blocking: known.blocking != 0,
            min_ctas: ctas(known.minCTAs),
            max_ctas: ctas(known.maxCTAs),
            rma_contexts: if defined(known.numRmaCtx) { known.numRmaCtx.unsigned_abs() } else { 1 },
            name,
        })
    }

    /// As FerroCCL has them.
    pub(crate) fn comm_config(&self, abort: Option<&AbortHandle>) -> CommConfig {
        let mut config = CommConfig::default();
        config.min_channels = self.min_ctas;
        config.max_channels = self.max_ctas;
        config.abort = abort.cloned();
        config.name.clone_from(&self.name);
        if let Some(name) = &self.name {
            tracing::info!(target: log::INIT, "a communicator named {name} is made");
        }
        config
    }
}

fn defined(value: c_int) -> bool {
    value != NCCL_CONFIG_UNDEF_INT
}

fn wrong(field: &str, reason: &str) -> Failure {
    Failure::argument("config", format!("{field}: {reason}"))
}

/// Which network a process uses is `NCCL_NET`'s to say: another name cannot be had.
fn check_net(name: &str) -> Result<(), Failure> {
    let env = Config::from_env()?;
    let same = env.net.as_ref().is_some_and(|net| net.eq_ignore_ascii_case(name));
    if same {
        return Ok(());
    }
    let reason =
        format!("{name:?} cannot be chosen for one communicator: NCCL_NET chooses for the process");
    Err(Failure { code: ncclInvalidUsage, ..wrong("netName", &reason) })
}

/// # Safety
/// Where it is not null, it is a string of C's.
unsafe fn text(field: &str, string: *const c_char) -> Result<Option<String>, Failure> {
    if string.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(string) }.to_str();
    text.map(|text| Some(text.to_owned())).map_err(|_| wrong(field, "is not UTF-8"))
}
