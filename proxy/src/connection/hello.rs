//! The first message of a connection: which connection it is.
//!
//! The network has authenticated both ends before (see [`net`](crate::net)), so this is only a number for a connection of the
//! communicator, and needs no proof.

use bytemuck::{Pod, Zeroable};

use crate::NetError;

/// Bytes of a [`Hello`] on the network.
pub const HELLO_BYTES: usize = size_of::<HelloBytes>();

const MAGIC: u64 = u64::from_le_bytes(*b"FerroCCL");
/// The version of the messages between proxies. Every change increments it.
const VERSION: u32 = 2;

/// The first message of a connection.
///
/// ```
/// use ferroccl_proxy::connection::Hello;
///
/// let hello = Hello { group: 7, from: 1, to: 0, index: 3 };
/// assert_eq!(Hello::parse(&hello.bytes()), Ok(hello));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The communicator: a random number that its ranks share.
    pub group: u64,
    /// The sender's rank.
    pub from: u32,
    /// The receiver's.
    pub to: u32,
    /// Which of the connections between the two ranks.
    pub index: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct HelloBytes {
    magic: u64,
    group: u64,
    version: u32,
    from: u32,
    to: u32,
    index: u32,
}

impl Hello {
    /// Its bytes on the network, little-endian.
    #[must_use]
    pub fn bytes(&self) -> [u8; HELLO_BYTES] {
        bytemuck::cast(HelloBytes {
            magic: MAGIC.to_le(),
            group: self.group.to_le(),
            version: VERSION.to_le(),
            from: self.from.to_le(),
            to: self.to.to_le(),
            index: self.index.to_le(),
        })
    }

    /// Reads the bytes of a hello.
    ///
    /// # Errors
    /// When the bytes are not a hello, or are of another version.
    pub fn parse(bytes: &[u8]) -> Result<Hello, NetError> {
        let refused = |reason: String| NetError::new("proxy", "accept", reason);
        let wire: HelloBytes = bytemuck::try_pod_read_unaligned(bytes)
            .map_err(|_| refused(format!("a hello of {} bytes", bytes.len())))?;
        if u64::from_le(wire.magic) != MAGIC {
            return Err(refused("a hello that is not FerroCCL's".to_owned()));
        }
        let version = u32::from_le(wire.version);
        if version != VERSION {
            let reason = format!("a hello of version {version}, ours is {VERSION}");
            return Err(refused(reason));
        }
        Ok(Hello {
            group: u64::from_le(wire.group),
            from: u32::from_le(wire.from),
            to: u32::from_le(wire.to),
            index: u32::from_le(wire.index),
        })
    }
}
