//! What the two ends of a socket say to come to trust each other, as bytes. All numbers are little-endian.
//!
//! ```text
//! handle     magic 8 | version 4 | family 2 | port 2 | address 16 | scope 4 | more sockets 4 | cookie 16
//! hello      magic 8 | version 4 | socket 2 | sockets 2 | connection 8 | nonce 16 | seal 32
//! challenge  magic 8 | version 4 | 0 4 | nonce 16 | proof 32
//! proof      32
//! ```
//!
//! The first twelve bytes of a handle, a hello and a challenge are the same in all versions there will ever be, so that two
//! versions can tell each other which they are.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The version of all this.
pub(super) const VERSION: u32 = 1;

const HANDLE_MAGIC: [u8; 8] = *b"FerrNetH";
/// Not the listener's: whoever is connected to itself must notice.
const HELLO_MAGIC: [u8; 8] = *b"FerrNetC";
const CHALLENGE_MAGIC: [u8; 8] = *b"FerrNetL";

/// Bytes that say who speaks, in which version.
pub(super) const PREFIX: usize = 12;
pub(super) const HANDLE: usize = 56;
pub(super) const HELLO: usize = 72;
/// What a hello's seal is about.
pub(super) const HELLO_COVERED: usize = 40;
pub(super) const CHALLENGE: usize = 64;
/// What a challenge's proof is about.
pub(super) const CHALLENGE_COVERED: usize = 32;
pub(super) const PROOF: usize = 32;

/// A number nobody can foresee.
pub(super) type Nonce = [u8; 16];

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::net) enum Malformed {
    /// Not of this protocol.
    Stranger,
    /// Of another version of it.
    Version(u32),
    /// A field that cannot be; which, and its value.
    Field(&'static str, u64),
    /// So many bytes.
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

/// Takes fields off bytes, one after the other.
pub(in crate::net) struct Reader<'a>(pub(in crate::net) &'a [u8]);

impl Reader<'_> {
    pub(in crate::net) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed::Length(self.0.len()))?;
        self.0 = rest;
        Ok(*field)
    }

    pub(in crate::net) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    pub(in crate::net) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    pub(in crate::net) fn u64(&mut self) -> Result<u64, Malformed> {
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

/// Puts fields into `N` bytes, zeros behind them.
pub(in crate::net) fn fields<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    let places = bytes.iter_mut().zip(parts.iter().copied().flatten());
    places.for_each(|(place, byte)| *place = *byte);
    bytes
}

/// Where a listener is, and what it is to know its connections by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::net) struct Handle {
    pub(in crate::net) address: SocketAddr,
    /// Sockets of its connections beyond the first.
    pub(in crate::net) more: u32,
    pub(super) cookie: Nonce,
}

impl Handle {
    pub(super) fn encode(&self) -> [u8; HANDLE] {
        let (family, ip, scope) = match self.address {
            SocketAddr::V4(v4) => (4u16, v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (6, *v6.ip(), v6.scope_id()),
        };
        fields(&[
            &HANDLE_MAGIC,
            &VERSION.to_le_bytes(),
            &family.to_le_bytes(),
            &self.address.port().to_le_bytes(),
            &ip.octets(),
            &scope.to_le_bytes(),
            &self.more.to_le_bytes(),
            &self.cookie,
        ])
    }

    pub(in crate::net) fn decode(bytes: &[u8]) -> Result<Handle, Malformed> {
        let mut reader = Reader(bytes);
        reader.prefix(HANDLE_MAGIC)?;
        let (family, port) = (reader.u16()?, reader.u16()?);
        let (ip, scope) = (Ipv6Addr::from(reader.take::<16>()?), reader.u32()?);
        let address = match (family, ip.to_ipv4_mapped()) {
            (4, Some(v4)) => SocketAddr::new(IpAddr::V4(v4), port),
            (6, _) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
            _ => return Err(Malformed::Field("address family", family.into())),
        };
        let (more, cookie) = (reader.u32()?, reader.take()?);
        Ok(Handle { address, more, cookie })
    }
}

/// The first that is said on a socket, by the end that connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Which socket of its connection: 0 is the control socket.
    pub(super) socket: u16,
    /// Of how many.
    pub(super) sockets: u16,
    /// Which connection.
    pub(super) connection: u64,
    pub(super) nonce: Nonce,
}

