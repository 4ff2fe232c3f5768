//! Tuners that are plugins: libraries made for NCCL, which choose algorithm, protocol and channels of calls.
//!
//! ```text
//! a call ─► costs: the model's times ─► NCCL's table, 7 algorithms x 3 protocols ─► getCollInfo ─► the least time left
//!                                                                                   └► channels
//! ```
//!
//! The plugin gets the times of what this library can do for the call; all other places of the table say that it cannot be
//! had. What this library has and NCCL has not (one-shot and others) is in no place. It is taken as long as the plugin leaves
//! the table as it is. As soon as the plugin changes a place, the table alone decides.
//!
//! All ranks must choose alike, and each asks its own plugin. Ranks whose plugins disagree get the error of calls that differ.
//!
//! Source: NCCL's `src/plugin/tuner.cc` and `ncclGetAlgoInfo` in `src/enqueue.cc`.

mod abi;

use std::ffi::{c_char, c_int};
use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};
use ferroccl_plugin::{
    Code, Found, Kind, LoadError, Object, SUCCESS, Watched, call, code_name, logger, string,
};
use ferroccl_topology::graph::tuning::NcclFigures;
use tracing::{debug, info, warn};

use self::abi::{
    ALGORITHMS, COLLNET_CHAIN, Constants, CostTable, End, GetCollInfoV4, IGNORE, NVLS, NVLS_TREE,
    NvlDomainInfo, PROTOCOLS, SIMPLE, TableV2, TableV3, TableV4, TableV5, UNDEFINED,
};
use crate::config::Config;
use crate::enqueue::{self, AlgoChoice, CollectiveCall, PlanContext, Registration};
use crate::error::{Error, Result};
use crate::log;

/// What is loaded.
const KIND: Kind =
    Kind { library: "libnccl-tuner", table: "ncclTunerPlugin_v", versions: &[6, 5, 4, 3, 2] };

/// What a tuner is told of its communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunedComm<'a> {
    /// The same on all ranks.
    pub group: u64,
    pub ranks: u32,
    /// The number of ranks of each node.
    pub nodes: &'a [usize],
}

/// A plugin's tuner of one communicator.
pub(crate) struct TunerPlugin {
    name: Arc<str>,
    functions: Functions,
    /// Locked for each question: a communicator's calls may be made by several threads, which NCCL's may not.
    context: Mutex<Context>,
    end: End,
    /// Whether it was told that the plugin has failed.
    warned: AtomicBool,
    _watched: Watched,
}

/// What only the plugin looks into.
struct Context(Object);

// SAFETY: NCCL, too, uses a context in whichever thread makes a communicator's calls.
unsafe impl Send for Context {}

/// `getCollInfo`, by version.
#[derive(Clone, Copy)]
enum Functions {
    V2(
        unsafe extern "C" fn(
            Object,
            c_int,
            usize,
            c_int,
            c_int,
            c_int,
            *mut c_int,
            *mut c_int,
            *mut c_int,
        ) -> Code,
    ),
    V3(
        unsafe extern "C" fn(
            Object,
            c_int,
            usize,
            c_int,
            *mut CostTable,
            c_int,
            c_int,
            *mut c_int,
        ) -> Code,
    ),
    V4(GetCollInfoV4),
}

/// What a plugin is asked.
struct Question {
    function: c_int,
    bytes: usize,
    registered: bool,
}

