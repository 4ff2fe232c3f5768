//! Where the ranks that are left of a group meet again, when its ring is broken.
//!
//! While a group is whole its ranks make later groups over its ring (`invitation`). When some of them are gone that is no way
//! any more. So each rank keeps a socket that listens, and all know its address. Those that are left, who agree which ranks
//! these are, meet at the first of them:
//!
//! ```text
//! set-up   each rank listens; all-gather of the addresses                               Bootstrap::meeting_place
//! later    the first rank of those that are left runs a root on its socket   ─┐
//!          the others connect to that address                                 ├─► a group    MeetingPlace::connect
//! ```
//!
//! The secret of the new group is derived from the key of the old one and the list of those that are left: nothing is sent for
//! it, and ranks that were given different lists do not take each other for members.

use std::net::{SocketAddr, TcpListener};

use ferroccl_handshake::{Key, Nonce};
use sha2::{Digest, Sha256};

use crate::blocks::GatheredBlocks;
use crate::error::{BootstrapError, Result};
use crate::group::Bootstrap;
use crate::id::UniqueId;
use crate::limit::Stop;
use crate::settings::Settings;
use crate::{acceptor, wire};

/// A rank's socket for later, and where those of the other ranks are.
#[derive(Debug)]
pub struct MeetingPlace {
    rank: u32,
    /// `None` in a group of one.
    listener: Option<TcpListener>,
    /// By rank.
    addresses: Vec<SocketAddr>,
    key: Key,
}

/// A rank's socket for later, when the others do not know of it yet.
#[derive(Debug)]
pub struct MeetingSocket {
    rank: u32,
    /// `None` in a group of one.
    listener: Option<TcpListener>,
    address: SocketAddr,
    key: Key,
    nranks: u32,
}

impl MeetingSocket {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// With where those of all ranks are, in their order.
    ///
    /// # Errors
    /// [`BootstrapError::InvalidArgument`] when there are not as many addresses as ranks.
    pub fn with(self, addresses: Vec<SocketAddr>) -> Result<MeetingPlace> {
        let MeetingSocket { rank, listener, key, nranks, .. } = self;
        if addresses.len() != nranks as usize {
            let reason = format!("{} are not one for each of {nranks} ranks", addresses.len());
            return Err(BootstrapError::argument("addresses", reason));
        }
        Ok(MeetingPlace { rank, listener, addresses, key })
    }
}

impl Bootstrap {
    /// Opens this rank's socket for later, and learns where those of the others are. Collective.
    ///
    /// # Errors
    /// [`BootstrapError::System`] when the system refuses a socket; the errors of [`Bootstrap::all_gather`].
    pub fn meeting_place(&self) -> Result<MeetingPlace> {
        let socket = self.meeting_socket()?;
        let all = self.gather_blocks(socket.address().to_string().as_bytes())?;
        let read = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse().ok();
        let addresses = all.iter().map(read).collect::<Option<Vec<SocketAddr>>>();
        let addresses = addresses
            .ok_or_else(|| BootstrapError::Malformed("a rank's address is none".to_owned()))?;
        socket.with(addresses)
    }

    /// Opens this rank's socket for later, for those who tell the other ranks themselves where it is: the first half of
    /// [`Bootstrap::meeting_place`], which [`MeetingSocket::with`] completes.
    ///
    /// # Errors
    /// [`BootstrapError::System`] when the system refuses a socket.
    pub fn meeting_socket(&self) -> Result<MeetingSocket> {
        let (rank, nranks, key) = (self.rank(), self.nranks(), self.key().clone());
        let mut address = self.address();
        if nranks == 1 {
            return Ok(MeetingSocket { rank, listener: None, address, key, nranks });
        }
        let system = |e| BootstrapError::system("socket where ranks meet after a failure", e);
        address.set_port(0);
        let listener = acceptor::listen(address).map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        Ok(MeetingSocket { rank, listener: Some(listener), address, key, nranks })
    }
}

impl MeetingPlace {
    /// The group of those of the old group's ranks that are in `left`, in this order; this rank has to be among them. All of
    /// them call it, with the same list, and each is the rank of its place there. It fails soon after `stop` is set.
    ///
    /// # Errors
    /// [`BootstrapError::InvalidArgument`] when the list names no rank of the old group, one twice, or not this one. When
    /// the time of `settings` is over: [`BootstrapError::MissingRanks`], with numbers of the new group, on the ranks that
    /// came, and [`BootstrapError::NoRoot`] where the first rank did not. [`BootstrapError::System`].
    pub fn connect(&self, stop: Stop, left: &[u32], settings: &Settings) -> Result<Bootstrap> {
        Ok(self.connect_with(&[], stop, left, settings)?.0)
    }

    /// The same; it gives every rank's `introduction` to every rank, as [`Bootstrap::connect_with`] does.
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(
        &self,
        introduction: &[u8],
        stop: Stop,
        left: &[u32],
        settings: &Settings,
    ) -> Result<(Bootstrap, GatheredBlocks)> {
        let bad = |reason: String| BootstrapError::argument("left", reason);
        let nranks = self.addresses.len();
        if let Some(rank) = left.iter().find(|rank| **rank as usize >= nranks) {
            return Err(bad(format!("{rank} is not of a group of {nranks}")));
        }
        if let Some((i, rank)) = left.iter().enumerate().find(|(i, r)| left[..*i].contains(r)) {
            return Err(bad(format!("rank {rank} is there twice, also at {i}")));
        }
        let Some(index) = left.iter().position(|rank| *rank == self.rank) else {
            return Err(bad(format!("rank {} is not in it", self.rank)));
        };
        let root = self.addresses[left[0] as usize];
        let secret = self.key.secret("group of those that are left", &digest(left));
        let id = UniqueId::at(root, secret).as_rendezvous();
        let listener = match (&self.listener, index) {
            (Some(listener), 0) => {
                // A copy: the next group may meet here, too.
                let copy = listener.try_clone();
                Some(copy.map_err(|e| BootstrapError::system("copy of a socket", e))?)
            }
            _ => None,
        };
        let size = u32::try_from(left.len()).unwrap_or(wire::MAX_RANKS);
        Bootstrap::connect_at(listener, introduction, stop, &id, index as u32, size, settings)
    }
}

/// What tells lists of ranks from each other.
fn digest(ranks: &[u32]) -> Nonce {
    let mut hash = Sha256::new();
    ranks.iter().for_each(|rank| hash.update(rank.to_le_bytes()));
    let hash: [u8; 32] = hash.finalize().into();
    let mut nonce = Nonce::default();
    let len = nonce.len();
    nonce.copy_from_slice(&hash[..len]);
    nonce
}
