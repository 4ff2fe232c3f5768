//! Files that make no sense, and files that mean harm.

use std::fs;
use std::time::{Duration, Instant};

use ferroccl_topology::build::{self, Built};
use ferroccl_topology::xml::{self, Element};
use ferroccl_topology::{Assume, PathKind, Paths, Policy, TopologyError};

use super::support::{FILES, check};
use super::{again, built, gpu, socket};
use crate::again::{elsewhere, here};
use crate::random::Random;

#[test]
fn elements_and_attributes_have_names() {
    for (text, wanted) in [
        ("<\n/>", "x.xml:1: \"\" is no name"),
        ("<1/>", "x.xml:1: \"1\" is no name"),
        ("<system>\n<a&b/></system>", "x.xml:2: <system>: \"a&b\" is no name"),
        ("<system 2=\"3\"/>", "x.xml:1: <system>: \"2\" is no name"),
        ("<system a<b=\"3\"/>", "x.xml:1: <system>: \"a<b\" is no name"),
    ] {
        assert_eq!(xml::parse(text, "x.xml").unwrap_err().to_string(), wanted, "{text}");
    }
    assert_eq!(xml::parse("<a-1.b _c:d=\"\"/>", "x.xml").unwrap().name, "a-1.b");
}

#[test]
fn what_cannot_be_is_an_error_that_says_where() {
    let link = |attributes: &str| gpu("1:0.0", &format!("<nvlink {attributes}/>"));
    let pci = |attributes: &str| format!("<pci class=\"0x060400\" {attributes}/>");
    let net = |attributes: &str| format!("<nic><net {attributes}/></nic>");
    let twice = [gpu("1:0.0", ""), gpu("0000:01:00.0", "")].concat();
    let cases: Vec<(String, &str)> = vec![
        // Absurd values.
        (
            pci("busid=\"1:0.0\" link_width=\"9999\""),
            "3: <pci>: attribute link_width=\"9999\": more than 32 lanes",
        ),
        (
            pci("busid=\"1:0.0\" link_width=\"-16\""),
            "attribute link_width=\"-16\": not a whole number",
        ),
        (
            pci("busid=\"1:0.0\" link_speed=\"9e99 GT/s\""),
            "attribute link_speed=\"9e99 GT/s\": not the speed",
        ),
        (pci("busid=\"1:0.0\" link_speed=\"NaN GT/s\""), "attribute link_speed"),
        (
            pci("busid=\"1:0.0\" vendor=\"0x12345\""),
            "attribute vendor=\"0x12345\": not a hexadecimal number from 0x0 to 0xffff",
        ),
        (
            link("target=\"2:0.0\" count=\"0\""),
            "3: <nvlink>: attribute count=\"0\": not a whole number from 1 to 144",
        ),
        (link("target=\"2:0.0\" count=\"4294967297\""), "attribute count"),
        (link("target=\"2:0.0\" tclass=\"0x030200\""), "attribute count: missing"),
        (
            link("target=\"nowhere\" count=\"1\" tclass=\"0x030200\""),
            "attribute target=\"nowhere\": \"nowhere\" is not a PCI address",
        ),
        (
            link("target=\"nowhere\" count=\"1\" tclass=\"0x068000\""),
            "attribute target=\"nowhere\"",
        ),
        (link("count=\"1\""), "attribute target: missing"),
        (
            link("target=\"2:0.0\" count=\"1\" tclass=\"0x020000\""),
            "attribute tclass=\"0x020000\": no class",
        ),
        (
            gpu("1:0.0", &"<nvlink target=\"fffffff:ffff:ff\" count=\"73\"/>".repeat(2)),
            "3: <gpu>: 146 NVLinks, more than 144",
        ),
        (gpu("1:0.0", &"<c2c bw=\"1\" count=\"1\"/>".repeat(2)), "<c2c>: a second <c2c>"),
        (gpu("1:0.0", "<c2c bw=\"-1\" count=\"1\"/>"), "<c2c>: attribute bw=\"-1\""),
        (gpu("1:0.0", "<c2c bw=\"1\"/>"), "<c2c>: attribute count: missing"),
        (net("speed=\"-5\""), "3: <net>: attribute speed=\"-5\": not a number from -1 to 10000000"),
        (net("speed=\"-0.5\""), "attribute speed=\"-0.5\": less than nothing"),
        (net("speed=\"NaN\""), "attribute speed=\"NaN\""),
        (net("speed=\"inf\""), "attribute speed=\"inf\""),
        (net("speed=\"1e300\""), "attribute speed=\"1e300\""),
        (net("latency=\"-1\""), "attribute latency=\"-1\""),
        (net("guid=\"0x1ffffffffffffffff\""), "attribute guid"),
        (net("guid=\"0x+1\""), "attribute guid"),
        (net("maxconn=\"0\""), "attribute maxconn=\"0\""),
        (net("gdr=\"2\""), "attribute gdr=\"2\": neither 0 nor 1"),
        // Devices that cannot be where they are.
        (
            gpu("0000:01:20.0", ""),
            "attribute busid=\"0000:01:20.0\": \"0000:01:20.0\" is not a PCI address",
        ),
        (twice, "attribute busid=\"0000:01:00.0\": another device has it already (line 3)"),
        (
            "<pci class=\"0x03\"><gpu sm=\"80\"/></pci>".to_owned(),
            "<pci>: attribute busid: missing",
        ),
        (pci("busid=\"1:0.0\"").replace("class", "klass"), "<pci>: attribute class: missing"),
        ("<gpu sm=\"80\"/>".to_owned(), "<gpu>: outside of a <pci>"),
        (gpu("1:0.0", "<gpu sm=\"80\"/>"), "<gpu>: inside of a <gpu>"),
        (
            "<pci busid=\"1:0.0\"><gpu sm=\"80\"/><gpu sm=\"80\"/></pci>".to_owned(),
            "<gpu>: a second device",
        ),
        (
            "<pci busid=\"1:0.0\"><gpu sm=\"80\"/><pci busid=\"2:0.0\"/></pci>".to_owned(),
            "<pci>: below the <gpu>",
        ),
        ("<pci busid=\"1:0.0\"><nvlink/></pci>".to_owned(), "<nvlink>: outside of a <gpu>"),
        ("<pci busid=\"1:0.0\"><net/></pci>".to_owned(), "<net>: outside of a <nic>"),
        ("<nic><gpu/></nic>".to_owned(), "<gpu>: inside of a <nic>"),
        ("<net/>".to_owned(), "<net>: outside of a <nic>"),
        (
            "<pci busid=\"1:0.0\"><gpu/></pci>".to_owned(),
            "<gpu>: attribute sm: missing; --assume sm=N",
        ),
        ("<pci busid=\"1:0.0\"><gpu sm=\"0\"/></pci>".to_owned(), "<gpu>: attribute sm=\"0\""),
        (
            [net("dev=\"1\""), net("dev=\"1\"")].concat(),
            "<net>: attribute dev=\"1\": another <net>",
        ),
        // The file as such.
        ("</cpu></system><system>".to_owned(), "a second element"),
        ("<a x=\"1\" x=\"2\"/>".to_owned(), "3: <a>: attribute x=\"2\": given twice"),
        ("<a x=1/>".to_owned(), "<a>"),
        ("<a x=\"&boom;\"/>".to_owned(), "attribute x=\"&boom;\""),
        ("some text".to_owned(), "3: <cpu>: text"),
        ("<![CDATA[x]]>".to_owned(), "text (CDATA)"),
        ("&amp;".to_owned(), "an entity"),
        ("</pci>".to_owned(), "pci"),
        ("<pci".to_owned(), "pci"),
        ("<!-- never ends".to_owned(), "omment"),
    ];
    for (inside, want) in cases {
        let error = built(&socket(&inside), "").expect_err(&inside).to_string();
        assert!(error.starts_with("topo.xml:"), "{inside}: {error}");
        assert!(error.contains(want), "{inside}: {error}\n   and not: {want}");
    }
    let roots = [
        ("", "topo.xml:1: no element"),
        ("<graphs version=\"1\"/>", "topo.xml:1: <graphs>: not a <system>"),
        ("<system/>", "topo.xml:1: <system>: attribute version: missing"),
        ("<system version=\"2\"/>", "topo.xml:1: <system>: attribute version=\"2\": not version 1"),
        ("<system version=\"1\"><pci/></system>", "topo.xml:1: <pci>: outside of a <cpu>"),
        (
            "<system version=\"1\"><cpu numaid=\"0\"/>\n<cpu numaid=\"0\"/></system>",
            "topo.xml:2: <cpu>: attribute numaid=\"0\": another <cpu>",
        ),
        (
            "<system version=\"1\"><cpu affinity=\"xyz\"/></system>",
            "<cpu>: attribute affinity=\"xyz\"",
        ),
        (
            "<system version=\"1\"><cpu\n numaid=\"0\"\n\n modelid=\"x\"/></system>",
            "topo.xml:4: <cpu>: attribute modelid",
        ),
        ("<!DOCTYPE s [<!ENTITY a \"b\">]><system version=\"1\"/>", "topo.xml:1: document types"),
    ];
    for (text, want) in roots {
        let error = built(text, "").expect_err(text).to_string();
        assert!(error.contains(want), "{text}: {error}\n   and not: {want}");
    }
}

