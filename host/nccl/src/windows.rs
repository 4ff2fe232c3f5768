//! Buffers that are registered with a communicator.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ferroccl::Window;
use ferroccl::device::abi::DeviceWindow;

use crate::answer::{Done, Failure, out};
use crate::buffers::buffer;
use crate::group::{self, QueuedJob};
use crate::handles::{self, Comm};
use crate::one_sided;
use crate::types::*;

/// A buffer that a program has registered.
#[derive(Debug)]
struct Registered {
    comm: usize,
    buffer: usize,
    /// What calls work on directly: of `NCCL_WIN_COLL_SYMMETRIC`, once it is registered.
    window: OnceLock<Window>,
}

/// All windows, by handle.
static WINDOWS: Mutex<Option<HashMap<usize, Arc<Registered>>>> = Mutex::new(None);
/// All buffers of `ncclCommRegister`, by handle: the communicator's.
static BUFFERS: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

fn of<T, R>(
    all: &Mutex<Option<HashMap<usize, T>>>,
    f: impl FnOnce(&mut HashMap<usize, T>) -> R,
) -> R {
    f(all.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Takes the windows of a communicator away, which is about to end.
pub(crate) fn forget(comm: &Comm) {
    let gone = of(&WINDOWS, |all| {
        all.extract_if(|_, window| window.comm == comm.handle).collect::<Vec<_>>()
    });
    drop(gone);
    of(&BUFFERS, |all| all.retain(|_, owner| *owner != comm.handle));
}

/// Whether calls of a communicator may work on some.
pub(crate) fn are_registered(comm: &Comm) -> bool {
    let registered =
        |window: &Arc<Registered>| window.comm == comm.handle && window.window.get().is_some();
    of(&WINDOWS, |all| all.values().any(registered))
}

/// The window of a handle, of this communicator.
fn find(comm: &Comm, win: ncclWindow_t) -> Result<Arc<Registered>, Failure> {
    let window = of(&WINDOWS, |all| all.get(&win.addr()).cloned());
    window.filter(|window| window.comm == comm.handle).ok_or_else(|| {
        Failure::argument("win", format!("{win:p} is no window of this communicator"))
    })
}

/// A window for kernels, and whether these reach the buffers of all ranks.
pub(crate) fn for_kernels(comm: &Comm, win: ncclWindow_t) -> Result<(DeviceWindow, bool), Failure> {
    let registered = find(comm, win).map_err(|failure| Failure {
        text: failure.text.replace(" win:", " peerWin:"),
        ..failure
    })?;
    let Some(window) = registered.window.get() else {
        return Err(Failure::argument(
            "peerWin",
            "is not of NCCL_WIN_COLL_SYMMETRIC, or is being registered",
        ));
    };
    Ok((window.value()?, window.is_direct()))
}

/// A window of this communicator that has these bytes, and where.
pub(crate) fn containing(comm: &Comm, address: u64, bytes: u64) -> Option<(DeviceWindow, u64)> {
    of(&WINDOWS, |all| {
        let own = all.values().filter(|registered| registered.comm == comm.handle);
        let mut values = own.filter_map(|registered| registered.window.get()?.value().ok());
        values.find_map(|value| {
            let offset = address.checked_sub(value.address)?;
            (offset.checked_add(bytes)? <= value.bytes).then_some((value, offset))
        })
    })
}

export! {
    /// Registers a buffer, on all ranks. With `NCCL_WIN_COLL_SYMMETRIC` calls work directly on the buffers of all.
    grouped ncclCommWindowRegister, pncclCommWindowRegister(
        comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let at = out(win, "win")?;
        if winFlags & !(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING) != 0 {
            return Err(Failure::argument("winFlags", format!("{winFlags:#x} has flags that are none of NCCL_WIN_*")));
        }
        if size == 0 {
            return Err(Failure::argument("size", "is 0"));
        }
        let bytes = buffer::<u8>(&comm.place, "buff", buff, size)?;
        let handle = handles::new_handle();
        let registered = Arc::new(Registered {
            comm: comm.handle,
            buffer: buff.expose_provenance(),
            window: OnceLock::new(),
        });
        of(&WINDOWS, |all| all.insert(handle, Arc::clone(&registered)));
        at.write(std::ptr::without_provenance_mut(handle));
        let own = Arc::clone(&comm);
        let symmetric = winFlags & NCCL_WIN_COLL_SYMMETRIC != 0;
        group::job(QueuedJob {
            comms: vec![Arc::clone(&comm)],
                of: comm.handle,
            blocking: comm.settings.blocking,
            sink: comm,
            undo: Box::new(move || {
                of(&WINDOWS, |all| all.remove(&handle));
                // SAFETY: the caller's: as with NCCL, it is there until the group has ended.
                unsafe { win.write(std::ptr::null_mut()) };
            }),
            run: Box::new(move || {
                if symmetric {
                    let names = [("buffer", "size")];
                    let window = made.register_window(&bytes).map_err(|e| Failure::of(e, &names))?;
                    let _ = registered.window.set(window);
                    one_sided::prepare(&own, &made);
                }
                Ok(())
            }),
        })
    }

    /// Ends a registration, on all ranks between the same two calls.
    answer ncclCommWindowDeregister, pncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) {
        let comm = handles::find(comm)?;
        if win.is_null() {
            return Ok(Done::Yes);
        }
        find(&comm, win)?;
        drop(of(&WINDOWS, |all| all.remove(&win.addr())));
        Ok(Done::Yes)
    }

    /// The buffer of a window.
    answer ncclWinGetUserPtr, pncclWinGetUserPtr(comm: ncclComm_t, win: ncclWindow_t, outUserPtr: *mut *mut c_void) {
        let comm = handles::find(comm)?;
        let at = out(outUserPtr, "outUserPtr")?;
        at.write(std::ptr::with_exposed_provenance_mut(find(&comm, win)?.buffer));
        Ok(Done::Yes)
    }

    /// Notes a buffer of this rank alone: calls do with it what they do with any.
    answer ncclCommRegister, pncclCommRegister(
        comm: ncclComm_t, buff: *mut c_void, size: usize, handle: *mut *mut c_void,
    ) {
        let comm = handles::find(comm)?;
        comm.ready()?;
        let at = out(handle, "handle")?;
        if size == 0 {
            return Err(Failure::argument("size", "is 0"));
        }
        buffer::<u8>(&comm.place, "buff", buff, size)?;
        let number = handles::new_handle();
        of(&BUFFERS, |all| all.insert(number, comm.handle));
        at.write(std::ptr::without_provenance_mut(number));
        Ok(Done::Yes)
    }

    /// Forgets such a buffer.
    answer ncclCommDeregister, pncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) {
        let comm = handles::find(comm)?;
        if handle.is_null() {
            return Ok(Done::Yes);
        }
        let known = of(&BUFFERS, |all| match all.get(&handle.addr()) {
            Some(owner) if *owner == comm.handle => all.remove(&handle.addr()).is_some(),
            _ => false,
        });
        match known {
            true => Ok(Done::Yes),
            false => Err(Failure::argument("handle", format!("{handle:p} is no buffer of this communicator"))),
        }
    }
}
