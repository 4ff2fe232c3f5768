//! The memory and the arguments of NCCL's symmetric kernels, laid out as NCCL 2.30.7's source says.
//!
//! ```text
//! one flat range   | rank 0's part | ... | rank 1's part | ...        a part begins 4 GiB behind the one before it
//! a part           | barriers | LL slots | a window's description | input | output |
//! multicast        the same part of all ranks, at addresses of its own
//! ```
//!
//! Sources, all of NCCL 2.30.7: `nccl_device/impl/comm__types.h` (`ncclDevComm`), `core__types.h` (`ncclWindow_vidmem`),
//! `lsa_barrier.cc`, `ll_a2a.cc` (sizes of what a kernel shares), `sym_kernels.h` (`ncclSymkDevWorkArgs`),
//! `symmetric_sched.cc` (which block does which part).

use std::io;
use std::sync::Arc;

use ferroccl_ptx::emu::{
    Counts, Fault, Launch, LaunchError, LaunchSpan, Lockstep, Machine, Mapping, Options, PathStep,
    Program,
};

/// How far the parts of two ranks lie apart: NCCL counts in 4 GiB.
const STRIDE: u64 = 4 << 30;
/// Where the multicast object is: no process has such addresses.
const MULTICAST: u64 = 1 << 50;
/// `ncclSymkMaxBlocks`, `ncclSymkMaxThreads`.
pub(crate) const MAX_BLOCKS: u32 = 64;
pub(crate) const THREADS: u32 = 512;
/// `NCCL_SYM_KERNEL_CELL_SIZE`: blocks share a call in pieces of so many bytes.
const CELL: usize = 1024;
/// Shared memory of the kernels that copy in bulk: `ncclTmaShmemScratchWarpSize` of device.h for each of 16 warps.
pub(crate) const TMA_SHARED: u32 = 16 * (10 << 10);
/// Bytes of the argument (`ncclSymkDevWorkArgs4K`).
const ARGUMENT: usize = 4096;
const PAGE: usize = 4096;

/// A call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Elements, as NCCL counts them for the collective.
    pub(crate) count: usize,
    /// Bytes of an element.
    pub(crate) element: usize,
    /// Blocks at most.
    pub(crate) blocks: u32,
    /// Bytes of shared memory that the launch adds.
    pub(crate) shared: u32,
    /// What the operator multiplies with, as the type that it computes in: for averages one over the ranks.
    pub(crate) scalar: u64,
}

/// What a run came to.
#[allow(dead_code, reason = "the bench looks at all of it")]
#[derive(Debug)]
pub(crate) struct Ran {
    /// When each rank's launch ran, in virtual time, if there is a clock.
    pub(crate) spans: Vec<LaunchSpan>,
    /// The figures of all launches.
    pub(crate) counts: Counts,
    /// What the launches waited for, if it was noted.
    pub(crate) path: Vec<PathStep>,
    /// Blocks of each launch.
    pub(crate) blocks: u32,
}

/// Why a run has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    Launch(LaunchError),
    Fault(Box<Fault>),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Launch(error) => error.fmt(f),
            Failure::Fault(fault) => fault.fmt(f),
        }
    }
}

/// The memory of a group of ranks, each on a GPU of its own.
pub(crate) struct Group {
    machine: Machine,
    ranks: u32,
    /// Addresses of the flat range.
    base: *mut u8,
    bytes: usize,
    layout: Layout,
    _mappings: Vec<Mapping>,
}

/// Where things are in a rank's part.
#[derive(Clone, Copy, Debug)]
struct Layout {
    slots: usize,
    window: usize,
    input: usize,
    output: usize,
    end: usize,
    /// Slots of LL lines of a block and an epoch.
    slots_each: u32,
}

