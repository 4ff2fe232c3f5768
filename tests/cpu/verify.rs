//! The protocols in every way that small calls can go: right as they are, and wrong with any order relaxed that they rely on, or any
//! rule left out.

use ferroccl::conformance::{Bounds, ProtocolTests, Verification, VerifiedCalls};
use ferroccl::device::orders::{self, Published, Side};
use ferroccl::device::prims::{Correct, Ll, Ll128, Protocol, Rules, Simple};
use ferroccl::runtime::cpu::Violation;

/// What was found, of everything that is tried usually.
fn usual<P: Protocol>(weakened: Option<(Published, Side)>) -> [Verification; 2] {
    Bounds::USUAL.map(|calls| {
        let found = ProtocolTests::of::<P>().verify(&Bounds::of(calls), weakened);
        found.unwrap_or_else(|error| panic!("{calls:?}: {error}"))
    })
}

fn is_right<P: Protocol>(bounds: Bounds) {
    let found = ProtocolTests::of::<P>().verify(&bounds, None).unwrap();
    println!("{:?}, {bounds}: {:?}", P::ID, found.checked);
    assert!(found.counterexample.is_none(), "{bounds}: {:?}", found.counterexample);
    assert!(found.checked.complete && found.checked.executions > 1, "{bounds}: {found:?}");
}

fn are_right<P: Protocol>() {
    let all_reduces = Bounds::of(VerifiedCalls::AllReduces(1));
    for calls in Bounds::USUAL {
        for wraps in [false, true] {
            let mut bounds = Bounds::of(calls);
            bounds.wraps = wraps;
            is_right::<P>(bounds);
        }
    }
    let mut bounds = Bounds::of(VerifiedCalls::Pipeline(4));
    (bounds.slots, bounds.ranks) = (3, 2);
    is_right::<P>(bounds);
    is_right::<P>(all_reduces);
}

#[test]
fn protocols_are_right_in_every_way() {
    are_right::<Simple<Correct>>();
    are_right::<Ll<Correct>>();
    are_right::<Ll128<Correct>>();
}

#[test]
fn three_ranks_are_right_in_every_way() {
    for calls in [VerifiedCalls::AllReduces(1), VerifiedCalls::Pipeline(2)] {
        let mut bounds = Bounds::of(calls);
        bounds.ranks = 3;
        is_right::<Ll<Correct>>(bounds);
        is_right::<Ll128<Correct>>(bounds);
    }
}

/// Each side of these orders is relied on, and of no others that the kernels use: of LL the credit says nothing about data, as who has
/// a line has read it; and no ring of signatures is full within these bounds.
fn relies_on<P: Protocol>(relied_on: &[Published]) {
    let [all_reduces, pipeline] = usual::<P>(None);
    let mut used = all_reduces.orders;
    used.extend(
        pipeline.orders.iter().filter(|order| !used.contains(order)).copied().collect::<Vec<_>>(),
    );
    for word in relied_on {
        for side in [Side::Release, Side::Acquire] {
            assert!(used.contains(&(*word, side)), "{:?} does not use {word:?} {side:?}", P::ID);
        }
    }
    for order @ (word, side) in used {
        let found = usual::<P>(Some(order));
        let wrong = found.iter().find_map(|found| found.counterexample.as_ref());
        println!("{:?} without the {side:?} of {}: {wrong:?}", P::ID, word.name());
        assert_eq!(wrong.is_some(), relied_on.contains(&word), "{:?}, {word:?} {side:?}", P::ID);
        let Some(wrong) = wrong else { continue };
        assert!(matches!(wrong.wrong, Violation::Race(_)), "{wrong:?}");
        assert!(wrong.explanation.svg().is_some(), "{wrong:?}");
    }
}

#[test]
fn every_order_that_is_relied_on_has_a_counterexample() {
    relies_on::<Simple<Correct>>(&[orders::TAIL, orders::HEAD, orders::PTR]);
    relies_on::<Ll<Correct>>(&[]);
    // The flag's order stands for the assumption that a line arrives whole.
    relies_on::<Ll128<Correct>>(&[orders::LL128_FLAG, orders::HEAD]);
}

macro_rules! broken {
    ($name:ident, $rule:ident) => {
        struct $name;
        impl Rules for $name {
            const $rule: bool = false;
        }
    };
}
broken!(NoCredit, WAIT_FOR_CREDIT);
broken!(OneFlag, CHECK_BOTH_FLAGS);

fn goes_wrong<P: Protocol>() -> Violation {
    let found = usual::<P>(None);
    let wrong = found.into_iter().find_map(|found| found.counterexample);
    println!("{:?}: {wrong:?}", P::ID);
    wrong.expect("a counterexample").wrong
}

#[test]
fn every_rule_has_a_counterexample() {
    let overwritten = goes_wrong::<Simple<NoCredit>>();
    assert!(
        matches!(&overwritten, Violation::Result(what) if what.contains("rank 1")),
        "{overwritten}"
    );
    // The receiver looks when the line is another step's, and will be.
    let missed = goes_wrong::<Ll<NoCredit>>();
    assert!(
        matches!(&missed, Violation::Deadlock(what) if what.contains("an LL line")),
        "{missed}"
    );
    assert!(matches!(goes_wrong::<Ll128<NoCredit>>(), Violation::Race(_)));
    assert!(matches!(goes_wrong::<Ll<OneFlag>>(), Violation::Result(_)));
}

#[test]
fn a_search_that_is_cut_off_says_so() {
    let mut bounds = Bounds::default();
    bounds.most_states = 100;
    let found = ProtocolTests::of::<Ll<Correct>>().verify(&bounds, None).unwrap();
    assert!(
        !found.checked.complete && (100..200).contains(&found.checked.states),
        "{:?}",
        found.checked
    );
    assert!(found.counterexample.is_none());
}

/// Two searches of the same calls are the same.
#[test]
fn a_search_repeats_itself() {
    let [first, second] = [(); 2].map(|()| usual::<Simple<Correct>>(None).map(|v| v.checked));
    assert_eq!(first, second);
}
