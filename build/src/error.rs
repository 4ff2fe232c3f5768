//! Why there is no PTX.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::compiler::MIN_RUSTC;

/// The crate's results.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no PTX.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No rustc that was tried can compile device code. Each is named with its reason.
    #[error(
        "device code needs rustc {}.{} or later with rust-src{}", MIN_RUSTC.0, MIN_RUSTC.1, Tried(tried)
    )]
    NoCompiler {
        /// The compilers that were tried, in this order.
        tried: Vec<(PathBuf, Unfit)>,
    },
    /// The compiler cannot make its own `core` for a GPU: another compiler is needed.
    #[error("{} cannot compile {library}: {log}", rustc.display())]
    Library {
        /// The compiler.
        rustc: PathBuf,
        /// `core` or `compiler_builtins`.
        library: &'static str,
        /// What the compiler wrote.
        log: String,
    },
    /// The source has errors.
    #[error("{name}: {log}")]
    Compile {
        /// The module, or the crate that a module depends on.
        name: String,
        /// What the compiler wrote.
        log: String,
    },
    /// The module calls a function that it does not contain. PTX is not linked, so no driver could load it.
    #[error("{name}: calls `{function}`, which is not in the module")]
    Undefined {
        /// The module.
        name: String,
        /// The function, as PTX names it.
        function: String,
    },
    /// A function asks for the call that its kernel was launched with, and was not inlined: only a kernel has that as its parameter.
    #[error(
        "{name}: `{function}` uses the kernel's argument and was not inlined into a kernel; mark it #[inline(always)]"
    )]
    NotInlined {
        /// The module.
        name: String,
        /// The function, as Rust names it.
        function: String,
    },
    /// The module has no `extern "ptx-kernel"` function.
    #[error("{name}: has no kernels")]
    NoKernels {
        /// The module.
        name: String,
    },
    /// A compiler could not be started.
    #[error("cannot run {}: {source}", rustc.display())]
    Run {
        /// The compiler.
        rustc: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The manifest of a bundle is not one.
    #[error("{}: is no manifest of a bundle, or one that another version has written: make the bundle again", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
    },
    /// A file of the source or of the cache could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// Whether this machine lacks a compiler that can. All other errors are of the source, or of the file system.
    #[must_use]
    pub fn is_missing_compiler(&self) -> bool {
        matches!(self, Error::NoCompiler { .. } | Error::Library { .. })
    }

    /// For `map_err`: names the file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    }
}

/// Why a rustc cannot compile device code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// It does not start, or does not tell its version.
    Missing,
    /// It is this release, which is too old.
    TooOld(String),
    /// It knows no `nvptx64-nvidia-cuda`, or not GPUs as late as compute capability 9.0.
    NoTarget,
    /// It has neither a compiled `core` for that target nor the source of one.
    NoCore,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Missing => f.write_str("is not there"),
            Unfit::TooOld(release) => write!(f, "is {release}"),
            Unfit::NoTarget => f.write_str("makes no PTX for sm_90"),
            Unfit::NoCore => f.write_str("has no rust-src"),
        }
    }
}

/// `; /usr/bin/rustc is 1.63.0; ...`
struct Tried<'a>(&'a [(PathBuf, Unfit)]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(rustc, why)| write!(f, "; {} {why}", rustc.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_compiler_is_named_with_its_reason() {
        let tried = vec![
            (PathBuf::from("/usr/bin/rustc"), Unfit::TooOld("1.63.0".into())),
            (PathBuf::from("/opt/rustc"), Unfit::NoCore),
        ];
        let error = Error::NoCompiler { tried };
        assert_eq!(
            error.to_string(),
            "device code needs rustc 1.96 or later with rust-src; /usr/bin/rustc is 1.63.0; \
             /opt/rustc has no rust-src"
        );
        assert!(error.is_missing_compiler());
        assert!(!Error::NoKernels { name: "a".into() }.is_missing_compiler());
    }
}
