//! The control socket: what the two ends of a connection tell each other over TCP. No data goes there.
//!
//! ```text
//! sender                                            receiver
//!   ── connect: address, FIFO, queue pairs ────────────►        creates as many, connects them
//!   ◄── connect: address, sizes, queue pairs ───────────
//!   ── ready: mine are connected, too ─────────────────►        the FIFO may be written to
//!   ...                                            ...          nothing, while data moves
//!   ◄── close: the reason, how much is done ───────────►        sent by the end that closes
//! ```
//!
//! A frame is its kind in one byte, the bytes of the rest in two, and the rest. All numbers are little-endian.

use std::io;

use socket2::Socket;

use super::config::MAX_QPS;
use super::device::{LinkLayer, MAX_PORTS, PortAddress};
use super::sys;
use crate::net::handshake::{Malformed, Reader, stream};

/// The version of all this; not of the handshake, which comes first.
const VERSION: u32 = 2;
const MAGIC: [u8; 4] = *b"FRCv";

/// Bytes of a frame at most. A [`ConnectionInfo`] with the most queue pairs has less.
const MAX_FRAME: usize = 1024;
/// Bytes of a frame before its contents.
const HEAD: usize = 3;
/// Bytes of the reason in a [`ControlMessage::Close`] at most.
const MAX_REASON: usize = 800;

/// What an end needs to know of its peer to connect the queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConnectionInfo {
    pub(super) link: LinkLayer,
    /// The ports of the device, at least one.
    pub(super) ports: Vec<PortInfo>,
    /// The number of the first packet, 24 bits.
    pub(super) psn: u32,
    /// The sender's: whether each message goes over all queue pairs.
    pub(super) split: bool,
    /// Where the other end writes to: the sender's FIFO, the receiver's sizes.
    pub(super) memory: u64,
    /// The queue pairs; each is connected with that in the same place of the other end.
    pub(super) pairs: Vec<PairInfo>,
}

/// A port of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortInfo {
    pub(super) address: PortAddress,
    /// The key for [`ConnectionInfo::memory`] by way of this port.
    pub(super) key: u32,
}

/// A queue pair of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairInfo {
    pub(super) number: u32,
    /// Which of the end's ports it is of.
    pub(super) port: u8,
}

/// A message, one in each frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlMessage {
    Connect(ConnectionInfo),
    Ready,
    /// This end closes: how many requests of the receiver are filled, as far as it knows, and the reason.
    Close {
        filled: u64,
        reason: String,
    },
}

impl ControlMessage {
    fn encode(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        let kind = match self {
            ControlMessage::Connect(ours) => {
                let ConnectionInfo { link, ports, psn, split, memory, pairs } = ours;
                rest.extend(MAGIC);
                rest.extend(VERSION.to_le_bytes());
                rest.extend([u8::from(*link == LinkLayer::Ethernet), u8::from(*split)]);
                rest.extend(psn.to_le_bytes());
                rest.extend(memory.to_le_bytes());
                rest.push(ports.len() as u8); // at most MAX_PORTS
                for PortInfo { address, key } in ports {
                    rest.extend(address.lid.to_le_bytes());
                    rest.extend(address.gid);
                    rest.extend(address.mtu.to_le_bytes());
                    rest.extend(address.max_message.to_le_bytes());
                    rest.extend(key.to_le_bytes());
                }
                for PairInfo { number, port } in pairs {
                    rest.extend(number.to_le_bytes());
                    rest.push(*port);
                }
                1
            }
            ControlMessage::Ready => 2,
            ControlMessage::Close { filled, reason } => {
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

    fn decode(kind: u8, bytes: &[u8]) -> Result<ControlMessage, Malformed> {
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
                    0 => LinkLayer::InfiniBand,
                    1 => LinkLayer::Ethernet,
                    _ => return Err(Malformed::Field("link", link.into())),
                };
                let psn = reader.u32()? & 0xff_ffff;
                let memory = reader.u64()?;
                let [count] = reader.take()?;
                if !(1..=MAX_PORTS).contains(&usize::from(count)) {
                    return Err(Malformed::Field("ports", count.into()));
                }
                let ports: Vec<PortInfo> =
                    (0..count).map(|_| port_info(&mut reader)).collect::<Result<_, _>>()?;
                let pair = || Some((reader.u32().ok()?, reader.take::<1>().ok()?));
                let pairs = std::iter::from_fn(pair).take(MAX_QPS + 1);
                let pairs: Vec<PairInfo> =
                    pairs.map(|(number, [port])| PairInfo { number, port }).collect();
                if !(1..=MAX_QPS).contains(&pairs.len()) {
                    return Err(Malformed::Field("queue pairs", pairs.len() as u64));
                }
                if let Some(pair) = pairs.iter().find(|pair| pair.port >= count) {
                    return Err(Malformed::Field("a queue pair of port", pair.port.into()));
                }
                Ok(ControlMessage::Connect(ConnectionInfo {
                    link,
                    ports,
                    psn,
                    split: split != 0,
                    memory,
                    pairs,
                }))
            }
            2 => Ok(ControlMessage::Ready),
            3 => {
                let filled = reader.u64()?;
                Ok(ControlMessage::Close {
                    filled,
                    reason: String::from_utf8_lossy(reader.0).into_owned(),
                })
            }
            _ => Err(Malformed::Field("kind", kind.into())),
        }
    }
}

