//! Results that were written down: what `--json` writes, and the output of nccl-tests, as text and as JSON.
//!
//! A table is read by the names in its heading, so that one with other columns (nccl-tests' `-I` and `-S`, a narrow terminal's) is
//! read as well. What a file does not say is left out.

use std::path::Path;

use serde_json::Value;

/// A measurement: what was measured, where, and what came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Measurement {
    /// The operation, where the file says.
    pub(crate) operation: Option<String>,
    /// What the reader should know of it, each with its name.
    pub(crate) facts: Vec<(String, String)>,
    /// The machine on which times are simulated.
    pub(crate) simulated_on: Option<String>,
    /// What busbw copies in memory come to, in 10^9 bytes per second, and how that was found.
    pub(crate) limit: Option<(f64, String)>,
    /// Line by line.
    pub(crate) rows: Vec<MeasuredRow>,
}

/// A line of results.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MeasuredRow {
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) data_type: String,
    pub(crate) redop: String,
    pub(crate) root: String,
    /// Algorithm, protocol and channels, where they are known.
    pub(crate) algorithm: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) channels: Option<u64>,
    /// Out of place, and in place.
    pub(crate) places: [Option<MeasuredCell>; 2],
}

/// The figures of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MeasuredCell {
    /// Microseconds of a call.
    pub(crate) time: f64,
    /// In 10^9 bytes per second.
    pub(crate) algbw: Option<f64>,
    pub(crate) busbw: f64,
    pub(crate) wrong: Option<u64>,
    /// The median, the 90th and the 99th percentile, and the longest of single iterations, in microseconds.
    pub(crate) percentiles: Option<[f64; 4]>,
}

/// Why a file has no results.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("line {line}: {reason}")]
    Line { line: usize, reason: String },
    #[error("{0}")]
    Json(String),
    #[error("no results of ferroccl perf or nccl-tests are in it")]
    Nothing,
}

impl Measurement {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Measurement, ReadError> {
        Measurement::parse(&std::fs::read_to_string(path)?)
    }

    pub(crate) fn parse(text: &str) -> Result<Measurement, ReadError> {
        let recorded = if text.trim_start().starts_with('{') {
            let value = serde_json::from_str(text).map_err(|e| ReadError::Json(e.to_string()))?;
            Measurement::from_json(&value)?
        } else {
            Measurement::from_table(text)?
        };
        if recorded.rows.is_empty() { Err(ReadError::Nothing) } else { Ok(recorded) }
    }

    /// From a document of `--json`, or of nccl-tests' `-J`.
    pub(crate) fn from_json(document: &Value) -> Result<Measurement, ReadError> {
        let rows = document.get("results").and_then(Value::as_array).ok_or(ReadError::Nothing)?;
        let text = |name: &str| document.get(name).and_then(Value::as_str).map(str::to_owned);
        let limit = document.get("busbw_of_copies").and_then(|limit| {
            Some((limit.get("gbps")?.as_f64()?, limit.get("source")?.as_str()?.to_owned()))
        });
        Ok(Measurement {
            operation: text("collective"),
            facts: facts(document),
            simulated_on: text("simulated_on"),
            limit,
            rows: rows.iter().map(row_of_json).collect::<Result<_, _>>()?,
        })
    }

    /// From a table.
    fn from_table(text: &str) -> Result<Measurement, ReadError> {
        let mut recorded = Measurement::default();
        let mut names: Vec<&str> = Vec::new();
        for (line, text) in text.lines().enumerate() {
            if let Some(comment) = text.strip_prefix('#') {
                let words: Vec<&str> = comment.split_whitespace().collect();
                let has = |name: &str| words.contains(&name);
                if has("size") && has("busbw") && (has("time") || has("cputime")) {
                    names = words;
                } else {
                    recorded.note(comment.trim());
                }
            } else if !names.is_empty()
                && text.trim_start().starts_with(|c: char| c.is_ascii_digit())
            {
                let words: Vec<&str> = text.split_whitespace().collect();
                let row = row_of_table(&names, &words);
                recorded
                    .rows
                    .push(row.map_err(|reason| ReadError::Line { line: line + 1, reason })?);
            }
        }
        Ok(recorded)
    }

