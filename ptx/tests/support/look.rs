//! What must hold of any text that is taken for PTX.

use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::inspect::draw::{self, Drawing};
use ferroccl_ptx::inspect::{self, Change, Lines, Listing};
use ferroccl_ptx::syntax::{self, Module, SyntaxError};
use ferroccl_ptx::{isa, syntax::Function};

/// How far a text got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Got {
    /// Its characters are no tokens.
    Nothing,
    /// Its tokens are no tree.
    Tokens,
    /// Its tree has instructions that there are none of, or labels that are not there.
    Tree,
    /// All is well.
    All,
}

/// Larger functions are not drawn: it takes long, and shows nothing new.
const MOST_BLOCKS: usize = 64;

/// Looks at a text in every way there is. Panics where something does not hold; `what` says which text it was.
pub(crate) fn look(source: &str, what: &str) -> Got {
    match syntax::tokens(source) {
        Err(e) => {
            placed(source, &e, what);
            assert!(syntax::parse(source).is_err(), "{what}: what has no tokens has a tree");
            assert!(inspect::styled(source).is_err(), "{what}");
            return Got::Nothing;
        }
        Ok(tokens) => {
            let mut end = 0;
            for token in tokens {
                assert_eq!(token.word.start as usize, end, "{what}: {token:?}");
                assert!(!token.word.text.is_empty(), "{what}: an empty token at {end}");
                end += token.word.text.len();
                assert_eq!(token.word.span().text(source), token.word.text, "{what}");
            }
            assert_eq!(end, source.len(), "{what}: tokens leave something out");
        }
    }
    let styled = inspect::styled(source).unwrap_or_else(|e| panic!("{what}: {e}"));
    let styled: usize = styled.iter().map(|(_, word)| word.text.len()).sum();
    assert_eq!(styled, source.len(), "{what}: colours leave something out");
    let module = match syntax::parse(source) {
        Ok(module) => module,
        Err(e) => {
            placed(source, &e, what);
            return Got::Tokens;
        }
    };
    let mut got = Got::All;
    if let Err(e) = isa::check_module(&module) {
        placed(source, &e, what);
        got = Got::Tree;
    }
    for function in module.functions() {
        match Cfg::new(function) {
            Ok(cfg) => functions(&module, function, &cfg, what),
            Err(e) => {
                placed(source, &e.at(source), what);
                got = Got::Tree;
            }
        }
    }
    got
}

fn functions<'a>(module: &Module<'a>, function: &Function<'a>, cfg: &Cfg<'_, 'a>, what: &str) {
    let source = module.source;
    let around = function.span.range();
    for code in &cfg.code {
        let span = code.instruction.span.range();
        assert!(around.start <= span.start && span.end <= around.end, "{what}: {span:?}");
        let text = code.instruction.span.text(source);
        assert!(text.ends_with(';'), "{what}: {text}");
    }
    let covered: usize = cfg.blocks.iter().map(|b| b.range.len()).sum();
    assert_eq!(covered, cfg.code.len(), "{what}: blocks leave something out");
    let lines = Lines::new(module);
    let stats = inspect::stats(function, cfg, &lines);
    let mixed: u32 = stats.mix.iter().map(|of| of.count).sum();
    assert_eq!(mixed as usize, cfg.code.len(), "{what}: kinds leave something out");
    let listing = Listing::new(function, cfg, source);
    let same = inspect::differences(&listing, &listing);
    assert!(same.iter().all(|d| d.change == Change::Same), "{what}: it differs from itself");
    if cfg.blocks.len() <= MOST_BLOCKS {
        let drawing = Drawing::new(function, cfg, &lines, source, 4);
        assert_eq!(
            draw::svg(&drawing).matches("class=\"block\"").count(),
            cfg.blocks.len(),
            "{what}"
        );
        assert!(draw::dot(&drawing).ends_with("}\n"), "{what}");
    }
}

/// An error is somewhere in the text, or right behind it.
fn placed(source: &str, error: &SyntaxError, what: &str) {
    let lines = source.split('\n').count();
    let (line, column) = (error.at.line as usize, error.at.column as usize);
    assert!((1..=lines).contains(&line), "{what}: {error}, of {lines} lines");
    let length = source.split('\n').nth(line - 1).map_or(0, |l| l.chars().count());
    assert!((1..=length + 1).contains(&column), "{what}: {error}, of {length} columns");
    assert!(!error.what.is_empty(), "{what}");
}
