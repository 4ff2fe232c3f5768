//! The README and the documents beside it show what files say, what programs print and how they are called: all of that is
//! compared with the files and programs. A comment before a fenced block says where it is from:
//!
//! | comment | the block |
//! |---|---|
//! | `<!-- file: PATH -->` | is the whole file |
//! | `<!-- in file: PATH -->` | is a part of the file, however far indented |
//! | `<!-- output: COMMAND -->` | is lines of what the command prints, in their order |
//! | `<!-- output, other numbers: COMMAND -->` | the same, with other numbers: times, addresses, names of registers |
//! | `<!-- output, numbers within 5%: COMMAND -->` | the same, with numbers about as large: compilers of PTX differ a little |
//! | `<!-- runs -->` | is lines for the shell, each of which ends with status 0 in the project's folder |
//! | `<!-- drawn: COMMAND -->` | is no block but an image: what the command writes into a file that is its last argument |
//!
//! A command may have settings before it, as in `NCCL_ALGO=tree ferroccl explain all_reduce`. `book` checks links, and which blocks have to
//! have such a comment.
//!
//! With `UPDATE_README=1` files and numbers are brought up to date; where words have changed, a block is edited by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::skip::skip;
use super::support::{ROOT, ferroccl, finish, plain, text};

/// What is looked at, besides the chapters of the book, which are in `docs/`.
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "examples/fused/README.md",
    "examples/lab/README.md",
    "examples/train/README.md",
    "fuzz/README.md",
];

/// All documents, as paths from the project's folder.
pub(crate) fn documents() -> Vec<String> {
    let mut all: Vec<String> = DOCUMENTS.iter().map(|&path| path.to_owned()).collect();
    all.extend(chapters());
    all
}

/// The files of `docs/` that are text, in the order of their names.
pub(crate) fn chapters() -> Vec<String> {
    let entries = fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut chapters: Vec<String> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    chapters.sort();
    chapters
}

/// How a block's lines have to agree with what a command prints.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Numbers {
    Exact,
    Near,
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Source<'a> {
    File(&'a str),
    InFile(&'a str),
    Output(Numbers, &'a str),
    Runs,
}

/// A fenced block: its lines are `first..end` of the document's.
#[derive(Debug)]
struct Block<'a> {
    source: Source<'a>,
    first: usize,
    end: usize,
}

pub(crate) fn read(path: &str) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn source(line: &str) -> Option<Source<'_>> {
    let inner = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    if inner == "runs" {
        return Some(Source::Runs);
    }
    let (kind, what) = inner.split_once(": ").unwrap_or((inner, ""));
    if kind == "drawn" {
        return None; // an image, for `book`
    }
    Some(match kind {
        "file" => Source::File(what),
        "in file" => Source::InFile(what),
        "output" => Source::Output(Numbers::Exact, what),
        "output, other numbers" => Source::Output(Numbers::Any, what),
        "output, numbers within 5%" => Source::Output(Numbers::Near, what),
        _ => panic!("what is {line:?}?"),
    })
}

fn blocks<'a>(lines: &[&'a str]) -> Vec<Block<'a>> {
    let marked = lines.iter().enumerate().filter_map(|(i, line)| Some((i, source(line)?)));
    let block = |(i, source): (usize, Source<'a>)| {
        assert!(lines[i + 1].starts_with("```"), "no block after {source:?}");
        let length = lines[i + 2..].iter().position(|line| line.starts_with("```")).unwrap();
        Block { source, first: i + 2, end: i + 2 + length }
    };
    marked.map(block).collect()
}

/// A line's words, and its numbers: `0x` and hexadecimal digits, or digits with a point in between.
fn apart(line: &str) -> (String, Vec<String>) {
    let (mut words, mut numbers) = (String::new(), Vec::new());
    let mut rest = line.trim();
    while let Some(c) = rest.chars().next() {
        let hex = rest.strip_prefix("0x").map(|r| r.find(|c: char| !c.is_ascii_hexdigit()));
        let length = match hex {
            Some(end) => 2 + end.unwrap_or(rest.len() - 2),
            None if c.is_ascii_digit() => {
                let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
                rest[..end.unwrap_or(rest.len())].trim_end_matches('.').len()
            }
            None => 0,
        };
        if length > 0 {
            numbers.push(rest[..length].to_owned());
            words.push('#');
            rest = &rest[length..];
        } else {
            let space = c.is_whitespace();
            if !space || !words.ends_with(' ') {
                words.push(if space { ' ' } else { c });
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    (words, numbers)
}

/// Within a twentieth of each other.
fn near(a: &str, b: &str) -> bool {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => (a - b).abs() <= 0.05 * a.abs().max(b.abs()),
        _ => a == b,
    }
}

/// For each line of a block the line of the output that it shows, or what is wrong.
fn compare<'a>(
    shown: &[&str],
    printed: &'a str,
    numbers: Numbers,
    update: bool,
) -> Result<Vec<&'a str>, String> {
    let mut printed = printed.lines();
    let mut found = Vec::new();
    for line in shown {
        if line.trim().is_empty() {
            found.push("");
            continue;
        }
        let (words, ours) = apart(line);
        let other = printed.find(|other| apart(other).0 == words);
        let other = other.ok_or_else(|| format!("nothing printed is like {line:?}"))?;
        let (_, theirs) = apart(other);
        let right = match numbers {
            Numbers::Exact => line.trim_end() == other.trim_end(),
            Numbers::Near => ours.iter().zip(&theirs).all(|(ours, theirs)| near(ours, theirs)),
            Numbers::Any => true,
        };
        if !right && !update {
            return Err(format!("shown:   {line}\nprinted: {other}"));
        }
        found.push(other);
    }
    Ok(found)
}

