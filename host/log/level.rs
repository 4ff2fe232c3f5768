//! How much is logged, and of which subsystems.

use std::fmt::{self, Display};
use std::str::FromStr;

use tracing::Level;

use super::targets::{BOOTSTRAP, ENV, INIT, NET, PROXY, SUBSYSTEMS};

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
    pub(super) fn of(level: Level) -> Self {
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

/// A set of subsystems (`NCCL_DEBUG_SUBSYS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystems(u32);

impl Subsystems {
    /// What may be written.
    pub const NAMES: &'static str = "^ or nothing, then a list of \
        INIT,COLL,P2P,SHM,NET,GRAPH,TUNING,ENV,ALLOC,PROXY,BOOTSTRAP,REG,ALL";
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
        if self.0 == 0 {
            // Nothing at all would be read as the default.
            return f.write_str("^ALL");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_the_proxy_belong_to_subsystems() {
        let of = |text: &str| text.parse::<Subsystems>().unwrap();
        assert!(of("NET").contains("ferroccl_proxy::net::verbs::device"));
        assert!(!of("^NET").contains("ferroccl_proxy::net::socket"));
        assert!(of("PROXY").contains("ferroccl_proxy::connection"));
        assert!(!of("NET").contains("ferroccl_proxy::thread"));
    }

    #[test]
    fn the_targets_of_other_crates_are_subsystems() {
        for target in [ferroccl_bootstrap::LOG_TARGET, ferroccl_topology::LOG_TARGET] {
            assert!(Subsystems::ALL.contains(target), "{target}");
        }
    }

    #[test]
    fn sets_are_written_and_read() {
        assert_eq!(Subsystems::DEFAULT.to_string(), "INIT,ENV,BOOTSTRAP");
        assert_eq!("^init".parse::<Subsystems>().unwrap().0, Subsystems::ALL.0 & !1);
        assert_eq!("all".parse::<Subsystems>().unwrap(), Subsystems::ALL);
        let none = "^net,all".parse::<Subsystems>().unwrap();
        assert_eq!((none, none.to_string().as_str()), (Subsystems(0), "^ALL"));
        assert_eq!("^ALL".parse::<Subsystems>().unwrap(), none);
        for (name, target) in SUBSYSTEMS {
            assert!(Subsystems::NAMES.contains(name), "{name} is not described");
            assert_eq!(target.to_uppercase(), format!("FERROCCL::{name}"));
        }
    }
}
