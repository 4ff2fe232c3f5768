//! The messages of the handshake as bytes. All numbers are little-endian. Pure: no sockets, no clock, no keys.
//!
//! ```text
//! hello      magic 8 | version 4 | subject 12 | nonce 16 | seal 32
//! challenge  magic 8 | version 4 | 0 4        | nonce 16 | acceptor's proof 32
//! proof      connector's proof 32
//! reject     magic 8 | version 4 | reason 4
//! ```
//!
//! The first twelve bytes of a hello, a challenge and a reject are the same in all versions there will ever be, so that two
//! versions can tell each other which they are. The helpers for reading and writing fields are for other formats, too.

use crate::error::Rejection;

/// The version of the handshake.
pub const VERSION: u32 = 3;

const HELLO_MAGIC: [u8; 8] = *b"FerroHsC";
/// Not the connector's: an end that is connected to itself must notice.
const CHALLENGE_MAGIC: [u8; 8] = *b"FerroHsA";
const REJECT_MAGIC: [u8; 8] = *b"FerroHsR";

/// Bytes of magic and version.
pub(crate) const PREFIX: usize = 12;
/// Bytes of a hello.
pub const HELLO: usize = 72;
/// Bytes of a hello that its seal covers.
pub(crate) const HELLO_COVERED: usize = 40;
/// Bytes of a challenge.
pub const CHALLENGE: usize = 64;
/// Bytes of a challenge that its proof covers.
pub(crate) const CHALLENGE_COVERED: usize = 32;
/// Bytes of a proof, and of a seal.
pub const PROOF: usize = 32;
/// Bytes of a reject.
pub const REJECT: usize = 16;
/// Bytes of a [`Subject`].
pub const SUBJECT_BYTES: usize = 12;

/// A number used once.
pub type Nonce = [u8; 16];

/// What the connector says that the connection is; the handshake proves it and gives it no meaning.
pub type Subject = [u8; SUBJECT_BYTES];

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They are of another protocol.
    Stranger,
    /// They are of another version.
    Version(u32),
    /// A field has an impossible value: its name and the value.
    Field(&'static str, u64),
    /// They are too few.
    Length(usize),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Stranger => f.write_str("speaks another protocol"),
            Malformed::Version(theirs) => {
                write!(f, "is of version {theirs} of the handshake, we of {VERSION}")
            }
            Malformed::Field(name, value) => write!(f, "has {name} {value}"),
            Malformed::Length(bytes) => write!(f, "has {bytes} bytes"),
        }
    }
}

/// Reads fields from the front of bytes.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`Malformed::Length`] when there are fewer.
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed::Length(self.0.len()))?;
        self.0 = rest;
        Ok(*field)
    }

    /// The next 16 bits as a number.
    ///
    /// # Errors
    /// As [`Reader::take`].
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    /// The next 32 bits as a number.
    ///
    /// # Errors
    /// As [`Reader::take`].
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    /// The next 64 bits as a number.
    ///
    /// # Errors
    /// As [`Reader::take`].
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    fn prefix(&mut self, magic: [u8; 8]) -> Result<(), Malformed> {
        if self.take()? != magic {
            return Err(Malformed::Stranger);
        }
        match self.u32()? {
            VERSION => Ok(()),
            other => Err(Malformed::Version(other)),
        }
    }
}

/// Puts fields into `N` bytes, with zeros behind them.
#[must_use]
pub fn fields<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    let places = bytes.iter_mut().zip(parts.iter().copied().flatten());
    places.for_each(|(place, byte)| *place = *byte);
    bytes
}

/// The first message, from the end that connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) subject: Subject,
    pub(crate) nonce: Nonce,
}

