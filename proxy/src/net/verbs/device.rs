//! Which ports there are, and what they are.

use std::ffi::c_int;
use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::Zeroable as _;
use tracing::{debug, warn};

use super::context::Context;
use super::error;
use super::library::{self, Library};
use super::sys;
use crate::NetError;
use crate::net::HcaFilter;

/// What a port's packets go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkLayer {
    InfiniBand,
    /// RoCE.
    Ethernet,
}

/// A port that can be used: a device of the network.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) context: Arc<Context>,
    /// From 1.
    pub(super) number: u8,
    pub(super) link: LinkLayer,
    /// In megabits a second.
    pub(super) speed: u32,
    pub(super) pci_path: Option<String>,
    /// Of the card: the same for all its ports.
    pub(super) guid: u64,
    /// Whether it registers DMA buffers.
    pub(super) dma_buf: bool,
}

/// A device of the network: a port, or several that are used as one.
#[derive(Debug)]
pub(super) struct VerbsDevice {
    /// At least one; all of one link layer.
    pub(super) ports: Vec<Arc<Port>>,
    /// Their numbers, where there are several.
    pub(super) members: Vec<usize>,
}

/// Ports of a device at most: NCCL's `NCCL_IB_MAX_DEVS_PER_NIC` (`net_ib.cc`).
pub(super) const MAX_PORTS: usize = 4;

impl VerbsDevice {
    /// Its name with the numbers of its ports: `mlx5_0:1+mlx5_1:1`.
    pub(super) fn name(&self) -> String {
        self.ports.iter().map(|port| port.name()).collect::<Vec<_>>().join("+")
    }

    pub(super) fn link(&self) -> LinkLayer {
        self.ports[0].link
    }
}

/// Where a port is found on its network, and by which of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortAddress {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
    pub(super) lid: u16,
    /// A code of `ibv_mtu`: 1 is 256 bytes, each further one twice as many.
    pub(super) mtu: u32,
    /// Bytes of a message at most.
    pub(super) max_message: u32,
}

/// The speed of a port that does not say, as of an interface (`net_socket.cc`).
const UNKNOWN_SPEED: u32 = 10_000;

fn sys_class(device: &str) -> PathBuf {
    Path::new("/sys/class/infiniband").join(device)
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// All ports that the filter allows, that are up, and of a transport that writes with immediate data.
pub(super) fn ports(library: &'static Library, filter: &HcaFilter) -> Result<Vec<Port>, NetError> {
    let mut count: c_int = 0;
    // SAFETY: the count is ours.
    let list = unsafe { (library.get_device_list)(&mut count) };
    if list.is_null() {
        let cause = std::io::Error::last_os_error();
        return Err(match cause.raw_os_error() {
            Some(libc::ENOSYS) => error("init", "no device: the kernel has no RDMA support"),
            _ => error("init", format!("no list of devices: {cause}")),
        });
    }
    let mut ports = Vec::new();
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has so many devices, and is freed below.
        unsafe { open(library, *list.add(i), filter, &mut ports) };
    }
    // SAFETY: the list's devices are not used any more; those that are open stay (ibv_get_device_list(3)).
    unsafe { (library.free_device_list)(list) };
    Ok(ports)
}

/// Adds a device's ports. A device that is broken is no reason to do without the others.
///
/// # Safety
/// The device is of a list that is not freed.
unsafe fn open(
    library: &'static Library,
    device: *mut sys::ibv_device,
    filter: &HcaFilter,
    ports: &mut Vec<Port>,
) {
    // SAFETY: the caller's.
    let (name, transport) =
        unsafe { (library::text((library.get_device_name)(device)), (*device).transport_type) };
    if transport != sys::IBV_TRANSPORT_IB {
        debug!("NET/IB: {name} is no InfiniBand or RoCE device");
        return;
    }
    // Devices that are not to be used are not even opened. Ports are numbered from 1, in 8 bits.
    if !(1..=u8::MAX).any(|port| filter.allows(&name, port)) {
        return;
    }
    // SAFETY: the caller's.
    let context = match unsafe { Context::shared(library, device, &name) } {
        Ok(context) => context,
        Err(error) => return warn!("NET/IB: {name} cannot be opened: {error}"),
    };
    let mut attributes = sys::ibv_device_attr::zeroed();
    // SAFETY: the context is open.
    let failed = unsafe { (library.query_device)(context.raw, &mut attributes) };
    if failed != 0 {
        return warn!("NET/IB: {name} does not say what it is (error {failed})");
    }
    let dma_buf = super::memory::takes_dma_buf(&context);
    let pci_path = fs::canonicalize(sys_class(&name).join("device")).ok();
    for number in (1..=attributes.phys_port_cnt).filter(|&port| filter.allows(&name, port)) {
        let Ok(port) = query(&context, number) else {
            warn!("NET/IB: {name}:{number} does not say what it is");
            continue;
        };
        let link = match port.link_layer {
            sys::IBV_LINK_LAYER_INFINIBAND | sys::IBV_LINK_LAYER_UNSPECIFIED => {
                LinkLayer::InfiniBand
            }
            sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => continue,
        };
        if port.state != sys::IBV_PORT_ACTIVE {
            debug!("NET/IB: {name}:{number} is not active");
            continue;
        }
        let rate = read(sys_class(&name).join(format!("ports/{number}/rate")));
        ports.push(Port {
            context: Arc::clone(&context),
            number,
            link,
            speed: rate.and_then(|rate| megabits(&rate)).unwrap_or(UNKNOWN_SPEED),
            pci_path: pci_path.as_ref().map(|path| path.to_string_lossy().into_owned()),
            guid: u64::from_be(attributes.sys_image_guid),
            dma_buf,
        });
    }
}

