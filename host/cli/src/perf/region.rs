//! Where a rank's data lie, and what must be there after a call.
//!
//! ```text
//! out of place   send: ......│ input │......        recv: guard │ output │ guard
//! in place       recv: guard │ input and output: one holds the other │ guard
//! ```
//!
//! After a call every element of the receiving buffer is one of: a result, an input that no call may change, or what was
//! there before. So a buffer is a list of [`Part`]s, and what no part says is its poison.

use std::cell::OnceCell;
use std::ops::Range;

use super::data::{self, Case, PERIOD, Reference, TestElement};
use super::operation::{Operation, Shape};

/// Elements of a guard zone. Results keep the 256-byte alignment of an allocation, whatever their type.
pub(crate) const GUARD: usize = 256;

/// Where the result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Into another buffer.
    Out,
    /// Over the input.
    In,
}

/// A call as one rank makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) shape: Shape,
    pub(crate) place: Place,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// 0 where there is none.
    pub(crate) root: u32,
}

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// What this rank puts in, from this element on.
    Input(u32, usize),
    /// The reduction, from this element on.
    Reduced(usize),
    /// What was there before any data.
    Untouched,
}

/// A range of a buffer, and what it must be.
pub(crate) type Part = (Range<usize>, Content);

impl Call {
    /// The elements between the guard zones of the receiving buffer.
    pub(crate) fn body(&self) -> usize {
        if self.place == Place::In { self.shape.largest() } else { self.shape.recv }
    }

    /// What is sent, in its buffer.
    pub(crate) fn input(&self) -> Range<usize> {
        let start = if self.place == Place::In { self.offsets().0 } else { 0 };
        GUARD + start..GUARD + start + self.shape.send
    }

    /// What is received, in its buffer.
    pub(crate) fn output(&self) -> Range<usize> {
        let start = if self.place == Place::In { self.offsets().1 } else { 0 };
        GUARD + start..GUARD + start + self.shape.recv
    }

    fn offsets(&self) -> (usize, usize) {
        self.operation.offsets_in_place(self.shape, self.rank)
    }

    /// Whether this rank's input counts.
    pub(crate) fn sends(&self) -> bool {
        let from_root = matches!(self.operation, Operation::Broadcast | Operation::Scatter);
        !from_root || self.rank == self.root
    }

    /// Whether this rank gets anything.
    fn receives(&self) -> bool {
        let to_root = matches!(self.operation, Operation::Reduce | Operation::Gather);
        !to_root || self.rank == self.root
    }

    /// What the receiving buffer's body must be after the call: parts one behind the other.
    pub(crate) fn expected(&self) -> Vec<Part> {
        let Shape { count, send, recv } = self.shape;
        let (me, n) = (self.rank, self.ranks);
        let (input, output) = match self.place {
            Place::In => self.offsets(),
            Place::Out => (0, 0),
        };
        let mut parts: Vec<Part> = match self.operation {
            _ if !self.receives() => vec![(output..output + recv, Content::Untouched)],
            Operation::AllReduce | Operation::Reduce => {
                vec![(0..recv, Content::Reduced(0))]
            }
            Operation::ReduceScatter => {
                vec![(output..output + recv, Content::Reduced(me as usize * count))]
            }
            Operation::Broadcast => vec![(0..recv, Content::Input(self.root, 0))],
            Operation::SendRecv => vec![(0..recv, Content::Input((me + n - 1) % n, 0))],
            Operation::Scatter => {
                let from = Content::Input(self.root, me as usize * count);
                vec![(output..output + recv, from)]
            }
            Operation::AllGather | Operation::Gather | Operation::Hypercube => (0..n)
                .map(|rank| {
                    let start = rank as usize * count;
                    (start..start + count, Content::Input(rank, 0))
                })
                .collect(),
            Operation::AllToAll => (0..n)
                .map(|rank| {
                    let start = rank as usize * count;
                    (start..start + count, Content::Input(rank, me as usize * count))
                })
                .collect(),
        };
        if self.place == Place::In {
            // What is around the result, or in place of it, is what was put in: where anything was.
            let around = |range: Range<usize>| {
                let inside = self.sends() && input <= range.start && range.end <= input + send;
                let content = Content::Input(me, range.start.wrapping_sub(input));
                (range, if inside { content } else { Content::Untouched })
            };
            if !self.receives() {
                let (start, end) = (input, input + send);
                parts =
                    vec![around(0..start), around(start..end), around(end..self.shape.largest())];
            } else {
                let start = parts.first().map_or(0, |part| part.0.start);
                let end = parts.last().map_or(0, |part| part.0.end);
                parts.insert(0, around(0..start));
                parts.push(around(end..self.shape.largest()));
            }
        }
        parts.retain(|(range, _)| !range.is_empty());
        parts
    }
}

