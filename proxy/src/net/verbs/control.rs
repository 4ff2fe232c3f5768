//! What the two ends of a connection tell each other over TCP, where no data goes.
//!
//! ```text
//! sender                                            receiver
//!   ── introduction: address, FIFO, queue pairs ───────►        creates as many, connects them
//!   ◄── introduction: address, sizes, queue pairs ──────
//!   ── ready: mine are connected, too ─────────────────►        the FIFO may be written to
//!   ...                                            ...          nothing, while data moves
//!   ◄── farewell: why it ends, how much is done ───────►        by whichever end ends
//! ```
//!
//! A frame is its kind in one byte, the bytes of the rest in two, and the rest. All numbers are little-endian.

use std::io;

use socket2::Socket;

use super::config::MAX_QPS;
use super::device::{Address, Link};
use crate::net::handshake::{Malformed, Reader, stream};

/// The version of all this; not of the handshake, which comes first.
const VERSION: u32 = 1;
const MAGIC: [u8; 4] = *b"FRCv";

/// Bytes of a frame at most. An introduction with all its queue pairs has less.
const MAX_FRAME: usize = 1024;
/// Bytes of a frame before its contents.
const HEAD: usize = 3;
/// Bytes of a farewell's text at most.
const MAX_REASON: usize = 800;

/// How an end is found, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) link: Link,
    pub(super) address: Address,
    /// The number of the first packet, 24 bits.
    pub(super) psn: u32,
    /// The sender's: whether each message goes over all queue pairs.
    pub(super) split: bool,
    /// Where the other end writes to, and the key for it: the sender's FIFO, the receiver's sizes.
    pub(super) memory: (u64, u32),
    /// The numbers of the queue pairs; each is connected with that in the same place of the other end.
    pub(super) pairs: Vec<u32>,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Introduction(Introduction),
    Ready,
    /// The end: how many requests of the receiver are filled, as far as this end knows, and why it ends.
    Farewell {
        filled: u64,
        reason: String,
    },
}

impl Said {
    fn encode(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        let kind = match self {
            Said::Introduction(ours) => {
                let Introduction { link, address, psn, split, memory, pairs } = ours;
                rest.extend(MAGIC);
                rest.extend(VERSION.to_le_bytes());
                rest.extend([u8::from(*link == Link::Ethernet), u8::from(*split)]);
                rest.extend(address.lid.to_le_bytes());
                rest.extend(address.gid);
                rest.extend(address.mtu.to_le_bytes());
                rest.extend(address.max_message.to_le_bytes());
                rest.extend(psn.to_le_bytes());
                rest.extend(memory.0.to_le_bytes());
                rest.extend(memory.1.to_le_bytes());
                pairs.iter().for_each(|number| rest.extend(number.to_le_bytes()));
                1
            }
            Said::Ready => 2,
            Said::Farewell { filled, reason } => {
                rest.extend(filled.to_le_bytes());
                let mut end = reason.len().min(MAX_REASON);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                rest.extend(&reason.as_bytes()[..end]);
                3
            }
        };
        let length = (rest.len() as u16).to_le_bytes(); // at most MAX_FRAME
        [&[kind][..], &length, &rest].concat()
    }

    fn decode(kind: u8, bytes: &[u8]) -> Result<Said, Malformed> {
        let mut reader = Reader(bytes);
        match kind {
            1 => {
                if reader.take()? != MAGIC {
                    return Err(Malformed::Stranger);
                }
                let version = reader.u32()?;
                if version != VERSION {
                    return Err(Malformed::Field("version", version.into()));
                }
                let [link, split] = reader.take()?;
                let link = match link {
                    0 => Link::InfiniBand,
                    1 => Link::Ethernet,
                    _ => return Err(Malformed::Field("link", link.into())),
                };
                let (lid, gid) = (reader.u16()?, reader.take()?);
                let (mtu, max_message) = (reader.u32()?, reader.u32()?);
                // 256 to 4096 bytes.
                if !(1..=5).contains(&mtu) {
                    return Err(Malformed::Field("MTU code", mtu.into()));
                }
                let psn = reader.u32()? & 0xff_ffff;
                let memory = (reader.u64()?, reader.u32()?);
                let pairs: Vec<u32> =
                    std::iter::from_fn(|| reader.u32().ok()).take(MAX_QPS + 1).collect();
                if !(1..=MAX_QPS).contains(&pairs.len()) {
                    return Err(Malformed::Field("queue pairs", pairs.len() as u64));
                }
                let address = Address { gid, gid_index: 0, lid, mtu, max_message };
                Ok(Said::Introduction(Introduction {
                    link,
                    address,
                    psn,
                    split: split != 0,
                    memory,
                    pairs,
                }))
            }
            2 => Ok(Said::Ready),
            3 => {
                let filled = reader.u64()?;
                Ok(Said::Farewell {
                    filled,
                    reason: String::from_utf8_lossy(reader.0).into_owned(),
                })
            }
            _ => Err(Malformed::Field("kind", kind.into())),
        }
    }
}

