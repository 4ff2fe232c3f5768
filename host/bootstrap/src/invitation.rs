//! Where some ranks of a group meet to form a group of their own.
//!
//! ```text
//! one rank:    invite: a nonce, a root with the secret that the nonce makes   ─► the others, in whatever way
//! the others:  accept: the same secret from the nonce                         ─► Bootstrap::connect
//! ```
//!
//! An invitation is public. The secret of the new group is derived from the nonce and the key of the old one, so that no secret
//! is sent, and a rank of the old group can compute it.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::str::FromStr;

use ferroccl_handshake::{Key, Nonce, nonce};

use crate::error::{BootstrapError, Result};
use crate::group::Bootstrap;
use crate::id::UniqueId;
use crate::watch::Watch;
use crate::{acceptor, join, root};

/// Tells ranks of a group where some of them meet; without a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    address: SocketAddr,
    nonce: Nonce,
}

impl Invitation {
    /// Opens a root at `address`, whose port is any free one, for ranks that have `key`.
    fn open(mut address: SocketAddr, key: &Key) -> Result<Invitation> {
        address.set_port(0);
        let nonce = nonce().map_err(|e| BootstrapError::system("random nonce", e))?;
        let listener = acceptor::listen(address)
            .map_err(|e| BootstrapError::system(format!("root listening on {address}"), e))?;
        let bound = listener
            .local_addr()
            .map_err(|e| BootstrapError::system("address of the root's socket", e))?;
        let invitation = Invitation { address: bound, nonce };
        root::spawn_detached(listener, join::root_key(&invitation.id(key)), acceptor::PATIENCE)?;
        Ok(invitation)
    }

    fn id(&self, key: &Key) -> UniqueId {
        UniqueId::at(self.address, key.secret("group of some ranks", &self.nonce))
    }
}

impl Bootstrap {
    /// As [`Watch::invite`].
    ///
    /// # Errors
    /// As there.
    pub fn invite(&self) -> Result<Invitation> {
        Invitation::open(self.address(), self.key())
    }

    /// As [`Watch::accept`].
    #[must_use]
    pub fn accept(&self, invitation: &Invitation) -> UniqueId {
        invitation.id(self.key())
    }
}

impl Watch {
    /// Opens the rendezvous of a new group, on the address by which this rank is reached. Its root lives in this process until
    /// the new group is complete or has failed.
    ///
    /// # Errors
    /// [`BootstrapError::System`] when the system refuses a socket, a thread or random bytes.
    pub fn invite(&self) -> Result<Invitation> {
        Invitation::open(self.address(), self.key())
    }

    /// The id of the group that a rank of this group invites to.
    #[must_use]
    pub fn accept(&self, invitation: &Invitation) -> UniqueId {
        invitation.id(self.key())
    }
}

impl Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nonce.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "@{}", self.address)
    }
}

impl FromStr for Invitation {
    type Err = BootstrapError;

    /// Reads what `Display` writes.
    ///
    /// # Errors
    /// [`BootstrapError::Malformed`] when it is not that.
    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (digits, address) = text.split_once('@')?;
            let number = u128::from_str_radix(digits, 16).ok()?;
            let is_plain = digits.len() == 32 && !digits.starts_with('+');
            is_plain.then_some(Invitation {
                address: address.parse().ok()?,
                nonce: number.to_be_bytes(),
            })
        };
        read().ok_or_else(|| BootstrapError::Malformed(format!("{text:?} is no invitation")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_reads_back_and_has_no_secret() {
        let key = Key::derive(&[1; 32], "test", &[0; 16]);
        for ip in ["127.0.0.1:0", "[fe80::1%3]:9"] {
            let invitation = Invitation { address: ip.parse().unwrap(), nonce: nonce().unwrap() };
            let text = invitation.to_string();
            assert_eq!(text.parse::<Invitation>().unwrap(), invitation);
            let id = invitation.id(&key);
            assert_eq!(id.address(), invitation.address);
            let secret: String = id.secret().iter().map(|byte| format!("{byte:02x}")).collect();
            // Not even eight digits of it.
            let parts = (0..secret.len() - 8).map(|at| &secret[at..at + 8]);
            assert_eq!(parts.filter(|part| text.contains(part)).count(), 0, "{text}");
            let other = Invitation { nonce: nonce().unwrap(), ..invitation };
            assert_ne!(other.id(&key), id, "each has a secret of its own");
            assert_ne!(invitation.id(&Key::derive(&[2; 32], "test", &[0; 16])), id);
        }
        for text in ["", "@", "00@127.0.0.1:1", "+0000000000000000000000000000000@127.0.0.1:1"] {
            assert!(text.parse::<Invitation>().is_err(), "{text}");
        }
    }
}
