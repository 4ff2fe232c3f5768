//! Small kernels, and the memory that they run on.

use std::sync::Arc;

use ferroccl_ptx::emu::{
    Adversity, Checks, Counts, Fault, Launch, Lockstep, Machine, Mapping, Options, Program, Unit,
    WarpSchedule,
};

/// Memory of a test: words of 8 bytes, aligned to 128.
pub(crate) struct Buffer {
    words: Box<[u64]>,
    start: usize,
    len: usize,
    _mapping: Mapping,
}

impl Buffer {
    pub(crate) fn new(machine: &Machine, words: &[u64]) -> Self {
        let mut memory = vec![0; words.len() + 16].into_boxed_slice();
        let start = (memory.as_ptr().addr().next_multiple_of(128) - memory.as_ptr().addr()) / 8;
        memory[start..start + words.len()].copy_from_slice(words);
        let address = memory.as_ptr().expose_provenance() as u64 + 8 * start as u64;
        // SAFETY: the buffer owns the memory, the mapping is dropped with it, and it is looked at between runs only.
        let mapping = unsafe { machine.map(address, 8 * words.len(), "the test's buffer") };
        Buffer { words: memory, start, len: words.len(), _mapping: mapping }
    }

    pub(crate) fn zeros(machine: &Machine, words: usize) -> Self {
        Self::new(machine, &vec![0; words])
    }

    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64 + 8 * self.start as u64
    }

    pub(crate) fn words(&self) -> Vec<u64> {
        // SAFETY: memory of our own; volatile, as kernels change it behind the compiler's back.
        (0..self.len)
            .map(|i| unsafe { std::ptr::read_volatile(&raw const self.words[self.start + i]) })
            .collect()
    }

    pub(crate) fn halves(&self) -> Vec<u32> {
        self.words().iter().flat_map(|w| [*w as u32, (*w >> 32) as u32]).collect()
    }
}

/// A kernel `k` of one parameter, the address of a buffer, which is in `%p`; `%tid`, `%cta` and some registers are there.
pub(crate) fn kernel(body: &str) -> Arc<Program> {
    Arc::new(Program::load(&source(body), "k").unwrap_or_else(|e| panic!("{e}")))
}

pub(crate) fn source(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
         .reg .b64 %p, %a, %b, %c, %d;\n.reg .b32 %tid, %cta, %r<20>;\n.reg .b64 %rd<20>;\n.reg .pred %q<10>;\n\
         .reg .b16 %h<8>;\n.reg .f32 %f<8>;\n\
         ld.param.u64 %p, [p];\nmov.u32 %tid, %tid.x;\nmov.u32 %cta, %ctaid.x;\n{body}\nret;\n}}\n"
    )
}

/// One launch on plain memory, warps in turn.
pub(crate) fn run(
    body: &str,
    blocks: u32,
    threads: u32,
    buffer: &Buffer,
    machine: &Machine,
) -> Result<Counts, Box<Fault>> {
    run_with(body, blocks, threads, buffer, machine, Options::plain())
}

pub(crate) fn run_with(
    body: &str,
    blocks: u32,
    threads: u32,
    buffer: &Buffer,
    machine: &Machine,
    options: Options,
) -> Result<Counts, Box<Fault>> {
    let grid = machine
        .launch(Launch::new(
            &kernel(body),
            blocks,
            threads,
            buffer.address().to_le_bytes().to_vec(),
        ))
        .unwrap_or_else(|e| panic!("{e}"));
    let mut schedule = Lockstep::new(options);
    schedule.start(&grid);
    Ok(schedule.run()?[0].1)
}

/// A random schedule with these checks.
pub(crate) fn checked(seed: u64, races: bool, unit: Unit) -> Options {
    let adversity = Some(Adversity { unit, ..Adversity::default() });
    Options {
        seed,
        schedule: WarpSchedule::Random,
        checks: Some(Checks { races, uninitialised: true, adversity }),
        most_steps: 10_000_000,
        clock: None,
        trace: false,
    }
}
