//! Slots in the GPU's memory, for a network whose cards reach that: what a card writes is there only once it is flushed.

use std::sync::Arc;

use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::{CommConfig, Communicator, Device, ProtocolId, ReduceOp};

use crate::card::CardNet;
use crate::errors::{settled, until};
use crate::scenarios;
use crate::stand_in::{Kind, alone, fail, live, ready};
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
                until(|| live(Kind::Allocation) == before);
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

/// 16 GiB of memory: 2 GiB of slots are too many, and the host's memory does.
#[test]
fn slots_take_no_more_than_a_share() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let net = Arc::new(CardNet::new((true, false), false));
    let mut config = over(&net);
    (config.slots, config.channels) = (Some(2), Some(1));
    config.protocol = Some(ProtocolId::Simple);
    config.buffer_bytes = [Some(1024), Some(1024), Some((1 << 30) + 1024)];
    let device = Device::cuda(0).unwrap();
    team_on(device, &config, 2, "huge slots").collectives(7, &[33]);
    assert_eq!(net.seen.of(|s| &s.by_address), 0, "{:?}", net.seen);
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
