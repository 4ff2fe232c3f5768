//! Slots in the GPU's memory, for a network whose cards reach that: what a card writes is there only once it is flushed.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ferroccl::config::Config;
use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp, Stream, UniqueId,
};

use crate::again::{again, elsewhere, here};
use crate::card::CardNet;
use crate::errors::{settled, until};
use crate::scenarios;
use crate::stand_in::{Kind, alone, fail, gpu_of, live, ready};
use crate::team::team_on;

/// Ranks that have nothing but such a network.
fn over(net: &Arc<CardNet>) -> CommConfig {
    let mut config = CommConfig::default();
    (config.p2p, config.shm) = (Some(false), Some(false));
    config.net = Some(Arc::clone(net) as _);
    config
}

/// By the memory's address and as a DMA buffer, on a GPU that orders what cards write and on one that does not.
#[test]
fn every_protocol_by_every_way() {
    if !ready() {
        return;
    }
    let _alone = alone();
    for (takes, dma_buf) in [((true, false), false), ((false, true), true), ((true, true), true)] {
        for ordinal in [0, 1] {
            let ordered = ordinal == 1;
            for &protocol in ProtocolId::ALL {
                let net = Arc::new(CardNet::new(takes, ordered));
                let mut config = over(&net);
                config.protocol = Some(protocol);
                (config.slots, config.channels) = (Some(2), Some(2));
                config.buffer_bytes = [Some(1024); 3];
                let before = settled(|| live(Kind::Allocation));
                let device = Device::new(Arc::new(CudaRuntime::new(ordinal).unwrap()));
                let name = format!("{protocol}, {takes:?}, ordered {ordered}");
                {
                    let team = team_on(device, &config, 3, &name);
                    team.collectives(0x6D2, &[0, 1, 33, 4099]);
                    team.messages(0x6D2, &[0, 1, 33, 4099]);
                }
                let seen = &net.seen;
                println!("{name}: {seen:?}");
                let (simple, ll) = (protocol == ProtocolId::Simple, protocol == ProtocolId::Ll);
                assert_eq!(seen.of(|s| &s.arrived) > 0, !ll, "{name}: {seen:?}");
                assert_eq!(seen.of(|s| &s.sent) > 0, simple, "{name}: {seen:?}");
                assert_eq!(seen.of(|s| &s.flushes) > 0, !ll && !ordered, "{name}: {seen:?}");
                assert_eq!(seen.of(|s| &s.dma_buf) > 0, dma_buf, "{name}: {seen:?}");
                assert_eq!(seen.of(|s| &s.by_address) > 0, !dma_buf, "{name}: {seen:?}");
                until(|| live(Kind::Allocation) <= before);
            }
        }
    }
}

/// A network that does not reach it, and a rank whose driver gives no DMA buffer after all: by the address, or else the
/// host's memory does, whatever the other rank has.
#[test]
fn without_it() {
    if !ready() {
        return;
    }
    let _alone = alone();
    for (takes, refused) in [((false, false), false), ((false, true), true), ((true, true), true)] {
        let net = Arc::new(CardNet::new(takes, false));
        if refused {
            // CUDA_ERROR_NOT_SUPPORTED; once, so that the other rank has one.
            fail("cuMemGetHandleForAddressRange", 0, 801);
        }
        let device = Device::cuda(0).unwrap();
        let ranks = Communicator::init_all_with(&device, 2, &over(&net)).unwrap();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let buffers = [1u32, 2].map(|n| device.upload(&[n; 5000]).unwrap());
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
        }
        for (buffer, stream) in buffers.iter().zip(&streams) {
            assert_eq!(buffer.to_vec(stream).unwrap(), [3; 5000]);
        }
        let what = format!("{takes:?}, refused {refused}: {:?}", net.seen);
        assert_eq!(net.seen.of(|s| &s.by_address) > 0, takes.0, "{what}");
        assert_eq!(net.seen.of(|s| &s.dma_buf) > 0, takes.1, "{what}");
    }
}

/// 8 MiB of memory, of which slots take an eighth.
#[test]
fn slots_take_no_more_than_a_share() {
    elsewhere(module_path!(), "one_mib_of_slots", &[("FAKE_CUDA_MEMORY_KIB", "8192")]);
}

/// Its part in a process with that setting. All other slots are in the host's memory.
#[test]
fn one_mib_of_slots() {
    if !here() || !ready() {
        return;
    }
    for (ranks, simple, connections, what) in [
        (2, 1 << 20, 0, "not even one"),
        (2, (1 << 19) + 1024, 2, "what each rank receives"),
        (8, 200 << 10, 16, "what the neighbours in the ring send, of the other ranks not all"),
    ] {
        let net = Arc::new(CardNet::new((true, false), false));
        let mut config = over(&net);
        (config.slots, config.channels) = (Some(2), Some(1));
        (config.protocol, config.algorithm) = (Some(ProtocolId::Simple), Some(Algorithm::Ring));
        config.buffer_bytes = [Some(1024), Some(1024), Some(simple)];
        let device = Device::cuda(0).unwrap();
        let comms = Communicator::init_all_with(&device, ranks, &config).unwrap();
        let made = comms.iter().map(|comm| {
            let (stream, buffer) = (device.stream().unwrap(), device.upload(&[1u32; 99]).unwrap());
            comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
            (stream, buffer)
        });
        for (stream, buffer) in made.collect::<Vec<_>>() {
            assert_eq!(buffer.to_vec(&stream).unwrap(), [ranks; 99], "{what}");
        }
        assert_eq!(net.seen.of(|s| &s.by_address), connections, "{what}: {:?}", net.seen);
    }
}

