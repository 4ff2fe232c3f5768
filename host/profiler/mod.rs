//! Profilers that are plugins: libraries made for NCCL, which are told of calls.
//!
//! ```text
//! group of the API ─┬─ collective, message of the API ─── collective, message ─┬─ operation of the proxy ─── step
//!                   └─ launch of a kernel                      (group) ───┘     └─ kernel, by channel
//! ```
//!
//! The plugin says by a mask which events it wants; parents of those that it wants are told, too. Before version 5 there are no
//! events of the API, and a group is the parent of collectives and messages.
//!
//! An [`ProfilerEvent`] ends when it is dropped. So each event that has begun ends, also when a call fails. A child may begin after its
//! parent's end, as with NCCL: a collective's event ends when its kernels are launched. Events keep the plugin's context, which is
//! finalized after all of them.
//!
//! Source: NCCL's `src/plugin/profiler.cc`, and `plugins/profiler/README.md` for the events.

mod abi;
mod describe;
mod names;

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ferroccl_device::abi::{Algorithm, Collective, DataType, ProtocolId};
use ferroccl_plugin::{
    Code, Found, Kind, LoadError, Object, SUCCESS, Watched, call, code_name, logger, string,
};
use tracing::{info, warn};

use self::abi::{
    Description, Finalize, RecordEventState, StartEvent, StateArgs, StopEvent, TableV1, TableV4,
    TableV5,
};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log;

/// What is loaded.
const KIND: Kind =
    Kind { library: "libnccl-profiler", table: "ncclProfiler_v", versions: &[6, 5, 4, 3, 2, 1] };

/// Types of events, each a bit of the mask (`nccl_profiler.h`).
pub(crate) mod wanted {
    /// `ncclProfileGroup`.
    pub(crate) const GROUP: i32 = 1;
    /// `ncclProfileColl`.
    pub(crate) const COLL: i32 = 1 << 1;
    /// `ncclProfileP2p`.
    pub(crate) const P2P: i32 = 1 << 2;
    /// `ncclProfileProxyOp`.
    pub(crate) const PROXY_OP: i32 = 1 << 3;
    /// `ncclProfileProxyStep`.
    pub(crate) const PROXY_STEP: i32 = 1 << 4;
    /// `ncclProfileKernelCh`.
    pub(crate) const KERNEL: i32 = 1 << 6;
    /// `ncclProfileNetPlugin`: nobody tells of those, but their parents are told of.
    const NET: i32 = 1 << 7;
    /// `ncclProfileGroupApi`.
    pub(crate) const GROUP_API: i32 = 1 << 8;
    /// `ncclProfileCollApi`.
    pub(crate) const COLL_API: i32 = 1 << 9;
    /// `ncclProfileP2pApi`.
    pub(crate) const P2P_API: i32 = 1 << 10;
    /// `ncclProfileKernelLaunch`.
    pub(crate) const LAUNCH: i32 = 1 << 11;

    /// The types for which an event is told: its own, and those of its children.
    pub(super) fn with_children(kind: i32) -> i32 {
        let steps = PROXY_STEP | NET;
        let ops = PROXY_OP | steps;
        let below = ops | KERNEL;
        match kind {
            GROUP => GROUP | COLL | P2P | below,
            COLL => COLL | below,
            P2P => P2P | below,
            PROXY_OP => ops,
            PROXY_STEP => steps,
            GROUP_API => GROUP_API | COLL_API | P2P_API | LAUNCH | GROUP | COLL | P2P | below,
            COLL_API => COLL_API | COLL | below,
            P2P_API => P2P_API | P2P | below,
            own => own,
        }
    }
}

/// States of events (`ncclProfilerEventState_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A step waits for the kernel's data.
    SendGpuWait = 8,
    /// A step waits until it is sent.
    SendWait = 9,
    /// A step waits for data.
    RecvWait = 10,
    /// A step's data waits to be flushed to the GPU.
    RecvFlushWait = 11,
    /// A step's data waits for the kernel.
    RecvGpuWait = 12,
    /// An operation makes progress; from version 4 on.
    InProgress = 19,
    /// A kernel has ended on this channel; from version 3 on.
    KernelStop = 22,
    /// The group has begun; from version 5 on.
    GroupStartStop = 23,
    /// The group ends; from version 5 on.
    GroupEndStart = 24,
}

/// Which event an event belongs to, as its plugin knows it. It is NULL where there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent(Object);

// SAFETY: a number for us: only the plugin looks into it, which copes with any thread.
unsafe impl Send for Parent {}
// SAFETY: as above.
unsafe impl Sync for Parent {}

impl Default for Parent {
    fn default() -> Self {
        Parent(null_mut())
    }
}

/// The events that a collective or a message belongs to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parents {
    /// The group of the API.
    pub group_api: Parent,
    /// The call of the API.
    pub api: Parent,
    /// The group of launches.
    pub group: Parent,
}

