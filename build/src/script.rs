//! What a build script does for kernels of its crate's own.

use std::path::{Path, PathBuf};
use std::{env, error, fs};

use crate::{Builder, Compiler, DeviceCrate, Module, Target};

/// The cache that all build scripts of a target directory share, and all of its profiles: `target/ferroccl-ptx`. `out` is a build script's
/// `OUT_DIR`. The target directory is the one above it that cargo has tagged. Cargo tags none that was there before it came, such as a volume
/// of a container: then it is told by its place. Where `out` is neither in a tagged directory nor in a place of a build script's, the cache
/// is in `out`.
///
/// ```
/// use std::fs;
/// use ferroccl_build::cache_dir;
///
/// let target = tempfile::tempdir()?;
/// let out = target.path().join("debug/build/mine-0/out");
/// fs::create_dir_all(&out)?;
/// assert_eq!(cache_dir(&out), target.path().join("ferroccl-ptx"));
/// assert_eq!(cache_dir(target.path()), target.path().join("ferroccl-ptx"));
///
/// // Of another architecture than the compiler's.
/// let cross = target.path().join("aarch64-unknown-linux-gnu/debug/build/mine-0/out");
/// fs::create_dir_all(&cross)?;
/// assert_eq!(cache_dir(&cross), target.path().join("aarch64-unknown-linux-gnu/ferroccl-ptx"));
/// fs::write(target.path().join("CACHEDIR.TAG"), "")?;
/// assert_eq!(cache_dir(&cross), target.path().join("ferroccl-ptx"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn cache_dir(out: &Path) -> PathBuf {
    let tagged = out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    // TARGET/PROFILE/build/CRATE/out.
    let placed = || out.ancestors().nth(2).filter(|dir| dir.ends_with("build"))?.ancestors().nth(2);
    tagged.or_else(placed).unwrap_or(out).join("ferroccl-ptx")
}

/// For the build script of a crate that depends on `ferroccl-device`: compiles the crate's kernels to PTX, for GPUs from sm_80 on, into
/// `OUT_DIR/NAME.ptx`. `source` is the root of a device crate, which is called `ferroccl_NAME`; `shown_as` is its folder in source
/// lines. The file is empty where there is no compiler for PTX, or with `FERROCCL_PTX=none`.
///
/// # Errors
/// When what cargo says is missing, the kernels do not compile, or the file cannot be written.
///
/// ```no_run
/// // In build.rs, for kernels that the crate embeds by include_str!(concat!(env!("OUT_DIR"), "/mine.ptx")):
/// ferroccl_build::compile_own_kernels("mine", "src/kernels/lib.rs", "src/kernels")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compile_own_kernels(
    name: &str,
    source: &str,
    shown_as: &str,
) -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-env-changed=FERROCCL_PTX");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // From the build script of ferroccl-device.
    let device = PathBuf::from(env::var("DEP_FERROCCL_DEVICE_SOURCE")?).join("lib.rs");
    let wanted = env::var("FERROCCL_PTX").ok().is_none_or(|how| how != "none");
    // The library's build script says what to install.
    let compiler = if wanted { Compiler::find().ok() } else { None };
    let text = match compiler {
        Some(compiler) => {
            let device = DeviceCrate::new("ferroccl_device", device).shown_as("device/src");
            let kernels = DeviceCrate::new(format!("ferroccl_{name}"), source)
                .shown_as(shown_as)
                .depends_on(device);
            let module = Module::new(name, kernels, Target::sm(80));
            Builder::new(compiler, cache_dir(&out)).compile(&module)?.text().to_owned()
        }
        None => String::new(),
    };
    fs::write(out.join(format!("{name}.ptx")), text)?;
    Ok(())
}
