//! `ferroccl ptx show`

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use ferroccl_ptx::cfg::{BlockId, Cfg};
use ferroccl_ptx::inspect::{Lines, Place, styled};
use ferroccl_ptx::syntax::SyntaxError;

use super::Failure;
use super::kernel::{From, Kernel, Tree};
use super::paint::{Color, Paint};

/// Show the PTX of a kernel, with the source lines it comes from
///
/// Each basic block begins with a remark: its number, its loops, and what leads to it. Above the instructions
/// stands the source line that they come from, and in brackets the lines that it was inlined through.
#[derive(Args, Clone, Debug)]
pub(super) struct ShowArgs {
    /// The kernel
    kernel: Option<String>,
    #[command(flatten)]
    from: From,
    /// Only this block: its number or its label
    #[arg(long, value_name = "BLOCK")]
    block: Option<String>,
    /// Without source lines
    #[arg(long)]
    no_source: bool,
    /// Where the sources are that are named by relative paths [default: here, or where this was built]
    #[arg(long, value_name = "DIR", conflicts_with = "no_source")]
    source_dir: Option<PathBuf>,
    /// With the line numbers of the module
    #[arg(long, short = 'n')]
    line_numbers: bool,
    #[command(flatten)]
    color: Color,
}

pub(super) fn run(args: &ShowArgs) -> Result<(), Failure> {
    let kernel = args.from.kernel(args.kernel.as_deref())?;
    let tree = kernel.tree()?;
    let cfg = tree.cfg(&kernel)?;
    let only = args.block.as_deref().map(|name| find_block(&cfg, name)).transpose()?;
    let text = listing(args, &kernel, &tree, &cfg, only)?;
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// A block by number or label.
fn find_block(cfg: &Cfg<'_, '_>, name: &str) -> Result<BlockId, Failure> {
    let number = name.trim_start_matches(['b', 'B']).parse().ok();
    let by_number = number.filter(|n| *n < cfg.blocks.len()).map(BlockId);
    let has = |b: &BlockId| cfg.blocks[b.0].labels.iter().any(|label| label.text == name);
    by_number.or_else(|| cfg.ids().find(has)).ok_or_else(|| {
        let last = cfg.blocks.len().saturating_sub(1);
        Failure::NoBlock(name.to_owned(), format!("B0 to B{last}"))
    })
}

/// Source files, as far as they are found.
struct Sources {
    dirs: Vec<PathBuf>,
    files: HashMap<String, Vec<String>>,
}

impl Sources {
    fn new(dir: Option<&Path>) -> Self {
        let dirs = match dir {
            Some(dir) => vec![dir.to_owned()],
            None => vec![PathBuf::from("."), PathBuf::from(crate::REPOSITORY)],
        };
        Sources { dirs, files: HashMap::new() }
    }

    /// A line of a file; nothing when it is not there.
    fn line(&mut self, file: &str, line: u32) -> &str {
        let lines = self.files.entry(file.to_owned()).or_insert_with(|| {
            let text = self.dirs.iter().find_map(|d| std::fs::read_to_string(d.join(file)).ok());
            text.unwrap_or_default().lines().map(|line| line.trim().to_owned()).collect()
        });
        let index = (line as usize).checked_sub(1);
        index.and_then(|i| lines.get(i)).map_or("", |line| line)
    }
}

/// What stands on which line of a function's text, both by number.
struct Remarks<'a> {
    /// The block that begins there.
    blocks: BTreeMap<usize, BlockId>,
    /// Where the first instruction of the line comes from.
    places: BTreeMap<usize, Place<'a>>,
}

