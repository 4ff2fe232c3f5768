//! All-reduces through a network that reduces: that they go there, that they are right, and what becomes of them when
//! the network or a rank fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferroccl::collnet::{CollNet, CollNetComm, CollNetListener, CollNetRequest, SoftwareCollNet};
use ferroccl::config::Config;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{
    Algorithm, CommConfig, Communicator, DataType, Device, Error, NetError, ReduceOp, UniqueId,
};

use crate::team::{COUNTS, team, team_on};

/// What goes wrong on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// The first times it has too much under way.
    Busy,
    /// The call with this number is refused.
    Refused(u32),
    /// It fails when its result is asked for.
    Failed(u32),
    /// It never ends.
    Stuck(u32),
    /// It panics.
    Panics(u32),
    /// It does sums only.
    SumsOnly,
}

/// The software network, with trouble; counts its calls.
#[derive(Clone, Debug)]
struct Network {
    net: SoftwareCollNet,
    trouble: Trouble,
    calls: Arc<AtomicU32>,
}

impl Network {
    fn new(trouble: Trouble) -> Arc<Self> {
        Arc::new(Network { net: SoftwareCollNet::new(), trouble, calls: Arc::default() })
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }
}

fn broken(operation: &'static str) -> NetError {
    NetError::new("troubled", operation, "the switch is on fire")
}

impl CollNet for Network {
    fn name(&self) -> &'static str {
        "troubled"
    }

    fn reduce_support(&self, data_type: DataType, op: ReduceOp) -> bool {
        (self.trouble != Trouble::SumsOnly || op == ReduceOp::Sum)
            && self.net.reduce_support(data_type, op)
    }

    fn listen(&self) -> Result<Box<dyn CollNetListener>, NetError> {
        Ok(Box::new(Listener(self.net.listen()?, self.clone())))
    }
}

struct Listener(Box<dyn CollNetListener>, Network);

impl CollNetListener for Listener {
    fn handle(&self) -> Vec<u8> {
        self.0.handle()
    }

    fn connect(
        self: Box<Self>,
        handles: &[Vec<u8>],
        rank: u32,
    ) -> Result<Box<dyn CollNetComm>, NetError> {
        let (comm, network) = (self.0.connect(handles, rank)?, self.1);
        Ok(Box::new(Comm { comm, network, busy: 5, call: 0 }))
    }
}

#[derive(Debug)]
struct Comm {
    comm: Box<dyn CollNetComm>,
    network: Network,
    busy: u32,
    call: u32,
}

impl CollNetComm for Comm {
    unsafe fn iallreduce(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<Option<Box<dyn CollNetRequest>>, NetError> {
        if self.network.trouble == Trouble::Busy && self.busy > 0 {
            self.busy -= 1;
            return Ok(None);
        }
        self.call += 1;
        self.network.calls.fetch_add(1, Ordering::Relaxed);
        if self.network.trouble == Trouble::Refused(self.call) {
            return Err(broken("iallreduce"));
        }
        // SAFETY: the caller's.
        let request = unsafe { self.comm.iallreduce(send, recv, count, data_type, op)? };
        let (trouble, call) = (self.network.trouble, self.call);
        Ok(request.map(|r| Box::new(Request(r, trouble, call)) as Box<dyn CollNetRequest>))
    }
}

struct Request(Box<dyn CollNetRequest>, Trouble, u32);

impl CollNetRequest for Request {
    fn test(&mut self) -> Result<bool, NetError> {
        match self.1 {
            Trouble::Failed(call) if call == self.2 => Err(broken("test")),
            Trouble::Stuck(call) if call == self.2 => Ok(false),
            Trouble::Panics(call) if call == self.2 => panic!("on purpose"),
            _ => self.0.test(),
        }
    }
}

/// Nodes of so many ranks, and a network between them that every all-reduce takes.
fn config(net: &Arc<Network>, ranks_per_node: u32) -> CommConfig {
    let mut config = CommConfig::default();
    config.algorithm = Some(Algorithm::CollnetDirect);
    config.ranks_per_node = Some(ranks_per_node);
    config.collnet = Some(Arc::clone(net) as Arc<dyn CollNet>);
    config
}

#[test]
fn sums_are_right_on_nodes_of_all_sizes() {
    let seed = 0xC011;
    println!("seed {seed:#x}");
    for (nodes, locals) in [(2, 1), (2, 2), (3, 2), (2, 3), (7, 1), (2, 5)] {
        for trouble in [Trouble::None, Trouble::Busy] {
            let net = Network::new(trouble);
            let name = format!("{nodes} nodes of {locals}, {trouble:?}");
            team(&config(&net, locals), nodes * locals, &name).collectives(seed, &COUNTS);
            assert!(net.calls() > 0, "{name}: nothing went through the network");
        }
    }
}

#[test]
fn small_slots_and_an_adversary_change_nothing() {
    for seed in 0..20 {
        println!("seed {seed}");
        let net = Network::new(Trouble::None);
        let mut config = config(&net, 2);
        config.slots = Some(2);
        config.buffer_bytes = [Some(512); 3];
        config.channels = Some(3);
        let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed))));
        team_on(device, &config, 4, "seeded").collectives(seed, &[0, 1, 3, 33, 1000]);
        assert!(net.calls() > 0);
    }
}

