//! The steps of a run, for [Perfetto](https://ui.perfetto.dev).

use serde_json::{Value, json};

use crate::Outcome;

/// A step of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSpan {
    /// The rank.
    pub rank: u32,
    /// The channel.
    pub channel: u32,
    /// Which of the channel's blocks.
    pub half: u32,
    /// When the block had data and credit, in microseconds.
    pub begin_us: f64,
    /// When it had done, in microseconds.
    pub end_us: f64,
    /// Bytes of data.
    pub bytes: u32,
}

impl Outcome {
    /// The steps that were kept as a trace in Chrome's format: a process a rank, a thread a block.
    #[must_use]
    pub fn trace_json(&self) -> String {
        let mut events: Vec<Value> = Vec::new();
        let mut ranks: Vec<u32> = self.trace.iter().map(|span| span.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        for rank in ranks {
            let name = format!("rank {rank} (simulated)");
            events.push(
                json!({ "ph": "M", "pid": rank, "name": "process_name", "args": { "name": name } }),
            );
        }
        for span in &self.trace {
            events.push(json!({
                "ph": "X", "pid": span.rank, "tid": span.channel * 2 + span.half,
                "name": if span.half == 0 { format!("channel {}", span.channel) } else { format!("channel {}, down", span.channel) },
                "ts": span.begin_us, "dur": span.end_us - span.begin_us, "args": { "bytes": span.bytes },
            }));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": { "simulated": true } }).to_string()
    }
}
