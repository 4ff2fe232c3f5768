//! Compiles plugins, and connects through them.

use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::{
    MemoryHandle, MemoryKind, Net, PluginNet, RecvBuffer, RecvComm, Request, SendComm,
};

/// Those that are loaded.
pub(crate) const VERSIONS: [u32; 4] = [8, 9, 10, 11];

/// Only what hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// A file of this process's own, which takes the name in one step: another process may have loaded one of that name.
pub(crate) fn file(name: &str, make: impl FnOnce(&PathBuf)) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let temporary = directory().join(format!("{}-{number}", std::process::id()));
    make(&temporary);
    let path = directory().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::rename(&temporary, &path).unwrap();
    path
}

/// Runs the C compiler.
pub(crate) fn cc(arguments: &[String], output: &PathBuf) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/plugin/net.c");
    let mut command = Command::new(&compiler);
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC"]).args(arguments);
    if !arguments.iter().any(|argument| argument.ends_with(".o")) {
        command.arg(source);
    }
    let run = command.arg("-o").arg(output).output();
    let run = run.unwrap_or_else(|error| {
        panic!("these tests need a C compiler, as `{compiler}` or what CC names: {error}")
    });
    assert!(run.status.success(), "{command:?}: {}", String::from_utf8_lossy(&run.stderr));
}

/// A plugin of this version with these macros, in a file of its own for each test.
pub(crate) fn compile(test: &str, version: u32, macros: &[&str]) -> PathBuf {
    let mut arguments = vec!["-shared".to_owned(), format!("-DNET_VERSION={version}")];
    arguments.extend(macros.iter().map(|name| format!("-D{name}")));
    file(&format!("{test}-v{version}.so"), |path| cc(&arguments, path))
}

pub(crate) fn load_path(path: &std::path::Path) -> Result<Arc<PluginNet>, NetError> {
    PluginNet::load(path.to_str(), Duration::from_secs(10)).map(|net| net.expect("a name is there"))
}

/// A plugin of this version, compiled with these macros.
pub(crate) fn load(test: &str, version: u32, macros: &[&str]) -> Arc<PluginNet> {
    load_path(&compile(test, version, macros)).unwrap()
}

/// Plugins of all versions, which tests share.
pub(crate) fn all() -> &'static [Arc<PluginNet>] {
    static ALL: OnceLock<Vec<Arc<PluginNet>>> = OnceLock::new();
    ALL.get_or_init(|| VERSIONS.map(|version| load("shared", version, &[])).into())
}

/// `net_counts` of `net.c`.
#[repr(C)]
pub(crate) struct Counts {
    pub(crate) inits: AtomicI32,
    pub(crate) contexts: AtomicI32,
    pub(crate) listeners: AtomicI32,
    pub(crate) senders: AtomicI32,
    pub(crate) receivers: AtomicI32,
    pub(crate) registrations: AtomicI32,
    pub(crate) last_fd: AtomicI32,
    pub(crate) last_offset: AtomicU64,
}

impl Counts {
    /// Of a plugin that is loaded, and so stays.
    pub(crate) fn of(net: &PluginNet) -> &'static Counts {
        Counts::in_file(net.library())
    }

    /// Of a plugin's file, whose library stays.
    pub(crate) fn in_file(path: &str) -> &'static Counts {
        // SAFETY: it has such a variable, and is not closed.
        unsafe {
            let library = ManuallyDrop::new(libloading::Library::new(path).unwrap());
            let symbol = library.get::<*const Counts>("net_counts").unwrap();
            &*symbol.try_as_raw_ptr().unwrap().cast::<Counts>()
        }
    }

    /// Contexts, listeners, senders, receivers, registrations.
    pub(crate) fn open(&self) -> [i32; 5] {
        [&self.contexts, &self.listeners, &self.senders, &self.receivers, &self.registrations]
            .map(|count| count.load(Ordering::SeqCst))
    }
}

/// Asks again and again.
pub(crate) fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "nothing comes");
        thread::yield_now();
    }
}

/// Both ends of a connection.
pub(crate) struct Pair {
    pub(crate) sender: Box<dyn SendComm>,
    pub(crate) receiver: Box<dyn RecvComm>,
}

pub(crate) fn connect(net: &PluginNet) -> Pair {
    connect_from(net, 1, 0)
}

/// A connection from a device to another one.
pub(crate) fn connect_from(net: &PluginNet, from: usize, to: usize) -> Pair {
    let mut listener = net.listen(to).unwrap();
    let mut connecting = net.connect(from, listener.handle()).unwrap();
    let (mut sender, mut receiver) = (None, None);
    until(|| {
        sender = sender.take().or_else(|| connecting.poll().unwrap());
        receiver = receiver.take().or_else(|| listener.accept().unwrap());
        (sender.is_some() && receiver.is_some()).then_some(())
    });
    Pair { sender: sender.unwrap(), receiver: receiver.unwrap() }
}

/// Memory that an end of a connection knows.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) handle: MemoryHandle,
}

impl Pair {
    pub(crate) fn message(&mut self, bytes: Vec<u8>) -> Memory {
        let mut bytes = bytes;
        let (at, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the vector does not move its bytes, and outlives the connection or what it does with them.
        let handle = unsafe { self.sender.register(at, length, MemoryKind::Host) }.unwrap();
        Memory { bytes, handle }
    }

    pub(crate) fn buffer(&mut self, length: usize) -> Memory {
        let mut bytes = vec![0xee; length];
        // SAFETY: as above.
        let handle =
            unsafe { self.receiver.register(bytes.as_mut_ptr(), length, MemoryKind::Host) };
        Memory { handle: handle.unwrap(), bytes }
    }

    pub(crate) fn try_isend(
        &mut self,
        memory: &Memory,
        tag: u32,
    ) -> Result<Option<Request>, NetError> {
        let (at, length) = (memory.bytes.as_ptr(), memory.bytes.len());
        // SAFETY: tests keep the memory, and leave it alone.
        unsafe { self.sender.isend(at, length, tag, memory.handle) }
    }

    pub(crate) fn isend(&mut self, memory: &Memory, tag: u32) -> Request {
        until(|| self.try_isend(memory, tag).unwrap())
    }

    pub(crate) fn try_irecv(
        &mut self,
        buffers: &mut [(&mut Memory, u32)],
    ) -> Result<Option<Request>, NetError> {
        let buffers: Vec<_> = buffers
            .iter_mut()
            .map(|(memory, tag)| RecvBuffer {
                address: memory.bytes.as_mut_ptr(),
                bytes: memory.bytes.len(),
                tag: *tag,
                memory: memory.handle,
            })
            .collect();
        // SAFETY: as above.
        unsafe { self.receiver.irecv(&buffers) }
    }

    pub(crate) fn irecv(&mut self, memory: &mut Memory) -> Request {
        until(|| self.try_irecv(&mut [(&mut *memory, 0)]).unwrap())
    }

    /// Waits for a message and the request that it meets; what it was long.
    pub(crate) fn finish(&mut self, sent: Request, received: Request) -> usize {
        let mut size = [usize::MAX];
        let (mut send, mut receive) = (false, false);
        until(|| {
            send = send || self.sender.test(sent).unwrap();
            receive = receive || self.receiver.test(received, &mut size).unwrap();
            (send && receive).then_some(())
        });
        size[0]
    }
}

/// Numbers that look like chance (xorshift64*).
pub(crate) struct Chance(u64);

impl Chance {
    /// The seed is printed: what a failed test shows.
    pub(crate) fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}
