//! From tokens to the tree: modules, functions and declarations. Bodies are in [`statement`](super::statement).

use super::expr::Constant;
use super::lexer::tokens;
use super::{
    Declared, Directive, Function, Initializer, Item, Module, Span, SyntaxError, Token, TokenKind,
    Variable, Word,
};

/// Reads a file of PTX.
///
/// # Errors
/// What is wrong first, with line and column.
///
/// ```
/// let module = ferroccl_ptx::syntax::parse(
///     ".version 8.0\n.target sm_90\n.address_size 64\n\
///      .visible .entry k(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; ret; }",
/// )?;
/// let kernel = module.entries().next().expect("there is one");
/// assert_eq!((kernel.name.text, module.version), ("k", (8, 0)));
/// # Ok::<(), ferroccl_ptx::syntax::SyntaxError>(())
/// ```
pub fn parse(source: &str) -> Result<Module<'_>, SyntaxError> {
    let all = tokens(source)?;
    let tokens =
        all.into_iter().filter(|t| !matches!(t.kind, TokenKind::Blank | TokenKind::Comment));
    Parser { source, tokens: tokens.collect(), next: 0 }.module()
}

pub(super) struct Parser<'a> {
    pub(super) source: &'a str,
    /// Without blanks and comments.
    tokens: Vec<Token<'a>>,
    next: usize,
}

/// The state spaces that variables are declared in (5.1).
const SPACES: [&str; 8] =
    [".reg", ".sreg", ".const", ".global", ".local", ".param", ".shared", ".tex"];
const LINKAGES: [&str; 4] = [".visible", ".extern", ".weak", ".common"];
/// Directives of a function's head that take no arguments (11.4).
const BARE: [&str; 4] = [".noreturn", ".explicitcluster", ".blocksareclusters", ".reqntid_none"];

// Tokens.
impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.peek_nth(0)
    }

    pub(super) fn peek_nth(&self, n: usize) -> Option<Token<'a>> {
        self.tokens.get(self.next + n).copied()
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Where the next token starts.
    pub(super) fn start(&self) -> u32 {
        self.peek().map_or(self.source.len() as u32, |t| t.word.start)
    }

    /// From `start` to the end of the last token taken.
    pub(super) fn since(&self, start: u32) -> Span {
        let last = self.next.checked_sub(1).and_then(|i| self.tokens.get(i));
        Span { start, end: last.map_or(start, |t| t.word.span().end).max(start) }
    }

    pub(super) fn peek_sign(&self, sign: &str) -> bool {
        self.peek().is_some_and(|t| t.kind == TokenKind::Sign && t.word.text == sign)
    }

    pub(super) fn take_sign(&mut self, sign: &str) -> bool {
        let found = self.peek_sign(sign);
        self.next += usize::from(found);
        found
    }

    pub(super) fn expect_sign(&mut self, sign: &str) -> Result<(), SyntaxError> {
        if self.take_sign(sign) { Ok(()) } else { Err(self.expected(&format!("`{sign}`"))) }
    }

    pub(super) fn name(&mut self, what: &str) -> Result<Word<'a>, SyntaxError> {
        match self.peek() {
            Some(t) if t.kind == TokenKind::Name => {
                self.advance();
                Ok(t.word)
            }
            _ => Err(self.expected(what)),
        }
    }

    pub(super) fn dot(&mut self, what: &str) -> Result<Word<'a>, SyntaxError> {
        match self.peek() {
            Some(t) if t.kind == TokenKind::Dot => {
                self.advance();
                Ok(t.word)
            }
            _ => Err(self.expected(what)),
        }
    }

    pub(super) fn error(&self, what: impl Into<String>) -> SyntaxError {
        self.error_at(self.start(), what)
    }

    pub(super) fn error_at(&self, at: u32, what: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.source, at, what)
    }

    pub(super) fn expected(&self, what: &str) -> SyntaxError {
        match self.peek() {
            Some(t) => self.error(format!("expected {what}, found `{}`", t.word.text)),
            None => self.error(format!("expected {what}, found the end of the file")),
        }
    }

    fn unsigned<T: TryFrom<i128>>(&mut self, what: &str) -> Result<T, SyntaxError> {
        let at = self.start();
        let value = self.integer()?;
        T::try_from(value).map_err(|_| self.error_at(at, format!("{value} is no {what}")))
    }
}

