//! The network card of a rank, and which cards reach its GPU's memory (GPU Direct RDMA).
//!
//! A rank on a GPU takes the nearest card, as NCCL does (`ncclTopoGetLocalNet`). Where both drivers can, and the card is near
//! enough (`NCCL_NET_GDR_LEVEL`), the card writes received data into the GPU's memory and reads sent data there. What the
//! proxy reads itself stays in the host's memory: headers, all slots of LL, and LL128's slots to send.
//!
//! ```text
//! Net::properties ─┐
//! Runtime::rdma ───┼─► choose ─► NetCard { device, gdr } ─► SlotPlacement (slots.rs) ─► EdgeEnd::slots ─► kernels, proxy
//! topology ────────┘
//! ```
//!
//! Each end decides for itself. A host with GPU Direct RDMA can be connected with a host without it.

mod slots;

use std::collections::BTreeSet;

use ferroccl_proxy::net::{Net, Properties};
use tracing::{info, warn};

pub(super) use self::slots::{RelayedSlotsHandle, ServedSlots, SlotPlacement};
use super::{fusion, graphs};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log;
use crate::runtime::{DeviceInfo, RdmaInfo};
use ferroccl_topology::path::direct;
use ferroccl_topology::{self as topology, BusId, LinkKind, NodeId, PathKind, System};

/// Slots may take one part in so many of a GPU's memory. Every rank on another host has slots, so that large groups would
/// leave little to the application.
const SHARE: usize = 8;

/// The card of a rank.
#[derive(Debug)]
pub(super) struct NetCard {
    /// Its number in the network.
    pub device: usize,
    /// How it and other cards reach the memory of the rank's GPU.
    pub gdr: GdrCards,
}

/// How cards reach a GPU's memory, as far as they do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GdrCards {
    /// By the network's device.
    by_device: Vec<Option<Gdr>>,
    /// Bytes of slots in the GPU's memory, at most.
    most: usize,
}

impl GdrCards {
    fn of(&self, device: usize) -> Option<Gdr> {
        self.by_device.get(device).copied().flatten()
    }

    /// Whether a card reads what is sent from the GPU's memory.
    fn reads(&self, device: usize) -> bool {
        self.of(device).is_some_and(|gdr| gdr.read)
    }

    /// The cards that do.
    fn that_read(&self) -> impl Iterator<Item = usize> {
        (0..self.by_device.len()).filter(|device| self.reads(*device))
    }
}

/// How a card reaches a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gdr {
    /// As a DMA buffer, or by its address.
    by: GdrAccess,
    /// Whether the card also reads there.
    read: bool,
    /// Whether the card's writes have to be flushed.
    flush: bool,
}

