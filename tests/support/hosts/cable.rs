//! A long or bad cable: it takes time, and loses some of what it carries.
//!
//! ```text
//!   eth0 ────── port0    cable0 ────── plug0 ─ bridge
//!                  └─ threads ─┘
//! ```
//!
//! It is two threads, one a direction, that carry Ethernet frames between two interfaces by packet sockets
//! (packet(7)). Frames must be whole: interfaces that let the hardware cut segments or add checksums, as veth pairs
//! by default pretend to, would hand over what no receiver takes. So those that send into the cable have that
//! turned off.
//!
//! The kernel has this (tc-netem(8)), but as a module; the machines that tests run on often lack modules.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::INTERFACE;
use super::namespace::Namespace;

/// Frames under way in a direction; a switch, too, drops what its queue has no place for.
const QUEUE: usize = 20_000;

/// Frames that arrive while the thread does not run: 5 ms of 10 Gb/s and some.
const SOCKET_BUFFER: libc::c_int = 8 << 20;

/// Within it a cable that is no longer needed ends.
const TICK: Duration = Duration::from_millis(20);

/// linux/ethtool.h
const ETHTOOL_STXCSUM: u32 = 0x17;
/// linux/if_packet.h
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

#[derive(Debug)]
pub(super) struct Cable {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

/// Relaxed throughout: they are settings, of which a frame may find the old or the new one.
#[derive(Debug, Default)]
struct State {
    delay_us: AtomicU64,
    lost_of_a_million: AtomicU64,
    unplugged: AtomicBool,
}

impl Cable {
    /// Puts one between host `h`'s port and the bridge; what is on the way at that moment may be lost.
    pub(super) fn between(switch: &Namespace, host: &Namespace, h: usize) -> Result<Self, String> {
        switch.ip(&format!(
            "link add cable{h} type veth peer name plug{h}\n\
             link set cable{h} addrgenmode none up\n\
             link set plug{h} addrgenmode none up\n"
        ))?;
        let plain = |name: &str| plain(name).map_err(|e| format!("checksums of {name}: {e}"));
        host.within(|| plain(INTERFACE))?;
        let open = |name: &str| socket(name).map(Arc::new).map_err(|e| format!("{name}: {e}"));
        let (near, far) = switch.within(|| {
            plain(&format!("plug{h}"))?;
            Ok::<_, String>((open(&format!("port{h}"))?, open(&format!("cable{h}"))?))
        })?;
        switch.ip(&format!("link set port{h} nomaster\nlink set plug{h} master bridge\n"))?;
        let state = Arc::new(State::default());
        let carry = |from: &Arc<OwnedFd>, to: &Arc<OwnedFd>| {
            let (from, to, state) = (from.clone(), to.clone(), state.clone());
            thread::spawn(move || carry(from.as_raw_fd(), to.as_raw_fd(), &state))
        };
        let threads = vec![carry(&near, &far), carry(&far, &near)];
        Ok(Cable { state, threads })
    }

    pub(super) fn set_delay(&self, delay: Duration) {
        let us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.state.delay_us.store(us, Relaxed);
    }

    pub(super) fn set_loss(&self, percent: f64) {
        assert!((0.0..=100.0).contains(&percent), "{percent} of a hundred");
        self.state.lost_of_a_million.store((percent * 1e4).round() as u64, Relaxed);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.state.unplugged.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "a cable broke");
        }
    }
}

/// One direction: frames leave in the order in which they came.
fn carry(from: RawFd, to: RawFd, state: &State) {
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; 1 << 16];
    let mut number = 0;
    while !state.unplugged.load(Relaxed) {
        let now = Instant::now();
        let due = queue.front().map_or(TICK, |(due, _)| due.saturating_duration_since(now));
        wait(from, due.min(TICK));
        while let Some(len) = receive(from, &mut buffer) {
            number += 1;
            let lost = draw(number) < state.lost_of_a_million.load(Relaxed);
            if !lost && queue.len() < QUEUE {
                let delay = Duration::from_micros(state.delay_us.load(Relaxed));
                queue.push_back((Instant::now() + delay, buffer[..len].to_vec()));
            }
            if queue.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                break; // before more of them come in than go out
            }
        }
        while let Some((_, frame)) = queue.pop_front_if(|(due, _)| *due <= Instant::now()) {
            send(to, &frame);
        }
    }
}

/// As good as uniform in `0..1_000_000`, and always the same for a frame's number.
fn draw(number: u64) -> u64 {
    let mut x = number.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 32)) % 1_000_000
}

/// Until there is a frame, or the time has passed.
fn wait(fd: RawFd, time: Duration) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = libc::timespec {
        tv_sec: 0, // TICK is below a second
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: one pollfd and a timespec, both live.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) };
}

/// The next frame; `None` when there is none, or the interface is down.
fn receive(fd: RawFd, buffer: &mut [u8]) -> Option<usize> {
    // SAFETY: the buffer is as long as stated.
    let got =
        unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    usize::try_from(got).ok()
}

/// Sends a frame; a full queue or an interface that is down loses it.
fn send(fd: RawFd, frame: &[u8]) {
    // SAFETY: the frame is as long as stated.
    let sent = unsafe { libc::send(fd, frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT) };
    if sent < 0 {
        let e = io::Error::last_os_error();
        let cut = e.raw_os_error() == Some(libc::EMSGSIZE);
        assert!(!cut, "a frame of {} bytes: a sender leaves it to others to cut it", frame.len());
    }
}

/// A socket that receives what comes in on an interface, and sends out of it.
fn socket(interface: &str) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the name is a C string, the address and the numbers are as long as stated, and the descriptor is new.
    unsafe {
        let index = libc::if_nametoindex(name.as_ptr());
        check(index.cast_signed() - 1)?;
        // Of no protocol it receives nothing, until it is bound to the one interface.
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let fd = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, 0))?);
        let set = |level, option, value: libc::c_int| {
            let (at, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
            check(libc::setsockopt(fd.as_raw_fd(), level, option, at, len))
        };
        set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        for (at_will, to_the_limit) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            // Root of a user namespace only (`unshare -r`) has to keep to the machine's limit.
            set(libc::SOL_SOCKET, at_will, SOCKET_BUFFER)
                .or_else(|_| set(libc::SOL_SOCKET, to_the_limit, SOCKET_BUFFER))?;
        }
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = index.cast_signed();
        let (at, len) = ((&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
        check(libc::bind(fd.as_raw_fd(), at, len))?;
        Ok(fd)
    }
}

/// Has the kernel finish what goes out of an interface of this thread's namespace: without checksums by
/// hardware there is no cutting by hardware either.
fn plain(interface: &str) -> io::Result<()> {
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let mut value = Value { command: ETHTOOL_STXCSUM, data: 0 };
    // SAFETY: zeros are a request; its name ends with one of them, and the value outlives the call.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        let most = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name[..most].iter_mut().zip(interface.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        let socket = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        let socket = OwnedFd::from_raw_fd(socket);
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request)).map(drop)
    }
}

/// What a system call returned, if that is not below zero.
fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
