//! Which modules of PTX there are: the families and types of the table of kernels, from the table itself.
//!
//! A module is a family with one element type, `all_reduce_ring_float`, or a family that only moves bytes,
//! `all_gather_ring`. Modules compile side by side, and a driver has to assemble only what it loads. Cargo features
//! leave rows out here as they do in the table, as cargo gives them to build scripts, too.

#![allow(unused_macros)] // where features leave all rows out that use it

#[path = "../src/kernels/lists.rs"]
#[macro_use]
mod lists;

/// What a family that only moves bytes has for a type.
const BYTES: &str = "bytes";

/// What is compiled for which architecture, the `cfg`s that say what it has, and the types; `None` for all. PTX runs
/// on every later architecture just as well, assembled for that; so what is compiled again for one is only what
/// is written otherwise for it.
type Target = (u32, &'static [&'static str], Option<&'static [&'static str]>);
const TARGETS: &[Target] = &[
    (80, &[], None),
    (90, &["native_bf16", "native_fp8"], Some(&["bfloat16", "f8e4m3", "f8e5m2"])),
];

macro_rules! types {
    ($($any:ident)?) => {
        &[BYTES]
    };
    (any) => {
        &[BYTES]
    };
    ($($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
        &[ $( $(#[cfg(feature = $f)])* $type ),* ]
    };
}
macro_rules! family {
    ($($(#[cfg(feature = $f:literal)])* $family:literal $C:ident $G:ident $A:ident: $list:ident;)*) => {
        /// The families of a build, each with its types.
        const FAMILIES: &[(&str, &[&str])] = &[ $( $(#[cfg(feature = $f)])* ($family, $list!(types)) ),* ];
    };
}
families!(family);

/// One module on one architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module {
    pub(crate) arch: u32,
    /// The `cfg`s that say what the architecture has.
    pub(crate) has: &'static [&'static str],
    pub(crate) family: &'static str,
    /// An element type, or [`BYTES`].
    pub(crate) element: &'static str,
}

impl Module {
    /// `all_reduce_ring_float`, `all_gather_ring`.
    pub(crate) fn name(&self) -> String {
        let Module { family, element, .. } = self;
        if *element == BYTES { (*family).to_owned() } else { format!("{family}_{element}") }
    }
}

/// All that a build has, by architecture and then in the order of the table.
pub(crate) fn all() -> Vec<Module> {
    let mut all = Vec::new();
    for &(arch, has, only) in TARGETS {
        for &(family, elements) in FAMILIES {
            let wanted = |e: &&&str| only.is_none_or(|only| only.contains(*e));
            all.extend(elements.iter().filter(wanted).map(|element| Module {
                arch,
                has,
                family,
                element,
            }));
        }
    }
    all
}