impl Gdr {
    /// Whether the card reaches memory by its address.
    fn has_address(self) -> bool {
        matches!(self.by, GdrAccess::Address | GdrAccess::DmaBuf { else_address: true })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GdrAccess {
    Address,
    DmaBuf { else_address: bool },
}

/// How far a card is from the GPU.
#[derive(Clone, Copy, Debug)]
struct Distance {
    kind: PathKind,
    bw: f64,
}

/// The GPU's place in the topology.
struct GpuLocality {
    system: System,
    gpu: Option<NodeId>,
    nvb: bool,
}

impl GpuLocality {
    /// # Errors
    /// When a file is asked for (`NCCL_TOPO_FILE`) that makes no sense.
    fn of(gpu: &DeviceInfo, net: &dyn Net, env: &Config) -> Result<Self> {
        let mut env = env.clone();
        env.topo_dump_file = None; // rank 0 writes it (`graphs`)
        let system = match topology::load(&env.topology_files()) {
            Err(error) if env.topo_file.is_none() => {
                warn!(target: log::NET, "which card is near {} is not known: {error}", gpu.name);
                System::default()
            }
            system => system?,
        };
        let system = fusion::merged(&system, net, false)?;
        let id = gpu.bus_id.parse::<BusId>().ok();
        let found = system.gpus().into_iter().find(|(_, gpu)| Some(gpu.bus_id) == id);
        let gpu = found.map(|(node, _)| node);
        Ok(GpuLocality { gpu, system, nvb: !env.nvb_disable })
    }

    /// The distance of a card, which is found by its name and port, or by its PCI device.
    fn distance(&self, card: &Properties) -> Option<Distance> {
        let id = graphs::pci_device(card);
        let nets = self.system.nets();
        // A virtual card is known by its name alone.
        let is_port = |port: u32| card.port == port || !card.members.is_empty();
        let named = nets.iter().find(|(_, net)| net.name == card.name && is_port(net.port));
        let placed = || {
            nets.iter().find(|(node, _)| id.is_some() && graphs::nic_of(&self.system, *node) == id)
        };
        let (net, _) = named.or_else(placed)?;
        let path = direct(&self.system, self.gpu?, *net, self.nvb);
        path.exists().then_some(Distance { kind: path.kind, bw: path.bw })
    }

    /// Whether the GPU is connected to a CPU by a chip-to-chip link.
    fn has_c2c(&self) -> bool {
        let c2c = |gpu| self.system.links_from(gpu).any(|(_, link)| link.kind == LinkKind::C2c);
        self.gpu.is_some_and(c2c)
    }

    /// How a card, to which the path is of this kind, reaches the GPU's memory.
    fn gdr(
        &self,
        name: &str,
        (gpu, rdma): (&DeviceInfo, Option<&RdmaInfo>),
        (card, kind): (&Properties, PathKind),
        env: &Config,
    ) -> Option<Gdr> {
        let decision = env.policy().gdr_at(kind);
        let by = rdma.map_or(Err("the GPU's driver does not offer it"), |rdma| by(card, rdma, env));
        let (gpu_name, card_name) = (&gpu.name, &card.name);
        let by = match by {
            Ok(by) if decision.allowed => by,
            by => {
                let why = by.err().map_or(decision.why, str::to_owned);
                info!(target: log::NET, "{name} : GPU Direct RDMA Disabled for {gpu_name} / {card_name}: {why}");
                return None;
            }
        };
        // NCCL leaves it out on some GPUs of a capability below 8.0 (`ncclTopoCheckGdr`), for which there are no kernels.
        let read = env.net_gdr_read;
        // Where data comes by PCI switches to a GPU with a chip-to-chip link, flags take another path than data, so that order
        // on one path is not enough (NCCL's `ncclTopoNeedFlush`).
        let two_paths = kind <= PathKind::Pxb && self.has_c2c();
        let ordered = rdma.is_some_and(|rdma| rdma.ordered) && !two_paths;
        let flush = env.net_force_flush || !ordered;
        info!(target: log::NET, "{name} : GPU Direct RDMA Enabled for {gpu_name} / {card_name} ({}), read {}, flush {}{}",
              decision.why, u32::from(read), u32::from(flush),
              if by == GdrAccess::Address { "" } else { ", DMA-BUF" });
        Some(Gdr { by, read, flush })
    }
}

/// The card for a rank of which `turn` others of the host come before, and how it and the cards `named` by channels reach the
/// GPU's memory.
///
/// # Errors
/// When the network has no device, or does not say what it is; a topology file that makes no sense.
pub(super) fn choose(
    net: &dyn Net,
    (gpu, rdma): (Option<&DeviceInfo>, Option<&RdmaInfo>),
    (turn, named): (usize, &BTreeSet<u32>),
    env: &Config,
) -> Result<NetCard> {
    let (devices, usable) = (net.devices(), fusion::usable(net)?);
    let in_turn = turn.checked_rem(usable.len()).map(|place| usable[place]);
    let in_turn = in_turn.ok_or_else(|| Error::Unavailable {
        what: format!("network {}", net.name()),
        reason: "it has no device".to_owned(),
    })?;
    let Some(gpu) = gpu else {
        return Ok(NetCard { device: in_turn, gdr: GdrCards::default() });
    };
    let around = GpuLocality::of(gpu, net, env)?;
    let cards = (0..devices).map(|device| net.properties(device));
    let cards = cards.collect::<std::result::Result<Vec<_>, _>>()?;
    // Members of virtual cards are not used by themselves.
    let distance = |(device, card)| around.distance(card).filter(|_| usable.contains(&device));
    let distances: Vec<_> = cards.iter().enumerate().map(distance).collect();
    let device = nearest(&distances, turn).unwrap_or(in_turn);
    let name = format!("NET/{}", net.name());
    let used = |card: usize| card == device || named.iter().any(|named| *named as usize == card);
    let gdr = |card: usize| {
        // A card that is not found in the topology counts as the farthest.
        let kind = distances[card].map_or(PathKind::Sys, |distance| distance.kind);
        used(card).then(|| around.gdr(&name, (gpu, rdma), (&cards[card], kind), env)).flatten()
    };
    let by_device: Vec<_> = (0..devices).map(gdr).collect();
    let any = by_device.iter().any(Option::is_some);
    let most = rdma.filter(|_| any).map_or(0, |rdma| rdma.memory / SHARE);
    Ok(NetCard { device, gdr: GdrCards { by_device, most } })
}

/// The nearest card; of several that are equally near, number `turn`.
fn nearest(distances: &[Option<Distance>], turn: usize) -> Option<usize> {
    let known = || (0..distances.len()).filter_map(|i| Some((i, distances[i]?)));
    let order = |a: &Distance, b: &Distance| a.kind.cmp(&b.kind).then(b.bw.total_cmp(&a.bw));
    let (_, best) = known().min_by(|(_, a), (_, b)| order(a, b))?;
    let equal: Vec<usize> =
        known().filter(|(_, d)| order(d, &best).is_eq()).map(|(i, _)| i).collect();
    equal.get(turn % equal.len().max(1)).copied()
}

/// How this card reaches memory of this GPU.
fn by(
    card: &Properties,
    rdma: &RdmaInfo,
    env: &Config,
) -> std::result::Result<GdrAccess, &'static str> {
    let address = card.cuda && rdma.by_address;
    match (card.dma_buf && rdma.dma_buf, env.dmabuf_enable) {
        (true, true) => Ok(GdrAccess::DmaBuf { else_address: address }),
        _ if address => Ok(GdrAccess::Address),
        (true, false) => Err("NCCL_DMABUF_ENABLE is 0, and nvidia_peermem is not there"),
        (false, _) => Err("the card's driver does not offer it"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ferroccl_proxy::NetError;
    use ferroccl_proxy::net::{Connecting, Listener};

    use super::*;

    /// Cards that nobody sends by.
    #[derive(Debug)]
    struct Cards(Vec<Properties>);

    impl Net for Cards {
        fn name(&self) -> &str {
            "IB"
        }

        fn devices(&self) -> usize {
            self.0.len()
        }

        fn properties(&self, device: usize) -> std::result::Result<Properties, NetError> {
            Ok(self.0[device].clone())
        }

        fn listen(&self, _: usize) -> std::result::Result<Box<dyn Listener>, NetError> {
            Err(NetError::new("IB", "listen", "nobody sends"))
        }

        fn connect(
            &self,
            _: usize,
            _: &[u8],
        ) -> std::result::Result<Box<dyn Connecting>, NetError> {
            Err(NetError::new("IB", "connect", "nobody sends"))
        }
    }

    fn card(name: &str, pci_path: Option<&str>) -> Properties {
        Properties {
            name: name.to_owned(),
            pci_path: pci_path.map(str::to_owned),
            guid: 0,
            speed: 200_000,
            port: 1,
            max_requests: 32,
            max_receives: 8,
            cuda: true,
            dma_buf: true,
            members: Vec::new(),
        }
    }

    fn mlx(numbers: &[u32]) -> Cards {
        Cards(numbers.iter().map(|n| card(&format!("mlx5_{n}"), None)).collect())
    }

    const ALL: RdmaInfo =
        RdmaInfo { by_address: true, dma_buf: true, ordered: true, memory: 80 << 30 };

    impl NetCard {
        /// How the rank's own card reaches the GPU's memory.
        fn own(&self) -> Option<Gdr> {
            assert_eq!(
                self.gdr.most,
                if self.gdr.of(self.device).is_some() { 10 << 30 } else { 0 }
            );
            self.gdr.of(self.device)
        }
    }

    /// Each two GPUs are on a switch with two cards.
    fn dgx() -> String {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topology_files");
        files.join("dgx-a100.xml").to_str().unwrap().to_owned()
    }

    fn gpu(bus_id: &str) -> DeviceInfo {
        DeviceInfo {
            name: "GPU".to_owned(),
            bus_id: bus_id.to_owned(),
            id: [0; 16],
            capability: 80,
            reach: Vec::new(),
        }
    }

    fn on_dgx(
        cards: &Cards,
        bus_id: &str,
        turn: usize,
        rdma: &RdmaInfo,
        settings: &[(&str, &str)],
    ) -> NetCard {
        let file = dgx();
        on(cards, bus_id, turn, rdma, &[settings, &[("NCCL_TOPO_FILE", &file)]].concat())
    }

    fn on(
        cards: &Cards,
        bus_id: &str,
        turn: usize,
        rdma: &RdmaInfo,
        settings: &[(&str, &str)],
    ) -> NetCard {
        let get = |name: &str| Some(settings.iter().find(|(n, _)| *n == name)?.1.to_owned());
        let env = Config::from_lookup(get).unwrap();
        choose(cards, (Some(&gpu(bus_id)), Some(rdma)), (turn, &BTreeSet::new()), &env).unwrap()
    }

    #[test]
    fn a_gpu_takes_the_nearest_card() {
        let all = mlx(&[7, 6, 5, 4, 3, 2, 1, 0]);
        for (bus_id, turn, number) in [
            ("0000:11:00.0", 0, 0),
            ("0000:13:00.0", 1, 1),
            ("0000:13:00.0", 2, 0),
            ("0000:21:00.0", 2, 3),
            ("0000:43:00.0", 7, 6),
        ] {
            let card = on_dgx(&all, bus_id, turn, &ALL, &[]);
            assert!(card.own().is_some());
            let name = &all.0[card.device].name;
            // Of two that are equally near the first in the network's order is the first.
            let near = [number, number ^ 1].map(|n| format!("mlx5_{n}"));
            assert!(near.contains(name), "{bus_id}, turn {turn}: {name}");
        }
        let two = [0, 1].map(|turn| on_dgx(&all, "0000:11:00.0", turn, &ALL, &[]).device);
        assert_ne!(two[0], two[1], "in turn");
        // A card that is known by its place alone.
        let path = "/sys/devices/pci0000:10/0000:10:00.0/0000:19:00.0";
        let by_place = Cards(vec![card("mlx5_7", None), card("own", Some(path))]);
        assert_eq!(on_dgx(&by_place, "0000:11:00.0", 0, &ALL, &[]).device, 1);
        // None is known: in turn.
        let unknown = Cards(vec![card("a", None), card("b", None)]);
        assert_eq!(on_dgx(&unknown, "0000:11:00.0", 3, &ALL, &[]).device, 1);
        // No GPU: in turn.
        let config = Config::from_lookup(|_| None).unwrap();
        let none = choose(&all, (None, None), (11, &BTreeSet::new()), &config).unwrap();
        assert_eq!((none.device, none.gdr.most), (3, 0));
        let empty = choose(&mlx(&[]), (None, None), (0, &BTreeSet::new()), &config).unwrap_err();
        assert!(empty.to_string().contains("no device"), "{empty}");
    }

    /// Both cards of a switch are one, which is as near as they are.
    #[test]
    fn a_virtual_card_stands_for_its_members() {
        let mut cards = mlx(&[7, 0, 1, 2, 3]);
        // The virtual card is where its first member is.
        cards.0[1].pci_path = Some("/sys/devices/pci0000:10/0000:10:00.0/0000:19:00.0".to_owned());
        cards.0.push(Properties { members: vec![1, 2], ..card("mlx5_0+mlx5_1", None) });
        for turn in 0..3 {
            let card = on_dgx(&cards, "0000:11:00.0", turn, &ALL, &[]);
            assert_eq!((card.device, card.own().is_some()), (5, true));
        }
        // No GPU: in turn, without those that are part of another one.
        let config = Config::from_lookup(|_| None).unwrap();
        let turns = (0..5).map(|turn| {
            choose(&cards, (None, None), (turn, &BTreeSet::new()), &config).unwrap().device
        });
        assert_eq!(turns.collect::<Vec<_>>(), [0, 3, 4, 5, 0]);
    }

    #[test]
    fn a_card_reaches_memory_where_it_is_near_and_can() {
        let gdr = |number, rdma: &RdmaInfo, settings: &[_]| {
            on_dgx(&mlx(&[number]), "0000:11:00.0", 0, rdma, settings).own()
        };
        let dma_buf = GdrAccess::DmaBuf { else_address: true };
        assert_eq!(gdr(0, &ALL, &[]), Some(Gdr { by: dma_buf, read: true, flush: false }));
        assert_eq!(gdr(7, &ALL, &[]), None, "at the other socket");
        assert!(gdr(7, &ALL, &[("NCCL_NET_GDR_LEVEL", "SYS")]).is_some());
        assert_eq!(gdr(0, &ALL, &[("NCCL_NET_GDR_LEVEL", "LOC")]), None);
        let forced = gdr(0, &ALL, &[("NCCL_NET_FORCE_FLUSH", "1")]);
        assert_eq!(forced, Some(Gdr { by: dma_buf, read: true, flush: true }));
        let unordered = RdmaInfo { ordered: false, ..ALL };
        let read = gdr(0, &unordered, &[("NCCL_NET_GDR_READ", "0")]);
        assert_eq!(read, Some(Gdr { by: dma_buf, read: false, flush: true }));
        let off = gdr(0, &ALL, &[("NCCL_DMABUF_ENABLE", "0")]);
        assert_eq!(off.map(|gdr| gdr.by), Some(GdrAccess::Address));
        let only_dma = RdmaInfo { by_address: false, ..ALL };
        let by = gdr(0, &only_dma, &[]).map(|gdr| gdr.by);
        assert_eq!(by, Some(GdrAccess::DmaBuf { else_address: false }));
        assert_eq!(gdr(0, &only_dma, &[("NCCL_DMABUF_ENABLE", "0")]), None);
        let only_address = RdmaInfo { dma_buf: false, ..ALL };
        assert_eq!(gdr(0, &only_address, &[]).map(|gdr| gdr.by), Some(GdrAccess::Address));
        let none = RdmaInfo { by_address: false, dma_buf: false, ..ALL };
        assert_eq!(gdr(0, &none, &[]), None);
    }

    /// A card that a channel names is looked at for itself, and one that nothing names is not.
    #[test]
    fn each_card_is_near_or_far_for_itself() {
        let get = |name: &str| (name == "NCCL_TOPO_FILE").then(dgx);
        let env = Config::from_lookup(get).unwrap();
        let (gpu, named) = (gpu("0000:11:00.0"), BTreeSet::from([2, 3]));
        let cards = mlx(&[2, 0, 1, 7]);
        let card = choose(&cards, (Some(&gpu), Some(&ALL)), (0, &named), &env).unwrap();
        assert_eq!(card.device, 1);
        let reached: Vec<usize> = card.gdr.that_read().collect();
        assert_eq!(reached, [1, 2], "mlx5_7 is at the other socket");
        let mut off = env;
        off.net_gdr_read = false;
        let card = choose(&cards, (Some(&gpu), Some(&ALL)), (0, &named), &off).unwrap();
        assert_eq!(card.gdr.that_read().count(), 0);
        assert!(card.gdr.of(2).is_some());
    }

    /// Data and flags both come through the CPU of the GPU's module.
    #[test]
    fn a_card_reaches_a_gpu_through_the_cpu_of_its_module() {
        let root = env!("CARGO_MANIFEST_DIR");
        let file = format!("{root}/tests/topology_files/gh200-4gpu.xml");
        let gdr = |settings: &[(&str, &str)]| {
            let all = [&[("NCCL_TOPO_FILE", file.as_str())], settings].concat();
            on(&mlx(&[0]), "0009:01:00.0", 0, &ALL, &all).own().map(|gdr| gdr.flush)
        };
        assert_eq!(gdr(&[]), Some(false));
        assert_eq!(gdr(&[("NCCL_NET_GDR_C2C", "0")]), None);
        assert_eq!(gdr(&[("NCCL_NET_GDR_C2C", "0"), ("NCCL_NET_GDR_LEVEL", "P2C")]), Some(false));
    }

    /// What a card writes comes by PCI there, and what the host says of it does not.
    #[test]
    fn order_means_nothing_where_there_are_two_ways() {
        let text = std::fs::read_to_string(dgx()).unwrap();
        let gpu = r#"<gpu dev="0" sm="80" rank="0" gdr="1">"#;
        for (c2c, flush) in [("", false), (r#"<c2c bw="44712" count="10"/>"#, true)] {
            let text = text.replacen(gpu, &format!("{gpu}{c2c}"), 1);
            let path = std::env::temp_dir().join(format!("gdr-{}-{flush}.xml", std::process::id()));
            std::fs::write(&path, text).unwrap();
            let settings = [("NCCL_TOPO_FILE", path.to_str().unwrap())];
            let card = on(&mlx(&[0]), "0000:11:00.0", 0, &ALL, &settings);
            std::fs::remove_file(&path).unwrap();
            assert_eq!(card.own().map(|gdr| gdr.flush), Some(flush), "{c2c}");
        }
    }
}
