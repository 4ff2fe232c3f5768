//! The loops over the buffers of all ranks where a switch stores to all and sums of all: 16-byte packs go to one address, that of a
//! multicast object. The elements before the first and behind the last pack go to each rank by itself.

use super::{Among, Combined, Pack, Peers, words};
use crate::element::{Element, each};
use crate::gpu::{self, MulticastAddress, PACK_BYTES};
use crate::reduce::Reduction;

/// Elements from `at` to the first that begins a pack, `n` at most.
#[inline(always)]
fn to_first_pack<T>(at: *const T, n: usize) -> usize {
    (at.addr().wrapping_neg() % PACK_BYTES / size_of::<T>()).min(n)
}

/// Calls `body` for packs `0..packs`, which the block's lanes share. A lane has one pack in flight: so what is stored to all travels
/// while others are loaded from all, and by 8 ranks of 16 blocks a link is asked for 1 MiB at once, more than there is room for on
/// its way.
#[inline(always)]
fn for_packs(side: &impl Among, packs: usize, mut body: impl FnMut(usize)) {
    let (mut at, lanes) = side.lanes();
    while at < packs {
        body(at);
        at += lanes;
    }
}

impl<T: Element, R: Reduction, S: Among, const SPREAD: bool> Combined<'_, T, R, S, SPREAD> {
    /// [`Combined::run`] of sums and averages by the switch: an average's sums are multiplied by its factor, as the switch has no other
    /// rank's values.
    ///
    /// # Safety
    /// As there. The inputs, and with `SPREAD` the outputs, are in windows with multicast objects.
    #[inline(always)]
    pub(crate) unsafe fn by_switch(&self, n: usize) {
        let (input, output) = (self.input, self.output);
        // SAFETY: the caller's.
        unsafe {
            let each_pack = PACK_BYTES / size_of::<T>();
            let head = to_first_pack(input, n);
            let aligned = (output.addr() ^ input.addr()).is_multiple_of(PACK_BYTES);
            // Where packs of the outputs begin elsewhere than those of the inputs, no pack can be stored to all.
            let packs = if SPREAD && !aligned { 0 } else { (n - head) / each_pack };
            let nranks = self.side.nranks();
            let from = MulticastAddress::of(self.from.0, nranks, input.wrapping_add(head));
            let own = output.wrapping_add(head);
            let to = if SPREAD { MulticastAddress::of(self.to.0, nranks, own) } else { from };
            for_packs(self.side, packs, |at| {
                let mut sum = gpu::ld_sum::<T>(from.wrapping_add(at * PACK_BYTES));
                self.reducer().pre_words(&mut sum);
                if SPREAD {
                    gpu::st_all(to.wrapping_add(at * PACK_BYTES), sum, size_of::<T>());
                } else if aligned {
                    gpu::st_data(own.cast::<Pack>().wrapping_add(at), sum, size_of::<T>());
                } else {
                    store_elements(own.wrapping_add(at * each_pack), sum);
                }
            });
            let rest = if packs == 0 { 0 } else { head };
            self.elements(0, rest);
            self.elements(rest + packs * each_pack, n);
        }
    }
}

/// Stores a pack element by element.
///
/// # Safety
/// The elements are writable, and nobody else touches them.
#[inline(always)]
unsafe fn store_elements<T: Element>(to: *mut T, pack: Pack) {
    let bits = 8 * size_of::<T>();
    let in_word = 64 / bits;
    unroll_8!(PACK_BYTES / size_of::<T>(), i => {
        let element = T::of_bits(pack[i / in_word] >> (i % in_word * bits));
        // SAFETY: the caller's.
        unsafe { gpu::st_data(to.wrapping_add(i), element, size_of::<T>()) };
    });
}

/// [`spread`](super::spread) by the switch.
///
/// # Safety
/// As there; the outputs are in a window with a multicast object.
#[inline(always)]
pub(crate) unsafe fn spread_by_switch(
    side: &impl Among,
    peers: Peers,
    (from, to): (*const u8, *mut u8),
    n: usize,
) {
    let head = to_first_pack(to, n);
    let packs = (n - head) / PACK_BYTES;
    let end = head + packs * PACK_BYTES;
    // SAFETY: the caller's. The input has the alignment that its packs are loaded with.
    unsafe {
        let first = from.wrapping_add(head);
        let all = MulticastAddress::of(peers.0, side.nranks(), to.wrapping_add(head));
        if first.addr().is_multiple_of(PACK_BYTES) {
            spread_packs::<Pack>(side, (first, all), packs);
        } else if first.addr().is_multiple_of(8) {
            spread_packs::<u64>(side, (first, all), packs);
        } else if first.addr().is_multiple_of(4) {
            spread_packs::<u32>(side, (first, all), packs);
        } else if first.addr().is_multiple_of(2) {
            spread_packs::<u16>(side, (first, all), packs);
        } else {
            spread_packs::<u8>(side, (first, all), packs);
        }
        words::<u8>(side, peers, (from, to), 0, head);
        words::<u8>(side, peers, (from, to), end, n);
    }
}

/// [`spread_by_switch`] of whole packs, which are loaded by words.
///
/// # Safety
/// As there; addresses of the input are multiples of a word.
#[inline(always)]
unsafe fn spread_packs<W: Copy>(
    side: &impl Among,
    (from, all): (*const u8, MulticastAddress),
    packs: usize,
) {
    for_packs(side, packs, |at| {
        let place = at * PACK_BYTES;
        // SAFETY: the caller's; the place is among the packs.
        unsafe {
            let pack = load_words::<W>(from.wrapping_add(place).cast());
            gpu::st_all(all.wrapping_add(place), pack, 1);
        }
    });
}

/// Loads a pack word by word.
///
/// # Safety
/// The words are readable, and nobody writes them.
#[inline(always)]
unsafe fn load_words<W: Copy>(from: *const W) -> Pack {
    // SAFETY: the caller's; a word has the size of its bits.
    unsafe {
        if size_of::<W>() == PACK_BYTES {
            return gpu::ld_data(from.cast());
        }
        let bits = 8 * size_of::<W>();
        let in_word = 64 / bits;
        each(
            #[inline(always)]
            |w| {
                let mut word = 0;
                for i in 0..in_word {
                    let at = from.wrapping_add(w * in_word + i);
                    let part = match size_of::<W>() {
                        8 => gpu::ld_data(at.cast::<u64>()),
                        4 => u64::from(gpu::ld_data(at.cast::<u32>())),
                        2 => u64::from(gpu::ld_data(at.cast::<u16>())),
                        _ => u64::from(gpu::ld_data(at.cast::<u8>())),
                    };
                    word |= part << (i * bits % 64);
                }
                word
            },
        )
    }
}
