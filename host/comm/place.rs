//! What lies at an address, in words: for reports of what was read or written wrongly.

use std::mem::offset_of;

use ferroccl_device::abi::{ConnHeader, ProtocolId};

use super::Communicator;
use super::state::CommState;
use crate::channel::EdgePart;

impl Communicator {
    /// What lies at an address of the memory that this rank shares with others: `edge 0 -> 1, channel 0, LL64 slot 1, line 3, byte 8`. `None`
    /// where it is no such memory.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device};
    ///
    /// let ranks = Communicator::init_all(&Device::cpu(), 2)?;
    /// assert_eq!(ranks[0].place_of(0), None);
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    #[must_use]
    pub fn place_of(&self, address: u64) -> Option<String> {
        self.0.place_of(address)
    }

    /// A text with what lies at each address in it, as far as it is this rank's shared memory: what the emulator reports of a race then
    /// says edge and slot.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device};
    ///
    /// let ranks = Communicator::init_all(&Device::cpu(), 2)?;
    /// assert_eq!(ranks[0].name_addresses("data race at 0x10"), "data race at 0x10");
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    #[must_use]
    pub fn name_addresses(&self, text: &str) -> String {
        name_addresses(text, &|address| self.place_of(address))
    }
}

/// A text with what `name` says of each address in it.
pub(crate) fn name_addresses(text: &str, name: &dyn Fn(u64) -> Option<String>) -> String {
    let mut parts = text.split("0x");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(part.len());
        let (address, rest) = part.split_at(digits);
        out += "0x";
        out += address;
        if let Some(name) = u64::from_str_radix(address, 16).ok().and_then(name) {
            out += &format!(" ({name})");
        }
        out += rest;
    }
    out
}

impl CommState {
    /// See [`Communicator::place_of`].
    pub(super) fn place_of(&self, address: u64) -> Option<String> {
        let channels = self.plan_context.channels as usize;
        self.edges.iter().find_map(|edges| {
            [(&edges.send, true), (&edges.recv, false)].into_iter().find_map(|(end, sends)| {
                let part = end.part_at(&self.layout, channels, address)?;
                let (from, to) = if sends { (self.rank, end.peer) } else { (end.peer, self.rank) };
                Some(format!("edge {from} -> {to}, {}", self.part(part, (from, to))))
            })
        })
    }

    fn part(&self, part: EdgePart, (from, to): (u32, u32)) -> String {
        let channel = |channel: u32, p2p: bool| {
            format!("channel {channel}{}", if p2p { " of sends and receives" } else { "" })
        };
        match part {
            EdgePart::Header => "its header".to_owned(),
            EdgePart::Signatures => "its signatures of calls".to_owned(),
            EdgePart::ConnHeader { channel: c, p2p, offset } => {
                let word = match offset {
                    at if at == offset_of!(ConnHeader, tail) => {
                        "the tail: steps that are published".to_owned()
                    }
                    // It lies near the sender, which polls it.
                    at if at == offset_of!(ConnHeader, head) => {
                        format!("the head of edge {to} -> {from}: steps that are given back")
                    }
                    at => format!("byte {at} of its header"),
                };
                format!("{}, {word}", channel(c, p2p))
            }
            EdgePart::Slot { channel: c, p2p, protocol, slot, byte } => {
                let own = self.config.registry.protocols();
                let mut all = ProtocolId::ALL.iter().copied().chain(own);
                let name = all.find(|p| p.index() == protocol);
                let line = name.and_then(|protocol| self.config.registry.line_of(protocol));
                let byte = match line {
                    Some(line) => format!("line {}, byte {}", byte / line, byte % line),
                    None => format!("byte {byte}"),
                };
                let name = name.map_or_else(|| format!("#{protocol}"), |p| p.to_string());
                format!("{}, {name} slot {slot}, {byte}", channel(c, p2p))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroccl_device::abi::ProtocolId;

    use super::*;
    use crate::channel::ConnSet;
    use crate::{CommConfig, Device, Registry};

    #[test]
    fn addresses_of_edges_are_named() {
        let own = ProtocolId::own(2, "LL64");
        let registry = Registry::new().protocol_id(own, 4096, 64);
        let config = CommConfig { registry, channels: Some(2), ..CommConfig::default() };
        let ranks = Communicator::init_all_with(&Device::cpu(), 3, &config).unwrap();
        let comm = &ranks[0].0;
        let to_2 = comm.edges.iter().find(|edges| edges.send.peer == 2).unwrap();
        let peer = to_2.peer(&comm.layout, 2, ConnSet::Collective, 1, 0);
        let slot = |protocol: ProtocolId, slot: u64| {
            let i = protocol.index();
            peer.send.buffers[i] + slot * u64::from(peer.send.slot_bytes[i])
        };
        for (address, wanted) in [
            (slot(ProtocolId::Ll, 1) + 52, "edge 0 -> 2, channel 1, LL slot 1, line 3, byte 4"),
            (slot(own, 2) + 64, "edge 0 -> 2, channel 1, LL64 slot 2, line 1, byte 0"),
            (slot(ProtocolId::Simple, 0) + 9, "edge 0 -> 2, channel 1, Simple slot 0, byte 9"),
            (peer.recv.edge, "edge 2 -> 0, its header"),
            (peer.send.header, "edge 0 -> 2, channel 1, the tail: steps that are published"),
        ] {
            assert_eq!(ranks[0].place_of(address).as_deref(), Some(wanted));
            // The other end knows it, too: it is one memory.
            assert_eq!(ranks[2].place_of(address).as_deref(), Some(wanted));
        }
        let text = format!("data race at {:#x}, and 0x1", slot(own, 0));
        let named = ranks[0].name_addresses(&text);
        assert!(
            named.contains("(edge 0 -> 2, channel 1, LL64 slot 0, line 0, byte 0), and 0x1"),
            "{named}"
        );
    }
}
