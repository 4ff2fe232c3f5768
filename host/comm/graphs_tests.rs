use std::collections::BTreeSet;

use super::*;
use crate::transport::{AllowedTransports, FarPair, select};

fn peer(rank: u32, host: u32) -> PeerInfo {
    PeerInfo {
        rank,
        pid: 1,
        process: 1,
        space: 1,
        device: None,
        host: host.to_string(),
        pid_namespace: String::new(),
        cores: ferroccl_topology::CpuSet::default(),
    }
}

fn env(file: &str, ranks: &str) -> Config {
    let file = format!("{}/tests/topology_files/{file}.xml", env!("CARGO_MANIFEST_DIR"));
    let lookup = |name: &str| match name {
        "NCCL_TOPO_FILE" => Some(file.clone()).filter(|_| !file.ends_with("/.xml")),
        "FERROCCL_TOPO_RANKS" => Some(ranks.to_owned()),
        _ => None,
    };
    Config::from_lookup(lookup).unwrap()
}

/// What the first ranks of these hosts find; card `N` of a file is device `N`.
fn found(peers: &[PeerInfo], env: &Config) -> Result<Vec<HostFindings>> {
    let config = CommConfig::default();
    let search = |rank| {
        let nodes = Nodes::new(rank, peers, None);
        let query =
            GraphQuery { peers, nodes: &nodes, env, config: &config, net: None, driven: true };
        let mut found = query.search(rank)?;
        if let Some(host) = &mut found.channels {
            host.cards = (0..host.cards.len() as u32).map(Some).collect();
        }
        Ok(found)
    };
    (0..peers.len() as u32).map(search).collect()
}

fn graphs(peers: &[PeerInfo], file: &str) -> CommGraphs {
    let found = found(peers, &env(file, "all")).unwrap();
    let searched = found.iter().filter(|found| found.channels.is_some()).count();
    let nodes = Nodes::new(0, peers, None);
    assert_eq!(searched, nodes.count(), "the first rank of each host searches");
    CommGraphs::agree(&nodes, &found, 64).unwrap().unwrap()
}

#[test]
fn every_card_has_its_channels_and_both_ends_agree() {
    for in_turn in [false, true] {
        let host = |rank: u32| if in_turn { rank % 2 } else { rank / 8 };
        let peers: Vec<_> = (0..16).map(|rank| peer(rank, host(rank))).collect();
        let graphs = graphs(&peers, "hgx-h100");
        let mut used = [BTreeSet::new(), BTreeSet::new()];
        for channel in 0..graphs.channels {
            let order = graphs.orders[channel as usize % graphs.orders.len()].clone();
            for (i, from) in order.iter().enumerate() {
                let to = order[(i + 1) % order.len()];
                if host(*from) == host(to) {
                    continue;
                }
                let card = |a, b| graphs.card(a, b, channel, graphs.channels).unwrap();
                assert_eq!(card(*from, to), card(to, *from), "{from} -> {to}, channel {channel}");
                assert!(graphs.cards(to).contains(&card(to, *from)));
                used[host(*from) as usize].insert(card(*from, to));
            }
        }
        assert_eq!(used.map(|cards| cards.len()), [8, 8]);
    }
}

/// A tree's edges between hosts have cards, too.
#[test]
fn trees_cross_by_the_cards_of_their_graph() {
    let peers: Vec<_> = (0..32).map(|rank| peer(rank, rank / 8)).collect();
    let graphs = std::sync::Arc::new(graphs(&peers, "dgx-a100"));
    let mut crossings = 0;
    for rank in 0..32 {
        let nodes = Nodes::new(rank, &peers, None);
        let trees = crate::comm::trees::Trees::new(rank, graphs.channels, &nodes, Some(&graphs));
        for (channel, links) in (0..).zip(trees.own()) {
            if links.up != ferroccl_device::abi::NO_RANK && links.up / 8 != rank / 8 {
                crossings += 1;
                for (a, b) in [(rank, links.up), (links.up, rank)] {
                    let card = graphs.card(a, b, channel, graphs.channels);
                    let card = card.unwrap_or_else(|| panic!("{a} - {b} on channel {channel}"));
                    assert!(graphs.cards(a).contains(&card), "{a} - {b} on channel {channel}");
                }
            }
        }
    }
    assert_eq!(crossings, 3 * graphs.channels, "4 hosts have 3 edges in each tree");
}

