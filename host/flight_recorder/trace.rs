//! Records as a trace: the JSON form that Perfetto and Chrome's `about:tracing` open.
//!
//! A rank is a process of the trace, and a channel a thread: so there is a track per rank and channel. Messages have a track
//! of their own, because they may run beside a collective. A call is a slice from its start to its end, or to the moment
//! of the record, where it has not ended. What blocks wait for and how far connections are is an instant at the end.
//!
//! The form is described in the document "Trace Event Format" of the Chromium project; viewers ignore keys that they do not
//! know, so the records themselves are in the same file, under `ferroccl`.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{CallRecord, CommRecord, ProcessRecord};

/// A file of records.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct File {
    #[serde(rename = "displayTimeUnit")]
    unit: String,
    #[serde(rename = "traceEvents")]
    events: Vec<Value>,
    ferroccl: Records,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Records {
    version: String,
    processes: Vec<ProcessRecord>,
}

/// The track of messages, behind those of the channels.
const MESSAGES: u32 = 1000;

/// Writes records as a file that Perfetto opens, and [`read`] reads.
///
/// # Errors
/// Those of `out`.
///
/// ```
/// use ferroccl::flight_recorder::{ProcessRecord, trace};
///
/// let mut file = Vec::new();
/// trace::write(&mut file, &[ProcessRecord::here()])?;
/// assert_eq!(trace::read(&file)?[0].pid, std::process::id());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write(out: impl Write, processes: &[ProcessRecord]) -> io::Result<()> {
    let mut events = Vec::new();
    let ranks = processes
        .iter()
        .flat_map(|process| process.communicators.iter().map(move |comm| (process, comm)));
    for (number, (process, comm)) in ranks.enumerate() {
        // Ranks of different communicators and hosts, and numbers of processes, may be the same.
        push_rank(&mut events, number + 1, process, comm);
    }
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let ferroccl = Records { version, processes: processes.to_vec() };
    serde_json::to_writer(out, &File { unit: "ns".to_owned(), events, ferroccl })?;
    Ok(())
}

/// The records of a file that [`write()`] has written.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for anything else.
pub fn read(bytes: &[u8]) -> io::Result<Vec<ProcessRecord>> {
    let file: File = serde_json::from_slice(bytes).map_err(io::Error::from)?;
    Ok(file.ferroccl.processes)
}

/// The events of a rank, which is process `pid` of the trace.
fn push_rank(events: &mut Vec<Value>, pid: usize, process: &ProcessRecord, comm: &CommRecord) {
    let CommRecord { id, rank, ranks, .. } = comm;
    let ProcessRecord { host, pid: os_pid, program, time_ns, .. } = process;
    let name = format!("rank {rank} of {ranks}, {program} {os_pid} on {host}, {id}");
    let meta = |what: &str, tid: u32, args: Value| json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args});
    events.push(meta("process_name", 0, json!({ "name": name })));
    events.push(meta("process_sort_index", 0, json!({ "sort_index": rank })));
    let mut tracks: Vec<u32> = comm.calls.iter().flat_map(tracks).collect();
    tracks.extend(comm.connections.iter().filter(|c| !c.messages).map(|c| c.channel));
    tracks.extend(comm.waits.iter().map(|wait| wait.channel));
    tracks.extend(comm.connections.iter().any(|c| c.messages).then_some(MESSAGES));
    tracks.sort_unstable();
    tracks.dedup();
    for track in &tracks {
        let name =
            if *track == MESSAGES { "messages".to_owned() } else { format!("channel {track}") };
        events.push(meta("thread_name", *track, json!({ "name": name })));
        events.push(meta("thread_sort_index", *track, json!({ "sort_index": track })));
    }
    // Calls run one after the other, and messages do, too: where no start is known it is the end of the one before.
    let mut ends = [0, 0];
    for call in &comm.calls {
        let end = &mut ends[usize::from(call.number.is_none())];
        // What has not begun, behind another call, is in the records only.
        if call.started_ns.is_none() && call.ended_ns.is_none() && *end == u64::MAX {
            continue;
        }
        let start = call.started_ns.unwrap_or(call.entered_ns.max(*end));
        for track in self::tracks(call) {
            events.push(slice(call, pid, track, start, *time_ns));
        }
        if !call.in_graph {
            *end = call.ended_ns.unwrap_or(u64::MAX);
        }
    }
    let now = |name: String, track: u32, args: Value| json!({"ph": "i", "s": "t", "name": name, "pid": pid, "tid": track, "ts": micros(*time_ns), "args": args});
    for wait in &comm.waits {
        let name = format!("waits for {} of rank {}", wait.what, wait.peer);
        events.push(now(name, wait.channel, json!(wait)));
    }
    for connection in &comm.connections {
        let track = if connection.messages { MESSAGES } else { connection.channel };
        let name = format!("steps with rank {}", connection.peer);
        events.push(now(name, track, json!(connection)));
    }
    if let Some(failure) = &comm.failure {
        let track = tracks.first().copied().unwrap_or(0);
        events.push(now(format!("failed: {failure}"), track, json!({})));
    }
}

/// The tracks that a call is on. It is on none when it is only in a graph.
fn tracks(call: &CallRecord) -> Vec<u32> {
    match call.number {
        _ if call.in_graph => Vec::new(),
        None => vec![MESSAGES],
        Some(_) => (0..call.channels.max(1)).collect(),
    }
}

fn slice(call: &CallRecord, pid: usize, track: u32, start: u64, now_ns: u64) -> Value {
    let start = start.min(now_ns);
    let end = call.ended_ns.unwrap_or(now_ns).max(start);
    let state = match (call.started_ns, call.ended_ns) {
        (_, Some(_)) => "ended",
        (Some(_), None) => "has not ended",
        (None, None) => "is not known to have started",
    };
    json!({
        "ph": "X", "name": call.collective, "cat": "call", "pid": pid, "tid": track,
        "ts": micros(start), "dur": micros(end - start),
        "args": {"state": state, "call": call},
    })
}

/// The format counts in microseconds.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
