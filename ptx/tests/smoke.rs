//! Mutations of the fixtures: whatever a text is, looking at it panics nowhere, and an error says where it is.
//!
//! `PTX_SMOKE_SEED` looks at one seed of each fixture alone; a failure prints it. `fuzz/` looks at more.

#[path = "support/look.rs"]
mod look;
#[path = "support/mutate.rs"]
mod mutate;
mod support;

use look::{Got, look};
use mutate::{Random, mutated};

/// Mutations of a fixture: all of them take seconds.
const SEEDS: u64 = 200;

#[test]
fn mutated_fixtures() {
    let only: Option<u64> = std::env::var("PTX_SMOKE_SEED").ok().and_then(|s| s.parse().ok());
    let mut ends = [0; 4];
    for (name, source) in support::fixtures() {
        assert_eq!(look(&source, &name), Got::All);
        for seed in only.map_or(0..SEEDS, |seed| seed..seed + 1) {
            let text = mutated(&source, &mut Random::new(seed));
            ends[look(&text, &format!("{name}, PTX_SMOKE_SEED={seed}")) as usize] += 1;
        }
    }
    // Mutations are of use if they get everywhere.
    let all: u32 = ends.iter().sum();
    if only.is_none() {
        assert!(ends.iter().all(|&n| n > all / 100), "{ends:?}");
    }
}

#[test]
fn texts_that_are_hardly_any() {
    for text in [
        "",
        "\n",
        ".",
        "/",
        "/*",
        "\"",
        "\u{feff}.version 8.0",
        ".version",
        ".version 8",
        ".version 8.0 .target",
        ".version 8.0\n.target sm_80\n",
        ".version 8.0\n.target sm_80\n.entry k()",
        ".version 8.0\n.target sm_80\n.entry k() {",
        ".version 8.0\n.target sm_80\n.entry k() { {",
        ".version 8.0\n.target sm_80\n.entry k() { } }",
        ".version 8.0\n.target sm_80\n.entry k() { L: }",
        ".version 8.0\n.target sm_80\n.entry k() { .loc 1 }",
        ".version 8.0\n.target sm_80\n.file 1 \"",
        ".version 8.0\r\n.target sm_80\r\n.entry k()\r\n{\r\nret;\r\n}\r\n",
        ".version 8.0\n.target sm_80\n.global .u32 x[2] = {1, {2, {3}}};",
    ] {
        look(text, &format!("{text:?}"));
    }
    let deep = |open: &str, n: usize| {
        format!(".version 8.0\n.target sm_80\n.entry k() {{ add.u32 %r1, {} ", open.repeat(n))
    };
    for open in ["(", "{", "[", "-", "~", "!", "1?", "1+(", "{(", "(%r1, ("] {
        look(&deep(open, 100_000), open);
    }
    let blocks = format!(".version 8.0\n.target sm_80\n.entry k() {}", "{".repeat(100_000));
    look(&blocks, "blocks");
}

#[test]
fn many_blocks_are_no_trouble() {
    let mut body = String::new();
    for i in 0..20_000 {
        body += &format!("L{i}: @%p1 bra L{};\n", (i * 7919) % 20_000);
    }
    let text = format!(".version 8.0\n.target sm_80\n.entry k() {{\n{body}}}\n");
    assert_eq!(look(&text, "many blocks"), Got::All);
}
