//! What several tests use.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::path::{Path, PathBuf};

use ferroccl_ptx::cfg::{BlockId, Cfg};

/// The files of `tests/fixtures` with this extension, by name.
pub(crate) fn fixture_files(extension: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}

/// The PTX of the fixtures: `vector.sm_80` and its text.
pub(crate) fn fixtures() -> Vec<(String, String)> {
    fixture_files("ptx")
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let name = path.file_stem().and_then(|s| s.to_str()).expect("names are ASCII");
            (name.to_owned(), text)
        })
        .collect()
}

/// What holds for the blocks of any function: they cover its code in order, edges and predecessors agree, and
/// dominators and post-dominators are on every way. Ways are found by leaving a block out.
pub(crate) fn check_cfg(cfg: &Cfg<'_, '_>, place: &str) {
    let mut end = 0;
    for (id, block) in cfg.ids().zip(&cfg.blocks) {
        assert_eq!(block.range.start, end, "{place}: {id:?}");
        end = block.range.end;
        for edge in &block.successors {
            assert!(cfg.blocks[edge.to.0].predecessors.contains(&id), "{place}: {id:?}");
        }
        for before in &block.predecessors {
            let back = cfg.blocks[before.0].successors.iter().any(|e| e.to == id);
            assert!(back, "{place}: {id:?}");
        }
        for at in block.range.clone() {
            assert_eq!(cfg.block_of(at), Some(id), "{place}");
        }
    }
    assert_eq!(end, cfg.code.len(), "{place}");
    for id in cfg.ids() {
        let reached = reached(cfg, BlockId(0), None);
        assert_eq!(cfg.is_reachable(id), reached[id.0], "{place}: {id:?}");
        if let Some(dominator) = cfg.dominator(id) {
            let without = self::reached(cfg, BlockId(0), Some(dominator));
            assert!(!without[id.0], "{place}: {dominator:?} does not dominate {id:?}");
        }
        if let Some(after) = cfg.post_dominator(id) {
            let without = self::reached(cfg, id, Some(after));
            let ends = cfg.ids().any(|b| without[b.0] && cfg.blocks[b.0].ends);
            assert!(!ends, "{place}: {after:?} does not post-dominate {id:?}");
        }
    }
    for one in cfg.loops() {
        for &block in &one.blocks {
            assert!(cfg.dominates(one.header, block), "{place}: loop {:?}", one.header);
        }
    }
}

/// What can be reached from a block when another is taken out.
fn reached(cfg: &Cfg<'_, '_>, from: BlockId, without: Option<BlockId>) -> Vec<bool> {
    let mut seen = vec![false; cfg.blocks.len()];
    let mut open = vec![from];
    while let Some(block) = open.pop() {
        if Some(block) != without && !std::mem::replace(&mut seen[block.0], true) {
            open.extend(cfg.blocks[block.0].successors.iter().map(|e| e.to));
        }
    }
    seen
}
