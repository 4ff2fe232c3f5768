//! Several hosts in one machine, for tests: network namespaces, joined by a switch.
//!
//! ```text
//!   namespace of host 0       namespace of the switch        namespace of host 1
//!   lo                                                                        lo
//!   eth0 10.213.0.1 ────────── port0 ─ bridge ─ port1 ────────── eth0 10.213.1.1
//!        fd00:213::1                                                  fd00:213::1:1
//! ```
//!
//! A host is a network of its own: another's loopback, abstract sockets and ports are not to be seen, nor are
//! those of the machine, whose network nothing here touches. What runs in it has the host's name for a hostname
//! and as `NCCL_HOSTID`, so that FerroCCL takes two of them for two machines. Files and process ids are the
//! machine's.
//!
//! Hosts may have several cards, `eth0`, `eth1`, ..., each on a switch of its own ([`Hosts::with_cards`]). They
//! can be cut off, be far away, lose what is sent, and die. Distance and loss are the work of a [`Cable`] and
//! not of the kernel's netem, which is a module that many machines have not.
//!
//! **Nothing is left.** Namespaces have no names: they, and the interfaces in them, go with the last process
//! that uses them. [`Hosts`] kills what runs in its hosts when it goes out of scope, by a panic too.
//!
//! It takes root, if only of a user namespace (`unshare -r cargo test ...`), and `ip` of iproute2. Where they
//! lack, [`Hosts::new`] says so, for `skip::skip`.
#![allow(dead_code, reason = "each test binary uses its part")]

mod cable;
mod namespace;

use std::ffi::OsStr;
use std::fs::Permissions;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cable::Cable;
use namespace::Namespace;

/// The interface by which a host reaches the others; 1500 bytes a frame, as on any Ethernet.
pub(crate) const INTERFACE: &str = "eth0";

/// Hosts have a byte of an address.
const MOST: usize = 255;

/// Hosts, numbered from 0, on one switch. Those of another `Hosts` are on another, with the same addresses.
#[derive(Debug)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    switch: Namespace,
    /// Cards of each host.
    cards: usize,
}

#[derive(Debug)]
struct Host {
    namespace: Namespace,
    /// What is between its port and the bridge, once it is far away or loses frames.
    cable: Mutex<Option<Cable>>,
}

impl Hosts {
    /// Makes `n` hosts of one card.
    ///
    /// # Errors
    /// As [`Hosts::with_cards`].
    pub(crate) fn new(n: usize) -> Result<Self, String> {
        Self::with_cards(n, 1)
    }

    /// Makes `n` hosts of so many cards. Card `c` of a host is its interface `ethC`, with the address `10.(213 + C).host.1`.
    ///
    /// # Errors
    /// Why this machine has none: no right to make namespaces, no `ip`, or what `ip` complains of.
    pub(crate) fn with_cards(n: usize, cards: usize) -> Result<Self, String> {
        if n > MOST {
            return Err(format!("{n} hosts are more than {MOST}"));
        }
        let switch = Namespace::new()?;
        // Without snooping the bridge passes every multicast on, as IPv6 needs to find neighbours.
        switch.ip(
            "link set lo up\nlink add bridge type bridge mcast_snooping 0\nlink set bridge up\n",
        )?;
        for card in 1..cards {
            switch.ip(&format!("link add bridge{card} type bridge\nlink set bridge{card} up\n"))?;
        }
        let mut hosts = Hosts { hosts: Vec::new(), switch, cards };
        for h in 0..n {
            let namespace = Namespace::new()?;
            let path = namespace.path();
            // Ports have no addresses: without `addrgenmode none` IPv6 would give them some.
            hosts.switch.ip(&format!(
                "link add port{h} type veth peer name {INTERFACE} netns {path}\n\
                 link set port{h} addrgenmode none master bridge up\n"
            ))?;
            let (v4, v6) = (hosts.ipv4(h), hosts.ipv6(h));
            // `nodad`: usable at once, not after a second of looking for others that have the address.
            namespace.ip(&format!(
                "link set lo up\n\
                 address add {v4}/16 dev {INTERFACE}\n\
                 address add {v6}/64 dev {INTERFACE} nodad\n\
                 link set {INTERFACE} up\n"
            ))?;
            for card in 1..cards {
                hosts.switch.ip(&format!(
                    "link add port{h}c{card} type veth peer name eth{card} netns {path}\n\
                     link set port{h}c{card} addrgenmode none master bridge{card} up\n"
                ))?;
                namespace.ip(&format!(
                    "address add 10.{}.{}.1/16 dev eth{card}\nlink set eth{card} up\n",
                    213 + card,
                    byte(h)
                ))?;
            }
            hosts.hosts.push(Host { namespace, cable: Mutex::new(None) });
        }
        Ok(hosts)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }

