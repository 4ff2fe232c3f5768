//! Which network interface ranks meet on.
//!
//! The choice is a pure function of a list of interfaces, so that it can be tried on lists this machine does
//! not have. [`interfaces`] is the list it has.

use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::error::{BootstrapError, Result};

/// A family of addresses (`NCCL_SOCKET_FAMILY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

impl AddressFamily {
    /// Whether `ip` is of this family.
    #[must_use]
    pub fn has(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == (self == AddressFamily::Inet)
    }
}

impl Display for AddressFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == AddressFamily::Inet { "AF_INET" } else { "AF_INET6" })
    }
}

impl FromStr for AddressFamily {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "AF_INET" => Ok(AddressFamily::Inet),
            "AF_INET6" => Ok(AddressFamily::Inet6),
            _ => Err("unknown family"),
        }
    }
}

/// The value of `NCCL_SOCKET_IFNAME`: which interfaces may be used.
///
/// | text | allows |
/// |---|---|
/// | `eth,ib` | names that begin with `eth`, or else with `ib` |
/// | `=eth0,eth1` | exactly these, the first that exists |
/// | `^docker,lo` | names that begin with neither |
/// | `^=eth3` | all but exactly this |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFilter {
    names: Vec<String>,
    exact: bool,
    all_but: bool,
}

impl InterfaceFilter {
    /// What may be written.
    pub const FORM: &'static str = "a list of prefixes (eth,ib), of names (=eth0,eth1), or of those not to use (^docker, ^=eth3)";

    /// The place of `name` in the user's preference, smallest first; `None` when it must not be used.
    fn rank(&self, name: &str) -> Option<usize> {
        let hit = self.names.iter().position(|wanted| {
            if self.exact { name == wanted } else { name.starts_with(wanted.as_str()) }
        });
        if self.all_but { hit.is_none().then_some(0) } else { hit }
    }
}

impl Display for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.all_but { "^" } else { "" };
        let exact = if self.exact { "=" } else { "" };
        write!(f, "{not}{exact}{}", self.names.join(","))
    }
}

impl FromStr for InterfaceFilter {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (all_but, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names: Vec<String> =
            rest.split(',').map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect();
        if names.is_empty() {
            return Err("it names no interface");
        }
        // As `^ =eth0`: no interface has such a name, so the list would be another than is meant.
        if names.iter().any(|name| name.starts_with(['^', '='])) {
            return Err("^ and = stand in front of the list, without blanks, and ^ before =");
        }
        Ok(InterfaceFilter { names, exact, all_but })
    }
}

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name; one with several addresses is listed several times.
    pub name: String,
    /// The address; its port is 0.
    pub address: SocketAddr,
}

/// The interfaces of this machine that are up, in the system's order.
///
/// # Errors
/// [`BootstrapError::System`] when the system does not tell.
pub fn interfaces() -> Result<Vec<Interface>> {
    let list =
        getifaddrs().map_err(|e| BootstrapError::system("list of network interfaces", e.into()))?;
    let up = list.filter(|i| i.flags.contains(InterfaceFlags::IFF_UP));
    Ok(up
        .filter_map(|i| {
            let storage = i.address?;
            let v4 = storage.as_sockaddr_in().map(|a| SocketAddr::new(a.ip().into(), 0));
            let v6 = storage
                .as_sockaddr_in6()
                .map(|a| SocketAddr::from(SocketAddrV6::new(a.ip(), 0, 0, a.scope_id())));
            Some(Interface { name: i.interface_name, address: v4.or(v6)? })
        })
        .collect())
}

