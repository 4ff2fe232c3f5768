//! Assembled kernels on disk.
//!
//! What is in the cache runs on the GPU with all that this user may do. So nobody else may put anything there: the directory and
//! each file must be this user's, nobody else may enter the directory, and no link is followed. A cache that is not like that
//! is not used, which is said once. The hash in a file is against damage, not against forgery.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::log;

/// What a file begins with, before the hash of the rest.
const MAGIC: &[u8; 8] = b"FERCUBI1";
/// Bytes before the cubin.
const HEAD: usize = MAGIC.len() + 32;

/// A directory of cubins, by name.
#[derive(Debug)]
pub(super) struct CubinCache {
    path: Option<PathBuf>,
    /// Opened when first needed; `None` when there is none that is safe.
    directory: OnceLock<Option<OwnedFd>>,
}

impl CubinCache {
    /// The one at `path`; none without a path.
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        CubinCache { path, directory: OnceLock::new() }
    }

    /// A cubin, if it is there and whole.
    pub(super) fn read(&self, name: &str) -> Option<Vec<u8>> {
        let file = read(self.directory()?, name).ok()?;
        whole(&file).map(<[u8]>::to_vec)
    }

    /// Keeps a cubin; other processes see all of it or nothing.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn write(&self, name: &str, cubin: &[u8]) -> io::Result<()> {
        let Some(directory) = self.directory() else { return Ok(()) };
        // Nobody can guess it, and nobody else can be in the directory; the system refuses a name that is there.
        let temporary = format!("{:016x}.tmp", getrandom::u64().map_err(io::Error::other)?);
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(directory, temporary.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let fill = |mut file: File| {
            file.write_all(MAGIC)?;
            file.write_all(&Sha256::digest(cubin))?;
            file.write_all(cubin)
        };
        let written = fill(file.into())
            .and_then(|()| Ok(renameat(directory, temporary.as_str(), directory, name)?));
        if written.is_err() {
            let _ = unlinkat(directory, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        written
    }

    fn directory(&self) -> Option<&OwnedFd> {
        let path = self.path.as_deref()?;
        let open = || match open_directory(path) {
            Ok(directory) => Some(directory),
            Err(error) => {
                static SAID: AtomicBool = AtomicBool::new(false);
                // Relaxed: nothing but the flag is at stake.
                if !SAID.swap(true, Ordering::Relaxed) {
                    warn!(target: log::INIT, "the cache of kernels {} is not used (FERROCCL_CUDA_CACHE): {error}", path.display());
                }
                None
            }
        };
        self.directory.get_or_init(open).as_ref()
    }
}

/// The cubin in a file, if it is whole.
fn whole(file: &[u8]) -> Option<&[u8]> {
    let (head, cubin) = file.split_at_checked(HEAD)?;
    let hash = Sha256::digest(cubin);
    (head[..MAGIC.len()] == *MAGIC && head[MAGIC.len()..] == *hash).then_some(cubin)
}

/// What fuzzing gives the cache: see `crate::fuzz::cubins`.
#[cfg(any(test, fuzzing))]
pub(crate) fn cubins(data: &[u8]) {
    assert!(
        whole(data).is_none_or(|cubin| data.ends_with(cubin) && cubin.len() + HEAD == data.len())
    );
    let mut file = [MAGIC, &Sha256::digest(data)[..], data].concat();
    assert_eq!(whole(&file), Some(data));
    // Damage is noticed, wherever it is.
    let place = data.len() % file.len();
    file[place] ^= 1;
    assert_eq!(whole(&file), None);
}

/// Opens a directory that is this user's alone, and makes it if it is not there.
fn open_directory(path: &std::path::Path) -> io::Result<OwnedFd> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = File::from(open(path, flags, Mode::empty()).map_err(|e| match e {
        nix::Error::ELOOP | nix::Error::ENOTDIR => {
            io::Error::other("it is a link, or no directory")
        }
        e => e.into(),
    })?);
    // What is open is looked at, so that nobody can exchange it in between.
    let metadata = directory.metadata()?;
    let (owner, us, mode) = (metadata.uid(), geteuid().as_raw(), metadata.mode() & 0o7777);
    if owner != us {
        return Err(io::Error::other(format!("it belongs to user {owner}, not to user {us}")));
    }
    if mode & 0o077 != 0 {
        return Err(io::Error::other(format!("others may use it (mode {mode:04o}): chmod 700 it")));
    }
    Ok(directory.into())
}

/// The content of a plain file of this user's.
fn read(directory: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    // Nor does a pipe make us wait.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(directory, name, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::path::Path;

    use super::*;

    const CODE: &[u8] = b"some code";

    fn cache(path: &Path) -> CubinCache {
        CubinCache::new(Some(path.to_owned()))
    }

    #[test]
    fn only_what_is_whole_comes_out_of_the_cache() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("cache/deeper");
        let (cache, path) = (cache(&directory), directory.join("one.cubin"));
        assert_eq!(cache.read("one.cubin"), None);
        cache.write("one.cubin", CODE).unwrap();
        assert_eq!(cache.read("one.cubin").as_deref(), Some(CODE));
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(cache.read("one.cubin"), None, "{end} bytes");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert_eq!(cache.read("one.cubin"), None, "byte {at}");
        }
        cache.write("one.cubin", CODE).unwrap();
        assert_eq!(cache.read("one.cubin").as_deref(), Some(CODE));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "what is left over");
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_directory_that_others_may_use_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache");
        cache(&path).write("one.cubin", CODE).unwrap();
        let is_used = |path: &Path| cache(path).read("one.cubin").is_some();
        assert!(is_used(&path));
        for mode in [0o755, 0o770, 0o707, 0o722, 0o777, 0o1777] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(!is_used(&path), "{mode:o}");
            cache(&path).write("two.cubin", CODE).unwrap();
            assert!(!path.join("two.cubin").exists(), "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        assert!(is_used(&path));
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(!is_used(&link), "a link");
        assert!(!is_used(&path.join("one.cubin")), "a file");
        if chown(&path, Some(1), None).is_ok() {
            assert!(!is_used(&path), "another user's");
        }
    }

    #[test]
    fn neither_links_nor_pipes_nor_others_files_are_read_or_written() {
        let directory = tempfile::tempdir().unwrap();
        let (path, elsewhere) =
            (directory.path().join("cache"), directory.path().join("elsewhere"));
        let cache = cache(&path);
        cache.write("one.cubin", CODE).unwrap();
        fs::rename(path.join("one.cubin"), &elsewhere).unwrap();
        symlink(&elsewhere, path.join("one.cubin")).unwrap();
        assert_eq!(cache.read("one.cubin"), None, "a link");
        cache.write("one.cubin", b"other code").unwrap();
        assert_eq!(cache.read("one.cubin").as_deref(), Some(&b"other code"[..]));
        assert!(fs::read(&elsewhere).unwrap().ends_with(CODE), "it wrote through a link");
        let pipe = path.join("pipe.cubin");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(cache.read("pipe.cubin"), None, "a pipe");
        if chown(path.join("one.cubin"), Some(1), None).is_ok() {
            assert_eq!(cache.read("one.cubin"), None, "another user's");
        }
    }
}
