//! Kernels that are launched by themselves: of any collective, with any buffers.

use std::sync::Arc;

use ferroccl_device::abi::{Algorithm, ProtocolId};
use ferroccl_device::kernels::{Kernel, Row};

use super::Communicator;
use crate::buffer::{DeviceBuffer, Element, Stream};
use crate::enqueue::AlgoChoice;
use crate::error::{Error, Result};
use crate::operator::Operator;
use crate::runtime::Memory;

/// A kernel, and how it is launched: see [`Communicator::launch`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KernelSpec {
    /// The kernel, and what it does.
    pub row: Row,
    /// Elements of a rank's block where a buffer has a block for each rank, and else of a buffer: what is divided into the channels'
    /// parts.
    pub count: usize,
    /// The root, if there is one.
    pub root: Option<u32>,
    /// Channels; `None`: as many as the tuner has for a call of this size.
    pub channels: Option<u32>,
    /// Threads of a block on a GPU; `None`: as the tuner has them.
    pub threads: Option<u32>,
    /// What [`Work::extra`](ferroccl_device::abi::Work::extra) is.
    pub extra: Extra,
}

/// What a kernel gets besides its buffers ([`Work::extra`](ferroccl_device::abi::Work::extra)).
#[derive(Clone, Debug, Default)]
pub enum Extra {
    /// What the library gives a kernel of this collective and algorithm: the links of trees, a chain's mode. For another crate's
    /// algorithm: zero.
    #[default]
    AsUsual,
    /// A number.
    Word(u64),
    /// The address of scratch memory of the caller's, on the communicator's device.
    Scratch(DeviceBuffer<u8>),
}

impl KernelSpec {
    /// A kernel for blocks or buffers of `count` elements, and everything else as it is in the library's calls.
    #[must_use]
    pub fn new(row: Row, count: usize) -> Self {
        let (root, channels, threads, extra) = (None, None, None, Extra::AsUsual);
        KernelSpec { row, count, root, channels, threads, extra }
    }
}

/// What a call has that runs a kernel of the caller's.
#[derive(Clone)]
pub(super) struct CustomKernel {
    pub kernel: Kernel,
    pub choice: AlgoChoice,
    /// See [`Signature`](ferroccl_device::abi::Signature): a number of the kernel's name.
    pub tag: u16,
    /// [`Extra::Word`].
    pub word: Option<u64>,
    /// [`Extra::Scratch`].
    pub scratch: Option<Arc<dyn Memory>>,
    /// Where the scratch memory begins.
    pub scratch_address: u64,
}

