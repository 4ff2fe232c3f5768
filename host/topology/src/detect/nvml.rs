//! NVIDIA's management library, opened when it is asked, so that nothing needs it to be there.
//!
//! Layouts and numbers are those of nvml.h (CUDA 12), of which NCCL's `src/include/nvmlwrap.h` has an extract.

use std::ffi::{c_int, c_uint, c_void};

use libloading::Library;

use super::gpu::{C2c, FoundGpu, GpuError, GpuSource, Peer};
use crate::system::BusId;

/// The library's name; the driver installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVLink`s that are asked for: `NVML_NVLINK_MAX_LINKS` is 18 and grows; more are refused one by one.
const MOST_LINKS: c_uint = 36;

/// GPUs that are asked for: NCCL's `ncclNvmlMaxDevices`, times two.
const MOST_GPUS: c_uint = 64;

const SUCCESS: c_int = 0;
/// Results that say that there is no GPU: `NVML_ERROR_NOT_FOUND`, `_DRIVER_NOT_LOADED`, `_LIBRARY_NOT_FOUND`.
const NO_GPUS: [c_int; 3] = [6, 9, 12];
/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
const NO_FUNCTION: c_int = 13;
/// `NVML_NVLINK_CAP_P2P_SUPPORTED`.
const CAP_P2P: c_uint = 0;
/// `NVML_FI_DEV_NVLINK_GET_STATE`, and those of C2C: links, whether one is up, its bandwidth.
const FIELD_NVLINK_STATE: c_uint = 165;
const FIELD_C2C_LINKS: c_uint = 170;
const FIELD_C2C_STATUS: c_uint = 171;
const FIELD_C2C_MBYTES: c_uint = 172;

/// `nvmlDevice_t`.
type Handle = *mut c_void;

/// `nvmlPciInfo_t` since its version 3.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PciInfo {
    legacy_bus_id: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [u8; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68 && align_of::<PciInfo>() == 4);

/// `nvmlFieldValue_t`; the value is a union of numbers of up to 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_int,
    result: c_int,
    value: [u8; 8],
}

const _: () = assert!(size_of::<FieldValue>() == 40 && align_of::<FieldValue>() == 8);

/// The library's functions that are used here.
#[derive(Clone, Copy)]
struct Api {
    init: unsafe extern "C" fn() -> c_int,
    shutdown: unsafe extern "C" fn() -> c_int,
    count: unsafe extern "C" fn(*mut c_uint) -> c_int,
    handle: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int,
    pci_info: unsafe extern "C" fn(Handle, *mut PciInfo) -> c_int,
    compute_capability: unsafe extern "C" fn(Handle, *mut c_int, *mut c_int) -> c_int,
    link_state: unsafe extern "C" fn(Handle, c_uint, *mut c_int) -> c_int,
    link_remote: unsafe extern "C" fn(Handle, c_uint, *mut PciInfo) -> c_int,
    link_capability: unsafe extern "C" fn(Handle, c_uint, c_uint, *mut c_uint) -> c_int,
    /// Older drivers do not have it.
    fields: Option<unsafe extern "C" fn(Handle, c_int, *mut FieldValue) -> c_int>,
}

/// The GPUs that NVIDIA's driver manages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nvml;

impl GpuSource for Nvml {
    /// The GPUs of `libnvidia-ml.so.1`; none without it, without the driver, or without a GPU.
    fn gpus(&self) -> Result<Vec<FoundGpu>, GpuError> {
        // SAFETY: the library's initialisers are the driver's own and are run by every program that uses a GPU.
        let Ok(library) = (unsafe { Library::new(LIBRARY) }) else { return Ok(Vec::new()) };
        let gpus = Api::of(&library)?.gpus();
        // The functions are not called after this.
        drop(library);
        gpus
    }
}

