//! A network that is a plugin: a library made for NCCL. `ferroccl-plugin` finds it, and has its log.
//!
//! ```text
//! abi          what is in a table, version by version
//! symbol       initialises the plugin and reads its table
//! functions    calls it, whatever the version
//! profiler     its profiler callback
//! connection   listeners, and connections that are being made
//! comm         an end of a connection: its memory and requests
//! ```
//!
//! A plugin has [`Net`]'s functions, under the same names. The differences:
//!
//! * **It gives pointers.** Connections, requests and registrations are addresses that only the plugin understands. Some
//!   plugins give the same address twice, or NULL. So users of [`Net`] get numbers of ours, and a plugin only ever gets
//!   pointers that it has given.
//! * **NULL means "not yet"**, for a connection and for a request.
//! * **It is trusted with memory**, since it is code in this process. Numbers and strings that it returns are checked.
//! * **It may write into handles.** A plugin may keep the state of a connection in the handle (NCCL's own networks do). So a
//!   [`Connecting`] has a copy of the handle, which does not move. When a [`Connecting`] is dropped before the connection is
//!   made, what the plugin has allocated leaks: the ABI has no function for that.
//! * **A message is at most 2 GiB - 1**, since `test` returns its size as an `int` in every version.
//!
//! * **A device that is made of several** (`makeVDevice`) gets the next number. It stays, also for who loads the plugin again
//!   (of version 10 and older), so that one of the same members is looked for first.
//!
//! Not used: kernels that unpack (`netDeviceType`; such a device is an error),
//! attributes (`setNetAttr`) and profiler events.

mod abi;
mod comm;
mod connection;
mod functions;
mod profiler;
mod symbol;

use std::ffi::c_int;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferroccl_plugin::{Code, LoadError, SUCCESS, Watched, call, code_name, string};

use self::abi::{DEVICE_HOST, MAX_DEVICES_PER_NIC, MAX_NET_SIZE, PTR_CUDA, PTR_DMABUF, PTR_HOST};
use self::connection::{PluginConnecting, PluginListener};
use self::functions::Functions;
use self::symbol::{Config, Failure, KIND, Symbol};
use super::{Connecting, Listener, MAX_REQUESTS, Net, Properties, check_members};
use crate::NetError;
use crate::sync::lock;

/// Devices of a plugin at most: NCCL's `NCCL_TOPO_MAX_NODES` (`src/include/graph.h`), what a machine's topology has room
/// for.
const MAX_DEVICES: usize = 640;

/// A plugin's network.
///
/// ```no_run
/// use std::time::Duration;
///
/// use ferroccl_proxy::net::{Net, PluginNet};
///
/// let name = std::env::var("NCCL_NET_PLUGIN").ok();
/// if let Some(net) = PluginNet::load(name.as_deref(), Duration::from_secs(10))? {
///     println!("{} (v{}) from {}", net.name(), net.version(), net.library());
///     for device in 0..net.devices() {
///         println!("{:?}", net.properties(device)?);
///     }
/// }
/// # Ok::<(), ferroccl_proxy::NetError>(())
/// ```
#[derive(Debug)]
pub struct PluginNet {
    plugin: Arc<Plugin>,
    library: String,
    /// How many there are; it grows by virtual ones.
    devices: Mutex<usize>,
}

/// A plugin that is initialised. Whoever has something of it has this, too: it is finalised after all of them.
struct Plugin {
    name: Arc<str>,
    version: u32,
    functions: Functions,
    _watched: Watched,
}

/// A device, as far as connections need to know it.
struct Device {
    number: c_int,
    properties: Properties,
    /// Of a message, at most.
    max_bytes: usize,
}