/// Every connection that leaves its host by another rank's card.
fn relayed(peers: &[PeerInfo], graphs: &CommGraphs) -> Vec<(u32, u32, u32, u32)> {
    let n = peers.len() as u32;
    let mut all = Vec::new();
    for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
        if peers[from as usize].host == peers[to as usize].host {
            continue;
        }
        for index in 0..2 * graphs.channels {
            let Some((by, card)) = graphs.relay(from, to, index, graphs.channels) else { continue };
            assert!(graphs.sends_for(by, from) && by != from);
            assert_eq!(peers[by as usize].host, peers[from as usize].host);
            if index < graphs.channels {
                assert_eq!(graphs.card(from, to, index, graphs.channels), Some(card));
            }
            all.push((from, to, index, by));
        }
    }
    all
}

/// On HGX H100 each GPU has a card of its own, and rings leave by the cards of half of the GPUs where half of them have ranks.
#[test]
fn another_rank_sends_where_its_gpu_is_nearer_the_card() {
    let peers: Vec<_> = (0..12).map(|rank| peer(rank, rank / 4)).collect();
    let graphs = graphs(&peers, "hgx-h100");
    let all = relayed(&peers, &graphs);
    let (collectives, messages): (Vec<_>, Vec<_>) =
        all.iter().partition(|(.., index, _)| *index < graphs.channels);
    for (from, to, channel, by) in &collectives {
        let card = graphs.card(*from, *to, *channel, graphs.channels).unwrap();
        assert!(card == by % 4 && card != from % 4, "{from} -> {to} by {by}, card {card}");
    }
    let senders: BTreeSet<u32> = collectives.iter().map(|(.., by)| *by).collect();
    assert_eq!(senders.len(), 12);
    // All messages but those to the rank of the same number.
    let pairs: BTreeSet<_> = messages.iter().map(|(from, to, _, by)| (from, to, by)).collect();
    assert_eq!(pairs.len(), 12 * 2 * 3);
    assert!(pairs.iter().all(|(from, to, by)| **by == **from / 4 * 4 + **to % 4));
}

#[test]
fn nobody_sends_for_others_where_that_is_off() {
    let peers: Vec<_> = (0..8).map(|rank| peer(rank, rank / 4)).collect();
    let with = |name: &'static str, value: &'static str| {
        let env = env("hgx-h100", "all");
        let file = env.topo_file.clone().unwrap();
        let lookup = |asked: &str| match asked {
            "NCCL_TOPO_FILE" => Some(file.clone()),
            "FERROCCL_TOPO_RANKS" => Some("all".to_owned()),
            asked => (asked == name).then(|| value.to_owned()),
        };
        let env = Config::from_lookup(lookup).unwrap();
        let nodes = Nodes::new(0, &peers, None);
        let graphs = CommGraphs::agree(&nodes, &found(&peers, &env).unwrap(), 64);
        let graphs = graphs.unwrap().unwrap();
        let all = relayed(&peers, &graphs);
        let of_messages = all.iter().filter(|c| c.2 >= graphs.channels).count();
        (all.len() - of_messages, of_messages)
    };
    assert_eq!(with("NCCL_PXN_DISABLE", "1"), (0, 0));
    let (collectives, messages) = with("NCCL_P2P_PXN_LEVEL", "0");
    assert!(collectives > 0 && messages == 0, "{collectives}, {messages}");
    let (on_path, always) = (with("NCCL_P2P_PXN_LEVEL", "1").1, with("NCCL_P2P_PXN_LEVEL", "2").1);
    assert_eq!(on_path, always, "each card is near one GPU");
    // What a host says of ranks and ports that it does not have.
    let nodes = Nodes::new(0, &peers, None);
    let mut all = found(&peers, &env("hgx-h100", "all")).unwrap();
    for (part, wrong) in [
        ("collectives", serde_json::json!([[4]])),
        ("messages", serde_json::json!([[[4, 0]]])),
        ("messages", serde_json::json!([[[0, 8]]])),
    ] {
        let mut host = serde_json::to_value(&all[4]).unwrap();
        host["channels"]["relays"][part] = wrong;
        all[4] = serde_json::from_value(host).unwrap();
        let error = CommGraphs::agree(&nodes, &all, 64).unwrap_err().to_string();
        assert!(error.contains("rank 4 has channels that make no sense"), "{error}");
        all[4] = found(&peers, &env("hgx-h100", "all")).unwrap().swap_remove(4);
    }
}

