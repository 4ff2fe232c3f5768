//! Edges: the memory that a rank receives in, and that of others that it sends to.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::info;

use super::CommConfig;
use super::gdr::{self, Gdr, SlotPlaces};
use super::net::{Listening, Remote};
use super::setup::{Member, exchange};
use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::channel::{EdgeEnd, Edges};
use crate::config::Config;
use crate::log;
use crate::runtime::Memory;
use crate::transport::{self, Allowed, Inbox, PeerInfo, Transport, device, network};
use crate::{Error, Result};

impl Member<'_> {
    /// Makes the edges with all peers, over the bootstrap.
    pub(super) fn connect(
        &self,
        bootstrap: &Bootstrap,
        peers: &[PeerInfo],
    ) -> Result<(Vec<Option<Edges>>, Option<Remote>)> {
        let inbox = self.open_inbox(peers)?;
        let handles: Vec<Handles> = exchange(bootstrap, &inbox.handles)?;
        let edges = self.edges(&inbox, peers, &handles)?;
        // What was offered stays open until everybody has mapped it.
        bootstrap.barrier()?;
        let remote = self.remote(inbox.listening, &edges, &handles)?;
        Ok((edges, remote))
    }

    /// The way to ranks on other hosts, where there are some.
    pub(super) fn remote(
        &self,
        listening: Option<Listening>,
        edges: &[Option<Edges>],
        handles: &[Handles],
    ) -> Result<Option<Remote>> {
        let Some(listening) = listening else { return Ok(None) };
        let name = listening.net.name();
        let mut listeners = Vec::with_capacity(handles.len());
        for (rank, handles) in handles.iter().enumerate() {
            listeners.push(match &handles.network {
                None => Vec::new(),
                Some((theirs, handle)) if theirs == name => handle.clone(),
                Some((theirs, _)) => {
                    let text = format!(
                        "the network (NCCL_NET) of rank {} is {name}, of rank {rank} {theirs}: all ranks need the same",
                        self.rank
                    );
                    return Err(BootstrapError::Mismatch(text).into());
                }
            });
        }
        let shape = (self.layout, self.channels as usize);
        let who = (self.token.group, self.rank);
        Ok(Some(Remote::new(listening, who, edges, shape, self.config.first_step, listeners)))
    }

    /// Ready for connections of ranks on other hosts.
    fn listen(&self, peers: &[PeerInfo]) -> Result<(Listening, Option<Gdr>)> {
        let limit = self.config.timeout.filter(|t| !t.is_zero()).unwrap_or(Duration::MAX);
        let net = match &self.config.net {
            Some(net) => Arc::clone(net),
            None => network::open(self.env, self.token.secret, limit)?,
        };
        // Ranks of a host take its devices in turn, or those of them that are nearest to their GPU.
        let me = &peers[self.rank as usize];
        let before = peers[..self.rank as usize].iter().filter(|peer| peer.host == me.host);
        let rdma = self.device.runtime().rdma()?;
        let gpu = (me.device.as_ref(), rdma.as_ref());
        let gdr::Card { device, gdr } = gdr::choose(&*net, gpu, before.count(), self.env)?;
        let listener = net.listen(device)?;
        let properties = net.properties(device)?;
        info!(target: log::NET, "NET/{} : Using [{device}]{}", net.name(), properties.name);
        Ok((Listening { net, device, listener }, gdr))
    }

    /// Bytes of an edge.
    fn edge_bytes(&self) -> usize {
        self.layout.edge_bytes(self.channels as usize)
    }

    /// Bytes of an inbox: an edge from each rank. Our own part stays untouched.
    fn inbox_bytes(&self) -> Result<usize> {
        self.edge_bytes()
            .checked_mul(self.nranks as usize)
            .filter(|n| *n <= isize::MAX as usize)
            .ok_or_else(|| {
                let reason = format!(
                    "{} connections of {} bytes are more than memory has",
                    self.nranks,
                    self.edge_bytes()
                );
                Error::argument("nranks", reason)
            })
    }

    /// The memory that this rank receives in, and the handles of it for all transports that its peers use.
    pub(super) fn open_inbox(&self, peers: &[PeerInfo]) -> Result<OwnInbox> {
        let me = &peers[self.rank as usize];
        let mut used: Vec<&'static dyn Transport> = Vec::new();
        for (rank, peer) in (0..).zip(peers) {
            if rank != self.rank {
                let transport = transport::select(peer, me, allowed(self.config, self.env))?;
                if used.iter().all(|other| other.name() != transport.name()) {
                    used.push(transport);
                }
            }
        }
        let shared = used.iter().any(|transport| transport.shares());
        let inbox = Inbox::new(self.inbox_bytes()?, shared)?;
        let on_device = self.open_device_inbox(peers)?;
        let handles = used
            .iter()
            .map(|transport| Ok((transport.name().to_owned(), transport.offer(&inbox)?)));
        let inboxes = handles.collect::<Result<_>>()?;
        let remote = used.iter().any(|transport| transport.is_remote());
        let listening = remote.then(|| self.listen(peers)).transpose()?;
        let (listening, gdr) = listening.unzip();
        let slots = match gdr.flatten() {
            Some(gdr) => self.place_slots(gdr, &self.remote_edges(peers)?),
            None => None,
        };
        let network =
            listening.as_ref().map(|l| (l.net.name().to_owned(), l.listener.handle().to_vec()));
        let device = on_device.as_ref().map(|(_, handle)| handle.clone());
        let on_device = on_device.map(|(memory, _)| memory);
        let handles = Handles { inboxes, device, network };
        Ok(OwnInbox { handles, inbox, on_device, listening, slots })
    }

    /// Of each rank, whether the network carries what comes from it, and what goes to it.
    fn remote_edges(&self, peers: &[PeerInfo]) -> Result<Vec<(bool, bool)>> {
        let (me, allowed) = (&peers[self.rank as usize], allowed(self.config, self.env));
        let remote = |from: &PeerInfo, to: &PeerInfo| -> Result<bool> {
            Ok(from.rank != to.rank && transport::select(from, to, allowed)?.is_remote())
        };
        peers.iter().map(|peer| Ok((remote(peer, me)?, remote(me, peer)?))).collect()
    }

    /// The part of it that is in memory of our device, for senders whose devices reach that.
    fn open_device_inbox(
        &self,
        peers: &[PeerInfo],
    ) -> Result<Option<(Arc<dyn Memory>, device::Handle)>> {
        let (me, allowed) = (&peers[self.rank as usize], allowed(self.config, self.env));
        let bytes = self.device_bytes(me, peers, allowed);
        if bytes == 0 {
            return Ok(None);
        }
        let runtime = &**self.device.runtime();
        let memory = runtime.allocate(bytes)?;
        let other =
            |peer: &PeerInfo| peer.process != me.process && device::reaches(peer, me, allowed);
        let handle = device::offer(&memory, peers.iter().any(other), runtime)?;
        Ok(Some((memory, handle)))
    }

    /// Bytes of a receiver's inbox in device memory.
    fn device_bytes(&self, receiver: &PeerInfo, peers: &[PeerInfo], allowed: Allowed) -> usize {
        let senders = device::place(None, receiver, peers, allowed);
        senders * self.layout.conns_bytes(self.channels as usize)
    }

    /// Where in the receiver's device memory the connections from `sender` are, if they are there.
    fn device_offset(
        &self,
        sender: &PeerInfo,
        receiver: &PeerInfo,
        peers: &[PeerInfo],
    ) -> Option<usize> {
        let allowed = allowed(self.config, self.env);
        device::reaches(sender, receiver, allowed).then(|| {
            let place = device::place(Some(sender.rank), receiver, peers, allowed);
            place * self.layout.conns_bytes(self.channels as usize)
        })
    }

    /// This rank's ends of all its edges, by peer.
    pub(super) fn edges(
        &self,
        mine: &OwnInbox,
        peers: &[PeerInfo],
        handles: &[Handles],
    ) -> Result<Vec<Option<Edges>>> {
        let me = &peers[self.rank as usize];
        let (bytes, len) = (self.edge_bytes(), self.inbox_bytes()?);
        let offset = |sender: u32| sender as usize * bytes;
        let edges = (0..).zip(peers).map(|(rank, peer)| {
            if rank == self.rank {
                return Ok(None);
            }
            let to = transport::select(me, peer, allowed(self.config, self.env))?;
            let from = transport::select(peer, me, allowed(self.config, self.env))?;
            let handle = handles[rank as usize].inboxes.iter().find(|(name, _)| name == to.name());
            let (_, handle) = handle.ok_or_else(|| {
                Error::malformed(format!("rank {rank} offers no memory through {}", to.name()))
            })?;
            let (to_direct, from_direct) = (to.direct(me, peer), from.direct(peer, me));
            let region = to.accept(handle, len, offset(self.rank), bytes)?;
            let there = match (&handles[rank as usize].device, self.device_offset(me, peer, peers))
            {
                (Some(handle), Some(offset)) if !to.is_remote() => {
                    let bytes = self.device_bytes(peer, peers, allowed(self.config, self.env));
                    let same = peer.process == me.process;
                    let memory = device::accept(handle, same, bytes, &**self.device.runtime())?;
                    Some((memory, offset))
                }
                _ => None,
            };
            let here = match (&mine.on_device, self.device_offset(peer, me, peers)) {
                (Some(memory), Some(offset)) if !from.is_remote() => {
                    Some((Arc::clone(memory), offset))
                }
                _ => None,
            };
            let remote = to.is_remote();
            let send = EdgeEnd {
                region,
                on_device: there,
                peer: rank,
                direct: to_direct,
                receiving: false,
                remote,
                slots: mine.slots.as_ref().and_then(|slots| slots.to(rank)),
            };
            let region = mine.inbox.part(offset(rank), bytes);
            let remote = from.is_remote();
            let recv = EdgeEnd {
                region,
                on_device: here,
                peer: rank,
                direct: from_direct,
                receiving: true,
                remote,
                slots: mine.slots.as_ref().and_then(|slots| slots.from(rank)),
            };
            for (transport, end) in [(from, &recv), (to, &send)] {
                self.tell(transport, end, peer.process == me.process, mine.listening.as_ref());
            }
            Ok(Some(Edges { send, recv }))
        });
        edges.collect()
    }

    /// Says how the edges of the ring are reached, in NCCL's words.
    fn tell(
        &self,
        transport: &dyn Transport,
        end: &EdgeEnd,
        same_process: bool,
        listening: Option<&Listening>,
    ) {
        let (next, previous) =
            ((self.rank + 1) % self.nranks, (self.rank + self.nranks - 1) % self.nranks);
        let way = match listening {
            Some(listening) if transport.is_remote() => {
                let gdr = if end.slots.is_some() { "/GDRDMA" } else { "" };
                format!("NET/{}/{}{gdr}", listening.net.name(), listening.device)
            }
            _ if end.on_device.is_some() && !same_process => "P2P/IPC".to_owned(),
            _ if end.on_device.is_some() && !end.direct => "P2P/peer access".to_owned(),
            _ => transport.name().to_owned() + if end.direct { "/direct pointer" } else { "" },
        };
        let (rank, peer) = (self.rank, end.peer);
        for channel in 0..self.channels {
            if end.receiving && peer == previous && transport.is_remote() {
                info!(target: log::INIT, "Channel {channel:02} : {peer} -> {rank} [receive] via {way}");
            }
            if !end.receiving && peer == next {
                let send = if transport.is_remote() { " [send]" } else { "" };
                info!(target: log::INIT, "Channel {channel:02} : {rank} -> {peer}{send} via {way}");
            }
        }
    }
}

/// What a rank's peers need to reach it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Handles {
    /// Its inbox, for each transport, by name.
    inboxes: Vec<(String, Vec<u8>)>,
    /// The part of it in device memory.
    device: Option<device::Handle>,
    /// Its listener, for those on other hosts: the network's name, and the handle.
    network: Option<(String, Vec<u8>)>,
}

/// A rank's inbox before its peers have found it.
pub(super) struct OwnInbox {
    inbox: Inbox,
    on_device: Option<Arc<dyn Memory>>,
    pub handles: Handles,
    pub listening: Option<Listening>,
    slots: Option<SlotPlaces>,
}

pub(super) fn allowed(config: &CommConfig, env: &Config) -> Allowed {
    let net = env.net.as_deref().is_none_or(|net| !net.eq_ignore_ascii_case("none"));
    Allowed { p2p: config.p2p.unwrap_or(true), shm: config.shm.unwrap_or(true), net }
}
