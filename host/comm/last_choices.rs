//! How the last calls were done: the same call is done in the same way. Its choice and its plan are not looked up again.

use std::sync::Arc;

use ferroccl_device::abi::{Algorithm, Signature};

use crate::enqueue::{self, AlgoChoice, CollectiveCall, KernelPlan, Registration};
use crate::error::Result;
use crate::registry::Registry;

/// What a choice depends on, in one communicator.
type Question = (CollectiveCall, Registration);

/// How a call is done.
#[derive(Debug)]
pub(super) struct ChosenPlan {
    pub choice: AlgoChoice,
    /// What is planned of its one kernel, as call 0; `None` for a call of several kernels, and for one that there is none for.
    pub kernel: Option<KernelPlan>,
}

impl ChosenPlan {
    pub(super) fn new(registry: &Registry, call: &CollectiveCall, choice: AlgoChoice) -> Self {
        let several =
            matches!(choice.algorithm, Algorithm::Hierarchical | Algorithm::CollnetDirect);
        let plan = || enqueue::plan(registry, call, choice, 0).ok();
        ChosenPlan { choice, kernel: if several { None } else { plan() } }
    }

    /// A kernel of the caller's, which is planned with what the caller gives.
    pub(super) fn of_custom(choice: AlgoChoice) -> Self {
        ChosenPlan { choice, kernel: None }
    }

    /// The call's signature as call `seq`.
    pub(super) fn signature(&self, call: &CollectiveCall, seq: u64) -> Signature {
        if let Some(KernelPlan { signature, .. }) = &self.kernel {
            return Signature { seq, ..*signature };
        }
        let AlgoChoice { algorithm, protocol, channels, .. } = self.choice;
        call.signature(seq, algorithm, protocol, channels)
    }
}

/// A loop of a program has some different calls: this many are kept.
const KEPT: usize = 8;

/// The choices for the last different calls. Who asks shares them: a copy from function to function is a dozen cache lines of a small call.
#[derive(Debug, Default)]
pub(super) struct LastChoices {
    choices: [Option<(Question, Arc<ChosenPlan>)>; KEPT],
    /// Which is replaced next.
    next: usize,
}

impl LastChoices {
    /// The choice for a call, by `choose` if it is not among the last ones.
    ///
    /// # Errors
    /// Those of `choose`.
    pub(super) fn get(
        &mut self,
        call: &CollectiveCall,
        buffers: Registration,
        choose: impl FnOnce() -> Result<ChosenPlan>,
    ) -> Result<Arc<ChosenPlan>> {
        let question = (*call, buffers);
        let known = self.choices.iter().flatten().find(|(asked, _)| *asked == question);
        if let Some((_, choice)) = known {
            return Ok(Arc::clone(choice));
        }
        let choice = Arc::new(choose()?);
        self.choices[self.next] = Some((question, Arc::clone(&choice)));
        self.next = (self.next + 1) % KEPT;
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Collective, DataType, Error, ProtocolId, ReduceOp};

    #[test]
    fn the_last_calls_are_not_looked_up_again() {
        let mut last = LastChoices::default();
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
        let registry = Registry::new();
        let mut ask = |count: usize, buffers, answer: u32| {
            let chosen = || Ok(ChosenPlan::new(&registry, &call(count), choice(answer)));
            last.get(&call(count), buffers, chosen).unwrap().choice.channels
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
        let found = last.get(&call(77), Registration::None, || {
            Ok(ChosenPlan::new(&registry, &call(77), choice(7)))
        });
        assert_eq!(found.unwrap().choice.channels, 7);
    }

    #[test]
    fn a_plan_is_that_of_its_call() {
        let (registry, collective) = (Registry::new(), Collective::AllReduce);
        let (data_type, op) = (DataType::F32, ReduceOp::Sum);
        let call = CollectiveCall { collective, count: 10, data_type, op, root: None };
        for (algorithm, kernels) in [(Algorithm::Ring, 1), (Algorithm::Hierarchical, 3)] {
            let choice =
                AlgoChoice { algorithm, protocol: ProtocolId::Ll, channels: 2, threads: 1 };
            let chosen = ChosenPlan::new(&registry, &call, choice);
            let signature = call.signature(77, algorithm, ProtocolId::Ll, 2);
            assert_eq!(chosen.signature(&call, 77), signature);
            let plan = &chosen.kernel;
            assert_eq!(plan.is_some(), kernels == 1);
            let fresh = enqueue::plan(&registry, &call, choice, 0).ok();
            assert_eq!(format!("{plan:?}"), format!("{:?}", fresh.filter(|_| kernels == 1)));
            // Whatever it was planned as, its work is that of the call.
            let fresh = enqueue::plan(&registry, &call, choice, 77).ok();
            for plan in plan.iter().chain(&fresh) {
                let work = plan.work(77, 1, 2, 3, (0, false));
                assert_eq!((work.signature, work.digest), (signature, signature.digest()));
            }
        }
    }
}
