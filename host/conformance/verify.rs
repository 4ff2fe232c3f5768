//! Everything that small calls can come to, tried: a model checker over the protocol's kernel.

use std::fmt;
use std::sync::Arc;

use ferroccl_device::orders::{Published, Side};

use super::ranks::{Random, Ranks, words};
use super::{Explanation, ProtocolTests, SMALL_SLOT};
use crate::runtime::cpu::{
    Checked, CpuRuntime, ModelCheck, ModelCheckedRuntime, Output, Violation,
};
use crate::{CommConfig, Device, DeviceBuffer, KernelSpec, ReduceOp};

/// What ranks do in a [verification](ProtocolTests::verify).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedCalls {
    /// So many all-reduces, one behind the other, of 4 floats for each rank. Every rank sends and receives: by a ring it takes
    /// `2 (ranks - 1)` steps a call.
    AllReduces(u32),
    /// A broadcast from rank 0 around the ring, of so many steps: who sends is as far ahead of who receives as slots allow.
    Pipeline(u32),
}

/// How large a [verification](ProtocolTests::verify) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// What is called.
    pub calls: VerifiedCalls,
    /// Ranks, 2 at least.
    pub ranks: u32,
    /// Slots of a connection, 2 at least.
    pub slots: u32,
    /// Whether the first step is just before LL's flags repeat.
    pub wraps: bool,
    /// The search ends, incomplete, with the run in which it has come by so many states.
    pub most_states: u64,
}

/// Two all-reduces by 2 ranks with 2 slots: 4 steps.
impl Default for Bounds {
    fn default() -> Self {
        let most_states = ModelCheck::default().most_states;
        let calls = VerifiedCalls::AllReduces(2);
        Bounds { calls, ranks: 2, slots: 2, wraps: false, most_states }
    }
}

impl Bounds {
    /// What a protocol is verified with where nothing else is said: two all-reduces, and a pipeline of three steps; by 2 ranks with 2
    /// slots.
    pub const USUAL: [VerifiedCalls; 2] =
        [VerifiedCalls::AllReduces(2), VerifiedCalls::Pipeline(3)];

    /// These calls, and everything else as usual.
    #[must_use]
    pub fn of(calls: VerifiedCalls) -> Self {
        Bounds { calls, ..Bounds::default() }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |n: u32| if n == 1 { "" } else { "s" };
        match self.calls {
            VerifiedCalls::AllReduces(n) => write!(f, "{n} all-reduce{}", s(n))?,
            VerifiedCalls::Pipeline(n) => write!(f, "a pipeline of {n} step{}", s(n))?,
        }
        write!(f, ", {} ranks, {} slots", self.ranks, self.slots)?;
        if self.wraps { f.write_str(", flags that repeat") } else { Ok(()) }
    }
}

/// What came of a [verification](ProtocolTests::verify).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Verification {
    /// How much was tried.
    pub checked: Checked,
    /// The sides of the memory orders that the kernel has used.
    pub orders: Vec<(Published, Side)>,
    /// A run that goes wrong, if there is one.
    pub counterexample: Option<Counterexample>,
}

/// A run that goes wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Counterexample {
    /// What is wrong.
    pub wrong: Violation,
    /// Which accesses were in no order, where that is what is wrong.
    pub explanation: Explanation,
}

impl ProtocolTests {
    /// Runs small calls in every way that the memory orders of the kernel allow by PTX's memory model, with a side of one of them
    /// `weakened` or none, up to the first that goes wrong. If there is none and the search is
    /// [complete](Checked::complete), the protocol is right for these calls: for all schedules, whatever loads see.
    ///
    /// A block has one lane: what lanes of a block owe each other is for `ProtocolTests::emulated`.
    ///
    /// # Errors
    /// When the bounds are not possible.
    pub fn verify(
        &self,
        bounds: &Bounds,
        weakened: Option<(Published, Side)>,
    ) -> Result<Verification, String> {
        let config = ModelCheck { weaken: weakened, most_states: bounds.most_states };
        let runtime = Arc::new(CpuRuntime::model_checked(config));
        let comm = CommConfig {
            slots: Some(bounds.slots),
            buffer_bytes: [Some(SMALL_SLOT * bounds.slots as usize); 3],
            channels: Some(1),
            first_step: if bounds.wraps { (1 << 31) - 2 } else { 0 },
            ..self.config(&mut Random(0))
        };
        let ranks = Ranks::new(Device::new(runtime.clone()), bounds.ranks as usize, &comm)?;
        let calls = Calls::new(self, &ranks, bounds)?;
        runtime.check(calls.outputs(), calls.check());
        for call in &calls.0 {
            for (r, (rank, stream)) in ranks.ranks.iter().zip(&ranks.streams).enumerate() {
                let (input, output) = (&call.inputs[r], &call.outputs[r]);
                // SAFETY: the kernel is of this call, for buffers of so many floats.
                unsafe { rank.launch(&call.spec, input, output, ReduceOp::Sum, stream) }
                    .map_err(words)?;
            }
        }
        let ended = ranks.streams[0].synchronize();
        let (checked, orders) = (runtime.checked(), runtime.orders());
        let Some(wrong) = runtime.wrong() else {
            ended.map_err(words)?;
            return Ok(Verification { checked, orders, counterexample: None });
        };
        let counterexample = Some(Counterexample::new(&runtime, &ranks, bounds, wrong));
        Ok(Verification { checked, orders, counterexample })
    }