/// Lines without what all of them are indented by.
fn dedent(lines: &[&str]) -> Vec<String> {
    let full = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = full.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    lines.iter().map(|line| line.get(indent..).unwrap_or("").trim_end().to_owned()).collect()
}

/// Whether the machine has what a command needs; a test that it lacks is skipped.
fn has_what_it_needs(command: &str) -> bool {
    let kernels = command.contains(" ptx ") && !command.contains("--file");
    if let (true, Some(why)) = (kernels, ferroccl::ptx::unavailable()) {
        skip(&format!("{command}: {why}"));
        return false;
    }
    if command.contains("ptx stats") && !Path::new(ROOT).join(".toolchain/cuda/bin/ptxas").exists()
    {
        skip("no ptxas: scripts/setup installs it");
        return false;
    }
    true
}

/// What a command prints, on either output; `None` where the machine lacks something for it.
fn printed(command: &str) -> Option<String> {
    let mut words = command.split_whitespace();
    let mut settings = Vec::new();
    let program = loop {
        match words.next().map(|word| word.split_once('=').ok_or(word)) {
            Some(Ok(setting)) => settings.push(setting),
            Some(Err(program)) => break program,
            None => break "",
        }
    };
    assert_eq!(program, "ferroccl", "{command}");
    if !has_what_it_needs(command) {
        return None;
    }
    let output = finish(ferroccl([]).envs(settings).args(words).current_dir(ROOT));
    Some(text(&output.stdout) + &text(&output.stderr))
}

