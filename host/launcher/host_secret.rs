//! The secret of a job whose ranks meet at a loopback address, and so are all in one network namespace.
//!
//! What such a job's id is made of (a port, a job's number) is known to every user of the host. Rank 0 therefore takes 32
//! random bytes, and gives them to the other ranks over a Unix socket, whose ends the system vouches for: only processes of the
//! same user get them, and only what a process of this user says is believed. TCP has no such thing, not even on one host.
//!
//! The socket's name ends in a random number, so that nobody can take it beforehand; the other ranks find it by how it begins.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::geteuid;
use sha2::{Digest, Sha256};
use tracing::{debug, warn};

use crate::error::{Error, Result};
use crate::{local_socket, log};
use ferroccl_bootstrap::{BootstrapError, Secret, UniqueId};

/// Bytes of a secret, as many as an id's own.
const BYTES: usize = 32;
/// How long the other end may take for its few bytes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pauses between looks for rank 0's socket: the first, which doubles, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// Rank 0 gives the secret to who has not asked yet for so long; a rank that comes later finds no root either, as a rule.
const OFFERED_FOR: Duration = Duration::from_secs(3600);

/// The secrets of the jobs that this process is in, by the names that their sockets begin with. A job's ranks may be threads of
/// one process, and each may ask again.
static JOBS: Mutex<Option<HashMap<String, Secret>>> = Mutex::new(None);

fn jobs() -> MutexGuard<'static, Option<HashMap<String, Secret>>> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The secret of the job that meets by `public`, the same for all its ranks, each of which calls this.
///
/// # Errors
/// [`Error::Bootstrap`] with [`BootstrapError::Timeout`] when rank 0 has not called it within `limit`; [`Error::System`].
pub(super) fn of_job(public: &UniqueId, rank: u32, nranks: u32, limit: Duration) -> Result<Secret> {
    let prefix = prefix(public);
    if rank == 0 {
        return offer(prefix, nranks);
    }
    if let Some(secret) = jobs().as_ref().and_then(|jobs| jobs.get(&prefix)) {
        return Ok(secret.clone());
    }
    let secret = ask_rank_0(&prefix, rank, limit)?;
    jobs().get_or_insert_default().insert(prefix, secret.clone());
    Ok(secret)
}

