//! What fuzzing gives the bootstrap, and what must hold: see `fuzz/README.md`. No part of the public interface.

use ferroccl_handshake::Seals;

use crate::wire::{
    Decoder, HEADER_BYTES, MAX_CALLED, MAX_LEFT, MAX_NAMED, MAX_REASON, Malformed, Message, Phase,
};
use crate::{CommId, InterfaceFilter, Invitation, UNIQUE_ID_BYTES, UniqueId, choose};
use crate::{Interface, Refusal};

/// Seals of the same key at both ends.
fn seals() -> Seals {
    Seals::fuzzed([7; 32])
}

/// Bytes as frames, in one piece, and in pieces of a length that the first byte says. The second byte says whether they are
/// the frames of a stranger, or sealed; with seals the bytes are `kind, length, body ...` of each frame.
pub fn frames(data: &[u8]) {
    let &[piece, mode, ref data @ ..] = data else { return };
    let phase = if mode & 1 == 0 { Phase::Joining } else { Phase::Open };
    let said = if mode & 2 == 0 { data.to_vec() } else { sealed(data) };
    let whole = read(&said, said.len().max(1), phase);
    let pieces = read(&said, usize::from(piece % 80) + 1, phase);
    assert_eq!(whole, pieces, "how bytes come does not matter");
    let (mut ours, mut theirs) = (seals(), seals());
    for message in whole.0 {
        let again = message.seal(&mut ours);
        let mut decoder = Decoder::new(phase);
        decoder.push(&again);
        let frame = decoder.next_frame().unwrap().unwrap().open(&mut theirs).unwrap();
        assert_eq!(frame.message(), Ok(message.clone()), "what is written is read");
        match message {
            Message::Refused(Refusal::MissingRanks(missing)) => {
                assert!(missing.named.len() <= MAX_NAMED);
                let _ = missing.to_string();
            }
            Message::Refused(refusal) => drop(refusal.to_string()),
            Message::Gone { reason, .. } => assert!(reason.len() <= MAX_REASON),
            Message::Left { peers } => assert!((1..=MAX_LEFT).contains(&peers.len())),
            Message::Hello { listener, .. } => assert_ne!(listener.port(), 0),
            Message::Welcome { called, .. } => {
                assert!(called.len() <= MAX_CALLED && called.iter().all(|to| to.port() != 0));
            }
            _ => {}
        }
    }
}

/// Frames with seals: `kind, length, body ...` of each.
fn sealed(mut data: &[u8]) -> Vec<u8> {
    let (mut said, mut ours) = (Vec::new(), seals());
    while let &[kind, length, ref rest @ ..] = data {
        let (body, rest) = rest.split_at(rest.len().min(length.into()));
        let mut frame = Message::Met.encode();
        frame[5] = kind;
        frame[8..HEADER_BYTES].copy_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(body);
        let seal = ours.seal(&frame);
        said.extend_from_slice(&frame);
        said.extend_from_slice(&seal);
        data = rest;
    }
    said
}

/// How reading ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// More is to come, or nothing.
    Waiting,
    Forged,
    Frame(Malformed),
    Message(Malformed),
}

/// Reads as a link does.
fn read(said: &[u8], piece: usize, phase: Phase) -> (Vec<Message>, End) {
    let (mut decoder, mut theirs) = (Decoder::new(phase), seals());
    let mut messages = Vec::new();
    for piece in said.chunks(piece) {
        decoder.push(piece);
        loop {
            let frame = match decoder.next_frame() {
                Ok(None) => break,
                Ok(Some(sealed)) => sealed.open(&mut theirs),
                Err(error) => return (messages, End::Frame(error)),
            };
            match frame.map(|frame| frame.message()) {
                Some(Ok(message)) => messages.push(message),
                Some(Err(error)) => return (messages, End::Message(error)),
                None => return (messages, End::Forged),
            }
        }
    }
    (messages, End::Waiting)
}

/// Bytes and texts as ids and invitations.
pub fn ids(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let mut bytes = [0; UNIQUE_ID_BYTES];
    bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    if mode & 1 != 0 {
        // Else nothing gets past the checksum.
        crate::id::fuzzed_checksum(&mut bytes);
    }
    if let Ok(id) = UniqueId::from_bytes(&bytes) {
        assert_eq!(id.to_bytes(), bytes);
        assert_eq!(id.to_secret_hex().parse::<UniqueId>().unwrap(), id);
        let places = id.addresses();
        assert!((1..=255).contains(&places.len()) && places[0] == id.address());
        let _ = format!("{id:?}");
    }
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(id) = text.parse::<UniqueId>() {
        assert_eq!(id.to_secret_hex(), text.trim().to_lowercase());
    }
    if let Ok(invitation) = text.parse::<Invitation>() {
        assert_eq!(invitation.to_string().parse::<Invitation>().unwrap(), invitation);
    }
    if let Ok(comm_id) = text.parse::<CommId>() {
        assert_eq!(comm_id.to_string().parse::<CommId>().as_ref(), Ok(&comm_id));
    }
}

/// A text as a list of interfaces.
pub fn interfaces(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Ok(filter) = text.parse::<InterfaceFilter>() else { return };
    assert_eq!(filter.to_string().parse::<InterfaceFilter>().as_ref(), Ok(&filter), "{text:?}");
    let there = [("eth0", [10, 0, 0, 1]), ("ib0", [10, 0, 0, 2]), ("lo", [127, 0, 0, 1])];
    let there =
        there.map(|(name, ip)| Interface { name: name.to_owned(), address: (ip, 0).into() });
    match choose(&there, Some(&filter), None) {
        Ok(chosen) => assert!(there.contains(&chosen)),
        Err(error) => drop(error.to_string()),
    }
}

#[cfg(test)]
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds;

    #[test]
    fn what_fuzzing_begins_with_passes() {
        seeds::replay(&[
            ("bootstrap_frames", super::frames),
            ("bootstrap_ids", super::ids),
            ("bootstrap_interfaces", super::interfaces),
        ]);
    }
}
