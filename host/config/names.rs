//! Lists of algorithms and protocols in settings, some of whose names may be of other crates.

use std::ops::Deref;

use super::{Config, Setting};
use crate::error::{Error, Result};
use crate::registry::Registry;
use ferroccl_topology::graph::tuning::{Selectable, Selection};

/// `NCCL_ALGO` or `NCCL_PROTO`. A name that the library does not know may be that of a registered algorithm or protocol: who knows the
/// registry looks it up ([`Config::from_env_with`](super::Config::from_env_with)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names<T: Selectable> {
    /// As it was written.
    text: String,
    /// Names that it may also have, for values that exist elsewhere and not here.
    elsewhere: Vec<&'static str>,
    /// What it says, as far as its names are known.
    selection: Selection<T>,
    /// What is wrong with a name that is not known.
    unknown: Option<String>,
}

impl<T: Selectable> Names<T> {
    /// Everything.
    pub(crate) fn all() -> Self {
        let (text, elsewhere) = (String::new(), Vec::new());
        Names { text, elsewhere, selection: Selection::all(), unknown: None }
    }

    /// Reads it again, with the names of values of other crates.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn know(&mut self, own: &[T]) -> std::result::Result<(), String> {
        if !self.text.is_empty() && (self.unknown.is_some() || !own.is_empty()) {
            self.selection = Selection::parse_with(&self.text, &self.elsewhere, own)?;
            self.unknown = None;
        }
        Ok(())
    }
}

impl<T: Selectable> Deref for Names<T> {
    type Target = Selection<T>;

    fn deref(&self) -> &Selection<T> {
        &self.selection
    }
}

impl<T: Selectable> std::fmt::Display for Names<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Names of other crates are only in the text.
        let has_own = Selection::<T>::parse(&self.text, &self.elsewhere).is_err();
        if has_own && !self.text.is_empty() {
            return f.write_str(&self.text);
        }
        self.selection.fmt(f)
    }
}

impl<T: Selectable> Setting for Names<T> {
    type Legal = [&'static str];

    fn read(text: &str, elsewhere: &Self::Legal) -> std::result::Result<Self, String> {
        let (selection, unknown) = match Selection::parse(text, elsewhere) {
            Ok(selection) => (selection, None),
            // Whether there are such names is for whoever knows the registry to say.
            Err(why) if Selection::<T>::has_form(text) => (Selection::all(), Some(why)),
            Err(why) => return Err(why),
        };
        let (text, elsewhere) = (text.to_owned(), elsewhere.to_vec());
        Ok(Names { text, elsewhere, selection, unknown })
    }

    fn describe(_: &Self::Legal) -> String {
        Selection::<T>::form()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Config {
    /// [`Config::from_env`], with the names that a registry has: where a list of `NCCL_ALGO` or `NCCL_PROTO` has a name that neither it
    /// nor the library knows, that is an error.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    ///
    /// ```
    /// use ferroccl::{Registry, config::Config};
    ///
    /// let config = Config::from_env_with(&Registry::new())?; // NCCL_PROTO has no names but the library's
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn from_env_with(registry: &Registry) -> Result<Self> {
        let mut config = Self::from_env()?;
        config.know(registry)?;
        Ok(config)
    }

    /// Looks up the names of protocols and algorithms of other crates.
    pub(super) fn know(&mut self, registry: &Registry) -> Result<()> {
        fn know<T: Selectable>(name: &str, names: &mut Names<T>, own: &[T]) -> Result<()> {
            let value = names.to_string();
            names.know(own).map_err(|reason| Error::InvalidSetting {
                name: name.to_owned(),
                value,
                reason: format!("{reason}; legal: {}", Names::<T>::describe(&[])),
            })
        }
        know("NCCL_PROTO", &mut self.proto, &registry.protocols().collect::<Vec<_>>())?;
        know("NCCL_ALGO", &mut self.algo, &registry.algorithms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroccl_device::abi::{Collective, ProtocolId};

    const LL64: ProtocolId = ProtocolId::own(0, "LL64");

    #[test]
    fn names_of_other_crates_are_looked_up_when_they_are_known() {
        let mut names = Names::<ProtocolId>::read("ll64;broadcast:simple", &[]).unwrap();
        let unknown = names.clone().know(&[]).unwrap_err();
        assert_eq!(unknown, "\"ll64\": unknown protocol; one of LL LL128 Simple");
        let other = [ProtocolId::own(1, "Other")];
        let unknown = names.clone().know(&other).unwrap_err();
        assert_eq!(unknown, "\"ll64\": unknown protocol; one of LL LL128 Simple Other");
        names.know(&[LL64]).unwrap();
        assert!(names.allows(Collective::AllReduce, LL64));
        assert!(!names.allows(Collective::AllReduce, ProtocolId::Ll));
        assert!(!names.allows(Collective::Broadcast, LL64));
        assert_eq!(names.to_string(), "ll64;broadcast:simple");
        let mut not = Names::<ProtocolId>::read("^ll", &[]).unwrap();
        not.know(&[LL64]).unwrap();
        assert!(not.allows(Collective::AllReduce, LL64), "^ll is all but LL");
    }

    #[test]
    fn what_is_no_list_of_names_is_refused_at_once() {
        for text in ["ll64;", "ll,,ll64", "ll64;alltosome:ll", "ll 64", "a:b:c"] {
            assert!(Names::<ProtocolId>::read(text, &[]).is_err(), "{text}");
        }
    }
}