/// The interface to meet on: the first that `filter` and `family` allow, in the order of the filter's list,
/// then InfiniBand (`ib*`), then others, then `docker*`, then loopback (`lo*`); on one interface IPv4 before
/// IPv6, and link-local addresses last since they mean nothing on another network.
///
/// # Errors
/// [`BootstrapError::NoInterface`] when none is allowed.
pub fn choose(
    interfaces: &[Interface],
    filter: Option<&InterfaceFilter>,
    family: Option<AddressFamily>,
) -> Result<Interface> {
    let allowed = interfaces.iter().filter(|i| family.is_none_or(|f| f.has(i.address.ip())));
    let ranked = allowed.filter_map(|i| {
        let wish = filter.map_or(Some(0), |f| f.rank(&i.name))?;
        let kind = Kind::of(&i.name);
        let local = is_link_local(i.address.ip());
        Some(((wish, kind == Kind::Loopback, local, kind, i.address.is_ipv6()), i))
    });
    // The first of equals: `min_by_key` keeps the system's order.
    ranked.min_by_key(|(key, _)| *key).map(|(_, i)| i.clone()).ok_or_else(|| {
        let wanted = match (filter, family) {
            (Some(f), Some(a)) => format!("NCCL_SOCKET_IFNAME={f} and NCCL_SOCKET_FAMILY={a}"),
            (Some(f), None) => format!("NCCL_SOCKET_IFNAME={f}"),
            (None, Some(a)) => format!("NCCL_SOCKET_FAMILY={a}"),
            (None, None) => "any".to_owned(),
        };
        let mut found: Vec<String> =
            interfaces.iter().map(|i| format!("{} ({})", i.name, i.address.ip())).collect();
        found.dedup();
        BootstrapError::NoInterface { wanted, found: found.join(", ") }
    })
}

/// The interfaces that data may go over, the one to meet on first: those that `filter` and `family` allow, and without a
/// filter all of the same kind as that one; of each the address as [`choose`] has it. At most 16, NCCL's `MAX_IFS`
/// (`net_socket.cc`).
///
/// # Errors
/// As [`choose`].
pub fn choose_all(
    interfaces: &[Interface],
    filter: Option<&InterfaceFilter>,
    family: Option<AddressFamily>,
) -> Result<Vec<Interface>> {
    const MAX_IFS: usize = 16;
    let first = choose(interfaces, filter, family)?;
    let (kind, v6) = (Kind::of(&first.name), first.address.is_ipv6());
    let local = is_link_local(first.address.ip());
    let mut all = vec![first];
    for i in interfaces {
        let allowed = match filter {
            Some(f) => f.rank(&i.name).is_some() && (!f.all_but || Kind::of(&i.name) == kind),
            None => Kind::of(&i.name) == kind,
        };
        let alike = i.address.is_ipv6() == v6 && is_link_local(i.address.ip()) == local;
        if allowed && alike && all.len() < MAX_IFS && all.iter().all(|other| other.name != i.name) {
            all.push(i.clone());
        }
    }
    Ok(all)
}

/// What a name says about an interface, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    InfiniBand,
    Other,
    Docker,
    Loopback,
}

