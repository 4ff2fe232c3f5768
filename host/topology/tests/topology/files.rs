//! Topology and graph files of real machines.

use std::path::{Path, PathBuf};

use ferroccl_topology::graph::connect::along_rails;
use ferroccl_topology::graph::search::{Wanted, search};
use ferroccl_topology::graph::{
    GraphId, HostGraphs, Pattern, SearchSettings, feasible_bw, file, limit, link_loads,
};
use ferroccl_topology::path::direct;
use ferroccl_topology::{Assume, LinkKind, Node, PathKind, Paths, Policy, System, affinity, xml};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/topology_files/{name}.xml"))
}

fn load(name: &str) -> System {
    let assume: Assume = "sm=80,nvswitch=12".parse().unwrap();
    ferroccl_topology::load_file(&path(name), &assume).unwrap()
}

fn paths(system: &System) -> Paths {
    Paths::new(system, &Policy::default())
}

#[test]
fn paths_of_a_hybrid_cube_mesh() {
    let system = load("dgx1-v100");
    let all = paths(&system);
    let kind = |a, b| (all.gpu_gpu(a, b).kind, all.gpu_gpu(a, b).bw, all.gpu_gpu(a, b).hops());
    assert_eq!(kind(0, 1), (PathKind::Nvl, 20.0, 1));
    assert_eq!(kind(0, 3), (PathKind::Nvl, 40.0, 1));
    // By GPU 1 or by GPU 4: a single link and a double one.
    assert_eq!(kind(0, 5), (PathKind::Nvb, 20.0, 2));
    assert_eq!(kind(0, 7), (PathKind::Nvb, 40.0, 2));
    assert_eq!(all.gpu_net(0, 0).kind, PathKind::Pix);
    assert_eq!(all.gpu_net(2, 0).kind, PathKind::Pxn);
    assert_eq!(affinity(&system, &all, 7).iter().next(), Some(64));

    let no_nvb = Paths::new(&system, &Policy { nvb: false, ..Policy::default() });
    assert_eq!(no_nvb.gpu_gpu(0, 5).kind, PathKind::Sys);
    let no_pxn = Paths::new(&system, &Policy { pxn: false, ..Policy::default() });
    assert_eq!(no_pxn.gpu_net(2, 0).kind, PathKind::Phb);
}

#[test]
fn paths_of_modules_of_cpu_and_gpu() {
    let system = load("gh200-4gpu");
    let all = paths(&system);
    let cpu = all.gpu_cpu(0, 0);
    assert_eq!((cpu.kind, cpu.bw, cpu.hops()), (PathKind::C2c, 447.12, 1));
    // Through its own CPU to its own card, by another GPU to that one's.
    let own = all.gpu_net(0, 0);
    assert_eq!((own.kind, own.bw), (PathKind::P2c, 25.0));
    assert_eq!(all.net_gpu(0, 0).kind, PathKind::P2c);
    assert_eq!((all.gpu_net(1, 0).kind, all.relay(&system, 1, 0)), (PathKind::Pxn, Some(0)));
    assert_eq!(all.net_gpu(0, 1).kind, PathKind::Sys);
    let (gpu, net) = (system.gpus()[0].0, system.nets()[0].0);
    assert_eq!(direct(&system, gpu, net, true), *own);
    assert_eq!(direct(&system, net, gpu, true), *all.net_gpu(0, 0));
    let policy = Policy::default();
    let gdr = policy.gdr(&system, 0, 0, own.kind);
    assert!(gdr.allowed, "{}", gdr.why);

    // Each setting takes its part away.
    let no_relay = Paths::new(&system, &Policy { pxn_c2c: false, ..Policy::default() });
    assert_eq!(
        (no_relay.gpu_net(0, 0).kind, no_relay.gpu_net(1, 0).kind),
        (PathKind::P2c, PathKind::Sys)
    );
    let no_gdr = Policy { gdr_c2c: false, ..Policy::default() };
    let gdr = no_gdr.gdr(&system, 0, 0, own.kind);
    assert_eq!(gdr.why, "P2C is farther than PXB (the default without NCCL_NET_GDR_C2C)");
    assert_eq!(Paths::new(&system, &no_gdr).gpu_net(1, 0).kind, PathKind::Sys);
    // Without P2P two GPUs meet in a CPU's memory, which is past two CPUs.
    let off = Policy { p2p_level: Some(PathKind::Loc), ..Policy::default() };
    assert_eq!(Paths::new(&system, &off).gpu_gpu(0, 1).kind, PathKind::Sys);
}

