//! Kernels of one-sided calls, which communicate by themselves: what FerroCCL's interface for kernels has, made calls.

use ferroccl_device::abi::{DeviceComm, DeviceWindow};

ferroccl_device::kernel_argument! {
    /// A signal, behind bytes that are put before it.
    pub struct PutSignal {
        /// With a signal of this index.
        pub comm: DeviceComm,
        /// The window that the peer has.
        pub to: DeviceWindow,
        /// Where the bytes are: a window of this rank, or other memory, which only a peer on this node gets bytes from.
        pub from: DeviceWindow,
        /// Bytes from the beginning of `to` on.
        pub offset: u64,
        /// The same of `from`.
        pub from_offset: u64,
        /// How many; 0 is a signal alone.
        pub bytes: u64,
        /// Who is signalled.
        pub peer: u32,
        /// Which signal.
        pub index: u32,
    }
}

ferroccl_device::kernel_argument! {
    /// A wait.
    pub struct WaitSignal {
        /// With a signal of this index.
        pub comm: DeviceComm,
        /// How many signals.
        pub count: u64,
        /// Of whom.
        pub peer: u32,
        /// Which signal.
        pub index: u32,
    }
}

ferroccl_device::user_kernels! {
    /// Puts and signals. One block.
    pub PUT_SIGNAL = "ferroccl_put_signal": 512, put_signal, PutSignal;
    /// Waits for signals. One block.
    pub WAIT_SIGNAL = "ferroccl_wait_signal": 512, wait_signal, WaitSignal;
}

/// # Safety
/// The launch's contract: the bytes are there on both ends, and nobody else uses them meanwhile.
#[inline(always)]
unsafe fn put_signal(my: PutSignal) {
    // SAFETY: the caller's.
    unsafe {
        let mut comm = my.comm.open();
        if my.bytes > 0 {
            let (to, from) = ((my.to, my.offset as usize), (my.from, my.from_offset as usize));
            comm.put_to_with_signal::<u8>((my.peer, my.index), to, from, my.bytes as usize);
        } else {
            comm.signal(my.peer, my.index);
        }
        // When the stream has run it, the caller may write to the bytes again.
        comm.flush();
    }
}

/// # Safety
/// The launch's contract.
#[inline(always)]
unsafe fn wait_signal(my: WaitSignal) {
    // SAFETY: the caller's.
    unsafe {
        my.comm.open().wait_signal_of(my.peer, my.index, my.count);
    }
}