impl Hello {
    /// With what seals it.
    pub(super) fn encode(
        &self,
        seal: impl FnOnce(&[u8; HELLO_COVERED]) -> [u8; PROOF],
    ) -> [u8; HELLO] {
        let covered: [u8; HELLO_COVERED] = fields(&[
            &HELLO_MAGIC,
            &VERSION.to_le_bytes(),
            &self.socket.to_le_bytes(),
            &self.sockets.to_le_bytes(),
            &self.connection.to_le_bytes(),
            &self.nonce,
        ]);
        fields(&[&covered, &seal(&covered)])
    }

    /// Whether this may be the beginning of a hello of our version.
    pub(super) fn check_prefix(bytes: &[u8]) -> Result<(), Malformed> {
        Reader(bytes).prefix(HELLO_MAGIC)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Hello, Malformed> {
        let mut reader = Reader(bytes);
        reader.prefix(HELLO_MAGIC)?;
        let (socket, sockets) = (reader.u16()?, reader.u16()?);
        Ok(Hello { socket, sockets, connection: reader.u64()?, nonce: reader.take()? })
    }
}

/// What a challenge's proof covers.
pub(super) fn challenge(nonce: &Nonce) -> [u8; CHALLENGE_COVERED] {
    fields(&[&CHALLENGE_MAGIC, &VERSION.to_le_bytes(), &[0; 4], nonce])
}

/// What those of other versions are told: ours.
pub(super) fn challenge_prefix() -> [u8; PREFIX] {
    fields(&[&CHALLENGE_MAGIC, &VERSION.to_le_bytes()])
}

/// Whether this may be the beginning of a challenge of our version.
pub(super) fn check_challenge(bytes: &[u8]) -> Result<(), Malformed> {
    Reader(bytes).prefix(CHALLENGE_MAGIC)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::net::MAX_HANDLE;

    #[test]
    fn what_is_encoded_is_decoded() {
        const { assert!(HANDLE <= MAX_HANDLE) };
        for address in ["10.1.2.3:4567", "[fe80::1:2%7]:65535", "[::1]:1", "[::ffff:1.2.3.4]:9"] {
            let address = address.parse().unwrap();
            let handle = Handle { address, more: 64, cookie: [9; 16] };
            let bytes = handle.encode();
            assert_eq!(Handle::decode(&bytes), Ok(handle));
            for cut in 0..HANDLE {
                assert!(matches!(Handle::decode(&bytes[..cut]), Err(Malformed::Length(_))));
            }
        }
        let hello = Hello { socket: 3, sockets: 65, connection: u64::MAX - 1, nonce: [7; 16] };
        assert_eq!(Hello::decode(&hello.encode(|_| [1; PROOF])), Ok(hello));
    }

    #[test]
    fn another_version_is_named() {
        let handle = Handle { address: "1.2.3.4:5".parse().unwrap(), more: 1, cookie: [0; 16] };
        let mut bytes = handle.encode();
        bytes[8] = 2;
        let error = Handle::decode(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "is of version 2 of the handshake, we of 1");
        bytes[8] = 1;
        bytes[12] = 5;
        assert_eq!(Handle::decode(&bytes), Err(Malformed::Field("address family", 5)));
        bytes[0] = 0;
        assert_eq!(Handle::decode(&bytes), Err(Malformed::Stranger));
        assert_eq!(check_challenge(&challenge_prefix()), Ok(()));
        assert_eq!(Hello::check_prefix(&challenge_prefix()), Err(Malformed::Stranger));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_it(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (Handle::decode(&bytes), Hello::decode(&bytes), check_challenge(&bytes));
            let mut of_ours = bytes.clone();
            of_ours.iter_mut().zip(HELLO_MAGIC).for_each(|(place, byte)| *place = byte);
            let _ = Hello::decode(&of_ours);
        }
    }
}
