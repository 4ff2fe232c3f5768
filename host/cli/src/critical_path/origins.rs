//! Which source lines instructions come from, with the lines that they were inlined through.

use std::collections::HashMap;
use std::rc::Rc;

use ferroccl::runtime::ptx::{self, Site};
use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::inspect::Lines;
use ferroccl_ptx::syntax::parse;

use crate::registered;

/// Where an instruction is from.
#[derive(Debug)]
pub(crate) struct Origin {
    /// `file:line`
    pub(crate) line: String,
    /// The same of the calls that it was inlined through, the nearest first, without directories.
    pub(crate) calls: Vec<String>,
}

/// The origins of the instructions of kernels, by the line of PTX.
#[derive(Default)]
pub(crate) struct Origins {
    kernels: HashMap<String, HashMap<u32, Rc<Origin>>>,
}

impl Origins {
    /// Those of a kernel that is not of this build.
    pub(crate) fn of_text(kernel: &str, text: &str) -> Self {
        Origins { kernels: HashMap::from([(kernel.to_owned(), read(kernel, text))]) }
    }

    /// Where the instruction of a place is from; `None` where the PTX does not say.
    pub(crate) fn of(&mut self, site: &Site) -> Option<Rc<Origin>> {
        if !self.kernels.contains_key(&site.kernel) {
            let own = registered::find(&site.kernel).map(|(_, text)| text.0.to_owned());
            let text = own.or_else(|| ptx::source(&site.kernel, ptx::DEFAULT_ARCH).ok());
            let text = text.unwrap_or_default();
            self.kernels.insert(site.kernel.clone(), read(&site.kernel, &text));
        }
        self.kernels.get(&site.kernel)?.get(&site.position.line).cloned()
    }
}

fn read(kernel: &str, text: &str) -> HashMap<u32, Rc<Origin>> {
    let mut origins = HashMap::new();
    let Ok(module) = parse(text) else { return origins };
    let Some(function) = module.functions().find(|f| f.name.text == kernel && f.body.is_some())
    else {
        return origins;
    };
    let Ok(cfg) = Cfg::new(function) else { return origins };
    let lines = Lines::new(&module);
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    for code in &cfg.code {
        let Some(place) = code.location.and_then(|loc| lines.place(loc)) else { continue };
        let line = 1 + ends.partition_point(|&end| end < code.instruction.span.start as usize);
        let short = |file: &str| file.rsplit('/').next().unwrap_or(file).to_owned();
        let call =
            |call: &ferroccl_ptx::inspect::Call<'_>| format!("{}:{}", short(call.file), call.line);
        let calls = place.calls.iter().map(call).collect();
        let origin = Origin { line: format!("{}:{}", place.file, place.line), calls };
        origins.insert(line as u32, Rc::new(origin));
    }
    origins
}