impl TunerPlugin {
    /// The tuner of `NCCL_TUNER_PLUGIN`, if there is one: that library, or else the network's, as with NCCL.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the library cannot be loaded, has no table, lacks functions, or does not initialise.
    pub(crate) fn load(env: &Config, comm: TunedComm<'_>) -> Result<Option<Self>> {
        let (name, net) = (env.tuner_plugin.as_deref(), env.net_plugin.as_deref());
        let Some(Found { opened, version, table }) = KIND.find(name, net)? else { return Ok(None) };
        let file = opened.file().to_owned();
        let wrong =
            |reason: &str| Error::from(LoadError { name: file.clone(), reason: reason.to_owned() });
        let missing = |function: &str| wrong(&format!("has no function {function} in its table"));
        // SAFETY: a library that exports such a name has such a table there, and its first field is the name.
        let name = unsafe { string(table.cast::<*const c_char>().read()) };
        let name: Arc<str> = name.ok_or_else(|| wrong("its name is NULL"))?.into();
        let watched = Watched::new(env.warn_after);
        let mut context = null_mut();
        let sizes = (comm.ranks as usize, comm.nodes.len());
        let of_v2 = |init: Option<unsafe extern "C" fn(usize, usize, _, *mut Object) -> Code>,
                     at| {
            let init = init.ok_or_else(|| missing("init"))?;
            // SAFETY: the plugin's function, and a place for its context.
            Ok::<Code, Error>(call(&name, "init", || unsafe {
                init(sizes.0, sizes.1, logger(), at)
            }))
        };
        let initialise = || {
            let at = &raw mut context;
            // SAFETY: as above, of this version.
            let (functions, end, code) = unsafe {
                match version {
                    2 => {
                        let table = &*table.cast::<TableV2>();
                        let ask = table.get_coll_info.map(Functions::V2);
                        (ask, table.end, of_v2(table.init, at)?)
                    }
                    3 => {
                        let table = &*table.cast::<TableV3>();
                        let ask = table.get_coll_info.map(Functions::V3);
                        (ask, table.end, of_v2(table.init, at)?)
                    }
                    4 => {
                        let table = &*table.cast::<TableV4>();
                        let ask = table.get_coll_info.map(Functions::V4);
                        (ask, table.end, of_v2(table.init, at)?)
                    }
                    _ => {
                        let table = &*table.cast::<TableV5>();
                        let init = table.init.ok_or_else(|| missing("init"))?;
                        let (mut domains, mut constants) = (nvl_domains(comm.nodes), constants());
                        let (ranks, nodes) = sizes;
                        let code = call(&name, "init", || {
                            init(
                                at,
                                comm.group,
                                ranks,
                                nodes,
                                logger(),
                                &mut domains,
                                &mut constants,
                            )
                        });
                        if constants != self::constants() {
                            info!(target: log::TUNING, "TUNER/Plugin: {name} changes constants of NCCL's model, which are not \
                                                        those of the model here: only costs count");
                        }
                        (table.get_coll_info.map(Functions::V4), table.end, code)
                    }
                }
            };
            let end_name = if version < 5 { "destroy" } else { "finalize" };
            let end = end.ok_or_else(|| missing(end_name))?;
            let functions = functions.ok_or_else(|| missing("getCollInfo"))?;
            if code != SUCCESS {
                let (what, reason) = (name.to_string(), format!("init: {}", code_name(code)));
                return Err(Error::Unavailable { what, reason });
            }
            Ok((functions, end))
        };
        let made = opened.init(table, false, initialise)?;
        // It is given for each call that is not `once`.
        let (functions, end) = made.ok_or_else(|| wrong("was not initialised"))?;
        info!(target: log::TUNING, "TUNER/Plugin: Using {name} (v{version}) from {file}");
        let (context, warned) = (Mutex::new(Context(context)), AtomicBool::new(false));
        Ok(Some(TunerPlugin { name, functions, context, end, warned, _watched: watched }))
    }

    /// How a call is done.
    ///
    /// # Errors
    /// Those of [`enqueue::choose`]; [`Error::Unavailable`] when the plugin rules out all that can be had.
    pub(crate) fn choose(
        &self,
        call: &CollectiveCall,
        context: &PlanContext,
        buffers: Registration,
    ) -> Result<AlgoChoice> {
        let own = || Ok(enqueue::choose(call, context, buffers)?);
        let Some(function) = function(call.collective) else { return own() };
        let costs = enqueue::costs(call, context, buffers);
        let mut table = [[IGNORE; PROTOCOLS]; ALGORITHMS];
        for &(algorithm, protocol, time) in &costs {
            if let Some((row, column)) = place(algorithm, protocol) {
                table[row][column] = time as f32;
            }
        }
        let before = table;
        let bytes = call.largest_bytes(context.ranks) as usize;
        let registered = buffers > Registration::None;
        let channels = match self.ask(&Question { function, bytes, registered }, &mut table) {
            Ok(channels) => u32::try_from(channels).ok().filter(|channels| *channels > 0),
            Err(code) => {
                // Once, as it may be so for every call.
                if !self.warned.swap(true, Ordering::Relaxed) {
                    warn!(target: log::TUNING, "TUNER/Plugin: getCollInfo of {} answers {}: calls are as without it",
                          self.name, code_name(code));
                }
                return own();
            }
        };
        let bits = |table: &CostTable| table.map(|row| row.map(f32::to_bits));
        if bits(&table) == bits(&before) {
            let AlgoChoice { algorithm, protocol, .. } = own()?;
            return Ok(enqueue::choice(call, context, (algorithm, protocol), channels));
        }
        // In NCCL's order, of which the first counts where several are as fast.
        let mut best: Option<(f32, Algorithm, ProtocolId)> = None;
        for &(algorithm, protocol, _) in &costs {
            let Some((row, column)) = place(algorithm, protocol) else { continue };
            let time = table[row][column];
            if time >= 0.0 && time.is_finite() && best.is_none_or(|best| time < best.0) {
                best = Some((time, algorithm, protocol));
            }
        }
        let Some((time, algorithm, protocol)) = best else {
            let reason =
                format!("tuner plugin {} leaves no algorithm and protocol for it", self.name);
            let what = call.collective.to_string();
            return Err(Error::Unavailable { what, reason });
        };
        debug!(target: log::TUNING, "TUNER/Plugin: {} of {bytes} bytes: {algorithm} {protocol} ({time} us), channels {channels:?}",
               call.collective);
        Ok(enqueue::choice(call, context, (algorithm, protocol), channels))
    }

