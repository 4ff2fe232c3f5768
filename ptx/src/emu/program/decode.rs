//! From the tree to instructions: the names of a body resolved, its operands turned into registers and constants.

use std::collections::HashMap;

use super::names::Names;
use super::{
    Inst, Op, Place, Pred, PredicateLogic, Program, Reg, SHARED_WINDOW, Space, Special, Truth,
    Variable as Storage,
};
use crate::emu::alu::{self, Combine, Kind, Lanes};
use crate::isa;
use crate::syntax::{
    Block, Directive, Function, Instruction, Item, Module, Operand, Span, Statement, SyntaxError,
    Word,
};
use crate::types::Type;

/// Registers from here on are constants.
pub(crate) const CONSTANT: Reg = 0x8000;
pub(super) type Result<T> = std::result::Result<T, SyntaxError>;

pub(super) fn decode<'a>(module: &Module<'a>, entry: &Function<'a>) -> Result<Program> {
    let mut decoder = Decoder {
        source: module.source,
        functions: module
            .functions()
            .filter(|f| !f.entry && f.body.is_some())
            .map(|f| (f.name.text, f))
            .collect(),
        calls: Vec::new(),
        names: Names::default(),
        code: Vec::new(),
        spans: Vec::new(),
        places: Vec::new(),
        place: None,
        labels: Vec::new(),
        constants: Vec::new(),
        numbers: HashMap::new(),
        globals: Vec::new(),
        parameters: 0,
        addresses_parameters: false,
        shared: 0,
        dynamic: Vec::new(),
        local: 0,
        lists: HashMap::new(),
        then: None,
    };
    decoder.names.open();
    for variable in module.variables() {
        decoder.module_variable(variable)?;
    }
    decoder.names.open();
    for parameter in &entry.parameters {
        decoder.parameter(parameter)?;
    }
    if let Some(body) = &entry.body {
        decoder.block(body)?;
        // Falling off the end is an exit.
        let end = Span { start: body.span.end.saturating_sub(1), end: body.span.end };
        decoder.emit(None, Op::Exit, end);
    }
    for item in &module.items {
        if let Item::Function(f) = item
            && f.name.text == entry.name.text
            && f.name.start != entry.name.start
            && f.body.is_some()
        {
            return Err(decoder.error(f.span, "a second kernel of this name"));
        }
    }
    decoder.finish(module, entry)
}

pub(super) struct Decoder<'m, 'a> {
    pub(super) source: &'a str,
    /// What can be called.
    pub(super) functions: HashMap<&'a str, &'m Function<'a>>,
    /// The functions that are being put in, the innermost last, with the label behind each.
    pub(super) calls: Vec<(&'a str, u32)>,
    pub(super) names: Names<'a>,
    pub(super) code: Vec<Inst>,
    pub(super) spans: Vec<Span>,
    pub(super) places: Vec<Option<Place>>,
    pub(super) place: Option<Place>,
    /// Where each label is, by its number.
    pub(super) labels: Vec<Option<u32>>,
    pub(super) constants: Vec<Lanes>,
    pub(super) numbers: HashMap<u64, Reg>,
    pub(super) globals: Vec<Storage>,
    pub(super) parameters: u64,
    pub(super) addresses_parameters: bool,
    pub(super) shared: u64,
    /// Constants that are the address of a launch's own shared memory, with its alignment.
    pub(super) dynamic: Vec<(usize, u64)>,
    pub(super) local: u64,
    /// `.branchtargets` by label.
    pub(super) lists: HashMap<&'a str, Vec<u32>>,
    /// What is to follow the instruction that is being decoded.
    pub(super) then: Option<Op>,
}

impl<'a> Decoder<'_, 'a> {
    pub(super) fn error(&self, span: Span, what: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.source, span.start, what)
    }

    pub(super) fn emit(&mut self, guard: Option<(Pred, bool)>, op: Op, span: Span) {
        self.code.push(Inst { guard, op });
        self.spans.push(span);
        self.places.push(self.place);
    }

    pub(super) fn code_len(&self) -> usize {
        self.code.len()
    }

    fn finish(mut self, module: &Module<'_>, entry: &Function<'_>) -> Result<Program> {
        for (constant, align) in std::mem::take(&mut self.dynamic) {
            self.shared = self.shared.next_multiple_of(align);
            self.constants[constant] = [self.shared; 32];
        }
        let labels = self.labels;
        let target = |label: u32| labels.get(label as usize).copied().flatten();
        for (inst, span) in self.code.iter_mut().zip(&self.spans) {
            let lost = || SyntaxError::new(module.source, span.start, "no such label");
            match &mut inst.op {
                Op::Branch { target: label } => *label = target(*label).ok_or_else(lost)?,
                Op::BranchIndexed { targets, .. } => {
                    for label in targets {
                        *label = target(*label).ok_or_else(lost)?;
                    }
                }
                _ => {}
            }
        }
        let max_threads = entry
            .directives
            .iter()
            .find(|d| d.name.text == ".maxntid" || d.name.text == ".reqntid");
        let max_threads = max_threads.map(|d| {
            d.arguments.iter().map(|n| n.parse::<u32>().unwrap_or(1)).fold(1, u32::saturating_mul)
        });
        Ok(Program {
            name: entry.name.text.to_owned(),
            source: module.source.into(),
            leaders: Vec::new(),
            spins: Vec::new(),
            code: self.code,
            spans: self.spans,
            places: self.places,
            files: module.files().map(|(n, f)| (n, f.to_owned())).collect(),
            registers: self.names.values as usize,
            predicates: self.names.predicates as usize,
            constants: self.constants,
            parameter_bytes: self.parameters as usize,
            addresses_parameters: self.addresses_parameters,
            shared_bytes: self.shared as usize,
            // A lane's begin where its vectors can be aligned.
            local_bytes: (self.local as usize).next_multiple_of(16),
            max_threads,
            variables: self.globals,
            touched: Vec::new(),
        })
    }
}

