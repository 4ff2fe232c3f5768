//! The caller's memory as buffers of the library's, where it is.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;

use ferroccl::runtime::cpu::CpuRuntime;
use ferroccl::{DeviceBuffer, Element};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::element::ElementType;
use crate::errors::argument;

/// An argument that is memory, and its owner.
pub(crate) struct Array {
    name: &'static str,
    address: usize,
    pub(crate) bytes: usize,
    pub(crate) element: ElementType,
    owner: Py<PyAny>,
}

/// A buffer of Python's (PEP 3118) that is given back when this is dropped.
struct View(Box<ffi::Py_buffer>);

impl View {
    fn of(name: &str, value: &Bound<'_, PyAny>, written: bool) -> PyResult<View> {
        let mut view = Box::new(ffi::Py_buffer::new());
        let writable = if written { ffi::PyBUF_WRITABLE } else { 0 };
        let flags: c_int = ffi::PyBUF_C_CONTIGUOUS | ffi::PyBUF_FORMAT | writable;
        // SAFETY: `view` is a place for it that does not move, and `value` is an object.
        if unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), &raw mut *view, flags) } == 0 {
            return Ok(View(view));
        }
        let error = PyErr::fetch(value.py());
        // SAFETY: `value` is an object.
        if unsafe { ffi::PyObject_CheckBuffer(value.as_ptr()) } == 0 {
            let kind = value.get_type().name()?;
            let reason = "it is neither an array nor another object with a buffer (PEP 3118)";
            return Err(PyTypeError::new_err(format!("{name}: {reason}, but a {kind}")));
        }
        let wants = if written { "writable and C-contiguous" } else { "C-contiguous" };
        let raised =
            argument(name, format!("its memory must be {wants}: {}", error.value(value.py())));
        if error.is_instance_of::<PyBufferError>(value.py())
            || error.is_instance_of::<pyo3::exceptions::PyValueError>(value.py())
        {
            raised.set_cause(value.py(), Some(error));
            return Err(raised);
        }
        Err(error)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: `of` has filled it, and holds the GIL, as does whoever has one.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

impl Array {
    /// The argument `name`: an object with a buffer, or a tuple of address, bytes, the type's number and an owner. A call writes to
    /// it if it is `written`.
    ///
    /// Of a tuple its maker promises that the owner keeps the memory where it is: `ferroccl.torch` does so of tensors.
    pub(crate) fn of(
        name: &'static str,
        value: &Bound<'_, PyAny>,
        written: bool,
    ) -> PyResult<Array> {
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let (address, bytes, element, owner): (usize, usize, usize, Py<PyAny>) =
                tuple.extract()?;
            let element =
                ElementType::numbered(element).ok_or_else(|| argument(name, "no such type"))?;
            return Ok(Array { name, address, bytes, element, owner });
        }
        let view = View::of(name, value, written)?;
        let size = usize::try_from(view.0.itemsize).unwrap_or(0);
        let format = match view.0.format.is_null() {
            true => c"B",
            // SAFETY: it is a string as long as the view is there.
            false => unsafe { CStr::from_ptr(view.0.format) },
        };
        let element = ElementType::of_format(format, size);
        let element =
            element.map_err(|reason| PyTypeError::new_err(format!("{name}: {reason}")))?;
        let (address, bytes) = (view.0.buf.expose_provenance(), view.0.len.unsigned_abs());
        // It holds the object's buffer, so that nobody can make a bytearray shorter, or free an array's memory.
        // SAFETY: `value` is an object; the result is a new reference, or NULL with an exception.
        let owner = unsafe {
            Bound::from_owned_ptr_or_err(value.py(), ffi::PyMemoryView_FromObject(value.as_ptr()))?
        };
        Ok(Array { name, address, bytes, element, owner: owner.unbind() })
    }

    /// Its name and the type of its elements, for errors.
    pub(crate) fn describe(&self) -> String {
        format!("{} has elements of type {}", self.name, self.element.name())
    }

    /// Its elements.
    pub(crate) fn len(&self) -> usize {
        self.bytes / self.element.size().max(1)
    }

    /// It as elements of type `T`, as many as fit.
    pub(crate) fn buffer<T: Element>(self) -> PyResult<DeviceBuffer<T>> {
        let (name, size) = (self.name, size_of::<T>());
        if self.bytes > 0 && !self.address.is_multiple_of(size) {
            let reason = format!(
                "its address {:#x} is no multiple of {size}, an element's size",
                self.address
            );
            return Err(argument(name, reason));
        }
        let (start, len) = (ptr::with_exposed_provenance_mut(self.address), self.bytes / size);
        // SAFETY: the owner keeps the memory, and neither moves nor shrinks it: a memoryview holds its buffer, and `Array::of` has
        // what else there may be. Who uses it during a call is the program's, as with NumPy's own threads.
        unsafe { CpuRuntime::buffer_of(start, len, Arc::new(self.owner)) }
            .map_err(|e| argument(name, e))
    }
}
