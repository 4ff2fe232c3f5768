//! FerroCCL against Open MPI, also over UCX, MPICH and gloo, side by side, and against the machine's memory.
//!
//! ```text
//! cargo bench --bench compare                      4 and 16 ranks, 8 B to 64 MiB, to the terminal
//! cargo bench --bench compare -- --record NAME     also to benches/records/DATE-NAME.md
//! cargo bench --bench compare -- --collectives all_gather,broadcast --ranks 4 --sizes 8,4096 --rounds 3    a part of it
//! cargo bench --bench compare -- --gloo PYTHON     also against gloo, by a Python that has torch
//! cargo bench --bench compare -- --hosts 2 --ranks 2   over TCP, as if ranks were on two hosts
//! cargo bench --bench compare -- --ways one-thread,processes     instead of peers, FerroCCL's own algorithms and protocols
//! ```
//!
//! All contestants are up at once and asleep. At each size they are asked one after the other, in
//! another order in each round; ratios are taken within a round, and the record shows their medians.
//! So it can be run on a machine that does other things too: the record says how busy others kept it.
//!
//! OpenMPI gets several settings and is shown with the one that is best at the size.
//! One thread's FerroCCL runs also with other settings than its own choice ([`VARIANTS`]): the constants that
//! choose rest on that table.
//!
//! It needs `mpicc` and `mpirun` (Debian's openmpi-bin and libopenmpi-dev); one of Open MPI's settings is UCX. MPICH (Debian's mpich and libmpich-dev) takes part where it
//! is; `scripts/python-tests torch` makes a Python that has torch. At the end it says where FerroCCL is slower than the fastest peer.

mod ferro;
mod machine;
mod memory;
mod peer;
mod record;
mod ways;
mod worker;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Parser;
use ferroccl::{Collective, CommConfig, Communicator, Device, ProtocolId};

use ferro::{Group, Threads};
use peer::{Peer, Request, Sample, named};

/// Whatever went wrong; this program reports it and ends.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T> = Result<T, Failure>;