impl<'a> Decoder<'_, 'a> {
    pub(super) fn block(&mut self, block: &Block<'a>) -> Result<()> {
        self.names.open();
        for statement in &block.statements {
            if let Statement::Label(label) = statement {
                self.labels.push(None);
                if !self.names.label(label.text, self.labels.len() as u32 - 1) {
                    return Err(self.error(label.span(), format!("a second label `{label}`")));
                }
            }
        }
        for (i, statement) in block.statements.iter().enumerate() {
            // Lists of targets stand behind a label of their own.
            if let (Statement::Label(label), Some(Statement::Directive(d))) =
                (statement, block.statements.get(i + 1))
                && d.name.text == ".branchtargets"
            {
                let targets =
                    d.arguments.iter().map(|name| self.label(*name)).collect::<Result<_>>()?;
                self.lists.insert(label.text, targets);
            }
        }
        for statement in &block.statements {
            match statement {
                Statement::Label(label) => {
                    let number = self.label(*label)? as usize;
                    self.labels[number] = Some(self.code.len() as u32);
                }
                Statement::Variable(variable) => self.variable(variable)?,
                Statement::Block(block) => self.block(block)?,
                Statement::Directive(directive) => self.directive(directive),
                Statement::Instruction(instruction) => self.instruction(instruction)?,
            }
        }
        self.names.close();
        Ok(())
    }

    fn directive(&mut self, directive: &Directive<'a>) {
        if let (".loc", [file, line, ..]) = (directive.name.text, &directive.arguments[..]) {
            // Line 0 means that there is none.
            self.place = match (file.parse(), line.parse()) {
                (Ok(file), Ok(line)) if line > 0 => Some(Place { file, line }),
                _ => None,
            };
        }
    }

    fn label(&self, name: Word<'a>) -> Result<u32> {
        self.names
            .find_label(name.text)
            .ok_or_else(|| self.error(name.span(), format!("there is no label `{name}`")))
    }

    fn instruction(&mut self, i: &Instruction<'a>) -> Result<()> {
        let guard = match i.guard {
            Some(guard) => Some((self.predicate(guard.register)?, guard.negated)),
            None => None,
        };
        isa::check(i).map_err(|e| e.at(self.source))?;
        if i.opcode.text == "call" {
            return self.call(i, guard);
        }
        let op = self.op(i)?;
        self.emit(guard, op, i.span);
        if let Some(op) = self.then.take() {
            self.emit(guard, op, i.span);
        }
        Ok(())
    }

    fn op(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let last = i.modifiers.last().map_or("", |m| m.text);
        Ok(match i.opcode.text {
            "st" | "red" if i.has("async") => self.send(i)?,
            "ld" | "ldu" | "st" | "atom" | "red" => self.memory(i)?,
            "cp" => self.copy(i)?,
            "mbarrier" => self.mbarrier(i)?,
            "multimem" => self.multimem(i)?,
            "fence" | "membar" => self.fence(i)?,
            "bar" | "barrier" | "vote" | "shfl" | "match" | "redux" | "elect" => self.sync(i)?,
            "activemask" => Op::Activemask { d: self.destination(self.at(i, 0)?)? },
            "nanosleep" => Op::Nanosleep { time: self.value(self.at(i, 0)?, Type::U32)? },
            "mov" => self.mov(i, last)?,
            "cvta" => self.cvta(i)?,
            "isspacep" => {
                let space = match last {
                    "global" => Space::Global,
                    "shared" | "shared::cta" => Space::Shared,
                    "local" => Space::Local,
                    _ => return Err(self.unknown(i)),
                };
                let (d, s) = (
                    self.predicate_destination(self.at(i, 0)?)?,
                    self.value(self.at(i, 1)?, Type::U64)?,
                );
                Op::IsSpace { d, s, space }
            }
            "selp" => {
                let ty = Type::from_name(last).ok_or_else(|| self.unknown(i))?;
                Op::Select {
                    d: self.destination(self.at(i, 0)?)?,
                    a: self.value(self.at(i, 1)?, ty)?,
                    b: self.value(self.at(i, 2)?, ty)?,
                    p: self.truth(self.at(i, 3)?)?,
                }
            }
            "and" | "or" | "xor" | "not" if last == "pred" => {
                let how = match i.opcode.text {
                    "and" => PredicateLogic::And,
                    "or" => PredicateLogic::Or,
                    "xor" => PredicateLogic::Xor,
                    _ => PredicateLogic::Not,
                };
                let (d, a) =
                    (self.predicate_destination(self.at(i, 0)?)?, self.truth(self.at(i, 1)?)?);
                let b = match how {
                    PredicateLogic::Not => Truth::Always(false),
                    _ => self.truth(self.at(i, 2)?)?,
                };
                Op::Logic { how, d, a, b }
            }
            "bra" => match self.at(i, 0)? {
                Operand::Name(label) => Op::Branch { target: self.label(*label)? },
                other => return Err(self.error(other.span(), "a branch goes to a label")),
            },
            "brx" => {
                let index = self.value(self.at(i, 0)?, Type::U32)?;
                let Operand::Name(list) = self.at(i, 1)? else { return Err(self.unknown(i)) };
                let targets = self.lists.get(list.text).cloned();
                let lost = || self.error(list.span(), format!("there is no list `{list}`"));
                Op::BranchIndexed { index, targets: targets.ok_or_else(lost)? }
            }
            "ret" => match self.calls.last() {
                Some(&(_, end)) => Op::Branch { target: end },
                None => Op::Exit,
            },
            "exit" => Op::Exit,
            "trap" | "brkpt" => Op::Trap,
            // Hints: nothing that a program could see.
            "prefetch" | "prefetchu" | "applypriority" | "discard" | "pmevent"
            | "griddepcontrol" | "setmaxnreg" => Op::Nop,
            "call" => return Err(self.unknown(i)), // `instruction` has put in those that can be
            _ => self.arithmetic(i)?,
        })
    }

    fn arithmetic(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let modifiers: Vec<&str> = i.modifiers.iter().map(|m| m.text).collect();
        let alu = alu::select(i.opcode.text, &modifiers)
            .map_err(|e| self.error(i.span, e.to_string()))?;
        let with = match alu.kind {
            Kind::Compare(_, combine) if combine != Combine::No => {
                Some(self.at(i, 1 + alu.sources)?)
            }
            _ => None,
        };
        let expected = 1 + alu.sources + usize::from(with.is_some());
        if i.operands.len() != expected {
            let what =
                format!("`{}` takes {expected} operands, not {}", i.name(), i.operands.len());
            return Err(self.error(i.span, what));
        }
        let mut s = [0; 4];
        for (n, (s, ty)) in s.iter_mut().zip(alu.from).enumerate().take(alu.sources) {
            *s = self.value(self.at(i, 1 + n)?, ty)?;
        }
        // So that all four can be read.
        let unused = if alu.sources == 0 { self.constant(0) } else { s[0] };
        s[alu.sources..].fill(unused);
        let with = with.map_or(Ok(Truth::Always(true)), |operand| self.truth(operand))?;
        let first = self.at(i, 0)?;
        // A result narrower than its register is extended to it by its sign (9.4.1).
        let width = self.width(first);
        let narrow =
            alu.to.is_signed() && matches!(first, Operand::Name(_)) && alu.to.bits() < width;
        if narrow && let Some(wide) = Type::from_name(&format!("s{width}")) {
            let extend = alu::select("cvt", &[wide.name(), alu.to.name()]);
            if let Kind::Value(run) = extend.map_err(|e| self.error(i.span, e.to_string()))?.kind {
                let d = self.destination(first)?;
                self.then = Some(Op::Value { run, d, s: [d; 4] });
            }
        }
        Ok(match (alu.kind, alu.to) {
            (Kind::Value(run), _) => Op::Value { run, d: self.destination(first)?, s },
            (Kind::Carry(run), _) => Op::Carry { run, d: self.destination(first)?, s },
            (Kind::Compare(run, combine), to) if to != Type::Pred => Op::SetValue {
                run,
                d: self.destination(first)?,
                s,
                one: alu.truth(),
                combine,
                with,
            },
            (Kind::Compare(run, combine), _) => {
                let (d, other) = match first {
                    Operand::Pair(a, b) => {
                        let d = self.predicate_or_sink(*a)?;
                        (d, Some(self.predicate_or_sink(*b)?))
                    }
                    one => (self.predicate_destination(one)?, None),
                };
                Op::Compare { run, d, other, s, combine, with }
            }
        })
    }

    fn mov(&mut self, i: &Instruction<'a>, ty: &str) -> Result<Op> {
        let (to, from) = (self.at(i, 0)?, self.at(i, 1)?);
        if ty == "pred" {
            let (d, a) = (self.predicate_destination(to)?, self.truth(from)?);
            return Ok(Op::Logic { how: PredicateLogic::Move, d, a, b: Truth::Always(false) });
        }
        if ty == "b128" {
            return self.mov128(i, to, from);
        }
        let ty = Type::from_name(ty).filter(|t| t.bits() <= 64).ok_or_else(|| self.unknown(i))?;
        let part = |n: usize| ty.bits() / (n.max(1) as u32);
        match (to, from) {
            (Operand::Vector(to, _), from) => {
                let parts = to
                    .iter()
                    .map(|one| match one {
                        Operand::Sink(_) => Ok(None),
                        one => self.destination(one).map(Some),
                    })
                    .collect::<Result<Vec<_>>>()?;
                let s = self.value(from, ty)?;
                Ok(Op::Unpack { bits: part(parts.len()), parts, s })
            }
            (to, Operand::Vector(from, _)) => {
                let d = self.destination(to)?;
                let bits = part(from.len());
                let small = match bits {
                    8 => Type::B8,
                    16 => Type::B16,
                    _ => Type::B32,
                };
                let parts = from.iter().map(|one| self.value(one, small)).collect::<Result<_>>()?;
                Ok(Op::Pack { d, parts, bits })
            }
            (to, from) => {
                let d = self.destination(to)?;
                if let Operand::Name(name) = from
                    && let Some(which) = Special::from_name(name.text)
                {
                    return Ok(Op::Special { d, which });
                }
                Ok(Op::Convert { d, s: self.value(from, ty)?, add: 0 })
            }
        }
    }

    /// `mov.b128`, between a register of 128 bits and two of 64, or another one: two moves.
    fn mov128(&mut self, i: &Instruction<'a>, to: &Operand<'a>, from: &Operand<'a>) -> Result<Op> {
        let parts = |list: &[Operand<'a>]| list.len() == 2;
        let from = match from {
            Operand::Vector(list, _) if parts(list) => {
                [self.value(&list[0], Type::B64)?, self.value(&list[1], Type::B64)?]
            }
            one => self.halves(one)?,
        };
        let to = match to {
            Operand::Vector(list, _) if parts(list) => {
                [self.destination(&list[0])?, self.destination(&list[1])?]
            }
            one => self.halves(one)?,
        };
        if to[0] == from[1] {
            return Err(self.unknown(i));
        }
        self.then = Some(Op::Convert { d: to[1], s: from[1], add: 0 });
        Ok(Op::Convert { d: to[0], s: from[0], add: 0 })
    }

    fn cvta(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let d = self.destination(self.at(i, 0)?)?;
        let s = self.value(self.at(i, 1)?, Type::U64)?;
        if i.has("param") || i.has("param::entry") {
            self.addresses_parameters = true;
            return Ok(Op::ParameterAddress { d, s, to: i.has("to") });
        }
        let window = i.modifiers.iter().find_map(|m| match m.text {
            "global" | "const" => Some(0),
            "shared" | "shared::cta" => Some(SHARED_WINDOW),
            "local" => Some(super::LOCAL_WINDOW),
            _ => None,
        });
        let window = window.ok_or_else(|| self.unknown(i))?;
        let add = if i.has("to") { window.wrapping_neg() } else { window };
        Ok(Op::Convert { d, s, add })
    }
}