#[test]
fn what_nccl_lets_pass_passes() {
    let text = "\u{feff}<?xml version=\"1.0\"?>\n<!-- Copyright -- of somebody -->\n\
        <system version='1' name=\"x\"><cpu numaid='0' host_hash=\"0x1\"><weather/>\n\
        <pci busid=\"1:0.0\" class=\"0x02\"><nic><net dev=\"0\" speed=\"-1\"/><gin/></nic></pci>\n\
        <pci busid=\"2:0.0\" class=\"0x010802\"/>\n</cpu></system>\n<!-- end -->\n";
    let Built { system, notes } = built(text, "").unwrap();
    assert_eq!(system.nets()[0].1.bw, 1.25, "a speed that is not known is 10 Gbit/s");
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert_eq!(notes[0], "topo.xml:3: <weather>: not known, passed over");
    assert!(notes[2].starts_with("topo.xml:5: <pci>: neither"), "{notes:?}");
}

#[test]
fn every_truncated_file_is_refused() {
    for (name, text, assume) in FILES {
        let text = text.trim_end();
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            assert!(built(&text[..end], assume).is_err(), "{name} cut at byte {end} is accepted");
        }
    }
}

/// Peak memory of this process in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_hundred_megabytes_are_refused_soon_on_a_small_stack() {
    // The memory of this process is measured: other tests use some, too.
    if !here() {
        let test = "a_hundred_megabytes_are_refused_soon_on_a_small_stack";
        return elsewhere(module_path!(), test, &[]);
    }
    type Make = fn(usize) -> String;
    let nested: Make = |bytes| "<pci>".repeat(bytes / 5);
    let wide: Make = |bytes| format!("<system version=\"1\">{}", "<cpu/>".repeat(bytes / 6));
    let attributes: Make = |bytes| {
        format!(
            "<system {}/>",
            (0..bytes / 12).map(|i| format!("a{i:07}=\"\" ")).collect::<String>()
        )
    };
    let value: Make = |bytes| format!("<system version=\"{}\"/>", "1".repeat(bytes));
    let comment: Make = |bytes| format!("<!--{}", "-".repeat(bytes));
    let ends: Make = |bytes| "</pci>".repeat(bytes / 6);
    let dir = tempfile::tempdir().unwrap();
    // A file of zeros that takes no room on the disk is not read to its end either.
    let (path, before) = (dir.path().join("sparse"), peak());
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let error = xml::read(&path).unwrap_err().to_string();
    assert!(error.ends_with("longer than 64 MiB"), "{error}");
    assert!(peak() - before < 300 << 20, "{} MiB more", (peak() - before) >> 20);
    for (name, make, want) in [
        ("nested", nested, "more than 32 elements in one another"),
        ("wide", wide, "more than 65536 elements"),
        ("attributes", attributes, "more than 64 attributes"),
        ("value", value, "not version 1"),
        ("comment", comment, "omment"),
        ("ends", ends, "pci"),
    ] {
        // What fits is refused for what it is, the rest for its length.
        let text = make(60 << 20);
        let path = dir.path().join(name);
        fs::write(&path, make(100 << 20)).unwrap();
        let (start, before) = (Instant::now(), peak());
        let work = move || {
            let small = xml::parse(&text, "topo.xml")
                .map_err(TopologyError::from)
                .and_then(|root| build::system(&root, "topo.xml", &Assume::default()));
            (small.unwrap_err().to_string(), xml::read(&path).unwrap_err().to_string())
        };
        let thread = std::thread::Builder::new().stack_size(128 << 10);
        let (small, large) = thread.spawn(work).unwrap().join().unwrap();
        assert!(small.contains(want), "{name}: {small}");
        assert!(small.len() < 300, "{name}: a message of {} bytes", small.len());
        assert!(large.ends_with("longer than 64 MiB"), "{name}: {large}");
        let grown = peak().saturating_sub(before);
        assert!(grown < 300 << 20, "{name}: {} MiB more", grown >> 20);
        // A guard against what grows with the square of the length, not a measurement: that would take days.
        assert!(start.elapsed() < Duration::from_secs(300), "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn deep_trees_made_by_hand_are_refused_too() {
    let mut element = Element::new("pci").with("busid", "1:0.0").with("class", "0x0604");
    for bus in 2..200 {
        let above = Element::new("pci").with("busid", format_args!("{bus:x}:0.0"));
        element = above.with("class", "0x0604").holding(element);
    }
    let root =
        Element::new("system").with("version", 1).holding(Element::new("cpu").holding(element));
    let error = build::system(&root, "made", &Assume::default()).unwrap_err().to_string();
    assert_eq!(error, "made: <pci>: more than 32 elements in one another");
}

#[test]
fn files_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let missing = xml::read(&dir.path().join("none.xml")).unwrap_err().to_string();
    assert!(missing.contains("none.xml: No such file"), "{missing}");
    let folder = xml::read(dir.path()).unwrap_err().to_string();
    assert!(folder.to_lowercase().contains("directory"), "{folder}");
    let path = dir.path().join("bytes.xml");
    fs::write(&path, b"<system>\n\xff</system>").unwrap();
    let bytes = xml::read(&path).unwrap_err().to_string();
    assert!(bytes.ends_with("bytes.xml:2: not UTF-8"), "{bytes}");
}

