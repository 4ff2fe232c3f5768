//! What each tier consists of.

use std::process::{Command, Stdio};

use crate::run::{Step, root};
use crate::{book, features, licences, new_crates, programs, setup, skips, space};

/// Everything.
const ALL: &str = "cust,cudarc";

/// The features of all tests. With `cust` a program has functions of the names that the stand-in for a driver exports
/// (`tests/cuda/driver`), so that it is left out there.
const TESTED: &str = "cudarc";

/// The example with candle, which is another workspace.
const TRAIN: &str = "--manifest-path examples/train/Cargo.toml";

/// Kernels' PTX takes minutes to compile; what only checks host code does without.
const NO_PTX: [(&str, &str); 1] = [("FERROCCL_PTX", "none")];

/// The types that have PTX in the tier `test`, besides floats: one, so that integers' operators are among the kernels. A type is 13 modules
/// more, and one that sm_90 has instructions for 26, which take 8 seconds of a core each. The nightly tier has all.
const SOME_TYPES: [(&str, &str); 1] = [("FERROCCL_PTX_TYPES", "uint32")];

/// How many tests of a program run at the same time: of libtest.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// More than there are cores: of many tests the ranks wait, for a peer that is gone or a network's time.
fn tests_at_a_time() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

/// Has tests that take samples in the tier `test` take all.
const WHOLE: [(&str, &str); 1] = [("FERROCCL_TEST_TIER", "nightly")];

pub(crate) fn check() -> Vec<Step> {
    vec![
        format(),
        lints(&NO_PTX),
        documentation(&NO_PTX),
        Step::new("units", "unit tests")
            .run_with(&format!("cargo test --workspace --features {TESTED} --lib --bins"), &NO_PTX),
    ]
}

pub(crate) fn test(arguments: &[String]) -> Vec<Step> {
    let tests = format!("cargo test --workspace --features {TESTED}");
    let mut environment = vec![(skips::FILE.to_owned(), skips::path().display().to_string())];
    environment.extend(SOME_TYPES.map(|(name, value)| (name.to_owned(), value.to_owned())));
    // Who has set it knows why.
    if std::env::var_os(TEST_THREADS).is_none() {
        environment.push((TEST_THREADS.to_owned(), tests_at_a_time().to_string()));
    }
    // Who asks for some tests gets what cargo makes of that.
    let all = arguments.iter().all(|argument| argument == "--no-fail-fast");
    let all_or_some = Step::new("tests", "all tests").function(skips::forget);
    let all_or_some = if all {
        let tests = [std::slice::from_ref(&tests), arguments].concat().join(" ");
        all_or_some.function(move || programs::run(&tests, &environment))
    } else {
        let mut some = Command::new("cargo");
        some.args(tests.split_whitespace().skip(1)).args(arguments).envs(environment);
        all_or_some.command(some)
    };
    let mut steps = vec![
        Step::new("space", "room on the disk").function(space::check),
        format(),
        lints(&SOME_TYPES),
        documentation(&SOME_TYPES),
        Step::new("licences", "the licence of every dependency is on the list of deny.toml")
            .function(licences::check),
        Step::new("features", "builds that leave features out").function(features::some),
        Step::new(
            "device",
            "the device crate's unit tests, and its table of kernels with almost all left out",
        )
        // Compiled quickly: it runs for seconds.
        .run("cargo test --config profile.dev.package.ferroccl-device.opt-level=1 -p ferroccl-device --no-default-features --lib --test kernels"),
        Step::new("build", "all tests, compiled")
            .run_with(&format!("{tests} --no-run"), &SOME_TYPES),
        Step::new("setup", "what tests need besides").function(setup::wait),
        all_or_some.function(skips::tell),
    ];
    if all {
        steps.push(
            Step::new("lab", "protocols and algorithms of another crate (examples/lab), compiled")
                .run("cargo fmt --manifest-path examples/lab/Cargo.toml -- --check")
                .run_with(
                    "cargo check --manifest-path examples/lab/Cargo.toml --tests",
                    &IN_COMMON,
                ),
        );
    }
    steps
}

/// For another workspace that is only checked. `Cargo.lock` of examples/lab has the versions of ours, so that most of its dependencies have been
/// checked before.
const IN_COMMON: [(&str, &str); 2] = [NO_PTX[0], ("CARGO_TARGET_DIR", "target")];

