//! The owner's side: a thread that gives the descriptors that this process offers to who names their tokens.
//!
//! It answers its own user and root, as the system says who asks. It waits for all callers at once, so that one that says nothing
//! holds nobody up, and it sleeps while there are none. It is started by the first offer, and stays.

use std::collections::HashMap;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::geteuid;
use tracing::{debug, warn};

use super::{GIVEN, Token, UNKNOWN, random, socket_name};
use crate::error::{Error, Result};
use crate::fork::Maker;
use crate::runtime::sync::lock;
use crate::{local_socket, log};

/// How long a caller may take for its token.
const PATIENCE: Duration = Duration::from_secs(2);
/// Callers that are waited for; one more takes the place of the first of them.
const MOST_CALLERS: usize = 64;
/// Pause after an error of the system's that may go by itself, as when no descriptor is left.
const PAUSE: Duration = Duration::from_millis(100);

/// What this process offers, and the name at which it is asked.
struct Service {
    /// A fork has a copy, and not the thread.
    maker: Maker,
    name: Token,
    offers: HashMap<Token, Arc<OwnedFd>>,
}

static SERVICE: Mutex<Option<Service>> = Mutex::new(None);

/// Offers a descriptor until [`withdraw`]. Returns what the socket is named by.
///
/// # Errors
/// [`Error::System`] when there can be no socket or no thread.
pub(super) fn offer(maker: Maker, token: Token, file: Arc<OwnedFd>) -> Result<Token> {
    let mut service = lock(&SERVICE);
    let service = match &mut *service {
        Some(service) if service.maker == maker => service,
        none => none.insert(start(maker)?),
    };
    service.offers.insert(token, file);
    Ok(service.name)
}

pub(super) fn withdraw(token: &Token) {
    let file = lock(&SERVICE).as_mut().and_then(|service| service.offers.remove(token));
    // Closing may take its time; not under the lock.
    drop(file);
}

/// The descriptor of a token, if this process offers it.
pub(super) fn find(token: &Token) -> Option<Arc<OwnedFd>> {
    let service = lock(&SERVICE);
    let service = service.as_ref().filter(|service| service.maker.is_here())?;
    service.offers.get(token).cloned()
}

fn start(maker: Maker) -> Result<Service> {
    let failed =
        |e| Error::system("socket by which other processes get descriptors of GPU memory", e);
    let name = random()?;
    let listener = local_socket::bind(&socket_name(&name)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let thread = thread::Builder::new().name("ferroccl-fds".to_owned());
    thread.spawn(move || serve(&listener)).map_err(failed)?;
    Ok(Service { maker, name, offers: HashMap::new() })
}

/// Who has connected, and may ask.
struct Caller {
    /// Does not block.
    stream: UnixStream,
    token: Token,
    /// Bytes of the token that are there.
    have: usize,
    until: Instant,
}

/// The thread.
fn serve(listener: &UnixListener) {
    let mut callers: Vec<Caller> = Vec::new();
    let mut strangers = false;
    loop {
        let now = Instant::now();
        callers.retain(|caller| caller.until > now);
        let first = callers.iter().map(|caller| caller.until).min();
        // Whole milliseconds, and not too few.
        let wait = first.map_or(PollTimeout::NONE, |until| {
            let wait = until.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO)
        });
        let streams = callers.iter().map(|caller| caller.stream.as_fd());
        let mut polled: Vec<_> = [listener.as_fd()]
            .into_iter()
            .chain(streams)
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match poll(&mut polled, wait) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => {
                thread::sleep(PAUSE);
                continue;
            }
        }
        // An error or a hang-up is ready, too.
        let ready: Vec<bool> = polled.iter().map(|fd| fd.any() != Some(false)).collect();
        let mut of_callers = ready.iter().skip(1);
        callers.retain_mut(|caller| of_callers.next() != Some(&true) || caller.go_on());
        if ready.first() != Some(&true) {
            continue;
        }
        match accept(listener) {
            Ok(caller) => {
                if callers.len() >= MOST_CALLERS {
                    callers.remove(0);
                }
                callers.push(caller);
            }
            Err(NotAccepted::Stranger(user)) => {
                // Whoever it is can come often; one line says it.
                if !strangers {
                    let us = geteuid();
                    warn!(target: log::P2P, "user {user} has asked for memory of user {us}'s process");
                }
                strangers = true;
            }
            Err(NotAccepted::Failed(e)) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(NotAccepted::Failed(e)) => {
                debug!(target: log::P2P, "somebody asks for a descriptor: {e}");
                thread::sleep(PAUSE);
            }
        }
    }
}

enum NotAccepted {
    /// It is this user's.
    Stranger(u32),
    Failed(io::Error),
}

fn accept(listener: &UnixListener) -> std::result::Result<Caller, NotAccepted> {
    let open = || {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        let user = local_socket::peer(&stream)?.uid();
        Ok((stream, user))
    };
    let (stream, user) = open().map_err(NotAccepted::Failed)?;
    if user != geteuid().as_raw() && user != 0 {
        return Err(NotAccepted::Stranger(user));
    }
    Ok(Caller { stream, token: Token::default(), have: 0, until: Instant::now() + PATIENCE })
}

impl Caller {
    /// Reads what is there, and answers once that is a token. Whether it is still to be waited for.
    fn go_on(&mut self) -> bool {
        let Some(missing) = self.token.get_mut(self.have..) else { return false };
        match (&self.stream).read(missing) {
            Ok(0) => return false,
            Ok(read) => self.have += read,
            Err(e) => {
                return matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            }
        }
        if self.have < self.token.len() {
            return true;
        }
        if let Err(e) = self.answer() {
            debug!(target: log::P2P, "giving a descriptor away: {e}");
        }
        false
    }

    /// Does not wait: an empty socket has room for a byte, and who has filled it gets nothing.
    fn answer(&self) -> io::Result<()> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let to = self.stream.as_raw_fd();
        match find(&self.token) {
            Some(file) => {
                let files = [file.as_raw_fd()];
                let rights = [ControlMessage::ScmRights(&files)];
                sendmsg::<()>(to, &[IoSlice::new(&[GIVEN])], &rights, flags, None)
            }
            None => sendmsg::<()>(to, &[IoSlice::new(&[UNKNOWN])], &[], flags, None),
        }?;
        Ok(())
    }
}
