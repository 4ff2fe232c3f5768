//! The kernels of other crates that the command was started with ([`main_with`](crate::main_with)).

use std::sync::{LazyLock, OnceLock};

use ferroccl::device::kernels::{PtxText, Row};
use ferroccl::{Algorithm, ProtocolId, Registry};

static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// Has all of the command know them. The first call of a process counts.
pub(crate) fn set(registry: Registry) {
    let _ = REGISTRY.set(registry);
}

/// The registry; an empty one where none was set.
pub(crate) fn registry() -> &'static Registry {
    static EMPTY: LazyLock<Registry> = LazyLock::new(Registry::new);
    REGISTRY.get().unwrap_or(&EMPTY)
}

/// All algorithms, those of other crates last.
pub(crate) fn algorithms() -> Vec<Algorithm> {
    Algorithm::ALL.iter().copied().chain(registry().algorithms()).collect()
}

/// All protocols, those of other crates last.
pub(crate) fn protocols() -> Vec<ProtocolId> {
    ProtocolId::ALL.iter().copied().chain(registry().protocols()).collect()
}

/// The modules of PTX, each once.
pub(crate) fn texts() -> Vec<PtxText> {
    let mut all: Vec<PtxText> = Vec::new();
    for text in registry().rows().iter().filter_map(|row| row.kernel.ptx) {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}

/// The row with this name that has PTX.
pub(crate) fn find(name: &str) -> Option<(&'static Row, PtxText)> {
    let row = registry().rows().iter().find(|row| row.kernel.name == name)?;
    Some((row, row.kernel.ptx?))
}

/// What modules of other crates are called.
pub(crate) const ORIGIN: &str = "registered";