#[test]
fn the_weakest_host_counts() {
    let peers: Vec<_> = (0..4).map(|rank| peer(rank, rank / 2)).collect();
    let mut all = found(&peers, &env("dgx-a100", "all")).unwrap();
    let nodes = Nodes::new(0, &peers, None);
    let whole = CommGraphs::agree(&nodes, &all, 64).unwrap().unwrap();
    let weak = all[2].channels.as_mut().unwrap();
    weak.ring.channels.truncate(1);
    weak.ring.bw_inter /= 2.0;
    weak.channels = 1;
    let weakest = CommGraphs::agree(&nodes, &all, 64).unwrap().unwrap();
    assert!(whole.channels > 1 && whole.orders.len() > 1);
    assert_eq!((weakest.channels, weakest.orders.len()), (1, 1));
    assert_eq!(weakest.ring.bw_inter, whole.ring.bw_inter / 2.0);
    // A rank that offers nothing, and one whose channels are not its ranks'.
    all[2].channels.as_mut().unwrap().ring.channels[0].gpus = vec![0, 0];
    let error = CommGraphs::agree(&nodes, &all, 64).unwrap_err().to_string();
    assert!(error.contains("not every local rank once"), "{error}");
    all[2].channels = None;
    assert!(CommGraphs::agree(&nodes, &all, 64).unwrap().is_none());
}

#[test]
fn what_ranks_stand_for_has_to_be_there() {
    let peers: Vec<_> = (0..3).map(|rank| peer(rank, 0)).collect();
    for (file, ranks, wrong) in [
        ("", "all", "NCCL_TOPO_FILE, which is not set"),
        ("dgx-a100", "0,1", "the host has 3 ranks, and these are 2 GPUs"),
        ("dgx-a100", "0,1,99", "has no GPU 99"),
    ] {
        let error = found(&peers, &env(file, ranks)).unwrap_err().to_string();
        assert!(error.contains("FERROCCL_TOPO_RANKS") && error.contains(wrong), "{error}");
    }
    // In the order of the ranks, whatever that of the file is.
    let chosen = found(&peers, &env("dgx-a100", "6,1,4")).unwrap();
    let gpus = &chosen[0].channels.as_ref().unwrap().ring.channels[0].gpus;
    assert_eq!(gpus.iter().collect::<BTreeSet<_>>().len(), 3);
}

