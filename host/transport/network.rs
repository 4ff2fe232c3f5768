//! Which network ranks of different hosts use.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};
use ferroccl_proxy::net::{FaultNet, Net, PluginNet, TraceNet};
use tracing::warn;

use crate::bootstrap::interface::{Interface, choose_all, interfaces};
use crate::config::Config;
use crate::log;
use crate::{Error, Result};

/// The name of the network over sockets, in `NCCL_NET`.
const SOCKET: &str = "Socket";

/// The network of `NCCL_NET`; without that a plugin's, if there is one, and else the one over sockets, as with NCCL.
/// `secret` is known to the ranks of the group alone; `limit` is how long a connection may take to be made.
///
/// # Errors
/// [`Error::Unavailable`] when there is no such network, [`Error::Network`] when it cannot be used,
/// [`Error::InvalidSetting`] when a setting makes no sense.
pub(crate) fn open(env: &Config, secret: [u8; 32], limit: Duration) -> Result<Arc<dyn Net>> {
    let is = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
    let plugin = match env.net.as_deref() {
        Some(wanted) if is(wanted, SOCKET) => None,
        _ => plugin(env)?,
    };
    let mut net: Arc<dyn Net> = match (env.net.as_deref(), plugin) {
        (None, Some(plugin)) => plugin,
        (Some(wanted), Some(plugin)) if is(wanted, plugin.name()) => plugin,
        (Some(wanted), plugin) if !is(wanted, SOCKET) => {
            let plugin = plugin.map_or_else(String::new, |plugin| {
                format!(", and {} of {}", plugin.name(), plugin.library())
            });
            return Err(Error::Unavailable {
                what: format!("network {wanted} (NCCL_NET)"),
                reason: format!("there is {SOCKET}{plugin}"),
            });
        }
        _ => Arc::new(socket(env, secret, limit)?),
    };
    if let Some(faults) = &env.net_faults {
        net = Arc::new(FaultNet::new(net, faults.clone()));
    }
    if tracing::enabled!(target: log::NET, tracing::Level::TRACE) {
        net = Arc::new(TraceNet::new(net));
    }
    Ok(net)
}

/// The plugin of `NCCL_NET_PLUGIN`, or NCCL's default one, if it is there and wants to.
fn plugin(env: &Config) -> Result<Option<Arc<PluginNet>>> {
    match PluginNet::load(env.net_plugin.as_deref()) {
        Ok(plugin) => Ok(plugin),
        Err(error) if error.operation == "init" => {
            warn!(target: log::NET, "goes on without the plugin: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn socket(env: &Config, secret: [u8; 32], connect_timeout: Duration) -> Result<SocketNet> {
    let chosen = choose_all(&interfaces()?, env.socket_ifname.as_ref(), env.socket_family)?;
    let device = |i: Interface| SocketInterface {
        name: i.name,
        address: i.address.ip(),
        scope_id: if let SocketAddr::V6(v6) = i.address { v6.scope_id() } else { 0 },
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
