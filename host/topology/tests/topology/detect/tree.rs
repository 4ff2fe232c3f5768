//! Directories that look like a machine's `/sys` and `/proc`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ferroccl_topology::detect::{FoundGpu, GpuError, GpuSource, Peer, Roots};

/// A machine that is a directory.
pub(crate) struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    pub(crate) fn new() -> Tree {
        let tree = Tree { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(tree.at("sys")).unwrap();
        fs::create_dir_all(tree.at("proc")).unwrap();
        tree
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots { sys: self.at("sys"), proc: self.at("proc") }
    }

    /// A file; Linux ends what it says with a newline.
    pub(crate) fn file(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// A link below `sys` to a place below `sys`, relative as Linux' are.
    pub(crate) fn link(&self, path: &str, to: &str) {
        let place = self.at(&format!("sys/{path}"));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        let up = "../".repeat(Path::new(path).components().count() - 1);
        symlink(format!("{up}{to}"), place).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.at(path)).unwrap();
    }

    /// A NUMA node with its cores.
    pub(crate) fn numa(&self, node: u32, cores: &str) {
        self.file(&format!("sys/devices/system/node/node{node}/cpulist"), cores);
    }

    /// A PCI device at a path below `sys/devices`, the last component being its address.
    pub(crate) fn pci(&self, path: &str, class: &str, numa: i32, speed: &str, width: &str) {
        let device = format!("sys/devices/{path}");
        self.file(&format!("{device}/class"), class);
        self.file(&format!("{device}/vendor"), "0x10de");
        self.file(&format!("{device}/device"), "0x2330");
        self.file(&format!("{device}/numa_node"), &numa.to_string());
        self.file(&format!("{device}/max_link_speed"), speed);
        self.file(&format!("{device}/max_link_width"), width);
        let address = path.rsplit('/').next().unwrap();
        self.link(&format!("bus/pci/devices/{address}"), &format!("devices/{path}"));
    }

    /// An RDMA device with one port.
    pub(crate) fn rdma(&self, name: &str, pci: &str, state: &str, rate: &str) {
        let device = format!("devices/{pci}/infiniband/{name}");
        self.file(&format!("sys/{device}/node_guid"), "a088:c203:0012:3456");
        self.file(&format!("sys/{device}/ports/1/state"), state);
        self.file(&format!("sys/{device}/ports/1/rate"), rate);
        self.link(&format!("{device}/device"), &format!("devices/{pci}"));
        self.link(&format!("class/infiniband/{name}"), &device);
    }

    /// A network interface; `device` is what it is of, below `sys/devices`, if anything.
    pub(crate) fn interface(&self, name: &str, device: Option<&str>, speed: &str) {
        let place = format!("devices/{}/net/{name}", device.unwrap_or("virtual"));
        self.file(&format!("sys/{place}/flags"), "0x1003");
        self.file(&format!("sys/{place}/type"), "1");
        self.file(&format!("sys/{place}/operstate"), "up");
        self.file(&format!("sys/{place}/carrier"), "1");
        self.file(&format!("sys/{place}/speed"), speed);
        if let Some(device) = device {
            self.link(&format!("{place}/device"), &format!("devices/{device}"));
        }
        self.link(&format!("class/net/{name}"), &place);
    }

    /// Every file, in order.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let (mut files, mut rest) = (Vec::new(), vec![self.dir.path().to_owned()]);
        while let Some(directory) = rest.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                match entry.file_type().unwrap() {
                    kind if kind.is_dir() => rest.push(entry.path()),
                    kind if kind.is_file() => files.push(entry.path()),
                    _ => {}
                }
            }
        }
        files.sort();
        files
    }
}

/// A driver that says what a test has it say.
pub(crate) struct Driver(pub(crate) Result<Vec<FoundGpu>, GpuError>);

impl GpuSource for Driver {
    fn gpus(&self) -> Result<Vec<FoundGpu>, GpuError> {
        self.0.clone()
    }
}

/// A GPU and the other ends of its links; `?` is one that is not seen.
pub(crate) fn found(bus_id: &str, sm: u32, peers: &[&str]) -> FoundGpu {
    let peer = |text: &&str| match *text {
        "?" => Peer::Unseen,
        text => Peer::At(text.parse().unwrap()),
    };
    let nvlinks = peers.iter().map(peer).collect();
    FoundGpu { bus_id: bus_id.parse().unwrap(), sm, nvlinks, c2c: None }
}

const INTEL: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: Xeon\nstepping\t: 6\n\nprocessor\t: 1";

/// Two sockets; under each one a switch with two GPUs and a card. The second card's slot is half as fast. The GPUs are
/// joined in pairs by two links, and each has two to a switch.
pub(crate) fn two_sockets() -> (Tree, Driver) {
    let tree = Tree::new();
    tree.file("proc/cpuinfo", INTEL);
    tree.numa(0, "0-15,32-47");
    tree.numa(1, "16-31,48-63");
    tree.file("sys/module/nvidia_peermem/version", "550.54");
    for (numa, root, bus, slot) in [(0, "00", '1', "16.0"), (1, "80", '9', "8.0")] {
        let switch = format!("pci0000:{root}/0000:{root}:01.0/0000:{bus}0:00.0");
        tree.pci(
            &format!("pci0000:{root}/0000:{root}:01.0"),
            "0x060400",
            numa,
            "16.0 GT/s PCIe",
            "16",
        );
        tree.pci(&switch, "0x060400", numa, "16.0 GT/s PCIe", "16");
        for (port, device, class) in
            [("01", '2', "0x030200"), ("02", '3', "0x030200"), ("03", '4', "0x020700")]
        {
            let down = format!("{switch}/0000:{bus}1:{port}.0");
            let speed = if device == '4' { slot } else { "16.0" };
            tree.pci(&down, "0x060400", numa, &format!("{speed} GT/s PCIe"), "16");
            let device = format!("{down}/0000:{bus}{device}:00.0");
            tree.pci(&device, class, numa, "16.0 GT/s PCIe", "16");
            if class == "0x020700" {
                tree.rdma(&format!("mlx5_{numa}"), &device, "4: ACTIVE", "200 Gb/sec (4X HDR)");
            }
        }
    }
    // Neither is used where there is RDMA.
    tree.interface("lo", None, "");
    tree.file("sys/devices/virtual/net/lo/type", "772");
    tree.interface(
        "eth0",
        Some("pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:03.0/0000:14:00.0"),
        "200000",
    );
    let pair =
        |a: &str, b: &str| [found(a, 80, &[b, b, "?", "?"]), found(b, 80, &[a, a, "?", "?"])];
    let gpus = [pair("0000:12:00.0", "0000:13:00.0"), pair("0000:92:00.0", "0000:93:00.0")];
    (tree, Driver(Ok(gpus.concat())))
}