impl Api {
    fn of(library: &Library) -> Result<Api, GpuError> {
        /// A function of the library by its name.
        ///
        /// # Safety
        /// `F` is the type of the function of that name.
        unsafe fn function<F: Copy>(library: &Library, name: &'static str) -> Result<F, GpuError> {
            // SAFETY: the caller's.
            let symbol = unsafe { library.get::<F>(name.as_bytes()) };
            symbol.map(|symbol| *symbol).map_err(|_| GpuError { call: name, code: NO_FUNCTION })
        }
        // SAFETY: the types are those of nvml.h.
        unsafe {
            Ok(Api {
                init: function(library, "nvmlInit_v2")?,
                shutdown: function(library, "nvmlShutdown")?,
                count: function(library, "nvmlDeviceGetCount_v2")?,
                handle: function(library, "nvmlDeviceGetHandleByIndex_v2")?,
                pci_info: function(library, "nvmlDeviceGetPciInfo_v3")?,
                compute_capability: function(library, "nvmlDeviceGetCudaComputeCapability")?,
                link_state: function(library, "nvmlDeviceGetNvLinkState")?,
                link_remote: function(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2")?,
                link_capability: function(library, "nvmlDeviceGetNvLinkCapability")?,
                fields: function(library, "nvmlDeviceGetFieldValues").ok(),
            })
        }
    }

    fn gpus(&self) -> Result<Vec<FoundGpu>, GpuError> {
        // SAFETY: it takes nothing and may be called at any time.
        let started = unsafe { (self.init)() };
        if NO_GPUS.contains(&started) {
            return Ok(Vec::new());
        }
        check("nvmlInit_v2", started)?;
        let gpus = self.each();
        // SAFETY: it was initialised above; no handle outlives this.
        unsafe { (self.shutdown)() };
        gpus
    }

    fn each(&self) -> Result<Vec<FoundGpu>, GpuError> {
        let mut count = 0;
        // SAFETY: the library is initialised, and the pointer is to a number of the type it writes.
        check("nvmlDeviceGetCount_v2", unsafe { (self.count)(&mut count) })?;
        (0..count.min(MOST_GPUS)).map(|index| self.gpu(index)).collect()
    }

    fn gpu(&self, index: c_uint) -> Result<FoundGpu, GpuError> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: as in `each`.
        let result = unsafe { (self.handle)(index, &mut handle) };
        check("nvmlDeviceGetHandleByIndex_v2", result)?;
        let mut pci = PciInfo::default();
        // SAFETY: the handle is of a device, and the library writes a structure of this layout.
        check("nvmlDeviceGetPciInfo_v3", unsafe { (self.pci_info)(handle, &mut pci) })?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: as above.
        let result = unsafe { (self.compute_capability)(handle, &mut major, &mut minor) };
        check("nvmlDeviceGetCudaComputeCapability", result)?;
        let sm = (major.clamp(0, 99) * 10 + minor.clamp(0, 9)) as u32;
        // The driver gives the function as 0 always: a GPU's is.
        let number = |bits: c_uint| bits as u8;
        let (domain, bus, device) = (pci.domain, number(pci.bus), number(pci.device));
        let bus_id = pci.address().unwrap_or(BusId { domain, bus, device, function: 0 });
        let nvlinks = (0..MOST_LINKS).filter_map(|link| self.nvlink(handle, sm, link)).collect();
        Ok(FoundGpu { bus_id, sm, nvlinks, c2c: self.c2c(handle, sm) })
    }

