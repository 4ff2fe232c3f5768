//! Topology files, random systems, and what holds for every system.

use std::fmt::Write;

use ferroccl_topology::{LinkKind, Node, System};

use crate::random::Random;

/// The files, and what has to be assumed about each.
pub(crate) const FILES: [(&str, &str, &str); 7] = [
    (
        "aws-p4d-24xl-topo.xml",
        include_str!("../../../../../tests/topology_files/aws-p4d-24xl-topo.xml"),
        "sm=80,nvswitch=12",
    ),
    (
        "azure-ncv4-topo.xml",
        include_str!("../../../../../tests/topology_files/azure-ncv4-topo.xml"),
        "",
    ),
    (
        "azure-ndv4-topo.xml",
        include_str!("../../../../../tests/topology_files/azure-ndv4-topo.xml"),
        "sm=80,nvswitch=12",
    ),
    ("dgx-a100.xml", include_str!("../../../../../tests/topology_files/dgx-a100.xml"), ""),
    ("dgx1-v100.xml", include_str!("../../../../../tests/topology_files/dgx1-v100.xml"), ""),
    ("hgx-h100.xml", include_str!("../../../../../tests/topology_files/hgx-h100.xml"), ""),
    (
        "pcie-4gpu-no-nic.xml",
        include_str!("../../../../../tests/topology_files/pcie-4gpu-no-nic.xml"),
        "",
    ),
];

pub(crate) fn file(name: &str) -> (&'static str, &'static str, &'static str) {
    FILES.into_iter().find(|(known, ..)| *known == name).unwrap()
}

/// What holds for every system that a file may describe.
pub(crate) fn check(system: &System) -> Result<(), String> {
    let nodes = system.nodes().len();
    for link in system.links() {
        if link.from.0 as usize >= nodes || link.to.0 as usize >= nodes || link.from == link.to {
            return Err(format!("a link leads nowhere: {link:?}"));
        }
        if !link.bw.is_finite() || link.bw <= 0.0 {
            return Err(format!("a bandwidth that is none: {link:?}"));
        }
        let back =
            system.links_from(link.to).any(|(_, l)| l.to == link.from && l.kind == link.kind);
        if !back {
            return Err(format!("nothing leads back: {link:?}"));
        }
        let net = |id| matches!(system.node(id), Node::Net(_));
        if (net(link.from) || net(link.to)) != (link.kind == LinkKind::Net) {
            return Err(format!("a port is at its card only: {link:?}"));
        }
    }
    for (id, _) in system.nodes() {
        let mut out: Vec<_> = system.links_from(id).map(|(_, l)| (l.to, l.kind)).collect();
        let all = out.len();
        out.sort_unstable();
        out.dedup();
        if out.len() != all {
            return Err(format!("{}: two links where one would do", system.name(id)));
        }
        let alone = out.is_empty() && !matches!(system.node(id), Node::Cpu(_));
        if alone {
            return Err(format!("{} hangs by nothing", system.name(id)));
        }
    }
    let devs: Vec<u32> = system.gpus().iter().map(|(_, gpu)| gpu.dev).collect();
    if devs.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(format!("GPUs are not in order: {devs:?}"));
    }
    let devs: Vec<u32> = system.nets().iter().map(|(_, net)| net.dev).collect();
    if devs.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(format!("ports are not in order: {devs:?}"));
    }
    Ok(())
}

/// A machine that might be: sockets, nested switches, GPUs with links to each other, to switches or to their CPU,
/// cards on PCI and off it, numbers given or not.
pub(crate) fn random_system_xml(random: &mut Random) -> String {
    let mut maker = Maker { random, text: String::new(), bus: 0, gpus: Vec::new(), devs: 0 };
    maker.system();
    // Links name GPUs that come later: they are put in when all are known.
    let Maker { mut text, gpus, random, .. } = maker;
    let switched = random.below(2) == 0;
    for gpu in &gpus {
        let mut links = String::new();
        if switched {
            for switch in 0..1 + random.below(4) {
                let count = 1 + random.below(6);
                _ = write!(
                    links,
                    "<nvlink target=\"0000:f{switch}:00.0\" count=\"{count}\" tclass=\"0x068000\"/>"
                );
            }
        } else if random.below(3) != 0 {
            for other in &gpus {
                if random.below(2) == 0 {
                    let count = 1 + random.below(6);
                    _ = write!(
                        links,
                        "<nvlink tclass=\"0x030200\" count=\"{count}\" target=\"{other}\"/>"
                    );
                }
            }
        }
        if random.below(6) == 0 {
            _ = write!(
                links,
                "<c2c bw=\"{}\" count=\"{}\"/>",
                1 + random.below(99_999),
                1 + random.below(20)
            );
        }
        if random.below(9) == 0 {
            links.push_str("<nvlink target=\"0004:00:00.0\" count=\"3\" tclass=\"0x068001\"/>");
        }
        text = text.replace(&format!("@{gpu}@"), &links);
    }
    text
}

