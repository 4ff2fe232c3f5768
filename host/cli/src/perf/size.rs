//! Sizes as people write them: `8`, `64K`, `1.5M`, `2GiB`.
//!
//! Suffixes are powers of 1024, as in nccl-tests; the bandwidths of the table are powers of 1000.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, read from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bytes(pub(crate) u64);

impl Bytes {
    /// 1 MiB times `n`.
    pub(crate) const fn mebi(n: u64) -> Self {
        Bytes(n << 20)
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let shift = match suffix.trim().to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => {
                return Err(format!(
                    "{suffix:?} is no unit of size; a number, then K, M, G or T (powers of 1024)"
                ));
            }
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let too_large = || format!("{text} is more than 2^64 bytes");
        let parse = |digits: &str| match digits {
            "" => Ok(0),
            digits => digits.parse::<u64>().map_err(|_| format!("{number:?} is not a size")),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(format!("{text:?} is not a size: a number, then K, M, G or T"));
        }
        let whole = parse(whole)?.checked_mul(1 << shift).ok_or_else(too_large)?;
        // 12 decimal digits times 2^40 stay within u128; more of them never make a whole byte.
        let Some(scale) = u32::try_from(fraction.len()).ok().filter(|&n| n <= 12) else {
            return Err(format!("{number} has more digits than a size needs"));
        };
        let part = (u128::from(parse(fraction)?) << shift) / 10u128.pow(scale);
        let part = u64::try_from(part).map_err(|_| too_large())?;
        whole.checked_add(part).map(Bytes).ok_or_else(too_large)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        match units.into_iter().find(|&(shift, _)| self.0 > 0 && self.0.is_multiple_of(1 << shift))
        {
            Some((shift, unit)) => f.pad(&format!("{}{unit}", self.0 >> shift)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<u64, String> {
        text.parse().map(|Bytes(n)| n)
    }

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("64k", 65_536),
            ("64M", 67_108_864),
            ("1.5M", 1_572_864),
            (".5K", 512),
            ("2GiB", 2_147_483_648),
            ("3 MB", 3_145_728),
            ("1T", 1_099_511_627_776),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(read(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn turns_away_what_is_no_size() {
        for text in ["", "M", ".", "-1", "8Q", "1.2.3", "8 8", "18446744073709551616", "99999999T"]
        {
            assert!(read(text).is_err(), "{text:?} was read as {:?}", read(text));
        }
    }

    #[test]
    fn shows_the_largest_exact_unit() {
        for (bytes, text) in [(0, "0"), (8, "8"), (1024, "1K"), (1536, "1536"), (64 << 20, "64M")] {
            assert_eq!(Bytes(bytes).to_string(), text);
            assert_eq!(read(text), Ok(bytes));
        }
    }
}