/// What ranks put in and what comes out, as often as it is needed.
pub(crate) struct Answers<T> {
    case: Case,
    /// A period of each rank's input; where there are many ranks they are made when they are asked for.
    inputs: Vec<OnceCell<Vec<T>>>,
    reference: OnceCell<Reference<T>>,
}

impl<T: TestElement> Answers<T> {
    pub(crate) fn new(case: Case) -> Self {
        const KEPT: usize = 64;
        let kept = (case.ranks as usize).min(KEPT);
        let inputs = std::iter::repeat_with(OnceCell::new).take(kept).collect();
        Answers { case, inputs, reference: OnceCell::new() }
    }

    /// Gives `use_it` a period of what `rank` puts in.
    pub(crate) fn with_input<R>(&self, rank: u32, use_it: impl FnOnce(&[T]) -> R) -> R {
        match self.inputs.get(rank as usize) {
            Some(kept) => use_it(kept.get_or_init(|| data::inputs(self.case, rank))),
            None => use_it(&data::inputs(self.case, rank)),
        }
    }

    fn reference(&self) -> &Reference<T> {
        self.reference.get_or_init(|| Reference::new(self.case))
    }

    /// How many of `got` are not `content`, of which they begin at element `at`. `poison` is what was there before.
    pub(crate) fn wrong(&self, got: &[T], content: Content, at: usize, poison: &[T]) -> u64 {
        match content {
            Content::Input(rank, start) => {
                self.with_input(rank, |input| in_turns(got, start + at, input, data::different))
            }
            Content::Reduced(start) => {
                let reference = self.reference();
                let judge =
                    |(got, range): (&[T], Range<usize>)| reference.wrong_at(range.start, got);
                periods(got, start + at).map(judge).sum()
            }
            // Whatever the rank and the place, poison is the same all over.
            Content::Untouched => {
                got.chunks(poison.len()).map(|got| data::different(got, poison)).sum()
            }
        }
    }
}

/// Cuts `got`, which begins at element `start` of what repeats, where it begins again: each piece with its place in the
/// period.
fn periods<T>(got: &[T], start: usize) -> impl Iterator<Item = (&[T], Range<usize>)> {
    let first = (PERIOD - start % PERIOD).min(got.len());
    let (head, rest) = got.split_at(first);
    let head = std::iter::once((head, start % PERIOD..start % PERIOD + first));
    head.chain(rest.chunks(PERIOD).map(|piece| (piece, 0..piece.len())))
}

fn in_turns<T>(got: &[T], start: usize, pattern: &[T], judge: fn(&[T], &[T]) -> u64) -> u64 {
    periods(got, start).map(|(got, range)| judge(got, &pattern[range])).sum()
}

#[cfg(test)]
mod tests {
    use ferroccl::{DataType, ReduceOp};

    use super::*;

    fn call(operation: Operation, place: Place, rank: u32, root: u32) -> Call {
        let (ranks, shape) = (4, operation.shape(64, DataType::U8, 4));
        Call { operation, shape, place, rank, ranks, root }
    }

