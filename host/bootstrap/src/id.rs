//! The 128 bytes that make strangers a group: a secret, and where to meet.
//!
//! ```text
//! 0        8        9      10    11      12    14  16     20   24   40        72      120       128
//! | magic  | version| flags| span| family| port| 0 | scope| 0  | ip | secret  | zeros | checksum |
//! ```
//!
//! There are two kinds. A **published** id ([`UniqueId::new`]) names a root that listens before the id
//! exists; the caller carries the id to the other ranks. A **rendezvous** ([`UniqueId::rendezvous`],
//! [`UniqueId::from_comm_id`]) is derived by every rank from something all of them know already; rank 0
//! runs the root when it connects. A rendezvous may span a few successive ports: rank 0 takes the first
//! that is free, the others try them all and know by the secret when they have found it.
//!
//! The secret keeps other jobs and stray connections out. One derived from a public text, as with
//! `NCCL_COMM_ID`, keeps out mistakes but not an attacker who knows the text, unless a [`Secret`](crate::Secret) is mixed in.

use std::fmt::{self, Debug, Display};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ferroccl_handshake::{Key, Nonce};
use sha2::{Digest, Sha256};

use super::interface::AddressFamily;
use crate::error::{BootstrapError, Result};

/// Bytes of an id, as of NCCL's `ncclUniqueId`.
pub const UNIQUE_ID_BYTES: usize = 128;

const MAGIC: &[u8; 8] = b"FerroCCL";
const VERSION: u8 = 1;
const FLAG_RENDEZVOUS: u8 = 1;
const FLAG_ANY_ADDRESS: u8 = 2;

/// What ranks must share to form a group (NCCL's `ncclUniqueId`).
///
/// [`UniqueId::to_secret_hex`], which `FromStr` reads, is for files and variables. It and [`UniqueId::to_bytes`] contain the
/// secret; `Debug` does not, and there is no `Display`, so that no id gets into a log by accident.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId {
    address: SocketAddr,
    secret: [u8; 32],
    kind: Kind,
}

/// Who runs the root, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// It listens already, at exactly the id's address.
    Published,
    /// Rank 0 does, at the first free one of `span` ports from the id's on.
    Rendezvous {
        /// Ports to try, at least 1.
        span: u8,
        /// The address is a name's: rank 0 listens on all its addresses, since the name may mean another
        /// one there (often 127.0.1.1, for the host's own name).
        any_address: bool,
    },
}

/// How long the system may look for a name. Its resolver tries each server for 5 seconds, twice, where resolv.conf(5) says
/// nothing else.
const LOOKUP_LIMIT: Duration = Duration::from_secs(30);

/// The addresses of a host. getaddrinfo(3) has no limit of time, so that it is called in a thread, which is left alone when
/// the time is over.
fn look_up(host: &str, port: u16, limit: Duration) -> io::Result<Vec<SocketAddr>> {
    bounded(limit, {
        let host = host.to_owned();
        move || Ok((host.as_str(), port).to_socket_addrs()?.collect())
    })
}

