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

use std::fmt::{self, Display, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::config::Config;
use crate::launcher::RankEnv;
use crate::{Error, Result};

/// How much is logged (`NCCL_DEBUG`); each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    None,
    /// The version, once.
    Version,
    /// What went wrong, or will.
    Warn,
    /// What was decided and why.
    Info,
    /// Every step.
    Trace,
}

impl LogLevel {
    /// What may be written.
    pub const NAMES: &'static str = "NONE, VERSION, WARN, INFO or TRACE";

    /// The least of our levels that shows an event of `level`.
    fn of(level: Level) -> Self {
        match level {
            Level::ERROR | Level::WARN => LogLevel::Warn,
            Level::INFO => LogLevel::Info,
            Level::DEBUG | Level::TRACE => LogLevel::Trace,
        }
    }
}

impl Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogLevel::None => "NONE",
            LogLevel::Version => "VERSION",
            LogLevel::Warn => "WARN",
            LogLevel::Info => "INFO",
            LogLevel::Trace => "TRACE",
        })
    }
}

impl FromStr for LogLevel {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::None, Self::Version, Self::Warn, Self::Info, Self::Trace]
            .into_iter()
            .find(|level| level.to_string().eq_ignore_ascii_case(text))
            .ok_or("unknown level")
    }
}

macro_rules! subsystems {
    ($($name:ident = $target:literal, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $name: &str = concat!("ferroccl::", $target);)*

        /// Name and target of each subsystem; its index is its bit in [`Subsystems`].
        const SUBSYSTEMS: &[(&str, &str)] = &[$((stringify!($name), $name),)*];
    };
}

subsystems! {
    INIT = "init", "Target of set-up and tear-down of communicators.";
    COLL = "coll", "Target of collective calls.";
    P2P = "p2p", "Target of ranks that read each other's memory directly.";
    SHM = "shm", "Target of memory shared between processes.";
    NET = "net", "Target of network transports.";
    GRAPH = "graph", "Target of topology and channel search.";
    TUNING = "tuning", "Target of the choice of algorithm, protocol and channels.";
    ENV = "env", "Target of what the environment says.";
    ALLOC = "alloc", "Target of memory allocations.";
    PROXY = "proxy", "Target of the proxy thread.";
    BOOTSTRAP = "bootstrap", "Target of how ranks find each other.";
}

/// A set of subsystems (`NCCL_DEBUG_SUBSYS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystems(u32);

impl Subsystems {
    /// What may be written.
    pub const NAMES: &'static str = "^ or nothing, then a list of \
        INIT,COLL,P2P,SHM,NET,GRAPH,TUNING,ENV,ALLOC,PROXY,BOOTSTRAP,ALL";
    /// Every subsystem.
    pub const ALL: Self = Subsystems((1 << SUBSYSTEMS.len()) - 1);
    /// NCCL's default: INIT, ENV and BOOTSTRAP.
    pub const DEFAULT: Self = Subsystems(bit(INIT) | bit(ENV) | bit(BOOTSTRAP));

    /// Whether the subsystem with this target is in the set. Modules of the proxy's crate are its own targets, and belong to
    /// NET if they are networks, else to PROXY.
    #[must_use]
    pub fn contains(self, target: &str) -> bool {
        let target = match target {
            target if target.starts_with("ferroccl_proxy::net") => NET,
            target if target.starts_with("ferroccl_proxy") => PROXY,
            target => target,
        };
        SUBSYSTEMS.iter().position(|(_, t)| *t == target).is_some_and(|i| self.0 & 1 << i != 0)
    }
}

/// The bit of a target; for constants only.
const fn bit(target: &str) -> u32 {
    let mut i = 0;
    while i < SUBSYSTEMS.len() {
        if same(SUBSYSTEMS[i].1, target) {
            return 1 << i;
        }
        i += 1;
    }
    0
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    a.len() == b.len() && i == a.len()
}

