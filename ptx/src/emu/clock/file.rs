//! A machine as a file: by serde, so that the format's crate is the reader's choice.
//!
//! ```text
//! { "version": 1, "name": "h100-nvlink", "gpus": 8, "sms": 132, "capability": 90,
//!   "timing": { "clock_mhz": { "value": 1980, "source": "..." }, "alu_cycles": { "value": 4, "source": "..." }, ... } }
//! ```
//!
//! All figures are there, and nothing else: what is missing, unknown or makes no sense is an error that names it. `capability`, the
//! compute capability times ten, may be missing; then it is 90.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::models::{ASSUMED, MachineModel, Source};
use super::timing::Timing;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    version: u32,
    name: Cow<'a, str>,
    gpus: u32,
    sms: u32,
    #[serde(default = "capability")]
    capability: u32,
    timing: Figures<'a>,
}

/// By name; in the order of [`Timing::FIGURES`] where it is written.
struct Figures<'a>(BTreeMap<Cow<'a, str>, Figure<'a>>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure<'a> {
    value: u32,
    #[serde(default = "assumed")]
    source: Cow<'a, str>,
}

/// That of a file which does not say it: its figures replace those of an H100.
fn capability() -> u32 {
    90
}

fn assumed<'a>() -> Cow<'a, str> {
    Cow::Borrowed(ASSUMED)
}

impl Serialize for Figures<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let in_order = Timing::FIGURES.iter();
        serializer.collect_map(in_order.filter_map(|(name, _)| self.0.get_key_value(*name)))
    }
}

impl<'de> Deserialize<'de> for Figures<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(Figures)
    }
}

/// The most GPUs and SMs that a machine may have: more are a slip of the hand.
const MOST: u32 = 4096;

/// What a value has to be for a figure, where it is not.
fn wrong(name: &str, value: u32) -> Option<String> {
    let rate = ["_mhz", "_gbs", "_bytes", "_mib"].iter().any(|unit| name.ends_with(unit));
    let most = 1_000_000;
    match value {
        0 if rate => Some(format!("timing.{name} is 0; at least 1 is possible")),
        value if value > most => {
            Some(format!("timing.{name} is {value}; at most {most} is possible"))
        }
        _ => None,
    }
}

impl MachineModel {
    /// The version of the file's format.
    pub const VERSION: u32 = 1;

    fn of(file: File<'_>) -> Result<Self, String> {
        let File { version, name, gpus, sms, capability, timing: Figures(mut figures) } = file;
        if version != Self::VERSION {
            return Err(format!("version is {version}; {} is understood", Self::VERSION));
        }
        for (field, value) in [("gpus", gpus), ("sms", sms)] {
            if value == 0 || value > MOST {
                return Err(format!("{field} is {value}; 1 to {MOST} are possible"));
            }
        }
        let mut timing = super::models::H100_NVLINK;
        let mut sources = Vec::new();
        for (name, _) in Timing::FIGURES {
            let Figure { value, source } =
                figures.remove(*name).ok_or_else(|| format!("timing.{name} is missing"))?;
            if let Some(wrong) = wrong(name, value) {
                return Err(wrong);
            }
            if let Some(place) = timing.figure_mut(name) {
                *place = value;
            }
            if source != ASSUMED {
                let text = Cow::Owned(source.into_owned());
                sources.push(Source { figure: Cow::Borrowed(name), text });
            }
        }
        if let Some((unknown, _)) = figures.pop_first() {
            return Err(format!("timing.{unknown} is no figure of a machine"));
        }
        let (name, sources) = (Cow::Owned(name.into_owned()), Cow::Owned(sources));
        Ok(MachineModel { name, timing, gpus, sms, capability, sources })
    }
}

impl Serialize for MachineModel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let figure = |&(name, _): &(&'static str, &str)| {
            let source = Cow::Borrowed(self.source(name));
            Some((Cow::Borrowed(name), Figure { value: self.timing.figure(name)?, source }))
        };
        let file = File {
            version: Self::VERSION,
            name: Cow::Borrowed(&*self.name),
            gpus: self.gpus,
            sms: self.sms,
            capability: self.capability,
            timing: Figures(Timing::FIGURES.iter().filter_map(figure).collect()),
        };
        file.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MachineModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(File::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(model: &MachineModel) -> String {
        serde_json::to_string_pretty(model).unwrap()
    }

    #[test]
    fn a_machine_is_the_same_after_a_file() {
        for model in MachineModel::ALL {
            let read: MachineModel = serde_json::from_str(&text(model)).unwrap();
            assert_eq!((&read.name, read.timing), (&model.name, model.timing));
            let figures = |m: &MachineModel| (m.gpus, m.sms, m.capability);
            assert_eq!(figures(&read), figures(model));
            for (figure, _) in Timing::FIGURES {
                assert_eq!(read.source(figure), model.source(figure), "{figure}");
            }
            assert_eq!(text(&read), text(model));
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        let right = text(&MachineModel::ALL[1]);
        for (from, to, error) in [
            ("\"version\": 1", "\"version\": 2", "version is 2; 1 is understood"),
            ("\"gpus\": 8", "\"gpus\": 0", "gpus is 0"),
            ("\"sms\": 132", "\"sms\": 132, \"colour\": 1", "unknown field `colour`"),
            ("\"peer_ns\"", "\"peer_us\"", "timing.peer_ns is missing"),
            (
                "\"timing\": {",
                "\"timing\": { \"x_ns\": { \"value\": 1 },",
                "timing.x_ns is no figure",
            ),
            ("\"value\": 1980", "\"value\": 0", "timing.clock_mhz is 0"),
            ("\"value\": 1980", "\"value\": -1", "invalid value: integer `-1`"),
            ("\"value\": 1980", "\"value\": 4000000000", "timing.clock_mhz is 4000000000"),
            ("\"value\": 1980", "\"value\": 1980, \"unit\": 1", "unknown field `unit`"),
        ] {
            let wrong = right.replacen(from, to, 1);
            assert_ne!(wrong, right, "{from}");
            let found = serde_json::from_str::<MachineModel>(&wrong).unwrap_err().to_string();
            assert!(found.contains(error), "{from} -> {to}: {found}");
        }
    }

    #[test]
    fn what_has_no_source_is_assumed() {
        let right = text(&MachineModel::ALL[0]);
        let source = format!(",\n      \"source\": {:?}", MachineModel::ALL[0].source("clock_mhz"));
        let without = right.replacen(&source, "", 1);
        assert_ne!(without, right);
        let read: MachineModel = serde_json::from_str(&without).unwrap();
        assert_eq!(read.source("clock_mhz"), ASSUMED);
    }
}
