//! The record: what was measured, where and how, as Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use ferroccl::Collective;

use crate::machine::{self, said};
use crate::peer;
use crate::peer::Sample;
use crate::{Contestant, Options, RING_CASE, Results, Setting, VARIANTS};

const ALL_REDUCE: Collective = Collective::AllReduce;

/// What is measured at once: a collective, ranks, bytes.
type Case = (Collective, u32, u64);

/// One of a sample's figures.
#[derive(Clone, Copy)]
struct Figure {
    title: &'static str,
    meaning: &'static str,
    of: fn(&Sample) -> f64,
}

const FIGURES: [Figure; 3] = [
    Figure {
        title: "operations in a row",
        meaning: "FerroCCL's are enqueued one after the other, then waited for once, as nccl-tests does it; \
                  MPI's are called one after the other.",
        of: Sample::stream_us,
    },
    Figure {
        title: "each waited for",
        meaning: "A rank starts its next operation when its last is complete; no barrier between them. \
                  MPI's as above.",
        of: |sample| sample.batch_us,
    },
    Figure {
        title: "one at a time",
        meaning: "One operation after a barrier, slowest rank: with more ranks than cores, their skew in \
                  leaving the barrier is in it.",
        of: |sample| sample.each_us,
    },
];

const FERRO: [(Contestant, &str); 3] = [
    (Contestant::OneThread, "one thread"),
    (Contestant::Threads, "thread a rank"),
    (Contestant::Processes, "processes"),
];

/// From this size on copies are measured: below, an operation's time is not that of moving data.
pub(crate) const COPIES_FROM: u64 = 256 << 10;

/// Where it goes, if anywhere.
pub(crate) fn path(options: &Options) -> Option<PathBuf> {
    let name = options.record.as_ref()?;
    let today = said("date", &["-u", "+%F"]);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    Some(directory.join(format!("benches/records/{today}-{name}.md")))
}

/// The whole record, of so many rounds.
pub(crate) fn markdown(options: &Options, results: &Results, rounds: usize) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut out, options, results, rounds);
    for &collective in &options.collectives {
        for &ranks in &options.ranks {
            for figure in FIGURES {
                let _ = times(&mut out, options, results, (collective, ranks), figure);
            }
            if collective == ALL_REDUCE && !options.no_memory && !options.over_network() {
                let _ = copies(&mut out, options, results, ranks);
            }
            if collective == ALL_REDUCE && !options.no_variants && !options.over_network() {
                let _ = variants(&mut out, options, results, ranks);
            }
        }
    }
    let _ = ring_case(&mut out, options, results);
    let _ = writeln!(
        out,
        "\n## Where FerroCCL is slower than the fastest peer\n\n{}",
        summary(options, results)
    );
    out
}

/// Where FerroCCL is slower than the fastest of its peers, from the worst on: a call waited for before the next.
pub(crate) fn summary(options: &Options, results: &Results) -> String {
    let settings = options.mpi_settings();
    let figure = FIGURES[1];
    let mut cases: Vec<_> = results.samples.keys().map(|key| (key.0, key.1, key.2)).collect();
    cases.dedup();
    let (mut all, mut slower) = (0, Vec::new());
    for (collective, ranks, bytes) in cases {
        let of = |who| series(results, (collective, ranks, bytes), who, figure);
        let mpi = (0..settings.len()).map(Contestant::Mpi);
        let peers = mpi.chain([Contestant::Mpich, Contestant::Gloo]);
        let middle = |times: &Vec<f64>| median(times.iter().copied());
        let peers = peers.map(|who| (who, of(who))).filter(|(_, times)| !times.is_empty());
        let fastest = peers.min_by(|a, b| middle(&a.1).total_cmp(&middle(&b.1)));
        let Some((peer, theirs)) = fastest else { continue };
        for (who, way) in FERRO {
            let ours = of(who);
            if ours.is_empty() {
                continue;
            }
            all += 1;
            let factor = median(theirs.iter().zip(&ours).map(|(their, our)| their / our));
            if factor < 1.0 {
                let case =
                    format!("{} of {}, {ranks} ranks, {way}", peer::name(collective), size(bytes));
                slower.push((
                    factor,
                    format!("{case}: {factor:.2} of {}", peer_name(peer, settings)),
                ));
            }
        }
    }
    slower.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut text = format!("In {} of {all} cases, each call waited for:\n", slower.len());
    for (_, line) in slower {
        text += &format!("\n- {line}");
    }
    text
}

fn peer_name(peer: Contestant, settings: &[Setting]) -> String {
    match peer {
        Contestant::Mpich => "MPICH".to_owned(),
        Contestant::Gloo => "gloo".to_owned(),
        Contestant::Mpi(i) => format!("Open MPI ({})", settings[i].0),
        other => format!("{other:?}"),
    }
}

