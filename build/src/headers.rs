//! What rustc cannot say in the header of a kernel, or of a module.

use std::fmt::Write as _;

/// What begins the line that says which version of the PTX ISA a function needs.
const VERSION: &str = "//@version ";

/// Calls the first parameter of every kernel `work`, by which `ferroccl_device` asks for a call. Moves
/// `//@maxntid N`, which device code leaves in a kernel's body by `asm!`, to the kernel's header, where PTX wants it
/// (11.4.3). `//@version N` raises the version of the PTX ISA that the module is of to what a function needs, beyond that of the
/// architecture. Keeps the assembler from unrolling what the compiler has left as a loop: those are loops over the odd
/// elements at an end, and their copies would be half of the code.
pub(crate) fn finish(asm: &str) -> String {
    let mut ptx = String::with_capacity(asm.len());
    let mut rest = asm;
    let number = |version: &str| {
        let (major, minor) = version.trim().split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    let needed =
        asm.lines().filter_map(|line| line.trim().strip_prefix(VERSION)).max_by_key(|v| number(v));
    if let (Some(needed), Some(at)) = (needed, rest.find(".version ")) {
        let end = at + rest[at..].find('\n').unwrap_or(rest.len() - at);
        if number(needed) > number(&rest[at + ".version ".len()..end]) {
            ptx += &rest[..at];
            let _ = write!(ptx, ".version {needed}");
            rest = &rest[end..];
        }
    }
    if let Some(header) = rest.find(".address_size 64\n") {
        let body = header + ".address_size 64\n".len();
        ptx += &rest[..body];
        ptx += ".pragma \"nounroll\";\n";
        rest = &rest[body..];
    }
    while let Some(entry) = rest.find(".entry ") {
        let body = entry + rest[entry..].find("\n{").map_or(0, |i| i + 1);
        let end = body + rest[body..].find("\n}").unwrap_or(rest.len() - body);
        let name = rest[entry + ".entry ".len()..].split('(').next().unwrap_or_default();
        let parameter = format!("{name}_param_0");
        ptx += &rest[..entry];
        ptx += &rest[entry..body].replace(&parameter, "work");
        let said = rest[body..end].lines().map(str::trim).filter(|line| !line.starts_with(VERSION));
        for bound in said.filter_map(|line| line.strip_prefix("//@")) {
            let _ = writeln!(ptx, ".{bound}");
        }
        // The compiler, too, uses it: in kernels whose argument is not a call.
        ptx += &rest[body..end].replace(&parameter, "work");
        rest = &rest[end..];
    }
    ptx + rest
}

/// The names of the kernels of a module, in the order of its text.
pub(crate) fn kernels(ptx: &str) -> Vec<String> {
    let entries = ptx.split("\n.visible .entry ").skip(1);
    entries.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())).collect()
}

/// The first function that is no kernel and uses the parameter of one, as Rust names it.
pub(crate) fn not_inlined(ptx: &str) -> Option<String> {
    let functions = ptx.split("\n.func").skip(1).chain(ptx.split("\n.visible .func").skip(1));
    let mut bodies = functions.filter_map(|rest| {
        let (head, body) = rest.split_once("\n{")?;
        // A declaration ends before a body.
        (!head.contains(';')).then(|| (head, body.split("\n}").next().unwrap_or_default()))
    });
    let (head, _) = bodies.find(|(_, body)| body.contains("[work"))?;
    // `  (.param .b32 r) name(`, or `  name(`
    let head = head.trim_start();
    let named = match head.strip_prefix('(') {
        Some(result) => result.split_once(')')?.1,
        None => head,
    };
    let name = named.split('(').next().unwrap_or_default().trim();
    Some(format!("{:#}", rustc_demangle::demangle(name)))
}