// Modules and functions.
impl<'a> Parser<'a> {
    fn module(mut self) -> Result<Module<'a>, SyntaxError> {
        let mut module = Module {
            source: self.source,
            version: (0, 0),
            target: Vec::new(),
            address_size: 32,
            items: Vec::new(),
        };
        while let Some(token) = self.peek() {
            if self.take_sign(";") {
                continue;
            }
            let item = match (token.kind, token.word.text) {
                (TokenKind::Dot, ".section") => self.section()?,
                (TokenKind::Dot, ".visible" | ".extern" | ".weak" | ".common") => self.linked()?,
                (TokenKind::Dot, ".entry" | ".func") => self.function(token.word.start, None)?,
                (TokenKind::Dot, text) if SPACES.contains(&text) => {
                    let variable = self.variable(token.word.start, None)?;
                    self.expect_sign(";")?;
                    Item::Variable(variable)
                }
                (TokenKind::Dot, _) => {
                    let directive = self.module_directive()?;
                    self.note(&mut module, &directive)?;
                    Item::Directive(directive)
                }
                _ => return Err(self.expected("a directive, a variable or a function")),
            };
            module.items.push(item);
        }
        if module.version == (0, 0) {
            return Err(SyntaxError::new(self.source, 0, "there is no .version (11.1.1)"));
        }
        if module.target.is_empty() {
            return Err(SyntaxError::new(self.source, 0, "there is no .target (11.1.2)"));
        }
        Ok(module)
    }

    /// Takes over what the directives of a module's head say.
    fn note(&self, module: &mut Module<'a>, directive: &Directive<'a>) -> Result<(), SyntaxError> {
        let wrong = |what: &str| Err(self.error_at(directive.span.start, what));
        match (directive.name.text, &directive.arguments[..]) {
            (".version", [number]) => {
                match number.split_once('.').map(|(a, b)| (a.parse(), b.parse())) {
                    Some((Ok(major), Ok(minor))) => module.version = (major, minor),
                    _ => return wrong(".version takes MAJOR.MINOR"),
                }
            }
            (".version", _) => return wrong(".version takes MAJOR.MINOR"),
            (".target", []) => return wrong(".target takes an architecture"),
            (".target", names) => module.target = names.to_vec(),
            (".address_size", [size]) => match size.text {
                "32" => module.address_size = 32,
                "64" => module.address_size = 64,
                _ => return wrong(".address_size is 32 or 64"),
            },
            (".address_size", _) => return wrong(".address_size is 32 or 64"),
            _ => {}
        }
        Ok(())
    }

    /// A directive outside of functions. It ends with `;`, or where a token of another line begins.
    fn module_directive(&mut self) -> Result<Directive<'a>, SyntaxError> {
        const KNOWN: [&str; 9] = [
            ".version",
            ".target",
            ".address_size",
            ".file",
            ".pragma",
            ".alias",
            ".loc",
            ".minnctapersm",
            ".attribute",
        ];
        let start = self.start();
        let name = self.dot("a directive")?;
        if !KNOWN.contains(&name.text) {
            return Err(self.error_at(start, format!("there is no directive `{name}` here")));
        }
        let arguments = self.arguments(name);
        let span = self.since(start);
        self.take_sign(";");
        Ok(Directive { name, arguments, span })
    }

    /// Words and numbers with commas between them, on the line of `after`: most directives have no end.
    pub(super) fn arguments(&mut self, after: Word<'a>) -> Vec<Word<'a>> {
        let mut arguments = Vec::new();
        let mut end = after.span().end;
        while let Some(token) = self.peek() {
            let same_line = !self.source[end as usize..token.word.start as usize].contains('\n');
            let comma = token.kind == TokenKind::Sign && token.word.text == ",";
            let argument =
                matches!(token.kind, TokenKind::Name | TokenKind::Number | TokenKind::Text);
            // A comma joins what follows, on its line or the next; `+` stands in `function_name $x+4`.
            let plus = token.kind == TokenKind::Sign && token.word.text == "+";
            if !(same_line && (comma || argument || plus)) {
                break;
            }
            if argument {
                arguments.push(token.word);
            }
            end = token.word.span().end;
            self.advance();
        }
        arguments
    }

    /// `.section NAME { ... }`: debug information.
    fn section(&mut self) -> Result<Item<'a>, SyntaxError> {
        let start = self.start();
        while self.peek().is_some() && !self.peek_sign("{") {
            self.advance();
        }
        self.expect_sign("{")?;
        while self.peek().is_some() && !self.peek_sign("}") {
            self.advance();
        }
        self.expect_sign("}")?;
        Ok(Item::Section(self.since(start)))
    }

    fn linked(&mut self) -> Result<Item<'a>, SyntaxError> {
        let start = self.start();
        let linkage = Some(self.dot("a linkage")?);
        match self.peek() {
            Some(t) if matches!(t.word.text, ".entry" | ".func") => self.function(start, linkage),
            Some(t) if SPACES.contains(&t.word.text) => {
                let variable = self.variable(start, linkage)?;
                self.expect_sign(";")?;
                Ok(Item::Variable(variable))
            }
            _ => Err(self.expected("a variable or a function")),
        }
    }

    fn function(&mut self, start: u32, linkage: Option<Word<'a>>) -> Result<Item<'a>, SyntaxError> {
        let entry = self.dot("`.entry` or `.func`")?.text == ".entry";
        let mut directives = Vec::new();
        let mut returns = Vec::new();
        self.head(&mut directives)?;
        if !entry && self.peek_sign("(") {
            returns = self.parameters()?;
        }
        let name = self.name("the function's name")?;
        let parameters = if self.peek_sign("(") { self.parameters()? } else { Vec::new() };
        self.head(&mut directives)?;
        let body = if self.peek_sign("{") {
            Some(self.block(0)?)
        } else {
            self.expect_sign(";")?;
            None
        };
        let span = self.since(start);
        Ok(Item::Function(Function {
            entry,
            linkage,
            name,
            returns,
            parameters,
            directives,
            body,
            span,
        }))
    }

    /// The directives of a function's head.
    fn head(&mut self, directives: &mut Vec<Directive<'a>>) -> Result<(), SyntaxError> {
        while let Some(token) = self.peek().filter(|t| t.kind == TokenKind::Dot) {
            let name = token.word;
            self.advance();
            if name.text == ".attribute" || name.text == ".abi_preserve" {
                self.skip_parentheses()?;
            }
            let arguments =
                if BARE.contains(&name.text) { Vec::new() } else { self.arguments(name) };
            self.take_sign(";"); // `.pragma "x";`
            directives.push(Directive { name, arguments, span: self.since(name.start) });
        }
        Ok(())
    }

    fn skip_parentheses(&mut self) -> Result<(), SyntaxError> {
        if self.take_sign("(") {
            while self.peek().is_some() && !self.peek_sign(")") {
                self.advance();
            }
            self.expect_sign(")")?;
        }
        Ok(())
    }

    fn parameters(&mut self) -> Result<Vec<Variable<'a>>, SyntaxError> {
        self.expect_sign("(")?;
        let mut parameters = Vec::new();
        while !self.peek_sign(")") {
            let start = self.start();
            parameters.push(self.variable(start, None)?);
            if !self.take_sign(",") {
                break;
            }
        }
        self.expect_sign(")")?;
        Ok(parameters)
    }
}

