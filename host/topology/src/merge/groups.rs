//! Cards that are named to be merged: `NCCL_NET_FORCE_MERGE`.

use std::fmt;
use std::str::FromStr;

use super::{MOST_CARDS, MergeCard};

/// Groups of cards, each of which becomes one.
///
/// As text, NCCL's form (environment variables, `NCCL_NET_FORCE_MERGE`): groups are separated by semicolons, the cards of a group
/// by commas. A card is its name, with `:PORT` where several ports have it. A group of one card keeps that one from being
/// merged with others.
///
/// ```
/// use ferroccl_topology::merge::MergeGroups;
///
/// let groups: MergeGroups = "mlx5_0,mlx5_1;mlx5_2:1,mlx5_2:2".parse()?;
/// assert_eq!(groups.to_string(), "mlx5_0,mlx5_1;mlx5_2:1,mlx5_2:2");
/// assert!("mlx5_0;mlx5_0".parse::<MergeGroups>().is_err());
/// # Ok::<(), ferroccl_topology::merge::MergeGroupsError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeGroups(Vec<Vec<Named>>);

/// Not such groups.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{entry:?} {reason}")]
pub struct MergeGroupsError {
    entry: String,
    reason: &'static str,
}

/// A card as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: String,
    port: Option<u8>,
}

impl Named {
    fn is(&self, card: &MergeCard) -> bool {
        card.name == self.name && self.port.is_none_or(|port| u32::from(port) == card.port)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl MergeGroups {
    /// What may be written, in words.
    pub const FORM: &'static str =
        "groups of 1 to 4 cards, such as mlx5_0,mlx5_1;mlx5_2:1,mlx5_2:2";

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The groups, by the places of their cards in `cards`.
    pub(super) fn find(&self, cards: &[MergeCard], most: usize) -> Result<Vec<Vec<usize>>, String> {
        let mut taken = vec![false; cards.len()];
        let mut find = |named: &Named| {
            let mut found = (0..cards.len()).filter(|card| named.is(&cards[*card]));
            match (found.next(), found.next()) {
                (Some(card), None) if std::mem::replace(&mut taken[card], true) => {
                    Err(format!("{named} is there twice"))
                }
                (Some(card), None) => Ok(card),
                (Some(_), Some(_)) => Err(format!("{named} has several ports: NAME:PORT is one")),
                (None, _) => {
                    let names: Vec<&str> = cards.iter().map(|card| card.name.as_str()).collect();
                    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                    Err(format!("there is no card {named}; there are {names}"))
                }
            }
        };
        let mut groups = Vec::with_capacity(self.0.len());
        for group in &self.0 {
            if group.len() > most {
                let n = group.len();
                return Err(format!("{n} cards in one, where the network takes {most} at most"));
            }
            let mut group = group.iter().map(&mut find).collect::<Result<Vec<_>, _>>()?;
            // In the order of the cards, as in NCCL: the first says port and GUID.
            group.sort_unstable();
            groups.push(group);
        }
        Ok(groups)
    }
}

impl FromStr for MergeGroups {
    type Err = MergeGroupsError;

    fn from_str(text: &str) -> Result<Self, MergeGroupsError> {
        let error = |entry: &str, reason| MergeGroupsError { entry: entry.to_owned(), reason };
        let mut groups: Vec<Vec<Named>> = Vec::new();
        for list in text.split(';').map(str::trim).filter(|list| !list.is_empty()) {
            let mut group = Vec::new();
            for entry in list.split(',').map(str::trim) {
                let (name, port) = match entry.split_once(':') {
                    None => (entry, None),
                    Some((name, port)) => {
                        let port = port.parse().ok().filter(|port| *port > 0);
                        let port = port.ok_or_else(|| error(entry, "has no port from 1 to 255"))?;
                        (name, Some(port))
                    }
                };
                if name.is_empty() {
                    return Err(error(list, "has a card without a name"));
                }
                let named = Named { name: name.to_owned(), port };
                if groups.iter().flatten().chain(&group).any(|other| *other == named) {
                    return Err(error(entry, "is there twice"));
                }
                group.push(named);
            }
            if group.len() > MOST_CARDS {
                return Err(error(list, "has more than 4 cards"));
            }
            groups.push(group);
        }
        if groups.is_empty() {
            return Err(error(text, "names no card"));
        }
        Ok(MergeGroups(groups))
    }
}

impl fmt::Display for MergeGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, group) in self.0.iter().enumerate() {
            f.write_str(if i > 0 { ";" } else { "" })?;
            for (j, named) in group.iter().enumerate() {
                f.write_str(if j > 0 { "," } else { "" })?;
                named.fmt(f)?;
            }
        }
        Ok(())
    }
}
