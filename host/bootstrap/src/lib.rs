//! How ranks find each other, before there is anything faster than TCP.
//!
//! ```text
//!            hello                          welcome, next
//!   rank 0 --------->          <---------------  root      then    0 --> 1
//!   rank 1 --------->   root   --------------->  ranks             ^     |
//!   ...    --------->                                              |     v
//!                                                                  3 <-- 2     the ring
//! ```
//!
//! A rank knows a [`UniqueId`], its rank and the group's size. The **root** (a thread in whoever made the id,
//! or in rank 0) gathers one authenticated hello of each and tells each where the next one listens. The ranks
//! close a **ring** of connections, around which [`Bootstrap::all_gather`] passes data; pairs of ranks talk by
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
//! | `ring`, `p2p` | all-gather; send and receive |
//! | `invitation` | where some ranks meet again |
//! | `reunion` | where those meet that are left of a group |
//! | `rounds` | how many messages all of this takes |
//! | `watch`, `departure`, `gather` | who is still there; all-gathers later |

mod acceptor;
mod departure;
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
mod p2p;
mod peers;
mod reunion;
mod ring;
mod root;
pub mod rounds;
mod secret;
mod settings;
mod sync;
mod watch;
pub mod wire;

pub use departure::Departure;
pub use error::{BootstrapError, Result};
pub use gather::Gathers;
pub use group::Bootstrap;
pub use id::{CommId, UNIQUE_ID_BYTES, UniqueId};
pub use interface::{AddressFamily, Interface, InterfaceFilter, choose, choose_all, interfaces};
pub use invitation::Invitation;
pub use limit::{Limit, Stop};
pub use reunion::MeetingPlace;
pub use secret::Secret;
pub use settings::{LOG_TARGET, Settings};
pub use watch::{Heartbeat, News, Watch};
pub use wire::{MissingRanks, Refusal};
