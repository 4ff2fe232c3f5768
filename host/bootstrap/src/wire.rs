//! The bootstrap's messages: bytes on one side, legal values on the other, and nothing else.
//!
//! Pure: no sockets, no clock. What is not a legal value does not get past this module, and no
//! length is believed before the bytes it speaks of have arrived: a [`Decoder`] holds what came, and what it
//! makes is never larger than that.
//!
//! A frame is a header and a body; numbers are little-endian:
//!
//! ```text
//! 0         4         5      6      8                12
//! | "FCCL"  | version | kind | zero | bytes of body  | body ... | seal of 32 bytes |
//! ```
//!
//! Messages come after both ends have authenticated each other ([`ferroccl_handshake`]). The seal of each is that of the
//! connection, its direction and its number ([`Seals`]), so that a frame that was changed, repeated, left out, reordered or
//! returned on the way is no message ([`Sealed::open`]).

mod body;

use std::fmt::{self, Display};
use std::net::SocketAddr;

/// The version of these messages; ranks of different versions do not talk.
pub const VERSION: u8 = 5;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// The longest payload of a [`Message::Data`]. Set-up data is kilobytes; the bound is generous, not measured.
pub const MAX_DATA: usize = 16 << 20;
/// The most ranks of a group; far beyond the largest machine there is.
pub const MAX_RANKS: u32 = 1 << 20;
/// The most ranks that a [`MissingRanks`] names.
pub const MAX_NAMED: usize = 32;
/// The most addresses of a [`Message::Welcome`]: the next rank's, and those of a rank's partners in all-gathers, of which there
/// is one for each doubling and one more.
pub const MAX_CALLED: usize = MAX_RANKS.ilog2() as usize + 2;
/// The most bytes of a reason.
pub const MAX_REASON: usize = 256;
/// The most ranks of a [`Message::Left`]: more are told in several.
pub const MAX_LEFT: usize = 1024;

const MAGIC: [u8; 4] = *b"FCCL";
/// No body of a message that joins is longer, but for a welcome.
const MAX_JOINING: usize = 256;
/// Bytes of an address: family, port, scope, IP.
const ADDRESS: usize = 1 + 2 + 4 + 16;
/// Bytes of the longest welcome.
const MAX_WELCOME: usize = 16 + 1 + MAX_CALLED * ADDRESS;

pub use ferroccl_handshake::Nonce;
use ferroccl_handshake::{SEAL, Seals};

/// Ranks that did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRanks {
    /// Ranks of the group.
    pub world_size: u32,
    /// How many are missing.
    pub count: u32,
    /// The first of them, ascending, at most [`MAX_NAMED`].
    pub named: Vec<u32>,
}

impl Display for MissingRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ranks did not come: rank", self.count, self.world_size)?;
        for (i, rank) in self.named.iter().enumerate() {
            write!(f, "{} {rank}", if i == 0 { "" } else { "," })?;
        }
        if self.count as usize > self.named.len() { f.write_str(", ...") } else { Ok(()) }
    }
}

/// Why a root or a rank turned somebody away.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// What was sent is not a message.
    Malformed,
    /// It speaks another version of the handshake, or of the messages.
    WrongVersion {
        /// The version that is spoken here.
        ours: u8,
    },
    /// It does not know the group's secret.
    WrongSecret,
    /// It did not say who it is in time.
    TooSlow,
    /// Too many strangers knock; trying again may help.
    Busy,
    /// Its rank is not of a group of its size.
    RankOutOfRange {
        /// The rank it claims.
        rank: u32,
        /// The size it claims.
        world_size: u32,
    },
    /// Its rank is there already.
    RankTwice {
        /// The rank it claims.
        rank: u32,
    },
    /// The ranks before it said another size of the group.
    OtherWorldSize {
        /// The size it claims.
        theirs: u32,
        /// The size the ranks before it said.
        ours: u32,
    },
    /// It came as it should, but others did not.
    MissingRanks(MissingRanks),
    /// It is not who was expected here.
    NotExpected,
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Malformed => f.write_str("what it sent is not a message of this library"),
            Refusal::WrongVersion { ours } => write!(f, "it does not speak version {ours}"),
            Refusal::WrongSecret => f.write_str(
                "it does not know the secret of this unique id (is FERROCCL_SECRET the same on all ranks?)",
            ),
            Refusal::TooSlow => f.write_str("it did not say who it is in time"),
            Refusal::Busy => f.write_str("too many strangers are knocking"),
            Refusal::RankOutOfRange { rank, world_size } => {
                write!(f, "rank {rank} is not of a group of {world_size} ranks")
            }
            Refusal::RankTwice { rank } => write!(f, "rank {rank} was sent twice"),
            Refusal::OtherWorldSize { theirs, ours } => {
                write!(f, "it speaks of {theirs} ranks, those before it of {ours}")
            }
            Refusal::MissingRanks(missing) => missing.fmt(f),
            Refusal::NotExpected => f.write_str("it is not who was expected"),
        }
    }
}

