//! Lines over logarithmic axes, as SVG.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

/// What is drawn.
pub(crate) struct Plot {
    pub(crate) caption: String,
    /// What the axes are of.
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) curves: Vec<Curve>,
}

/// A line with its points.
pub(crate) struct Curve {
    pub(crate) label: String,
    /// Curves of one number have one colour.
    pub(crate) colour: usize,
    /// How large its points are; 0 for a line alone.
    pub(crate) radius: i32,
    pub(crate) points: Vec<(f64, f64)>,
}

const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(90, 90, 90),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
];

impl Plot {
    /// The plot as SVG, 960 by 600; an error is that of the library that draws.
    pub(crate) fn svg(self) -> Result<String, String> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, (960, 600)).into_drawing_area();
            self.draw(&area).map_err(|e| e.to_string())?;
            area.present().map_err(|e| e.to_string())?;
        }
        Ok(text)
    }

    /// From the least to the most of all points, with some room; what cannot be drawn over a logarithmic axis is at its end.
    fn range(&self, of: fn(&(f64, f64)) -> f64) -> Range<f64> {
        let values = || self.curves.iter().flat_map(|curve| &curve.points).map(of);
        let low = values().fold(f64::INFINITY, f64::min).clamp(1e-4, 1e12);
        let high = values().fold(0.0, f64::max).clamp(low, 1e15);
        low / 1.5..high * 1.5
    }

    fn draw<'a, B: DrawingBackend + 'a>(
        self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>>
    where
        B::ErrorType: 'static,
    {
        let (xs, ys) = (self.range(|p| p.0), self.range(|p| p.1));
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(self.caption, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(xs.log_scale(), ys.log_scale())?;
        chart
            .configure_mesh()
            .x_label_formatter(&|x| x.to_string())
            .y_label_formatter(&|y| y.to_string())
            .x_desc(self.x)
            .y_desc(self.y)
            .draw()?;
        for Curve { label, colour, radius, points } in self.curves {
            let style = COLOURS[colour % COLOURS.len()].stroke_width(2);
            let series = LineSeries::new(points, style).point_size(radius.unsigned_abs());
            chart.draw_series(series)?.label(label).legend(move |(x, y)| {
                let path = PathElement::new(vec![(x, y), (x + 18, y)], style);
                EmptyElement::at((0, 0)) + path + Circle::new((x + 9, y), radius, style)
            });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_and_what_is_no_number_are_drawn() {
        let plot = |points: Vec<(f64, f64)>| Plot {
            caption: "a caption".to_owned(),
            x: "bytes",
            y: "time (us)",
            curves: vec![Curve { label: "a line".to_owned(), colour: 9, radius: 3, points }],
        };
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, f64::NAN), (8.0, 2.0)]] {
            let svg = plot(points).svg().unwrap();
            for word in ["a caption", "bytes", "time (us)", "a line"] {
                assert!(svg.contains(word), "{word}");
            }
        }
    }
}
