//! Which faults a network is to have, as text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long requests are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// So many more tests at most.
    Tests(u32),
    /// So long at most.
    Time(Duration),
}

/// What goes wrong on each connection of a [`FaultNet`](super::FaultNet). The default is nothing.
///
/// As text, the value of `FERROCCL_NET_FAULTS`:
///
/// | entry | fault |
/// |---|---|
/// | `seed=1` | which random numbers the others follow from |
/// | `delay=200ms` (`us`, `ms`, `s`) | a request is done up to so much later |
/// | `delay=5` | a request is done up to so many tests later |
/// | `cut=100` | the connection breaks at its message 100; the first is 0 |
/// | `drop=100` | at the receiver, message 100 never arrives, nor any after it |
/// | `corrupt=100` | at the receiver, a bit of message 100 changes, or of the first after it that is not empty |
///
/// ```
/// use std::time::Duration;
///
/// use ferroccl_proxy::net::{Delay, Faults};
///
/// let faults: Faults = "seed=1,delay=200ms,cut=100".parse()?;
/// assert_eq!(faults.delay, Some(Delay::Time(Duration::from_millis(200))));
/// assert_eq!((faults.seed, faults.cut_after, faults.drop_after), (1, Some(100), None));
/// assert_eq!(faults.to_string(), "seed=1,delay=200ms,cut=100");
/// # Ok::<(), ferroccl_proxy::net::FaultsError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// What the random numbers follow from, with the number of the connection.
    pub seed: u64,
    /// Requests are held back, each for a time of its own.
    pub delay: Option<Delay>,
    /// The connection breaks after so many messages.
    pub cut_after: Option<u64>,
    /// Nothing arrives after so many messages. Networks lose nothing, so that what would come after it stalls.
    pub drop_after: Option<u64>,
    /// A bit of what arrives changes after so many messages, once.
    pub corrupt_after: Option<u64>,
}

/// An entry that is none of [`Faults`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultsError {
    /// As it was written.
    pub entry: String,
    reason: &'static str,
}

impl fmt::Display for FaultsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.entry, self.reason)
    }
}

impl std::error::Error for FaultsError {}

const UNKNOWN: &str = "is none of seed=, delay=, cut=, drop=, corrupt=";
const TWICE: &str = "comes after another of its kind";
const NUMBER: &str = "has no whole number";
const DELAY: &str = "is no number of tests, nor a time such as 50us, 200ms or 3s";

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Faults, FaultsError> {
        let mut faults = Faults::default();
        let mut seed = None;
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let error = |reason| FaultsError { entry: entry.to_owned(), reason };
            let (key, value) = entry.split_once('=').ok_or_else(|| error(UNKNOWN))?;
            let (key, value) = (key.trim(), value.trim());
            if key == "delay" {
                let delay = delay(value).ok_or_else(|| error(DELAY))?;
                if faults.delay.replace(delay).is_some() {
                    return Err(error(TWICE));
                }
                continue;
            }
            let place = match key {
                "seed" => &mut seed,
                "cut" => &mut faults.cut_after,
                "drop" => &mut faults.drop_after,
                "corrupt" => &mut faults.corrupt_after,
                _ => return Err(error(UNKNOWN)),
            };
            let value = value.parse().map_err(|_| error(NUMBER))?;
            if place.replace(value).is_some() {
                return Err(error(TWICE));
            }
        }
        Ok(Faults { seed: seed.unwrap_or(0), ..faults })
    }
}

fn delay(text: &str) -> Option<Delay> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let number: u32 = digits.parse().ok()?;
    let unit: fn(u64) -> Duration = match &text[digits.len()..] {
        "" => return Some(Delay::Tests(number)),
        "us" => Duration::from_micros,
        "ms" => Duration::from_millis,
        "s" => Duration::from_secs,
        _ => return None,
    };
    Some(Delay::Time(unit(number.into())))
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = match self {
            Delay::Tests(tests) => return write!(f, "{tests}"),
            Delay::Time(time) => time.as_micros(),
        };
        match (time % 1_000_000, time % 1000) {
            (0, _) => write!(f, "{}s", time / 1_000_000),
            (_, 0) => write!(f, "{}ms", time / 1000),
            _ => write!(f, "{time}us"),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        if let Some(delay) = self.delay {
            write!(f, ",delay={delay}")?;
        }
        let counts =
            [("cut", self.cut_after), ("drop", self.drop_after), ("corrupt", self.corrupt_after)];
        for (name, count) in counts {
            if let Some(count) = count {
                write!(f, ",{name}={count}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| text.parse::<Faults>().unwrap_err().to_string();
        assert_eq!(
            error("seed=1,loss=3"),
            "\"loss=3\" is none of seed=, delay=, cut=, drop=, corrupt="
        );
        assert_eq!(error("cut"), "\"cut\" is none of seed=, delay=, cut=, drop=, corrupt=");
        assert_eq!(error("cut=-1"), "\"cut=-1\" has no whole number");
        assert_eq!(error("cut=1,cut=1"), "\"cut=1\" comes after another of its kind");
        for bad in ["", "ms", "3m", "1.5s", "-1", "99999999999s"] {
            assert!(error(&format!("delay={bad}")).contains("is no number of tests"), "{bad}");
        }
        assert_eq!("".parse(), Ok(Faults::default()));
        assert_eq!(" seed = 7 , ".parse(), Ok(Faults { seed: 7, ..Faults::default() }));
    }

    fn delays() -> impl Strategy<Value = Option<Delay>> {
        let time = any::<u32>().prop_map(|us| Delay::Time(Duration::from_micros(us.into())));
        proptest::option::of(prop_oneof![any::<u32>().prop_map(Delay::Tests), time])
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            seed: u64, delay in delays(), cut_after: Option<u64>, drop_after: Option<u64>,
            corrupt_after: Option<u64>,
        ) {
            let faults = Faults { seed, delay, cut_after, drop_after, corrupt_after };
            prop_assert_eq!(faults.to_string().parse(), Ok(faults));
        }

        #[test]
        fn no_text_upsets_it(text in "[a-z=,0-9µ ]{0,20}") {
            let _ = text.parse::<Faults>();
        }
    }
}
