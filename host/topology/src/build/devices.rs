//! Elements of a topology file, one by one, into the draft.

use super::pci::PciLink;
use super::{Draft, GpuDraft, MOST_CPUS, MOST_DEVICES, NetDraft, NvLink, Place, Target};
use crate::assume::{MOST_MBITS, MOST_NVLINKS, SM};
use crate::speed;
use crate::system::{Arch, BusId, Cpu, CpuSet, Gpu, LinkKind, Net, Nic, Pci, Vendor};
use crate::xml::{Located, MOST_DEPTH, XmlError};

/// What `NVML` calls an `NVSwitch` that a virtual machine does not see, cut to the length of NCCL's buffer.
pub(crate) const UNSEEN_SWITCH: &str = "fffffff:ffff:ff";

/// The PCI class of an `NVSwitch`.
pub(crate) const NVSWITCH_CLASS: &str = "0x068000";

/// Connections of a port that does not say: NCCL's `MAXCHANNELS`.
const USUAL_CONNECTIONS: u32 = 64;

/// Numbers of devices and NUMA nodes at most: more than anybody has, so that a slip is noticed.
const MOST_NUMBER: u32 = 65_535;

/// C2C bandwidth of one link at most, 10^6 bytes a second: ten times that of a GB200.
pub(crate) const MOST_C2C_MBYTES: u32 = 10_000_000;

/// Latency of a port at most, in microseconds: one second.
const MOST_LATENCY: f64 = 1e6;

/// What kind of device a PCI class is, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Gpu,
    Nic,
    NvSwitch,
    /// A CPU with `NVLink`s (POWER).
    Cpu,
    Bridge,
    Other,
}

impl Class {
    /// Of `0x030200` and the like; fewer digits are a class without its subclass.
    pub(crate) fn of(text: &str) -> Class {
        let digits = text.trim().to_ascii_lowercase();
        let digits = digits.strip_prefix("0x").unwrap_or(&digits);
        // PCI Code and ID Assignment Specification: 03 display, 02 network, 0604 PCI to PCI bridge, 0680 other
        // bridge (an NVSwitch with programming interface 00, an NVLink bridge of a POWER CPU with 01).
        match digits {
            _ if digits.starts_with("03") => Class::Gpu,
            _ if digits.starts_with("02") => Class::Nic,
            _ if digits.starts_with("068000") => Class::NvSwitch,
            "068001" | "060401" => Class::Cpu,
            _ if digits.starts_with("0604") => Class::Bridge,
            _ => Class::Other,
        }
    }
}

impl<'a> Draft<'a> {
    pub(super) fn cpu(&mut self, at: Located<'a>) -> Result<(), XmlError> {
        if self.cpus.len() == MOST_CPUS {
            return Err(at.error(format!("more than {MOST_CPUS} NUMA nodes")));
        }
        // -1 is a machine without NUMA.
        let numa = at.number("numaid", -1..=i64::from(MOST_NUMBER))?;
        let numa = numa.and_then(|numa| u32::try_from(numa).ok());
        if numa.is_some() && self.cpus.iter().any(|(other, _)| *other == numa) {
            return Err(at.wrong("numaid", "another <cpu> has it already"));
        }
        let vendor = match at.text("vendor").map(str::trim) {
            Some("GenuineIntel") => Vendor::Intel,
            Some("AuthenticAMD") => Vendor::Amd,
            Some("CentaurHauls" | "Shanghai") => Vendor::Zhaoxin,
            _ => Vendor::Other,
        };
        let arch = match at.text("arch").map(str::trim) {
            Some("x86_64") => Arch::X86,
            Some("arm64" | "aarch64") => Arch::Arm,
            Some("ppc64" | "ppc64le") => Arch::Power,
            // These make no other.
            None if vendor != Vendor::Other => Arch::X86,
            _ => Arch::Other,
        };
        let cpu = Cpu {
            numa: 0,
            arch,
            vendor,
            family: at.number("familyid", 0..=MOST_NUMBER)?.unwrap_or(0),
            model: at.number("modelid", 0..=MOST_NUMBER)?.unwrap_or(0),
            affinity: at.parsed::<CpuSet>("affinity")?.unwrap_or_default(),
        };
        let place = self.cpus.len();
        self.cpus.push((numa, cpu));
        for child in at.children() {
            match child.name() {
                "pci" => self.pci(child, Place::Cpu(place), place, 1)?,
                "nic" => {
                    let nic = self.nic(child, None)?;
                    self.tree.push((nic, Place::Cpu(place), LinkKind::Loc, speed::LOC));
                    self.ports(child, nic)?;
                }
                "gpu" => self.cpu_device(child, place)?,
                "net" => return Err(child.error("outside of a <nic>")),
                "nvlink" | "c2c" => return Err(child.error("outside of a <gpu>")),
                _ => self.pass_over(child),
            }
        }
        Ok(())
    }