impl Hello {
    /// Its bytes; `seal` makes the seal of the bytes before it.
    pub(crate) fn encode(
        &self,
        seal: impl FnOnce(&[u8; HELLO_COVERED]) -> [u8; PROOF],
    ) -> [u8; HELLO] {
        let covered: [u8; HELLO_COVERED] =
            fields(&[&HELLO_MAGIC, &VERSION.to_le_bytes(), &self.subject, &self.nonce]);
        fields(&[&covered, &seal(&covered)])
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Hello, Malformed> {
        let mut reader = Reader(bytes);
        reader.prefix(HELLO_MAGIC)?;
        Ok(Hello { subject: reader.take()?, nonce: reader.take()? })
    }
}

/// Whether the bytes that have come may begin a hello of this version; they may be few.
pub(crate) fn check_hello(bytes: &[u8]) -> Result<(), Malformed> {
    check(bytes, &[HELLO_MAGIC])
}

/// The bytes of a challenge that its proof covers.
pub(crate) fn challenge(nonce: &Nonce) -> [u8; CHALLENGE_COVERED] {
    fields(&[&CHALLENGE_MAGIC, &VERSION.to_le_bytes(), &[0; 4], nonce])
}

/// Whether the bytes that have come may begin an answer to a hello; they may be few.
pub(crate) fn check_answer(bytes: &[u8]) -> Result<(), Malformed> {
    check(bytes, &[CHALLENGE_MAGIC, REJECT_MAGIC])
}

/// Whether an answer is a reject.
pub(crate) fn is_reject(prefix: &[u8; PREFIX]) -> bool {
    prefix.starts_with(&REJECT_MAGIC)
}

/// A reject.
pub(crate) fn reject(reason: Rejection) -> [u8; REJECT] {
    fields(&[&REJECT_MAGIC, &VERSION.to_le_bytes(), &reason.code().to_le_bytes()])
}

/// The reason in a reject.
pub(crate) fn decode_reject(bytes: &[u8; REJECT]) -> Result<Rejection, Malformed> {
    let mut reader = Reader(bytes);
    reader.prefix(REJECT_MAGIC)?;
    let code = reader.u32()?;
    Rejection::from_code(code, VERSION).ok_or(Malformed::Field("reason", code.into()))
}

/// Whether bytes may begin a message with one of these magics, of this version.
fn check(bytes: &[u8], magics: &[[u8; 8]]) -> Result<(), Malformed> {
    let seen = bytes.len().min(8);
    if !magics.iter().any(|magic| magic[..seen] == bytes[..seen]) {
        return Err(Malformed::Stranger);
    }
    match bytes[seen..].first_chunk().map(|version| u32::from_le_bytes(*version)) {
        Some(version) if version != VERSION => Err(Malformed::Version(version)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let hello = Hello { subject: [3; SUBJECT_BYTES], nonce: [7; 16] };
        let bytes = hello.encode(|_| [1; PROOF]);
        assert_eq!(Hello::decode(&bytes), Ok(hello));
        for cut in 0..HELLO_COVERED {
            assert_eq!(check_hello(&bytes[..cut]), Ok(()));
            assert!(matches!(Hello::decode(&bytes[..cut]), Err(Malformed::Length(_))));
        }
        assert_eq!(check_answer(&challenge(&[1; 16])), Ok(()));
        let all = [
            Rejection::Malformed,
            Rejection::WrongVersion { theirs: VERSION },
            Rejection::WrongSecret,
            Rejection::TooSlow,
            Rejection::Busy,
            Rejection::OutOfFiles,
        ];
        for reason in all {
            let bytes = reject(reason);
            assert_eq!((check_answer(&bytes), decode_reject(&bytes)), (Ok(()), Ok(reason)));
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let mut bytes = reject(Rejection::Busy);
        bytes[12] = 9;
        assert_eq!(decode_reject(&bytes), Err(Malformed::Field("reason", 9)));
        bytes[8] = 7;
        assert_eq!(check_answer(&bytes[..PREFIX]), Err(Malformed::Version(7)));
        let text = check_answer(&bytes).unwrap_err().to_string();
        assert_eq!(text, "is of version 7 of the handshake, we of 3");
        assert_eq!(check_answer(b"2"), Err(Malformed::Stranger), "the first byte is enough");
        assert_eq!(check_hello(&challenge(&[1; 16])), Err(Malformed::Stranger));
        assert_eq!(check_hello(&bytes), Err(Malformed::Stranger));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_it(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (Hello::decode(&bytes), check_hello(&bytes), check_answer(&bytes));
            let of_ours = [&HELLO_MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat();
            let _ = (Hello::decode(&of_ours), check_hello(&of_ours));
            if let Some(bytes) = bytes.first_chunk() {
                let _ = decode_reject(bytes);
            }
        }
    }
}