/// Two GPUs under a switch each of two Intel CPUs: what is too far for P2P is what `NCCL_P2P_LEVEL` says, or the CPU, and then
/// the ranks share the host's memory, or talk over the network.
#[test]
fn ranks_that_are_too_far_apart_do_without_p2p() {
    let peers: Vec<_> = (0..8).map(|rank| peer(rank, rank % 2)).collect();
    let nodes = Nodes::new(0, &peers, None);
    for (level, shm, refused, way) in [
        (None, true, 4, "SHM"),
        (Some("SYS"), true, 0, "P2P"),
        (Some("LOC"), true, 6, "SHM"),
        (None, false, 4, "NET"),
        (Some("LOC"), false, 6, "NET"),
    ] {
        let file =
            format!("{}/tests/topology_files/pcie-4gpu-no-nic.xml", env!("CARGO_MANIFEST_DIR"));
        let lookup = |name: &str| match name {
            "NCCL_TOPO_FILE" => Some(file.clone()),
            "FERROCCL_TOPO_RANKS" => Some("all".to_owned()),
            "NCCL_P2P_LEVEL" => level.map(str::to_owned),
            "NCCL_SHM_DISABLE" => (!shm).then(|| "1".to_owned()),
            _ => None,
        };
        let found = found(&peers, &Config::from_lookup(lookup).unwrap()).unwrap();
        let pairs = too_far(&nodes, &found).unwrap();
        assert_eq!(pairs.len(), 2 * refused, "{level:?} {shm}: {pairs:?}");
        let allowed = AllowedTransports { p2p: true, shm, net: true, too_far: Some(&pairs) };
        // Ranks 0 and 4 are of one host, and their GPUs of two CPUs.
        let transport = |a: usize, b: usize| select(&peers[a], &peers[b], allowed).unwrap().name();
        assert_eq!((transport(0, 4), transport(4, 0)), (way, way), "{level:?} {shm}");
        let without = AllowedTransports { net: false, shm: false, ..allowed };
        if refused > 0 {
            let error = select(&peers[0], &peers[4], without).unwrap_err().to_string();
            assert!(error.contains("P2P: SYS is farther than "), "{error}");
        }
    }
    let pair = FarPair { why: String::new(), net_is_faster: false };
    let bad = HostFindings { channels: None, too_far: vec![(0, 4, pair)], cores: Vec::new() };
    assert!(too_far(&nodes, &[bad]).unwrap_err().to_string().contains("does not have"));
}

/// A GPU and a card behind a switch of each of two Intel CPUs: GPUs of one host talk over the network, which is faster than
/// from CPU to CPU, if there is more than one host.
#[test]
fn ranks_talk_over_the_network_where_it_is_faster() {
    let lookup = |extra: Option<(&'static str, &'static str)>| {
        let file =
            format!("{}/tests/topology_files/pcie-2gpu-2nic.xml", env!("CARGO_MANIFEST_DIR"));
        let lookup = move |name: &str| match name {
            "NCCL_TOPO_FILE" => Some(file.clone()),
            "FERROCCL_TOPO_RANKS" => Some("all".to_owned()),
            name => extra.filter(|extra| extra.0 == name).map(|extra| extra.1.to_owned()),
        };
        Config::from_lookup(lookup).unwrap()
    };
    for (hosts, extra, way, why) in [
        (2, None, "NET", Some(true)),
        (1, None, "SHM", Some(false)),
        (2, Some(("NCCL_NET_DISABLE_INTRA", "1")), "SHM", Some(false)),
        (2, Some(("NCCL_P2P_LEVEL", "SYS")), "NET", Some(true)),
        (1, Some(("NCCL_P2P_LEVEL", "SYS")), "P2P", None),
        (2, Some(("NCCL_NET", "none")), "SHM", Some(false)),
    ] {
        let what = format!("{hosts} hosts, {extra:?}");
        let peers: Vec<_> = (0..2 * hosts).map(|rank| peer(rank, rank / 2)).collect();
        let env = lookup(extra);
        let pairs = too_far(&Nodes::new(0, &peers, None), &found(&peers, &env).unwrap()).unwrap();
        assert_eq!(pairs.get(&(0, 1)).map(|pair| pair.net_is_faster), why, "{what}: {pairs:?}");
        let net = !env.has_no_net();
        let allowed = AllowedTransports { p2p: true, shm: true, net, too_far: Some(&pairs) };
        let transport = |a: usize, b: usize| select(&peers[a], &peers[b], allowed).unwrap().name();
        assert_eq!((transport(0, 1), transport(1, 0)), (way, way), "{what}");
        if way == "NET" {
            let without = AllowedTransports { net: false, ..allowed };
            let error = select(&peers[0], &peers[1], without).unwrap_err().to_string();
            let why = "SHM: the network is faster: 24.0 GB/s, and ";
            assert!(error.contains(why) && error.contains(" by SYS"), "{error}");
        }
    }
}

