//! NCCL's own symmetric kernels in the emulator: what its library has as PTX, with right results under all checks.
//!
//! `scripts/nccl-kernels` fetches NVIDIA's package `nvidia-nccl-cu13` and takes the PTX out of it; nothing of it is part of
//! this project. `FERROCCL_NCCL_PTX` is the folder. Without it there are only the tests of how arguments are laid out.

mod symmetric;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ferroccl_ptx::emu::{H100_NVLINK, Options, Program};
use libtest_mimic::{Arguments, Failed, Trial};

use symmetric::{Call, Group, shares};

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = vec![Trial::test("blocks_share_a_call_as_in_nccl", blocks_share_a_call)];
    if let Some(folder) = std::env::var_os("FERROCCL_NCCL_PTX") {
        let kernels = kernels(Path::new(&folder)).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
        trials.extend(kernels.into_iter().map(|(name, text)| {
            let label = format!("nccl::{}", short(&name));
            Trial::test(label, move || runs(&name, &text))
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// All kernels of a folder: name and text of its file.
fn kernels(folder: &Path) -> std::io::Result<BTreeMap<String, Arc<str>>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != "ptx") {
            continue;
        }
        let text: Arc<str> = std::fs::read_to_string(&path)?.into();
        for line in text.lines().filter(|line| line.contains(".entry ")) {
            let name = line.rsplit(' ').next().unwrap_or_default().trim_end_matches('(');
            all.insert(name.to_owned(), Arc::clone(&text));
        }
    }
    Ok(all)
}

/// `AllReduce_AGxLL_R_sum_f32` of a mangled name.
fn short(name: &str) -> &str {
    let name = name.split_once("DevKernel_").map_or(name, |(_, name)| name);
    name.split_once("21nccl").map_or(name, |(name, _)| name)
}

fn blocks_share_a_call() -> Result<(), Failed> {
    let call = |count, blocks| Call { count, element: 4, blocks, shared: 0, scalar: 0 };
    // One cell of 1 KiB is one block's; four blocks have a cell each of 900 elements, the last one less.
    assert_eq!(shares(&call(1, 8)), [0xffff]);
    assert_eq!(shares(&call(900, 8)), [0x3fff, 0x7fff, 0xbfff, 0xffff]);
    // 9 cells for 4 blocks: 3 blocks with 3.
    assert_eq!(shares(&call(9 * 256, 4)), [0x5555, 0xaaaa, 0xffff]);
    Ok(())
}

/// What a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
}

/// A type of elements: its bytes, bits of exponent and of mantissa.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Float {
    bytes: usize,
    exponent: u32,
    mantissa: u32,
}

const F32: Float = Float { bytes: 4, exponent: 8, mantissa: 23 };

impl Float {
    fn of(kernel: &str) -> Float {
        let [f16, bf16] =
            [(5, 10), (8, 7)].map(|(exponent, mantissa)| Float { bytes: 2, exponent, mantissa });
        let [e4m3, e5m2] =
            [(4, 3), (5, 2)].map(|(exponent, mantissa)| Float { bytes: 1, exponent, mantissa });
        match kernel.rsplit('_').next() {
            Some("bf16") => bf16,
            Some("f16") => f16,
            Some("f8e4m3") => e4m3,
            Some("f8e5m2") => e5m2,
            _ => F32,
        }
    }

    /// The bits of a value that the type has.
    fn bits(self, value: f32) -> u64 {
        if value == 0.0 {
            return 0;
        }
        let (bits, bias) = (value.to_bits(), (1 << (self.exponent - 1)) - 1);
        let exponent = (bits >> 23) + bias - 127;
        u64::from(exponent << self.mantissa | (bits & 0x7f_ffff) >> (23 - self.mantissa))
    }

    fn bytes(self, value: f32) -> Vec<u8> {
        self.bits(value).to_le_bytes()[..self.bytes].to_vec()
    }
}

/// What a kernel is, by its name.
#[derive(Clone, Debug)]
struct Kernel {
    program: Arc<Program>,
    collective: Collective,
    float: Float,
    average: bool,
    /// Whether a switch reduces.
    reducing_switch: bool,
    /// Bytes of shared memory that a launch adds.
    shared: u32,
}