/// Of commands for examples/lab, which is a workspace of its own.
const LAB: [(&str, &str); 2] = [NO_PTX[0], ("CARGO_TARGET_DIR", "target/lab")];

/// An example that is a workspace of its own.
fn example(name: &'static str, what: &'static str) -> Step {
    let cargo = |what: &str| format!("cargo {what} --manifest-path examples/{name}/Cargo.toml");
    Step::new(name, what)
        .run(&format!("{} -- --check", cargo("fmt")))
        .run_with(&cargo("test"), &LAB)
}

/// An application that depends on the crate cust.
fn cust() -> Step {
    let cust = format!("--workspace --features {ALL}");
    Step::new("cust", "applications that use the crate cust")
        .run_with(&format!("cargo clippy {cust} --all-targets -- -D warnings"), &NO_PTX)
        .run_with(&documentation_of(ALL), &[NO_PTX[0], ("RUSTDOCFLAGS", "-D warnings")])
        .run(&format!("cargo build {cust} --example cust"))
        .run(&format!("cargo test {cust} --test cuda crates"))
}

pub(crate) fn nightly() -> Vec<Step> {
    vec![
        Step::new("features", "each feature alone, and everything but it").function(features::each),
        Step::new("deny", "advisories, licences, banned crates and sources (cargo-deny)")
            .needs(|| cargo_tool("deny"))
            .run("cargo deny --workspace check licenses bans sources")
            // Of a workspace of its own.
            .run(&format!("cargo deny {TRAIN} --config deny.toml check licenses bans sources"))
            // The database of advisories comes from GitHub.
            .run("cargo deny --workspace check advisories")
            .run(&format!("cargo deny {TRAIN} --config deny.toml check advisories")),
        Step::new("book", "the book, made by mdBook; `test` checks its links and code")
            .needs(|| {
                (!answers("mdbook", &["--version"]))
                    .then(|| format!("no mdbook: {}", book::INSTALL))
            })
            .function(book::step),
        Step::new("msrv", "the oldest Rust that the manifests promise compiles everything")
            .needs(|| toolchain(&oldest_toolchain()))
            .run_with(
                &format!("cargo check --workspace --features {ALL} --all-targets"),
                &[("FERROCCL_PTX", "none"), ("RUSTUP_TOOLCHAIN", &oldest_toolchain())],
            ),
        Step::new("vm", "all tests in virtual machines with RDMA devices").run_with(
            &format!("cargo test --workspace --features {TESTED} -- _vm --nocapture"),
            &[NO_PTX[0], WHOLE[0]],
        ),
        Step::new("chaos", "a thousand random jobs, each with a fault in its middle")
            .run(&format!("cargo build --workspace --features {TESTED} --example fake_cuda"))
            .run_with(
                &format!(
                    "cargo test --workspace --features {TESTED} --test hosts -- chaos --nocapture \
                     --test-threads=1"
                ),
                &[("FERROCCL_CHAOS_RUNS", "1000")],
            ),
        Step::new("kernels", "kernels of all types, each also assembled; `test` has some types, and samples")
            .run(&format!("cargo build --workspace --features {TESTED} --example fake_cuda"))
            .run_with(
                &format!(
                    "cargo test --workspace --features {TESTED} --lib --bins --test ptx --test emulator \
                     --test cuda --test nccl --test cli"
                ),
                &WHOLE,
            ),
        Step::new("whole", "the CPU device, collectives and communicators; `test` has some of their cases").run_with(
            &format!("cargo test --workspace --features {TESTED} --test cpu --test collectives --test communicators"),
            &[NO_PTX[0], WHOLE[0]],
        ),
        Step::new("nccl", "NCCL's own kernels in the emulator: right results under all checks")
            .needs(nccl_kernels)
            .run("scripts/nccl-kernels"),
        Step::new(
            "clients",
            "programs and plugins that others made for NCCL, and torch's import, over libnccl.so.2",
        )
        .needs(|| {
            (!answers("python3", &["--version"])).then(|| "no python3: scripts/setup".to_owned())
        })
        .run("scripts/nccl-clients"),
        Step::new("python", "the Python package, with NumPy and with torch")
            .needs(|| {
                (!answers("python3", &["-c", "import venv"]))
                    .then(|| "no python3 with venv: apt install python3-venv".to_owned())
            })
            .run("scripts/python-tests torch")
            .run("scripts/python-tests own"),
        Step::new("asan", "unit tests, communicators and collectives under AddressSanitizer")
            .run("scripts/sanitize address"),
        Step::new("sanitize", "the proxy, networks and the bootstrap under ThreadSanitizer")
            .needs(library_source)
            .run("scripts/sanitize thread"),
        Step::new("miri", "parsers and pure functions under Miri")
            .needs(|| component("miri", "nightly"))
            .run_with("cargo +nightly miri test -p ferroccl-ptx --lib", &NO_PTX),
        Step::new("fuzz", "parsers and messages of peers, a minute of libFuzzer each")
            .needs(|| cargo_tool("fuzz").or_else(|| toolchain("nightly")))
            .run("scripts/fuzz all -max_total_time=60"),
        Step::new("seeds", "seeded tests with more seeds")
            .run_with(
                "cargo test --release -p ferroccl-topology --test topology",
                &[("FERROCCL_TOPOLOGY_SEEDS", "200000")],
            )
            .run_with(
                "cargo test --release -p ferroccl --test collectives -- under_adversity",
                &[("FERROCCL_TEST_SEEDS", "96"), ("FERROCCL_PTX", "none")],
            )
            .run_with(
                "cargo test -p ferroccl --test emulator bugs::",
                &[("FERROCCL_TEST_SEEDS", "15")],
            ),
        Step::new("new", "crates that `ferroccl new` makes pass their tests")
            .run_with("cargo build --manifest-path examples/lab/Cargo.toml", &LAB)
            .function(new_crates::test),
        example(
            "fused",
            "kernels of another crate that communicate by themselves (examples/fused)",
        ),
        cust(),
        Step::new("lab", "the tests of examples/lab, with more seeds").run_with(
            "cargo test --manifest-path examples/lab/Cargo.toml",
            &[NO_PTX[0], ("CARGO_TARGET_DIR", "target/lab"), ("FERROCCL_TEST_SEEDS", "10")],
        ),
        train(),
        cuda_core(),
        instructions(),
        Step::new("mutants", "planning and parsing: tests notice changed code (cargo-mutants)")
            .needs(|| cargo_tool("mutants"))
            .run_with("cargo mutants --package ferroccl-ptx --timeout 300", &NO_PTX),
    ]
}

