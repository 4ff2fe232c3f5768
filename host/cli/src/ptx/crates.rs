//! A crate that makes its own PTX, as `ferroccl new` begins one: where it is, and what its build script has left.
//!
//! ```text
//! DIR/Cargo.toml ── cargo metadata ──► the target folder
//!                                        └ PROFILE/build/CRATE-HASH/out/*.ptx    the newest `out` that has any counts
//! ```
//!
//! Source: <https://doc.rust-lang.org/cargo/reference/build-cache.html>.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde::Deserialize;

use super::Failure;
use super::kernel::{Text, read};

/// What comparisons of commits make lies here, in the target folder. It is not the crate's as it is now.
pub(super) const COMMITS: &str = "ferroccl-commits";

/// A crate, as cargo knows it.
#[derive(Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    /// The folder of its manifest.
    pub(super) dir: PathBuf,
    /// What cargo calls it in messages.
    pub(super) id: String,
    pub(super) workspace: PathBuf,
    pub(super) target: PathBuf,
    /// Where build scripts write: the target folder, unless cargo is told otherwise.
    build: PathBuf,
    /// Crates that the workspace takes from folders.
    pub(super) neighbours: Vec<PathBuf>,
}

/// `cargo metadata`, as far as it is read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
    build_directory: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    id: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    path: Option<PathBuf>,
}

/// The cargo that runs this command, if one does.
pub(super) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

impl Crate {
    /// The crate that a folder belongs to.
    pub(super) fn find(dir: &Path) -> Result<Self, Failure> {
        let no_file = |source| Failure::File { path: dir.to_owned(), source };
        let dir = dir.canonicalize().map_err(no_file)?;
        let mut command = cargo();
        command.args(["metadata", "--no-deps", "--format-version=1"]).current_dir(&dir);
        let failed = |what: String| Failure::Tool { tool: "cargo metadata".to_owned(), what };
        let out = command.output().map_err(|e| failed(e.to_string()))?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            return Err(Failure::NoCrate { dir, said });
        }
        let metadata: Metadata =
            serde_json::from_slice(&out.stdout).map_err(|e| failed(e.to_string()))?;
        let paths = metadata.packages.iter().flat_map(|package| &package.dependencies);
        let neighbours = paths.filter_map(|dependency| dependency.path.clone()).collect();
        // The innermost folder with a manifest; a folder of a workspace that is in none of its crates belongs to none.
        let own = |package: &Package| {
            let folder = package.manifest_path.parent()?.canonicalize().ok()?;
            dir.starts_with(&folder).then_some(folder)
        };
        let packages =
            metadata.packages.iter().filter_map(|package| Some((own(package)?, package)));
        let Some((folder, package)) = packages.max_by_key(|(dir, _)| dir.as_os_str().len()) else {
            let names = metadata.packages.iter().map(|package| package.name.as_str());
            let said = format!("its workspace has {}", names.collect::<Vec<_>>().join(", "));
            return Err(Failure::NoCrate { dir, said });
        };
        Ok(Crate {
            name: package.name.clone(),
            id: package.id.clone(),
            dir: folder,
            workspace: metadata.workspace_root,
            build: metadata.build_directory.unwrap_or_else(|| metadata.target_directory.clone()),
            target: metadata.target_directory,
            neighbours,
        })
    }

    /// The PTX that the last build has left.
    pub(super) fn built(&self) -> Result<Vec<Text>, Failure> {
        let newest = |dir: &PathBuf| {
            let times =
                files(dir).into_iter().filter_map(|path| fs::metadata(path).ok()?.modified().ok());
            times.max()
        };
        let with_time = self.out_dirs().into_iter().filter_map(|dir| Some((newest(&dir)?, dir)));
        let last: Option<(SystemTime, PathBuf)> = with_time.max();
        let none = || Failure::NotBuilt {
            name: self.name.clone(),
            dir: self.dir.clone(),
            build: self.build.clone(),
        };
        let (_, dir) = last.ok_or_else(none)?;
        texts(&dir, |path| path.display().to_string())
    }

    /// The folders that build scripts of this crate have written to, in every profile.
    fn out_dirs(&self) -> Vec<PathBuf> {
        let profiles = folders(&self.build).into_iter().filter(|dir| !dir.ends_with(COMMITS));
        // With `--target` there is a folder of that name around the profiles.
        let profiles = profiles.flat_map(|dir| folders(&dir).into_iter().chain([dir]));
        let units = profiles.flat_map(|profile| folders(&profile.join("build")));
        let units = units.filter(|unit| {
            let name = unit.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match name.strip_prefix(&self.name).map(|rest| rest.strip_prefix('-').unwrap_or(rest)) {
                Some("") => true, // a folder for each hash within
                Some(hash) => hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
                None => false,
            }
        });
        let units = units.flat_map(|unit| folders(&unit).into_iter().chain([unit]));
        units.map(|unit| unit.join("out")).filter(|out| out.is_dir()).collect()
    }
}

/// The PTX in a folder that a build script has written to; `origin` says what a file is called.
pub(super) fn texts(dir: &Path, origin: impl Fn(&Path) -> String) -> Result<Vec<Text>, Failure> {
    let text = |path: PathBuf| {
        let text = read(&path)?;
        // A build script cannot leave a file out that the crate includes, so it leaves an empty one.
        if text.trim().is_empty() {
            return Err(Failure::EmptyFile { origin: origin(&path) });
        }
        Ok(Text { origin: origin(&path), text })
    };
    files(dir).into_iter().map(text).collect()
}

/// The files of PTX in a folder, in the order of their names.
pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let is_ptx = |path: &PathBuf| path.extension().is_some_and(|e| e == "ptx") && path.is_file();
    let mut files: Vec<PathBuf> = entries(dir).filter(is_ptx).collect();
    files.sort_unstable();
    files
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    entries(dir).filter(|path| path.is_dir()).collect()
}

/// What is in a folder; nothing where there is none.
fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cargo's layouts: of today, with a target, and that of folders for each hash.
    #[test]
    fn folders_of_build_scripts_are_found_in_every_layout() {
        let folder = tempfile::tempdir().unwrap();
        let of_crate = |name: &str| Crate {
            name: name.to_owned(),
            dir: folder.path().to_owned(),
            id: String::new(),
            workspace: folder.path().to_owned(),
            target: folder.path().to_owned(),
            build: folder.path().to_owned(),
            neighbours: Vec::new(),
        };
        let hash = "0123456789abcdef";
        let own = [
            format!("debug/build/my-lines-{hash}/out"),
            format!("nvptx64/release/build/my-lines-{hash}/out"),
            format!("release/build/my-lines/{hash}/out"),
        ];
        let others = [
            format!("debug/build/my-{hash}/out"),
            format!("debug/build/my-lines-more-{hash}/out"),
            format!("debug/deps/my-lines-{hash}/out"),
            format!("{COMMITS}/debug/build/my-lines-{hash}/out"),
        ];
        for dir in own.iter().chain(&others) {
            fs::create_dir_all(folder.path().join(dir)).unwrap();
        }
        let mut found = of_crate("my-lines").out_dirs();
        found.sort_unstable();
        assert_eq!(found, own.map(|dir| folder.path().join(dir)));
        assert!(matches!(of_crate("my-lines").built(), Err(Failure::NotBuilt { .. })));
    }
}
