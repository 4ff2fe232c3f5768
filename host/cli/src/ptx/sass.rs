//! Machine code as `nvdisasm` prints it, and the loop in it that a loop of PTX has become.
//!
//! ```text
//! .L_x_5:
//!         //## File "device/src/copy.rs", line 188
//!         /*0450*/               @P1 BRA `(.L_x_5) ;
//! ```
//!
//! `ptxas` keeps no names of loops. One is found again by its source lines: of the loops of machine code that
//! touch global memory, the ones whose lines are most alike; and where several are alike, as many copies of
//! one inlined function are, the one of the same rank in the order of the text. Without source lines it is, of
//! those with none within, the one that moves the most bytes. What `ptxas` has moved out of the range from a
//! loop's label to its last branch back is not shown.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A line of the source.
pub(super) type SourceLine = (String, u32);

/// Instructions from a label to the branch back to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SassLoop {
    /// Its text: labels and instructions, without indentation.
    pub(super) lines: Vec<String>,
    /// Its instructions.
    pub(super) instructions: usize,
    /// Bytes that it moves from and to global memory, of a lane.
    pub(super) bytes: u32,
    innermost: bool,
    sources: BTreeSet<SourceLine>,
}

/// A line of machine code.
struct Line<'s> {
    text: &'s str,
    source: Option<SourceLine>,
    label: bool,
}

/// The loops of a kernel that touch global memory, in the order of the text.
pub(super) fn loops(sass: &str, kernel: &str) -> Vec<SassLoop> {
    let lines = lines(sass, kernel);
    let mut labels: HashMap<&str, usize> = HashMap::new();
    // The last branch back to each label.
    let mut ranges: BTreeMap<usize, usize> = BTreeMap::new();
    for (i, line) in lines.iter().enumerate() {
        if line.label {
            labels.insert(line.text.trim_end_matches(':'), i);
        } else if line.text.contains("BRA")
            && let Some((_, target)) = line.text.split_once("`(")
            && let Some(start) = target.split(')').next().and_then(|name| labels.get(name))
        {
            ranges.insert(*start, i);
        }
    }
    let mut found: Vec<SassLoop> = Vec::new();
    for (&start, &end) in &ranges {
        let part = &lines[start..=end];
        let code = part.iter().filter(|line| !line.label);
        let bytes = code.clone().map(|line| global_bytes(line.text)).sum();
        if bytes > 0 {
            found.push(SassLoop {
                lines: part.iter().map(|line| line.text.to_owned()).collect(),
                instructions: code.count(),
                bytes,
                innermost: ranges.range(start + 1..=end).next().is_none(),
                sources: part.iter().filter_map(|line| line.source.clone()).collect(),
            });
        }
    }
    found
}

fn lines<'s>(sass: &'s str, kernel: &str) -> Vec<Line<'s>> {
    let mut ours = false;
    let mut source = None;
    let mut lines = Vec::new();
    for line in sass.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix(".section\t") {
            ours = section.split(',').next().map(str::trim) == Some(&format!(".text.{kernel}"));
        } else if let Some(place) = line.strip_prefix("//## File \"") {
            source = place.split_once("\", line ").and_then(|(file, rest)| {
                let number = rest.split(|c: char| !c.is_ascii_digit()).next()?;
                Some((file.to_owned(), number.parse().ok()?))
            });
        } else if ours && line.starts_with(".L_") && line.ends_with(':') {
            lines.push(Line { text: line, source: None, label: true });
        } else if ours && line.starts_with("/*") {
            lines.push(Line { text: line, source: source.clone(), label: false });
        }
    }
    lines
}

/// What an instruction moves from or to global memory, of a lane: `LDG.E.128` 16.
fn global_bytes(line: &str) -> u32 {
    let code = line.split_once("*/").map_or(line, |(_, code)| code);
    let mut words = code.split_whitespace();
    let name = words.find(|word| !word.starts_with('@')).unwrap_or_default();
    let mut parts = name.split('.');
    let global = ["LDG", "LD", "STG", "ST", "ATOMG", "ATOM", "RED", "REDG", "LDGSTS"];
    if !parts.next().is_some_and(|opcode| global.contains(&opcode)) {
        return 0;
    }
    let width = |part: &str| match part {
        "U8" | "S8" => Some(1),
        "U16" | "S16" => Some(2),
        "64" => Some(8),
        "128" => Some(16),
        "256" => Some(32),
        _ => None,
    };
    parts.find_map(width).unwrap_or(4)
}