/// An application of candle's: candle takes minutes to compile.
fn train() -> Step {
    let apart = [NO_PTX[0], ("CARGO_TARGET_DIR", "target/train")];
    Step::new("train", "data-parallel training with candle (examples/train)")
        .run(&format!("cargo fmt {TRAIN} -- --check"))
        .run_with(&format!("cargo clippy {TRAIN} --all-targets -- -D warnings"), &apart)
        .run_with(&format!("cargo test {TRAIN}"), &apart)
}

/// A benchmark that is a workspace of its own.
fn instructions() -> Step {
    let cargo =
        |what: &str| format!("cargo {what} --manifest-path benches/instructions/Cargo.toml");
    // gungraun takes a relative path from elsewhere.
    let target = root().join("target/instructions");
    let apart = [NO_PTX[0], ("CARGO_TARGET_DIR", target.to_str().unwrap_or_default())];
    Step::new("instructions", "how many instructions small calls take on the CPU, against a bar")
        .needs(|| {
            (!answers("valgrind", &["--version"])).then(|| "no valgrind: scripts/setup".to_owned())
        })
        .needs(gungraun_runner)
        .run(&format!("{} -- --check", cargo("fmt")))
        .run_with(&format!("{} --all-targets -- -D warnings", cargo("clippy --release")), &apart)
        .run_with(&cargo("run --release"), &apart)
}

/// What no other build has: cuda-core takes CUDA's headers to build. Of the kernels those that its tests need.
fn cuda_core() -> Step {
    let headers = features::cuda_headers();
    let environment = headers.as_deref().and_then(|path| path.to_str()).unwrap_or_default();
    let environment = [("CUDA_TOOLKIT_PATH", environment)];
    let docs = [environment[0], NO_PTX[0], ("RUSTDOCFLAGS", "-D warnings")];
    let of = format!("-p ferroccl --no-default-features --features {}", features::CUDA_CORE);
    Step::new("cuda-core", "applications that use NVIDIA's crates cuda-core and cuda-async")
        .needs(|| headers.is_none().then(|| "no headers of CUDA 13: scripts/setup cuda".to_owned()))
        .run_with(&format!("cargo clippy {of} --lib --example cuda_core --example fake_cuda --test cuda -- -D warnings"), &environment)
        .run_with(&format!("cargo doc {of} --no-deps"), &docs)
        .run_with(
            &format!("cargo build {of} --example fake_cuda --example cuda_core"),
            &environment,
        )
        .run_with(&format!("cargo test {of} --test cuda cuda_core"), &environment)
}

