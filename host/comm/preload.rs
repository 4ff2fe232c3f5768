//! Kernels are loaded before they are needed.
//!
//! Loading a kernel may wait for those that run, and these may wait for what the same thread is about to launch. Which kernel a call
//! takes depends on its size. So the first call of a kind (collective, type, operator) loads all that the tuner can choose for
//! calls of that kind, and a new communicator all that it can choose for kinds that were called before in this process. Calls of
//! other sizes then load nothing.

use std::sync::{Mutex, PoisonError};

use ferroccl_device::abi::Collective;
use ferroccl_device::kernels::Kernel;
use tracing::debug;

use super::collective::kernels_of;
use super::p2p;
use super::state::CommState;
use crate::enqueue::{self, AlgoChoice, CollectiveCall, PlanContext, Registration};
use crate::error::Result;
use crate::log;

/// One call of each kind that was made in this process.
static CALLED: Mutex<Vec<CollectiveCall>> = Mutex::new(Vec::new());

/// The kinds of which a communicator has loaded all kernels.
#[derive(Debug, Default)]
pub(super) struct Preloaded(Mutex<Vec<CollectiveCall>>);

/// Adds a call to those of other kinds; whether it is the first of its kind.
fn is_new(kinds: &Mutex<Vec<CollectiveCall>>, call: &CollectiveCall) -> bool {
    let kind = |call: &CollectiveCall| (call.collective, call.op, call.data_type);
    let mut kinds = kinds.lock().unwrap_or_else(PoisonError::into_inner);
    if kinds.iter().any(|known| kind(known) == kind(call)) {
        return false;
    }
    kinds.push(*call);
    true
}

/// Loads all kernels that calls of the kind of `call` may take, once. Those that cannot be loaded are errors of the calls that
/// take them.
pub(super) fn preload(comm: &CommState, call: &CollectiveCall) {
    if comm.device.runtime().loads_kernels() && is_new(&comm.preloaded.0, call) {
        is_new(&CALLED, call);
        let mut all = kernels(call, planning(comm), Registration::None);
        let windows = comm.windows.best();
        if windows > Registration::None {
            all.extend(kernels(call, planning(comm), windows));
        }
        load(comm, &all);
    }
}

/// Loads what calls of kinds that were made before may take from now on, as there are windows.
pub(super) fn preload_direct(comm: &CommState) {
    let windows = comm.windows.best();
    if comm.device.runtime().loads_kernels() && windows > Registration::None {
        let called = comm.preloaded.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for call in called {
            load(comm, &kernels(&call, planning(comm), windows));
        }
    }
}

/// Loads what a new communicator may take for calls of kinds that were made before.
pub(super) fn preload_what_was_called(comm: &CommState) {
    if !comm.device.runtime().loads_kernels() {
        return;
    }
    let called = CALLED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut all: Vec<(Kernel, u32)> = Vec::new();
    for call in called {
        is_new(&comm.preloaded.0, &call);
        all.extend(kernels(&call, planning(comm), Registration::None));
    }
    load(comm, &all);
}

/// What calls are chosen by, and whether a plugin has a say.
fn planning(comm: &CommState) -> (&PlanContext, bool) {
    (&comm.plan_context, comm.tuner_plugin.is_some())
}

/// The kernels of calls of a kind by size, with their threads; `by_plugin`: a plugin chooses.
fn kernels(
    call: &CollectiveCall,
    (context, by_plugin): (&PlanContext, bool),
    buffers: Registration,
) -> Vec<(Kernel, u32)> {
    if call.collective == Collective::SendRecv {
        return p2p::kernel().map(|kernel| (kernel, kernel.threads)).into_iter().collect();
    }
    let mut all: Vec<(Kernel, u32)> = Vec::new();
    let mut add = |call: &CollectiveCall, choice: AlgoChoice| {
        let Ok(kernels) = kernels_of(&context.registry, call, choice) else { return };
        for kernel in kernels {
            if all.iter().all(|(known, _)| known.name != kernel.name) {
                all.push((kernel, choice.threads));
            }
        }
    };
    if by_plugin {
        // It may choose any, and threads are never more than with many bytes.
        let call = CollectiveCall { count: 1 << 40, ..*call };
        for (algorithm, protocol, _) in enqueue::costs(&call, context, buffers) {
            add(&call, enqueue::choice(&call, context, (algorithm, protocol), None));
        }
    }
    // From one element to 2^40, in steps of a half and more: the tuner's lines do not cross in between but by a hair.
    let counts = (0..40).flat_map(|bits| [1usize << bits, (1 << bits) + (1 << bits) / 2]);
    for count in [0].into_iter().chain(counts) {
        let call = CollectiveCall { count, ..*call };
        let Ok(choice) = enqueue::choose(&call, context, buffers) else { continue };
        add(&call, choice);
    }
    all
}

/// Loads kernels, several at a time: the driver's assembler takes seconds for one that is not in the cache.
fn load(comm: &CommState, kernels: &[(Kernel, u32)]) {
    let runtime = comm.device.runtime();
    let prepare = |(kernel, threads): &(Kernel, u32)| -> Result<()> {
        runtime.prepare(kernel, *threads).inspect_err(|error| {
            debug!(target: log::INIT, rank = comm.rank, "{} is not loaded: {error}", kernel.name);
        })
    };
    let at_a_time = std::thread::available_parallelism().map_or(1, usize::from);
    for some in kernels.chunks(at_a_time) {
        std::thread::scope(|threads| {
            for kernel in some {
                let thread = std::thread::Builder::new().name("ferroccl-load".to_owned());
                // Without a thread for it, the kernel is loaded by the call that takes it.
                let _ = thread.spawn_scoped(threads, || prepare(kernel));
            }
        });
    }
}
