//! How closely a kernel is simulated: as closely as its number of steps allows.

use std::collections::HashMap;

use ferroccl::Algorithm;
use ferroccl::device::abi::NO_RANK;

use super::{Class, StageMaker};
use crate::plan::Group;
use crate::{Detail, SimulateError};

/// How many times as many steps as [`Options::exact_steps`](crate::Options::exact_steps) rings from or to a root may take on shares of links. Each has its ranks in
/// another order, and with a late start that counts: a rank ends when the last of its channels does.
const ROOTED: u64 = 20;

impl StageMaker<'_> {
    /// How closely kernel number `kernel` is to be simulated.
    pub(crate) fn detail(&mut self, kernel: usize) -> Result<Detail, SimulateError> {
        let (group, plan) = &self.plan.kernels[kernel];
        let channels = plan.choice.channels;
        let mut per_channel = 0u64;
        // Blocks of the first channel stand for those of the others.
        let mut classes: HashMap<Class, u64> = HashMap::new();
        let mut all_known = true;
        let mut members = 0u64;
        self.for_members(kernel, 0, |maker, member| {
            members += 1;
            for half in 0..plan.kernel.blocks.max(1) {
                let Some(class) = maker.class(kernel, 0, half, &member) else {
                    all_known = false;
                    // The first rank stands for all.
                    if member.index == 0 && per_channel == 0 {
                        per_channel = maker.record(kernel, 0, half, &member)?.len() as u64;
                    }
                    continue;
                };
                *classes.entry(class).or_default() += 1;
                maker.known(class, kernel, 0, half, &member)?;
            }
            Ok(())
        })?;
        if all_known {
            let of = |(class, blocks): (&Class, &u64)| {
                let program = self.classes.get(class).map_or(0, |known| known.program);
                let steps = self.program_len(program);
                steps * blocks
            };
            per_channel = classes.iter().map(of).sum();
        } else {
            per_channel *= members;
        }
        let all = per_channel * u64::from(channels);
        if all <= self.options.exact_steps {
            return Ok(Detail::Steps);
        }
        let most = self.options.most_steps;
        if !all_known {
            return Err(SimulateError::TooManySteps { steps: all, most: self.options.exact_steps });
        }
        let period = if self.cluster.alternates() { 2 } else { 1 };
        let hosts = self.cluster.hosts();
        let around = matches!(group, Group::World)
            && plan.choice.algorithm == Algorithm::Ring
            && plan.root == NO_RANK;
        let even = self.cluster.is_even();
        let of_period = per_channel / u64::from(hosts) * u64::from(period) * u64::from(channels);
        let periodic = hosts > period && hosts.is_multiple_of(period);
        if around && even && periodic && of_period <= most {
            return Ok(Detail::Folded { hosts: period, of: hosts });
        }
        if per_channel > most {
            return Err(SimulateError::TooManySteps { steps: per_channel, most });
        }
        let rooted = matches!(group, Group::World)
            && plan.choice.algorithm == Algorithm::Ring
            && plan.root != NO_RANK;
        let steps = self.options.exact_steps.saturating_mul(if rooted { ROOTED } else { 1 });
        let fit = (steps / per_channel.max(1)).clamp(1, channels.into()) as u32;
        // One for each of the two trees.
        let fit = if plan.tree && channels > 1 { fit.max(2) } else { fit };
        Ok(Detail::Shares { channels: self.chosen(kernel, fit).len() as u32, of: channels })
    }

    /// `some` channels of a kernel that stand for all. Of rings those come first that have their ranks in another order than those before
    /// them; of trees they are spread evenly, since the two trees have a half of the channels each.
    pub(super) fn chosen(&self, kernel: usize, some: u32) -> Vec<u32> {
        let (group, plan) = &self.plan.kernels[kernel];
        let channels = plan.choice.channels;
        if plan.tree || !matches!(group, Group::World) {
            let step = channels.div_ceil(some.max(1)).max(1);
            return (0..channels).step_by(step as usize).collect();
        }
        let orders = &self.plan.orders;
        let order = |channel: u32| &orders[channel as usize % orders.len()];
        let same = |channel: &u32| (0..*channel).filter(|c| order(*c) == order(*channel)).count();
        let mut chosen: Vec<u32> = (0..channels).collect();
        chosen.sort_by_cached_key(same);
        chosen.truncate(some as usize);
        chosen.sort_unstable();
        chosen
    }

    fn program_len(&self, program: u32) -> u64 {
        let found = self.programs.iter().find(|(_, number)| **number == program);
        found.map_or(0, |(steps, _)| steps.len() as u64)
    }
}
