//! Files of results: whole, or as they were before.
//!
//! A file is written beside the one that is asked for, and takes its name when it is complete ([`write`]). What is no plain
//! file (a pipe, a terminal) is written as it is, and so is a file in a directory where no other can be made.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// What a path is written through.
enum Way {
    /// A file beside it, which takes this name.
    Beside(NamedTempFile, PathBuf),
    /// Itself.
    Direct(File),
}

/// Opens what `path` is written through, and changes nothing that is there.
fn open(path: &Path) -> io::Result<Way> {
    let found = match fs::symlink_metadata(path) {
        Ok(_) => Some(fs::metadata(path)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    if found.as_ref().is_some_and(|found| !found.is_file()) {
        return OpenOptions::new().write(true).open(path).map(Way::Direct);
    }
    // A link stays, and what it leads to is replaced.
    let target = if found.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    // 0o666 is what the process's mask is taken from, as for any new file.
    let mode = found.map_or_else(|| Permissions::from_mode(0o666), |found| found.permissions());
    let made = Builder::new()
        .prefix(".ferroccl-")
        .permissions(mode)
        .tempfile_in(parent.unwrap_or(Path::new(".")));
    match made {
        Ok(file) => Ok(Way::Beside(file, target)),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && target.exists() => {
            OpenOptions::new().write(true).open(path).map(Way::Direct)
        }
        Err(e) => Err(plain(e)),
    }
}

/// The system's error, without the temporary file's name.
fn plain(error: io::Error) -> io::Error {
    let source = error.get_ref().and_then(|inner| inner.source());
    let number = source.and_then(|source| source.downcast_ref::<io::Error>()?.raw_os_error());
    number.map_or(error, io::Error::from_raw_os_error)
}

/// Whether `path` can be written. What is there stays as it is.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    open(path).map(drop)
}

/// Writes `path` with these bytes, all of them or none.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match open(path)? {
        Way::Beside(mut file, target) => {
            file.write_all(bytes)?;
            file.persist(target).map(drop).map_err(|e| e.error)
        }
        Way::Direct(mut file) => {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        check(&path).unwrap();
        assert!(names(directory.path()).is_empty());
        write(&path, b"a long first text").unwrap();
        let open = File::open(&path).unwrap();
        check(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a long first text");
        write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        // Who has the old file open still has all of it.
        assert_eq!(io::read_to_string(open).unwrap(), "a long first text");
        assert_eq!(names(directory.path()), ["results.json"]);
    }

    #[test]
    fn links_stay_and_what_is_no_file_is_written_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        write(Path::new("/dev/null"), b"nothing").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(write(directory.path(), b"x").is_err() && check(Path::new("/no/such/x")).is_err());
    }
}
