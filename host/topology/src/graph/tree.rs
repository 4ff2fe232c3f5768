//! Double binary trees: two trees over the same hosts, in which (for an even number of hosts) no host is an inner
//! node of both. Each carries half of the data, so that every host sends and receives about as much as in a ring,
//! in a number of steps that grows with the logarithm of the hosts.
//!
//! The first is the binary tree of in-order numbers: a host's distance to its children is half of the lowest bit
//! that is set in its number, so odd numbers are leaves. Host 0 stands above the root.
//!
//! ```text
//!  0───────────────8                     n = 14, first tree
//!           ┌──────┴──────┐
//!           4             12
//!        ┌──┴──┐       ┌──┴──┐
//!        2     6      10     13
//!       ┌┴┐   ┌┴┐     ┌┴┐
//!       1 3   5 7     9 11
//! ```
//!
//! The second is the same tree with the hosts in another order: mirrored (host `h` takes the place of `n - 1 - h`)
//! when their number is even, so that leaves and inner nodes change places; shifted by one when it is odd.
//!
//! Source: P. Sanders, J. Speck, J. Larsson Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
//! and scan", Parallel Computing 35 (2009); the construction by bits is NCCL's (`src/graph/trees.cc`).

/// A host's place in a tree over `n` hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place {
    /// Its parent, and which of the parent's children it is, 0 or 1; `None` for the root.
    pub parent: Option<(u32, usize)>,
    /// Its children.
    pub children: [Option<u32>; 2],
}

impl Place {
    /// Whether it has children.
    #[must_use]
    pub fn is_inner(&self) -> bool {
        self.children.iter().any(Option::is_some)
    }
}

/// The place of `host` in the first tree over `n` hosts; no relations where `host` is not below `n`.
///
/// ```
/// use ferroccl_topology::graph::tree::first;
///
/// let place = first(14, 12);
/// assert_eq!(place.parent, Some((8, 1)));
/// assert_eq!(place.children, [Some(10), Some(13)]);
/// ```
#[must_use]
pub fn first(n: u32, host: u32) -> Place {
    if host >= n {
        return Place::default();
    }
    if host == 0 {
        // The largest power of two below n is the root of the rest.
        let child = (n > 1).then(|| 1 << (31 - (n - 1).leading_zeros()));
        return Place { parent: None, children: [child, None] };
    }
    let bit = host & host.wrapping_neg();
    // Up: the next bit set and this one cleared; past the end, only cleared, and then on the way to the left.
    let parent = match (host ^ bit) | (bit << 1) {
        up if up < n && bit << 1 != 0 => (up, usize::from(host > up)),
        _ => (host ^ bit, 1),
    };
    // Host 0 has one child.
    let parent = if parent.0 == 0 { (0, 0) } else { parent };
    let half = bit >> 1;
    let left = (half > 0).then(|| host - half);
    // To the right, as far as there are hosts.
    let steps =
        std::iter::successors(Some(half), |step| Some(step >> 1)).take_while(|step| *step > 0);
    let right = steps.filter_map(|step| host.checked_add(step)).find(|right| *right < n);
    Place { parent: Some(parent), children: [left, right] }
}

/// The place of `host` in the second tree over `n` hosts.
///
/// ```
/// use ferroccl_topology::graph::tree::second;
///
/// assert_eq!(second(14, 1).parent, Some((5, 1))); // mirrored: as 12 in the first tree
/// assert_eq!(second(13, 1).parent, None); // shifted: host 0's place
/// ```
#[must_use]
pub fn second(n: u32, host: u32) -> Place {
    if host >= n {
        return Place::default();
    }
    let mirror = |host: u32| n - 1 - host;
    let before = |host: u32| host.checked_sub(1).unwrap_or(n - 1);
    let after = |host: u32| if host == n - 1 { 0 } else { host + 1 };
    let even = n.is_multiple_of(2);
    let (to, from): (&dyn Fn(u32) -> u32, &dyn Fn(u32) -> u32) =
        if even { (&mirror, &mirror) } else { (&before, &after) };
    let place = first(n, to(host));
    Place {
        parent: place.parent.map(|(parent, child)| (from(parent), child)),
        children: place.children.map(|child| child.map(from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every host hangs under one root, relations hold both ways; the depth.
    fn check(n: u32, tree: fn(u32, u32) -> Place) -> u32 {
        let places: Vec<Place> = (0..n).map(|host| tree(n, host)).collect();
        let mut deepest = 0;
        for host in 0..n {
            let place = places[host as usize];
            for (i, child) in place.children.into_iter().enumerate() {
                let Some(child) = child else { continue };
                assert_eq!(
                    places[child as usize].parent,
                    Some((host, i)),
                    "{n}: {host} and {child}"
                );
            }
            let (mut at, mut depth) = (host, 0);
            while let Some((parent, i)) = places[at as usize].parent {
                assert_eq!(places[parent as usize].children[i], Some(at), "{n}: {at}");
                (at, depth) = (parent, depth + 1);
                assert!(depth <= n, "{n}: a cycle at {host}");
            }
            deepest = deepest.max(depth);
        }
        assert_eq!(places.iter().filter(|place| place.parent.is_none()).count(), 1, "{n}");
        deepest
    }

    #[test]
    fn both_trees_span_all_hosts_and_are_shallow() {
        for n in (1..300).chain([1023, 1024, 1025, 3071, 3072, 4097]) {
            for tree in [first, second] {
                let depth = check(n, tree);
                assert!(depth <= 1 + n.next_power_of_two().ilog2(), "{n}: {depth}");
            }
        }
    }

    #[test]
    fn no_host_is_an_inner_node_twice() {
        for n in (2..400).chain([3071, 3072]) {
            let both: Vec<u32> =
                (0..n).filter(|&h| first(n, h).is_inner() && second(n, h).is_inner()).collect();
            // With an odd number one host has to be.
            assert!(both.len() <= (n % 2) as usize, "{n}: {both:?}");
        }
    }

    #[test]
    fn who_is_not_there_has_no_place() {
        for (n, host) in [(0, 0), (1, 1), (5, 7), (u32::MAX, u32::MAX)] {
            assert_eq!(first(n, host), Place::default());
            assert_eq!(second(n, host), Place::default());
        }
        // The largest numbers do not overflow.
        for host in [0, 1 << 31, u32::MAX - 1] {
            let _ = (first(u32::MAX, host), second(u32::MAX, host));
        }
    }
}
