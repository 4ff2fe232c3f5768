//! Which network ranks of different hosts use.

use std::sync::Arc;
use std::time::Duration;

use ferroccl_proxy::net::Net;
use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};

use crate::bootstrap::interface::{choose_all, interfaces};
use crate::config::Config;
use crate::{Error, Result};

/// The network of `NCCL_NET`, or the first that there is. `secret` is known to the ranks of the group alone; `limit` is how
/// long a connection may take to be made.
///
/// # Errors
/// [`Error::Unavailable`] when there is none, [`Error::InvalidSetting`] when a setting makes no sense.
pub(crate) fn open(env: &Config, secret: [u8; 32], limit: Duration) -> Result<Arc<dyn Net>> {
    let wanted = env.net.as_deref().unwrap_or("Socket");
    if !wanted.eq_ignore_ascii_case("Socket") {
        return Err(Error::Unavailable {
            what: format!("network {wanted} (NCCL_NET)"),
            reason: "this build has Socket".to_owned(),
        });
    }
    Ok(Arc::new(socket(env, secret, limit)?))
}

fn socket(env: &Config, secret: [u8; 32], connect_timeout: Duration) -> Result<SocketNet> {
    let chosen = choose_all(&interfaces()?, env.socket_ifname.as_ref(), env.socket_family)?;
    let device = |i: crate::bootstrap::interface::Interface| SocketInterface {
        name: i.name,
        address: i.address.ip(),
        scope_id: if let std::net::SocketAddr::V6(v6) = i.address { v6.scope_id() } else { 0 },
    };
    let config = SocketConfig {
        interfaces: chosen.into_iter().map(device).collect(),
        threads: env.socket_nthreads.map(|n| n as usize),
        sockets_per_thread: env.nsocks_perthread.map(|n| n as usize),
        secret,
        connect_timeout,
    };
    Ok(SocketNet::new(config)?)
}
