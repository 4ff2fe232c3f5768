//! A kernel as a commit has it, and as the working tree has it: made now, by the sources that lie there.
//!
//! ```text
//! commit ──git worktree──► TARGET/ferroccl-commits/tree ─┐   this project:  cargo xtask ptx KERNEL
//! the working tree ──────────────────────────────────────┴─► other crates:  cargo check, then OUT_DIR/*.ptx
//! ```
//!
//! What is compiled stays in `TARGET/ferroccl-commits`, so that the next comparison compiles less; the crate's own builds are
//! left alone. A crate is only checked, as its build script is all that has to run. The tree of a commit lies beside the
//! checkout where the crate depends on a folder outside of it, or relative paths would lead nowhere. It is removed in the end,
//! also after an error or a signal, and by the next comparison if this process was killed.
//!
//! Sources: git-worktree(1), git-rev-parse(1); <https://doc.rust-lang.org/cargo/reference/external-tools.html>.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ferroccl::device::kernels;
use serde_json::Value;

use super::Failure;
use super::crates::{COMMITS, Crate, cargo, texts};
use super::kernel::{Kernel, Text, among, pick, read};
use super::making::Making;

/// A crate in a git checkout.
pub(super) struct History {
    krate: Crate,
    checkout: PathBuf,
    /// `TARGET/ferroccl-commits`
    commits: PathBuf,
    making: Making,
    /// Whether `cargo xtask ptx` makes its kernels: that of the library.
    has_xtask: bool,
    /// Keeps other comparisons out of `commits`.
    _lock: File,
}

/// What is looked at: sources in a folder.
struct Side<'s> {
    /// The top folder.
    root: &'s Path,
    /// `at 1a2b3c4`
    name: String,
    /// Where cargo puts what it compiles.
    target: &'s Path,
}

