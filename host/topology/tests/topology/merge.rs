//! NIC fusion: which cards become one, and what that one is.

use std::collections::BTreeSet;
use std::convert::Infallible;

use ferroccl_topology::graph::{self, SearchSettings};
use ferroccl_topology::merge::{
    self, MOST_CARDS, MergeCard, MergeError, MergeLevel, MergeRules, distance, merge_ports,
};
use ferroccl_topology::{Assume, Files, Node, PathKind, Paths, Policy, System, build, xml};

/// Two CPUs. Under the first a switch with two cards, of which the second has two ports, a switch below that with a card, and a
/// card of two functions; under the second a card, and an interface for sockets.
const CARDS: &str = r#"<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="80" gdr="1"/></pci>
      <pci busid="0000:12:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
        <nic><net name="a" dev="0" speed="100000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic></pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
        <nic><net name="b" dev="1" speed="100000" port="1" guid="0x2" maxconn="131072" gdr="1"/>
             <net name="b" dev="2" speed="50000" port="2" guid="0x2" maxconn="131072" gdr="0"/></nic></pci>
      <pci busid="0000:14:00.0" class="0x060400" link_speed="16 GT/s" link_width="8">
        <pci busid="0000:15:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
          <nic><net name="c" dev="3" speed="200000" port="1" guid="0x3" maxconn="131072" gdr="1"/></nic></pci>
      </pci>
    </pci>
    <pci busid="0000:20:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
      <nic><net name="d0" dev="4" speed="100000" port="1" guid="0x4" maxconn="131072" gdr="1"/></nic></pci>
    <pci busid="0000:20:00.1" class="0x020700" link_speed="16 GT/s" link_width="16">
      <nic><net name="d1" dev="5" speed="100000" port="1" guid="0x5" maxconn="131072" gdr="1"/></nic></pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:80:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
      <nic><net name="e" dev="6" speed="100000" port="1" guid="0x6" maxconn="131072" gdr="1"/></nic></pci>
    <pci busid="0000:81:00.0" class="0x020000" link_speed="16 GT/s" link_width="16">
      <nic><net name="eth0" dev="7" speed="10000" port="0" guid="0x7" maxconn="65536" gdr="0"/>
           <net name="eth1" dev="8" speed="10000" port="0" guid="0x7" maxconn="65536" gdr="0"/></nic></pci>
  </cpu>
</system>"#;

fn system() -> System {
    let root = xml::parse(CARDS, "cards.xml").unwrap();
    build::system(&root, "cards.xml", &Assume::default()).unwrap().system
}

fn file(name: &str) -> System {
    let path = format!("{}/../../tests/topology_files/{name}.xml", env!("CARGO_MANIFEST_DIR"));
    let assume: Assume = "sm=80,nvswitch=12".parse().unwrap();
    ferroccl_topology::load_file(path.as_ref(), &assume).unwrap()
}

fn rules(level: &str, groups: &str) -> MergeRules {
    let groups = if groups.is_empty() { Ok(Default::default()) } else { groups.parse() };
    MergeRules { level: level.parse().unwrap(), groups: groups.unwrap() }
}

fn cards(system: &System) -> Vec<MergeCard> {
    let card = |(id, net): (_, &ferroccl_topology::Net)| MergeCard {
        name: net.name.clone(),
        port: net.port,
        node: Some(id),
    };
    system.nets().into_iter().map(card).collect()
}

/// Ports as `name dev GB/s`, and the bandwidth of their cards' links.
fn ports(system: &System) -> Vec<(String, u32, f64, f64)> {
    let up = |id| {
        let (_, to_card) = system.links_from(id).next().unwrap();
        let up = system.links_from(to_card.to).filter(|(_, link)| link.to != id);
        up.map(|(_, link)| link.bw).fold(f64::MAX, f64::min)
    };
    let net = |(id, net): (_, &ferroccl_topology::Net)| (net.name.clone(), net.dev, net.bw, up(id));
    system.nets().into_iter().map(net).collect()
}

