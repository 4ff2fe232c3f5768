//! A rank's way into the group: find the root, prove to know the secret, wait for the others.
//!
//! What may pass (the root is not there yet, the port is another program's, the network is slow) is tried
//! again until the time is up, and the last trouble is part of the error. What cannot pass (this rank was
//! refused, the others did not come) ends it at once.
//!
//! Only who has proven to know the secret can end it at once. Anybody may have taken the root's port before the root came: what
//! such a stranger answers is logged, and is the error if nobody better comes in time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use ferroccl_handshake::{AuthError, Key, Rejection};

use super::acceptor::{MemberAcceptor, PATIENCE, listen};
use super::id::{Kind, UniqueId, with_port};
use super::interface;
use super::limit::Deadline;
use super::link::{Link, LinkError};
use super::links;
use super::root::{self, RootThread};
use super::wire::{Message, Nonce, Refusal};
use crate::error::{BootstrapError, Result};
use crate::settings::{LOG_TARGET, Settings};

/// How long the handshake with a root may take: it does nothing else.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// How long a published id's root may refuse connections. It listened before the id existed, so that where nobody listens
/// nobody will. A network that does not lead there yet may do so later, and has all the time there is.
const PUBLISHED: Duration = Duration::from_secs(2);
/// How much longer than the root a rank waits, so that it hears who is missing.
const GRACE: Duration = Duration::from_secs(2);

/// What a rank has when all are there.
pub(super) struct Joined {
    /// Where other ranks reach this one.
    pub(super) acceptor: MemberAcceptor,
    /// The key of the ranks' own handshakes.
    pub(super) key: Key,
    /// Where those listen that this one is to connect to, in the order of [`links::called_by`].
    pub(super) called: Vec<SocketAddr>,
}

/// Why an attempt failed.
enum Failure {
    /// Another attempt, or another port, may do.
    Passing(String),
    /// The same; and nobody listens there.
    Nobody(String),
    /// The same; and somebody is there who has not proven to know the secret. The error, if it stays so.
    Unproven(BootstrapError),
    Final(BootstrapError),
}

impl From<BootstrapError> for Failure {
    fn from(error: BootstrapError) -> Self {
        Failure::Final(error)
    }
}

pub(super) fn join(
    listener: Option<TcpListener>,
    id: &UniqueId,
    rank: u32,
    world_size: u32,
    settings: &Settings,
    deadline: Deadline,
) -> Result<Joined> {
    let mut joining = Joining { id, rank, world_size, settings, deadline, acceptor: None };
    let root = joining.run_root_if_ours(listener)?;
    let places = match &root {
        Some((_, address)) => vec![*address],
        None => id.addresses(),
    };
    let (session, called) = joining.find_root(&places)?;
    let key = group_key(id, &session);
    let Some((_, mut acceptor)) = joining.acceptor else {
        return Err(BootstrapError::Mismatch("a rank was welcomed before it listened".into()));
    };
    acceptor.set_key(key.clone());
    Ok(Joined { acceptor, key, called })
}

struct Joining<'a> {
    id: &'a UniqueId,
    rank: u32,
    world_size: u32,
    settings: &'a Settings,
    deadline: Deadline,
    /// This rank's own listening socket, once it is known which address others reach it at.
    acceptor: Option<(IpAddr, MemberAcceptor)>,
}

