//! Hashes that stay the same over releases of Rust.

use std::hash::{Hash, Hasher as _};
use std::path::Path;
use std::{fs, io};

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::{Error, Result};

/// A hash of 128 bits, of strings and lists of them.
#[derive(Default)]
pub(crate) struct Key(SipHasher13);

impl Key {
    pub(crate) fn add(&mut self, part: &impl Hash) -> &mut Self {
        part.hash(&mut self.0);
        self
    }

    pub(crate) fn finish(&self) -> u128 {
        self.0.finish128().as_u128()
    }
}

/// A hash of the names and contents of all files under a directory, as 32 hexadecimal digits. It is the same wherever the
/// directory lies, on every machine.
///
/// # Errors
///
/// A file cannot be read.
pub fn hash_source(dir: &Path) -> Result<String> {
    let mut hasher = SipHasher13::default();
    hash_tree(dir, &mut hasher)?;
    Ok(format!("{:032x}", hasher.finish128().as_u128()))
}

fn hash_tree(dir: &Path, hasher: &mut SipHasher13) -> Result<()> {
    let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut entries = entries.map_err(Error::file(dir))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        hasher.write(&(name.len() as u64).to_le_bytes());
        hasher.write(name);
        if path.is_dir() {
            hasher.write(b"/");
            hash_tree(&path, hasher)?;
            hasher.write(b"..");
        } else {
            let content = fs::read(&path).map_err(Error::file(&path))?;
            hasher.write(&(content.len() as u64).to_le_bytes());
            hasher.write(&content);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_hashes_by_name_and_content() {
        let tree = |files: &[(&str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            for (name, content) in files {
                let path = dir.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            hash_source(dir.path()).unwrap()
        };
        let one = tree(&[("a.rs", "x"), ("b/c.rs", "y")]);
        // A hash of a release is compared with one that another machine made.
        assert_eq!(one, "2de6bdce5e1f45bf1c243cea97921879");
        assert_eq!(one, tree(&[("b/c.rs", "y"), ("a.rs", "x")]));
        assert_ne!(one, tree(&[("a.rs", "x"), ("b/c.rs", "z")]));
        assert_ne!(one, tree(&[("a.rs", "x"), ("b/d.rs", "y")]));
        assert_ne!(one, tree(&[("a.rs", "x"), ("b", "y"), ("c.rs", "y")]));
        assert!(hash_source(Path::new("/no/such/directory")).is_err());
    }
}
