//! A contestant in processes of its own, which sleeps until it is asked.
//!
//! A request is a line on its standard input, the answer a line of JSON on its standard output. So
//! all contestants are up at once, and they take turns at each size instead of at each sweep: what
//! disturbs a shared machine for seconds disturbs all of them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use ferroccl::launcher::CoreBinding;
use ferroccl::{Algorithm, Collective, CommConfig, ProtocolId};
use serde::{Deserialize, Serialize};

use crate::{Failure, Outcome};

/// What to time. As a line: `COLLECTIVE BYTES SECONDS`, and a way if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    /// One of [`COLLECTIVES`].
    pub(crate) collective: Collective,
    /// The plain ring of the MPI program instead of the library's own all-reduce.
    pub(crate) ring: bool,
    /// Size of a rank's largest buffer.
    pub(crate) bytes: u64,
    /// How long to measure, for each figure.
    pub(crate) seconds: f64,
    /// FerroCCL is to do it so, and to measure [`Sample::batch_us`] alone.
    pub(crate) way: Option<Way>,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = if self.ring { "ring" } else { name(self.collective) };
        write!(f, "{name} {} {}", self.bytes, self.seconds)?;
        self.way.iter().try_for_each(|way| write!(f, " {way}"))
    }
}

impl std::str::FromStr for Request {
    type Err = Failure;

    fn from_str(line: &str) -> Outcome<Self> {
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or_else(|| format!("request {line:?} is too short"));
        let name = word()?;
        let ring = name == "ring";
        let collective = if ring { Collective::AllReduce } else { named(name)? };
        let (bytes, seconds) = (word()?.parse()?, word()?.parse()?);
        let way = words.next().map(str::parse).transpose()?;
        Ok(Request { collective, ring, bytes, seconds, way })
    }
}

/// How a call is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) algorithm: Algorithm,
    pub(crate) protocol: ProtocolId,
}

impl Way {
    /// Those of the library, also those that cannot do a call.
    pub(crate) fn all() -> impl Iterator<Item = Way> {
        let with = |protocol| move |algorithm| Way { algorithm, protocol };
        ProtocolId::ALL.iter().flat_map(move |p| Algorithm::ALL.iter().copied().map(with(*p)))
    }

    /// Settings that ask for it.
    pub(crate) fn config(self) -> CommConfig {
        let mut config = CommConfig::default();
        (config.algorithm, config.protocol) = (Some(self.algorithm), Some(self.protocol));
        config
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.algorithm, self.protocol)
    }
}

impl std::str::FromStr for Way {
    type Err = Failure;

    fn from_str(text: &str) -> Outcome<Self> {
        let (algorithm, protocol) =
            text.split_once('/').ok_or_else(|| format!("{text:?} is no ALGORITHM/PROTOCOL"))?;
        Ok(Way { algorithm: algorithm.parse()?, protocol: protocol.parse()? })
    }
}

/// What all contestants have.
pub(crate) const COLLECTIVES: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
];

/// The name in a request.
pub(crate) fn name(collective: Collective) -> &'static str {
    match collective {
        Collective::AllGather => "all_gather",
        Collective::ReduceScatter => "reduce_scatter",
        Collective::Broadcast => "broadcast",
        Collective::Reduce => "reduce",
        Collective::AllToAll => "all_to_all",
        _ => "all_reduce",
    }
}

/// The collective of that name.
pub(crate) fn named(text: &str) -> Outcome<Collective> {
    let found = COLLECTIVES.into_iter().find(|collective| name(*collective) == text);
    found.ok_or_else(|| format!("{text:?} is none of {}", COLLECTIVES.map(name).join(", ")).into())
}

/// Medians of one contestant at one size; microseconds an operation, of the slowest rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Operations enqueued one after the other, then one wait: how nccl-tests times. MPI has none.
    #[serde(default)]
    pub(crate) queued_us: Option<f64>,
    /// Operations back to back, each complete on the rank before its next begins.
    pub(crate) batch_us: f64,
    /// One operation after a barrier.
    pub(crate) each_us: f64,
    /// Elements that were wrong, of all ranks.
    pub(crate) wrong: u64,
    /// How FerroCCL did it: a [`Way`].
    #[serde(default)]
    pub(crate) way: Option<String>,
    /// Why it cannot do what was asked for.
    #[serde(default)]
    pub(crate) error: Option<String>,
}

impl Sample {
    /// The best the contestant's interface can do for operations in a row.
    pub(crate) fn stream_us(&self) -> f64 {
        self.queued_us.unwrap_or(self.batch_us)
    }
}

/// One contestant's processes. Dropped: their input ends, so they end.
#[derive(Debug)]
pub(crate) struct Peer {
    name: String,
    inputs: Vec<ChildStdin>,
    answers: Receiver<String>,
    children: Vec<Child>,
}

