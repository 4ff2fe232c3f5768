//! What runs for a row: the algorithm, protocol and channels that the communicator chooses for its calls.
//!
//! A flag that forces one of them is a wish: not every collective, type and number of ranks has every algorithm and
//! protocol. What the communicator says is what the table and the record show. A flag that it cannot follow is a bad
//! command line ([`refusal`]). `NCCL_ALGO` and `NCCL_PROTO` are filters, as with NCCL: what they leave is chosen from, and
//! a call for which they leave nothing fails. Where they do not apply (messages have no algorithm, one rank only copies),
//! that is said ([`unused_filters`]).

use std::fmt;

use ferroccl::config::Config;
use ferroccl::device::kernels::left_out;
use ferroccl::enqueue::CollectiveCall;
use ferroccl::graph::tuning::algorithms;
use ferroccl::{
    Algorithm, Collective, Communicator, DataType, Error, ProtocolId, ReduceOp, Result,
};

use super::args::PerfArgs;
use super::operation::{Operation, Shape};
use super::sweep::Sweep;
use crate::registered::{self, registry};

/// How the calls of a row are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Planned {
    /// The algorithm; messages have none.
    #[serde(serialize_with = "by_name")]
    pub(crate) algorithm: Option<Algorithm>,
    /// The protocol; nothing where messages of a call have several.
    #[serde(serialize_with = "by_name")]
    pub(crate) protocol: Option<ProtocolId>,
    /// Channels: blocks of a rank's kernel, or of one message.
    pub(crate) channels: u32,
}

fn by_name<T: fmt::Display, S: serde::Serializer>(
    value: &Option<T>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

/// The table's columns.
impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let algorithm = self.algorithm.map_or("p2p", Algorithm::name);
        let protocol = self.protocol.map_or("mixed", ProtocolId::name);
        write!(f, "  {algorithm:>13}  {protocol:>6}  {:>3}", self.channels)
    }
}

/// The collective that an operation calls; nothing where it is of messages. An all-to-all is of messages where no kernel does it.
fn collective(operation: Operation) -> Option<Collective> {
    match operation {
        Operation::AllReduce => Some(Collective::AllReduce),
        Operation::AllGather => Some(Collective::AllGather),
        Operation::ReduceScatter => Some(Collective::ReduceScatter),
        Operation::Broadcast => Some(Collective::Broadcast),
        Operation::Reduce => Some(Collective::Reduce),
        Operation::AllToAll => Some(Collective::AllToAll),
        Operation::SendRecv | Operation::Gather | Operation::Scatter | Operation::Hypercube => None,
    }
}

/// What the library is called with for a row; several times where messages differ in size.
fn calls(
    (operation, collective): (Operation, Option<Collective>),
    shape: Shape,
    data_type: DataType,
    redop: Option<ReduceOp>,
    ranks: u32,
) -> Vec<CollectiveCall> {
    let Some(collective) = collective else {
        // A hypercube sends 1, 2, 4, ... blocks.
        let rounds = match operation {
            Operation::Hypercube => ranks.trailing_zeros().max(1),
            _ => 1,
        };
        let message = |round| CollectiveCall {
            collective: Collective::SendRecv,
            count: (shape.count * data_type.size()) << round,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            root: Some(0),
        };
        return (0..rounds).map(message).collect();
    };
    let root = operation.has_root().then_some(0);
    let op = redop.unwrap_or(ReduceOp::Sum);
    vec![CollectiveCall { collective, count: shape.count, data_type, op, root }]
}

