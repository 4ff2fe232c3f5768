//! Which kernel is meant.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use ferroccl::ptx;
use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::syntax::{Function, Module, SyntaxError, parse};

use super::Failure;
use super::crates::Crate;
use crate::registered::{self, registry};

/// What is looked at if no architecture is named: what every GPU that is supported runs.
pub(super) const DEFAULT_ARCH: u32 = 80;

/// Where kernels come from.
#[derive(Args, Clone, Debug)]
pub(super) struct From {
    /// A file of PTX, of any compiler, instead of the embedded kernels
    #[arg(long, value_name = "PTX")]
    pub(super) file: Option<PathBuf>,
    /// The PTX that the crate in this folder has made in its last build (ferroccl-build; `ferroccl new` begins such a crate)
    #[arg(long = "crate", value_name = "DIR", conflicts_with = "file")]
    pub(super) krate: Option<PathBuf>,
    /// The architecture it runs on: what the library would load there, and what ptxas assembles for
    /// [default: sm_80, or the first that has the kernel, or the file's]
    #[arg(long, value_name = "sm_N", value_parser = super::arch)]
    pub(super) arch: Option<u32>,
}

/// A text of PTX with a kernel that is meant.
pub(super) struct Kernel {
    /// The module's text.
    pub(super) text: Cow<'static, str>,
    /// The kernel's name.
    pub(super) name: String,
    /// What the module is called: `sm_80/all_reduce_ring_float`, or the file's name.
    pub(super) origin: String,
    /// What it is to be assembled for.
    pub(super) arch: Option<u32>,
}

/// A text of PTX, and what it is called.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) origin: String,
    pub(super) text: String,
}

impl Text {
    pub(super) fn of_file(path: &Path) -> Result<Self, Failure> {
        Ok(Text { origin: path.display().to_string(), text: read(path)? })
    }
}

/// A kernel and its tree.
pub(super) struct Tree<'k> {
    pub(super) module: Module<'k>,
    /// Its place among the functions of the module.
    place: usize,
}

impl From {
    /// The kernel of this name, or of which this is a part of the name and of no other.
    pub(super) fn kernel(&self, wanted: Option<&str>) -> Result<Kernel, Failure> {
        if let Some(path) = &self.file {
            return among(vec![Text::of_file(path)?], wanted, self.arch);
        }
        let Some(dir) = &self.krate else { return self.embedded(wanted) };
        let kernel = among(Crate::find(dir)?.built()?, wanted, self.arch)?;
        says_what_is_read(&kernel.origin);
        Ok(kernel)
    }

    fn embedded(&self, wanted: Option<&str>) -> Result<Kernel, Failure> {
        let own = registry().rows().iter().filter(|row| row.kernel.ptx.is_some());
        let own: Vec<&str> = own.map(|row| row.kernel.name).collect();
        if let Some(why) = ptx::unavailable().filter(|_| own.is_empty()) {
            return Err(Failure::NoPtx(why));
        }
        let names = ptx::modules().iter().flat_map(|m| m.kernels().iter().copied());
        let names: BTreeSet<&str> = names.chain(own).collect();
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let name = pick(wanted.unwrap_or_default(), &names, "")?;
        if let Some((_, text)) = registered::find(&name) {
            let (text, origin) = (text.0.into(), registered::ORIGIN.to_owned());
            return Ok(Kernel { text, name, origin, arch: self.arch });
        }
        let arch = self.arch.unwrap_or_else(|| {
            // Some kernels are for later GPUs only.
            let has = |m: &&ptx::Module| m.kernels().contains(&&*name);
            let first = ptx::modules().iter().filter(has).map(|m| m.arch()).min();
            first.map_or(DEFAULT_ARCH, |first| first.max(DEFAULT_ARCH))
        });
        let none = || Failure::NoKernel {
            name: format!("{name} for sm_{arch}"),
            origin: String::new(),
            meant: String::new(),
        };
        let module = ptx::module(&name, arch).ok_or_else(none)?;
        Ok(Kernel {
            text: module.text().into(),
            name,
            origin: module.to_string(),
            arch: Some(arch),
        })
    }
}

/// Which of a crate's files is read: there may be several, of several builds.
pub(super) fn says_what_is_read(origin: &str) {
    crate::complain("ptx", format_args!("reads {origin}"));
}

