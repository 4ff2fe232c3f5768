//! Lines of the log in NCCL's form.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::level::{LogLevel, Subsystems};

/// Which events are shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) level: LogLevel,
    pub(super) subsystems: Subsystems,
}

impl Shown {
    pub(super) fn has(self, event: &Metadata<'_>) -> bool {
        let level = LogLevel::of(*event.level());
        event.target().starts_with("ferroccl")
            && level <= self.level
            && (level == LogLevel::Warn || self.subsystems.contains(event.target()))
    }
}

/// `host:process:thread [device] NCCL LEVEL message field=value`.
#[derive(Clone, Debug)]
pub(super) struct NcclFormat {
    pub(super) host: String,
    /// Stands for events without a field `dev`.
    pub(super) device: u32,
}

impl<S, N> FormatEvent<S, N> for NcclFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = Text::default();
        event.record(&mut text);
        writeln!(
            out,
            "{}:{}:{} [{}] NCCL {} {}{}",
            self.host,
            std::process::id(),
            nix::unistd::gettid(),
            text.device.unwrap_or(u64::from(self.device)),
            LogLevel::of(*event.metadata().level()),
            text.message,
            text.fields,
        )
    }
}

/// An event's fields as text.
#[derive(Default)]
struct Text {
    device: Option<u64>,
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "dev" => self.device = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail. Line breaks would let a peer's text look like a line of ours.
        let text = format!("{value:?}").replace(['\n', '\r'], " ");
        let _ = match field.name() {
            "message" => write!(self.message, "{text}"),
            name => write!(self.fields, " {name}={text}"),
        };
    }
}
