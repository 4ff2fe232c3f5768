//! Which modules of PTX there are: the families and types of the table of kernels, from the table itself.
//!
//! A module is a family with one element type, `all_reduce_ring_float`, or a family that only moves bytes,
//! `all_gather_ring`. Modules compile side by side, and a driver has to assemble only what it loads. Cargo features
//! leave rows out here as they do in the table.
//!
//! For build scripts and tools: the crate itself has no use for it.

#[path = "../src/kernels/lists.rs"]
#[macro_use]
mod lists;

/// What a family that only moves bytes has for a type.
const BYTES: &str = "bytes";

/// What is compiled for which architecture, the device crate's `cfg`s that say what it has, and the types; `None` for all. PTX runs
/// on every later architecture just as well, assembled for that; so what is compiled again for one is only what
/// is written otherwise for it.
type Target = (u32, &'static [&'static str], Option<&'static [&'static str]>);
const TARGETS: &[Target] = &[
    (80, &[], None),
    (90, &["native_bf16", "native_fp8"], Some(&["bfloat16", "f8e4m3", "f8e5m2"])),
];

/// Families of kernels with `multimem`, by the end of their names.
const MULTICAST: &str = "_nvls";
/// What they are compiled for, and nothing else: PTX ISA 9.0, 9.7.9.14.
const MULTICAST_ARCH: u32 = 90;

/// The cargo features that a row needs, all of them.
type Features = &'static [&'static str];

/// The protocols that a kernel is made in, as its name and the `cfg`s have them.
const PROTOCOLS: &[&str] = &["simple", "ll", "ll128"];
/// That of plain data.
const PLAIN: &[&str] = &["simple"];

/// What a family has for an element type: the features that it needs, the type, operators, and protocols.
type Row = (Features, &'static str, &'static [&'static str], &'static [&'static str]);

macro_rules! types {
    () => {
        &[(&[], BYTES, &["none"], PROTOCOLS)]
    };
    (mesh;) => {
        &[(&[], BYTES, &["none"], PROTOCOLS)]
    };
    (mesh; $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
        &[ $( (&[ $($f),* ], $type, &[ $($op),* ], PROTOCOLS) ),* ]
    };
    (direct;) => {
        &[(&[], BYTES, &["none"], PLAIN)]
    };
    (direct; $($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
        &[ $( (&[ $($f),* ], $type, &[ $($op),* ], PLAIN) ),* ]
    };
    (any) => {
        &[(&[], BYTES, &[], PROTOCOLS)]
    };
    ($($(#[cfg(feature = $f:literal)])* $type:literal $D:ident $T:ty: $($op:literal $R:ident),*;)*) => {
        &[ $( (&[ $($f),* ], $type, &[ $($op),* ], PROTOCOLS) ),* ]
    };
}
macro_rules! family {
    ($($(#[cfg(feature = $f:literal)])* $family:literal $C:ident $G:ident $A:ident: $list:ident;)*) => {
        /// The families, each with its types.
        const FAMILIES: &[(Features, &str, &[Row])] =
            &[ $( (&[ $($f),* ], $family, $list!(types)) ),* ];
    };
}
families!(family);

/// One module on one architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Module {
    /// As compute capability: 80 for `sm_80`.
    pub(crate) arch: u32,
    /// The device crate's `cfg`s: what the architecture has.
    pub(crate) has: &'static [&'static str],
    family: &'static str,
    /// An element type, or [`BYTES`].
    element: &'static str,
    /// Operators. `none` where bytes only move; nothing where one kernel knows every protocol.
    ops: &'static [&'static str],
    protocols: &'static [&'static str],
}

impl Module {
    /// `all_reduce_ring_float`, `all_gather_ring`.
    pub(crate) fn name(&self) -> String {
        let Module { family, element, .. } = self;
        if *element == BYTES { (*family).to_owned() } else { format!("{family}_{element}") }
    }

    /// The `cfg`s that have the crate of entries (`src/kernels/entries.rs`) be this module.
    pub(crate) fn cfgs(&self) -> Vec<String> {
        let Module { family, element, .. } = self;
        vec![format!("family={family:?}"), format!("module={element:?}")]
    }

    /// Its kernels by name, each with the `cfg`s of the crate of entries that leave the others out of the module.
    #[allow(dead_code, reason = "for tools; build scripts make whole modules")]
    pub(crate) fn kernels(&self) -> Vec<(String, Vec<String>)> {
        let Module { family, element, ops, protocols, .. } = self;
        let kernel = |op: &str, protocol: &str| {
            let mut name = format!("{family}_{protocol}");
            if *element != BYTES {
                name += &format!("_{op}_{element}");
            }
            let cfgs = [format!("protocol={protocol:?}"), format!("op={op:?}")];
            (name, [&["alone".to_owned()], &cfgs[..]].concat())
        };
        if ops.is_empty() {
            return vec![((*family).to_owned(), Vec::new())];
        }
        ops.iter().flat_map(|op| protocols.iter().map(|p| kernel(op, p))).collect()
    }
}

/// All modules of a build with some features, by architecture and then in the order of the table.
pub(crate) fn all(has: impl Fn(&str) -> bool) -> Vec<Module> {
    let has = |features: Features| features.iter().all(|f| has(f));
    let mut all = Vec::new();
    for &(arch, cfgs, only) in TARGETS {
        for &(_, family, types) in FAMILIES.iter().filter(|(f, ..)| has(f)) {
            for &(_, element, ops, protocols) in types.iter().filter(|(f, ..)| has(f)) {
                let is_there = if family.ends_with(MULTICAST) {
                    arch == MULTICAST_ARCH
                } else {
                    only.is_none_or(|only| only.contains(&element))
                };
                if is_there {
                    all.push(Module { arch, has: cfgs, family, element, ops, protocols });
                }
            }
        }
    }
    all
}
