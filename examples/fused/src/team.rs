//! Ranks with all that the examples need of each.

use std::sync::Arc;

use bytemuck::Pod;
use ferroccl::config::Config;
use ferroccl::device::kernels::UserKernel;
use ferroccl::{
    CommConfig, Communicator, Device, DeviceBuffer, DeviceCommConfig, DeviceCommunicator, Element,
    Error, Grid, Result, Stream, UniqueId, Window,
};
use ferroccl_proxy::net::LocalNet;

use crate::PTX;

/// Where ranks are.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Of each rank.
    pub devices: &'a [Device],
    /// Ranks of each host, in order. Hosts share no memory, and talk over a network within the process.
    pub hosts: &'a [usize],
}

impl Places<'_> {
    /// The ranks, each with its host.
    fn ranks(&self) -> Result<Vec<Communicator>> {
        if self.hosts.len() < 2 {
            return Communicator::init_all_on(self.devices, &CommConfig::default());
        }
        let id = UniqueId::new(&Config::from_env()?.bootstrap())?;
        let net = Arc::new(LocalNet::default());
        let hosts = self.hosts.iter().enumerate().flat_map(|(host, ranks)| vec![host; *ranks]);
        std::thread::scope(|scope| {
            let start = |((rank, device), host): ((u32, &Device), usize)| {
                let mut config = CommConfig::default();
                config.host_id = Some(format!("host {host}"));
                config.net = Some(Arc::<LocalNet>::clone(&net));
                let (device, n) = (device.clone(), self.devices.len() as u32);
                scope.spawn(move || Communicator::init_rank_with(&device, n, &id, rank, &config))
            };
            let threads: Vec<_> = (0..).zip(self.devices).zip(hosts).map(start).collect();
            let gone = |_| Error::Unavailable {
                what: "a rank".to_owned(),
                reason: "its thread panicked".to_owned(),
            };
            threads.into_iter().map(|thread| thread.join().map_err(gone)?).collect()
        })
    }
}

/// The ranks of this process.
pub struct Team {
    /// By rank.
    pub ranks: Vec<Communicator>,
    /// Of each rank.
    pub streams: Vec<Stream>,
    /// Of each rank.
    pub comms: Vec<DeviceCommunicator>,
}

impl Team {
    /// A rank at each place, with so many barriers and signals.
    ///
    /// # Errors
    /// As [`Communicator::init_all_on`], [`Communicator::init_rank_with`] and [`Communicator::device_comm`].
    pub fn new(places: &Places<'_>, barriers: u32, signals: u32) -> Result<Team> {
        let mut config = DeviceCommConfig::default();
        (config.barriers, config.signals) = (barriers, signals);
        Team::with(places, &config)
    }

    /// A rank at each place, with what `config` asks for.
    ///
    /// # Errors
    /// As [`Team::new`].
    pub fn with(places: &Places<'_>, config: &DeviceCommConfig) -> Result<Team> {
        let devices = places.devices;
        let ranks = places.ranks()?;
        let comms = Communicator::device_comms(&ranks, config)?;
        let streams = devices.iter().map(Device::stream).collect::<Result<_>>()?;
        Ok(Team { ranks, streams, comms })
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// A buffer on each rank, with `value` of rank and index.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn buffers<T: Element>(
        &self,
        len: usize,
        value: impl Fn(usize, usize) -> T,
    ) -> Result<Vec<DeviceBuffer<T>>> {
        let one = |r: usize| {
            let buffer = self.ranks[r].device().alloc_shared(len)?;
            let values: Vec<T> = (0..len).map(|i| value(r, i)).collect();
            buffer.copy_from(&values, &self.streams[r])?;
            Ok(buffer)
        };
        (0..self.size()).map(one).collect()
    }

    /// Registers a buffer of each rank.
    ///
    /// # Errors
    /// As [`Communicator::register_windows`].
    pub fn windows<T: Element>(&self, buffers: &[DeviceBuffer<T>]) -> Result<Vec<Window>> {
        Communicator::register_windows(self.ranks.iter().zip(buffers))
    }

    /// Launches a kernel on each rank, with its argument.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::launch`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn launch<A: Pod>(
        &self,
        kernel: &UserKernel<A>,
        blocks: u32,
        argument: impl Fn(usize) -> Result<A>,
    ) -> Result<()> {
        // On the CPU no PTX is needed.
        let kernel = if PTX.is_empty() { *kernel } else { kernel.with_ptx(PTX) };
        let grid = Grid { blocks, threads: 256 };
        // Loading a kernel may wait for those that run.
        self.comms.iter().try_for_each(|comm| comm.prepare(&kernel, grid))?;
        for (r, (comm, stream)) in self.comms.iter().zip(&self.streams).enumerate() {
            // SAFETY: the caller's.
            unsafe { comm.launch(&kernel, grid, &argument(r)?, stream)? };
        }
        Ok(())
    }

    /// What a rank's buffer has when all that is in its stream has ended.
    ///
    /// # Errors
    /// The stream's.
    pub fn content<T: Element>(&self, rank: usize, buffer: &DeviceBuffer<T>) -> Result<Vec<T>> {
        buffer.to_vec(&self.streams[rank])
    }
}
