//! The fastest of what was simulated, as the file that NCCL's example of a tuner plugin reads.

use std::fmt::Write;

use ferroccl::{Algorithm, Collective};

use crate::Outcome;

/// A size and the fastest way that was found for it.
#[derive(Clone, Copy, Debug)]
pub struct TunerRow<'a> {
    /// Hosts.
    pub hosts: u32,
    /// What was fastest.
    pub outcome: &'a Outcome,
}

/// A table in the format of NCCL's `ext-tuner/example` (its `nccl_tuner.conf`): a line for each range of sizes, from one size that was
/// simulated up to the next. Ways that the format has no name for are left out.
#[must_use]
pub fn tuner_file(rows: &[TunerRow<'_>]) -> String {
    let mut out = String::from(
        "# SIMULATED by ferroccl simulate\n\
         # collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks\n",
    );
    for (i, TunerRow { hosts, outcome }) in rows.iter().enumerate() {
        let name = match outcome.call.collective {
            Collective::AllReduce => "allreduce",
            Collective::AllGather => "allgather",
            Collective::ReduceScatter => "reducescatter",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            _ => continue,
        };
        let algorithm = match outcome.choice.algorithm {
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            _ => continue,
        };
        let protocol = outcome.choice.protocol.name().to_lowercase();
        let from = if i == 0 { 0 } else { outcome.call.bytes };
        let to = rows.get(i + 1).map_or(u64::from(u32::MAX), |next| next.outcome.call.bytes - 1);
        let (channels, ranks) = (outcome.choice.channels, outcome.ranks);
        let _ =
            writeln!(out, "{name},{from},{to},{algorithm},{protocol},{channels},{hosts},{ranks}");
    }
    out
}
