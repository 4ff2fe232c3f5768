//! NCCL's interface for kernels, `nccl_device.h`: none of it is there. What has a result says so.

use std::ffi::{c_int, c_void};

use crate::answer::Failure;
use crate::types::*;

fn absent(name: &str) -> Failure {
    Failure::absent(name, "FerroCCL's interface for kernels is another (docs/device-api.md)")
}

export! {
    /// It would make a communicator for kernels.
    answer ncclDevCommCreate, pncclDevCommCreate(_comm: ncclComm_t, _reqs: *const c_void, _outDevComm: *mut c_void) {
        Err(absent("ncclDevCommCreate"))
    }

    /// It would end one.
    answer ncclDevCommDestroy, pncclDevCommDestroy(_comm: ncclComm_t, _devComm: *const c_void) {
        Err(absent("ncclDevCommDestroy"))
    }

    /// It would give the address of a window at the switch.
    answer ncclGetLsaMultimemDevicePointer, pncclGetLsaMultimemDevicePointer(
        _window: ncclWindow_t, _offset: usize, _outPtr: *mut *mut c_void,
    ) {
        Err(absent("ncclGetLsaMultimemDevicePointer"))
    }

    /// It would give the address of a peer's window.
    answer ncclGetLsaDevicePointer, pncclGetLsaDevicePointer(
        _window: ncclWindow_t, _offset: usize, _lsaRank: c_int, _outPtr: *mut *mut c_void,
    ) {
        Err(absent("ncclGetLsaDevicePointer"))
    }

    /// It would give the address of a peer's window.
    answer ncclGetPeerDevicePointer, pncclGetPeerDevicePointer(
        _window: ncclWindow_t, _offset: usize, _peer: c_int, _outPtr: *mut *mut c_void,
    ) {
        Err(absent("ncclGetPeerDevicePointer"))
    }
}
