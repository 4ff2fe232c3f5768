//! What the lanes of a mask do together: votes, shuffles, matches, reductions.
//!
//! Source: PTX ISA 9.0, 9.7.9.6 `shfl.sync`, 9.7.13.2 `bar.warp.sync`, 9.7.13.6 `vote.sync`, 9.7.13.7 `match.sync`, 9.7.13.8
//! `activemask`, 9.7.13.9 `redux.sync`, 9.7.13.16 `elect.sync`.

use super::alu::Lanes;
use super::fault::{FaultKind, Trouble};
use super::memory::model::lanes;
use super::program::{Program, Shuffle, WarpSync};
use super::warp::Warp;

fn all(truth: bool) -> u32 {
    if truth { u32::MAX } else { 0 }
}

/// Runs it for the lanes of `mask`, all of which are here.
///
/// # Errors
/// A shuffle from a lane that takes no part: what it has is not defined.
pub(crate) fn run(
    warp: &mut Warp,
    program: &Program,
    how: WarpSync,
    mask: u32,
) -> Result<(), Box<Trouble>> {
    match how {
        WarpSync::Barrier => {}
        WarpSync::VoteAll(d, p) => {
            let truth = warp.truth(p) & mask == mask;
            warp.set_predicate(d, all(truth), mask);
        }
        WarpSync::VoteAny(d, p) => {
            let truth = warp.truth(p) & mask != 0;
            warp.set_predicate(d, all(truth), mask);
        }
        WarpSync::VoteUni(d, p) => {
            let true_lanes = warp.truth(p) & mask;
            warp.set_predicate(d, all(true_lanes == mask || true_lanes == 0), mask);
        }
        WarpSync::Ballot(d, p) => {
            let ballot = warp.truth(p) & mask;
            warp.write(d, &[ballot.into(); 32], mask);
        }
        WarpSync::Shuffle { kind, d, valid, a, b, c } => {
            let (values, found, from) =
                shuffle(kind, warp.read(program, a), warp.read(program, b), warp.read(program, c));
            if let Some(lane) = lanes(mask & found).find(|&lane| mask >> from[lane] & 1 == 0) {
                let what = format!("a shuffle from lane {}, which takes no part", from[lane]);
                return Err(Trouble::new(FaultKind::Divergence(what), 1 << lane));
            }
            warp.write(d, &values, mask);
            if let Some(p) = valid {
                warp.set_predicate(p, found, mask);
            }
        }
        WarpSync::MatchAny { d, a } => {
            let values = *warp.read(program, a);
            let mut to = [0; 32];
            for lane in lanes(mask) {
                to[lane] =
                    lanes(mask).filter(|&l| values[l] == values[lane]).fold(0, |m, l| m | 1 << l);
            }
            warp.write(d, &to, mask);
        }
        WarpSync::MatchAll { d, p, a } => {
            let same = warp.uniform(program, a, mask).is_some();
            warp.write(d, &[if same { mask.into() } else { 0 }; 32], mask);
            if let Some(p) = p {
                warp.set_predicate(p, all(same), mask);
            }
        }
        WarpSync::Reduce { run, d, a } => {
            let values = *warp.read(program, a);
            let mut rest = lanes(mask).map(|lane| values[lane]);
            let first = rest.next().unwrap_or(0);
            let total = rest.fold(first, |total, value| {
                let (mut to, zero): (Lanes, Lanes) = ([0; 32], [0; 32]);
                run(&mut to, [&[total; 32], &[value; 32], &zero, &zero]);
                to[0]
            });
            warp.write(d, &[total; 32], mask);
        }
        WarpSync::Elect { d, p } => {
            let leader = mask.trailing_zeros();
            if let Some(d) = d {
                warp.write(d, &[leader.into(); 32], mask);
            }
            warp.set_predicate(p, 1 << leader, mask);
        }
    }
    Ok(())
}

/// The value that each lane gets, whether its source lane was in range, and which that is.
fn shuffle(kind: Shuffle, a: &Lanes, b: &Lanes, c: &Lanes) -> (Lanes, u32, [u8; 32]) {
    let mut to = [0; 32];
    let mut found = 0;
    let mut from = [0; 32];
    for lane in 0..32 {
        let (b, c) = (b[lane] as usize & 31, c[lane] as usize);
        // From the manual's pseudo-code: segments by a mask, and how far a source may lie.
        let (clamp, segment) = (c & 31, c >> 8 & 31);
        let most = lane & segment | clamp & !segment;
        let least = lane & segment;
        let (source, ok) = match kind {
            Shuffle::Up => (lane.wrapping_sub(b), lane as isize - b as isize >= most as isize),
            Shuffle::Down => (lane + b, lane + b <= most),
            Shuffle::Butterfly => (lane ^ b, (lane ^ b) <= most),
            Shuffle::Index => (least | b & !segment, (least | b & !segment) <= most),
        };
        let source = if ok { source } else { lane };
        to[lane] = a[source & 31];
        from[lane] = (source & 31) as u8;
        found |= u32::from(ok) << lane;
    }
    (to, found, from)
}
