//! Checked collectives of `u32`: what comes out is compared with a model in plain Rust, and what lies around a result must
//! be untouched.
#![allow(dead_code, reason = "each test binary uses its part")]

use ferroccl::{
    Algorithm, CommConfig, Communicator, Device, DeviceBuffer, Element, ReduceOp, Stream, Window,
    group,
};

use crate::random::Random;

const GUARD: usize = 5;
pub(crate) const COUNTS: [usize; 8] = [0, 1, 2, 7, 33, 1000, 4099, 70_001];

/// The ranks of a group, with a stream each.
pub(crate) struct Team {
    device: Device,
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
    name: String,
    /// Whether buffers are registered.
    windows: bool,
}

pub(crate) fn team(config: &CommConfig, n: u32, name: &str) -> Team {
    team_on(Device::cpu(), config, n, name)
}

pub(crate) fn team_on(device: Device, config: &CommConfig, n: u32, name: &str) -> Team {
    let ranks = Communicator::init_all_with(&device, n, config).unwrap();
    let streams = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let windows = config.algorithm.is_some_and(Algorithm::is_on_windows);
    Team { device, ranks, streams, name: format!("{n} ranks, {name}"), windows }
}

/// A buffer in the middle of another one.
struct Guarded<T> {
    whole: DeviceBuffer<T>,
    before: usize,
    len: usize,
    poison: Vec<T>,
}

impl<T: Element + PartialEq> Guarded<T> {
    fn new(team: &Team, len: usize, fill: &[T], poison: T) -> Self {
        let before = GUARD + len % 3;
        let mut content = vec![poison; before + len + GUARD];
        content[before..before + fill.len()].copy_from_slice(fill);
        let whole = if team.windows {
            let whole = team.device.alloc_shared(content.len()).unwrap();
            // At once, whatever stream it is used in.
            whole.copy_from(&content, &team.streams[0]).unwrap();
            team.streams[0].synchronize().unwrap();
            whole
        } else {
            team.device.upload(&content).unwrap()
        };
        content[before..before + len].fill(poison);
        Guarded { whole, before, len, poison: content }
    }

    fn buffer(&self) -> DeviceBuffer<T> {
        self.whole.slice(self.before..self.before + self.len)
    }

    fn check(&self, stream: &Stream, want: &[T], what: &str) {
        let got = self.whole.to_vec(stream).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (start, end) = (self.before, self.before + self.len);
        assert!(got[..start] == self.poison[..start], "{what}: wrote before its buffer");
        assert!(got[end..] == self.poison[end..], "{what}: wrote behind its buffer");
        if let Some(i) = (0..want.len()).find(|i| got[start + i] != want[*i]) {
            let found = got[start + i];
            panic!("{what}: element {i} of {} is {found:?}, not {:?}", want.len(), want[i]);
        }
    }
}

fn inputs(team: &Team, count: usize, random: &mut Random) -> Vec<Vec<u32>> {
    team.ranks.iter().map(|_| (0..count).map(|_| random.next() as u32).collect()).collect()
}

fn sums(inputs: &[Vec<u32>]) -> Vec<u32> {
    let sum = |i: usize| inputs.iter().fold(0, |sum: u32, input| sum.wrapping_add(input[i]));
    (0..inputs[0].len()).map(sum).collect()
}

const POISON: u32 = 0xdead_beef;

impl Team {
    fn n(&self) -> usize {
        self.ranks.len()
    }

    fn each(&self) -> impl Iterator<Item = (usize, &Communicator, &Stream)> {
        self.ranks
            .iter()
            .zip(&self.streams)
            .enumerate()
            .map(|(r, (rank, stream))| (r, rank, stream))
    }

    /// Registers a buffer of each rank, where buffers are registered.
    fn register(&self, buffers: &[&Guarded<u32>]) -> Vec<Window> {
        if !self.windows {
            return Vec::new();
        }
        let buffers: Vec<_> = buffers.iter().map(|buffer| buffer.whole.clone()).collect();
        Communicator::register_windows(self.ranks.iter().zip(&buffers)).unwrap()
    }

    fn all_reduce(&self, count: usize, in_place: bool, random: &mut Random) {
        let what = format!("all_reduce of {count}, in place {in_place}, {}", self.name);
        let inputs = inputs(self, count, random);
        let sends: Vec<_> = inputs.iter().map(|i| Guarded::new(self, count, i, POISON)).collect();
        let recvs: Vec<_> = inputs.iter().map(|_| Guarded::new(self, count, &[], POISON)).collect();
        let _windows =
            [&sends, &recvs].map(|buffers| self.register(&buffers.iter().collect::<Vec<_>>()));
        for (r, rank, stream) in self.each() {
            let send = sends[r].buffer();
            let recv = if in_place { send.clone() } else { recvs[r].buffer() };
            rank.all_reduce(&send, &recv, ReduceOp::Sum, stream).unwrap();
        }
        let sums = sums(&inputs);
        for (r, _, stream) in self.each() {
            let what = format!("{what}, rank {r}");
            let (result, other) = if in_place { (&sends, None) } else { (&recvs, Some(&sends)) };
            result[r].check(stream, &sums, &what);
            if let Some(sends) = other {
                sends[r].check(stream, &inputs[r], &format!("{what}: input"));
            }
        }
    }