impl<'a> Remarks<'a> {
    fn new(tree: &Tree<'a>, cfg: &Cfg<'_, 'a>) -> Self {
        let lines = Lines::new(&tree.module);
        let span = tree.function().span;
        let text = span.text(tree.module.source);
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |start: u32| ends.partition_point(|&end| end < (start - span.start) as usize);
        let (mut blocks, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (id, block) in cfg.ids().zip(&cfg.blocks) {
            let label = block.labels.first().map(|label| label.start);
            let code = cfg.code_of(id).first().map(|code| code.instruction.span.start);
            if let Some(start) = label.or(code) {
                blocks.entry(line(start)).or_insert(id);
            }
        }
        for code in &cfg.code {
            if let Some(place) = code.location.and_then(|loc| lines.place(loc)) {
                places.entry(line(code.instruction.span.start)).or_insert(place);
            }
        }
        Remarks { blocks, places }
    }
}

/// The text of a kernel with remarks.
fn listing(
    args: &ShowArgs,
    kernel: &Kernel,
    tree: &Tree<'_>,
    cfg: &Cfg<'_, '_>,
    only: Option<BlockId>,
) -> Result<String, Failure> {
    let span = tree.function().span;
    let text = span.text(&kernel.text);
    let before = kernel.text.get(..span.start as usize).unwrap_or_default();
    let first = 1 + before.matches('\n').count();
    let paint = args.color.paint();
    let painted = painted(text, paint).map_err(|e| kernel.wrong(e))?;
    let remarks = Remarks::new(tree, cfg);
    let mut sources = Sources::new(args.source_dir.as_deref());

    let digits = (first + painted.len()).to_string().len();
    let margin = if args.line_numbers { " ".repeat(digits + 2) } else { String::new() };
    let mut out = String::new();
    let (mut shown, mut block) = (None, None);
    for (i, (plain, painted)) in text.lines().zip(&painted).enumerate() {
        let begins = remarks.blocks.get(&i);
        block = begins.or(block);
        if only.is_some() && block != only.as_ref() {
            continue;
        }
        if let Some(&begins) = begins {
            let _ = writeln!(out, "{margin}{}", paint.dim(&block_remark(cfg, begins)));
            shown = None;
        }
        if plain.trim_start().starts_with(".loc") {
            continue;
        }
        let place = remarks.places.get(&i).filter(|_| !args.no_source);
        if let Some(place) =
            place.filter(|place| shown != Some((place.file, place.line, &place.calls)))
        {
            let _ = writeln!(out, "{margin}{}", paint.dim(&source_remark(place, &mut sources)));
            shown = Some((place.file, place.line, &place.calls));
        }
        if args.line_numbers {
            let _ = write!(out, "{}  ", paint.dim(&format!("{:>digits$}", first + i)));
        }
        let _ = writeln!(out, "{painted}");
    }
    Ok(out)
}

/// The lines of a text in colours; a piece of several lines is coloured on each.
fn painted(text: &str, paint: Paint) -> Result<Vec<String>, SyntaxError> {
    let mut lines = vec![String::new()];
    for (style, word) in styled(text)? {
        for (i, part) in word.text.split('\n').enumerate() {
            if i > 0 {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                line.push_str(&paint.ptx(style, part));
            }
        }
    }
    Ok(lines)
}

/// `// B5, loop 2 at depth 2 (from B3), after B4 B5`
fn block_remark(cfg: &Cfg<'_, '_>, id: BlockId) -> String {
    let mut text = format!("// B{}", id.0);
    if let Some(inner) = cfg.innermost_loop(id) {
        let of = &cfg.loops()[inner.0];
        let _ = write!(text, ", loop of B{} at depth {}", of.header.0, of.depth);
    }
    let before: Vec<String> = cfg.blocks[id.0]
        .predecessors
        .iter()
        .map(|b| format!("B{}{}", b.0, if cfg.is_back_edge(*b, id) { " (back)" } else { "" }))
        .collect();
    if !before.is_empty() {
        let _ = write!(text, ", after {}", before.join(", "));
    } else if id.0 > 0 {
        text.push_str(", which nothing leads to");
    }
    text
}

/// `//   device/src/copy.rs:188   while at < end {   [device/src/copy.rs:164, ...]`
fn source_remark(place: &Place<'_>, sources: &mut Sources) -> String {
    let mut text = format!("//   {}:{}", place.file, place.line);
    let line = sources.line(place.file, place.line);
    if !line.is_empty() {
        let _ = write!(text, "   {line}");
    }
    if !place.calls.is_empty() {
        // The last of a path tells it from the others on the way; the first has the whole.
        let calls: Vec<String> = place
            .calls
            .iter()
            .map(|call| {
                format!("{}:{}", call.file.rsplit('/').next().unwrap_or(call.file), call.line)
            })
            .collect();
        let _ = write!(text, "   [{}]", calls.join(" < "));
    }
    text
}