    fn pci(
        &mut self,
        at: Located<'a>,
        above: Place,
        cpu: usize,
        depth: usize,
    ) -> Result<(), XmlError> {
        if depth > MOST_DEPTH {
            return Err(at.error(format!("more than {MOST_DEPTH} elements in one another")));
        }
        let Some(bus_id) = at.parsed::<BusId>("busid")? else { return Err(at.missing("busid")) };
        if let Some(line) = self.bus_ids.insert(bus_id, at.element().line) {
            return Err(at.wrong("busid", format!("another device has it already (line {line})")));
        }
        let link = PciLink::read(at)?;
        let bw = link.bw(self.assume);
        let mut device = None;
        let mut first_pci = None;
        let mut pci_link = None;
        for child in at.children() {
            match child.name() {
                "gpu" | "nic" if device.is_some() => {
                    return Err(child.error("a second device in one <pci>"));
                }
                "gpu" | "nic" => device = Some(child),
                "pci" => first_pci = first_pci.or(Some(child)),
                "pcilink" => pci_link = pci_link.or(Some(child)),
                "net" => return Err(child.error("outside of a <nic>")),
                "nvlink" | "c2c" => return Err(child.error("outside of a <gpu>")),
                _ => self.pass_over(child),
            }
        }
        if let (Some(below), Some(device)) = (first_pci, device) {
            return Err(below.error(format!("below the <{}> of its <pci>", device.name())));
        }
        if let (Some(link), Some(_)) = (pci_link, device) {
            return Err(link.error("outside of a switch"));
        }
        let class = at.text("class").map(Class::of);
        match (device, class) {
            (Some(device), _) if device.name() == "gpu" => {
                let gpu = self.gpu(device, bus_id, cpu)?;
                self.tree.push((gpu, above, LinkKind::Pci, bw));
            }
            (Some(device), _) => {
                let nic = self.nic(device, Some(bus_id))?;
                self.tree.push((nic, above, LinkKind::Pci, bw));
                self.ports(device, nic)?;
            }
            (None, None) if first_pci.is_none() => return Err(at.missing("class")),
            (None, Some(Class::Gpu)) if first_pci.is_none() => {
                if let Some(vendor) = at.hexadecimal("vendor", 0xffff)?
                    && vendor != NVIDIA
                {
                    self.note(at, "a display device that is no GPU of NVIDIA's, left out");
                    return Ok(());
                }
                let gpu = self.unnamed_gpu(at, bus_id, cpu)?;
                self.tree.push((gpu, above, LinkKind::Pci, bw));
            }
            (None, Some(Class::Nic)) if first_pci.is_none() => {
                let nic = self.nic(at, Some(bus_id))?;
                self.tree.push((nic, above, LinkKind::Pci, bw));
                self.unnamed_port(at, nic, link)?;
            }
            // What joins GPUs is in their <nvlink>s.
            (None, Some(Class::NvSwitch)) if first_pci.is_none() => {}
            (None, Some(Class::Other | Class::Cpu)) if first_pci.is_none() => {
                self.note(at, "neither a GPU, a network card nor a switch, left out");
            }
            (None, _) => {
                self.room(at, self.pcis.len(), "PCI switches")?;
                let part = |name| at.hexadecimal(name, 0xffff).map(|id| id.unwrap_or(0) as u16);
                let device = [
                    part("vendor")?,
                    part("device")?,
                    part("subsystem_vendor")?,
                    part("subsystem_device")?,
                ];
                for link in at.children().filter(|child| child.name() == "pcilink") {
                    let Some(target) = link.parsed::<BusId>("target")? else {
                        return Err(link.missing("target"));
                    };
                    self.pci_links.push((link, self.pcis.len(), target));
                }
                let place = Place::Pci(self.pcis.len());
                self.pcis.push(Pci { bus_id, device });
                self.tree.push((place, above, LinkKind::Pci, bw));
                for child in at.children().filter(|child| child.name() == "pci") {
                    self.pci(child, place, cpu, depth + 1)?;
                }
            }
        }
        Ok(())
    }

