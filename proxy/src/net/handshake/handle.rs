//! What a listener tells those who are to connect, as bytes. All numbers are little-endian.
//!
//! ```text
//! handle     magic 8 | version 4 | family 2 | port 2 | address 16 | scope 4 | more sockets 4 | nonce 16
//! ```
//!
//! The version is that of the handshake, so that a connection between two versions fails before it is made.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ferroccl_handshake::Nonce;
use ferroccl_handshake::wire::{Malformed, Reader, VERSION, fields};

const MAGIC: [u8; 8] = *b"FerrNetH";

/// Bytes of a handle.
pub(super) const BYTES: usize = 56;

/// Where a listener is, and the number that its connections prove to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::net) struct Handle {
    pub(in crate::net) address: SocketAddr,
    /// Sockets of its connections beyond the first.
    pub(in crate::net) more: u32,
    pub(super) nonce: Nonce,
}

impl Handle {
    pub(super) fn encode(&self) -> [u8; BYTES] {
        let (family, ip, scope) = match self.address {
            SocketAddr::V4(v4) => (4u16, v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (6, *v6.ip(), v6.scope_id()),
        };
        fields(&[
            &MAGIC,
            &VERSION.to_le_bytes(),
            &family.to_le_bytes(),
            &self.address.port().to_le_bytes(),
            &ip.octets(),
            &scope.to_le_bytes(),
            &self.more.to_le_bytes(),
            &self.nonce,
        ])
    }

    pub(in crate::net) fn decode(bytes: &[u8]) -> Result<Handle, Malformed> {
        let mut reader = Reader(bytes);
        if reader.take()? != MAGIC {
            return Err(Malformed::Stranger);
        }
        match reader.u32()? {
            VERSION => {}
            other => return Err(Malformed::Version(other)),
        }
        let (family, port) = (reader.u16()?, reader.u16()?);
        let (ip, scope) = (Ipv6Addr::from(reader.take::<16>()?), reader.u32()?);
        let address = match (family, ip.to_ipv4_mapped()) {
            (4, Some(_)) if scope != 0 => return Err(Malformed::Field("scope", scope.into())),
            (4, Some(v4)) => SocketAddr::new(IpAddr::V4(v4), port),
            (6, _) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
            _ => return Err(Malformed::Field("address family", family.into())),
        };
        let (more, nonce) = (reader.u32()?, reader.take()?);
        Ok(Handle { address, more, nonce })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::net::MAX_HANDLE;

    #[test]
    fn what_is_encoded_is_decoded() {
        const { assert!(BYTES <= MAX_HANDLE) };
        for address in ["10.1.2.3:4567", "[fe80::1:2%7]:65535", "[::1]:1", "[::ffff:1.2.3.4]:9"] {
            let address = address.parse().unwrap();
            let handle = Handle { address, more: 64, nonce: [9; 16] };
            let bytes = handle.encode();
            assert_eq!(Handle::decode(&bytes), Ok(handle));
            for cut in 0..BYTES {
                assert!(matches!(Handle::decode(&bytes[..cut]), Err(Malformed::Length(_))));
            }
        }
    }

    #[test]
    fn another_version_is_named() {
        let handle = Handle { address: "1.2.3.4:5".parse().unwrap(), more: 1, nonce: [0; 16] };
        let mut bytes = handle.encode();
        bytes[8] = 9;
        let error = Handle::decode(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "is of version 9 of the handshake, we of 3");
        bytes[8] = 3;
        bytes[12] = 5;
        assert_eq!(Handle::decode(&bytes), Err(Malformed::Field("address family", 5)));
        bytes[12] = 4;
        bytes[32] = 7;
        assert_eq!(Handle::decode(&bytes), Err(Malformed::Field("scope", 7)), "IPv4 has none");
        bytes[0] = 0;
        assert_eq!(Handle::decode(&bytes), Err(Malformed::Stranger));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_it(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Handle::decode(&bytes);
            let _ = Handle::decode(&[&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat());
        }
    }
}
