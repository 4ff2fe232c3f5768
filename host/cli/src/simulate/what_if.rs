//! What faults cost: each beside the same call without it.

use std::fmt;

use ferroccl_simulator::{Call, Cluster, Detail, Fault, Outcome, RecoveryPart, SimulateError};
use serde_json::{Value, json};

use super::results::{Conditions, details, time};
use super::{Failure, Setting};
use crate::perf::size::Bytes;

/// A call with and without a fault.
struct Row {
    fault: Fault,
    before: Outcome,
    /// With the fault, or why that is not simulated.
    after: Result<Outcome, String>,
}

impl Row {
    /// How closely the calls were simulated: one with, and one without the fault.
    fn detail(&self) -> String {
        let before = details(&self.before);
        match self.after.as_ref().map(details) {
            Ok(after) if after != before => format!("without {before}, with {after}"),
            _ => before,
        }
    }
}

/// The cost of each fault.
pub(super) struct WhatIf {
    title: String,
    conditions: Conditions,
    rows: Vec<Row>,
    recoveries: Vec<HostLoss>,
}

/// What it takes after the death of a host until those that are left have a communicator.
struct HostLoss {
    fault: Fault,
    ranks: u32,
    parts: Vec<RecoveryPart>,
}

impl HostLoss {
    fn us(&self) -> f64 {
        self.parts.iter().map(|part| part.us).sum()
    }
}

impl WhatIf {
    /// `standing` is broken with and without the faults.
    pub(super) fn new(
        setting: &Setting,
        standing: &[Fault],
        faults: &[Fault],
    ) -> Result<WhatIf, Failure> {
        let run = |cluster: &Cluster, call: &Call| {
            setting.progress.set_message(Bytes(call.bytes).to_string());
            let outcome = cluster.simulate(call, &setting.options);
            setting.progress.inc(1);
            outcome
        };
        let healthy = setting.cluster(standing)?;
        let mut before = Vec::new();
        for call in &setting.calls {
            match run(&healthy, call) {
                Ok(outcome) => before.push((*call, outcome)),
                Err(SimulateError::CannotBeHad { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if before.is_empty() {
            return Err(Failure::Nothing);
        }
        let (mut rows, mut recoveries) = (Vec::new(), Vec::new());
        for fault in faults {
            let mut all = standing.to_vec();
            all.push(*fault);
            let cluster = setting.cluster(&all)?;
            if let Fault::DeadNode { .. } = fault {
                let (fault, ranks) = (*fault, cluster.ranks());
                recoveries.push(HostLoss { fault, ranks, parts: cluster.recovery_parts()? });
            }
            for (call, before) in &before {
                let after = run(&cluster, call).map_err(|error| error.to_string());
                rows.push(Row { fault: *fault, before: before.clone(), after });
            }
        }
        let (hosts, ranks) = (healthy.hosts(), healthy.local_ranks());
        let [file, fabric] = &setting.names;
        let title = format!("what faults cost on {hosts} hosts of {ranks} ranks, {file}, {fabric}");
        let conditions = Conditions::new(setting, standing);
        Ok(WhatIf { title, conditions, rows, recoveries })
    }

    pub(super) fn json(&self) -> String {
        let row = |row: &Row| {
            let (time, error) = match &row.after {
                Ok(outcome) => (Some(outcome.time_us), None),
                Err(error) => (None, Some(error)),
            };
            json!({
                "fault": row.fault.to_string(),
                "bytes": row.before.call.bytes,
                "algorithm": row.before.choice.algorithm.name(),
                "protocol": row.before.choice.protocol.name(),
                "without_us": row.before.time_us,
                "with_us": time,
                "not_simulated": error,
                "detail": row.detail(),
            })
        };
        let rows = self.rows.iter().map(row).collect::<Vec<Value>>();
        let recovery = |recovery: &HostLoss| {
            json!({
                "fault": recovery.fault.to_string(),
                "ranks_left": recovery.ranks,
                "parts": recovery.parts,
                "until_the_call_us": recovery.us(),
            })
        };
        let recoveries = self.recoveries.iter().map(recovery).collect::<Vec<Value>>();
        let mut json = json!({
            "version": 1,
            "simulated": true,
            "what": self.title,
            "rows": rows,
            "recoveries": recoveries,
        });
        self.conditions.add_to(&mut json);
        serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "# SIMULATED: {}\n{}", self.title, self.conditions)?;
        writeln!(
            f,
            "#\n#    size  algorithm      without (us)   with (us)       more  factor  fault"
        )?;
        for row in &self.rows {
            let Row { fault, before, after } = row;
            // What is coarse says so.
            let detail = match row.detail() {
                detail if detail == Detail::Steps.to_string() => String::new(),
                detail => format!(" ({detail})"),
            };
            let what = format!(
                "{:>9}  {:<14} {:>12}",
                Bytes(before.call.bytes).to_string(),
                before.choice.algorithm.name(),
                time(before.time_us)
            );
            match after {
                Ok(after) => writeln!(
                    f,
                    "{what}  {:>10}  {:>9}  {:>6.2}  {fault}{detail}",
                    time(after.time_us),
                    time(after.time_us - before.time_us),
                    after.time_us / before.time_us.max(f64::MIN_POSITIVE),
                )?,
                Err(why) => {
                    writeln!(f, "{what}  {:>10}  {:>9}  {:>6}  {fault}: {why}", "-", "-", "-")?;
                }
            }
        }
        self.recoveries.iter().try_for_each(|recovery| recovery.show(f, &self.rows))
    }
}

impl HostLoss {
    /// The parts of the time, and with each call their sum.
    fn show(&self, f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
        let HostLoss { fault, ranks, parts } = self;
        writeln!(
            f,
            "#\n# {fault}: until the {ranks} ranks that are left have called again, in us, simulated"
        )?;
        for RecoveryPart { name, us, how } in parts {
            writeln!(f, "#   {name:<11} {:>12}  {how}", time(*us))?;
        }
        for row in rows.iter().filter(|row| row.fault == *fault) {
            let Ok(after) = &row.after else { continue };
            let (bytes, algorithm) = (Bytes(after.call.bytes), after.choice.algorithm);
            let sum = time(self.us() + after.time_us);
            writeln!(
                f,
                "#   {:<11} {:>12}  {bytes} by {algorithm}: {sum} in all",
                "call",
                time(after.time_us)
            )?;
        }
        Ok(())
    }
}