    /// The name of a host, which is its hostname and its `NCCL_HOSTID`. It cannot be looked up: use addresses.
    pub(crate) fn name(&self, h: usize) -> String {
        format!("host{h}")
    }

    /// A host's address.
    pub(crate) fn ipv4(&self, h: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, byte(h), 1)
    }

    /// A host's other address.
    pub(crate) fn ipv6(&self, h: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x213, 0, 0, 0, 0, byte(h).into(), 1)
    }

    /// A command that will run in host `h`, with `NCCL_HOSTID` and `NCCL_SOCKET_IFNAME` set. What it starts runs
    /// there, too.
    pub(crate) fn command(&self, h: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        // All that begin so, in their order, where there are several.
        let interfaces = if self.cards > 1 { "eth".to_owned() } else { format!("={INTERFACE}") };
        command.env("NCCL_HOSTID", self.name(h)).env("NCCL_SOCKET_IFNAME", interfaces);
        self.hosts[h].namespace.take_in(&mut command, &self.name(h));
        command
    }

    /// Writes a program that is to launchers what ssh is: `PROGRAM ADDRESS COMMAND...` runs a command in the host of
    /// that IPv4 address. (mpirun takes it as `--mca plm_rsh_agent`.)
    pub(crate) fn remote_shell(&self, path: &Path) -> Result<(), String> {
        let mut script = "#!/bin/sh\ncase $1 in\n".to_owned();
        for (h, host) in self.hosts.iter().enumerate() {
            let (address, net, name) = (self.ipv4(h), host.namespace.path(), self.name(h));
            script += &format!("{address}) net={net} name={name} ;;\n");
        }
        script += &format!(
            "*) echo \"no host $1\" >&2; exit 255 ;;\nesac\nshift\n\
             export NCCL_HOSTID=$name NCCL_SOCKET_IFNAME=={INTERFACE}\n\
             exec nsenter --net=$net unshare --uts \
             sh -c \"echo $name >/proc/sys/kernel/hostname; exec $*\"\n"
        );
        let written = std::fs::write(path, script)
            .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o755)));
        written.map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Runs `body` in this process, on a thread of host `h`; so are the sockets that it makes, for ever, and the
    /// threads. Commands it starts are in the host's network, but without the host's name.
    pub(crate) fn within<T: Send>(&self, h: usize, body: impl FnOnce() -> T + Send) -> T {
        self.hosts[h].namespace.within(body)
    }

    /// Pulls the host's cable: it has no carrier, and others hear nothing of it, not even that it is gone.
    pub(crate) fn cut(&self, h: usize) -> Result<(), String> {
        self.switch.ip(&format!("link set port{h} down\n"))
    }

    /// Plugs it in again. TCP goes on when it tries next: after up to as long as the host was cut off.
    pub(crate) fn restore(&self, h: usize) -> Result<(), String> {
        self.switch.ip(&format!("link set port{h} up\n"))
    }

    /// Whatever these two hosts send each other is lost, and nobody is told: each sends it to an Ethernet address that no
    /// card has. Others reach both.
    pub(crate) fn part(&self, one: usize, other: usize) -> Result<(), String> {
        for (from, to) in [(one, other), (other, one)] {
            let at = format!("lladdr 02:00:00:00:00:01 dev {INTERFACE} nud permanent");
            let (v4, v6) = (self.ipv4(to), self.ipv6(to));
            let lines = format!("neigh replace {v4} {at}\nneigh replace {v6} {at}\n");
            self.hosts[from].namespace.ip(&lines)?;
        }
        Ok(())
    }

    /// Bytes that each card of host `h` has sent.
    pub(crate) fn sent(&self, h: usize) -> Vec<u64> {
        let table = self.within(h, || std::fs::read_to_string("/proc/thread-self/net/dev"));
        let table = table.expect("a host's interfaces");
        // Behind the name: 8 columns of what was received, then the bytes that were sent (proc(5), /proc/net/dev).
        let sent = |card: usize| {
            let name = format!("eth{card}:");
            let line = table.lines().find_map(|line| line.trim().strip_prefix(&name))?;
            line.split_whitespace().nth(8)?.parse().ok()
        };
        (0..self.cards).map(|card| sent(card).expect("each card has a line")).collect()
    }

    /// Pulls the cable of one card of a host that has several.
    pub(crate) fn cut_card(&self, h: usize, card: usize) -> Result<(), String> {
        let port = if card == 0 { format!("port{h}") } else { format!("port{h}c{card}") };
        self.switch.ip(&format!("link set {port} down\n"))
    }

    /// What leaves host `h` by any of its cards passes at so many Mbit/s, each for itself (tc-tbf(8)).
    ///
    /// # Errors
    /// No `tc`, or a kernel without this queue.
    pub(crate) fn limit(&self, h: usize, megabits: u32) -> Result<(), String> {
        for card in 0..self.cards {
            let rate = format!("{megabits}mbit");
            let dev = format!("eth{card}");
            let args = ["qdisc", "add", "dev", &dev, "root", "tbf", "rate", &rate];
            let queue = ["burst", "256kb", "latency", "50ms"];
            let tc = self.command(h, "tc").args(args).args(queue).output();
            let tc = tc.map_err(|e| format!("tc: {e}"))?;
            if !tc.status.success() {
                return Err(format!("tc: {}", String::from_utf8_lossy(&tc.stderr).trim()));
            }
        }
        Ok(())
    }

    /// Every frame to or from host `h` takes so much longer: a round trip twice as much.
    pub(crate) fn delay(&self, h: usize, milliseconds: u64) -> Result<(), String> {
        self.on_cable(h, |cable| cable.set_delay(Duration::from_millis(milliseconds)))
    }

    /// So many of a hundred frames to host `h` are lost, and of those from it. Which ones follows from their
    /// number alone: nothing else is random.
    pub(crate) fn loss(&self, h: usize, percent: f64) -> Result<(), String> {
        self.on_cable(h, |cable| cable.set_loss(percent))
    }

    /// Kills every process that runs in host `h`, and waits until they are dead; the host remains. Their
    /// connections are closed by the kernel, as when a program crashes: for a power failure, cut first.
    pub(crate) fn kill(&self, h: usize) -> Result<(), String> {
        self.hosts[h].namespace.kill()
    }

    /// The processes of host `h` that live.
    pub(crate) fn processes(&self, h: usize) -> Vec<i32> {
        self.hosts[h].namespace.processes()
    }

    /// What `/proc/PID/ns/net` reads as for the processes of each host, and of the switch.
    pub(crate) fn links(&self) -> Vec<String> {
        let hosts = self.hosts.iter().map(|host| host.namespace.link());
        hosts.chain([self.switch.link()]).collect()
    }

    /// Does something to the cable of host `h`, which is put in when first asked for.
    fn on_cable(&self, h: usize, change: impl FnOnce(&Cable)) -> Result<(), String> {
        let host = &self.hosts[h];
        let mut cable = host.cable.lock().unwrap_or_else(PoisonError::into_inner);
        let there = match cable.take() {
            Some(cable) => cable,
            None => Cable::between(&self.switch, &host.namespace, h)?,
        };
        change(cable.insert(there));
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.hosts {
            let killed = host.namespace.kill();
            assert!(killed.is_ok() || std::thread::panicking(), "{killed:?}");
        }
    }
}

/// `new` has seen to it.
fn byte(h: usize) -> u8 {
    u8::try_from(h).expect("there are not so many hosts")
}
