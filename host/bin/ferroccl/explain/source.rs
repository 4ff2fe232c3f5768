//! Where the machine comes from: a file, or this one.

use std::path::Path;

use ferroccl::config::Config;
use ferroccl::topology::{Arch, BusId, Cpu, CpuSet, Gpu, LinkKind, Node, System, Vendor, speed};

use super::Failure;

/// The host that a file describes, completed by what is assumed; without a file, this machine.
pub(super) fn system(
    file: Option<&Path>,
    assume: Option<&str>,
    config: &Config,
) -> Result<System, Failure> {
    let named = config.topo_file.as_deref().map(Path::new);
    match file.or(named) {
        Some(file) => from_file(file, assume),
        None => Ok(cores()),
    }
}

fn from_file(file: &Path, _assume: Option<&str>) -> Result<System, Failure> {
    Err(Failure::Source(format!("{}: reading topology files is not built in", file.display())))
}

/// One NUMA node with a CPU device.
fn cores() -> System {
    let mut system = System::default();
    let arch = match std::env::consts::ARCH {
        "x86_64" => Arch::X86,
        "aarch64" => Arch::Arm,
        "powerpc64" => Arch::Power,
        _ => Arch::Other,
    };
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let affinity: CpuSet = (0..all).collect();
    let cpu = Cpu { numa: 0, arch, vendor: Vendor::Other, family: 0, model: 0, affinity };
    let cpu = system.add(Node::Cpu(cpu));
    let gpu = Gpu { dev: 0, rank: None, sm: 0, gdr: false, bus_id: BusId::default() };
    let gpu = system.add(Node::Gpu(gpu));
    system.connect(gpu, cpu, LinkKind::Loc, speed::CPU_DEVICE);
    system
}
