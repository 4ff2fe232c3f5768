//! Data that leaves a host by the card of another rank, and from that rank's process (PXN).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::channels::{hosts, start};
use crate::members::{CALLS, Job};

/// An address and a port, as proc_pid_net(5) shows them.
fn end_of_connection(text: &str) -> (Ipv4Addr, u16) {
    let (address, port) = text.split_once(':').unwrap();
    let address = u32::from_str_radix(address, 16).unwrap();
    (Ipv4Addr::from(address.to_ne_bytes()), u16::from_str_radix(port, 16).unwrap())
}

/// The addresses that a process has made connections with.
pub(crate) fn remote_addresses(pid: u32) -> BTreeSet<Ipv4Addr> {
    let mut inodes = BTreeSet::new();
    // A process that has ended has none.
    for file in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let link = std::fs::read_link(file.path()).unwrap_or_default();
        let link = link.display().to_string();
        inodes.extend(link.strip_prefix("socket:[").map(|l| l.trim_end_matches(']').to_owned()));
    }
    // proc_pid_net(5): local address, remote address, state (01 is established, 0A listens), ..., the inode is the tenth.
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own: Vec<_> = rows.filter(|row| inodes.contains(row[9])).collect();
    let in_state = |state: &'static str| own.iter().filter(move |row| row[3] == state);
    let listening: BTreeSet<u16> = in_state("0A").map(|row| end_of_connection(row[1]).1).collect();
    // A connection that was accepted has the listener's port.
    let made = in_state("01").filter(|row| !listening.contains(&end_of_connection(row[1]).1));
    made.map(|row| end_of_connection(row[2]).0).collect()
}

/// Messages from rank 0, on the first GPU of a host, to a rank on the second GPU of another, over cards that are each near
/// one GPU.
fn messages(calls: &str, env: &[(&str, &str)]) -> Option<(Job, crate::hosts::Hosts)> {
    let hosts = hosts(2, 8)?;
    let env = [&[(CALLS, calls), ("FERROCCL_TIMEOUT", "60")], env].concat();
    let mut job = start(&hosts, 4, false, "hgx-h100", "messages", &env);
    for rank in [0, 5] {
        job.told(rank, "runs");
    }
    Some((job, hosts))
}

/// The rank that sends has nothing else to do, and would have left if it were not for that.
#[test]
fn messages_leave_from_the_rank_of_the_receivers_number() {
    for (env, sender) in [
        (&[][..], 1),
        (&[("NCCL_P2P_PXN_LEVEL", "0")], 0),
        (&[("NCCL_PXN_DISABLE", "1")], 0),
        // Ranks that share no memory send for themselves.
        (&[("NCCL_SHM_DISABLE", "1"), ("NCCL_P2P_DISABLE", "1")], 0),
    ] {
        let Some((mut job, hosts)) = messages("64", env) else { return };
        // The receiver listens on its own card.
        let card = Ipv4Addr::new(10, 214, 1, 1);
        let connected = |rank: &usize| remote_addresses(job.ranks[*rank].0.id()).contains(&card);
        let senders: Vec<usize> = (0..4).filter(connected).collect();
        assert_eq!(senders, [sender], "{env:?}");
        job.all_told("ended well");
        job.end();
        let sent = hosts.sent(0);
        assert!(sent[1] >= 64 << 20, "{env:?}: {sent:?}");
    }
}

/// Rings and trees leave a host by a card that is another GPU's where only half of a host's GPUs have ranks.
#[test]
fn collectives_are_sent_by_the_rank_at_the_card() {
    let Some(hosts) = hosts(3, 8) else { return };
    for (in_turn, algorithm, protocol) in
        [(false, "", "Simple"), (true, "", "LL"), (false, "allreduce:tree", "LL128")]
    {
        println!("in turn {in_turn}, {algorithm} {protocol}");
        let env = [("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)];
        let mut job = start(&hosts, 4, in_turn, "hgx-h100", "every_collective", &env);
        job.all_told("ended well");
        job.end();
    }
}

/// Each rank of a ring has the connections to its own card, whosever data those carry. Whoever loses the rank that sends for
/// it, and whoever loses the rank that it sends for, names that one.
#[test]
fn ranks_have_the_connections_of_their_card_and_a_lost_one_is_named() {
    for killed in [1, 0] {
        let Some(hosts) = hosts(2, 8) else { return };
        let env = [("NCCL_ALGO", "Ring"), ("FERROCCL_TIMEOUT", "60")];
        let mut job = start(&hosts, 4, false, "hgx-h100", "for_ever", &env);
        job.all_told("runs");
        // The ring has gone round, so all its connections are there. Other connections are between the first cards.
        let first = |address: &Ipv4Addr| address.octets()[1] == 213;
        for rank in 1..8u8 {
            let mut data = remote_addresses(job.ranks[usize::from(rank)].0.id());
            data.retain(|address| !first(address));
            let own = Ipv4Addr::new(10, 213 + rank % 4, 1 - rank / 4, 1);
            assert!(rank == 4 && data.is_empty() || data == [own].into(), "rank {rank}: {data:?}");
        }
        job.ranks[killed].0.kill().unwrap();
        for rank in (0..8).filter(|rank| *rank != killed) {
            let error = job.told(rank, "ended ");
            assert!(error.contains(&format!("lost rank {killed}")), "rank {rank}: {error}");
        }
    }
}
