//! The machines that there are tables of, and where each figure is from.
//!
//! A figure that is published has its source; every other one is *assumed*, and `ferroccl ptx models` says so. `gpu-benches` is
//! the collection of microbenchmarks of RRZE, <https://github.com/RRZE-HPC/gpu-benches>, whose results lie in it, at commit 1038c5d.

use std::borrow::Cow;

use super::timing::Timing;

/// What is said of a figure that nobody has measured.
pub const ASSUMED: &str = "assumed";

/// NVIDIA H100 SXM5, eight of them over NVSwitch.
pub const H100_NVLINK: Timing = Timing {
    clock_mhz: 1980,
    alu_cycles: 4,
    issue_cycles: 1,
    branch_cycles: 8,
    warp_cycles: 22,
    barrier_cycles: 24,
    shared_cycles: 29,
    sm_bytes: 128,
    l1_cycles: 32,
    l2_cycles: 280,
    l2_gbs: 9700,
    l2_write_gbs: 4500,
    l2_bytes: 64,
    l2_mib: 50,
    dram_cycles: 680,
    dram_gbs: 2800,
    atomic_cycles: 20,
    peer_ns: 800,
    peer_gbs: 370,
    host_ns: 1000,
    host_gbs: 55,
    fence_cta_cycles: 12,
    fence_gpu_cycles: 800,
    fence_sys_cycles: 1500,
    launch_ns: 850,
};

/// NVIDIA A100 SXM4 of 80 GB, eight of them over NVSwitch.
pub const A100_NVLINK: Timing = Timing {
    clock_mhz: 1410,
    l1_cycles: 33,
    l2_cycles: 206,
    l2_gbs: 5400,
    l2_write_gbs: 2430,
    l2_mib: 40,
    dram_cycles: 552,
    dram_gbs: 1740,
    peer_gbs: 240,
    host_ns: 1100,
    host_gbs: 25,
    ..H100_NVLINK
};

/// One NVIDIA H200 on which all ranks are.
pub const H200_ONE_GPU: Timing = Timing { dram_gbs: 3890, ..H100_NVLINK };

/// Where a figure is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The figure: a field of [`Timing`].
    pub figure: Cow<'static, str>,
    /// The paper, document or measurement.
    pub text: Cow<'static, str>,
}

const fn source(figure: &'static str, text: &'static str) -> Source {
    Source { figure: Cow::Borrowed(figure), text: Cow::Borrowed(text) }
}

const ALU: Source = source("alu_cycles", "CUDA C++ Programming Guide, \"Multiprocessor Level\"");
const ISSUE: Source =
    source("issue_cycles", "CUDA C++ Programming Guide: an instruction a cycle of each scheduler");
const SM_BYTES: Source = source("sm_bytes", "CUDA C++ Programming Guide: 32 banks of 4 bytes");
const SHARED: Source =
    source("shared_cycles", "after Luo et al., arXiv 2402.13499; not compared with its table");
const PEER_NS: Source = source(
    "peer_ns",
    "assumed, such that a number is handed on in the 0.6 us of NCCL's tuning.cc (hwLatencies, NVLink, ring, LL)",
);
const FENCE_GPU: Source = source(
    "fence_gpu_cycles",
    "assumed, such that a barrier of 16 blocks takes what it does in gpu-benches, gpu-small-kernels/h200_pt.txt",
);
const FENCE_SYS: Source = source(
    "fence_sys_cycles",
    "assumed, such that a one-shot all-reduce of 2 ranks and 512 B takes the 3.7 us of sgl-project/sglang pull request 2904",
);
const LAUNCH: Source = source(
    "launch_ns",
    "gpu-benches, gpu-small-kernels/h200_graph.txt and a100_80_graph.txt: 64 kB at 48 GB/s is 1.36 us a kernel, less 0.5 us of the kernel",
);

const H100_SOURCES: &[Source] = &[
    source("clock_mhz", "gpu-benches, gpu-latency/gh200.txt: what it ran at"),
    ALU,
    ISSUE,
    SHARED,
    SM_BYTES,
    source("l1_cycles", "gpu-benches, gpu-latency/gh200.txt: 2 to 150 kB"),
    source("l2_cycles", "gpu-benches, gpu-latency/gh200.txt: 0.4 to 23 MB"),
    source("l2_gbs", "gpu-benches, gpu-l2-cache/h200.txt: 12 to 33 MB"),
    source("l2_write_gbs", "gpu-benches, gpu-l2-stream/gh200.txt: writes, 2 to 11 MB"),
    source("l2_mib", "Chips and Cheese, \"Nvidia's H100: Funny L2, and Tons of Bandwidth\", 2023"),
    source("dram_cycles", "gpu-benches, gpu-latency/gh200.txt: 139 to 270 MB"),
    source(
        "dram_gbs",
        "3352 GB/s (NVIDIA H100 datasheet), of which as much as an H100 PCIe copies at of its 2039: 1704, gpu-benches, gpu-stream/h100_pcie.txt",
    ),
    PEER_NS,
    source(
        "peer_gbs",
        "NCCL, SM90_NVLINK_BW in src/graph/topo.h: 20.6 GB/s a link, of 18; 371 to 377 measured, NVIDIA/nccl issue 1264",
    ),
    FENCE_GPU,
    FENCE_SYS,
    LAUNCH,
];