// Declarations.
impl<'a> Parser<'a> {
    /// A declaration, without its semicolon: `.shared .align 16 .b8 buffer[64]`.
    pub(super) fn variable(
        &mut self,
        start: u32,
        linkage: Option<Word<'a>>,
    ) -> Result<Variable<'a>, SyntaxError> {
        let space = self.dot("a state space")?;
        if !SPACES.contains(&space.text) && !space.text.starts_with(".shared::") {
            return Err(self.error_at(space.start, format!("there is no state space `{space}`")));
        }
        let (mut align, mut vector, mut ty) = (None, 1, None);
        let mut attributes = Vec::new();
        while let Some(token) = self.peek().filter(|t| t.kind == TokenKind::Dot) {
            self.advance();
            match token.word.text {
                ".align" => {
                    let value: u64 = self.unsigned("alignment")?;
                    if attributes.is_empty() {
                        align = Some(value);
                    }
                }
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                ".attribute" => {
                    attributes.push(token.word);
                    self.skip_parentheses()?;
                }
                _ if ty.is_none() => {
                    ty = Some(Word { text: &token.word.text[1..], start: token.word.start + 1 });
                }
                _ => attributes.push(token.word),
            }
        }
        let Some(ty) = ty else { return Err(self.expected("a type")) };
        let mut names = Vec::new();
        loop {
            names.push(self.declared(space.text == ".param")?);
            // In a list of parameters a comma begins the next one.
            let more =
                self.peek_sign(",") && self.peek_nth(1).is_some_and(|t| t.kind == TokenKind::Name);
            if !more {
                break;
            }
            self.advance();
        }
        let span = self.since(start);
        Ok(Variable { linkage, space, align, vector, ty, attributes, names, span })
    }

    fn declared(&mut self, parameter: bool) -> Result<Declared<'a>, SyntaxError> {
        let name = match self.peek() {
            // A parameter of a prototype may be `_`, or have no name at all.
            Some(t) if parameter && t.kind == TokenKind::Sign => {
                Word { text: "_", start: t.word.start }
            }
            _ => self.name("a name")?,
        };
        let count = if self.take_sign("<") {
            // Not an expression: `>` would be an operator.
            let at = self.start();
            let number = self.peek().filter(|t| t.kind == TokenKind::Number);
            let count = number.and_then(|t| t.word.text.parse().ok());
            let Some(count) = count else {
                return Err(self.error_at(at, "expected a number of registers"));
            };
            self.advance();
            self.expect_sign(">")?;
            Some(count)
        } else {
            None
        };
        let mut dimensions = Vec::new();
        while self.take_sign("[") {
            let size = if self.peek_sign("]") { None } else { Some(self.unsigned("array size")?) };
            dimensions.push(size);
            self.expect_sign("]")?;
        }
        let initializer = if self.take_sign("=") { Some(self.initializer(0)?) } else { None };
        Ok(Declared { name, count, dimensions, initializer })
    }

    fn initializer(&mut self, depth: u32) -> Result<Initializer<'a>, SyntaxError> {
        if depth > 16 {
            return Err(self.error("nested too deeply"));
        }
        if self.take_sign("{") {
            let mut list = Vec::new();
            while !self.peek_sign("}") {
                list.push(self.initializer(depth + 1)?);
                if !self.take_sign(",") {
                    break;
                }
            }
            self.expect_sign("}")?;
            return Ok(Initializer::List(list));
        }
        if self.at_constant() {
            return Ok(match self.constant()?.0 {
                Constant::Integer(v) => Initializer::Integer(v),
                Constant::Decimal(v) => Initializer::Float(v),
                Constant::Single(bits) => Initializer::Float(f32::from_bits(bits).into()),
                Constant::Double(bits) => Initializer::Float(f64::from_bits(bits)),
            });
        }
        let mut name = self.name("a value")?;
        let generic = name.text == "generic" && self.take_sign("(");
        if generic {
            name = self.name("a variable")?;
            self.expect_sign(")")?;
        }
        let offset = self.offset()?;
        Ok(Initializer::Address { name, generic, offset })
    }

    /// `+ 4`, `- 4`, or nothing.
    pub(super) fn offset(&mut self) -> Result<i64, SyntaxError> {
        let negative = self.peek_sign("-");
        if !negative && !self.peek_sign("+") {
            return Ok(0);
        }
        self.advance();
        let at = self.start();
        let value = self.integer()?;
        let value = if negative { -value } else { value };
        i64::try_from(value)
            .or_else(|_| u64::try_from(value).map(|v| v as i64)) // +18446744073709551608 is -8
            .map_err(|_| self.error_at(at, format!("{value} is no offset")))
    }
}

/// Whether a word is a linkage.
pub(super) fn is_linkage(text: &str) -> bool {
    LINKAGES.contains(&text)
}

/// Whether a word is a state space that can be declared in.
pub(super) fn is_space(text: &str) -> bool {
    SPACES.contains(&text) || text.starts_with(".shared::")
}
