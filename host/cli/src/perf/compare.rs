//! `--compare`: the table beneath the table, with another measurement beside this one.

use std::fmt::Write as _;

use super::recorded::{MeasuredRow, Measurement};
use super::table::time;

/// Bars from the lowest to the highest; the one in the middle stands for equal times.
const BARS: [char; 7] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇'];
/// A ratio that fills the bars; its inverse has the lowest.
const FULL: f64 = 2.0;

/// How much faster each place is now: the time then over the time now.
fn ratios(now: &MeasuredRow, then: &MeasuredRow) -> [Option<f64>; 2] {
    std::array::from_fn(|place| {
        let (now, then) = (now.places[place]?, then.places[place]?);
        (now.time > 0.0 && then.time > 0.0).then(|| then.time / now.time)
    })
}

/// One bar for each ratio, over a logarithmic scale around 1; a space where there is none.
fn sparkline(ratios: impl Iterator<Item = Option<f64>>) -> String {
    let bar = |ratio: f64| {
        let share = (ratio.log2() / FULL.log2() + 1.0) / 2.0;
        BARS[((share * BARS.len() as f64) as usize).min(BARS.len() - 1)]
    };
    ratios.map(|ratio| ratio.map_or(' ', bar)).collect()
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { (values[middle - 1] + upper) / 2.0 } else { *upper })
}

/// The lines; `name` is the other measurement's.
pub(crate) fn table(now: &Measurement, then: &Measurement, name: &str) -> String {
    let mut text = format!("# Beside {name}. x: how many times as fast it is now\n");
    for (what, recorded) in [("these times", now), ("those in it", then)] {
        if let Some(model) = &recorded.simulated_on {
            let _ = writeln!(text, "# {what} are SIMULATED ({model})");
        }
    }
    let other =
        |a: &Option<String>, b: &Option<String>| matches!((a, b), (Some(a), Some(b)) if a != b);
    if other(&now.operation, &then.operation) {
        let name = then.operation.as_deref().unwrap_or_default();
        let _ = writeln!(text, "# It is of another operation: {name}");
    }
    text += "#                                      out-of-place                   in-place\n\
             #       size      type   redop     then      now      x     then      now      x\n";
    text += "#        (B)                       (us)     (us)            (us)     (us)\n";
    let mut all: [Vec<Option<f64>>; 2] = [Vec::new(), Vec::new()];
    let mut alone = 0;
    for row in &now.rows {
        let Some(like) = then.like(row) else {
            alone += 1;
            all.iter_mut().for_each(|ratios| ratios.push(None));
            continue;
        };
        let _ = write!(text, "{:>12}{:>10}{:>8}", row.size, row.data_type, row.redop);
        for (place, ratio) in ratios(row, like).into_iter().enumerate() {
            all[place].push(ratio);
            let cell = |row: &MeasuredRow| {
                row.places[place].map_or("    N/A".to_owned(), |c| time(c.time))
            };
            let ratio = ratio.map_or("N/A".to_owned(), |ratio| format!("{ratio:.2}"));
            let _ = write!(text, "  {}  {}  {ratio:>5}", cell(like), cell(row));
        }
        text.push('\n');
    }
    if alone > 0 {
        let _ = writeln!(
            text,
            "# {alone} of {} lines have none of their size and type in it",
            now.rows.len()
        );
    }
    for (place, ratios) in ["out-of-place", "in-place"].into_iter().zip(all) {
        let known: Vec<f64> = ratios.iter().flatten().copied().collect();
        let (least, most) = (
            known.iter().copied().fold(f64::INFINITY, f64::min),
            known.iter().copied().fold(0.0, f64::max),
        );
        if let Some(median) = median(known) {
            let bars = sparkline(ratios.into_iter());
            let _ = writeln!(
                text,
                "# {place:>12}  {bars}  {least:.2} to {most:.2}, median {median:.2}"
            );
        }
    }
    text + "#"
}

#[cfg(test)]
mod tests {
    use super::super::recorded::MeasuredCell;
    use super::*;

    fn recorded(times: &[(u64, f64)]) -> Measurement {
        let row = |&(size, time): &(u64, f64)| {
            let cell = MeasuredCell { time, ..MeasuredCell::default() };
            let (data_type, redop) = ("float".to_owned(), "sum".to_owned());
            MeasuredRow {
                size,
                data_type,
                redop,
                places: [Some(cell), None],
                ..MeasuredRow::default()
            }
        };
        Measurement { rows: times.iter().map(row).collect(), ..Measurement::default() }
    }

    #[test]
    fn the_table_has_both_times_and_bars() {
        let now = recorded(&[(8, 10.0), (16, 10.0), (32, 10.0), (64, 1.0)]);
        let mut then = recorded(&[(8, 5.0), (16, 10.0), (32, 40.0)]);
        then.operation = Some("broadcast".to_owned());
        then.simulated_on = Some("h100-nvlink".to_owned());
        let now = Measurement { operation: Some("all_reduce".to_owned()), ..now };
        assert_eq!(
            table(&now, &then, "before.json"),
            "\
# Beside before.json. x: how many times as fast it is now
# those in it are SIMULATED (h100-nvlink)
# It is of another operation: broadcast
#                                      out-of-place                   in-place
#       size      type   redop     then      now      x     then      now      x
#        (B)                       (us)     (us)            (us)     (us)
           8     float     sum     5.00    10.00   0.50      N/A      N/A    N/A
          16     float     sum    10.00    10.00   1.00      N/A      N/A    N/A
          32     float     sum    40.00    10.00   4.00      N/A      N/A    N/A
# 1 of 4 lines have none of their size and type in it
# out-of-place  ▁▄▇   0.50 to 4.00, median 1.00
#"
        );
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0]), Some(2.0));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    }
}
