//! Groups of routers. Messages take the shortest way: within a group one link, between groups one trunk.
//!
//! Source: Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology", 2008.

use super::Port;

/// A dragonfly. All ports of a host are on one router.
#[derive(Debug)]
pub(super) struct Dragonfly {
    ports: u32,
    hosts: u32,
    routers: u32,
    groups: u32,
    oversubscription: f64,
}

impl Dragonfly {
    pub(super) fn new(
        (all, ports): (u32, u32),
        (hosts, routers): (u32, u32),
        oversubscription: f64,
    ) -> Self {
        let groups = all.div_ceil(hosts.saturating_mul(routers).max(1)).max(1);
        Dragonfly { ports, hosts, routers, groups, oversubscription }
    }

    /// Links within groups, and behind them one from each group to each.
    pub(super) fn links(&self) -> u32 {
        self.inner() + self.groups * self.groups
    }

    fn inner(&self) -> u32 {
        self.groups * self.routers * self.routers
    }

    /// The ports of hosts whose bandwidth a link has. Within a group a router has twice that of its hosts, as what comes from other groups
    /// takes a second link; to other groups a group has that of its hosts.
    pub(super) fn ports_of(&self, link: u32) -> f64 {
        let of_router = f64::from(self.hosts * self.ports);
        if link < self.inner() {
            2.0 * of_router / f64::from(self.routers.saturating_sub(1).max(1))
        } else {
            let of_group = of_router * f64::from(self.routers);
            of_group / f64::from(self.groups.saturating_sub(1).max(1)) / self.oversubscription
        }
    }

    /// The router in a group that has the trunk to another group.
    fn gate(&self, to: u32) -> u32 {
        to % self.routers
    }

    pub(super) fn route(&self, from: Port, to: Port, mut pass: impl FnMut(u32)) {
        let place = |port: Port| {
            let router = port.0 / self.hosts;
            (router / self.routers, router % self.routers)
        };
        let ((g, a), (h, b)) = (place(from), place(to));
        let within = |group: u32, a: u32, b: u32, pass: &mut dyn FnMut(u32)| {
            if a != b {
                pass((group * self.routers + a) * self.routers + b);
            }
        };
        if g == h {
            within(g, a, b, &mut pass);
            return;
        }
        within(g, a, self.gate(h), &mut pass);
        pass(self.inner() + g * self.groups + h);
        within(h, self.gate(g), b, &mut pass);
    }

    pub(super) fn name(&self, link: u32) -> String {
        match link.checked_sub(self.inner()) {
            Some(link) => {
                format!("trunk of group {} to group {}", link / self.groups, link % self.groups)
            }
            None => {
                let (at, b) = (link / self.routers, link % self.routers);
                format!("group {}: router {} to {b}", at / self.routers, at % self.routers)
            }
        }
    }
}
