//! The parts of a drawing as SVG: lines, boxes, words.

use std::fmt::Write;

/// Collects elements, and how wide they are together.
#[derive(Default)]
pub(super) struct Canvas {
    elements: String,
    width: f64,
}

impl Canvas {
    /// A line along points, with a text that shows when it is pointed at.
    pub(super) fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64, title: &str) {
        let along: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        points.iter().for_each(|(x, _)| self.reaches(*x));
        // Writing to a string does not fail.
        let _ = writeln!(
            self.elements,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"><title>{}</title></polyline>",
            along.join(" "),
            escaped(title)
        );
    }

    /// A box whose middle is at `x`, with its words one below the other: the first is its name.
    pub(super) fn device(
        &mut self,
        x: f64,
        top: f64,
        size: (f64, f64),
        fill: &str,
        words: &[String],
    ) {
        let (w, h) = size;
        self.rectangle(x - w / 2.0, top, size, fill, "#555");
        for (i, line) in words.iter().enumerate() {
            let y = top + h / 2.0 + 4.0 + (i as f64 - (words.len() - 1) as f64 / 2.0) * 13.0;
            self.middle(x, y, if i == 0 { 12.0 } else { 9.0 }, line);
        }
    }

    pub(super) fn rectangle(&mut self, x: f64, y: f64, size: (f64, f64), fill: &str, edge: &str) {
        let (w, h) = size;
        self.reaches(x + w);
        let _ = writeln!(
            self.elements,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"4\" fill=\"{fill}\" stroke=\"{edge}\"/>"
        );
    }

    /// Puts what is drawn meanwhile into a group with these attributes, which need no escaping.
    pub(super) fn group(&mut self, attributes: &str, draw: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.elements, "<g {attributes}>");
        draw(self);
        self.elements.push_str("</g>\n");
    }

    /// A part of the drawing that a channel passes or not.
    pub(super) fn part(&mut self, name: &str, draw: impl FnOnce(&mut Self)) {
        self.group(&format!("data-part=\"{name}\""), draw);
    }

    /// Words that begin at `x`.
    pub(super) fn text(&mut self, x: f64, y: f64, size: f64, text: &str) {
        // Letters are some 0.52 of their height wide.
        self.reaches(x + 0.52 * size * text.chars().count() as f64);
        self.words(x, y, size, "start", text);
    }

    /// Words about `x`.
    pub(super) fn middle(&mut self, x: f64, y: f64, size: f64, text: &str) {
        self.words(x, y, size, "middle", text);
    }

    /// Words about `x` on a line that passes below them.
    pub(super) fn on_line(&mut self, x: f64, y: f64, size: f64, text: &str) {
        let width = 0.56 * size * text.chars().count() as f64 + 4.0;
        self.rectangle(x - width / 2.0, y - size / 2.0, (width, size), "white", "none");
        self.middle(x, y + 0.36 * size, size, text);
    }

    fn words(&mut self, x: f64, y: f64, size: f64, anchor: &str, text: &str) {
        let _ = writeln!(
            self.elements,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"#222\">{}</text>",
            escaped(text)
        );
    }

    fn reaches(&mut self, x: f64) {
        self.width = self.width.max(x);
    }

    /// The whole, of so much height.
    pub(super) fn finish(self, height: f64) -> String {
        let width = self.width + super::MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             {}</svg>\n",
            self.elements
        )
    }
}

pub(in super::super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