impl Peer {
    /// The MPI program on `ranks` ranks.
    pub(crate) fn mpi(program: &str, ranks: u32, setting: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(OPEN_MPI.launcher());
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]);
        command.args(setting).args([program, "--serve"]);
        Self::mpi_by(format!("mpirun {setting:?}"), command)
    }

    /// The MPI program of MPICH on `ranks` ranks.
    pub(crate) fn mpich(program: &str, ranks: u32) -> Outcome<Self> {
        let mut command = Command::new(MPICH.launcher());
        command.args(["-n", &ranks.to_string(), program, "--serve"]);
        Self::mpi_by("MPICH".to_owned(), command)
    }

    /// torch's gloo on `ranks` ranks, by a Python that has torch.
    pub(crate) fn gloo(python: &Path, ranks: u32) -> Outcome<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/gloo.py");
        let mut command = Command::new(python);
        command.args([script, &ranks.to_string()]);
        Self::mpi_by("gloo".to_owned(), command)
    }

    /// The MPI program as this command starts it.
    pub(crate) fn mpi_by(name: String, mut command: Command) -> Outcome<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{name}: {e}; {PACKAGES}"))?;
        let (input, output) = pipes(&mut child)?;
        Ok(Self::new(name, vec![input], BufReader::new(output), vec![child]))
    }

    /// This program again, `ranks` times, one rank each. If there are to be several hosts, each says which one it is on.
    pub(crate) fn ferro(ranks: u32, hosts: u32) -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let command = |rank| {
            let mut command = Command::new(&program);
            if hosts > 1 {
                command.env("NCCL_HOSTID", format!("host-{}", rank * hosts / ranks));
                command.env("NCCL_SOCKET_IFNAME", "lo");
            }
            command
        };
        Self::ferro_by((0..ranks).map(command).collect())
    }

    /// This program again by each of these commands, which are the ranks' in order. Rank 0 prints the id by which the
    /// others, as its first line of input, find it.
    pub(crate) fn ferro_by(commands: Vec<Command>) -> Outcome<Self> {
        let ranks = commands.len();
        let (mut inputs, mut children) = (Vec::new(), Vec::new());
        let (mut first, mut id) = (None, String::new());
        for (rank, mut command) in commands.into_iter().enumerate() {
            command
                .args(["--bench", "--worker", &format!("{rank}/{ranks}")])
                .stdin(Stdio::piped())
                .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() });
            // As `ferroccl run` starts ranks.
            let mut child = CoreBinding::Auto.spawn(&mut command, rank as u32, ranks as u32)?;
            let mut input = child.stdin.take().ok_or("no pipe to the worker")?;
            if let Some(output) = child.stdout.take() {
                let mut output = BufReader::new(output);
                output.read_line(&mut id)?;
                first = Some(output);
            } else {
                input.write_all(id.as_bytes())?;
            }
            inputs.push(input);
            children.push(child);
        }
        let output = first.ok_or("no ranks")?;
        Ok(Self::new("FerroCCL's processes".to_owned(), inputs, output, children))
    }

    fn new(
        name: String,
        inputs: Vec<ChildStdin>,
        output: BufReader<ChildStdout>,
        children: Vec<Child>,
    ) -> Self {
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Peer { name, inputs, answers, children }
    }

    /// Has it measure. An answer that does not come in two minutes is an error.
    pub(crate) fn ask(&mut self, request: Request) -> Outcome<Sample> {
        for input in &mut self.inputs {
            writeln!(input, "{request}")?;
            input.flush()?;
        }
        match self.answers.recv_timeout(Duration::from_secs(120)) {
            Ok(line) => {
                Ok(serde_json::from_str(&line)
                    .map_err(|e| format!("{}: {line}: {e}", self.name))?)
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("{}: no answer to {request}", self.name).into())
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(format!("{} ended at {request}", self.name).into())
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.inputs.clear();
        for child in &mut self.children {
            for _ in 0..100 {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill(); // already gone: nothing to do
            let _ = child.wait();
        }
    }
}

/// An implementation of MPI, by the suffix that Debian gives its programs where there are several.
pub(crate) struct Mpi {
    suffix: &'static str,
    /// Whether the programs without a suffix are taken for its.
    usual: bool,
}

pub(crate) const OPEN_MPI: Mpi = Mpi { suffix: "openmpi", usual: true };
pub(crate) const MPICH: Mpi = Mpi { suffix: "mpich", usual: false };

impl Mpi {
    fn program(&self, name: &str) -> String {
        let named = format!("{name}.{}", self.suffix);
        let there = Command::new(&named).arg("--version").output().is_ok();
        if there || !self.usual { named } else { name.to_owned() }
    }

    fn launcher(&self) -> String {
        self.program("mpirun")
    }

    /// What its launcher says of itself, first of all; `None` where it is not there.
    pub(crate) fn version(&self) -> Option<String> {
        let output = Command::new(self.launcher()).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.lines().find(|line| line.contains("Version") || line.contains("mpirun"));
        Some(
            version
                .or_else(|| text.lines().next())?
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" "),
        )
    }

    /// Compiles the MPI program; the compiler may use all that this machine has.
    pub(crate) fn compile(&self) -> Outcome<String> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/mpi_collectives.c");
        let program = format!("{}/mpi_collectives.{}", env!("CARGO_TARGET_TMPDIR"), self.suffix);
        let compiler = self.program("mpicc");
        let status = Command::new(&compiler)
            .args(["-O3", "-march=native", "-o", &program, source])
            .status()
            .map_err(|e| format!("{compiler}: {e}; {PACKAGES}"))?;
        if status.success() { Ok(program) } else { Err(format!("{compiler} failed").into()) }
    }
}

/// Whether Open MPI says that it can send by UCX.
pub(crate) fn open_mpi_has_ucx() -> bool {
    let output = Command::new("ompi_info").args(["--parsable", "--param", "pml", "ucx"]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("mca:pml:ucx:"))
}

const PACKAGES: &str = "Debian's packages are openmpi-bin libopenmpi-dev (scripts/setup)";

fn pipes(child: &mut Child) -> Outcome<(ChildStdin, ChildStdout)> {
    let input = child.stdin.take().ok_or("no pipe to mpirun")?;
    let output = child.stdout.take().ok_or("no pipe from mpirun")?;
    Ok((input, output))
}
