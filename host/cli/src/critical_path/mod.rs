//! Where the simulated time of a run goes: the chain of waits that ended last, summed up, as text and JSON; and all waits as a trace.
//!
//! ```text
//! PathStep ─ origins: which source line, inlined through what ─► Summary ─► text, JSON
//! waits of all warps ───────────────────────────────────────────► trace: a track for each warp
//! ```

mod origins;
pub(crate) mod trace;

use std::collections::HashMap;
use std::fmt::Write as _;

use ferroccl::runtime::ptx::{PathStep, totals};
use serde::Serialize;

pub(crate) use self::origins::Origins;

/// Instructions that are listed of a path.
const LISTED: usize = 8;

pub(crate) fn microseconds(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1e6
}

/// What time is spent on, and how much of it.
#[derive(Debug, Serialize)]
pub(crate) struct Part {
    /// What for.
    pub(crate) what: &'static str,
    /// How often.
    pub(crate) times: usize,
    /// Microseconds.
    pub(crate) us: f64,
}

/// The same of a line.
#[derive(Debug, Serialize)]
pub(crate) struct Spot {
    #[serde(flatten)]
    part: Part,
    /// The kernel.
    kernel: String,
    /// The line of source, `file:line`, where the PTX says; and the lines that it was inlined through, the nearest first.
    source: Option<String>,
    inlined_through: Vec<String>,
    /// The first instruction of the line, and its own line of the PTX.
    instruction: String,
    ptx_line: u32,
}

/// What a path comes to.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    /// All of it, in microseconds.
    us: f64,
    /// By what time is spent on, the longest first.
    parts: Vec<Part>,
    /// By line of source, or by instruction where the PTX does not say, the longest first.
    spots: Vec<Spot>,
}

impl Summary {
    pub(crate) fn of(path: &[PathStep], origins: &mut Origins) -> Self {
        let all: u64 = path.iter().map(|step| step.end - step.start).sum();
        let part = |(what, times, time)| Part { what, times, us: microseconds(time) };
        let parts = totals(path).into_iter().map(|(spent, n, time)| part((spent.words(), n, time)));
        let mut spots: HashMap<_, (&PathStep, usize, u64)> = HashMap::new();
        for step in path {
            let origin = origins.of(&step.site);
            // Instructions of one line are one spot.
            let line = origin.as_ref().map_or(step.site.position.line, |_| 0);
            let origin = origin.map(|origin| (origin.line.clone(), origin.calls.clone()));
            let (_, times, time) =
                spots.entry((&step.site.kernel, origin, line, step.spent)).or_insert((step, 0, 0));
            *times += 1;
            *time += step.end - step.start;
        }
        let mut spots: Vec<_> = spots.into_values().collect();
        spots.sort_by_key(|(step, _, time)| {
            (std::cmp::Reverse(*time), step.site.position.line, step.spent)
        });
        let spot = |(step, times, time): (&PathStep, usize, u64)| {
            let origin = origins.of(&step.site);
            Spot {
                part: part((step.spent.words(), times, time)),
                kernel: step.site.kernel.clone(),
                source: origin.as_ref().map(|o| o.line.clone()).or(step.site.source.clone()),
                inlined_through: origin.map(|o| o.calls.clone()).unwrap_or_default(),
                instruction: step.site.text.clone(),
                ptx_line: step.site.position.line,
            }
        };
        let spots = spots.into_iter().map(spot).collect();
        Summary { us: microseconds(all), parts: parts.collect(), spots }
    }

    /// Writes it; each line begins with `margin`.
    pub(crate) fn write(&self, to: &mut String, margin: &str, what: &str) {
        let _ = writeln!(to, "{margin}{what}: {:.2} us", self.us);
        for Part { what, times, us } in &self.parts {
            let part = 100.0 * us / self.us.max(f64::MIN_POSITIVE);
            let _ = writeln!(to, "{margin} {us:>9.2} us  {part:>5.1}%  in {times:>6}  {what}");
        }
        let _ = writeln!(to, "{margin} of it, at");
        for Spot { part: Part { what, times, us }, source, inlined_through, instruction, .. } in
            self.spots.iter().take(LISTED)
        {
            let at = source.as_deref().unwrap_or(instruction);
            let _ = write!(to, "{margin} {us:>9.2} us  in {times:>6}  {what}, {at}");
            if !inlined_through.is_empty() {
                let _ = write!(to, "   [{}]", inlined_through.join(" < "));
            }
            to.push('\n');
        }
    }
}
