//! Which sizes are measured: from a smallest to a largest, by steps or by a factor.

use super::size::Bytes;

/// How one size follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Each is this many bytes larger.
    Add(Bytes),
    /// Each is this many times as large.
    Times(u64),
}

/// A range of sizes. Made by [`Sweep::new`], so it always ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// The smallest size.
    pub(crate) min: Bytes,
    /// No size is larger.
    pub(crate) max: Bytes,
    /// How they grow.
    pub(crate) step: Step,
}

impl Sweep {
    /// A sweep, if it leads from `min` to `max` at all.
    pub(crate) fn new(min: Bytes, max: Bytes, step: Step) -> Result<Self, String> {
        if min > max {
            return Err(format!(
                "the smallest size (-b {min}) is larger than the largest (-e {max})"
            ));
        }
        match step {
            Step::Add(Bytes(0)) if min < max => {
                Err("steps of 0 bytes (-i 0) never reach the largest size".into())
            }
            Step::Times(0 | 1) => Err("a step factor (-f) is at least 2".into()),
            Step::Times(_) if min.0 == 0 && max.0 > 0 => {
                Err("no factor (-f) leads on from 0 bytes: begin at -b 1, or step with -i".into())
            }
            _ => Ok(Sweep { min, max, step }),
        }
    }

    /// The sizes in bytes.
    pub(crate) fn sizes(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.min.0), move |&size| match self.step {
            Step::Add(Bytes(0)) => None,
            Step::Add(Bytes(bytes)) => size.checked_add(bytes),
            Step::Times(factor) => size.checked_mul(factor).filter(|&next| next > size),
        })
        .take_while(move |&size| size <= self.max.0)
    }

    /// The sizes as numbers of elements of `element` bytes, rounded down; none comes twice.
    pub(crate) fn counts(self, element: usize) -> impl Iterator<Item = usize> {
        let mut last = None;
        self.sizes()
            .map(move |size| usize::try_from(size).unwrap_or(usize::MAX) / element)
            .filter(move |&count| last.replace(count) != Some(count))
    }

    /// The largest number of elements of `element` bytes.
    pub(crate) fn largest(self, element: usize) -> usize {
        self.counts(element).last().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(min: u64, max: u64, step: Step, element: usize) -> Vec<usize> {
        Sweep::new(Bytes(min), Bytes(max), step).unwrap().counts(element).collect()
    }

    #[test]
    fn steps_and_factors() {
        assert_eq!(counts(8, 64, Step::Times(2), 4), [2, 4, 8, 16]);
        assert_eq!(counts(8, 100, Step::Times(3), 4), [2, 6, 18]);
        assert_eq!(counts(8, 32, Step::Add(Bytes(8)), 8), [1, 2, 3, 4]);
        assert_eq!(counts(8, 8, Step::Add(Bytes(0)), 1), [8]);
        assert_eq!(counts(0, 0, Step::Times(2), 4), [0]);
    }

    #[test]
    fn sizes_of_a_part_of_an_element_are_not_repeated() {
        assert_eq!(counts(1, 16, Step::Times(2), 8), [0, 1, 2]);
        assert_eq!(counts(5, 13, Step::Add(Bytes(1)), 4), [1, 2, 3]);
    }

    #[test]
    fn ends_at_the_end_of_the_numbers() {
        let all = counts(1, u64::MAX, Step::Times(2), 1);
        assert_eq!(all.len(), 64);
        assert_eq!(counts(u64::MAX - 1, u64::MAX, Step::Add(Bytes(7)), 1).len(), 1);
    }

    #[test]
    fn turns_away_what_never_ends() {
        for (min, max, step, word) in [
            (9, 8, Step::Times(2), "larger"),
            (8, 9, Step::Add(Bytes(0)), "-i 0"),
            (8, 9, Step::Times(1), "at least 2"),
            (8, 9, Step::Times(0), "at least 2"),
            (0, 9, Step::Times(2), "from 0 bytes"),
        ] {
            let error = Sweep::new(Bytes(min), Bytes(max), step).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
