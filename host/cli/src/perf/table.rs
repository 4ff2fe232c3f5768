//! The table of nccl-tests: what its readers' eyes and scripts expect, to the column.
//!
//! Knows how a line looks, not where it goes. Times are microseconds of one call, bandwidths
//! 10^9 bytes per second; `algbw` is size over time, `busbw` what each link must have carried.

use std::fmt;

use ferroccl::{DataType, ReduceOp};

use super::emulated::CallCounts;
use super::planned::Planned;

/// One measurement: a place, a size.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Cell {
    /// Microseconds of one call.
    pub(crate) time_us: f64,
    /// Size over time, in 10^9 bytes per second.
    #[serde(rename = "algbw_gbps")]
    pub(crate) algbw: f64,
    /// `algbw` times the operation's factor.
    #[serde(rename = "busbw_gbps")]
    pub(crate) busbw: f64,
    /// Elements that were not as expected; nothing when nobody looked.
    pub(crate) wrong: Option<u64>,
    /// What one call came to on all ranks, where it was emulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<CallCounts>,
}

impl Cell {
    /// The bandwidths that `time_us` means for `bytes`.
    pub(crate) fn new(time_us: f64, bytes: u64, factor: f64, wrong: Option<u64>) -> Self {
        let algbw = if time_us > 0.0 { bytes as f64 / time_us / 1e3 } else { 0.0 };
        Cell { time_us, algbw, busbw: algbw * factor, wrong, counts: None }
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Row {
    /// Bytes.
    #[serde(rename = "size_bytes")]
    pub(crate) size: u64,
    /// Elements.
    pub(crate) count: u64,
    /// Their type.
    #[serde(rename = "type", serialize_with = "by_name")]
    pub(crate) data_type: DataType,
    /// The reduction.
    #[serde(serialize_with = "or_none")]
    pub(crate) redop: Option<ReduceOp>,
    /// The root, or -1 where there is none.
    pub(crate) root: i64,
    /// How it was done.
    #[serde(flatten)]
    pub(crate) planned: Planned,
    /// From one buffer into another.
    pub(crate) out_of_place: Cell,
    /// Within one buffer.
    pub(crate) in_place: Option<Cell>,
}

fn or_none<T: fmt::Display, S: serde::Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_str("none"),
    }
}

fn by_name<T: fmt::Display, S: serde::Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The lines above the first row. The last three columns are not nccl-tests': they are behind all of its own, which scripts
/// count from the left.
pub(crate) const HEADING: &str = "\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong           algo   proto  nch
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { size, count, data_type, redop, root, planned, out_of_place, in_place } = self;
        let redop = redop.map_or("none", ReduceOp::name);
        write!(f, "{size:>12}  {count:>12}  {data_type:>8}  {redop:>6}  {root:>6}")?;
        write!(f, "{out_of_place}")?;
        match in_place {
            Some(cell) => write!(f, "{cell}")?,
            None => write!(f, "  {0:>7}  {0:>6}  {0:>6}  {0:>5}", "N/A")?,
        }
        write!(f, "{planned}")
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { time_us, algbw, busbw, wrong, .. } = self;
        // Seven columns for a time, whatever its size.
        let digits = match *time_us {
            t if t >= 10_000.0 => 0,
            t if t >= 100.0 => 1,
            _ => 2,
        };
        write!(f, "  {time_us:>7.digits$}  {algbw:>6.2}  {busbw:>6.2}")?;
        match wrong {
            Some(wrong) => write!(f, "  {wrong:>5}"),
            None => write!(f, "  {:>5}", "N/A"),
        }
    }
}

/// The verdict and the mean under the table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Summary {
    /// Elements that were not as expected, of all rows.
    pub(crate) wrong: u64,
    /// Mean `busbw` of all measurements, in 10^9 bytes per second.
    pub(crate) avg_busbw: f64,
}

