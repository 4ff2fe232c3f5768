//! Where the buffers of a call are in windows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroccl_device::abi::{Collective, ReduceOp};

use super::{WindowState, Windows};
use crate::enqueue::{CollectiveCall, Registration};

/// Where the buffers of a call are in windows.
#[derive(Debug)]
pub(in crate::comm) struct WindowPlaces {
    /// The windows of input and output, as far as the call needs them.
    windows: [Option<Arc<WindowState>>; 2],
    /// What tells these places from others.
    digest: u64,
}

impl Windows {
    /// Where the buffers of a call are in windows; `None` where the call cannot be direct.
    pub(in crate::comm) fn places(
        &self,
        call: &CollectiveCall,
        (input, output): (u64, u64),
    ) -> Option<WindowPlaces> {
        let ranks = self.peers.len() as u32;
        let [reads, writes] = match call.collective {
            Collective::AllReduce => [true, true],
            Collective::AllGather | Collective::AllToAll => [false, true],
            Collective::ReduceScatter => [true, false],
            _ => return None,
        };
        // Each rank multiplies its own values by a factor of its own, of which the others do not know.
        if call.op == ReduceOp::PreMulSum {
            return None;
        }
        // A rank that makes calls on windows has registered them before.
        if self.registered.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let all = self.lock();
        let bytes = call.largest_bytes(ranks);
        let find = |address: u64| {
            let fits = |window: &&Arc<WindowState>| {
                let offset = address.checked_sub(window.address);
                let end = offset.and_then(|offset| offset.checked_add(bytes));
                window.table.is_ok() && end.is_some_and(|end| end <= window.bytes)
            };
            all.iter().find(fits).map(|window| (Arc::clone(window), address - window.address))
        };
        let input = if reads { Some(find(input)?) } else { None };
        let output = if writes { Some(find(output)?) } else { None };
        let words = [&input, &output].map(|place| {
            place.as_ref().map_or((0, 0), |(window, offset)| (window.number, *offset))
        });
        // As `Signature::digest` has it: odd factors lose nothing.
        let digest = words.into_iter().fold(0_u64, |digest, (number, offset)| {
            let digest = (digest ^ number).wrapping_mul(0x0000_0100_0000_01b3);
            (digest ^ offset).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let windows = [input, output].map(|place| place.map(|(window, _)| window));
        Some(WindowPlaces { windows, digest })
    }
}

impl WindowPlaces {
    /// What kernels may do with the buffers.
    pub(in crate::comm) fn registration(&self) -> Registration {
        let windows = self.windows.iter().flatten();
        windows.map(|window| window.registration()).min().unwrap_or_default()
    }

    /// Addresses of the tables of input and output, for kernels; 0 for none.
    pub(in crate::comm) fn tables(&self) -> [u64; 2] {
        self.windows.each_ref().map(|window| {
            let table = window.as_ref().and_then(|window| window.table.as_ref().ok());
            table.map_or(0, |table| table.address())
        })
    }

    /// What tells these places from others.
    pub(in crate::comm) fn digest(&self) -> u64 {
        self.digest
    }
}
