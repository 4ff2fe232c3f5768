//! PTX of the tests' own kernels, made when it is needed.

use std::path::Path;
use std::sync::OnceLock;

use ferroccl_build::{Builder, Compiler, DeviceCrate, Module, Target};

use crate::skip::skip;

/// The PTX of `rounds.rs`, `packets.rs` and `puts.rs`; `None`, with the reason said, where there is no compiler for it.
pub(crate) fn rounds() -> Option<&'static str> {
    static TEXT: OnceLock<Result<String, String>> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let device = DeviceCrate::new("ferroccl_device", root.join("device/src/lib.rs"));
        let kernels = DeviceCrate::new("rounds_ptx", root.join("tests/support/rounds_ptx.rs"));
        let module = Module::new("rounds", kernels.depends_on(device), Target::sm(80));
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ferroccl-build");
        let compiler = Compiler::find().map_err(|e| e.to_string())?;
        let made = Builder::new(compiler, cache).compile(&module);
        Ok(made.unwrap_or_else(|e| panic!("{e}")).text().to_owned())
    });
    text.as_deref().inspect_err(|why| skip(why)).ok()
}
