//! Groups of ranks whose messages come in any order that connections allow.

use super::*;
use crate::rounds::gather_rounds;

/// SplitMix64: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) as usize % end
    }
}

/// A rank's block in a call: of any length, often none.
fn block(rank: u32, call: u32) -> Vec<u8> {
    let length = (rank.wrapping_mul(2_654_435_761) ^ call) % 23;
    (0..length).map(|i| (i ^ rank ^ (call << 4)) as u8).collect()
}

/// From one rank to another.
type Way = (u32, u32);

/// Ranks, and what is on its way between two of them, in order.
struct Group {
    ranks: Vec<AllGathers>,
    ways: Vec<(Way, VecDeque<Vec<u8>>)>,
    sent: usize,
}

impl Group {
    fn new(nranks: u32) -> Self {
        let ranks = (0..nranks).map(|rank| AllGathers::new(rank, nranks, 64)).collect();
        Group { ranks, ways: Vec::new(), sent: 0 }
    }

    fn go_on(&mut self, rank: u32) {
        let nranks = self.ranks.len() as u32;
        while let Some((place, pieces)) = self.ranks[rank as usize].advance() {
            let way = (rank, partners(rank, nranks)[place]);
            self.sent += pieces.len();
            match self.ways.iter_mut().find(|(of, _)| *of == way) {
                Some((_, queue)) => queue.extend(pieces),
                None => self.ways.push((way, pieces.into())),
            }
        }
    }

    /// Brings one of the messages that are first on their ways.
    fn bring(&mut self, random: &mut Random) {
        let way = random.below(self.ways.len());
        let ((from, to), queue) = &mut self.ways[way];
        let (from, to) = (*from, *to);
        let mut message = queue.pop_front().unwrap();
        if queue.is_empty() {
            self.ways.swap_remove(way);
        }
        let place = partners(to, self.ranks.len() as u32).iter().position(|p| *p == from);
        let rank = &mut self.ranks[to as usize];
        // In any pieces.
        let number = message[..NUMBER].to_vec();
        let mut rest = message.split_off(NUMBER);
        while !rest.is_empty() {
            let behind = rest.split_off(1 + random.below(rest.len()));
            rank.hear(place.unwrap(), &[&number[..], &rest].concat()).unwrap();
            rest = behind;
        }
        self.go_on(to);
    }
}

#[test]
fn every_rank_gets_every_block_in_whatever_order_messages_come() {
    for nranks in (1..=33).chain([63, 64, 65, 127, 200, 256]) {
        for seed in 0..if nranks < 34 { 6 } else { 1 } {
            println!("{nranks} ranks, seed {seed}");
            let mut random = Random(seed << 32 | u64::from(nranks));
            let mut group = Group::new(nranks);
            let (mut calls, mut idle) = (vec![0; nranks as usize], Vec::new());
            idle.extend(0..nranks);
            while !idle.is_empty() || !group.ways.is_empty() {
                // A rank that is done begins the next call at once, or much later.
                if !idle.is_empty() && (group.ways.is_empty() || random.below(2) == 0) {
                    let rank = idle.swap_remove(random.below(idle.len()));
                    group.ranks[rank as usize].begin(block(rank, calls[rank as usize]));
                    group.go_on(rank);
                } else {
                    group.bring(&mut random);
                }
                for rank in 0..nranks {
                    let (one, call) = (&mut group.ranks[rank as usize], &mut calls[rank as usize]);
                    let Some(all) = one.finish() else { continue };
                    let said: Vec<_> = (0..nranks).map(|r| block(r, *call)).collect();
                    assert_eq!(all.to_vecs(), said);
                    *call += 1;
                    if *call < 3 {
                        idle.push(rank);
                    }
                }
            }
            assert!(calls.iter().all(|calls| *calls == 3), "{calls:?}");
        }
    }
}

