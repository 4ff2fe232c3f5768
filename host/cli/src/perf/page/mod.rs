//! `--report`: a page with the curves of a measurement, and of another one beside it.
//!
//! It is one file without scripts, which needs no other and no network. Its colours follow the reader's light or dark theme.

mod chart;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use chart::{Band, Chart, ChartLine, escaped, short};

use super::compare::median;
use super::recorded::{MeasuredCell, MeasuredRow, Measurement};
use super::table::sized;

const STYLE: &str = include_str!("style.css");

/// Figures of a place at each size, from the smallest on.
type Points = Vec<(u64, MeasuredCell)>;

/// The page. `other` has its name with it; `error` says why the measurement is incomplete.
pub(crate) fn html(
    now: &Measurement,
    other: Option<(&Measurement, &str)>,
    error: Option<&str>,
) -> String {
    let operation = now.operation.as_deref().unwrap_or("a measurement");
    let fact =
        |name: &str| now.facts.iter().find(|fact| fact.0 == name).map(|fact| fact.1.as_str());
    let ranks = now.facts.iter().filter(|fact| fact.0.starts_with("rank ")).count();
    let title = format!("{operation}, {ranks} ranks");
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{0}</title>\n<style>\n{STYLE}</style>\n<h1>{0}</h1>\n",
        escaped(&title)
    );
    let parts = ["measured", "host", "processor"].into_iter().filter_map(fact);
    let _ =
        writeln!(page, "<p class=\"soft\">{}</p>", escaped(&parts.collect::<Vec<_>>().join(" · ")));
    if let Some(error) = error {
        let _ = writeln!(page, "<p class=\"note\">Incomplete: {}</p>", escaped(error));
    }
    let runs = [Some((now, "these results")), other];
    for (run, name) in runs.into_iter().flatten() {
        if let Some(model) = &run.simulated_on {
            let (name, model) = (escaped(name), escaped(model));
            let _ = writeln!(page, "<p class=\"note\">Times of {name} are SIMULATED: {model}.</p>");
        }
    }
    page += &tiles(now, other);
    if let Some((_, name)) = other {
        let _ = writeln!(page, "<p>Blue is this measurement, orange is {}.</p>", escaped(name));
    }
    page += "<p class=\"soft\">A full point and line is out of place, a hollow point and dotted line in place.</p>\n";
    let mut kinds: Vec<Vec<&MeasuredRow>> = Vec::new();
    for row in &now.rows {
        match kinds.iter_mut().find(|rows| kind(rows[0]) == kind(row)) {
            Some(rows) => rows.push(row),
            None => kinds.push(vec![row]),
        }
    }
    let several = kinds.len() > 1;
    for (i, rows) in kinds.iter().enumerate() {
        let then: Vec<&MeasuredRow> = other.map_or_else(Vec::new, |(other, _)| {
            rows.iter().filter_map(|row| other.like(row)).collect()
        });
        let open = if i == 0 { " open" } else { "" };
        if several {
            let _ = writeln!(page, "<details{open}><summary>{}</summary>", escaped(&kind(rows[0])));
        }
        page += &section(now, rows, &then);
        if several {
            page += "</details>\n";
        }
    }
    page += &facts(now, other);
    page
}

/// What lines of one kind have in common.
fn kind(row: &MeasuredRow) -> String {
    let root = if row.root == "-1" || row.root.is_empty() {
        String::new()
    } else {
        format!(", root {}", row.root)
    };
    let redop = if row.redop == "none" { "" } else { &*row.redop };
    format!("{} {redop}{root}", row.data_type).trim().replace(" ,", ",")
}

