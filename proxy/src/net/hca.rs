//! Which InfiniBand and RoCE devices and ports may be used: `NCCL_IB_HCA`.

use std::fmt;
use std::str::FromStr;

/// A list of devices and ports.
///
/// As text, NCCL's form (environment variables, `NCCL_IB_HCA`): names of devices, each with `:PORT` if one port is meant,
/// separated by commas. A name stands for all that begin with it; after `=` at the front of the list, for itself alone.
/// After `^` the list is of those that may not be used.
///
/// ```
/// use ferroccl_proxy::net::HcaFilter;
///
/// let filter: HcaFilter = "mlx5_0:1,mlx5_2".parse()?;
/// assert!(filter.allows("mlx5_0", 1) && !filter.allows("mlx5_0", 2));
/// assert!(filter.allows("mlx5_2", 2) && filter.allows("mlx5_21", 1));
/// let filter: HcaFilter = "^=mlx5_3,mlx5_4".parse()?;
/// assert!(!filter.allows("mlx5_3", 1) && filter.allows("mlx5_31", 1));
/// assert_eq!(filter.to_string(), "^=mlx5_3,mlx5_4");
/// # Ok::<(), ferroccl_proxy::net::HcaFilterError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HcaFilter {
    /// Whether what is listed may not be used, instead of being all that may.
    all_but: bool,
    /// Whether names are whole ones.
    exact: bool,
    devices: Vec<(String, Option<u8>)>,
}

/// A list that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaFilterError {
    entry: String,
    reason: &'static str,
}

impl fmt::Display for HcaFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.entry, self.reason)
    }
}

impl std::error::Error for HcaFilterError {}

impl HcaFilter {
    /// What may be written, in words.
    pub const FORM: &'static str =
        "^ or nothing, = or nothing, then a list of DEVICE or DEVICE:PORT; without = prefixes";

    /// Whether a port of a device may be used.
    #[must_use]
    pub fn allows(&self, device: &str, port: u8) -> bool {
        if self.devices.is_empty() {
            return true;
        }
        let listed = self.devices.iter().any(|(name, only)| {
            let named = if self.exact { device == name } else { device.starts_with(name) };
            named && only.is_none_or(|only| only == port)
        });
        listed != self.all_but
    }
}

impl FromStr for HcaFilter {
    type Err = HcaFilterError;

    fn from_str(text: &str) -> Result<HcaFilter, HcaFilterError> {
        let error = |entry: &str, reason| HcaFilterError { entry: entry.to_owned(), reason };
        let (all_but, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
        let (exact, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
        let mut devices = Vec::new();
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, port) = match entry.split_once(':') {
                None => (entry, None),
                Some((name, port)) => {
                    let port = port.parse().ok().filter(|&port| port > 0);
                    (name, Some(port.ok_or_else(|| error(entry, "has no port from 1 to 255"))?))
                }
            };
            if name.is_empty() || name.starts_with(['^', '=']) {
                return Err(error(entry, "has no name"));
            }
            devices.push((name.to_owned(), port));
        }
        if devices.is_empty() {
            return Err(error(text, "names no device"));
        }
        Ok(HcaFilter { all_but, exact, devices })
    }
}

impl fmt::Display for HcaFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.all_but { "^" } else { "" })?;
        f.write_str(if self.exact { "=" } else { "" })?;
        for (i, (name, port)) in self.devices.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{name}")?;
            port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
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
        let error = |text: &str| text.parse::<HcaFilter>().unwrap_err().to_string();
        assert_eq!(error(""), "\"\" names no device");
        assert_eq!(error("^="), "\"^=\" names no device");
        assert_eq!(error("mlx5_0:0"), "\"mlx5_0:0\" has no port from 1 to 255");
        assert_eq!(error("a,mlx5_0:x"), "\"mlx5_0:x\" has no port from 1 to 255");
        assert_eq!(error("a,:1"), "\":1\" has no name");
        assert_eq!(error("=^a"), "\"^a\" has no name");
    }

    #[test]
    fn everything_is_allowed_without_a_list() {
        assert!(HcaFilter::default().allows("rxe0", 1));
        let ports: HcaFilter = "^a:1".parse().unwrap();
        assert!(!ports.allows("a0", 1) && ports.allows("a0", 2) && ports.allows("b", 1));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(text in "\\^?=?[a-z0-9_]{1,5}(:[1-9])?(,[a-z0-9_]{1,5}(:[1-9])?){0,3}") {
            let filter: HcaFilter = text.parse().unwrap();
            prop_assert_eq!(filter.to_string(), text);
        }

        #[test]
        fn no_text_upsets_it(text in "[a-z:,^=0-9 ]{0,20}") {
            let _ = text.parse::<HcaFilter>();
        }
    }
}