fn port_info(reader: &mut Reader<'_>) -> Result<PortInfo, Malformed> {
    let (lid, gid) = (reader.u16()?, reader.take()?);
    let (mtu, max_message) = (reader.u32()?, reader.u32()?);
    if !(sys::IBV_MTU_256..=sys::IBV_MTU_4096).contains(&mtu) {
        return Err(Malformed::Field("MTU code", mtu.into()));
    }
    let key = reader.u32()?;
    Ok(PortInfo { address: PortAddress { gid, gid_index: 0, lid, mtu, max_message }, key })
}

/// The socket of a connection's end.
#[derive(Debug)]
pub(super) struct ControlSocket {
    socket: Socket,
    heard: Vec<u8>,
    say: Vec<u8>,
}

impl ControlSocket {
    pub(super) fn new(socket: Socket) -> ControlSocket {
        ControlSocket { socket, heard: Vec::new(), say: Vec::new() }
    }

    pub(super) fn queue(&mut self, said: &ControlMessage) {
        self.say.extend(said.encode());
    }

    /// Writes what the socket takes; whether all is written.
    pub(super) fn flush(&mut self) -> Result<bool, String> {
        while !self.say.is_empty() {
            match stream::send(&self.socket, &self.say).map_err(|e| stream::lost(&e))? {
                Some(bytes) => drop(self.say.drain(..bytes)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The next message, if it has come.
    ///
    /// # Errors
    /// When the peer has closed the connection, or has sent what is no message.
    pub(super) fn receive(&mut self) -> Result<Option<ControlMessage>, String> {
        let head = self.fill(HEAD)?;
        let Some(&[kind, low, high]) = head else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([low, high]));
        if length > MAX_FRAME {
            return Err(format!("a message of {length} bytes"));
        }
        let Some(frame) = self.fill(HEAD + length)? else { return Ok(None) };
        let said =
            ControlMessage::decode(kind, &frame[HEAD..]).map_err(|e| format!("its message {e}"))?;
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

    /// Sends a [`ControlMessage::Close`] if the socket takes it at once, and closes our direction.
    pub(super) fn end(&mut self, filled: u64, reason: &str) {
        self.queue(&ControlMessage::Close { filled, reason: reason.to_owned() });
        // If it is not sent, the peer sees that the socket is closed.
        let _ = self.flush();
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

/// What fuzzing gives the control socket.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use std::io::Write as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Bytes of a peer, in pieces of a length that the first byte says.
    pub(crate) fn control(data: &[u8]) {
        let Some((piece, data)) = data.split_first() else { return };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut socket = ControlSocket::new(OwnedFd::from(ours).into());
        for piece in data.chunks(usize::from(*piece) + 1) {
            if theirs.write_all(piece).is_err() {
                return;
            }
            loop {
                assert!(socket.heard.len() <= HEAD + MAX_FRAME, "no more is kept than a frame");
                match socket.receive() {
                    Ok(None) => break,
                    Ok(Some(message)) => check(message),
                    Err(_) => return,
                }
            }
        }
        drop(theirs);
        assert!(socket.receive().is_err(), "the peer has closed the connection");
    }

    /// What is accepted can be written and read, and connects queue pairs.
    fn check(message: ControlMessage) {
        let bytes = message.encode();
        assert!(bytes.len() <= HEAD + MAX_FRAME);
        let again = ControlMessage::decode(bytes[0], &bytes[HEAD..]).unwrap();
        match (&message, again) {
            // Of a reason only so much is said.
            (
                ControlMessage::Close { filled, reason },
                ControlMessage::Close { filled: n, reason: said },
            ) => {
                assert!(*filled == n && reason.starts_with(&said));
            }
            (_, again) => assert_eq!(again, message),
        }
        if let ControlMessage::Connect(info) = message {
            assert!((1..=MAX_QPS).contains(&info.pairs.len()) && info.psn < 1 << 24);
            assert!((1..=MAX_PORTS).contains(&info.ports.len()));
            for PortInfo { address, .. } in &info.ports {
                assert!((sys::IBV_MTU_256..=sys::IBV_MTU_4096).contains(&address.mtu));
            }
            assert!(info.pairs.iter().all(|pair| usize::from(pair.port) < info.ports.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn connection_info(pairs: usize) -> ConnectionInfo {
        let address =
            PortAddress { gid: [3; 16], gid_index: 0, lid: 7, mtu: 5, max_message: 1 << 31 };
        let pair = |number| PairInfo { number, port: (number % MAX_PORTS as u32) as u8 };
        ConnectionInfo {
            link: LinkLayer::Ethernet,
            ports: (0..MAX_PORTS as u32).map(|key| PortInfo { address, key }).collect(),
            psn: 0xff_ffff,
            split: true,
            memory: u64::MAX - 7,
            pairs: (0..pairs as u32).map(pair).collect(),
        }
    }

    fn decoded(bytes: &[u8]) -> Result<ControlMessage, Malformed> {
        let (head, rest) = bytes.split_at(HEAD);
        assert_eq!(usize::from(u16::from_le_bytes([head[1], head[2]])), rest.len());
        assert!(rest.len() <= MAX_FRAME);
        ControlMessage::decode(head[0], rest)
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for said in [
            ControlMessage::Connect(connection_info(1)),
            ControlMessage::Connect(connection_info(MAX_QPS)),
            ControlMessage::Ready,
            ControlMessage::Close { filled: 5, reason: "it is late".to_owned() },
        ] {
            assert_eq!(decoded(&said.encode()), Ok(said));
        }
        let long = ControlMessage::Close { filled: 0, reason: "ü".repeat(2000) };
        let Ok(ControlMessage::Close { reason, .. }) = decoded(&long.encode()) else {
            panic!("{long:?}")
        };
        assert_eq!(reason, "ü".repeat(MAX_REASON / 2));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let with = |place: usize, value: u8| {
            let mut bytes = ControlMessage::Connect(connection_info(1)).encode();
            bytes[HEAD + place] = value;
            decoded(&bytes).map_err(|e| e.to_string())
        };
        assert_eq!(with(0, 0), Err("speaks another protocol".to_owned()));
        assert_eq!(with(4, 1), Err("has version 1".to_owned()));
        assert_eq!(with(8, 2), Err("has link 2".to_owned()));
        assert_eq!(with(22, 0), Err("has ports 0".to_owned()));
        assert_eq!(with(22, 5), Err("has ports 5".to_owned()));
        assert_eq!(with(41, 6), Err("has MTU code 6".to_owned()));
        let last = 23 + 30 * MAX_PORTS + 4;
        assert_eq!(with(last, 4), Err("has a queue pair of port 4".to_owned()));
        let none = ControlMessage::Connect(connection_info(0)).encode();
        assert_eq!(decoded(&none), Err(Malformed::Field("queue pairs", 0)));
        let many = ControlMessage::Connect(connection_info(MAX_QPS + 1)).encode();
        assert_eq!(decoded(&many), Err(Malformed::Field("queue pairs", MAX_QPS as u64 + 1)));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_it(kind: u8, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ControlMessage::decode(kind, &bytes);
            let _ = ControlMessage::decode(1, &[&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat());
        }
    }
}
