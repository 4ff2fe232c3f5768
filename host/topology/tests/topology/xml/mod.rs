//! Topology files: what real ones say, that writing is the way back, and that nothing in a file does harm.

mod hostile;
mod support;

use self::support::{FILES, check, file, random_system_xml};
use crate::random::Random;
use ferroccl_topology::build::{self, Built};
use ferroccl_topology::xml::{self, Element};
use ferroccl_topology::{
    Arch, Assume, LinkKind, Node, NodeId, System, TopologyError, Vendor, dump,
};

fn read(name: &str) -> Built {
    let (_, text, assume) = FILES.into_iter().find(|(known, ..)| *known == name).unwrap();
    built(text, assume).unwrap()
}

fn built(text: &str, assume: &str) -> Result<Built, TopologyError> {
    let root = xml::parse(text, "topo.xml")?;
    build::system(&root, "topo.xml", &assume.parse::<Assume>()?)
}

/// Bandwidth of the link of a kind from one node to the next, by their names.
fn bw(system: &System, from: &str, to: &str, kind: LinkKind) -> Option<f64> {
    let named = |id: NodeId, name: &str| system.name(id) == name;
    let mut links = system.links().iter();
    links.find(|l| l.kind == kind && named(l.from, from) && named(l.to, to)).map(|l| l.bw)
}

