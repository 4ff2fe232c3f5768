//! The bodies of messages, field by field.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::{
    DATA, GONE, GOODBYE, HELLO, LEFT, MAX_CALLED, MAX_LEFT, MAX_NAMED, MAX_REASON, MET, Malformed,
    Message, MissingRanks, PEER, Purpose, REFUSED, Refusal, WELCOME,
};

/// Reads the body of a message of `kind`; `None` when it is too short or too long.
pub(super) fn read(kind: u8, body: &[u8]) -> Result<Option<Message>, Malformed> {
    let mut reader = Reader(body);
    let message = reader.message(kind).transpose()?;
    Ok(message.filter(|_| reader.0.is_empty()))
}

/// Writes the body of `message`.
pub(super) fn write(message: &Message, to: &mut Vec<u8>) {
    match message {
        Message::Hello { rank, world_size, wait_ms, listener } => {
            for number in [rank, world_size, wait_ms] {
                to.extend_from_slice(&number.to_le_bytes());
            }
            put_address(to, listener);
        }
        Message::Welcome { session, called } => {
            let called = &called[..called.len().min(MAX_CALLED)];
            to.extend_from_slice(session);
            to.push(called.len() as u8); // at most MAX_CALLED
            called.iter().for_each(|address| put_address(to, address));
        }
        Message::Refused(refusal) => {
            let (code, a, b) = fields(refusal);
            let named = match refusal {
                Refusal::MissingRanks(m) => &m.named[..m.named.len().min(MAX_NAMED)],
                _ => &[],
            };
            to.push(code);
            to.extend_from_slice(&a.to_le_bytes());
            to.extend_from_slice(&b.to_le_bytes());
            to.push(named.len() as u8); // at most MAX_NAMED
            named.iter().for_each(|rank| to.extend_from_slice(&rank.to_le_bytes()));
        }
        Message::Peer { purpose, from, to: peer } => {
            to.push(match purpose {
                Purpose::Ring => 0,
                Purpose::Messages => 1,
                Purpose::Rounds => 2,
            });
            to.extend_from_slice(&from.to_le_bytes());
            to.extend_from_slice(&peer.to_le_bytes());
        }
        Message::Met | Message::Goodbye => {}
        Message::Data { tag, bytes } => {
            to.extend_from_slice(&tag.to_le_bytes());
            to.extend_from_slice(bytes);
        }
        Message::Gone { peer, reason } => {
            let cut = (0..=reason.len().min(MAX_REASON)).rev();
            let cut = cut.into_iter().find(|i| reason.is_char_boundary(*i));
            let text = &reason[..cut.unwrap_or(0)];
            to.extend_from_slice(&peer.to_le_bytes());
            to.extend_from_slice(&(text.len() as u16).to_le_bytes()); // at most MAX_REASON
            to.extend_from_slice(text.as_bytes());
        }
        Message::Left { peers } => {
            let peers = &peers[..peers.len().min(MAX_LEFT)];
            peers.iter().for_each(|rank| to.extend_from_slice(&rank.to_le_bytes()));
        }
    }
}

fn put_address(to: &mut Vec<u8>, address: &SocketAddr) {
    let mut ip = [0; 16];
    let (family, scope) = match address {
        SocketAddr::V4(v4) => {
            ip[..4].copy_from_slice(&v4.ip().octets());
            (4, 0)
        }
        SocketAddr::V6(v6) => {
            ip = v6.ip().octets();
            (6, v6.scope_id())
        }
    };
    to.push(family);
    to.extend_from_slice(&address.port().to_le_bytes());
    to.extend_from_slice(&scope.to_le_bytes());
    to.extend_from_slice(&ip);
}

