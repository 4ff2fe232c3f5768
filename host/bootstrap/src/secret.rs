//! What the user keeps secret, for ids that are made of public text.

use std::fmt::{self, Debug};
use std::str::FromStr;

use crate::id::UniqueId;

/// A secret that all ranks of a job are given. Shorter ones than [`Secret::LEAST`] bytes are refused: who records a handshake
/// can try guesses at leisure.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The fewest bytes of a secret: 128 bits, if they are random bytes.
    pub const LEAST: usize = 16;

    /// A secret of these bytes.
    ///
    /// # Errors
    /// When there are fewer than [`Secret::LEAST`]; the error does not repeat them.
    pub fn new(bytes: &[u8]) -> Result<Secret, &'static str> {
        if bytes.len() < Self::LEAST {
            return Err("shorter than 16 bytes");
        }
        Ok(Secret(bytes.to_vec()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Secret, Self::Err> {
        Secret::new(text.as_bytes())
    }
}

impl Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)") // it does not belong in a log
    }
}

impl UniqueId {
    /// The id that only ranks with this secret can derive from this one. For ids that are made of public text, which anybody
    /// could make. With `None` it is this id.
    ///
    /// ```
    /// use ferroccl_bootstrap::{Secret, UniqueId};
    ///
    /// let public = UniqueId::rendezvous(([127, 0, 0, 1], 4000).into(), 1, b"job 7");
    /// let secret: Secret = "as long as it is not short".parse()?;
    /// let ours = public.mixed_with(Some(&secret));
    /// assert_eq!(ours.address(), public.address());
    /// assert_ne!(ours, public);
    /// # Ok::<(), &'static str>(())
    /// ```
    #[must_use]
    pub fn mixed_with(&self, secret: Option<&Secret>) -> UniqueId {
        secret.map_or(*self, |secret| self.keyed(secret.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_takes_its_secret_from_both() {
        let id = |seed: &[u8]| UniqueId::rendezvous(([127, 0, 0, 1], 4000).into(), 4, seed);
        let secret = |text: &str| text.parse::<Secret>().unwrap();
        let [one, two] = ["0123456789abcdef", "0123456789abcdeF"].map(secret);
        let mixed = id(b"a").mixed_with(Some(&one));
        assert_eq!(mixed, id(b"a").mixed_with(Some(&one)), "all ranks agree");
        assert_ne!(mixed, id(b"a").mixed_with(Some(&two)));
        assert_ne!(mixed, id(b"b").mixed_with(Some(&one)), "two jobs of one secret");
        assert_ne!(mixed, id(b"a"));
        assert_eq!(id(b"a").mixed_with(None), id(b"a"));
        assert_eq!(mixed.addresses(), id(b"a").addresses());
    }

    #[test]
    fn a_secret_shows_nowhere_and_is_not_short() {
        assert!(!format!("{:?}", "0123456789abcdef".parse::<Secret>()).contains('5'));
        let error = "0123456789abcde".parse::<Secret>().unwrap_err();
        assert!(!error.contains("012"), "{error}");
    }
}
