//! Keys, and what is proven with them: see the [crate](crate).

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::wire::{CHALLENGE_COVERED, HELLO, HELLO_COVERED, Nonce, PROOF};

/// Which end proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Connector,
    Acceptor,
}

/// What both ends of the connections to one acceptor know.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(...)") // a secret does not belong in a log
    }
}

impl Key {
    /// The key for connections with one purpose to one acceptor. `purpose` is what the connections are for; `acceptor` is the
    /// number of the acceptor, or of the group that it belongs to. With another of either, a proof is worth nothing.
    #[must_use]
    pub fn derive(secret: &[u8; 32], purpose: &str, acceptor: &Nonce) -> Key {
        let length = (purpose.len() as u64).to_le_bytes(); // so that no purpose runs into the next field
        let parts: [&[u8]; 4] = [b"FerroCCL handshake ", &length, purpose.as_bytes(), acceptor];
        Key(hmac(secret, &parts).finalize().into_bytes().into())
    }

    /// The seal of a hello.
    pub(crate) fn seal(&self, hello: &[u8; HELLO_COVERED]) -> [u8; PROOF] {
        hmac(&self.0, &[b"hello....", hello]).finalize().into_bytes().into()
    }

    pub(crate) fn is_sealed(&self, hello: &[u8; HELLO]) -> bool {
        let (covered, seal) = hello.split_at(HELLO_COVERED);
        hmac(&self.0, &[b"hello....", covered]).verify_slice(seal).is_ok()
    }

    fn over(
        &self,
        side: Side,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE_COVERED],
    ) -> Hmac<Sha256> {
        let who: &[u8] = match side {
            Side::Connector => b"connector",
            Side::Acceptor => b"acceptor.",
        };
        hmac(&self.0, &[who, hello, challenge])
    }

    pub(crate) fn prove(
        &self,
        side: Side,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE_COVERED],
    ) -> [u8; PROOF] {
        self.over(side, hello, challenge).finalize().into_bytes().into()
    }

    pub(crate) fn proven(
        &self,
        side: Side,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE_COVERED],
        proof: &[u8],
    ) -> bool {
        // In constant time: how much of a guess was right must not show.
        self.over(side, hello, challenge).verify_slice(proof).is_ok()
    }
}

fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC fills a short key up with zeros to SHA-256's block; done here, no length can be wrong.
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    let mut hmac = Hmac::<Sha256>::new(&block.into());
    parts.iter().for_each(|part| hmac.update(part));
    hmac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_side_secret_purpose_acceptor_and_exchange() {
        let key = Key::derive(&[1; 32], "A", &[2; 16]);
        let (hello, challenge) = ([3; HELLO], [4; CHALLENGE_COVERED]);
        let proof = key.prove(Side::Connector, &hello, &challenge);
        let proves = |key: &Key, side, hello, challenge| key.proven(side, hello, challenge, &proof);
        assert!(proves(&key, Side::Connector, &hello, &challenge));
        assert!(!proves(&key, Side::Acceptor, &hello, &challenge));
        assert!(!proves(&key, Side::Connector, &[0; HELLO], &challenge));
        assert!(!proves(&key, Side::Connector, &hello, &[0; CHALLENGE_COVERED]));
        assert!(!proves(
            &Key::derive(&[0; 32], "A", &[2; 16]),
            Side::Connector,
            &hello,
            &challenge
        ));
        assert!(!proves(
            &Key::derive(&[1; 32], "A", &[0; 16]),
            Side::Connector,
            &hello,
            &challenge
        ));
        assert!(!proves(
            &Key::derive(&[1; 32], "B", &[2; 16]),
            Side::Connector,
            &hello,
            &challenge
        ));
        assert!(!key.proven(Side::Connector, &hello, &challenge, &proof[1..]));
        let covered = [3; HELLO_COVERED];
        let mut hello = [3; HELLO];
        hello[HELLO_COVERED..].copy_from_slice(&key.seal(&covered));
        assert!(key.is_sealed(&hello) && !Key::derive(&[0; 32], "A", &[2; 16]).is_sealed(&hello));
        hello[0] = 0;
        assert!(!key.is_sealed(&hello));
        assert!(!format!("{key:?}").contains('1'));
    }
}
