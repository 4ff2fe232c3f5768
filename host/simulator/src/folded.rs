//! Rings around hosts that are all alike, of which some stand for all: when each rank ends.
//!
//! Where all ranks begin at once, the hosts that stand for the others end when those do. Where they do not, a run for each rank of these hosts
//! says how far its start reaches ([`Reach`]), and that is the same for the ranks in its place on all hosts. A rank ends at the latest of
//! what reaches it. Channels with the same steps and connections around their rings have one set of such runs.

use std::ops::Range;

use crate::SimulateError;
use crate::costs::Costs;
use crate::engine::run_on_shares;
use crate::moment::{Moment, Reach};
use crate::stage::{Block, Conn, Stage};

/// When each of the ring's ranks ends, if they begin at `starts`; the first `there` of them are in the stage.
///
/// # Errors
/// [`SimulateError::Stuck`].
pub(crate) fn rank_ends(
    stage: &Stage,
    costs: &Costs,
    there: u32,
    starts: &[f64],
) -> Result<Vec<f64>, SimulateError> {
    let there = there as usize;
    let mut latest = starts.to_vec();
    let alike = |rank: u32| rank as usize..;
    if starts.iter().all(|start| *start == starts[0]) {
        let ends = run_on_shares(stage, costs, |_| starts[0])?;
        for (block, end) in stage.blocks.iter().zip(ends) {
            latest[alike(block.rank)]
                .iter_mut()
                .step_by(there)
                .for_each(|rank| rank.or_later(&end));
        }
        return Ok(latest);
    }
    let mut known: Vec<Reaches> = Vec::new();
    for blocks in channels(stage) {
        let one = channel(stage, blocks);
        let places = places(&one);
        let found = known.iter().position(|known| known.turn(&places).is_some());
        let at = match found {
            Some(at) => at,
            None => {
                known.push(Reaches::new(&one, costs, places.clone())?);
                known.len() - 1
            }
        };
        let reaches = &known[at];
        let turn = reaches.turn(&places).unwrap_or(0);
        for (i, from) in one.blocks.iter().enumerate() {
            let starts: Vec<f64> =
                starts[alike(from.rank)].iter().step_by(there).copied().collect();
            for (j, to) in one.blocks.iter().enumerate() {
                let mut ends = vec![0.0; starts.len()];
                reaches.between(i + turn, j + turn).delay(&starts, &mut ends);
                let ranks = latest[alike(to.rank)].iter_mut().step_by(there);
                ranks.zip(&ends).for_each(|(rank, end)| rank.or_later(end));
            }
        }
    }
    Ok(latest)
}

/// What a connection of a block is: where its ends are, counted around the ring from the block on, and what it does to messages.
type Place = ([usize; 2], bool, i32, [u64; 2]);

/// By block of a channel, its program and connections.
type Places = Vec<(u32, u32, Vec<Place>)>;

fn places(channel: &Stage) -> Places {
    let all = channel.blocks.len();
    let of = |(i, block): (usize, &Block)| {
        let end =
            channel.blocks.get(i + 1).map_or(channel.block_conns.len(), |next| next.conns as usize);
        let conns = channel.block_conns[block.conns as usize..end].iter();
        let place = |conn: &u32| {
            let Conn { from, to, remote, hosts, rate, latency, .. } = channel.conns[*conn as usize];
            let ends = [from, to].map(|end| (end as usize + all - i) % all);
            (ends, remote, hosts, [rate.to_bits(), latency.to_bits()])
        };
        (block.program, block.half, conns.map(place).collect())
    };
    channel.blocks.iter().enumerate().map(of).collect()
}

/// How far starts reach in a channel, and in all that are like it.
struct Reaches {
    places: Places,
    /// By the block that starts and the one that ends.
    reaches: Vec<Vec<Reach>>,
}

impl Reaches {
    fn new(channel: &Stage, costs: &Costs, places: Places) -> Result<Self, SimulateError> {
        let from = |first: &Block| {
            let start = |rank| if rank == first.rank { Reach::start() } else { Reach::default() };
            run_on_shares(channel, costs, start)
        };
        let reaches = channel.blocks.iter().map(from).collect::<Result<_, _>>()?;
        Ok(Reaches { places, reaches })
    }

    /// By how many blocks another channel is turned against this one, if it is like it.
    fn turn(&self, places: &Places) -> Option<usize> {
        let all = self.places.len();
        let is_like = |turn: &usize| {
            places.len() == all && (0..all).all(|i| places[i] == self.places[(i + turn) % all])
        };
        (0..all.max(1)).find(is_like)
    }

    fn between(&self, from: usize, to: usize) -> &Reach {
        let all = self.places.len();
        &self.reaches[from % all][to % all]
    }
}

/// The blocks of each channel.
fn channels(stage: &Stage) -> Vec<Range<usize>> {
    let mut first = 0;
    let of = |blocks: &[Block]| {
        let range = first..first + blocks.len();
        first = range.end;
        range
    };
    stage.blocks.chunk_by(|a, b| a.channel == b.channel).map(of).collect()
}

/// The blocks of a channel as a stage of its own.
fn channel(stage: &Stage, blocks: Range<usize>) -> Stage {
    let first = blocks.start as u32;
    let list = |block: usize| {
        stage.blocks.get(block).map_or(stage.block_conns.len(), |block| block.conns as usize)
    };
    let lists = list(blocks.start)..list(blocks.end);
    let numbers = &stage.block_conns[lists.clone()];
    let one = numbers.iter().copied().min().unwrap_or(0);
    let end = numbers.iter().copied().max().map_or(one, |last| last + 1);
    let block = |block: &Block| Block { conns: block.conns - lists.start as u32, ..block.clone() };
    let conn = |conn: &Conn| Conn { from: conn.from - first, to: conn.to - first, ..conn.clone() };
    Stage {
        programs: stage.programs.clone(),
        blocks: stage.blocks[blocks].iter().map(block).collect(),
        block_conns: numbers.iter().map(|number| number - one).collect(),
        conns: stage.conns[one as usize..end as usize].iter().map(conn).collect(),
        ..Stage::default()
    }
}
