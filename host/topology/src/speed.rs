//! Bandwidths that are not measured but known: 10^9 bytes a second, each way.
//!
//! The figures are NCCL's (`src/graph/topo.h` and `topo.cc`), which are what links give in practice rather than
//! what their standards promise, so that what is found here can be compared with what NCCL finds.

use super::system::{Arch, Cpu, Vendor};

/// Within one device or memory: never a limit.
pub const LOC: f64 = 5000.0;

/// One `NVLink` of a GPU of compute capability `sm` (times ten).
#[must_use]
pub fn nvlink(sm: u32) -> f64 {
    match sm {
        100.. => 40.1,
        90.. => 20.6,
        86 => 12.0,
        70.. => 20.0,
        60.. => 18.0,
        _ => 20.0,
    }
}

/// PCI Express of so many GT/s (2.5, 5, 8, 16, 32, 64) and lanes; `None` for a speed that does not exist.
///
/// ```
/// use ferroccl_topology::speed::pci;
///
/// assert_eq!(pci(8.0, 16), Some(12.0)); // generation 3
/// assert_eq!(pci(16.0, 16), Some(24.0));
/// assert_eq!(pci(7.0, 16), None);
/// ```
#[must_use]
pub fn pci(gt_per_s: f64, lanes: u32) -> Option<f64> {
    // A lane of generation 3 gives 0.75 of its 8 GT/s / 8, and the others in proportion.
    const GENERATIONS: [f64; 6] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    let known = GENERATIONS.iter().any(|known| (known - gt_per_s).abs() < 0.01);
    let lane = if gt_per_s < 3.0 { 15.0 / 80.0 } else { gt_per_s * 0.75 / 8.0 };
    known.then_some(lane * f64::from(lanes))
}

/// What a PCI device counts as whose speed is not known: 16 lanes of generation 3.
pub const PCI_UNKNOWN: f64 = 12.0;

/// A network port of so many 10^6 bits a second; one that does not say has 10,000.
#[must_use]
pub fn net(mbit_per_s: f64) -> f64 {
    (if mbit_per_s > 0.0 { mbit_per_s } else { 10_000.0 }) / 8000.0
}

/// `NVLink` between CPU and GPU of a module (`nvlink-c2c`): what the file says in 10^6 bytes a second a link.
#[must_use]
pub fn c2c(mbyte_per_s: f64) -> f64 {
    mbyte_per_s / 1000.0
}

/// From a CPU to another one of its kind.
#[must_use]
pub fn between_cpus(cpu: &Cpu) -> f64 {
    match (cpu.arch, cpu.vendor) {
        (Arch::Power, _) => 32.0,
        (Arch::Arm, _) => 6.0,
        (Arch::X86, Vendor::Intel) => match cpu.model {
            0xcf.. => 40.0, // Emerald Rapids
            0x8f.. => 22.0, // Sapphire Rapids
            0x55.. => 10.0, // Skylake and after
            _ => 6.0,       // Broadwell and before
        },
        (Arch::X86, Vendor::Amd) => 16.0,
        (Arch::X86, Vendor::Zhaoxin) => {
            if cpu.family == 7 && cpu.model == 0x5b {
                9.0
            } else {
                6.0
            }
        }
        (Arch::X86 | Arch::Other, _) => 10.0, // NCCL's LOC/SYS fallback is per vendor; a modest guess
    }
}

/// What a transfer from GPU to GPU through an Intel host bridge costs its PCI links: 6/5 of its bandwidth
/// (`INTEL_P2P_OVERHEAD`).
pub const INTEL_P2P_OVERHEAD: f64 = 1.2;

/// Between a CPU device and the memory of its NUMA node: about what two cores copy from memory together, 23 to 26 in
/// `benches/records/2026-11-21-foundation.md`, rounded down.
pub const CPU_DEVICE: f64 = 20.0;