impl Planned {
    /// How `comm` does a row's calls.
    ///
    /// # Errors
    /// When nothing is left that could do them.
    pub(crate) fn of(
        comm: &Communicator,
        args: &PerfArgs,
        shape: Shape,
        data_type: DataType,
        redop: Option<ReduceOp>,
    ) -> Result<Self> {
        let operation = args.collective;
        let mut collective = collective(operation);
        let plan = |call: &CollectiveCall| {
            if args.windows() { comm.plan_in_windows(call) } else { comm.plan(call) }
        };
        let plans = |collective| {
            let what = (operation, collective);
            let calls = calls(what, shape, data_type, redop, comm.world_size());
            calls.iter().map(plan).collect::<Result<Vec<_>>>()
        };
        let mut planned = plans(collective);
        if collective == Some(Collective::AllToAll) && planned.is_err() {
            (collective, planned) = (None, plans(None));
        }
        let plans = planned?;
        let first = plans.first().ok_or_else(|| Error::argument("calls", "there are none"))?;
        let alike = plans.iter().all(|plan| plan.protocol == first.protocol);
        Ok(Planned {
            algorithm: collective.map(|_| first.algorithm),
            protocol: alike.then_some(first.protocol),
            channels: plans.iter().map(|plan| plan.channels).max().unwrap_or(1),
        })
    }
}

/// Every row's type, operator and plan.
fn rows<'a>(
    args: &'a PerfArgs,
    sweep: Sweep,
    comm: &'a Communicator,
) -> impl Iterator<Item = (DataType, Option<ReduceOp>, Result<Planned>)> + 'a {
    let types = args.datatype.0.iter().copied();
    types.flat_map(move |data_type| {
        args.redops().into_iter().flat_map(move |redop| {
            args.shapes(sweep, data_type, comm.world_size()).map(move |shape| {
                let plan = Planned::of(comm, args, shape, data_type, redop);
                (data_type, redop, plan)
            })
        })
    })
}

/// Why `--algo` or `--proto` cannot be had, as far as that is known without ranks.
pub(crate) fn refusal_of_flags(args: &PerfArgs) -> Option<String> {
    let (operation, wanted) = (args.collective, args.algorithm?);
    let Some(collective) = collective(operation) else {
        return Some(format!(
            "--algo {wanted}: {operation} is made of messages, which have no algorithm"
        ));
    };
    let own = |a: &Algorithm| registry().rows().iter().any(|row| row.serves(collective, *a));
    let mut there = algorithms(collective).to_vec();
    there.extend(registry().algorithms().into_iter().filter(own));
    let names = || there.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ");
    (!there.contains(&wanted))
        .then(|| format!("--algo {wanted}: {operation} is not done this way, but by {}", names()))
}

/// Why `--algo` or `--proto` cannot be had for a row that is to be measured, where that is so.
///
/// All ranks say the same, because all have the same flags and plan the same.
pub(crate) fn refusal(
    args: &PerfArgs,
    env: &Config,
    sweep: Sweep,
    comm: &Communicator,
) -> Option<String> {
    if args.algorithm.is_none() && args.protocol.is_none() {
        return None;
    }
    let has = |planned: &Planned| {
        args.algorithm.is_none_or(|wanted| planned.algorithm == Some(wanted))
            && args.protocol.is_none_or(|wanted| planned.protocol == Some(wanted))
    };
    rows(args, sweep, comm).find_map(|(data_type, redop, plan)| {
        let got = match plan {
            Ok(planned) if has(&planned) => return None,
            Ok(planned) => Some(planned),
            Err(_) => None,
        };
        let flags = [
            args.algorithm.map(|wanted| format!("--algo {wanted}")),
            args.protocol.map(|wanted| format!("--proto {wanted}")),
        ];
        let flags = flags.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let why = why_not(args, env, comm, data_type, redop);
        let instead = got.and_then(|got| Some((got.algorithm?, got.protocol?)));
        let instead = instead.map_or_else(String::new, |(algorithm, protocol)| {
            format!("; without the flag it would run {algorithm} with {protocol}")
        });
        Some(format!("{flags}: cannot be had: {why}{instead}"))
    })
}