/// What a record begins with: when, what, where. `foreign` is the part of the cores that others used.
pub(crate) fn machine(out: &mut String, foreign: &[f64]) -> std::fmt::Result {
    let directory = env!("CARGO_MANIFEST_DIR");
    writeln!(out, "| | |\n|---|---|")?;
    writeln!(out, "| date | {} |", said("date", &["-u", "+%F %H:%M UTC"]))?;
    let commit = said("git", &["-C", directory, "describe", "--always", "--dirty", "--abbrev=12"]);
    writeln!(out, "| commit | {commit} |")?;
    writeln!(
        out,
        "| processor | {}, {} cores, {} |",
        machine::model(),
        machine::cores(),
        machine::caches()
    )?;
    writeln!(out, "| kernel | {} |", said("uname", &["-sr"]))?;
    writeln!(
        out,
        "| compilers | {}; {} |",
        said("rustc", &["--version"]),
        said("mpicc", &["--version"])
    )?;
    let busy = median(foreign.iter().copied());
    let most = foreign.iter().copied().fold(0.0, f64::max);
    writeln!(
        out,
        "| others on the machine | before a size: {:.0} % of the cores in the median, {:.0} % at most |",
        busy * 100.0,
        most * 100.0
    )
}

fn head(out: &mut String, options: &Options, results: &Results, rounds: usize) -> std::fmt::Result {
    let name = options.record.as_deref().unwrap_or("not recorded");
    writeln!(out, "# Collectives against Open MPI, MPICH and gloo: {name}\n")?;
    machine(out, &results.foreign)?;
    for (name, mpi) in [("Open MPI", peer::OPEN_MPI), ("MPICH", peer::MPICH)] {
        let version = mpi.version().unwrap_or_else(|| "not on this machine".to_owned());
        writeln!(out, "| {name} | {version} |")?;
    }
    let gloo = options.gloo.as_ref().map(|python| {
        said(&python.to_string_lossy(), &["-c", "import torch; print('torch', torch.__version__)"])
    });
    writeln!(out, "| gloo | {} |", gloo.as_deref().unwrap_or("not asked for (--gloo)"))?;
    let busy = median(results.foreign.iter().copied());
    writeln!(
        out,
        "\nMade by `cargo bench --bench compare`: f32, out of place (torch's all_reduce, which is in place, with a copy), results compared exactly. Sizes are of a rank's largest \
         buffer. Medians of {} \
         rounds; in a round all take turns at a size, and a factor (×) is the median of the rounds' OpenMPI time / \
         FerroCCL time: above 1, FerroCCL is faster. Bandwidths are bus bandwidths as nccl-tests defines them (of an all-reduce 2 (n - 1) / n of \
         the size over the time), in 10^9 bytes a second.\n",
        rounds
    )?;
    if options.over_network() {
        writeln!(
            out,
            "Ranks are on {} hosts, as many on each, made of this machine: their processes reach each other by TCP over loopback (FerroCCL's have a \
             `NCCL_HOSTID` of their host's).\n",
            options.hosts
        )?;
    }
    writeln!(out, "OpenMPI is shown with the setting that is best at the size:\n")?;
    for (name, arguments) in options.mpi_settings() {
        writeln!(out, "- {name}: `mpirun --oversubscribe {}`", arguments.join(" "))?;
    }
    for ((collective, who), reason) in &results.cannot {
        writeln!(
            out,
            "\n{} of {}: {reason}",
            peer::name(*collective),
            peer_name(*who, options.mpi_settings())
        )?;
    }
    if busy > 0.1 {
        writeln!(
            out,
            "\n**The machine was not quiet: others had {:.0} % of it. Trust factors more than times.**",
            busy * 100.0
        )?;
    }
    Ok(())
}

