//! Calls go where they should: each case in a process of its own, since a process opens one library.

use std::ffi::{c_float, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::process::Command;

unsafe extern "C" {
    fn cuInit(flags: c_uint) -> c_int;
    fn cuLaunchKernel(
        function: *mut c_void,
        gx: c_uint,
        gy: c_uint,
        gz: c_uint,
        bx: c_uint,
        by: c_uint,
        bz: c_uint,
        shared: c_uint,
        stream: *mut c_void,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> c_int;
    fn cuTexRefSetMipmapLevelClamp(texture: *mut c_void, least: c_float, most: c_float) -> c_int;
    fn cuCtxSynchronize() -> c_int;
}

/// A library with three of the functions. What they return tells that their arguments came through.
const LIBRARY: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> i32 { flags as i32 }
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(f: usize, a: u32, b: u32, c: u32, d: u32, e: u32, g: u32, h: u32, s: usize, i: usize,
    j: usize) -> i32 {
    [f, a as usize, b as usize, c as usize, d as usize, e as usize, g as usize, h as usize, s, i, j].iter()
        .fold(0, |all, x| all * 3 + *x as i32)
}
#[unsafe(no_mangle)]
pub extern "C" fn cuTexRefSetMipmapLevelClamp(texture: usize, least: f32, most: f32) -> i32 {
    texture as i32 + (least * 10.0) as i32 + (most * 1000.0) as i32
}
"#;

/// This test again, in a process with this library.
fn with(library: &str, case: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", case, "--ignored", "--nocapture"])
        .env("FERROCCL_CUDA_LIBRARY", library)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

#[test]
fn no_library_is_no_device() {
    with("/nonexistent/libcuda.so.1", "without_a_library");
}

#[test]
#[ignore = "run by no_library_is_no_device"]
fn without_a_library() {
    assert!(!ferroccl_cuda_link::available());
    // SAFETY: nothing is there to be called.
    unsafe {
        assert_eq!([cuInit(0), cuInit(0), cuCtxSynchronize()], [100; 3]);
    }
}

#[test]
fn a_library_is_called() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join("few_functions.rs"), folder.join("libfew_functions.so"));
    std::fs::write(&source, LIBRARY).unwrap();
    let mut compiler = Command::new(option_env!("RUSTC").unwrap_or("rustc"));
    compiler.args(["--edition=2024", "--crate-type=cdylib", "-o"]).arg(&library).arg(&source);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    with(library.to_str().unwrap(), "with_a_library");
}

#[test]
#[ignore = "run by a_library_is_called"]
fn with_a_library() {
    assert!(ferroccl_cuda_link::available());
    let at = |n: usize| n as *mut c_void;
    let launch = || {
        let (arguments, extra) = (10 as *mut *mut c_void, 11 as *mut *mut c_void);
        // SAFETY: the library's functions take numbers.
        unsafe { cuLaunchKernel(at(1), 2, 3, 4, 5, 6, 7, 8, at(9), arguments, extra) }
    };
    let expected = (1..=11).fold(0, |all, x| all * 3 + x);
    // Threads that come at the same time find the same; and so does who comes later.
    let results: Vec<c_int> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(launch)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(results, [expected; 8]);
    assert_eq!(launch(), expected);
    // SAFETY: as above; the last is not there.
    unsafe {
        assert_eq!([cuInit(7), cuInit(8)], [7, 8]);
        let clamp = || cuTexRefSetMipmapLevelClamp(at(5), 2.5, 3.25);
        assert_eq!([clamp(), clamp()], [3280, 3280]);
        assert_eq!([cuCtxSynchronize(), cuCtxSynchronize()], [500; 2]);
    }
}
