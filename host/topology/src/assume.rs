//! What to take for granted about a machine that a file does not describe in full.
//!
//! A cloud's topology file says where the devices are and leaves the rest to be asked of the devices. Explored
//! elsewhere there is nobody to ask, and whoever explores says it: `sm=80,nvswitch=12`.

use std::fmt;
use std::str::FromStr;

/// What a file need not say, because somebody else does. [`Assume::default`] assumes nothing.
///
/// Written as `key=value`, separated by commas:
///
/// | key | meaning |
/// |---|---|
/// | `sm=80` | compute capability (times ten) of GPUs that do not say |
/// | `nvswitch=12` | so many `NVLink`s from each GPU to the switches, if the file lists none at all |
/// | `nvlink=2` | so many `NVLink`s between every two GPUs, likewise |
/// | `gdr=0` | whether cards reach the memory of GPUs, for devices that do not say; 1 if not given |
/// | `net=200000` | speed in 10^6 bits a second of ports that do not say |
/// | `pci=4` | PCI generation of devices whose speed is not known |
///
/// ```
/// use ferroccl_topology::{Assume, NvLinks};
///
/// let assume: Assume = "sm=80,nvswitch=12".parse()?;
/// assert_eq!((assume.sm, assume.nvlinks), (Some(80), Some(NvLinks::Switch(12))));
/// assert_eq!(assume.to_string(), "sm=80,nvswitch=12");
/// let error = "sm=eighty".parse::<Assume>().unwrap_err();
/// assert_eq!(error.to_string(), "sm=eighty: not a whole number from 10 to 999");
/// # Ok::<(), ferroccl_topology::AssumeError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assume {
    /// Compute capability, times ten.
    pub sm: Option<u32>,
    /// How GPUs are joined by `NVLink`.
    pub nvlinks: Option<NvLinks>,
    /// Whether cards reach the memory of GPUs.
    pub gdr: Option<bool>,
    /// Speed of network ports, 10^6 bits a second.
    pub net: Option<u32>,
    /// PCI generation, 1 to 6.
    pub pci: Option<u32>,
}

/// `NVLink`s that are taken for granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvLinks {
    /// So many from each GPU to the switches.
    Switch(u32),
    /// So many between every two GPUs.
    Pairs(u32),
}

/// What is wrong with what is to be assumed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{item}: {reason}")]
pub struct AssumeError {
    /// The key and value as given.
    pub item: String,
    /// What is wrong.
    pub reason: String,
}

/// Compute capabilities, times ten: 1.0 (10), and 100 and beyond since Blackwell.
pub(super) const SM: std::ops::RangeInclusive<u32> = 10..=999;

/// `NVLink`s of a GPU: 18 on an H100; this leaves room for three generations.
pub(super) const MOST_NVLINKS: u32 = 144;

/// Speed of a port at most, 10^6 bits a second: ten times the fastest there is.
pub(super) const MOST_MBITS: u32 = 10_000_000;

impl Assume {
    /// What may be written.
    pub const FORM: &'static str =
        "a list of sm=N, nvswitch=N or nvlink=N, gdr=0|1, net=MBIT/S and pci=GENERATION";
}

impl FromStr for Assume {
    type Err = AssumeError;

    fn from_str(text: &str) -> Result<Self, AssumeError> {
        let mut assume = Assume::default();
        let mut seen: Vec<&str> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let wrong = |reason: String| AssumeError { item: item.to_owned(), reason };
            let Some((key, value)) = item.split_once('=') else {
                return Err(wrong(format!("no value; legal: {}", Assume::FORM)));
            };
            if seen.contains(&key) {
                return Err(wrong(format!("{key} is given twice")));
            }
            seen.push(key);
            let number = |low: u32, high: u32| {
                value
                    .parse()
                    .ok()
                    .filter(|number| (low..=high).contains(number))
                    .ok_or_else(|| wrong(format!("not a whole number from {low} to {high}")))
            };
            match key {
                "sm" => assume.sm = Some(number(*SM.start(), *SM.end())?),
                "nvswitch" | "nvlink" if assume.nvlinks.is_some() => {
                    return Err(wrong("nvswitch and nvlink exclude each other".to_owned()));
                }
                "nvswitch" => assume.nvlinks = Some(NvLinks::Switch(number(1, MOST_NVLINKS)?)),
                "nvlink" => assume.nvlinks = Some(NvLinks::Pairs(number(1, MOST_NVLINKS)?)),
                "gdr" => assume.gdr = Some(number(0, 1)? == 1),
                "net" => assume.net = Some(number(1, MOST_MBITS)?),
                "pci" => assume.pci = Some(number(1, 6)?),
                _ => return Err(wrong(format!("{key} is no key; legal: {}", Assume::FORM))),
            }
        }
        Ok(assume)
    }
}

impl fmt::Display for Assume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nvswitch, nvlink) = match self.nvlinks {
            Some(NvLinks::Switch(links)) => (Some(links), None),
            Some(NvLinks::Pairs(links)) => (None, Some(links)),
            None => (None, None),
        };
        let all = [
            ("sm", self.sm),
            ("nvswitch", nvswitch),
            ("nvlink", nvlink),
            ("gdr", self.gdr.map(u32::from)),
            ("net", self.net),
            ("pci", self.pci),
        ];
        let given =
            all.iter().filter_map(|(key, value)| value.map(|value| format!("{key}={value}")));
        f.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["", "sm=80", "sm=80,nvswitch=12", "sm=90,nvlink=2,gdr=0,net=400000,pci=5"] {
            assert_eq!(text.parse::<Assume>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(" sm=80 , gdr=1,".parse::<Assume>().unwrap().to_string(), "sm=80,gdr=1");
    }

    #[test]
    fn nonsense_names_its_key() {
        for (text, reason) in [
            ("sm", "sm: no value; legal"),
            ("sm=", "sm=: not a whole number from 10 to 999"),
            ("sm=-1", "sm=-1: not a whole number"),
            ("sm=80,sm=90", "sm=90: sm is given twice"),
            ("nvswitch=0", "nvswitch=0: not a whole number from 1"),
            ("nvswitch=12,nvlink=2", "nvlink=2: nvswitch and nvlink exclude each other"),
            ("nvlink=99999999999", "nvlink=99999999999: not a whole number"),
            ("gdr=2", "gdr=2: not a whole number from 0 to 1"),
            ("net=NaN", "net=NaN: not a whole number"),
            ("pci=7", "pci=7: not a whole number from 1 to 6"),
            ("speed=1", "speed=1: speed is no key; legal"),
        ] {
            let error = text.parse::<Assume>().unwrap_err().to_string();
            assert!(error.starts_with(reason), "{text:?}: {error}");
        }
    }
}