/// A host of two Broadcom switches at one CPU, each with a lower part, and all joined inside if so given.
fn broadcom(device: &str, [upper, lower]: [&str; 2], joined: bool) -> String {
    let numbers = |subsystem: &str| {
        format!(
            "class=\"0x060400\" vendor=\"0x1000\" device=\"{device}\" subsystem_vendor=\"0x1000\" \
             subsystem_device=\"{subsystem}\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\""
        )
    };
    let gpu = |bus: u32| {
        format!(
            "<pci busid=\"0000:{bus:02x}:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\
             <gpu sm=\"80\" gdr=\"1\"/></pci>\n"
        )
    };
    let switch = |bus: u32, other: u32| {
        let link = if joined {
            format!("<pcilink target=\"0000:{other:02x}:00.0\"/>\n")
        } else {
            String::new()
        };
        format!(
            "<pci busid=\"0000:{bus:02x}:00.0\" {}>\n{link}{}<pci busid=\"0000:{:02x}:00.0\" {}>\n{}{}</pci></pci>\n",
            numbers(upper),
            gpu(bus + 1),
            bus + 2,
            numbers(lower),
            gpu(bus + 3),
            gpu(bus + 4),
        )
    };
    // The second names the lower part of the first.
    format!(
        "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\">\n{}{}</cpu></system>",
        switch(0x10, 0x20),
        switch(0x20, 0x12),
    )
}

fn built(text: &str) -> ferroccl_topology::build::Built {
    let root = xml::parse(text, "broadcom.xml").unwrap();
    ferroccl_topology::build::system(&root, "broadcom.xml", &Assume::default()).unwrap()
}

#[test]
fn parts_of_a_switch_are_one_switch() {
    const GEN4: [&str; 2] = ["0xa096", "0xa123"];
    let one = |device, parts, joined| built(&broadcom(device, parts, joined)).system;
    let switches =
        |system: &System| system.nodes().filter(|(_, node)| matches!(node, Node::Pci(_))).count();
    for (device, parts, count) in [
        ("0xc010", GEN4, 2),
        ("0xc030", ["0x0042", "0x1042"], 2),
        // Another device, or parts of the other generation: as they stand.
        ("0xc020", GEN4, 4),
        ("0xc030", ["0x0042", "0x0042"], 4),
        ("0xc030", ["0x1042", "0x0042"], 4),
    ] {
        let system = one(device, parts, false);
        assert_eq!(switches(&system), count, "{device} {parts:?}");
        let kind = paths(&system).gpu_gpu(0, 1).kind;
        assert_eq!(kind, if count == 2 { PathKind::Pix } else { PathKind::Pxb });
        assert_eq!(paths(&system).gpu_gpu(1, 2).kind, PathKind::Pix);
        // Past the CPU, where Intel lets GPUs not write each other's memory.
        assert_eq!(paths(&system).gpu_gpu(0, 3).kind, PathKind::Phb);
    }

    for (device, parts) in [("0xc010", GEN4), ("0xc020", GEN4)] {
        let system = one(device, parts, true);
        let path = paths(&system).gpu_gpu(0, 3).clone();
        assert_eq!((path.kind, path.bw), (PathKind::Pxb, 24.0), "{device}");
        assert!(path.links.iter().any(|link| system.joins_switches(system.link(*link))));
        let again = ferroccl_topology::dump::to_xml(&system).unwrap().to_xml();
        assert_eq!(built(&again).system, system);
    }

    let text = broadcom("0xc010", GEN4, true)
        .replace("target=\"0000:20:00.0\"", "target=\"0000:99:00.0\"");
    let found = built(&text);
    assert!(
        found
            .notes
            .iter()
            .any(|note| note.contains("leads to 0000:99:00.0, which is no switch here")),
        "{:?}",
        found.notes
    );
    let wrong = broadcom("0xc010", GEN4, true).replace(
        "<gpu sm=\"80\" gdr=\"1\"/>",
        "<pcilink target=\"0000:20:00.0\"/><gpu sm=\"80\"/>",
    );
    let root = xml::parse(&wrong, "a.xml").unwrap();
    let error = ferroccl_topology::build::system(&root, "a.xml", &Assume::default()).unwrap_err();
    assert!(error.to_string().contains("<pcilink>: outside of a switch"), "{error}");
}