    /// The other end of a link that is up and can be used between devices.
    fn nvlink(&self, handle: Handle, sm: u32, link: c_uint) -> Option<Peer> {
        let mut p2p = 0;
        // SAFETY: the handle is of a device; the library refuses links that there are not.
        let result = unsafe { (self.link_capability)(handle, link, CAP_P2P, &mut p2p) };
        if result != SUCCESS || p2p == 0 {
            return None;
        }
        // As in NCCL: since Hopper the state is a field. (Asking for the capability has trained the link.)
        let field = if sm >= 90 { self.field(handle, FIELD_NVLINK_STATE, link) } else { None };
        let mut state = 0;
        let up = match field {
            Some(state) => state == 1,
            None => {
                // SAFETY: as above.
                let result = unsafe { (self.link_state)(handle, link, &mut state) };
                result == SUCCESS && state == 1
            }
        };
        if !up {
            return None;
        }
        let mut remote = PciInfo::default();
        // SAFETY: as above, and the library writes a structure of this layout.
        let result = unsafe { (self.link_remote)(handle, link, &mut remote) };
        (result == SUCCESS).then(|| remote.address().map_or(Peer::Unseen, Peer::At))
    }

    fn c2c(&self, handle: Handle, sm: u32) -> Option<C2c> {
        let links = if sm < 90 { 0 } else { self.field(handle, FIELD_C2C_LINKS, 0)? };
        let up = |link: &c_uint| self.field(handle, FIELD_C2C_STATUS, *link) == Some(1);
        let bandwidths: Vec<u32> = (0..links.min(MOST_LINKS))
            .filter(up)
            .filter_map(|link| self.field(handle, FIELD_C2C_MBYTES, link))
            .collect();
        let mbytes_per_s = *bandwidths.last().filter(|mbytes| **mbytes > 0)?;
        Some(C2c { mbytes_per_s, count: bandwidths.len() as u32 })
    }

    /// A field of a device that is an unsigned number; `None` where it does not have it.
    fn field(&self, handle: Handle, field: c_uint, scope: c_uint) -> Option<u32> {
        let mut value = FieldValue { field, scope, result: -1, ..FieldValue::default() };
        // SAFETY: the handle is of a device, and the pointer is to one structure of this layout.
        let result = unsafe { (self.fields?)(handle, 1, &mut value) };
        let [a, b, c, d, ..] = value.value;
        (result == SUCCESS && value.result == SUCCESS).then(|| u32::from_ne_bytes([a, b, c, d]))
    }
}

