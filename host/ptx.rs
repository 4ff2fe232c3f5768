//! The kernels as PTX, embedded in the library as text.
//!
//! `build.rs` compiles `device/` in pieces ([`Module`]): a collective by one algorithm, for one element type. PTX for one
//! architecture runs on that and all later ones, assembled for them; a piece is there for several where its source differs.
//! Pieces are packed, some 20 times smaller, and each is unpacked when its text is first asked for. A driver is given one
//! kernel at a time ([`source`]), as assembling one takes seconds. This module only hands the text out. A library that was
//! built where no device compiler is has none, and says why ([`unavailable`]). One that was built with `FERROCCL_PTX_TYPES` has that of some
//! element types ([`has_type`]).
//!
//! ```
//! use ferroccl::ptx;
//!
//! match ptx::unavailable() {
//!     Some(why) => println!("no PTX: {why}"),
//!     None => {
//!         let (module, text) = ptx::find("all_reduce_ring_ll_sum_float", 90).expect("in every build");
//!         println!("{module}: {} lines", text.lines().count());
//!     }
//! }
//! ```

use std::fmt;
use std::io::Read as _;
use std::sync::OnceLock;

use ferroccl_device::abi::DataType;

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// A piece of PTX that is compiled at a time.
pub struct Module {
    arch: u32,
    name: &'static str,
    kernels: &'static [&'static str],
    figures: &'static [Figures],
    len: usize,
    stored: Stored,
    unpacked: OnceLock<String>,
}

/// What was counted of a kernel's text when the library was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Bytes of the text.
    pub bytes: usize,
    /// Instructions as they stand in it, each once.
    pub instructions: usize,
    /// Virtual registers by type (`b32`), in the order of the types' names.
    pub registers: &'static [(&'static str, u64)],
}

/// How a library has a text.
#[allow(dead_code, reason = "a build has the one or the other, or no text")]
enum Stored {
    /// As zstd has packed it.
    Packed(&'static [u8]),
    /// As it is: a build without zstd.
    Plain(&'static str),
}

impl Module {
    #[cfg_attr(not(has_ptx), expect(dead_code, reason = "for the table of a build that has some"))]
    const fn new(
        arch: u32,
        name: &'static str,
        kernels: &'static [&'static str],
        figures: &'static [Figures],
        len: usize,
        stored: Stored,
    ) -> Self {
        Module { arch, name, kernels, figures, len, stored, unpacked: OnceLock::new() }
    }

    /// The architecture it is compiled for, as compute capability: 90 for `sm_90`.
    #[must_use]
    pub fn arch(&self) -> u32 {
        self.arch
    }

    /// What its kernels have in common: the collective and algorithm, and the element type as
    /// [`DataType::name`](crate::DataType::name) has it, where they do not only move bytes. As
    /// `all_reduce_ring_float`, `all_gather_ring`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The names of its kernels, in the order of the text, which is not unpacked for it.
    #[must_use]
    pub fn kernels(&self) -> &'static [&'static str] {
        self.kernels
    }

    /// The figures of its kernels, in the same order; the text is not unpacked for them either.
    #[must_use]
    pub fn figures(&self) -> &'static [Figures] {
        self.figures
    }

    /// Bytes of the text, and bytes that it takes in the library.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        let stored = match self.stored {
            Stored::Packed(bytes) => bytes.len(),
            Stored::Plain(text) => text.len(),
        };
        (self.len, stored)
    }

    /// The PTX. The first time takes milliseconds; the text is kept.
    #[must_use]
    pub fn text(&'static self) -> &'static str {
        let packed = match self.stored {
            Stored::Packed(bytes) => bytes,
            Stored::Plain(text) => return text,
        };
        self.unpacked.get_or_init(|| {
            let mut text = String::with_capacity(self.len);
            ruzstd::decoding::StreamingDecoder::new(packed)
                .ok()
                .and_then(|mut unpacking| unpacking.read_to_string(&mut text).ok())
                .expect("build.rs has packed a text here");
            text
        })
    }

    /// Its kernels: the name and the text of each, in the order of the module.
    pub fn entries(&'static self) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
        self.text().split("\n.visible .entry ").skip(1).map(|rest| {
            let name = rest.split('(').next().unwrap_or_default();
            let end = rest.find("\n}").map_or(rest.len(), |i| i + 2);
            (name, &rest[..end])
        })
    }

    /// One of its kernels as a module of its own, with what its source lines refer to. `None` where it has no such kernel.
    #[must_use]
    pub fn alone(&'static self, kernel: &str) -> Option<String> {
        let (_, entry) = self.entries().find(|(name, _)| *name == kernel)?;
        let head = self.text().split(ENTRY).next().unwrap_or_default();
        // Behind the last function: names of files, and calls.
        let (_, tail) = self.text().rsplit_once("\n}\n").unwrap_or_default();
        Some(format!("{head}{ENTRY}{entry}\n{tail}"))
    }
}

/// What a kernel's text begins with in its module.
const ENTRY: &str = ".visible .entry ";

impl PartialEq for Module {
    /// No two of a build have the same architecture and name.
    fn eq(&self, other: &Self) -> bool {
        (self.arch, self.name) == (other.arch, other.name)
    }
}

impl Eq for Module {}