    /// Has the plugin change the table; gives its number of channels, or what is not `ncclSuccess`.
    fn ask(&self, question: &Question, table: &mut CostTable) -> Result<c_int, Code> {
        let &Question { function, bytes, registered } = question;
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let Context(context) = *context;
        let (rows, columns) = (ALGORITHMS as c_int, PROTOCOLS as c_int);
        let (mut channels, mut algorithm, mut protocol) = (0, UNDEFINED, UNDEFINED);
        // Calls are not put together in one: each is one operation.
        let operations = 1;
        let has = |row: usize| c_int::from(table[row][SIMPLE] != IGNORE);
        let (collnet, nvls) = (has(COLLNET_CHAIN), has(NVLS) | has(NVLS_TREE));
        let code = call(&self.name, "getCollInfo", || {
            // SAFETY: the plugin's function of this version with its context; all places are ours.
            unsafe {
                match self.functions {
                    Functions::V2(ask) => ask(
                        context,
                        function,
                        bytes,
                        collnet,
                        nvls,
                        operations,
                        &mut algorithm,
                        &mut protocol,
                        &mut channels,
                    ),
                    Functions::V3(ask) => ask(
                        context,
                        function,
                        bytes,
                        operations,
                        table,
                        rows,
                        columns,
                        &mut channels,
                    ),
                    Functions::V4(ask) => ask(
                        context,
                        function,
                        bytes,
                        operations,
                        table,
                        rows,
                        columns,
                        registered.into(),
                        &mut channels,
                    ),
                }
            }
        });
        if code != SUCCESS {
            return Err(code);
        }
        let at = usize::try_from(algorithm).ok().zip(usize::try_from(protocol).ok());
        if let Some(place) = at.and_then(|(row, column)| table.get_mut(row)?.get_mut(column))
            && *place != IGNORE
        {
            *place = 0.0;
        }
        Ok(channels)
    }
}

impl Drop for TunerPlugin {
    fn drop(&mut self) {
        let Context(context) = *self.context.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the plugin's function with its context, which nobody uses any more.
        let code = call(&self.name, "finalize", || unsafe { (self.end)(context) });
        if code != SUCCESS {
            warn!(target: log::TUNING, "TUNER/Plugin: {} ends with {}", self.name, code_name(code));
        }
    }
}

impl fmt::Debug for TunerPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunerPlugin").field("name", &self.name).finish_non_exhaustive()
    }
}

/// NCCL's number of a collective (`ncclFunc_t`); `None` for those that its tuners are not asked about.
fn function(collective: Collective) -> Option<c_int> {
    match collective {
        Collective::Broadcast => Some(0),
        Collective::Reduce => Some(1),
        Collective::AllGather => Some(2),
        Collective::ReduceScatter => Some(3),
        Collective::AllReduce => Some(4),
        Collective::AllToAll | Collective::Barrier | Collective::SendRecv => None,
    }
}

/// Where an algorithm and protocol are in NCCL's table (`NCCL_ALGO_TREE` and so on); `None` for those that NCCL has not.
fn place(algorithm: Algorithm, protocol: ProtocolId) -> Option<(usize, usize)> {
    let row = match algorithm {
        Algorithm::Tree => 0,
        Algorithm::Ring => 1,
        Algorithm::CollnetDirect => 2,
        Algorithm::CollnetChain => COLLNET_CHAIN,
        Algorithm::Nvls => NVLS,
        // NCCL's PAT is of Bruck's kind, and NCCL_ALGO takes one for the other, too.
        Algorithm::Bruck => 6,
        Algorithm::Hierarchical
        | Algorithm::OneShot
        | Algorithm::TwoShot
        | Algorithm::Direct
        | Algorithm::Chain
        | Algorithm::Doubling
        | Algorithm::Linear
        | Algorithm::Own(_) => return None,
    };
    let column = match protocol {
        ProtocolId::Ll => 0,
        ProtocolId::Ll128 => 1,
        ProtocolId::Simple => SIMPLE,
        ProtocolId::Own(_) => return None,
    };
    Some((row, column))
}

/// A domain for each node.
fn nvl_domains(nodes: &[usize]) -> NvlDomainInfo {
    let count = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
    NvlDomainInfo {
        domains: count(nodes.len()),
        min_ranks: count(nodes.iter().copied().min().unwrap_or(0)),
        max_ranks: count(nodes.iter().copied().max().unwrap_or(0)),
    }
}

/// NCCL's own figures, for plugins that look at them.
fn constants() -> Constants {
    let NcclFigures {
        base_latencies,
        hw_latencies,
        ll_max,
        ring_ll128_max,
        tree_ll128_max,
        tree_max,
        nvls_tree_max,
    } = NcclFigures::new();
    Constants {
        base_latencies,
        hw_latencies,
        ll_max,
        ring_ll128_max,
        tree_ll128_max,
        tree_max,
        nvls_tree_max,
    }
}