impl Layout {
    fn new(ranks: u32, input: usize, output: usize) -> Self {
        let page = |at: usize| at.next_multiple_of(PAGE);
        let barriers = 4 * (3 + ranks as usize) * MAX_BLOCKS as usize;
        let slots_each = ranks * THREADS;
        let slots = page(barriers);
        let window = page(slots + 16 * MAX_BLOCKS as usize * (1 + 2 * slots_each as usize));
        let input_at = page(window + 1);
        let output_at = page(input_at + input);
        Layout {
            slots,
            window,
            input: input_at,
            output: output_at,
            end: page(output_at + output),
            slots_each,
        }
    }
}

/// Writes into an argument.
fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

/// NCCL's `idivRcp32`: what stands for a division by `n`.
fn reciprocal(n: u32) -> u32 {
    (u32::MAX / n).wrapping_add(u32::from(n.is_power_of_two()))
}

/// For each block, up to which 65536th of the call it goes: `fracHi` of `ncclSymkChannelWorkRange`.
pub(crate) fn shares(call: &Call) -> Vec<u16> {
    let cells = (call.count * call.element).div_ceil(CELL).max(1);
    let each = cells.div_ceil(call.blocks.clamp(1, MAX_BLOCKS) as usize);
    let share =
        |block: usize| ((0x10000 * (each * (block + 1)).min(cells)).div_ceil(cells) - 1) as u16;
    (0..cells.div_ceil(each)).map(share).collect()
}

impl Group {
    /// Memory for `ranks` ranks with an input and an output of so many bytes each.
    pub(crate) fn new(ranks: u32, input: usize, output: usize) -> io::Result<Self> {
        let layout = Layout::new(ranks, input, output);
        let bytes = (u64::from(ranks) * STRIDE) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which cannot replace anything.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let machine = Machine::new();
        let mut group =
            Group { machine, ranks, base: base.cast(), bytes, layout, _mappings: Vec::new() };
        let mut members = Vec::new();
        for rank in 0..ranks {
            let part = group.part(rank);
            // SAFETY: within the range that was mapped above, and nobody uses it yet.
            let opened = unsafe {
                libc::mprotect(part.cast(), layout.end, libc::PROT_READ | libc::PROT_WRITE)
            };
            if opened != 0 {
                return Err(io::Error::last_os_error());
            }
            let start = part.expose_provenance() as u64;
            members.push(start);
            let mut map = |from: usize, to: usize, name: &str| {
                let name = format!("the {name} of rank {rank}");
                // SAFETY: the group owns the memory until its mappings are dropped, and looks at it between runs only.
                let mapping = unsafe {
                    group.machine.map_on(Some(rank), start + from as u64, to - from, &name)
                };
                group._mappings.push(mapping);
            };
            map(0, layout.window, "barriers and slots");
            map(layout.window, layout.input, "window");
            // Whole packs: of an odd number of halves NCCL loads the neighbour of the last one, too.
            map(layout.input, layout.input + input.next_multiple_of(16), "input");
            map(layout.output, layout.output + output.next_multiple_of(16), "output");
        }
        let all = group.machine.map_multicast(MULTICAST, layout.end, &members, "all parts");
        group._mappings.push(all);
        for rank in 0..ranks {
            // `ncclWindow_vidmem`.
            let mut window = [0; 88];
            put(&mut window, 8, &(base.expose_provenance() as u64).to_le_bytes());
            put(&mut window, 16, &rank.to_le_bytes());
            put(&mut window, 20, &rank.to_le_bytes());
            put(&mut window, 24, &((STRIDE >> 32) as u32).to_le_bytes());
            group.write(rank, layout.window, &window);
        }
        Ok(group)
    }

    fn part(&self, rank: u32) -> *mut u8 {
        self.base.wrapping_add((u64::from(rank) * STRIDE) as usize)
    }

