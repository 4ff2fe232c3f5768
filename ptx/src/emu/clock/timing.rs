//! What things take on a machine: the figures that virtual time is reckoned with.

/// Declares [`Timing`] and the list of its figures, which files and listings go by.
macro_rules! figures {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// What things take on a machine.
        ///
        /// Cycles are of the SMs' clock, `_ns` are nanoseconds, `_gbs` are 10^9 bytes a second, `_bytes` are bytes a cycle of an SM,
        /// `_mib` are 2^20 bytes. None of them is a promise: what comes out is a simulation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Timing {
            $($(#[doc = $doc])+ pub $name: u32,)*
        }

        impl Timing {
            /// The names of all figures, and what each of them is.
            pub const FIGURES: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), concat!($($doc),+)),)*];

            /// The figure of this name.
            ///
            /// ```
            /// use ferroccl_ptx::emu::H100_NVLINK;
            ///
            /// assert_eq!(H100_NVLINK.figure("clock_mhz"), Some(H100_NVLINK.clock_mhz));
            /// assert_eq!(H100_NVLINK.figure("colour"), None);
            /// ```
            #[must_use]
            pub fn figure(&self, name: &str) -> Option<u32> {
                match name {
                    $(stringify!($name) => Some(self.$name),)*
                    _ => None,
                }
            }

            /// Where the figure of this name is.
            pub(super) fn figure_mut(&mut self, name: &str) -> Option<&mut u32> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

figures! {
    /// The SMs' clock.
    clock_mhz,
    /// From an arithmetic instruction to the first that can use its result.
    alu_cycles,
    /// Between two instructions of a warp, and of one of an SM's four schedulers.
    issue_cycles,
    /// From a taken branch to the next instruction.
    branch_cycles,
    /// A shuffle, vote, match or barrier of a warp.
    warp_cycles,
    /// From the last arrival at a block's barrier to the next instruction of all.
    barrier_cycles,
    /// A load from shared memory.
    shared_cycles,
    /// What an SM loads from or stores to shared memory or L1.
    sm_bytes,
    /// A load that L1 has, or of a parameter.
    l1_cycles,
    /// A load that L2 has.
    l2_cycles,
    /// What L2 gives to all SMs.
    l2_gbs,
    /// What L2 takes from all SMs.
    l2_write_gbs,
    /// What L2 moves for one SM.
    l2_bytes,
    /// What L2 holds.
    l2_mib,
    /// A load that L2 does not have.
    dram_cycles,
    /// What memory behind L2 gives and takes, together.
    dram_gbs,
    /// An atomic, beyond a load.
    atomic_cycles,
    /// A load from another GPU's memory.
    peer_ns,
    /// What a GPU sends to all others, and receives of all others.
    peer_gbs,
    /// A load from the host's memory.
    host_ns,
    /// What a GPU sends to the host, and receives from it.
    host_gbs,
    /// A fence towards the block.
    fence_cta_cycles,
    /// A fence towards the GPU, beyond the wait for what was stored before.
    fence_gpu_cycles,
    /// A fence towards everybody, beyond that wait.
    fence_sys_cycles,
    /// What a launch adds to a kernel, in a graph of kernels that follow each other. Shown apart, and not a part of what a kernel
    /// takes.
    launch_ns,
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
