//! Network ports: RDMA devices, or where there is none, network interfaces.
//!
//! As in NCCL one network serves all: with an RDMA port that is up, sockets are not used.

use std::path::Path;

use super::pci::address;
use super::sysfs::{self, Sys};
use crate::system::BusId;
use crate::xml::Element;

/// Connections of an RDMA device: what NCCL's files show for `mlx5` (its `max_qp`, which sysfs does not have).
const RDMA_CONNECTIONS: u32 = 131_072;

/// Connections of an interface: NCCL's limit for sockets.
const SOCKET_CONNECTIONS: u32 = 65_536;

/// Linux' `ARPHRD_LOOPBACK` (`include/uapi/linux/if_arp.h`).
const LOOPBACK: &str = "772";

/// Linux' `IFF_UP` (`include/uapi/linux/if.h`).
const UP: u32 = 1;

/// A port that is up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FoundNet {
    name: String,
    /// Its card; `None` for one that is not on PCI.
    pub(super) bus_id: Option<BusId>,
    port: u32,
    /// 10^6 bits a second, where known.
    speed: Option<u32>,
    guid: Option<u64>,
    connections: u32,
    gdr: bool,
}

impl FoundNet {
    /// As a `<net>` of a number.
    pub(super) fn element(&self, dev: usize) -> Element {
        let mut element = Element::new("net").with("name", &self.name).with("dev", dev);
        if let Some(speed) = self.speed {
            element.set("speed", speed);
        }
        element.set("port", self.port);
        element.set("latency", "0.000000");
        if let Some(guid) = self.guid {
            element.set("guid", format_args!("{guid:#x}"));
        }
        element.with("maxconn", self.connections).with("gdr", u8::from(self.gdr))
    }
}

/// The ports that are up; their places in this list are their numbers.
pub(super) fn find(sys: &Sys) -> Vec<FoundNet> {
    let rdma = rdma(sys);
    if rdma.is_empty() { sockets(sys) } else { rdma }
}

/// Whether the kernel lets cards reach GPUs' memory: the modules that NCCL looks for (`ibGdrSupportInitOnce`).
pub(super) fn peer_memory(sys: &Sys) -> bool {
    ["mm/memory_peers/nv_mem", "mm/memory_peers/nv_mem_nc"]
        .iter()
        .map(|module| format!("kernel/{module}/version"))
        .chain(["module/nvidia_peermem/version".to_owned()])
        .any(|path| sys.path(&path).exists())
}

/// The card behind a `device` link: a PCI device, or the one that a virtio device belongs to.
fn card(sys: &Sys, link: &Path) -> Option<BusId> {
    let real = sys.real(link)?;
    let virtio = real.file_name()?.to_str()?.starts_with("virtio");
    address(if virtio { real.parent()? } else { &real })
}

fn rdma(sys: &Sys) -> Vec<FoundNet> {
    let class = sys.path("class/infiniband");
    let gdr = peer_memory(sys);
    let mut found = Vec::new();
    for name in sysfs::names(&class) {
        let device = class.join(&name);
        let guid = sysfs::text(&device.join("node_guid")).map(|text| text.replace(':', ""));
        let guid = guid.and_then(|digits| u64::from_str_radix(&digits, 16).ok());
        for port in sysfs::names(&device.join("ports")) {
            let place = device.join("ports").join(&port);
            // "4: ACTIVE"
            let state = sysfs::text(&place.join("state")).unwrap_or_default();
            let Ok(port) = port.parse() else { continue };
            if !state.contains("ACTIVE") {
                continue;
            }
            // "200 Gb/sec (4X HDR)"
            let rate = sysfs::text(&place.join("rate")).unwrap_or_default();
            let gbits =
                rate.split_whitespace().next().and_then(|number| number.parse::<f64>().ok());
            found.push(FoundNet {
                name: name.clone(),
                bus_id: card(sys, &device.join("device")),
                port,
                speed: gbits.map(|gbits| gbits * 1000.0).and_then(sensible),
                guid,
                connections: RDMA_CONNECTIONS,
                gdr,
            });
        }
    }
    found
}

fn sockets(sys: &Sys) -> Vec<FoundNet> {
    let class = sys.path("class/net");
    let mut found = Vec::new();
    for name in sysfs::names(&class) {
        let place = class.join(&name);
        let text = |file: &str| sysfs::text(&place.join(file));
        let flags = text("flags").and_then(|text| {
            u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
        });
        let up = flags.is_some_and(|flags| flags & UP > 0)
            && text("operstate").is_none_or(|state| state == "up" || state == "unknown")
            && text("carrier").is_none_or(|carrier| carrier == "1");
        // A bridge, a tunnel, or a part of something that is listed itself.
        let other = ["bridge", "master", "tun_flags"];
        let other = other.iter().any(|file| place.join(file).symlink_metadata().is_ok());
        if !up || other || text("type").is_none_or(|kind| kind == LOOPBACK) {
            continue;
        }
        found.push(FoundNet {
            bus_id: card(sys, &place.join("device")),
            port: 0,
            speed: text("speed").and_then(|text| text.parse().ok()).and_then(sensible),
            guid: None,
            connections: SOCKET_CONNECTIONS,
            gdr: false,
            name,
        });
    }
    found
}

/// A speed in 10^6 bits a second that a port may have; drivers that do not know say -1, 0 or 2^32 - 1.
fn sensible(mbits: f64) -> Option<u32> {
    (1.0..=10e6).contains(&mbits).then_some(mbits as u32)
}
