//! From the statements of a function to its blocks, and what dominates them.

use std::collections::HashMap;

use petgraph::algo::dominators::simple_fast;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::Reversed;

use super::{BasicBlock, BlockId, Cfg, CfgError, Code, Edge, EdgeKind, loops};
use crate::syntax::{Block, Directive, Function, Instruction, Operand, Statement, Word};

/// Braces, by number; the outermost are 0.
type Scope = usize;

/// A function without its braces.
#[derive(Default)]
struct Flat<'f, 'a> {
    code: Vec<Code<'f, 'a>>,
    /// The scope of each instruction.
    scopes: Vec<Scope>,
    /// The scope around each scope.
    parents: Vec<Option<Scope>>,
    /// What each label stands before.
    labels: HashMap<(Scope, &'a str), usize>,
    /// The labels in order.
    order: Vec<(Word<'a>, usize)>,
    /// The lists of labels that have one.
    tables: HashMap<(Scope, &'a str), &'f Directive<'a>>,
    location: Option<&'f Directive<'a>>,
}

pub(super) fn build<'f, 'a>(function: &'f Function<'a>) -> Result<Cfg<'f, 'a>, CfgError> {
    let mut flat = Flat::default();
    if let Some(body) = &function.body {
        flat.scope(body, None)?;
    }
    let blocks = flat.blocks()?;
    let mut cfg = Cfg {
        code: flat.code,
        dominators: vec![None; blocks.len()],
        post_dominators: vec![None; blocks.len()],
        within: vec![0..0; blocks.len()],
        loops: Vec::new(),
        innermost: vec![None; blocks.len()],
        irreducible: Vec::new(),
        blocks,
    };
    dominate(&mut cfg);
    loops::find(&mut cfg);
    Ok(cfg)
}

impl<'f, 'a> Flat<'f, 'a> {
    fn scope(&mut self, block: &'f Block<'a>, parent: Option<Scope>) -> Result<(), CfgError> {
        let scope = self.parents.len();
        self.parents.push(parent);
        // A label that a directive follows is the directive's name, and no place in the code.
        let mut statements = block.statements.iter().peekable();
        while let Some(statement) = statements.next() {
            match statement {
                Statement::Label(label) => {
                    let key = (scope, label.text);
                    if self.labels.contains_key(&key) || self.tables.contains_key(&key) {
                        return Err(error(format!("label `{label}` is there twice"), *label));
                    }
                    if let Some(Statement::Directive(list)) = statements.peek()
                        && matches!(
                            list.name.text,
                            ".branchtargets" | ".calltargets" | ".callprototype"
                        )
                    {
                        self.tables.insert(key, list);
                    } else {
                        self.labels.insert(key, self.code.len());
                        self.order.push((*label, self.code.len()));
                    }
                }
                Statement::Instruction(instruction) => {
                    self.code.push(Code { instruction, location: self.location });
                    self.scopes.push(scope);
                }
                Statement::Directive(directive) if directive.name.text == ".loc" => {
                    self.location = Some(directive);
                }
                Statement::Block(inner) => self.scope(inner, Some(scope))?,
                Statement::Directive(_) | Statement::Variable(_) => {}
            }
        }
        Ok(())
    }

    /// What a name means in a scope: that of the nearest braces around.
    fn lookup<T: Copy>(
        &self,
        among: &HashMap<(Scope, &'a str), T>,
        scope: Scope,
        name: &'a str,
    ) -> Option<T> {
        let mut at = Some(scope);
        while let Some(scope) = at {
            if let Some(found) = among.get(&(scope, name)) {
                return Some(*found);
            }
            at = self.parents[scope];
        }
        None
    }

    /// The instruction that a label stands before.
    fn target(&self, scope: Scope, label: Word<'a>) -> Result<usize, CfgError> {
        let found = self.lookup(&self.labels, scope, label.text);
        found.ok_or_else(|| error(format!("there is no label `{label}`"), label))
    }

    fn blocks(&self) -> Result<Vec<BasicBlock<'a>>, CfgError> {
        let end = self.code.len();
        // Blocks begin at labels and after what may jump or end.
        let after = self.code.iter().enumerate();
        let after = after.filter(|(_, c)| leaves(c.instruction)).map(|(i, _)| i + 1);
        let mut starts: Vec<usize> = self.order.iter().map(|(_, at)| *at).chain(after).collect();
        starts.push(0);
        starts.sort_unstable();
        starts.dedup();
        // Nothing follows the last instruction, unless a label does.
        let labelled_end = self.order.iter().any(|(_, at)| *at == end);
        starts.retain(|&start| start < end || labelled_end);
        let block_at = |at: usize| BlockId(starts.partition_point(|&s| s <= at) - 1);

        let mut blocks: Vec<BasicBlock<'a>> = Vec::with_capacity(starts.len());
        for (i, &start) in starts.iter().enumerate() {
            let next = starts.get(i + 1).copied();
            let range = start..next.unwrap_or(end);
            let first = self.order.partition_point(|(_, at)| *at < start);
            let labels = self.order[first..].iter().take_while(|(_, at)| *at == start);
            let labels = labels.map(|(label, _)| *label).collect();
            let mut successors = Vec::new();
            let mut ends = false;
            let mut falls = true;
            if let Some(last) = range.clone().next_back() {
                let instruction = self.code[last].instruction;
                falls = instruction.guard.is_some() || !leaves(instruction);
                match instruction.opcode.text {
                    "bra" => {
                        let to = self.target(self.scopes[last], label(instruction, 0)?)?;
                        successors.push(Edge { to: block_at(to), kind: EdgeKind::Taken });
                    }
                    "brx" => successors.extend(self.cases(last, block_at)?),
                    "ret" | "exit" | "trap" => ends = true,
                    _ => {}
                }
            }
            match next.filter(|_| falls) {
                Some(_) => {
                    successors.push(Edge { to: BlockId(i + 1), kind: EdgeKind::FallThrough });
                }
                None => ends |= falls,
            }
            blocks.push(BasicBlock { labels, range, successors, predecessors: vec![], ends });
        }
        for from in 0..blocks.len() {
            for edge in blocks[from].successors.clone() {
                let predecessors = &mut blocks[edge.to.0].predecessors;
                if predecessors.last() != Some(&BlockId(from)) {
                    predecessors.push(BlockId(from));
                }
            }
        }
        Ok(blocks)
    }

    /// `brx.idx %r1, TABLE;` with `TABLE: .branchtargets A, B;`
    fn cases(&self, at: usize, block_at: impl Fn(usize) -> BlockId) -> Result<Vec<Edge>, CfgError> {
        let (instruction, scope) = (self.code[at].instruction, self.scopes[at]);
        let name = label(instruction, 1)?;
        let table = self.lookup(&self.tables, scope, name.text);
        let table = table.filter(|list| list.name.text == ".branchtargets");
        let table =
            table.ok_or_else(|| error(format!("`{name}` is no .branchtargets list"), name))?;
        let cases = table.arguments.iter().zip(0..);
        cases
            .map(|(&label, n)| {
                let to = block_at(self.target(scope, label)?);
                Ok(Edge { to, kind: EdgeKind::Case(n) })
            })
            .collect()
    }
}

/// Whether an instruction may lead elsewhere than to the next one.
fn leaves(instruction: &Instruction<'_>) -> bool {
    matches!(instruction.opcode.text, "bra" | "brx" | "ret" | "exit" | "trap")
}

fn error(what: String, word: Word<'_>) -> CfgError {
    CfgError { what, span: word.span() }
}

fn label<'a>(instruction: &Instruction<'a>, operand: usize) -> Result<Word<'a>, CfgError> {
    match instruction.operands.get(operand) {
        Some(Operand::Name(label)) => Ok(*label),
        _ => Err(CfgError {
            what: format!("`{}` names no label", instruction.name()),
            span: instruction.span,
        }),
    }
}

/// Fills in what dominates what. The graph has a node more than there are blocks: the function's end.
fn dominate(cfg: &mut Cfg<'_, '_>) {
    let Some(first) = cfg.ids().next() else { return };
    let node = |id: BlockId| NodeIndex::new(id.0);
    let end = NodeIndex::new(cfg.blocks.len());
    let mut graph = DiGraph::<(), ()>::new();
    for _ in 0..=cfg.blocks.len() {
        graph.add_node(());
    }
    for (id, block) in cfg.ids().zip(&cfg.blocks) {
        for edge in &block.successors {
            graph.add_edge(node(id), node(edge.to), ());
        }
        if block.ends {
            graph.add_edge(node(id), end, ());
        }
    }
    let block = |n: NodeIndex| (n != end).then(|| BlockId(n.index()));
    let before = simple_fast(&graph, node(first));
    let after = simple_fast(Reversed(&graph), end);
    for id in cfg.ids() {
        let dominator = before.immediate_dominator(node(id));
        cfg.dominators[id.0] = dominator.and_then(block);
        cfg.post_dominators[id.0] = after.immediate_dominator(node(id)).and_then(block);
    }
    number(cfg, first);
}

/// Fills in the places in a walk of the tree of dominators, from its root.
fn number(cfg: &mut Cfg<'_, '_>, root: BlockId) {
    let mut children: Vec<Vec<BlockId>> = vec![Vec::new(); cfg.blocks.len()];
    for id in cfg.ids() {
        if let Some(dominator) = cfg.dominator(id) {
            children[dominator.0].push(id);
        }
    }
    let mut place = 0;
    let mut open = vec![(root, false)];
    while let Some((id, done)) = open.pop() {
        if done {
            cfg.within[id.0].end = place;
        } else {
            cfg.within[id.0].start = place;
            place += 1;
            open.push((id, true));
            open.extend(children[id.0].iter().map(|child| (*child, false)));
        }
    }
}