/// The figures that readers look for first.
fn tiles(now: &Measurement, other: Option<(&Measurement, &str)>) -> String {
    let cells =
        || now.rows.iter().flat_map(|row| row.places.iter().flatten().map(move |cell| (row, cell)));
    let tile = |figure: String, what: &str| {
        format!("<div><b>{}</b><span>{}</span></div>\n", escaped(&figure), escaped(what))
    };
    let mut tiles = String::from("<div class=\"tiles\">\n");
    if let Some((row, cell)) = cells().min_by(|a, b| a.1.time.total_cmp(&b.1.time)) {
        tiles += &tile(
            format!("{} µs", short(cell.time)),
            &format!("the shortest call, {}", sized(row.size)),
        );
    }
    if let Some((row, cell)) = cells().max_by(|a, b| a.1.busbw.total_cmp(&b.1.busbw)) {
        let what = format!("the highest bus bandwidth, {}", sized(row.size));
        tiles += &tile(format!("{} GB/s", short(cell.busbw)), &what);
    }
    // Of the largest size, out of place: smaller ones may be in caches, and in place less is moved than by a copy.
    let largest = now.rows.iter().filter_map(|row| Some((row, row.places[0]?)));
    if let (Some(limit), Some((row, cell))) = (&now.limit, largest.max_by_key(|(row, _)| row.size))
    {
        let what = format!("of the speed of copies in memory, {} out of place", sized(row.size));
        tiles += &tile(format!("{:.0} %", cell.busbw / limit.0 * 100.0), &what);
    }
    let checked = cells().filter_map(|(_, cell)| cell.wrong).reduce(|a, b| a + b);
    tiles += &match checked {
        Some(0) => tile("0".to_owned(), "wrong elements"),
        Some(wrong) => tile(wrong.to_string(), "WRONG elements"),
        None => tile("unchecked".to_owned(), "results"),
    };
    if let Some((other, name)) = other {
        let ratios = now.rows.iter().filter_map(|row| {
            let (now, then) = (row.places[0]?, other.like(row)?.places[0]?);
            (now.time > 0.0).then(|| then.time / now.time)
        });
        if let Some(median) = median(ratios.collect()) {
            tiles += &tile(
                format!("{median:.2} ×"),
                &format!("as fast as {name}, out of place, median of all sizes"),
            );
        }
    }
    tiles + "</div>\n"
}

/// The charts and the table of lines of one kind.
fn section(now: &Measurement, rows: &[&MeasuredRow], then: &[&MeasuredRow]) -> String {
    let runs = [("now", "now in", rows), ("then", "then in", then)];
    let curves = |of: fn(&MeasuredCell) -> f64| -> Vec<ChartLine> {
        let curves = runs
            .iter()
            .flat_map(|(out, within, rows)| [(*out, points(rows, 0)), (*within, points(rows, 1))]);
        let curves = curves.map(|(class, points)| ChartLine {
            class,
            points: points.iter().map(|(size, cell)| (*size, of(cell))).collect(),
        });
        curves.filter(|curve| !curve.points.is_empty()).collect()
    };
    let strips = || -> Vec<(&'static str, Vec<Band>)> {
        let strips = [("ran", bands(rows)), ("beside", bands(then))];
        strips.into_iter().filter(|strip| !strip.1.is_empty()).collect()
    };
    let spreads: Vec<_> = points(rows, 0)
        .iter()
        .filter_map(|(size, cell)| cell.percentiles.map(|p| (*size, p[0], p[2])))
        .collect();
    let spreads = if spreads.len() > 1 { vec![("now", spreads)] } else { Vec::new() };
    let mut text = String::new();
    let mut figure = |chart: Chart, caption: &str| {
        let title = chart.title.clone();
        let _ = writeln!(
            text,
            "<h2>{}</h2>\n<figure><div class=\"scroll\">{}</div><figcaption>{}</figcaption></figure>",
            escaped(&title),
            chart.svg(),
            escaped(caption)
        );
    };
    let spread = if spreads.is_empty() {
        ""
    } else {
        " The shade is from the median to the 99th percentile of single iterations."
    };
    let time = Chart {
        title: "Time of a call".to_owned(),
        y: "µs",
        logarithmic: true,
        curves: curves(|cell| cell.time),
        spreads,
        level: None,
        strips: strips(),
    };
    figure(
        time,
        &format!(
            "Both axes are logarithmic. The strip beneath names the algorithm and the protocol that ran.{spread}"
        ),
    );
    let level = now
        .limit
        .as_ref()
        .map(|limit| (limit.0, format!("copies in memory: {} GB/s", short(limit.0))));
    let caption = now.limit.as_ref().map_or_else(String::new, |limit| {
        format!(
            " The broken line is the speed of copies: {}. What caches hold, and calls in place, can be above it.",
            limit.1
        )
    });
    let bandwidth = Chart {
        title: "Bus bandwidth".to_owned(),
        y: "GB/s",
        logarithmic: false,
        curves: curves(|cell| cell.busbw),
        spreads: Vec::new(),
        level,
        strips: strips(),
    };
    figure(
        bandwidth,
        &format!("What each link must have carried, in 10^9 bytes per second.{caption}"),
    );
    let ratios = |place: usize| -> Vec<(u64, f64)> {
        let then: BTreeMap<u64, MeasuredCell> = points(then, place).into_iter().collect();
        let ratio = |(size, now): (u64, MeasuredCell)| {
            then.get(&size).map(|then| (size, then.time / now.time))
        };
        points(rows, place)
            .into_iter()
            .filter_map(ratio)
            .filter(|(_, ratio)| ratio.is_finite())
            .collect()
    };
    if !then.is_empty() {
        let places = [("now", ratios(0)), ("now in", ratios(1))]
            .map(|(class, points)| ChartLine { class, points });
        let chart = Chart {
            title: "How many times as fast".to_owned(),
            y: "times",
            logarithmic: true,
            curves: places.into_iter().filter(|curve| !curve.points.is_empty()).collect(),
            spreads: Vec::new(),
            level: Some((1.0, "equally fast".to_owned())),
            strips: Vec::new(),
        };
        figure(chart, "The other time over this one: above 1 this measurement is faster.");
    }
    text + &table(now, rows, then)
}

