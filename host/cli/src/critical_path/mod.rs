//! Where the simulated time of a call goes, as text.

use std::collections::HashMap;
use std::fmt::Write as _;

use ferroccl::runtime::ptx::{PathStep, totals};

/// Instructions that are listed of a path.
const LISTED: usize = 8;

fn microseconds(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1e6
}

/// Writes what a path comes to: by what time is spent on, and by instructions.
pub(crate) fn write(to: &mut String, what: &str, path: &[PathStep]) {
    let all: u64 = path.iter().map(|step| step.end - step.start).sum();
    let _ = writeln!(to, "#\n# {what}: {:.2} us", microseconds(all));
    for (spent, times, time) in totals(path) {
        let part = 100.0 * time as f64 / all.max(1) as f64;
        let (time, words) = (microseconds(time), spent.words());
        let _ = writeln!(to, "#  {time:>9.2} us  {part:>5.1}%  in {times:>6}  {words}");
    }
    let mut places: HashMap<(String, &str), (usize, u64)> = HashMap::new();
    for step in path {
        let at = step.site.source.clone().unwrap_or_else(|| step.site.text.clone());
        let (times, time) = places.entry((at, step.spent.words())).or_default();
        *times += 1;
        *time += step.end - step.start;
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by(|a, b| b.1.1.cmp(&a.1.1).then_with(|| a.0.cmp(&b.0)));
    let _ = writeln!(to, "#  of it, at");
    for ((at, words), (times, time)) in places.into_iter().take(LISTED) {
        let _ = writeln!(to, "#  {:>9.2} us  in {times:>6}  {words}, {at}", microseconds(time));
    }
}