#[test]
fn decisions_follow_distance_processor_and_setting() {
    let system = load("pcie-4gpu-no-nic"); // Intel
    let policy = Policy::default();
    assert!(policy.p2p(&system, PathKind::Pxb).allowed);
    let no = policy.p2p(&system, PathKind::Phb);
    assert!(
        !no.allowed && no.why == "PHB is farther than PXB (the default on Intel)",
        "{}",
        no.why
    );
    let set = Policy { p2p_level: Some(PathKind::Sys), ..Policy::default() };
    assert!(set.p2p(&system, PathKind::Phb).allowed);
    // Neither P2P nor shared memory: no way.
    let alone = Policy { p2p_level: Some(PathKind::Loc), shm: false, ..Policy::default() };
    let paths = Paths::new(&system, &alone);
    assert_eq!(paths.gpu_gpu(0, 1).kind, PathKind::Dis);
    assert_eq!(search(&system, &paths, &Wanted::new(GraphId::Ring)), None);
    // P2P off: GPUs of one switch meet in the CPU's memory.
    let off = Policy { p2p_level: Some(PathKind::Loc), ..Policy::default() };
    let paths = Paths::new(&system, &off);
    assert_eq!(paths.gpu_gpu(0, 1).kind, PathKind::Phb);

    let amd = load("azure-ncv4-topo");
    assert!(policy.p2p(&amd, PathKind::Sys).allowed);
    let gdr = policy.gdr(&amd, 0, 0, PathKind::Pix);
    assert!(!gdr.allowed && gdr.why == "the card's driver does not offer it", "{}", gdr.why);
    let a100 = load("dgx-a100");
    assert!(policy.gdr(&a100, 0, 0, PathKind::Pxb).allowed);
    assert!(!policy.gdr(&a100, 0, 0, PathKind::Phb).allowed);
    let level = Policy { gdr_level: Some(PathKind::Phb), ..Policy::default() };
    assert!(level.gdr(&a100, 0, 0, PathKind::Phb).allowed);
}

#[test]
fn the_search_finds_channels_as_good_as_those_that_were_published() {
    let system = load("azure-ncv4-topo");
    let all = paths(&system);
    let name = path("azure-ncv4-graph");
    let root = xml::read(&name).unwrap();
    let published = file::read(&root, "azure-ncv4-graph.xml", &system).unwrap();
    assert_eq!(published.graphs.len(), 3);
    for graph in &published.graphs {
        let found = search(&system, &all, &Wanted::new(graph.id)).unwrap();
        // Both by what the system's links give; the file promises more than its links hold.
        let (each, _) = feasible_bw(&system, &all, graph);
        let theirs = each * graph.channels.len() as f64;
        let ours = found.total_bw(1);
        assert!(ours >= theirs * (1.0 - 1e-9), "{:?}: {ours}, published {theirs}", graph.id);
    }
}

#[test]
fn a_graph_of_another_system_has_no_bandwidth_here() {
    let (large, small) = (load("dgx-a100"), load("azure-ncv4-topo"));
    let graphs = HostGraphs::search(&large, &paths(&large), &SearchSettings::default(), 2).unwrap();
    for graph in graphs.iter() {
        assert_eq!(feasible_bw(&small, &paths(&small), graph), (0.0, 0.0));
        assert!(link_loads(&small, &paths(&small), graph).iter().all(|load| *load == 0.0));
    }
}