/// A count, so that nobody makes it quadratic again without noticing.
#[test]
fn an_all_gather_takes_no_more_than_n_log_n_messages_and_a_rank_has_log_n_partners() {
    for nranks in (1..=130).chain([255, 256, 257, 1000, 1024, 1025]) {
        let mut group = Group::new(nranks);
        for rank in 0..nranks {
            group.ranks[rank as usize].begin(block(rank, 0));
            group.go_on(rank);
        }
        while !group.ways.is_empty() {
            group.bring(&mut Random(7));
        }
        assert!(group.ranks.iter_mut().all(|rank| rank.finish().is_some()));
        let rounds = nranks.next_power_of_two().ilog2() as usize;
        assert!(group.sent <= nranks as usize * rounds, "{nranks} ranks: {}", group.sent);
        for rank in 0..nranks {
            assert!(partners(rank, nranks).len() <= rounds, "rank {rank} of {nranks}");
            assert!(steps(rank, nranks).len() <= rounds + 1, "rank {rank} of {nranks}");
        }
    }
}

#[test]
fn partners_are_partners_of_each_other() {
    for nranks in 1..=70 {
        for rank in 0..nranks {
            for partner in partners(rank, nranks) {
                assert!(partner < nranks && partner != rank);
                assert!(partners(partner, nranks).contains(&rank), "{rank}, {partner}");
            }
        }
    }
}

#[test]
fn a_message_longer_than_a_piece_comes_in_several() {
    let mut group = Group {
        ranks: (0..3).map(|rank| AllGathers::new(rank, 3, MAX_DATA)).collect(),
        ..Group::new(0)
    };
    for rank in 0..3 {
        group.ranks[rank as usize].begin(vec![rank as u8; MAX_DATA - 3]);
        group.go_on(rank);
    }
    while !group.ways.is_empty() {
        assert!(group.ways.iter().all(|(_, way)| way.iter().all(|piece| piece.len() <= MAX_DATA)));
        group.bring(&mut Random(1));
    }
    for rank in &mut group.ranks {
        for (from, block) in rank.finish().unwrap().to_vecs().into_iter().enumerate() {
            assert!(block.len() == MAX_DATA - 3 && block.iter().all(|b| usize::from(*b) == from));
        }
    }
}

#[test]
fn what_no_partner_says_has_no_place() {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let hear = |pieces: &[Vec<u8>]| {
        // Rank 0 of 4: of rank 2, the second partner, come two blocks.
        let mut rank = AllGathers::new(0, 4, 8);
        pieces.iter().map(|piece| rank.hear(1, piece)).last().unwrap()
    };
    let call = |theirs| Err(Misplaced::Call { theirs });
    assert_eq!(hear(&[words(&[0, 0, 0])]), Ok(()));
    assert_eq!(hear(&[words(&[0, 8, 1, 2]), words(&[0, 0])]), Ok(()));
    assert_eq!(hear(&[words(&[0, 0, 0]), words(&[1, 0, 0])]), Ok(()), "a call ahead");
    assert_eq!(hear(&[words(&[0, 0, 0]), words(&[1, 0, 0]), words(&[2, 0])]), call(2));
    assert_eq!(hear(&[words(&[0, 0, 0]), words(&[0, 0, 0])]), call(0), "said twice");
    assert_eq!(hear(&[words(&[1, 0, 0])]), call(1), "one left out");
    assert_eq!(hear(&[words(&[u32::MAX, 0, 0])]), call(u32::MAX));
    let malformed = Err(Misplaced::Malformed);
    assert_eq!(hear(&[vec![0, 0, 0]]), malformed);
    assert_eq!(hear(&[words(&[0])]), malformed, "nothing");
    assert_eq!(hear(&[words(&[0, 9])]), malformed, "a block that is too long");
    assert_eq!(hear(&[words(&[0, u32::MAX])]), malformed);
    assert_eq!(hear(&[words(&[0, 0, 0, 0])]), malformed, "a block too many");
    assert_eq!(hear(&[words(&[0, 0]), words(&[0, 0, 4])]), malformed);
}

#[test]
fn rounds_are_as_many_as_others_reckon_with() {
    for nranks in 1..=1025 {
        let longest = (0..nranks).map(|rank| steps(rank, nranks).len()).max();
        assert_eq!(longest, Some(gather_rounds(nranks) as usize), "{nranks} ranks");
    }
}
