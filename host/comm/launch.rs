//! Puts a planned kernel into a stream, and gives the proxies the steps that it has for them.
//!
//! ```text
//! KernelPlan ─► Work (the kernel's argument) ─┬─► StreamOps::launch ─► when it has ended: CommState::on_launch_done
//!                                             └─► ProxyWork ─► NetConnections::submit
//! ```

use std::sync::Arc;

use ferroccl_device::abi::NO_RANK;
use tracing::debug;

use super::collective::Subgroup;
use super::events::KernelEvents;
use super::net::ProxyWork;
use super::recorder::RecordId;
use super::shared::SharedComm;
use super::trees::TreeTable;
use super::window::WindowPlaces;
use crate::buffer::Stream;
use crate::channel::ConnSet;
use crate::enqueue::{CollectiveCall, KernelPlan};
use crate::error::Result;
use crate::log;
use crate::profiler::{Happened, Parents};
use crate::runtime::{Argument, Launch, Memory};

/// The memory of a call: input, output, and the operator's scalar. It is kept until the call's kernels have ended.
pub(super) type KeepAlive = [Option<Arc<dyn Memory>>; 3];

/// What a kernel gets besides its plan.
pub(super) struct KernelOperands {
    /// The ranks that it runs over.
    pub group: Subgroup,
    /// Address of the buffer that it reads.
    pub input: u64,
    /// Address of the buffer that it writes.
    pub output: u64,
    /// The operator's scalar, and whether it is the scalar's address instead.
    pub scalar: (u64, bool),
    /// Where its buffers are in windows, for a direct kernel.
    pub places: Option<WindowPlaces>,
    /// Scratch memory of the caller's: its address, and what it is in.
    pub scratch: Option<(u64, Arc<dyn Memory>)>,
    /// The call's record, and whether the call ends with this kernel.
    pub record: RecordId,
    pub last: bool,
    /// The events that it belongs to: the call's is `api`.
    pub parents: Parents,
}

/// Puts one kernel of a collective into a stream, as part of the communicator's call `seq`.
pub(super) fn launch_kernel(
    comm: &SharedComm,
    (plan, seq): (&KernelPlan, u64),
    call: &CollectiveCall,
    operands: KernelOperands,
    keep: KeepAlive,
    stream: &Stream,
) -> Result<()> {
    debug!(target: log::COLL, rank = comm.rank, seq, kernel = plan.kernel.name,
           count = call.count, channels = plan.choice.channels, "{}", call.collective);
    comm.must(comm.need_all_rows(ConnSet::Collective))?;
    let group = operands.group as usize;
    let address = comm.control.comm_address(group);
    let KernelOperands { input, output, scalar, places, scratch, record, last, parents, .. } =
        operands;
    let mut table: Option<Arc<dyn Memory>> = None;
    let (argument, proxy_work) = Argument::write_work(|work| {
        plan.write_work(work, seq, [address, input, output], scalar);
        let mut tree = None;
        if plan.tree {
            let root = call.root.unwrap_or(NO_RANK);
            let links = comm.trees.table(root, (&**comm.device.runtime(), &comm.memory));
            let TreeTable { links, memory } = comm.must(links)?;
            work.extra = memory.address();
            table = Some(memory);
            tree = Some(links);
        }
        if let Some((address, memory)) = scratch {
            work.extra = address;
            table = Some(memory);
        }
        if let (true, Some(mesh)) = (plan.mesh, &comm.mesh) {
            (work.extra, work.extra_stride) = mesh.address();
        }
        if let Some(places) = &places {
            [work.input_peers, work.output_peers] = places.tables();
            work.digest ^= places.digest();
        }
        let Some(net) = &comm.net else { return Ok(ProxyWork::default()) };
        let (control, blocks) = (&comm.control, (plan.blocks, plan.choice.protocol));
        // SAFETY: the kernel takes this argument, below.
        comm.must(unsafe {
            net.counter.collective(control, group, &plan.kernel, work, blocks, tree.as_deref())
        })
    })?;
    let ended = comm.clone();
    let proxy_work = proxy_work.of(parents.api);
    let channels = (0..plan.choice.channels).map(|channel| (channel, parents.api));
    let events = KernelEvents::new(comm, channels);
    let launch = Launch {
        kernel: plan.kernel,
        blocks: plan.blocks,
        threads: plan.choice.threads.min(plan.kernel.threads),
        sharing: comm.ranks_on_device,
        argument,
        keep: Vec::new(),
        bytes: call.bytes() as u64,
        observer: Some((KernelEvents::observer(events.as_ref(), comm), record.0)),
        // Holds the buffers too: one allocation instead of three, which a call of 8 bytes notices.
        done: Box::new(move |failure| {
            events.iter().for_each(|events| events.end());
            let result = ended.on_launch_done(failure);
            if last {
                ended.recorder.end(record, Some(seq));
            }
            ended.release((keep, table, places), &result);
            result
        }),
    };
    // SAFETY: the kernel is of the table, or the caller vouches for it (`launch`); the buffers
    // hold the call's elements, and buffers and communicator are kept until the launch has ended.
    unsafe { launch_on_stream(comm, launch, proxy_work, (record, parents), stream) }
}

/// Launches a kernel, and gives the proxies their work. `record` is that of its call.
///
/// # Safety
/// As [`StreamOps::launch`](crate::runtime::StreamOps::launch).
pub(super) unsafe fn launch_on_stream(
    comm: &SharedComm,
    launch: Launch,
    proxy_work: ProxyWork,
    (record, parents): (RecordId, Parents),
    stream: &Stream,
) -> Result<()> {
    let ops = stream.ops();
    let _event = comm.tell(|| Happened::Launch { stream: stream.identity() }, parents);
    let captured = ops.capture_id().is_some();
    if captured {
        comm.recorder.captured(record);
        capture(comm, &proxy_work, stream)?;
    }
    // SAFETY: the caller's.
    comm.must(unsafe { ops.launch(launch) })?;
    match &comm.net {
        Some(net) if !captured => comm.must(net.submit(comm, proxy_work)),
        _ => Ok(()),
    }
}

/// Has a graph do at each run what a launch outside of graphs does once: look for a failure, and give the proxies work.
fn capture(comm: &SharedComm, proxy_work: &ProxyWork, stream: &Stream) -> Result<()> {
    let replayed = comm.clone();
    stream.ops().check_replays(Arc::new(move |failure| replayed.on_launch_done(failure)));
    if proxy_work.is_empty() {
        return Ok(());
    }
    let (comm, work) = (comm.clone(), proxy_work.clone());
    stream.ops().repeat(Arc::new(move || {
        if let Some(net) = &comm.net
            && let Err(error) = net.submit(&comm, work.clone())
        {
            comm.on_launch_failed(&error);
        }
    }))
}
