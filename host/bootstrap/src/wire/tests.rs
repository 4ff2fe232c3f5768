//! Random bytes, cut and bent messages: the parser gives a legal value or a reason, and holds no more than
//! what came.

use std::net::{SocketAddr, SocketAddrV6};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::Config as Runs;

use super::*;

fn address() -> impl Strategy<Value = SocketAddr> {
    let v4 = (any::<[u8; 4]>(), 1..=u16::MAX).prop_map(|(ip, port)| SocketAddr::from((ip, port)));
    let v6 = (any::<[u8; 16]>(), 1..=u16::MAX, any::<u32>())
        .prop_map(|(ip, port, scope)| SocketAddrV6::new(ip.into(), port, 0, scope).into());
    prop_oneof![v4, v6]
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let missing = (any::<u32>(), any::<u32>(), vec(any::<u32>(), 0..=MAX_NAMED));
    prop_oneof![
        Just(Refusal::Malformed),
        any::<u8>().prop_map(|ours| Refusal::WrongVersion { ours }),
        Just(Refusal::WrongSecret),
        Just(Refusal::TooSlow),
        Just(Refusal::Busy),
        any::<(u32, u32)>()
            .prop_map(|(rank, world_size)| Refusal::RankOutOfRange { rank, world_size }),
        any::<u32>().prop_map(|rank| Refusal::RankTwice { rank }),
        any::<(u32, u32)>().prop_map(|(theirs, ours)| Refusal::OtherWorldSize { theirs, ours }),
        missing.prop_map(|(world_size, count, named)| {
            Refusal::MissingRanks(MissingRanks { world_size, count, named })
        }),
        Just(Refusal::NotExpected),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let purpose = prop_oneof![Just(Purpose::Ring), Just(Purpose::Rounds), Just(Purpose::Messages)];
    prop_oneof![
        (any::<(u32, u32, u32)>(), address()).prop_map(
            |((rank, world_size, wait_ms), listener)| {
                Message::Hello { rank, world_size, wait_ms, listener }
            }
        ),
        (any::<Nonce>(), vec(address(), 0..=MAX_CALLED))
            .prop_map(|(session, called)| Message::Welcome { session, called }),
        refusal().prop_map(Message::Refused),
        (purpose, any::<(u32, u32)>()).prop_map(|(purpose, (from, to))| Message::Peer {
            purpose,
            from,
            to
        }),
        Just(Message::Met),
        (any::<u64>(), vec(any::<u8>(), 0..300))
            .prop_map(|(tag, bytes)| Message::Data { tag, bytes }),
        Just(Message::Goodbye),
        (any::<u32>(), "[a-zé]{0,100}").prop_map(|(peer, reason)| Message::Gone { peer, reason }),
        vec(any::<u32>(), 1..=MAX_LEFT).prop_map(|peers| Message::Left { peers }),
    ]
}

fn phase_of(message: &Message) -> Phase {
    if longest(message.kind(), Phase::Open).is_some() { Phase::Open } else { Phase::Joining }
}

/// A frame with a place for its seal, which [`decode`] does not look at.
fn framed(message: &Message) -> Vec<u8> {
    let mut bytes = message.encode();
    bytes.extend([0; SEAL]);
    bytes
}

/// Feeds `bytes` in pieces of `step`; the messages read and the error that ended it, if one did.
fn decode(bytes: &[u8], step: usize, phase: Phase) -> (Vec<Message>, Option<Malformed>) {
    let mut decoder = Decoder::new(phase);
    let mut messages = Vec::new();
    for piece in bytes.chunks(step.max(1)) {
        decoder.push(piece);
        loop {
            match decoder.next_frame().and_then(|f| f.map(|f| f.frame.message()).transpose()) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(e) => return (messages, Some(e)),
            }
        }
        let held = decoder.bytes.capacity();
        assert!(held <= 2 * bytes.len() + 64, "{held} bytes held of {} that came", bytes.len());
    }
    (messages, None)
}

