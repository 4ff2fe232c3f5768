//! The figures of a function, and of each of its loops.
//!
//! Instructions are counted as they stand in the text, once each: what an iteration does is what its loop's
//! blocks do when all of them run once, those of the loops within left out.

use std::collections::BTreeMap;

use super::flight::{Flight, flight};
use super::lines::{Lines, Place};
use crate::cfg::{BlockId, Cfg, Code, LoopId};
use crate::isa::{Access, Class, Fence, Order, Scope, Space, class, fence, memory};
use crate::syntax::{Block, Function, Statement};

/// A name and how often it is there.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Count<T> {
    /// Of what.
    pub of: T,
    /// How many.
    pub count: u32,
}

/// How many accesses are alike.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AccessCount {
    /// `load`, `store`, `atomic`, `reduction`, `copy`.
    pub access: &'static str,
    /// Where.
    pub space: Space,
    /// In what order.
    pub order: Order,
    /// Among whom it counts.
    pub scope: Option<Scope>,
    /// Bytes of a lane; `None` where registers say how many.
    pub bytes: Option<u32>,
    /// Elements of its vector.
    pub vector: u32,
    /// How many.
    pub count: u32,
}

/// How many fences are alike.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FenceCount {
    /// What they order.
    pub order: Order,
    /// Among whom.
    pub scope: Scope,
    /// Whether they are between ways to reach memory.
    pub proxy: bool,
    /// How many.
    pub count: u32,
}

/// Bytes that a lane moves between registers and a state space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Bytes {
    /// To registers, or to another space.
    pub loaded: u64,
    /// From registers; what an atomic changes.
    pub stored: u64,
}

impl Bytes {
    /// Both.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.loaded + self.stored
    }
}

/// The figures of a loop.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LoopStats<'a> {
    /// The block it is entered at.
    pub header: usize,
    /// That block's label.
    pub label: Option<&'a str>,
    /// How many loops it is in, itself included.
    pub depth: u32,
    /// The number of the loop around it.
    pub parent: Option<usize>,
    /// Whether it has none within.
    pub innermost: bool,
    /// Its blocks, those of loops within left out.
    pub blocks: Vec<usize>,
    /// Their instructions.
    pub instructions: u32,
    /// What they move, by space; generic addresses are `generic`.
    pub bytes: BTreeMap<&'static str, Bytes>,
    /// Bytes of global memory (generic addresses included) an instruction.
    pub bytes_per_instruction: f64,
    /// Loads in flight: the most of its blocks.
    pub flight: Flight,
    /// Where it is in the source: of its first instruction that has a line.
    pub place: Option<Place<'a>>,
}

impl LoopStats<'_> {
    /// What an iteration moves from and to global memory, generic addresses included.
    #[must_use]
    pub fn global(&self) -> Bytes {
        let of = |space: Space| self.bytes.get(space.name()).copied().unwrap_or_default();
        let (global, generic) = (of(Space::Global), of(Space::Generic));
        Bytes { loaded: global.loaded + generic.loaded, stored: global.stored + generic.stored }
    }
}

/// The figures of a function.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Stats<'a> {
    /// Its name.
    pub name: &'a str,
    /// Instructions.
    pub instructions: u32,
    /// Basic blocks.
    pub blocks: u32,
    /// Virtual registers by type, as they are declared.
    pub registers: BTreeMap<&'a str, u64>,
    /// Instructions by kind; those that are there.
    pub mix: Vec<Count<Class>>,
    /// Accesses to memory; parameters left out.
    pub accesses: Vec<AccessCount>,
    /// Fences.
    pub fences: Vec<FenceCount>,
    /// Barriers by name.
    pub barriers: Vec<Count<String>>,
    /// Loads in flight: the most of its blocks.
    pub flight: Flight,
    /// Its loops; one that holds another comes before it.
    pub loops: Vec<LoopStats<'a>>,
    /// The loop that data goes through; `None` where none moves any.
    ///
    /// Of the loops that both load from and store to global memory, and hold no other that does, it is the one that
    /// moves the most bytes an iteration: a loop that only loads waits for a flag more often than not. Where
    /// there is none, the same of the innermost loops that do either.
    pub hot: Option<usize>,
}