impl History {
    /// The crate that a folder belongs to, and the checkout that it is in.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let krate = Crate::find(dir)?;
        let out = git(&krate.dir, &["rev-parse", "--show-toplevel"])?;
        if !out.status.success() {
            return Err(Failure::NoCheckout { dir: krate.dir, said: said(&out.stderr) });
        }
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| Failure::File { path, source }
        };
        let checkout = PathBuf::from(said(&out.stdout));
        let checkout = checkout.canonicalize().map_err(file(&checkout))?;
        let commits = krate.target.join(COMMITS);
        fs::create_dir_all(&commits).map_err(file(&commits))?;
        let path = commits.join("lock");
        let lock = File::create(&path).map_err(file(&path))?;
        if lock.try_lock().is_err() {
            crate::complain("ptx diff", "waits for another comparison in the same target folder");
            lock.lock().map_err(file(&path))?;
        }
        let has_xtask = has_xtask(&krate.workspace);
        Ok(History { making: Making::new()?, krate, checkout, commits, has_xtask, _lock: lock })
    }

    /// A kernel as the working tree has it.
    pub(super) fn in_working_tree(&self, name: &str, arch: Option<u32>) -> Result<Kernel, Failure> {
        // The crate's own builds have other settings, so they are not disturbed; xtask is the same one.
        let target = if self.has_xtask { &self.krate.target } else { &self.commits };
        let side = Side { root: &self.checkout, name: "in the working tree".to_owned(), target };
        self.make(&side, name, arch)
    }

    /// A kernel as a commit has it, which is named by its hash.
    pub(super) fn at(
        &self,
        commit: &str,
        name: &str,
        arch: Option<u32>,
    ) -> Result<Kernel, Failure> {
        let short = git(&self.checkout, &["rev-parse", "--short", commit])?;
        let short = format!("at {}", said(&short.stdout));
        let tree = Worktree::add(&self.checkout, self.place_of_tree(), commit)?;
        let side = Side { root: &tree.path, name: short, target: &self.commits };
        self.make(&side, name, arch)
    }

    /// The hash of a commit.
    pub(super) fn commit(&self, revision: &str) -> Result<String, Failure> {
        let none =
            || Failure::NoCommit { revision: revision.to_owned(), checkout: self.checkout.clone() };
        // Git would take it for an option.
        if revision.starts_with('-') {
            return Err(none());
        }
        let commit = format!("{revision}^{{commit}}");
        let out = git(&self.checkout, &["rev-parse", "--verify", "--quiet", &commit])?;
        if out.status.success() { Ok(said(&out.stdout)) } else { Err(none()) }
    }

    /// Where the files of a commit are put.
    fn place_of_tree(&self) -> PathBuf {
        let outside = |path: &PathBuf| {
            path.canonicalize().map_or(true, |path| !path.starts_with(&self.checkout))
        };
        let name = self.checkout.file_name().unwrap_or_default().to_string_lossy();
        match self.checkout.parent().filter(|_| self.krate.neighbours.iter().any(outside)) {
            Some(parent) => parent.join(format!(".{name}-{COMMITS}")),
            None => self.commits.join("tree"),
        }
    }

    fn make(&self, side: &Side<'_>, name: &str, arch: Option<u32>) -> Result<Kernel, Failure> {
        if self.has_xtask {
            self.of_xtask(side, name, arch)
        } else {
            self.of_crate(side, name, arch)
        }
    }

    /// One of the library's kernels, made by the sources of a side.
    fn of_xtask(&self, side: &Side<'_>, name: &str, arch: Option<u32>) -> Result<Kernel, Failure> {
        let root = side.root.join(self.within(&self.krate.workspace));
        if !has_xtask(&root) {
            let what = "`cargo xtask ptx`, which makes a kernel,".to_owned();
            return Err(Failure::NotThere { what, place: side.name.clone() });
        }
        let name = full_name(name)?;
        let file = self.commits.join("kernel.ptx");
        let mut command = cargo();
        command
            .args(["xtask", "ptx", &name])
            .current_dir(root)
            .env("CARGO_TARGET_DIR", side.target);
        if let Some(arch) = arch {
            command.args(["--arch", &arch.to_string()]);
        }
        command.arg("--output").arg(&file);
        let made = self.making.run(&mut command)?;
        if !made.succeeded {
            return Err(Failure::Making {
                what: format!("{name} {}", side.name),
                command: format!("cargo xtask ptx {name}"),
                said: made.said,
            });
        }
        let text = Text { text: read(&file)?, origin: format!("device/src {}", side.name) };
        among(vec![text], Some(&name), arch)
    }

    /// A kernel of what the crate's build script writes.
    fn of_crate(&self, side: &Side<'_>, name: &str, arch: Option<u32>) -> Result<Kernel, Failure> {
        let folder = self.within(&self.krate.dir);
        let dir = side.root.join(&folder);
        if !dir.join("Cargo.toml").is_file() {
            let what = format!("{}", folder.join("Cargo.toml").display());
            return Err(Failure::NotThere { what, place: side.name.clone() });
        }
        let krate = Crate::find(&dir)?;
        // Of another commit files may be left that this one does not make, and a build script may not notice that it has to run.
        let mut command = cargo();
        command.args(["clean", "--package", &krate.id]).current_dir(&dir);
        self.making.run(command.env("CARGO_TARGET_DIR", side.target))?;
        let mut command = cargo();
        // Host code that does not compile, as a library beside it has changed since, need not keep the build script from running.
        command.args(["check", "--keep-going", "--message-format=json-render-diagnostics"]);
        command.current_dir(&dir).env("CARGO_TARGET_DIR", side.target);
        // The library's own kernels are not looked at.
        command.env("FERROCCL_PTX", "none");
        let made = self.making.run(&mut command)?;
        let Some(out) = out_dir(&made.printed, &krate.id) else {
            let said = match made.succeeded {
                true => format!("{} has no build script", krate.name),
                false => made.said,
            };
            return Err(Failure::Making {
                what: format!("{} {}", krate.name, side.name),
                command: "cargo check".to_owned(),
                said,
            });
        };
        let origin = |path: &Path| {
            format!("{} {}", path.file_name().unwrap_or_default().to_string_lossy(), side.name)
        };
        let texts = texts(&out, origin)?;
        if texts.is_empty() {
            return Err(Failure::Making {
                what: format!("{} {}", krate.name, side.name),
                command: "cargo check".to_owned(),
                said: "its build script has written no *.ptx to OUT_DIR".to_owned(),
            });
        }
        among(texts, Some(name), arch)
    }

    /// A folder of the checkout, from its top.
    fn within(&self, dir: &Path) -> PathBuf {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        dir.strip_prefix(&self.checkout).map(Path::to_owned).unwrap_or_default()
    }
}

