//! What anybody sees who listens on the network: everything but a secret.

use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ferroccl::bootstrap::{Bootstrap, Secret, UniqueId};
use ferroccl::config::Config;
use ferroccl::{CommConfig, Communicator, Device, ReduceOp, ShrinkMode};
use socket2::{Domain, Protocol, Socket, Type};

use crate::again::{elsewhere, here};
use crate::hosts::Hosts;

/// Says that a job is over, also when it fails: its listener would wait for ever.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release); // partner: the load in `sniffed`
    }
}

/// All that interfaces of this thread's network send and receive while `job` runs, frame behind frame.
fn sniffed<T>(job: impl FnOnce() -> T) -> (T, Vec<u8>) {
    let all = i32::from((libc::ETH_P_ALL as u16).to_be());
    let mut socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(all))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let size = 64_i32 << 20;
    // SAFETY: the value is an int that lives until the call is over, and its size is given.
    let result = unsafe {
        let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
        libc::setsockopt(fd, level, libc::SO_RCVBUFFORCE, (&raw const size).cast(), 4)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let listen = || {
            let (mut bytes, mut frame) = (Vec::new(), vec![0; 1 << 17]);
            loop {
                match socket.read(&mut frame) {
                    Ok(n) => bytes.extend_from_slice(&frame[..n]),
                    // Partner: the store in `Ends`. What was sent before it is in the socket's queue.
                    Err(_) if over.load(Ordering::Acquire) => break,
                    Err(e) => {
                        let kinds = [ErrorKind::WouldBlock, ErrorKind::Interrupted];
                        assert!(kinds.contains(&e.kind()), "{e}");
                    }
                }
            }
            // linux/if_packet.h: `tp_packets` and `tp_drops` of struct tpacket_stats.
            let mut counts = [0_u32; 2];
            let mut size = 8;
            // SAFETY: the value has the 8 bytes that are said to be there, and both live until the call is over.
            let result = unsafe {
                let (fd, value) = (socket.as_raw_fd(), counts.as_mut_ptr().cast());
                libc::getsockopt(
                    fd,
                    libc::SOL_PACKET,
                    libc::PACKET_STATISTICS,
                    value,
                    &raw mut size,
                )
            };
            assert_eq!((result, counts[1]), (0, 0), "frames were missed");
            bytes
        };
        let listening = scope.spawn(listen);
        let ends = Ends(&over);
        let done = job();
        drop(ends);
        (done, listening.join().unwrap())
    })
}

fn each<T: Send>(n: u32, body: impl Fn(u32) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..n).map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What ranks send each other, to be found on the network.
const DATA: u64 = 0x5EE4_D07A_AB1E_0001;

/// A group over sockets that works, splits, and shrinks.
fn job(id: &UniqueId) {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    (config.p2p, config.shm) = (Some(false), Some(false));
    each(3, |rank| {
        let comm = Communicator::init_rank_with(&device, 3, id, rank, &config).unwrap();
        let stream = device.stream().unwrap();
        let sum = |comm: &Communicator| {
            let buffer = device.upload(&[if comm.rank() == 0 { DATA } else { 0 }; 8]).unwrap();
            comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
            assert_eq!(buffer.to_vec(&stream).unwrap(), [DATA; 8]);
        };
        sum(&comm);
        sum(&comm.split(Some(0), rank as i32).unwrap().unwrap());
        if rank < 2 {
            sum(&comm.shrink(&[2], ShrinkMode::Healthy).unwrap());
        }
        comm.finalize().unwrap();
    });
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// Whether a part of `secret` is in `bytes`: raw, in hexadecimal digits, or as a list of decimal numbers.
fn has_part(bytes: &[u8], secret: &[u8]) -> bool {
    let has = |what: &[u8]| memchr::memmem::find(bytes, what).is_some();
    secret.windows(8).any(|part| {
        let list = |between| part.iter().map(u8::to_string).collect::<Vec<_>>().join(between);
        has(part)
            || has(&hex(part))
            || has(&hex(part).to_ascii_uppercase())
            || has(list(",").as_bytes())
            || has(list(", ").as_bytes())
    })
}

/// Where `UniqueId::to_bytes` has it.
fn secret_of(id: &UniqueId) -> [u8; 32] {
    id.to_bytes()[40..72].try_into().unwrap()
}

#[test]
fn no_secret_is_on_the_wire() {
    // In a process of its own: whatever thread of a process waits for a stream may move the proxy's operations on, and one of
    // another test would connect from another network than this test's.
    if !here() {
        return elsewhere(module_path!(), "no_secret_is_on_the_wire", &[]);
    }
    let hosts = match Hosts::new(1) {
        Ok(hosts) => hosts,
        Err(why) => return crate::skip::skip(&why),
    };
    hosts.within(0, || {
        let settings = Config::default().bootstrap();
        // An id with a random secret; one of public text and a user's secret; and one that a group has agreed on.
        let random = UniqueId::new(&settings).unwrap();
        let users = b"a secret of the user's, in which no 8 bytes are sent";
        let public = UniqueId::rendezvous(([127, 0, 0, 1], 4000).into(), 8, b"a job");
        let mixed = public.mixed_with(Some(&Secret::new(users).unwrap()));
        let ((agreed, text), bytes) = sniffed(|| {
            job(&random);
            job(&mixed);
            let group = each(2, |rank| {
                let group = Bootstrap::connect(&mixed, rank, 2, &settings).unwrap();
                let made = (rank == 0).then(|| group.invite().unwrap().to_string());
                let texts = group.all_gather(made.unwrap_or_default().as_bytes()).unwrap();
                let text = String::from_utf8(texts[0].clone()).unwrap();
                (group.accept(&text.parse().unwrap()), text)
            });
            job(&group[0].0);
            group[0].clone()
        });
        // The capture is one: data is not encrypted, and an invitation is public.
        assert!(has_part(&bytes, &DATA.to_le_bytes()), "{} bytes", bytes.len());
        assert!(has_part(&bytes, text.as_bytes()));
        let secrets = [
            ("a random id", &secret_of(&random)[..]),
            ("an id with a user's secret", &secret_of(&mixed)),
            ("an id that was agreed on", &secret_of(&agreed)),
            ("a user's secret", users),
        ];
        for (what, secret) in secrets {
            assert!(!has_part(&bytes, secret), "{what} is on the network");
        }
    });
}
