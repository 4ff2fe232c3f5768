//! The verbs network against perftest (`ib_write_bw`, `ib_write_lat`) over the same two ports.
//!
//! ```text
//! cargo bench -p ferroccl-proxy --bench verbs
//! ```
//!
//! Without `FERROCCL_BENCH_HCA=mlx5_0,mlx5_1` (two ports that reach each other; the GID index is `NCCL_IB_GID_INDEX` or 1) it
//! starts itself in a virtual machine with soft-RoCE (`tests/rdma/vm`), whose times are those of an emulated processor:
//! only ratios say something.
//!
//! Bandwidth: messages one after the other, 32 under way. Latency: half a round trip, on average. perftest's writes go to one
//! place, 128 under way, and nobody is told of them; ours go where the receiver wants each, which learns of it. So there is
//! `ib_send_bw` besides, with as many under way as ours: its receiver gives buffers and is told, too. In a round each takes
//! its turn.

mod common;

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::verbs::{Interface, VerbsConfig, VerbsNet};
use ferroccl_proxy::net::{Connecting, Listener, MAX_REQUESTS, Net, Properties};

type Failed = Box<dyn std::error::Error>;

const ROUNDS: usize = 5;
const SIZES: [usize; 7] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Connections from one port to another.
#[derive(Debug)]
struct Cable {
    from: VerbsNet,
    to: VerbsNet,
}

impl Net for Cable {
    fn name(&self) -> &str {
        self.from.name()
    }
    fn devices(&self) -> usize {
        1
    }
    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        self.from.properties(device)
    }
    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        self.to.listen(device)
    }
    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        self.from.connect(device, handle)
    }
}

/// The two ports, and which of their addresses.
struct Ports {
    names: [String; 2],
    gid_index: u8,
}

impl Ports {
    fn net(&self, from: usize) -> Result<Arc<dyn Net>, Failed> {
        let port = |name: &str| {
            let address = Ipv4Addr::LOCALHOST.into();
            let interface = Interface { name: "lo".to_owned(), address, scope_id: 0 };
            let mut config = VerbsConfig::new(interface, [1; 32]);
            config.hca = format!("={name}").parse()?;
            config.gid_index = Some(self.gid_index);
            Ok::<_, Failed>(VerbsNet::new(config)?)
        };
        let [a, b] = &self.names;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        Ok(Arc::new(Cable { from: port(from)?, to: port(to)? }))
    }

    /// A column of what a program of perftest prints for a size.
    fn perftest(
        &self,
        program: &str,
        options: &[&str],
        size: usize,
        count: usize,
        column: usize,
    ) -> Result<f64, Failed> {
        let command = |name: &str| {
            let mut command = Command::new(program);
            let (size, count) = (size.to_string(), count.to_string());
            command.args(["-F", "-d", name, "-x", &self.gid_index.to_string()]);
            command
                .args(options)
                .args(["-s", &size, "-n", &count])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command
        };
        let server = Server(command(&self.names[1]).spawn()?);
        // It says nothing when it is ready; the client tries once.
        let output = (0..20)
            .map(|_| {
                thread::sleep(Duration::from_millis(300));
                command(&self.names[0]).arg("127.0.0.1").output()
            })
            .find(|output| output.as_ref().map_or(true, |output| output.status.success()))
            .ok_or_else(|| format!("{program} does not run"))??;
        drop(server);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found = line
            .filter(|words| words.first().is_some_and(|word| *word == size.to_string()))
            .find_map(|words| words.get(column)?.parse().ok());
        Ok(found.ok_or_else(|| format!("{program} says {text}"))?)
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

/// Seconds that it takes to send so many messages.
fn seconds(net: &Arc<dyn Net>, size: usize, count: usize, most: usize) -> Result<f64, NetError> {
    let (mut send, mut recv) = common::connect(net)?;
    let receiver = thread::spawn(move || common::recv_all(&mut *recv, size, count, most));
    let since = common::send_all(&mut *send, size, count, most)?;
    receiver.join().expect("the receiver")?;
    Ok(since.elapsed().as_secs_f64())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Rounds of some programs, ours last: medians, and of ours the ratios to each of the others in the same round.
fn compare(
    size: usize,
    runs: &mut [&mut dyn FnMut() -> Result<f64, Failed>],
) -> Result<(), Failed> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(runs.iter_mut().map(|run| run()).collect::<Result<Vec<_>, _>>()?);
    }
    print!("{size:>9}");
    for program in 0..runs.len() {
        print!(" {:>10.1}", median(rounds.iter().map(|round| round[program]).collect()));
    }
    let ours = runs.len() - 1;
    for theirs in 0..ours {
        let mut ratios: Vec<_> = rounds.iter().map(|round| round[ours] / round[theirs]).collect();
        ratios.sort_by(f64::total_cmp);
        print!("   {:.2} ({:.2} to {:.2})", ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1]);
    }
    println!();
    Ok(())
}

fn run(ports: &Ports) -> Result<(), Failed> {
    let (there, back) = (ports.net(0)?, ports.net(1)?);
    println!("{} to {}, medians of {ROUNDS} rounds", ports.names[0], ports.names[1]);
    println!("bandwidth in MiB/s; the last columns are ours to each of perftest's");
    println!("    bytes   write_bw    send_bw       ours   to write_bw           to send_bw");
    for size in SIZES {
        // A second or so at 50 MiB/s, and no fewer than make a stream.
        let count = ((32 << 20) / size).clamp(64, 4000);
        let depth = MAX_REQUESTS.to_string();
        let depth = ["-t", &depth, "-r", &depth];
        compare(
            size,
            &mut [
                &mut || ports.perftest("ib_write_bw", &[], size, count, 3),
                &mut || ports.perftest("ib_send_bw", &depth, size, count, 3),
                &mut || {
                    let seconds = seconds(&there, size, count, MAX_REQUESTS)?;
                    Ok((size * count) as f64 / f64::from(1 << 20) / seconds)
                },
            ],
        )?;
    }
    println!("half a round trip in us, the average of a run");
    println!("    bytes  write_lat       ours   to write_lat");
    for size in [8].into_iter().chain(SIZES) {
        let count = ((8 << 20) / size).clamp(20, 1000);
        compare(
            size,
            &mut [
                &mut || ports.perftest("ib_write_lat", &[], size, count, 5), // t_avg
                &mut || {
                    Ok(common::latency((&there, &back), size, count as u32, thread::yield_now)?)
                },
            ],
        )?;
    }
    Ok(())
}

fn main() -> Result<(), Failed> {
    let gid_index = env::var("NCCL_IB_GID_INDEX").map_or(Ok(1), |text| text.parse())?;
    let names = match env::var("FERROCCL_BENCH_HCA") {
        Ok(list) => list,
        Err(_) if env::var_os("FERROCCL_IN_VM").is_some() => "rxa,rxb".to_owned(),
        Err(_) => {
            let vm = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/rdma/vm");
            let status = Command::new(vm)
                .args(["run", "--"])
                .arg(env::current_exe()?)
                .env("FERROCCL_VM_TIMEOUT", "1800")
                .status()?;
            std::process::exit(status.code().unwrap_or(1));
        }
    };
    let names: Vec<_> = names.split(',').map(str::to_owned).collect();
    let names = names.try_into().map_err(|_| "FERROCCL_BENCH_HCA has two ports: a,b")?;
    run(&Ports { names, gid_index })
}
