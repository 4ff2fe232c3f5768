//! Modules that a release carries, so that who builds it needs no device compiler.
//!
//! A bundle is a directory: a packed file for each module, and `manifest`, a text:
//!
//! ```text
//! source 2de6bdce5e1f45bf1c243cea97921879
//! sm_80 all_gather_bruck 123456 all_gather_bruck_simple:61728:1402:b32=410,b64=902 all_gather_bruck_ll:...
//! ```
//!
//! The first line has the hash of the source that the modules were made of ([`hash_source`](crate::hash_source)). Each other
//! line has a module: architecture, name, bytes of its text, and its kernels in the order of the text. A kernel has its name,
//! and its figures ([`Figures`]): bytes, instructions, and registers by type.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Figures, Result};

const MANIFEST: &str = "manifest";

/// Modules that a release carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The hash of the source that they were made of.
    pub source: String,
    /// The modules.
    pub modules: Vec<Bundled>,
}

/// A module of a [`Bundle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundled {
    /// rustc's name of what it is compiled for: `sm_80`.
    pub target: String,
    /// Its name.
    pub name: String,
    /// Bytes of its text.
    pub bytes: usize,
    /// Its kernels, in the order of the text.
    pub kernels: Vec<String>,
    /// What was counted of each kernel, in the same order.
    pub figures: Vec<Figures>,
}

impl Bundled {
    /// The file with the packed text, in the bundle's directory.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        PathBuf::from(format!("{}_{}.ptx.zst", self.target, self.name))
    }
}

impl Bundle {
    /// The bundle in a directory; `None` where there is none.
    ///
    /// # Errors
    ///
    /// The manifest cannot be read, or is none.
    pub fn read(dir: &Path) -> Result<Option<Bundle>> {
        let path = dir.join(MANIFEST);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).map_err(Error::file(&path))?;
        match parse(&text) {
            Some(bundle) => Ok(Some(bundle)),
            None => Err(Error::Manifest { path }),
        }
    }

    /// Puts a bundle in a directory, in place of the one that may be there. Other files stay.
    ///
    /// # Errors
    ///
    /// Files cannot be removed or written.
    #[cfg(feature = "pack")]
    pub fn write(dir: &Path, source: &str, made: &[(crate::Module, crate::Ptx)]) -> Result<Bundle> {
        fs::create_dir_all(dir).map_err(Error::file(dir))?;
        let files = fs::read_dir(dir).map_err(Error::file(dir))?;
        for path in files.flatten().map(|file| file.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name == MANIFEST || name.ends_with(".ptx.zst") {
                fs::remove_file(&path).map_err(Error::file(&path))?;
            }
        }
        let mut bundle = Bundle { source: source.into(), modules: Vec::new() };
        for (module, ptx) in made {
            let bundled = Bundled {
                target: module.target.cpu.clone(),
                name: module.name.clone(),
                bytes: ptx.text().len(),
                kernels: ptx.kernels().to_vec(),
                figures: ptx.figures(),
            };
            let path = dir.join(bundled.file());
            fs::write(&path, ptx.packed()).map_err(Error::file(&path))?;
            bundle.modules.push(bundled);
        }
        // Last: a bundle that was not written whole is none.
        let path = dir.join(MANIFEST);
        fs::write(&path, manifest(&bundle)).map_err(Error::file(&path))?;
        Ok(bundle)
    }
}

#[cfg(any(test, feature = "pack"))]
fn manifest(bundle: &Bundle) -> String {
    let kernel = |(name, figures): (&String, &Figures)| {
        let registers = figures.registers.iter().map(|(ty, count)| format!("{ty}={count}"));
        let registers = registers.collect::<Vec<_>>().join(",");
        format!(" {name}:{}:{}:{registers}", figures.bytes, figures.instructions)
    };
    let modules = bundle.modules.iter().map(|Bundled { target, name, bytes, kernels, figures }| {
        let kernels: String = kernels.iter().zip(figures).map(kernel).collect();
        format!("{target} {name} {bytes}{kernels}\n")
    });
    format!("source {}\n", bundle.source) + &modules.collect::<String>()
}

fn parse(text: &str) -> Option<Bundle> {
    let mut lines = text.lines();
    let source = lines.next()?.strip_prefix("source ")?.to_owned();
    let module = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let (target, name) = (words.next()?, words.next()?);
        let bytes = words.next()?.parse().ok()?;
        let (kernels, figures) =
            words.map(|word| kernel(&word)).collect::<Option<Vec<_>>>()?.into_iter().unzip();
        Some(Bundled { target, name, bytes, kernels, figures })
    };
    Some(Bundle { source, modules: lines.map(module).collect::<Option<_>>()? })
}

/// A kernel as a line of the manifest has it.
fn kernel(word: &str) -> Option<(String, Figures)> {
    let [name, bytes, instructions, registers] = word.split(':').collect::<Vec<_>>()[..] else {
        return None;
    };
    let register = |one: &str| {
        let (ty, count) = one.split_once('=')?;
        Some((ty.to_owned(), count.parse().ok()?))
    };
    let registers = registers.split(',').filter(|one| !one.is_empty());
    let figures = Figures {
        bytes: bytes.parse().ok()?,
        instructions: instructions.parse().ok()?,
        registers: registers.map(register).collect::<Option<_>>()?,
    };
    Some((name.to_owned(), figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of different numbers, and as many types.
    fn figures(n: usize) -> Figures {
        let registers = [("b32", 3), ("pred", 1)].into_iter().take(n);
        let registers = registers.map(|(ty, count)| (ty.to_owned(), count)).collect();
        Figures { bytes: 10 + n, instructions: 5 + n, registers }
    }

    fn bundle() -> Bundle {
        let module = |name: &str, kernels: &[&str]| Bundled {
            target: "sm_80".into(),
            name: name.into(),
            bytes: 12,
            kernels: kernels.iter().map(|&k| k.to_owned()).collect(),
            figures: (0..kernels.len()).map(figures).collect(),
        };
        Bundle {
            source: "01ab".into(),
            modules: vec![module("a", &["a_ll", "a_simple"]), module("b", &["b"])],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(parse(&manifest(&bundle())), Some(bundle()));
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Bundle::read(dir.path()).unwrap(), None);
        fs::write(dir.path().join(MANIFEST), manifest(&bundle())).unwrap();
        assert_eq!(Bundle::read(dir.path()).unwrap(), Some(bundle()));
    }

    #[test]
    fn what_is_no_manifest_is_an_error() {
        for text in [
            "",
            "sources 1",
            "source 1\nsm_80",
            "source 1\nsm_80 a many k:1:1:",
            "source 1\nsm_80 a 1 k",
            "source 1\nsm_80 a 1 k:1:few:",
            "source 1\nsm_80 a 1 k:1:1:b32",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(MANIFEST), "?").unwrap();
        assert!(matches!(Bundle::read(dir.path()), Err(Error::Manifest { .. })));
    }
}
