//! Machines that are directories, and the one that this runs on.

mod tree;

use std::fs;
use std::os::unix::fs::symlink;

use self::tree::{Driver, Tree, found, two_sockets};
use ferroccl_topology::detect::{self, Detected, Devices, GpuError, NoGpus, Nvml, Roots};
use ferroccl_topology::{
    Arch, Assume, Files, LinkKind, Node, System, Vendor, build, load_from, xml,
};

fn bw(system: &System, from: &str, to: &str, kind: LinkKind) -> Option<f64> {
    let named = |id, name: &str| system.name(id) == name;
    let mut links = system.links().iter();
    links.find(|l| l.kind == kind && named(l.from, from) && named(l.to, to)).map(|l| l.bw)
}

/// What a machine of this directory and no driver is.
fn bare(tree: &Tree) -> Detected {
    detect::machine(&tree.roots(), &NoGpus, Devices::GpusElseCpus).unwrap()
}

const TWO_SOCKETS: &str = r#"<system version="1">
  <cpu numaid="0" affinity="0000ffff,0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">
    <pci busid="0000:10:00.0" class="0x060400" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" gdr="1">
          <nvlink target="0000:13:00.0" count="2" tclass="0x030200"/>
          <nvlink target="fffffff:ffff:ff" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="80" gdr="1">
          <nvlink target="0000:12:00.0" count="2" tclass="0x030200"/>
          <nvlink target="fffffff:ffff:ff" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:14:00.0" class="0x020700" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.000000" guid="0xa088c20300123456" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000,ffff0000" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">
    <pci busid="0000:90:00.0" class="0x060400" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:92:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="2" sm="80" gdr="1">
          <nvlink target="0000:93:00.0" count="2" tclass="0x030200"/>
          <nvlink target="fffffff:ffff:ff" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:93:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="3" sm="80" gdr="1">
          <nvlink target="0000:92:00.0" count="2" tclass="0x030200"/>
          <nvlink target="fffffff:ffff:ff" count="2" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:94:00.0" class="0x020700" vendor="0x10de" device="0x2330" link_speed="8.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_1" dev="1" speed="200000" port="1" latency="0.000000" guid="0xa088c20300123456" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"#;

#[test]
fn two_sockets_with_switches_gpus_and_cards() {
    let (tree, driver) = two_sockets();
    let found = detect::machine(&tree.roots(), &driver, Devices::GpusElseCpus).unwrap();
    assert_eq!(found.element.to_xml(), TWO_SOCKETS);
    assert_eq!(found.notes, [""; 0]);
    let system = &found.system;
    assert_eq!(system.gpus().len(), 4);
    assert_eq!(bw(system, "GPU 0", "GPU 1", LinkKind::Nvl), Some(40.0));
    assert_eq!(bw(system, "GPU 3", "NVS", LinkKind::Nvl), Some(40.0));
    assert_eq!(bw(system, "NIC 0000:94:00.0", "PCI 0000:90:00.0", LinkKind::Pci), Some(12.0));
    assert_eq!(system.nets()[1].1.name, "mlx5_1");
}

#[test]
fn switches_that_are_joined_inside() {
    let (tree, driver) = two_sockets();
    let joined = || {
        let found = detect::machine(&tree.roots(), &driver, Devices::GpusElseCpus).unwrap();
        bw(&found.system, "PCI 0000:10:00.0", "PCI 0000:90:00.0", LinkKind::Loc)
    };
    for (switch, other) in [("10", "90"), ("90", "10")] {
        let links = "sys/kernel/pci_switch_link/virtual_switch_links";
        tree.file(&format!("{links}/0000:{switch}:00.0/0000:{other}:00.0"), "1");
        tree.file(&format!("{links}/0000:{switch}:00.0/uevent"), "no address");
    }
    assert_eq!(joined(), None, "they are no switches of Broadcom's");
    for (root, bus) in [("00", "10"), ("80", "90")] {
        let switch = format!("sys/devices/pci0000:{root}/0000:{root}:01.0/0000:{bus}:00.0");
        tree.file(&format!("{switch}/vendor"), "0x1000");
    }
    assert_eq!(joined(), Some(5000.0));
}