/// What NCCL has on these machines: channels of a graph behind `ncclTopoDupChannels`, those of a communicator (twice as many,
/// `ncclTopoPostset`), their bandwidth together, the path to the network, and whether they cross ports. NCCL's logs of
/// DGX-1 have 12 channels, those of DGX A100 24 on one host and 16 over several, as those of H100. Where NCCL's list of
/// speeds ends below what the links give (360 for H100 instead of 370.8), ours is what they give.
#[test]
fn channels_are_as_many_as_nccl_has() {
    for (name, hosts, channels, of_communicator, total, inter, crossing) in [
        ("dgx1-v100", 1, 6, 12, 120.0, PathKind::Loc, false),
        ("dgx1-v100", 2, 4, 8, 48.0, PathKind::Pix, false),
        ("dgx-a100", 1, 12, 24, 240.0, PathKind::Loc, false),
        ("dgx-a100", 2, 8, 16, 192.0, PathKind::Pix, false),
        ("dgx-a100", 16, 8, 16, 192.0, PathKind::Pix, false),
        ("hgx-h100", 1, 12, 24, 370.8, PathKind::Loc, false),
        ("hgx-h100", 2, 8, 16, 384.0, PathKind::Pix, true),
        ("hgx-h100", 16, 8, 16, 384.0, PathKind::Pix, true),
        ("azure-ndv4-topo", 2, 8, 16, 192.0, PathKind::Pix, false),
        ("aws-p4d-24xl-topo", 2, 4, 8, 48.0, PathKind::Pix, false),
    ] {
        let system = load(name);
        let settings = SearchSettings::default();
        let graphs = HostGraphs::search(&system, &paths(&system), &settings, hosts).unwrap();
        let ring = &graphs.ring;
        let what = format!("{name}, {hosts} hosts");
        assert_eq!(ring.channels.len(), channels, "{what}");
        assert_eq!(graphs.tree.as_ref().unwrap().channels.len(), channels, "{what}");
        let ranks = hosts * system.gpus().len() as u32;
        let situation = graphs.situation(&system, hosts, ranks);
        assert_eq!(situation.channels(), of_communicator, "{what}");
        assert!((ring.total_bw(hosts as usize) - total).abs() < 0.05, "{what}: {ring:?}");
        assert_eq!((ring.kind_intra, ring.kind_inter), (PathKind::Nvl, inter), "{what}");
        assert_eq!(ring.cross_nic, crossing, "{what}");
        if hosts > 1 {
            // A ring leaves each host by the port by which it enters the next.
            let odd = along_rails(ring, 1);
            for (even, odd) in ring.channels.iter().zip(&odd.channels) {
                let ([come, leave], [enter, go]) = (even.nets.unwrap(), odd.nets.unwrap());
                assert_eq!((leave, go), (enter, come), "{what}");
            }
        }
    }
}

/// One GPU has all of a network's traffic, so its trees are of that pattern, which the model charges for.
#[test]
fn a_host_of_one_gpu_has_plain_trees() {
    let system = load("dgx-a100");
    let first = system.gpus()[0].1.bus_id;
    let alone = ferroccl_topology::trim(&system.filtered(|_, node| match node {
        Node::Gpu(gpu) => gpu.bus_id == first,
        _ => true,
    }));
    let settings = SearchSettings::default();
    let graphs = HostGraphs::search(&alone, &paths(&alone), &settings, 16).unwrap();
    assert_eq!(graphs.tree.unwrap().pattern, Pattern::Tree);
}

/// Of what comes from the network, GPUs before Ampere send an eighth back on the same link.
#[test]
fn what_arrives_at_older_gpus_costs_their_way_back() {
    let system = load("dgx1-v100");
    let all = paths(&system);
    let settings = SearchSettings::default();
    let mut ring = HostGraphs::search(&system, &all, &settings, 2).unwrap().ring;
    ring.channels.truncate(1);
    ring.bw_inter = 8.0;
    let loads = link_loads(&system, &all, &ring);
    let (first, _) = system.gpus()[ring.channels[0].gpus[0]];
    let up = system.links_from(first).find(|(_, link)| link.kind == LinkKind::Pci).unwrap().0;
    assert_eq!(loads[up.0 as usize], 1.0);
}

