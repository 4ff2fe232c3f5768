//! Compiling C against the library, and running what comes of it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// How long a program may take: far more than it does.
const LIMIT: Duration = Duration::from_secs(300);

/// Whose `nccl.h` a program is compiled with.
#[derive(Clone, Debug)]
pub(crate) enum Header {
    Ours,
    Nvidias(PathBuf),
}

impl Header {
    /// NVIDIA's, where it is there: the folder of its `nccl.h`.
    pub(crate) fn nvidias() -> Option<PathBuf> {
        let named = std::env::var_os("FERROCCL_NCCL_HEADER").map(PathBuf::from);
        let folder =
            named.unwrap_or_else(|| Path::new(CRATE).join("../../.toolchain/nccl/include"));
        folder.join("nccl.h").exists().then_some(folder)
    }
}

/// The folder of the library: as linkers look for it, and by the name that programs have.
fn library(scratch: &Path) -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let built = program.parent().expect("its folder").join("libnccl.so");
    assert!(built.exists(), "{} is not built", built.display());
    let folder = scratch.join("lib");
    if !folder.exists() {
        fs::create_dir(&folder).expect("a folder");
        for name in ["libnccl.so", "libnccl.so.2"] {
            symlink(&built, folder.join(name)).expect("a link");
        }
    }
    folder
}

/// A folder with stand-ins for the headers of CUDA that NVIDIA's header includes.
fn cuda_headers(scratch: &Path) -> PathBuf {
    let folder = scratch.join("cuda");
    if !folder.exists() {
        fs::create_dir(&folder).expect("a folder");
        let stream = "#include <stddef.h>\ntypedef struct CUstream_st* cudaStream_t;\n";
        for (name, text) in [("cuda_runtime.h", stream), ("cuda_fp16.h", ""), ("cuda_bf16.h", "")] {
            fs::write(folder.join(name), text).expect("a header");
        }
    }
    folder
}

/// Compiles a program.
pub(crate) fn compile(scratch: &Path, source: &Path, header: &Header) -> PathBuf {
    let name = source.file_stem().and_then(OsStr::to_str).expect("a name");
    let program = scratch.join(format!("{name}-{}", matches!(header, Header::Ours)));
    let library = library(scratch);
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]);
    match header {
        Header::Ours => cc.arg("-I").arg(Path::new(CRATE).join("include")),
        Header::Nvidias(folder) => {
            cc.arg("-isystem").arg(cuda_headers(scratch)).arg("-isystem").arg(folder)
        }
    };
    cc.arg("-I").arg(Path::new(CRATE).join("tests/c")).arg(source).arg("-o").arg(&program);
    cc.arg("-L").arg(&library).arg(format!("-Wl,-rpath,{}", library.display()));
    let output = cc.args(["-lnccl", "-lm", "-ldl", "-pthread"]).output().expect("cc runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", source.display());
    program
}

/// Runs a program on CPU devices, and gives what it prints. It must end well, and in time.
pub(crate) fn run(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let folder = program.parent().expect("a folder");
    let (out, errors) = (program.with_extension("out"), program.with_extension("err"));
    let file = |path: &Path| Stdio::from(fs::File::create(path).expect("a file"));
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdout(file(&out)).stderr(file(&errors));
    // A group of its own, so that none of its processes outlives the test.
    command.process_group(0);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("NCCL_") || text.starts_with("FERROCCL_") {
            command.env_remove(&name);
        }
    }
    // Before what `cargo test` has it look into: another build may have left a library there.
    command.env("LD_LIBRARY_PATH", folder.join("lib"));
    command.env("FERROCCL_DEVICE", "cpu").envs(environment.iter().copied());
    let mut child = command.spawn().expect("the program starts");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a status") {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-9", "--", &group]).status();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let said = fs::read_to_string(&errors).unwrap_or_default();
    let printed = fs::read_to_string(&out).unwrap_or_default();
    let ended_well = status.is_some_and(|status| status.success());
    assert!(ended_well, "{} {arguments:?}: {status:?}\n{printed}{said}", program.display());
    printed
}

/// The functions that a library exports, by `nm`.
pub(crate) fn exports(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let output = output.expect("nm runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names are ASCII");
    text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

/// Our library's.
pub(crate) fn our_exports() -> BTreeSet<String> {
    let scratch = tempfile::tempdir().expect("a folder");
    exports(&library(scratch.path()).join("libnccl.so"))
}
