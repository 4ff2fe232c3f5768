//! A rank's places in the trees, one for each root, and their tables for kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ferroccl_device::abi::{NO_RANK, TreeLinks};

use super::device_memory::{MemoryCount, MemoryFor};
use super::graphs::CommGraphs;
use super::nodes::Nodes;
use crate::error::Result;
use crate::runtime::{Memory, Runtime, place};
use ferroccl_topology::graph::connect::TreeShape;

/// This rank's places in the trees, for each root.
#[derive(Debug)]
pub(super) struct Trees {
    rank: u32,
    channels: u32,
    nodes: Nodes,
    graphs: Option<Arc<CommGraphs>>,
    /// Made when a tree is asked for.
    made: OnceLock<MadeTrees>,
    /// By root.
    tables: Mutex<HashMap<u32, TreeTable>>,
}

/// The trees of all channels.
#[derive(Debug)]
struct MadeTrees {
    shapes: Box<[TreeShape]>,
    /// This rank's place in each, without a root.
    own: Box<[TreeLinks]>,
}

/// The links of all channels in the trees with some root.
#[derive(Clone, Debug)]
pub(super) struct TreeTable {
    pub links: Arc<[TreeLinks]>,
    /// The same in the device's memory.
    pub memory: Arc<dyn Memory>,
}

impl Trees {
    /// The trees of the graphs; without those, of the nodes with their ranks in order, or of one node's ranks.
    pub(super) fn new(
        rank: u32,
        channels: u32,
        nodes: &Nodes,
        graphs: Option<&Arc<CommGraphs>>,
    ) -> Self {
        let (nodes, graphs) = (nodes.clone(), graphs.cloned());
        let (made, tables) = (OnceLock::new(), Mutex::default());
        Trees { rank, channels, nodes, graphs, made, tables }
    }

    fn made(&self) -> &MadeTrees {
        self.made.get_or_init(|| {
            let shapes: Box<[_]> = (0..self.channels).map(|channel| self.shape(channel)).collect();
            let own = shapes.iter().map(|shape| shape.links(self.rank, NO_RANK)).collect();
            MadeTrees { shapes, own }
        })
    }

    fn shape(&self, channel: u32) -> TreeShape {
        let first = |ranks: Vec<u32>| (ranks, [0, 0]);
        if let Some(graphs) = &self.graphs
            && let Some(chains) = graphs.chains(channel)
        {
            return TreeShape::new(chains, graphs.second_tree(channel, self.channels));
        }
        let chains = match self.nodes.members() {
            [ranks] => ranks.iter().map(|rank| first(vec![*rank])).collect(),
            nodes => nodes.iter().cloned().map(first).collect(),
        };
        TreeShape::new(chains, channel % 2 == 1)
    }

    /// This rank's place in the tree of each channel.
    pub(super) fn own(&self) -> &[TreeLinks] {
        &self.made().own
    }

    /// The table of the trees with this root; with [`NO_RANK`] the trees' own.
    ///
    /// # Errors
    /// When the device has no memory for it.
    pub(super) fn table(
        &self,
        root: u32,
        (runtime, memory): (&dyn Runtime, &MemoryCount),
    ) -> Result<TreeTable> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.get(&root) {
            return Ok(table.clone());
        }
        let links: Arc<[TreeLinks]> =
            self.made().shapes.iter().map(|shape| shape.links(self.rank, root)).collect();
        let table = place(runtime, bytemuck::cast_slice(&links))?;
        let memory = memory.counted(MemoryFor::Calls, table);
        let table = TreeTable { links, memory };
        tables.insert(root, table.clone());
        Ok(table)
    }
}