#[test]
fn a_graph_that_needs_more_than_a_link_has_is_found_out() {
    let system = load("pcie-4gpu-no-nic");
    let all = paths(&system);
    let settings = SearchSettings::default();
    let mut ring = HostGraphs::search(&system, &all, &settings, 1).unwrap().ring;
    let found = limit(&system, &all, &ring).unwrap();
    assert!(!found.is_exceeded() && found.load == found.bw, "{found:?}");
    ring.channels.extend(ring.channels.clone());
    let found = limit(&system, &all, &ring).unwrap();
    assert!(found.is_exceeded() && found.load == 2.0 * found.bw, "{found:?}");
}

#[test]
fn graphs_survive_writing_and_reading() {
    for (name, hosts) in
        [("dgx-a100", 4), ("hgx-h100", 1), ("dgx1-v100", 2), ("azure-ncv4-topo", 3)]
    {
        let system = load(name);
        let graphs =
            HostGraphs::search(&system, &paths(&system), &SearchSettings::default(), hosts)
                .unwrap();
        let text = file::to_xml(graphs.iter(), &system).to_xml();
        let root = xml::parse(&text, "dump.xml").unwrap();
        let read = file::read(&root, "dump.xml", &system).unwrap();
        assert!(read.notes.is_empty());
        assert!(read.graphs.iter().eq(graphs.iter()), "{name}");
    }
}

#[test]
fn a_graph_file_that_makes_no_sense_is_refused_by_line_and_attribute() {
    let system = load("pcie-4gpu-no-nic");
    let good = "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" nchannels=\"1\" speedintra=\"10\" \
                speedinter=\"10\">\n<channel>\n<gpu dev=\"0\"/><gpu dev=\"1\"/>\n<gpu dev=\"2\"/>\
                <gpu dev=\"3\"/></channel></graph></graphs>";
    let read = |text: &str| {
        let root = xml::parse(text, "g.xml").unwrap();
        file::read(&root, "g.xml", &system)
    };
    assert_eq!(read(good).unwrap().graphs.len(), 1);
    for (from, to, error) in [
        ("version=\"1\"", "version=\"2\"", "g.xml:1: <graphs>: attribute version=\"2\""),
        ("dev=\"1\"", "dev=\"0\"", "g.xml:4: <gpu>: attribute dev=\"0\": twice in one channel"),
        (
            "dev=\"1\"",
            "dev=\"9\"",
            "g.xml:4: <gpu>: attribute dev=\"9\": the system has no such device",
        ),
        ("<gpu dev=\"1\"/>", "", "g.xml:3: <channel>: GPU 1 is not in it"),
        ("<gpu dev=\"1\"/>", "<gpu/><gpu dev=\"1\"/>", "g.xml:4: <gpu>"),
        ("nchannels=\"1\"", "nchannels=\"2\"", "attribute nchannels=\"2\": there are 1 channels"),
        ("speedintra=\"10\"", "speedintra=\"0\"", "attribute speedintra=\"0\""),
        ("speedintra=\"10\"", "speedintra=\"NaN\"", "attribute speedintra=\"NaN\""),
        ("pattern=\"4\"", "pattern=\"3\"", "attribute pattern=\"3\": a ring has pattern 4"),
        ("<channel>", "<channel><net dev=\"0\"/>", "g.xml:3: <net>: attribute dev=\"0\""),
        ("<graph ", "<graf ", "g.xml:"),
    ] {
        let text = good.replacen(from, to, 1);
        let text = if from == "<graph " { text.replace("</graph>", "</graf>") } else { text };
        let found = read(&text).unwrap_err().to_string();
        assert!(found.contains(error), "{from} -> {to}: {found}");
    }
    // What NCCL writes for NVLS is left out, and said to be.
    let nvls = good.replace("</graphs>", "<graph id=\"3\" pattern=\"5\"/></graphs>");
    let read = read(&nvls).unwrap();
    assert_eq!((read.graphs.len(), read.notes.len()), (1, 1));
}
