//! Keys, and what is proven with them: see the [crate](crate).

use hkdf::Hkdf;
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
        Key(derive(secret, acceptor, &[b"FerroCCL handshake ", purpose.as_bytes()]))
    }

    /// A secret that only who has this key can compute, for one `purpose`. `nonce` may be public, and needs to be another one
    /// each time: so a group that has a key agrees on more secrets without sending any.
    #[must_use]
    pub fn secret(&self, purpose: &str, nonce: &Nonce) -> [u8; 32] {
        derive(&self.0, nonce, &[b"FerroCCL secret ", purpose.as_bytes()])
    }

    /// What this key and another secret, of any length, make together: who lacks one of them cannot compute it.
    #[must_use]
    pub fn mix(&self, secret: &[u8]) -> [u8; 32] {
        derive(secret, &self.0, &[b"FerroCCL mix"])
    }

    /// The key of what one end sends after the exchange of `hello` and `challenge`.
    pub(crate) fn session(
        &self,
        side: Side,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE_COVERED],
    ) -> [u8; 32] {
        let mut exchange = [0; HELLO + CHALLENGE_COVERED];
        exchange[..HELLO].copy_from_slice(hello);
        exchange[HELLO..].copy_from_slice(challenge);
        let who: &[u8] = match side {
            Side::Connector => b"from the connector",
            Side::Acceptor => b"from the acceptor",
        };
        derive(&self.0, &exchange, &[b"FerroCCL session ", who])
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

/// HKDF with SHA-256 (RFC 5869). The last part of `info` is the only one whose length varies.
pub(crate) fn derive(secret: &[u8], salt: &[u8], info: &[&[u8]]) -> [u8; 32] {
    let mut derived = [0; 32];
    let expanded = Hkdf::<Sha256>::new(Some(salt), secret).expand_multi_info(info, &mut derived);
    // HKDF gives up to 255 hashes, and this is one. A key of zeros must not come of it in any case.
    assert!(expanded.is_ok(), "HKDF has no 32 bytes");
    derived
}

pub(crate) fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Hmac<Sha256> {
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

    /// RFC 5869, A.1, cut to 32 bytes.
    #[test]
    fn it_is_hkdf_with_sha_256() {
        let salt: Vec<u8> = (0..=0x0c).collect();
        let derived = derive(
            &[0x0b; 22],
            &salt,
            &[&[0xf0, 0xf1, 0xf2, 0xf3], &[0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9]],
        );
        let hex: String = derived.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
    }

    #[test]
    fn a_secret_is_of_one_key_purpose_and_nonce() {
        let key = Key::derive(&[1; 32], "A", &[2; 16]);
        let secret = key.secret("networks", &[3; 16]);
        assert_eq!(secret, Key::derive(&[1; 32], "A", &[2; 16]).secret("networks", &[3; 16]));
        assert_ne!(secret, key.secret("split", &[3; 16]));
        assert_ne!(secret, key.secret("networks", &[4; 16]));
        assert_ne!(secret, Key::derive(&[1; 32], "A", &[3; 16]).secret("networks", &[3; 16]));
        assert_ne!(secret, Key::derive(&[1; 32], "networks", &[3; 16]).0, "nor a key");
    }
}
