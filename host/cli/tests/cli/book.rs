//! The book: what mdBook makes of `docs/`. Each chapter is in its summary, links lead somewhere, and code is from somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::readme::{chapters, documents, read};
use super::support::{ROOT, ferroccl, finish, text as text_of};

const SUMMARY: &str = "docs/SUMMARY.md";

/// A document as a reader of it needs it here.
#[derive(Debug, Default)]
struct Page {
    /// Where links and images lead, with the number of their line.
    links: Vec<(usize, String)>,
    /// What a link may have behind `#`.
    anchors: BTreeSet<String>,
    /// Fenced blocks: the number of their line, and their language.
    blocks: Vec<(usize, String)>,
}

fn page(text: &str) -> Page {
    let line = |at: usize| 1 + text[..at].matches('\n').count();
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for (event, range) in
        Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES).into_offset_iter()
    {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push((line(range.start), dest_url.into_string()));
            }
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match &kind {
                    CodeBlockKind::Fenced(language) => language,
                    CodeBlockKind::Indented => "",
                };
                page.blocks.push((line(range.start), language.to_owned()));
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                let before = times.entry(anchor.clone()).or_default();
                page.anchors.insert(match *before {
                    0 => anchor,
                    n => format!("{anchor}-{n}"),
                });
                *before += 1;
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    page
}