impl PciInfo {
    /// The address that it has as text; `None` where that is none, as of a switch that a virtual machine does not see.
    fn address(&self) -> Option<BusId> {
        let text = self.bus_id.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(text).ok()?.parse().ok()
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), GpuError> {
    if code == SUCCESS { Ok(()) } else { Err(GpuError { call, code }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A driver of two GPUs: a Volta with two links that are up (to the other and to a switch that is not seen), one
    // that is down and one without P2P; and a Hopper whose link states and C2C are fields.
    const FIRST: usize = 0x10;
    const SECOND: usize = 0x20;

    fn write(pci: *mut PciInfo, text: &[u8]) -> c_int {
        let mut info = PciInfo { domain: 9, ..PciInfo::default() };
        info.bus_id[..text.len()].copy_from_slice(text);
        // SAFETY: the caller's pointer is to a structure of this layout.
        unsafe { pci.write(info) };
        SUCCESS
    }

    extern "C" fn ok() -> c_int {
        SUCCESS
    }

    extern "C" fn no_driver() -> c_int {
        9
    }

    extern "C" fn mismatch() -> c_int {
        18
    }

    extern "C" fn two(count: *mut c_uint) -> c_int {
        // SAFETY: the caller's pointer is to a number.
        unsafe { count.write(2) };
        SUCCESS
    }

    extern "C" fn handle(index: c_uint, handle: *mut Handle) -> c_int {
        let device = if index == 0 { FIRST } else { SECOND };
        // SAFETY: the caller's pointer is to a handle.
        unsafe { handle.write(device as Handle) };
        SUCCESS
    }

    extern "C" fn pci_info(handle: Handle, pci: *mut PciInfo) -> c_int {
        write(pci, if handle as usize == FIRST { b"00000000:3B:00.0" } else { b"00010000:AF:00.0" })
    }

    extern "C" fn capability(handle: Handle, major: *mut c_int, minor: *mut c_int) -> c_int {
        let (a, b) = if handle as usize == FIRST { (7, 0) } else { (9, 0) };
        // SAFETY: the caller's pointers are to numbers.
        unsafe { (major.write(a), minor.write(b)) };
        SUCCESS
    }

    extern "C" fn link_state(handle: Handle, link: c_uint, state: *mut c_int) -> c_int {
        // Of a Hopper it would be wrong.
        let up = handle as usize == FIRST && link != 2;
        // SAFETY: the caller's pointer is to a number.
        unsafe { state.write(up.into()) };
        SUCCESS
    }

    extern "C" fn link_remote(_: Handle, link: c_uint, pci: *mut PciInfo) -> c_int {
        write(pci, if link == 0 { b"00010000:AF:00.0" } else { b"FFFFFFFF:FFFF:FF.F" })
    }

    extern "C" fn link_capability(_: Handle, link: c_uint, cap: c_uint, p2p: *mut c_uint) -> c_int {
        assert_eq!(cap, CAP_P2P);
        if link > 3 {
            return 2; // NVML_ERROR_INVALID_ARGUMENT
        }
        // SAFETY: the caller's pointer is to a number.
        unsafe { p2p.write((link != 3).into()) };
        SUCCESS
    }

    extern "C" fn fields(handle: Handle, count: c_int, values: *mut FieldValue) -> c_int {
        assert_eq!(count, 1);
        // SAFETY: the caller's pointer is to one structure of this layout.
        let value = unsafe { &mut *values };
        let number: Option<u32> = match (handle as usize, value.field, value.scope) {
            (SECOND, FIELD_NVLINK_STATE, link) => Some((link == 1).into()),
            (SECOND, FIELD_C2C_LINKS, _) => Some(3),
            (SECOND, FIELD_C2C_STATUS, link) => Some((link < 2).into()),
            (SECOND, FIELD_C2C_MBYTES, _) => Some(37_250),
            _ => None,
        };
        value.result = if number.is_some() { SUCCESS } else { 3 };
        value.value[..4].copy_from_slice(&number.unwrap_or(77).to_ne_bytes());
        SUCCESS
    }

    fn api() -> Api {
        Api {
            init: ok,
            shutdown: ok,
            count: two,
            handle,
            pci_info,
            compute_capability: capability,
            link_state,
            link_remote,
            link_capability,
            fields: Some(fields),
        }
    }

    #[test]
    fn two_gpus_and_their_links() {
        let gpus = api().gpus().unwrap();
        let (first, second) =
            ("0000:3b:00.0".parse().unwrap(), "10000:af:00.0".parse::<BusId>().unwrap());
        let want = [
            FoundGpu {
                bus_id: first,
                sm: 70,
                nvlinks: vec![Peer::At(second), Peer::Unseen],
                c2c: None,
            },
            FoundGpu {
                bus_id: second,
                sm: 90,
                nvlinks: vec![Peer::Unseen],
                c2c: Some(C2c { mbytes_per_s: 37_250, count: 2 }),
            },
        ];
        assert_eq!(gpus, want);
    }

    #[test]
    fn a_driver_without_fields_is_asked_for_states() {
        let gpus = Api { fields: None, ..api() }.gpus().unwrap();
        assert_eq!((gpus[0].nvlinks.len(), gpus[1].nvlinks.len()), (2, 0));
        assert_eq!(gpus[1].c2c, None);
    }

    #[test]
    fn no_driver_is_no_gpu_and_a_failing_one_an_error() {
        assert_eq!(Api { init: no_driver, ..api() }.gpus(), Ok(Vec::new()));
        let error = Api { init: mismatch, ..api() }.gpus().unwrap_err();
        let text = "nvmlInit_v2 failed with 18 (library and driver are of different versions)";
        assert_eq!(error.to_string(), text);
    }
}