/// What `body` gives, if it does so in time.
fn bounded<T: Send + 'static>(
    limit: Duration,
    body: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = mpsc::channel();
    let thread = thread::Builder::new().name("ferroccl-lookup".to_owned());
    // Nobody listens when the time is over.
    thread.spawn(move || tell.send(body()).unwrap_or(()))?;
    told.recv_timeout(limit).unwrap_or_else(|_| {
        let text = format!("no answer within {} seconds", limit.as_secs_f64());
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

impl UniqueId {
    pub(super) fn published(address: SocketAddr) -> Result<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)
            .map_err(|e| BootstrapError::system("random secret", std::io::Error::other(e)))?;
        Ok(Self::at(address, secret))
    }

    /// The id of a root that listens at `address`.
    pub(super) fn at(address: SocketAddr, secret: [u8; 32]) -> Self {
        UniqueId { address, secret, kind: Kind::Published }
    }

    /// The same, where rank 0 runs the root itself.
    pub(super) fn as_rendezvous(self) -> Self {
        UniqueId { kind: Kind::Rendezvous { span: 1, any_address: false }, ..self }
    }

    /// The id that every rank derives from `seed`: rank 0 listens at the first free one of the `span` ports
    /// from `address`'s on, up to 65535. `span` 0 counts as 1.
    #[must_use]
    pub fn rendezvous(address: SocketAddr, span: u8, seed: &[u8]) -> Self {
        let kind = Kind::Rendezvous { span: span.max(1), any_address: false };
        UniqueId { address, secret: derive(seed), kind }
    }

    /// [`UniqueId::rendezvous`] at a host that may be a name. A name is looked up here, and rank 0 then
    /// listens on all its addresses.
    ///
    /// # Errors
    /// [`BootstrapError::System`] when the name has no address of `family`, or when nobody answers within 30 seconds.
    pub fn rendezvous_at(
        host: &str,
        port: u16,
        span: u8,
        family: Option<AddressFamily>,
        seed: &[u8],
    ) -> Result<Self> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(Self::rendezvous(SocketAddr::new(ip, port), span, seed));
        }
        let what = || format!("looking up {host}");
        let address = look_up(host, port, LOOKUP_LIMIT)
            .map_err(|e| BootstrapError::system(what(), e))?
            .into_iter()
            .find(|a| family.is_none_or(|f| f.has(a.ip())))
            .ok_or_else(|| {
                BootstrapError::system(what(), std::io::ErrorKind::AddrNotAvailable.into())
            })?;
        let id = Self::rendezvous(address, span, seed);
        Ok(UniqueId { kind: Kind::Rendezvous { span: span.max(1), any_address: true }, ..id })
    }

    /// The id that every rank derives from `NCCL_COMM_ID`; rank 0 listens there.
    ///
    /// # Errors
    /// [`BootstrapError::System`] when a host name has no address of `family`.
    pub fn from_comm_id(comm_id: &CommId, family: Option<AddressFamily>) -> Result<Self> {
        let seed = format!("NCCL_COMM_ID {comm_id}");
        match &comm_id.0 {
            Place::Address(address) => Ok(Self::rendezvous(*address, 1, seed.as_bytes())),
            Place::Name(host, port) => Self::rendezvous_at(host, *port, 1, family, seed.as_bytes()),
        }
    }

    /// Where the root is; of a rendezvous the first place to try.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether rank 0 runs the root when it connects; otherwise it listens already.
    #[must_use]
    pub fn is_rendezvous(&self) -> bool {
        self.kind != Kind::Published
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    /// The same with the secret that is derived from this one's and from `secret`.
    pub(super) fn keyed(&self, secret: &[u8]) -> Self {
        let mixed = Key::derive(&self.secret, "id with a user's secret", &Nonce::default());
        UniqueId { secret: mixed.mix(secret), ..*self }
    }

    /// Every address the root may have.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let Kind::Rendezvous { span, .. } = self.kind else { return vec![self.address] };
        let ports = (0..u16::from(span)).map_while(|i| self.address.port().checked_add(i));
        ports.map(|port| with_port(self.address, port)).collect()
    }

    /// The id as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; UNIQUE_ID_BYTES] {
        let mut bytes = [0; UNIQUE_ID_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = VERSION;
        if let Kind::Rendezvous { span, any_address } = self.kind {
            bytes[9] = FLAG_RENDEZVOUS | if any_address { FLAG_ANY_ADDRESS } else { 0 };
            bytes[10] = span;
        }
        bytes[12..14].copy_from_slice(&self.address.port().to_le_bytes());
        match self.address {
            SocketAddr::V4(v4) => {
                bytes[11] = 4;
                bytes[24..28].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                bytes[11] = 6;
                bytes[16..20].copy_from_slice(&v6.scope_id().to_le_bytes());
                bytes[24..40].copy_from_slice(&v6.ip().octets());
            }
        }
        bytes[40..72].copy_from_slice(&self.secret);
        let sum = checksum(&bytes);
        bytes[120..].copy_from_slice(&sum);
        bytes
    }

    /// The id as 256 hexadecimal digits, which `FromStr` reads, for a variable or a file that only the ranks' user can read:
    /// **it contains the secret**, and who has it can join the group.
    #[must_use]
    pub fn to_secret_hex(&self) -> String {
        self.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads [`UniqueId::to_bytes`].
    ///
    /// # Errors
    /// [`BootstrapError::InvalidId`] when the bytes are not an id of this version, or are damaged.
    pub fn from_bytes(bytes: &[u8; UNIQUE_ID_BYTES]) -> Result<Self> {
        let bad = |reason: &str| BootstrapError::InvalidId(reason.to_owned());
        if &bytes[..8] != MAGIC {
            return Err(bad("it does not begin as one"));
        }
        if bytes[8] != VERSION {
            return Err(bad(&format!("it is of version {}, this is version {VERSION}", bytes[8])));
        }
        if bytes[120..] != checksum(bytes) {
            return Err(bad("its checksum is wrong, it was damaged on the way"));
        }
        let array = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let port = u16::from_le_bytes([bytes[12], bytes[13]]);
        let address = match bytes[11] {
            4 => SocketAddr::new(IpAddr::from(array(24)), port),
            6 => {
                let mut ip = [0; 16];
                ip.copy_from_slice(&bytes[24..40]);
                let scope = u32::from_le_bytes(array(16));
                SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into()
            }
            _ => return Err(bad("its address is of no known family")),
        };
        let kind = match (bytes[9], bytes[10]) {
            (0, 0) => Kind::Published,
            (flags, span) if flags & !FLAG_ANY_ADDRESS == FLAG_RENDEZVOUS && span > 0 => {
                Kind::Rendezvous { span, any_address: flags & FLAG_ANY_ADDRESS != 0 }
            }
            _ => return Err(bad("its kind is unknown")),
        };
        let mut secret = [0; 32];
        secret.copy_from_slice(&bytes[40..72]);
        let id = UniqueId { address, secret, kind };
        // What is not used must be zero, so that a later version can give it a meaning.
        if id.to_bytes() == *bytes { Ok(id) } else { Err(bad("unused bytes of it are not zero")) }
    }
}

