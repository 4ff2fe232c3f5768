//! The types of knobs: how each is written, read and described.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use ferroccl_proxy::net::{Faults, HcaFilter};

use super::{LibraryDevice, TopoRanks, TunerFile};
use crate::flight_recorder::DumpSignal;
use crate::log::{LogLevel, Subsystems};
use ferroccl_bootstrap::{AddressFamily, CommId, InterfaceFilter};
use ferroccl_topology::PathKind;
use ferroccl_topology::merge::{MergeGroups, MergeLevel};

/// A type a knob can have.
pub trait Setting: Sized {
    /// What limits its values: a range, or the words that describe them.
    type Legal: ?Sized;

    /// Reads a value that is not empty and has no blanks around it.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    fn read(text: &str, legal: &Self::Legal) -> Result<Self, String>;

    /// What may be written, in words.
    fn describe(legal: &Self::Legal) -> String;

    /// The value as it would be written; empty for "not set".
    fn show(&self) -> String;

    /// A text that is no such value, for an error message.
    fn quote(text: &str) -> String {
        text.to_owned()
    }
}

impl<T: Setting> Setting for Option<T> {
    type Legal = T::Legal;
    fn read(text: &str, legal: &T::Legal) -> Result<Self, String> {
        T::read(text, legal).map(Some)
    }
    fn describe(legal: &T::Legal) -> String {
        T::describe(legal)
    }
    fn show(&self) -> String {
        self.as_ref().map(T::show).unwrap_or_default()
    }
    fn quote(text: &str) -> String {
        T::quote(text)
    }
}

/// Types whose own `FromStr` says all there is to say.
macro_rules! by_from_str {
    ($($ty:ty),*) => { $(impl Setting for $ty {
        type Legal = str;
        fn read(text: &str, _: &str) -> Result<Self, String> {
            text.parse::<$ty>().map_err(|e| e.to_string())
        }
        fn describe(legal: &str) -> String {
            legal.to_owned()
        }
        fn show(&self) -> String {
            self.to_string()
        }
    })* };
}
by_from_str!(
    String,
    LibraryDevice,
    LogLevel,
    Subsystems,
    InterfaceFilter,
    AddressFamily,
    CommId,
    Level,
    Faults,
    HcaFilter,
    DumpSignal,
    TopoRanks,
    TunerFile,
    MergeLevel,
    MergeGroups
);

/// A distance between devices, as `NCCL_P2P_LEVEL` and `NCCL_NET_GDR_LEVEL` take it.
///
/// ```
/// use ferroccl::{config::Level, topology::PathKind};
///
/// assert_eq!("PHB".parse(), Ok(Level(PathKind::Phb)));
/// assert_eq!("2".parse(), Ok(Level(PathKind::Pxb))); // NCCL's older numbers
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(pub PathKind);

impl Level {
    pub(super) const FORM: &'static str =
        "LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB or SYS, or 0 to 5 in older scripts";
}

impl Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // NCCL's numbers before 2.5: LOC, PIX, PXB, PHB, SYS, and anything.
        const NUMBERS: [PathKind; 6] = [
            PathKind::Loc,
            PathKind::Pix,
            PathKind::Pxb,
            PathKind::Phb,
            PathKind::Sys,
            PathKind::Sys,
        ];
        let number = text.parse::<usize>().ok();
        let kind = number.map_or_else(|| text.parse().ok(), |n| NUMBERS.get(n).copied());
        kind.map(Level).ok_or_else(|| format!("none of {}", Level::FORM))
    }
}

impl Setting for bool {
    type Legal = ();
    fn read(text: &str, (): &()) -> Result<Self, String> {
        match text {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err("neither 0 nor 1".to_owned()),
        }
    }
    fn describe((): &()) -> String {
        "0 or 1".to_owned()
    }
    fn show(&self) -> String {
        u8::from(*self).to_string()
    }
}

/// Reads something within a range.
fn within<T: PartialOrd>(value: T, legal: &RangeInclusive<T>) -> Result<T, String> {
    if legal.contains(&value) { Ok(value) } else { Err("out of range".to_owned()) }
}

impl Setting for u32 {
    type Legal = RangeInclusive<u32>;
    fn read(text: &str, legal: &Self::Legal) -> Result<Self, String> {
        within(text.parse().map_err(|_| "not a number".to_owned())?, legal)
    }
    fn describe(legal: &Self::Legal) -> String {
        format!("{} to {}", legal.start(), legal.end())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// A number of bytes; written with K, M or G for powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

const UNITS: [(char, u32); 3] = [('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Size {
    type Err = &'static str;
    /// Reads `"65536"`, `"64K"`, `"4M"`, `"1G"`, whatever the case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unit = UNITS.iter().find(|(c, _)| text.ends_with([*c, c.to_ascii_lowercase()]));
        let (digits, shift) = unit.map_or((text, 0), |(_, s)| (&text[..text.len() - 1], *s));
        let count: usize = digits.parse().map_err(|_| "not a size")?;
        count.checked_mul(1 << shift).map(Size).ok_or("not a size")
    }
}

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, s)| self.0 != 0 && self.0.is_multiple_of(1 << s)) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Setting for Size {
    type Legal = RangeInclusive<Size>;
    fn read(text: &str, legal: &Self::Legal) -> Result<Self, String> {
        within(text.parse()?, legal)
    }
    fn describe(legal: &Self::Legal) -> String {
        format!("{} to {} bytes, with K, M or G for powers of 1024", legal.start(), legal.end())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for Duration {
    type Legal = RangeInclusive<f64>;
    fn read(text: &str, legal: &Self::Legal) -> Result<Self, String> {
        let seconds = within(text.parse().map_err(|_| "not a number of seconds")?, legal)?;
        Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
    }
    fn describe(legal: &Self::Legal) -> String {
        format!("{} to {} seconds", legal.start(), legal.end())
    }
    fn show(&self) -> String {
        self.as_secs_f64().to_string()
    }
}

/// A time limit; `None`, written 0, is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<Duration>);

impl Setting for Limit {
    type Legal = RangeInclusive<f64>;
    fn read(text: &str, legal: &Self::Legal) -> Result<Self, String> {
        Duration::read(text, legal).map(|d| Limit((!d.is_zero()).then_some(d)))
    }
    fn describe(legal: &Self::Legal) -> String {
        format!("{}; 0 for no limit", Duration::describe(legal))
    }
    fn show(&self) -> String {
        self.0.unwrap_or_default().show()
    }
}
