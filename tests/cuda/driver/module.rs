//! The linker and modules: a "cubin" is the list of its kernels' names. PTX that an application loads as text runs in the emulator.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use ferroccl::device::kernels::{self, Kernel};
use ferroccl_ptx::syntax;

use crate::emulated::Emulated;
use crate::pipes::PIPES;
use crate::{Ctx, INVALID_HANDLE, Kind, count, driver, setting};

const MAGIC: &str = "FAKECUBIN\n";

/// What is being linked.
struct Link {
    errors: *mut u8,
    bytes: usize,
    cubin: Vec<u8>,
}

pub(crate) enum Module {
    /// Names of FerroCCL's kernels.
    Table(Vec<String>),
    /// Any text.
    Ptx(String),
}

/// `CUfunction`. It is loaded when it is first launched, unless that was asked for before (Lazy Loading).
pub(crate) struct Function {
    code: Code,
    loaded: AtomicBool,
}

/// What a function runs.
#[derive(Clone)]
pub(crate) enum Code {
    /// A kernel's CPU face.
    Table(Kernel),
    /// A kernel in the emulator.
    Ptx(Emulated),
}

impl Function {
    /// Loads it, which a driver may do when no kernel runs.
    fn load(&self, context: &Ctx) -> Result<(), c_int> {
        if !self.loaded.load(Ordering::Acquire) {
            context.wait_for_kernels()?;
            self.loaded.store(true, Ordering::Release);
        }
        Ok(())
    }
}

