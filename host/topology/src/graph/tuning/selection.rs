//! Lists of algorithms and protocols that may be chosen, for each collective: `NCCL_ALGO` and `NCCL_PROTO`.
//!
//! ```text
//! ring,tree                       these, for all collectives
//! ^ll128                          all but these
//! ring;allreduce:tree,ring        the second list is for one collective, the first for the others
//! allreduce:tree                  without a list for all, the others have everything
//! ```
//!
//! The form is that of NCCL from 2.24 on (`parseList` in its tuning.cc): lists are separated by `;`, only the first may
//! be without a collective. What a list leaves for a collective is looked at when that collective is called: that a
//! tree does no all-gather is no error of a list that says `tree`.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId, UnknownName};

/// A set that [`Selection`] selects from: the library's values, and those of other crates.
pub trait Selectable: Copy + PartialEq + Display + FromStr<Err = UnknownName> + 'static {
    /// The library's values.
    const ALL: &'static [Self];

    /// A number of its own, less than 16: the place in [`Selectable::ALL`], or behind it for another crate's.
    fn index(self) -> usize;

    /// The value with this number; another crate's has no name then.
    fn from_index(index: usize) -> Option<Self>;

    /// The value that NCCL knows by another name.
    #[must_use]
    fn alias(_: &str) -> Option<Self> {
        None
    }
}

impl Selectable for ProtocolId {
    const ALL: &'static [Self] = ProtocolId::ALL;

    fn index(self) -> usize {
        self.index()
    }

    fn from_index(index: usize) -> Option<Self> {
        Self::from_index(index as u64)
    }
}

impl Selectable for Algorithm {
    const ALL: &'static [Self] = Algorithm::ALL;

    fn index(self) -> usize {
        self.index()
    }

    fn from_index(index: usize) -> Option<Self> {
        Self::from_index(index as u64)
    }

    /// PAT, parallel aggregated trees, is of Bruck's kind: as many rounds, to ranks at the same distances.
    fn alias(name: &str) -> Option<Self> {
        name.eq_ignore_ascii_case("PAT").then_some(Algorithm::Bruck)
    }
}

/// Those that lists can be for. A barrier is an all-reduce of one byte and has no list of its own.
const COLLECTIVES: [Collective; 7] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::SendRecv,
    Collective::AllToAll,
];

/// For each collective some values of a closed set, at least one.
///
/// ```
/// use ferroccl_topology::graph::tuning::{Algorithm, Collective, Selection};
///
/// let algorithms = Selection::parse("ring;allreduce:tree,pat", &[])?;
/// assert!(algorithms.allows(Collective::AllReduce, Algorithm::Tree));
/// assert!(!algorithms.allows(Collective::Broadcast, Algorithm::Tree));
/// assert!(algorithms.allows(Collective::Broadcast, Algorithm::Ring));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Selection<T> {
    /// For the collectives that have no list of their own; `None` is everything. Bit `i` is value `i` of the set.
    general: Option<u16>,
    /// By place in [`COLLECTIVES`].
    of: [Option<u16>; COLLECTIVES.len()],
    set: PhantomData<T>,
}

impl<T: Selectable> Default for Selection<T> {
    fn default() -> Self {
        Self::all()
    }
}

/// From values that may be chosen for every collective.
impl<T: Selectable> FromIterator<T> for Selection<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let general = values.into_iter().fold(0, |bits, value| bits | Self::bit(value));
        Selection { general: Some(general), ..Self::all() }
    }
}

impl<T: Selectable> Selection<T> {
    /// Everything, for every collective.
    #[must_use]
    pub fn all() -> Self {
        Selection { general: None, of: [None; COLLECTIVES.len()], set: PhantomData }
    }

    /// One value, for every collective.
    #[must_use]
    pub fn only(value: T) -> Self {
        [value].into_iter().collect()
    }

    /// Whether `value` may be chosen for `collective`.
    #[must_use]
    pub fn allows(&self, collective: Collective, value: T) -> bool {
        self.list(collective).is_none_or(|list| list & Self::bit(value) != 0)
    }

    /// Whether there is a list for `collective`: its own, or one for all.
    #[must_use]
    pub fn names(&self, collective: Collective) -> bool {
        self.list(collective).is_some()
    }

