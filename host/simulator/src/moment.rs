//! Points in time: numbers, or functions of the times at which ranks start.
//!
//! Where each connection has its share of the links, a run does two things with points in time: it takes the later one of two, and the one
//! that is some time after another. So a block ends at the latest of all ranks' starts, each with the time of the longest way of waiting from
//! that start to this end. (In the max-plus algebra a run is a linear map.) Where one host stands for all, these ways are as long between any
//! two hosts that are as far apart. A [`Reach`] has their lengths, by the distance from the rank that starts to what happens:
//!
//! ```text
//! us after the start
//!   │          ╭●─╮
//!   │       ╭──╯  ╰────╮         on the rank's own host: all of its steps
//!   │    ╭──╯          ╰────╮    on later hosts: the data of its first steps, and what is left to do then
//!   │  ──╯                  ╰─   on earlier hosts: credit for their slots, and what is left to do then
//!   └───────────┼─────────────► hosts
//!    earlier    0        later
//! ```
//!
//! The curve also rises towards later hosts where a step takes longer from rank to rank than on one.
//!
//! Source: F. Baccelli, G. Cohen, G. J. Olsder, J.-P. Quadrat, *Synchronization and Linearity* (1992).

use std::collections::VecDeque;

/// A point in time in a run.
pub(crate) trait Moment: Clone + Default {
    /// `us` microseconds after it.
    fn after(self, us: f64) -> Self;

    /// The later one.
    fn or_later(&mut self, other: &Self);

    /// The same as it is seen so many hosts further on around the ring, where one host stands for all.
    fn seen_on(self, hosts: i32) -> Self;
}

impl Moment for f64 {
    fn after(self, us: f64) -> f64 {
        self + us
    }

    fn or_later(&mut self, other: &f64) {
        *self = self.max(*other);
    }

    fn seen_on(self, _: i32) -> f64 {
        self
    }
}

/// Corners that differ less from the line between their neighbours are none, in microseconds.
const FLAT: f64 = 1e-8;

/// How long after a rank's start something happens at the soonest, by the hosts from there to where it happens. Between its corners it is a
/// straight line, and it is concave: the least such function that is nowhere too low. Ways can be mixed of parts of others, so that it is
/// seldom too high, and by little. Without corners, what happens waits for none of these starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reach {
    /// Hosts and microseconds, to which those below are added, by hosts.
    corners: Vec<(i32, f64)>,
    hosts: i32,
    us: f64,
}

impl Reach {
    /// The start itself.
    pub(crate) fn start() -> Self {
        Reach { corners: vec![(0, 0.0)], hosts: 0, us: 0.0 }
    }

    fn corners(&self) -> impl Iterator<Item = (i32, f64)> + '_ {
        self.corners.iter().map(|(hosts, us)| (hosts + self.hosts, us + self.us))
    }

    /// For each host `h` of a ring, moves `latest[h]` to the latest start with its reach, if that is later. `starts[h]` is the start on host `h`.
    ///
    /// Along a side of the function it is the maximum over a window that slides around the ring.
    pub(crate) fn delay(&self, starts: &[f64], latest: &mut [f64]) {
        let all = starts.len() as i64;
        let corners: Vec<(i64, f64)> = self.corners().map(|(d, us)| (d.into(), us)).collect();
        let ends = corners.iter().zip(corners.iter().skip(1).chain(corners.last()));
        let mut window: VecDeque<(i64, f64)> = VecDeque::new();
        for (&(mut near, us), &(mut far, at_far)) in ends {
            let slope = if far > near { (at_far - us) / (far - near) as f64 } else { 0.0 };
            let line = |d: i64, from: i64| us + slope * (d - from) as f64;
            let first = near;
            // Of one start at several distances, a ring apart, the latest counts.
            if slope > 0.0 {
                near = near.max(far - all + 1);
            } else {
                far = far.min(near + all - 1);
            }
            window.clear();
            for at in -far..all - near {
                // The host `at` as those see it that are `near` to `far` hosts behind it.
                let key = starts[at.rem_euclid(all) as usize] - slope * at as f64;
                while window.back().is_some_and(|(_, other)| *other <= key) {
                    window.pop_back();
                }
                window.push_back((at, key));
                let host = at + near;
                while window.front().is_some_and(|(other, _)| host - other > far) {
                    window.pop_front();
                }
                if let (0.., Some((from, _))) = (host, window.front()) {
                    let start = starts[from.rem_euclid(all) as usize];
                    let ends = start + line(host - from, first);
                    let latest = &mut latest[host as usize];
                    *latest = latest.max(ends);
                }
            }
        }
    }
}