    /// Takes what a comment of a table says.
    fn note(&mut self, comment: &str) {
        let mut fact = |name: &str, text: &str| {
            self.facts.push((name.to_owned(), text.trim().to_owned()));
        };
        if let Some(rest) = comment.strip_prefix("Collective test starting:") {
            self.operation = Some(rest.trim().trim_end_matches("_perf").to_owned());
        } else if let Some(rest) = comment.strip_prefix("ferroccl ") {
            fact("settings", rest);
            self.operation = rest.split_whitespace().nth(1).map(str::to_owned);
        } else if comment.starts_with("nThread") {
            fact("measured", comment);
        } else if let Some((_, device)) = comment.split_once(" device ") {
            if comment.starts_with("Rank") {
                let name = device.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
                let rank = comment.split_whitespace().nth(1).unwrap_or_default();
                fact(&format!("rank {rank}"), name);
            }
        } else if let Some(rest) = comment.strip_prefix("Times are SIMULATED") {
            self.simulated_on = Some(rest.trim_start_matches(':').trim().to_owned());
        }
    }

    /// The line to compare one with: of the same size and type, and if there are several, of the same reduction and root.
    pub(crate) fn like(&self, row: &MeasuredRow) -> Option<&MeasuredRow> {
        let same =
            |other: &&MeasuredRow| (other.size, &other.data_type) == (row.size, &row.data_type);
        let alike = |other: &&MeasuredRow| (&other.redop, &other.root) == (&row.redop, &row.root);
        let rows = || self.rows.iter().filter(same);
        rows().find(alike).or_else(|| {
            // nccl-tests names a reduction also where nothing is reduced.
            let mut others = rows().filter(|other| other.redop == "none" || row.redop == "none");
            others.next().filter(|_| others.next().is_none())
        })
    }
}

/// What a document says of a measurement.
fn facts(document: &Value) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: Option<&Value>| match value {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => facts.push((name.to_owned(), text.clone())),
        Some(other) => facts.push((name.to_owned(), other.to_string())),
    };
    let of = |name: &str| document.get(name);
    let machine = |name: &str| document.get("machine").and_then(|machine| machine.get(name));
    fact("measured", of("measured").or(of("start_time")));
    fact("host", machine("host"));
    fact("processor", machine("processor"));
    fact("cores", machine("cores"));
    fact("FerroCCL", of("ferroccl"));
    fact("NCCL", of("nccl_version"));
    fact("runtime", of("runtime"));
    fact("algorithm asked for", of("algorithm"));
    fact("protocol asked for", of("protocol"));
    fact("channels asked for", of("channels"));
    for name in [
        "processes",
        "threads",
        "ranks_per_thread",
        "iters",
        "agg_iters",
        "warmup_iters",
        "check_iters",
    ] {
        fact(&name.replace('_', " "), of(name));
    }
    if let Some(Value::Object(settings)) = of("settings") {
        settings.iter().for_each(|(name, value)| fact(name, Some(value)));
    }
    let config = of("config");
    for name in ["nthreads", "ngpus", "iterations", "warmup_iters", "aggregated_iterations"] {
        fact(&name.replace('_', " "), config.and_then(|config| config.get(name)));
    }
    for rank in of("ranks").and_then(Value::as_array).into_iter().flatten() {
        let name = rank.get("rank").map_or_else(String::new, |rank| format!("rank {rank}"));
        fact(&name, rank.get("name"));
    }
    facts
}