/// What a connection between two ranks is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// To be the edge of the ring from the sender to the next rank.
    Ring,
    /// To carry all-gathers between two ranks that are not neighbours in the ring.
    Rounds,
    /// To carry the sender's messages to the receiver.
    Messages,
}

/// A legal message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Rank to root.
    Hello {
        /// The sender; not checked against `world_size` here, so that the root can say what is wrong.
        rank: u32,
        /// Ranks of its group.
        world_size: u32,
        /// Milliseconds it will wait for the group.
        wait_ms: u32,
        /// Where other ranks reach it.
        listener: SocketAddr,
    },
    /// Root to rank: the group is complete.
    Welcome {
        /// Makes the key of the ranks' own handshakes.
        session: Nonce,
        /// Where the ranks listen that the rank is to connect to, at most [`MAX_CALLED`]: first the next of the ring.
        called: Vec<SocketAddr>,
    },
    /// To who is turned away.
    Refused(Refusal),
    /// Rank to rank, first on a connection.
    Peer {
        /// What the connection is for.
        purpose: Purpose,
        /// The rank that connects.
        from: u32,
        /// The rank it means to reach.
        to: u32,
    },
    /// The answer to a [`Message::Peer`] of the ring or of all-gathers.
    Met,
    /// Bytes from rank to rank.
    Data {
        /// The receiver waits for this tag.
        tag: u64,
        /// The payload, at most [`MAX_DATA`].
        bytes: Vec<u8>,
    },
    /// The sender leaves, and means to.
    Goodbye,
    /// News around the ring: a rank is lost.
    Gone {
        /// The rank.
        peer: u32,
        /// Why.
        reason: String,
    },
    /// News around the ring: ranks have left as they should.
    Left {
        /// The ranks: 1 to [`MAX_LEFT`].
        peers: Vec<u32>,
    },
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They do not begin as one.
    Magic,
    /// They are of another version.
    Version(u8),
    /// There is no such message, or not at this place.
    Kind(u8),
    /// The length in the header is impossible.
    Length {
        /// The kind of message.
        kind: u8,
        /// The length.
        bytes: u32,
    },
    /// A field has a value that cannot be.
    Value(&'static str),
}

impl Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Magic => f.write_str("it does not begin as a message"),
            Malformed::Version(v) => write!(f, "it is of version {v}, this is version {VERSION}"),
            Malformed::Kind(kind) => write!(f, "a message of kind {kind} has no place here"),
            Malformed::Length { kind, bytes } => {
                write!(f, "a message of kind {kind} cannot have {bytes} bytes")
            }
            Malformed::Value(field) => write!(f, "its {field} has an impossible value"),
        }
    }
}

const HELLO: u8 = 2;
const WELCOME: u8 = 3;
const REFUSED: u8 = 4;
const PEER: u8 = 5;
const MET: u8 = 6;
const DATA: u8 = 7;
const GOODBYE: u8 = 8;
const GONE: u8 = 9;
const LEFT: u8 = 10;

/// What a connection may carry at a time, so that it cannot make us hold much before we know whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Which rank is it, and what does it want?
    Joining,
    /// A known rank.
    Open,
}

/// The longest body of a kind in a phase; `None` when it has no place there.
fn longest(kind: u8, phase: Phase) -> Option<usize> {
    match (kind, phase) {
        (HELLO | REFUSED | PEER | MET, Phase::Joining) => Some(MAX_JOINING),
        (WELCOME, Phase::Joining) => Some(MAX_WELCOME),
        (DATA, Phase::Open) => Some(8 + MAX_DATA),
        (GOODBYE, Phase::Open) => Some(0),
        (GONE, Phase::Open) => Some(4 + 2 + MAX_REASON),
        (LEFT, Phase::Open) => Some(4 * MAX_LEFT),
        _ => None,
    }
}

/// A whole frame as it came: split, its message not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    kind: u8,
    /// Header and body.
    bytes: Vec<u8>,
}

impl Frame {
    /// The message.
    ///
    /// # Errors
    /// [`Malformed`] when the body is not one of its kind.
    pub fn message(&self) -> Result<Message, Malformed> {
        let body = self.bytes.get(HEADER_BYTES..).ok_or_else(|| self.bad_length())?;
        body::read(self.kind, body)?.ok_or_else(|| self.bad_length())
    }