#[test]
fn cards_are_as_far_apart_as_what_both_hang_by() {
    let system = system();
    let nets = system.nets();
    let between = |a: usize, b: usize| distance(&system, nets[a].0, nets[b].0).unwrap();
    for (a, b, level) in [
        (0, 0, MergeLevel::Loc),
        (1, 2, MergeLevel::Port),
        (4, 5, MergeLevel::Port),
        (0, 1, MergeLevel::Pix),
        (0, 3, MergeLevel::Pxb),
        (0, 4, MergeLevel::Phb),
        (3, 6, MergeLevel::Sys),
    ] {
        assert_eq!((between(a, b), between(b, a)), (level, level), "{a} and {b}");
    }
}

#[test]
fn a_level_merges_what_is_no_farther() {
    let merged = |level: &str| {
        let merged = merge_ports(&system(), &rules(level, "")).unwrap();
        let names: Vec<String> = merged.nets().iter().map(|(_, net)| net.name.clone()).collect();
        names.join(" ")
    };
    assert_eq!(merged("LOC"), "a b b c d0 d1 e eth0 eth1");
    // Interfaces for sockets stay apart, though they are ports of one card.
    assert_eq!(merged("PORT"), "a c e eth0 eth1 b+b d0+d1");
    assert_eq!(merged("PIX"), "c e eth0 eth1 a+b+b d0+d1");
    assert_eq!(merged("PXB"), "e eth0 eth1 a+b+b+c d0+d1");
    assert_eq!(merged("PXN"), merged("PXB"));
    // Four at most.
    assert_eq!(merged("PHB"), "e eth0 eth1 a+b+b+c d0+d1");
    assert_eq!(merged("SYS"), "eth0 eth1 a+b+b+c d0+d1+e");
}

#[test]
fn a_virtual_card_has_what_its_members_have_together() {
    let merged = merge_ports(&system(), &rules("PXB", "")).unwrap();
    let found = ports(&merged);
    // The switch before c has eight lanes, and the links of a and b carry 24 GB/s each. Numbers go on behind the last.
    assert_eq!(found[3], ("a+b+b+c".to_owned(), 9, 56.25, 24.0 + 24.0 + 12.0));
    // Two functions share one link.
    assert_eq!(found[4], ("d0+d1".to_owned(), 10, 25.0, 24.0));
    let nets = merged.nets();
    let (_, abc) = nets[3];
    assert_eq!(
        (abc.port, abc.guid, abc.gdr),
        (1, 1, false),
        "one port of b has no GPU Direct RDMA"
    );
    let nics = merged.nodes().filter(|(_, node)| matches!(node, Node::Nic(_))).count();
    assert_eq!(nics, 4, "cards without a port are gone");
    // Ports of one card stay on it.
    let merged = merge_ports(&system(), &rules("PORT", "")).unwrap();
    assert_eq!(ports(&merged)[5], ("b+b".to_owned(), 9, 18.75, 24.0));
}

/// Cards of p4d are in pairs, each behind a switch that two GPUs hang by, too.
#[test]
fn paths_and_channels_take_the_virtual_card() {
    let system = file("aws-p4d-24xl-topo");
    let before = Paths::new(&system, &Policy::default());
    let merged = merge_ports(&system, &rules("LOC", "net0,net1")).unwrap();
    let after = Paths::new(&merged, &Policy::default());
    assert_eq!((before.nets(), after.nets()), (4, 3));
    let (a, b) = (before.gpu_net(0, 0), after.gpu_net(0, 2));
    assert!(a.exists() && b.exists());
    assert_eq!(b.kind, PathKind::Phb, "the two hang by different switches");
    assert!(b.bw >= a.bw, "{} {}", a.bw, b.bw);
}

