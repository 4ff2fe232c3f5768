//! `ptxas`: what it says of a module.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Trial;

/// Registers of a multiprocessor, of which a block's lanes each get their part (CUDA C++ Programming
/// Guide, "Technical Specifications per Compute Capability").
const REGISTERS_OF_A_MULTIPROCESSOR: u32 = 64 << 10;

/// For those who have none.
pub(crate) const HOW_TO_GET: &str = "run scripts/setup, or name one in FERROCCL_PTXAS";

/// The assembler: named by the user, or set-up's, or the CUDA toolkit's.
pub(crate) fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FERROCCL_PTXAS") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(".toolchain/cuda/bin")];
    places.extend(std::env::split_paths(&path));
    places.push("/usr/local/cuda/bin".into());
    places.into_iter().map(|dir| dir.join("ptxas")).find(|ptxas| ptxas.is_file())
}

/// What a kernel takes of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) registers: u32,
    pub(crate) stack_bytes: u32,
    pub(crate) spill_bytes: u32,
    pub(crate) code_bytes: usize,
}

impl Usage {
    /// Whether a block of `threads` runs with everything in registers.
    pub(crate) fn check(&self, threads: u32) -> Result<(), String> {
        let most = REGISTERS_OF_A_MULTIPROCESSOR / threads;
        if self.spill_bytes > 0 {
            return Err(format!("spills {} bytes", self.spill_bytes));
        }
        if self.stack_bytes > 0 {
            return Err(format!("has a stack of {} bytes", self.stack_bytes));
        }
        if self.registers > most {
            return Err(format!(
                "takes {} registers, {threads} threads have {most}",
                self.registers
            ));
        }
        Ok(())
    }
}

/// Assembles a module; returns what each kernel takes.
pub(crate) fn run(ptxas: &Path, text: &str, arch: u32) -> Result<HashMap<String, Usage>, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{number}.cubin"));
    let usages = run_to(ptxas, text, arch, &output);
    let _ = std::fs::remove_file(&output); // only litter in target/tmp
    usages
}

/// [`run`] that leaves the machine code.
pub(crate) fn run_to(
    ptxas: &Path,
    text: &str,
    arch: u32,
    output: &Path,
) -> Result<HashMap<String, Usage>, String> {
    let input = output.with_extension("ptx");
    let error = |what: &str, e: std::io::Error| format!("{what}: {e}");
    std::fs::write(&input, text).map_err(|e| error("writing the module", e))?;
    let out = Command::new(ptxas)
        .args(["-v", &format!("-arch=sm_{arch}")])
        .arg(&input)
        .arg("-o")
        .arg(output)
        .output()
        .map_err(|e| error(&ptxas.display().to_string(), e))?;
    let log = String::from_utf8_lossy(&out.stderr) + String::from_utf8_lossy(&out.stdout);
    let cubin = std::fs::read(output).unwrap_or_default();
    let _ = std::fs::remove_file(&input); // only litter in target/tmp
    if !out.status.success() {
        return Err(log.lines().take(20).collect::<Vec<_>>().join("\n"));
    }
    let mut usages = usages(&log);
    for (kernel, usage) in &mut usages {
        usage.code_bytes = code_bytes(&cubin, kernel).unwrap_or(0);
    }
    Ok(usages)
}

/// Reads what `ptxas -v` prints:
///
/// ```text
/// ptxas info    : Compiling entry function 'k' for 'sm_90'
///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 38 registers, used 1 barriers, ...
/// ```
fn usages(log: &str) -> HashMap<String, Usage> {
    let mut usages: HashMap<String, Usage> = HashMap::new();
    let mut kernel = String::new();
    for line in log.lines() {
        let before = |what: &str| {
            let head = &line[..line.find(what)?];
            head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
        };
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            kernel = rest.split('\'').next().unwrap_or_default().to_string();
        }
        let usage = usages.entry(kernel.clone()).or_default();
        if let Some(stack) = before(" bytes stack frame") {
            usage.stack_bytes += stack;
            usage.spill_bytes += before(" bytes spill stores").unwrap_or(0);
            usage.spill_bytes += before(" bytes spill loads").unwrap_or(0);
        }
        usage.registers = usage.registers.max(before(" registers,").unwrap_or(0));
    }
    usages
}

/// The size of the section `.text.KERNEL` of a cubin, an ELF file of 64 bits.
fn code_bytes(cubin: &[u8], kernel: &str) -> Option<usize> {
    let word = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(cubin.get(at..at + len)?);
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    let (sections, size, count, names) = (word(40, 8)?, word(58, 2)?, word(60, 2)?, word(62, 2)?);
    let strings = word(sections + names * size + 24, 8)?;
    (0..count).find_map(|i| {
        let header = sections + i * size;
        let name = cubin.get(strings + word(header, 4)?..)?;
        let name = name.split(|&byte| byte == 0).next()?;
        (name == format!(".text.{kernel}").as_bytes()).then(|| word(header + 32, 8))?
    })
}

/// A kernel that cannot do with its registers is found out.
pub(crate) fn self_test(ptxas: PathBuf) -> Trial {
    Trial::test("ptxas tells of spills", move || {
        let mut text = String::from(
            ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n.maxnreg 24\n{\n\
             .reg .b64 %p; .reg .f32 %f<64>;\nld.param.u64 %p, [p];\n",
        );
        for i in 0..64 {
            text += &format!("ld.volatile.global.f32 %f{i}, [%p+{}];\n", 4 * i);
        }
        for i in 0..64 {
            text += &format!("st.volatile.global.f32 [%p+{}], %f{i};\n", 4 * (63 - i));
        }
        let usages = run(&ptxas, &(text + "ret;\n}\n"), 80)?;
        let usage = usages.get("k").ok_or("no report")?;
        match usage.check(512) {
            Err(e) if e.starts_with("spills") && usage.code_bytes > 0 => Ok(()),
            other => Err(format!("{usage:?}: {other:?}").into()),
        }
    })
}
