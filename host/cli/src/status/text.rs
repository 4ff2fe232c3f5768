//! Records as text: a block per communicator, a line per rank.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ferroccl::flight_recorder::{CallRecord, CommRecord, ProcessRecord};

/// A rank, and the process that it is of.
type Rank<'a> = (&'a ProcessRecord, &'a CommRecord);

/// Prints all communicators, with so many of the last calls of each rank, and its connections' steps if `steps`.
pub(super) fn print(
    out: &mut impl Write,
    processes: &[ProcessRecord],
    calls: usize,
    steps: bool,
) -> io::Result<()> {
    let mut comms: BTreeMap<&str, Vec<Rank<'_>>> = BTreeMap::new();
    for process in processes {
        for comm in &process.communicators {
            comms.entry(&comm.id).or_default().push((process, comm));
        }
    }
    for (number, (id, mut ranks)) in comms.into_iter().enumerate() {
        ranks.sort_by_key(|(_, comm)| comm.rank);
        let all = ranks.first().map_or(0, |(_, comm)| comm.ranks);
        let (gap, seen) = (if number > 0 { "\n" } else { "" }, ranks.len());
        let of = if seen < all as usize {
            format!("{seen} of its {all} ranks")
        } else {
            format!("{all} rank{}", plural(all as usize))
        };
        writeln!(out, "{gap}communicator {id}, {of}")?;
        for rank in &ranks {
            print_rank(out, *rank, calls, steps)?;
        }
        // All ranks that wait know the same, but for the time at which they were asked.
        if let Some(who) = ranks.iter().find_map(|(_, comm)| comm.held_up_by.as_deref()) {
            writeln!(out, "  {who}")?;
        }
    }
    Ok(())
}

fn print_rank(
    out: &mut impl Write,
    (process, comm): Rank<'_>,
    calls: usize,
    steps: bool,
) -> io::Result<()> {
    let ProcessRecord { host, pid, program, time_ns, .. } = process;
    writeln!(
        out,
        "  rank {} on {}, {program} {pid} on {host}: {}",
        comm.rank,
        comm.runtime,
        state(comm, *time_ns)
    )?;
    for wait in &comm.waits {
        let (channel, what, peer, step) = (wait.channel, &wait.what, wait.peer, wait.step);
        writeln!(out, "    channel {channel} waits for {what} of rank {peer}, step {step}")?;
    }
    if let Some(failure) = &comm.failure {
        writeln!(out, "    failed: {failure}")?;
    }
    let first = comm.calls.len().saturating_sub(calls);
    for call in &comm.calls[first..] {
        writeln!(out, "    {}", line(call, *time_ns))?;
    }
    if steps {
        for c in &comm.connections {
            let kind = if c.messages { "messages" } else { "collectives" };
            writeln!(
                out,
                "    channel {}, {kind}, rank {}: {} steps sent, {} of them taken; {} steps received",
                c.channel, c.peer, c.sent, c.acknowledged, c.received
            )?;
        }
    }
    Ok(())
}

/// What a rank does now.
fn state(comm: &CommRecord, now: u64) -> String {
    let pends = |call: &&CallRecord| call.ended_ns.is_none() && !call.in_graph;
    let pending: Vec<_> = comm.calls.iter().filter(pends).collect();
    let Some(first) = pending.first() else {
        return match comm.calls.last() {
            Some(last) => format!("nothing pending; the last call was {}", line(last, now)),
            None => "has made no call".to_owned(),
        };
    };
    let behind = |calls: usize| match calls {
        0 => String::new(),
        calls => format!(", and {calls} call{} behind it", plural(calls)),
    };
    match (comm.pending, first.number) {
        (Some(number), Some(oldest)) if number < oldest => {
            let calls = behind(comm.entered.saturating_sub(number) as usize);
            format!("call {number}, too long ago to be remembered{calls}")
        }
        _ => format!("{}{}", line(first, now), behind(pending.len() - 1)),
    }
}

/// A call in a line.
fn line(call: &CallRecord, now: u64) -> String {
    let number = call.number.map_or_else(String::new, |number| format!("call {number}, "));
    let plan = call.plan.as_ref().map_or_else(String::new, |plan| {
        format!(" by {plan} on {} channel{}", call.channels, plural(call.channels as usize))
    });
    let ago = |then: u64| seconds(now.saturating_sub(then));
    let when = match (call.started_ns, call.ended_ns) {
        _ if call.in_graph => format!("captured in a graph {} ago", ago(call.entered_ns)),
        (started, Some(ended)) => {
            let took = seconds(ended.saturating_sub(started.unwrap_or(call.entered_ns)));
            format!("took {took}, ended {} ago", ago(ended))
        }
        (Some(started), None) => format!("running for {}", ago(started)),
        (None, None) => format!("made {} ago", ago(call.entered_ns)),
    };
    format!("{number}{}{plan}: {when}", call.call)
}

/// A time with three digits or so.
fn seconds(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