/// Of the loops the one that a loop of PTX with these source lines has become, if it is the `rank`th of its
/// kind.
pub(super) fn matching<'l>(
    loops: &'l [SassLoop],
    sources: &BTreeSet<SourceLine>,
    rank: usize,
) -> Option<&'l SassLoop> {
    // In thousandths, which compare.
    let alike = |of: &SassLoop| {
        let both = of.sources.intersection(sources).count();
        let either = of.sources.union(sources).count();
        1000 * both / either.max(1)
    };
    if sources.is_empty() {
        return loops.iter().filter(|l| l.innermost).max_by_key(|l| l.bytes);
    }
    let best = loops.iter().map(alike).max().filter(|&score| score > 0)?;
    let alike: Vec<&SassLoop> = loops.iter().filter(|l| alike(l) == best).collect();
    alike.get(rank).or(alike.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SASS: &str = r#"
	.section	.text.other,"ax",@progbits
.L_x_9:
        /*0000*/                   LDG.E.128 R4, desc[UR6][R2.64] ;
        /*0010*/                   BRA `(.L_x_9) ;
	.section	.text.k,"ax",@progbits
	.sectioninfo	@"SHI_REGISTERS=18"
.text.k:
	//## File "a.rs", line 3
        /*0000*/               @P0 BRA `(.L_x_2) ;
.L_x_0:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
.L_x_1:
	//## File "a.rs", line 7
        /*0020*/              @!P1 LDG.E.64.STRONG.SYS R4, desc[UR6][R2.64] ;
	//## File "b.rs", line 9 inlined at "a.rs", line 8
        /*0030*/                   STG.E.U16 desc[UR6][R2.64], R4 ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/               @P0 BRA `(.L_x_0) ;
.L_x_3:
        /*0060*/                   LDG.E R4, desc[UR6][R2.64] ;
        /*0070*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*0080*/                   BRA `(.L_x_2);
"#;

    #[test]
    fn loops_that_touch_global_memory() {
        let found = loops(SASS, "k");
        assert_eq!(found.len(), 3, "{found:?}");
        let [outer, inner, other] = &found[..] else { unreachable!() };
        assert_eq!((outer.instructions, outer.bytes, outer.innermost), (5, 10, false));
        assert_eq!((inner.instructions, inner.bytes, inner.innermost), (3, 10, true));
        assert_eq!((outer.lines[0].as_str(), inner.lines[0].as_str()), (".L_x_0:", ".L_x_1:"));
        let lines = |of: &[(&str, u32)]| of.iter().map(|(f, l)| ((*f).to_owned(), *l)).collect();
        assert_eq!(inner.sources, lines(&[("a.rs", 7), ("b.rs", 9)]));
        assert_eq!((other.bytes, &other.sources), (4, &lines(&[("b.rs", 9)])));
        let pick = |of: &[(&str, u32)], rank| {
            matching(&found, &lines(of), rank).map(|l| l.lines[0].as_str())
        };
        assert_eq!(pick(&[("b.rs", 9)], 0), Some(".L_x_3:"));
        assert_eq!(pick(&[("a.rs", 7), ("b.rs", 9)], 0), Some(".L_x_1:"));
        assert_eq!(pick(&[("a.rs", 3), ("a.rs", 7), ("b.rs", 9)], 0), Some(".L_x_0:"));
        assert_eq!(pick(&[("c.rs", 7)], 0), None);
        assert_eq!(pick(&[], 0), Some(".L_x_1:"), "the one that moves the most");
        assert!(loops(SASS, "nonesuch").is_empty());
        let twice = [inner.clone(), inner.clone(), SassLoop { bytes: 5, ..inner.clone() }];
        let third = matching(&twice, &lines(&[("a.rs", 7)]), 2).map(|l| l.bytes);
        assert_eq!(third, Some(5), "of equals the one of the same rank");
    }
}