/// What has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happened {
    /// Calls are made together (`depth` 2), or one by itself (1).
    GroupApi { captured: bool, depth: i32 },
    /// A collective is called.
    CollApi {
        collective: Collective,
        count: usize,
        data_type: DataType,
        root: Option<u32>,
        stream: usize,
        captured: bool,
    },
    /// A message is called.
    P2pApi { sending: bool, count: usize, data_type: DataType, stream: usize, captured: bool },
    /// A kernel is launched.
    Launch { stream: usize },
    /// Calls of one communicator are launched.
    Group,
    /// A collective is launched.
    Coll {
        seq: u64,
        collective: Collective,
        send: u64,
        recv: u64,
        count: usize,
        root: Option<u32>,
        data_type: DataType,
        channels: u32,
        warps: u32,
        algorithm: Algorithm,
        protocol: ProtocolId,
    },
    /// A message is launched.
    P2p { sending: bool, buffer: u64, data_type: DataType, count: usize, peer: u32, channels: u32 },
    /// The proxy has steps to send, or to receive.
    ProxyOp { channel: u32, peer: u32, steps: u64, chunk_bytes: u32, sending: bool },
    /// One of them.
    ProxyStep { step: u64 },
    /// A kernel runs on a channel since `timer`.
    Kernel { channel: u32, timer: u64 },
}

/// What a profiler is told of its communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProfiledComm<'a> {
    pub name: Option<&'a str>,
    /// The same on all ranks.
    pub group: u64,
    pub nodes: usize,
    pub ranks: u32,
    pub rank: u32,
}

/// A plugin's profiler of one communicator.
#[derive(Clone, Debug)]
pub(crate) struct Profiler(Arc<Context>);

struct Context {
    plugin: Arc<str>,
    version: u32,
    start: StartEvent,
    stop: StopEvent,
    record: RecordEventState,
    finalize: Finalize,
    context: Object,
    rank: u32,
    comm_hash: u64,
    /// The communicator's name, which the plugin may look at as long as the context lives.
    name: Option<CString>,
    _watched: Watched,
}

// SAFETY: NCCL, too, calls a profiler from its users' and its proxies' threads at a time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// An event that has begun. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct ProfilerEvent {
    context: Arc<Context>,
    handle: Parent,
}

/// The events that plugins want. One mask is for the process, as with NCCL: a plugin may change it at any time, for all
/// communicators.
static MASK: AtomicI32 = AtomicI32::new(0);

/// Nanoseconds since 1970, for events of kernels.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

impl Profiler {
    /// The profiler of `NCCL_PROFILER_PLUGIN`, if there is one: that library, or else the network's, as with NCCL. One that does not
    /// initialise is warned of, and done without.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the library cannot be loaded, has no table, or lacks functions.
    pub(crate) fn load(env: &Config, comm: ProfiledComm<'_>) -> Result<Option<Self>> {
        let (name, net) = (env.profiler_plugin.as_deref(), env.net_plugin.as_deref());
        let Some(Found { opened, version, table }) = KIND.find(name, net)? else { return Ok(None) };
        let file = opened.file().to_owned();
        let wrong = |reason: String| Error::from(LoadError { name: file.clone(), reason });
        let missing = |function: &str| wrong(format!("has no function {function} in its table"));
        // SAFETY: a library that exports such a name has such a table there, and its first field is the name. What is behind
        // `init` is alike in all versions.
        let (plugin, functions) =
            unsafe { (string(table.cast::<*const c_char>().read()), &*table.cast::<TableV1>()) };
        let plugin: Arc<str> = plugin.ok_or_else(|| wrong("its name is NULL".to_owned()))?.into();
        let start = functions.start.ok_or_else(|| missing("startEvent"))?;
        let stop = functions.stop.ok_or_else(|| missing("stopEvent"))?;
        let record = functions.record.ok_or_else(|| missing("recordEventState"))?;
        let finalize = functions.finalize.ok_or_else(|| missing("finalize"))?;
        // A name with a 0 in it cannot be told.
        let name = comm.name.and_then(|name| CString::new(name).ok());
        let watched = Watched::new(env.warn_after);
        let number = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        let (nodes, ranks) = (number(comm.nodes), number(comm.ranks as usize));
        let rank = number(comm.rank as usize);
        let comm_name = name.as_ref().map_or(null(), |name| name.as_ptr());
        let mut context = null_mut();
        let initialise = || {
            let (at, mask) = (&raw mut context, MASK.as_ptr());
            let missing = || missing("init");
            // SAFETY: as above, of this version; the mask is there as long as the process.
            Ok::<Code, Error>(unsafe {
                match version {
                    1..=3 => {
                        let init = (*table.cast::<TableV1>()).init.ok_or_else(missing)?;
                        call(&plugin, "init", || init(at, mask))
                    }
                    4 => {
                        let init = (*table.cast::<TableV4>()).init.ok_or_else(missing)?;
                        call(&plugin, "init", || {
                            init(at, mask, comm_name, comm.group, nodes, ranks, rank, logger())
                        })
                    }
                    _ => {
                        let init = (*table.cast::<TableV5>()).init.ok_or_else(missing)?;
                        call(&plugin, "init", || {
                            init(at, comm.group, mask, comm_name, nodes, ranks, rank, logger())
                        })
                    }
                }
            })
        };
        let code = opened.init(table, false, initialise)?.unwrap_or(SUCCESS);
        if code != SUCCESS {
            warn!(target: log::INIT, "PROFILER/Plugin: goes on without {plugin}: init: {}", code_name(code));
            return Ok(None);
        }
        info!(target: log::INIT, "PROFILER/Plugin: Loaded {plugin} (v{version}) from {file}, event mask {:#x}",
              MASK.load(Ordering::Relaxed));
        Ok(Some(Profiler(Arc::new(Context {
            plugin,
            version,
            start,
            stop,
            record,
            finalize,
            context,
            rank: comm.rank,
            comm_hash: comm.group,
            name,
            _watched: watched,
        }))))
    }