/// What a heading is called in links, by GitHub and by mdBook.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// A path from the project's folder, for one that is written in a document.
fn resolve(document: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    let folder = Path::new(document).parent()?;
    let whole: PathBuf = folder.join(path);
    for part in whole.components() {
        match part {
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

/// What is wrong with a link.
fn wrong(document: &str, pages: &BTreeMap<String, Page>, link: &str) -> Option<String> {
    if let Some((scheme, rest)) = link.split_once("://") {
        let host = rest.split(['/', '#', '?']).next().unwrap_or_default();
        let letters = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
        let right = scheme == "https" && host.contains('.') && host.chars().all(letters);
        return (!right).then(|| "no address of https".to_owned());
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(p, a)| (p, Some(a)));
    let target = match path {
        "" => Some(document.to_owned()),
        path => resolve(document, path),
    };
    let Some(target) = target else { return Some("it leaves the project".to_owned()) };
    if !Path::new(ROOT).join(&target).exists() {
        return Some(format!("there is no {target}"));
    }
    let anchor = anchor?;
    let known = match pages.get(&target) {
        Some(page) => page.anchors.contains(anchor),
        None => target.ends_with(".md") && page(&read(&target)).anchors.contains(anchor),
    };
    (!known).then(|| format!("{target} has no heading {anchor}"))
}

fn pages() -> BTreeMap<String, Page> {
    let mut all = documents();
    all.extend(["SECURITY.md", "CHANGELOG.md"].map(str::to_owned));
    all.extend(in_summary());
    all.into_iter().map(|path| (path.clone(), page(&read(&path)))).collect()
}

/// The pages of the book in their order.
fn in_summary() -> Vec<String> {
    let links = page(&read(SUMMARY)).links;
    links.iter().map(|(_, link)| resolve(SUMMARY, link).unwrap()).collect()
}

#[test]
fn every_chapter_is_in_the_summary_once() {
    let listed = in_summary();
    for chapter in chapters().iter().filter(|chapter| *chapter != SUMMARY) {
        let times = listed.iter().filter(|listed| *listed == chapter).count();
        assert_eq!(times, 1, "{SUMMARY} has {chapter} so often");
    }
    let distinct: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(distinct.len(), listed.len(), "{SUMMARY} has a page twice");
}

#[test]
fn every_link_and_anchor_leads_somewhere() {
    let pages = pages();
    let mut links = 0;
    for (document, page) in &pages {
        for (line, link) in &page.links {
            if let Some(why) = wrong(document, &pages, link) {
                panic!("{document}, line {line}: {link}: {why}");
            }
            links += 1;
        }
    }
    assert!(links > 100, "{links}");
}

/// mdBook makes pages of what the summary has, and knows no folders.
#[test]
fn what_pages_of_the_book_link_to_is_in_the_book() {
    let listed: BTreeSet<String> = in_summary().into_iter().collect();
    for document in &listed {
        for (line, link) in page(&read(document)).links {
            let path = link.split('#').next().unwrap_or_default();
            if path.is_empty() || link.contains("://") {
                continue;
            }
            let target = resolve(document, path).unwrap();
            let there = if target.ends_with(".md") {
                listed.contains(&target)
            } else {
                Path::new(ROOT).join(&target).is_file()
            };
            assert!(there, "{document}, line {line}: {link} is not in {SUMMARY}");
        }
    }
}

/// Images behind `<!-- drawn: COMMAND -->` are what the command writes into the file that is its last argument.
#[test]
fn drawings_are_what_commands_draw() {
    let update = std::env::var_os("UPDATE_README").is_some();
    let scratch = tempfile::tempdir().unwrap();
    let mut drawn = 0;
    for chapter in chapters() {
        let text = read(&chapter);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(command) = line.strip_prefix("<!-- drawn: ") else { continue };
            let command = command.strip_suffix(" -->").unwrap();
            let image = lines[at + 1].split_once("](").and_then(|(_, rest)| rest.split_once(')'));
            let image = resolve(&chapter, image.expect("an image").0).unwrap();
            let words = command.strip_prefix("ferroccl ").expect(command).split_whitespace();
            let made = scratch.path().join("drawing.svg");
            let output = finish(ferroccl([]).args(words).arg(&made).current_dir(ROOT));
            assert!(output.status.success(), "{command}: {}", text_of(&output.stderr));
            let made = fs::read_to_string(&made).unwrap();
            let path = Path::new(ROOT).join(&image);
            if update {
                fs::write(&path, &made).unwrap();
            }
            let there = fs::read_to_string(&path).unwrap_or_default();
            assert!(there == made, "{image} is another: UPDATE_README=1 brings it up to date");
            drawn += 1;
        }
    }
    assert!(drawn > 0);
}

/// Rust and C in a chapter are parts of files that are compiled, and Python is run by `host/python/tests/test_docs.py`.
#[test]
fn code_in_chapters_says_where_it_is_from() {
    for chapter in chapters() {
        let text = read(&chapter);
        let lines: Vec<&str> = text.lines().collect();
        for (line, language) in page(&text).blocks {
            let marked = line >= 2 && lines[line - 2].starts_with("<!-- ");
            let free = match language.as_str() {
                "rust" | "c" => false,
                "python" => chapter == "docs/python.md",
                "text" | "sh" | "toml" | "json" => true,
                other => panic!("{chapter}, line {line}: a block of the language {other:?}"),
            };
            assert!(marked || free, "{chapter}, line {line}: where is this {language} from?");
        }
    }
}

#[test]
fn what_is_wrong_with_a_link_is_noticed() {
    let text = "# One `two`: (three)\n\n# Same\n\n# Same\n\n[a](b.md \"c\") ![d](e.svg)\n\n```text\n[f](g)\n```\n";
    let page = page(text);
    assert_eq!(page.links, [(7, "b.md".to_owned()), (7, "e.svg".to_owned())]);
    assert_eq!(page.blocks, [(9, "text".to_owned())]);
    let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
    assert_eq!(anchors, ["one-two-three", "same", "same-1"]);

    let pages = BTreeMap::from([("docs/launch.md".to_owned(), page)]);
    let right = |link| wrong("docs/launch.md", &pages, link).is_none();
    assert!(right("#same-1") && right("launch.md#same") && right("../README.md"));
    assert!(right("https://doc.rust-lang.org/std/") && right("../README.md#use-it"));
    assert!(!right("#other") && !right("nothing.md") && !right("../README.md#useit"));
    assert!(!right("http://example.com") && !right("https://localhost") && !right("../../x"));
}