/// Whether a workspace is that of this project.
fn has_xtask(workspace: &Path) -> bool {
    ["xtask/src/ptx.rs", "device/src/lib.rs"].iter().all(|file| workspace.join(file).is_file())
}

/// The kernel of the table with this in its name; what is in no name is for xtask to find, which may have another table.
fn full_name(part: &str) -> Result<String, Failure> {
    let mut names: Vec<String> = kernels::rows().map(|row| row.kernel.name.to_owned()).collect();
    names.sort_unstable();
    match pick(part, &names, "") {
        Err(Failure::NoKernel { .. }) => Ok(part.to_owned()),
        found => found,
    }
}

/// The folder that a crate's build script has written to, as cargo prints it: a line of JSON a message.
fn out_dir(printed: &str, id: &str) -> Option<PathBuf> {
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut of_crate = messages.filter(|message| {
        message["reason"] == "build-script-executed" && message["package_id"] == id
    });
    Some(of_crate.next_back()?["out_dir"].as_str()?.into())
}

/// Runs git in a folder. Variables that name another repository, as hooks of git have them, are left out.
fn git(dir: &Path, arguments: &[&str]) -> Result<Output, Failure> {
    let mut command = Command::new("git");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(name);
    }
    // What the repository does after a checkout is for people who work in it.
    command.arg("-C").arg(dir).args(["-c", "core.hooksPath=/dev/null"]).args(arguments);
    let failed = |what: String| Failure::Tool { tool: "git".to_owned(), what };
    command.output().map_err(|e| failed(e.to_string()))
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// The files of a commit, for as long as this is.
struct Worktree<'c> {
    checkout: &'c Path,
    path: PathBuf,
}

impl<'c> Worktree<'c> {
    fn add(checkout: &'c Path, path: PathBuf, commit: &str) -> Result<Self, Failure> {
        // From here on it is removed, whatever happens.
        let tree = Worktree { checkout, path };
        tree.remove(); // what a killed process has left
        fs::create_dir(&tree.path)
            .map_err(|source| Failure::File { path: tree.path.clone(), source })?;
        let path = tree.path.to_string_lossy();
        // Forced: git may remember a tree of a killed process that is gone.
        let out =
            git(checkout, &["worktree", "add", "--quiet", "--force", "--detach", &path, commit])?;
        if !out.status.success() {
            let what = said(&out.stderr);
            return Err(Failure::Tool { tool: "git worktree add".to_owned(), what });
        }
        Ok(tree)
    }

    /// What cannot be removed is litter, and nobody's error.
    fn remove(&self) {
        if self.path.exists() {
            let path = self.path.to_string_lossy();
            let _ = git(self.checkout, &["worktree", "remove", "--force", "--force", &path]);
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Drop for Worktree<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_build_script_is_that_of_its_crate() {
        let printed = r#"{"reason":"compiler-artifact","package_id":"a"}
{"reason":"build-script-executed","package_id":"b","out_dir":"/b"}
{"reason":"build-script-executed","package_id":"a","out_dir":"/a"}
not JSON
{"reason":"build-finished","success":false}"#;
        assert_eq!(out_dir(printed, "a"), Some("/a".into()));
        assert_eq!(out_dir(printed, "c"), None);
    }

    #[test]
    fn a_part_of_a_name_is_one_kernel_or_an_error_or_for_xtask() {
        let name = "all_reduce_ring_ll128_sum_float";
        assert_eq!(full_name(name).unwrap(), name);
        assert_eq!(full_name("reduce_ring_ll128_sum_float").unwrap(), name);
        assert!(matches!(full_name("all_reduce"), Err(Failure::Ambiguous { .. })));
        assert_eq!(full_name("of_last_year").unwrap(), "of_last_year");
    }
}
