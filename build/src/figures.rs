//! What is counted of a kernel's text while it is made, so that nobody has to parse it for that.
//!
//! A text is cut into statements and no further: an instruction is a statement that is neither a declaration nor a
//! directive. The parser of `ferroccl-ptx` counts the same, and takes seconds for all of the library's kernels; a test of
//! the command compares the two.
//!
//! Source: PTX ISA 9.0, 4.2 (statements), 5.3.2 (`.reg`), 11.5.3 (`.loc`, the directive that ends with its line).

use std::collections::BTreeMap;

/// What a kernel begins with.
const ENTRY: &str = ".visible .entry ";

/// What was counted of a kernel's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Bytes, from the kernel's linkage to its last brace.
    pub bytes: usize,
    /// Instructions as they stand in the text, each once.
    pub instructions: usize,
    /// Virtual registers by type (`b32`), in the order of the types' names.
    pub registers: Vec<(String, u64)>,
}

impl Figures {
    /// Those of each kernel of a module, in the order of its text.
    pub(crate) fn all(ptx: &str) -> Vec<Self> {
        entries(ptx).map(Figures::of).collect()
    }

    /// Those of a kernel: the text from its name to its last brace.
    fn of(entry: &str) -> Self {
        let (mut instructions, mut registers) = (0, BTreeMap::<&str, u64>::new());
        let mut rest = entry.find("\n{").map_or("", |body| &entry[body..]);
        loop {
            rest = rest.trim_start_matches([' ', '\t', '\r', '\n', '{', '}', ';']);
            if rest.is_empty() {
                break;
            }
            if let Some(after) = comment(rest).or_else(|| line_number(rest)).or_else(|| label(rest))
            {
                rest = after;
                continue;
            }
            let end = end_of_statement(rest);
            let statement = &rest[..end];
            if let Some((ty, count)) = statement.strip_prefix(".reg").and_then(declared) {
                *registers.entry(ty).or_default() += count;
            }
            instructions += usize::from(!statement.starts_with('.'));
            rest = &rest[end..];
        }
        let registers = registers.into_iter().map(|(ty, count)| (ty.to_owned(), count)).collect();
        Figures { bytes: ENTRY.len() + entry.len(), instructions, registers }
    }
}

/// The kernels that `headers::kernels` names, each from its name to its last brace. It is not there because the names of
/// modules in the cache hash that file: a change of it has all of them made again.
fn entries(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.split("\n.visible .entry ").skip(1).filter(|rest| rest.contains('(')).map(|rest| {
        let end = rest.find("\n}").map_or(rest.len(), |i| i + 2);
        &rest[..end]
    })
}

/// What follows a comment, if the text begins with one.
fn comment(text: &str) -> Option<&str> {
    let after = |end: &str| text.find(end).map_or("", |at| &text[at + end.len()..]);
    match text.as_bytes() {
        [b'/', b'/', ..] => Some(after("\n")),
        [b'/', b'*', ..] => Some(after("*/")),
        _ => None,
    }
}

/// What follows a `.loc`, if the text begins with one: it ends with its line.
fn line_number(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(".loc")?;
    rest.starts_with([' ', '\t']).then(|| rest.find('\n').map_or("", |end| &rest[end..]))
}

/// What follows a label, if the text begins with one.
fn label(text: &str) -> Option<&str> {
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let rest = text.trim_start_matches(in_name);
    let after = rest.trim_start_matches([' ', '\t']).strip_prefix(':')?;
    (rest.len() < text.len() && !after.starts_with(':')).then_some(after)
}

/// Where the statement's semicolon is, outside of comments and texts; or the end.
fn end_of_statement(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|b| matches!(b, b';' | b'"' | b'/')) {
        at += found;
        match bytes[at] {
            b';' => return at,
            b'"' => {
                let end = bytes[at + 1..].iter().position(|&b| b == b'"');
                at = end.map_or(bytes.len(), |end| at + 1 + end + 1);
            }
            _ => match comment(&text[at..]) {
                Some(after) => at = text.len() - after.len(),
                None => at += 1, // a division
            },
        }
    }
    bytes.len()
}