impl Joining<'_> {
    /// Rank 0 of a rendezvous runs the root, on `listener` if it has one; also where it reaches it itself.
    fn run_root_if_ours(
        &self,
        listener: Option<TcpListener>,
    ) -> Result<Option<(RootThread, SocketAddr)>> {
        let Kind::Rendezvous { any_address, .. } = self.id.kind() else { return Ok(None) };
        if self.rank != 0 {
            return Ok(None);
        }
        let mut places = self.id.addresses();
        if any_address {
            let any = |ip: IpAddr, p: &SocketAddr| SocketAddr::new(ip, p.port());
            // One socket for both families, or IPv4 alone where there is no IPv6.
            let v6 = places.iter().map(|p| any(Ipv6Addr::UNSPECIFIED.into(), p));
            let v4 = places.iter().map(|p| any(Ipv4Addr::UNSPECIFIED.into(), p));
            places = v6.chain(v4).collect();
        }
        let listener = listener.map_or_else(|| root::listen_on_first_free(&places), Ok);
        let listener = listener.map_err(|e| {
            let what = match places[..] {
                [first] => format!("rank 0 listening on {first}"),
                _ => format!(
                    "rank 0 listening on {} or the {} ports after it",
                    places[0],
                    places.len() - 1
                ),
            };
            BootstrapError::system(what, e)
        })?;
        let bound = listener
            .local_addr()
            .map_err(|e| BootstrapError::system("address of the root's socket", e))?;
        let address = match bound {
            _ if !any_address => bound,
            SocketAddr::V4(_) => with_port((Ipv4Addr::LOCALHOST, 0).into(), bound.port()),
            SocketAddr::V6(_) => with_port((Ipv6Addr::LOCALHOST, 0).into(), bound.port()),
        };
        let root = root::spawn_held(listener, root_key(self.id), PATIENCE)?;
        Ok(Some((root, address)))
    }

    /// Tries every place until one welcomes us.
    fn find_root(&mut self, places: &[SocketAddr]) -> Result<(Nonce, Vec<SocketAddr>)> {
        let start = Instant::now();
        let published = self.id.kind() == Kind::Published;
        let mut pause = Duration::from_millis(2);
        let mut warned = false;
        loop {
            let mut trouble = String::new();
            let mut unproven = None;
            let mut until = self.deadline.clone();
            for &place in places {
                match self.attempt(place) {
                    Ok(welcome) => return Ok(welcome),
                    Err(Failure::Final(error)) => return Err(error),
                    Err(Failure::Passing(reason)) => trouble = format!("{place}: {reason}"),
                    Err(Failure::Nobody(reason)) => {
                        trouble = format!("{place}: {reason}");
                        if published {
                            until = self.deadline.or_at(start + PUBLISHED);
                        }
                    }
                    Err(Failure::Unproven(error)) => unproven = Some(error),
                }
            }
            if let Some(error) = unproven.as_ref().filter(|_| !warned) {
                warned = true;
                tracing::warn!(target: LOG_TARGET, "rank {}: {error}. It has not proven to be of this \
                    group, so that this rank tries on for {:.1} s", self.rank, until.left().as_secs_f64());
            }
            if until.left() <= pause {
                let address = self.id.address();
                let waited = start.elapsed();
                return Err(match unproven {
                    Some(error) if places.len() == 1 => error,
                    // A word of somebody says more than that nobody listens at the other ports.
                    Some(error) => {
                        BootstrapError::NoRoot { address, waited, trouble: error.to_string() }
                    }
                    None => BootstrapError::NoRoot { address, waited, trouble },
                });
            }
            let aborted = |e| BootstrapError::system("looking for the root", e);
            until.pause(pause).map_err(aborted)?;
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    /// One conversation with what listens at `place`.
    fn attempt(&mut self, place: SocketAddr) -> Result<(Nonce, Vec<SocketAddr>), Failure> {
        let passing = |e: &dyn std::fmt::Display| Failure::Passing(e.to_string());
        let no_root = |what: String| BootstrapError::NotARoot { address: place, what };
        let stranger = |what: String| Failure::Unproven(no_root(what));
        let key = root_key(self.id);
        let soon = &self.deadline.or_within(HANDSHAKE);
        let mut link = match Link::connect(place, &key, soon) {
            Ok(link) => link,
            Err(e @ AuthError::Malformed(_)) => return Err(stranger(e.to_string())),
            Err(AuthError::WrongSecret) => {
                return Err(stranger("it does not prove that it knows the secret".to_owned()));
            }
            Err(AuthError::Rejected(reason)) => {
                return Err(match refusal(reason) {
                    Some(refusal) if !reason.is_temporary() => {
                        Failure::Unproven(BootstrapError::Refused { root: place, refusal })
                    }
                    _ => passing(&reason),
                });
            }
            Err(AuthError::Io(e)) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
                return Err(Failure::Nobody(e.to_string()));
            }
            Err(e) => return Err(passing(&e)),
        };
        let listener = self.listen(&link)?;
        let left = self.deadline.left();
        let hello = Message::Hello {
            rank: self.rank,
            world_size: self.world_size,
            wait_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX),
            listener,
        };
        link.send(&hello, &self.deadline).map_err(|e| passing(&e))?;
        let frame = match link.read(&self.deadline.extended(GRACE)) {
            Ok(frame) => frame,
            // No seal has been looked at: somebody on the way may have said it.
            Err(LinkError::Malformed(e)) => return Err(stranger(e.to_string())),
            Err(e) => return Err(passing(&e)),
        };
        // From here on it is the root's own word.
        match frame.message() {
            Ok(Message::Welcome { session, called }) => {
                let expected = links::called_by(self.rank, self.world_size).count();
                if called.len() != expected {
                    let what = format!("it gives {} addresses instead of {expected}", called.len());
                    return Err(no_root(what).into());
                }
                Ok((session, called))
            }
            Ok(Message::Refused(Refusal::TooSlow)) => Err(passing(&Refusal::TooSlow)),
            Ok(Message::Refused(Refusal::MissingRanks(missing))) => {
                Err(BootstrapError::MissingRanks(missing).into())
            }
            Ok(Message::Refused(refusal)) => {
                Err(BootstrapError::Refused { root: place, refusal }.into())
            }
            Ok(_) => Err(no_root("it does not answer as a root".to_owned()).into()),
            Err(e) => Err(no_root(e.to_string()).into()),
        }
    }

    /// Listens for the other ranks, on the address that the root is reached from: whoever reaches the root
    /// reaches that too. Only where this is loopback and the root is on every address of its host (so
    /// others may be elsewhere), or where the user says which interface, is an interface chosen.
    fn listen(&mut self, link: &Link) -> Result<SocketAddr> {
        let what = |e| BootstrapError::system("listening for other ranks", e);
        let towards_root = link.local_addr().map_err(what)?;
        let any_address = matches!(self.id.kind(), Kind::Rendezvous { any_address: true, .. });
        let address = if self.settings.socket_ifname.is_some()
            || (any_address && towards_root.ip().to_canonical().is_loopback())
        {
            let (filter, family) =
                (self.settings.socket_ifname.as_ref(), self.settings.socket_family);
            interface::choose(&interface::interfaces()?, filter, family)?.address
        } else {
            towards_root
        };
        match &self.acceptor {
            Some((ip, acceptor)) if *ip == address.ip() => acceptor.address().map_err(what),
            _ => {
                let listener = listen(with_port(address, 0)).map_err(what)?;
                let name = format!("rank {}", self.rank);
                let key = root_key(self.id); // replaced when the session is known
                let acceptor = MemberAcceptor::new(listener, key, PATIENCE, name);
                let listening = acceptor.address().map_err(what)?;
                self.acceptor = Some((address.ip(), acceptor));
                Ok(listening)
            }
        }
    }
}