fn runs(name: &str, text: &str) -> Result<(), Failed> {
    let program = Arc::new(Program::load(text, name)?);
    let short = short(name);
    if short.contains("Rail") {
        return Ok(()); // between hosts, by a network that kernels drive: that it loads is what is to be seen
    }
    let kernel = Kernel {
        program,
        collective: match short.split('_').next() {
            Some("AllReduce") => Collective::AllReduce,
            Some("AllGather") => Collective::AllGather,
            _ => Collective::ReduceScatter,
        },
        float: Float::of(short),
        average: short.contains("_avg_"),
        reducing_switch: short.contains("LDMC"),
        shared: if short.contains("Tma") { symmetric::TMA_SHARED } else { 0 },
    };
    for ranks in [2u32, 4, 8] {
        // What copies in bulk does so for whole tiles on each rank and block alone.
        let large = (kernel.shared > 0 && ranks < 8).then_some((60_000, 1));
        for (count, blocks) in [(1, 1), (2, 4), (1000, 2), (4099, 3)].into_iter().chain(large) {
            for options in [Options::plain(), Options::seeded(7), Options::simulated(H100_NVLINK)] {
                check(&kernel, ranks, (count, blocks), options).map_err(|e| {
                    let e = e.message().unwrap_or("");
                    format!("{short}, {ranks} ranks, {count} elements, {options:?}: {e}")
                })?;
            }
        }
    }
    Ok(())
}

fn check(
    kernel: &Kernel,
    ranks: u32,
    (count, blocks): (usize, u32),
    options: Options,
) -> Result<(), Failed> {
    let Kernel { collective, float, average, .. } = *kernel;
    let n = ranks as usize;
    let (inputs, outputs) = match collective {
        Collective::AllReduce => (count, count),
        Collective::AllGather => (count, n * count),
        Collective::ReduceScatter => (n * count, count),
    };
    // Of small types all sums are exact.
    let value = |rank: usize, i: usize| {
        let value = if float == F32 { (rank + 1) * (i % 61 + 1) } else { (rank + i / 3) % 2 };
        value as f32
    };
    let mut group = Group::new(ranks, float.bytes * inputs, float.bytes * outputs)?;
    // Small types are computed in wider ones, but by a switch (`convertCollTaskToSymmetricTask`).
    let one_over_n = 1.0 / n as f32;
    let scalar = match float.bytes {
        _ if !average => 0,
        1 => Float::of("f16").bits(one_over_n),
        _ if kernel.reducing_switch => float.bits(one_over_n),
        _ => F32.bits(one_over_n),
    };
    let (count_of_call, element) = match collective {
        Collective::AllGather => (float.bytes * count, 1), // it moves bytes
        _ => (count, float.bytes),
    };
    let call = Call { count: count_of_call, element, blocks, shared: kernel.shared, scalar };
    for rank in 0..n {
        let input: Vec<u8> = (0..inputs).flat_map(|i| float.bytes(value(rank, i))).collect();
        group.set_input(rank as u32, &input);
    }
    // Twice, for what a call leaves behind.
    for _ in 0..2 {
        let bytes = float.bytes * outputs;
        (0..ranks).for_each(|rank| group.set_output(rank, &vec![0xff; bytes]));
        let ran = group.run(&kernel.program, &call, options).map_err(|e| e.to_string())?;
        assert_eq!(ran.spans.len(), if options.clock.is_some() { n } else { 0 });
        for rank in 0..n {
            let output = group.output(rank as u32, bytes);
            for (i, got) in output.chunks_exact(float.bytes).enumerate() {
                let sum = |at: usize| (0..n).map(|rank| value(rank, at)).sum::<f32>();
                let wanted = match collective {
                    Collective::AllReduce => sum(i),
                    Collective::AllGather => value(i / count, i % count),
                    Collective::ReduceScatter => sum(rank * count + i),
                };
                let wanted = if average { wanted * one_over_n } else { wanted };
                if got != float.bytes(wanted) {
                    let wanted = float.bytes(wanted);
                    return Err(format!("rank {rank}, element {i}: {got:?}, not {wanted:?}").into());
                }
            }
        }
    }
    Ok(())
}
