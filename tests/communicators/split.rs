//! Splits, against what MPI says of `MPI_Comm_split`.

use std::sync::Arc;
use std::time::Duration;

use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{CommConfig, Communicator, Device, Error, UniqueId};
use ferroccl_proxy::net::LocalNet;

use super::{both_ways, each, init_ranks, sums};
use crate::again::{elsewhere, here};
use crate::random::Random;

type Place = (Option<u32>, i32);

/// The groups that `places` make of `ranks`, each in its order, and each rank's index in its group.
fn model(ranks: &[u32], places: &[Place]) -> Vec<Vec<u32>> {
    let mut order: Vec<(u32, i32, usize)> = places
        .iter()
        .enumerate()
        .filter_map(|(i, (color, key))| Some(((*color)?, *key, i)))
        .collect();
    order.sort_unstable();
    let groups = order.chunk_by(|a, b| a.0 == b.0);
    groups.map(|group| group.iter().map(|(.., i)| ranks[*i]).collect()).collect()
}

/// The communicators of a group, and what its ranks are in the first group of all.
struct Group {
    ranks: Vec<u32>,
    communicators: Vec<Communicator>,
}

impl Group {
    /// All sums are of the group's ranks, whatever other groups do.
    fn check(groups: &[Group], device: &Device, what: &str) {
        let mut given = Vec::new();
        let mut want = Vec::new();
        for group in groups {
            let sum: u64 = group.ranks.iter().map(|rank| 1 << rank).sum();
            for (i, (communicator, rank)) in
                group.communicators.iter().zip(&group.ranks).enumerate()
            {
                assert_eq!(communicator.rank(), i as u32, "{what}: rank {rank}");
                assert_eq!(communicator.world_size() as usize, group.ranks.len(), "{what}");
                given.push((communicator, 1 << rank));
                want.push(sum);
            }
        }
        let got: Vec<u64> = sums(device, &given).into_iter().map(Result::unwrap).collect();
        assert_eq!(got, want, "{what}");
    }

    fn split(&self, random: &mut Random) -> Vec<Group> {
        let colors = 1 + random.below(3) as u32;
        let places: Vec<Place> = self
            .ranks
            .iter()
            .map(|_| {
                let color = (!random.chance(15)).then(|| random.below(colors as usize) as u32);
                (color.map(|c| c * 0x5555_5555), random.below(5) as i32 - 2)
            })
            .collect();
        let children =
            Communicator::split_all(&self.communicators, |rank| places[rank as usize]).unwrap();
        let mut children: Vec<Option<Communicator>> = children;
        let groups = model(&self.ranks, &places).into_iter().map(|ranks| {
            let at = |rank: &u32| self.ranks.iter().position(|r| r == rank).unwrap();
            let communicators = ranks.iter().map(|rank| children[at(rank)].take().unwrap());
            Group { communicators: communicators.collect(), ranks }
        });
        let groups = groups.collect();
        assert!(children.iter().all(Option::is_none), "only who gave a color is in a group");
        groups
    }
}

/// Splits of splits, three deep; parents and children are used in turn.
fn family(device: &Device, first: Vec<Communicator>, seed: u64, what: &str) {
    println!("{what}: seed {seed}");
    let mut random = Random(seed);
    let mut groups = vec![Group { ranks: (0..first.len() as u32).collect(), communicators: first }];
    let mut from = 0;
    for _ in 0..3 {
        let until = groups.len();
        for parent in from..until {
            let children = groups[parent].split(&mut random);
            groups.extend(children);
        }
        from = until;
        Group::check(&groups, device, &format!("{what}, seed {seed}"));
    }
}

#[test]
fn random_splits_of_one_process() {
    let device = Device::cpu();
    for seed in 0..12 {
        let n = 1 + seed as u32 % 9;
        let ranks = Communicator::init_all(&device, n).unwrap();
        family(&device, ranks, seed, &format!("init_all of {n}"));
    }
}

#[test]
fn random_splits_of_ranks_that_found_each_other() {
    let device = Device::cpu();
    for seed in 0..6 {
        let n = 1 + seed as u32;
        family(
            &device,
            init_ranks(&device, n, &CommConfig::default()),
            seed,
            &format!("init_rank of {n}"),
        );
    }
}

/// Children have their parents' network.
#[test]
fn random_splits_over_a_network() {
    let device = Device::cpu();
    for seed in 0..4 {
        let mut config = CommConfig::default();
        (config.p2p, config.shm) = (Some(false), Some(false));
        family(&device, init_ranks(&device, 4, &config), seed, "sockets");
        config.net = Some(Arc::new(LocalNet::default()));
        let ranks = Communicator::init_all_with(&device, 4, &config).unwrap();
        family(&device, ranks, seed, "a network in the process");
    }
}

/// What waits for nobody can split where kernels run only while somebody waits.
#[test]
fn random_splits_under_the_adversary() {
    for seed in 0..6 {
        let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed))));
        let ranks = Communicator::init_all(&device, 5).unwrap();
        family(&device, ranks, seed, "adversary");
    }
}