const A100_SOURCES: &[Source] = &[
    source("clock_mhz", "gpu-benches, gpu-latency/a100_80.txt: what it ran at"),
    ALU,
    ISSUE,
    SHARED,
    SM_BYTES,
    source("l1_cycles", "gpu-benches, gpu-latency/a100_80.txt: 2 to 150 kB"),
    source("l2_cycles", "gpu-benches, gpu-latency/a100_80.txt: 0.3 to 16 MB"),
    source("l2_gbs", "gpu-benches, gpu-l2-cache/a100_80.txt: 2 to 26 MB"),
    source("l2_write_gbs", "gpu-benches, gpu-l2-stream/a100_80.txt: writes, 4 to 33 MB"),
    source("l2_mib", "gpu-benches, README: twice 20 MB"),
    source("dram_cycles", "gpu-benches, gpu-latency/a100_80.txt: 0.1 to 2 GB"),
    source("dram_gbs", "gpu-benches, gpu-stream/a100_80.txt: scale, all threads"),
    PEER_NS,
    source(
        "peer_gbs",
        "NCCL, SM80_NVLINK_BW in src/graph/topo.h: 20 GB/s a link, of 12; NVIDIA/nccl-tests issue 149 explains it",
    ),
    FENCE_GPU,
    FENCE_SYS,
    LAUNCH,
];

const H200_SOURCES: &[Source] = &[
    source("clock_mhz", "gpu-benches, gpu-latency/gh200.txt: what a GH200 ran at"),
    ALU,
    ISSUE,
    SHARED,
    SM_BYTES,
    source("l1_cycles", "gpu-benches, gpu-latency/gh200.txt: 2 to 150 kB"),
    source("l2_cycles", "gpu-benches, gpu-latency/gh200.txt: 0.4 to 23 MB"),
    source("l2_gbs", "gpu-benches, gpu-l2-cache/h200.txt: 12 to 33 MB"),
    source("l2_write_gbs", "gpu-benches, gpu-l2-stream/gh200.txt: writes, 2 to 11 MB"),
    source("l2_mib", "that of the H100, the same chip"),
    source("dram_cycles", "gpu-benches, gpu-latency/gh200.txt: 139 to 270 MB"),
    source("dram_gbs", "gpu-benches, gpu-l2-cache/h200.txt: reads, from 145 MB on"),
    FENCE_GPU,
    FENCE_SYS,
    LAUNCH,
];

/// A machine: what things take, and how ranks are spread over GPUs.
///
/// With serde it is a file ([`MachineModel::VERSION`]): each figure with its value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineModel {
    /// Its name.
    pub name: Cow<'static, str>,
    /// What things take.
    pub timing: Timing,
    /// GPUs that ranks are spread over.
    pub gpus: u32,
    /// SMs of each.
    pub sms: u32,
    /// Their compute capability, times ten.
    pub capability: u32,
    /// Where figures are from; who is not in it is [`ASSUMED`].
    pub sources: Cow<'static, [Source]>,
}

const fn model(
    name: &'static str,
    timing: Timing,
    (gpus, sms, capability): (u32, u32, u32),
    sources: &'static [Source],
) -> MachineModel {
    let (name, sources) = (Cow::Borrowed(name), Cow::Borrowed(sources));
    MachineModel { name, timing, gpus, sms, capability, sources }
}

/// A name that is no figure of [`Timing`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no figure `{0}` of a machine")]
pub struct UnknownFigure(pub String);

impl MachineModel {
    /// All that come with the library.
    pub const ALL: &'static [MachineModel] = &[
        model("a100", A100_NVLINK, (8, 108, 80), A100_SOURCES),
        model("h100-nvlink", H100_NVLINK, (8, 132, 90), H100_SOURCES),
        model("h200-one-gpu", H200_ONE_GPU, (1, 132, 90), H200_SOURCES),
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
        Self::ALL.iter().find(|model| model.name == name).cloned()
    }

    /// Where a figure is from, or that it is [`ASSUMED`].
    ///
    /// ```
    /// use ferroccl_ptx::emu::{ASSUMED, MachineModel};
    ///
    /// let model = MachineModel::find("a100").unwrap();
    /// assert!(model.source("l2_cycles").contains("gpu-benches"));
    /// assert_eq!(model.source("barrier_cycles"), ASSUMED);
    /// ```
    #[must_use]
    pub fn source(&self, figure: &str) -> &str {
        let found = self.sources.iter().find(|source| source.figure == figure);
        found.map_or(ASSUMED, |source| &source.text)
    }

    /// Replaces a figure, and says where the new one is from.
    ///
    /// # Errors
    /// [`UnknownFigure`] where [`Timing`] has none of this name.
    ///
    /// ```
    /// use ferroccl_ptx::emu::MachineModel;
    ///
    /// let mut model = MachineModel::find("h100-nvlink").unwrap();
    /// model.replace("peer_ns", 712, "measured")?;
    /// assert_eq!((model.timing.peer_ns, model.source("peer_ns")), (712, "measured"));
    /// # Ok::<(), ferroccl_ptx::emu::UnknownFigure>(())
    /// ```
    pub fn replace(&mut self, figure: &str, value: u32, source: &str) -> Result<(), UnknownFigure> {
        let place = self.timing.figure_mut(figure);
        *place.ok_or_else(|| UnknownFigure(figure.to_owned()))? = value;
        let sources = self.sources.to_mut();
        sources.retain(|source| source.figure != figure);
        if source != ASSUMED {
            let (figure, text) = (Cow::Owned(figure.to_owned()), Cow::Owned(source.to_owned()));
            sources.push(Source { figure, text });
        }
        Ok(())
    }
}