/// Gives each line to a shell that finds the built command.
fn run(lines: &[&str]) -> Result<(), String> {
    let program = Path::new(env!("CARGO_BIN_EXE_ferroccl"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    for line in lines.iter().filter(|line| !line.is_empty() && has_what_it_needs(line)) {
        let output = finish(plain("sh").args(["-c", line]).env("PATH", &path).current_dir(ROOT));
        if !output.status.success() {
            let said = text(&output.stdout) + &text(&output.stderr);
            return Err(format!("{line}: {}\n{said}", output.status));
        }
    }
    Ok(())
}

/// Whether a block is as it should be. To update is to give what it should be.
fn check(block: &Block<'_>, shown: &[&str], update: bool) -> Result<Option<Vec<String>>, String> {
    match block.source {
        Source::File(path) => {
            let file: Vec<String> = read(path).lines().map(str::to_owned).collect();
            if file == shown || update { Ok(Some(file)) } else { Err(format!("{path} differs")) }
        }
        Source::InFile(path) => {
            let (file, shown) = (read(path), dedent(shown));
            let file: Vec<&str> = file.lines().collect();
            let found = file.windows(shown.len()).any(|part| dedent(part) == shown);
            if found { Ok(None) } else { Err(format!("{path} has no such lines")) }
        }
        Source::Runs => run(shown).map(|()| None),
        Source::Output(numbers, command) => {
            let Some(output) = printed(command) else { return Ok(None) };
            let found = compare(shown, &output, numbers, update);
            let found =
                found.map_err(|why| format!("{why}\nof what {command} prints:\n{output}"))?;
            Ok(Some(found.into_iter().map(str::to_owned).collect()))
        }
    }
}

#[test]
fn what_documents_show_is_so() {
    let update = std::env::var_os("UPDATE_README").is_some();
    // Where some commands leave files.
    fs::create_dir_all(Path::new(ROOT).join("target")).unwrap();
    let mut checked = 0;
    for document in documents() {
        let text = read(&document);
        let lines: Vec<&str> = text.lines().collect();
        let mut new: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        for block in blocks(&lines).iter().rev() {
            let shown = &lines[block.first..block.end];
            let right = check(block, shown, update);
            let right = right.unwrap_or_else(|why| {
                panic!(
                    "{document}, line {}: {why}\nUPDATE_README=1 brings it up to date",
                    block.first
                )
            });
            if let (true, Some(right)) = (update, right) {
                new.splice(block.first..block.end, right);
            }
            checked += 1;
        }
        if update {
            fs::write(Path::new(ROOT).join(&document), new.join("\n") + "\n").unwrap();
        }
    }
    assert!(checked > 5, "only {checked} blocks say where they are from");
}

#[test]
fn a_wrong_line_is_noticed() {
    let printed = "loads 100 at 0x55aa of 2.50\nother\nspins 7\n";
    let ok = |shown: &[&str], numbers| compare(shown, printed, numbers, false).is_ok();
    assert!(ok(&["loads 100 at 0x55aa of 2.50", "", "spins 7"], Numbers::Exact));
    assert!(!ok(&["loads 101 at 0x55aa of 2.50"], Numbers::Exact));
    assert!(ok(&["loads 103  at 0x55aa of 2.4"], Numbers::Near));
    assert!(!ok(&["loads 106 at 0x55aa of 2.50"], Numbers::Near));
    assert!(ok(&["loads 1 at 0x1 of 9"], Numbers::Any));
    assert!(!ok(&["stores 1 at 0x1 of 9"], Numbers::Any));
    assert!(!ok(&["spins 7", "other"], Numbers::Any), "in their order");
}

/// What cargo is told to run.
#[test]
fn what_documents_run_is_there() {
    for document in documents() {
        let text = read(&document);
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.windows(2) {
            let kind = match pair[0] {
                "--bench" => "benches",
                "--test" => "tests",
                "--example" => "examples",
                _ => continue,
            };
            let name = pair[1].trim_end_matches(['`', ';', ')', ',', '.']);
            let places = [
                "",
                "host",
                "host/cli",
                "host/topology",
                "host/bootstrap",
                "proxy",
                "ptx",
                "build",
                "examples/train",
            ];
            let there = places.iter().any(|place| {
                let folder = PathBuf::from(ROOT).join(place).join(kind);
                folder.join(format!("{name}.rs")).exists()
                    || folder.join(name).join("main.rs").exists()
            });
            // Elsewhere than by its name, as the manifest says.
            let elsewhere =
                || read("Cargo.toml").contains(&format!("\nname = \"{name}\"\npath = "));
            assert!(there || name == "NAME" || elsewhere(), "{document} runs {kind} {name}");
        }
    }
}

/// The long options of the command in a line of shell, if it is ours.
fn our_options(line: &str) -> Option<(Vec<&str>, Vec<&str>)> {
    let ours = ["cargo run --release -- ", "release/ferroccl "];
    let start = ours.iter().find_map(|start| Some(line.split_once(*start)?.1));
    let mut call = start.or_else(|| line.strip_prefix("ferroccl "))?;
    // What another program is given, and comments.
    call = call.split(" # ").next()?.split(" -- ").next()?;
    let words: Vec<&str> = call.split_whitespace().collect();
    let nested = usize::from(words.first() == Some(&"ptx"));
    let options = words.iter().filter_map(|word| word.strip_prefix("--"));
    let options = options.map(|option| option.split('=').next().unwrap_or(option)).collect();
    Some((words[..=nested.min(words.len() - 1)].to_vec(), options))
}

/// Commands with options that are not there would be an error.
#[test]
fn commands_in_documents_have_these_options() {
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut checked = 0;
    for document in documents() {
        let text = read(&document);
        let mut shell = false;
        for line in text.lines() {
            if line.starts_with("```") {
                shell = line == "```sh";
            }
            let Some((command, options)) = shell.then(|| our_options(line)).flatten() else {
                continue;
            };
            let key: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            let help = helps.entry(key).or_insert_with_key(|command| {
                let output = ferroccl([]).args(command).arg("--help").output().unwrap();
                assert!(output.status.success(), "{document}: {line}");
                super::support::text(&output.stdout)
            });
            for option in options {
                assert!(help.contains(&format!("--{option}")), "{document}: --{option} in {line}");
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked}");
}

/// docs/settings.md is made from the table of settings.
#[test]
fn the_page_of_settings_has_every_setting() {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut page = "\
# Settings

The environment variables that FerroCCL reads. Those that begin with `NCCL_` mean what they mean to NCCL, or nearly
([from-nccl.md](from-nccl.md#variable-by-variable)). A value that is not legal is an error that names the variable. `ferroccl env` prints this
with the values that are set. In a program they are fields of `ferroccl::config::Config`; `CommConfig` has the settings of one communicator.

| variable | what | legal | default |
|---|---|---|---|
"
    .to_owned();
    for knob in ferroccl::config::KNOBS {
        let default = match knob.default() {
            default if default.is_empty() => String::new(),
            default => format!("`{default}`"),
        };
        let (what, legal) = (cell(knob.meaning), cell(&knob.legal()));
        page += &format!("| `{}` | {what} | {legal} | {} |\n", knob.name, cell(&default));
    }
    let path = Path::new(ROOT).join("docs/settings.md");
    if std::env::var_os("UPDATE_README").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "UPDATE_README=1 brings docs/settings.md up to date");
}