/// Settings that are given hold for the child, and all others are the parent's.
#[test]
fn a_child_has_its_parents_settings_and_its_own() {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.channels = Some(3);
    for ranks in
        [Communicator::init_all_with(&device, 3, &config).unwrap(), init_ranks(&device, 3, &config)]
    {
        let children = each(3, |rank| ranks[rank as usize].split(Some(0), 0).unwrap().unwrap());
        assert!(children.iter().all(|child| child.channels() == 3));
        let mut other = CommConfig::default();
        other.channels = Some(2);
        let other = &other;
        let children =
            each(3, |rank| ranks[rank as usize].split_with(Some(7), 0, other).unwrap().unwrap());
        assert!(children.iter().all(|child| child.channels() == 2));
        let mut bad = CommConfig::default();
        bad.channels = Some(99);
        for error in each(3, |rank| ranks[rank as usize].split_with(Some(7), 0, &bad).unwrap_err())
        {
            assert!(error.to_string().contains("CommConfig::channels"), "{error}");
        }
    }
}

/// Parents may go before their children, and children before their parents.
#[test]
fn parents_and_children_end_in_any_order() {
    let device = Device::cpu();
    for ranks in both_ways(&device, 4, &CommConfig::default()) {
        let halves = Communicator::split_all(&ranks, |rank| (Some(rank % 2), 0)).unwrap();
        let again = Communicator::split_all(&ranks, |rank| (Some(rank / 2), 0)).unwrap();
        drop(halves);
        let ones: Vec<_> = ranks.iter().map(|rank| (rank, 1)).collect();
        assert!(sums(&device, &ones).into_iter().all(|sum| sum.unwrap() == 4));
        drop(ones);
        drop(ranks);
        let ones: Vec<_> = again.iter().flatten().map(|rank| (rank, 1)).collect();
        assert!(sums(&device, &ones).into_iter().all(|sum| sum.unwrap() == 2));
    }
}

/// Who leaves instead of splitting is named by all others, at once.
#[test]
fn a_rank_that_leaves_ends_a_split() {
    let device = Device::cpu();
    for mut ranks in both_ways(&device, 4, &CommConfig::default()) {
        let left = ranks.remove(2);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                drop(left);
            });
            let splits: Vec<_> =
                ranks.iter().map(|rank| scope.spawn(move || rank.split(Some(0), 0))).collect();
            for split in splits {
                let error = split.join().unwrap().unwrap_err();
                assert!(matches!(&error, Error::PeerLost { peer: 2, .. }), "{error}");
            }
        });
        // And so it stays.
        let error = ranks[0].split(Some(0), 0).unwrap_err();
        assert!(matches!(&error, Error::PeerLost { peer: 2, .. }), "{error}");
    }
}

#[test]
fn a_failure_of_the_parent_ends_a_split() {
    let device = Device::cpu();
    for ranks in both_ways(&device, 3, &CommConfig::default()) {
        std::thread::scope(|scope| {
            let stuck = scope.spawn(|| ranks[0].split(Some(0), 0));
            std::thread::sleep(Duration::from_millis(50));
            ranks[0].abort();
            let error = stuck.join().unwrap().unwrap_err();
            assert!(matches!(&error, Error::Aborted { rank: 0, .. }), "{error}");
            assert!(error.to_string().contains("during a split"), "{error}");
        });
        let error = ranks[0].split(Some(0), 0).unwrap_err();
        assert!(matches!(&error, Error::Aborted { rank: 0, .. }), "{error}");
    }
}

#[test]
fn ranks_that_do_not_split_are_named() {
    if !here() {
        let limit = [("FERROCCL_BOOTSTRAP_TIMEOUT", "0.3")];
        return elsewhere(module_path!(), "ranks_that_do_not_split_are_named", &limit);
    }
    let device = Device::cpu();
    for ranks in both_ways(&device, 4, &CommConfig::default()) {
        for error in each(2, |rank| ranks[1 + rank as usize].split(Some(0), 0).unwrap_err()) {
            let text = error.to_string();
            assert!(text.contains("2 of 4 ranks did not come: rank 0, 3"), "{text}");
        }
    }
}

/// Two threads of each rank that split at the same time: each pair is one of the two splits.
#[test]
fn splits_of_several_threads_do_not_mix() {
    let device = Device::cpu();
    for ranks in both_ways(&device, 3, &CommConfig::default()) {
        let children = each(6, |i| ranks[i as usize / 2].split(Some(1), 0).unwrap().unwrap());
        assert!(children.iter().all(|child| child.world_size() == 3));
    }
}

/// A group of one, and colors that are nobody else's.
#[test]
fn alone() {
    let device = Device::cpu();
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    let one = Communicator::init_rank(&device, 1, &id, 0).unwrap();
    let child = one.split(Some(u32::MAX), i32::MIN).unwrap().unwrap();
    assert_eq!((child.rank(), child.world_size()), (0, 1));
    assert!(child.split(None, 0).unwrap().is_none());
    let ranks = Communicator::init_all(&device, 3).unwrap();
    let children = Communicator::split_all(&ranks, |rank| (Some(rank), 0)).unwrap();
    assert!(children.iter().flatten().all(|child| child.world_size() == 1));
}