impl Display for Subsystems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("ALL");
        }
        let names: Vec<_> =
            SUBSYSTEMS.iter().filter(|(_, t)| self.contains(t)).map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Subsystems {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (all_but, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
        let mut set = 0;
        for name in list.split(',').map(str::trim) {
            set |= match SUBSYSTEMS.iter().position(|(n, _)| n.eq_ignore_ascii_case(name)) {
                Some(i) => 1 << i,
                None if name.eq_ignore_ascii_case("ALL") => Self::ALL.0,
                None => return Err(format!("unknown subsystem \"{name}\"")),
            };
        }
        Ok(Subsystems(if all_but { Self::ALL.0 & !set } else { set }))
    }
}

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
                File::create(&path)
                    .map_err(|e| Error::system(format!("NCCL_DEBUG_FILE {path}"), e))?,
            )
        }
        None => Box::new(io::stderr()),
    };
    // A launcher that contradicts itself is an error of whoever needs the rank, not of the log.
    let device = RankEnv::from_env().ok().flatten().map_or(0, |env| env.local_rank);
    let printer = Printer::new(config, host, device, out);
    if tracing::subscriber::set_global_default(tracing_subscriber::registry().with(printer)).is_ok()
    {
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
fn host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    name.to_string_lossy().split('.').next().unwrap_or_default().to_owned()
}

/// Replaces `%h`, `%p` and `%%`; anything else stays as it is.
fn expand(pattern: &str, host: &str, pid: u32) -> String {
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

/// Prints events in NCCL's form.
struct Printer {
    level: LogLevel,
    subsystems: Subsystems,
    host: String,
    device: u32,
    out: Mutex<Box<dyn Write + Send>>,
}

impl Printer {
    fn new(config: &Config, host: String, device: u32, mut out: Box<dyn Write + Send>) -> Self {
        // A log that cannot be written has nowhere to say so.
        let _ = writeln!(out, "FerroCCL version {}", env!("CARGO_PKG_VERSION"));
        let out = Mutex::new(out);
        Printer { level: config.debug, subsystems: config.debug_subsys, host, device, out }
    }

    fn shows(&self, event: &Metadata<'_>) -> bool {
        let level = LogLevel::of(*event.level());
        event.target().starts_with("ferroccl")
            && level <= self.level
            && (level == LogLevel::Warn || self.subsystems.contains(event.target()))
    }
}

impl<S: Subscriber> Layer<S> for Printer {
    fn enabled(&self, event: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.shows(event)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = LogLevel::of(*event.metadata().level());
        let line = format!(
            "{}:{}:{} [{}] NCCL {level} {}{}\n",
            self.host,
            std::process::id(),
            nix::unistd::gettid(),
            text.device.unwrap_or(u64::from(self.device)),
            text.message,
            text.fields,
        );
        // One write per line, so that lines of several processes do not mix.
        let mut out = self.out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

/// An event's fields as text.
#[derive(Default)]
struct Text {
    device: Option<u64>,
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "dev" => self.device = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail. Line breaks would let a peer's text look like a line of ours.
        let text = format!("{value:?}").replace(['\n', '\r'], " ");
        let _ = match field.name() {
            "message" => write!(self.message, "{text}"),
            name => write!(self.fields, " {name}={text}"),
        };
    }
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
        let printer = Printer::new(&config, "node7".to_owned(), 3, Box::new(out.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(printer), events);
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
    fn modules_of_the_proxy_belong_to_subsystems() {
        let of = |text: &str| text.parse::<Subsystems>().unwrap();
        assert!(of("NET").contains("ferroccl_proxy::net::verbs::device"));
        assert!(!of("^NET").contains("ferroccl_proxy::net::socket"));
        assert!(of("PROXY").contains("ferroccl_proxy::connection"));
        assert!(!of("NET").contains("ferroccl_proxy::thread"));
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
    fn sets_are_written_and_read() {
        assert_eq!(Subsystems::DEFAULT.to_string(), "INIT,ENV,BOOTSTRAP");
        assert_eq!("^init".parse::<Subsystems>().unwrap().0, Subsystems::ALL.0 & !1);
        assert_eq!("all".parse::<Subsystems>().unwrap(), Subsystems::ALL);
        for (name, target) in SUBSYSTEMS {
            assert!(Subsystems::NAMES.contains(name), "{name} is not described");
            assert_eq!(target.to_uppercase(), format!("FERROCCL::{name}"));
        }
    }

    #[test]
    fn file_names() {
        assert_eq!(expand("/tmp/%h.%p.%%p.%x%", "n1", 7), "/tmp/n1.7.%p.%x%");
    }
}