fn format() -> Step {
    Step::new("format", "formatting")
        .run("cargo fmt --all --check")
        // Cargo does not know this crate.
        .run("rustfmt --check --edition 2024 device/src/kernels/entries.rs")
}

/// All but what is of the crate cust alone, which would have all compiled a second time (the nightly tier's step `cust`).
fn lints(environment: &[(&str, &str)]) -> Step {
    let all = format!("cargo clippy --workspace --features {TESTED} --all-targets -- -D warnings");
    Step::new("lints", "clippy, on everything").run_with(&all, environment)
}

fn documentation(environment: &[(&str, &str)]) -> Step {
    let mut environment = environment.to_vec();
    environment.push(("RUSTDOCFLAGS", "-D warnings"));
    Step::new("docs", "documentation").run_with(&documentation_of(TESTED), &environment)
}

fn documentation_of(features: &str) -> String {
    format!("cargo doc --workspace --features {features} --no-deps")
}

/// Whether a program says its version.
fn answers(program: &str, arguments: &[&str]) -> bool {
    let quiet = || Stdio::null();
    let mut command = Command::new(program);
    command.args(arguments).env("RUSTUP_AUTO_INSTALL", "0").stdout(quiet()).stderr(quiet());
    command.status().is_ok_and(|status| status.success())
}

fn cargo_tool(name: &str) -> Option<String> {
    let there = answers("cargo", &[name, "--version"]);
    (!there).then(|| format!("no cargo-{name}: cargo install cargo-{name} --locked"))
}

fn toolchain(name: &str) -> Option<String> {
    let there = answers("rustup", &["which", "rustc", "--toolchain", name]);
    (!there).then(|| format!("no Rust {name}: rustup toolchain install {name}"))
}

/// The toolchain of the oldest Rust that the manifests promise, under either of the names that rustup may have it by.
fn oldest_toolchain() -> String {
    let version = features::rust_version();
    let exact = format!("{version}.0");
    let has = |name: &str| toolchain(name).is_none();
    if !has(&version) && has(&exact) { exact } else { version }
}

/// gungraun's runner, which must be of the version that the benchmark is built with.
fn gungraun_runner() -> Option<String> {
    let manifest = include_str!("../../benches/instructions/Cargo.toml");
    let version = |line: &'static str| line.strip_prefix("gungraun = \"=")?.strip_suffix('"');
    let version = manifest.lines().find_map(version).unwrap_or_default();
    let output = Command::new("gungraun-runner").arg("--version").output();
    let is = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let there = is.is_ok_and(|is| is == format!("gungraun-runner {version}"));
    let how = format!("cargo install gungraun-runner --version {version} --locked");
    (!there).then(|| format!("no gungraun-runner {version}: {how}"))
}

/// What takes NCCL's kernels out of its library.
fn nccl_kernels() -> Option<String> {
    let there = std::path::Path::new(".toolchain/cuda/bin/cuobjdump").exists()
        && answers("python3", &["-m", "pip", "--version"]);
    (!there).then(|| "no cuobjdump, or no pip: scripts/setup".to_owned())
}

fn component(name: &str, toolchain: &str) -> Option<String> {
    let there = answers("cargo", &[&format!("+{toolchain}"), name, "--version"]);
    let how = format!("rustup component add {name} --toolchain {toolchain}");
    (!there).then(|| format!("no {name} of Rust {toolchain}: {how}"))
}

/// ThreadSanitizer takes a standard library that is compiled with it.
fn library_source() -> Option<String> {
    let there = |rustc: &str| {
        let output = Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let library = std::path::Path::new(&sysroot).join("lib/rustlib/src/rust/library");
        library.is_dir().then_some(())
    };
    // Debian's, as `scripts/setup` installs it.
    let found = there("rustc").or_else(|| there("/usr/bin/rustc"));
    found.is_none().then(|| "no source of Rust's library: rustup component add rust-src".to_owned())
}
