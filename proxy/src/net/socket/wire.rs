//! What precedes a message, as bytes. All numbers are little-endian.
//!
//! ```text
//! header     magic 4 | tag 4 | sequence 8 | size 8
//! ```

use crate::net::handshake::{Malformed, Reader, fields};

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"FNmh");

/// Bytes of a header.
pub(super) const HEADER: usize = 24;

/// What precedes a message, on the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: u32,
    /// The message's number on its connection, from 0.
    pub(super) sequence: u64,
    /// In bytes.
    pub(super) size: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        fields(&[
            &HEADER_MAGIC.to_le_bytes(),
            &self.tag.to_le_bytes(),
            &self.sequence.to_le_bytes(),
            &self.size.to_le_bytes(),
        ])
    }

    pub(super) fn decode(bytes: &[u8; HEADER]) -> Result<Header, Malformed> {
        let mut reader = Reader(bytes);
        if reader.u32()? != HEADER_MAGIC {
            return Err(Malformed::Stranger);
        }
        Ok(Header { tag: reader.u32()?, sequence: reader.u64()?, size: reader.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let header = Header { tag: 5, sequence: 1 << 40, size: 1 << 33 };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header));
        bytes[3] ^= 1;
        assert_eq!(Header::decode(&bytes), Err(Malformed::Stranger));
    }
}
