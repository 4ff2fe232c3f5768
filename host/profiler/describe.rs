//! Events as each version of the ABI describes them.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null;

use super::abi::{
    Coll, CollApi, CollV1, CollV2, CollV3, Details, GroupApi, KernelCh, P2p, P2pApi, P2pV1, P2pV2,
    ProxyOp,
};
use super::{Context, Happened, Parent, Parents, names};

/// A channel's number, or how many there are, as the ABI has it.
fn byte(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn int(number: u64) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

impl Context {
    /// The event that an event is a child of, and what is said of it in this version.
    pub(super) fn describe(&self, happened: &Happened, parents: Parents) -> (Parent, Details) {
        let name = self.name.as_deref().map_or(null(), CStr::as_ptr);
        let comm_hash = self.comm_hash;
        // Before version 5 calls hang by their group.
        let of_call = if self.version < 5 { parents.group } else { parents.api };
        // All bytes that an event leaves are 0.
        let mut of = Details { nothing: [0; 16] };
        let parent = match *happened {
            Happened::GroupApi { captured, depth } => {
                of.group_api = GroupApi { captured, depth };
                Parent::default()
            }
            Happened::CollApi { collective, count, data_type, root, stream, captured } => {
                of.coll_api = CollApi {
                    func: names::function(collective).0.as_ptr(),
                    count,
                    data_type: names::data_type(data_type).0.as_ptr(),
                    root: int(root.unwrap_or(0).into()),
                    stream: pointer(stream as u64),
                    captured,
                };
                parents.group_api
            }
            Happened::P2pApi { sending, count, data_type, stream, captured } => {
                of.p2p_api = P2pApi {
                    func: names::message(sending).0.as_ptr(),
                    count,
                    data_type: names::data_type(data_type).0.as_ptr(),
                    stream: pointer(stream as u64),
                    captured,
                };
                parents.group_api
            }
            Happened::Launch { stream } => {
                of.launch = pointer(stream as u64);
                parents.group_api
            }
            Happened::Group => Parent::default(),
            Happened::Coll {
                seq,
                collective,
                send,
                recv,
                count,
                root,
                data_type,
                channels,
                warps,
                algorithm,
                protocol,
            } => {
                let (func, data_type) = (names::function(collective), names::data_type(data_type));
                let (algorithm, protocol) =
                    (names::algorithm(algorithm), names::protocol(protocol));
                let root = int(root.unwrap_or(0).into());
                let (send, recv): (*const c_void, _) = (pointer(send), pointer(recv));
                let (channels, warps) = (byte(channels), byte(warps));
                let coll = Coll {
                    seq,
                    func: func.0.as_ptr(),
                    send,
                    recv,
                    count,
                    root,
                    data_type: data_type.0.as_ptr(),
                    channels,
                    warps,
                    algorithm: algorithm.0.as_ptr(),
                    protocol: protocol.0.as_ptr(),
                    parent_group: parents.group.0,
                };
                match self.version {
                    1 => {
                        of.coll_v1 = CollV1 {
                            name,
                            comm_hash,
                            seq,
                            func: func.1,
                            send,
                            recv,
                            count,
                            root,
                            data_type: data_type.1,
                            op: 0,
                            traffic_bytes: 0,
                            channels,
                            warps,
                            algorithm: algorithm.1,
                            protocol: protocol.1,
                            is_collnet: c_int::from(algorithm.1 == names::COLLNET_DIRECT),
                            is_nvls: c_int::from(algorithm.1 == names::NVLS),
                        }
                    }
                    2 => {
                        of.coll_v2 = CollV2 {
                            name,
                            comm_hash,
                            seq,
                            func: coll.func,
                            send,
                            recv,
                            count,
                            root,
                            data_type: coll.data_type,
                            traffic_bytes: 0,
                            channels,
                            warps,
                            algorithm: coll.algorithm,
                            protocol: coll.protocol,
                        }
                    }
                    3 => of.coll_v3 = CollV3 { name, comm_hash, of: coll },
                    _ => of.coll = coll,
                }
                of_call
            }
            Happened::P2p { sending, buffer, data_type, count, peer, channels } => {
                let (func, data_type) = (names::message(sending), names::data_type(data_type));
                let (buffer, peer) = (pointer(buffer), int(peer.into()));
                let (func_name, type_name) = (func.0.as_ptr(), data_type.0.as_ptr());
                match self.version {
                    1 => {
                        let (func, data_type) = (func.1, data_type.1);
                        of.p2p_v1 = P2pV1 { name, comm_hash, func, buffer, data_type, count, peer }
                    }
                    2 | 3 => {
                        let (func, data_type) = (func_name, type_name);
                        of.p2p_v2 = P2pV2 { name, comm_hash, func, buffer, data_type, count, peer }
                    }
                    _ => {
                        let (func, data_type) = (func_name, type_name);
                        let (channels, parent_group) = (byte(channels), parents.group.0);
                        of.p2p =
                            P2p { func, buffer, data_type, count, peer, channels, parent_group }
                    }
                }
                of_call
            }
            Happened::ProxyOp { channel, peer, steps, chunk_bytes, sending } => {
                of.proxy_op = ProxyOp {
                    pid: libc::pid_t::try_from(std::process::id()).unwrap_or(0),
                    channel: byte(channel),
                    peer: int(peer.into()),
                    steps: int(steps),
                    chunk_bytes: int(chunk_bytes.into()),
                    is_send: sending.into(),
                };
                parents.api
            }
            Happened::ProxyStep { step } => {
                of.proxy_step = int(step);
                parents.api
            }
            Happened::Kernel { channel, timer } => {
                // Version 3 has room for a channel alone, and looks at no more.
                of.kernel = KernelCh { channel: byte(channel), timer };
                parents.api
            }
        };
        (parent, of)
    }
}