/// What a place has by size; of several of one size, as with `-N`, the one of the median time.
fn points(rows: &[&MeasuredRow], place: usize) -> Points {
    let mut sizes: BTreeMap<u64, Vec<MeasuredCell>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.size > 0) {
        if let Some(cell) = row.places[place] {
            sizes.entry(row.size).or_default().push(cell);
        }
    }
    let middle = |(size, mut cells): (u64, Vec<MeasuredCell>)| {
        cells.sort_by(|a, b| a.time.total_cmp(&b.time));
        Some((size, *cells.get(cells.len() / 2)?))
    };
    sizes.into_iter().filter_map(middle).collect()
}

/// What ran, size by size.
fn bands(rows: &[&MeasuredRow]) -> Vec<Band> {
    let mut rows: Vec<_> = rows.iter().filter(|row| row.size > 0).collect();
    rows.sort_by_key(|row| row.size);
    let mut bands: Vec<Band> = Vec::new();
    for row in rows {
        let names = [&row.algorithm, &row.protocol].map(|name| name.as_deref());
        let label = names.into_iter().flatten().collect::<Vec<_>>().join(" ");
        match bands.last_mut() {
            _ if label.is_empty() => return Vec::new(),
            Some(last) if last.label == label => last.sizes.end = row.size,
            last => {
                // There is no gap between two.
                if let Some(last) = last {
                    last.sizes.end = row.size;
                }
                bands.push(Band { sizes: row.size..row.size, label });
            }
        }
    }
    bands
}

/// All figures.
fn table(now: &Measurement, rows: &[&MeasuredRow], then: &[&MeasuredRow]) -> String {
    let cells = || rows.iter().flat_map(|row| row.places.iter().flatten());
    let (spread, planned) = (
        cells().any(|cell| cell.percentiles.is_some()),
        rows.iter().any(|row| row.channels.is_some()),
    );
    let mut heads = vec!["size", "place", "time µs", "busbw GB/s"];
    heads.extend(now.limit.is_some().then_some("of copies"));
    if spread {
        heads.extend(["p50 µs", "p90 µs", "p99 µs", "most µs"]);
    }
    heads.push("wrong");
    if !then.is_empty() {
        heads.extend(["then µs", "×"]);
    }
    if planned {
        heads.extend(["algorithm", "protocol", "channels"]);
    }
    let mut text = String::from("<h2>All figures</h2>\n<div class=\"scroll\"><table>\n<tr>");
    heads.iter().for_each(|head| text += &format!("<th>{head}</th>"));
    text += "</tr>\n";
    for row in rows {
        for (place, name) in ["out", "in"].into_iter().enumerate() {
            let Some(cell) = row.places[place] else { continue };
            let mut line =
                vec![sized(row.size), name.to_owned(), short(cell.time), short(cell.busbw)];
            line.extend(
                now.limit.as_ref().map(|limit| format!("{:.0} %", cell.busbw / limit.0 * 100.0)),
            );
            if spread {
                line.extend(cell.percentiles.unwrap_or_default().map(short));
            }
            line.push(cell.wrong.map_or("–".to_owned(), |wrong| wrong.to_string()));
            if !then.is_empty() {
                let like = then
                    .iter()
                    .find(|then| then.size == row.size)
                    .and_then(|then| then.places[place]);
                line.push(like.map_or("–".to_owned(), |like| short(like.time)));
                line.push(
                    like.map_or("–".to_owned(), |like| format!("{:.2}", like.time / cell.time)),
                );
            }
            if planned {
                let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "–".to_owned());
                let channels =
                    row.channels.map_or("–".to_owned(), |channels| channels.to_string());
                line.extend([name(&row.algorithm), name(&row.protocol), channels]);
            }
            let bad =
                if cell.wrong.is_some_and(|wrong| wrong > 0) { " class=\"wrong\"" } else { "" };
            text += "<tr>";
            line.iter().for_each(|word| text += &format!("<td{bad}>{}</td>", escaped(word)));
            text += "</tr>\n";
        }
    }
    text + "</table></div>\n"
}

