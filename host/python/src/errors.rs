//! The library's errors as exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    ferroccl,
    Error,
    PyRuntimeError,
    "A call of FerroCCL has failed. `ranks` are the ranks that the failure is blamed on, as far as it is known: those that are \
     lost, or that have not made a call."
);

/// `error` as an exception: `ValueError` for a wrong argument, else `ferroccl.Error`.
pub(crate) fn exception(py: Python<'_>, error: &ferroccl::Error) -> PyErr {
    blaming(py, error, error.blamed_ranks())
}

/// The same, which blames `ranks`.
pub(crate) fn blaming(py: Python<'_>, error: &ferroccl::Error, ranks: Vec<u32>) -> PyErr {
    if let ferroccl::Error::InvalidArgument { argument, reason } = error {
        return PyValueError::new_err(format!("{argument}: {reason}"));
    }
    let exception = Error::new_err(error.to_string());
    match exception.value(py).setattr("ranks", ranks) {
        Ok(()) => exception,
        Err(error) => error,
    }
}

/// A wrong argument.
pub(crate) fn argument(name: &str, reason: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{name}: {reason}"))
}
