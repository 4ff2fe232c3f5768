//! What goes before the data of a put.

use bytemuck::{Pod, Zeroable};
use ferroccl_device::abi::{DeviceComm, PutRequest};

use crate::NetError;

/// Bytes of a [`PutHeader`] on the network.
pub const PUT_HEADER_BYTES: usize = size_of::<HeaderBytes>();

/// The beginning of a header; its last byte is the version of the messages, which every change increments.
const MAGIC: u32 = u32::from_le_bytes(*b"FCP\x01");

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutKind {
    /// Data for a window, and a signal behind it if there is one.
    Put {
        /// The window's number.
        window: u64,
        /// Where in it, in bytes.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// The signal.
        signal: Option<u32>,
    },
    /// A signal.
    Signal(u32),
    /// The sender has come to a barrier.
    Arrival {
        /// The barrier.
        barrier: u32,
        /// How often by now.
        number: u64,
    },
    /// The sender sends nothing more.
    Bye,
}

/// The message before the data of a put, or instead of it.
///
/// ```
/// use ferroccl_proxy::puts::{PutHeader, PutKind};
///
/// let header = PutHeader { number: 3, kind: PutKind::Signal(7) };
/// assert_eq!(PutHeader::parse(&header.bytes()), Ok(header));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutHeader {
    /// Which header of the connection it is, from 0.
    pub number: u64,
    /// What it announces.
    pub kind: PutKind,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HeaderBytes {
    magic: u32,
    kind: u32,
    number: u64,
    window: u64,
    offset: u64,
    bytes: u64,
    index: u32,
    pad: u32,
}

/// Of [`PutKind::Bye`]; the others are those of a [`PutRequest`].
const BYE: u32 = 1 << 31;
const PUT_WITH_SIGNAL: u32 = PutRequest::DATA | PutRequest::SIGNAL;

impl PutHeader {
    /// That of a kernel's request; its number is given when it is sent.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(super) fn of(request: &PutRequest) -> Result<PutHeader, String> {
        let PutRequest { kind, window, offset, bytes, index, from_offset, .. } = *request;
        let put = |signal| PutKind::Put { window, offset, bytes, signal };
        let kind = match kind {
            PutRequest::DATA => put(None),
            PUT_WITH_SIGNAL => put(Some(index)),
            PutRequest::VALUE if (1..=8).contains(&bytes) => put(None),
            PutRequest::VALUE => return Err(format!("a value of {bytes} bytes")),
            PutRequest::SIGNAL => PutKind::Signal(index),
            PutRequest::ARRIVAL => PutKind::Arrival { barrier: index, number: from_offset },
            other => return Err(format!("a request of kind {other}")),
        };
        Ok(PutHeader { number: 0, kind })
    }

    /// Its bytes on the network, little-endian.
    #[must_use]
    pub fn bytes(&self) -> [u8; PUT_HEADER_BYTES] {
        let none = HeaderBytes::zeroed();
        let fields = match self.kind {
            PutKind::Put { window, offset, bytes, signal } => HeaderBytes {
                kind: if signal.is_some() { PUT_WITH_SIGNAL } else { PutRequest::DATA },
                window,
                offset,
                bytes,
                index: signal.unwrap_or(0),
                ..none
            },
            PutKind::Signal(index) => HeaderBytes { kind: PutRequest::SIGNAL, index, ..none },
            PutKind::Arrival { barrier, number } => {
                HeaderBytes { kind: PutRequest::ARRIVAL, index: barrier, offset: number, ..none }
            }
            PutKind::Bye => HeaderBytes { kind: BYE, ..none },
        };
        bytemuck::cast(HeaderBytes {
            magic: MAGIC.to_le(),
            kind: fields.kind.to_le(),
            number: self.number.to_le(),
            window: fields.window.to_le(),
            offset: fields.offset.to_le(),
            bytes: fields.bytes.to_le(),
            index: fields.index.to_le(),
            pad: 0,
        })
    }

    /// Reads the bytes of a header.
    ///
    /// # Errors
    /// When the bytes are not a header of this version, or one that cannot be.
    pub fn parse(bytes: &[u8]) -> Result<PutHeader, NetError> {
        let refused = |reason: String| NetError::new("proxy", "receive a put", reason);
        let wire: HeaderBytes = bytemuck::try_pod_read_unaligned(bytes)
            .map_err(|_| refused(format!("a header of {} bytes", bytes.len())))?;
        if u32::from_le(wire.magic) != MAGIC {
            return Err(refused("a header that is not of this version of FerroCCL".to_owned()));
        }
        let (window, offset) = (u64::from_le(wire.window), u64::from_le(wire.offset));
        let (bytes, index) = (u64::from_le(wire.bytes), u32::from_le(wire.index));
        let header = |kind| PutHeader { number: u64::from_le(wire.number), kind };
        let header = match u32::from_le(wire.kind) {
            PutRequest::DATA => header(PutKind::Put { window, offset, bytes, signal: None }),
            PUT_WITH_SIGNAL => header(PutKind::Put { window, offset, bytes, signal: Some(index) }),
            PutRequest::SIGNAL => header(PutKind::Signal(index)),
            PutRequest::ARRIVAL => header(PutKind::Arrival { barrier: index, number: offset }),
            BYE => header(PutKind::Bye),
            other => return Err(refused(format!("a header of kind {other:#x}"))),
        };
        // What is not used is zero.
        if header.bytes() == bytemuck::cast::<_, [u8; PUT_HEADER_BYTES]>(wire) {
            Ok(header)
        } else {
            Err(refused(format!("a header with more than {:?} has", header.kind)))
        }
    }

    /// Whether there is such a signal or barrier; what is wrong.
    pub(super) fn check_index(&self, comm: &DeviceComm) -> Result<(), String> {
        let below = |name: &str, index: u32, count: u32| match index < count {
            true => Ok(()),
            false => Err(format!("{name} {index} of {count}")),
        };
        match self.kind {
            PutKind::Put { signal: Some(index), .. } | PutKind::Signal(index) => {
                below("signal", index, comm.signals)
            }
            PutKind::Arrival { barrier, .. } => below("barrier", barrier, comm.barriers),
            PutKind::Put { signal: None, .. } | PutKind::Bye => Ok(()),
        }
    }
}
