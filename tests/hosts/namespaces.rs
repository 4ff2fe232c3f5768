//! The hosts of `support/hosts`: they reach each other and nothing else, can be cut off and killed, and leave nothing.
//!
//! What runs in a host is this test program, started again: `member` is then the body.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::hosts::Hosts;

/// For what must come.
const LONG: Duration = Duration::from_secs(60);
/// For what must not come.
const A_WHILE: Duration = Duration::from_millis(300);

fn hosts(n: usize) -> Option<Hosts> {
    Hosts::new(n).map_err(|why| crate::skip::skip(&why)).ok()
}

/// This program in a host, as `role`.
fn start(hosts: &Hosts, h: usize, role: &str) -> Child {
    hosts
        .command(h, std::env::current_exe().unwrap())
        .args(crate::again::only(module_path!(), "member"))
        .env("FERROCCL_TEST_ROLE", role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn member() {
    match std::env::var("FERROCCL_TEST_ROLE").as_deref() {
        Ok("echo") => echo(),
        Ok("family") => family(),
        _ => (),
    }
}

/// Says its port, and sends back what it is sent.
fn echo() {
    let listener = TcpListener::bind("[::]:0").unwrap(); // of both families
    println!("\nport {}", listener.local_addr().unwrap().port());
    for stream in listener.incoming() {
        let stream = stream.unwrap();
        thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
    }
}

/// Has a child and a grandchild, who do not read what is sent to them.
fn family() {
    let script = "sleep 200 & echo; echo children; trap '' TERM; sleep 200";
    Command::new("sh").args(["-c", script]).status().unwrap();
}

/// The rest of the line that begins with `word`.
fn told(child: &mut Child, word: &str) -> String {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find_map(|line| line.strip_prefix(word).map(str::to_owned)).expect(word)
}

/// An echo in a host, and its port.
fn echo_in(hosts: &Hosts, h: usize) -> (Child, u16) {
    let mut child = start(hosts, h, "echo");
    let port = told(&mut child, "port ").parse().unwrap();
    (child, port)
}

fn connect(hosts: &Hosts, from: usize, to: impl Into<IpAddr>, port: u16) -> TcpStream {
    let to = SocketAddr::new(to.into(), port);
    let stream = hosts.within(from, || TcpStream::connect_timeout(&to, LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Whether a word comes back within a time.
fn answers(mut stream: &TcpStream, word: &[u8; 4], time: Duration) -> bool {
    stream.write_all(word).unwrap();
    heard(stream, word, time)
}

fn heard(mut stream: &TcpStream, word: &[u8; 4], time: Duration) -> bool {
    stream.set_read_timeout(Some(time)).unwrap();
    let mut answer = [0; 4];
    match stream.read_exact(&mut answer) {
        Ok(()) => answer == *word,
        Err(e) if e.kind() == ErrorKind::WouldBlock => false,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn hosts_reach_each_other() {
    let Some(hosts) = hosts(3) else { return };
    let echoes: Vec<_> = (0..hosts.len()).map(|h| echo_in(&hosts, h)).collect();
    for (to, (_, port)) in echoes.iter().enumerate() {
        for from in 0..hosts.len() {
            for address in [IpAddr::from(hosts.ipv4(to)), hosts.ipv6(to).into()] {
                let stream = connect(&hosts, from, address, *port);
                assert!(answers(&stream, b"ping", LONG), "{from} to {address}");
            }
        }
    }
}

#[test]
fn a_host_is_a_machine_of_its_own() {
    let Some(hosts) = hosts(2) else { return };
    // A port of the machine's, and of one host's loopback.
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    let inside = hosts.within(1, || TcpListener::bind(("127.0.0.1", port))).unwrap();
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let refused = hosts.within(0, || TcpStream::connect(loopback)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    hosts.within(1, || TcpStream::connect(loopback)).unwrap();
    inside.accept().unwrap();
    // They have no way out, and nobody has a way in.
    let unreachable =
        hosts.within(0, || TcpStream::connect("192.0.2.1:80")).map_err(|e| e.kind()).unwrap_err();
    assert_eq!(unreachable, ErrorKind::NetworkUnreachable);

    let script = "echo $(cat /proc/sys/kernel/hostname) $NCCL_HOSTID $NCCL_SOCKET_IFNAME";
    for h in 0..2 {
        let output = hosts.command(h, "sh").args(["-c", script]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, format!("host{h} host{h} =eth0\n"));
    }
    assert_ne!(std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), "host1\n");
}

#[test]
fn two_sets_of_hosts_do_not_meet() {
    let Some(one) = hosts(2) else { return };
    let other = Hosts::new(2).unwrap();
    let port = 4242;
    let here = one.within(1, || TcpListener::bind((one.ipv4(1), port))).unwrap();
    let there = other.within(1, || TcpListener::bind((other.ipv4(1), port))).unwrap();
    let stream = connect(&one, 0, one.ipv4(1), port);
    drop(there);
    assert_eq!(here.accept().unwrap().1, stream.local_addr().unwrap());
}

#[test]
fn cut_and_restored() {
    let Some(hosts) = hosts(3) else { return };
    let (_child, port) = echo_in(&hosts, 1);
    for address in [IpAddr::from(hosts.ipv4(1)), hosts.ipv6(1).into()] {
        let [near, far] = [1, 0].map(|from| connect(&hosts, from, address, port));
        assert!(answers(&near, b"ping", LONG) && answers(&far, b"ping", LONG));
        hosts.cut(1).unwrap();
        assert!(!answers(&far, b"pong", A_WHILE), "a cable that is pulled carries nothing");
        assert!(answers(&near, b"pong", LONG), "a host reaches itself");
        hosts.restore(1).unwrap();
        assert!(heard(&far, b"pong", LONG), "what was sent meanwhile arrives");
        assert!(answers(&far, b"peng", LONG));
    }
    // The others are not concerned.
    hosts.cut(1).unwrap();
    let (_child, port) = echo_in(&hosts, 2);
    assert!(answers(&connect(&hosts, 0, hosts.ipv4(2), port), b"ping", LONG));
}

#[test]
fn parted() {
    let Some(hosts) = hosts(3) else { return };
    let echoes: Vec<_> = (0..2).map(|h| echo_in(&hosts, h)).collect();
    let between = connect(&hosts, 1, hosts.ipv4(0), echoes[0].1);
    assert!(answers(&between, b"ping", LONG));
    hosts.part(0, 1).unwrap();
    assert!(!answers(&between, b"pong", A_WHILE), "what is sent is lost");
    for (h, (_, port)) in echoes.iter().enumerate() {
        assert!(answers(&connect(&hosts, 2, hosts.ipv4(h), *port), b"ping", LONG));
    }
}

#[test]
fn far_away() {
    let Some(hosts) = hosts(3) else { return };
    let (_child, port) = echo_in(&hosts, 1);
    let stream = connect(&hosts, 0, hosts.ipv4(1), port);
    let delay = Duration::from_millis(40);
    hosts.delay(1, 40).unwrap();
    let started = Instant::now();
    assert!(answers(&stream, b"ping", LONG));
    assert!(started.elapsed() >= 2 * delay, "there and back");
    // Both ends far away; and a cut cable is cut, however long.
    hosts.delay(0, 60).unwrap();
    let started = Instant::now();
    assert!(answers(&stream, b"pong", LONG));
    assert!(started.elapsed() >= Duration::from_millis(200));
    hosts.delay(0, 0).unwrap();
    hosts.cut(1).unwrap();
    assert!(!answers(&stream, b"ping", A_WHILE));
    hosts.restore(1).unwrap();
    assert!(heard(&stream, b"ping", LONG));
}

/// Random-looking bytes there and back, whole.
fn stream_of_bytes(hosts: &Hosts, address: impl Into<IpAddr>, port: u16, len: usize) {
    let data: Vec<u8> =
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let stream = connect(hosts, 0, address, port);
    stream.set_read_timeout(Some(LONG)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| (&stream).write_all(&data).unwrap());
        let mut back = vec![0; len];
        (&stream).read_exact(&mut back).unwrap();
        assert!(back == data);
    });
}

#[test]
fn lossy() {
    let Some(hosts) = hosts(2) else { return };
    let (_child, port) = echo_in(&hosts, 1);
    stream_of_bytes(&hosts, hosts.ipv4(1), port, 20_000_000);
    hosts.loss(1, 0.0).unwrap();
    stream_of_bytes(&hosts, hosts.ipv4(1), port, 5_000_000);
    hosts.loss(1, 1.0).unwrap();
    stream_of_bytes(&hosts, hosts.ipv4(1), port, 1_000_000);
    stream_of_bytes(&hosts, hosts.ipv6(1), port, 1_000_000);
    hosts.loss(1, 0.0).unwrap();
    let stream = connect(&hosts, 0, hosts.ipv4(1), port);
    hosts.loss(1, 100.0).unwrap();
    assert!(!answers(&stream, b"ping", A_WHILE));
    hosts.loss(1, 0.0).unwrap();
    assert!(heard(&stream, b"ping", LONG));
}

#[test]
fn killed_with_all_its_family() {
    let Some(hosts) = hosts(2) else { return };
    let (_echo, port) = echo_in(&hosts, 0);
    let mut parent = start(&hosts, 1, "family");
    told(&mut parent, "children");
    // The program, the shell, and what it started; `sleep` may not have begun to be one yet.
    let born = Instant::now();
    while hosts.processes(1).len() < 4 {
        assert!(born.elapsed() < LONG, "{:?}", hosts.processes(1));
        thread::sleep(Duration::from_millis(1));
    }
    let mut stream = hosts.within(1, || TcpStream::connect((hosts.ipv4(0), port))).unwrap();
    hosts.kill(1).unwrap();
    assert_eq!(hosts.processes(1), [0; 0]);
    assert!(!parent.wait().unwrap().success());
    // This process goes on, and so does the host.
    stream.write_all(b"ping").unwrap();
    assert!(hosts.command(1, "true").status().unwrap().success());
    assert_eq!(hosts.processes(0).len(), 1);
}

/// The processes and files of this machine that are of one of the namespaces.
fn holders(links: &[String]) -> Vec<String> {
    let entries = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
    let processes: Vec<_> = entries("/proc").filter(|e| e.path().join("ns").exists()).collect();
    let mut holders = Vec::new();
    for process in processes {
        let of = process.path();
        let files = entries(of.join("fd").to_str().unwrap()).map(|e| e.path());
        let threads = entries(of.join("task").to_str().unwrap()).map(|e| e.path().join("ns/net"));
        for path in files.chain(threads) {
            let Ok(link) = std::fs::read_link(&path) else { continue };
            if links.iter().any(|l| link.as_os_str() == l.as_str()) {
                holders.push(format!("{} {link:?}", path.display()));
            }
        }
    }
    holders
}

#[test]
fn nothing_is_left() {
    let interfaces = || {
        let entries = std::fs::read_dir("/sys/class/net").unwrap().flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name()).collect();
        names.sort();
        names
    };
    let before = interfaces();
    for panics in [false, true] {
        let Some(hosts) = hosts(2) else { return };
        hosts.delay(0, 1).unwrap();
        let mut children = vec![start(&hosts, 0, "family"), start(&hosts, 1, "family")];
        children.iter_mut().for_each(|child| drop(told(child, "children")));
        let links = hosts.links();
        assert!(holders(&links).len() > 4);
        assert_eq!(interfaces(), before, "the machine's own network is not touched");
        let ended = catch_unwind(AssertUnwindSafe(move || {
            let _hosts = hosts;
            assert!(!panics, "on purpose");
        }));
        assert_eq!(ended.is_err(), panics);
        // Another test's child, between its fork and its exec, has copies of all files.
        let gone = Instant::now();
        while !holders(&links).is_empty() {
            assert!(gone.elapsed() < LONG, "{:#?}", holders(&links));
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(interfaces(), before);
        for child in &mut children {
            assert!(!child.wait().unwrap().success());
        }
    }
}

#[test]
fn what_cannot_be_says_why() {
    let Some(hosts) = hosts(1) else { return };
    let why = Hosts::new(300).unwrap_err();
    assert!(why.contains("more than 255"), "{why}");
    let missing = hosts.command(0, "/no/such/program").spawn().unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}
