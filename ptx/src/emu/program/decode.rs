//! From the tree to instructions: the names of a body resolved, its operands turned into registers and constants.

use std::collections::HashMap;

use super::names::{Meaning, Names};
use super::{
    Inst, Op, Place, Pred, PredicateLogic, Program, Reg, SHARED_WINDOW, Space, Special, Truth,
    Variable as Storage,
};
use crate::emu::alu::{self, Combine, Kind, Lanes};
use crate::syntax::{
    Block, Directive, Function, Initializer, Instruction, Item, Module, Operand, Span, Statement,
    SyntaxError, Variable, Word,
};
use crate::types::Type;

/// Registers from here on are constants.
pub(crate) const CONSTANT: Reg = 0x8000;
/// More memory than this is declared by mistake.
const MAX_BYTES: u64 = 1 << 28;

pub(super) type Result<T> = std::result::Result<T, SyntaxError>;

pub(super) fn decode(module: &Module<'_>, entry: &Function<'_>) -> Result<Program> {
    let mut decoder = Decoder {
        source: module.source,
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
        shared: 0,
        dynamic: Vec::new(),
        local: 0,
        lists: HashMap::new(),
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

pub(super) struct Decoder<'a> {
    source: &'a str,
    pub(super) names: Names<'a>,
    code: Vec<Inst>,
    spans: Vec<Span>,
    places: Vec<Option<Place>>,
    place: Option<Place>,
    /// Where each label is, by its number.
    labels: Vec<Option<u32>>,
    constants: Vec<Lanes>,
    numbers: HashMap<u64, Reg>,
    globals: Vec<Storage>,
    parameters: u64,
    shared: u64,
    /// Constants that are the address of a launch's own shared memory, with its alignment.
    dynamic: Vec<(usize, u64)>,
    local: u64,
    /// `.branchtargets` by label.
    lists: HashMap<&'a str, Vec<u32>>,
}

impl<'a> Decoder<'a> {
    pub(super) fn error(&self, span: Span, what: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.source, span.start, what)
    }

    pub(super) fn emit(&mut self, guard: Option<(Pred, bool)>, op: Op, span: Span) {
        self.code.push(Inst { guard, op });
        self.spans.push(span);
        self.places.push(self.place);
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
            shared_bytes: self.shared as usize,
            local_bytes: self.local as usize,
            max_threads,
            variables: self.globals,
            touched: Vec::new(),
        })
    }
}

// Declarations.
impl<'a> Decoder<'a> {
    /// Bytes of one variable of a declaration, and its alignment; `None` for an array left open.
    fn layout(&self, variable: &Variable<'a>, index: usize) -> Result<(Option<u64>, u64)> {
        let ty = Type::from_name(variable.ty.text).ok_or_else(|| {
            self.error(variable.span, format!("there is no type `.{}`", variable.ty))
        })?;
        let element = u64::from(ty.bytes()) * u64::from(variable.vector);
        let mut bytes = Some(element);
        for dimension in variable.names.get(index).map_or(&[][..], |d| &d.dimensions) {
            bytes = match (bytes, dimension) {
                (Some(bytes), Some(n)) => {
                    let product = bytes.checked_mul(*n).filter(|&b| b <= MAX_BYTES);
                    Some(product.ok_or_else(|| self.error(variable.span, "too large a variable"))?)
                }
                _ => None,
            };
        }
        let align = variable.align.unwrap_or(element);
        if !align.is_power_of_two() {
            return Err(self.error(variable.span, "an alignment is a power of two"));
        }
        Ok((bytes, align))
    }

    fn place(&self, end: &mut u64, bytes: u64, align: u64, span: Span) -> Result<u64> {
        let start = end.next_multiple_of(align);
        *end = start + bytes;
        if *end > MAX_BYTES {
            return Err(self.error(span, "too many bytes are declared"));
        }
        Ok(start)
    }

    fn parameter(&mut self, variable: &Variable<'a>) -> Result<()> {
        let (bytes, align) = self.layout(variable, 0)?;
        let bytes = bytes.ok_or_else(|| self.error(variable.span, "a parameter without size"))?;
        let mut end = self.parameters;
        let start = self.place(&mut end, bytes, align, variable.span)?;
        self.parameters = end;
        if let Some(declared) = variable.names.first() {
            self.names.insert(declared.name.text, Meaning::Parameter(start));
        }
        Ok(())
    }

