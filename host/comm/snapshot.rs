//! A rank as it is now, for the [flight recorder](crate::flight_recorder): its last calls, how far its connections are,
//! what its blocks wait for. It is looked at from outside; nothing of it is locked for longer than a moment.

use std::sync::Arc;
use std::time::Duration;

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::recorder::{CallEnd, RankProgress, RecordedCall, is_messages};
use super::stall;
use super::state::CommState;
use crate::channel::{ConnSet, Edges};
use crate::enqueue::describe_call;
use crate::flight_recorder::{CallRecord, CommRecord, ConnectionRecord, WaitRecord};
use crate::runtime::{Runtime, WaitingBlock};

/// How long a driver of blocks is waited for that is busy with them.
const LOOK: Duration = Duration::from_millis(50);

/// The ranks of this process. Others are asked who holds up a call, where one is pending and `patience` says for how long.
pub(crate) fn records(patience: Option<Duration>) -> Vec<CommRecord> {
    let comms = stall::in_process();
    // Each runtime once: all ranks of a process share few.
    let mut runtimes: Vec<(*const dyn Runtime, Vec<WaitingBlock>)> = Vec::new();
    let records = comms.iter().map(|comm| {
        let runtime = comm.device.runtime();
        let at = Arc::as_ptr(runtime);
        let known = runtimes.iter().position(|(known, _)| std::ptr::addr_eq(*known, at));
        let index = known.unwrap_or_else(|| {
            runtimes.push((at, runtime.waiting_blocks(LOOK)));
            runtimes.len() - 1
        });
        comm.to_record(&runtimes[index].1, patience)
    });
    records.collect()
}

impl CommState {
    /// This rank, with those of the blocks that work for it.
    fn to_record(&self, blocks: &[WaitingBlock], patience: Option<Duration>) -> CommRecord {
        let RankProgress { entered, pending, .. } = self.progress();
        let held_up_by = patience.filter(|_| pending > 0).and_then(|time| self.held_up_by(time));
        CommRecord {
            id: format!("{:016x}", self.group),
            rank: self.rank,
            ranks: self.nranks,
            runtime: self.device.runtime().name().to_owned(),
            failure: self.failure().map(|error| error.to_string()),
            entered,
            pending: (pending > 0).then_some(pending),
            calls: self.recorder.calls().map(CallRecord::from).collect(),
            connections: self.connections(),
            waits: blocks.iter().filter_map(|block| self.wait(block)).collect(),
            held_up_by,
        }
    }

    /// The connections that have moved data, by peer.
    fn connections(&self) -> Vec<ConnectionRecord> {
        let channels = self.plan_context.channels;
        let of_peer = |edges: &Edges, channel: u32, set: ConnSet| {
            let index = (set as u32 * channels + channel) as usize;
            // All begin there, in every connection.
            let first = self.config.first_step;
            let [[sent, acknowledged], [arrived, received]] =
                edges.steps(&self.layout, index).map(|steps| {
                    let [tail, head] = steps.unwrap_or_default();
                    [tail.max(head), head].map(|step| step.saturating_sub(first))
                });
            let messages = matches!(set, ConnSet::P2p);
            let peer = edges.send.peer;
            (sent > 0 || arrived > 0).then_some(ConnectionRecord {
                peer,
                channel,
                messages,
                sent,
                acknowledged,
                arrived,
                received,
            })
        };
        let of_edges = |edges| {
            let sets = [ConnSet::Collective, ConnSet::P2p].into_iter();
            sets.flat_map(move |set| {
                (0..channels).filter_map(move |channel| of_peer(edges, channel, set))
            })
        };
        self.edges.iter().flat_map(of_edges).collect()
    }

    /// What a block waits for, if it is one of ours.
    fn wait(&self, block: &WaitingBlock) -> Option<WaitRecord> {
        let WaitingBlock { comm, kernel, waiting } = block;
        self.control.has(*comm).then(|| WaitRecord {
            channel: waiting.channel,
            kernel: (*kernel).to_owned(),
            peer: waiting.peer,
            step: waiting.step,
            what: waiting.kind.words().to_owned(),
        })
    }
}

impl From<RecordedCall> for CallRecord {
    fn from(recorded: RecordedCall) -> Self {
        let RecordedCall { record: _, call, stream, entered, started, end } = recorded;
        let messages = is_messages(&call);
        let [collective, _, _, algorithm, protocol, channels, ..] = call[2].to_le_bytes();
        let name = |name: Option<&'static str>| name.unwrap_or("unknown");
        let plan = || {
            let unknown = || "unknown".to_owned();
            let algorithm = Algorithm::from_index(algorithm.into());
            let algorithm = algorithm.map_or_else(unknown, |algorithm| algorithm.to_string());
            let protocol = ProtocolId::from_index(protocol.into());
            let protocol = protocol.map_or_else(unknown, |protocol| protocol.to_string());
            format!("{algorithm} {protocol}")
        };
        let collective = Collective::from_index(collective.into()).map(Collective::name);
        CallRecord {
            number: (!messages).then_some(call[0]),
            call: if messages {
                format!("sends and receives of {} bytes", call[1])
            } else {
                describe_call(&call)
            },
            collective: name(collective).to_owned(),
            plan: (!messages).then(plan),
            channels: if messages { 0 } else { channels.into() },
            stream: stream as u64,
            entered_ns: entered,
            started_ns: started,
            ended_ns: if let CallEnd::At(time) = end { Some(time) } else { None },
            in_graph: end == CallEnd::Captured,
        }
    }
}