/// As `sm_90/all_reduce_ring_float`.
impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("sm_{}/{}", self.arch, self.name))
    }
}

/// Without the text, which is megabytes.
impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({self})")
    }
}

/// All modules, by architecture and then in the order of the table of kernels; empty when [`unavailable`] says why.
#[must_use]
pub fn modules() -> &'static [Module] {
    &MODULES
}

/// Why this build has no PTX and how to get it, or `None` when it has.
#[must_use]
pub fn unavailable() -> Option<&'static str> {
    ABSENT
}

/// Whether this build has PTX of the kernels that reduce an element type. Where there is PTX, it has that of floats, and of all kernels that
/// only move bytes; a build with `FERROCCL_PTX_TYPES` may be without other types.
///
/// ```
/// use ferroccl::{DataType, ptx};
///
/// let is_there = ptx::module("all_reduce_ring_ll_sum_double", 90).is_some();
/// assert_eq!(is_there, ptx::has_type(DataType::F64));
/// assert_eq!(ptx::has_type(DataType::F32), ptx::unavailable().is_none());
/// ```
#[must_use]
pub fn has_type(data_type: DataType) -> bool {
    let ending = format!("_{data_type}");
    MODULES.iter().any(|module| module.name.ends_with(&ending))
}

/// Why there is no PTX of a kernel, in a build that has some.
#[cfg(any(feature = "cuda", feature = "emulator"))]
pub(crate) fn why_not(target: impl fmt::Display) -> String {
    let only = ONLY.map(|only| format!(": it was built with FERROCCL_PTX_TYPES={only:?}"));
    format!("this build has no PTX of it for {target}{}", only.unwrap_or_default())
}

/// The module to load for a kernel on a device of compute capability `device` (90 for 9.0): that of the latest
/// architecture the device can run. `None` when there is none. Unpacks nothing.
#[must_use]
pub fn module(kernel: &str, device: u32) -> Option<&'static Module> {
    let mut fitting = MODULES.iter().rev().filter(|m| m.arch <= device);
    fitting.find(|m| m.kernels.contains(&kernel))
}

/// The [`module`] to load for a kernel, and the kernel's text; no other module is unpacked.
#[must_use]
pub fn find(kernel: &str, device: u32) -> Option<(&'static Module, &'static str)> {
    let module = module(kernel, device)?;
    let (_, text) = module.entries().find(|(name, _)| *name == kernel)?;
    Some((module, text))
}

/// A kernel as a module of its own, as a device of compute capability `device` would load it. `None` when there is none.
#[must_use]
pub fn source(kernel: &str, device: u32) -> Option<String> {
    module(kernel, device)?.alone(kernel)
}

#[cfg(all(test, has_ptx))]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_the_latest_it_can_run() {
        let arch = |kernel, device| module(kernel, device).map(Module::arch);
        let float = "all_reduce_ring_ll_sum_float";
        assert_eq!(
            [75, 80, 89, 90, 120].map(|d| arch(float, d)),
            [None, Some(80), Some(80), Some(80), Some(80)]
        );
        let (module, text) = find(float, 100).expect("just found");
        assert_eq!(module.to_string(), "sm_80/all_reduce_ring_float");
        assert!(text.starts_with(float) && text.ends_with("\n}"), "{text}");
        assert_eq!(find("no_such_kernel", 90), None);
    }

    #[test]
    fn a_kernel_alone_has_all_that_it_needs() {
        let name = "all_reduce_ring_ll_any_float";
        let (module, entry) = find(name, 90).expect("in every build");
        let text = source(name, 90).expect("just found");
        assert!(text.starts_with(module.text().split("\n\n").next().expect("a first line")));
        assert!(
            text.contains(entry) && text.matches(ENTRY).count() == 1 && module.kernels().len() > 1
        );
        let tail = module.text().rsplit("\n}\n").next().expect("files and calls");
        assert!(tail.starts_with("\t.file\t1 ") && tail.contains("\n//1 ") && text.ends_with(tail));
        assert_eq!(source("no_such_kernel", 90), None);
        assert_eq!(module.alone("all_gather_ring_ll"), None);
    }

    #[test]
    fn what_is_written_otherwise_is_there_twice() {
        if !has_type(DataType::Bf16) {
            return;
        }
        let bfloat16 = "all_reduce_ring_ll_sum_bfloat16";
        assert_eq!(
            [75, 80, 89, 90, 120].map(|d| module(bfloat16, d).map(Module::arch)),
            [None, Some(80), Some(80), Some(90), Some(90)]
        );
        let (module, _) = find(bfloat16, 100).expect("just found");
        assert_eq!(module.to_string(), "sm_90/all_reduce_ring_bfloat16");
    }

    #[test]
    fn texts_are_what_was_packed() {
        let mut all = (0, 0);
        for module in modules() {
            let (len, packed) = module.sizes();
            assert_eq!(module.text().len(), len, "{module}");
            // Operators share a kernel, so a module has few kernels that are alike.
            assert!(packed * 5 < len, "{module}: {packed} of {len}");
            assert!(module.entries().map(|(name, _)| name).eq(module.kernels().iter().copied()));
            all = (all.0 + len, all.1 + packed);
        }
        assert!(all.1 * 7 <= all.0, "{} of {}", all.1, all.0);
    }
}
