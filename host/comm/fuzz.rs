//! What fuzzing gives communicators.

use std::time::Duration;

use ferroccl_device::abi::{Fault, MAX_CHANNELS};
use serde::{Serialize, de::DeserializeOwned};

use super::CommConfig;
use super::builder::{check_peers, ranks_on_device};
use super::faults::FaultNews;
use super::graphs::{self, CommGraphs, HostFindings};
use super::init_params::{InitParams, TuningParams, agree, heartbeat};
use super::nodes::Nodes;
use super::recorder::KnownProgress;
use super::recv_region::PeerHandles;
use super::split::ColorKey;
use super::stall::{Absent, Report};
use super::trees::Trees;
use crate::config::{Config, LEAST_HEARTBEAT};
use crate::encoding;
use crate::enqueue::{describe, describe_call};
use crate::error::KernelFault;
use crate::transport::{AllowedTransports, PeerInfo, device, select};

/// What ranks exchange when a communicator is made or split: lines, one of each rank. The first byte says of what. A line is
/// what ranks send, or the same value as JSON, so that seeds can be read.
pub fn setup(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 6 {
        0 => params(&read(data)),
        1 => peers(&read(data)),
        2 => drop(read::<PeerHandles>(data)),
        3 => drop(read::<ColorKey>(data)),
        4 => findings(&read(data)),
        _ => drop(read::<Result<String, String>>(data)),
    }
}

/// A value of each line; what is read can be written, and reads back as the same.
fn read<T: Serialize + DeserializeOwned>(data: &[u8]) -> Vec<T> {
    let mut values = Vec::new();
    for line in data.split(|byte| *byte == b'\n') {
        let sent = encoding::from_bytes::<T>(line).ok();
        let Some(value) = sent.or_else(|| serde_json::from_slice::<T>(line).ok()) else { continue };
        let bytes = encoding::to_bytes(&value).unwrap();
        let same: T = encoding::from_bytes(&bytes).unwrap_or_else(|e| panic!("{e}: {bytes:?}"));
        assert_eq!(encoding::to_bytes(&same).unwrap(), bytes);
        let text = serde_json::to_string(&value).unwrap();
        let again: T = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
        values.push(value);
    }
    values
}

fn params(theirs: &[InitParams]) {
    let config = CommConfig::default();
    let mine = InitParams {
        layout: config.layout(([1 << 20; 3], 8), false).unwrap(),
        registry: 0,
        channels: 4,
        blocks: 16,
        all_channels: false,
        tuning: TuningParams::new(&config, &Config::default()),
        collnet: false,
        group: 1,
        timeout_ns: 0,
        heartbeat_ns: 0,
    };
    let all = [&[mine], theirs].concat();
    if let Ok((channels, blocks)) = agree(0, &mine, &all) {
        assert!((1..=MAX_CHANNELS as u32).contains(&channels) && channels <= mine.channels);
        assert!((1..=mine.blocks).contains(&blocks));
        let beats = heartbeat(&all);
        assert!(beats.is_none_or(|beats| beats.limit >= LEAST_HEARTBEAT), "{beats:?}");
        assert!(beats.is_none_or(|beats| beats.every >= Duration::from_millis(1)), "{beats:?}");
    }
}

fn peers(peers: &[PeerInfo]) {
    if peers.is_empty() || check_peers(peers).is_err() {
        return;
    }
    for allowed in [true, false] {
        let allowed = AllowedTransports { p2p: allowed, shm: true, net: true, too_far: None };
        for (rank, me) in (0..).zip(peers) {
            assert!(ranks_on_device(peers, rank) >= 1);
            let senders = device::sender_index(None, me, peers, allowed);
            // Senders have places of their own.
            let reach = peers.iter().filter(|peer| device::reaches(peer, me, allowed));
            let places: Vec<_> = reach
                .map(|peer| device::sender_index(Some(peer.rank), me, peers, allowed))
                .collect();
            assert!(places.iter().copied().eq(0..senders), "{places:?} of {senders}");
            for peer in peers.iter().filter(|peer| peer.rank != me.rank) {
                let _ = select(me, peer, allowed).map(|transport| transport.direct(me, peer));
            }
        }
    }
    for per_node in [None, Some(2)] {
        for rank in 0..peers.len() as u32 {
            let nodes = Nodes::new(rank, peers, per_node);
            assert_eq!(nodes.members().iter().flatten().count(), peers.len());
            assert!(nodes.local_rank() < nodes.local_ranks() && !nodes.heads().is_empty());
        }
    }
}

