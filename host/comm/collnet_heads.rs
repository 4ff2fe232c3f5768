//! A rank's connection with the heads of its part on the other nodes, over a network that reduces.

use std::fmt;
use std::sync::{Arc, Mutex};

use ferroccl_device::abi::{DataType, ReduceOp};
use ferroccl_proxy::NetError;
use ferroccl_proxy::collnet::{CollNet, CollNetComm, CollNetListener};
use tracing::info;

use super::nodes::Nodes;
use crate::enqueue::NetworkOps;
use crate::error::Result;
use crate::log;

/// Connects a rank to a network that reduces; `exchange` gives a handle to all ranks, and returns theirs. `None` when there is
/// no such network, or when the nodes cannot use it.
pub(super) fn join(
    net: Option<&Arc<dyn CollNet>>,
    nodes: &Nodes,
    exchange: impl FnOnce(&Vec<u8>) -> Result<Vec<Vec<u8>>>,
) -> Result<Option<CollnetHeads>> {
    let Some(listener) = CollnetListener::new(net, nodes)? else { return Ok(None) };
    let handles = exchange(&listener.listener.handle())?;
    listener.connect(nodes, &handles).map(Some)
}

/// [`join`] for all ranks of a process, in their order. Each connects in a thread, because it may wait for the others.
pub(super) fn join_all(
    net: Option<&Arc<dyn CollNet>>,
    all: Vec<Nodes>,
) -> Result<Vec<Option<CollnetHeads>>> {
    let listener: Vec<Option<CollnetListener>> =
        all.iter().map(|nodes| CollnetListener::new(net, nodes)).collect::<Result<_>>()?;
    let handle = |listener: &Option<CollnetListener>| {
        listener.as_ref().map_or(vec![], |l| l.listener.handle())
    };
    let handles: Vec<Vec<u8>> = listener.iter().map(handle).collect();
    let handles = &handles;
    std::thread::scope(|threads| {
        let threads: Vec<_> = listener
            .into_iter()
            .zip(&all)
            .map(|(listener, nodes)| {
                listener.map(|listener| threads.spawn(move || listener.connect(nodes, handles)))
            })
            .collect();
        let panicked = |_| Err(NetError::new("CollNet", "connect", "it panicked").into());
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<CollnetHeads>>| {
            thread.join().unwrap_or_else(panicked)
        };
        threads.into_iter().map(|thread| thread.map(end).transpose()).collect()
    })
}

/// A rank's listener, before the heads of its part connect.
struct CollnetListener {
    net: Arc<dyn CollNet>,
    listener: Box<dyn CollNetListener>,
}

/// A rank's connection with the heads of its part on the other nodes.
pub(super) struct CollnetHeads {
    net: Arc<dyn CollNet>,
    conn: Arc<Mutex<Box<dyn CollNetComm>>>,
}

impl fmt::Debug for CollnetHeads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollnetHeads").field("net", &self.net).finish_non_exhaustive()
    }
}

impl CollnetListener {
    /// `None` unless there are several nodes with the same number of ranks.
    fn new(net: Option<&Arc<dyn CollNet>>, nodes: &Nodes) -> Result<Option<Self>> {
        let Some(net) = net.filter(|_| nodes.count() > 1 && nodes.have_equal_sizes()) else {
            return Ok(None);
        };
        let listener = net.listen()?;
        Ok(Some(CollnetListener { net: Arc::clone(net), listener }))
    }

    /// Connects with the other heads; `handles` are those of all ranks.
    fn connect(self, nodes: &Nodes, handles: &[Vec<u8>]) -> Result<CollnetHeads> {
        let heads = nodes.heads();
        let handles: Vec<Vec<u8>> =
            heads.iter().map(|rank| handles[*rank as usize].clone()).collect();
        let conn = self.listener.connect(&handles, nodes.index())?;
        info!(target: log::INIT, "CollNet {} : {} heads", self.net.name(), heads.len());
        Ok(CollnetHeads { net: self.net, conn: Arc::new(Mutex::new(conn)) })
    }
}

/// The operators of a reduction: the one within a node, and the one of the network. `None` for an operator that needs another
/// step after the network.
pub(super) fn on_the_network(data_type: DataType, op: ReduceOp) -> Option<(ReduceOp, ReduceOp)> {
    match op {
        // It divides after the last sum.
        ReduceOp::Avg if !data_type.is_float() => None,
        op if op.scales() => Some((op, ReduceOp::Sum)),
        op => Some((op, op)),
    }
}

impl CollnetHeads {
    /// The connection, for an operation on it.
    pub(super) fn conn(&self) -> Arc<Mutex<Box<dyn CollNetComm>>> {
        Arc::clone(&self.conn)
    }

    /// The types and operators that go through the network.
    pub(super) fn ops(&self) -> NetworkOps {
        NetworkOps::new(|data_type, op| {
            on_the_network(data_type, op)
                .is_some_and(|(_, op)| self.net.reduce_support(data_type, op))
        })
    }
}