    /// Which of the library's may be chosen for `collective`, in the order of the set.
    pub fn iter(&self, collective: Collective) -> impl Iterator<Item = T> + '_ {
        T::ALL.iter().copied().filter(move |value| self.allows(collective, *value))
    }

    fn list(&self, collective: Collective) -> Option<u16> {
        let collective = match collective {
            Collective::Barrier => Collective::AllReduce,
            other => other,
        };
        let own = COLLECTIVES.iter().position(|c| *c == collective).and_then(|i| self.of[i]);
        own.or(self.general)
    }

    fn bit(value: T) -> u16 {
        u32::try_from(value.index()).ok().and_then(|i| 1u16.checked_shl(i)).unwrap_or(0)
    }

    /// The bits of the library's values.
    fn every() -> u16 {
        T::ALL.iter().fold(0, |bits, value| bits | Self::bit(*value))
    }

    /// One list, without its collective.
    fn read_list(text: &str, elsewhere: &[&'static str], own: &[T]) -> Result<u16, String> {
        let (all_but, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
        let mut named = 0;
        for name in list.split(',').map(str::trim) {
            let of_another = || own.iter().copied().find(|o| has_name(o, name));
            match name.parse::<T>() {
                Ok(value) => named |= Self::bit(value),
                Err(unknown) => match T::alias(name).or_else(of_another) {
                    Some(value) => named |= Self::bit(value),
                    None if elsewhere.iter().any(|e| e.eq_ignore_ascii_case(name)) => {}
                    None if own.is_empty() => return Err(format!("\"{name}\": {unknown}")),
                    None => {
                        return Err(format!(
                            "\"{name}\": {unknown} {}",
                            join(own).replace(',', " ")
                        ));
                    }
                },
            }
        }
        let all = own.iter().fold(Self::every(), |bits, value| bits | Self::bit(*value));
        let left = if all_but { all & !named } else { named };
        if left == 0 {
            return Err(format!("\"{text}\" leaves nothing to choose"));
        }
        Ok(left)
    }

    fn show_list(list: u16) -> String {
        let values = (0..u16::BITS as usize).filter(|i| list >> i & 1 == 1);
        join(&values.filter_map(T::from_index).collect::<Vec<_>>())
    }
}

/// A collective by our name or NCCL's: `all_reduce`, `AllReduce`.
fn collective(name: &str) -> Result<usize, String> {
    let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
    let found = COLLECTIVES.iter().position(|c| plain(c.name()) == plain(name));
    found.ok_or_else(|| format!("\"{name}\": unknown collective; one of {}", join(&COLLECTIVES)))
}

impl<T: Selectable> Selection<T> {
    /// Reads a text of the form that this module's documentation shows. `elsewhere` are names that a list may also
    /// have, for values that exist in NCCL and not here.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str, elsewhere: &[&'static str]) -> Result<Self, String> {
        Self::parse_with(text, elsewhere, &[])
    }

    /// [`Selection::parse`] that also knows these values of other crates.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::{Collective, ProtocolId, Selection};
    ///
    /// let own = ProtocolId::own(0, "LL64");
    /// let protocols = Selection::parse_with("ll64,simple", &[], &[own])?;
    /// assert!(protocols.allows(Collective::AllReduce, own));
    /// assert!(!protocols.allows(Collective::AllReduce, ProtocolId::Ll));
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse_with(text: &str, elsewhere: &[&'static str], own: &[T]) -> Result<Self, String> {
        let mut all = Self::all();
        for (i, part) in text.split(';').map(str::trim).enumerate() {
            match part.split_once(':') {
                Some((name, list)) => {
                    let at = collective(name.trim())?;
                    all.of[at] = Some(Self::read_list(list.trim(), elsewhere, own)?);
                }
                None if i == 0 => all.general = Some(Self::read_list(part, elsewhere, own)?),
                None => {
                    return Err(format!("\"{part}\": only the first list is for all collectives"));
                }
            }
        }
        Ok(all)
    }

    /// Whether a text has the form of one, whatever its names are.
    #[must_use]
    pub fn has_form(text: &str) -> bool {
        let is_name = |name: &str| {
            let good = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            !name.is_empty() && name.chars().all(good)
        };
        let is_list = |list: &str| {
            let list = list.trim();
            list.strip_prefix('^').unwrap_or(list).split(',').all(|name| is_name(name.trim()))
        };
        text.split(';').map(str::trim).enumerate().all(|(i, part)| match part.split_once(':') {
            Some((name, list)) => collective(name.trim()).is_ok() && is_list(list),
            None => i == 0 && is_list(part),
        })
    }

    /// What may be written, in words.
    #[must_use]
    pub fn form() -> String {
        format!(
            "^ or nothing, then a list of {}; more of them after ;COLLECTIVE: for {}",
            join(T::ALL),
            join(&COLLECTIVES)
        )
    }
}

/// As [`Selection::parse`] reads it.
impl<T: Selectable> Display for Selection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::show_list(self.general.unwrap_or_else(Self::every)))?;
        for (collective, list) in COLLECTIVES.iter().zip(self.of) {
            if let Some(list) = list {
                write!(f, ";{collective}:{}", Self::show_list(list))?;
            }
        }
        Ok(())
    }
}