/// Whatever hosts say of their channels: it is refused, or every rank has a place in each.
fn findings(found: &[HostFindings]) {
    let ranks = found.len() as u32;
    for per_host in [1, 2] {
        let peer = |rank: u32| PeerInfo {
            rank,
            pid: 1,
            process: 1,
            space: 1,
            device: None,
            host: (rank / per_host).to_string(),
            pid_namespace: String::new(),
            cores: ferroccl_topology::CpuSet::default(),
        };
        let peers: Vec<_> = (0..ranks.min(32)).map(peer).collect();
        if peers.is_empty() {
            return;
        }
        let nodes = |rank| Nodes::new(rank, &peers, None);
        if let Ok(pairs) = graphs::too_far(&nodes(0), found) {
            assert!(pairs.keys().all(|(a, b)| a < b && *b < ranks));
        }
        let Ok(Some(graphs)) = CommGraphs::agree(&nodes(0), found, 4) else { continue };
        let graphs = std::sync::Arc::new(graphs);
        for me in 0..peers.len() as u32 {
            let nodes = nodes(me);
            assert!(
                nodes.rings(Some(&graphs), 4).iter().all(|ring| ring.ranks.len() == peers.len())
            );
            let trees = Trees::new(me, graphs.channels, &nodes, Some(&graphs));
            assert_eq!(trees.own().len(), graphs.channels as usize);
            let cards = graphs.cards(me);
            for (peer, channel) in (0..peers.len() as u32).flat_map(|peer| [(peer, 0), (peer, 3)]) {
                let card = graphs.card(me, peer, channel, graphs.channels);
                let crosses = nodes
                    .members()
                    .iter()
                    .all(|ranks| !(ranks.contains(&me) && ranks.contains(&peer)));
                assert!(!crosses || card.is_none_or(|card| cards.contains(&card)));
            }
        }
    }
}

/// What ranks tell each other of calls and failures.
pub fn reports(data: &[u8]) {
    if let Some(report) = Report::decode(data) {
        assert_eq!(Report::decode(&report.encode()), Some(report));
        let (Report::Ask(progress) | Report::Answer(progress)) = report;
        let at = KnownProgress::At(progress);
        for all in [vec![at], vec![at, KnownProgress::Silent], vec![at, KnownProgress::Left]] {
            drop(Absent::of(&all).map(|absent| absent.to_string()));
        }
    }
    if let Some(news) = FaultNews::decode(data) {
        assert!(news.ranks.len() <= data.len() / 4);
        let text = KernelFault(news.fault).to_string();
        assert!(!text.is_empty());
        let again = FaultNews::decode(&news.encode()).expect("what is written is read");
        assert_eq!(bytemuck::bytes_of(&again.fault), bytemuck::bytes_of::<Fault>(&news.fault));
        assert!(news.ranks.starts_with(&again.ranks) && news.text.starts_with(&again.text));
    }
    let words = |bytes: &[u8]| -> [u64; 4] {
        std::array::from_fn(|i| {
            let word = bytes.get(8 * i..).and_then(|rest| rest.first_chunk());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        })
    };
    let (ours, theirs) = (words(data), words(data.get(32..).unwrap_or_default()));
    drop((describe_call(&ours), describe(&ours, &theirs)));
}