proptest! {
    #![proptest_config(Runs { cases: 20_000, failure_persistence: None, ..Runs::default() })]

    #[test]
    fn messages_read_back(message in message(), step in 1..64usize) {
        let (read, error) = decode(&framed(&message), step, phase_of(&message));
        prop_assert_eq!(error, None);
        prop_assert_eq!(read, vec![message]);
    }

    #[test]
    fn cut_messages_are_never_whole(message in message(), cut in any::<prop::sample::Index>()) {
        let bytes = framed(&message);
        let (read, error) = decode(&bytes[..cut.index(bytes.len())], 7, phase_of(&message));
        prop_assert_eq!((read, error), (vec![], None));
    }

    /// One spelling for one value: what is accepted is written back to the same bytes.
    #[test]
    fn bent_messages_are_refused_or_legal(
        message in message(),
        bend in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = framed(&message);
        for (at, with) in bend {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        let (read, _) = decode(&bytes, 64, phase_of(&message));
        if let [message] = &read[..] {
            let again = message.encode();
            prop_assert_eq!(&again[..], &bytes[..again.len()]);
        }
    }

    #[test]
    fn random_bytes_after_a_good_start(
        version in prop_oneof![9 => Just(VERSION), 1 => any::<u8>()],
        kind in 0..12u8,
        length in prop_oneof![3 => 0..300u32, 1 => any::<u32>()],
        open in any::<bool>(),
        body in vec(any::<u8>(), 0..400),
    ) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, kind, 0, 0]);
        bytes.extend(length.to_le_bytes());
        bytes.extend(&body);
        decode(&bytes, 13, if open { Phase::Open } else { Phase::Joining });
    }

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..200), step in 1..64usize) {
        let (read, error) = decode(&bytes, step, Phase::Open);
        prop_assert!(read.is_empty());
        prop_assert!(error.is_some() || bytes.len() < HEADER_BYTES);
    }
}

#[test]
fn a_stranger_is_told_no_before_its_bytes_come() {
    for (kind, length, phase) in [
        (DATA, 8, Phase::Joining),
        (HELLO, 257, Phase::Joining),
        (WELCOME, 18 + 22 * 23, Phase::Joining),
        (HELLO, 35, Phase::Open),
        (LEFT, 4 + 4 * MAX_LEFT as u32, Phase::Open),
        (DATA, 9 + (16 << 20), Phase::Open),
        (DATA, u32::MAX, Phase::Open),
        (0, 0, Phase::Open),
    ] {
        let mut decoder = Decoder::new(phase);
        decoder.push(&MAGIC);
        decoder.push(&[VERSION, kind, 0, 0]);
        assert_eq!(decoder.next_frame(), Ok(None));
        decoder.push(&length.to_le_bytes());
        assert!(decoder.next_frame().is_err(), "kind {kind} of {length} bytes in {phase:?}");
    }
    let mut decoder = Decoder::new(Phase::Joining);
    decoder.push(b"G");
    assert_eq!(decoder.next_frame(), Err(Malformed::Magic), "at the first wrong byte");
}

#[test]
fn fields_that_a_refusal_does_not_have_are_zero() {
    let missing = MissingRanks { world_size: 2, count: 1, named: vec![1] };
    let good = framed(&Message::Refused(Refusal::MissingRanks(missing)));
    let code_at = HEADER_BYTES;
    for code in 0..=u8::MAX {
        let mut bytes = good.clone();
        bytes[code_at] = code;
        let (read, error) = decode(&bytes, 64, Phase::Joining);
        assert_eq!(read.len(), usize::from(code == 8), "code {code}: {read:?}");
        assert_eq!(error.is_none(), code == 8);
    }
    let mut bytes = Message::Refused(Refusal::Busy).encode();
    bytes.truncate(HEADER_BYTES + 9);
    bytes.extend([1, 5, 0, 0, 0]); // one named rank
    bytes.extend([0; SEAL]);
    bytes[8] += 4;
    assert!(decode(&bytes, 64, Phase::Joining).1.is_some(), "a list that Busy does not have");
}

#[test]
fn the_longest_data_passes_and_long_reasons_are_cut() {
    let data = Message::Data { tag: 1, bytes: vec![7; MAX_DATA] };
    assert_eq!(decode(&framed(&data), 64 << 10, Phase::Open), (vec![data], None));
    let long = Message::Gone { peer: 3, reason: "é".repeat(MAX_REASON) };
    let (read, error) = decode(&framed(&long), 64, Phase::Open);
    let cut = Message::Gone { peer: 3, reason: "é".repeat(MAX_REASON / 2) };
    assert_eq!((read, error), (vec![cut], None));
    for (bytes, read) in [(4, 1), (0, 0), (3, 0), (5, 0)] {
        let mut frame = Message::Left { peers: vec![7, 7] }.encode();
        frame.truncate(HEADER_BYTES + bytes);
        frame[8] = bytes as u8;
        frame.extend([0; SEAL]);
        assert_eq!(decode(&frame, 64, Phase::Open).0.len(), read, "{bytes} bytes of ranks");
    }
}