    fn all_gather(&self, count: usize, in_place: bool, random: &mut Random) {
        let what = format!("all_gather of {count}, in place {in_place}, {}", self.name);
        let inputs = inputs(self, count, random);
        let mut recvs = Vec::new();
        for (r, rank, stream) in self.each() {
            let recv = Guarded::new(self, count * self.n(), &[], POISON);
            let block = recv.buffer().slice(r * count..(r + 1) * count);
            let send = if in_place { block } else { self.device.alloc(count).unwrap() };
            send.copy_from(&inputs[r], stream).unwrap();
            recvs.push((send, recv));
            let _ = rank;
        }
        let _windows = self.register(&recvs.iter().map(|(_, recv)| recv).collect::<Vec<_>>());
        for (r, rank, stream) in self.each() {
            rank.all_gather(&recvs[r].0, &recvs[r].1.buffer(), stream).unwrap();
        }
        let all = inputs.concat();
        for (r, _, stream) in self.each() {
            recvs[r].1.check(stream, &all, &format!("{what}, rank {r}"));
        }
    }

    fn reduce_scatter(&self, count: usize, in_place: bool, random: &mut Random) {
        let what = format!("reduce_scatter of {count}, in place {in_place}, {}", self.name);
        let inputs = inputs(self, count * self.n(), random);
        let sends: Vec<_> =
            inputs.iter().map(|i| Guarded::new(self, count * self.n(), i, POISON)).collect();
        let recvs: Vec<_> = inputs.iter().map(|_| Guarded::new(self, count, &[], POISON)).collect();
        let _windows = self.register(&sends.iter().collect::<Vec<_>>());
        for (r, rank, stream) in self.each() {
            let send = sends[r].buffer();
            let recv =
                if in_place { send.slice(r * count..(r + 1) * count) } else { recvs[r].buffer() };
            rank.reduce_scatter(&send, &recv, ReduceOp::Sum, stream).unwrap();
        }
        let sums = sums(&inputs);
        for (r, _, stream) in self.each() {
            let what = format!("{what}, rank {r}");
            let block = r * count..(r + 1) * count;
            if in_place {
                let mut want = inputs[r].clone();
                want[block.clone()].copy_from_slice(&sums[block]);
                sends[r].check(stream, &want, &what);
            } else {
                recvs[r].check(stream, &sums[block], &what);
                sends[r].check(stream, &inputs[r], &format!("{what}: input"));
            }
        }
    }

    fn broadcast(&self, count: usize, root: u32, in_place: bool, random: &mut Random) {
        let what = format!("broadcast of {count} from {root}, in place {in_place}, {}", self.name);
        let inputs = inputs(self, count, random);
        let sends: Vec<_> = inputs.iter().map(|i| Guarded::new(self, count, i, POISON)).collect();
        let recvs: Vec<_> = inputs.iter().map(|_| Guarded::new(self, count, &[], POISON)).collect();
        for (r, rank, stream) in self.each() {
            let send = sends[r].buffer();
            let recv = if in_place { send.clone() } else { recvs[r].buffer() };
            rank.broadcast(&send, &recv, root, stream).unwrap();
        }
        for (r, _, stream) in self.each() {
            let result = if in_place { &sends[r] } else { &recvs[r] };
            result.check(stream, &inputs[root as usize], &format!("{what}, rank {r}"));
        }
    }

    fn reduce(&self, count: usize, root: u32, in_place: bool, random: &mut Random) {
        let what = format!("reduce of {count} to {root}, in place {in_place}, {}", self.name);
        let inputs = inputs(self, count, random);
        let sends: Vec<_> = inputs.iter().map(|i| Guarded::new(self, count, i, POISON)).collect();
        let recvs: Vec<_> = inputs.iter().map(|_| Guarded::new(self, count, &[], POISON)).collect();
        for (r, rank, stream) in self.each() {
            let send = sends[r].buffer();
            let recv = if in_place { send.clone() } else { recvs[r].buffer() };
            rank.reduce(&send, &recv, ReduceOp::Sum, root, stream).unwrap();
        }
        let sums = sums(&inputs);
        for (r, _, stream) in self.each() {
            let what = format!("{what}, rank {r}");
            let at_root = r == root as usize;
            if in_place {
                sends[r].check(stream, if at_root { &sums } else { &inputs[r] }, &what);
            } else {
                sends[r].check(stream, &inputs[r], &format!("{what}: input"));
                let nothing = vec![POISON; count];
                recvs[r].check(stream, if at_root { &sums } else { &nothing }, &what);
            }
        }
    }

