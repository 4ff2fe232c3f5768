//! What steps and messages take besides the links.
//!
//! The tuner's table has one figure for a step of few bytes: from the moment at which a rank has what it hands on, to the one at which the
//! next rank has it. A simulation needs the parts of it, since some of them keep the block or the proxy from the next step, and others do
//! not. How they are divided is assumed:
//!
//! * half of a step within a host is the kernel's, and keeps the block; the other half is the way of data and flag;
//! * of a step between hosts, the kernel has as much as within a host. The proxy's cost of a message (`getNetOverhead`) keeps the
//!   connection, as a proxy takes its connections in turn. The rest is the way.
//!
//! So a ring whose ranks hand on one small slice after the other takes what the tuner says, step for step.

use ferroccl::ProtocolId;
use ferroccl::device::prims::{Ll, Ll128, Protocol, Simple};
use ferroccl::enqueue::ConnShape;
use ferroccl::graph::tuning::StepFigures;

/// The costs of one kernel's steps. Times are in microseconds, rates in bytes a microsecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// Before the first step.
    pub base: f64,
    /// Of a block, for each step.
    pub kernel: f64,
    /// From the sender to the receiver within a host.
    pub flight: f64,
    /// Of a connection's proxy, for each message.
    pub message: f64,
    /// From the sender's proxy to the receiver, besides the links.
    pub net_flight: f64,
    /// A block's bytes a microsecond.
    pub block_rate: f64,
    /// Bytes on a link for a byte of data.
    pub wire: f64,
    /// Slots of a connection.
    pub slots: u32,
    /// Whether credit is given for each step, and not for half of the slots at a time.
    pub credit_each_step: bool,
    /// Whether a receiver within the host goes on with the first lines of a step while its last ones are made: lines have flags.
    pub by_lines: bool,
}

/// Bytes a microsecond of 10^9 bytes a second.
pub(crate) const RATE: f64 = 1e3;

impl Costs {
    pub(crate) fn new(figures: &StepFigures, protocol: ProtocolId, shape: &ConnShape) -> Self {
        let slices = match protocol {
            ProtocolId::Ll => <Ll as Protocol>::SLICES,
            ProtocolId::Ll128 => <Ll128 as Protocol>::SLICES,
            ProtocolId::Simple | ProtocolId::Own(_) => <Simple as Protocol>::SLICES,
        };
        let kernel = figures.intra_us / 2.0;
        let message = figures.message_us / slices as f64;
        Costs {
            base: figures.base_us,
            kernel,
            flight: figures.intra_us - kernel,
            message,
            net_flight: (figures.inter_us - kernel - message).max(0.0),
            block_rate: figures.block_bw * RATE,
            wire: figures.wire,
            slots: shape.slots.max(1),
            credit_each_step: protocol == ProtocolId::Ll,
            by_lines: matches!(protocol, ProtocolId::Ll | ProtocolId::Ll128),
        }
    }

    /// The step whose credit tells the sender that step `step` has been consumed (`ConnState::post_head`).
    pub(crate) fn credit_step(&self, step: u32) -> u32 {
        if self.credit_each_step {
            return step;
        }
        let (at, half) = (step % self.slots, self.slots / 2);
        step - at + if at < half { half } else { self.slots } - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_comes_for_half_of_the_slots_at_a_time() {
        let figures = StepFigures {
            base_us: 6.0,
            intra_us: 3.0,
            inter_us: 14.0,
            message_us: 3.0,
            block_bw: 20.0,
            wire: 1.0,
        };
        let shape = ConnShape { slots: 8, slot_bytes: [4096; ProtocolId::MOST] };
        let simple = Costs::new(&figures, ProtocolId::Simple, &shape);
        let told: Vec<u32> = (0..10).map(|step| simple.credit_step(step)).collect();
        assert_eq!(told, [3, 3, 3, 3, 7, 7, 7, 7, 11, 11]);
        let parts = simple.kernel + simple.message + simple.net_flight;
        assert!((parts - 14.0).abs() < 1e-9 && (simple.kernel + simple.flight - 3.0).abs() < 1e-9);
        let ll = Costs::new(&figures, ProtocolId::Ll, &shape);
        assert_eq!((ll.credit_step(5), ll.message), (5, 3.0));
    }
}