    fn module_variable(&mut self, variable: &Variable<'a>) -> Result<()> {
        match variable.space.text {
            ".global" | ".const" => {
                for (i, declared) in variable.names.iter().enumerate() {
                    let (bytes, align) = self.layout(variable, i)?;
                    let Some(bytes) = bytes else { continue }; // an `extern` of another module
                    let mut data = vec![0; bytes as usize];
                    if let Some(initializer) = &declared.initializer {
                        let mut at = 0;
                        self.fill(&mut data, &mut at, variable, initializer)?;
                    }
                    self.names.insert(declared.name.text, Meaning::Global(self.globals.len()));
                    self.globals.push(Storage::new(declared.name.text, &data, align as usize));
                }
                Ok(())
            }
            _ => self.variable(variable),
        }
    }

    /// Writes what a variable starts with.
    fn fill(
        &self,
        data: &mut [u8],
        at: &mut usize,
        variable: &Variable<'a>,
        with: &Initializer<'a>,
    ) -> Result<()> {
        let ty = Type::from_name(variable.ty.text).unwrap_or(Type::B8);
        let bits: u64 = match with {
            Initializer::List(list) => {
                return list.iter().try_for_each(|one| self.fill(data, at, variable, one));
            }
            Initializer::Integer(v) => *v as u64,
            Initializer::Float(v) if ty.bits() == 32 => (*v as f32).to_bits().into(),
            Initializer::Float(v) => v.to_bits(),
            Initializer::Address { name, .. } => {
                return Err(self.error(name.span(), "addresses in variables are not emulated"));
            }
        };
        let width = ty.bytes() as usize;
        let target = data.get_mut(*at..*at + width);
        let target =
            target.ok_or_else(|| self.error(variable.span, "more values than elements"))?;
        target.copy_from_slice(&bits.to_le_bytes()[..width]);
        *at += width;
        Ok(())
    }

    /// A variable of a body, or one of the module that is not in global memory.
    fn variable(&mut self, variable: &Variable<'a>) -> Result<()> {
        match variable.space.text {
            ".reg" => return self.names.declare(self.source, variable),
            ".shared" | ".shared::cta" | ".local" => {}
            ".param" => {
                return Err(
                    self.error(variable.span, "calls are not emulated: inline the function")
                );
            }
            other => return Err(self.error(variable.span, format!("`{other}` is not emulated"))),
        }
        for (i, declared) in variable.names.iter().enumerate() {
            let (bytes, align) = self.layout(variable, i)?;
            let meaning = match bytes {
                Some(bytes) if variable.space.text == ".local" => {
                    let mut end = self.local;
                    let start = self.place(&mut end, bytes, align, variable.span)?;
                    self.local = end;
                    Meaning::Local(start)
                }
                Some(bytes) => {
                    let mut end = self.shared;
                    let start = self.place(&mut end, bytes, align, variable.span)?;
                    self.shared = end;
                    Meaning::Shared(start)
                }
                // What a launch adds: after all that is declared, so known at the end.
                None => {
                    self.constants.push([0; 32]);
                    self.dynamic.push((self.constants.len() - 1, align.max(16)));
                    Meaning::Value(CONSTANT + (self.constants.len() - 1) as Reg, Type::U64)
                }
            };
            self.names.insert(declared.name.text, meaning);
        }
        Ok(())
    }
}

// Statements.
impl<'a> Decoder<'a> {
    fn block(&mut self, block: &Block<'a>) -> Result<()> {
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
        let op = self.op(i)?;
        self.emit(guard, op, i.span);
        Ok(())
    }

    fn op(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let last = i.modifiers.last().map_or("", |m| m.text);
        Ok(match i.opcode.text {
            "ld" | "ldu" | "st" | "atom" | "red" => self.memory(i)?,
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
            "ret" | "exit" => Op::Exit,
            "trap" | "brkpt" => Op::Trap,
            // Hints: nothing that a program could see.
            "prefetch" | "prefetchu" | "applypriority" | "discard" | "pmevent"
            | "griddepcontrol" | "setmaxnreg" => Op::Nop,
            "call" => return Err(self.error(i.span, "calls are not emulated: inline the function")),
            _ => self.arithmetic(i)?,
        })
    }

