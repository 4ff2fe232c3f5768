//! The table, the document and the drawing of `ferroccl bench`.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use ferroccl::device::abi::ProtocolId;
use serde::Serialize;

use super::measure::{Figure, Plan, What};
use super::place::Place;
use super::{BenchArgs, Failure};
use crate::plot::{Curve, Plot};

/// All figures.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: u32,
    place: String,
    /// Whether times are of the emulator's clock.
    simulated: bool,
    rounds: usize,
    blocks: u32,
    pub(super) figures: Vec<Figure>,
}

/// What a protocol costs, as the tuner's model of CPU devices has it (`graph::tuning::cpu`), in microseconds.
#[derive(Debug, PartialEq, Serialize)]
struct ProtocolCosts {
    protocol: &'static str,
    step: f64,
    byte: f64,
}

pub(super) fn name(what: What) -> String {
    format!("{what:?}").to_lowercase()
}

/// A figure's line of the table.
pub(super) fn line(figure: &Figure) -> String {
    let Figure { what, protocol, ranks, bytes, rounds, us } = figure;
    let protocol = protocol.map_or("-", |protocol| protocol.name());
    let bytes = if *bytes == 0 { "-".to_owned() } else { bytes.to_string() };
    let rate = figure.rate().map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"));
    let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut line = format!(
        "  {:<8} {protocol:>8}  {ranks:>5}  {bytes:>10}  {us:>12.3}  {rate:>10}",
        name(*what)
    );
    if rounds.len() > 1 {
        let _ = write!(line, "  {least:>12.3}  {most:>12.3}");
    }
    if *us <= 0.0 {
        line += "  (less than what differs between rounds)";
    }
    line
}

impl Report {
    pub(super) fn new(place: &Place, plan: &Plan) -> Report {
        Report {
            version: 1,
            place: place.name(),
            simulated: place.is_simulated(),
            rounds: plan.effort.rounds,
            blocks: plan.blocks,
            figures: Vec::new(),
        }
    }