    fn bad_length(&self) -> Malformed {
        // The body came through a header's 32-bit length.
        let bytes = u32::try_from(self.bytes.len() - HEADER_BYTES).unwrap_or(u32::MAX);
        Malformed::Length { kind: self.kind, bytes }
    }
}

/// A whole frame whose seal has not been looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    frame: Frame,
    seal: [u8; SEAL],
}

impl Sealed {
    /// The frame, if it is the next one that the peer has sealed.
    #[must_use]
    pub fn open(self, theirs: &mut Seals) -> Option<Frame> {
        theirs.accept(&self.frame.bytes, &self.seal).then_some(self.frame)
    }
}

/// Cuts what arrives into frames.
#[derive(Debug)]
pub struct Decoder {
    /// What came and is not yet taken.
    bytes: Vec<u8>,
    /// What the connection may carry.
    pub phase: Phase,
}

impl Decoder {
    /// A decoder of a connection that has carried nothing yet.
    #[must_use]
    pub fn new(phase: Phase) -> Self {
        Decoder { bytes: Vec::new(), phase }
    }

    /// Adds what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether something came that is not yet a whole frame.
    #[must_use]
    pub fn is_midway(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Bytes that must come at least until there is a whole frame, as far as that is known.
    #[must_use]
    pub fn missing(&self) -> usize {
        let Some(&[.., a, b, c, d]) = self.bytes.first_chunk::<HEADER_BYTES>() else {
            return HEADER_BYTES - self.bytes.len();
        };
        // An impossible length is found when the frame is taken.
        let total = HEADER_BYTES + u32::from_le_bytes([a, b, c, d]) as usize + SEAL;
        total.saturating_sub(self.bytes.len())
    }

    /// Takes the next whole frame; `None` when more must arrive first. An error is final: the stream has
    /// lost its frames.
    ///
    /// # Errors
    /// [`Malformed`] as soon as it is clear from what has come.
    pub fn next_frame(&mut self) -> Result<Option<Sealed>, Malformed> {
        let seen = self.bytes.len().min(MAGIC.len());
        if self.bytes[..seen] != MAGIC[..seen] {
            return Err(Malformed::Magic);
        }
        let Some(&[_, _, _, _, version, kind, a, b, c, d, e, f]) = self.bytes.first_chunk() else {
            return Ok(None);
        };
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if [a, b] != [0, 0] {
            return Err(Malformed::Value("reserved field"));
        }
        let length = u32::from_le_bytes([c, d, e, f]);
        let longest = longest(kind, self.phase).ok_or(Malformed::Kind(kind))?;
        let total = match usize::try_from(length) {
            Ok(length) if length <= longest => HEADER_BYTES + length,
            _ => return Err(Malformed::Length { kind, bytes: length }),
        };
        let Some(seal) = self.bytes.get(total..).and_then(|rest| rest.first_chunk().copied())
        else {
            return Ok(None);
        };
        let rest = self.bytes.split_off(total + SEAL);
        let mut bytes = std::mem::replace(&mut self.bytes, rest);
        bytes.truncate(total);
        Ok(Some(Sealed { frame: Frame { kind, bytes }, seal }))
    }
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Message::Hello { .. } => HELLO,
            Message::Welcome { .. } => WELCOME,
            Message::Refused(_) => REFUSED,
            Message::Peer { .. } => PEER,
            Message::Met => MET,
            Message::Data { .. } => DATA,
            Message::Goodbye => GOODBYE,
            Message::Gone { .. } => GONE,
            Message::Left { .. } => LEFT,
        }
    }

    /// The frame with its seal, which is the next one of `ours`. A payload must be at most [`MAX_DATA`] long; lists and reasons
    /// are cut to what is legal.
    #[must_use]
    pub fn seal(&self, ours: &mut Seals) -> Vec<u8> {
        let mut frame = self.encode();
        let seal = ours.seal(&frame);
        frame.extend_from_slice(&seal);
        frame
    }

    /// The frame without a seal. A payload must be at most [`MAX_DATA`] long; lists and reasons are cut to what is legal.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = vec![0; HEADER_BYTES];
        body::write(self, &mut frame);
        let body = frame.len() - HEADER_BYTES;
        frame[..4].copy_from_slice(&MAGIC);
        frame[4] = VERSION;
        frame[5] = self.kind();
        // A body is far below 4 GiB: the caller keeps to MAX_DATA.
        frame[8..12].copy_from_slice(&u32::try_from(body).unwrap_or(u32::MAX).to_le_bytes());
        frame
    }
}

#[cfg(test)]
#[path = "wire/tests.rs"]
mod tests;
