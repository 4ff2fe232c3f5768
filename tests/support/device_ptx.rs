//! PTX of the tests' own kernels, made when it is needed.

use std::path::Path;
use std::sync::OnceLock;

use ferroccl_build::{Builder, Compiler, DeviceCrate, Module, Target, cache_dir};

use crate::skip::skip;

/// What becomes of a file of `tests/support`, once it is asked for.
type Made = OnceLock<Result<String, String>>;

/// The PTX of `rounds.rs`, `groups.rs`, `packets.rs`, `pipes.rs` and `puts.rs`; `None`, with the reason said, where there is no compiler for it.
pub(crate) fn rounds() -> Option<&'static str> {
    static TEXT: Made = OnceLock::new();
    compiled(&TEXT, "rounds_ptx", 80)
}

/// The PTX of `switched.rs`, for an architecture, 80 or 90; as [`rounds`].
pub(crate) fn switched(arch: u32) -> Option<&'static str> {
    static TEXTS: [Made; 2] = [const { OnceLock::new() }; 2];
    compiled(&TEXTS[usize::from(arch >= 90)], "switched_ptx", arch)
}

fn compiled(text: &'static Made, name: &str, arch: u32) -> Option<&'static str> {
    let text = text.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let device = DeviceCrate::new("ferroccl_device", root.join("device/src/lib.rs"));
        let source = root.join(format!("tests/support/{name}.rs"));
        let kernels = DeviceCrate::new(name, source).depends_on(device);
        let module = Module::new(name, kernels, Target::sm(arch));
        let cache = cache_dir(Path::new(env!("CARGO_TARGET_TMPDIR")));
        let compiler = Compiler::find().map_err(|e| e.to_string())?;
        let made = Builder::new(compiler, cache).compile(&module);
        Ok(made.unwrap_or_else(|e| panic!("{e}")).text().to_owned())
    });
    text.as_deref().inspect_err(|why| skip(why)).ok()
}
