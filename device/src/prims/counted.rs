//! A protocol that only counts: a kernel run with it says which steps a call has on each connection.
//!
//! The proxy of a rank whose peer is on another host names buffers before data comes, so it has to know which steps come
//! in which protocol. That follows from the kernel, and would be a second kernel if it were written down apart: so the
//! kernel itself is run, on the host, over connections that are never waited for (the host's `enqueue::dry_run`), with
//! its protocol in this coat. The machine is told of each step ([`Machine::counted`](crate::gpu::cpu::Machine::counted)). What is combined
//! or copied within the rank is left out meanwhile ([`gpu::counting`]).

use core::marker::PhantomData;

use crate::abi::{NO_RANK, ProtocolId};
use crate::element::Element;
use crate::gpu::cpu::{CountedStep, tell_counted};
use crate::prims::conn_state::ConnState;
use crate::prims::primitives::{Prims, Protocol, Slice};
use crate::prims::verbs::Verb;
use crate::reduce::Reduction;

#[cfg(doc)]
use crate::gpu;

/// `P` without its data.
#[derive(Clone, Copy, Debug)]
pub struct Counted<P>(PhantomData<P>);

impl<P: Protocol> Protocol for Counted<P> {
    const ID: ProtocolId = P::ID;
    const SLICES: usize = P::SLICES;

    fn capacity(slot_bytes: usize) -> usize {
        P::capacity(slot_bytes)
    }

    fn has_begun(_: &ConnState) -> bool {
        true
    }

    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        let (nr, ns) = (prims.nrecv(), prims.nsend());
        let (mut recv, mut send) = ([NO_RANK; 3], [NO_RANK; 3]);
        if V::RECV {
            unroll_peers!(NR, nr, i => {
                recv[i] = prims.recv[i].peer();
                prims.recv[i].advance();
            });
        }
        if V::SEND {
            unroll_peers!(NS, ns, i => {
                send[i] = prims.send[i].peer();
                prims.send[i].advance();
            });
        }
        tell_counted(&CountedStep { recv, send, bytes: slice.n * size_of::<T>() });
    }
}
