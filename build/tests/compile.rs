//! Device crates compiled by a real compiler, where one is.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{fs, io};

#[cfg(feature = "pack")]
use ferroccl_build::Bundle;
use ferroccl_build::{Builder, Compiler, DeviceCrate, Error, Module, Target, cache_dir};

/// A place for sources and for a cache of its own. `core` takes half a minute: it is that of the build.
struct Place {
    dir: tempfile::TempDir,
    compiler: Compiler,
}

impl Place {
    /// `None` where no rustc makes PTX, which is a failure where everything must run (`FERROCCL_TEST_ALL`).
    fn new() -> Option<Place> {
        match Compiler::find() {
            Ok(compiler) => Some(Place { dir: tempfile::tempdir().unwrap(), compiler }),
            Err(e) if std::env::var_os("FERROCCL_TEST_ALL").is_none() => {
                eprintln!("skipped: {e}");
                None
            }
            Err(e) => panic!("cannot run: {e}"),
        }
    }

    /// A source file.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// The compiled `core` is shared, by a cache that is a link to that of all tests.
    fn builder(&self) -> Builder {
        static MAKING: Mutex<()> = Mutex::new(());
        let shared = cache_dir(Path::new(env!("CARGO_TARGET_TMPDIR")));
        let cache = self.dir.path().join("cache");
        if !cache.exists() {
            let guard = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let empty = Module::new("empty", self.krate("empty", "//"), Target::sm(80));
            drop(Builder::new(self.compiler.clone(), &shared).compile(&empty));
            drop(guard);
            fs::create_dir(&cache).unwrap();
            for entry in fs::read_dir(&shared).unwrap().map(io::Result::unwrap) {
                if entry.file_name().to_string_lossy().starts_with("core_") {
                    std::os::unix::fs::symlink(entry.path(), cache.join(entry.file_name()))
                        .unwrap();
                }
            }
        }
        Builder::new(self.compiler.clone(), cache)
    }

    fn krate(&self, name: &str, text: &str) -> DeviceCrate {
        DeviceCrate::new(name, self.write(&format!("{name}/lib.rs"), text))
    }
}

#[cfg(feature = "pack")]
#[test]
fn a_release_carries_what_was_made_of_its_source() {
    let Some(place) = Place::new() else { return };
    let krate = place.krate("top", &format!("{HEAD}{PANIC}{}", kernel("k", "*p = 1")));
    let source = ferroccl_build::hash_source(krate.source()).unwrap();
    let module = Module::new("it", krate, Target::sm(80));
    let ptx = place.builder().compile(&module).unwrap();
    let dir = place.dir.path().join("kernels");
    place.write("kernels/README.md", "stays");
    place.write("kernels/sm_70_old.ptx.zst", "goes");
    let text = ptx.text().to_owned();
    let written = Bundle::write(&dir, &source, &[(module, ptx)]).unwrap();
    assert_eq!(Bundle::read(&dir).unwrap().as_ref(), Some(&written));
    assert_eq!((&*written.source, &*written.modules[0].name), (&*source, "it"));
    assert_eq!(
        (written.modules[0].bytes, &*written.modules[0].kernels),
        (text.len(), &["k".to_owned()][..])
    );
    let packed = fs::read(dir.join(written.modules[0].file())).unwrap();
    assert_eq!(zstd::decode_all(&packed[..]).unwrap(), text.as_bytes());
    let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|f| f.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["README.md", "manifest", "sm_80_it.ptx.zst"]);
}

/// The attributes of a crate with kernels, and what all of them need.
const HEAD: &str = "#![no_std]\n#![feature(abi_ptx, asm_experimental_arch)]\n";
const PANIC: &str = "#[panic_handler] fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }\n";

fn kernel(name: &str, body: &str) -> String {
    format!(
        "#[unsafe(no_mangle)] pub unsafe extern \"ptx-kernel\" fn {name}(p: *mut u32) {{ unsafe {{ {body} }} }}\n"
    )
}

