//! Kernels that are launched by themselves: what they get, what is compared, and what cannot be.

use ferroccl::device::abi::{Algorithm, Collective, DataType, ProtocolId};
use ferroccl::device::collectives::{AllReduceRing, KernelCode};
use ferroccl::device::element::Element;
use ferroccl::device::prims::{KernelContext, Ll, Protocol};
use ferroccl::device::reduce::{Reduction, Sum};
use ferroccl::{CommConfig, Communicator, Device, Error, Extra, KernelSpec, ReduceOp};

/// A kernel that stores what else it got than buffers.
struct Tell;

impl KernelCode for Tell {
    const COLLECTIVE: Collective = Collective::AllReduce;
    const ALGORITHM: Algorithm = Algorithm::own(0, "Tell");
    const NEEDS_PEERS: bool = false;
    const COMPARES: bool = false;

    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        let (args, part) = (cx.args(), cx.part());
        let output = args.output::<u64>().wrapping_add(part.offset as usize);
        for i in 0..part.count as usize {
            let told = [args.extra(), u64::from(args.root()), u64::from(cx.channel())][i % 3];
            // SAFETY: the output has the part's elements, which are of 8 bytes.
            unsafe { output.wrapping_add(i).write(told) };
        }
    }
}

ferroccl::device::kernels! {
    TELL = "tell": Tell, u64, Sum, Ll;
    ONE = "one": AllReduceRing, u64, Sum, Ll;
    OTHER = "other": AllReduceRing, u64, Sum, Ll;
    /// Of a protocol without buffers.
    NO_BUFFERS = "no_buffers": AllReduceRing, u64, Sum, NoBuffers;
}

/// LL's steps under another id.
struct NoBuffers;

impl Protocol for NoBuffers {
    const ID: ProtocolId = ProtocolId::own(3, "NoBuffers");
    const SLICES: usize = 1;

    fn capacity(slot_bytes: usize) -> usize {
        slot_bytes
    }

    fn has_begun(_: &ferroccl::device::prims::ConnState) -> bool {
        true
    }

    unsafe fn step<
        V: ferroccl::device::prims::verbs::Verb,
        T: Element,
        R: Reduction,
        const NR: usize,
        const NS: usize,
    >(
        _: &mut ferroccl::device::prims::Prims<T, R, Self, NR, NS>,
        _: ferroccl::device::prims::Slice<T>,
    ) {
    }
}

/// What one rank's kernel was told.
fn told(change: impl FnOnce(&Device, &mut KernelSpec)) -> Vec<u64> {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.max_channels = Some(3);
    config.min_channels = Some(3);
    let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<u64>(6).unwrap();
    let mut spec = KernelSpec::new(TELL, 6);
    change(&device, &mut spec);
    // SAFETY: the kernel writes the output's elements, and waits for nobody.
    unsafe { ranks[1].launch(&spec, &buffer, &buffer, ReduceOp::Sum, &stream).unwrap() };
    buffer.to_vec(&stream).unwrap()
}

#[test]
fn a_kernel_gets_what_its_spec_says() {
    let none = u64::from(ferroccl::device::abi::NO_RANK);
    assert_eq!(told(|_, _| {})[..3], [0, none, 0]);
    let word = told(|_, spec| {
        spec.extra = Extra::Word(0xFE);
        spec.root = Some(1);
    });
    assert_eq!(word[..3], [0xFE, 1, 0]);
    let mut address = 0;
    let scratch = told(|device, spec| {
        let memory = device.alloc::<u8>(64).unwrap();
        address = memory.address();
        spec.extra = Extra::Scratch(memory);
    });
    assert_eq!(scratch[0], address);
    // Parts begin at cache lines: all six are channel 0's, and there is nothing for the other.
    assert_eq!(told(|_, spec| spec.channels = Some(2))[5], 0);
}

/// Launches one kernel on each of two ranks; what becomes of rank 0's.
fn of_both(specs: [KernelSpec; 2]) -> Result<(), Error> {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2)?;
    let streams = [device.stream()?, device.stream()?];
    let buffers = [device.upload(&[1u64; 64])?, device.upload(&[2u64; 64])?];
    for (r, spec) in specs.iter().enumerate() {
        // SAFETY: it is the library's ring, of at most as many elements.
        unsafe { ranks[r].launch(spec, &buffers[r], &buffers[r], ReduceOp::Sum, &streams[r])? };
    }
    let ends = streams.map(|stream| stream.synchronize());
    assert_eq!(ends[0].is_ok(), ends[1].is_ok(), "{ends:?}");
    let [end, _] = ends;
    end.map(|()| assert_eq!(buffers[0].to_vec(&device.stream().unwrap()).unwrap(), [3; 64]))
}

#[test]
fn ranks_launch_the_same() {
    of_both([KernelSpec::new(ONE, 64), KernelSpec::new(ONE, 64)]).unwrap();
    let error = of_both([KernelSpec::new(ONE, 64), KernelSpec::new(OTHER, 64)]).unwrap_err();
    assert!(error.to_string().contains("with a kernel of the caller's"), "{error}");
    let error = of_both([KernelSpec::new(ONE, 64), KernelSpec::new(ONE, 63)]).unwrap_err();
    assert!(error.to_string().contains("count 63"), "{error}");
}

#[test]
fn what_cannot_be_launched_is_named_by_its_field() {
    let change = |change: fn(&mut KernelSpec)| {
        let mut spec = KernelSpec::new(ONE, 64);
        change(&mut spec);
        of_both([spec.clone(), spec]).unwrap_err().to_string()
    };
    for (error, why) in [
        (change(|spec| spec.root = Some(2)), "spec.root: 2 is none of the 2 ranks"),
        (change(|spec| spec.channels = Some(0)), "spec.channels: 0 is none of 1 to"),
        (change(|spec| spec.channels = Some(33)), "spec.channels: 33 is none of 1 to"),
        (change(|spec| spec.row.algorithm = Algorithm::Direct), "Direct works on windows"),
        (change(|spec| spec.row.algorithm = Algorithm::Hierarchical), "Hierarchical is no kernel"),
        (change(|spec| spec.row = NO_BUFFERS), "NoBuffers has no buffers in this communicator"),
        (
            change(|spec| spec.row.reduction = Some((&[ReduceOp::Max], DataType::U64))),
            "spec.row: one is not for type uint64 and op sum",
        ),
    ] {
        assert!(error.contains(why), "{error}");
    }
}