    fn arithmetic(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let mut modifiers: Vec<&str> = i.modifiers.iter().map(|m| m.text).collect();
        let mut opcode = i.opcode.text;
        let mut one = None;
        if opcode == "set" && modifiers.len() >= 2 {
            // set.CMP.DTYPE.STYPE is setp.CMP.STYPE with a value for the truth.
            one = match modifiers.remove(modifiers.len() - 2) {
                "u32" | "s32" => Some(u64::from(u32::MAX)),
                "f32" => Some(u64::from(1.0f32.to_bits())),
                _ => return Err(self.unknown(i)),
            };
            opcode = "setp";
        }
        let alu = alu::select(opcode, &modifiers).map_err(|e| self.error(i.span, e.to_string()))?;
        let compare = matches!(alu.kind, Kind::Compare(..));
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
        for n in 0..alu.sources {
            s[n] = self.value(self.at(i, 1 + n)?, alu.from[n])?;
        }
        // So that all four can be read.
        let unused = if alu.sources == 0 { self.constant(0) } else { s[0] };
        s[alu.sources..].fill(unused);
        let with = with.map_or(Ok(Truth::Always(true)), |operand| self.truth(operand))?;
        let first = self.at(i, 0)?;
        Ok(match (alu.kind, one) {
            (Kind::Value(run), _) => Op::Value { run, d: self.destination(first)?, s },
            (Kind::Carry(run), _) => Op::Carry { run, d: self.destination(first)?, s },
            (Kind::Compare(run, combine), Some(one)) => {
                Op::SetValue { run, d: self.destination(first)?, s, one, combine, with }
            }
            (Kind::Compare(run, combine), None) => {
                debug_assert!(compare);
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

    fn cvta(&mut self, i: &Instruction<'a>) -> Result<Op> {
        let d = self.destination(self.at(i, 0)?)?;
        let s = self.value(self.at(i, 1)?, Type::U64)?;
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

// Operands.
impl<'a> Decoder<'a> {
    pub(super) fn at<'i>(&self, i: &'i Instruction<'a>, n: usize) -> Result<&'i Operand<'a>> {
        i.operands
            .get(n)
            .ok_or_else(|| self.error(i.span, format!("`{}` lacks an operand", i.name())))
    }

    /// An instruction in a form that is not emulated.
    pub(super) fn unknown(&self, i: &Instruction<'a>) -> SyntaxError {
        self.error(i.span, format!("`{}` is not emulated", i.name()))
    }

    pub(super) fn constant(&mut self, bits: u64) -> Reg {
        if let Some(&reg) = self.numbers.get(&bits) {
            return reg;
        }
        let reg = CONSTANT + self.constants.len() as Reg;
        self.constants.push([bits; 32]);
        self.numbers.insert(bits, reg);
        reg
    }

    /// The address of a variable in global memory.
    fn global(&mut self, number: usize, offset: i64) -> Reg {
        let address = self.globals.get(number).map_or(0, Storage::address);
        self.constant(address.wrapping_add_signed(offset))
    }

    fn meaning(&self, name: Word<'a>) -> Result<Meaning> {
        self.names.find(name.text).ok_or_else(|| {
            self.error(
                name.span(),
                format!("`{name}` is not declared, and no special register that is emulated"),
            )
        })
    }

    pub(super) fn destination(&mut self, operand: &Operand<'a>) -> Result<Reg> {
        match operand {
            Operand::Name(name) => self.destination_name(*name),
            Operand::Sink(_) => Ok(self.names.fresh()),
            other => Err(self.error(other.span(), "expected a register")),
        }
    }

    pub(super) fn destination_name(&mut self, name: Word<'a>) -> Result<Reg> {
        if name.text == "_" {
            return Ok(self.names.fresh());
        }
        match self.meaning(name)? {
            Meaning::Value(reg, _) if reg < CONSTANT => Ok(reg),
            _ => Err(self.error(name.span(), format!("`{name}` is no register of a value"))),
        }
    }

    /// Bits of the register that an operand names.
    pub(super) fn width(&self, operand: &Operand<'a>) -> u32 {
        match operand {
            Operand::Name(name) => match self.names.find(name.text) {
                Some(Meaning::Value(_, ty)) => ty.bits(),
                _ => 64,
            },
            _ => 64,
        }
    }

    pub(super) fn predicate(&self, name: Word<'a>) -> Result<Pred> {
        match self.meaning(name)? {
            Meaning::Predicate(p) => Ok(p),
            _ => Err(self.error(name.span(), format!("`{name}` is no predicate"))),
        }
    }

    pub(super) fn predicate_or_sink(&mut self, name: Word<'a>) -> Result<Pred> {
        if name.text == "_" {
            self.names.predicates += 1;
            return Ok((self.names.predicates - 1) as Pred);
        }
        self.predicate(name)
    }

    pub(super) fn predicate_destination(&mut self, operand: &Operand<'a>) -> Result<Pred> {
        match operand {
            Operand::Name(name) => self.predicate(*name),
            Operand::Sink(_) => {
                self.names.predicates += 1;
                Ok((self.names.predicates - 1) as Pred)
            }
            other => Err(self.error(other.span(), "expected a predicate")),
        }
    }

    pub(super) fn truth(&self, operand: &Operand<'a>) -> Result<Truth> {
        match operand {
            Operand::Name(name) => Ok(Truth::Reg(self.predicate(*name)?, false)),
            Operand::Not(name) => Ok(Truth::Reg(self.predicate(*name)?, true)),
            Operand::Integer(v, _) => Ok(Truth::Always(*v != 0)),
            other => Err(self.error(other.span(), "expected a predicate")),
        }
    }

    /// What an instruction reads as a `ty`.
    pub(super) fn value(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Reg> {
        let mask = if ty.bits() >= 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
        let number = |v: f64| match ty {
            Type::F32 | Type::Tf32 => u64::from((v as f32).to_bits()),
            _ => v.to_bits(),
        };
        match operand {
            Operand::Name(name) => {
                if let Some(which) = Special::from_name(name.text) {
                    let d = self.names.fresh();
                    self.emit(None, Op::Special { d, which }, name.span());
                    return Ok(d);
                }
                if name.text == "WARP_SZ" {
                    return Ok(self.constant(32));
                }
                match self.meaning(*name)? {
                    Meaning::Value(reg, _) => Ok(reg),
                    Meaning::Shared(at) | Meaning::Local(at) | Meaning::Parameter(at) => {
                        Ok(self.constant(at))
                    }
                    Meaning::Global(number) => Ok(self.global(number, 0)),
                    Meaning::Predicate(_) => {
                        Err(self.error(name.span(), format!("`{name}` is a predicate")))
                    }
                }
            }
            Operand::Sum(name, offset) => match self.meaning(*name)? {
                Meaning::Shared(at) | Meaning::Local(at) | Meaning::Parameter(at) => {
                    Ok(self.constant(at.wrapping_add_signed(*offset)))
                }
                Meaning::Global(number) => Ok(self.global(number, *offset)),
                _ => Err(self.error(name.span(), "an offset is added to variables alone")),
            },
            Operand::Integer(v, _) => Ok(match ty {
                Type::F32 | Type::F64 => self.constant(number(*v as f64)),
                _ => self.constant(*v as u64 & mask),
            }),
            Operand::Decimal(v, _) => Ok(self.constant(number(*v))),
            Operand::Single(bits, _) if ty == Type::F64 => {
                Ok(self.constant(f64::from(f32::from_bits(*bits)).to_bits()))
            }
            Operand::Single(bits, _) => Ok(self.constant(u64::from(*bits))),
            Operand::Double(bits, _) if ty == Type::F32 => {
                Ok(self.constant(u64::from((f64::from_bits(*bits) as f32).to_bits())))
            }
            Operand::Double(bits, _) => Ok(self.constant(*bits)),
            other => Err(self.error(other.span(), "expected a register or a number")),
        }
    }

    /// The base register, offset and space of an address. A variable's own space counts where none is named.
    pub(super) fn address(
        &mut self,
        operand: &Operand<'a>,
        space: Space,
    ) -> Result<(Reg, i64, Space)> {
        let Operand::Address(address) = operand else {
            return Err(self.error(operand.span(), "expected an address in brackets"));
        };
        let Some(name) = address.base else { return Ok((self.constant(0), address.offset, space)) };
        let fixed = |own: Space, window: u64| {
            if space == Space::Generic { (Space::Generic, window) } else { (own, 0) }
        };
        Ok(match self.meaning(name)? {
            Meaning::Value(reg, _) => (reg, address.offset, space),
            Meaning::Global(number) => (self.global(number, 0), address.offset, Space::Global),
            Meaning::Parameter(at) => (self.constant(at), address.offset, Space::Param),
            Meaning::Shared(at) => {
                let (space, window) = fixed(Space::Shared, SHARED_WINDOW);
                (self.constant(at + window), address.offset, space)
            }
            Meaning::Local(at) => {
                let (space, window) = fixed(Space::Local, super::LOCAL_WINDOW);
                (self.constant(at + window), address.offset, space)
            }
            Meaning::Predicate(_) => {
                return Err(self.error(name.span(), "a predicate is no address"));
            }
        })
    }
}
