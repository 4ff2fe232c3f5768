//! Kernels of applications: their PTX, in the emulator, over the memory that there is.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use ferroccl_ptx::emu::{Launch, Lockstep, Machine, Options, Program};
use ferroccl_ptx::syntax;
use ferroccl_ptx::types::Type;

use crate::{INVALID_VALUE, memory};

/// A kernel.
#[derive(Clone)]
pub(crate) struct Emulated {
    program: Arc<Program>,
    /// Bytes of each parameter, which is aligned to them.
    parameters: Arc<[usize]>,
}

impl Emulated {
    /// The kernel of this name in a module's text, whose parameters are numbers and addresses.
    pub(crate) fn load(text: &str, name: &str) -> Result<Self, c_int> {
        let module = syntax::parse(text).map_err(|_| 218)?;
        let kernel = module.entries().find(|entry| entry.name.text == name).ok_or(500)?;
        let bytes = |ty: &str| Type::from_name(ty).map(|ty| ty.bytes() as usize).ok_or(218);
        let parameters =
            kernel.parameters.iter().map(|p| bytes(p.ty.text)).collect::<Result<_, _>>()?;
        let program = Program::load(text, name).map_err(|error| {
            eprintln!("{name}: {error}");
            218
        })?;
        Ok(Emulated { program: Arc::new(program), parameters })
    }

    /// A launch, with the arguments as they are now.
    ///
    /// # Safety
    /// `arguments` has an address for each parameter, as `cuLaunchKernel` takes them.
    pub(crate) unsafe fn launch(
        &self,
        grid: [c_uint; 3],
        block: [c_uint; 3],
        shared: c_uint,
        arguments: *mut *mut c_void,
    ) -> Launch {
        let mut values = Vec::new();
        for (i, bytes) in self.parameters.iter().enumerate() {
            values.resize(values.len().next_multiple_of(*bytes), 0);
            // SAFETY: the caller's.
            values.extend_from_slice(unsafe {
                std::slice::from_raw_parts((*arguments.add(i)).cast::<u8>(), *bytes)
            });
        }
        let mut launch = Launch::new(&self.program, 1, 1, values);
        (launch.grid, launch.block, launch.dynamic_shared) = (grid, block, shared);
        launch
    }
}

/// Runs it to its end, or to what is wrong with it.
pub(crate) fn run(launch: Launch) -> Result<(), c_int> {
    let machine = Machine::new();
    // SAFETY: what is allocated; who frees it while a kernel uses it is mistaken on a GPU, too.
    let mapped: Vec<_> = memory::ranges()
        .into_iter()
        .map(|(at, bytes)| unsafe { machine.map(at, bytes, "an allocation") })
        .collect();
    let grid = machine.launch(launch).map_err(|_| INVALID_VALUE)?;
    let mut schedule = Lockstep::new(Options::plain());
    schedule.start(&grid);
    let result = schedule.run().map(drop).map_err(|fault| {
        eprintln!("{fault}");
        700
    });
    drop(mapped);
    result
}