#[test]
fn a_crate_becomes_ptx_with_its_dependencies_inside() {
    let Some(place) = Place::new() else { return };
    // A function that nobody marked `inline`, two crates away.
    let deep = place.krate("deep", "#![no_std]\npub fn seven() -> u32 { 7 }\n");
    let middle = "#![no_std]\npub fn more(n: u32) -> u32 { n + deep::seven() }\n";
    let middle = place.krate("middle", &format!("{middle}{PANIC}")).depends_on(deep);
    let text = format!(
        "{HEAD}#[cfg(feature = \"one\")]\n{}#[cfg(two)]\n{}",
        kernel("first", "core::arch::asm!(\"//@maxntid 96\"); *p = middle::more(*p)"),
        kernel("second", "*p = 1")
    );
    let top = place.krate("top", &text).depends_on(middle).shown_as("shown/src");
    let module = Module::new("it", top.clone().feature("one"), Target::sm(80));
    let ptx = place.builder().compile(&module).unwrap();
    assert_eq!(ptx.kernels(), ["first"]);
    assert!(ptx.text().contains(".target sm_80"), "{}", ptx.text());
    assert!(ptx.text().contains("\n.maxntid 96\n"), "{}", ptx.text());
    assert!(ptx.text().contains(" work"), "{}", ptx.text());
    assert!(!ptx.text().contains("call"), "{}", ptx.text());
    for file in ["shown/src/lib.rs", "middle/src/lib.rs"] {
        assert!(ptx.text().contains(&format!("\"{file}\"")), "{file}: {}", ptx.text());
    }

    let both = Module::new("both", top.feature("one").cfg("two"), Target::named("sm_90a"));
    let ptx = place.builder().compile(&both).unwrap();
    assert_eq!(ptx.kernels(), ["first", "second"]);
    let figures = ptx.figures();
    assert_eq!(figures.len(), 2);
    assert!(
        figures.iter().all(|f| f.instructions >= 3 && f.registers.iter().any(|r| r.0 == "b64"))
    );
    assert!(figures.iter().map(|f| f.bytes).sum::<usize>() < ptx.text().len());
    assert!(ptx.text().contains(".target sm_90a"), "{}", ptx.text());
}

#[test]
fn a_warning_about_a_dependency_is_told_once() {
    let Some(place) = Place::new() else { return };
    let below = place.krate("below", &format!("#![no_std]\nfn idle() {{}}\n{PANIC}"));
    let text = format!("{HEAD}use below as _;\n{}", kernel("k", "*p = 1"));
    let top = place.krate("top", &text).depends_on(below);
    let modules = ["a", "b"].map(|cfg| Module::new(cfg, top.clone().cfg(cfg), Target::sm(80)));
    let made = place.builder().compile_all(&modules, &|_| {}).unwrap();
    let told = made.iter().flat_map(|ptx| ptx.warnings()).filter(|line| line.contains("idle"));
    assert_eq!(told.count(), 1, "{made:?}");
}

#[test]
fn what_was_made_is_kept_until_a_source_changes() {
    let Some(place) = Place::new() else { return };
    let middle = |n: u32| format!("#![no_std]\npub fn n() -> u32 {{ {n} }}\n{PANIC}");
    let build = |n: u32| {
        let middle = place.krate("middle", &middle(n));
        let text = format!("{HEAD}{}", kernel("k", "*p = middle::n()"));
        let top = place.krate("top", &text).depends_on(middle);
        let modules =
            [Module::new("a", top.clone(), Target::sm(80)), Module::new("b", top, Target::sm(90))];
        let seen = Mutex::new(Vec::new());
        let made = place.builder().jobs(2).compile_all(&modules, &|p| {
            seen.lock().unwrap().push((p.done, p.all, p.cached));
        });
        (made.unwrap(), seen.into_inner().unwrap())
    };
    let (made, seen) = build(41);
    assert!(made.iter().all(|ptx| ptx.text().contains("41")), "{}", made[0].text());
    assert_eq!(seen, [(1, 2, false), (2, 2, false)]);
    let (again, seen) = build(41);
    assert_eq!(seen, [(1, 2, true), (2, 2, true)]);
    assert!(made.iter().zip(&again).all(|(one, other)| one.text() == other.text()));
    let (other, seen) = build(43);
    assert_eq!(seen, [(1, 2, false), (2, 2, false)]);
    assert!(other.iter().all(|ptx| ptx.text().contains("43")), "{}", other[0].text());
}

#[test]
fn what_is_wrong_is_an_error_with_the_compilers_words() {
    let Some(place) = Place::new() else { return };
    let compile = |text: &str| {
        let krate = place.krate("wrong", &format!("{HEAD}{PANIC}{text}"));
        place.builder().compile(&Module::new("it", krate, Target::sm(80))).map(drop)
    };
    let error = compile("fn f() { nothing() }").unwrap_err();
    assert!(
        matches!(&error, Error::Compile { name, log } if name == "it" && log.contains("nothing")),
        "{error}"
    );
    assert!(matches!(compile("").unwrap_err(), Error::NoKernels { .. }));
    let error = compile(&format!(
        "unsafe extern \"C\" {{ fn gone(n: u32) -> u32; }}\n{}",
        kernel("k", "*p = gone(1)")
    ));
    assert!(matches!(error.unwrap_err(), Error::Undefined { function, .. } if function == "gone"));
    let asks = "#[inline(never)] fn asks() -> u64 { let n; unsafe { core::arch::asm!(\"ld.param.u64 {}, [work];\", out(reg64) n) }; n }";
    let error = compile(&format!("{asks}\n{}", kernel("k", "*p = asks() as u32"))).unwrap_err();
    assert!(
        matches!(&error, Error::NotInlined { function, .. } if function == "wrong::asks"),
        "{error}"
    );
    // The next attempt is not misled by what this one left.
    compile(&kernel("k", "*p = 1")).unwrap();
}
