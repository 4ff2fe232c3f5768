//! Assertions of CUDA C++ that fail.

use std::sync::atomic::Ordering;

use super::access::{local, place};
use super::block::Common;
use super::memory::model::lanes;
use super::memory::raw;
use super::warp::Warp;

/// Bytes of a text that are read at most.
const MAX_TEXT: u64 = 512;

/// What an assertion says: message, file, line and function, which are at these places of the first lane's local memory.
pub(crate) fn failed(warp: &Warp, common: &mut Common, at: [u64; 4], mask: u32) -> String {
    let lane = lanes(mask).next().unwrap_or(0);
    let word = |common: &Common, at: u64, bytes: u8| {
        let at = local(common, lane, at);
        // SAFETY: within the warp's own local memory, where the kernel's own variable is, aligned.
        unsafe { raw::load(place(&warp.local, at), bytes, Ordering::Relaxed) }
    };
    let [message, file, line, function] = at;
    let [message, file, function] =
        [message, file, function].map(|at| text(common, word(common, at, 8)));
    let line = word(common, line, 4);
    format!("assertion `{message}` failed in {function}, {file}:{line}")
}

/// A text that ends with a 0.
fn text(common: &mut Common, start: u64) -> String {
    let mut bytes = Vec::new();
    for at in start..start.saturating_add(MAX_TEXT) {
        if !common.view.covers(at, at.saturating_add(1)) {
            break;
        }
        // SAFETY: mapped (the contract of `Machine::map`).
        match unsafe { raw::load(at, 1, Ordering::Relaxed) } {
            0 => break,
            byte => bytes.push(byte as u8),
        }
    }
    if bytes.is_empty() { "?".to_owned() } else { String::from_utf8_lossy(&bytes).into_owned() }
}
