//! Which network card each connection takes.
//!
//! A channel enters and leaves a host by the cards that its graph names (NCCL's `ncclTopoGetNetDev`). What no graph says goes by
//! the rank's own card: sends and receives, and connections with ranks that are no neighbours.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferroccl_proxy::connection::ConnectionId;
use ferroccl_proxy::net::{Listener, Net};
use serde::{Deserialize, Serialize};

use crate::comm::graphs::CommGraphs;
use crate::error::Result;

/// A rank's listeners, before its peers connect.
pub(in crate::comm) struct NetListeners {
    pub net: Arc<dyn Net>,
    /// The devices, each with its listener; the rank's own card is the first.
    pub listeners: Vec<(usize, Box<dyn Listener>)>,
}

impl NetListeners {
    /// Listens on a rank's `own` card and on those that its channels come in by.
    pub(in crate::comm) fn open(
        net: Arc<dyn Net>,
        own: usize,
        rank: u32,
        graphs: Option<&CommGraphs>,
    ) -> Result<Self> {
        let named = graphs.map_or_else(BTreeSet::new, |graphs| graphs.cards(rank));
        let named = named.into_iter().map(|device| device as usize);
        let others = named.filter(|device| *device != own && *device < net.devices());
        let listeners = std::iter::once(own)
            .chain(others)
            .map(|device| Ok((device, net.listen(device)?)))
            .collect::<Result<_>>()?;
        Ok(NetListeners { net, listeners })
    }

    /// What peers need to connect.
    pub(in crate::comm) fn handles(&self) -> NetHandles {
        let handle = |(device, listener): &(usize, Box<dyn Listener>)| {
            (u32::try_from(*device).unwrap_or(u32::MAX), listener.handle().to_vec())
        };
        NetHandles {
            network: self.net.name().to_owned(),
            listeners: self.listeners.iter().map(handle).collect(),
        }
    }
}

/// What a rank's peers need to connect with it over the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::comm) struct NetHandles {
    /// The network's name.
    pub network: String,
    /// The devices that it listens on, each with the listener's handle; its own card is the first.
    pub listeners: Vec<(u32, Vec<u8>)>,
}

/// The cards of a rank's connections. As long as the others have not told of them, there are no listeners.
#[derive(Clone, Debug)]
pub(in crate::comm) struct Cards {
    pub rank: u32,
    pub channels: u32,
    /// The cards of all hosts' channels.
    pub graphs: Option<Arc<CommGraphs>>,
    /// The rank's own card.
    pub own: usize,
    /// How many the network has here.
    pub devices: usize,
    /// Of each rank; empty for those that are reached otherwise.
    pub listeners: Vec<Vec<(u32, Vec<u8>)>>,
}

impl Cards {
    /// The device of `rank` for its connection with `peer`, where the graphs say.
    fn named(&self, rank: u32, peer: u32, index: u32) -> Option<u32> {
        // The connections of collectives come first.
        let graphs = self.graphs.as_ref().filter(|_| index < self.channels)?;
        graphs.card(rank, peer, index, self.channels)
    }

    /// Whether a ring or a tree names the card of a connection of ours.
    pub(in crate::comm) fn is_named(&self, key: ConnectionId) -> bool {
        self.named(self.rank, key.peer, key.index).is_some()
    }

    /// Our device for a connection.
    pub(in crate::comm) fn device(&self, key: ConnectionId) -> usize {
        let named = self.named(self.rank, key.peer, key.index).map(|device| device as usize);
        named.filter(|device| *device < self.devices).unwrap_or(self.own)
    }

    /// Whether rank `by` may have something to send for `rank`, on their host.
    pub(in crate::comm) fn sends_for(&self, by: u32, rank: u32) -> bool {
        self.graphs.as_ref().is_some_and(|graphs| graphs.sends_for(by, rank))
    }

    /// The rank of this host that sends on a connection instead of this one, and the device that it does it by.
    pub(in crate::comm) fn relay(&self, key: ConnectionId) -> Option<(u32, usize)> {
        let graphs = self.graphs.as_ref()?;
        let (by, device) = graphs.relay(self.rank, key.peer, key.index, self.channels)?;
        Some((by, device as usize)).filter(|(_, device)| *device < self.devices)
    }

    /// For the rank that sends instead of this one: as [`Cards::route`].
    pub(in crate::comm) fn relayed_route(&self, key: ConnectionId) -> Option<(usize, Vec<u8>)> {
        let (_, device) = self.relay(key)?;
        Some((device, self.route(key)?.1))
    }

    /// The device by which we send on a connection, and the handle of the listener at its other end.
    pub(in crate::comm) fn route(&self, key: ConnectionId) -> Option<(usize, Vec<u8>)> {
        let listeners = self.listeners.get(key.peer as usize)?;
        let named = self.named(key.peer, self.rank, key.index);
        let at_named = listeners.iter().find(|(device, _)| Some(*device) == named);
        let (_, handle) = at_named.or(listeners.first())?;
        Some((self.device(key), handle.clone()))
    }
}
