//! What things take on a machine: the table that virtual time is reckoned with.
//!
//! A figure that is published has its source beside it. The others are *assumed*, and say so; `benches/device` measures them on
//! a GPU. None of them is a promise: what comes out is a simulation.

use serde::{Deserialize, Serialize};

/// What things take on a machine.
///
/// Cycles are of the SMs' clock, `_ns` are nanoseconds, `_gbs` are 10^9 bytes a second, `_bytes` are bytes a cycle of an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// The SMs' clock.
    pub clock_mhz: u32,
    /// From an arithmetic instruction to the first that can use its result.
    pub alu_cycles: u32,
    /// Between two instructions of a warp, and of one of an SM's four schedulers.
    pub issue_cycles: u32,
    /// From a taken branch to the next instruction.
    pub branch_cycles: u32,
    /// A shuffle, vote, match or barrier of a warp.
    pub warp_cycles: u32,
    /// From the last arrival at a block's barrier to the next instruction of all.
    pub barrier_cycles: u32,
    /// A load from shared memory.
    pub shared_cycles: u32,
    /// What an SM loads from or stores to shared memory or L1.
    pub sm_bytes: u32,
    /// A load that L1 has, or of a parameter.
    pub l1_cycles: u32,
    /// A load that L2 has.
    pub l2_cycles: u32,
    /// What L2 moves for all SMs.
    pub l2_gbs: u32,
    /// What L2 moves for one SM.
    pub l2_bytes: u32,
    /// An atomic, beyond a load.
    pub atomic_cycles: u32,
    /// A load from another GPU's memory.
    pub peer_ns: u32,
    /// What a GPU sends to all others, and receives of all others.
    pub peer_gbs: u32,
    /// A load from the host's memory.
    pub host_ns: u32,
    /// What a GPU sends to the host, and receives from it.
    pub host_gbs: u32,
    /// A fence towards the block.
    pub fence_cta_cycles: u32,
    /// A fence towards the GPU, beyond the wait for what was stored before.
    pub fence_gpu_cycles: u32,
    /// A fence towards everybody, beyond that wait.
    pub fence_sys_cycles: u32,
    /// From a call of the driver to the first instruction. Shown apart, and not a part of what a kernel takes.
    pub launch_ns: u32,
}

/// NVIDIA H100 SXM5, eight of them over NVSwitch.
///
/// - `clock_mhz`: the boost clock that Chips and Cheese saw ("Nvidia's H100: Funny L2, and Tons of Bandwidth", 2023).
/// - `alu_cycles`, `l1_cycles`, `shared_cycles`, `l2_cycles`: after Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
///   Architecture via Microbenchmarking", arXiv 2402.13499; not compared with its tables line by line yet.
/// - `sm_bytes`, `l2_bytes`, `issue_cycles`: CUDA C++ Programming Guide and NVIDIA's H100 whitepaper (128 bytes a cycle of shared
///   memory, 64 of L2, an instruction a cycle of each scheduler).
/// - `peer_gbs`: NVLink 4, 18 links, at what NCCL reckons a link to carry (20.6 GB/s, `SM90_NVLINK_BW` in its topo.h).
/// - `host_gbs`: PCIe 5.0 x16 after encoding and headers.
/// - Assumed: `l2_gbs`, `launch_ns`, `peer_ns`, `host_ns`, fences, barrier, atomics, branches, shuffles.
pub const H100_NVLINK: Timing = Timing {
    clock_mhz: 1755,
    alu_cycles: 4,
    issue_cycles: 1,
    branch_cycles: 8,
    warp_cycles: 22,
    barrier_cycles: 24,
    shared_cycles: 29,
    sm_bytes: 128,
    l1_cycles: 41,
    l2_cycles: 263,
    l2_gbs: 5500,
    l2_bytes: 64,
    atomic_cycles: 20,
    peer_ns: 700,
    peer_gbs: 370,
    host_ns: 1000,
    host_gbs: 55,
    fence_cta_cycles: 12,
    fence_gpu_cycles: 350,
    fence_sys_cycles: 700,
    launch_ns: 3000,
};

/// NVIDIA A100 SXM4, eight of them over NVSwitch. The same sources and assumptions; NVLink 3, 12 links (20 GB/s a link, `SM80_NVLINK_BW`), PCIe 4.0.
pub const A100_NVLINK: Timing = Timing {
    clock_mhz: 1410,
    l1_cycles: 38,
    l2_cycles: 262,
    l2_gbs: 4500,
    peer_ns: 750,
    peer_gbs: 240,
    host_ns: 1100,
    host_gbs: 25,
    ..H100_NVLINK
};

/// One NVIDIA H200 on which all ranks are: an H100 with other memory, whose figures are not looked at.
pub const H200_ONE_GPU: Timing = Timing { clock_mhz: 1830, ..H100_NVLINK };

/// A machine: what things take, and how ranks are spread over GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineModel {
    /// Its name.
    pub name: &'static str,
    /// What things take.
    pub timing: Timing,
    /// GPUs that ranks are spread over.
    pub gpus: u32,
    /// SMs of each.
    pub sms: u32,
}

impl MachineModel {
    /// All that there are.
    pub const ALL: &'static [MachineModel] = &[
        MachineModel { name: "a100", timing: A100_NVLINK, gpus: 8, sms: 108 },
        MachineModel { name: "h100-nvlink", timing: H100_NVLINK, gpus: 8, sms: 132 },
        MachineModel { name: "h200-one-gpu", timing: H200_ONE_GPU, gpus: 1, sms: 132 },
    ];

    /// The one of this name.
    ///
    /// ```
    /// use ferroccl_ptx::emu::MachineModel;
    ///
    /// assert_eq!(MachineModel::find("h100-nvlink").unwrap().gpus, 8);
    /// assert!(MachineModel::find("h100").is_none());
    /// ```
    #[must_use]
    pub fn find(name: &str) -> Option<MachineModel> {
        Self::ALL.iter().find(|model| model.name == name).copied()
    }
}

impl Timing {
    /// Picoseconds of so many cycles.
    pub(crate) fn cycles(&self, n: u64) -> u64 {
        n * 1_000_000 / u64::from(self.clock_mhz.max(1))
    }

    /// Cycles in so many picoseconds.
    pub(crate) fn cycles_in(&self, picoseconds: u64) -> u64 {
        (u128::from(picoseconds) * u128::from(self.clock_mhz) / 1_000_000) as u64
    }

    /// Picoseconds that so many bytes take at so many GB/s.
    pub(crate) fn moving(bytes: u64, gbs: u32) -> u64 {
        bytes * 1000 / u64::from(gbs.max(1))
    }
}
