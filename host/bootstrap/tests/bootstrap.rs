//! The bootstrap as its users and its enemies meet it: through the public interface, and through sockets on
//! which the wire format is spoken by hand.

#[path = "../../../tests/support/free_port.rs"]
mod free_port;
mod support;

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl_bootstrap::wire::{self, Message};
use ferroccl_bootstrap::{Bootstrap, BootstrapError, Refusal, Result, UniqueId};
use free_port::free_port;
use support::{Speaker, group, handshake_hello, hello, loopback, member, settings};

/// What a rank gives to others: different for each, of a length that differs too.
fn block(rank: u32, call: usize) -> Vec<u8> {
    (0..rank as usize * 37 % 11 + call).map(|i| (i as u8) ^ (rank as u8)).collect()
}

fn gather_is_right(me: &Bootstrap) -> Result<()> {
    for call in 0..4 {
        let got = me.all_gather(&block(me.rank(), call))?;
        assert_eq!(got, (0..me.nranks()).map(|r| block(r, call)).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn groups_of_every_size_gather() {
    for nranks in (1..=33).chain([64]) {
        let all = group(&loopback(), nranks, &settings(60.0), |me| {
            gather_is_right(&me)?;
            me.barrier()
        });
        assert!(all.iter().all(Result::is_ok), "{nranks} ranks: {all:?}");
    }
}

#[test]
fn blocks_larger_than_socket_buffers_pass() {
    let all = group(&loopback(), 3, &settings(60.0), |me| {
        let mine = vec![me.rank() as u8; wire::MAX_DATA];
        for (rank, bytes) in me.all_gather(&mine)?.iter().enumerate() {
            assert_eq!(bytes.len(), wire::MAX_DATA);
            assert!(bytes.iter().all(|b| usize::from(*b) == rank));
        }
        match me.all_gather(&vec![0; wire::MAX_DATA + 1]) {
            Err(BootstrapError::InvalidArgument { argument: "mine", .. }) => Ok(()),
            other => panic!("{other:?}"),
        }
    });
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[test]
fn messages_are_found_by_peer_and_tag_in_whatever_order_they_come() {
    const TAGS: u64 = 5;
    let text = |from: u32, to: u32, tag: u64, i: u64| format!("{from}>{to} {tag}.{i}").into_bytes();
    let all = group(&loopback(), 4, &settings(60.0), |me| {
        let (rank, n) = (me.rank(), me.nranks());
        for tag in 0..TAGS {
            for i in 0..2 {
                for peer in 0..n {
                    me.send(peer, tag, &text(rank, peer, tag, i))?;
                }
            }
        }
        me.barrier()?; // nobody has received yet: everything is out of order
        for peer in (0..n).rev() {
            for tag in (0..TAGS).rev() {
                for i in 0..2 {
                    assert_eq!(me.recv(peer, tag)?, text(peer, rank, tag, i));
                }
            }
        }
        me.barrier()
    });
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[test]
fn a_large_message_waits_for_its_receiver() {
    let all = group(&loopback(), 2, &settings(60.0), |me| {
        let bytes = vec![0x5a; wire::MAX_DATA];
        if me.rank() == 0 {
            return me.send(1, 9, &bytes);
        }
        assert!(me.recv(0, 9)? == bytes);
        Ok(())
    });
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[test]
fn nothing_is_waited_for_without_end() {
    let all = group(&loopback(), 2, &settings(0.7), |me| {
        if me.rank() == 1 {
            thread::sleep(Duration::from_millis(1600)); // neither sends nor gathers
            return Ok(());
        }
        match me.recv(1, 4) {
            Err(BootstrapError::Timeout { what, .. }) => {
                assert_eq!(what, "rank 0 waiting for tag 4 of rank 1");
            }
            other => panic!("{other:?}"),
        }
        let first = me.barrier().unwrap_err().to_string();
        assert!(first.contains("rank 0 waiting to hear from rank 1"), "{first}");
        assert_eq!(me.barrier().unwrap_err().to_string(), first, "a broken ring stays broken");
        Ok(())
    });
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[test]
fn who_leaves_is_missed_by_those_who_wait_for_it() {
    let all = group(&loopback(), 3, &settings(60.0), |me| match me.rank() {
        1 => {
            me.send(0, 1, b"last words")?;
            Ok(())
        }
        0 => {
            assert_eq!(me.recv(1, 1)?, b"last words");
            let e = me.recv(1, 2).unwrap_err();
            assert!(matches!(e, BootstrapError::PeerLost { rank: 0, peer: 1, .. }), "{e}");
            let e = me.barrier().unwrap_err();
            assert!(matches!(e, BootstrapError::PeerLost { rank: 0, peer: 1, .. }), "{e}");
            Ok(())
        }
        // It waits for rank 0 alone, which says whom that has waited for.
        _ => {
            let e = me.barrier().unwrap_err();
            assert!(matches!(e, BootstrapError::PeerLost { rank: 2, peer: 1, .. }), "{e}");
            assert!(e.to_string().contains("left"), "{e}");
            Ok(())
        }
    });
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[test]
fn missing_ranks_are_named_to_all_who_wait() {
    let id = loopback();
    let settings = settings(0.6);
    thread::scope(|scope| {
        let ranks = [0, 2, 4].map(|rank| {
            let (id, settings) = (&id, &settings);
            scope.spawn(move || Bootstrap::connect(id, rank, 6, settings))
        });
        for rank in ranks {
            match rank.join().unwrap() {
                Err(BootstrapError::MissingRanks(missing)) => {
                    assert_eq!((missing.world_size, missing.count), (6, 3));
                    assert_eq!(missing.named, [1, 3, 5]);
                    assert!(missing.to_string().ends_with("rank 1, 3, 5"), "{missing}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn arguments_are_checked() {
    let id = UniqueId::rendezvous(([127, 0, 0, 1], 1).into(), 1, b"never used");
    for (rank, nranks, name) in [(0, 0, "nranks"), (3, 3, "rank"), (0, u32::MAX, "nranks")] {
        match Bootstrap::connect(&id, rank, nranks, &settings(1.0)) {
            Err(BootstrapError::InvalidArgument { argument, .. }) => assert_eq!(argument, name),
            other => panic!("{other:?}"),
        }
    }
    let alone = Bootstrap::connect(&id, 0, 1, &settings(1.0)).unwrap();
    assert_eq!(alone.all_gather(b"x").unwrap(), [b"x"]);
    alone.send(0, 3, b"note").unwrap();
    assert_eq!(alone.recv(0, 3).unwrap(), b"note");
    assert!(alone.recv(0, 3).is_err(), "nobody else will send it");
    assert!(matches!(
        alone.send(1, 0, b""),
        Err(BootstrapError::InvalidArgument { argument: "peer", .. })
    ));
}

#[test]
fn a_group_of_one_dismisses_its_root() {
    let id = loopback();
    let alone = Bootstrap::connect(&id, 0, 1, &settings(5.0)).unwrap();
    alone.barrier().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(id.address()).is_ok() {
        assert!(Instant::now() < deadline, "the root still listens");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Everything a stranger may do, while a group of 8 comes up. All but the last two ranks are in first, so that the
/// strangers meet a root that waits.
#[test]
fn strangers_are_turned_away_and_disturb_nobody() {
    let id = loopback();
    let settings = settings(60.0);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..6)
            .map(|rank| {
                let (id, settings) = (&id, &settings);
                scope.spawn(move || {
                    let me = Bootstrap::connect(id, rank, 8, settings)?;
                    gather_is_right(&me)
                })
            })
            .collect();

        // Silent, slow, rude and impossible ones; they stay connected until the group is up.
        let mut kept: Vec<TcpStream> = Vec::new();
        for _ in 0..20 {
            kept.push(TcpStream::connect(id.address()).unwrap());
        }
        drop(TcpStream::connect(id.address()).unwrap());
        // A stranger's codes: 1 is malformed, 2 another version, 3 the wrong secret.
        let reject_to = |bytes: &[u8]| Speaker::meet(id.address()).say(bytes).hear_reject();
        assert_eq!(reject_to(b"GET / HTTP/1.1\r\n\r\n"), 1);
        assert_eq!(reject_to(&[0xff; 100_000]), 1);
        assert_eq!(reject_to(b"FerroHsC\x04\0\0\0 and whatever version 4 says"), 2);
        assert_eq!(reject_to(&wire::Message::Goodbye.encode()), 1, "a message of a stranger");
        assert_eq!(reject_to(&[b"FerroHsC\x03\0\0\0", &[7; 60][..]].concat()), 3);
        for cut in [1, 11, 12, 40, 71] {
            let half = Speaker::meet(id.address());
            kept.push(half.say(&handshake_hello(&id)[..cut]).into_stream());
        }

        // A member that sends nonsense is told so, too.
        let refusal_to = |bytes: &[u8]| member(&id).say(bytes).hear_refusal();
        assert_eq!(refusal_to(b"GET / HTTP/1.1\r\n\r\n"), Refusal::Malformed);
        assert_eq!(refusal_to(b"FCCL\x03\x02\0\0\x10\0\0\0"), Refusal::WrongVersion { ours: 5 });
        assert_eq!(refusal_to(b"FCCL\x05\x02\0\0\xff\xff\xff\xff"), Refusal::Malformed);
        assert_eq!(refusal_to(b"FCCL\x05\x07\0\0\x10\0\0\0"), Refusal::Malformed, "data");
        let refusal_of = |message: &Message| member(&id).tell(message).hear_refusal();
        assert_eq!(refusal_of(&Message::Met), Refusal::NotExpected);
        for cut in [0, 1, 11, 12, 20] {
            kept.push(member(&id).say(&hello(7, 8).encode()[..cut]).into_stream());
        }

        // Who knows the secret and is still wrong is told what.
        // Rank 6 by hand: with it there is somebody who waits, and whose size of the group counts.
        let six = member(&id).tell(&hello(6, 8));
        match Bootstrap::connect(&id, 6, 8, &settings) {
            Err(BootstrapError::Refused { refusal, root }) => {
                assert_eq!((&refusal, root), (&Refusal::RankTwice { rank: 6 }, id.address()));
                assert_eq!(refusal.to_string(), "rank 6 was sent twice");
            }
            other => panic!("{other:?}"),
        }
        let hello_of = |rank, world_size| refusal_of(&hello(rank, world_size));
        assert_eq!(hello_of(8, 8), Refusal::RankOutOfRange { rank: 8, world_size: 8 });
        assert_eq!(
            hello_of(u32::MAX, 8),
            Refusal::RankOutOfRange { rank: u32::MAX, world_size: 8 }
        );
        assert_eq!(hello_of(0, 0), Refusal::RankOutOfRange { rank: 0, world_size: 0 });
        assert_eq!(hello_of(7, 9), Refusal::OtherWorldSize { theirs: 9, ours: 8 });
        assert_eq!(
            hello_of(3, u32::MAX),
            Refusal::RankOutOfRange { rank: 3, world_size: u32::MAX }
        );

        // Who does not know it is told that, whatever it bends.
        let other = UniqueId::rendezvous(id.address(), 1, b"another job");
        match Bootstrap::connect(&other, 7, 8, &support::settings(5.0)) {
            Err(BootstrapError::Refused { refusal, .. }) => {
                assert_eq!(refusal, Refusal::WrongSecret);
            }
            other => panic!("{other:?}"),
        }
        for bit in (12 * 8..72 * 8).step_by(7) {
            let mut hello = handshake_hello(&id);
            hello[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(reject_to(&hello), 3, "bit {bit}");
        }
        // A hello that was recorded gets a challenge. Neither the root's own proof answers it, nor any other bytes.
        for own in [true, false] {
            let mut again = Speaker::meet(id.address()).say(&handshake_hello(&id));
            let challenge = again.hear::<64>();
            let proof = if own { &challenge[32..] } else { &[7; 32] };
            assert_eq!(again.say(proof).hear_reject(), 3);
        }

        drop(six); // so that the real one can come
        let last = [6, 7].map(|rank| {
            let (id, settings) = (&id, &settings);
            scope.spawn(move || gather_is_right(&Bootstrap::connect(id, rank, 8, settings)?))
        });
        for rank in ranks.into_iter().chain(last) {
            rank.join().unwrap().unwrap();
        }
        // The root has ended and closed what strangers still held.
        for mut stranger in kept {
            stranger.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let mut rest = Vec::new();
            match stranger.read_to_end(&mut rest) {
                Ok(_) => {}
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
            }
        }
    });
}

#[test]
fn a_flood_of_silent_strangers_keeps_nobody_out() {
    let id = loopback();
    let flood: Vec<_> = (0..600).map(|_| TcpStream::connect(id.address()).unwrap()).collect();
    let all = group(&id, 4, &settings(60.0), |me| gather_is_right(&me));
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    // The first of them had to make room, and the root is over for the last.
    let mut flood = flood.into_iter();
    assert_eq!(Speaker::of(flood.next().unwrap()).hear_reject(), 5, "busy");
}

#[test]
fn a_rank_that_breaks_off_may_come_again() {
    let id = loopback();
    drop(member(&id).tell(&hello(1, 2)));
    let all = group(&id, 2, &settings(60.0), |me| gather_is_right(&me));
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[test]
fn an_id_whose_group_is_complete_is_over() {
    let id = loopback();
    let all = group(&id, 2, &settings(60.0), |me| me.barrier());
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    match Bootstrap::connect(&id, 0, 2, &settings(60.0)) {
        Err(BootstrapError::NoRoot { address, .. }) => {
            assert_eq!(address, id.address());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn ipv6() {
    let Ok(id) = UniqueId::listening_at("[::1]:0".parse().unwrap()) else {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    };
    assert!(id.address().is_ipv6());
    let all = group(&id, 4, &settings(60.0), |me| {
        me.send((me.rank() + 2) % 4, 0, b"over")?;
        assert_eq!(me.recv((me.rank() + 2) % 4, 0)?, b"over");
        gather_is_right(&me)
    });
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[test]
fn comm_ids_of_every_form_bring_groups_together() {
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        let comm_id = format!("{host}:{}", free_port()).parse().unwrap();
        let id = UniqueId::from_comm_id(&comm_id, None).unwrap();
        // One after the other at the same place; rank 0 comes last.
        for _ in 0..3 {
            let all = thread::scope(|scope| {
                let ranks = [3, 2, 1, 0].map(|rank| {
                    let settings = settings(60.0);
                    let id = &id;
                    thread::sleep(Duration::from_millis(5));
                    scope.spawn(move || {
                        gather_is_right(&Bootstrap::connect(id, rank, 4, &settings)?)
                    })
                });
                ranks.map(|rank| rank.join().unwrap())
            });
            assert!(all.iter().all(Result::is_ok), "{host}: {all:?}");
        }
    }
}

#[test]
fn the_setting_makes_the_id() {
    let mut settings = settings(60.0);
    settings.comm_id = Some("127.0.0.1:4711".parse().unwrap());
    let id = UniqueId::new(&settings).unwrap();
    assert_eq!(id, UniqueId::new(&settings).unwrap());
    assert!(id.is_rendezvous() && id.address() == "127.0.0.1:4711".parse::<SocketAddr>().unwrap());
    settings.comm_id = None;
    settings.socket_ifname = Some("lo".parse().unwrap());
    assert!(UniqueId::new(&settings).unwrap().address().ip().is_loopback());
    settings.socket_ifname = Some("=nonesuch".parse().unwrap());
    let e = UniqueId::new(&settings).unwrap_err().to_string();
    assert!(e.contains("NCCL_SOCKET_IFNAME==nonesuch") && e.contains("lo (127.0.0.1)"), "{e}");
}

#[test]
fn a_rendezvous_steps_over_ports_that_others_use() {
    // One is silent, one talks another protocol, one is another job's root.
    let three_in_a_row = || {
        let silent = TcpListener::bind("127.0.0.1:0").ok()?;
        let base = silent.local_addr().ok()?.port();
        let rude = TcpListener::bind(("127.0.0.1", base.checked_add(1)?)).ok()?;
        let root = UniqueId::listening_at(([127, 0, 0, 1], base.checked_add(2)?).into()).ok()?;
        Some((silent, base, rude, root))
    };
    // Others may have a port in between.
    let (_silent, base, rude, _foreign_root) =
        (0..1000).find_map(|_| three_in_a_row()).expect("three free ports in a row");
    thread::spawn(move || {
        for stream in rude.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"220 mail ready\r\n");
        }
    });
    let id = UniqueId::rendezvous(([127, 0, 0, 1], base).into(), 8, b"stepping");
    let all = group(&id, 3, &settings(60.0), |me| gather_is_right(&me));
    assert!(all.iter().all(Result::is_ok), "{all:?}");
}

#[test]
fn what_is_not_a_root_is_said_to_be_none() {
    let rude = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = rude.local_addr().unwrap();
    thread::spawn(move || {
        for stream in rude.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"220 mail ready\r\n");
        }
    });
    let id = UniqueId::rendezvous(address, 1, b"x");
    match Bootstrap::connect(&id, 1, 2, &settings(5.0)) {
        Err(BootstrapError::NotARoot { address: at, .. }) => {
            assert_eq!(at, address);
        }
        other => panic!("{other:?}"),
    }
    let e = Bootstrap::connect(&id, 0, 2, &settings(60.0)).unwrap_err();
    assert!(
        matches!(e, BootstrapError::System { .. }) && e.to_string().contains("rank 0 listening"),
        "{e}"
    );
}

#[test]
fn nobody_at_all_is_an_error_in_time() {
    let id = UniqueId::rendezvous(([127, 0, 0, 1], free_port()).into(), 1, b"x");
    match Bootstrap::connect(&id, 1, 2, &settings(0.4)) {
        Err(BootstrapError::NoRoot { trouble, .. }) => {
            assert!(trouble.contains("refused"), "{trouble}");
        }
        other => panic!("{other:?}"),
    }
}