/// Whether a value has this name, whatever the case.
fn has_name<T: Display>(value: &T, name: &str) -> bool {
    value.to_string().eq_ignore_ascii_case(name)
}

/// `a,b,c`.
fn join<'a, T: Display + 'a>(items: impl IntoIterator<Item = &'a T>) -> String {
    items.into_iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use Algorithm::{Bruck, Chain, Ring, Tree};
    use Collective::{AllGather, AllReduce, Barrier, Broadcast, SendRecv};

    fn read(text: &str) -> Result<Selection<Algorithm>, String> {
        Selection::parse(text, &["NVLSTree"])
    }

    #[test]
    fn lists_are_for_all_collectives_or_for_one() {
        let of = |text: &str, c| read(text).unwrap().iter(c).collect::<Vec<_>>();
        assert_eq!(of("ring,tree", AllGather), [Tree, Ring]);
        assert_eq!(of("RING ; AllReduce : TREE , ring", AllReduce), [Tree, Ring]);
        assert_eq!(of("ring;allreduce:tree,ring", Barrier), [Tree, Ring]);
        assert_eq!(of("ring;allreduce:tree,ring", Broadcast), [Ring]);
        assert_eq!(of("ring;all_gather:pat,nvlstree", AllGather), [Bruck]);
        assert_eq!(of("allgather:bruck", AllReduce), Algorithm::ALL);
        assert!(!read("allgather:bruck").unwrap().names(AllReduce));
        assert!(!of("tree;sendrecv:^chain", SendRecv).contains(&Chain));
        // The last list for a collective counts, as with NCCL.
        assert_eq!(of("broadcast:tree;broadcast:ring", Broadcast), [Ring]);
        let not = read("^tree;allreduce:^ring,pat").unwrap();
        assert!(not.allows(AllGather, Ring) && !not.allows(AllGather, Tree));
        assert!(not.allows(AllReduce, Tree) && !not.allows(AllReduce, Ring));
        assert!(!not.allows(AllReduce, Bruck));
    }

    #[test]
    fn what_is_shown_reads_back() {
        for text in ["ring", "^ring", "ring;allreduce:tree", "allgather:PAT,ring;reduce:^tree"] {
            let read_once = read(text).unwrap();
            let again = read(&read_once.to_string()).unwrap();
            assert_eq!(again.to_string(), read_once.to_string());
            for &c in Collective::ALL {
                assert!(again.iter(c).eq(read_once.iter(c)), "{text}: {c}");
            }
        }
        let json = serde_json::to_string(&read("ring;allreduce:tree").unwrap()).unwrap();
        assert_eq!(serde_json::from_str(&json).ok(), read("ring;allreduce:tree").ok());
    }

    #[test]
    fn nonsense_is_named() {
        for (text, word) in [
            ("ring;tree", "only the first list"),
            ("alltosome:ring", "unknown collective; one of all_reduce,"),
            ("barrier:ring", "unknown collective"),
            ("ring:allreduce", "\"ring\": unknown collective"),
            ("allreduce:", "unknown algorithm"),
            ("allreduce:ring:tree", "\"ring:tree\": unknown algorithm"),
            ("ring;", "only the first list"),
            (";allreduce:ring", "unknown algorithm"),
            ("ring;allreduce:nvlstree", "\"nvlstree\" leaves nothing"),
            ("ring,,tree", "unknown algorithm"),
            ("^", "unknown algorithm"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
