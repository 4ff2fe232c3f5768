//! The drawing as a page in which a channel can be picked: what it passes stays, all else fades.

use super::View;
use super::svg;

const STYLE: &str = "\
body { font: 14px sans-serif; margin: 16px; color: #222; background: #fff }
label { display: inline-block; margin-bottom: 8px }
select { font: inherit; margin-left: 6px; max-width: 100% }
.drawing { overflow-x: auto }
[data-part], [data-channel] { transition: opacity 0.15s }
[data-channel] { cursor: pointer }
.faded { opacity: 0.13 }";

/// Fades the parts of the drawing that the picked channel does not pass. A click on a channel picks it, and a second one all.
const SCRIPT: &str = "\
const pick = document.querySelector('select');
const channels = [...document.querySelectorAll('[data-channel]')];
const parts = [...document.querySelectorAll('[data-part]')];
function show() {
  const picked = channels.find((channel) => channel.dataset.channel === pick.value);
  const passed = picked && new Set(picked.dataset.passes.split(' '));
  for (const part of parts) part.classList.toggle('faded', !!passed && !passed.has(part.dataset.part));
  for (const channel of channels) channel.classList.toggle('faded', !!picked && channel !== picked);
}
pick.addEventListener('change', show);
for (const channel of channels) {
  channel.addEventListener('click', () => {
    pick.value = pick.value === channel.dataset.channel ? '' : channel.dataset.channel;
    show();
  });
}
show();";

/// The page; it needs nothing but itself.
pub(super) fn page(view: &View) -> String {
    let options: String = svg::channels::named(view)
        .into_iter()
        .map(|(name, title)| format!("<option value=\"{name}\">{title}</option>\n"))
        .collect();
    let name = svg::escaped(&view.name);
    let drawing = svg::draw(view);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{name}</title>\n\
         <style>\n{STYLE}\n</style>\n</head>\n<body>\n\
         <label>Channel<select>\n<option value=\"\">all</option>\n{options}</select></label>\n\
         <div class=\"drawing\">\n{drawing}</div>\n<script>\n{SCRIPT}\n</script>\n</body>\n</html>\n"
    )
}