/// A host of the stand-in's GPUs, which NVLink joins, each on a switch with a card of its own.
fn gpus_with_cards(gpus: usize) -> String {
    let gpu = |n: usize| {
        let (switch, gpu, nic) = (format!("0000:{n}0:00.0"), 0x17 + n, format!("0000:{n}e:00.0"));
        let pci = r#"link_speed="32.0 GT/s PCIe" link_width="16""#;
        format!(
            r#"<pci busid="{switch}" class="0x060400" {pci}>
<pci busid="0000:{gpu:02x}:00.0" class="0x030200" {pci}>
<gpu dev="{n}" sm="90" rank="{n}" gdr="1"><nvlink target="0000:c0:00.0" count="18" tclass="0x068000"/></gpu></pci>
<pci busid="{nic}" class="0x020700" {pci}>
<nic><net name="card{n}" dev="{n}" speed="400000" port="1" guid="{n}" maxconn="9" gdr="1"/></nic></pci></pci>"#
        )
    };
    let cpu = r#"<cpu numaid="0" affinity="ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">"#;
    let gpus: String = (0..gpus).map(gpu).collect();
    format!(r#"<system version="1">{cpu}{gpus}</cpu></system>"#)
}

/// What a rank sends for another one is in memory of its own GPU, which is near the card.
#[test]
fn another_rank_sends_from_its_gpu() {
    let file = std::env::temp_dir().join(format!("gpus-{}.xml", std::process::id()));
    std::fs::write(&file, gpus_with_cards(4)).unwrap();
    for level in ["2", "0"] {
        let variables = [
            ("NCCL_TOPO_FILE", file.to_str().unwrap()),
            ("NCCL_P2P_PXN_LEVEL", level),
            ("FAKE_CUDA_DEVICES", "4"),
        ];
        elsewhere(module_path!(), "two_hosts", &variables);
    }
    std::fs::remove_file(&file).unwrap();
}

/// Its part in a process with these settings: two hosts of two ranks.
#[test]
fn two_hosts() {
    if !here() || !ready() {
        return;
    }
    let by_other = std::env::var("NCCL_P2P_PXN_LEVEL").unwrap() == "2";
    let mut kept = None;
    for (takes, protocol, slots) in [
        ((true, false), ProtocolId::Simple, 2),
        ((false, true), ProtocolId::Simple, 8),
        ((true, true), ProtocolId::Ll128, 2),
        ((true, true), ProtocolId::Ll, 2),
    ] {
        let name = format!("{takes:?}, {protocol}, {slots} slots, PXN {by_other}");
        println!("{name}");
        let net = Arc::new(CardNet::with_devices(takes, &[false, true, false, true]));
        let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
        let run = |rank: u32| {
            let mut config = CommConfig::default();
            config.net = Some(Arc::clone(&net) as _);
            config.host_id = Some(format!("host{}", rank / 2));
            (config.protocol, config.slots) = (Some(protocol), Some(slots));
            config.buffer_bytes = [Some(8192); 3];
            let device = Device::cuda(rank).unwrap();
            let comm = Communicator::init_rank_with(&device, 4, &id, rank, &config).unwrap();
            let stream = device.stream().unwrap();
            // From the first GPU of a host to the second of the other.
            let (before, from_gpus) = (net.sent(), net.seen.of(|s| &s.sent));
            comm.barrier(&stream).unwrap();
            message(&comm, (0, 3), (&device, &stream));
            comm.barrier(&stream).unwrap();
            stream.synchronize().unwrap();
            let sent: Vec<u64> =
                net.sent().iter().zip(before).map(|(now, then)| now - then).collect();
            assert!(sent[usize::from(by_other)] > 200_000, "{name}: {sent:?}");
            assert!(sent[usize::from(!by_other)] < 100_000, "{name}: {sent:?}");
            let from_gpus = net.seen.of(|s| &s.sent) - from_gpus;
            assert!(from_gpus >= 280_004 || protocol != ProtocolId::Simple, "{name}: {from_gpus}");
            message(&comm, (2, 1), (&device, &stream));
            for count in [1, 33, 4099, 70_001] {
                let buffer = device.upload(&vec![rank + 1; count]).unwrap();
                comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
                let all_right = buffer.to_vec(&stream).unwrap() == vec![10; count];
                assert!(all_right, "{name}, {count}");
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|rank| drop(scope.spawn(move || run(rank))));
        });
        let sources = net.seen.sources.lock().unwrap();
        let far: Vec<_> = sources.iter().filter(|(card, at)| gpu_of(*at, 4) != *card).collect();
        assert!(far.is_empty(), "{name}: {far:?}");
        let simple = protocol == ProtocolId::Simple;
        assert_eq!(net.seen.of(|s| &s.sent) > 0, simple, "{name}: {:?}", net.seen);
        // What devices keep is there after the first time.
        let now = settled(|| live(Kind::Allocation));
        assert!(now <= *kept.get_or_insert(now), "{name}: {now} allocations, not {kept:?}");
    }
}

