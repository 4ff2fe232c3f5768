//! The table of nccl-tests: what its readers' eyes and scripts expect, to the column.
//!
//! Knows how a line looks, not where it goes. Times are microseconds of one call, bandwidths
//! 10^9 bytes per second; `algbw` is size over time, `busbw` what each link must have carried.

use std::fmt;

use ferroccl::{DataType, ReduceOp};
use jiff::Zoned;

use super::emulated::CallCounts;
use super::iterations::Spread;
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
    /// How the times of single iterations are spread, where they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) iterations: Option<Spread>,
}

impl Cell {
    /// The bandwidths that `time_us` means for `bytes`.
    pub(crate) fn new(time_us: f64, bytes: u64, factor: f64, wrong: Option<u64>) -> Self {
        let algbw = if time_us > 0.0 { bytes as f64 / time_us / 1e3 } else { 0.0 };
        Cell { time_us, algbw, busbw: algbw * factor, wrong, counts: None, iterations: None }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
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
    /// When it was measured.
    #[serde(serialize_with = "as_timestamp")]
    pub(crate) measured: Zoned,
}

/// As RFC 3339 has it.
fn as_timestamp<S: serde::Serializer>(time: &Zoned, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&time.timestamp())
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

/// Which columns there are. The table of nccl-tests has all but the last three, which are behind all of its own, as scripts count
/// from the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableForm {
    /// Elements, root and `algbw`.
    all: bool,
    /// Type and reduction.
    kind: bool,
    /// What ran.
    plan: bool,
    /// Times of single iterations.
    iterations: bool,
    /// When.
    timestamps: bool,
}

/// A column: its name, its unit, and how wide it is with the space before it.
type TableColumn = (&'static str, &'static str, usize);

impl TableForm {
    /// All columns, or on a terminal that is `width` wide those that fit.
    pub(crate) fn new(width: Option<usize>, iterations: bool, timestamps: bool) -> TableForm {
        let all = TableForm { all: true, kind: true, plan: true, iterations, timestamps };
        let narrow = TableForm { all: false, timestamps: false, ..all };
        let forms = [all, narrow, TableForm { plan: false, ..narrow }];
        let fits = |form: &TableForm| width.is_none_or(|width| form.width() <= width);
        let least = TableForm { kind: false, plan: false, ..narrow };
        forms.into_iter().find(fits).unwrap_or(least)
    }

    fn width(self) -> usize {
        let sum = |columns: Vec<TableColumn>| columns.iter().map(|column| column.2).sum::<usize>();
        sum(self.before()) + 2 * sum(self.place()) + sum(self.after())
    }

    /// The columns before the places'.
    fn before(self) -> Vec<TableColumn> {
        let mut columns = vec![("size", "(B)", 12)];
        columns.extend(self.all.then_some(("count", "(elements)", 14)));
        if self.kind {
            columns.extend([("type", "", 10), ("redop", "", 8)]);
        }
        columns.extend(self.all.then_some(("root", "", 8)));
        columns
    }

    /// The columns of a place.
    fn place(self) -> Vec<TableColumn> {
        let mut columns = vec![("time", "(us)", 9)];
        columns.extend(self.all.then_some(("algbw", "(GB/s)", 8)));
        columns.extend([("busbw", "(GB/s)", 8), ("#wrong", "", 7)]);
        if self.iterations {
            let times = ["i_min", "i_max", "i_p99"].map(|name| (name, "(us)", 9));
            columns.extend(times);
            columns.push(("i_cv%", "(%)", 9));
        }
        columns
    }

    /// The columns behind the places'.
    fn after(self) -> Vec<TableColumn> {
        let mut columns = Vec::new();
        if self.plan {
            columns.extend([("algo", "", 15), ("proto", "", 8), ("nch", "", 5)]);
        }
        columns.extend(self.timestamps.then_some(("timestamp", "", 21)));
        columns
    }

    /// The lines above the first row.
    pub(crate) fn heading(self) -> String {
        let (before, place, after) = (self.before(), self.place(), self.after());
        let width = |columns: &[TableColumn]| columns.iter().map(|column| column.2).sum::<usize>();
        let (first, each) = (width(&before), width(&place));
        // The names of the places are over the middle of their columns, or nearly.
        let mut places = " ".repeat(first + (each - 10) / 2) + "out-of-place";
        places += &" ".repeat((first + each + (each - 4) / 2).saturating_sub(places.len()));
        places += "in-place";
        let all = [before, place.clone(), place, after].concat();
        let line = |of: fn(&TableColumn) -> &'static str| {
            let line: String = all.iter().map(|c| format!("{:>1$}", of(c), c.2)).collect();
            line.trim_end().to_owned()
        };
        let lines = [String::new(), places, line(|c| c.0), line(|c| c.1)];
        let comment = |line: String| format!("#{}", line.get(1..).unwrap_or_default());
        lines.map(comment).join("\n")
    }

    /// A line of the table.
    pub(crate) fn row(self, row: &Row) -> String {
        let Row { size, count, data_type, redop, root, planned, out_of_place, in_place, .. } = row;
        let mut line = format!("{size:>12}");
        if self.all {
            line += &format!("{count:>14}");
        }
        if self.kind {
            line += &format!("{data_type:>10}{:>8}", redop.map_or("none", ReduceOp::name));
        }
        if self.all {
            line += &format!("{root:>8}");
        }
        line += &self.cell(Some(out_of_place));
        line += &self.cell(in_place.as_ref());
        if self.plan {
            line += &planned.to_string();
        }
        if self.timestamps {
            line += &format!("  {}", row.measured.strftime("%Y-%m-%d %H:%M:%S"));
        }
        line
    }

    fn cell(self, cell: Option<&Cell>) -> String {
        let Some(Cell { time_us, algbw, busbw, wrong, iterations, .. }) = cell else {
            return self.place().iter().map(|column| format!("{:>1$}", "N/A", column.2)).collect();
        };
        let mut line = format!("  {}", time(*time_us));
        if self.all {
            line += &format!("  {algbw:>6.2}");
        }
        line += &format!("  {busbw:>6.2}");
        line += &match wrong {
            Some(wrong) => format!("  {wrong:>5}"),
            None => format!("  {:>5}", "N/A"),
        };
        if self.iterations {
            let Spread { min, max, p99, jitter, .. } = iterations.unwrap_or_default();
            let times = [min, max, p99].map(|us| format!("  {}", time(us)));
            line += &times.concat();
            line += &format!("  {jitter:>7.2}");
        }
        line
    }
}

