//! Memory for multicast objects, and the objects, by the runtime's own interface. The stand-in plays the switch: what is stored at an
//! address of an object is stored in the memory of all members.

use std::ffi::{c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::runtime::{Event, Memory, Multicast, Runtime};
use ferroccl::{Device, Error};

use crate::again::{again, elsewhere, here};
use crate::errors::{no_more, settled, until};
use crate::seccomp;
use crate::stand_in::{Kind, alone, fail, live, ready, symbol};
use crate::streams::between_two_calls;

/// More than two of the 2 MiB of which sizes are multiples, by a word.
const BYTES: usize = (4 << 20) + 4;
/// Places of words in such memory.
const PLACES: [usize; 4] = [0, 4096, 2 << 20, BYTES - 4];

type Shared = Arc<dyn Memory>;

/// What the stand-in has of what this is about.
fn objects() -> [i64; 5] {
    [Kind::Allocation, Kind::Handle, Kind::Reservation, Kind::Mapped, Kind::Reached].map(live)
}

fn runtimes(gpus: u32) -> Vec<CudaRuntime> {
    (0..gpus).map(|gpu| CudaRuntime::new(gpu).unwrap()).collect()
}

/// Where the host finds a word of a GPU's memory.
fn word_at(memory: &Shared, place: usize) -> *mut u32 {
    assert!(place + 4 <= memory.len());
    std::ptr::with_exposed_provenance_mut((memory.address() + place as u64) as usize)
}

fn word(memory: &Shared, place: usize) -> u32 {
    // SAFETY: the stand-in's memory is the host's, and no kernel runs.
    unsafe { word_at(memory, place).read_volatile() }
}

fn set_word(memory: &Shared, place: usize, value: u32) {
    // SAFETY: as above.
    unsafe { word_at(memory, place).write_volatile(value) }
}

fn at(memory: &Shared, place: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(memory.address() as usize + place)
}

/// Stores a word through an object's addresses.
fn store(bound: &Shared, place: usize, value: u32) -> c_int {
    let store: unsafe extern "C" fn(*mut c_void, u32) -> c_int = symbol("fake_cuda_multimem_store");
    // SAFETY: an address of no memory is an error.
    unsafe { store(at(bound, place), value) }
}

/// The sum of the words at a place, through an object's addresses.
fn sum(bound: &Shared, place: usize) -> u32 {
    let sum: unsafe extern "C" fn(*mut c_void, *mut u32) -> c_int =
        symbol("fake_cuda_multimem_sum");
    let mut result = 0;
    // SAFETY: an address of no memory is an error; a place for the sum.
    assert_eq!(unsafe { sum(at(bound, place), &raw mut result) }, 0);
    result
}

/// Whether kernels of a GPU have access to memory (`cuMemGetAccess`).
fn has_access(gpu: c_int, memory: &Shared) -> bool {
    let retain: unsafe extern "C" fn(*mut usize, c_int) -> c_int =
        symbol("cuDevicePrimaryCtxRetain");
    let push: unsafe extern "C" fn(usize) -> c_int = symbol("cuCtxPushCurrent_v2");
    let pop: unsafe extern "C" fn(*mut usize) -> c_int = symbol("cuCtxPopCurrent_v2");
    let ask: unsafe extern "C" fn(*mut u64, *const [c_int; 2], u64) -> c_int =
        symbol("cuMemGetAccess");
    // A CUmemLocation of a device.
    let (mut context, mut flags, location) = (0, 0, [1, gpu]);
    // SAFETY: places for what is asked.
    let codes = unsafe {
        [
            retain(&raw mut context, gpu),
            push(context),
            ask(&raw mut flags, &raw const location, memory.address()),
            pop(&raw mut context),
        ]
    };
    assert_eq!(codes, [0; 4]);
    flags == 3
}

/// An object of all these GPUs, which have joined it.
fn joined(gpus: &[CudaRuntime]) -> Vec<Arc<dyn Multicast>> {
    let members = gpus.len() as u32;
    let first = gpus[0].create_multicast(members, BYTES).unwrap();
    let handle = first.export().unwrap();
    let others = gpus[1..].iter().map(|gpu| gpu.open_multicast(&handle, members, BYTES).unwrap());
    let all: Vec<_> = [first].into_iter().chain(others).collect();
    all.iter().for_each(|object| object.join().unwrap());
    all
}

fn windows(gpus: &[CudaRuntime]) -> Vec<Shared> {
    gpus.iter().map(|gpu| gpu.allocate_window(BYTES).unwrap()).collect()
}

/// `memory` bound to an object of all these GPUs.
fn bound(gpus: &[CudaRuntime], memory: &[Shared]) -> Vec<Shared> {
    let addresses: Vec<u64> = memory.iter().map(|memory| memory.address()).collect();
    let bind = |(object, memory): (Arc<dyn Multicast>, &Shared)| object.bind(memory, &addresses);
    joined(gpus).into_iter().zip(memory).map(|pair| bind(pair).unwrap()).collect()
}

#[test]
fn two_to_four_gpus_reach_each_others_memory_by_one_address() {
    elsewhere(module_path!(), "one_address", &[("FAKE_CUDA_DEVICES", "4")]);
}

/// Its part in a process with so many GPUs.
#[test]
fn one_address() {
    if !here() || !ready() {
        return;
    }
    for n in 2..=4 {
        let gpus = runtimes(n);
        let before = objects();
        let memory = windows(&gpus);
        for (gpu, memory) in gpus.iter().zip(&memory) {
            assert!(memory.is_shared() && memory.len() == BYTES);
            gpu.can_multicast(memory).unwrap();
            assert_eq!(PLACES.map(|place| word(memory, place)), [0; 4]);
        }
        let bound = bound(&gpus, &memory);
        for (i, (gpu, bound)) in (0..).zip(&bound).enumerate() {
            assert!(has_access(gpu, bound) && bound.len() == BYTES && !bound.is_shared());
            for (j, place) in (1..).zip(PLACES) {
                let value = 100 * i as u32 + j;
                assert_eq!(store(bound, place, value), 0);
                assert!(memory.iter().all(|memory| word(memory, place) == value));
                set_word(&memory[i], place, 7);
                assert_eq!(sum(bound, place), (n - 1) * value + 7);
            }
        }
        // What is bound keeps the memory and the object.
        drop(memory);
        assert_eq!(store(&bound[0], 0, 1), 0);
        drop(bound);
        until(|| no_more(objects(), before));
    }
}

#[test]
fn memory_is_bound_once_all_have_joined_and_only_where_it_belongs() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let gpus = runtimes(2);
    let memory = windows(&gpus);
    let object = gpus[0].create_multicast(2, BYTES).unwrap();
    object.join().unwrap();
    let code = |result: ferroccl::Result<()>| match result {
        Err(Error::Cuda(error)) => (error.call(), error.code()),
        other => panic!("{other:?}"),
    };
    assert_eq!(code(object.join()), ("cuMulticastAddDevice", 101));
    // A driver waits; the stand-in does not.
    let bind = || object.bind(&memory[0], &[]).map(drop);
    assert_eq!(code(bind()), ("cuMulticastBindMem", 401));
    let other = gpus[1].open_multicast(&object.export().unwrap(), 2, BYTES).unwrap();
    other.join().unwrap();
    let before = objects();
    // A bind that fails half-way leaves nothing, and so can be made again.
    for call in ["cuMulticastBindMem", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
        fail(call, 0, 1);
        assert_eq!(code(bind()).0, call);
        until(|| no_more(objects(), before));
    }
    let first = object.bind(&memory[0], &[]).unwrap();
    assert_eq!(store(&first, 0, 1), 719, "the other one's memory is missing");
    assert_eq!(code(bind()).0, "cuMulticastBindMem");

    let plain = gpus[0].allocate_shared(BYTES).unwrap();
    let large = gpus[1].allocate_window(3 * BYTES).unwrap();
    let cases = [
        (&object, &plain, "is not of Runtime::allocate_window"),
        (&object, &memory[1], "another GPU's"),
        (&other, &memory[0], "another GPU's"),
        (&other, &large, "bytes, and the multicast object 6291456"),
    ];
    for (object, memory, why) in cases {
        let error = object.bind(memory, &[]).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { argument: "memory", .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    for (memory, why) in
        [(&plain, "not of Runtime::allocate_window"), (&memory[1], "another GPU's")]
    {
        let error = gpus[0].can_multicast(memory).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    // What was refused has changed nothing.
    let second = other.bind(&memory[1], &[]).unwrap();
    assert_eq!((store(&first, 8, 5), sum(&second, 8)), (0, 10));
}

#[test]
fn a_gpu_without_multicast_has_other_memory_and_says_what_is_missing() {
    for (has, why) in [
        ("6", "it has no multicast objects"),
        ("5", "cannot be mapped where a program says"),
        ("3", "cannot be handed over as a file descriptor"),
    ] {
        let variables = [("FAKE_CUDA_MULTICAST", has), ("FERROCCL_TEST_WHY", why)];
        elsewhere(module_path!(), "without_multicast", &variables);
    }
}

/// Its part in a process with such GPUs.
#[test]
fn without_multicast() {
    if !here() || !ready() {
        return;
    }
    let why = std::env::var("FERROCCL_TEST_WHY").unwrap();
    let gpu = CudaRuntime::new(0).unwrap();
    let before = objects();
    let memory = gpu.allocate_window(BYTES).unwrap();
    assert!(memory.is_shared());
    assert_eq!(PLACES.map(|place| word(&memory, place)), [0; 4]);
    assert_eq!(objects(), [before[0] + 1, 0, 0, 0, 0]);
    assert_eq!(gpu.export(&memory).unwrap().len(), 64, "a CUDA IPC handle");
    for error in [
        gpu.can_multicast(&memory).unwrap_err(),
        gpu.create_multicast(2, BYTES).unwrap_err(),
        gpu.open_multicast(&[], 2, BYTES).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains(&why), "{error}");
    }
}

#[test]
fn another_gpu_of_the_process_reaches_a_window_once_it_is_told() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let gpus = runtimes(2);
    let memory = gpus[0].allocate_window(BYTES).unwrap();
    assert!(has_access(0, &memory) && !has_access(1, &memory));
    gpus[0].reach(&memory).unwrap();
    assert!(!has_access(1, &memory));
    gpus[1].reach(&memory).unwrap();
    assert!(has_access(0, &memory) && has_access(1, &memory));
    fail("cuMemSetAccess", 0, 217);
    assert!(matches!(gpus[1].reach(&memory), Err(Error::Cuda(_))));
}

#[test]
fn what_cannot_be_allocated_leaves_nothing() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let gpu = CudaRuntime::new(0).unwrap();
    let before = settled(objects);
    for call in
        ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async"]
    {
        fail(call, 0, 1);
        let error = gpu.allocate_window(BYTES).unwrap_err();
        assert!(matches!(&error, Error::Cuda(error) if error.call() == call), "{error}");
        until(|| no_more(objects(), before));
    }
    for bytes in [1 << 40, usize::MAX] {
        let error = gpu.allocate_window(bytes).unwrap_err();
        assert!(matches!(error, Error::System { .. }), "{error}");
        assert!(error.to_string().contains("allocating"), "{error}");
    }
    // 0 bytes are legal.
    drop(gpu.allocate_window(0).unwrap());
    until(|| no_more(objects(), before));
}