/// The figures of a function with a body.
#[must_use]
pub fn stats<'a>(function: &Function<'a>, cfg: &Cfg<'_, 'a>, lines: &Lines<'a>) -> Stats<'a> {
    let mut mix: BTreeMap<Class, u32> = BTreeMap::new();
    let mut accesses: BTreeMap<_, u32> = BTreeMap::new();
    let mut fences: BTreeMap<Fence, u32> = BTreeMap::new();
    let mut barriers: BTreeMap<String, u32> = BTreeMap::new();
    for Code { instruction, .. } in &cfg.code {
        let kind = class(instruction);
        *mix.entry(kind).or_default() += 1;
        if kind == Class::Barrier {
            *barriers.entry(instruction.name()).or_default() += 1;
        }
        if let Some(fence) = fence(instruction) {
            *fences.entry(fence).or_default() += 1;
        }
        if let Some(m) = memory(instruction).filter(|m| m.space != Space::Param) {
            let key = (access(m.access), m.space, m.order, m.scope, m.bytes, m.vector);
            *accesses.entry(key).or_default() += 1;
        }
    }
    let cyclic = |id: BlockId| cfg.blocks[id.0].successors.iter().any(|edge| edge.to == id);
    let flights: Vec<Flight> = cfg.ids().map(|id| flight(cfg.code_of(id), cyclic(id))).collect();
    let loops: Vec<LoopStats<'a>> =
        (0..cfg.loops().len()).map(|i| loop_stats(cfg, LoopId(i), &flights, lines)).collect();
    let hot = hot(&loops);
    Stats {
        name: function.name.text,
        instructions: count(cfg.code.len()),
        blocks: count(cfg.blocks.len()),
        registers: registers(function),
        mix: mix.into_iter().map(|(of, count)| Count { of, count }).collect(),
        accesses: accesses
            .into_iter()
            .map(|((access, space, order, scope, bytes, vector), count)| AccessCount {
                access,
                space,
                order,
                scope,
                bytes,
                vector,
                count,
            })
            .collect(),
        fences: fences
            .into_iter()
            .map(|(Fence { order, scope, proxy }, count)| FenceCount { order, scope, proxy, count })
            .collect(),
        barriers: barriers.into_iter().map(|(of, count)| Count { of, count }).collect(),
        flight: flights.into_iter().max().unwrap_or_default(),
        loops,
        hot,
    }
}

/// See [`Stats::hot`]. Of equals the first.
fn hot(loops: &[LoopStats<'_>]) -> Option<usize> {
    let both = |l: &LoopStats<'_>| l.global().loaded > 0 && l.global().stored > 0;
    let mut holds = vec![false; loops.len()];
    for one in loops.iter().filter(|l| both(l)) {
        let mut around = one.parent;
        while let Some(outer) = around {
            holds[outer] = true;
            around = loops[outer].parent;
        }
    }
    let most = |fit: &dyn Fn(usize) -> bool| {
        let fitting = (0..loops.len()).filter(|&i| loops[i].global().total() > 0 && fit(i));
        fitting.max_by_key(|&i| (loops[i].global().total(), std::cmp::Reverse(i)))
    };
    most(&|i| both(&loops[i]) && !holds[i]).or_else(|| most(&|i| loops[i].innermost))
}

fn loop_stats<'a>(
    cfg: &Cfg<'_, 'a>,
    id: LoopId,
    flights: &[Flight],
    lines: &Lines<'a>,
) -> LoopStats<'a> {
    let of = &cfg.loops()[id.0];
    let own = of.blocks.iter().copied().filter(|b| cfg.innermost_loop(*b) == Some(id));
    let own: Vec<BlockId> = own.collect();
    let mut bytes: BTreeMap<&'static str, Bytes> = BTreeMap::new();
    let mut instructions = 0;
    for code in own.iter().flat_map(|&block| cfg.code_of(block)) {
        instructions += 1;
        if let Some(m) = memory(code.instruction) {
            let moved = u64::from(m.bytes.unwrap_or(0));
            let here = bytes.entry(m.space.name()).or_default();
            match m.access {
                Access::Load => here.loaded += moved,
                Access::Store | Access::Reduce => here.stored += moved,
                Access::Atomic => {
                    here.loaded += moved;
                    here.stored += moved;
                }
                Access::Copy { to } => {
                    here.loaded += moved;
                    bytes.entry(to.name()).or_default().stored += moved;
                }
            }
        }
    }
    let place = own
        .iter()
        .flat_map(|&block| cfg.code_of(block))
        .find_map(|code| code.location.and_then(|loc| lines.place(loc)));
    let mut stats = LoopStats {
        header: of.header.0,
        label: cfg.blocks[of.header.0].labels.first().map(|label| label.text),
        depth: of.depth,
        parent: of.parent.map(|parent| parent.0),
        innermost: of.innermost,
        instructions,
        bytes,
        bytes_per_instruction: 0.0,
        flight: own.iter().map(|block| flights[block.0]).max().unwrap_or_default(),
        place,
        blocks: own.into_iter().map(|block| block.0).collect(),
    };
    if instructions > 0 {
        stats.bytes_per_instruction = stats.global().total() as f64 / f64::from(instructions);
    }
    stats
}

/// The virtual registers that a function declares, by type.
#[must_use]
pub fn registers<'a>(function: &Function<'a>) -> BTreeMap<&'a str, u64> {
    fn add<'a>(block: &Block<'a>, registers: &mut BTreeMap<&'a str, u64>) {
        for statement in &block.statements {
            match statement {
                Statement::Variable(variable) if variable.space.text == ".reg" => {
                    let names = variable.names.iter().map(|n| u64::from(n.count.unwrap_or(1)));
                    *registers.entry(variable.ty.text).or_default() += names.sum::<u64>();
                }
                Statement::Block(inner) => add(inner, registers),
                _ => {}
            }
        }
    }
    let mut registers = BTreeMap::new();
    if let Some(body) = &function.body {
        add(body, &mut registers);
    }
    registers
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Load => "load",
        Access::Store => "store",
        Access::Atomic => "atomic",
        Access::Reduce => "reduction",
        Access::Copy { .. } => "copy",
    }
}

/// A text of two gigabytes has fewer instructions than fit 32 bits.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
