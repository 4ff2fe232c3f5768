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
//! Hosts can be cut off, be far away, lose what is sent, and die. Distance and loss are the work of a [`Cable`] and
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
}

#[derive(Debug)]
struct Host {
    namespace: Namespace,
    /// What is between its port and the bridge, once it is far away or loses frames.
    cable: Mutex<Option<Cable>>,
}

impl Hosts {
    /// Makes `n` hosts.
    ///
    /// # Errors
    /// Why this machine has none: no right to make namespaces, no `ip`, or what `ip` complains of.
    pub(crate) fn new(n: usize) -> Result<Self, String> {
        if n > MOST {
            return Err(format!("{n} hosts are more than {MOST}"));
        }
        let switch = Namespace::new()?;
        // Without snooping the bridge passes every multicast on, as IPv6 needs to find neighbours.
        switch.ip(
            "link set lo up\nlink add bridge type bridge mcast_snooping 0\nlink set bridge up\n",
        )?;
        let mut hosts = Hosts { hosts: Vec::new(), switch };
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
        command.env("NCCL_HOSTID", self.name(h)).env("NCCL_SOCKET_IFNAME", format!("={INTERFACE}"));
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