impl Communicator {
    /// Launches a kernel over this communicator's connections as its next call: one that no call of the library's takes, or takes by
    /// another shape. A kernel may use the connections of each channel with every rank ([`KernelContext::connections`]).
    ///
    /// Ranks compare the calls as they do the library's: collective, type, operator, count, root, algorithm, protocol and channels, and
    /// a number of the kernel's name. Over a network the kernel has to count its steps ([`Kernel::steps`]).
    ///
    /// [`KernelContext::connections`]: ferroccl_device::prims::KernelContext::connections
    ///
    /// # Safety
    /// The kernel reads no more of `send` and writes no more of `recv` than they have, whatever it is told by `spec`; and with all other
    /// ranks, which launch the same, it ends.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when its protocol has no buffers here ([`Registry::protocol`](crate::Registry::protocol)), when it is
    /// not for elements of type `T` or for this operator, when it works on windows or is of an algorithm of several kernels, or when root
    /// or channels cannot be had; else as
    /// [`Communicator::all_reduce`].
    ///
    /// ```
    /// use ferroccl::device::collectives::BroadcastRing;
    /// use ferroccl::device::prims::Ll;
    /// use ferroccl::device::reduce::Sum;
    /// use ferroccl::{Communicator, Device, KernelSpec, ReduceOp};
    ///
    /// ferroccl::device::kernels! {
    ///     BROADCAST = "my_broadcast_ring_ll": BroadcastRing, u8, Sum, Ll;
    /// }
    /// let device = Device::cpu();
    /// let ranks = Communicator::init_all(&device, 2)?;
    /// let streams = [device.stream()?, device.stream()?];
    /// let buffers = [device.upload(&[7u8; 100])?, device.upload(&[0u8; 100])?];
    /// for ((rank, stream), buffer) in ranks.iter().zip(&streams).zip(&buffers) {
    ///     let mut spec = KernelSpec::new(BROADCAST, 100);
    ///     spec.root = Some(0);
    ///     // SAFETY: it is the library's broadcast, of 100 bytes.
    ///     unsafe { rank.launch(&spec, buffer, buffer, ReduceOp::Sum, stream)? };
    /// }
    /// assert_eq!(buffers[1].to_vec(&streams[1])?, [7; 100]);
    /// # streams[0].synchronize()?;
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub unsafe fn launch<T: Element>(
        &self,
        spec: &KernelSpec,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        op: impl Into<Operator<T>>,
        stream: &Stream,
    ) -> Result<()> {
        let KernelSpec { row, count, root, .. } = *spec;
        let op = op.into();
        let name = row.kernel.name;
        let protocol = row.protocol.unwrap_or(ProtocolId::Simple);
        if !self.0.config.registry.has_buffers(protocol) {
            let reason = format!(
                "{protocol} has no buffers in this communicator: CommConfig::registry, Registry::protocol"
            );
            return Err(Error::argument("spec.row.protocol", reason));
        }
        if Row::find(&[row], row.collective, row.algorithm, protocol, op.op(), T::TYPE).is_none() {
            let reason = format!("{name} is not for type {} and op {}", T::TYPE, op.op());
            return Err(Error::argument("spec.row", reason));
        }
        let reason = match row.algorithm {
            on_windows if on_windows.is_on_windows() => {
                "works on windows, which only calls look up"
            }
            over_mesh if over_mesh.is_over_mesh() && self.0.mesh.is_none() => {
                "takes ranks that all reach each other's memory"
            }
            Algorithm::Hierarchical | Algorithm::CollnetDirect | Algorithm::CollnetChain => {
                "is no kernel, but several"
            }
            _ => "",
        };
        if !reason.is_empty() {
            return Err(Error::argument(
                "spec.row.algorithm",
                format!("{} {reason}", row.algorithm),
            ));
        }
        if let Some(root) = root {
            self.check_rank("spec.root", root)?;
        }
        let context = &self.0.plan_context;
        let per_channel = row.kernel.blocks.max(1);
        let most = (context.blocks / per_channel).clamp(1, context.channels);
        if let Some(channels) = spec.channels.filter(|n| !(1..=most).contains(n)) {
            let reason = format!("{channels} is none of 1 to {most}, which this communicator has");
            return Err(Error::argument("spec.channels", reason));
        }
        let mut task = self.reduction_task(row.collective, count, (send, recv), &op, root)?;
        let (algorithm, tuner) = (row.algorithm, &context.tuner);
        let bytes = task.call.largest_bytes(context.ranks);
        let channels = spec.channels.unwrap_or_else(|| match context.all_channels {
            true => most,
            false => tuner.channels(row.collective, bytes, algorithm, protocol, most),
        });
        let threads = tuner.threads(row.collective, bytes, algorithm, protocol, channels);
        let threads = spec.threads.unwrap_or(threads);
        let (mut word, mut scratch, mut scratch_address) = (None, None, 0);
        match &spec.extra {
            Extra::AsUsual => {}
            Extra::Word(number) => word = Some(*number),
            Extra::Scratch(buffer) => {
                self.check_memory("spec.extra", Some(buffer.memory()))?;
                scratch = Some(Arc::clone(buffer.memory()));
                scratch_address = buffer.address();
            }
        }
        task.custom = Some(Box::new(CustomKernel {
            kernel: row.kernel,
            choice: AlgoChoice { algorithm, protocol, channels, threads },
            tag: tag(name),
            word,
            scratch,
            scratch_address,
        }));
        self.submit(task, stream)
    }
}

/// A number of a kernel's name, which is 0 for none: what two bytes of the signature have room for.
fn tag(name: &str) -> u16 {
    let sum = name.bytes().fold(1u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    sum.max(1)
}