fn times(
    out: &mut String,
    options: &Options,
    results: &Results,
    (collective, ranks): (Collective, u32),
    figure: Figure,
) -> std::fmt::Result {
    let name = peer::name(collective);
    writeln!(out, "\n## {name}, {ranks} ranks, {}\n\n{}\n", figure.title, figure.meaning)?;
    let there =
        |who| results.samples.keys().any(|key| (key.0, key.1, key.3) == (collective, ranks, who));
    let ours: Vec<_> = FERRO.into_iter().filter(|(who, _)| there(*who)).collect();
    write!(out, "| bytes | OpenMPI µs | setting |")?;
    ours.iter().try_for_each(|(_, name)| write!(out, " {name} µs | × |"))?;
    write!(out, " busbw: OpenMPI |")?;
    ours.iter().try_for_each(|(_, name)| write!(out, " {name} |"))?;
    let others = [(Contestant::Mpich, "MPICH"), (Contestant::Gloo, "gloo")];
    let others: Vec<_> = others.into_iter().filter(|(who, _)| there(*who)).collect();
    others.iter().try_for_each(|(_, name)| write!(out, " {name} µs |"))?;
    writeln!(out, "\n|{}", "---:|".repeat(4 + 3 * ours.len() + others.len()))?;
    for &bytes in &options.sizes {
        let case = (collective, ranks, bytes);
        let Some((setting, mpi)) = best_mpi(options, results, case, (Contestant::Mpi, figure))
        else {
            continue;
        };
        write!(out, "| {} | {} | {setting} |", size(bytes), time(median(mpi.iter().copied())))?;
        let ferro: Vec<_> =
            ours.iter().map(|(who, _)| series(results, case, *who, figure)).collect();
        for times in &ferro {
            if times.is_empty() {
                write!(out, " | |")?;
            } else {
                let factor = median(mpi.iter().zip(times).map(|(mpi, ferro)| mpi / ferro));
                write!(out, " {} | {factor:.2} |", time(median(times.iter().copied())))?;
            }
        }
        for times in [&mpi].into_iter().chain(&ferro) {
            match median(times.iter().copied()) {
                0.0 => write!(out, " |")?,
                us => write!(out, " {} |", gbps(busbw(case, us)))?,
            }
        }
        for (who, _) in &others {
            match median(series(results, case, *who, figure).into_iter()) {
                0.0 => write!(out, " |")?,
                us => write!(out, " {} |", time(us))?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Time as copies: what limits each.
fn copies(out: &mut String, options: &Options, results: &Results, ranks: u32) -> std::fmt::Result {
    let n = f64::from(ranks);
    writeln!(
        out,
        "\n## {ranks} ranks, what an operation costs in copies\n\n\
         Time of an operation in a row, as the number of times the machine could have copied all ranks' buffers \
         to others in it; the copy is the round's fastest of several loops (benches/compare/memory.rs) on one or \
         all cores, on the same kind of memory. An out-of-place all-reduce is at least one such copy: it reads n \
         inputs and writes n outputs. FerroCCL's ring within a process writes (2n - 1) / n = {:.2} times the \
         buffers, 1.00 to the outputs and {:.2} to slots, which are meant to stay in a core's cache; between \
         processes it writes (3n - 2) / n = {:.2} times.\n",
        (2.0 * n - 1.0) / n,
        (n - 1.0) / n,
        (3.0 * n - 2.0) / n,
    )?;
    write!(out, "| bytes | copy µs | GB/s | by | OpenMPI |")?;
    FERRO.iter().try_for_each(|(_, name)| write!(out, " {name} |"))?;
    writeln!(out, "\n|---:|---:|---:|---|{}", "---:|".repeat(1 + FERRO.len()))?;
    let figure = FIGURES[0];
    for &bytes in options.sizes.iter().filter(|bytes| **bytes >= COPIES_FROM) {
        let (Some((_, mpi)), Some(copied)) = (
            best_mpi(options, results, (ALL_REDUCE, ranks, bytes), (Contestant::Mpi, figure)),
            results.copies.get(&(ranks, bytes)),
        ) else {
            continue;
        };
        let us = median(copied.iter().map(|copied| copied.us));
        let by = copied.iter().min_by(|a, b| a.us.total_cmp(&b.us));
        let by = by.map_or_else(String::new, |by| format!("{}, {} t", by.body.name(), by.threads));
        write!(
            out,
            "| {} | {} | {:.1} | {by} |",
            size(bytes),
            time(us),
            n * bytes as f64 / us / 1e3
        )?;
        let case = (ALL_REDUCE, ranks, bytes);
        let ferro = FERRO.map(|(who, _)| series(results, case, who, figure));
        for times in [&mpi].into_iter().chain(&ferro) {
            match copies_of(results, ranks, bytes, times) {
                Some(copies) => write!(out, " {} |", marked(copies))?,
                None => write!(out, " |")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// FerroCCL on one thread with other settings.
fn variants(
    out: &mut String,
    options: &Options,
    results: &Results,
    ranks: u32,
) -> std::fmt::Result {
    writeln!(
        out,
        "\n## {ranks} ranks, other settings\n\nFerroCCL, one thread, operations in a row: its own choice in µs, and \
         each setting's time over it: above 1, the choice is faster.\n"
    )?;
    write!(out, "| bytes | own choice µs |")?;
    VARIANTS.iter().try_for_each(|(name, ..)| write!(out, " {name} |"))?;
    writeln!(out, "\n|{}", "---:|".repeat(2 + VARIANTS.len()))?;
    let figure = FIGURES[0];
    for &bytes in &options.sizes {
        let case = (ALL_REDUCE, ranks, bytes);
        let own = series(results, case, Contestant::OneThread, figure);
        write!(out, "| {} | {} |", size(bytes), time(median(own.iter().copied())))?;
        for i in 0..VARIANTS.len() {
            let times = series(results, case, Contestant::Variant(i), figure);
            if times.is_empty() {
                write!(out, " |")?;
            } else {
                write!(
                    out,
                    " {:.2} |",
                    median(times.iter().zip(&own).map(|(time, own)| time / own))
                )?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn ring_case(out: &mut String, options: &Options, results: &Results) -> std::fmt::Result {
    let (ranks, bytes) = RING_CASE;
    let figure = FIGURES[1];
    let case = (ALL_REDUCE, ranks, bytes);
    let mut rows = Vec::new();
    for (kind, name) in [
        (Contestant::Mpi as fn(usize) -> Contestant, "MPI_Allreduce"),
        (Contestant::MpiRing, "plain ring, MPI_Sendrecv"),
    ] {
        if let Some((setting, times)) = best_mpi(options, results, case, (kind, figure)) {
            rows.push((format!("{name} ({setting})"), times));
        }
    }
    for (who, name) in FERRO {
        rows.push((format!("FerroCCL, {name}"), series(results, case, who, figure)));
    }
    rows.retain(|(_, times)| !times.is_empty());
    let Some((_, base)) = rows.first().cloned() else { return Ok(()) };
    writeln!(
        out,
        "\n## {ranks} ranks, {} f32\n\nEach waited for. A published run has 146 ms for MPI_Allreduce and 101 ms for \
         the plain ring, on another machine.\n",
        bytes / 4,
    )?;
    if let Some(copied) = results.copies.get(&(ranks, bytes)) {
        let ms = median(copied.iter().map(|copied| copied.us)) / 1e3;
        writeln!(out, "One copy of all buffers takes {ms:.1} ms here.\n")?;
    }
    writeln!(out, "| | ms | × | busbw GB/s | copies |\n|---|---:|---:|---:|---:|")?;
    for (name, times) in rows {
        let us = median(times.iter().copied());
        let factor = median(base.iter().zip(&times).map(|(mpi, time)| mpi / time));
        let copies = copies_of(results, ranks, bytes, &times).map_or_else(String::new, marked);
        writeln!(
            out,
            "| {name} | {:.1} | {factor:.2} | {:.2} | {copies} |",
            us / 1e3,
            busbw(case, us),
        )?;
    }
    Ok(())
}

/// The setting with the least median, and its rounds.
fn best_mpi(
    options: &Options,
    results: &Results,
    case: Case,
    (kind, figure): (fn(usize) -> Contestant, Figure),
) -> Option<(&'static str, Vec<f64>)> {
    let settings = options.mpi_settings();
    settings
        .iter()
        .enumerate()
        .map(|(i, (name, _))| (*name, series(results, case, kind(i), figure)))
        .filter(|(_, times)| !times.is_empty())
        .min_by(|(_, a), (_, b)| median(a.iter().copied()).total_cmp(&median(b.iter().copied())))
}

fn series(
    results: &Results,
    (collective, ranks, bytes): Case,
    who: Contestant,
    figure: Figure,
) -> Vec<f64> {
    let samples = results.samples.get(&(collective, ranks, bytes, who));
    samples.into_iter().flatten().map(figure.of).collect()
}

/// The middle one, the lower of two; 0 of none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

fn busbw((collective, ranks, bytes): Case, us: f64) -> f64 {
    let others = f64::from(ranks - 1) / f64::from(ranks);
    let factor = match collective {
        Collective::AllReduce => 2.0 * others,
        Collective::Broadcast => 1.0,
        _ => others,
    };
    bytes as f64 / us / 1e3 * factor
}

/// The rounds' times over the same rounds' copies, their median.
fn copies_of(results: &Results, ranks: u32, bytes: u64, times: &[f64]) -> Option<f64> {
    let copied = results.copies.get(&(ranks, bytes))?;
    (!times.is_empty())
        .then(|| median(times.iter().zip(copied).map(|(time, copied)| time / copied.us)))
}

/// What is below one copy cannot be: then the copy was measured badly, and the row says nothing.
fn marked(copies: f64) -> String {
    if copies < 1.0 { format!("**{copies:.2}: invalid**") } else { format!("{copies:.2}") }
}

pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b}"),
    }
}

fn gbps(rate: f64) -> String {
    if rate < 0.1 { format!("{rate:.4}") } else { format!("{rate:.2}") }
}

pub(crate) fn time(us: f64) -> String {
    if us < 100.0 { format!("{us:.2}") } else { format!("{us:.0}") }
}