/// What was dropped is freed at once when there is no other memory. As long as a stream has something to do the watch frees nothing.
#[test]
fn dropped_windows_make_room() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let gpus = runtimes(2);
    let (stream, gate) = (gpus[0].stream().unwrap(), Event::new());
    let before = settled(objects);
    let memory = windows(&gpus);
    let bound = bound(&gpus, &memory);
    stream.wait(&gate);
    drop((memory, bound));
    // Of each GPU a window and its part of an object, which are mapped.
    assert_eq!(live(Kind::Handle), before[1] + 4);
    fail("cuMemCreate", 0, 2);
    let window = gpus[0].allocate_window(BYTES).unwrap();
    assert_eq!(live(Kind::Handle), before[1] + 2 + 1);
    gate.complete(Ok(()));
    stream.synchronize().unwrap();
    drop(window);
    until(|| no_more(objects(), before));
}

/// Neither windows nor what is bound to an object.
#[test]
fn dropping_holds_nobody_up() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let before = settled(objects);
    let gpus = runtimes(2);
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let memory = windows(&gpus);
    let made = (bound(&gpus, &memory), memory, gpus[0].create_multicast(2, BYTES).unwrap());
    let made = Mutex::new(Some(made));
    between_two_calls(&device, |_| made.lock().unwrap().take());
    drop((device, gpus));
    until(|| no_more(objects(), before));
}

