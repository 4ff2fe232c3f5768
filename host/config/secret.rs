//! The secret of ids that are made of public text: in a variable, or in a file that only its user reads.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use super::{Config, Setting};
use crate::error::{Error, Result};
use ferroccl_bootstrap::Secret;

/// What is shown in place of a secret.
const HIDDEN: &str = "(not shown)";

/// Bytes of a file at most: more is another file by mistake.
const MOST: u64 = 4096;

impl Setting for Secret {
    type Legal = str;
    fn read(text: &str, _: &str) -> Result<Self, String> {
        text.parse().map_err(str::to_owned)
    }
    fn describe(legal: &str) -> String {
        legal.to_owned()
    }
    fn show(&self) -> String {
        HIDDEN.to_owned()
    }
    fn quote(_: &str) -> String {
        HIDDEN.to_owned()
    }
}

/// A file with a secret, and what was in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    /// Where it is.
    pub path: String,
    /// Its content without the line ends behind it.
    pub secret: Secret,
}

impl SecretFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, is no plain file, is another user's, or others may read or write it; and when its content is
    /// no secret.
    fn open(path: &str) -> Result<SecretFile, String> {
        let system = |e: std::io::Error| e.to_string();
        // A pipe without a writer must not make us wait. Links are followed: what they lead to is looked at, not where it lies.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(system)?;
        check(&file)?;
        let mut content = Vec::new();
        file.take(MOST + 1).read_to_end(&mut content).map_err(system)?;
        if content.len() as u64 > MOST {
            return Err(format!("it has more than {MOST} bytes"));
        }
        while content.pop_if(|byte| matches!(byte, b'\n' | b'\r')).is_some() {}
        let secret = Secret::new(&content).map_err(|e| format!("its content is {e}"))?;
        Ok(SecretFile { path: path.to_owned(), secret })
    }
}

/// Whether nobody but this user can have read or written the open file.
fn check(file: &File) -> Result<(), String> {
    let metadata = file.metadata().map_err(|e| e.to_string())?;
    if !metadata.is_file() {
        return Err("it is no plain file".to_owned());
    }
    let us = nix::unistd::geteuid().as_raw();
    if metadata.uid() != us {
        return Err(format!(
            "it belongs to user {}, not to user {us}, who runs this",
            metadata.uid()
        ));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!("others may read or write it (mode {mode:04o}): chmod 600 it"));
    }
    Ok(())
}

impl Setting for SecretFile {
    type Legal = str;
    fn read(text: &str, _: &str) -> Result<Self, String> {
        SecretFile::open(text)
    }
    fn describe(legal: &str) -> String {
        legal.to_owned()
    }
    fn show(&self) -> String {
        self.path.clone()
    }
}

impl Config {
    /// The secret of ids that are made of public text, if there is one: `FERROCCL_SECRET` or `FERROCCL_SECRET_FILE`.
    #[must_use]
    pub fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref().or(self.secret_file.as_ref().map(|file| &file.secret))
    }

    /// # Errors
    /// When both variables are set.
    pub(super) fn check_secret(&self) -> Result<()> {
        match (&self.secret, &self.secret_file) {
            (Some(_), Some(file)) => Err(Error::InvalidSetting {
                name: "FERROCCL_SECRET_FILE".to_owned(),
                value: file.path.clone(),
                reason: "FERROCCL_SECRET is set, too: only one of them can be".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    const TEXT: &str = "not for anybody else's eyes";

    fn with(vars: &[(&str, &str)]) -> Result<Config> {
        Config::from_lookup(|name| {
            vars.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn shows(config: &Config) -> String {
        format!("{config:?} {:?}", config.entries())
    }

    #[test]
    fn a_secret_is_read_and_never_shown() {
        let config = with(&[("FERROCCL_SECRET", TEXT)]).unwrap();
        assert_eq!(config.secret(), Some(&TEXT.parse().unwrap()));
        assert!(config.is_set("FERROCCL_SECRET") && !shows(&config).contains(TEXT));
        let error = with(&[("FERROCCL_SECRET", "too short")]).unwrap_err().to_string();
        assert!(error.contains("FERROCCL_SECRET") && error.contains("16 bytes"), "{error}");
        assert!(!error.contains("too short"), "{error}");
        assert!(with(&[]).unwrap().secret().is_none());
    }

    #[test]
    fn a_file_is_its_users_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let name = path.to_str().unwrap();
        let error = |name: &str| {
            let error = with(&[("FERROCCL_SECRET_FILE", name)]).unwrap_err();
            assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("FERROCCL_SECRET_FILE") && text.contains(name), "{text}");
            assert!(!text.contains(TEXT), "{text}");
            text
        };
        assert!(error(name).contains("No such file"));
        fs::write(&path, format!("{TEXT}\n")).unwrap();
        for mode in [0o640, 0o620, 0o604, 0o602, 0o644, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(error(name).contains("others may read or write it"), "{mode:o}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let config = with(&[("FERROCCL_SECRET_FILE", name)]).unwrap();
        assert_eq!(config.secret(), Some(&TEXT.parse().unwrap()), "without the line's end");
        assert!(shows(&config).contains(name) && !shows(&config).contains(TEXT));
        let both = with(&[("FERROCCL_SECRET_FILE", name), ("FERROCCL_SECRET", TEXT)]).unwrap_err();
        assert!(both.to_string().contains("only one of them"), "{both}");

        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(with(&[("FERROCCL_SECRET_FILE", link.to_str().unwrap())]).is_ok());
        fs::write(&path, "short\n").unwrap();
        assert!(error(name).contains("shorter than 16 bytes"));
        fs::write(&path, [b'x'; 5000]).unwrap();
        assert!(error(name).contains("more than 4096 bytes"));
        assert!(error(directory.path().to_str().unwrap()).contains("no plain file"));
        let pipe = directory.path().join("pipe");
        let done = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(done.success());
        assert!(error(pipe.to_str().unwrap()).contains("no plain file"));

        // Another user's: by root's leave, or a file of root's.
        let other = if chown(&path, Some(1), None).is_ok() { name } else { "/proc/version" };
        assert!(error(other).contains("belongs to user"));
    }
}
