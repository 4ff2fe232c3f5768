//! What a verbs network is made of.

use std::fmt;
use std::time::Duration;

use super::error;
use crate::NetError;
use crate::net::HcaFilter;
use crate::net::handshake::Interface;

/// What a verbs network is made of; [`VerbsConfig::new`] has NCCL's defaults.
#[derive(Clone, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Where connections are agreed on, over TCP: any interface that others reach. No data goes there.
    pub interface: Interface,
    /// What all ranks of a group know, and nobody else.
    pub secret: [u8; 32],
    /// How long it may take to make a connection.
    pub connect_timeout: Duration,
    /// Which devices and ports (`NCCL_IB_HCA`).
    pub hca: HcaFilter,
    /// Which entry of a port's GID table (`NCCL_IB_GID_INDEX`). `None`: on Ethernet RoCE v2 before v1, addresses of IPv4
    /// before those of IPv6, and those before what is good on the link only; on InfiniBand the first.
    pub gid_index: Option<u8>,
    /// Traffic class (`NCCL_IB_TC`).
    pub traffic_class: u8,
    /// Service level, 0 to 15 (`NCCL_IB_SL`).
    pub service_level: u8,
    /// Which entry of a port's table of partition keys (`NCCL_IB_PKEY`).
    pub pkey_index: u16,
    /// How long the card waits for an answer before it sends once more, 1 to 31: 4.096 us times two to this power
    /// (`NCCL_IB_TIMEOUT`; InfiniBand Architecture 1, 9.7.6.1.3).
    pub timeout: u8,
    /// How often it does, 0 to 7 (`NCCL_IB_RETRY_CNT`).
    pub retry_cnt: u8,
    /// Queue pairs of a connection for each of the sender's ports, 1 to 128 (`NCCL_IB_QPS_PER_CONNECTION`); 128 in all. Of two ends
    /// that differ, the sender's counts.
    pub qps_per_connection: usize,
    /// Whether each message goes over all of them, instead of over one in turn (`NCCL_IB_SPLIT_DATA_ON_QPS`). Of two ends
    /// that differ, the sender's counts.
    pub split_data_on_qps: bool,
    /// Whether switches may route each packet as they like (`NCCL_IB_ADAPTIVE_ROUTING`). `None`: on InfiniBand.
    pub adaptive_routing: Option<bool>,
    /// Bytes of the longest message that is one write even so; the notification of a longer one is a write of its own, since
    /// one that has a part in the bytes would keep them in order (`NCCL_IB_AR_THRESHOLD`).
    pub ar_threshold: usize,
    /// Whether the card may reorder its writes to memory (`NCCL_IB_PCI_RELAXED_ORDERING`). `None`: if it can.
    pub relaxed_ordering: Option<bool>,
    /// Whether several ports may be one device (`NCCL_IB_MERGE_NICS`).
    pub merge_nics: bool,
    /// Whether small writes take their bytes along, if the card can.
    pub inline: bool,
    /// Whether [`iflush`](crate::net::RecvComm::iflush) reads back what is in host memory, too, which needs none: to try on
    /// a machine without a GPU what a GPU's memory gets.
    pub flush_host: bool,
}

/// Queue pairs of a connection at most: NCCL's `NCCL_IB_MAX_QPS` (`net_ib.cc`).
pub(super) const MAX_QPS: usize = 128;

impl VerbsConfig {
    /// With NCCL's defaults (`net_ib.cc`).
    #[must_use]
    pub fn new(interface: Interface, secret: [u8; 32]) -> VerbsConfig {
        VerbsConfig {
            interface,
            secret,
            connect_timeout: Duration::from_secs(120),
            hca: HcaFilter::default(),
            gid_index: None,
            traffic_class: 0,
            service_level: 0,
            pkey_index: 0,
            timeout: 20,
            retry_cnt: 7,
            qps_per_connection: 1,
            split_data_on_qps: false,
            adaptive_routing: None,
            ar_threshold: 8192,
            relaxed_ordering: None,
            merge_nics: true,
            inline: true,
            flush_host: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), NetError> {
        let limits = [
            ("NCCL_IB_SL", usize::from(self.service_level), 0, 15),
            ("NCCL_IB_TIMEOUT", usize::from(self.timeout), 1, 31),
            ("NCCL_IB_RETRY_CNT", usize::from(self.retry_cnt), 0, 7),
            ("NCCL_IB_QPS_PER_CONNECTION", self.qps_per_connection, 1, MAX_QPS),
        ];
        for (name, value, least, most) in limits {
            if !(least..=most).contains(&value) {
                return Err(error("init", format!("{name}={value}: it is {least} to {most}")));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for VerbsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A secret does not belong in a log.
        f.debug_struct("VerbsConfig")
            .field("interface", &self.interface)
            .field("hca", &self.hca)
            .field("gid_index", &self.gid_index)
            .field("qps_per_connection", &self.qps_per_connection)
            .finish_non_exhaustive()
    }
}
