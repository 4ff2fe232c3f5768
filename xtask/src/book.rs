//! The book: lays out its sources as mdBook wants them, and has mdBook make pages of them in `target/book`.
//!
//! The chapters are in `docs/`, and the summary also has pages from elsewhere in the project. mdBook takes its sources from one folder, so
//! they are copied to `target/book-src`, each at its own place: all links between them stay as they are. So do links to other files,
//! which are copied, too. A test of the command checks that there are no others (`host/cli/tests/cli/book.rs`).

use std::error::Error;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::run::root;

/// How to get mdBook; what it can do without is left out, as that takes minutes to compile.
pub(crate) const INSTALL: &str =
    "cargo install mdbook --version ^0.5 --locked --no-default-features --features search";

/// The first page, which mdBook makes of the first chapter, with links that are wrong for where it is.
const FIRST: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>FerroCCL</title>\n\
    <meta http-equiv=\"refresh\" content=\"0; url=docs/introduction.html\">\n\
    <a href=\"docs/introduction.html\">FerroCCL</a>\n</html>\n";

/// Makes the book.
pub(crate) fn make() -> Result<(), Box<dyn Error>> {
    let root = root();
    let pages = lay_out(&root)?;
    let status = Command::new("mdbook").arg("build").current_dir(&root).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("mdbook build: {status}").into()),
        Err(error) => return Err(format!("mdbook build: {error}: {INSTALL}").into()),
    }
    let book = root.join("target/book");
    for page in pages {
        check_links(&book.join(page).with_extension("html"))?;
    }
    fs::write(book.join("index.html"), FIRST)?;
    println!("{}", book.join("index.html").canonicalize()?.display());
    Ok(())
}

/// The same as a step.
pub(crate) fn step() -> Result<(), String> {
    make().map_err(|error| error.to_string())
}

/// Links of a page that mdBook has made lead to files and headings that it has made.
fn check_links(page: &Path) -> Result<(), Box<dyn Error>> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let text = read(page)?;
    for link in text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        if link.contains("://") {
            continue;
        }
        let target = if path.is_empty() { page.to_owned() } else { page.with_file_name(path) };
        let there = match anchor {
            "" => target.exists(),
            anchor => read(&target)?.contains(&format!("id=\"{anchor}\"")),
        };
        if !there {
            return Err(format!("{}: nothing is at {link}", page.display()).into());
        }
    }
    Ok(())
}

/// Copies the pages of the summary, and the files that they link to; the paths of the pages.
fn lay_out(root: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let sources = root.join("target/book-src");
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    let docs = Path::new("docs");
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md"))?;
    let mut pages = Vec::new();
    let mut moved = summary.clone();
    for link in links(&summary) {
        let page = inside(&docs.join(link)).ok_or_else(|| format!("SUMMARY.md has {link}"))?;
        moved = moved.replace(&format!("]({link})"), &format!("]({})", page.display()));
        let text = fs::read_to_string(root.join(&page))?;
        for link in links(&text).filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let path = link.split('#').next().unwrap_or_default();
            let target = inside(&page.with_file_name("").join(path)).unwrap_or_default();
            // Not what looks like a link, as in code.
            let is_page = target.extension().is_some_and(|extension| extension == "md");
            if !is_page && root.join(&target).is_file() {
                copy(root, &target, &sources)?;
            }
        }
        copy(root, &page, &sources)?;
        pages.push(page);
    }
    fs::write(sources.join("SUMMARY.md"), moved)?;
    Ok(pages)
}

fn copy(root: &Path, file: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let place = to.join(file);
    fs::create_dir_all(place.parent().unwrap_or(to))?;
    fs::copy(root.join(file), place).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(())
}

/// Where the links of a page lead.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// A path without `..`, if it stays in the project.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => whole.push(part),
            Component::ParentDir if whole.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(whole)
}
