//! The JSON of a measurement, and its lines as comma-separated values.

use std::collections::BTreeMap;

use serde::Serialize;

use super::limit::CopySpeed;
use super::report::RankInfo;
use super::table::Row;

/// Everything that was asked for and found.
#[derive(Debug, Serialize)]
pub(crate) struct PerfDocument<'a> {
    /// Of this document's form; a change that readers must know of counts it up.
    pub(crate) version: u32,
    /// Whether all rows are there that were asked for.
    pub(crate) complete: bool,
    /// Why not.
    pub(crate) error: Option<&'a str>,
    pub(crate) ferroccl: &'static str,
    /// When it began, as RFC 3339 has it.
    pub(crate) measured: String,
    pub(crate) machine: MeasuredOn,
    /// The variables that were set, of FerroCCL and of NCCL.
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) collective: String,
    pub(crate) runtime: String,
    /// The machine on which times are simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) simulated_on: Option<&'a str>,
    pub(crate) algorithm: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) channels: Option<u32>,
    pub(crate) processes: u32,
    pub(crate) threads: u32,
    pub(crate) ranks_per_thread: u32,
    pub(crate) iters: u32,
    pub(crate) agg_iters: u32,
    pub(crate) warmup_iters: u32,
    pub(crate) check_iters: u32,
    pub(crate) blocking: bool,
    pub(crate) report_cputime: bool,
    pub(crate) ranks: &'a [RankInfo],
    /// What busbw copies in memory come to, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) busbw_of_copies: Option<&'a CopySpeed>,
    pub(crate) results: &'a [Row],
    pub(crate) out_of_bounds_values: u64,
    pub(crate) avg_busbw_gbps: f64,
}

/// Where it was measured: the host of rank 0.
#[derive(Debug, Serialize)]
pub(crate) struct MeasuredOn {
    pub(crate) host: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
}

impl MeasuredOn {
    pub(crate) fn this() -> MeasuredOn {
        MeasuredOn {
            host: crate::machine::host_name(),
            processor: crate::machine::cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Variables of FerroCCL and of NCCL that are set, but for those by which a launcher joins processes.
pub(crate) fn settings() -> BTreeMap<String, String> {
    let joins = [
        "FERROCCL_UNIQUE_ID",
        "FERROCCL_RANK",
        "FERROCCL_WORLD_SIZE",
        "FERROCCL_LOCAL_RANK",
        "NCCL_COMM_ID",
    ];
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let ours = name.starts_with("FERROCCL_") || name.starts_with("NCCL_");
        let shown = ours && !joins.contains(&&*name) && !name.contains("SECRET");
        shown.then(|| (name, value.to_string_lossy().into_owned()))
    });
    variables.collect()
}

/// A line for each row, and one of names before them.
pub(crate) fn csv(rows: &[Row]) -> Result<Vec<u8>, csv::Error> {
    let mut out = csv::Writer::from_writer(Vec::new());
    let place = |place: &str| {
        [
            "time_us",
            "algbw_gbps",
            "busbw_gbps",
            "wrong",
            "min_us",
            "p50_us",
            "p90_us",
            "p99_us",
            "max_us",
            "jitter_percent",
        ]
        .map(|name| format!("{place}_{name}"))
    };
    let kind = ["size_bytes", "count", "type", "redop", "root"].map(str::to_owned);
    let plan = ["algorithm", "protocol", "channels", "measured"].map(str::to_owned);
    out.write_record(
        kind.into_iter().chain(place("out_of_place")).chain(place("in_place")).chain(plan),
    )?;
    for row in rows {
        let mut record =
            vec![row.size.to_string(), row.count.to_string(), row.data_type.to_string()];
        record.push(row.redop.map_or("none", ferroccl::ReduceOp::name).to_owned());
        record.push(row.root.to_string());
        for cell in [Some(row.out_of_place), row.in_place] {
            let figures =
                cell.map(|c| [c.time_us, c.algbw, c.busbw].map(|figure| figure.to_string()));
            record.extend(figures.unwrap_or_default());
            record.push(cell.and_then(|c| c.wrong).map(|n| n.to_string()).unwrap_or_default());
            let spread = cell.and_then(|c| c.iterations);
            let times = spread
                .map(|s| [s.min, s.p50, s.p90, s.p99, s.max, s.jitter].map(|f| f.to_string()));
            record.extend(times.unwrap_or_default());
        }
        record.push(row.planned.algorithm.map(|a| a.to_string()).unwrap_or_default());
        record.push(row.planned.protocol.map(|p| p.to_string()).unwrap_or_default());
        record.push(row.planned.channels.to_string());
        record.push(row.measured.timestamp().to_string());
        out.write_record(record)?;
    }
    out.into_inner().map_err(|e| e.into_error().into())
}
