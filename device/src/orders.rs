//! The memory orders of the kernels: the words that one agent publishes with release and another reads with acquire.
//!
//! A constant is a word of the shared memory, and so both partners of an order: what is stored before the word is
//! there for who has loaded it. They are used through [`gpu::acquire`](crate::gpu::acquire),
//! [`gpu::release`](crate::gpu::release) and [`gpu::claim`](crate::gpu::claim), system-wide, as hosts and other GPUs
//! read them, too; the proxy's side of those that it shares is in its `connection/orders.rs`. Under the seeded CPU runtime
//! a test can weaken either side of each: `tests/orders.rs` does so, and must notice.
//!
//! What is not here needs no order: the lines of LL, signatures and the entries of the step FIFO say themselves what they are of.

/// A word that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published(pub(crate) &'static str);

impl Published {
    /// Its name, for tests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// A side of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The store, with release.
    Release,
    /// The load, with acquire.
    Acquire,
}

/// [`ConnHeader::tail`](crate::abi::ConnHeader): `post_tail` -> `has_tail`. The data of a step is in its slot before the
/// receiver reads it.
pub const TAIL: Published = Published("tail");
/// [`ConnHeader::head`](crate::abi::ConnHeader): `post_head` -> `has_credit`. The receiver has read a slot before the sender
/// fills it again.
pub const HEAD: Published = Published("head");
/// The flag of an LL128 line, on the CPU: `st_line` -> `ld_flag`. The line's data is there before it is read.
/// On a GPU the line arrives whole.
pub const LL128_FLAG: Published = Published("LL128 flag");
/// [`SignatureRing::tail`](crate::abi::SignatureRing): `write_signature` -> the proxy that sends; the one that receives ->
/// `has_signature`. A signature is whole before a network reads it, or a kernel. Within a host its words say for themselves that
/// they have arrived, so what shows it is the proxy's tests (`fifo_model`).
pub const SIGNATURE_TAIL: Published = Published("signature tail");
/// [`SignatureRing::ack`](crate::abi::SignatureRing): `check_signature`, `tell_call` -> `has_signature_room`. A signature has been
/// read before the sender overwrites it. Within a host that is a load before a store in one thread, which a sequence of results
/// does not show; over a network `fifo_model` does.
pub const SIGNATURE_ACK: Published = Published("signature ack");
/// [`PtrExchange::seq`](crate::abi::PtrExchange): `post_ptr` -> `has_ptr`. The address is there before the sender reads it.
pub const PTR: Published = Published("exchanged address");
/// [`MESH_BEGUN`](crate::abi::MESH_BEGUN): `MeshSide::begin_together`, of both sides. What a rank's earlier kernels have done with its
/// buffers is over before others read from them and write to them.
pub const BEGUN: Published = Published("begun");
/// [`MESH_ENDED`](crate::abi::MESH_ENDED): `MeshSide::end_together`, of both sides. What others have written is there, and what they
/// read has been read, before the rank goes on.
pub const ENDED: Published = Published("ended");
/// The tail of a slot of the mesh ([`MESH_TAIL_BYTES`](crate::abi::MESH_TAIL_BYTES)): `Mesh::publish` -> `Mesh::wait_for_all`. The data of
/// a step is in its slot before others read it.
pub const MESH_TAIL: Published = Published("mesh tail");
/// [`DeviceComm::arrival`](crate::abi::DeviceComm::arrival): `BlockComm::barrier`, of both sides. What a rank has done before a barrier
/// is there for the others behind it.
pub const BARRIER: Published = Published("barrier");
/// [`DeviceComm::sent`](crate::abi::DeviceComm::sent): `BlockComm::signal` -> `BlockComm::wait_for`. What a rank has done before a
/// signal is there for who has waited for it.
pub const SIGNAL: Published = Published("signal");
/// [`PutRequest::number`](crate::abi::PutRequest): `BlockComm::request` -> the proxy. The request is whole, and the data that it names is
/// there, before the proxy reads them.
pub const PUT_REQUEST: Published = Published("put request");
/// [`DeviceComm::DONE`](crate::abi::DeviceComm::DONE): the proxy -> `BlockComm::request`, `BlockComm::flush`. The proxy has read a request
/// and its data before a kernel writes over them. To a kernel that is a load before a store in one thread, which no sequence of results
/// shows.
pub const PUT_DONE: Published = Published("put done");
/// [`DeviceComm::network_sent`](crate::abi::DeviceComm::network_sent), [`DeviceComm::network_arrival`](crate::abi::DeviceComm::network_arrival):
/// the proxy -> `BlockComm::wait_for`, `BlockComm::meet`. What a rank on another node has put, and what it knew of, is there for who has
/// waited.
pub const NETWORK_WORD: Published = Published("network word");
/// [`Channel::progress`](crate::abi::Channel): `tell_progress` -> `wait_for_progress`. What goes up a tree has been read
/// before the other block writes over it.
pub const PROGRESS: Published = Published("progress");
/// [`Poison::set`](crate::abi::Poison): `poison::leave`, or the peer's host -> `poisoned`, `adopt`, `neighbour_failed`. The
/// fault is whole before the neighbour takes it over.
pub const POISON: Published = Published("poison");
/// [`FaultCell::state`](crate::abi::FaultCell): `fail` -> `fault`, and the host. The fault is whole before it is read.
pub const FAULT: Published = Published("fault");
/// [`Comm::abort`](crate::abi::Comm): `fail`, or the host -> `aborted`. Nothing is read because of it: it ends waits, and
/// what is reported is claimed by [`FAULT`]. So no result shows whether it is ordered.
pub const ABORT: Published = Published("abort");

/// All of them.
pub const ALL: &[Published] = &[
    TAIL,
    HEAD,
    LL128_FLAG,
    SIGNATURE_TAIL,
    SIGNATURE_ACK,
    PTR,
    BEGUN,
    ENDED,
    MESH_TAIL,
    BARRIER,
    SIGNAL,
    PUT_REQUEST,
    PUT_DONE,
    NETWORK_WORD,
    PROGRESS,
    POISON,
    FAULT,
    ABORT,
];
