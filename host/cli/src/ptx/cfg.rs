//! `ferroccl ptx cfg`

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ferroccl_ptx::inspect::Lines;
use ferroccl_ptx::inspect::draw::{self, Drawing};

use super::Failure;
use super::kernel::From;

/// Draw the basic blocks of a kernel and the ways between them
///
/// A block stands above all that can be reached through it alone; loops are shaded. Each says its label, where it
/// is from, what it moves from and to global memory (bytes of a lane), its loads in flight, and its first
/// instructions. The page of HTML moves, zooms and shows a block in full.
#[derive(Args, Clone, Debug)]
pub(super) struct CfgArgs {
    /// The kernel
    kernel: Option<String>,
    #[command(flatten)]
    from: From,
    /// Where to write: .html, .svg or .dot [default: dot, printed]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What to write, whatever the file is called
    #[arg(long)]
    format: Option<Format>,
    /// Instructions of a block that are drawn
    #[arg(long, value_name = "N", default_value_t = 6)]
    instructions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A page that needs no other file
    Html,
    /// A picture
    Svg,
    /// For Graphviz
    Dot,
}

pub(super) fn run(args: &CfgArgs) -> Result<(), Failure> {
    let format = match (args.format, &args.output) {
        (Some(format), _) => format,
        (None, None) => Format::Dot,
        (None, Some(path)) => {
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            let known = Format::from_str(extension, true);
            known.map_err(|_| Failure::Extension { path: path.clone() })?
        }
    };
    let kernel = args.from.kernel(args.kernel.as_deref())?;
    let tree = kernel.tree()?;
    let cfg = tree.cfg(&kernel)?;
    let lines = Lines::new(&tree.module);
    let drawing = Drawing::new(tree.function(), &cfg, &lines, &kernel.text, args.instructions);
    let text = match format {
        Format::Html => draw::html(&drawing),
        Format::Svg => draw::svg(&drawing),
        Format::Dot => draw::dot(&drawing),
    };
    match &args.output {
        Some(path) => {
            let failed = |source| Failure::File { path: path.clone(), source };
            crate::output_file::write(path, text.as_bytes()).map_err(failed)
        }
        None => Ok(io::stdout().lock().write_all(text.as_bytes())?),
    }
}