driver! {
    cuLinkCreate_v2(n: c_uint, options: *mut c_int, values: *mut *mut c_void, to: *mut *mut c_void) |_context| {
        let mut link = Link { errors: std::ptr::null_mut(), bytes: 0, cubin: Vec::new() };
        for i in 0..n as usize {
            // SAFETY: as many as is said.
            let (option, value) = unsafe { (*options.add(i), *values.add(i)) };
            match option {
                5 => link.errors = value.cast(),
                6 => link.bytes = value as usize,
                _ => {}
            }
        }
        // SAFETY: the caller's place.
        unsafe { *to = Box::into_raw(Box::new(link)).cast() };
        Ok(())
    }
    cuLinkAddData_v2(state: *mut c_void, kind: c_int, data: *mut c_void, bytes: usize, _name: *const c_char,
        _n: c_uint, _options: *mut c_int, _values: *mut *mut c_void) |_context| {
        // SAFETY: the caller's: what `cuLinkCreate` gave, and as much text as is said.
        let (link, text) = unsafe {
            (&mut *state.cast::<Link>(), std::slice::from_raw_parts(data.cast::<u8>(), bytes))
        };
        let text = text.strip_suffix(&[0]).and_then(|text| std::str::from_utf8(text).ok());
        let complain = |words: &str| {
            let n = words.len().min(link.bytes.saturating_sub(1));
            // SAFETY: the caller's place for so many bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(words.as_ptr(), link.errors, n);
                *link.errors.add(n) = 0;
            }
            Err(218)
        };
        let Some(text) = text.filter(|_| kind == 1) else {
            return complain("ptxas fatal : not a text that ends with a zero");
        };
        let target = text.lines().find_map(|line| line.trim().strip_prefix(".target sm_"));
        let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
        let Some(target) = target.and_then(|target| digits(target).parse::<c_int>().ok()) else {
            return complain("ptxas fatal : Missing .target directive at start of file");
        };
        if target > setting("FAKE_CUDA_SM", 90) {
            return complain("ptxas fatal : SM version specified by .target is higher than default SM version assumed");
        }
        let names = text.split(".visible .entry ").skip(1).filter_map(|rest| rest.split('(').next());
        link.cubin = MAGIC.as_bytes().to_vec();
        for name in names {
            link.cubin.extend_from_slice(name.trim().as_bytes());
            link.cubin.push(b'\n');
        }
        link.cubin.push(0);
        Ok(())
    }
    cuLinkComplete(state: *mut c_void, to: *mut *mut c_void, bytes: *mut usize) |_context| {
        // SAFETY: what `cuLinkCreate` gave; the caller's places.
        unsafe {
            let link = &mut *state.cast::<Link>();
            (*to, *bytes) = (link.cubin.as_mut_ptr().cast(), link.cubin.len());
        }
        Ok(())
    }
    cuLinkDestroy(state: *mut c_void) |_context| {
        // SAFETY: what `cuLinkCreate` gave, once.
        drop(unsafe { Box::from_raw(state.cast::<Link>()) });
        Ok(())
    }
    cuModuleLoadData(to: *mut *mut c_void, image: *const c_void) |context| {
        // A driver may (Lazy Loading, in CUDA's programming guide).
        context.wait_for_kernels()?;
        // SAFETY: ours end with a zero, and so does PTX; others do not begin like ours.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| 200)?;
        let module = match text.strip_prefix(MAGIC) {
            Some(names) => Module::Table(names.lines().map(str::to_owned).collect()),
            None if text.trim_start().starts_with(".version") => {
                syntax::parse(text).map_err(|_| 218)?;
                Module::Ptx(text.to_owned())
            }
            None => return Err(200),
        };
        count(Kind::Module, 1);
        // SAFETY: the caller's place.
        unsafe { *to = Box::into_raw(Box::new(module)).cast() };
        Ok(())
    }
    cuModuleUnload(module: *mut c_void) |_context| {
        count(Kind::Module, -1);
        // SAFETY: what `cuModuleLoadData` gave, once.
        drop(unsafe { Box::from_raw(module.cast::<Module>()) });
        Ok(())
    }
    cuModuleGetFunction(to: *mut *const c_void, module: *mut c_void, name: *const c_char) |_context| {
        // SAFETY: what `cuModuleLoadData` gave, and a name that ends with a zero.
        let (module, name) = unsafe { (&*module.cast::<Module>(), CStr::from_ptr(name)) };
        let name = name.to_str().map_err(|_| 500)?;
        let code = match module {
            Module::Table(names) => {
                if !names.iter().any(|known| known == name) {
                    return Err(500);
                }
                // Kernels that the table does not have are none's, but for the tests' own.
                let mut kernels = kernels::all().chain([PIPES.kernel()]);
                Code::Table(kernels.find(|kernel| kernel.name == name).ok_or(500)?)
            }
            Module::Ptx(text) => Code::Ptx(Emulated::load(text, name)?),
        };
        // A function lives as long as the process.
        let function = Function { code, loaded: AtomicBool::new(false) };
        // SAFETY: the caller's place.
        unsafe { *to = std::ptr::from_ref(Box::leak(Box::new(function))).cast() };
        Ok(())
    }
    cuFuncLoad(raw: *const c_void) |context| {
        function(raw)?.load(context)
    }
    cuOccupancyMaxActiveBlocksPerMultiprocessor(to: *mut c_int, _function: *const c_void, threads: c_int,
        _shared: usize) |_context| {
        // SAFETY: the caller's place.
        unsafe { *to = per_multiprocessor(u32::try_from(threads).unwrap_or(0)) as c_int };
        Ok(())
    }
}

/// Blocks of so many threads that a multiprocessor holds.
pub(crate) fn per_multiprocessor(threads: u32) -> u32 {
    // Registers of 64 threads in 1024 are others': one block of 512 threads of 128 registers fills a multiprocessor.
    (960 / threads.max(32)).clamp(1, 16)
}

fn function<'a>(raw: *const c_void) -> Result<&'a Function, c_int> {
    if raw.is_null() {
        return Err(INVALID_HANDLE);
    }
    // SAFETY: what `cuModuleGetFunction` gave.
    Ok(unsafe { &*raw.cast::<Function>() })
}

/// What a function that is launched runs.
pub(crate) fn launched(raw: *const c_void, context: &Ctx) -> Result<Code, c_int> {
    function(raw)?.load(context)?;
    Ok(function(raw)?.code.clone())
}
