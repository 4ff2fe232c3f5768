//! What is not as it should be: in a cluster from the beginning, or in a call.

use std::fmt;
use std::str::FromStr;

use crate::SimulateError;

/// A fault of a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A port's link, both ways, has this part of its bandwidth.
    SlowLink {
        /// The host.
        host: u32,
        /// The port.
        port: u32,
        /// From 0 to 1.
        part: f64,
    },
    /// A port is not there: the host's channels are searched for without it, and all hosts have as many as the weakest.
    DeadPort {
        /// The host.
        host: u32,
        /// The port.
        port: u32,
    },
    /// A host is not there: the communicator is of the ranks of the others, which are numbered anew, also at the network.
    DeadNode {
        /// The host.
        host: u32,
    },
    /// A rank starts late.
    Straggler {
        /// The rank.
        rank: u32,
        /// By so many microseconds.
        late_us: f64,
    },
    /// Other traffic takes a part of the bandwidth of some links of the network, always the same ones.
    Background {
        /// The part of the links, 0 to 1.
        links: f64,
        /// The part of their bandwidth that it takes, 0 to 1.
        load: f64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::SlowLink { host, port, part } => {
                write!(f, "slow-link:host={host},port={port},part={part}")
            }
            Fault::DeadPort { host, port } => write!(f, "dead-port:host={host},port={port}"),
            Fault::DeadNode { host } => write!(f, "dead-node:host={host}"),
            Fault::Straggler { rank, late_us } => write!(f, "straggler:rank={rank},us={late_us}"),
            Fault::Background { links, load } => write!(f, "background:links={links},load={load}"),
        }
    }
}

impl FromStr for Fault {
    type Err = SimulateError;

    /// As it is written by [`Display`](fmt::Display); what is left out of `KEY=VALUE,...` has a default.
    fn from_str(text: &str) -> Result<Self, SimulateError> {
        let wrong = |why: String| SimulateError::Fault(format!("{text:?}: {why}"));
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut keys: Vec<(&str, f64, f64)> = match name {
            "slow-link" => vec![("host", 0.0, 4e9), ("port", 0.0, 4e9), ("part", 0.5, 1.0)],
            "dead-port" => vec![("host", 0.0, 4e9), ("port", 0.0, 4e9)],
            "dead-node" => vec![("host", 0.0, 4e9)],
            "straggler" => vec![("rank", 0.0, 4e9), ("us", 1000.0, 1e12)],
            "background" => vec![("links", 0.1, 1.0), ("load", 0.5, 0.99)],
            _ => {
                let all = "neither slow-link, dead-port, dead-node, straggler nor background";
                return Err(wrong(all.into()));
            }
        };
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting
                .split_once('=')
                .ok_or_else(|| wrong(format!("{setting:?} is not KEY=VALUE")))?;
            let known = keys.iter_mut().find(|known| known.0 == key);
            let (_, to, most) = known.ok_or_else(|| wrong(format!("no key {key:?}")))?;
            let number: f64 =
                value.parse().map_err(|_| wrong(format!("{value:?} is no number")))?;
            let whole = number.fract() == 0.0 || !matches!(key, "host" | "port" | "rank");
            if !(0.0..=*most).contains(&number) || !whole || (key == "part" && number < 1e-3) {
                return Err(wrong(format!("{key}={value} is out of range")));
            }
            *to = number;
        }
        let of = |i: usize| keys[i].1;
        Ok(match name {
            "slow-link" => Fault::SlowLink { host: of(0) as u32, port: of(1) as u32, part: of(2) },
            "dead-port" => Fault::DeadPort { host: of(0) as u32, port: of(1) as u32 },
            "dead-node" => Fault::DeadNode { host: of(0) as u32 },
            "straggler" => Fault::Straggler { rank: of(0) as u32, late_us: of(1) },
            _ => Fault::Background { links: of(0), load: of(1) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        for text in [
            "slow-link:host=3,port=1,part=0.25",
            "dead-port:host=1,port=0",
            "dead-node:host=7",
            "straggler:rank=17,us=20",
            "background:links=0.5,load=0.1",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        assert_eq!("dead-port".parse::<Fault>().unwrap(), Fault::DeadPort { host: 0, port: 0 });
        for (text, word) in [
            ("fire", "neither"),
            ("straggler:rank", "KEY=VALUE"),
            ("straggler:host=1", "no key"),
            ("straggler:rank=1.5", "out of range"),
            ("slow-link:part=0", "out of range"),
            ("background:load=1", "out of range"),
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