fn query(context: &Context, port: u8) -> Result<sys::ibv_port_attr, c_int> {
    let mut attributes = sys::ibv_port_attr::zeroed();
    // SAFETY: the context is open.
    match unsafe { (context.library.query_port)(context.raw, port, &mut attributes) } {
        0 => Ok(attributes),
        failed => Err(failed),
    }
}

/// A rate as of `/sys`, `2.5 Gb/sec (1X SDR)`.
fn megabits(rate: &str) -> Option<u32> {
    let gigabits: f64 = rate.split_whitespace().next()?.parse().ok()?;
    (gigabits > 0.0).then_some((gigabits * 1000.0) as u32)
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gid {
    index: u8,
    raw: [u8; 16],
    /// On Ethernet, which RoCE it is for.
    roce_v2: bool,
}

/// The entry that a link takes by itself.
fn choose(link: LinkLayer, gids: &[Gid]) -> Option<Gid> {
    let usable = gids.iter().filter(|gid| gid.raw[8..] != [0; 8]); // what has no interface part is empty
    match link {
        LinkLayer::InfiniBand => usable.min_by_key(|gid| gid.index).copied(),
        LinkLayer::Ethernet => usable
            .min_by_key(|gid| {
                let address = Ipv6Addr::from(gid.raw);
                let reach = match address.to_ipv4_mapped() {
                    Some(v4) if !v4.is_link_local() => 0,
                    None if !address.is_unicast_link_local() => 1,
                    _ => 2,
                };
                (!gid.roce_v2, reach, gid.index)
            })
            .copied(),
    }
}

impl Port {
    /// Its name with its number, as in `NCCL_IB_HCA`.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.context.name, self.number)
    }

    /// Where it is found now: addresses come and go.
    pub(super) fn address(&self, gid_index: Option<u8>) -> Result<PortAddress, String> {
        let port = query(&self.context, self.number).map_err(|failed| {
            format!("{} does not say what it is (error {failed})", self.name())
        })?;
        if port.state != sys::IBV_PORT_ACTIVE {
            return Err(format!("{} is down", self.name()));
        }
        let gid = match gid_index {
            Some(index) => self
                .gid(index)
                .ok_or_else(|| format!("{} has no GID {index} (NCCL_IB_GID_INDEX)", self.name()))?,
            None => {
                let last = u8::try_from(port.gid_tbl_len - 1).unwrap_or(u8::MAX);
                let gids: Vec<_> = (0..=last).filter_map(|index| self.gid(index)).collect();
                choose(self.link, &gids)
                    .ok_or_else(|| format!("{} has no address: no GID is set", self.name()))?
            }
        };
        Ok(PortAddress {
            gid: gid.raw,
            gid_index: gid.index,
            lid: port.lid,
            mtu: port.active_mtu,
            max_message: port.max_msg_sz,
        })
    }

    /// An entry of the table, if it is set.
    fn gid(&self, index: u8) -> Option<Gid> {
        let Context { library, raw, .. } = &*self.context;
        let mut gid = sys::ibv_gid::zeroed();
        // SAFETY: the context is open.
        let failed =
            unsafe { (library.query_gid)(*raw, self.number, c_int::from(index), &mut gid) };
        let raw = gid.raw;
        if failed != 0 || raw == [0; 16] {
            return None;
        }
        let (device, number) = (&self.context.name, self.number);
        let kind = read(sys_class(device).join(format!("ports/{number}/gid_attrs/types/{index}")));
        Some(Gid { index, raw, roce_v2: kind.is_some_and(|kind| kind == "RoCE v2") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_sysfs() {
        assert_eq!(megabits("2.5 Gb/sec (1X SDR)"), Some(2500));
        assert_eq!(megabits("400 Gb/sec (4X NDR)"), Some(400_000));
        assert_eq!((megabits(""), megabits("0 Gb/sec"), megabits("fast")), (None, None, None));
    }

    #[test]
    fn the_widest_address_of_the_newest_kind_is_chosen() {
        let gid = |index, address: &str, roce_v2| {
            let address: Ipv6Addr = address.parse().unwrap();
            Gid { index, raw: address.octets(), roce_v2 }
        };
        let table = [
            gid(0, "fe80::1", false),
            gid(1, "fe80::1", true),
            gid(2, "::ffff:10.0.0.1", false),
            gid(3, "2001:db8::1", true),
            gid(4, "::ffff:169.254.1.1", true),
            gid(5, "::ffff:10.0.0.1", true),
        ];
        let chosen = |gids: &[Gid]| choose(LinkLayer::Ethernet, gids).map(|gid| gid.index);
        assert_eq!(chosen(&table), Some(5));
        assert_eq!(chosen(&table[..5]), Some(3));
        assert_eq!(chosen(&table[..3]), Some(1), "RoCE v2, even on the link only");
        assert_eq!(chosen(&[table[0], table[2]]), Some(2));
        assert_eq!(chosen(&[gid(0, "fe80::", true)]), None);
        assert_eq!(chosen(&[]), None);
        assert_eq!(choose(LinkLayer::InfiniBand, &table[2..]).map(|gid| gid.index), Some(2));
    }
}