/// The first function that a module calls and does not contain.
pub(crate) fn undefined(ptx: &str) -> Option<&str> {
    let (_, declared) = ptx.split_once(".extern .func")?;
    let declared = declared.split([';', '{']).next().unwrap_or(declared);
    // `.extern .func  (.param .b32 r) name`, its parameters on the lines that follow
    let after = declared.rfind(')').map_or(declared, |end| {
        let last = &declared[..end];
        last.rfind('(').map_or(declared, |begin| &declared[..begin])
    });
    Some(after.split([' ', ')', '\n', '\t']).rfind(|word| !word.is_empty()).unwrap_or("a function"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second kernel reads its parameter as the compiler has it.
    const ASM: &str = ".version 7.0\n.target sm_80\n.address_size 64\n\n\
        .visible .entry one(\n\t.param .align 16 .b8 one_param_0[64]\n)\n{\n\t//@maxntid 512\n\tret;\n}\n\
        .visible .entry two(\n\t.param .b64 two_param_0,\n\t.param .b64 two_param_1\n)\n{\n\tld.param.b64 %rd1, [two_param_0+8];\n\tret;\n}\n";

    #[test]
    fn bounds_stand_in_the_header_and_the_call_is_named() {
        assert_eq!(
            finish(ASM),
            ".version 7.0\n.target sm_80\n.address_size 64\n.pragma \"nounroll\";\n\n\
             .visible .entry one(\n\t.param .align 16 .b8 work[64]\n)\n.maxntid 512\n{\n\t//@maxntid 512\n\tret;\n}\n\
             .visible .entry two(\n\t.param .b64 work,\n\t.param .b64 two_param_1\n)\n{\n\tld.param.b64 %rd1, [work+8];\n\tret;\n}\n"
        );
        assert_eq!(kernels(&finish(ASM)), ["one", "two"]);
    }

    #[test]
    fn a_module_is_of_the_version_that_its_functions_need() {
        let with = |line: &str| ASM.replace("\tret", &format!("\t{line}\n\tret"));
        let of = |asm: &str| finish(asm).lines().next().map(str::to_owned);
        assert_eq!(of(&with("//@version 8.2")).as_deref(), Some(".version 8.2"));
        assert_eq!(of(&with("//@version 10.0\n//@version 8.2")).as_deref(), Some(".version 10.0"));
        assert_eq!(of(&with("//@version 6.4")).as_deref(), Some(".version 7.0"));
        assert_eq!(of(&with("//@version x")).as_deref(), Some(".version 7.0"));
        assert!(!finish(&with("//@version 8.2")).contains("\n.version"));
    }

    #[test]
    fn a_function_that_only_works_inside_of_a_kernel_is_named() {
        let with = |head: &str, body: &str| {
            format!("{ASM}\n{head}(\n\t.param .b64 p\n)\n{{\n\t{body}\n}}\n")
        };
        let uses = "ld.param.u64 %rd1, [work+8];";
        let mangled = "_ZN3lab4ll644step17h0123456789abcdefE";
        for (head, name) in [
            (".func plain", "plain"),
            (".visible .func  (.param .b64 func_retval0) other", "other"),
            (&format!(".func {mangled}"), "lab::ll64::step"),
        ] {
            assert_eq!(not_inlined(&with(head, uses)).as_deref(), Some(name));
            assert_eq!(not_inlined(&with(head, "ret;")), None);
        }
        // What a kernel has is the kernel's.
        assert_eq!(not_inlined(&finish(&ASM.replace("\tret", &format!("\t{uses}\n\tret")))), None);
        let declared = format!("{ASM}.func gone\n()\n;\n{}", with(".func plain", "ret;"));
        assert_eq!(not_inlined(&declared), None);
    }

    #[test]
    fn a_function_that_is_not_there_is_named() {
        assert_eq!(undefined(ASM), None);
        let with = |declared: &str| format!("{declared}\n;\n{ASM}");
        assert_eq!(
            undefined(&with(
                ".extern .func  (.param .b32 func_retval0) missing\n(\n\t.param .b64 p\n)"
            )),
            Some("missing")
        );
        assert_eq!(undefined(&with(".extern .func gone\n()")), Some("gone"));
    }
}