#[test]
fn cpu_devices_hang_under_the_nodes_with_cores() {
    let (tree, driver) = two_sockets();
    tree.numa(2, ""); // memory alone
    tree.numa(10, "64");
    for (devices, gpus) in
        [(Devices::Cpus, &driver as &dyn detect::GpuSource), (Devices::GpusElseCpus, &NoGpus)]
    {
        let Detected { system, .. } = detect::machine(&tree.roots(), gpus, devices).unwrap();
        let devs: Vec<(u32, u32)> =
            system.gpus().iter().map(|(_, gpu)| (gpu.dev, gpu.sm)).collect();
        assert_eq!(devs, [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(bw(&system, "GPU 2", "CPU 10", LinkKind::Loc), Some(20.0));
        assert_eq!(bw(&system, "GPU 1", "CPU 1", LinkKind::Loc), Some(20.0));
        assert_eq!(system.nets().len(), 2, "its cards are there");
    }
    let none = detect::machine(&tree.roots(), &NoGpus, Devices::Gpus).unwrap();
    assert_eq!((none.system.gpus().len(), none.system.nets().len()), (0, 2));
}

#[test]
fn a_bare_container_is_one_cpu() {
    let tree = Tree::new();
    let system = bare(&tree).system;
    assert_eq!((system.nodes().len(), system.gpus().len()), (2, 1));
    assert_eq!(bw(&system, "GPU 0", "CPU 0", LinkKind::Loc), Some(20.0));
    // Where the nodes are hidden, the cores may still be seen.
    tree.file("sys/devices/system/cpu/online", "0-3");
    let system = bare(&tree).system;
    assert_eq!(system.cpus()[0].1.affinity.iter().count(), 4);
    // Nothing at all.
    let roots = Roots { sys: tree.at("nowhere"), proc: tree.at("nowhere") };
    let system = detect::machine(&roots, &NoGpus, Devices::Cpus).unwrap().system;
    assert_eq!(system.gpus().len(), 1);
}

#[test]
fn the_make_of_the_cpu() {
    for (cpuinfo, arch, vendor, family) in [
        ("vendor_id : AuthenticAMD\ncpu family : 25", Arch::X86, Vendor::Amd, 25),
        ("vendor_id :   Shanghai  \ncpu family : 7", Arch::X86, Vendor::Zhaoxin, 7),
        ("CPU implementer : 0x41", Arch::Arm, Vendor::Other, 0),
        ("cpu : POWER9 (raw), altivec supported", Arch::Power, Vendor::Other, 0),
    ] {
        let tree = Tree::new();
        tree.file("proc/cpuinfo", cpuinfo);
        let system = bare(&tree).system;
        let (_, cpu) = system.cpus()[0];
        assert_eq!((cpu.arch, cpu.vendor, cpu.family), (arch, vendor, family), "{cpuinfo}");
    }
}

#[test]
fn interfaces_that_are_ports_and_those_that_are_not() {
    let tree = Tree::new();
    tree.numa(0, "0-3");
    tree.numa(1, "4-7");
    let card = "pci0000:80/0000:80:02.0";
    tree.pci(card, "0x020000", 1, "Unknown", "255");
    tree.interface("eth0", Some(card), "25000");
    tree.interface("eth1", Some(card), "-1");
    tree.pci("pci0000:00/0000:00:03.0", "0x020000", -1, "", "");
    tree.interface("ens3", Some("pci0000:00/0000:00:03.0/virtio2"), "4294967295");
    tree.interface("veth0", None, "10000");
    for (name, file, text) in [
        ("lo", "type", "772"),
        ("down", "flags", "0x1002"),
        ("asleep", "operstate", "down"),
        ("unplugged", "carrier", "0"),
        ("docker0", "bridge/bridge_id", "8000"),
        ("veth1", "master", "docker0"),
        ("tun0", "tun_flags", "0x1001"),
        ("odd", "flags", "up"),
    ] {
        tree.interface(name, None, "10000");
        tree.file(&format!("sys/devices/virtual/net/{name}/{file}"), text);
    }
    let found = bare(&tree);
    let system = &found.system;
    let nets: Vec<(String, f64)> =
        system.nets().iter().map(|(_, net)| (net.name.clone(), net.bw)).collect();
    let want = [("eth0", 3.125), ("veth0", 1.25), ("eth1", 1.25), ("ens3", 1.25)];
    // By the number in the name, then by name.
    assert_eq!(nets, want.map(|(name, bw)| (name.to_owned(), bw)));
    assert_eq!(bw(system, "NIC", "CPU 0", LinkKind::Loc), Some(5000.0), "veth0");
    assert_eq!(bw(system, "NIC 0000:80:02.0", "CPU 1", LinkKind::Pci), Some(12.0), "not known");
    let (nic, _) = system
        .nodes()
        .find(|(_, node)| matches!(node, Node::Nic(nic) if nic.bus_id.is_some_and(|id| id.bus == 0x80)))
        .unwrap();
    let ports = system.links_from(nic).filter(|(_, link)| link.kind == LinkKind::Net).count();
    assert_eq!(ports, 2, "one card of two ports");
    assert_eq!(
        found.notes[0],
        "this machine: 0000:00:03.0 does not know its NUMA node, taken to be near the first"
    );
}

#[test]
fn rdma_ports_that_are_down_are_none() {
    let (tree, driver) = two_sockets();
    let port = "sys/class/infiniband/mlx5_1/ports/1";
    tree.file(&format!("{port}/state"), "1: DOWN");
    let system = detect::machine(&tree.roots(), &driver, Devices::Gpus).unwrap().system;
    assert_eq!(system.nets().len(), 1);
    tree.file("sys/class/infiniband/mlx5_0/ports/1/state", "2: INIT");
    let system = detect::machine(&tree.roots(), &driver, Devices::Gpus).unwrap().system;
    let names: Vec<&str> = system.nets().iter().map(|(_, net)| net.name.as_str()).collect();
    assert_eq!(names, ["eth0"], "without RDMA, sockets");
}

#[test]
fn broken_values_are_values_that_are_not_known() {
    let (tree, driver) = two_sockets();
    let gpu = "sys/bus/pci/devices/0000:12:00.0";
    let port = "sys/bus/pci/devices/0000:11:01.0";
    for (file, text) in [
        ("max_link_speed", "Unknown"),
        ("max_link_width", "63"),
        ("numa_node", "-1"),
        ("class", "none"),
        ("vendor", "0xzzzz"),
    ] {
        tree.file(&format!("{gpu}/{file}"), text);
    }
    // What the port knows is known.
    tree.file(&format!("{port}/max_link_width"), "8");
    let system = detect::machine(&tree.roots(), &driver, Devices::Gpus).unwrap().system;
    assert_eq!(
        bw(&system, "GPU 0", "PCI 0000:10:00.0", LinkKind::Pci),
        Some(12.0),
        "8 lanes of 16 GT/s"
    );
    tree.remove(&format!("{port}/max_link_speed"));
    tree.remove(&format!("{port}/max_link_width"));
    tree.remove(&format!("{gpu}/max_link_speed"));
    let system = detect::machine(&tree.roots(), &driver, Devices::Gpus).unwrap().system;
    assert_eq!(
        bw(&system, "GPU 0", "PCI 0000:10:00.0", LinkKind::Pci),
        Some(12.0),
        "nothing known"
    );
    // A switch that does not know its node takes that of its devices.
    tree.file("sys/bus/pci/devices/0000:90:00.0/numa_node", "-1");
    let found = detect::machine(&tree.roots(), &driver, Devices::Gpus).unwrap();
    assert!(bw(&found.system, "PCI 0000:90:00.0", "CPU 1", LinkKind::Pci).is_some());
    assert_eq!(found.notes, [""; 0]);
}

#[test]
fn a_gpu_that_sysfs_does_not_show_is_near_the_first_cpu() {
    let (tree, _) = two_sockets();
    let driver = Driver(Ok(vec![
        found("0000:92:00.0", 80, &["0000:ee:00.0"]),
        found("0001:00:00.0", 80, &[]),
    ]));
    let found = detect::machine(&tree.roots(), &driver, Devices::Gpus).unwrap();
    assert_eq!(bw(&found.system, "GPU 1", "CPU 0", LinkKind::Pci), Some(12.0));
    assert_eq!(
        bw(&found.system, "GPU 0", "NVS", LinkKind::Nvl),
        Some(20.0),
        "what is not seen is a switch"
    );
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
}

#[test]
fn loops_of_links_lead_nowhere() {
    let (tree, driver) = two_sockets();
    let device = tree.at("sys/bus/pci/devices/0000:12:00.0");
    fs::remove_file(&device).unwrap();
    symlink("0000:12:00.0", &device).unwrap();
    // Out of the tree.
    let device = tree.at("sys/bus/pci/devices/0000:13:00.0");
    fs::remove_file(&device).unwrap();
    let outside = "outside/0000:13:00.0";
    tree.file(&format!("{outside}/max_link_speed"), "64.0 GT/s PCIe");
    symlink(tree.at(outside), &device).unwrap();
    // A directory where a file should be, and a card in itself.
    fs::create_dir_all(tree.at("sys/devices/system/node/node3/cpulist")).unwrap();
    tree.pci("pci0000:c0/0000:c1:00.0/0000:c2:00.0/0000:c1:00.0", "0x020000", 0, "", "");
    tree.rdma("mlx5_9", "pci0000:c0/0000:c1:00.0/0000:c2:00.0/0000:c1:00.0", "4: ACTIVE", "x");
    let system = detect::machine(&tree.roots(), &driver, Devices::Gpus).unwrap().system;
    assert_eq!((system.gpus().len(), system.nets().len()), (4, 3));
    assert_eq!(bw(&system, "GPU 0", "CPU 0", LinkKind::Pci), Some(12.0));
    assert_eq!(bw(&system, "GPU 1", "CPU 0", LinkKind::Pci), Some(12.0), "not 96");
    assert_eq!(bw(&system, "NIC 0000:c1:00.0", "CPU 0", LinkKind::Pci), Some(12.0));
}

#[test]
fn a_driver_that_fails_is_an_error_and_one_that_lies_too() {
    let (tree, driver) = two_sockets();
    let failing = Driver(Err(GpuError { call: "nvmlInit_v2", code: 999 }));
    let error = detect::machine(&tree.roots(), &failing, Devices::GpusElseCpus).unwrap_err();
    assert_eq!(error.to_string(), "nvmlInit_v2 failed with 999 (unknown error)");
    assert!(detect::machine(&tree.roots(), &failing, Devices::Cpus).is_ok(), "it is not asked");
    let mut gpus = driver.0.unwrap();
    gpus[1].bus_id = gpus[0].bus_id;
    let error = detect::machine(&tree.roots(), &Driver(Ok(gpus)), Devices::Gpus).unwrap_err();
    assert_eq!(error.to_string(), "this machine: <gpu>: a second device in one <pci>");
}

/// Random bytes in the place of what the kernel says: still a machine, and always the same one.
#[test]
fn nonsense_in_sysfs_does_no_harm() {
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let junk = [
        "",
        "-1",
        "\u{0}\u{0}",
        "0x",
        "99999999999999999999",
        "0-4294967295",
        "NaN",
        "é",
        "4: ACTIVE",
        "1e308 Gb/sec",
        "0x030200",
        "772",
        "Unknown speed",
        "-9223372036854775808",
        "a:b:c",
        "0000:12:00.0",
    ];
    let (tree, driver) = two_sockets();
    let files = tree.files();
    for case in 0..300 {
        let changed: Vec<_> = (0..1 + random(8)).map(|_| &files[random(files.len())]).collect();
        let before: Vec<_> = changed.iter().map(|file| fs::read(file).unwrap()).collect();
        for file in &changed {
            let text = if random(9) == 0 {
                "x".repeat(1 << 20)
            } else {
                junk[random(junk.len())].to_owned()
            };
            fs::write(file, text).unwrap();
        }
        let found =
            detect::machine(&tree.roots(), &driver, Devices::GpusElseCpus).unwrap_or_else(|e| {
                panic!("case {case}: nonsense is what is not known, not an error: {e}")
            });
        assert_eq!(found.system.gpus().len(), 4, "case {case}");
        let links = found.system.links();
        assert!(links.iter().all(|l| l.bw.is_finite() && l.bw > 0.0), "case {case}");
        let again = detect::machine(&tree.roots(), &driver, Devices::GpusElseCpus).unwrap();
        assert_eq!(again, found, "case {case}");
        for (file, text) in changed.iter().zip(before).rev() {
            fs::write(file, text).unwrap();
        }
    }
}

#[test]
fn this_machine_is_one() {
    let roots = Roots::default();
    for devices in [Devices::GpusElseCpus, Devices::Cpus] {
        let found = detect::machine(&roots, &Nvml, devices).unwrap();
        println!("{}", found.element.to_xml());
        assert!(!found.system.gpus().is_empty());
        let gpus: Vec<_> = found.system.gpus().iter().map(|(id, _)| *id).collect();
        assert!(gpus.iter().all(|gpu| found.system.links_from(*gpu).count() > 0));
    }
}

fn files(read: Option<&str>, dump: Option<&str>) -> Files {
    Files { read: read.map(str::to_owned), dump: dump.map(str::to_owned) }
}

#[test]
fn what_is_dumped_is_read_back_as_the_same() {
    let (tree, driver) = two_sockets();
    let dump = tree.at("dump.xml");
    let dump = dump.to_str().unwrap();
    let found = load_from(&files(None, Some(dump)), &tree.roots(), &driver, Devices::Gpus).unwrap();
    assert_eq!(fs::read_to_string(dump).unwrap(), TWO_SOCKETS);
    // Elsewhere, without any of the devices.
    let other = Tree::new();
    let read = load_from(&files(Some(dump), None), &other.roots(), &NoGpus, Devices::Gpus).unwrap();
    assert_eq!(read.system, found.system);
    let error =
        load_from(&files(None, Some("/nowhere/dump.xml")), &tree.roots(), &driver, Devices::Gpus);
    assert!(error.unwrap_err().to_string().starts_with("/nowhere/dump.xml: No such file"));
    let error =
        load_from(&files(Some("/nowhere.xml"), None), &tree.roots(), &driver, Devices::Gpus);
    assert!(error.unwrap_err().to_string().starts_with("/nowhere.xml: No such file"));
}

#[test]
fn a_file_is_completed_by_the_machine_and_not_changed() {
    let (tree, driver) = two_sockets();
    let path = tree.at("topo.xml");
    // The second GPU's speed is the file's, its links and the rest the machine's; the card's port has its own speed.
    let text = r#"<system version="1"><cpu numaid="1">
        <pci busid="0000:92:00.0" class="0x030200"/>
        <pci busid="0000:93:00.0" class="0x030200" link_speed="8 GT/s" link_width="16"><gpu dev="7"/></pci>
        <pci busid="0000:94:00.0" class="0x020700"><nic><net name="mlx5_1" speed="50000"/></nic></pci>
        </cpu></system>"#;
    fs::write(&path, text).unwrap();
    let files = files(path.to_str(), None);
    let found = load_from(&files, &tree.roots(), &driver, Devices::Gpus).unwrap();
    let system = &found.system;
    let gpus: Vec<(u32, u32, bool)> =
        system.gpus().iter().map(|(_, gpu)| (gpu.dev, gpu.sm, gpu.gdr)).collect();
    assert_eq!(gpus, [(2, 80, true), (7, 80, true)], "numbers by the driver, and by the file");
    assert_eq!(bw(system, "GPU 2", "GPU 7", LinkKind::Nvl), Some(40.0));
    assert_eq!(bw(system, "GPU 7", "NVS", LinkKind::Nvl), Some(40.0));
    assert_eq!(bw(system, "GPU 2", "CPU 1", LinkKind::Pci), Some(24.0));
    assert_eq!(bw(system, "GPU 7", "CPU 1", LinkKind::Pci), Some(12.0));
    let (_, net) = system.nets()[0];
    assert_eq!((net.bw, net.guid, net.gdr), (6.25, 0xa088_c203_0012_3456, true));
    let (_, cpu) = system.cpus()[0];
    assert_eq!((cpu.vendor, cpu.model, cpu.affinity.iter().count()), (Vendor::Intel, 106, 32));

    // What was filled in is a file, too.
    let again = xml::parse(&found.element.to_xml(), "again.xml").unwrap();
    let again = build::system(&again, "again.xml", &Assume::default()).unwrap().system;
    assert_eq!(ferroccl_topology::trim(&again), found.system);

    // Of a device that is not here the machine knows nothing.
    let error = load_from(&files, &Tree::new().roots(), &NoGpus, Devices::Gpus).unwrap_err();
    assert!(
        error.to_string().contains(":2: <pci>: attribute busid=\"0000:92:00.0\": a GPU"),
        "{error}"
    );
}

#[test]
fn trimming_leaves_what_gpus_use() {
    let text = r#"<system version="1"><cpu numaid="0">
        <pci busid="0000:10:00.0" class="0x060400"><pci busid="0000:11:00.0" class="0x060400"/></pci>
        <pci busid="0000:20:00.0" class="0x060400"><pci busid="0000:21:00.0" class="0x03"><gpu sm="80"/></pci></pci>
        <nic/>
        </cpu><cpu numaid="1"/><cpu numaid="2"><nic><net/></nic></cpu></system>"#;
    let root = xml::parse(text, "a.xml").unwrap();
    let system = build::system(&root, "a.xml", &Assume::default()).unwrap().system;
    let trimmed = ferroccl_topology::trim(&system);
    let names: Vec<String> = trimmed.nodes().map(|(id, _)| trimmed.name(id)).collect();
    assert_eq!(names, ["GPU 0", "PCI 0000:20:00.0", "CPU 0", "CPU 2", "NIC", "NIC", "NET 0"]);
}
