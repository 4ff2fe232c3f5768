//! PTX that nvcc's compiler made of the CUDA sources in `fixtures/` (`scripts/ptx-fixtures`).

mod support;

use std::collections::BTreeSet;

use ferroccl_ptx::cfg::Cfg;
use ferroccl_ptx::{isa, syntax};

#[test]
fn every_source_is_there_compiled_for_two_architectures() {
    let stems: BTreeSet<String> = support::fixture_files("cu")
        .iter()
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    assert!(stems.len() >= 10, "{stems:?}");
    let expected: BTreeSet<String> =
        stems.iter().flat_map(|stem| [format!("{stem}.sm_80"), format!("{stem}.sm_90")]).collect();
    let found: BTreeSet<String> = support::fixtures().into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, expected);
}

#[test]
fn every_one_parses_and_has_instructions_that_there_are() {
    let mut kernels = 0;
    for (name, source) in support::fixtures() {
        let module = syntax::parse(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        let arch = name.split('.').next_back().expect("a name has an architecture");
        assert_eq!(module.target[0].text, arch, "{name}");
        assert!(module.entries().count() > 0, "{name} has no kernel");
        isa::check_module(&module).unwrap_or_else(|e| panic!("{name}: {e}"));
        kernels += module.entries().count();
    }
    assert!(kernels > 40, "{kernels}");
}

#[test]
fn lines_name_files_of_the_project() {
    let mut named = 0;
    for (name, source) in support::fixtures() {
        let module = syntax::parse(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (_, file) in module.files() {
            assert!(file.starts_with("ptx/tests/fixtures/"), "{name}: {file}");
            named += 1;
        }
    }
    assert!(named > 0);
}

#[test]
fn the_ways_through_every_function_are_known() {
    let mut loops = 0;
    for (name, source) in support::fixtures() {
        let module = syntax::parse(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        for function in module.functions() {
            let cfg = Cfg::new(function).unwrap_or_else(|e| panic!("{name}: {}", e.at(&source)));
            let place = format!("{name}: {}", function.name);
            support::check_cfg(&cfg, &place);
            assert!(cfg.irreducible().is_empty(), "{place}");
            loops += cfg.loops().len();
        }
    }
    assert!(loops > 20, "{loops}");
}