/// A size in the largest unit of which it is a whole number, or nearly.
pub(crate) fn sized(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => {
            let number = bytes as f64 / (1u64 << shift) as f64;
            let text = format!("{number:.1}");
            format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
        }
        None => format!("{bytes} B"),
    }
}

/// Seven columns for a time, whatever its size.
pub(crate) fn time(us: f64) -> String {
    let digits = match us {
        t if t >= 10_000.0 => 0,
        t if t >= 100.0 => 1,
        _ => 2,
    };
    format!("{us:>7.digits$}")
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
        let measured: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
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
            measured: measured.to_zoned(jiff::tz::TimeZone::UTC),
        }
    }

    #[test]
    fn rows_have_the_columns_of_nccl_tests() {
        let form = TableForm::new(None, false, false);
        let lines = [
            form.row(&row(8, 12.9, Some(0))),
            form.row(&row(1 << 20, 123.4, None)),
            form.row(&row(64 << 20, 54_321.0, Some(7))),
        ];
        assert_eq!(
            lines,
            [
                "           8             2     float     sum      -1    12.90    0.00    0.00      0    12.90    0.00    0.00      0           Ring  Simple    2",
                "     1048576        262144     float     sum      -1    123.4    8.50   12.75    N/A    123.4    8.50   12.75    N/A           Ring  Simple    2",
                "    67108864      16777216     float     sum      -1    54321    1.24    1.85      7    54321    1.24    1.85      7           Ring  Simple    2",
            ]
        );
        let only_out = Row { in_place: None, redop: None, root: 3, ..row(8, 12.9, Some(0)) };
        let only_out = form.row(&only_out);
        assert_eq!(
            only_out,
            "           8             2     float    none       3    12.90    0.00    0.00      0      N/A     N/A     N/A    N/A           Ring  Simple    2"
        );
        assert_eq!(
            form.heading(),
            "\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong           algo   proto  nch
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
        );
    }

    #[test]
    fn every_heading_ends_where_its_numbers_end() {
        let spread = Spread { min: 1.0, p50: 2.0, p90: 3.0, p99: 44.5, max: 12345.6, jitter: 7.25 };
        let mut one = row(8, 12.9, Some(0));
        one.out_of_place.iterations = Some(spread);
        for (iterations, timestamps) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let widths = (0..300).map(Some).chain([None]);
            let mut forms: Vec<TableForm> =
                widths.map(|width| TableForm::new(width, iterations, timestamps)).collect();
            forms.dedup();
            assert_eq!(forms.len(), 4, "three that are narrower");
            for form in forms {
                let text = form.row(&one);
                assert_eq!(text.len(), form.width(), "{text}");
                let names = form.heading();
                let names = names.lines().nth(2).unwrap();
                assert_eq!(names.len(), text.len(), "{names}\n{text}");
                let mut end = 0;
                for column in [form.before(), form.place(), form.place(), form.after()].concat() {
                    end += column.2;
                    assert!(names[..end].ends_with(column.0), "{} in {names}", column.0);
                    assert!(!text[..end].ends_with(' ') && !text[end..].starts_with(|c| c != ' '));
                }
            }
        }
        // A terminal of 80 columns has room for times and bandwidths.
        assert!(TableForm::new(Some(80), false, false).heading().contains("time   busbw"));
        let stamped = TableForm::new(None, false, true).row(&one);
        assert!(stamped.ends_with("  2026-01-02 03:04:05"), "{stamped}");
    }

    #[test]
    fn sizes_have_a_unit() {
        let all = [0, 8, 1024, 1536, 24_000_000, 1 << 40].map(sized);
        assert_eq!(all, ["0 B", "8 B", "1 KiB", "1.5 KiB", "22.9 MiB", "1 TiB"]);
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
        let rows = [row(8, 1.0, Some(2)), row(8, 1.0, None), alone.clone()];
        assert_eq!(Summary::of(std::slice::from_ref(&alone)).avg_busbw, alone.out_of_place.busbw);
        let summary = Summary::of(&rows);
        assert_eq!(summary.wrong, 4);
        assert!(summary.to_string().starts_with("# Out of bounds values : 4 FAILED\n"));
        assert!(Summary::of(&[]).to_string().contains(": 0 OK\n# Avg bus bandwidth    : 0.000000"));
    }
}
