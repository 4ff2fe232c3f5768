//! One kernel on all of its ranks: blocks with their steps, and the connections between them.

mod maker;

use std::sync::Arc;

pub(crate) use maker::StageMaker;

/// No connection, in a [`Step`].
pub(crate) const NONE: u8 = u8::MAX;

/// A step of a block. Connections are numbers of the block's own list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    pub bytes: u32,
    pub recv: [u8; 3],
    pub send: [u8; 3],
}

/// The steps of blocks that take the same ones.
pub(crate) type Program = Arc<[Step]>;

/// A block of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub rank: u32,
    pub channel: u32,
    pub half: u32,
    pub program: u32,
    /// Where its list of connections begins.
    pub conns: u32,
}

/// A connection, one way.
#[derive(Clone, Debug)]
pub(crate) struct Conn {
    /// The blocks at its ends; a number that is none where an end is not there.
    pub from: u32,
    pub to: u32,
    pub way: (u32, u32),
    pub remote: bool,
    /// Where some hosts stand for all: by how many times as many hosts the receiver is further on around the ring than it stands here.
    pub hosts: i32,
    /// Bytes of data in all.
    pub bytes: u64,
    /// Of the links' latencies, in microseconds; only where links are shared.
    pub latency: f64,
    /// Bytes on the wire a microsecond, of its share of the links; only where they are shared.
    pub rate: f64,
}

/// A kernel on all of its ranks.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    pub programs: Vec<Program>,
    pub blocks: Vec<Block>,
    pub block_conns: Vec<u32>,
    pub conns: Vec<Conn>,
    pub links: Vec<u32>,
    pub steps: u64,
    /// The least time that the fullest link needs, in microseconds; only where links are shared.
    pub bound_us: f64,
    /// By link, bytes on the wire; only where links are shared.
    pub loads: Vec<f64>,
}

impl Stage {
    /// The connection that has this number in a block's list.
    pub(crate) fn conn(&self, block: u32, number: u8) -> u32 {
        let first = self.blocks[block as usize].conns;
        self.block_conns[first as usize + number as usize]
    }

    /// The blocks that a step of a block may let go on.
    pub(crate) fn neighbours(&self, block: u32, step: &Step) -> impl Iterator<Item = u32> + use<> {
        let conn =
            |number: u8| (number != NONE).then(|| &self.conns[self.conn(block, number) as usize]);
        let from = step.recv.map(|number| conn(number).map(|conn| conn.from));
        let to = step.send.map(|number| conn(number).map(|conn| conn.to));
        from.into_iter().chain(to).flatten().filter(|block| *block != u32::MAX)
    }
}