/// What the names of a job's sockets begin with.
fn prefix(public: &UniqueId) -> String {
    format!("ferroccl-job-{}-", hex(&Sha256::digest(public.to_bytes())[..16]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Rank 0's part: makes the secret, and gives it away in a thread of its own.
fn offer(prefix: String, nranks: u32) -> Result<Secret> {
    let mut jobs = jobs();
    let jobs = jobs.get_or_insert_default();
    if let Some(secret) = jobs.get(&prefix) {
        return Ok(secret.clone());
    }
    let failed = |e| Error::system("socket that gives the job's secret to its other ranks", e);
    let mut random = [0; BYTES + 8];
    getrandom::fill(&mut random).map_err(|e| failed(io::Error::other(e)))?;
    let (bytes, number) = random.split_at(BYTES);
    let secret = Secret::new(bytes).map_err(|why| failed(io::Error::other(why)))?;
    let name = format!("{prefix}{}", hex(number));
    let listener = local_socket::bind(&name).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bytes = bytes.to_vec();
    let thread = thread::Builder::new().name("ferroccl-secret".to_owned());
    thread.spawn(move || give_to_all(&listener, &bytes, nranks)).map_err(failed)?;
    jobs.insert(prefix, secret.clone());
    Ok(secret)
}

/// The thread: ends when all other ranks have asked, or after [`OFFERED_FOR`].
fn give_to_all(listener: &UnixListener, secret: &[u8], nranks: u32) {
    let end = Instant::now() + OFFERED_FOR;
    let mut have = HashSet::new();
    let mut strangers = 0;
    while have.len() as u64 + 1 < u64::from(nranks) {
        let left = end.saturating_duration_since(Instant::now());
        let waiting = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], waiting) {
            Ok(0) => return,
            Ok(_) => {}
            Err(_) => thread::sleep(PAUSES[0]), // a signal
        }
        let given = match listener.accept() {
            Ok((stream, _)) => give(stream, secret),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => {
                // No descriptor is left, or the like: it may come back.
                thread::sleep(PAUSES[1]);
                Err(e)
            }
        };
        match given {
            Ok(Given::To(rank)) if (1..nranks).contains(&rank) => {
                have.insert(rank);
            }
            Ok(Given::To(rank)) => {
                debug!(target: log::BOOTSTRAP, "rank {rank} of {nranks} has asked for the job's secret");
            }
            Ok(Given::Refused(user)) => {
                // Whoever it is can come often; one line says it.
                if strangers == 0 {
                    let us = geteuid();
                    warn!(target: log::BOOTSTRAP, "user {user} has asked for the secret of user {us}'s job");
                }
                strangers += 1;
            }
            Err(e) => debug!(target: log::BOOTSTRAP, "giving the job's secret: {e}"),
        }
    }
}

enum Given {
    To(u32),
    /// To nobody: this user asked.
    Refused(u32),
}

fn give(mut stream: UnixStream, secret: &[u8]) -> io::Result<Given> {
    let user = local_socket::peer(&stream)?.uid();
    if user != geteuid().as_raw() {
        return Ok(Given::Refused(user));
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut rank = [0; 4];
    stream.read_exact(&mut rank)?;
    stream.write_all(secret)?;
    Ok(Given::To(u32::from_le_bytes(rank)))
}

/// Another rank's part.
fn ask_rank_0(prefix: &str, rank: u32, limit: Duration) -> Result<Secret> {
    let end = Instant::now() + limit;
    let mut pause = PAUSES[0];
    let mut stranger = None;
    loop {
        let names = local_socket::names(prefix)
            .map_err(|e| Error::system("looking for rank 0's socket in /proc/net/unix", e))?;
        for name in names {
            match ask(&name, rank) {
                Ok(Asked::Secret(secret)) => return Ok(secret),
                Ok(Asked::Stranger(user)) => stranger = Some(user),
                // Its end may be near, or it has many others to answer.
                Err(e) => {
                    debug!(target: log::BOOTSTRAP, "asking {name} for the job's secret: {e}");
                }
            }
        }
        if Instant::now() >= end {
            let user = geteuid();
            let stranger = stranger.map_or_else(String::new, |other| {
                format!("; user {other} has offered one, and is not believed")
            });
            let what = format!(
                "waiting for rank 0 to give rank {rank} the job's secret, as a process of user {user} in this network \
                 namespace{stranger} (FERROCCL_SECRET, set on all ranks, takes the secret's place)"
            );
            return Err(BootstrapError::Timeout { what, limit }.into());
        }
        thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(PAUSES[1]);
    }
}

enum Asked {
    Secret(Secret),
    /// Another user's process answers there.
    Stranger(u32),
}

fn ask(name: &str, rank: u32) -> io::Result<Asked> {
    let mut stream = local_socket::connect(name)?;
    let user = local_socket::peer(&stream)?.uid();
    if user != geteuid().as_raw() {
        return Ok(Asked::Stranger(user));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&rank.to_le_bytes())?;
    let mut bytes = [0; BYTES];
    stream.read_exact(&mut bytes)?;
    Secret::new(&bytes).map(Asked::Secret).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seed: &str) -> UniqueId {
        let seed = format!("{seed} {}", std::process::id());
        UniqueId::rendezvous(([127, 0, 0, 1], 4000).into(), 1, seed.as_bytes())
    }

    fn forget(public: &UniqueId) {
        jobs().as_mut().unwrap().remove(&prefix(public));
    }

    fn names(public: &UniqueId) -> Vec<String> {
        local_socket::names(&prefix(public)).unwrap()
    }

    /// In a thread of user 65534.
    fn as_other_user<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        let act = || {
            let same = -1_i64;
            // SAFETY: it takes no pointers, and changes this thread alone (credentials(7), "C library/kernel differences").
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, same, 65534_i64, same) }, 0);
            act()
        };
        thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    #[test]
    fn all_ranks_get_rank_0s_secret_and_the_socket_goes() {
        let public = id("all ranks");
        let later = thread::spawn(move || {
            // It comes before rank 0.
            of_job(&public, 2, 3, Duration::from_secs(60)).unwrap()
        });
        thread::sleep(Duration::from_millis(50));
        let secret = of_job(&public, 0, 3, Duration::ZERO).unwrap();
        assert_eq!(later.join().unwrap(), secret);
        assert_eq!(of_job(&public, 0, 3, Duration::ZERO).unwrap(), secret, "a second time");
        let [name] = &names(&public)[..] else { panic!("no socket") };
        // Rank 1 as a process of its own.
        let Ok(Asked::Secret(other)) = ask(name, 1) else { panic!("not given") };
        assert_eq!(other, secret);
        let started = Instant::now();
        while !names(&public).is_empty() {
            assert!(started.elapsed() < Duration::from_secs(30), "the socket stays");
            thread::sleep(Duration::from_millis(1));
        }
        assert_ne!(of_job(&id("another job"), 0, 3, Duration::ZERO).unwrap(), secret);
        forget(&public);
        let error = of_job(&public, 1, 3, Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.contains("waiting for rank 0 to give rank 1 the job's secret"), "{error}");
    }

    #[test]
    fn other_users_get_no_secret_and_give_none() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can play another user");
            return;
        }
        // A stranger is there before rank 0, with a name as good as rank 0's, and answers everybody.
        let public = id("other users");
        let posing =
            as_other_user(|| local_socket::bind(&format!("{}0", prefix(&public))).unwrap());
        let answers = thread::spawn(move || {
            for stream in posing.incoming() {
                // Who does not believe it may be gone.
                let _ = stream.unwrap().write_all(&[7; BYTES]);
            }
        });
        let error = of_job(&public, 1, 3, Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("user 65534 has offered one, and is not believed"), "{error}");
        let secret = of_job(&public, 0, 3, Duration::ZERO).unwrap();
        forget(&public);
        assert_eq!(of_job(&public, 1, 3, Duration::from_secs(60)).unwrap(), secret);
        assert_ne!(secret, Secret::new(&[7; BYTES]).unwrap());
        // It asks in rank 2's place, without a look at whom.
        let real = names(&public).into_iter().find(|name| !name.ends_with("-0")).unwrap();
        let got = as_other_user(|| {
            let mut stream = local_socket::connect(&real).unwrap();
            let _ = stream.write_all(&2_u32.to_le_bytes());
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            answer
        });
        assert_eq!(got, b"");
        // Rank 2 itself still gets it.
        assert!(matches!(ask(&real, 2).unwrap(), Asked::Secret(same) if same == secret));
        drop(answers); // it ends with the process
    }
}