    /// The kernel of a call, and how many elements its buffers have.
    fn verified(&self, bounds: &Bounds) -> Result<(KernelSpec, u32), String> {
        match bounds.calls {
            VerifiedCalls::AllReduces(n) => {
                let count = 4 * bounds.ranks as usize;
                Ok((KernelSpec::new(self.row, count), n))
            }
            VerifiedCalls::Pipeline(steps) => {
                let (row, elements) = self.pipeline.ok_or_else(|| {
                    "a pipeline takes a protocol by its type (ProtocolTests::of)".to_owned()
                })?;
                let spec = KernelSpec::new(row, steps as usize * elements);
                Ok((KernelSpec { root: Some(0), ..spec }, 1))
            }
        }
    }
}

impl Counterexample {
    fn new(
        runtime: &ModelCheckedRuntime,
        ranks: &Ranks,
        bounds: &Bounds,
        wrong: Violation,
    ) -> Self {
        let run = bounds.to_string();
        let name = |address| ranks.name(address);
        let (events, conflict) = (runtime.history(), runtime.conflict());
        let explanation = Explanation::new(run, wrong.to_string(), &events, conflict, &name);
        Counterexample { wrong, explanation }
    }
}

/// One call, and its buffers by rank.
struct Call {
    spec: KernelSpec,
    inputs: Vec<DeviceBuffer<f32>>,
    outputs: Vec<DeviceBuffer<f32>>,
    want: Vec<f32>,
}

struct Calls(Vec<Call>);

impl Calls {
    fn new(tests: &ProtocolTests, ranks: &Ranks, bounds: &Bounds) -> Result<Self, String> {
        let (spec, calls) = tests.verified(bounds)?;
        let (n, count) = (ranks.ranks.len(), spec.count);
        let call = |number: u32| {
            // No two results of all calls are alike, whole numbers that a float has.
            let value = |r: usize, i: usize| (1 + i + 1000 * number as usize + 100_000 * r) as f32;
            let inputs = (0..n).map(|r| {
                let values: Vec<f32> = (0..count).map(|i| value(r, i)).collect();
                ranks.device.upload(&values)
            });
            let inputs = inputs.collect::<crate::Result<Vec<_>>>().map_err(words)?;
            let outputs = (0..n).map(|_| ranks.device.alloc(count));
            let outputs = outputs.collect::<crate::Result<Vec<_>>>().map_err(words)?;
            for (r, (input, output)) in inputs.iter().zip(&outputs).enumerate() {
                ranks.name_buffer(input, format!("rank {r}'s input of call {number}"));
                ranks.name_buffer(output, format!("rank {r}'s output of call {number}"));
            }
            let from = if spec.root.is_some() { 1 } else { n };
            let want = (0..count).map(|i| (0..from).map(|r| value(r, i)).sum()).collect();
            Ok(Call { spec: spec.clone(), inputs, outputs, want })
        };
        (0..calls).map(call).collect::<Result<_, String>>().map(Calls)
    }

    /// Where the outputs are.
    fn outputs(&self) -> Vec<Output> {
        let of = |(rank, buffer): (usize, &DeviceBuffer<f32>)| {
            let start = buffer.address();
            let end = start + (buffer.len() * size_of::<f32>()) as u64;
            Output { rank: rank as u32, range: start..end }
        };
        self.0.iter().flat_map(|call| call.outputs.iter().enumerate().map(of)).collect()
    }

    /// Looks whether all outputs are right.
    fn check(&self) -> impl Fn() -> Result<(), String> + Send + 'static {
        let outputs = self.0.iter().enumerate().flat_map(|(number, call)| {
            let buffers = call.outputs.iter().enumerate();
            buffers.map(move |(r, buffer)| (number, r, buffer.address(), call.want.clone()))
        });
        let outputs: Vec<(usize, usize, u64, Vec<f32>)> = outputs.collect();
        move || {
            for (number, r, address, all) in &outputs {
                for (i, want) in all.iter().enumerate() {
                    // SAFETY: the buffers live until the search has ended, and nobody writes to them now.
                    let got = unsafe { (*address as *const f32).add(i).read() };
                    if got != *want {
                        let of = all.len();
                        return Err(format!(
                            "rank {r}, call {number}, element {i} of {of}: {got}, not {want}"
                        ));
                    }
                }
            }
            Ok(())
        }
    }
}