/// Of these texts the kernel of this name, or of which this is a part of the name and of no other. Where several have it,
/// that of the latest architecture that `arch` can run, or the first.
pub(super) fn among(
    texts: Vec<Text>,
    wanted: Option<&str>,
    arch: Option<u32>,
) -> Result<Kernel, Failure> {
    let (mut kernels, mut all) = (Vec::new(), Vec::new());
    let mut has: Vec<(Option<u32>, Vec<String>)> = Vec::new();
    for Text { text, origin } in &texts {
        let module = parsed(text, origin)?;
        let with_body = |f: &&Function<'_>| f.body.is_some();
        let name = |f: &Function<'_>| f.name.text.to_owned();
        kernels.extend(module.entries().filter(with_body).map(name));
        let own: Vec<String> = module.functions().filter(with_body).map(name).collect();
        all.extend(own.iter().cloned());
        has.push((module.target.first().and_then(|t| super::arch(t).ok()), own));
    }
    for names in [&mut kernels, &mut all] {
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
    }
    let origins: Vec<&str> = texts.iter().map(|text| text.origin.as_str()).collect();
    let origins = origins.join(", ");
    let name = match wanted {
        // Functions are found, too, but one has to name them.
        Some(wanted) => pick(wanted, if kernels.is_empty() { &all } else { &kernels }, &origins)
            .or_else(|e| match all.iter().find(|name| *name == wanted) {
                Some(function) => Ok(function.clone()),
                None => Err(e),
            })?,
        None => match &kernels[..] {
            [one] => one.clone(),
            [] => return Err(Failure::Which(all)),
            _ => return Err(Failure::Which(kernels)),
        },
    };
    let holders: Vec<usize> = (0..has.len()).filter(|&i| has[i].1.contains(&name)).collect();
    let target = |i: &usize| has[*i].0;
    let best = match arch {
        Some(arch) => {
            let fitting = holders.iter().filter(|i| target(i).is_none_or(|t| t <= arch));
            fitting.max_by_key(|i| target(i))
        }
        None => holders.iter().min_by_key(|i| target(i)),
    };
    let best = best.or(holders.first()).and_then(|&i| Some((texts.get(i)?, target(&i))));
    let Some((Text { text, origin }, target)) = best else {
        return Err(Failure::NoKernel { name, origin: origins, meant: String::new() });
    };
    let (arch, text, origin) = (arch.or(target), text.clone(), origin.clone());
    Ok(Kernel { text: text.into(), name, origin, arch })
}

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|source| Failure::File { path: path.to_owned(), source })
}

/// The tree of a text; errors name where it is from.
pub(super) fn parsed<'t>(text: &'t str, origin: &str) -> Result<Module<'t>, Failure> {
    parse(text).map_err(|source| Failure::Syntax { origin: origin.to_owned(), source })
}

/// Of these names the one that is wanted.
pub(super) fn pick(wanted: &str, names: &[String], origin: &str) -> Result<String, Failure> {
    if names.iter().any(|name| name == wanted) {
        return Ok(wanted.to_owned());
    }
    let fitting: Vec<&String> = names.iter().filter(|name| name.contains(wanted)).collect();
    match &fitting[..] {
        [one] => Ok((*one).clone()),
        [] => {
            let near = names
                .iter()
                .map(|name| (strsim::damerau_levenshtein(wanted, name), name))
                .min_by_key(|(distance, _)| *distance)
                .filter(|(distance, _)| *distance <= wanted.len().div_ceil(3));
            let meant = near.map_or(String::new(), |(_, name)| format!("; did you mean `{name}`?"));
            Err(Failure::NoKernel { name: wanted.to_owned(), origin: origin.to_owned(), meant })
        }
        several => Err(Failure::Ambiguous {
            name: wanted.to_owned(),
            kernels: several.iter().map(|name| (*name).clone()).collect(),
        }),
    }
}

impl Kernel {
    /// Its tree. Embedded modules are read as far as the kernel goes: no more is looked at.
    pub(super) fn tree(&self) -> Result<Tree<'_>, Failure> {
        let module = parsed(&self.text, &self.origin)?;
        let place = module.functions().position(|f| f.name.text == self.name && f.body.is_some());
        let none = || Failure::NoKernel {
            name: self.name.clone(),
            origin: self.origin.clone(),
            meant: String::new(),
        };
        Ok(Tree { place: place.ok_or_else(none)?, module })
    }

    /// An error of its text.
    pub(super) fn wrong(&self, source: SyntaxError) -> Failure {
        Failure::Syntax { origin: self.origin.clone(), source }
    }
}

impl<'k> Tree<'k> {
    /// The kernel.
    pub(super) fn function(&self) -> &Function<'k> {
        self.module.functions().nth(self.place).expect("it was found at this place")
    }

    /// Its blocks.
    pub(super) fn cfg(&self, kernel: &Kernel) -> Result<Cfg<'_, 'k>, Failure> {
        Cfg::new(self.function()).map_err(|e| kernel.wrong(e.at(&kernel.text)))
    }

    /// The text of the module without its other kernels: what `ptxas` needs for this one.
    pub(super) fn alone(&self) -> String {
        let mut text = String::new();
        let mut at = 0;
        for other in self.module.entries().filter(|f| f.name.text != self.function().name.text) {
            let span = other.span.range();
            text.push_str(self.module.source.get(at..span.start).unwrap_or_default());
            at = span.end;
        }
        text.push_str(self.module.source.get(at..).unwrap_or_default());
        text
    }
}