fn row_of_json(row: &Value) -> Result<MeasuredRow, ReadError> {
    let first = |names: [&str; 2]| names.into_iter().find_map(|name| row.get(name));
    let text = |name: &str| match row.get(name) {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    let known = |name: &str| Some(text(name)).filter(|text| !text.is_empty());
    let size = first(["size_bytes", "size"]).and_then(Value::as_u64);
    let places = ["out_of_place", "in_place"].map(|place| cell_of_json(row.get(place)?));
    Ok(MeasuredRow {
        size: size.ok_or_else(|| ReadError::Json("a result has no size".to_owned()))?,
        data_type: text("type"),
        redop: text("redop"),
        root: text("root"),
        algorithm: known("algorithm"),
        protocol: known("protocol"),
        channels: row.get("channels").and_then(Value::as_u64),
        places,
    })
}

fn cell_of_json(cell: &Value) -> Option<MeasuredCell> {
    let number = |names: &[&str]| names.iter().find_map(|name| cell.get(*name)?.as_f64());
    let spread = ["iterations", "per_iter_stats"].iter().find_map(|name| cell.get(*name));
    let percentiles = spread.and_then(|spread| {
        let of = |name: &str| spread.get(name).and_then(Value::as_f64);
        let p90 = of("p90_us").or(of("p95_us"))?;
        Some([of("p50_us")?, p90, of("p99_us")?, of("max_us")?])
    });
    Some(MeasuredCell {
        time: number(&["time_us", "time", "cpu_time"])?,
        algbw: number(&["algbw_gbps", "alg_bw"]),
        busbw: number(&["busbw_gbps", "bus_bw"])?,
        wrong: number(&["wrong", "nwrong"]).map(|n| n as u64),
        percentiles,
    })
}

/// A line by the names of its columns, which come twice where they are of a place.
fn row_of_table(names: &[&str], words: &[&str]) -> Result<MeasuredRow, String> {
    // A time of day, which is last, is two words.
    let expected = names.len() + usize::from(names.last() == Some(&"timestamp"));
    if words.len() != expected {
        return Err(format!("{} columns, where the heading has {expected}", words.len()));
    }
    let nth = |name: &str, n: usize| {
        let at = names.iter().enumerate().filter(|(_, found)| **found == name).nth(n)?.0;
        words.get(at).copied()
    };
    let text = |name: &str| nth(name, 0).unwrap_or_default().to_owned();
    let known = |name: &str| nth(name, 0).filter(|text| *text != "p2p" && *text != "mixed");
    let cell = |place: usize| -> Result<Option<MeasuredCell>, String> {
        let number = |name: &str| match nth(name, place) {
            None | Some("N/A") => Ok(None),
            Some(word) => match word.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Some(number)),
                _ => Err(format!("{name} {word:?} is no number")),
            },
        };
        let time = number("time")?.or(number("cputime")?);
        let (Some(time), Some(busbw)) = (time, number("busbw")?) else { return Ok(None) };
        let wrong = number("#wrong")?.map(|n| n as u64);
        Ok(Some(MeasuredCell { time, algbw: number("algbw")?, busbw, wrong, percentiles: None }))
    };
    let size = nth("size", 0).and_then(|word| word.parse().ok());
    Ok(MeasuredRow {
        size: size.ok_or("the size is no number")?,
        data_type: text("type"),
        redop: text("redop"),
        root: text("root"),
        algorithm: known("algo").map(str::to_owned),
        protocol: known("proto").map(str::to_owned),
        channels: nth("nch", 0).and_then(|word| word.parse().ok()),
        places: [cell(0)?, cell(1)?],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As nccl-tests 2.18 prints it.
    const NCCL_TESTS: &str = "\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid    712 on     host-1 device  0 [0000:19:00] NVIDIA H200
#  Rank  1 Group  0 Pid    712 on     host-1 device  1 [0000:3b:00] NVIDIA H200
#
#                                                              out-of-place                       in-place          \x20
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong\x20
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)        \x20
           8             2     float     sum      -1    15.40    0.00    0.00       0    14.90    0.00    0.00       0
     1048576        262144     float     sum      -1    31.20   33.61   33.61       0    31.00   33.83   33.83     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 16.86
#
";

    #[test]
    fn the_text_of_nccl_tests_is_read() {
        let recorded = Measurement::parse(NCCL_TESTS).unwrap();
        assert_eq!(recorded.operation.as_deref(), Some("all_reduce"));
        let devices = recorded.facts.iter().filter(|fact| fact.0.starts_with("rank"));
        let devices: Vec<_> = devices.map(|fact| fact.1.as_str()).collect();
        assert_eq!(devices, ["[0000:19:00] NVIDIA H200", "[0000:3b:00] NVIDIA H200"]);
        let [small, large] = recorded.rows.as_slice() else { panic!("{recorded:?}") };
        assert_eq!(
            (small.size, &*small.data_type, &*small.redop, &*small.root),
            (8, "float", "sum", "-1")
        );
        let [out, within] = large.places.map(Option::unwrap);
        assert_eq!(
            (out.time, out.algbw, out.busbw, out.wrong),
            (31.2, Some(33.61), 33.61, Some(0))
        );
        assert_eq!((within.time, within.wrong), (31.0, None));
        assert_eq!((&large.algorithm, large.channels), (&None, None));
    }

    #[test]
    fn the_json_of_nccl_tests_is_read() {
        let place = json!({ "time": 15.4, "alg_bw": 0.5, "bus_bw": 0.75, "nwrong": 0.0,
            "per_iter_stats": { "p50_us": 1.0, "p95_us": 2.0, "p99_us": 3.0, "max_us": 4.0 } });
        let text = json!({ "version": 1, "nccl_version": 23007, "config": { "ngpus": 2 },
            "results": [{ "size": 8, "count": 2, "type": "float", "redop": "sum", "root": "    -1",
                "out_of_place": place, "in_place": null }] });
        let recorded = Measurement::parse(&text.to_string()).unwrap();
        let row = &recorded.rows[0];
        let cell = row.places[0].unwrap();
        assert_eq!((row.size, &*row.root, cell.time, cell.busbw), (8, "-1", 15.4, 0.75));
        assert_eq!((cell.wrong, row.places[1]), (Some(0), None));
        assert_eq!(cell.percentiles, Some([1.0, 2.0, 3.0, 4.0]));
        assert!(recorded.facts.contains(&("ngpus".to_owned(), "2".to_owned())));
    }

    #[test]
    fn what_has_no_results_is_an_error_with_its_line() {
        let error = |text: &str| Measurement::parse(text).unwrap_err().to_string();
        assert!(error("").contains("no results"));
        assert!(error("# size time busbw\n").contains("no results"));
        assert!(error("{}").contains("no results"));
        assert!(error("{\"results\": [{}]}").contains("no size"));
        assert!(error("{\"results\": ").contains("EOF"));
        let broken = NCCL_TESTS.replace("31.20", "31.x0");
        assert_eq!(error(&broken), "line 12: time \"31.x0\" is no number");
        let short = NCCL_TESTS.replace("   31.20   33.61   33.61       0", "");
        assert_eq!(error(&short), "line 12: 9 columns, where the heading has 13");
    }

    #[test]
    fn lines_are_compared_with_those_of_their_kind() {
        let row = |size, data_type: &str, redop: &str| MeasuredRow {
            size,
            data_type: data_type.to_owned(),
            redop: redop.to_owned(),
            ..MeasuredRow::default()
        };
        let rows = vec![row(8, "float", "sum"), row(8, "float", "max"), row(16, "half", "sum")];
        let recorded = Measurement { rows, ..Measurement::default() };
        let like =
            |size, t: &str, op: &str| recorded.like(&row(size, t, op)).map(|row| row.redop.clone());
        assert_eq!(like(8, "float", "max").as_deref(), Some("max"));
        assert_eq!(like(8, "half", "sum"), None);
        assert_eq!(like(8, "float", "min"), None);
        // Of two it is not clear which; of one it is.
        assert_eq!(like(8, "float", "none"), None);
        assert_eq!(like(16, "half", "none").as_deref(), Some("sum"));
    }
}