/// Takes fields off the front; `None` when the bytes are at an end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn take(&mut self, bytes: usize) -> Option<&[u8]> {
        let (head, tail) = self.0.split_at_checked(bytes)?;
        self.0 = tail;
        Some(head)
    }

    /// `None`: too short; `Some(Err)`: not legal.
    fn address(&mut self) -> Option<Result<SocketAddr, Malformed>> {
        let (family, port, scope, ip) = (self.u8()?, self.u16()?, self.u32()?, self.array::<16>()?);
        if port == 0 {
            return Some(Err(Malformed::Value("port")));
        }
        Some(match (family, scope, ip) {
            (4, 0, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => {
                Ok(SocketAddr::new(IpAddr::from([a, b, c, d]), port))
            }
            (6, ..) => Ok(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into()),
            _ => Err(Malformed::Value("address")),
        })
    }

    fn refusal(&mut self) -> Option<Result<Refusal, Malformed>> {
        let (code, a, b, count) = (self.u8()?, self.u32()?, self.u32()?, self.u8()?);
        if usize::from(count) > MAX_NAMED {
            return Some(Err(Malformed::Value("list of ranks")));
        }
        let named = (0..count).map(|_| self.u32()).collect::<Option<Vec<_>>>()?;
        let refusal = match code {
            0 => Refusal::Malformed,
            1 => match u8::try_from(a) {
                Ok(ours) => Refusal::WrongVersion { ours },
                Err(_) => return Some(Err(Malformed::Value("version"))),
            },
            2 => Refusal::WrongSecret,
            3 => Refusal::TooSlow,
            4 => Refusal::Busy,
            5 => Refusal::RankOutOfRange { rank: a, world_size: b },
            6 => Refusal::RankTwice { rank: a },
            7 => Refusal::OtherWorldSize { theirs: a, ours: b },
            8 => Refusal::MissingRanks(MissingRanks { world_size: a, count: b, named }),
            9 => Refusal::NotExpected,
            _ => return Some(Err(Malformed::Value("refusal"))),
        };
        // One value, one spelling: fields that a refusal does not have are zero.
        let same = fields(&refusal) == (code, a, b)
            && (count == 0 || matches!(refusal, Refusal::MissingRanks(_)));
        Some(if same { Ok(refusal) } else { Err(Malformed::Value("refusal")) })
    }

    fn message(&mut self, kind: u8) -> Option<Result<Message, Malformed>> {
        Some(Ok(match kind {
            HELLO => {
                let (rank, world_size, wait_ms) = (self.u32()?, self.u32()?, self.u32()?);
                match self.address()? {
                    Ok(listener) => Message::Hello { rank, world_size, wait_ms, listener },
                    Err(e) => return Some(Err(e)),
                }
            }
            WELCOME => {
                let (session, count) = (self.array()?, self.u8()?);
                if usize::from(count) > MAX_CALLED {
                    return Some(Err(Malformed::Value("list of addresses")));
                }
                let addresses = (0..count).map(|_| self.address()).collect::<Option<Vec<_>>>()?;
                match addresses.into_iter().collect() {
                    Ok(called) => Message::Welcome { session, called },
                    Err(e) => return Some(Err(e)),
                }
            }
            REFUSED => match self.refusal()? {
                Ok(refusal) => Message::Refused(refusal),
                Err(e) => return Some(Err(e)),
            },
            PEER => {
                let purpose = match self.u8()? {
                    0 => Purpose::Ring,
                    1 => Purpose::Messages,
                    2 => Purpose::Rounds,
                    _ => return Some(Err(Malformed::Value("purpose"))),
                };
                let (from, to) = (self.u32()?, self.u32()?);
                Message::Peer { purpose, from, to }
            }
            MET => Message::Met,
            DATA => {
                let tag = self.u64()?;
                Message::Data { tag, bytes: std::mem::take(&mut self.0).to_vec() }
            }
            GOODBYE => Message::Goodbye,
            GONE => {
                let (peer, bytes) = (self.u32()?, self.u16()?);
                match std::str::from_utf8(self.take(bytes.into())?) {
                    Ok(reason) => Message::Gone { peer, reason: reason.to_owned() },
                    Err(_) => return Some(Err(Malformed::Value("reason"))),
                }
            }
            LEFT => {
                let (peers, []) = std::mem::take(&mut self.0).as_chunks() else { return None };
                if peers.is_empty() {
                    return None;
                }
                let peers = peers.iter().map(|rank| u32::from_le_bytes(*rank)).collect();
                Message::Left { peers }
            }
            _ => return Some(Err(Malformed::Kind(kind))),
        }))
    }
}

/// A refusal's code and numbers.
fn fields(refusal: &Refusal) -> (u8, u32, u32) {
    match refusal {
        Refusal::Malformed => (0, 0, 0),
        Refusal::WrongVersion { ours } => (1, u32::from(*ours), 0),
        Refusal::WrongSecret => (2, 0, 0),
        Refusal::TooSlow => (3, 0, 0),
        Refusal::Busy => (4, 0, 0),
        Refusal::RankOutOfRange { rank, world_size } => (5, *rank, *world_size),
        Refusal::RankTwice { rank } => (6, *rank, 0),
        Refusal::OtherWorldSize { theirs, ours } => (7, *theirs, *ours),
        Refusal::MissingRanks(m) => (8, m.world_size, m.count),
        Refusal::NotExpected => (9, 0, 0),
    }
}