/// Name and `mpirun` arguments.
type Setting = (&'static str, &'static [&'static str]);

/// What OpenMPI is tried with. The single copy through the kernel (CMA)
/// and yielding when oversubscribed are its own choices in all of them; without either it is slower
/// here at every size, and without yielding by three orders of magnitude. Each process is bound to a core, as ours are: unbound, which is
/// Open MPI's own choice for more processes than cores, it takes up to two fifths longer for small all-reduces
/// (`benches/records/2026-11-28-bound-ranks.md`).
/// The last one needs an Open MPI with UCX, as Debian's is; that takes what this machine has for want of the networks that it is made for.
const MPI_SETTINGS: [Setting; 4] = [
    ("default", &["--bind-to", "core:overload-allowed"]),
    (
        "eager 64 KiB",
        &["--bind-to", "core:overload-allowed", "--mca", "btl_vader_eager_limit", "65536"],
    ),
    (
        "ring algorithm",
        &[
            "--bind-to",
            "core:overload-allowed",
            "--mca",
            "coll_tuned_use_dynamic_rules",
            "1",
            "--mca",
            "coll_tuned_allreduce_algorithm",
            "4",
        ],
    ),
    (
        "UCX",
        &[
            "--bind-to",
            "core:overload-allowed",
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "pml_ucx_tls",
            "any",
            "--mca",
            "pml_ucx_devices",
            "any",
        ],
    ),
];

/// What OpenMPI is tried with instead over several hosts: nothing but TCP, on loopback. Ranks may not be bound to a core: a proxy, or a thread of
/// the library's, shares it then. The last one is UCX again.
const MPI_SETTINGS_OVER_TCP: [Setting; 3] = [
    (
        "TCP",
        &[
            "--bind-to",
            "core:overload-allowed",
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            "lo",
        ],
    ),
    (
        "TCP, unbound",
        &["--bind-to", "none", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"],
    ),
    (
        "UCX over TCP",
        &[
            "--bind-to",
            "none",
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "pml_ucx_tls",
            "any",
            "--mca",
            "pml_ucx_devices",
            "any",
            "-x",
            "UCX_TLS=tcp,self",
            "-x",
            "UCX_NET_DEVICES=lo",
        ],
    ),
];

/// A name, the sizes worth the time, and what it sets.
type Variant = (&'static str, RangeInclusive<u64>, fn(&mut CommConfig));

/// Settings that FerroCCL is tried with besides its own choice.
const VARIANTS: [Variant; 7] = [
    ("LL", 0..=SMALL, |config| config.protocol = Some(ProtocolId::Ll)),
    ("LL128", 0..=SMALL, |config| config.protocol = Some(ProtocolId::Ll128)),
    ("Simple", 0..=SMALL, |config| config.protocol = Some(ProtocolId::Simple)),
    ("2 slots", LARGE..=u64::MAX, |config| config.slots = Some(2)),
    ("8 slots", LARGE..=u64::MAX, |config| config.slots = Some(8)),
    ("64 KiB of slots", LARGE..=u64::MAX, |config| config.buffer_bytes[2] = Some(64 << 10)),
    ("1 MiB of slots", LARGE..=u64::MAX, |config| config.buffer_bytes[2] = Some(1 << 20)),
];
/// Up to here the protocol is worth a comparison.
const SMALL: u64 = 256 << 10;
/// From here on the slots are.
const LARGE: u64 = 256 << 10;

/// 16 ranks of this many bytes are the case with published figures: 6,000,000 f32.
const RING_CASE: (u32, u64) = (16, 24_000_000);

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Contestant {
    /// Open MPI's collective, with a setting of [`MPI_SETTINGS`].
    Mpi(usize),
    /// MPICH's.
    Mpich,
    /// gloo's, by torch.
    Gloo,
    /// The plain ring over `MPI_Sendrecv`, with such a setting.
    MpiRing(usize),
    /// FerroCCL, one thread that drives all ranks.
    OneThread,
    /// FerroCCL, a thread a rank.
    Threads,
    /// FerroCCL, a process a rank.
    Processes,
    /// FerroCCL, one thread, with a setting of [`VARIANTS`].
    Variant(usize),
}

/// Compares FerroCCL's collectives with those of Open MPI, MPICH and gloo.
#[derive(Debug, Parser)]
struct Options {
    /// Which collectives: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all.
    #[arg(long, value_delimiter = ',', value_parser = |text: &str| named(text).map_err(|e| e.to_string()), default_value = "all_reduce")]
    collectives: Vec<Collective>,
    /// Numbers of ranks.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 16])]
    ranks: Vec<u32>,
    /// Bytes of a rank's largest buffer.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 24_000_000, 64 << 20])]
    sizes: Vec<u64>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long one figure of one contestant is measured at one size.
    #[arg(long, default_value_t = 0.08)]
    seconds: f64,
    /// Wait up to so many seconds at each size for the machine to be quiet.
    #[arg(long, default_value_t = 5.0)]
    patience: f64,
    /// So many hosts, of which each has as many ranks: of this machine, whose processes then say that they are on different hosts and reach each
    /// other by TCP over loopback. MPICH is left out.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// Leave the processes out.
    #[arg(long, conflicts_with = "hosts")]
    no_processes: bool,
    /// Leave the copies out, and what is computed from them.
    #[arg(long)]
    no_memory: bool,
    /// Leave the other settings out.
    #[arg(long)]
    no_variants: bool,
    /// Instead of the peers, every algorithm and protocol of FerroCCL beside what a communicator chooses, with ranks so placed.
    #[arg(long, value_delimiter = ',', value_name = "PLACES")]
    ways: Vec<ways::Place>,
    /// A Python that has torch, for gloo.
    #[arg(long, value_name = "PYTHON")]
    gloo: Option<PathBuf>,
    /// Leave MPICH out.
    #[arg(long)]
    no_mpich: bool,
    /// Write benches/records/DATE-NAME.md.
    #[arg(long, value_name = "NAME")]
    record: Option<String>,
    /// What cargo gives a bench.
    #[arg(long, hide = true)]
    bench: bool,
    /// Be a rank: `RANK/RANKS`.
    #[arg(long, hide = true)]
    worker: Option<String>,
}

impl Options {
    /// Whether ranks are to reach each other by the network alone.
    fn over_network(&self) -> bool {
        self.hosts > 1
    }

    fn mpi_settings(&self) -> &'static [Setting] {
        if self.over_network() { &MPI_SETTINGS_OVER_TCP } else { &MPI_SETTINGS }
    }
}

/// Everything that was measured.
#[derive(Debug, Default)]
struct Results {
    /// By collective, ranks, bytes and contestant; one sample a round.
    samples: BTreeMap<(Collective, u32, u64, Contestant), Vec<Sample>>,
    /// What a contestant cannot do, and why.
    cannot: BTreeMap<(Collective, Contestant), String>,
    /// Part of the cores that others used, sampled while all contestants slept.
    foreign: Vec<f64>,
    /// By ranks and bytes, what copying all buffers takes; one a round.
    copies: BTreeMap<(u32, u64), Vec<memory::Copied>>,
}

fn main() -> Outcome<()> {
    let options = Options::parse();
    if let Some(place) = &options.worker {
        return worker::run(place);
    }
    if !options.bench {
        println!("compare: run as `cargo bench --bench compare`"); // `cargo test` starts benches too
        return Ok(());
    }
    if let Some(ranks) = options.ranks.iter().find(|ranks| *ranks % options.hosts != 0) {
        return Err(
            format!("--ranks {ranks}: {} hosts cannot have as many each", options.hosts).into()
        );
    }
    if !options.ways.is_empty() {
        return ways::compare(&options);
    }
    let programs = Programs {
        open_mpi: peer::OPEN_MPI.compile()?,
        settings: options.mpi_settings().len() - usize::from(!peer::open_mpi_has_ucx()),
        mpich: peer::MPICH
            .version()
            .filter(|_| !options.no_mpich && !options.over_network())
            .map(|_| peer::MPICH.compile())
            .transpose()?,
    };
    let mut results = Results::default();
    let path = record::path(&options);
    for round in 0..options.rounds {
        for &ranks in &options.ranks {
            compare(&options, &programs, ranks, round, &mut results)?;
        }
        // After every round: what was measured is kept, whatever ends the next one.
        if let Some(path) = &path {
            std::fs::write(path, record::markdown(&options, &results, round + 1))?;
            eprintln!("written: {}", path.display());
        }
    }
    println!("{}", record::markdown(&options, &results, options.rounds));
    eprintln!("{}", record::summary(&options, &results));
    Ok(())
}

/// What the peers run.
struct Programs {
    open_mpi: String,
    /// How many of [`Options::mpi_settings`] it has.
    settings: usize,
    /// Where there is MPICH.
    mpich: Option<String>,
}

/// One round of everyone with `ranks` ranks. All are started anew, so that one lucky placement in memory
/// is not in every round.
fn compare(
    options: &Options,
    programs: &Programs,
    ranks: u32,
    round: usize,
    results: &mut Results,
) -> Outcome<()> {
    let device = Device::cpu();
    let mut mpi = options.mpi_settings()[..programs.settings]
        .iter()
        .map(|(_, setting)| Peer::mpi(&programs.open_mpi, ranks, setting))
        .collect::<Outcome<Vec<_>>>()?;
    let mut mpich =
        programs.mpich.as_deref().map(|program| Peer::mpich(program, ranks)).transpose()?;
    let mut gloo = options.gloo.as_deref().map(|python| Peer::gloo(python, ranks)).transpose()?;
    // Those of one process are on one host.
    let here = !options.over_network();
    let of_process = || Communicator::init_all(&device, ranks);
    let one_thread = here.then(|| Group::new(&device, of_process()?)).transpose()?;
    let threads = here.then(|| Threads::start(&device, of_process()?)).transpose()?;
    let mut processes =
        (!options.no_processes).then(|| Peer::ferro(ranks, options.hosts)).transpose()?;

    let variants = VARIANTS
        .iter()
        .filter(|_| here && !options.no_variants)
        .map(|(_, _, set)| {
            let mut config = CommConfig::default();
            set(&mut config);
            Group::new(&device, Communicator::init_all_with(&device, ranks, &config)?)
        })
        .collect::<Outcome<Vec<_>>>()?;

    // Who is starting takes the cores: 16 processes of torch need half a minute of them.
    let peers = mpi.iter_mut().chain(&mut mpich).chain(&mut gloo).chain(&mut processes);
    for peer in peers {
        let (collective, bytes) = (Collective::AllReduce, 8);
        peer.ask(Request { collective, ring: false, bytes, seconds: 0.0, way: None })?;
    }

    let cases = options
        .collectives
        .iter()
        .flat_map(|collective| options.sizes.iter().rev().map(move |bytes| (*collective, *bytes)));
    // Without an element for each rank there is no call to compare: MPI does nothing at all.
    let cases = cases.filter(|(collective, bytes)| has_elements(*collective, ranks, *bytes));
    for (collective, bytes) in cases {
        let all_reduce = collective == Collective::AllReduce;
        let variants_there = if all_reduce { variants.len() } else { 0 };
        let mut turns = turns(ranks, bytes, (mpi.len(), processes.is_some(), variants_there));
        turns.retain(|who| all_reduce || !matches!(who, Contestant::MpiRing(_)));
        turns.retain(|who| here || !matches!(who, Contestant::OneThread | Contestant::Threads));
        turns.extend(mpich.as_ref().map(|_| Contestant::Mpich));
        turns.extend(gloo.as_ref().map(|_| Contestant::Gloo));
        turns.retain(|who| !results.cannot.contains_key(&(collective, *who)));
        let first = round % turns.len();
        turns.rotate_left(first);
        results.foreign.push(machine::wait_for_quiet(options.patience));
        eprint!("{}, {ranks} ranks, round {}, {bytes} B:", peer::name(collective), round + 1);
        if all_reduce && here && !options.no_memory && bytes >= record::COPIES_FROM {
            let copied =
                memory::copy(&device, ranks, bytes, machine::cores(), options.seconds / 2.0)?;
            eprint!(" copy {:.1}", copied.us);
            results.copies.entry((ranks, bytes)).or_default().push(copied);
        }
        for who in turns {
            let ring = matches!(who, Contestant::MpiRing(_));
            let request = Request { collective, ring, bytes, seconds: options.seconds, way: None };
            let asked = |peer: &mut Option<Peer>| peer.as_mut().map(|peer| peer.ask(request));
            let sample = match who {
                Contestant::Mpi(i) | Contestant::MpiRing(i) => mpi[i].ask(request)?,
                Contestant::Mpich | Contestant::Gloo => {
                    let peer = if who == Contestant::Mpich { &mut mpich } else { &mut gloo };
                    match asked(peer) {
                        Some(answer) => answer?,
                        None => continue,
                    }
                }
                Contestant::OneThread => match &one_thread {
                    Some(group) => group.measure(request)?,
                    None => continue,
                },
                Contestant::Threads => match &threads {
                    Some(threads) => threads.measure(request)?,
                    None => continue,
                },
                Contestant::Processes => match asked(&mut processes) {
                    Some(answer) => answer?,
                    None => continue,
                },
                Contestant::Variant(i) => variants[i].measure(request)?,
            };
            if let Some(reason) = sample.error {
                eprint!(" {who:?}: {reason}");
                results.cannot.insert((collective, who), reason);
                continue;
            }
            if sample.wrong > 0 {
                return Err(format!("{who:?}: {} wrong elements at {bytes} B", sample.wrong).into());
            }
            eprint!(" {who:?} {:.1}", sample.stream_us());
            results.samples.entry((collective, ranks, bytes, who)).or_default().push(sample);
        }
        eprintln!();
    }
    Ok(())
}

/// Whether each rank has an element of its own in a buffer of that size.
fn has_elements(collective: Collective, ranks: u32, bytes: u64) -> bool {
    let parts = match collective {
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => ranks.into(),
        _ => 1,
    };
    bytes >= parts * size_of::<f32>() as u64
}

/// Who is measured, of so many settings of Open MPI, processes, and so many variants.
fn turns(
    ranks: u32,
    bytes: u64,
    (settings, processes, variants): (usize, bool, usize),
) -> Vec<Contestant> {
    // FerroCCL's between MPI's, so that none of them has the quiet seconds for itself.
    let ours = [Contestant::OneThread, Contestant::Threads, Contestant::Processes];
    let ours = &ours[..if processes { 3 } else { 2 }];
    let mut turns = Vec::new();
    for i in 0..settings.max(ours.len()) {
        turns.extend((i < settings).then_some(Contestant::Mpi(i)));
        turns.extend(ours.get(i));
    }
    if (ranks, bytes) == RING_CASE {
        turns.extend((0..settings).map(Contestant::MpiRing));
    }
    let worth = |i: &usize| VARIANTS[*i].1.contains(&bytes);
    turns.extend((0..variants).filter(worth).map(Contestant::Variant));
    turns
}
