//! Texts with something wrong in them, by a seed.

use ferroccl_ptx::syntax::tokens;

/// Numbers that follow from a seed (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }
}

/// What a reader may trip over.
const PIECES: [&str; 44] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ";",
    ":",
    ",",
    "@",
    "!",
    "|",
    "+",
    "-",
    "_",
    "%",
    ".",
    "::",
    "\"",
    "/*",
    "*/",
    "//",
    "\n",
    "\0",
    "é",
    "0x",
    "0f",
    "0d",
    "1e",
    "18446744073709551616",
    "-0x8000000000000000",
    "1/0",
    "%r0",
    ".loc 1 2 3",
    ".reg .b32 %r<4294967295>;",
    "@%p1",
    "ret;",
    "bra",
    ".branchtargets",
    ".v4",
    ".u128",
    ".section",
];

/// The text with one to four things changed in it.
pub(crate) fn mutated(source: &str, random: &mut Random) -> String {
    let mut text = source.to_owned();
    for _ in 0..=random.below(4) {
        text = changed(&text, random);
    }
    text
}

fn changed(source: &str, random: &mut Random) -> String {
    // Where tokens are no more, the change is one of characters.
    let Ok(all) = tokens(source) else { return cut(source, random) };
    if all.is_empty() {
        return random.of(&PIECES).to_owned();
    }
    let mut words: Vec<&str> = all.iter().map(|t| t.word.text).collect();
    let (at, other) = (random.below(words.len()), random.below(words.len()));
    match random.below(10) {
        0 => {
            words.remove(at);
        }
        1 => words.insert(at, words[other]),
        2 => words.swap(at, other),
        3 => words[at] = words[other],
        4 => words[at] = random.of(&PIECES),
        5 => words.insert(at, random.of(&PIECES)),
        6 => {
            let (from, to) = (at.min(other), at.max(other));
            words.drain(from..to.min(from + 40));
        }
        7 => {
            // Deeper than anybody nests.
            let piece = random.of(&PIECES);
            let many = 1 + random.below(3000);
            words.splice(at..at, std::iter::repeat_n(piece, many));
        }
        8 => {
            let (from, to) = (at.min(other), at.max(other));
            let again: Vec<&str> = words[from..to.min(from + 40)].to_vec();
            words.splice(at..at, again);
        }
        _ => return cut(source, random),
    }
    words.concat()
}

/// Ends early, or has a character changed.
fn cut(source: &str, random: &mut Random) -> String {
    let mut characters: Vec<char> = source.chars().collect();
    if characters.is_empty() {
        return random.of(&PIECES).to_owned();
    }
    let at = random.below(characters.len());
    if random.below(2) == 0 {
        characters.truncate(at);
    } else {
        let code = random.below(300) as u32;
        characters[at] = char::from_u32(code).unwrap_or('?');
    }
    characters.into_iter().collect()
}