/// Changes a file at random: bytes, tokens, lines.
fn mutated(text: &str, random: &mut Random) -> String {
    const TOKENS: [&str; 24] = [
        "\"",
        "<",
        ">",
        "/>",
        "</cpu>",
        "<cpu>",
        "<pci ",
        "<gpu sm=\"80\"/>",
        "=",
        "0",
        "-1",
        "NaN",
        "99999999999999999999",
        "1e400",
        "0x",
        "&",
        "&#0;",
        "<!--",
        "-->",
        "\u{0}",
        "0000:10:00.0",
        "dev=\"0\"",
        "<nvlink target=\"0000:11:00.0\" count=\"1\" tclass=\"0x030200\"/>",
        "\n",
    ];
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len().max(1));
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => _ = bytes.splice(at..at, TOKENS[random.below(24)].bytes()),
            2 => {
                let end = (at + 1 + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            3 => {
                // One value of a file in the place of another.
                let values: Vec<&str> = text.split('"').skip(1).step_by(2).collect();
                let value = values[random.below(values.len())];
                let open = bytes[..at].iter().rposition(|byte| *byte == b'"');
                let end = bytes[at..].iter().position(|byte| *byte == b'"');
                if let (Some(open), Some(end)) = (open, end) {
                    bytes.splice(open + 1..at + end, value.bytes());
                }
            }
            4 => {
                // A line once more, somewhere.
                let lines: Vec<&str> = text.lines().collect();
                let line = lines[random.below(lines.len())];
                let start =
                    bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |i| i + 1);
                bytes.splice(start..start, line.bytes());
            }
            _ => {
                // A line less.
                let start =
                    bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |i| i + 1);
                let end = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(at, |i| at + i);
                bytes.drain(start..end);
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whatever a file holds: an error that says where, or a system that holds together. `FERROCCL_FUZZ_CASES` sets the
/// number of cases, `FERROCCL_FUZZ_SEED` the first of their seeds.
#[test]
fn mutated_files_do_no_harm() {
    let number = |name: &str, usual: u64| {
        std::env::var(name)
            .map_or(usual, |text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
    };
    let (cases, first) = (number("FERROCCL_FUZZ_CASES", 4000), number("FERROCCL_FUZZ_SEED", 1));
    let mut accepted = 0;
    for seed in first..first + cases {
        let mut random = Random(seed);
        let (name, text, assume) = FILES[random.below(FILES.len())];
        let text = mutated(text, &mut random);
        let caught = std::panic::catch_unwind(|| match built(&text, assume) {
            Err(error) => {
                let error = error.to_string();
                if !error.starts_with("topo.xml:") || error.contains('\n') || error.len() > 500 {
                    return Err(format!("an error that is none: {error}"));
                }
                Ok(false)
            }
            Ok(built) => {
                check(&built.system)?;
                let again = again(&built.system);
                if again != built.system {
                    return Err("written and read it is another".to_owned());
                }
                // Whatever computes with it has to bear it.
                let paths = Paths::new(&again, &Policy::default());
                let bad =
                    (0..paths.gpus()).any(|gpu| paths.gpu_gpu(gpu, gpu).kind != PathKind::Loc);
                if bad { Err("a GPU is far from itself".to_owned()) } else { Ok(true) }
            }
        });
        match caught {
            Ok(Ok(ok)) => accepted += u64::from(ok),
            Ok(Err(reason)) => panic!("FERROCCL_FUZZ_SEED={seed} ({name}): {reason}\n{text}"),
            Err(_) => panic!("FERROCCL_FUZZ_SEED={seed} ({name}): panicked\n{text}"),
        }
    }
    println!("{accepted} of {cases} mutated files are accepted");
    assert!(cases < 1000 || (accepted > cases / 20 && accepted < cases * 19 / 20), "{accepted}");
}