/// What the network does not do goes another way: nodes that differ, one node, operators.
#[test]
fn what_the_network_cannot_do_goes_elsewhere() {
    for (ranks, per_node) in [(5, 2), (4, 4), (1, 1)] {
        let net = Network::new(Trouble::None);
        team(&config(&net, per_node), ranks, "no network").collectives(1, &[1, 1000]);
        assert_eq!(net.calls(), 0, "{ranks} ranks, {per_node} a node");
    }
    let net = Network::new(Trouble::SumsOnly);
    let device = Device::cpu();
    let ranks = Communicator::init_all_with(&device, 2, &config(&net, 1)).unwrap();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let all = |op: ReduceOp| {
        let buffers: Vec<_> = (1..=2).map(|r| device.upload(&[r * 10i32]).unwrap()).collect();
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            rank.all_reduce(buffer, buffer, op, stream).unwrap();
        }
        let results = buffers.iter().zip(&streams).map(|(b, s)| b.to_vec(s).unwrap()[0]);
        let results: Vec<i32> = results.collect();
        assert_eq!(results[0], results[1]);
        results[0]
    };
    assert_eq!((all(ReduceOp::Max), net.calls()), (20, 0));
    // Two integers' average divides what the network would have added.
    assert_eq!((all(ReduceOp::Avg), net.calls()), (15, 0));
    assert_eq!((all(ReduceOp::Sum), net.calls()), (30, 2));
}

fn fails(device: &Device, trouble: Trouble, timeout: Option<Duration>) -> Vec<String> {
    let net = Network::new(trouble);
    let mut config = config(&net, 2);
    config.timeout = timeout;
    let ranks = Communicator::init_all_with(device, 4, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let buffer = || device.upload(&[1u32; 1000]).unwrap();
    let mut errors = Vec::new();
    for _ in 0..2 {
        // Before the calls: a schedule of one thread runs what there is to run.
        let buffers: Vec<_> = ranks.iter().map(|_| buffer()).collect();
        let calls = ranks.iter().zip(&streams).zip(&buffers);
        let launched: Vec<_> = calls
            .map(|((rank, stream), buffer)| rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream))
            .collect();
        for (stream, launched) in streams.iter().zip(launched) {
            if let Err(e) = launched.and_then(|()| stream.synchronize()) {
                errors.push(e.to_string());
            }
        }
        if !errors.is_empty() {
            break;
        }
    }
    // And nothing more can be done.
    for (rank, stream) in ranks.iter().zip(&streams) {
        let buffer = buffer();
        let e = rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap_err();
        assert!(matches!(e, Error::Aborted { .. }), "{e}");
    }
    errors
}

#[test]
fn a_network_that_fails_fails_all_ranks_with_its_reason() {
    for trouble in
        [Trouble::Refused(1), Trouble::Refused(2), Trouble::Failed(1), Trouble::Failed(2)]
    {
        let errors = fails(&Device::cpu(), trouble, None);
        println!("{trouble:?}: {errors:#?}");
        assert_eq!(errors.len(), 4, "{trouble:?}: {errors:?}");
        assert!(errors.iter().any(|e| e.contains("the switch is on fire")), "{errors:?}");
    }
}

#[test]
fn a_network_that_is_stuck_is_given_up() {
    let errors = fails(&Device::cpu(), Trouble::Stuck(2), Some(Duration::from_millis(300)));
    println!("{errors:#?}");
    assert_eq!(errors.len(), 4);
    let reason = "network CollNet: iallreduce: the other nodes have not come within";
    assert!(errors.iter().any(|e| e.starts_with(reason)), "{errors:?}");
}

/// By the proxy thread, and in the schedule of a seed, where what is stuck is given up, too.
#[test]
fn a_network_that_panics_is_an_error_of_all_ranks() {
    let seeded = || Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(7))));
    for (device, trouble) in [
        (Device::cpu(), Trouble::Panics(2)),
        (seeded(), Trouble::Panics(2)),
        (seeded(), Trouble::Stuck(1)),
    ] {
        let errors = fails(&device, trouble, Some(Duration::from_secs(20)));
        println!("{trouble:?}: {errors:#?}");
        assert_eq!(errors.len(), 4, "{trouble:?}: {errors:?}");
        assert!(
            errors.iter().any(|e| e.contains("the operation was dropped before its end")),
            "{errors:?}"
        );
    }
}

/// A rank that does not come: its node's kernels and the other nodes' network wait, and all are told.
#[test]
fn an_abort_ends_what_is_on_the_network() {
    let net = Network::new(Trouble::None);
    let device = Device::cpu();
    let ranks = Communicator::init_all_with(&device, 4, &config(&net, 2)).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    for (rank, stream) in ranks.iter().zip(&streams).take(3) {
        let buffer = device.upload(&[1u32; 1000]).unwrap();
        rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    ranks[3].abort();
    for stream in &streams[..3] {
        let e = stream.synchronize().unwrap_err();
        println!("{e}");
    }
}

/// Ranks that are threads of their own, which find each other.
#[test]
fn ranks_of_threads_find_the_network() {
    let net = Network::new(Trouble::None);
    let id = UniqueId::new(&Config::from_env().unwrap().bootstrap()).unwrap();
    let config = &config(&net, 2);
    std::thread::scope(|threads| {
        for r in 0..4u32 {
            threads.spawn(move || {
                let device = Device::cpu();
                let rank = Communicator::init_rank_with(&device, 4, &id, r, config).unwrap();
                let stream = device.stream().unwrap();
                let buffer = device.upload(&vec![r + 1; 10_001]).unwrap();
                rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
                assert!(buffer.to_vec(&stream).unwrap().iter().all(|sum| *sum == 10));
            });
        }
    });
    assert_eq!(net.calls(), 4);
}