impl Kind {
    fn of(name: &str) -> Self {
        match name {
            _ if name.starts_with("ib") => Kind::InfiniBand,
            _ if name.starts_with("docker") => Kind::Docker,
            _ if name.starts_with("lo") => Kind::Loopback,
            _ => Kind::Other,
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name address ...` as a list of interfaces.
    fn list(text: &str) -> Vec<Interface> {
        let words: Vec<_> = text.split_whitespace().collect();
        words
            .chunks(2)
            .map(|w| Interface {
                name: w[0].to_owned(),
                address: SocketAddr::new(w[1].parse().unwrap(), 0),
            })
            .collect()
    }

    const NODE: &str = "lo 127.0.0.1 docker0 172.17.0.1 eth0 10.0.0.1 eth1 10.0.1.1 ib0 10.1.0.1 \
                        lo ::1 eth0 fe80::1 eth0 2001:db8::1 ib0 fe80::2";

    fn chosen(nodes: &str, filter: &str, family: Option<AddressFamily>) -> Result<String> {
        let filter = (!filter.is_empty()).then(|| filter.parse().unwrap());
        let i = choose(&list(nodes), filter.as_ref(), family)?;
        Ok(format!("{} {}", i.name, i.address.ip()))
    }

    #[test]
    fn the_filter_chooses() {
        for (filter, expected) in [
            ("", "ib0 10.1.0.1"),
            ("eth", "eth0 10.0.0.1"),
            ("=eth1", "eth1 10.0.1.1"),
            ("=eth9,eth1", "eth1 10.0.1.1"),
            ("eth,ib", "eth0 10.0.0.1"),
            ("ib,eth", "ib0 10.1.0.1"),
            ("^ib", "eth0 10.0.0.1"),
            ("^=ib0,eth0", "eth1 10.0.1.1"),
            ("^ib,eth", "docker0 172.17.0.1"),
            ("^ib,eth,docker", "lo 127.0.0.1"),
            ("^=ib", "ib0 10.1.0.1"),
            ("lo", "lo 127.0.0.1"),
        ] {
            assert_eq!(chosen(NODE, filter, None).unwrap(), expected, "{filter}");
        }
    }

    #[test]
    fn the_family_chooses() {
        let v6 = Some(AddressFamily::Inet6);
        assert_eq!(chosen(NODE, "", v6).unwrap(), "eth0 2001:db8::1");
        assert_eq!(chosen(NODE, "ib", v6).unwrap(), "ib0 fe80::2", "link-local when nothing else");
        assert_eq!(chosen(NODE, "lo", v6).unwrap(), "lo ::1");
        assert_eq!(chosen("eth0 2001:db8::1", "", None).unwrap(), "eth0 2001:db8::1");
    }

    #[test]
    fn docker_and_loopback_come_last() {
        assert_eq!(
            chosen("lo 127.0.0.1 docker0 172.17.0.1", "", None).unwrap(),
            "docker0 172.17.0.1"
        );
        assert_eq!(chosen("lo 127.0.0.1", "", None).unwrap(), "lo 127.0.0.1");
        assert_eq!(
            chosen("docker0 172.17.0.1 wlan0 10.0.0.9", "", None).unwrap(),
            "wlan0 10.0.0.9"
        );
    }

    #[test]
    fn data_goes_over_all_of_a_kind() {
        let names = |filter: &str| {
            let filter = (!filter.is_empty()).then(|| filter.parse().unwrap());
            let all = choose_all(&list(NODE), filter.as_ref(), None).unwrap();
            all.into_iter().map(|i| i.name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(""), "ib0");
        assert_eq!(names("eth"), "eth0 eth1");
        assert_eq!(names("=eth1,eth0"), "eth1 eth0");
        assert_eq!(names("^ib"), "eth0 eth1");
    }

    #[test]
    fn nothing_allowed_names_the_filter_and_what_there_is() {
        for (filter, family, nodes) in [
            ("=eth7", None, NODE),
            ("eth", Some(AddressFamily::Inet6), "eth0 10.0.0.1"),
            ("", None, ""),
        ] {
            let e = chosen(nodes, filter, family).unwrap_err().to_string();
            assert!(e.contains(filter), "{e}");
            assert!(nodes.is_empty() || e.contains("eth0 (10.0.0.1)"), "{e}");
        }
    }

    #[test]
    fn filters_are_written_as_read() {
        // Blanks between would make it another list.
        for text in ["^ =eth0", "= ^eth0", " ^eth0", "==eth0", "eth0,^eth1"] {
            assert!(text.parse::<InterfaceFilter>().is_err(), "{text:?}");
        }
        for text in ["eth,ib", "=eth0", "^docker,lo", "^=eth3"] {
            assert_eq!(text.parse::<InterfaceFilter>().unwrap().to_string(), text);
        }
        for text in ["", "^", "=", "^=", ",", "^ ,"] {
            assert!(text.parse::<InterfaceFilter>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn this_machine_has_an_interface() {
        choose(&interfaces().unwrap(), None, None).unwrap();
    }
}