    /// Parts cover the body, one behind the other, whatever is called.
    #[test]
    fn every_element_is_expected_to_be_something() {
        for &operation in Operation::ALL {
            for place in [Place::Out, Place::In] {
                for (rank, root) in [(0, 0), (1, 0), (3, 3), (2, 3)] {
                    let call = call(operation, place, rank, root);
                    let mut at = 0;
                    for (range, _) in call.expected() {
                        assert_eq!(range.start, at, "{call:?}: {:?}", call.expected());
                        at = range.end;
                    }
                    assert_eq!(at, call.body(), "{call:?}");
                }
            }
        }
    }

    #[test]
    fn what_no_call_may_change_is_said() {
        use Content::{Input, Reduced, Untouched};
        let of = |operation, place, rank, root| call(operation, place, rank, root).expected();
        assert_eq!(of(Operation::Reduce, Place::Out, 1, 0), [(0..64, Untouched)]);
        assert_eq!(of(Operation::Reduce, Place::In, 1, 0), [(0..64, Input(1, 0))]);
        assert_eq!(of(Operation::Reduce, Place::In, 0, 0), [(0..64, Reduced(0))]);
        assert_eq!(
            of(Operation::ReduceScatter, Place::In, 1, 0),
            [(0..16, Input(1, 0)), (16..32, Reduced(16)), (32..64, Input(1, 32))]
        );
        assert_eq!(
            of(Operation::Gather, Place::In, 2, 0),
            [(0..32, Untouched), (32..48, Input(2, 0)), (48..64, Untouched)]
        );
        assert_eq!(
            of(Operation::Scatter, Place::In, 2, 0),
            [(0..32, Untouched), (32..48, Input(0, 32)), (48..64, Untouched)]
        );
        assert_eq!(
            of(Operation::Scatter, Place::In, 2, 2),
            [(0..32, Input(2, 0)), (32..48, Input(2, 32)), (48..64, Input(2, 48))]
        );
        assert_eq!(of(Operation::SendRecv, Place::Out, 0, 0), [(0..64, Input(3, 0))]);
        assert_eq!(of(Operation::AllToAll, Place::Out, 3, 0)[1], (16..32, Input(1, 48)));
    }

    /// A part may begin anywhere in the period, and go on into the next.
    #[test]
    fn data_go_on_where_they_repeat() {
        let answers = Answers::<u32>::new(Case { op: ReduceOp::Sum, ranks: 3 });
        let poison = data::poison::<u32>(0, 8);
        let period = |rank| answers.with_input(rank, <[u32]>::to_vec);
        let all: Vec<u32> = (0..3 * PERIOD).map(|i| period(1)[i % PERIOD]).collect();
        for start in [0, 7, PERIOD - 1, PERIOD, PERIOD + 5] {
            let got = &all[start..start + PERIOD + 100];
            for at in [0, start.min(3)] {
                let content = Content::Input(1, start - at);
                assert_eq!(answers.wrong(got, content, at, &poison), 0);
            }
            assert!(answers.wrong(got, Content::Input(1, start + 1), 0, &poison) > PERIOD as u64);
            assert!(answers.wrong(got, Content::Input(2, start), 0, &poison) > PERIOD as u64);
            let sum: Vec<u32> = (start..start + PERIOD + 100)
                .map(|i| <u32 as TestElement>::expected(answers.case, i % PERIOD).0)
                .collect();
            assert_eq!(answers.wrong(&sum, Content::Reduced(start), 0, &poison), 0);
            assert!(answers.wrong(&sum, Content::Reduced(start + 1), 0, &poison) > 1000);
            assert_eq!(answers.wrong(got, Content::Untouched, 0, &poison), got.len() as u64);
        }
        let untouched = data::poison::<u32>(0, 1000);
        assert_eq!(answers.wrong(&untouched, Content::Untouched, 0, &poison), 0);
    }
}
