//! What fuzzing gives the proxy's networks, and what must hold: see `fuzz/README.md`. No part of the public interface.

use crate::connection::Hello;
use crate::net::{Faults, HcaFilter, fuzz};

/// What peers say that is no control message: the first message of a connection, handles, subjects, headers.
pub fn hellos(data: &[u8]) {
    if let Ok(hello) = Hello::parse(data) {
        assert_eq!(hello.bytes(), *data);
    }
    fuzz::hellos(data);
}

/// What the ends of a connection over verbs tell each other, in pieces.
#[cfg(feature = "verbs")]
pub fn control(data: &[u8]) {
    crate::net::verbs::fuzz::control(data);
}

/// What a receiver writes into the FIFO of a sender over verbs.
#[cfg(feature = "verbs")]
pub fn fifo(data: &[u8]) {
    crate::net::verbs::fuzz::fifo(data);
}

/// What a sender over sockets sends, in pieces.
pub fn messages(data: &[u8]) {
    crate::net::socket::fuzz::messages(data);
}

/// Lists that the environment has: cards, faults.
pub fn lists(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match text.parse::<HcaFilter>() {
        Ok(filter) => {
            assert_eq!(filter.to_string().parse().as_ref(), Ok(&filter), "{text:?}");
            let _ = (filter.allows("mlx5_0", 1), filter.allows("", 0));
        }
        Err(error) => drop(error.to_string()),
    }
    match text.parse::<Faults>() {
        Ok(faults) => assert_eq!(faults.to_string().parse().as_ref(), Ok(&faults), "{text:?}"),
        Err(error) => drop(error.to_string()),
    }
}

#[cfg(test)]
#[path = "../../fuzz/src/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::seeds;

    #[test]
    fn what_fuzzing_begins_with_passes() {
        seeds::replay(&[
            ("proxy_hellos", super::hellos),
            ("proxy_messages", super::messages),
            ("proxy_lists", super::lists),
        ]);
    }

    #[test]
    #[cfg(feature = "verbs")]
    fn what_fuzzing_of_verbs_begins_with_passes() {
        seeds::replay(&[("proxy_control", super::control), ("proxy_fifo", super::fifo)]);
    }
}
