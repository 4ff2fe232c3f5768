//! The kernel of `groups.rs` on ranks of any devices, with all that comes out compared.

use ferroccl::device::kernels::UserKernel;
use ferroccl::{CommConfig, Communicator, Device, DeviceCommConfig, Grid};

use crate::groups::{Groups, WARPS, expected, inbox_of, members, results_of};

/// Runs rounds in as many blocks of as many elements, with teams of so many ranks: beside each other, or at distances with `outer`. An
/// error, or what is wrong.
pub(crate) fn run(
    devices: &[Device],
    kernel: &UserKernel<Groups>,
    (blocks, count, rounds): (u32, usize, usize),
    (team, outer): (u64, bool),
) -> Result<(), String> {
    let words = |e: ferroccl::Error| e.to_string();
    let ranks = Communicator::init_all_on(devices, &CommConfig::default()).map_err(words)?;
    let n = ranks.len() as u64;
    let groups = u64::from(blocks) * WARPS;
    let mut config = DeviceCommConfig::default();
    (config.barriers, config.signals) = (2 * groups as u32, 2 * groups as u32);
    let comms = Communicator::device_comms(&ranks, &config).map_err(words)?;
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    let alloc = |len: u64| -> Vec<_> {
        let len = (len * groups).max(1) as usize;
        devices.iter().map(|device| device.alloc_shared::<u32>(len).unwrap()).collect()
    };
    let buffers = [alloc(count as u64), alloc(inbox_of(team, count as u64))];
    let windows = buffers
        .each_ref()
        .map(|buffers| Communicator::register_windows(ranks.iter().zip(buffers)).unwrap());
    let each = results_of(team, count as u64);
    let results = alloc(each * rounds as u64);
    let warps: Vec<_> = devices.iter().map(|device| device.alloc::<u64>(1).unwrap()).collect();
    for (r, comm) in comms.iter().enumerate() {
        let argument = Groups {
            comm: comm.value(),
            windows: windows.each_ref().map(|of| of[r].value().unwrap()),
            results: results[r].address(),
            warps: warps[r].address(),
            count: count as u64,
            rounds: rounds as u64,
            team,
            outer: outer.into(),
        };
        let grid = Grid { blocks, threads: 64 };
        // SAFETY: the buffers have what the kernel reads and writes, and outlive the streams' work.
        unsafe { comm.launch(kernel, grid, &argument, &streams[r]) }.map_err(words)?;
    }
    for (r, stream) in streams.iter().enumerate() {
        let got = results[r].to_vec(stream).map_err(|e| format!("rank {r}: {e}"))?;
        let warps = warps[r].to_vec(stream).map_err(words)?[0];
        assert!((1..=WARPS).contains(&warps), "{warps} warps");
        let team = members(r as u64, n, team, outer);
        let mut at = 0;
        for group in 0..groups {
            for round in 0..rounds as u64 {
                let wanted = expected(&team, n, (group, round), count as u64);
                let got = &got[at..at + wanted.len()];
                at += wanted.len();
                let wrong = (0..wanted.len()).find(|i| got[*i] != wanted[*i]);
                if let Some(i) = wrong.filter(|_| group % WARPS < warps) {
                    let (got, wanted) = (got[i], wanted[i]);
                    return Err(format!(
                        "rank {r}, group {group}, round {round}, result {i}: {got}, not {wanted}"
                    ));
                }
            }
        }
    }
    Ok(())
}