/// A handle with other bytes from `from` on.
fn changed(handle: &[u8], from: usize, bytes: &[u8]) -> Vec<u8> {
    let mut handle = handle.to_vec();
    handle[from..from + bytes.len()].copy_from_slice(bytes);
    handle
}

#[test]
fn handles_of_nothing_are_errors() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let gpus = runtimes(2);
    let before = settled(objects);
    let memory = gpus[0].allocate_window(BYTES).unwrap();
    let object = gpus[0].create_multicast(2, BYTES).unwrap();
    let (handle, of_object) = (gpus[0].export(&memory).unwrap(), object.export().unwrap());
    assert_eq!(handle, gpus[0].export(&memory).unwrap(), "exported once");
    let import = |handle: &[u8]| gpus[1].import(handle, BYTES).map(drop);
    let open = |handle: &[u8]| gpus[1].open_multicast(handle, 2, BYTES).map(drop);
    import(&handle).unwrap();
    open(&of_object).unwrap();

    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    for (good, of_other, take) in [
        (&handle, &of_object, &import as &dyn Fn(&[u8]) -> ferroccl::Result<()>),
        (&of_object, &handle, &open),
    ] {
        let malformed = [
            Vec::new(),
            good[1..].to_vec(),
            vec![0xff; good.len()],
            of_other.clone(),
            // Of another file.
            changed(good, 24, &1_u64.to_ne_bytes()),
            // Of fewer bytes than are asked for.
            changed(good, 32, &4096_u64.to_ne_bytes()),
        ];
        for handle in malformed {
            let error = take(&handle).unwrap_err();
            assert!(matches!(error, Error::Bootstrap(_)), "{handle:?}: {error}");
        }
        // Of a descriptor that nobody offers, and of a process that is gone.
        let unknown = changed(good, 56, &[7; 16]);
        let dead = changed(&changed(&unknown, 40, &[7; 16]), 8, &gone.id().to_ne_bytes());
        for (handle, why) in [
            (unknown, "it does not offer that, or no longer"),
            (dead, "network namespace; by pidfd_getfd: No such process"),
        ] {
            let error = take(&handle).unwrap_err();
            assert!(matches!(error, Error::System { .. }), "{handle:?}: {error}");
            let error = error.to_string();
            assert!(error.contains("taking descriptor") && error.contains(why), "{error}");
        }
    }
    // Bytes as many as a CUDA IPC handle has are one, and so the driver's to refuse.
    assert!(matches!(import(&[0xff; 64]), Err(Error::Cuda(_))));
    // As large as it says, and not as large as it is.
    let error = import(&changed(&handle, 32, &(1_u64 << 30).to_ne_bytes())).unwrap_err();
    assert!(matches!(&error, Error::Cuda(error) if error.call() == "cuMemMap"), "{error}");
    drop((memory, object));
    until(|| no_more(objects(), before));
    assert!(import(&handle).is_err() && open(&of_object).is_err());
}

