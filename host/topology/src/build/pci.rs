//! Speed and width of PCI links, from text to bandwidth and back.

use crate::assume::Assume;
use crate::speed;
use crate::xml::{Located, XmlError};

/// Transfers a second of the generations, 10^9.
const GENERATIONS: [f64; 6] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];

/// Lanes of a device that does not say how many; with [`GENERATIONS`]`[2]`, [`speed::PCI_UNKNOWN`].
const USUAL_LANES: u32 = 16;

/// Lanes at most: the widest link that the PCI Express standard has.
pub(crate) const MOST_LANES: u32 = 32;

/// What a device says about the link it hangs by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PciLink {
    /// Transfers a second, 10^9.
    pub(crate) gt_per_s: Option<f64>,
    /// Lanes.
    pub(crate) lanes: Option<u32>,
}

impl PciLink {
    /// `link_speed` and `link_width` of a `<pci>`.
    pub(crate) fn read(at: Located<'_>) -> Result<PciLink, XmlError> {
        let gt_per_s = match at.text("link_speed") {
            None => None,
            Some(text) => gt_per_s(text).map_err(|reason| at.wrong("link_speed", reason))?,
        };
        let lanes = match at.number::<u32>("link_width", 0..=u32::MAX)? {
            Some(lanes) if lanes > MOST_LANES => {
                return Err(at.wrong("link_width", format!("more than {MOST_LANES} lanes")));
            }
            lanes => lanes.filter(|lanes| *lanes > 0),
        };
        Ok(PciLink { gt_per_s, lanes })
    }

    fn known(self, assume: &Assume) -> (f64, u32) {
        let assumed = assume
            .pci
            .and_then(|generation| GENERATIONS.get(generation.checked_sub(1)? as usize).copied());
        let gt_per_s = self.gt_per_s.or(assumed).unwrap_or(GENERATIONS[2]);
        (gt_per_s, self.lanes.unwrap_or(USUAL_LANES))
    }

    /// Its bandwidth in 10^9 bytes a second each way; what is not known as assumed, else as in NCCL: generation 3,
    /// 16 lanes.
    pub(crate) fn bw(self, assume: &Assume) -> f64 {
        let (gt_per_s, lanes) = self.known(assume);
        speed::pci(gt_per_s, lanes).unwrap_or(speed::PCI_UNKNOWN)
    }

    /// Speed in 10^6 bits a second of the fastest port that such a link is made for.
    pub(crate) fn port_mbits(self, assume: &Assume) -> f64 {
        // Ethernet's and InfiniBand's speeds. A port takes the whole link: 100G has 16 lanes of 8 GT/s.
        const PORTS: [f64; 8] = [800e3, 400e3, 200e3, 100e3, 50e3, 25e3, 10e3, 1e3];
        let (gt_per_s, lanes) = self.known(assume);
        let raw = gt_per_s * 1000.0 * f64::from(lanes);
        PORTS.into_iter().find(|port| *port <= raw).unwrap_or(PORTS[PORTS.len() - 1])
    }
}

/// Reads "16 GT/s", "16.0 GT/s PCIe", or a speed that is not known.
pub(crate) fn gt_per_s(text: &str) -> Result<Option<f64>, String> {
    let text = text.trim();
    if text.is_empty() || text.starts_with("Unknown") {
        return Ok(None);
    }
    let number = text.strip_suffix("PCIe").unwrap_or(text).trim_end();
    let number = number.strip_suffix("GT/s").unwrap_or(number).trim_end();
    let known = |speed: f64| GENERATIONS.into_iter().find(|known| (known - speed).abs() < 0.01);
    match number.parse::<f64>().ok().and_then(known) {
        Some(speed) => Ok(Some(speed)),
        None => Err("not the speed of a PCI generation, 2.5 to 64 GT/s".to_owned()),
    }
}

/// `link_speed` and `link_width` that give a bandwidth, if any do: the usual widths first.
pub(crate) fn link_of(bw: f64) -> Option<(String, u32)> {
    let usual = [16, 8, 4, 2, 1].into_iter();
    let lanes = usual.chain(1..=MOST_LANES);
    let mut all = lanes.flat_map(|lanes| GENERATIONS.map(|speed| (speed, lanes)));
    let (gt_per_s, lanes) =
        all.find(|(gt_per_s, lanes)| speed::pci(*gt_per_s, *lanes) == Some(bw))?;
    Some((format!("{gt_per_s:.1} GT/s PCIe"), lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_linux_and_nccl_write_them() {
        for (text, speed) in [
            ("16 GT/s", Some(16.0)),
            ("16.0 GT/s PCIe", Some(16.0)),
            ("2.5 GT/s PCIe", Some(2.5)),
            ("Unknown", None),
            ("Unknown speed", None),
            (" ", None),
        ] {
            assert_eq!(gt_per_s(text), Ok(speed), "{text:?}");
        }
        for text in ["7 GT/s", "-8 GT/s", "NaN", "inf GT/s", "8 GB/s", "1e999 GT/s"] {
            assert!(gt_per_s(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_16_lanes_of_generation_3() {
        let unknown = PciLink { gt_per_s: None, lanes: None };
        assert_eq!(unknown.bw(&Assume::default()), speed::PCI_UNKNOWN);
        assert_eq!(unknown.bw(&"pci=5".parse().unwrap()), 48.0);
        let half = PciLink { lanes: Some(8), ..unknown };
        assert_eq!(half.bw(&Assume::default()), 6.0);
    }

    #[test]
    fn a_port_is_as_fast_as_its_link_is_made_for() {
        for (speed, lanes, port) in
            [(8.0, 16, 100e3), (16.0, 16, 200e3), (32.0, 16, 400e3), (8.0, 4, 25e3), (2.5, 1, 1e3)]
        {
            let link = PciLink { gt_per_s: Some(speed), lanes: Some(lanes) };
            assert_eq!(link.port_mbits(&Assume::default()), port, "{speed} x {lanes}");
        }
    }

    #[test]
    fn every_bandwidth_is_written_as_a_link_that_has_it() {
        for lanes in 1..=MOST_LANES {
            for gt in GENERATIONS {
                let bw = speed::pci(gt, lanes).unwrap();
                let (text, width) = link_of(bw).unwrap();
                assert_eq!(speed::pci(gt_per_s(&text).unwrap().unwrap(), width), Some(bw));
            }
        }
        assert_eq!(link_of(12.0), Some(("8.0 GT/s PCIe".to_owned(), 16)));
        assert_eq!(link_of(13.7), None);
    }
}