#[test]
fn a_dgx_a100_is_8_gpus_on_switches() {
    let Built { system, notes } = read("dgx-a100.xml");
    assert_eq!(notes, [""; 0]);
    let devs: Vec<u32> = system.gpus().iter().map(|(_, gpu)| gpu.dev).collect();
    assert_eq!(devs, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((system.nets().len(), system.cpus().len()), (8, 4));
    assert_eq!(bw(&system, "GPU 3", "NVS", LinkKind::Nvl), Some(240.0), "12 links of 20");
    assert_eq!(bw(&system, "NVS", "GPU 3", LinkKind::Nvl), Some(240.0));
    assert_eq!(bw(&system, "GPU 0", "PCI 0000:10:00.0", LinkKind::Pci), Some(24.0));
    assert_eq!(bw(&system, "NIC 0000:19:00.0", "NET 0", LinkKind::Net), Some(25.0));
    assert_eq!(bw(&system, "CPU 0", "CPU 3", LinkKind::Sys), Some(16.0));
    let nvs = system.nodes().filter(|(_, node)| matches!(node, Node::Nvs)).count();
    assert_eq!(nvs, 1, "six switches are one");
    let (_, cpu) = system.cpus()[0];
    assert_eq!((cpu.arch, cpu.vendor, cpu.family, cpu.model), (Arch::X86, Vendor::Amd, 143, 49));
    assert_eq!(cpu.affinity.iter().count(), 64);
    let (_, net) = system.nets()[2];
    assert_eq!((net.name.as_str(), net.port, net.max_conn, net.gdr), ("mlx5_2", 1, 131_072, true));
    assert_eq!(net.guid, 0xa0b0_c0d0_e0f0_0002);
}

#[test]
fn a_dgx_1_is_a_mesh_and_no_cable_counts_twice() {
    let system = read("dgx1-v100.xml").system;
    assert!(!system.has_nvswitch());
    for (gpu, _) in system.gpus() {
        let out: f64 = system
            .links_from(gpu)
            .filter(|(_, link)| link.kind == LinkKind::Nvl)
            .map(|(_, link)| link.bw)
            .sum();
        assert_eq!(out, 120.0, "{}: a V100 has 6 links of 20", system.name(gpu));
    }
    assert_eq!(bw(&system, "GPU 4", "GPU 7", LinkKind::Nvl), Some(40.0));
    assert_eq!(bw(&system, "GPU 7", "GPU 4", LinkKind::Nvl), Some(40.0));
}

#[test]
fn an_hgx_h100_is_18_links_and_a_port_a_gpu() {
    let system = read("hgx-h100.xml").system;
    assert_eq!(bw(&system, "GPU 0", "NVS", LinkKind::Nvl), Some(18.0 * 20.6));
    assert_eq!(bw(&system, "NIC 0000:89:00.0", "NET 7", LinkKind::Net), Some(50.0));
    assert_eq!(bw(&system, "CPU 0", "CPU 1", LinkKind::Sys), Some(22.0), "Sapphire Rapids");
}

#[test]
fn links_to_the_own_gpu_are_left_out_with_a_note() {
    let Built { system, notes } = read("azure-ncv4-topo.xml");
    assert_eq!(notes.len(), 4);
    assert_eq!(notes[0], "topo.xml:5: <nvlink>: leads to its own GPU, left out");
    assert!(system.links().iter().all(|link| link.kind != LinkKind::Nvl));
    assert_eq!(bw(&system, "GPU 0", "CPU 0", LinkKind::Pci), Some(12.0), "unknown speed");
    assert_eq!(bw(&system, "NIC", "CPU 0", LinkKind::Loc), Some(5000.0), "not on PCI");
    assert_eq!(bw(&system, "NIC", "NET 0", LinkKind::Net), Some(12.5));
}

#[test]
fn what_clouds_leave_out_is_assumed_or_asked_for() {
    let (_, text, _) = file("aws-p4d-24xl-topo.xml");
    let error = built(text, "").unwrap_err().to_string();
    let busid = "attribute busid=\"0000:10:1c.0\": a GPU without <gpu>";
    assert!(error.starts_with(&format!("topo.xml:18: <pci>: {busid}")), "{error}");
    assert!(error.contains("--assume sm=N"), "{error}");

    let Built { system, notes } = read("aws-p4d-24xl-topo.xml");
    assert_eq!((system.gpus().len(), system.nets().len()), (8, 4));
    assert!(system.gpus().iter().all(|(_, gpu)| gpu.sm == 80 && gpu.gdr));
    assert_eq!(bw(&system, "GPU 0", "NVS", LinkKind::Nvl), Some(240.0));
    assert_eq!(bw(&system, "NIC 0000:10:1b.0", "NET 0", LinkKind::Net), Some(12.5));
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert!(notes[0].contains("100000 Mbit/s; --assume net=N"), "{notes:?}");

    let ndv4 = read("azure-ndv4-topo.xml").system;
    assert_eq!((ndv4.gpus().len(), ndv4.nets().len()), (8, 8));
    assert_eq!(ndv4.nets()[0].1.bw, 25.0, "16 lanes of generation 4: 200 Gbit/s");
    let order: Vec<String> = ndv4.gpus().iter().map(|(_, gpu)| gpu.bus_id.to_string()).collect();
    assert_eq!(order[..3], ["0003:00:00.0", "0004:00:00.0", "0001:00:00.0"], "as in the file");

    let (_, text, _) = file("azure-ndv4-topo.xml");
    let pairs = built(text, "sm=80,nvlink=2,gdr=0,net=50000").unwrap().system;
    assert_eq!(bw(&pairs, "GPU 7", "GPU 0", LinkKind::Nvl), Some(40.0));
    assert!(pairs.gpus().iter().all(|(_, gpu)| !gpu.gdr) && !pairs.nets()[0].1.gdr);
    assert_eq!(pairs.nets()[0].1.bw, 6.25);
}

#[test]
fn what_a_file_says_is_not_assumed() {
    let (_, text, _) = file("pcie-4gpu-no-nic.xml");
    let assume = "sm=90,gdr=1,pci=6,nvswitch=3";
    let system = built(text, assume).unwrap().system;
    assert!(system.gpus().iter().all(|(_, gpu)| gpu.sm == 86 && !gpu.gdr));
    assert_eq!(bw(&system, "GPU 0", "PCI 0000:10:00.0", LinkKind::Pci), Some(24.0));
    assert_eq!(bw(&system, "GPU 0", "NVS", LinkKind::Nvl), Some(36.0), "it lists none");
    let (_, text, _) = file("azure-ncv4-topo.xml");
    let system = built(text, assume).unwrap().system;
    assert!(!system.has_nvswitch(), "it lists some, if useless ones");
    assert_eq!(bw(&system, "GPU 0", "CPU 0", LinkKind::Pci), Some(96.0), "unknown: generation 6");
}

/// One socket with `inside` in it.
fn socket(inside: &str) -> String {
    format!("<system version=\"1\">\n<cpu numaid=\"0\">\n{inside}\n</cpu>\n</system>\n")
}

/// A GPU at an address with `inside` in its `<gpu>`.
fn gpu(busid: &str, inside: &str) -> String {
    format!(
        "<pci busid=\"{busid}\" class=\"0x030200\"><gpu sm=\"80\" gdr=\"1\">{inside}</gpu></pci>"
    )
}

#[test]
fn a_link_that_one_side_lists_leads_both_ways() {
    let link = |to: &str| format!("<nvlink target=\"{to}\" count=\"3\" tclass=\"0x030200\"/>");
    let both = [gpu("1:0.0", &link("2:0.0")), gpu("2:0.0", &link("1:0.0"))].concat();
    let one = [gpu("1:0.0", ""), gpu("2:0.0", &link("1:0.0"))].concat();
    let (both, one) =
        (built(&socket(&both), "").unwrap().system, built(&socket(&one), "").unwrap().system);
    assert_eq!(both, one);
    assert_eq!(bw(&one, "GPU 0", "GPU 1", LinkKind::Nvl), Some(60.0));
    // Links to one target add up, whatever else stands between them.
    let inside = [link("2:0.0"), link("3:0.0"), link("2:0.0")].concat();
    let sum = [gpu("1:0.0", &inside), gpu("2:0.0", ""), gpu("3:0.0", "")].concat();
    let sum = built(&socket(&sum), "").unwrap().system;
    assert_eq!(bw(&sum, "GPU 1", "GPU 0", LinkKind::Nvl), Some(120.0));
    assert_eq!(bw(&sum, "GPU 0", "GPU 2", LinkKind::Nvl), Some(60.0));
    // A target that is not there.
    let far = built(&socket(&gpu("1:0.0", &link("9:0.0"))), "").unwrap();
    assert_eq!(
        far.notes,
        ["topo.xml:3: <nvlink>: leads to 0000:09:00.0, which is not here, left out"]
    );
}

#[test]
fn links_of_other_kinds() {
    let cases = [
        ("<c2c bw=\"37250\" count=\"12\"/>", "CPU 0", LinkKind::C2c, 447.0),
        (
            "<nvlink target=\"0004:04:04.4\" count=\"3\" tclass=\"0x068001\"/>",
            "CPU 0",
            LinkKind::Nvl,
            60.0,
        ),
        ("<nvlink target=\"fffffff:ffff:ff\" count=\"4\"/>", "NVS", LinkKind::Nvl, 80.0),
        ("<nvlink target=\"0000:c4:00.0\" count=\"4\"/>", "NVS", LinkKind::Nvl, 80.0),
    ];
    for (inside, to, kind, want) in cases {
        let system = built(&socket(&gpu("1:0.0", inside)), "").unwrap().system;
        assert_eq!(bw(&system, "GPU 0", to, kind), Some(want), "{inside}");
        assert_eq!(bw(&system, to, "GPU 0", kind), Some(want), "{inside}");
        assert_eq!(again(&system), system, "{inside}");
    }
}

#[test]
fn numbers_are_the_files_and_the_rest_fills_the_gaps() {
    let gpu = |bus: u8, dev: &str| {
        format!("<pci busid=\"{bus:x}:0.0\" class=\"0x03\"><gpu {dev} sm=\"80\"/></pci>")
    };
    let text = [gpu(1, "dev=\"2\""), gpu(2, ""), gpu(3, "dev=\"0\""), gpu(4, "")].concat();
    let system = built(&socket(&text), "").unwrap().system;
    let buses: Vec<u8> = system.gpus().iter().map(|(_, gpu)| gpu.bus_id.bus).collect();
    assert_eq!(buses, [3, 2, 1, 4]);
    let text = "<system version=\"1\"><cpu numaid=\"-1\"/><cpu numaid=\"0\"/><cpu/></system>";
    let numas = built(text, "").unwrap().system;
    let numas: Vec<u32> = numas.cpus().iter().map(|(_, cpu)| cpu.numa).collect();
    assert_eq!(numas, [1, 0, 2]);
}

#[test]
fn a_cpu_device_hangs_under_its_cpu() {
    let text = socket("<gpu dev=\"0\" sm=\"0\" gdr=\"0\"/>");
    let system = built(&text, "nvswitch=4").unwrap().system;
    assert_eq!(bw(&system, "GPU 0", "CPU 0", LinkKind::Loc), Some(20.0));
    assert_eq!(system.links().len(), 2);
    assert_eq!(again(&system), system);
}

/// What a system becomes when it is written and read.
fn again(system: &System) -> System {
    let text = dump::to_xml(system).unwrap().to_xml();
    let built = built(&text, "").unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(built.notes, [""; 0], "{text}");
    built.system
}

#[test]
fn every_file_written_and_read_is_itself() {
    for (name, ..) in FILES {
        let system = read(name).system;
        assert_eq!(again(&system), system, "{name}");
        check(&system).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn random_systems_written_and_read_are_themselves() {
    let mut nvs = 0;
    for seed in 0..400 {
        let text = random_system_xml(&mut Random(seed));
        let system = built(&text, "").unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}")).system;
        check(&system).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(again(&system), system, "seed {seed}\n{text}");
        nvs += usize::from(system.has_nvswitch());
        // A part of a system is one too.
        let part = system.filtered(|id, node| !matches!(node, Node::Net(_)) || id.0 % 2 == 0);
        assert_eq!(again(&part), part, "seed {seed}, a part of it");
    }
    assert!((50..350).contains(&nvs), "{nvs} of 400 have switches: the generator is lopsided");
}

#[test]
fn what_the_format_cannot_say_is_refused_by_name() {
    type Change<'a> = &'a dyn Fn(&mut System);
    let base = read("pcie-4gpu-no-nic.xml").system;
    let gpus: Vec<NodeId> = base.gpus().iter().map(|(id, _)| *id).collect();
    let cpus: Vec<NodeId> = base.cpus().iter().map(|(id, _)| *id).collect();
    let refused = |change: Change<'_>| {
        let mut system = base.clone();
        change(&mut system);
        dump::to_xml(&system).unwrap_err().to_string()
    };
    let cases: [(Change<'_>, &str); 6] = [
        (
            &|s| s.connect(gpus[0], gpus[1], LinkKind::Nvl, 13.0),
            "GPU 0 -> GPU 1 (NVL, 13 GB/s): no",
        ),
        (&|s| s.connect_one_way(gpus[0], gpus[1], LinkKind::Nvl, 12.0), "nothing leads back"),
        (&|s| s.connect(cpus[0], cpus[1], LinkKind::Sys, 1.0), "CPUs of this make have another"),
        (&|s| s.connect(gpus[0], cpus[0], LinkKind::Pci, 24.0), "GPU 0"),
        (&|s| s.connect(gpus[0], gpus[1], LinkKind::Net, 1.0), "the format has no such link"),
        (&|s| _ = s.add(Node::Nvs), "NVS hangs by no CPU"),
    ];
    for (change, reason) in cases {
        let error = refused(change);
        assert!(error.starts_with("not to be written") && error.contains(reason), "{error}");
    }
}

#[test]
fn elements_written_and_read_are_themselves() {
    let odd = ["", " ", "a\"b", "<>&'", "\n\t\r", "é\u{1}\u{2028}", "&amp;#10;", "]]>--"];
    let mut root = Element::new("graphs");
    for (i, value) in odd.iter().enumerate() {
        root.set(&format!("a{i}"), value);
    }
    let root = root.clone().holding(root.clone().holding(root));
    let text = root.to_xml();
    let mut read = xml::parse(&text, "odd.xml").unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!((read.line, read.children[0].line), (1, 2));
    let mut level = &mut read;
    loop {
        level.line = 0;
        level.attributes.iter_mut().for_each(|attribute| attribute.line = 0);
        if level.children.is_empty() {
            break;
        }
        level = &mut level.children[0];
    }
    assert_eq!(read, root);
}

#[test]
fn a_graph_file_is_read_as_elements() {
    let text = include_str!("../../../../../tests/topology_files/azure-ncv4-graph.xml");
    let root = xml::parse(text, "graph.xml").unwrap();
    assert_eq!((root.name.as_str(), root.children.len()), ("graphs", 3));
    let channels: Vec<usize> =
        root.children_named("graph").map(|graph| graph.children_named("channel").count()).collect();
    assert_eq!(channels, [2, 4, 4]);
    assert_eq!(root.children[2].children[3].children[0].text("dev"), Some("2"));
}