/// The type of a declaration of registers, and how many it declares: ` .b32 %r<7>`, ` .b64 %a, %b`.
fn declared(text: &str) -> Option<(&str, u64)> {
    let mut names = text.trim_start();
    let mut ty = None;
    while let Some(rest) = names.strip_prefix('.') {
        let (word, after) = rest.split_at(rest.find(char::is_whitespace)?);
        if !matches!(word, "v2" | "v4") {
            ty = ty.or(Some(word));
        }
        names = after.trim_start();
    }
    let count = |name: &str| {
        let (_, count) = name.split_once('<')?;
        count.trim_end().strip_suffix('>')?.trim().parse::<u64>().ok()
    };
    Some((ty?, names.split(',').map(|name| count(name).unwrap_or(1)).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(body: &str) -> String {
        format!(
            ".version 7.0\n.target sm_80\n\n.visible .entry k(\n\t.param .b64 work\n)\n.maxntid 512\n{{\n{body}\n}}\n"
        )
    }

    fn of(body: &str) -> (usize, Vec<(String, u64)>) {
        let text = module(body);
        let [figures] = &Figures::all(&text)[..] else { panic!("one kernel: {text}") };
        (figures.instructions, figures.registers.clone())
    }

    #[test]
    fn instructions_are_what_is_neither_declared_nor_directed() {
        for (body, instructions) in [
            ("", 0),
            ("\tret;", 1),
            ("\t.loc\t2 205 9 //5; 6\n\tadd.s32 %r1, %r2, 3;\n\tret;", 2),
            ("\t.pragma \"no;unroll\";\n\tret;", 1),
            ("$L1:\n\tbra $L1;\nL2 : L3:ret;", 2),
            ("\t@%p1 bra\t$L22;\n\t@!%p1 ret;", 2),
            ("{ .reg .b64 %at; mov.b64 %at, work; ld.param.b64 %r, [%at]; }", 2),
            ("\tld.v2.u64 {%rd1, %rd2}, [%rd3]; st.v2.u64 [%rd3], {%rd1, %rd2};", 2),
            ("\t{ // callseq 0; 1\n\tcall.uni (r), f, // so; on\n\t(p);\n\t}", 1),
            ("/* ret; */ ret /* ; */; // ret;", 1),
            ("T: .branchtargets $L1, $L2;\n\tbrx.idx %r1, T;", 1),
            ("\tmov.u32 %r1, 8 / 2;\n\tmbarrier.init.shared::cta.b64 [%r1], 1;", 2),
        ] {
            assert_eq!(of(body).0, instructions, "{body}");
        }
    }

    #[test]
    fn registers_are_counted_by_type_in_every_block() {
        let declared = "\t.reg .pred\t%p<952>;\n\t.reg .b32 %r<7>, %x;\n{ .reg .b32 %at; .reg .v2 .f32 %v<3>; }\n.shared .b8 s[4];";
        let wanted = [("b32", 9), ("f32", 3), ("pred", 952)].map(|(ty, n)| (ty.to_owned(), n));
        assert_eq!(of(declared), (0, wanted.to_vec()));
    }

    #[test]
    fn kernels_have_their_own_bytes_and_nothing_of_what_is_around() {
        let one = "\n.visible .entry one()\n{\n\tret;\n}";
        let two = "\n.visible .entry two()\n{\n\ttrap;\n\tret;\n}";
        let text = format!(
            ".version 7.0\n{one}\n.func f()\n{{\n\tret;\n}}\n{two}\n\t.file\t1 \"a\"\n//1 2:3\n"
        );
        let all = Figures::all(&text);
        assert_eq!(all.iter().map(|f| f.instructions).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(all.iter().map(|f| f.bytes + 1).collect::<Vec<_>>(), [one.len(), two.len()]);
    }

    #[test]
    fn what_is_cut_off_is_no_panic() {
        let text = module(
            "\t.reg .b32 %r<7>;\nL:\n\tcall f, \"x\" /* y */, 1 / 2; // z\n\t.loc 1 2 3\n\tret;",
        );
        for end in 0..text.len() {
            let cut = &text[..end];
            assert_eq!(Figures::all(cut).len(), crate::headers::kernels(cut).len(), "{cut}");
        }
    }
}