    fn room(&self, at: Located<'_>, number: usize, what: &str) -> Result<(), XmlError> {
        if number < MOST_DEVICES {
            return Ok(());
        }
        Err(at.error(format!("more than {MOST_DEVICES} {what}")))
    }

    fn gpu(&mut self, at: Located<'a>, bus_id: BusId, cpu: usize) -> Result<Place, XmlError> {
        let Some(sm) = at.number("sm", SM)?.or(self.assume.sm) else {
            let how = "missing; --assume sm=N gives the compute capability (times ten)";
            return Err(XmlError { reason: how.into(), ..at.missing("sm") });
        };
        let mut nvlinks = Vec::new();
        let mut c2c = 0.0;
        for child in at.children() {
            match child.name() {
                "nvlink" => nvlinks.push(self.nvlink(child)?),
                "c2c" if c2c > 0.0 => return Err(child.error("a second <c2c> of one GPU")),
                "c2c" => {
                    let part = |name, most| {
                        child.number(name, 1..=most)?.ok_or_else(|| child.missing(name))
                    };
                    let (bw, count) = (part("bw", MOST_C2C_MBYTES)?, part("count", MOST_NVLINKS)?);
                    c2c = speed::c2c(f64::from(bw) * f64::from(count));
                }
                "gpu" | "pci" | "nic" | "net" => return Err(child.error("inside of a <gpu>")),
                _ => self.pass_over(child),
            }
        }
        let gdr = at.flag("gdr")?.or(self.assume.gdr).unwrap_or(true);
        self.add_gpu(at, Gpu { dev: 0, rank: rank(at)?, sm, gdr, bus_id }, cpu, nvlinks, c2c)
    }

    /// A GPU of which the file says only where it is.
    fn unnamed_gpu(
        &mut self,
        at: Located<'a>,
        bus_id: BusId,
        cpu: usize,
    ) -> Result<Place, XmlError> {
        let Some(sm) = self.assume.sm else {
            let how = "a GPU without <gpu>, whose compute capability is not known: --assume sm=N gives it (times ten)";
            return Err(at.wrong("busid", how));
        };
        let gdr = self.assume.gdr.unwrap_or(true);
        self.add_gpu(at, Gpu { dev: 0, rank: None, sm, gdr, bus_id }, cpu, Vec::new(), 0.0)
    }

    /// The CPU device of a NUMA node: this library's own, which NCCL passes over.
    fn cpu_device(&mut self, at: Located<'a>, cpu: usize) -> Result<(), XmlError> {
        if at.number("sm", 0..=*SM.end())?.unwrap_or(1) > 0 {
            return Err(at.error("outside of a <pci>, where only a CPU device (sm=\"0\") may be"));
        }
        if let Some(child) = at.children().next() {
            return Err(child.error("a CPU device has no links but to its CPU"));
        }
        let gdr = at.flag("gdr")?.unwrap_or(false);
        let gpu = Gpu { dev: 0, rank: rank(at)?, sm: 0, gdr, bus_id: BusId::default() };
        let place = self.add_gpu(at, gpu, cpu, Vec::new(), 0.0)?;
        self.tree.push((place, Place::Cpu(cpu), LinkKind::Loc, speed::CPU_DEVICE));
        Ok(())
    }

    fn add_gpu(
        &mut self,
        at: Located<'a>,
        gpu: Gpu,
        cpu: usize,
        nvlinks: Vec<NvLink<'a>>,
        c2c: f64,
    ) -> Result<Place, XmlError> {
        self.room(at, self.gpus.len(), "GPUs")?;
        // A <pci> that stands for its GPU has no such attribute.
        let dev = at.number("dev", 0..=MOST_NUMBER)?;
        self.gpus.push(GpuDraft { at, dev, gpu, cpu, nvlinks, c2c });
        Ok(Place::Gpu(self.gpus.len() - 1))
    }

