//! Files that are read and written in place of what is found.

/// Files that stand in for what is found, and that take it: of a topology (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) or
/// of graphs (`NCCL_GRAPH_FILE`, `NCCL_GRAPH_DUMP_FILE`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The path of the file that is read.
    pub read: Option<String>,
    /// The path of the file that is written.
    pub dump: Option<String>,
}