    /// Whether an event of this type (see [`wanted`]) is to be told.
    pub(crate) fn wants(&self, kind: i32) -> bool {
        let is_known = match self.0.version {
            1 | 2 => kind < wanted::KERNEL,
            3 | 4 => kind < wanted::GROUP_API,
            _ => true,
        };
        // Relaxed: a mask that is a moment old is as good.
        is_known && MASK.load(Ordering::Relaxed) & wanted::with_children(kind) != 0
    }

    /// Tells of an event, if the plugin wants to know it.
    pub(crate) fn start(&self, happened: Happened, parents: Parents) -> Option<ProfilerEvent> {
        let kind = happened.kind();
        if !self.wants(kind) {
            return None;
        }
        let context = &self.0;
        let (parent, of) = context.describe(&happened, parents);
        let kind = match context.version {
            1..=4 => abi::Kind { narrow: kind as u8 },
            _ => abi::Kind { wide: kind as u64 },
        };
        let rank = c_int::try_from(context.rank).unwrap_or(c_int::MAX);
        let mut description = Description { kind, parent: parent.0, rank, of };
        let mut handle = null_mut();
        let code = call(&context.plugin, "startEvent", || {
            // SAFETY: the plugin's function with its context; the description is of its version.
            unsafe { (context.start)(context.context, &raw mut handle, &raw mut description) }
        });
        // NULL: the plugin does not care for this one.
        (code == SUCCESS && !handle.is_null())
            .then(|| ProfilerEvent { context: Arc::clone(context), handle: Parent(handle) })
    }
}

impl ProfilerEvent {
    /// For its children.
    pub(crate) fn parent(&self) -> Parent {
        self.handle
    }

    /// Tells of its state, with a number: the bytes of a step, the time of a kernel.
    pub(crate) fn record(&self, state: State, number: u64) {
        let context = &self.context;
        let is_known = match state {
            State::InProgress => context.version >= 4,
            State::KernelStop => context.version >= 3,
            State::GroupStartStop | State::GroupEndStart => context.version >= 5,
            _ => true,
        };
        if !is_known {
            return;
        }
        let mut args = StateArgs([number, 0]);
        call(&context.plugin, "recordEventState", || {
            // SAFETY: the plugin's function with its event.
            unsafe { (context.record)(self.handle.0, state as c_int, &raw mut args) }
        });
    }
}

impl Drop for ProfilerEvent {
    fn drop(&mut self) {
        let context = &self.context;
        call(&context.plugin, "stopEvent", || {
            // SAFETY: the plugin's function with its event, which is used no more but as a parent.
            unsafe { (context.stop)(self.handle.0) }
        });
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the plugin's function with its context, which nobody uses any more.
        let code = call(&self.plugin, "finalize", || unsafe { (self.finalize)(self.context) });
        if code != SUCCESS {
            warn!(target: log::INIT, "PROFILER/Plugin: {} ends with {}", self.plugin, code_name(code));
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profiler").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl Happened {
    /// Its type.
    fn kind(&self) -> i32 {
        match self {
            Happened::GroupApi { .. } => wanted::GROUP_API,
            Happened::CollApi { .. } => wanted::COLL_API,
            Happened::P2pApi { .. } => wanted::P2P_API,
            Happened::Launch { .. } => wanted::LAUNCH,
            Happened::Group => wanted::GROUP,
            Happened::Coll { .. } => wanted::COLL,
            Happened::P2p { .. } => wanted::P2P,
            Happened::ProxyOp { .. } => wanted::PROXY_OP,
            Happened::ProxyStep { .. } => wanted::PROXY_STEP,
            Happened::Kernel { .. } => wanted::KERNEL,
        }
    }
}

impl From<Parent> for Parents {
    /// Of a child of a collective, of a message or of an operation.
    fn from(parent: Parent) -> Self {
        Parents { api: parent, ..Parents::default() }
    }
}
