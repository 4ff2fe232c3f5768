//! Systems that nobody built: random ones, by seed.

use crate::random::Random;

use ferroccl_topology::{
    Arch, BusId, Cpu, CpuSet, Gpu, LinkKind, Net, Nic, Node, NodeId, Pci, Policy, System, Vendor,
    speed,
};

fn bus_id(bus: u32) -> BusId {
    BusId { domain: bus >> 8, bus: bus as u8, device: 0, function: 0 }
}

/// A host: sockets, switches under them, GPUs and cards under those, and some way of joining the GPUs.
pub(crate) fn system(random: &mut Random) -> System {
    let mut system = System::default();
    let (arch, vendor, model) = random.pick(&[
        (Arch::X86, Vendor::Intel, 0x6a),
        (Arch::X86, Vendor::Amd, 0x31),
        (Arch::Arm, Vendor::Other, 0),
        (Arch::X86, Vendor::Zhaoxin, 0x5b),
        (Arch::Power, Vendor::Other, 0),
    ]);
    let mut cpus: Vec<NodeId> = Vec::new();
    for numa in 0..random.below(4) as u32 + 1 {
        let cores = numa as usize * 8..numa as usize * 8 + 8;
        let cpu = Cpu { numa, arch, vendor, family: 6, model, affinity: CpuSet::from_iter(cores) };
        let id = system.add(Node::Cpu(cpu.clone()));
        for other in &cpus {
            system.connect(*other, id, LinkKind::Sys, speed::between_cpus(&cpu));
        }
        cpus.push(id);
    }
    let mut parents = cpus.clone();
    let mut bus = 0;
    for _ in 0..random.below(7) {
        // Below a CPU or another switch.
        let parent = random.pick(&parents);
        bus += 1;
        let switch = system.add(Node::Pci(Pci { bus_id: bus_id(bus), device: [0; 4] }));
        system.connect(switch, parent, LinkKind::Pci, random.pick(&[12.0, 24.0, 48.0]));
        parents.push(switch);
    }
    let sm = random.pick(&[60, 70, 80, 86, 90, 100]);
    let gpus: Vec<NodeId> = (0..random.below(8) as u32 + 1)
        .map(|dev| {
            bus += 1;
            let gdr = random.chance(80);
            let gpu = system.add(Node::Gpu(Gpu { dev, rank: None, sm, gdr, bus_id: bus_id(bus) }));
            let parent = random.pick(&parents);
            system.connect(gpu, parent, LinkKind::Pci, random.pick(&[6.0, 12.0, 24.0, 48.0]));
            gpu
        })
        .collect();
    let link = speed::nvlink(sm);
    match random.below(4) {
        0 => {}
        1 => {
            let nvs = system.add(Node::Nvs);
            let count = random.below(18) + 1;
            gpus.iter().for_each(|gpu| {
                system.connect(*gpu, nvs, LinkKind::Nvl, link * count as f64);
            });
        }
        2 => {
            for (i, a) in gpus.iter().enumerate() {
                for b in &gpus[..i] {
                    if random.chance(60) {
                        let count = random.below(3) + 1;
                        system.connect(*a, *b, LinkKind::Nvl, link * count as f64);
                    }
                }
            }
        }
        _ => {
            for pair in gpus.chunks_exact(2) {
                system.connect(pair[0], pair[1], LinkKind::Nvl, link * 4.0);
            }
        }
    }
    for dev in 0..random.below(9) as u32 {
        bus += 1;
        let nic = system.add(Node::Nic(Nic { bus_id: Some(bus_id(bus)) }));
        let parent = random.pick(&parents);
        system.connect(nic, parent, LinkKind::Pci, random.pick(&[12.0, 24.0, 48.0]));
        let bw = random.pick(&[1.25, 12.5, 25.0, 50.0]);
        let net = system.add(Node::Net(Net {
            dev,
            name: format!("net{dev}"),
            port: 1,
            guid: u64::from(dev),
            bw,
            latency: 0.0,
            max_conn: 65536,
            gdr: random.chance(80),
            coll: false,
        }));
        system.connect(nic, net, LinkKind::Net, bw);
    }
    system
}

/// Some policy.
pub(crate) fn policy(random: &mut Random) -> Policy {
    use ferroccl_topology::{CrossNic, MessagePxn, PathKind};
    Policy {
        p2p_level: random.pick(&[
            None,
            None,
            Some(PathKind::Loc),
            Some(PathKind::Sys),
            Some(PathKind::Pix),
        ]),
        gdr_c2c: random.chance(70),
        pxn_c2c: random.chance(70),
        gdr_level: random.pick(&[None, None, Some(PathKind::Loc), Some(PathKind::Sys)]),
        shm: random.chance(95),
        nvb: random.chance(70),
        pxn: random.chance(70),
        message_pxn: MessagePxn::Always,
        cross_nic: random.pick(&[CrossNic::Never, CrossNic::Always, CrossNic::IfBetter]),
    }
}
