//! How ranks find each other, before there is anything faster than TCP.
//!
//! ```text
//!            hello                       welcome, addresses
//!   rank 0 --------->          <---------------  root      then    0 --> 1
//!   rank 1 --------->   root   --------------->  ranks             ^     |     the ring, and across it the partners of
//!   ...    --------->                                              |     v     all-gathers: 1, 2, 4, ... ranks away
//!                                                                  3 <-- 2
//! ```
//!
//! A rank knows a [`UniqueId`], its rank and the group's size. The **root** (a thread in whoever made the id,
//! or in rank 0) gathers one authenticated hello of each and tells each where those listen that it is to connect to. The ranks
//! close a **ring** of connections, and each connects with its `log2 n` partners of recursive doubling, by which
//! [`Bootstrap::all_gather`] takes as many rounds; pairs of ranks talk by
//! [`Bootstrap::send`] and [`Bootstrap::recv`]. When set-up is done, [`Bootstrap::watch`] keeps the ring open:
//! a process that dies closes its connections, and that news travels around the ring in milliseconds.
//!
//! What this module deliberately does not know: what is sent, which devices there are, and what a collective
//! is. Its invariant: whatever connects, in whatever order, with whatever bytes, either it is a member with a
//! legal message or it is turned away with a reason, and nobody else waits for it. Every wait has a deadline.
//!
//! | file | |
//! |---|---|
//! | `id`, `secret` | the 128 bytes; what the user keeps secret |
//! | `group` | a rank that has found its group |
//! | `interface` | which network |
//! | [`wire`] | bytes and legal messages (pure) |
//! | `limit` | how long anything may take |
//! | `link` | one connection; both ends are authenticated by [`ferroccl_handshake`] |
//! | `acceptor`, `peers` | a listening socket that strangers reach; the thread of a rank's |
//! | `root`, `join` | the two sides of coming together |
//! | `links`, `opening` | a rank's connections, and all-gathers over them; how they come to be |
//! | `doubling`, `blocks` | recursive doubling: who sends what to whom (pure); what comes of it |
//! | `side` | a connection as one thread serves many |
//! | `p2p` | send and receive |
//! | `invitation` | where some ranks meet again |
//! | `reunion` | where those meet that are left of a group |
//! | `rounds` | how many messages all of this takes |
//! | `watch`, `departure`, `gather` | who is still there; all-gathers later |

mod acceptor;
mod blocks;
mod departure;
mod doubling;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod gather;
mod group;
mod id;
mod interface;
mod invitation;
mod join;
mod limit;
mod link;
mod links;
mod opening;
mod p2p;
mod peers;
mod reunion;
mod root;
pub mod rounds;
mod secret;
mod settings;
mod side;
mod sync;
mod watch;
pub mod wire;

pub use blocks::GatheredBlocks;
pub use departure::Departure;
pub use error::{BootstrapError, Result};
pub use gather::{Gathers, Told};
pub use group::Bootstrap;
pub use id::{CommId, UNIQUE_ID_BYTES, UniqueId};
pub use interface::{AddressFamily, Interface, InterfaceFilter, choose, choose_all, interfaces};
pub use invitation::Invitation;
pub use limit::{Limit, Stop};
pub use reunion::{MeetingPlace, MeetingSocket};
pub use secret::Secret;
pub use settings::{LOG_TARGET, Settings};
pub use watch::{Heartbeat, News, Watch};
pub use wire::{MissingRanks, Refusal};
