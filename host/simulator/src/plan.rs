//! From a call to its kernels, as a communicator would plan it.

use ferroccl::device::abi::{NO_RANK, ProtocolId};
use ferroccl::enqueue::{
    self, AlgoChoice, CollectiveCall, ConnShape, KernelPlan, NetworkOps, PlanContext, Registration,
};
use ferroccl::graph::connect::{self, Host, TreeShape};
use ferroccl::graph::tuning::{Selection, Settings, Tuner, algorithms, predict};
use ferroccl::{Algorithm, Collective, CommConfig, DataType, ReduceOp, Registry};

use crate::{Call, Cluster, SimulateError};

/// The ranks of a kernel, and their rings.
#[derive(Clone, Debug)]
pub(crate) enum Group {
    /// All, around the rings of the search.
    World,
    /// All, in their own order.
    InRankOrder,
    /// Those of each host.
    Host,
    /// The first of each host.
    Leaders,
}

/// A call, planned.
#[derive(Debug)]
pub(crate) struct CallPlan {
    pub choice: AlgoChoice,
    /// The kernels, one after the other, each with the ranks that it is for.
    pub kernels: Vec<(Group, KernelPlan)>,
    pub shape: ConnShape,
    /// By ring of the search: the ranks around it, from rank 0 on.
    pub orders: Vec<Vec<u32>>,
    /// By channel, where the kernel is of a tree.
    pub trees: Vec<TreeShape>,
    /// What the tuner predicts, in microseconds.
    pub predicted_us: Option<f64>,
}

impl Call {
    fn collective_call(&self, ranks: u32) -> CollectiveCall {
        let blocks = match self.collective {
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => ranks,
            _ => 1,
        };
        let floats = self.bytes.div_ceil(4 * u64::from(blocks)).max(1);
        let has_root = matches!(self.collective, Collective::Broadcast | Collective::Reduce);
        CollectiveCall {
            collective: self.collective,
            count: usize::try_from(floats).unwrap_or(usize::MAX),
            data_type: DataType::F32,
            op: ReduceOp::Sum,
            root: has_root.then_some(0),
        }
    }
}

impl Cluster {
    /// Plans a call.
    ///
    /// # Errors
    /// [`SimulateError::CannotBeHad`] with the reason, and the errors of planning.
    pub(crate) fn plan(&self, call: &Call) -> Result<CallPlan, SimulateError> {
        let ranks = self.ranks();
        let registry = Registry::new();
        let situation = self.situation();
        // What is asked for by name is compared with others, whatever NCCL_ALGO says; NCCL_PROTO counts.
        let settings = match call.algorithm {
            Some(_) => Settings { algorithms: Selection::all(), ..self.settings().clone() },
            None => self.settings().clone(),
        };
        let settings = match call.protocol {
            Some(protocol) => Settings { protocols: Selection::only(protocol), ..settings },
            None => settings,
        };
        let task = call.collective_call(ranks);
        let cannot = |algorithm, reason: String| {
            Err(SimulateError::CannotBeHad { collective: call.collective, algorithm, reason })
        };
        let tuner = Tuner::new(&situation, &settings);
        let context = PlanContext {
            ranks,
            nodes: self.hosts(),
            channels: situation.channels(),
            blocks: u32::MAX,
            tuner,
            all_channels: false,
            algorithm: call.algorithm,
            registry: registry.clone(),
            network: NetworkOps::default(),
        };
        let bytes = task.largest_bytes(ranks);
        // Why an algorithm is not the one that is planned, in the words of the tuner.
        let why = |algorithm: Algorithm| {
            let of = |p: &ProtocolId| {
                predict(&situation, call.collective, algorithm, *p, bytes, &settings).why_not
            };
            let protocols = call.protocol.map_or(ProtocolId::ALL.to_vec(), |p| vec![p]);
            // Simple's reason before those of the others: they may be of the protocol alone.
            let reason = protocols.iter().rev().find_map(of);
            reason.unwrap_or_else(|| "there is no such kernel".to_owned())
        };
        if call.collective == Collective::SendRecv {
            let algorithm = call.algorithm.unwrap_or(Algorithm::Ring);
            return cannot(algorithm, "the caller says who sends to whom".to_owned());
        }
        if let Some(wanted) = call.algorithm {
            if !algorithms(call.collective).contains(&wanted) {
                return cannot(wanted, format!("no {wanted} does {}", call.collective));
            }
            if wanted == Algorithm::Hierarchical && self.hosts() == 1 {
                return cannot(wanted, "it needs ranks on several hosts".to_owned());
            }
            if wanted.is_over_mesh() {
                let can = |p: &ProtocolId| {
                    let could = predict(&situation, call.collective, wanted, *p, bytes, &settings);
                    could.cost.is_some()
                };
                let there = ProtocolId::ALL.iter().any(can);
                let none = || "its kernels have no steps that could be simulated".to_owned();
                return cannot(wanted, if there { none() } else { why(wanted) });
            }
        }
        let choice = enqueue::choose(&task, &context, Registration::None)?;
        if let Some(wanted) = call.algorithm.filter(|wanted| *wanted != choice.algorithm) {
            return cannot(wanted, why(wanted));
        }
        if choice.algorithm.is_over_mesh() {
            let reason = "its kernels have no steps that could be simulated".to_owned();
            return cannot(choice.algorithm, reason);
        }
        let kernels = match choice.algorithm {
            Algorithm::Hierarchical => {
                let ring = AlgoChoice { algorithm: Algorithm::Ring, ..choice };
                let step = |collective, root| CollectiveCall { collective, root, ..task };
                [
                    (Group::Host, step(Collective::Reduce, Some(0))),
                    (Group::Leaders, step(Collective::AllReduce, None)),
                    (Group::Host, step(Collective::Broadcast, Some(0))),
                ]
                .into_iter()
                .map(|(group, step)| Ok((group, enqueue::plan(&registry, &step, ring, 1)?)))
                .collect::<Result<_, SimulateError>>()?
            }
            algorithm => {
                let ordered = algorithm == Algorithm::Chain;
                let group = if ordered { Group::InRankOrder } else { Group::World };
                vec![(group, enqueue::plan(&registry, &task, choice, 1)?)]
            }
        };
        let protocol = choice.protocol;
        let predicted =
            predict(&situation, call.collective, choice.algorithm, protocol, bytes, &settings);
        let (orders, trees) = (self.orders()?, self.trees(choice)?);
        let shape = CommConfig::gpu_connections(self.config(), self.hosts() > 1)?;
        let predicted_us = predicted.cost.map(|cost| cost.time_us);
        Ok(CallPlan { choice, kernels, shape, orders, trees, predicted_us })
    }

