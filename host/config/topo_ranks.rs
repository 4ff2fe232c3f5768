//! `FERROCCL_TOPO_RANKS`: which GPUs of a topology file the ranks of a host stand for.

use std::fmt::{self, Display};
use std::str::FromStr;

/// The GPUs, by their numbers in the file, that the ranks of a host stand for, in the order of the ranks.
///
/// ```
/// use ferroccl::config::TopoRanks;
///
/// assert_eq!("0-2,7".parse(), Ok(TopoRanks::Gpus(vec![0, 1, 2, 7])));
/// assert_eq!("all".parse(), Ok(TopoRanks::All));
/// assert!("2-1".parse::<TopoRanks>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopoRanks {
    /// As many as there are ranks, from the file's first on.
    All,
    /// These.
    Gpus(Vec<u32>),
}

/// GPUs of a host at most: more is a slip of the pen.
const MOST: u32 = 1024;

impl TopoRanks {
    pub(super) const FORM: &'static str = "all, or numbers of GPUs such as 0-3,6";
}

impl Display for TopoRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopoRanks::All => f.write_str("all"),
            TopoRanks::Gpus(gpus) => {
                let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
                f.write_str(&numbers.join(","))
            }
        }
    }
}

impl FromStr for TopoRanks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("all") {
            return Ok(TopoRanks::All);
        }
        let wrong = || format!("not {}", Self::FORM);
        let number = |text: &str| -> Result<u32, String> {
            let number = text.trim().parse::<u32>().map_err(|_| wrong())?;
            if number < MOST { Ok(number) } else { Err(format!("a host has no GPU {number}")) }
        };
        let mut gpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(wrong());
            }
            for gpu in first..=last {
                if gpus.contains(&gpu) {
                    return Err(format!("GPU {gpu} is there twice"));
                }
                gpus.push(gpu);
            }
        }
        Ok(TopoRanks::Gpus(gpus))
    }
}
