//! What may reach what directly, and why.

use std::fmt::Write;

use ferroccl::topology::System;
use ferroccl::topology::path::direct;
use ferroccl::topology::policy::{Decision, Policy};

/// Pairs that are listed.
const PAIRS: usize = 8;

/// P2P of GPUs and GPU Direct RDMA of GPUs and cards; nothing where there are no GPUs.
pub(super) fn verdicts(out: &mut String, system: &System, policy: &Policy) -> std::fmt::Result {
    if system.min_sm() == 0 {
        return Ok(());
    }
    let (gpus, nets) = (system.gpus(), system.nets());
    let mut p2p = Groups::default();
    for (i, (a, one)) in gpus.iter().enumerate() {
        for (b, other) in &gpus[i + 1..] {
            let there = direct(system, *a, *b, policy.nvb);
            let decision = policy.p2p(system, there.kind);
            p2p.add(decision, format!("{}-{}", one.dev, other.dev));
        }
    }
    let mut gdr = Groups::default();
    for (n, (net, port)) in nets.iter().enumerate() {
        for (g, (gpu, one)) in gpus.iter().enumerate() {
            let there = direct(system, *gpu, *net, policy.nvb);
            let decision = policy.gdr(system, g, n, there.kind);
            gdr.add(decision, format!("{}-{}", one.dev, port.dev));
        }
    }
    p2p.write(out, "P2P, a GPU that writes another's memory", "GPUs")?;
    gdr.write(out, "GPU Direct RDMA, a card that reads and writes a GPU's memory", "GPU-NET")
}

/// Pairs with one decision, for one reason.
#[derive(Default)]
struct Groups(Vec<(Decision, Vec<String>)>);

impl Groups {
    fn add(&mut self, decision: Decision, pair: String) {
        match self.0.iter_mut().find(|(known, _)| *known == decision) {
            Some((_, pairs)) => pairs.push(pair),
            None => self.0.push((decision, vec![pair])),
        }
    }

    fn write(&self, out: &mut String, what: &str, pair: &str) -> std::fmt::Result {
        let all: usize = self.0.iter().map(|(_, pairs)| pairs.len()).sum();
        if all == 0 {
            return Ok(());
        }
        writeln!(out, "{what}:")?;
        for (decision, pairs) in &self.0 {
            let verdict = if decision.allowed { "yes" } else { "no" };
            let n = pairs.len();
            let which = match n {
                _ if n == all => format!("all {all} pairs"),
                _ if n <= PAIRS => format!("{pair} {}", pairs.join(", ")),
                _ => format!("{n} pairs: {pair} {}, ...", pairs[..PAIRS].join(", ")),
            };
            writeln!(out, "  {verdict:3} {}: {which}", decision.why)?;
        }
        writeln!(out)
    }
}