/// The same host with another port.
pub(super) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

fn derive(seed: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(b"FerroCCL rendezvous\0").chain_update(seed).finalize().into()
}

/// Guards against damage by hand (a cut-off line, a swapped digit), not against forgery.
fn checksum(bytes: &[u8; UNIQUE_ID_BYTES]) -> [u8; 8] {
    let digest: [u8; 32] = Sha256::digest(&bytes[..120]).into();
    let mut sum = [0; 8];
    sum.copy_from_slice(&digest[..8]);
    sum
}

/// Puts in the checksum that bytes need.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzzed_checksum(bytes: &mut [u8; UNIQUE_ID_BYTES]) {
    let sum = checksum(bytes);
    bytes[120..].copy_from_slice(&sum);
}

impl Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId")
            .field("address", &self.address)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl FromStr for UniqueId {
    type Err = BootstrapError;
    /// Reads [`UniqueId::to_secret_hex`]; blanks around it are allowed.
    ///
    /// # Errors
    /// As [`UniqueId::from_bytes`], and when `text` is not 256 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |reason: String| BootstrapError::InvalidId(reason);
        let digits: Vec<u8> = text
            .trim()
            .chars()
            .map(|c| c.to_digit(16).map(|d| d as u8)) // a digit is below 16
            .collect::<Option<_>>()
            .ok_or_else(|| bad("it has characters that are not hexadecimal".to_owned()))?;
        if digits.len() != 2 * UNIQUE_ID_BYTES {
            return Err(bad(format!("it has {} digits and not 256", digits.len())));
        }
        let mut bytes = [0; UNIQUE_ID_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Self::from_bytes(&bytes)
    }
}

/// The value of `NCCL_COMM_ID`: `ipv4:port`, `[ipv6]:port`, `[ipv6%scope]:port` or `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommId(Place);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Address(SocketAddr),
    Name(String, u16),
}

impl CommId {
    /// What may be written.
    pub const FORM: &'static str = "ipv4:port, [ipv6]:port or host:port";

    /// Whether it is at a loopback address, or at `localhost` (RFC 6761, section 6.3): then all ranks are in one network
    /// namespace.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match &self.0 {
            Place::Address(address) => address.ip().is_loopback(),
            Place::Name(host, _) => host == "localhost",
        }
    }
}