    /// Why something is not measured there.
    pub(super) fn why_not(place: &Place, what: What) -> Option<&'static str> {
        match (place, what) {
            (Place::Emulator(..) | Place::Gpu, What::Post) => {
                Some("not measured: a proxy's time is the host's; --runtime cpu")
            }
            (Place::Emulator(..), What::Hop | What::Step) => ferroccl::ptx::unavailable(),
            (Place::Emulator(..) | Place::Gpu, _)
                if !matches!(what, What::Hop | What::Step) && super::PTX.is_empty() =>
            {
                Some("not measured: this build has no PTX of it (docs/building.md)")
            }
            _ => None,
        }
    }

    /// What is above the table.
    pub(super) fn head(&self) -> String {
        let Report { place, rounds, blocks, .. } = self;
        let of = if *rounds > 1 { format!(", medians of {rounds} rounds") } else { String::new() };
        let mut head = format!(
            "# {place}{of}; kernels of {blocks} {}\n# {:<8} {:>8}  {:>5}  {:>10}  {:>12}  {:>10}",
            if *blocks == 1 { "block" } else { "blocks" },
            "what",
            "protocol",
            "ranks",
            "bytes",
            "us",
            "GB/s"
        );
        if *rounds > 1 {
            let _ = write!(head, "  {:>12}  {:>12}", "least (us)", "most (us)");
        }
        head + "\n"
    }

    /// What the tuner's model of CPU devices has of each protocol, from hops and steps: a step of a rank, and a byte of data.
    fn costs(&self) -> Vec<ProtocolCosts> {
        let of = |what: What, protocol: ProtocolId| {
            let is = |f: &&Figure| f.what == what && f.protocol == Some(protocol) && f.us > 0.0;
            self.figures.iter().find(is)
        };
        let protocols =
            self.figures.iter().filter(|f| f.what == What::Hop).filter_map(|f| f.protocol);
        let costs = protocols.filter_map(|protocol| {
            let (hop, step) = (of(What::Hop, protocol)?, of(What::Step, protocol)?);
            // Of the hops of 4 ranks and 2 the difference is 20 steps of ranks, which is 4 hops around the ring.
            let a_step = hop.us * 4.0 / 20.0;
            // A sender's step, and a receiver's.
            let byte = (step.us - 2.0 * a_step).max(0.0) / step.bytes as f64;
            Some(ProtocolCosts { protocol: protocol.name(), step: a_step, byte })
        });
        costs.collect()
    }

    /// The costs as lines; nothing where they are not those of the CPU.
    pub(super) fn tuner(&self) -> String {
        if self.simulated || !self.place.starts_with("[cpu]") {
            return String::new();
        }
        let costs = self.costs();
        let mut text = String::new();
        if !costs.is_empty() {
            text += "#\n# Of the tuner's model of CPU devices (graph::tuning::cpu, COSTS), in microseconds:\n";
        }
        for ProtocolCosts { protocol, step, byte } in costs {
            let _ = writeln!(text, "#   {protocol}: step {step:.4}, byte {byte:.3e}");
        }
        text
    }

    /// Writes the files that were asked for.
    pub(super) fn write(&self, args: &BenchArgs, out: &mut dyn Write) -> Result<(), Failure> {
        let to_file = |file: &Path, text: &str| {
            let written = crate::output_file::write(file, text.as_bytes());
            written.map_err(|error| Failure::File { path: file.to_owned(), error })
        };
        if let Some(file) = &args.json {
            #[derive(Serialize)]
            struct Document<'r> {
                #[serde(flatten)]
                report: &'r Report,
                tuner: Vec<ProtocolCosts>,
            }
            let tuner = if self.place.starts_with("[cpu]") { self.costs() } else { Vec::new() };
            let text = serde_json::to_string_pretty(&Document { report: self, tuner });
            let text = text.unwrap_or_default() + "\n";
            match file.as_os_str() == "-" {
                true => out.write_all(text.as_bytes())?,
                false => to_file(file, &text)?,
            }
        }
        if let Some(file) = &args.svg {
            to_file(file, &self.svg()?)?;
        }
        if let Some(file) = &args.write_model {
            let text = super::place::model(&args.model)?;
            to_file(file, &text)?;
        }
        Ok(())
    }

    /// Times by size: a line for each thing that has sizes, a dot for the rest.
    fn svg(&self) -> Result<String, Failure> {
        let mut curves: Vec<Curve> = Vec::new();
        for figure in self.figures.iter().filter(|figure| figure.us > 0.0) {
            let label = match figure.protocol {
                Some(protocol) => format!("{} {}", name(figure.what), protocol.name()),
                None => name(figure.what),
            };
            // What has no data moves a word.
            let point = (figure.bytes.max(8) as f64, figure.us);
            match curves.iter_mut().find(|curve| curve.label == label) {
                Some(curve) => curve.points.push(point),
                None => {
                    let colour = curves.len();
                    curves.push(Curve { label, colour, radius: 3, points: vec![point] });
                }
            }
        }
        let y = if self.simulated { "SIMULATED time (us)" } else { "time (us)" };
        let plot = Plot { caption: self.place.clone(), x: "bytes", y, curves };
        plot.svg().map_err(Failure::Plot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(what: What, us: f64, bytes: u64) -> Figure {
        let protocol = matches!(what, What::Hop | What::Step).then_some(ProtocolId::Ll);
        Figure { what, protocol, ranks: 2, bytes, rounds: vec![us; 3], us }
    }

    fn report(figures: Vec<Figure>) -> Report {
        let place = "[cpu] a machine".to_owned();
        Report { version: 1, place, simulated: false, rounds: 3, blocks: 1, figures }
    }

    #[test]
    fn the_tuners_figures_come_from_hops_and_steps() {
        let report = report(vec![figure(What::Hop, 0.5, 8), figure(What::Step, 2.2, 1000)]);
        let costs = report.costs();
        assert_eq!(costs.len(), 1);
        assert!(
            (costs[0].step - 0.1).abs() < 1e-9 && (costs[0].byte - 0.002).abs() < 1e-9,
            "{costs:?}"
        );
        assert!(report.tuner().contains("LL: step 0.1000, byte 2.000e-3"), "{}", report.tuner());
    }

    #[test]
    fn what_is_less_than_nothing_is_no_figure() {
        let report = report(vec![figure(What::Hop, -0.5, 8), figure(What::Step, 2.2, 1000)]);
        assert!(report.costs().is_empty());
        assert!(line(&report.figures[0]).ends_with("(less than what differs between rounds)"));
    }

    #[test]
    fn a_line_for_each_thing_is_drawn() {
        let figures = vec![
            figure(What::Barrier, 1.0, 0),
            figure(What::Put, 2.0, 1024),
            figure(What::Put, 4.0, 4096),
        ];
        let svg = report(figures).svg().unwrap();
        for label in ["barrier", "put", "bytes", "time (us)", "[cpu] a machine"] {
            assert!(svg.contains(label), "{label}");
        }
        // Nothing is no reason to fail.
        assert!(report(Vec::new()).svg().unwrap().contains("</svg>"));
    }
}