/// The same in processes, which open each other's memory by CUDA IPC, over a plugin that takes GPUs' memory.
#[test]
fn another_process_sends_from_its_gpu() {
    if !ready() {
        return;
    }
    let temporary =
        |name: &str| std::env::temp_dir().join(format!("gdr-{}-{name}", std::process::id()));
    let (topology, plugin) = (temporary("gpus.xml"), temporary("net.so"));
    std::fs::write(&topology, gpus_with_cards(4)).unwrap();
    let cards = r#"-DDEVICE_NAME=((char *[]){"card0","card1","card2","card3"})[device]"#;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugin/net.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let arguments = ["-shared", "-fPIC", "-DNET_VERSION=11", "-DGPU", "-DDEVICES=4", cards, source];
    let output = Command::new(compiler).args(arguments).arg("-o").arg(&plugin).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for protocol in ["Simple", "LL128"] {
        let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
        let ranks = (0..4u32).map(|rank| {
            again(module_path!(), "member")
                .env("FERROCCL_TEST_RANK", rank.to_string())
                .env("FERROCCL_UNIQUE_ID", id.to_secret_hex())
                .env("FAKE_CUDA_DEVICES", "4")
                .env("NCCL_HOSTID", format!("host{}", rank / 2))
                .env("NCCL_TOPO_FILE", &topology)
                .env("NCCL_NET_PLUGIN", &plugin)
                .env_remove("NCCL_NET_GDR_LEVEL")
                .envs([("NCCL_PROTO", protocol), ("NCCL_DEBUG", "INFO")])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        for (rank, child) in ranks.collect::<Vec<_>>().into_iter().enumerate() {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{protocol}, rank {rank}: {text}{errors}");
            // Its neighbour in the host sends for it, on some channel.
            let by = rank ^ 1;
            let path = format!("[send] via NET/loopback/{by}({by})/GDRDMA");
            assert!(errors.contains(&path), "rank {rank}: no {path}: {errors}");
        }
    }
    for file in [topology, plugin] {
        std::fs::remove_file(file).unwrap();
    }
}

/// One rank, in a process that is started as one.
#[test]
fn member() {
    let Ok(rank) = std::env::var("FERROCCL_TEST_RANK") else { return };
    assert!(ready());
    ferroccl::log::init_from_env().unwrap();
    let rank: u32 = rank.parse().unwrap();
    let id: UniqueId = std::env::var("FERROCCL_UNIQUE_ID").unwrap().parse().unwrap();
    let device = Device::cuda(rank).unwrap();
    let mut config = CommConfig::default();
    (config.slots, config.timeout) = (Some(2), Some(Duration::from_secs(60)));
    config.buffer_bytes = [Some(8192); 3];
    let comm = Communicator::init_rank_with(&device, 4, &id, rank, &config).unwrap();
    let stream = device.stream().unwrap();
    for (from, to) in [(0, 3), (2, 1), (1, 2)] {
        message(&comm, (from, to), (&device, &stream));
    }
    for count in [1, 33, 4099, 70_001] {
        let buffer = device.upload(&vec![rank + 1; count]).unwrap();
        comm.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
        assert!(buffer.to_vec(&stream).unwrap() == vec![10; count], "{count}");
    }
}

/// A message of 70,001 numbers.
fn message(comm: &Communicator, (from, to): (u32, u32), (device, stream): (&Device, &Stream)) {
    let numbers: Vec<u32> = (0..70_001u32).map(|i| i.wrapping_mul(from + 77)).collect();
    if comm.rank() == from {
        comm.send(&device.upload(&numbers).unwrap(), to, stream).unwrap();
    } else if comm.rank() == to {
        let buffer = device.alloc::<u32>(numbers.len()).unwrap();
        comm.recv(&buffer, from, stream).unwrap();
        let got = buffer.to_vec(stream).unwrap();
        let wrong: Vec<usize> = (0..numbers.len()).filter(|i| got[*i] != numbers[*i]).collect();
        assert!(
            wrong.is_empty(),
            "{from} to {to}: {} wrong, from {:?} on",
            wrong.len(),
            wrong.first()
        );
    }
}

/// A graph's calls are the proxies' each time.
#[test]
fn a_graph_over_it() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let net = Arc::new(CardNet::new((false, true), false));
    let mut config = over(&net);
    config.protocol = Some(ProtocolId::Simple);
    scenarios::over_a_network(&Device::cuda(0).unwrap(), &config);
    assert!(net.seen.of(|s| &s.arrived) > 0, "{:?}", net.seen);
}
