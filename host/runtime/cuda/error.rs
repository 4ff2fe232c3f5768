//! What the driver says when a call fails.

use std::sync::Arc;

/// A call of CUDA's driver that failed. Cheap to clone.
///
/// Errors of kernels are *sticky*: from then on every call in the context gives the same one, and only the end of the
/// process ends it. [`CudaError::is_sticky`] knows which those are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError(Arc<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    call: &'static str,
    code: i32,
    name: String,
    text: String,
    device: Option<String>,
    doing: Option<String>,
    log: String,
}

impl CudaError {
    pub(super) fn new(call: &'static str, code: i32, name: String, text: String) -> Self {
        let (device, doing, log) = (None, None, String::new());
        CudaError(Arc::new(Inner { call, code, name, text, device, doing, log }))
    }

    /// The same, of a device.
    pub(super) fn on(&self, device: &str) -> Self {
        CudaError(Arc::new(Inner { device: Some(device.to_owned()), ..(*self.0).clone() }))
    }

    /// The same, with what was to be done by it.
    pub(super) fn doing(&self, what: String) -> Self {
        CudaError(Arc::new(Inner { doing: Some(what), ..(*self.0).clone() }))
    }

    /// The same, with what the assembler has said.
    pub(super) fn with_log(&self, log: &str) -> Self {
        CudaError(Arc::new(Inner { log: log.trim().to_owned(), ..(*self.0).clone() }))
    }

    /// The function of the driver that returned it, as `cuLaunchKernel`.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.0.call
    }

    /// The `CUresult`.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.0.code
    }

    /// The name of the code, as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The device, where it was on one: its ordinal and name.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.0.device.as_deref()
    }

    /// What the driver's assembler has said; empty where it was not asked.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.0.log
    }

    /// Whether the context is lost with it: a kernel that trapped or did what it may not, a device that is gone.
    ///
    /// Source: the codes of `CUresult` in `cuda.h` of which it says that the process must be ended to go on with CUDA.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        // ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED; ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, CONTEXT_IS_DESTROYED,
        // ASSERT; HARDWARE_STACK_ERROR to LAUNCH_FAILED; TENSOR_MEMORY_LEAK.
        matches!(self.0.code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
    }
}

impl std::error::Error for CudaError {}

impl std::fmt::Display for CudaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { call, code, name, text, device, doing, log } = &*self.0;
        if let Some(doing) = doing {
            write!(f, "{doing}: ")?;
        }
        write!(f, "{call}: {name} ({code})")?;
        if !text.is_empty() {
            write!(f, ", {text}")?;
        }
        if let Some(device) = device {
            write!(f, ", on {device}")?;
        }
        if !log.is_empty() {
            write!(f, "; the assembler says: {log}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_call_code_and_device() {
        let error = CudaError::new(
            "cuEventQuery",
            719,
            "CUDA_ERROR_LAUNCH_FAILED".into(),
            "unspecified launch failure".into(),
        );
        assert!(error.is_sticky());
        let text = error.on("GPU 1 (H200)").to_string();
        assert_eq!(
            text,
            "cuEventQuery: CUDA_ERROR_LAUNCH_FAILED (719), unspecified launch failure, on GPU 1 (H200)"
        );
        assert!(
            error
                .with_log(" line 3: no \n")
                .to_string()
                .ends_with("; the assembler says: line 3: no")
        );
        let memory = CudaError::new("cuMemAlloc_v2", 2, String::new(), String::new());
        assert!(!memory.is_sticky());
    }
}
