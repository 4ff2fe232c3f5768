//! What comes out of a run.

use ferroccl::enqueue::AlgoChoice;
use ferroccl::{Algorithm, Collective};
use serde::Serialize;

use crate::carrier::{LinkState, Queues};
use crate::costs::{Costs, RATE};
use crate::engine::{run_by_time, run_on_shares};
use crate::fabric::hash;
use crate::folded::rank_ends;
use crate::stage::StageMaker;
use crate::trace::StepSpan;
use crate::{Call, Cluster, Detail, Options, SimulateError};
use ferroccl::graph::tuning::StepFigures;

/// A link, and what a call does to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkUse {
    /// What it joins.
    pub name: String,
    /// Bytes that pass it.
    pub bytes: f64,
    /// The part of the call's time that they take.
    pub busy: f64,
    /// The longest that a message waits for others, in microseconds; `None` where links have no queues.
    pub waited_us: Option<f64>,
}

/// What a call takes, as it was simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The call.
    pub call: Call,
    /// Ranks.
    pub ranks: u32,
    /// The algorithm, protocol, channels and threads.
    pub choice: AlgoChoice,
    /// How closely each of the call's kernels was simulated.
    pub details: Vec<Detail>,
    /// From the first rank's launch until the last rank has ended, in microseconds.
    pub time_us: f64,
    /// When each rank has ended, in microseconds.
    pub finish_us: Vec<f64>,
    /// The least time in which the fullest link could carry its bytes, in microseconds.
    pub bound_us: f64,
    /// What the tuner predicts, in microseconds.
    pub predicted_us: Option<f64>,
    /// Steps that were simulated.
    pub steps: u64,
    /// The links that carry most for what they can, the fullest first.
    pub links: Vec<LinkUse>,
    /// Steps, where [`Options::trace_steps`] asked for them.
    pub trace: Vec<StepSpan>,
}

/// Links that an outcome has at most.
const LINKS: usize = 16;

impl Outcome {
    /// Bytes of the call over its time, 10^9 a second.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.call.bytes as f64 / self.time_us.max(f64::MIN_POSITIVE) / RATE
    }

    /// What every link of a rank must have carried for that, 10^9 bytes a second (nccl-tests' `busbw`).
    #[must_use]
    pub fn bus_bandwidth(&self) -> f64 {
        let n = f64::from(self.ranks.max(1));
        let factor = match self.call.collective {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => {
                (n - 1.0) / n
            }
            _ => 1.0,
        };
        self.bandwidth() * factor
    }

    /// The part of the least time that the fullest link allows, from 0 to 1.
    #[must_use]
    pub fn share_of_limit(&self) -> f64 {
        self.bound_us / self.time_us.max(f64::MIN_POSITIVE)
    }
}

impl Cluster {
    /// Simulates a call: when each rank has ended, and what passes the links.
    ///
    /// Equal arguments give equal outcomes.
    ///
    /// # Errors
    /// [`SimulateError::CannotBeHad`] where the algorithm cannot do the call or has no steps to simulate, the planner's errors, and
    /// [`SimulateError::TooManySteps`].
    pub fn simulate(&self, call: &Call, options: &Options) -> Result<Outcome, SimulateError> {
        let plan = self.plan(call)?;
        let situation = self.situation();
        let choice = plan.choice;
        let none = || SimulateError::CannotBeHad {
            collective: call.collective,
            algorithm: choice.algorithm,
            reason: "the tuner has no figures of its steps".to_owned(),
        };
        let figures = |algorithm| {
            StepFigures::of(&situation, algorithm, choice.protocol, choice.channels)
                .ok_or_else(none)
        };
        // The parts of a hierarchical call are rings.
        let of = figures(match choice.algorithm {
            Algorithm::Hierarchical => Algorithm::Ring,
            other => other,
        })?;
        let costs = Costs::new(&of, choice.protocol, &plan.shape);
        let launch = |rank: u32| {
            let chance = (hash(&[options.seed, rank.into()]) >> 11) as f64 / (1u64 << 53) as f64;
            let late = self.late.iter().filter(|(late, _)| *late == rank).map(|late| late.1);
            -(1.0 - chance).ln() * options.skew_us + late.sum::<f64>()
        };
        let launches: Vec<f64> = (0..self.ranks()).map(launch).collect();
        let first = launches.iter().copied().fold(f64::INFINITY, f64::min);
        let mut starts: Vec<f64> = launches.iter().map(|at| at - first + costs.base).collect();
        let mut state = LinkState::new(self.links.len());
        let (mut details, mut trace) = (Vec::new(), Vec::new());
        let (mut bound_us, mut steps) = (0.0, 0);
        if self.ranks() > 1 {
            let mut maker = StageMaker::new(self, &plan, options, costs.wire);
            for kernel in 0..plan.kernels.len() {
                let detail = maker.detail(kernel)?;
                let stage = maker.stage(kernel, detail)?;
                steps += stage.steps;
                let most = options.trace_steps;
                let kept = (most > 0).then_some((&mut trace, most));
                let before = state.bytes.clone();
                let ends = match detail {
                    Detail::Steps => {
                        let queues = Queues { links: &self.links, state: &mut state };
                        run_by_time(&stage, &costs, queues, &starts, kept)?
                    }
                    Detail::Shares { .. } => {
                        run_on_shares(&stage, &costs, |rank| starts[rank as usize])?
                    }
                    Detail::Folded { hosts, .. } => {
                        starts = rank_ends(&stage, &costs, hosts * self.local_ranks(), &starts)?;
                        Vec::new()
                    }
                };
                for (block, end) in stage.blocks.iter().zip(&ends) {
                    let rank = &mut starts[block.rank as usize];
                    *rank = rank.max(*end);
                }
                if detail == Detail::Steps {
                    let took = |i: usize| (state.bytes[i] - before[i]) / (self.links[i].0 * RATE);
                    bound_us += (0..before.len()).map(took).fold(0.0, f64::max);
                } else {
                    bound_us += stage.bound_us;
                    for (sum, load) in state.bytes.iter_mut().zip(&stage.loads) {
                        *sum += load;
                    }
                }
                details.push(detail);
            }
        }
        let time_us = starts.iter().copied().fold(0.0, f64::max);
        let queues = details.iter().all(|detail| *detail == Detail::Steps);
        let took = |i: usize| state.bytes[i] / (self.links[i].0 * RATE);
        let mut fullest: Vec<usize> =
            (0..state.bytes.len()).filter(|i| state.bytes[*i] > 0.0).collect();
        fullest.sort_by(|a, b| took(*b).total_cmp(&took(*a)).then(a.cmp(b)));
        let links = fullest.iter().take(LINKS).map(|&i| LinkUse {
            name: self.link_name(i as u32),
            bytes: state.bytes[i],
            busy: took(i) / time_us.max(f64::MIN_POSITIVE),
            waited_us: queues.then_some(state.waited[i]),
        });
        Ok(Outcome {
            call: *call,
            ranks: self.ranks(),
            choice,
            details,
            time_us,
            bound_us,
            predicted_us: plan.predicted_us,
            steps,
            links: links.collect(),
            finish_us: starts,
            trace,
        })
    }
}
