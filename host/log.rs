//! Logs: `tracing` events, and a printer that looks like NCCL's.
//!
//! The library only emits events; their targets are the subsystems below (`ferroccl::init`, ...), so that any
//! `tracing` subscriber can filter them. It never installs a subscriber by itself. A program that wants
//! NCCL's behaviour (`NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS`, `NCCL_DEBUG_FILE`) calls [`init_from_env`] once:
//!
//! ```text
//! node7:4242:4243 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
//! ```
//!
//! `[0]` is the device: the event's field `dev`, or else the process's local rank. Other fields follow the
//! message. WARN lines are shown whatever the subsystem, as NCCL does; without `NCCL_DEBUG` nothing is shown.

mod format;
mod level;
pub mod targets;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Mutex;

use tracing::Subscriber;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

use self::format::{NcclFormat, Shown};
pub use self::level::{LogLevel, Subsystems};
pub use self::targets::*;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::launcher::RankEnv;

/// Installs NCCL's log for the whole process, as `config` says. Does nothing when `NCCL_DEBUG` is not set, or
/// when the program has installed a `tracing` subscriber already: that one gets the events.
///
/// # Errors
/// [`Error::System`] when `NCCL_DEBUG_FILE` cannot be made.
pub fn init(config: &Config) -> Result<()> {
    if config.debug == LogLevel::None || tracing::dispatcher::has_been_set() {
        return Ok(());
    }
    let host = host_name();
    let out: Box<dyn Write + Send> = match &config.debug_file {
        Some(pattern) => {
            let path = expand(pattern, &host, std::process::id());
            Box::new(
                create(&path).map_err(|e| Error::system(format!("NCCL_DEBUG_FILE {path}"), e))?,
            )
        }
        None => Box::new(io::stderr()),
    };
    // A launcher that contradicts itself is an error of whoever needs the rank, not of the log.
    let device = RankEnv::from_env().ok().flatten().map_or(0, |env| env.local_rank);
    if tracing::subscriber::set_global_default(subscriber(config, host, device, out)).is_ok() {
        config.log();
    }
    Ok(())
}

/// [`init`] with what the environment says.
///
/// # Errors
/// As [`Config::from_env`] and [`init`].
pub fn init_from_env() -> Result<()> {
    init(&Config::from_env()?)
}

/// The host's name up to the first dot, as NCCL prints it.
pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().split('.').next().unwrap_or_default().to_owned()
}

/// Makes the log's file, or empties it. A link at its place is not followed: names of logs can be guessed, and in a directory
/// like /tmp another user may have put a link to a file of ours there.
pub(crate) fn create(path: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    // These are links that the system makes, and a habit.
    if !matches!(path, "/dev/stdout" | "/dev/stderr") {
        options.custom_flags(libc::O_NOFOLLOW);
    }
    options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link, and links are not followed"),
        _ => error,
    })
}

/// Replaces `%h`, `%p` and `%%`; anything else stays as it is.
pub(crate) fn expand(pattern: &str, host: &str, pid: u32) -> String {
    let mut path = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('%', Some('h')) => path.push_str(host),
            ('%', Some('p')) => path.push_str(&pid.to_string()),
            ('%', Some('%')) => path.push('%'),
            _ => {
                path.push(c);
                continue;
            }
        }
        chars.next();
    }
    path
}

/// A subscriber that writes the version, and then events in NCCL's form.
fn subscriber(
    config: &Config,
    host: String,
    device: u32,
    mut out: Box<dyn Write + Send>,
) -> impl Subscriber + Send + Sync {
    // A log that cannot be written has nowhere to say so.
    let _ = writeln!(out, "FerroCCL version {}", env!("CARGO_PKG_VERSION"));
    let shown = Shown { level: config.debug, subsystems: config.debug_subsys };
    // The layer makes one write of each line, so that lines of several processes do not mix.
    let lines = tracing_subscriber::fmt::layer()
        .event_format(NcclFormat { host, device })
        .with_writer(Mutex::new(out))
        .with_filter(filter_fn(move |event| shown.has(event)));
    tracing_subscriber::registry().with(lines)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is printed with these settings when `events` runs.
    fn printed(level: &str, subsystems: &str, events: impl FnOnce()) -> String {
        let config = Config::from_lookup(|name| match name {
            "NCCL_DEBUG" => Some(level.to_owned()),
            "NCCL_DEBUG_SUBSYS" => Some(subsystems.to_owned()),
            _ => None,
        })
        .unwrap();
        let out = Shared::default();
        let lines = subscriber(&config, "node7".to_owned(), 3, Box::new(out.clone()));
        tracing::subscriber::with_default(lines, events);
        let bytes = out.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn events() {
        tracing::warn!(target: NET, "cable is out");
        tracing::info!(target: INIT, rank = 1u32, name = "x", "hello\nyou");
        tracing::info!(target: COLL, dev = 5u64, "AllReduce");
        tracing::trace!(target: COLL, "step");
        tracing::info!(target: "another_crate", "never");
    }

    #[test]
    fn lines_look_like_nccls() {
        let text = printed("INFO", "ALL", events);
        let start = format!("node7:{}:{} ", std::process::id(), nix::unistd::gettid());
        let lines: Vec<_> = text.lines().skip(1).map(|l| l.strip_prefix(&start).unwrap()).collect();
        assert_eq!(
            lines,
            [
                "[3] NCCL WARN cable is out",
                "[3] NCCL INFO hello you rank=1 name=x",
                "[5] NCCL INFO AllReduce"
            ]
        );
    }

    #[test]
    fn level_and_subsystems_choose() {
        let count = |level, subsystems| printed(level, subsystems, events).lines().count() - 1;
        assert_eq!(count("VERSION", "ALL"), 0);
        assert_eq!(count("WARN", "COLL"), 1, "a warning is shown whatever the subsystem");
        assert_eq!(count("INFO", "COLL"), 2);
        assert_eq!(count("INFO", "^COLL"), 2);
        assert_eq!(count("TRACE", "ALL"), 4);
        assert_eq!(count("INFO", ""), 2, "INIT is shown by default");
    }

    #[test]
    fn links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(at("precious"), "data").unwrap();
        for (target, link) in [("precious", "link"), ("nothing", "dangling")] {
            std::os::unix::fs::symlink(at(target), at(link)).unwrap();
            let error = create(&at(link)).unwrap_err().to_string();
            assert_eq!(error, "it is a symbolic link, and links are not followed");
        }
        assert_eq!(std::fs::read(at("precious")).unwrap(), b"data");
        assert!(!directory.path().join("nothing").exists());
        for _ in 0..2 {
            create(&at("log")).unwrap().write_all(b"line").unwrap();
        }
        assert_eq!(std::fs::read(at("log")).unwrap(), b"line");
    }

    #[test]
    fn file_names() {
        assert_eq!(expand("/tmp/%h.%p.%%p.%x%", "n1", 7), "/tmp/n1.7.%p.%x%");
    }
}
