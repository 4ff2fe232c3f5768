//! NVIDIA's tools, where there are any: the assembler, and the disassembler beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::Failure;
use super::kernel::{DEFAULT_ARCH, Kernel, Tree};

/// How to get them.
pub(super) const HOW_TO_GET: &str =
    "no ptxas: run scripts/setup, or name one in FERROCCL_PTXAS, to see registers, spills and SASS";

/// Where a tool is: ptxas as the user names it (nowhere, if that is nothing), the others beside it; else in
/// set-up's or the CUDA toolkit's directories.
fn find(tool: &str) -> Option<PathBuf> {
    let named = std::env::var_os("FERROCCL_PTXAS").map(PathBuf::from);
    if tool == "ptxas" && named.is_some() {
        return named.filter(|path| !path.as_os_str().is_empty());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = named.as_deref().and_then(Path::parent).map(Path::to_owned);
    let mut places: Vec<PathBuf> = beside.into_iter().collect();
    for dir in [Path::new("."), Path::new(crate::REPOSITORY)] {
        places.push(dir.join(".toolchain/cuda/bin"));
    }
    places.extend(std::env::split_paths(&path));
    places.push("/usr/local/cuda/bin".into());
    places.into_iter().map(|dir| dir.join(tool)).find(|tool| tool.is_file())
}

/// What a kernel takes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Assembled {
    /// `sm_90`
    pub(super) arch: String,
    pub(super) registers: u32,
    pub(super) stack_bytes: u32,
    pub(super) spill_store_bytes: u32,
    pub(super) spill_load_bytes: u32,
    pub(super) shared_bytes: u32,
    pub(super) barriers: u32,
    /// Bytes of machine code.
    pub(super) code_bytes: usize,
    /// What `nvdisasm` makes of it, with source lines.
    #[serde(skip)]
    pub(super) sass: Option<String>,
}

/// Assembles a kernel by itself; `None` without `ptxas`.
pub(super) fn assemble(kernel: &Kernel, tree: &Tree<'_>) -> Result<Option<Assembled>, Failure> {
    let Some(ptxas) = find("ptxas") else { return Ok(None) };
    let dir = Scratch::new()?;
    let (input, output) = (dir.0.join("kernel.ptx"), dir.0.join("kernel.cubin"));
    std::fs::write(&input, tree.alone())?;
    let target = tree.module.target.first().map_or("sm_80", |t| t.text);
    // What is for `sm_90a` alone runs on nothing else.
    let arch = match kernel.arch {
        Some(arch) if super::arch(target) != Ok(arch) => format!("sm_{arch}"),
        Some(_) => target.to_owned(),
        None => format!("sm_{DEFAULT_ARCH}"),
    };
    let mut command = Command::new(&ptxas);
    command.args(["-v", "-lineinfo", &format!("-arch={arch}")]);
    let log = run(command.arg(&input).arg("-o").arg(&output), "ptxas")?;
    let mut told = usage(&log, &kernel.name);
    told.arch = arch;
    let cubin = std::fs::read(&output)?;
    told.code_bytes = code_bytes(&cubin, &kernel.name).unwrap_or(0);
    if let Some(nvdisasm) = find("nvdisasm") {
        let mut command = Command::new(nvdisasm);
        told.sass = Some(run(command.args(["-c", "-g"]).arg(&output), "nvdisasm")?);
    }
    Ok(Some(told))
}

/// Runs a tool; returns what it says.
fn run(command: &mut Command, tool: &str) -> Result<String, Failure> {
    let failed = |what: String| Failure::Tool { tool: tool.to_owned(), what };
    let out = command.output().map_err(|e| failed(e.to_string()))?;
    let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    if out.status.success() {
        Ok(said.into_owned())
    } else {
        Err(failed(said.lines().take(20).collect::<Vec<_>>().join("\n")))
    }
}

/// Reads what `ptxas -v` prints:
///
/// ```text
/// ptxas info    : Compiling entry function 'k' for 'sm_90'
///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 38 registers, used 1 barriers, 1088 bytes smem, ...
/// ```
fn usage(log: &str, kernel: &str) -> Assembled {
    let mut told = Assembled::default();
    let mut ours = false;
    for line in log.lines() {
        let before = |what: &str| {
            let head = line.get(..line.find(what)?)?;
            head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
        };
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            ours = rest.split('\'').next() == Some(kernel);
        } else if let Some((_, rest)) = line.split_once("Function properties for ") {
            ours = rest.trim() == kernel;
        }
        if ours {
            let fields = [
                (&mut told.stack_bytes, " bytes stack frame"),
                (&mut told.spill_store_bytes, " bytes spill stores"),
                (&mut told.spill_load_bytes, " bytes spill loads"),
                (&mut told.registers, " registers"),
                (&mut told.barriers, " barriers"),
                (&mut told.shared_bytes, " bytes smem"),
            ];
            for (field, what) in fields {
                *field = before(what).unwrap_or(*field);
            }
        }
    }
    told
}

/// The size of the section `.text.KERNEL` of a cubin, an ELF file of 64 bits.
fn code_bytes(cubin: &[u8], kernel: &str) -> Option<usize> {
    let word = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes.get_mut(..len)?.copy_from_slice(cubin.get(at..at.checked_add(len)?)?);
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    let (sections, size, count, names) = (word(40, 8)?, word(58, 2)?, word(60, 2)?, word(62, 2)?);
    let strings = word(sections.checked_add(names * size)?.checked_add(24)?, 8)?;
    (0..count).find_map(|i| {
        let header = sections.checked_add(i * size)?;
        let name = cubin.get(strings.checked_add(word(header, 4)?)?..)?;
        let name = name.split(|&byte| byte == 0).next()?;
        (name == format!(".text.{kernel}").as_bytes()).then(|| word(header + 32, 8))?
    })
}

/// A directory that is there as long as this is.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let dir = std::env::temp_dir().join(format!("ferroccl-ptx-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // only litter
    }
}
