//! Curves over the size, as SVG whose colours are the page's.

use std::fmt::Write as _;
use std::ops::Range;

use crate::perf::table::sized;

/// Of a chart, in units of its own.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// Of a strip that says what ran.
const STRIP: f64 = 22.0;
/// What a letter takes.
const LETTER: f64 = 6.6;

/// A line with its points, all with what the reader is told of them.
pub(super) struct ChartLine {
    /// `now` or `then`, with `in` where it is in place.
    pub(super) class: &'static str,
    pub(super) points: Vec<(u64, f64)>,
}

/// Consecutive sizes that ran alike.
pub(super) struct Band {
    pub(super) sizes: Range<u64>,
    pub(super) label: String,
}

/// Between two values at each size: its class, and size, low, high.
pub(super) type Shade = (&'static str, Vec<(u64, f64, f64)>);

/// A chart over a logarithmic axis of sizes.
pub(super) struct Chart {
    /// What it shows, for who cannot see it.
    pub(super) title: String,
    /// What is up, with its unit.
    pub(super) y: &'static str,
    pub(super) logarithmic: bool,
    pub(super) curves: Vec<ChartLine>,
    /// Shades.
    pub(super) spreads: Vec<Shade>,
    /// A horizontal line with its label.
    pub(super) level: Option<(f64, String)>,
    /// Strips beneath, each with its name.
    pub(super) strips: Vec<(&'static str, Vec<Band>)>,
}

/// From a value to a place.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64> + Clone, logarithmic: bool) -> Axis {
        let known = values.filter(|v| v.is_finite() && (!logarithmic || *v > 0.0));
        let low = known.clone().fold(f64::INFINITY, f64::min);
        let high = known.fold(0.0, f64::max).max(1e-9);
        match logarithmic {
            true => Axis { low: low.min(high) / 1.25, high: high * 1.25, logarithmic },
            false => Axis { low: 0.0, high: high * 1.08, logarithmic },
        }
    }

    /// The part of the axis that is below a value.
    fn part(&self, value: f64) -> f64 {
        let part = match self.logarithmic {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Round values, from 2 to about 8.
    fn ticks(&self) -> Vec<f64> {
        let nice = |unit: f64| [1.0, 2.0, 5.0].map(|n| n * unit);
        let powers = (-12..16).map(|power| 10f64.powi(power));
        let inside = |values: Vec<f64>| -> Vec<f64> {
            values.into_iter().filter(|v| (self.low..=self.high).contains(v)).collect()
        };
        if !self.logarithmic {
            let step = powers.flat_map(nice).find(|step| self.high / step <= 6.0);
            return step.map_or_else(Vec::new, |step| {
                (0..=6).map(|i| f64::from(i) * step).filter(|v| *v <= self.high).collect()
            });
        }
        let decades = inside(powers.clone().collect());
        if decades.len() > 2 {
            return decades;
        }
        let ticks = inside(powers.flat_map(nice).collect());
        // Nothing round is between two values that are near each other.
        if ticks.is_empty() { vec![(self.low * self.high).sqrt()] } else { ticks }
    }
}

/// A number in few digits.
pub(super) fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// As HTML has it.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Chart {
    /// The drawing; points that are no numbers are left out.
    pub(super) fn svg(mut self) -> String {
        self.curves.iter_mut().for_each(|curve| curve.points.retain(|point| point.1.is_finite()));
        self.spreads
            .iter_mut()
            .for_each(|spread| spread.1.retain(|point| point.1.is_finite() && point.2.is_finite()));
        let sizes = || self.curves.iter().flat_map(|curve| curve.points.iter().map(|p| p.0 as f64));
        let x = Axis::new(sizes(), true);
        let values = self.curves.iter().flat_map(|curve| curve.points.iter().map(|p| p.1));
        let spreads = self.spreads.iter().flat_map(|(_, points)| points.iter().map(|p| p.2));
        let level = self.level.iter().map(|level| level.0);
        let y = Axis::new(values.chain(spreads).chain(level), self.logarithmic);
        let strips = self.strips.len() as f64 * STRIP;
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let at_x = |size: u64| LEFT + x.part(size as f64) * (right - LEFT);
        let at_y = |value: f64| bottom - y.part(value) * (bottom - TOP);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">\n",
            HEIGHT + strips,
            escaped(&self.title)
        );
        let _ = writeln!(
            svg,
            "<text class=\"label\" x=\"4\" y=\"{:.0}\" transform=\"rotate(-90 12 {1:.0})\" text-anchor=\"middle\" dx=\"8\">{2}</text>",
            bottom / 2.0 + TOP,
            bottom / 2.0 + TOP,
            escaped(self.y)
        );
        for tick in y.ticks() {
            let (place, label) = (at_y(tick), short(tick));
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{place:.1}\" y2=\"{place:.1}\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 8.0,
                place + 4.0
            );
        }
        self.sizes(&mut svg, &at_x, bottom);
        if let Some((value, label)) = &self.level {
            let place = at_y(*value);
            let _ = writeln!(
                svg,
                "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{place:.1}\" y2=\"{place:.1}\"/><text class=\"label\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
                LEFT + 8.0,
                place - 6.0,
                escaped(label)
            );
        }
        for (class, points) in &self.spreads {
            let up = points.iter().map(|p| (p.0, p.2));
            let down = points.iter().rev().map(|p| (p.0, p.1));
            let around: Vec<String> = up
                .chain(down)
                .map(|(size, v)| format!("{:.1},{:.1}", at_x(size), at_y(v)))
                .collect();
            let _ = writeln!(
                svg,
                "<g class=\"{class}\"><polygon class=\"spread\" points=\"{}\"/></g>",
                around.join(" ")
            );
        }
        for ChartLine { class, points } in &self.curves {
            let line: Vec<String> =
                points.iter().map(|p| format!("{:.1},{:.1}", at_x(p.0), at_y(p.1))).collect();
            let _ = write!(
                svg,
                "<g class=\"{class}\"><polyline class=\"line\" points=\"{}\"/>",
                line.join(" ")
            );
            for &(size, value) in points {
                let _ = write!(
                    svg,
                    "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}: {} {}</title></circle>",
                    at_x(size),
                    at_y(value),
                    sized(size),
                    short(value),
                    escaped(self.y)
                );
            }
            svg += "</g>\n";
        }
        for (i, (name, bands)) in self.strips.iter().enumerate() {
            let top = HEIGHT + i as f64 * STRIP;
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                top + 13.0,
                escaped(name)
            );
            for (i, band) in bands.iter().enumerate() {
                let (from, to) = (at_x(band.sizes.start), at_x(band.sizes.end));
                let odd = if i % 2 == 1 { " odd" } else { "" };
                let label = escaped(&band.label);
                let _ = write!(
                    svg,
                    "<rect class=\"bar{odd}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"18\"><title>{label}: {} to {}</title></rect>",
                    (to - from).max(1.0),
                    sized(band.sizes.start),
                    sized(band.sizes.end)
                );
                if to - from > band.label.len() as f64 * LETTER {
                    let _ = write!(
                        svg,
                        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                        f64::midpoint(from, to),
                        top + 13.0
                    );
                }
                svg.push('\n');
            }
        }
        svg + "</svg>"
    }

    /// The sizes beneath: all of them, or as many as there is room for.
    fn sizes(&self, svg: &mut String, at_x: &dyn Fn(u64) -> f64, bottom: f64) {
        let mut sizes: Vec<u64> =
            self.curves.iter().flat_map(|c| c.points.iter().map(|p| p.0)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut free = f64::NEG_INFINITY;
        for size in sizes {
            let (place, label) = (at_x(size), sized(size));
            let half = label.len() as f64 * LETTER / 2.0 + 4.0;
            if place - half < free {
                continue;
            }
            free = place + half;
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{bottom:.1}\" y2=\"{:.1}\"/><text x=\"{place:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                bottom + 5.0,
                bottom + 20.0
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(u64, f64)>, logarithmic: bool) -> String {
        let curves = vec![ChartLine { class: "now", points }];
        let band = Band { sizes: 8..1024, label: "Ring <LL> & LL128".to_owned() };
        Chart {
            title: "a \"title\"".to_owned(),
            y: "us",
            logarithmic,
            curves,
            spreads: vec![("now", vec![(8, 1.0, 2.0), (1024, 2.0, 4.0)])],
            level: Some((5.0, "a limit".to_owned())),
            strips: vec![("ran", vec![band])],
        }
        .svg()
    }

    /// All that is drawn lies within the view, and is XML.
    #[test]
    fn nothing_and_what_is_no_number_are_drawn() {
        for points in [
            vec![],
            vec![(0, 0.0)],
            vec![(8, f64::NAN), (16, f64::INFINITY)],
            vec![(8, 1.0), (1 << 40, 1e9)],
        ] {
            for logarithmic in [true, false] {
                let svg = chart(points.clone(), logarithmic);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                let mut reader = quick_xml::Reader::from_str(&svg);
                while reader.read_event().unwrap() != quick_xml::events::Event::Eof {}
                assert!(
                    svg.contains("Ring &lt;LL&gt; &amp; LL128")
                        && svg.contains("a &quot;title&quot;")
                );
            }
        }
    }

    #[test]
    fn ticks_are_few_and_round() {
        for (low, high) in [(1.0, 3.0), (0.5, 1e6), (3.0, 40.0), (1e-3, 1e3), (7.0, 7.0)] {
            for logarithmic in [true, false] {
                let ticks = Axis::new([low, high].into_iter(), logarithmic).ticks();
                assert!((1..=12).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
            }
        }
        assert_eq!(
            Axis::new([0.0, 10.0].into_iter(), false).ticks(),
            [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        );
        assert_eq!(["0", "0.5", "1.25", "12.5", "1234"], [0.0, 0.5, 1.25, 12.5, 1234.0].map(short));
    }
}
