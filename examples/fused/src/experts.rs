//! A mixture of experts: each token goes to the rank of its expert, and what that makes of it comes back. How many tokens go where only the
//! device knows, so that a call would have to move as many as there may be.
//!
//! Block `p` of a rank talks to rank `p`, in both directions:
//!
//! ```text
//! for each of my tokens whose expert is on rank p:     put it into p's inbox, with its number and its expert
//! put how many there were, signal                 ──►  wait for the signal
//!                                                      for each token of the inbox: the expert's work, into the sender's results
//! wait for the signal                             ◄──  signal
//! results + gate x tokens
//! ```
//!
//! To a rank on another host the tokens go together: they are gathered in an outbox, in the order in which they lie in the inbox there. The
//! experts' results come back into the outbox, in the same order.

use ferroccl_device::abi::{DeviceComm, DeviceWindow};
use ferroccl_device::gpu::{self, WARP};

/// The signal that tokens are there.
const DISPATCHED: u32 = 0;
/// The signal that results are there.
const COMBINED: u32 = 1;

ferroccl_device::kernel_argument! {
    /// What the kernel takes. It has a block for each rank.
    pub struct Experts {
        /// With two signals.
        pub comm: DeviceComm,
        /// For each rank: room for `tokens` vectors. What the others send.
        pub inbox: DeviceWindow,
        /// For each rank: how many tokens it has sent, and of each its number and its expert, as `u32`s in a `u64`.
        pub labels: DeviceWindow,
        /// For each of this rank's tokens a vector: what the experts make of it.
        pub results: DeviceWindow,
        /// As the inbox: what goes to ranks on other hosts, before it is put there, and what comes back.
        pub outbox: DeviceWindow,
        /// As the labels: of what goes to ranks on other hosts.
        pub sent: DeviceWindow,
        /// Address of the tokens: vectors of `width` f32s.
        pub tokens: u64,
        /// Address of the expert of each token: u32s.
        pub experts: u64,
        /// Address of the output: each token, and the expert's result.
        pub output: u64,
        /// Tokens of a rank.
        pub count: u32,
        /// Elements of a token.
        pub width: u32,
    }
}

ferroccl_device::user_kernels! {
    /// All of it.
    pub FUSED = "mixture_of_experts": 512, fused, Experts;
}

/// Words of the labels of one rank.
#[must_use]
pub const fn label_words(tokens: usize) -> usize {
    tokens + 1
}

/// # Safety
/// The launch's contract: the buffers have what `my` says, on all ranks the same; a block for each rank.
#[inline(always)]
unsafe fn fused(my: Experts) {
    // SAFETY: the caller's. A rank's part of an inbox and of the results is one block's on each side; signals hand it over and back.
    unsafe {
        let mut comm = my.comm.open();
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let peer = gpu::block_idx_x();
        let (lane, lanes) = comm.lanes();
        let (count, width) = (my.count as usize, my.width as usize);
        let bytes = width * size_of::<f32>();
        let expert_of = |token: usize| gpu::ld_data((my.experts as *const u32).wrapping_add(token));
        // What of inbox and labels is of a rank.
        let of_inbox = |rank: u32| rank as usize * count * bytes;
        let of_labels = |rank: u32| rank as usize * label_words(count) * size_of::<u64>();
        // What of the peer's is this rank's, or of this rank's the peer's.
        let near = comm.reaches(peer);
        let (inbox, labels) = if near {
            let inbox = my.inbox.peer::<f32>(peer, of_inbox(rank));
            (inbox, my.labels.peer::<u64>(peer, of_labels(rank)))
        } else {
            let outbox = my.outbox.peer::<f32>(rank, of_inbox(peer));
            (outbox, my.sent.peer::<u64>(rank, of_labels(peer)))
        };
        // Each warp looks at all tokens, and takes its share of those that go there.
        let warp = WARP as usize;
        let (own_warp, warps, in_warp) = (lane / warp, lanes / warp, gpu::lane_id() as usize);
        let mut sent = 0;
        let mut token = 0;
        while token < count {
            let expert = expert_of(token);
            if expert % ranks == peer {
                if sent % warps == own_warp {
                    let from = (my.tokens as *const f32).wrapping_add(token * width);
                    let to = inbox.wrapping_add(sent * width);
                    let mut i = in_warp;
                    while i < width {
                        let value = gpu::ld_data(from.wrapping_add(i));
                        gpu::st_data(to.wrapping_add(i), value, size_of::<f32>());
                        i += warp;
                    }
                    if in_warp == 0 {
                        let label = token as u64 | u64::from(expert) << 32;
                        gpu::st_data(labels.wrapping_add(1 + sent), label, size_of::<u64>());
                    }
                    // The warp's lanes go on together.
                    gpu::sync_warp();
                }
                sent += 1;
            }
            token += 1;
        }
        if lane == 0 {
            gpu::st_data(labels, sent as u64, size_of::<u64>());
        }
        if !near {
            let (to, from) = ((my.inbox, of_inbox(rank)), (my.outbox, of_inbox(peer)));
            comm.put_to::<f32>(peer, to, from, sent * width);
            let (to, from) = ((my.labels, of_labels(rank)), (my.sent, of_labels(peer)));
            comm.put_to::<u64>(peer, to, from, 1 + sent);
        }
        comm.signal(peer, DISPATCHED);
        if !comm.wait_signal_of(peer, DISPATCHED, 1) {
            return;
        }
        // What the peer has sent.
        let inbox = my.inbox.peer::<f32>(rank, of_inbox(peer));
        let labels = my.labels.peer::<u64>(rank, of_labels(peer));
        let there = gpu::ld_data(labels.cast_const()) as usize;
        let mut slot = own_warp;
        while slot < there {
            let label = gpu::ld_data(labels.wrapping_add(1 + slot).cast_const());
            let (token, expert) = (label as u32 as usize, (label >> 32) as u32);
            let from = inbox.wrapping_add(slot * width);
            // In place, where it goes back over a network.
            let to = if near { my.results.peer::<f32>(peer, token * bytes) } else { from };
            let mut i = in_warp;
            while i < width {
                let value = gpu::ld_data(from.wrapping_add(i).cast_const());
                // The work of an expert, for an example.
                let value = value * (expert + 2) as f32;
                gpu::st_data(to.wrapping_add(i), value, size_of::<f32>());
                i += warp;
            }
            slot += warps;
        }
        if !near {
            let (to, from) = ((my.outbox, of_inbox(rank)), (my.inbox, of_inbox(peer)));
            comm.put_to::<f32>(peer, to, from, there * width);
        }
        comm.signal(peer, COMBINED);
        if !comm.wait_signal_of(peer, COMBINED, 1) {
            return;
        }
        let results = my.results.peer::<f32>(rank, 0);
        let outbox = my.outbox.peer::<f32>(rank, of_inbox(peer));
        let (mut token, mut slot) = (0, 0);
        while token < count {
            if expert_of(token) % ranks == peer {
                let from = if near {
                    results.wrapping_add(token * width)
                } else {
                    outbox.wrapping_add(slot * width)
                };
                let mut i = lane;
                while i < width {
                    let at = token * width + i;
                    let value = gpu::ld_data((my.tokens as *const f32).wrapping_add(at))
                        + gpu::ld_data(from.wrapping_add(i).cast_const());
                    gpu::st_data((my.output as *mut f32).wrapping_add(at), value, size_of::<f32>());
                    i += lanes;
                }
                slot += 1;
            }
            token += 1;
        }
    }
}
