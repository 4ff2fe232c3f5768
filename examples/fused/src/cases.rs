//! The examples with data, each in one kernel and as kernels and calls; every result is checked.

use std::error::Error;

use ferroccl::{DeviceChannels, DeviceCommConfig, ReduceOp, group};

use crate::experts::{self, Experts, label_words};
use crate::halo::{self, Halo};
use crate::ring::{self, Ring};
use crate::team::{Places, Team};
use crate::tiles::{self, Tiles};
use crate::vector::{self, Vector};

/// How a case is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One kernel, which communicates by itself.
    Fused,
    /// Kernels, and the library's calls in between.
    Apart,
}

/// What becomes of a case: the library's error, or what is wrong.
pub type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// A case: on ranks at these places, of a size that a number decides. The last argument is called when all is ready to be launched.
pub type Case = fn(&Places<'_>, usize, Form, &dyn Fn()) -> Outcome;

/// All of them, with what they are as kernels and calls.
pub const CASES: [(&str, Case, &str); 4] = [
    ("vector and all-reduce", vector_all_reduce, "a kernel, an all-reduce on windows"),
    ("GEMM and reduce-scatter", gemm_reduce_scatter, "a kernel, a reduce-scatter on a window"),
    ("mixture of experts", mixture_of_experts, "two all-to-alls of as much as there may be, alone"),
    ("stencil", stencil, "a launch a step"),
];

/// Those whose ranks are all on one host: primitives do not go over networks.
pub const ONE_HOST: [(&str, Case, &str); 1] =
    [("vector and ring", vector_ring, "a kernel, an all-reduce")];

/// That a rank's result is right.
fn check(what: &str, rank: usize, got: &[f32], want: impl Fn(usize) -> f32) -> Outcome {
    match got.iter().enumerate().find(|(i, got)| **got != want(*i)) {
        None => Ok(()),
        Some((i, got)) => {
            Err(format!("{what}: rank {rank}, element {i} is {got}, not {}", want(i)).into())
        }
    }
}

/// `count` elements.
fn vector_all_reduce(places: &Places<'_>, count: usize, form: Form, ready: &dyn Fn()) -> Outcome {
    let blocks = count.div_ceil(4096).clamp(1, 8) as u32;
    // Where there are several hosts all have as many ranks.
    let team = Team::new(places, blocks, blocks)?;
    let (x_of, y_of) =
        (|r: usize, i: usize| ((i + r) % 7) as f32, |r: usize, i: usize| ((2 * i + r) % 5) as f32);
    let (x, y) = (team.buffers(count, x_of)?, team.buffers(count, y_of)?);
    let values = team.buffers(count, |_, _| 0.0f32)?;
    let sums = team.buffers(count, |_, _| 0.0f32)?;
    let parts = team.buffers(places.hosts.len() * count, |_, _| 0.0f32)?;
    let (of_values, of_sums) = (team.windows(&values)?, team.windows(&sums)?);
    let of_parts = team.windows(&parts)?;
    team.streams.iter().try_for_each(|stream| stream.synchronize())?;
    let argument = |r: usize| {
        Ok(Vector {
            comm: team.comms[r].value(),
            values: of_values[r].value()?,
            sums: of_sums[r].value()?,
            parts: of_parts[r].value()?,
            x: x[r].address(),
            y: y[r].address(),
            count: count as u64,
            blocks,
            a: 3.0,
        })
    };
    ready();
    // SAFETY: the buffers have what the kernels use, and are kept until `content` has waited for them.
    unsafe {
        match form {
            Form::Fused => team.launch(&vector::FUSED, blocks, argument)?,
            Form::Apart => {
                team.launch(&vector::ALONE, blocks, argument)?;
                for (r, rank) in team.ranks.iter().enumerate() {
                    rank.all_reduce(&values[r], &sums[r], ReduceOp::Sum, &team.streams[r])?;
                }
            }
        }
    }
    let sum = |i: usize| (0..team.size()).map(|r| 3.0 * x_of(r, i) + y_of(r, i)).sum();
    (0..team.size()).try_for_each(|r| check("vector", r, &team.content(r, &sums[r])?, sum))
}

/// `count` elements.
fn vector_ring(places: &Places<'_>, count: usize, form: Form, ready: &dyn Fn()) -> Outcome {
    let blocks = count.div_ceil(4096).clamp(1, 8) as u32;
    let mut config = DeviceCommConfig::default();
    config.channels = DeviceChannels::rings(blocks);
    let team = Team::with(places, &config)?;
    let (x_of, y_of) =
        (|r: usize, i: usize| ((i + r) % 7) as f32, |r: usize, i: usize| ((2 * i + r) % 5) as f32);
    let (x, y) = (team.buffers(count, x_of)?, team.buffers(count, y_of)?);
    let values = team.buffers(count, |_, _| 0.0f32)?;
    let sums = team.buffers(count, |_, _| 0.0f32)?;
    team.streams.iter().try_for_each(|stream| stream.synchronize())?;
    let argument = |r: usize| {
        Ok(Ring {
            comm: team.comms[r].value(),
            values: values[r].address(),
            sums: sums[r].address(),
            x: x[r].address(),
            y: y[r].address(),
            count: count as u64,
            blocks,
            a: 3.0,
        })
    };
    ready();
    // SAFETY: the buffers have what the kernels use, and are kept until `content` has waited for them.
    unsafe {
        match form {
            Form::Fused if count <= 4096 => team.launch(&ring::FUSED_LL, blocks, argument)?,
            Form::Fused => team.launch(&ring::FUSED, blocks, argument)?,
            Form::Apart => {
                team.launch(&ring::ALONE, blocks, argument)?;
                for (r, rank) in team.ranks.iter().enumerate() {
                    rank.all_reduce(&values[r], &sums[r], ReduceOp::Sum, &team.streams[r])?;
                }
            }
        }
    }
    let sum = |i: usize| (0..team.size()).map(|r| 3.0 * x_of(r, i) + y_of(r, i)).sum();
    (0..team.size()).try_for_each(|r| check("ring", r, &team.content(r, &sums[r])?, sum))
}

/// `n` rows a rank, of `n` columns.
fn gemm_reduce_scatter(places: &Places<'_>, n: usize, form: Form, ready: &dyn Fn()) -> Outcome {
    // A signal waits for all stores, and L1 is empty behind it: few tiles are better than many.
    let tile = n.div_ceil(4);
    let rows = 4 * tile;
    let (inner, columns) = (n.div_ceil(2), n);
    let count = (rows / tile) as u32;
    let blocks = count.min(4);
    let team = Team::new(places, blocks, count)?;
    let all = rows * team.size();
    let a_of = |r: usize, row: usize, k: usize| ((row + 2 * k + r) % 3) as f32;
    let b_of = |r: usize, k: usize, column: usize| ((k + column + r) % 4) as f32;
    let a = team.buffers(all * inner, |r, i| a_of(r, i / inner, i % inner))?;
    let b = team.buffers(inner * columns, |r, i| b_of(r, i / columns, i % columns))?;
    let partial = team.buffers(all * columns, |_, _| 0.0f32)?;
    let c = team.buffers(rows * columns, |_, _| 0.0f32)?;
    let inbox = team.buffers(all * columns, |_, _| 0.0f32)?;
    let (windows, of_inbox) = (team.windows(&partial)?, team.windows(&inbox)?);
    team.streams.iter().try_for_each(|stream| stream.synchronize())?;
    let argument = |r: usize| {
        Ok(Tiles {
            comm: team.comms[r].value(),
            partial: windows[r].value()?,
            inbox: of_inbox[r].value()?,
            a: a[r].address(),
            b: b[r].address(),
            c: c[r].address(),
            rows: rows as u32,
            inner: inner as u32,
            columns: columns as u32,
            tile: tile as u32,
            blocks,
            pad: 0,
        })
    };
    ready();
    // SAFETY: as above.
    unsafe {
        match form {
            Form::Fused => team.launch(&tiles::FUSED, blocks, argument)?,
            Form::Apart => {
                team.launch(&tiles::ALONE, blocks, argument)?;
                for (r, rank) in team.ranks.iter().enumerate() {
                    rank.reduce_scatter(&partial[r], &c[r], ReduceOp::Sum, &team.streams[r])?;
                }
            }
        }
    }
    for (r, c) in c.iter().enumerate() {
        let want = |i: usize| {
            let (row, column) = (r * rows + i / columns, i % columns);
            let product =
                |r: usize| (0..inner).map(|k| a_of(r, row, k) * b_of(r, k, column)).sum::<f32>();
            (0..team.size()).map(product).sum()
        };
        check("GEMM", r, &team.content(r, c)?, want)?;
    }
    Ok(())
}

/// `count` tokens a rank, whose experts are all over the ranks, and on some of them more than on others.
fn mixture_of_experts(places: &Places<'_>, count: usize, form: Form, ready: &dyn Fn()) -> Outcome {
    let team = Team::new(places, 1, 2)?;
    let (n, width) = (team.size(), 64);
    let token_of = |r: usize, i: usize| ((i + 5 * r) % 11) as f32;
    let expert_of = |r: usize, token: usize| ((token * token + r) % (2 * n + 1)) as u32;
    let tokens = team.buffers(count * width, token_of)?;
    let experts = team.buffers(count, expert_of)?;
    let inbox = team.buffers(n * count * width, |_, _| 0.0f32)?;
    let labels = team.buffers(n * label_words(count), |_, _| 0u64)?;
    let results = team.buffers(count * width, |_, _| 0.0f32)?;
    let outbox = team.buffers(n * count * width, |_, _| 0.0f32)?;
    let sent = team.buffers(n * label_words(count), |_, _| 0u64)?;
    let output = team.buffers(count * width, |_, _| 0.0f32)?;
    let (of_inbox, of_labels) = (team.windows(&inbox)?, team.windows(&labels)?);
    let of_results = team.windows(&results)?;
    let (of_outbox, of_sent) = (team.windows(&outbox)?, team.windows(&sent)?);
    team.streams.iter().try_for_each(|stream| stream.synchronize())?;
    if form == Form::Apart {
        // What lies around them has kernels of its own; what they carry does not matter to their time.
        let other = team.buffers(n * count * width, |_, _| 0.0f32)?;
        team.streams.iter().try_for_each(|stream| stream.synchronize())?;
        ready();
        for (send, recv) in [(&other, &inbox), (&inbox, &other)] {
            group(|| {
                (0..n).try_for_each(|r| {
                    team.ranks[r].all_to_all(&send[r], &recv[r], &team.streams[r])
                })
            })?;
        }
        return Ok(team.streams.iter().try_for_each(|stream| stream.synchronize())?);
    }
    let argument = |r: usize| {
        Ok(Experts {
            comm: team.comms[r].value(),
            inbox: of_inbox[r].value()?,
            labels: of_labels[r].value()?,
            results: of_results[r].value()?,
            outbox: of_outbox[r].value()?,
            sent: of_sent[r].value()?,
            tokens: tokens[r].address(),
            experts: experts[r].address(),
            output: output[r].address(),
            count: count as u32,
            width: width as u32,
        })
    };
    ready();
    // SAFETY: as above.
    unsafe { team.launch(&experts::FUSED, n as u32, argument)? };
    for (r, output) in output.iter().enumerate() {
        let want = |i: usize| token_of(r, i) * (1.0 + (expert_of(r, i / width) + 2) as f32);
        check("experts", r, &team.content(r, output)?, want)?;
    }
    Ok(())
}

/// `columns` columns, 3 rows a rank, 5 steps.
fn stencil(places: &Places<'_>, columns: usize, form: Form, ready: &dyn Fn()) -> Outcome {
    let (rows, steps) = (3, 5u32);
    let blocks = columns.div_ceil(512).clamp(1, 4) as u32;
    let team = Team::new(places, 1, 2 * blocks)?;
    let n = team.size();
    // Multiples of 1024: quarters stay whole.
    let value = |row: usize, column: usize| (1024 * ((3 * row + column) % 16)) as f32;
    // Row 0 of a rank is the last of the one before.
    let start = |r: usize, i: usize| value(r * rows + i / columns, i % columns);
    let (even, odd) =
        (team.buffers((rows + 2) * columns, start)?, team.buffers((rows + 2) * columns, start)?);
    let (of_even, of_odd) = (team.windows(&even)?, team.windows(&odd)?);
    team.streams.iter().try_for_each(|stream| stream.synchronize())?;
    let argument = |first: u32, steps: u32| {
        let (team, of_even, of_odd) = (&team, &of_even, &of_odd);
        move |r: usize| {
            Ok(Halo {
                comm: team.comms[r].value(),
                even: of_even[r].value()?,
                odd: of_odd[r].value()?,
                rows: rows as u32,
                columns: columns as u32,
                steps,
                first,
                blocks,
                pad: 0,
            })
        }
    };
    ready();
    // SAFETY: as above.
    unsafe {
        match form {
            Form::Fused => team.launch(&halo::FUSED, blocks, argument(0, steps))?,
            Form::Apart => (0..steps)
                .try_for_each(|step| team.launch(&halo::FUSED, blocks, argument(step, 1)))?,
        }
    }
    let all = n * rows + 2;
    let mut grid: Vec<f32> = (0..all * columns).map(|i| value(i / columns, i % columns)).collect();
    for _ in 0..steps {
        let old = grid.clone();
        for i in columns..(all - 1) * columns {
            grid[i] = (old[i - columns] + 2.0 * old[i] + old[i + columns]) * 0.25;
        }
    }
    for r in 0..n {
        let got = team.content(r, &odd[r])?;
        let own = &got[columns..(rows + 1) * columns];
        check("stencil", r, own, |i| grid[(r * rows + 1) * columns + i])?;
    }
    Ok(())
}
