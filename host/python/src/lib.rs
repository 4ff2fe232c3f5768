//! FerroCCL for Python: the module `ferroccl._ferroccl`, on which the package in `python/ferroccl` is built.
//!
//! ```text
//! ferroccl.Communicator, ferroccl.torch      Python: shapes, defaults, torch's calls
//!   │
//! communicator   arguments become launches of the library's calls           ─► Launch
//!   ├─ memory        whose memory it is: buffers of Python's, or an address with its owner
//!   ├─ element       the type of its elements, and which operators those have
//! group          launches that start together
//! call           what has been started: its end, its error                  (waits without the GIL, and hears Ctrl-C)
//!   └─► ferroccl::Communicator
//! ```
//!
//! Memory is used where it is: an owner is kept until the library has let go of it.

#[macro_use]
mod element;

mod call;
mod communicator;
mod errors;
mod group;
mod memory;
mod waiting;

use pyo3::prelude::*;

/// What the package is built on; it is not an interface of its own.
#[pymodule]
mod _ferroccl {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::communicator::{Communicator, launcher, unique_id};
    #[pymodule_export]
    use crate::errors::Error;
    #[pymodule_export]
    use crate::group::{group_cancel, group_end, group_start};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("TYPES", crate::element::numbers(module.py())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
