//! The drawing as a page: it moves and zooms, and a block that is clicked is shown in full.

use std::fmt::Write as _;

use super::{Drawing, escaped, svg};

const STYLE: &str = "\
html,body{margin:0;height:100%;font:13px system-ui,sans-serif;color:#1c2733;background:#f6f8fa}\
body{display:flex}#view{flex:1;overflow:hidden;cursor:grab}#view.drag{cursor:grabbing}\
#view svg{transform-origin:0 0}\
aside{width:30em;overflow:auto;border-left:1px solid #cfd6dd;background:#fff;padding:0 1em}\
aside pre{font:11px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre-wrap}\
h1{font-size:15px;overflow-wrap:anywhere}.hint{color:#5b6b7b}\
.block{cursor:pointer}.block.chosen rect{stroke:#1f5fa8;stroke-width:3}\
.dim .edge{opacity:.15}.dim .edge.lit{opacity:1;stroke-width:2.4}";

const SCRIPT: &str = r#"
const view = document.getElementById('view'), svg = view.querySelector('svg');
const text = document.getElementById('text'), title = document.getElementById('title');
let x = 0, y = 0, k = 1, from = null, moved = false;
const put = () => { svg.style.transform = `translate(${x}px,${y}px) scale(${k})`; };
const width = svg.viewBox.baseVal.width;
if (width < view.clientWidth) x = (view.clientWidth - width) / 2;
else { const b = document.getElementById('B0').getBBox(); x = view.clientWidth / 2 - b.x - b.width / 2; }
put();
view.addEventListener('wheel', e => {
  e.preventDefault();
  const box = view.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top;
  const next = Math.min(4, Math.max(0.02, k * Math.exp(-e.deltaY * 0.0015)));
  x = px - (px - x) * next / k; y = py - (py - y) * next / k; k = next; put();
}, { passive: false });
view.addEventListener('pointerdown', e => { from = [e.clientX - x, e.clientY - y]; moved = false; view.classList.add('drag'); });
window.addEventListener('pointermove', e => { if (from) { x = e.clientX - from[0]; y = e.clientY - from[1]; moved = true; put(); } });
window.addEventListener('pointerup', () => { from = null; view.classList.remove('drag'); });
const light = id => {
  svg.classList.toggle('dim', !!id);
  for (const e of svg.querySelectorAll('.edge'))
    e.classList.toggle('lit', e.dataset.from === id || e.dataset.to === id);
};
for (const block of svg.querySelectorAll('.block')) {
  block.addEventListener('pointerenter', () => light(block.id));
  block.addEventListener('pointerleave', () => light(null));
  block.addEventListener('click', () => {
    if (moved) return;
    for (const other of svg.querySelectorAll('.chosen')) other.classList.remove('chosen');
    block.classList.add('chosen');
    text.textContent = document.getElementById('code-' + block.id).content.textContent;
    title.textContent = block.id;
  });
}
"#;

/// Makes the page; it needs no other file.
#[must_use]
pub fn html(drawing: &Drawing<'_, '_>) -> String {
    let name = escaped(drawing.function.name.text);
    let cfg = drawing.cfg;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\n\
         <style>{STYLE}</style></head>\n<body><div id=\"view\">\n{}</div>\n<aside><h1>{name}</h1>\n\
         <p>{} instructions, {} blocks, {} loops</p>\n\
         <p class=\"hint\">Drag to move, wheel to zoom, click a block. Edges: green taken, grey falls through, violet \
         case, orange back. Loops stand on yellow.</p>\n<h2 id=\"title\"></h2><pre id=\"text\"></pre></aside>\n",
        svg(drawing),
        cfg.code.len(),
        cfg.blocks.len(),
        cfg.loops().len()
    );
    for (id, card) in cfg.ids().zip(&drawing.cards) {
        let code = [&card.title, &card.place, &card.figures].into_iter().chain(&card.code);
        let code: Vec<&str> = code.map(String::as_str).collect();
        let _ = writeln!(
            out,
            "<template id=\"code-B{}\">{}</template>",
            id.0,
            escaped(&code.join("\n"))
        );
    }
    let _ = writeln!(out, "<script>{SCRIPT}</script></body></html>");
    out
}
