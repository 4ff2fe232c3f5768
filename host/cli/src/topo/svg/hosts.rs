//! How several hosts are joined: the rings as a chain that closes, and the two trees.

use ferroccl::graph::tree;

use super::super::View;
use super::MARGIN;
use super::canvas::Canvas;

/// Hosts that are drawn at most.
const MOST: u32 = 32;
const BOX: (f64, f64) = (34.0, 20.0);
const LEVEL: f64 = 44.0;

/// Draws rings and trees over the hosts from `y` on; where they end.
pub(super) fn draw(canvas: &mut Canvas, view: &View, y: f64) -> f64 {
    let n = view.hosts;
    if n > MOST {
        let text =
            format!("{n} hosts: rings pass them in their order, trees are double binary trees.");
        canvas.text(MARGIN, y, 13.0, &text);
        return y;
    }
    let step = (900.0 / f64::from(n)).clamp(BOX.0 + 6.0, 90.0);
    let x = |host: u32| MARGIN + BOX.0 / 2.0 + step * f64::from(host);
    canvas.text(MARGIN, y, 13.0, "Rings pass the hosts in their order");
    let top = y + 16.0;
    let (middle, under) = (top + BOX.1 / 2.0, top + BOX.1 + 10.0);
    let title = "each ring's channels";
    let (first, last) = (x(0), x(n - 1));
    let way = [(first, middle), (last, middle), (last, under), (first, under), (first, middle)];
    canvas.line(&way, "#c06a1d", 2.0, title);
    for host in 0..n {
        canvas.device(x(host), top, BOX, "#eeeeee", &[format!("{host}")]);
    }
    let mut y = under + 32.0;
    let Some(graph) = &view.graphs.tree else { return y };
    let half = graph.channels.len();
    for (i, name) in ["first", "second"].into_iter().enumerate() {
        let shape = if i == 0 { tree::first } else { tree::second };
        let channels = format!("channels {} to {}", i * half, (i + 1) * half - 1);
        canvas.text(MARGIN, y, 13.0, &format!("The {name} tree over the hosts, of {channels}"));
        let depth = |host: u32| {
            let up = |host: &u32| shape(n, *host).parent.map(|(parent, _)| parent);
            std::iter::successors(Some(host), up).take(n as usize).count() - 1
        };
        let top = |host: u32| y + 14.0 + LEVEL * depth(host) as f64;
        for host in 0..n {
            if let Some((parent, _)) = shape(n, host).parent {
                let bus = top(parent) + BOX.1 + 10.0 + 6.0 * f64::from(u8::from(host > parent));
                let way = [
                    (x(parent), top(parent) + BOX.1),
                    (x(parent), bus),
                    (x(host), bus),
                    (x(host), top(host)),
                ];
                canvas.line(&way, "#c06a1d", 2.0, &format!("host {host} below host {parent}"));
            }
        }
        for host in 0..n {
            canvas.device(x(host), top(host), BOX, "#eeeeee", &[format!("{host}")]);
        }
        let deepest = (0..n).map(depth).max().unwrap_or(0);
        y += 14.0 + LEVEL * deepest as f64 + BOX.1 + 30.0;
    }
    y - 30.0
}