/// What a root's acceptor has against us; `None` if there is no word for it.
fn refusal(reason: Rejection) -> Option<Refusal> {
    Some(match reason {
        Rejection::Malformed => Refusal::Malformed,
        Rejection::WrongVersion { theirs } => {
            Refusal::WrongVersion { ours: u8::try_from(theirs).unwrap_or(u8::MAX) }
        }
        Rejection::WrongSecret => Refusal::WrongSecret,
        Rejection::TooSlow => Refusal::TooSlow,
        Rejection::Busy => Refusal::Busy,
        _ => return None,
    })
}

/// Tells the root of a published id that its one rank needs nobody, so that it ends. Whether it hears this
/// does not matter to the rank.
pub(super) fn dismiss(id: &UniqueId) {
    if id.is_rendezvous() {
        return;
    }
    let soon = &Deadline::within(Duration::from_millis(100));
    let Ok(mut link) = Link::connect(id.address(), &root_key(id), soon) else { return };
    let hello = Message::Hello { rank: 0, world_size: 1, wait_ms: 0, listener: id.address() };
    let _ = link.send(&hello, soon).and_then(|()| link.read(soon).map(drop));
}

/// The key of connections to a root.
pub(super) fn root_key(id: &UniqueId) -> Key {
    Key::derive(id.secret(), "bootstrap root", &Nonce::default())
}

/// The key of connections between the ranks of a group. Two groups of one secret (one `NCCL_COMM_ID` after the other) do not
/// mix: each has a session of its own.
pub(super) fn group_key(id: &UniqueId, session: &Nonce) -> Key {
    Key::derive(id.secret(), "bootstrap ranks", session)
}