struct Maker<'a> {
    random: &'a mut Random,
    text: String,
    bus: u32,
    gpus: Vec<String>,
    devs: u32,
}

impl Maker<'_> {
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).unwrap();
    }

    fn system(&mut self) {
        self.put(format_args!("<system version=\"1\">\n"));
        for numa in 0..1 + self.random.below(4) {
            let vendor =
                self.random.pick(&["GenuineIntel", "AuthenticAMD", "  Shanghai  ", "Arm", ""]);
            let arch = self.random.pick(&["x86_64", "arm64", "ppc64", "riscv64", ""]);
            let (family, model) = (self.random.below(200), self.random.below(220));
            self.put(format_args!(
                "<cpu arch=\"{arch}\" vendor=\"{vendor}\" familyid=\"{family}\" modelid=\"{model}\""
            ));
            if self.random.below(2) == 0 {
                self.put(format_args!(" numaid=\"{}\"", numa * 3));
            }
            if self.random.below(2) == 0 {
                let (high, low) = (self.random.next() as u32, self.random.next() as u32);
                self.put(format_args!(" affinity=\"{high:08x},{low:08x}\""));
            }
            self.put(format_args!(">\n"));
            for _ in 0..self.random.below(4) {
                self.pci(0);
            }
            if self.random.below(3) == 0 {
                self.nic();
            }
            if self.random.below(5) == 0 {
                self.put(format_args!("<gpu sm=\"0\"/>\n"));
            }
            self.put(format_args!("</cpu>\n"));
        }
        self.put(format_args!("</system>\n"));
    }

    fn pci(&mut self, depth: u32) {
        self.bus += 1;
        let busid = format!("{:04x}:{:02x}:00.0", self.bus >> 8, self.bus & 255);
        let speed = self.random.pick(&[
            "2.5 GT/s",
            "5 GT/s",
            "8 GT/s",
            "16.0 GT/s PCIe",
            "32.0 GT/s PCIe",
            "64.0 GT/s PCIe",
            "Unknown",
            "",
        ]);
        let width = self.random.pick(&["1", "2", "4", "8", "16", "32", "3", "0", ""]);
        self.put(format_args!(
            "<pci busid=\"{busid}\" link_speed=\"{speed}\" link_width=\"{width}\""
        ));
        match self.random.below(if depth < 4 { 5 } else { 2 }) {
            0 => {
                let sm = self.random.pick(&["60", "70", "80", "86", "90", "100"]);
                self.put(format_args!(" class=\"0x030200\"><gpu sm=\"{sm}\""));
                if self.random.below(2) == 0 {
                    let dev = 100 - self.devs;
                    self.devs += 1;
                    self.put(format_args!(" dev=\"{dev}\" rank=\"{dev}\" gdr=\"0\""));
                }
                self.put(format_args!(">@{busid}@</gpu></pci>\n"));
                self.gpus.push(busid);
            }
            1 => {
                self.put(format_args!(" class=\"0x020000\">\n"));
                self.nic();
                self.put(format_args!("</pci>\n"));
            }
            _ => {
                let vendor = self.random.next() as u16;
                self.put(format_args!(" class=\"0x060400\" vendor=\"{vendor:#06x}\">\n"));
                for _ in 0..self.random.below(4) {
                    self.pci(depth + 1);
                }
                self.put(format_args!("</pci>\n"));
            }
        }
    }

    fn nic(&mut self) {
        self.put(format_args!("<nic>"));
        for _ in 0..self.random.below(3) {
            let speed =
                self.random.pick(&["10000", "25000", "100000", "400000", "12345", "0.1", "-1", ""]);
            let latency = self.random.pick(&["0", "1.5", "0.123456789", "3e-7"]);
            self.put(format_args!("<net speed=\"{speed}\" latency=\"{latency}\""));
            if self.random.below(2) == 0 {
                let dev = 100 - self.devs;
                self.devs += 1;
                self.put(format_args!(
                    " dev=\"{dev}\" name=\"a&lt;{dev}&#10;\" coll=\"1\" guid=\"{:x}\"",
                    dev * 7
                ));
            }
            self.put(format_args!("/>"));
        }
        self.put(format_args!("</nic>\n"));
    }
}