#[test]
fn cards_that_are_named_are_merged_however_far_apart_they_are() {
    let merged = |level: &str, groups: &str| {
        let merged = merge_ports(&system(), &rules(level, groups))?;
        let names: Vec<String> = merged.nets().iter().map(|(_, net)| net.name.clone()).collect();
        Ok::<_, String>(names.join(" "))
    };
    assert_eq!(merged("LOC", "e,a;c,d0").unwrap(), "b b d1 eth0 eth1 a+e c+d0");
    // What is named alone stays alone.
    assert_eq!(merged("PIX", "b:1").unwrap(), "b c e eth0 eth1 a+b d0+d1");
    assert_eq!(
        merged("LOC", "a,f").unwrap_err(),
        "there is no card f; there are a, b, b, c, d0, d1, e"
    );
    assert_eq!(merged("LOC", "a,b").unwrap_err(), "b has several ports: NAME:PORT is one");
    assert_eq!(merged("LOC", "a,c;c:1").unwrap_err(), "c:1 is there twice");
    for (text, wrong) in [
        ("", "\"\" names no card"),
        ("a,,b", "\"a,,b\" has a card without a name"),
        ("a:0", "\"a:0\" has no port from 1 to 255"),
        ("a;b,a", "\"a\" is there twice"),
        ("a,b,c,d,e", "\"a,b,c,d,e\" has more than 4 cards"),
    ] {
        let error = text.parse::<merge::MergeGroups>().unwrap_err().to_string();
        assert_eq!(error, wrong);
    }
}

/// As in NCCL: cards that are refused count as far apart, and the others are still merged.
#[test]
fn what_the_network_refuses_stays_apart() {
    let system = system();
    let cards = cards(&system);
    let no_a = |group: &[usize]| {
        if group.contains(&0) { Err("not a".to_owned()) } else { Ok(group.len()) }
    };
    let made = merge::merge(&system, &cards, &rules("PXB", ""), MOST_CARDS, no_a).unwrap();
    assert_eq!(made, [(vec![1, 2, 3], 3), (vec![4, 5], 2), (vec![7, 8], 2)]);
    let pairs = |group: &[usize]| Ok::<_, Infallible>(group.len());
    let made = merge::merge(&system, &cards, &rules("PXB", ""), 2, pairs).unwrap();
    assert_eq!(made, [(vec![0, 1], 2), (vec![2, 3], 2), (vec![4, 5], 2), (vec![7, 8], 2)]);
    let error = merge::merge(&system, &cards, &rules("LOC", "a,c"), MOST_CARDS, no_a).unwrap_err();
    assert_eq!(error.to_string(), "a+c: not a");
    let of_more = merge::merge(&system, &cards, &rules("LOC", "a,c,e"), 2, pairs).unwrap_err();
    assert!(matches!(&of_more, MergeError::Groups(why) if why.starts_with("3 cards in one")));
    // A card that the system does not have is near nothing.
    let mut unknown = cards.clone();
    unknown[0].node = None;
    let made = merge::merge(&system, &unknown, &rules("SYS", ""), MOST_CARDS, pairs).unwrap();
    assert_eq!(made[0], (vec![1, 2, 3, 4], 4));
}

/// On DGX A100 each two cards and two GPUs are behind a switch. A virtual card of both serves both GPUs, and as much goes through
/// all of them as through the cards apart.
#[test]
fn channels_fill_virtual_cards() {
    let total = |level: &str| {
        let merged = merge_ports(&file("dgx-a100"), &rules(level, "")).unwrap();
        let paths = Paths::new(&merged, &Policy::default());
        let settings = SearchSettings::default();
        let graphs = graph::file::load(&merged, &paths, &settings, &Files::default(), 2).unwrap();
        let used = graphs.ring.channels.iter().flat_map(|channel| channel.nets.unwrap());
        let used: BTreeSet<usize> = used.collect();
        (graphs.ring.bw_inter * graphs.ring.channels.len() as f64, used.len())
    };
    assert_eq!((total("LOC"), total("PIX")), ((192.0, 8), (192.0, 4)));
}