impl Summary {
    /// The summary of these rows.
    pub(crate) fn of(rows: &[Row]) -> Self {
        let cells = rows.iter().flat_map(|row| [Some(row.out_of_place), row.in_place]).flatten();
        let (wrong, sum, n) = cells.fold((0, 0.0, 0u32), |(wrong, sum, n), cell| {
            (wrong + cell.wrong.unwrap_or(0), sum + cell.busbw, n + 1)
        });
        Summary { wrong, avg_busbw: sum / f64::from(n.max(1)) }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.wrong == 0 { "OK" } else { "FAILED" };
        writeln!(f, "# Out of bounds values : {} {verdict}", self.wrong)?;
        writeln!(f, "# Avg bus bandwidth    : {:<8.6}", self.avg_busbw)?;
        f.write_str("#")
    }
}

#[cfg(test)]
mod tests {
    use super::super::operation::Operation;
    use super::*;
    use ferroccl::{Algorithm, ProtocolId};

    fn row(size: u64, time_us: f64, wrong: Option<u64>) -> Row {
        let cell = Cell::new(time_us, size, Operation::AllReduce.bus_factor(4), wrong);
        Row {
            size,
            count: size / 4,
            data_type: DataType::F32,
            redop: Some(ReduceOp::Sum),
            root: -1,
            planned: Planned {
                algorithm: Some(Algorithm::Ring),
                protocol: Some(ProtocolId::Simple),
                channels: 2,
            },
            out_of_place: cell,
            in_place: Some(cell),
        }
    }

    #[test]
    fn rows_have_the_columns_of_nccl_tests() {
        let lines = [
            row(8, 12.9, Some(0)).to_string(),
            row(1 << 20, 123.4, None).to_string(),
            row(64 << 20, 54_321.0, Some(7)).to_string(),
        ];
        assert_eq!(
            lines,
            [
                "           8             2     float     sum      -1    12.90    0.00    0.00      0    12.90    0.00    0.00      0           Ring  Simple    2",
                "     1048576        262144     float     sum      -1    123.4    8.50   12.75    N/A    123.4    8.50   12.75    N/A           Ring  Simple    2",
                "    67108864      16777216     float     sum      -1    54321    1.24    1.85      7    54321    1.24    1.85      7           Ring  Simple    2",
            ]
        );
        let only_out =
            Row { in_place: None, redop: None, root: 3, ..row(8, 12.9, Some(0)) }.to_string();
        assert_eq!(
            only_out,
            "           8             2     float    none       3    12.90    0.00    0.00      0      N/A     N/A     N/A    N/A           Ring  Simple    2"
        );
        // Every heading ends in the column in which its numbers end.
        let units = HEADING.lines().last().unwrap();
        assert_eq!(units.len(), lines[0].len() - 7 - "           Ring  Simple    2".len());
        assert!(HEADING.contains(&format!(" {:>12}  {:>6}  {:>3}\n", "algo", "proto", "nch")));
        for (column, unit) in [(12, "(B)"), (26, "(elements)"), (61, "(us)"), (69, "(GB/s)")] {
            assert!(units[..column].ends_with(unit), "{unit} in {units:?}");
        }
    }

    #[test]
    fn bandwidths() {
        // 1 GB in 1 s on 4 ranks: 1 GB/s of algorithm, 1.5 GB/s on the bus.
        let cell = Cell::new(1e6, 1_000_000_000, Operation::AllReduce.bus_factor(4), None);
        assert_eq!((cell.algbw, cell.busbw), (1.0, 1.5));
        assert_eq!(Cell::new(0.0, 8, 1.0, None).algbw, 0.0);
    }

    #[test]
    fn the_summary_counts_every_wrong_element() {
        let alone = Row { in_place: None, ..row(8, 1.0, Some(0)) };
        let rows = [row(8, 1.0, Some(2)), row(8, 1.0, None), alone];
        assert_eq!(Summary::of(&[alone]).avg_busbw, alone.out_of_place.busbw);
        let summary = Summary::of(&rows);
        assert_eq!(summary.wrong, 4);
        assert!(summary.to_string().starts_with("# Out of bounds values : 4 FAILED\n"));
        assert!(Summary::of(&[]).to_string().contains(": 0 OK\n# Avg bus bandwidth    : 0.000000"));
    }
}
