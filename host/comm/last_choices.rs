//! How the last calls were done: the same call is done in the same way, and is not looked up again.

use std::sync::{Mutex, PoisonError};

use crate::enqueue::{AlgoChoice, CollectiveCall, Registration};
use crate::error::Result;

/// What a choice depends on, in one communicator.
type Question = (CollectiveCall, Registration);

/// A loop of a program has some different calls: this many are kept.
const KEPT: usize = 8;

/// The choices for the last different calls.
#[derive(Debug, Default)]
pub(super) struct LastChoices(Mutex<KeptChoices>);

#[derive(Debug, Default)]
struct KeptChoices {
    choices: [Option<(Question, AlgoChoice)>; KEPT],
    /// Which is replaced next.
    next: usize,
}

impl LastChoices {
    /// The choice for a call, by `choose` if it is not among the last ones.
    ///
    /// # Errors
    /// Those of `choose`.
    pub(super) fn get(
        &self,
        call: &CollectiveCall,
        buffers: Registration,
        choose: impl FnOnce() -> Result<AlgoChoice>,
    ) -> Result<AlgoChoice> {
        let question = (*call, buffers);
        // A choice is whole or not there: a thread that panicked has left none half.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.choices.iter().flatten().find(|(asked, _)| *asked == question);
        if let Some((_, choice)) = known {
            return Ok(*choice);
        }
        let choice = choose()?;
        let next = kept.next;
        kept.choices[next] = Some((question, choice));
        kept.next = (next + 1) % KEPT;
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Collective, DataType, Error, ProtocolId, ReduceOp};

    #[test]
    fn the_last_calls_are_not_looked_up_again() {
        let last = LastChoices::default();
        let choice = |channels| AlgoChoice {
            algorithm: Algorithm::Ring,
            protocol: ProtocolId::Ll,
            channels,
            threads: 1,
        };
        let call = |count| CollectiveCall {
            collective: Collective::AllReduce,
            count,
            data_type: DataType::F32,
            op: ReduceOp::Sum,
            root: None,
        };
        let ask = |count: usize, buffers, answer: u32| {
            last.get(&call(count), buffers, || Ok(choice(answer))).unwrap().channels
        };
        for count in 0..KEPT {
            assert_eq!(ask(count, Registration::None, count as u32), count as u32);
        }
        // All of them are known.
        assert!((0..KEPT).all(|count| ask(count, Registration::None, 99) == count as u32));
        // Another question, which replaces the first.
        assert_eq!(ask(1, Registration::Window, 50), 50);
        assert_eq!(ask(1, Registration::Window, 51), 50);
        assert_eq!(ask(0, Registration::None, 60), 60);
        assert_eq!(ask(2, Registration::None, 99), 2);
        // An error is not kept.
        let failed = last.get(&call(77), Registration::None, || Err(Error::argument("a", "b")));
        assert!(failed.is_err());
        assert_eq!(ask(77, Registration::None, 7), 7);
    }
}