    /// All of these, with every root of a few, and barriers between.
    pub(crate) fn collectives(&self, seed: u64, counts: &[usize]) {
        let random = &mut Random(seed);
        let n = self.n() as u32;
        for &count in counts {
            for in_place in [false, true] {
                self.all_reduce(count, in_place, random);
                self.all_gather(count / self.n() + count % 2, in_place, random);
                self.reduce_scatter(count / self.n() + count % 2, in_place, random);
                if !in_place {
                    self.all_to_all(count / self.n() + count % 2, false, random);
                }
                for root in [0, n / 2, n - 1] {
                    self.broadcast(count, root, in_place, random);
                    self.reduce(count, root, in_place, random);
                }
            }
            for (_, rank, stream) in self.each() {
                rank.barrier(stream).unwrap();
            }
        }
        for stream in &self.streams {
            stream.synchronize().unwrap_or_else(|e| panic!("{}: {e}", self.name));
        }
    }

    pub(crate) fn messages(&self, seed: u64, counts: &[usize]) {
        let random = &mut Random(seed);
        let n = self.n();
        for &count in counts {
            // Every rank to every other, itself included, all in one group; then as one call.
            self.all_to_all(count, true, random);
            self.all_to_all(count, false, random);
            for root in [0, n - 1] {
                for in_place in [false, true] {
                    self.gather_and_scatter(count, root, in_place, random);
                }
            }
        }
    }

    fn all_to_all(&self, count: usize, as_group: bool, random: &mut Random) {
        let what = format!("all to all of {count}, as a group {as_group}, {}", self.name);
        let n = self.n();
        let inputs: Vec<Vec<u32>> = inputs(self, count * n, random);
        let sends: Vec<_> =
            inputs.iter().map(|i| Guarded::new(self, count * n, i, POISON)).collect();
        let recvs: Vec<_> =
            inputs.iter().map(|_| Guarded::new(self, count * n, &[], POISON)).collect();
        let _windows = self.register(&recvs.iter().collect::<Vec<_>>());
        for (r, rank, stream) in self.each() {
            let (send, recv) = (sends[r].buffer(), recvs[r].buffer());
            if !as_group {
                rank.all_to_all(&send, &recv, stream).unwrap();
                continue;
            }
            group(|| {
                // Receives first, and the last peer first: the order must not matter.
                for peer in (0..n).rev() {
                    let block = peer * count..(peer + 1) * count;
                    rank.recv(&recv.slice(block), peer as u32, stream)?;
                }
                for peer in 0..n {
                    let block = peer * count..(peer + 1) * count;
                    rank.send(&send.slice(block), peer as u32, stream)?;
                }
                Ok(())
            })
            .unwrap();
        }
        for (r, _, stream) in self.each() {
            let block = r * count..(r + 1) * count;
            let want: Vec<u32> =
                inputs.iter().flat_map(|input| input[block.clone()].to_vec()).collect();
            recvs[r].check(stream, &want, &format!("{what}, rank {r}"));
        }
    }

    fn gather_and_scatter(&self, count: usize, root: usize, in_place: bool, random: &mut Random) {
        let n = self.n();
        let what = format!("of {count}, root {root}, in place {in_place}, {}", self.name);
        let pieces = inputs(self, count, random);
        let whole = Guarded::new(self, count * n, &[], POISON);
        let own = whole.buffer().slice(root * count..(root + 1) * count);
        let mine: Vec<_> = self
            .each()
            .map(|(r, _, stream)| {
                let piece = if in_place && r == root {
                    own.clone()
                } else {
                    self.device.alloc(count).unwrap()
                };
                piece.copy_from(&pieces[r], stream).unwrap();
                piece
            })
            .collect();
        for (r, rank, stream) in self.each() {
            rank.gather(&mine[r], &whole.buffer(), root as u32, stream).unwrap();
        }
        let stream = &self.streams[root];
        whole.check(stream, &pieces.concat(), &format!("gather {what}"));
        for (r, _, stream) in self.each() {
            if !(in_place && r == root) {
                mine[r].copy_from(&vec![0; count], stream).unwrap();
            }
        }
        for (r, rank, stream) in self.each() {
            rank.scatter(&whole.buffer(), &mine[r], root as u32, stream).unwrap();
        }
        for (r, _, stream) in self.each() {
            assert!(mine[r].to_vec(stream).unwrap() == pieces[r], "scatter {what}, rank {r}");
        }
    }
}
