//! The kernels as PTX, embedded in the library as text.
//!
//! `build.rs` compiles `device/` in pieces ([`Module`]) that a driver can load one at a time. PTX for one
//! architecture runs on that and all later ones, assembled for them; a piece is there for several where
//! its source differs. This module only hands the text out. A library that was built where no device compiler is has none, and says why
//! ([`unavailable`]).
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

include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// A piece of PTX that is assembled and loaded at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Module {
    arch: u32,
    name: &'static str,
    text: &'static str,
}

impl Module {
    /// The architecture it is compiled for, as compute capability: 90 for `sm_90`.
    #[must_use]
    pub fn arch(&self) -> u32 {
        self.arch
    }

    /// The element type of its kernels, as [`DataType::name`](crate::DataType::name) has it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The PTX.
    #[must_use]
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Its kernels: the name and the text of each, in the order of the module.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
        self.text.split("\n.visible .entry ").skip(1).map(|rest| {
            let name = rest.split('(').next().unwrap_or_default();
            let end = rest.find("\n}").map_or(rest.len(), |i| i + 2);
            (name, &rest[..end])
        })
    }
}

/// As `sm_90/float`.
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

/// All modules, by architecture and then name; empty when [`unavailable`] says why.
#[must_use]
pub fn modules() -> &'static [Module] {
    MODULES
}

/// Why this build has no PTX and how to get it, or `None` when it has.
#[must_use]
pub fn unavailable() -> Option<&'static str> {
    ABSENT
}

/// The module to load for a kernel on a device of compute capability `device` (90 for 9.0), and the
/// kernel's text: that of the latest architecture the device can run. `None` when there is none.
#[must_use]
pub fn find(kernel: &str, device: u32) -> Option<(&'static Module, &'static str)> {
    let fitting = MODULES.iter().rev().filter(|m| m.arch <= device);
    let mut found = fitting.flat_map(|m| m.entries().map(move |(name, text)| (m, name, text)));
    found.find(|(_, name, _)| *name == kernel).map(|(module, _, text)| (module, text))
}

#[cfg(all(test, has_ptx))]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_the_latest_it_can_run() {
        let arch = |kernel, device| find(kernel, device).map(|(module, _)| module.arch());
        let (float, bfloat16) = ("all_reduce_ring_ll_sum_float", "all_reduce_ring_ll_sum_bfloat16");
        assert_eq!(
            [75, 80, 89, 90, 120].map(|d| arch(float, d)),
            [None, Some(80), Some(80), Some(80), Some(80)]
        );
        assert_eq!(
            [75, 80, 89, 90, 120].map(|d| arch(bfloat16, d)),
            [None, Some(80), Some(80), Some(90), Some(90)]
        );
        let (module, text) = find(bfloat16, 100).expect("just found");
        assert_eq!(module.to_string(), "sm_90/bfloat16");
        assert!(text.starts_with(bfloat16) && text.ends_with("\n}"), "{text}");
        assert_eq!(find("no_such_kernel", 90), None);
    }
}
