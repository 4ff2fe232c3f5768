//! More elements than 32 bits count.

use ferroccl::{Communicator, Device, DeviceBuffer, ReduceOp, Stream};

/// A prime, so that no chunk is a multiple of it.
const PERIOD: usize = 251 * 4099;

fn pattern(factor: u8) -> Vec<u8> {
    (0..PERIOD).map(|i| (i % 251 + i / 4096) as u8).map(|x| x.wrapping_mul(factor)).collect()
}

fn fill(buffer: &DeviceBuffer<u8>, pattern: &[u8], stream: &Stream) {
    for start in (0..buffer.len()).step_by(PERIOD) {
        let part = buffer.slice(start..start + PERIOD);
        part.copy_from(&pattern[..part.len()], stream).unwrap();
    }
}

fn check(buffer: &DeviceBuffer<u8>, pattern: &[u8], stream: &Stream, what: &str) {
    let mut got = vec![0; PERIOD];
    for start in (0..buffer.len()).step_by(PERIOD) {
        let part = buffer.slice(start..start + PERIOD);
        part.copy_to(&mut got[..part.len()], stream).unwrap();
        assert!(got[..part.len()] == pattern[..part.len()], "{what}: after element {start}");
    }
}

#[test]
fn more_than_2_to_the_31() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let count = (1 << 31) + 100_003;
    let buffers: Vec<_> = ranks.iter().map(|_| device.alloc::<u8>(count).unwrap()).collect();

    for (buffer, stream) in buffers.iter().zip(&streams) {
        fill(buffer, &pattern(1), stream);
    }
    for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
        rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
    }
    for (buffer, stream) in buffers.iter().zip(&streams) {
        check(buffer, &pattern(2), stream, "all_reduce");
    }

    // From rank 1 to rank 0, as a message.
    fill(&buffers[1], &pattern(5), &streams[1]);
    ranks[1].send(&buffers[1], 0, &streams[1]).unwrap();
    ranks[0].recv(&buffers[0], 1, &streams[0]).unwrap();
    check(&buffers[0], &pattern(5), &streams[0], "recv");
    streams[1].synchronize().unwrap();

    // In place: blocks of more than 2^30.
    let each = count / 2;
    for (r, rank) in ranks.iter().enumerate() {
        let (all, stream) = (buffers[r].slice(..2 * each), &streams[r]);
        let block = all.slice(r * each..(r + 1) * each);
        fill(&block, &pattern(3 + r as u8), stream);
        rank.all_gather(&block, &all, stream).unwrap();
    }
    for (buffer, stream) in buffers.iter().zip(&streams) {
        check(&buffer.slice(..each), &pattern(3), stream, "all_gather");
        check(&buffer.slice(each..2 * each), &pattern(4), stream, "all_gather");
    }
}