/// On DGX A100 two cards and two GPUs are behind each switch. Where the network makes one card of each two, the channels name it.
#[test]
fn channels_name_the_virtual_card() {
    use ferroccl_proxy::net::LocalNet;

    let peers: Vec<_> = (0..16).map(|rank| peer(rank, rank / 8)).collect();
    let file = env("dgx-a100", "all").topo_file;
    let with = |name: &'static str, value: &'static str| {
        let lookup = |asked: &str| match asked {
            "NCCL_TOPO_FILE" => file.clone(),
            "FERROCCL_TOPO_RANKS" => Some("all".to_owned()),
            asked => (asked == name).then(|| value.to_owned()),
        };
        Config::from_lookup(lookup).unwrap()
    };
    let cards = |env: &Config| {
        let net = LocalNet::with_devices(8);
        fusion::fuse(&net, true, env)?;
        let nodes = Nodes::new(0, &peers, None);
        let config = CommConfig::default();
        let query = GraphQuery {
            peers: &peers,
            nodes: &nodes,
            env,
            config: &config,
            net: Some(&net),
            driven: true,
        };
        let host = query.search(0)?.channels.unwrap();
        let used = host.ring.channels.iter().flat_map(|channel| channel.nets.into_iter().flatten());
        let used: BTreeSet<u32> = used.map(|port| host.cards[port].unwrap()).collect();
        let members = |device: u32| net.properties(device as usize).unwrap().members;
        let bw = host.ring.bw_inter * host.ring.channels.len() as f64;
        Ok::<_, Error>((used.into_iter().map(members).collect::<Vec<_>>(), bw))
    };
    let (apart, bw) = cards(&with("", "")).unwrap();
    assert_eq!(apart, vec![Vec::<usize>::new(); 8], "PORT: no card has two ports");
    let pairs = [[0, 1], [2, 3], [4, 5], [6, 7]].map(Vec::from);
    let (merged, merged_bw) = cards(&with("NCCL_NET_MERGE_LEVEL", "PIX")).unwrap();
    assert_eq!((merged, merged_bw), (pairs.to_vec(), bw));
    let all = "local,local4;local1,local5;local2,local6;local3,local7";
    let (forced, _) = cards(&with("NCCL_NET_FORCE_MERGE", all)).unwrap();
    assert_eq!(forced.iter().flatten().collect::<BTreeSet<_>>().len(), 8, "{forced:?}");
    let error = cards(&with("NCCL_NET_FORCE_MERGE", "local,eth7")).unwrap_err().to_string();
    let wrong = "invalid setting NCCL_NET_FORCE_MERGE=local,eth7: there is no card eth7; there are";
    assert!(error.starts_with(wrong), "{error}");
    // A network that makes none.
    let interface = ferroccl_proxy::net::socket::SocketInterface {
        name: "lo".to_owned(),
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        scope_id: 0,
    };
    let config = ferroccl_proxy::net::socket::SocketConfig {
        interfaces: vec![interface],
        threads: None,
        sockets_per_thread: None,
        secret: [0; 32],
        connect_timeout: std::time::Duration::from_secs(1),
    };
    let sockets = ferroccl_proxy::net::socket::SocketNet::new(config).unwrap();
    assert!(fusion::fuse(&sockets, true, &with("NCCL_NET_MERGE_LEVEL", "SYS")).is_ok());
    let error = fusion::fuse(&sockets, true, &with("NCCL_NET_FORCE_MERGE", "lo,eth0"));
    let error = error.unwrap_err().to_string();
    let wrong = "NCCL_NET_FORCE_MERGE=lo,eth0: network Socket makes no virtual devices";
    assert!(error.contains(wrong), "{error}");
}