impl Moment for Reach {
    fn after(mut self, us: f64) -> Self {
        self.us += us;
        self
    }

    fn seen_on(mut self, hosts: i32) -> Self {
        self.hosts += hosts;
        self
    }

    fn or_later(&mut self, other: &Self) {
        if other.corners.is_empty() {
            return;
        }
        if self.corners.is_empty() {
            self.clone_from(other);
            return;
        }
        let mut hull: Vec<(i32, f64)> =
            Vec::with_capacity(self.corners.len() + other.corners.len());
        let (mut one, mut two) = (self.corners().peekable(), other.corners().peekable());
        while let Some(corner) = match (one.peek(), two.peek()) {
            (Some(a), Some(b)) if a.0 == b.0 => {
                let us = a.1.max(b.1);
                one.next();
                two.next().map(|(hosts, _)| (hosts, us))
            }
            (Some(a), Some(b)) if a.0 > b.0 => two.next(),
            (None, _) => two.next(),
            _ => one.next(),
        } {
            while let [.., a, b] = hull[..] {
                let part = f64::from(b.0 - a.0) / f64::from(corner.0 - a.0);
                if b.1 > a.1 + part * (corner.1 - a.1) + FLAT {
                    break;
                }
                hull.pop();
            }
            hull.push(corner);
        }
        drop((one, two));
        *self = Reach { corners: hull, hosts: 0, us: 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Reach {
        /// Its value, by a search for the side: `None` where it has none.
        fn at(&self, hosts: i32) -> Option<f64> {
            let corners: Vec<_> = self.corners().collect();
            if let Some((_, us)) = corners.iter().find(|corner| corner.0 == hosts) {
                return Some(*us);
            }
            let side = corners.windows(2).find(|side| side[0].0 < hosts && hosts < side[1].0)?;
            let part = f64::from(hosts - side[0].0) / f64::from(side[1].0 - side[0].0);
            Some(side[0].1 + part * (side[1].1 - side[0].1))
        }
    }

    fn reach() -> impl Strategy<Value = Reach> {
        prop::collection::vec((-20i32..20, 0.0f64..100.0), 0..8).prop_map(|all| {
            let mut reach = Reach::default();
            for (hosts, us) in all {
                reach.or_later(&Reach::start().after(us).seen_on(hosts));
            }
            reach
        })
    }

    proptest! {
        /// The later one of two is nowhere less than either, is one of them at each of its corners, and is concave.
        #[test]
        fn the_later_one_of_two_is_their_concave_hull(a in reach(), b in reach(), by in -5i32..5, us in 0.0f64..50.0) {
            let b = b.after(us).seen_on(by);
            let mut both = a.clone();
            both.or_later(&b);
            for hosts in -30..30 {
                let most = [a.at(hosts), b.at(hosts)].into_iter().flatten().fold(f64::MIN, f64::max);
                prop_assert!(both.at(hosts).unwrap_or(f64::MIN) >= most - 1e-6, "{hosts}: {both:?}");
            }
            for (hosts, us) in both.corners() {
                let most = [a.at(hosts), b.at(hosts)].into_iter().flatten().fold(f64::MIN, f64::max);
                prop_assert!((us - most).abs() < 1e-6, "{hosts}: {us} {most}");
            }
            let corners: Vec<_> = both.corners().collect();
            for three in corners.windows(3) {
                let slope = |i: usize| (three[i + 1].1 - three[i].1) / f64::from(three[i + 1].0 - three[i].0);
                prop_assert!(slope(0) >= slope(1), "{both:?}");
            }
        }

        /// Also where it reaches further than the ring is long.
        #[test]
        fn ranks_end_at_the_latest_of_what_reaches_them(reach in reach(), starts in prop::collection::vec(0.0f64..200.0, 1..30)) {
            let mut latest = vec![f64::MIN; starts.len()];
            reach.delay(&starts, &mut latest);
            for (host, latest) in latest.into_iter().enumerate() {
                let start = |d: i32| starts[(host as i32 - d).rem_euclid(starts.len() as i32) as usize];
                let all = (-30..30).filter_map(|d| Some(start(d) + reach.at(d)?));
                let most = all.fold(f64::MIN, f64::max);
                prop_assert!((latest - most).abs() < 1e-9 * most.abs().max(1.0), "{latest}, not {most}, on host {host}");
            }
        }
    }
}
