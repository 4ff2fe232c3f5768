//! The kernels as PTX, embedded in the library as text.
//!
//! `build.rs` compiles `device/` in pieces ([`Module`]) that a driver can load one at a time: a collective by one
//! algorithm, for one element type. PTX for one architecture runs on that and all later ones, assembled for them;
//! a piece is there for several where its source differs. Pieces are packed, some 25 times smaller, and each is
//! unpacked when its text is first asked for. This module only hands the text out. A library that was
//! built where no device compiler is has none, and says why ([`unavailable`]).
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

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// A piece of PTX that is assembled and loaded at a time.
pub struct Module {
    arch: u32,
    name: &'static str,
    kernels: &'static [&'static str],
    len: usize,
    packed: &'static [u8],
    text: OnceLock<String>,
}

impl Module {
    #[cfg_attr(not(has_ptx), expect(dead_code, reason = "for the table of a build that has some"))]
    const fn new(
        arch: u32,
        name: &'static str,
        kernels: &'static [&'static str],
        len: usize,
        packed: &'static [u8],
    ) -> Self {
        Module { arch, name, kernels, len, packed, text: OnceLock::new() }
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

    /// Bytes of the text, and bytes that it takes in the library.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        (self.len, self.packed.len())
    }

    /// The PTX. The first time takes milliseconds; the text is kept.
    #[must_use]
    pub fn text(&'static self) -> &'static str {
        self.text.get_or_init(|| {
            let mut text = String::with_capacity(self.len);
            ruzstd::decoding::StreamingDecoder::new(self.packed)
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
}

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

    #[cfg(feature = "half")]
    #[test]
    fn what_is_written_otherwise_is_there_twice() {
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
            // A module of one kernel has no others that it is like.
            assert!(packed * 8 < len, "{module}: {packed} of {len}");
            assert!(module.entries().map(|(name, _)| name).eq(module.kernels().iter().copied()));
            all = (all.0 + len, all.1 + packed);
        }
        assert!(all.1 * 20 <= all.0, "{} of {}", all.1, all.0);
    }
}
