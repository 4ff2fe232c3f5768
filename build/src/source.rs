//! What is compiled: a crate, for a GPU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::hash::Key;

/// A crate of device code, as rustc takes it: no cargo is involved.
///
/// ```
/// use ferroccl_build::DeviceCrate;
///
/// let device = DeviceCrate::new("ferroccl_device", "device/src/lib.rs");
/// let kernels = DeviceCrate::new("my_kernels", "src/kernels/lib.rs")
///     .feature("half")
///     .depends_on(device);
/// assert_eq!(kernels.name(), "my_kernels");
/// ```
#[derive(Clone, Debug)]
pub struct DeviceCrate {
    pub(crate) name: String,
    pub(crate) root: PathBuf,
    pub(crate) shown_as: String,
    pub(crate) coarse: Vec<String>,
    pub(crate) edition: String,
    pub(crate) cfgs: Vec<String>,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) dependencies: Vec<DeviceCrate>,
}

impl DeviceCrate {
    /// The crate `name` (with underscores, as Rust code names it), whose root file is `root`, of edition 2024. All files
    /// in the root's directory and below are taken for its source: what is kept of it is made again when one of
    /// them changes.
    #[must_use]
    pub fn new(name: impl Into<String>, root: impl Into<PathBuf>) -> Self {
        let (name, root) = (name.into(), root.into());
        DeviceCrate {
            shown_as: format!("{name}/src"),
            name,
            root: std::path::absolute(&root).unwrap_or(root),
            coarse: Vec::new(),
            edition: "2024".into(),
            cfgs: Vec::new(),
            arguments: Vec::new(),
            dependencies: Vec::new(),
        }
    }

    /// The edition, as rustc has it: `2021`.
    #[must_use]
    pub fn edition(mut self, edition: impl Into<String>) -> Self {
        self.edition = edition.into();
        self
    }

    /// What source lines in the PTX call the directory of the source, instead of `NAME/src`.
    #[must_use]
    pub fn shown_as(mut self, directory: impl Into<String>) -> Self {
        self.shown_as = directory.into();
        self
    }

    /// A file, from the directory of the source, whose functions are told as one line each in the PTX: code that is in a
    /// kernel many times, and that nobody waits for.
    #[must_use]
    pub fn coarse(mut self, file: impl Into<String>) -> Self {
        self.coarse.push(file.into());
        self
    }

    /// A `cfg` for this crate: `alone`, or `family="ring"`.
    #[must_use]
    pub fn cfg(mut self, cfg: impl Into<String>) -> Self {
        self.cfgs.push(cfg.into());
        self
    }

    /// A cargo feature of this crate.
    #[must_use]
    pub fn feature(self, feature: &str) -> Self {
        self.cfg(format!("feature={feature:?}"))
    }

    /// One more argument of rustc, for this crate.
    #[must_use]
    pub fn rustc_argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// A crate that this one names, by the name it was made with. All that is called of it becomes part of the module.
    #[must_use]
    pub fn depends_on(mut self, dependency: DeviceCrate) -> Self {
        self.dependencies.push(dependency);
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the source.
    #[must_use]
    pub fn source(&self) -> &Path {
        self.root.parent().unwrap_or(&self.root)
    }

    /// What this crate and those it depends on are called in source lines.
    pub(crate) fn shown(&self) -> Vec<&str> {
        let mut all = vec![&*self.shown_as];
        all.extend(self.dependencies.iter().flat_map(DeviceCrate::shown));
        all
    }

    /// What the files that are told coarsely are called in source lines.
    pub(crate) fn coarse_files(&self) -> Vec<String> {
        let own = self.coarse.iter().map(|file| format!("{}/{file}", self.shown_as));
        let theirs = self.dependencies.iter().flat_map(DeviceCrate::coarse_files);
        own.chain(theirs).collect()
    }

    /// Hashes all but the content of the source. Where it lies does not matter.
    pub(crate) fn key(&self, key: &mut Key) {
        let DeviceCrate { name, root, shown_as, coarse, edition, cfgs, arguments, dependencies: _ } =
            self;
        let root = root.file_name().unwrap_or_default().as_encoded_bytes();
        let arguments: Vec<_> = arguments.iter().map(|a| a.as_encoded_bytes()).collect();
        key.add(&(name, root, shown_as, coarse, edition, cfgs, arguments));
    }
}

/// A GPU architecture to compile for. PTX runs on it and on all later ones (unless it is a specific one, as `sm_90a`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub(crate) cpu: String,
    pub(crate) features: Vec<String>,
}

impl Target {
    /// By compute capability: 90 for `sm_90`.
    #[must_use]
    pub fn sm(capability: u32) -> Self {
        Target::named(format!("sm_{capability}"))
    }

    /// By rustc's name: `sm_90a`. `rustc --print target-cpus --target nvptx64-nvidia-cuda` lists them.
    #[must_use]
    pub fn named(cpu: impl Into<String>) -> Self {
        Target { cpu: cpu.into(), features: Vec::new() }
    }

    /// A feature of rustc's target, with its sign: `+ptx81`.
    #[must_use]
    pub fn feature(mut self, feature: impl Into<String>) -> Self {
        self.features.push(feature.into());
        self
    }

    /// rustc's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.cpu
    }
}

/// One module of PTX to make: a crate with its `cfg`s, for an architecture.
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) name: String,
    pub(crate) krate: DeviceCrate,
    pub(crate) target: Target,
}

impl Module {
    /// The name is that of errors and progress, and of the file in the cache; it changes nothing in the PTX.
    #[must_use]
    pub fn new(name: impl Into<String>, krate: DeviceCrate, target: Target) -> Self {
        Module { name: name.into(), krate, target }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is compiled for.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }
}

/// As `sm_90 all_reduce_ring_float`.
impl std::fmt::Display for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.target.cpu, self.name)
    }
}