fn why_not(
    args: &PerfArgs,
    env: &Config,
    comm: &Communicator,
    data_type: DataType,
    redop: Option<ReduceOp>,
) -> String {
    let operation = args.collective;
    let ranks = comm.world_size();
    if ranks == 1 {
        return "a single rank only copies".to_owned();
    }
    let collective = collective(operation).unwrap_or(Collective::SendRecv);
    if let Some(wanted) = args.algorithm
        && !env.algo.allows(collective, wanted)
    {
        return format!("the environment has NCCL_ALGO={}", env.algo);
    }
    let op = redop.unwrap_or(ReduceOp::Sum);
    let name = redop.map_or_else(String::new, |op| format!(" with {op}"));
    if let Some(wanted) = args.algorithm
        && wanted != Algorithm::Hierarchical
        && wanted != Algorithm::CollnetDirect
    {
        if let Some(feature) = left_out(collective, wanted, data_type) {
            return format!("this build is without the cargo feature `{feature}`");
        }
        let protocols = registered::protocols().into_iter();
        let mut protocols = protocols.filter(|p| args.protocol.is_none_or(|wanted| wanted == *p));
        if protocols.all(|p| registry().lookup(collective, wanted, p, op, data_type).is_none()) {
            return format!("there is no such kernel for {operation} of {data_type}{name}");
        }
    }
    match args.algorithm {
        Some(Algorithm::Hierarchical) => format!(
            "it needs ranks on several nodes (FERROCCL_RANKS_PER_NODE makes nodes of one host), and these {ranks} are on one"
        ),
        Some(Algorithm::CollnetDirect | Algorithm::CollnetChain) => {
            "these ranks have no network that does it (NCCL_COLLNET_ENABLE)".to_owned()
        }
        Some(Algorithm::OneShot | Algorithm::TwoShot) => {
            "it needs ranks of one node that reach each other's memory, and LL or LL128".to_owned()
        }
        Some(wanted) if wanted.is_on_windows() && !args.windows() => {
            "its buffers are to be registered: -R 2".to_owned()
        }
        Some(Algorithm::Nvls) => {
            "it sums f32, f16 and bf16, or gathers, with Simple, on GPUs of sm_90 whose switch has multicast objects (log subsystem REG says why a window has none)"
                .to_owned()
        }
        Some(Algorithm::Direct) => {
            "it needs ranks whose kernels reach each other's memory, and Simple".to_owned()
        }
        _ if env.deterministic => {
            "FERROCCL_DETERMINISTIC asks for the order of the ranks".to_owned()
        }
        _ => format!("these {ranks} ranks do not do {operation} of {data_type}{name} this way"),
    }
}

/// The settings of the environment that restrict the choice, and do not restrict what runs; in words.
pub(crate) fn unused_filters(
    args: &PerfArgs,
    env: &Config,
    sweep: Sweep,
    comm: &Communicator,
) -> Vec<String> {
    let operation = args.collective;
    let mut words = Vec::new();
    let listed = |name| env.is_set(name);
    let Some(collective) = collective(operation) else {
        if listed("NCCL_ALGO") {
            words.push(format!(
                "NCCL_ALGO={} does not apply: {operation} is made of messages, which have no algorithm",
                env.algo
            ));
        }
        return words;
    };
    let mut plans = rows(args, sweep, comm).filter_map(|(_, _, plan)| plan.ok());
    let Some(Planned { algorithm: Some(algorithm), protocol: Some(protocol), .. }) =
        plans.find(|plan| {
            plan.algorithm.is_some_and(|a| !env.algo.allows(collective, a))
                || plan.protocol.is_some_and(|p| !env.proto.allows(collective, p))
        })
    else {
        return words;
    };
    // What the flags ask for comes before the environment; one rank has no choice.
    if args.algorithm.is_none() && !env.algo.allows(collective, algorithm) {
        words.push(format!("NCCL_ALGO={} does not apply: a single rank only copies", env.algo));
    }
    if args.protocol.is_none() && !env.proto.allows(collective, protocol) {
        words.push(format!("NCCL_PROTO={} does not apply: a single rank only copies", env.proto));
    }
    words
}
