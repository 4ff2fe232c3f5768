//! Colours, where somebody sees them.

use std::io::{self, IsTerminal};

use anstyle::{AnsiColor, Effects, Style as Ansi};
use clap::{Args, ColorChoice};
use ferroccl_ptx::inspect::Style;

/// When to colour.
#[derive(Args, Clone, Debug)]
pub(super) struct Color {
    /// Colour the output; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
}

/// Puts colours round texts, or leaves them alone.
#[derive(Clone, Copy)]
pub(super) struct Paint(bool);

impl Color {
    pub(super) fn paint(&self) -> Paint {
        Paint(match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            // https://no-color.org: set, and not to nothing.
            ColorChoice::Auto => {
                let unwanted = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
                !unwanted && io::stdout().is_terminal()
            }
        })
    }
}

impl Paint {
    pub(super) fn with(self, style: Ansi, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// A piece of PTX.
    pub(super) fn ptx(self, style: Style, text: &str) -> String {
        let color = |color: AnsiColor| color.on_default();
        let ansi = match style {
            Style::Plain | Style::Name => return text.to_owned(),
            Style::Comment => dim(),
            Style::Directive => color(AnsiColor::Magenta),
            Style::Memory => color(AnsiColor::Yellow).effects(Effects::BOLD),
            Style::Sync => color(AnsiColor::Red).effects(Effects::BOLD),
            Style::Control => color(AnsiColor::Blue).effects(Effects::BOLD),
            Style::Opcode => Ansi::new().effects(Effects::BOLD),
            Style::Modifier => color(AnsiColor::Cyan),
            Style::Order => color(AnsiColor::Red),
            Style::Register => color(AnsiColor::Green),
            Style::Special | Style::Number | Style::Text => color(AnsiColor::BrightMagenta),
        };
        self.with(ansi, text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.with(dim(), text)
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.with(Ansi::new().effects(Effects::BOLD), text)
    }

    pub(super) fn added(self, text: &str) -> String {
        self.with(AnsiColor::Green.on_default(), text)
    }

    pub(super) fn removed(self, text: &str) -> String {
        self.with(AnsiColor::Red.on_default(), text)
    }
}

fn dim() -> Ansi {
    AnsiColor::BrightBlack.on_default()
}