    fn nvlink(&mut self, at: Located<'a>) -> Result<NvLink<'a>, XmlError> {
        self.has_nvlinks = true;
        let target = at.required("target")?;
        let class = at.text("tclass").map(Class::of);
        let Some(count) = at.number("count", 1..=MOST_NVLINKS)? else {
            return Err(at.missing("count"));
        };
        let address = at.parsed::<BusId>("target");
        let target = match class {
            _ if target == UNSEEN_SWITCH => Target::Switch,
            Some(Class::NvSwitch) => address.map(|_| Target::Switch)?,
            Some(Class::Cpu) => address.map(|_| Target::Cpu)?,
            Some(Class::Gpu) => address?.map(Target::Gpu).ok_or_else(|| at.missing("target"))?,
            None => address?.map(Target::GpuOrSwitch).ok_or_else(|| at.missing("target"))?,
            Some(_) => {
                return Err(at.wrong("tclass", "no class of a GPU, an NVSwitch or a CPU"));
            }
        };
        Ok(NvLink { at, target, count })
    }

    fn nic(&mut self, at: Located<'_>, bus_id: Option<BusId>) -> Result<Place, XmlError> {
        self.room(at, self.nics.len(), "network cards")?;
        self.nics.push(Nic { bus_id });
        Ok(Place::Nic(self.nics.len() - 1))
    }

    /// The `<net>`s of a `<nic>`.
    fn ports(&mut self, at: Located<'a>, nic: Place) -> Result<(), XmlError> {
        for child in at.children() {
            match child.name() {
                "net" if child.flag("net")? == Some(false) => {
                    self.note(child, "part of another port (net=\"0\"), left out");
                }
                "net" => self.port(child, nic)?,
                "pci" | "gpu" | "nic" | "nvlink" | "c2c" => {
                    return Err(child.error("inside of a <nic>"));
                }
                _ => self.pass_over(child),
            }
        }
        Ok(())
    }

    fn port(&mut self, at: Located<'a>, nic: Place) -> Result<(), XmlError> {
        let speed = at.decimal("speed", -1.0..=f64::from(MOST_MBITS))?;
        // Drivers of ports that do not know say 0 or -1.
        let speed = match speed.filter(|speed| *speed != 0.0 && *speed != -1.0) {
            Some(speed) if speed < 0.0 => {
                return Err(at.wrong("speed", "less than nothing"));
            }
            speed => speed.or(self.assume.net.map(f64::from)).unwrap_or(0.0),
        };
        let net = Net {
            dev: 0,
            name: at.text("name").unwrap_or_default().to_owned(),
            port: at.number("port", 0..=MOST_NUMBER)?.unwrap_or(0),
            guid: 0,
            bw: speed::net(speed),
            latency: at.decimal("latency", 0.0..=MOST_LATENCY)?.unwrap_or(0.0),
            max_conn: at.number("maxconn", 1..=i32::MAX as u32)?.unwrap_or(USUAL_CONNECTIONS),
            gdr: at.flag("gdr")?.or(self.assume.gdr).unwrap_or(false),
            coll: at.flag("coll")?.unwrap_or(false),
        };
        self.add_port(at, nic, net)
    }

    /// The port of a card of which the file says only where it is.
    fn unnamed_port(&mut self, at: Located<'a>, nic: Place, link: PciLink) -> Result<(), XmlError> {
        let assumed = self.assume.net.map(f64::from);
        let net = Net {
            dev: 0,
            name: String::new(),
            port: 1,
            guid: 0,
            bw: speed::net(assumed.unwrap_or_else(|| link.port_mbits(self.assume))),
            latency: 0.0,
            max_conn: USUAL_CONNECTIONS,
            gdr: self.assume.gdr.unwrap_or(true),
            coll: false,
        };
        if assumed.is_none() {
            let mbits = (net.bw * 8000.0).round();
            let what = "a card without <net>: as fast a port as its PCI link is made for";
            self.note(at, format!("{what}, {mbits} Mbit/s; --assume net=N gives another speed"));
        }
        self.add_port(at, nic, net)
    }

    fn add_port(&mut self, at: Located<'a>, nic: Place, net: Net) -> Result<(), XmlError> {
        self.room(at, self.nets.len(), "network ports")?;
        let place = Place::Net(self.nets.len());
        let dev = at.number("dev", 0..=MOST_NUMBER)?;
        let guid = at.hexadecimal("guid", u64::MAX)?;
        self.tree.push((nic, place, LinkKind::Net, net.bw));
        self.nets.push(NetDraft { at, dev, guid, net });
        Ok(())
    }
}

/// PCI vendor.
const NVIDIA: u64 = 0x10de;

/// The rank of a `<gpu>`; -1 is none.
fn rank(at: Located<'_>) -> Result<Option<u32>, XmlError> {
    let rank = at.number("rank", -1..=i64::from(i32::MAX))?;
    Ok(rank.and_then(|rank| u32::try_from(rank).ok()))
}
