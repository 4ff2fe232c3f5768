//! How many refusals are logged.

use std::time::{Duration, Instant};

/// Lines of one span. Not measured: enough for the ranks that a person would look at.
const LINES: u32 = 8;
const SPAN: Duration = Duration::from_secs(10);

/// Which refusals of a listener get a line of the log, so that strangers who come without end fill no disk: the first 8 of
/// every 10 seconds. The others are counted, for the next line.
#[derive(Debug, Default)]
pub struct LogLimit {
    /// When the span began, and its lines so far.
    span: Option<(Instant, u32)>,
    unlogged: u64,
}

impl LogLimit {
    /// Whether a refusal at `now` gets a line; if so, how many had none since the last line.
    pub fn line(&mut self, now: Instant) -> Option<Unlogged> {
        let (since, lines) = match self.span {
            Some((since, lines)) if now.saturating_duration_since(since) < SPAN => (since, lines),
            _ => (now, 0),
        };
        if lines >= LINES {
            self.unlogged += 1;
            return None;
        }
        self.span = Some((since, lines + 1));
        Some(Unlogged(std::mem::take(&mut self.unlogged)))
    }
}

/// How many refusals had no line; in words, to be put behind the text of a line, and nothing for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlogged(pub u64);

impl std::fmt::Display for Unlogged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more before it)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_has_a_few_lines_and_is_counted() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let mut lines = Vec::new();
        for i in 0..1000 {
            let at = start + i * Duration::from_millis(25); // 25 s
            lines.extend(limit.line(at).map(|unlogged| unlogged.0));
        }
        // 400 in each span of 10 s.
        let span = |first: u64| [first, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(lines, [span(0), span(392), span(392)].concat());
        assert_eq!(limit.line(start + Duration::from_secs(60)), Some(Unlogged(192)));
        assert_eq!(
            (Unlogged(0).to_string(), Unlogged(2).to_string()),
            (String::new(), " (2 more before it)".to_owned())
        );
    }
}