/// Machine and settings, of both beside each other.
fn facts(now: &Measurement, other: Option<(&Measurement, &str)>) -> String {
    let mut text = String::from(
        "<h2>Machine and settings</h2>\n<div class=\"scroll\"><table class=\"facts\">\n",
    );
    if let Some((_, name)) = other {
        let _ = writeln!(
            text,
            "<tr><th></th><th class=\"text\">this</th><th class=\"text\">{}</th></tr>",
            escaped(name)
        );
    }
    let mut names: Vec<&str> = Vec::new();
    let all = now.facts.iter().chain(other.iter().flat_map(|(other, _)| &other.facts));
    for (name, _) in all {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let value = |run: &Measurement, name: &str| {
        let found = run.facts.iter().find(|fact| fact.0 == name);
        format!("<td>{}</td>", found.map_or(String::new(), |fact| escaped(&fact.1)))
    };
    for name in names {
        let beside = other.map_or(String::new(), |(other, _)| value(other, name));
        let _ = writeln!(text, "<tr><td>{}</td>{}{beside}</tr>", escaped(name), value(now, name));
    }
    text + "</table></div>\n</html>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size: u64, algorithm: &str, time: f64) -> MeasuredRow {
        let cell = MeasuredCell {
            time,
            busbw: size as f64 / time / 1e3,
            wrong: Some(0),
            ..MeasuredCell::default()
        };
        MeasuredRow {
            size,
            data_type: "float".to_owned(),
            redop: "sum".to_owned(),
            root: "-1".to_owned(),
            algorithm: Some(algorithm.to_owned()),
            protocol: Some("LL".to_owned()),
            channels: Some(1),
            places: [Some(cell), None],
        }
    }

    #[test]
    fn bands_are_of_sizes_that_ran_alike_and_leave_no_gap() {
        let rows =
            [row(8, "Ring", 1.0), row(16, "Ring", 1.0), row(64, "Tree", 1.0), row(0, "Tree", 1.0)];
        let all: Vec<&MeasuredRow> = rows.iter().collect();
        let found: Vec<_> = bands(&all).into_iter().map(|band| (band.sizes, band.label)).collect();
        assert_eq!(found, [(8..64, "Ring LL".to_owned()), (64..64, "Tree LL".to_owned())]);
        let unknown = MeasuredRow { algorithm: None, protocol: None, ..row(8, "", 1.0) };
        assert!(bands(&[&unknown]).is_empty());
    }

    #[test]
    fn of_several_measurements_of_a_size_the_median_is_drawn() {
        let rows = [row(8, "Ring", 3.0), row(8, "Ring", 1.0), row(8, "Ring", 2.0)];
        let all: Vec<&MeasuredRow> = rows.iter().collect();
        let points = points(&all, 0);
        assert_eq!((points.len(), points[0].1.time), (1, 2.0));
    }

    #[test]
    fn a_page_says_what_is_simulated_wrong_or_incomplete() {
        let mut wrong = row(8, "Ring", 1.0);
        wrong.places[0].as_mut().unwrap().wrong = Some(3);
        let now = Measurement {
            simulated_on: Some("h100-<x>".to_owned()),
            rows: vec![wrong],
            ..Measurement::default()
        };
        let page = html(&now, None, Some("interrupted"));
        assert!(page.contains("are SIMULATED: h100-&lt;x&gt;") && page.contains("WRONG elements"));
        assert!(
            page.contains("Incomplete: interrupted") && page.contains("<td class=\"wrong\">3</td>")
        );
        assert!(!page.contains("<details"), "one kind needs no list");
        let mut rows = vec![row(8, "Ring", 1.0), row(8, "Ring", 1.0)];
        rows[1].redop = "max".to_owned();
        let page = html(&Measurement { rows, ..now }, None, None);
        assert!(
            page.contains("<summary>float sum</summary>")
                && page.contains("<summary>float max</summary>")
        );
    }

    /// A page needs nothing but itself.
    #[test]
    fn a_page_names_no_other_file() {
        let now = Measurement { rows: vec![row(8, "Ring", 1.0)], ..Measurement::default() };
        let page = html(&now, Some((&now.clone(), "before.json")), None);
        for word in ["http", "src=", "href=", "url(", "<script", "@import"] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
