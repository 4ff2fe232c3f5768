//! The parts of programs that the README shows: these lines are those (a test of the command compares them).

use ferroccl::{
    CommConfig, Communicator, Device, DeviceBuffer, ReduceOp, Result, ShrinkMode, Stream, UniqueId,
};

use super::{each, init_ranks};

type Floats = DeviceBuffer<f32>;

#[rustfmt::skip]
fn a_group(
    (comm, world): (&Communicator, &Communicator),
    (blocks, other, sum): (&[Floats], &[Floats], Floats),
    stream: Stream,
) -> Result<()> {
    ferroccl::group(|| {
        for (peer, block) in blocks.iter().enumerate() {
            comm.send(block, peer as u32, &stream)?;
            comm.recv(&other[peer], peer as u32, &stream)?;
        }
        world.all_reduce(&sum, &sum, ReduceOp::Avg, &stream)
    })?;
    stream.synchronize()
}

#[test]
fn a_group_of_messages_and_a_sum() {
    let device = Device::cpu();
    let config = CommConfig::default();
    let (comms, worlds) = (init_ranks(&device, 2, &config), init_ranks(&device, 2, &config));
    each(2, |rank| {
        let mine = |x: f32| device.upload(&[x; 100]).unwrap();
        let blocks = [mine(10.0 + rank as f32), mine(20.0 + rank as f32)];
        let other = [mine(0.0), mine(0.0)];
        let (sum, stream) = (mine(rank as f32), device.stream().unwrap());
        let r = rank as usize;
        a_group((&comms[r], &worlds[r]), (&blocks, &other, sum.clone()), stream.clone()).unwrap();
        let want = if rank == 0 { [10.0, 11.0] } else { [20.0, 21.0] };
        for (from, want) in other.iter().zip(want) {
            assert_eq!(from.to_vec(&stream).unwrap(), [want; 100]);
        }
        assert_eq!(sum.to_vec(&stream).unwrap(), [0.5; 100]);
    });
}

#[rustfmt::skip]
fn a_split_and_a_start_in_the_background(
    comm: Communicator,
    device: Device,
    (n, id, rank): (u32, UniqueId, u32),
    config: CommConfig,
) -> Result<Option<Communicator>> {
    let row = comm.split(Some(comm.rank() / 8), 0)?;             // Option: none without a color
    let init = Communicator::init_rank_nonblocking(&device, n, &id, rank, &config)?;
    while !init.is_over() { /* something else; init.abort() ends it */ }
    let comm = init.wait()?;
    comm.finalize()?;                                            // all calls have ended, no more can be made
    Ok(row)
}

#[rustfmt::skip]
fn a_sum_on_a_window(comm: &Communicator, device: &Device, stream: Stream) -> Result<Floats> {
    let sum = device.alloc_shared::<f32>(1 << 20)?;              // memory that other GPUs and processes may map
    let window = comm.register_window(&sum)?;                    // all ranks call it, with buffers of one size
    comm.all_reduce(&sum, &sum, ReduceOp::Sum, &stream)?;        // reads and writes the buffers of all ranks
    stream.synchronize()?;
    drop(window);
    Ok(sum)
}

#[test]
fn a_window() {
    let device = Device::cpu();
    let ranks = init_ranks(&device, 2, &CommConfig::default());
    each(2, |rank| {
        let stream = device.stream().unwrap();
        let sum = a_sum_on_a_window(&ranks[rank as usize], &device, stream.clone()).unwrap();
        assert_eq!(sum.slice(..3).to_vec(&stream).unwrap(), [0.0; 3]);
    });
}

#[rustfmt::skip]
fn a_sum_that_may_lose_ranks(mut comm: Communicator, sum: DeviceBuffer<f32>, stream: Stream) -> Result<Communicator> {
    let done = comm.all_reduce(&sum, &sum, ReduceOp::Sum, &stream).and_then(|()| stream.synchronize());
    if let Err(error) = done {
        let blamed = comm.async_error().err().unwrap_or(error).blamed_ranks();
        comm = comm.shrink(&blamed, ShrinkMode::Abort)?;          // all that are left call it, with the same list
    }
    Ok(comm)
}

#[test]
fn a_rank_that_makes_no_call_is_left_behind() {
    let mut config = CommConfig::default();
    config.timeout = Some(std::time::Duration::from_secs(1));
    let device = Device::cpu();
    let ranks = std::sync::Mutex::new(init_ranks(&device, 3, &config));
    let sizes = each(3, |_| {
        let rank = ranks.lock().unwrap().pop().unwrap();
        if rank.rank() == 1 {
            while rank.async_error().is_ok() {
                std::thread::yield_now();
            }
            return 0;
        }
        let (sum, stream) = (device.alloc(10).unwrap(), device.stream().unwrap());
        a_sum_that_may_lose_ranks(rank, sum, stream).unwrap().world_size()
    });
    assert_eq!(sizes.iter().sum::<u32>(), 4, "{sizes:?}");
}

#[test]
fn rows_of_eight() {
    let device = Device::cpu();
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    let all = std::sync::Mutex::new(init_ranks(&device, 9, &CommConfig::default()));
    let rows = each(9, |rank| {
        let comm = {
            let mut all = all.lock().unwrap();
            let at = all.iter().position(|comm| comm.rank() == rank).unwrap();
            all.remove(at)
        };
        let place = (9, id, rank);
        let config = CommConfig::default();
        a_split_and_a_start_in_the_background(comm, device.clone(), place, config).unwrap().unwrap()
    });
    let sizes: Vec<u32> = rows.iter().map(Communicator::world_size).collect();
    assert_eq!(sizes, [8, 8, 8, 8, 8, 8, 8, 8, 1]);
}