    fn write(&mut self, rank: u32, at: usize, bytes: &[u8]) {
        assert!(rank < self.ranks && at + bytes.len() <= self.layout.end);
        // SAFETY: within the part, which is the group's; no kernel runs.
        unsafe { self.part(rank).add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Gives a rank its input.
    pub(crate) fn set_input(&mut self, rank: u32, bytes: &[u8]) {
        self.write(rank, self.layout.input, bytes);
    }

    /// Fills a rank's output.
    pub(crate) fn set_output(&mut self, rank: u32, bytes: &[u8]) {
        self.write(rank, self.layout.output, bytes);
    }

    /// A rank's output.
    pub(crate) fn output(&self, rank: u32, bytes: usize) -> Vec<u8> {
        assert!(rank < self.ranks && self.layout.output + bytes <= self.layout.end);
        // SAFETY: within the part; no kernel runs.
        unsafe {
            std::slice::from_raw_parts(self.part(rank).add(self.layout.output), bytes).to_vec()
        }
    }

    /// The argument of a rank, and how many blocks it is for.
    pub(crate) fn argument(&self, rank: u32, call: &Call) -> (Vec<u8>, u32) {
        let (n, layout) = (self.ranks, &self.layout);
        let base = self.base.expose_provenance() as u64;
        let window = self.part(rank).expose_provenance() as u64 + layout.window as u64;
        let shares = shares(call);
        let mut a = vec![0; ARGUMENT];
        let mut word = |at: usize, value: u32| put(&mut a, at, &value.to_le_bytes());
        // `ncclDevComm`: the ranks of the group, all of which reach each other's memory.
        for (at, value) in
            [(8, rank), (12, n), (16, reciprocal(n)), (20, rank), (24, n), (28, reciprocal(n))]
        {
            word(at, value);
        }
        // Its window of what kernels share, within it the barriers; then `ncclLLA2AHandle`. Places are counted in 128 bytes.
        word(72, (STRIDE >> 32) as u32);
        word(128, 0);
        word(132, MAX_BLOCKS);
        word(240, (layout.slots / 128) as u32);
        word(244, layout.slots_each);
        // `ncclSymkDevWorkArgs`.
        word(288, call.blocks);
        word(292, call.shared);
        let ranges = 304;
        for (block, share) in shares.iter().enumerate() {
            word(ranges + 4 * block, u32::from(*share) << 16);
        }
        let work = ranges + (4 * call.blocks as usize).next_multiple_of(16);
        let mut long = |at: usize, value: u64| put(&mut a, at, &value.to_le_bytes());
        for (at, value) in [(40, window), (56, base), (120, MULTICAST)] {
            long(at, value);
        }
        // `ncclSymkDevWork`: the operator's scalar, the count, both windows and places in them, the blocks.
        for (at, value) in [
            (0, call.scalar),
            (8, call.count as u64),
            (16, window),
            (24, window),
            (32, layout.input as u64),
            (40, layout.output as u64),
            (56, (shares.len() as u64) << 16),
        ] {
            long(work + at, value);
        }
        (a, shares.len() as u32)
    }

    /// Runs a kernel on all ranks at the same time.
    pub(crate) fn run(
        &self,
        program: &Arc<Program>,
        call: &Call,
        options: Options,
    ) -> Result<Ran, Failure> {
        let mut schedule = Lockstep::new(options);
        let mut numbers = Vec::new();
        let mut blocks = 0;
        for rank in 0..self.ranks {
            let (argument, count) = self.argument(rank, call);
            blocks = count;
            let launch = Launch::new(program, count, THREADS, argument);
            let launch = Launch { device: rank, dynamic_shared: call.shared, ..launch };
            let grid = self.machine.launch(launch).map_err(Failure::Launch)?;
            numbers.push(grid.number());
            schedule.start(&grid);
        }
        let ran = schedule.run().map_err(Failure::Fault)?;
        let mut counts = Counts::default();
        ran.iter().for_each(|(_, of_launch)| counts += *of_launch);
        let spans = numbers.iter().filter_map(|number| schedule.launch_span(*number)).collect();
        let path = schedule.critical_path(0);
        Ok(Ran { spans, counts, path, blocks })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self._mappings.clear();
        // SAFETY: the range is the group's, and no kernel may touch it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
