//! The source lines that instructions come from.
//!
//! `.file 1 "name"` numbers files and `.loc 1 42 9` says a line and a column for what follows (PTX ISA 9.0, 11.5.2
//! and 11.5.3). Of an inlined function the line is one of its own, and the way there is told in one of two ways:
//!
//! ```text
//! .loc 1 28 5, function_name $L__info_string0, inlined_at 1 43 9     nvcc: the nearest call
//! .loc 3 90 20 // 4:88 4:41 1:56                                     this project: all calls, file:line
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
}

impl<'a> Lines<'a> {
    /// Of a module.
    #[must_use]
    pub fn new(module: &Module<'a>) -> Self {
        Lines { source: module.source, files: module.files().collect() }
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
        let told = comment.unwrap_or_default().split_whitespace().map_while(|word| {
            let (file, line) = word.split_once(':')?;
            call(file.parse().ok(), line.parse().ok())
        });
        let calls = nearest.into_iter().chain(told).collect();
        Some(Place { file: own.file, line: own.line, column: number(2).unwrap_or(0), calls })
    }
}
