//! The source lines that instructions come from.
//!
//! `.file 1 "name"` numbers files and `.loc 1 42 9` says a line and a column for what follows (PTX ISA 9.0, 11.5.2
//! and 11.5.3). Of an inlined function the line is one of its own, and the way there is told in one of two ways:
//!
//! ```text
//! .loc 1 28 5, function_name $L__info_string0, inlined_at 1 43 9     nvcc: the nearest call
//! .loc 3 90 20 //12                                                  this project: the nearest call's number
//! //11 1:56                                                          call 11 is in line 56 of file 1
//! //12 4:88 11                                                       call 12 is in line 88 of file 4, by call 11
//! ```

use std::collections::HashMap;

use crate::syntax::{Directive, Module};

/// A place in a source that code was inlined through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Call<'a> {
    /// The file's name.
    pub file: &'a str,
    /// The line, from 1.
    pub line: u32,
}

/// Where code comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Place<'a> {
    /// The file's name.
    pub file: &'a str,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1; 0 where it is not told.
    pub column: u32,
    /// The calls it was inlined through, the nearest first.
    pub calls: Vec<Call<'a>>,
}

/// The files of a module.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    source: &'a str,
    files: HashMap<u32, &'a str>,
    /// File and line of numbered calls, and the number of the call that led there, or 0.
    calls: HashMap<u32, (u32, u32, u32)>,
}

impl<'a> Lines<'a> {
    /// Of a module.
    #[must_use]
    pub fn new(module: &Module<'a>) -> Self {
        let calls = module.source.lines().filter_map(numbered_call).collect();
        Lines { source: module.source, files: module.files().collect(), calls }
    }

    /// What a `.loc` says; `None` where it names no file of the module, or line 0, which is none.
    #[must_use]
    pub fn place(&self, loc: &Directive<'a>) -> Option<Place<'a>> {
        let number = |i: usize| loc.arguments.get(i).and_then(|word| word.parse::<u32>().ok());
        let call = |file: Option<u32>, line: Option<u32>| {
            let line = line.filter(|&line| line > 0)?;
            Some(Call { file: self.files.get(&file?)?, line })
        };
        let own = call(number(0), number(1))?;
        let inlined = loc.arguments.iter().position(|word| word.text == "inlined_at");
        let nearest = inlined.and_then(|i| call(number(i + 1), number(i + 2)));
        let after = self.source.get(loc.span.end as usize..).unwrap_or_default();
        let comment = after.lines().next().and_then(|l| l.trim().strip_prefix("//"));
        let mut next = comment.and_then(|number| number.parse().ok());
        let told = std::iter::from_fn(|| {
            let number = next.take()?;
            let &(file, line, by) = self.calls.get(&number)?;
            // A call comes after the one that led to it: no number leads to itself.
            next = Some(by).filter(|&by| by < number);
            call(Some(file), Some(line))
        });
        let calls = nearest.into_iter().chain(told).collect();
        Some(Place { file: own.file, line: own.line, column: number(2).unwrap_or(0), calls })
    }
}

/// The number of a call, with its file, its line and the number of the call that led there, or 0: `//12 4:88 11`.
fn numbered_call(line: &str) -> Option<(u32, (u32, u32, u32))> {
    let mut words = line.strip_prefix("//")?.split(' ');
    let number = words.next()?.parse().ok()?;
    let (file, line) = words.next()?.split_once(':')?;
    let by = words.next().map_or(Some(0), |by| by.parse().ok())?;
    Some((number, (file.parse().ok()?, line.parse().ok()?, by)))
}