/// Two processes with a GPU each.
#[test]
fn gpus_of_processes() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let gpu = CudaRuntime::new(0).unwrap();
    let before = settled(objects);
    let memory = gpu.allocate_window(BYTES).unwrap();
    let object = gpu.create_multicast(2, BYTES).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut child = again(module_path!(), "other_process")
        .env("FERROCCL_TEST_WINDOW", hex(&gpu.export(&memory).unwrap()))
        .env("FERROCCL_TEST_OBJECT", hex(&object.export().unwrap()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    object.join().unwrap();
    let mut tell = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The next line that the other process has for us.
    let mut hear = || {
        let told = lines.by_ref().map(|line| line.unwrap());
        told.filter_map(|line| line.strip_prefix("told: ").map(str::to_owned)).next().unwrap()
    };
    assert_eq!(hear(), "joined");
    assert_eq!(word(&memory, 4), 41, "the other process has mapped it");
    let bound = object.bind(&memory, &[]).unwrap();
    writeln!(tell, "bound").unwrap();
    assert_eq!(hear(), "bound");
    for place in PLACES {
        assert_eq!(store(&bound, place, 20), 0);
    }
    set_word(&memory, 0, 3);
    writeln!(tell, "stored").unwrap();
    assert_eq!(hear(), "sum 23");
    // The other process keeps what it has mapped.
    drop((bound, object, memory));
    until(|| no_more(objects(), before));
    writeln!(tell, "dropped").unwrap();
    assert_eq!(hear(), "word 20");
    assert!(child.wait().unwrap().success());
}

/// The second of them.
#[test]
fn other_process() {
    let Ok(window) = std::env::var("FERROCCL_TEST_WINDOW") else { return };
    assert!(ready());
    // It may not trace the first, as where Yama keeps processes from each other, or in a container.
    seccomp::refuse(&[libc::SYS_pidfd_getfd], libc::EPERM);
    // SAFETY: it takes numbers.
    assert_eq!(unsafe { libc::syscall(libc::SYS_pidfd_getfd, -1, -1, 0) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
    let bytes = |hex: &str| -> Vec<u8> {
        let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    };
    let gpu = CudaRuntime::new(1).unwrap();
    let theirs = gpu.import(&bytes(&window), BYTES).unwrap();
    assert!(has_access(1, &theirs) && !has_access(0, &theirs) && !theirs.is_shared());
    set_word(&theirs, 4, 41);
    let object = bytes(&std::env::var("FERROCCL_TEST_OBJECT").unwrap());
    let object = gpu.open_multicast(&object, 2, BYTES).unwrap();
    object.join().unwrap();
    println!("\ntold: joined");
    let mut lines = std::io::stdin().lines();
    let mut hear = || lines.next().unwrap().unwrap();
    assert_eq!(hear(), "bound");
    let own = gpu.allocate_window(BYTES).unwrap();
    let bound = object.bind(&own, &[]).unwrap();
    println!("told: bound");
    assert_eq!(hear(), "stored");
    assert_eq!(PLACES.map(|place| word(&own, place)), [20; 4]);
    assert_eq!(word(&theirs, 0), 3);
    println!("told: sum {}", sum(&bound, 0));
    assert_eq!(hear(), "dropped");
    println!("told: word {}", word(&theirs, PLACES[3]));
    drop((bound, object, own, theirs));
    until(|| objects()[1..] == [0; 4]);
}
