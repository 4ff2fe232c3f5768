//! `libnccl.so.2` with its header, where programs made for NCCL find them.

use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::Value;

use crate::run::root;

/// The version of NCCL whose interface it is, as in `nccl.h`.
const VERSION: [&str; 3] = ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"];

/// Where to install.
#[derive(Args)]
pub(crate) struct Where {
    /// Gets lib/libnccl.so.2, include/nccl.h and lib/pkgconfig/nccl.pc
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
}

/// Builds the library, and installs it.
pub(crate) fn install(place: &Where) -> Result<(), Box<dyn Error>> {
    let built = build()?;
    let root = root();
    let header = root.join("host/nccl/include/nccl.h");
    let version = version(&fs::read_to_string(&header)?)?;
    let (lib, include) = (place.prefix.join("lib"), place.prefix.join("include"));
    let pkgconfig = lib.join("pkgconfig");
    [&lib, &include, &pkgconfig].into_iter().try_for_each(fs::create_dir_all)?;
    let library = lib.join("libnccl.so.2");
    replace(&library, |at| fs::copy(&built, at).map(drop))?;
    replace(&lib.join("libnccl.so"), |at| symlink("libnccl.so.2", at))?;
    replace(&include.join("nccl.h"), |at| fs::copy(&header, at).map(drop))?;
    replace(&pkgconfig.join("nccl.pc"), |at| fs::write(at, package(&version)))?;
    println!(
        "{} (NCCL {version}'s interface), {}",
        library.display(),
        include.join("nccl.h").display()
    );
    Ok(())
}

/// Builds the library as a release; gives its path.
fn build() -> Result<PathBuf, Box<dyn Error>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "-p", "ferroccl-nccl"]);
    cargo.arg("--message-format=json-render-diagnostics").current_dir(root());
    let output = cargo.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the library is not built".into());
    }
    let messages = String::from_utf8(output.stdout)?;
    let files = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut files = files.flat_map(|message| match &message["filenames"] {
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).map(PathBuf::from).collect::<Vec<_>>()
        }
        _ => Vec::new(),
    });
    let library = files.find(|file| file.file_name().is_some_and(|name| name == "libnccl.so"));
    library.ok_or_else(|| "cargo names no libnccl.so".into())
}

/// Puts a file in the place of another, which programs may be using.
fn replace(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), String> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let replaced = make(&new).and_then(|()| fs::rename(&new, path));
    replaced.map_err(|error| {
        // What there is of it is of no use.
        let _ = fs::remove_file(&new);
        format!("{}: {error}", path.display())
    })
}

fn version(header: &str) -> Result<String, String> {
    let number = |name: &str| {
        let value = header.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        value.map(str::trim).ok_or_else(|| format!("nccl.h has no {name}"))
    };
    Ok(VERSION.map(number).into_iter().collect::<Result<Vec<_>, _>>()?.join("."))
}

/// What pkg-config reads. It goes by its own place, so that the folder can be moved.
fn package(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: nccl\n\
         Description: NCCL's C interface over FerroCCL\n\
         Version: {version}\n\
         Libs: -L${{libdir}} -lnccl\n\
         Cflags: -I${{includedir}}\n"
    )
}