/// The socket of a connection's end.
#[derive(Debug)]
pub(super) struct Control {
    socket: Socket,
    heard: Vec<u8>,
    say: Vec<u8>,
}

impl Control {
    pub(super) fn new(socket: Socket) -> Control {
        Control { socket, heard: Vec::new(), say: Vec::new() }
    }

    pub(super) fn say(&mut self, said: &Said) {
        self.say.extend(said.encode());
    }

    /// Whether all is said.
    pub(super) fn flush(&mut self) -> Result<bool, String> {
        while !self.say.is_empty() {
            match stream::send(&self.socket, &self.say).map_err(|e| stream::lost(&e))? {
                Some(bytes) => drop(self.say.drain(..bytes)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// What the other end says next, if it has; an error if there will never be anything, or it makes no sense.
    pub(super) fn hear(&mut self) -> Result<Option<Said>, String> {
        let head = self.fill(HEAD)?;
        let Some(&[kind, low, high]) = head else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([low, high]));
        if length > MAX_FRAME {
            return Err(format!("it says {length} bytes at once"));
        }
        let Some(frame) = self.fill(HEAD + length)? else { return Ok(None) };
        let said = Said::decode(kind, &frame[HEAD..]).map_err(|e| format!("what it says {e}"))?;
        self.heard.clear();
        Ok(Some(said))
    }

    /// The first `wanted` bytes of a frame, once they are here.
    fn fill(&mut self, wanted: usize) -> Result<Option<&[u8]>, String> {
        while let missing @ 1.. = wanted.saturating_sub(self.heard.len()) {
            let mut place = [0; 256];
            let room = missing.min(place.len());
            // SAFETY: these bytes are ours, and there is room for more than 0.
            let read = unsafe { stream::recv(&self.socket, place.as_mut_ptr(), room) };
            match read.map_err(|e: io::Error| stream::lost(&e))? {
                Some(bytes) => self.heard.extend_from_slice(&place[..bytes]),
                None => return Ok(None),
            }
        }
        Ok(self.heard.get(..wanted))
    }

    /// Says that it ends, if that can be said at once, and ends.
    pub(super) fn end(&mut self, filled: u64, reason: &str) {
        self.say(&Said::Farewell { filled, reason: reason.to_owned() });
        // Whoever does not hear it learns of it by the end of the socket.
        let _ = self.flush();
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn introduction(pairs: usize) -> Introduction {
        Introduction {
            link: Link::Ethernet,
            address: Address { gid: [3; 16], gid_index: 0, lid: 7, mtu: 5, max_message: 1 << 31 },
            psn: 0xff_ffff,
            split: true,
            memory: (u64::MAX - 7, 9),
            pairs: (0..pairs as u32).collect(),
        }
    }

    fn decoded(bytes: &[u8]) -> Result<Said, Malformed> {
        let (head, rest) = bytes.split_at(HEAD);
        assert_eq!(usize::from(u16::from_le_bytes([head[1], head[2]])), rest.len());
        assert!(rest.len() <= MAX_FRAME);
        Said::decode(head[0], rest)
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for said in [
            Said::Introduction(introduction(1)),
            Said::Introduction(introduction(MAX_QPS)),
            Said::Ready,
            Said::Farewell { filled: 5, reason: "it is late".to_owned() },
        ] {
            assert_eq!(decoded(&said.encode()), Ok(said));
        }
        let long = Said::Farewell { filled: 0, reason: "ü".repeat(2000) };
        let Ok(Said::Farewell { reason, .. }) = decoded(&long.encode()) else { panic!("{long:?}") };
        assert_eq!(reason, "ü".repeat(MAX_REASON / 2));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let with = |place: usize, value: u8| {
            let mut bytes = Said::Introduction(introduction(1)).encode();
            bytes[HEAD + place] = value;
            decoded(&bytes).map_err(|e| e.to_string())
        };
        assert_eq!(with(0, 0), Err("speaks another protocol".to_owned()));
        assert_eq!(with(4, 2), Err("has version 2".to_owned()));
        assert_eq!(with(8, 2), Err("has link 2".to_owned()));
        assert_eq!(with(28, 6), Err("has MTU code 6".to_owned()));
        let none = Said::Introduction(introduction(0)).encode();
        assert_eq!(decoded(&none), Err(Malformed::Field("queue pairs", 0)));
        let many = Said::Introduction(introduction(MAX_QPS + 1)).encode();
        assert_eq!(decoded(&many), Err(Malformed::Field("queue pairs", MAX_QPS as u64 + 1)));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_it(kind: u8, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Said::decode(kind, &bytes);
            let _ = Said::decode(1, &[&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat());
        }
    }
}
