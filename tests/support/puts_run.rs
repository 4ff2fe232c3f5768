//! The kernel of `puts.rs` on ranks of several nodes, with all that comes out compared.

use std::sync::Arc;

use ferroccl::device::kernels::UserKernel;
use ferroccl::{CommConfig, Communicator, Device, DeviceBuffer, DeviceCommConfig, Grid, UniqueId};
use ferroccl_proxy::net::Net;

use crate::puts::{Puts, expected, relays, result_words};

/// Ranks of nodes of so many, in order, which talk over `net` or sockets: each node is a host of its own.
pub(crate) fn on_hosts(
    device: &Device,
    shape: &[usize],
    config: &CommConfig,
    net: Option<Arc<dyn Net>>,
) -> Vec<Communicator> {
    let hosts = nodes(shape);
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    std::thread::scope(|scope| {
        let start = |(rank, host): (usize, &usize)| {
            let mut config = config.clone();
            config.host_id = Some(format!("host {host}"));
            config.net = net.clone();
            let (device, n) = (device.clone(), hosts.len() as u32);
            scope.spawn(move || {
                Communicator::init_rank_with(&device, n, &id, rank as u32, &config).unwrap()
            })
        };
        let threads: Vec<_> = hosts.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// By rank, the number of its node.
pub(crate) fn nodes(shape: &[usize]) -> Vec<usize> {
    shape.iter().enumerate().flat_map(|(node, ranks)| vec![node; *ranks]).collect()
}

/// A run: blocks, elements, rounds and launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) blocks: u32,
    pub(crate) count: usize,
    pub(crate) rounds: usize,
    pub(crate) launches: usize,
    pub(crate) requests: u32,
    pub(crate) mistake: u64,
}

/// Runs rounds over a network. An error, or what is wrong.
pub(crate) fn run(
    device: &Device,
    kernel: &UserKernel<Puts>,
    shape: &[usize],
    size: Size,
    config: &CommConfig,
    net: Option<Arc<dyn Net>>,
) -> Result<(), String> {
    let words = |e: ferroccl::Error| e.to_string();
    let Size { blocks, count, rounds, launches, requests, mistake } = size;
    let ranks = on_hosts(device, shape, config, net);
    let n = ranks.len();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let part = blocks as usize * count;
    let result = blocks as usize * rounds * result_words(n as u64, count as u64) as usize;
    let buffers = |len: usize| -> Vec<DeviceBuffer<u64>> {
        (0..n).map(|_| device.alloc_shared(len).unwrap()).collect()
    };
    let mail = blocks as usize * (n + 1);
    let all = [n * part, n * part, part, mail].map(buffers);
    let register = |buffers| Communicator::register_windows(ranks.iter().zip(buffers));
    let mut windows = Vec::new();
    for buffers in &all {
        windows.push(register(buffers).map_err(words)?);
    }
    let results = buffers(result);
    let mut wanted = DeviceCommConfig::default();
    (wanted.barriers, wanted.signals, wanted.requests) = (2 * blocks, 3 * blocks, requests);
    let comms = Communicator::device_comms(&ranks, &wanted).map_err(words)?;
    let nodes = nodes(shape);
    let tables = (0..n).map(|r| device.upload(&relays(r, &nodes))).collect::<Result<Vec<_>, _>>();
    let tables = tables.map_err(words)?;
    for _ in 0..launches {
        for (r, comm) in comms.iter().enumerate() {
            let [source, inbox, give, mail] =
                std::array::from_fn(|i| windows[i][r].value().unwrap());
            let argument = Puts {
                comm: comm.value(),
                source,
                inbox,
                give,
                mail,
                relays: tables[r].address(),
                results: results[r].address(),
                count: count as u64,
                rounds: rounds as u64,
                mistake,
            };
            let grid = Grid { blocks, threads: 64 };
            // SAFETY: the buffers have what the kernel reads and writes, and outlive the streams' work.
            unsafe { comm.launch(kernel, grid, &argument, &streams[r]) }.map_err(words)?;
        }
        for (r, stream) in streams.iter().enumerate() {
            let got = results[r].to_vec(stream).map_err(|e| format!("rank {r}: {e}"))?;
            let size = (blocks.into(), count as u64, rounds as u64);
            let wanted = expected(r as u64, &nodes, size);
            if let Some(i) = (0..got.len()).find(|i| got[*i] != wanted[*i]) {
                return Err(format!("rank {r}, result {i}: {}, not {}", got[i], wanted[i]));
            }
        }
    }
    Ok(())
}
