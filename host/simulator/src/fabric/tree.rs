//! Leaves, spines of pods, and cores between pods.

use super::{Port, hash};

/// A tree of switches. Uplink `j` of each leaf leads to spine `j` of its pod, and uplink `c` of spine `j` to the core `(j, c)`.
#[derive(Debug)]
pub(super) struct SwitchTree {
    /// Ports of a host.
    ports: u32,
    /// Whether a leaf has one port of each host, or all.
    rails: bool,
    /// Hosts that share leaves.
    hosts: u32,
    /// Such groups in a pod.
    groups: u32,
    leaves: u32,
    pods: u32,
    /// Uplinks of a leaf.
    uplinks: u32,
    /// Uplinks of a spine; none where there is one pod.
    to_cores: u32,
}

impl SwitchTree {
    pub(super) fn new(
        (all, ports): (u32, u32),
        (hosts, groups): (u32, u32),
        oversubscription: f64,
        rails: bool,
    ) -> Self {
        let there = all.div_ceil(hosts.max(1)).max(1);
        let leaves = if rails { there * ports.max(1) } else { there };
        let ports_of_leaf = if rails { hosts } else { hosts * ports };
        let uplinks = ((f64::from(ports_of_leaf) / oversubscription) as u32).max(1);
        let pods = there.div_ceil(groups.max(1));
        let leaves_of_pod = groups.min(there) * if rails { ports.max(1) } else { 1 };
        let to_cores = if pods > 1 { leaves_of_pod } else { 0 };
        SwitchTree { ports: ports.max(1), rails, hosts, groups, leaves, pods, uplinks, to_cores }
    }

    /// Links between switches.
    pub(super) fn links(&self) -> u32 {
        2 * (self.leaves * self.uplinks + self.pods * self.uplinks * self.to_cores)
    }

    fn leaf(&self, (host, port): Port) -> u32 {
        let group = host / self.hosts;
        if self.rails { group * self.ports + port } else { group }
    }

    /// The way between the leaves of two ports.
    pub(super) fn route(&self, from: Port, to: Port, flow: u64, mut pass: impl FnMut(u32)) {
        let (a, b) = (self.leaf(from), self.leaf(to));
        if a == b {
            return;
        }
        let (of_leaves, of_spines) =
            (self.leaves * self.uplinks, self.pods * self.uplinks * self.to_cores);
        let pod = |host: u32| host / self.hosts / self.groups;
        let (p, q) = (pod(from.0), pod(to.0));
        let random = hash(&[flow, from.0.into(), from.1.into(), to.0.into(), to.1.into()]);
        let j = (random % u64::from(self.uplinks)) as u32;
        pass(a * self.uplinks + j);
        if p != q {
            let c = (random / u64::from(self.uplinks) % u64::from(self.to_cores)) as u32;
            pass(2 * of_leaves + (p * self.uplinks + j) * self.to_cores + c);
            pass(2 * of_leaves + of_spines + (q * self.uplinks + j) * self.to_cores + c);
        }
        pass(of_leaves + b * self.uplinks + j);
    }

    pub(super) fn name(&self, link: u32) -> String {
        let of_leaves = self.leaves * self.uplinks;
        let leaf = |link: u32| {
            let leaf = link / self.uplinks;
            if self.rails {
                format!("leaf {} of rail {}", leaf / self.ports, leaf % self.ports)
            } else {
                format!("leaf {leaf}")
            }
        };
        if link < of_leaves {
            return format!("{} to spine {}", leaf(link), link % self.uplinks);
        }
        if let Some(link) = link.checked_sub(of_leaves).filter(|link| *link < of_leaves) {
            return format!("spine {} to {}", link % self.uplinks, leaf(link));
        }
        let link = link - 2 * of_leaves;
        let each = self.to_cores.max(1);
        let of_spines = self.pods * self.uplinks * each;
        let at = link % of_spines;
        let (spine, core) = (at / each % self.uplinks, at % each);
        let pod = at / each / self.uplinks;
        if link < of_spines {
            format!("spine {spine} of pod {pod} to core {spine}.{core}")
        } else {
            format!("core {spine}.{core} to spine {spine} of pod {pod}")
        }
    }
}
