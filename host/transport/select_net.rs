//! Opens the network that ranks on different hosts use.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};
use ferroccl_proxy::net::{FaultNet, Net, PluginNet, TraceNet};
use tracing::{info, warn};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::log;
use ferroccl_bootstrap::{Interface, choose_all, interfaces};

/// The values of `NCCL_NET` for the built-in networks.
const IB: &str = "IB";
const SOCKET: &str = "Socket";

/// Opens the network of `NCCL_NET`. Without that setting it is the first that exists of a plugin's, InfiniBand and RoCE, and
/// sockets, as with NCCL. `secret` is known to the ranks of the group only. `limit` is the time to make a connection.
///
/// # Errors
/// [`Error::Unavailable`] when there is no such network, [`Error::Network`] when it cannot be used,
/// [`Error::InvalidSetting`] when a setting makes no sense.
pub(crate) fn open(env: &Config, secret: [u8; 32], limit: Duration) -> Result<Arc<dyn Net>> {
    let is = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
    let wanted = env.net.as_deref();
    let own = |wanted: &str| is(wanted, SOCKET) || is(wanted, IB);
    // A plugin comes first, because its name may be IB, too.
    let plugin = match wanted {
        Some(wanted) if is(wanted, SOCKET) => None,
        _ => plugin(env)?,
    };
    let mut net: Arc<dyn Net> = match (wanted, plugin) {
        (None, Some(plugin)) => plugin,
        (Some(wanted), Some(plugin)) if is(wanted, plugin.name()) => plugin,
        (Some(wanted), plugin) if !own(wanted) => {
            let plugin = plugin.map_or_else(String::new, |plugin| {
                format!(", and {} of {}", plugin.name(), plugin.library())
            });
            return Err(Error::Unavailable {
                what: format!("network {wanted} (NCCL_NET)"),
                reason: format!("there are {IB} and {SOCKET}{plugin}"),
            });
        }
        (Some(wanted), _) if is(wanted, IB) => ib(env, secret, limit)??,
        (Some(_), _) => Arc::new(socket(env, secret, limit)?),
        (None, None) => match ib(env, secret, limit)? {
            Ok(net) => net,
            Err(none) => {
                info!(target: log::NET, "NET/IB : No device found: {}", none.reason);
                Arc::new(socket(env, secret, limit)?)
            }
        },
    };
    if let Some(faults) = &env.net_faults {
        net = Arc::new(FaultNet::new(net, faults.clone()));
    }
    if tracing::enabled!(target: log::NET, tracing::Level::TRACE) {
        net = Arc::new(TraceNet::new(net));
    }
    Ok(net)
}

/// The plugin of `NCCL_NET_PLUGIN`, or NCCL's default plugin, if it exists and initialises.
fn plugin(env: &Config) -> Result<Option<Arc<PluginNet>>> {
    match PluginNet::load(env.net_plugin.as_deref(), env.warn_after) {
        Ok(plugin) => Ok(plugin),
        Err(error) if error.operation == "init" => {
            warn!(target: log::NET, "goes on without the plugin: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// InfiniBand and RoCE; the inner error is why there is none.
#[cfg(feature = "verbs")]
fn ib(
    env: &Config,
    secret: [u8; 32],
    connect_timeout: Duration,
) -> Result<std::result::Result<Arc<dyn Net>, NetError>> {
    use ferroccl_proxy::net::verbs::{VerbsConfig, VerbsNet};

    if env.ib_disable {
        return Ok(Err(NetError::new(IB, "init", "NCCL_IB_DISABLE is 1")));
    }
    // As with NCCL, connections are agreed on over the interface that ranks find each other by.
    let Some(interface) = socket_interfaces(env)?.into_iter().next() else {
        return Ok(Err(NetError::new(IB, "init", "there is no interface to agree over")));
    };
    // The table of knobs has their limits.
    let byte = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
    let config = VerbsConfig {
        connect_timeout,
        hca: env.ib_hca.clone().unwrap_or_default(),
        gid_index: env.ib_gid_index.map(byte),
        traffic_class: byte(env.ib_tc),
        service_level: byte(env.ib_sl),
        pkey_index: u16::try_from(env.ib_pkey).unwrap_or(u16::MAX),
        timeout: byte(env.ib_timeout),
        retry_cnt: byte(env.ib_retry_cnt),
        qps_per_connection: env.ib_qps_per_connection as usize,
        split_data_on_qps: env.ib_split_data_on_qps,
        adaptive_routing: env.ib_adaptive_routing,
        ar_threshold: env.ib_ar_threshold.0,
        relaxed_ordering: (env.ib_pci_relaxed_ordering < 2)
            .then_some(env.ib_pci_relaxed_ordering == 1),
        merge_nics: env.ib_merge_nics,
        inline: env.ib_use_inline,
        ..VerbsConfig::new(interface, secret)
    };
    Ok(VerbsNet::new(config).map(|net| Arc::new(net) as _))
}

#[cfg(not(feature = "verbs"))]
fn ib(_: &Config, _: [u8; 32], _: Duration) -> Result<std::result::Result<Arc<dyn Net>, NetError>> {
    Ok(Err(NetError::new(IB, "init", "this build is without the feature verbs")))
}

fn socket(env: &Config, secret: [u8; 32], connect_timeout: Duration) -> Result<SocketNet> {
    let config = SocketConfig {
        interfaces: socket_interfaces(env)?,
        threads: env.socket_nthreads.map(|n| n as usize),
        sockets_per_thread: env.nsocks_perthread.map(|n| n as usize),
        secret,
        connect_timeout,
    };
    Ok(SocketNet::new(config)?)
}

/// The network interfaces that the settings allow.
fn socket_interfaces(env: &Config) -> Result<Vec<SocketInterface>> {
    let chosen = choose_all(&interfaces()?, env.socket_ifname.as_ref(), env.socket_family)?;
    let device = |i: Interface| SocketInterface {
        name: i.name,
        address: i.address.ip(),
        scope_id: if let SocketAddr::V6(v6) = i.address { v6.scope_id() } else { 0 },
    };
    Ok(chosen.into_iter().map(device).collect())
}