impl PluginNet {
    /// Loads the plugin that `name` names, which is the value of `NCCL_NET_PLUGIN` or `None` if that is not set, and
    /// initialises it. `Ok(None)`: the name is `none` or empty, or there is no name and no `libnccl-net.so`.
    ///
    /// A function of the plugin that does not return for so long is warned of, and again after twice the time; 0 is never.
    ///
    /// From version 11 on, each call makes a context of its own; older plugins are initialised by the first.
    ///
    /// # Errors
    /// Of the operation `load`, when there is no such library, or it has no table of a version from 8 to 11, or one that
    /// lacks functions. Of `init`, when the plugin does not want to: NCCL goes on without it then. Of `devices`, when it
    /// has none.
    pub fn load(
        name: Option<&str>,
        warn_after: Duration,
    ) -> Result<Option<Arc<PluginNet>>, NetError> {
        let failed = |error: LoadError| NetError::new(&error.name, "load", error.reason);
        let Some(opened) = KIND.open(name).map_err(failed)? else { return Ok(None) };
        let (version, table) = opened.table(&KIND).map_err(failed)?;
        let (symbol, config) = (Symbol::of_version(version, table), Config::new());
        let library = opened.file().to_owned();
        let wrong = |reason: String| NetError::new(&library, "load", reason);
        let missing = |function: &str| wrong(format!("has no function {function} in its table"));
        // SAFETY: a library that exports this symbol has such a table there.
        let name = unsafe { symbol.name() }.ok_or_else(|| wrong("its name is NULL".to_owned()))?;
        let name: Arc<str> = name.into();
        let watched = Watched::new(warn_after);
        let context = opened.init(table, !symbol.has_contexts(), || {
            // SAFETY: as above; the configuration is kept.
            let context = call(&name, "init", || unsafe { symbol.init(&config) });
            let context = context.map_err(|failure| match failure {
                Failure::Code(code) => NetError::new(&*name, "init", code_name(code)),
                Failure::Missing(function) => missing(function),
            })?;
            tracing::info!(target: "ferroccl::net",
                "NET/Plugin: Loaded net plugin {name} (v{version}) from {library}");
            Ok(context)
        })?;
        // There are no contexts where the plugin was initialised before.
        let context = context.unwrap_or(std::ptr::null_mut());
        // SAFETY: as above. The library stays for good.
        let functions =
            unsafe { Functions::read(symbol, &name, context, config) }.map_err(missing)?;
        let plugin = Plugin { name, version, functions, _watched: watched };
        let devices = plugin.devices()?;
        let (plugin, devices) = (Arc::new(plugin), Mutex::new(devices));
        Ok(Some(Arc::new(PluginNet { plugin, library, devices })))
    }

    /// The version of the ABI, 8 to 11: the newest that plugin and we have.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.plugin.version
    }

    /// The name that the library was found by.
    #[must_use]
    pub fn library(&self) -> &str {
        &self.library
    }
}

impl Net for PluginNet {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn devices(&self) -> usize {
        *lock(&self.devices)
    }

    fn max_devices_per_nic(&self) -> usize {
        if self.plugin.functions.makes_v_devices() { MAX_DEVICES_PER_NIC } else { 1 }
    }

    fn make_virtual_device(&self, members: &[usize]) -> Result<usize, NetError> {
        const MAKE: &str = "makeVDevice";
        let mut devices = lock(&self.devices);
        let error = |reason| self.plugin.error(MAKE, reason);
        for device in 0..*devices {
            // One that cannot be used may stand beside those that can.
            let Ok(Device { properties, .. }) = self.plugin.device(device) else { continue };
            let known = properties.members;
            if known == members && !known.is_empty() {
                return Ok(device);
            }
            if !known.is_empty() && members.contains(&device) {
                return Err(error(format!("device {device} is made of {known:?}")));
            }
        }
        check_members(members, *devices, MAX_DEVICES_PER_NIC).map_err(error)?;
        let numbers: Vec<c_int> = members.iter().map(|member| *member as c_int).collect(); // below MAX_DEVICES
        let made = self.plugin.functions.make_v_device(&numbers);
        let made = made.ok_or_else(|| error("the plugin has no such function".to_owned()))?;
        let device = made.map_err(|code| self.plugin.failed(MAKE, code))?;
        let count = self.plugin.devices()?;
        match usize::try_from(device) {
            Ok(device) if device < count => {
                *devices = count;
                Ok(device)
            }
            _ => Err(error(format!("it makes device {device}, and has {count}"))),
        }
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        Ok(self.device(device)?.properties)
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        let device = Arc::new(self.device(device)?);
        Ok(Box::new(PluginListener::new(&self.plugin, device)?))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        let device = Arc::new(self.device(device)?);
        Ok(Box::new(PluginConnecting::new(&self.plugin, device, handle)?))
    }
}

impl PluginNet {
    fn device(&self, device: usize) -> Result<Device, NetError> {
        let devices = self.devices();
        if device >= devices {
            let reason = format!("there is no device {device}, only {devices}");
            return Err(self.plugin.error("getProperties", reason));
        }
        self.plugin.device(device)
    }
}

impl Plugin {
    fn error(&self, operation: &'static str, reason: impl Into<String>) -> NetError {
        NetError::new(&*self.name, operation, reason)
    }