    fn hosts_with<'a>(
        &self,
        graph: impl Fn(u32) -> Option<&'a ferroccl::graph::ChannelGraph>,
    ) -> Option<Vec<Host<'a>>> {
        let local = self.local_ranks();
        let host = |host: u32| {
            let ranks = (host * local..(host + 1) * local).collect();
            Some(Host { graph: graph(host)?, ranks })
        };
        (0..self.hosts()).map(host).collect()
    }

    /// The ranks around each ring of the search.
    fn orders(&self) -> Result<Vec<Vec<u32>>, SimulateError> {
        let hosts = self.hosts_with(|host| Some(self.ring_of(host))).unwrap_or_default();
        let rings = connect::rings(&hosts).map_err(|e| SimulateError::Cluster(e.to_string()))?;
        Ok(rings.iter().map(|ring| ring.order(0).collect()).collect())
    }

    /// The tree of each channel, where the choice takes trees.
    fn trees(&self, choice: AlgoChoice) -> Result<Vec<TreeShape>, SimulateError> {
        if choice.algorithm != Algorithm::Tree {
            return Ok(Vec::new());
        }
        let none = || SimulateError::Cluster("a host has no trees".to_owned());
        let hosts = self.hosts_with(|host| self.tree_of(host)).ok_or_else(none)?;
        connect::check_trees(&hosts).map_err(|e| SimulateError::Cluster(e.to_string()))?;
        let graphs = hosts.iter().map(|host| host.graph.channels.len()).min().unwrap_or(1).max(1);
        // As many channels as the communicator has say which of the trees a channel takes, not those of the call.
        let channels = self.situation().channels();
        let shape = |channel: u32| {
            let chain = |host: &Host<'_>| {
                let gpus = &host.graph.channels[channel as usize % graphs].gpus;
                let attach = |child| connect::attach(host.graph.pattern, child, gpus.len());
                (gpus.iter().map(|gpu| host.ranks[*gpu]).collect(), [attach(0), attach(1)])
            };
            let second = connect::second_tree(channel, channels, graphs as u32);
            TreeShape::new(hosts.iter().map(chain).collect(), second)
        };
        Ok((0..choice.channels).map(shape).collect())
    }
}

impl CallPlan {
    /// The root of trees: none but where the call has one.
    pub(crate) fn tree_root(&self, plan: &KernelPlan) -> u32 {
        if plan.tree { plan.root } else { NO_RANK }
    }
}