impl Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Address(address) => write!(f, "{address}"),
            Place::Name(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for CommId {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return if address.port() == 0 {
                Err("port 0 is no place to meet")
            } else {
                Ok(CommId(Place::Address(address)))
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or("there is no port")?;
        let port = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let port = port.and_then(|port| port.parse().ok());
        let port = port.ok_or("the port is not a number up to 65535")?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if host.is_empty() || !host.chars().all(plain) {
            return Err("the host is neither an address nor a name");
        }
        if port == 0 {
            return Err("port 0 is no place to meet");
        }
        // An address whose port has zeros in front is no `SocketAddr`.
        Ok(CommId(match host.parse::<IpAddr>() {
            Ok(ip) => Place::Address(SocketAddr::new(ip, port)),
            Err(_) => Place::Name(host.to_owned(), port),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_for_a_bounded_time() {
        let local = look_up("localhost", 7, LOOKUP_LIMIT).unwrap();
        assert!(local.iter().all(|a| a.ip().is_loopback() && a.port() == 7), "{local:?}");
        let (_end, ended) = mpsc::channel::<()>();
        let silent = move || Ok(ended.recv().is_ok());
        let error = bounded(Duration::from_millis(20), silent).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "no answer within 0.02 seconds");
    }

    fn ids() -> Vec<UniqueId> {
        let v6 = "[fe80::1%3]:77".parse().unwrap();
        vec![
            UniqueId::published("10.1.2.3:4000".parse().unwrap()).unwrap(),
            UniqueId::published(v6).unwrap(),
            UniqueId::rendezvous(v6, 16, b"job 7"),
            UniqueId::rendezvous_at("localhost", 99, 3, None, b"job 7").unwrap(),
        ]
    }

    #[test]
    fn bytes_and_text_read_back() {
        for id in ids() {
            assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
            assert_eq!(format!(" {}\n", id.to_secret_hex()).parse::<UniqueId>().unwrap(), id);
            assert!(
                !format!("{id:?}").contains(&id.to_secret_hex()[80..144]),
                "Debug shows the secret"
            );
        }
        assert_ne!(ids()[0], ids()[0], "secrets are random");
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for id in ids() {
            for bit in 0..8 * UNIQUE_ID_BYTES {
                let mut bytes = id.to_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(UniqueId::from_bytes(&bytes).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn bad_texts_say_why() {
        let id = ids()[0].to_secret_hex();
        for (text, why) in [
            (&id[..255], "255 digits"),
            ("xyz", "hexadecimal"),
            (&"00".repeat(128), "begin"),
            ("", "0 digits"),
        ] {
            let e = text.parse::<UniqueId>().unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
        }
    }

    #[test]
    fn comm_ids() {
        for text in ["10.0.0.1:80", "[::1]:80", "[fe80::1%2]:80", "node-7.cluster:65535"] {
            assert_eq!(text.parse::<CommId>().unwrap().to_string(), text);
        }
        for text in
            ["", "host", ":80", "host:", "host:65536", "host:0", "1.2.3.4:0", "::1:80", "a b:1"]
        {
            assert!(text.parse::<CommId>().is_err(), "{text}");
        }
        assert!("10.0.0.1:+80".parse::<CommId>().is_err());
        assert_eq!(
            "10.0.0.1:0000080".parse(),
            "10.0.0.1:80".parse::<CommId>(),
            "one place, one id"
        );
        let id = |text: &str| UniqueId::from_comm_id(&text.parse().unwrap(), None).unwrap();
        assert_eq!(id("127.0.0.1:80"), id("127.0.0.1:80"), "all ranks agree");
        assert_ne!(id("127.0.0.1:80").secret, id("127.0.0.1:81").secret);
        assert_eq!(id("localhost:80").kind, Kind::Rendezvous { span: 1, any_address: true });
    }

    #[test]
    fn a_span_ends_where_ports_end() {
        let id = UniqueId::rendezvous("127.0.0.1:65534".parse().unwrap(), 16, b"");
        let ports: Vec<_> = id.addresses().iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [65534, 65535]);
    }
}