    /// What a function's result is to us.
    fn check(&self, operation: &'static str, code: Code) -> Result<(), NetError> {
        if code == SUCCESS { Ok(()) } else { Err(self.failed(operation, code)) }
    }

    fn failed(&self, operation: &'static str, code: Code) -> NetError {
        self.error(operation, code_name(code))
    }

    /// What can't be told to anybody else: when something is dropped.
    fn warn(&self, operation: &'static str, code: Code) {
        if let Err(error) = self.check(operation, code) {
            tracing::warn!(target: "ferroccl::net", "{error}");
        }
    }

    /// Calls one of its functions.
    fn call<T>(&self, function: &'static str, f: impl FnOnce() -> T) -> T {
        call(&self.name, function, f)
    }

    /// How many there are.
    fn devices(&self) -> Result<usize, NetError> {
        let mut devices = 0;
        let function = self.functions.common.devices;
        // SAFETY: the plugin's function.
        let code = self.call("devices", || unsafe { function(&mut devices) });
        self.check("devices", code)?;
        match usize::try_from(devices) {
            Ok(devices @ 1..=MAX_DEVICES) => Ok(devices),
            _ => Err(self.error("devices", format!("{devices} devices, not 1 to {MAX_DEVICES}"))),
        }
    }

    /// Asks what a device is, and checks what comes.
    fn device(&self, device: usize) -> Result<Device, NetError> {
        let error =
            |reason: String| self.error("getProperties", format!("device {device}: {reason}"));
        let number = c_int::try_from(device).map_err(|_| error("no such device".to_owned()))?;
        let failed = |code| self.failed("getProperties", code);
        let given = self.functions.properties(number).map_err(failed)?.v9;
        // SAFETY: strings or NULL, which the plugin leaves alone while its properties are looked at.
        let (name, pci_path) = unsafe { (string(given.name), string(given.pci_path)) };
        let at_least = |field: &str, least: c_int, value: c_int| {
            let wrong = || error(format!("{field} is {value}, less than {least}"));
            u32::try_from(value).ok().filter(|_| value >= least).ok_or_else(wrong)
        };
        let max_receives = at_least("maxRecvs", 1, given.max_recvs)? as usize;
        if given.ptr_support & PTR_HOST == 0 {
            return Err(error(format!("ptrSupport is {}, without the host", given.ptr_support)));
        }
        if given.net_device_type != DEVICE_HOST {
            let reason = "kernels have to unpack what it receives, and ours can't";
            return Err(error(format!("netDeviceType is {}: {reason}", given.net_device_type)));
        }
        if !(1..=MAX_NET_SIZE).contains(&given.max_p2p_bytes) {
            let reason = format!("maxP2pBytes is {}, not 1 to 2^40", given.max_p2p_bytes);
            return Err(error(reason));
        }
        // A plugin may leave them at 0, and one that is made of one device is that device.
        let members = match usize::try_from(given.v_props.ndevs) {
            Ok(0 | 1) => Vec::new(),
            Ok(count @ ..=MAX_DEVICES_PER_NIC) => {
                let members = &given.v_props.devs[..count];
                let member = |dev: &c_int| at_least("vProps.devs", 0, *dev).map(|dev| dev as usize);
                members.iter().map(member).collect::<Result<_, _>>()?
            }
            _ => {
                let n = given.v_props.ndevs;
                return Err(error(format!("vProps.ndevs is {n}, not 0 to {MAX_DEVICES_PER_NIC}")));
            }
        };
        let has = |bit| given.ptr_support & bit != 0;
        let properties = Properties {
            name: name.ok_or_else(|| error("name is NULL".to_owned()))?,
            pci_path: pci_path.filter(|path| !path.is_empty()),
            guid: given.guid,
            speed: at_least("speed", 0, given.speed)?,
            port: at_least("port", 0, given.port)?,
            max_requests: MAX_REQUESTS,
            max_receives: max_receives.min(MAX_REQUESTS),
            // What is received there has to be flushed.
            cuda: has(PTR_CUDA) && self.functions.common.iflush.is_some(),
            dma_buf: has(PTR_DMABUF)
                && self.functions.common.iflush.is_some()
                && self.functions.common.reg_mr_dma_buf.is_some(),
            members,
        };
        let max_bytes = given.max_p2p_bytes.min(c_int::MAX as usize);
        Ok(Device { number, properties, max_bytes })
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("name", &self.name).field("version", &self.version).finish()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // SAFETY: what uses the context holds the plugin, so that nothing does any more.
        self.warn("finalize", unsafe { self.functions.finalize() });
    }
}
