//! `ferroccl ptx run`: runs a kernel in the emulator, on buffers that the command line describes.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use ferroccl_ptx::emu::{
    Adversity, Checks, Counts, Fault, Grid, Launch, Lockstep, Machine, Mapping, Options, Program,
    Unit, WarpSchedule, run_on_threads,
};
use serde_json::json;

use super::Failure;
use super::kernel::From;

const AFTER_HELP: &str = "\
Arguments, in the order of the kernel's parameters:
  TYPE=VALUE       a number: u32=7, s64=-1, f32=0.5
  TYPE[COUNT]      a buffer of zeros, shown after the run: f32[1024]
  TYPE[COUNT]=0..  a buffer of 0, 1, 2, ...: u32[64]=0..
  TYPE[COUNT]=V    a buffer of V
Types are u8 u16 u32 u64 s8 s16 s32 s64 f32 f64.

With --seed, warps run in an order that the seed decides, on a memory that is as late and as torn as PTX allows, and \
races, deadlocks and loads of what nobody has written are errors. Without it, warps take turns and memory is plain.

Examples:
  ferroccl ptx run --file add.ptx add --blocks 2 --threads 64 --arg f32[128] --arg f32[128]=0.. --arg u32=128
  ferroccl ptx run --file mine.ptx --threads 256 --arg u32[256] --seed 7";

/// Run a kernel in the emulator
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct RunArgs {
    /// The kernel, or a part of its name
    kernel: Option<String>,
    #[command(flatten)]
    launch: LaunchArgs,
    /// Who runs when: `turns` and seeds replay, `threads` is fastest
    #[arg(long, value_enum, default_value_t = Schedule::Turns, conflicts_with = "seed")]
    schedule: Schedule,
    /// All checks, and an adversarial schedule and memory
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Bytes that become visible in one piece: LL128 stands on 128
    #[arg(long, value_name = "BYTES", value_parser = unit, default_value = "8", requires = "seed")]
    unit: Unit,
    /// Instructions of warps after which it is given up; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "schedule")]
    most_steps: u64,
    /// Elements of a buffer that are shown
    #[arg(long, value_name = "N", default_value_t = 16)]
    show: usize,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// A kernel, and what it is launched with.
#[derive(Args, Clone, Debug)]
pub(super) struct LaunchArgs {
    #[command(flatten)]
    from: From,
    /// Blocks, in x, y and z
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "1")]
    blocks: Dimensions,
    /// Threads of a block, in x, y and z
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "32")]
    threads: Dimensions,
    /// Bytes of shared memory beyond what the kernel declares
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared: u32,
    /// A parameter; once for each
    #[arg(long = "arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    arguments: Vec<Argument>,
}

/// A launch that is ready to run.
pub(super) struct Ready {
    /// The kernel's name.
    pub(super) name: String,
    /// Its module's text, without other kernels.
    pub(super) text: String,
    pub(super) grid: Arc<Grid>,
    buffers: Vec<Buffer>,
}

impl LaunchArgs {
    /// The kernel of this name, or of which this is a part of the name, with its buffers.
    pub(super) fn prepare(&self, kernel: Option<&str>) -> Result<Ready, Failure> {
        let kernel = self.from.kernel(kernel)?;
        let text = kernel.tree()?.alone();
        let program = Program::load(&text, &kernel.name)
            .map_err(|e| Failure::Load { origin: kernel.origin.clone(), source: e })?;
        let machine = Machine::new();
        let mut buffers = Vec::new();
        let mut parameters = Vec::new();
        for (number, argument) in self.arguments.iter().enumerate() {
            let (bytes, size) = match argument {
                Argument::Number { ty, bytes } => (*bytes, ty.bytes()),
                Argument::Buffer { ty, data } => {
                    let buffer = Buffer::new(&machine, number, *ty, data);
                    let address = buffer.address().to_le_bytes();
                    buffers.push(buffer);
                    (address, 8)
                }
            };
            // A parameter is aligned to its size.
            parameters.resize(parameters.len().next_multiple_of(size), 0);
            parameters.extend_from_slice(&bytes[..size]);
        }
        let mut launch = Launch::new(&Arc::new(program), 1, 1, parameters);
        (launch.grid, launch.block, launch.dynamic_shared) =
            (self.blocks.0, self.threads.0, self.shared);
        let grid = machine.launch(launch)?;
        Ok(Ready { name: kernel.name, text, grid, buffers })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Schedule {
    /// Warps take turns on one thread
    Turns,
    /// Blocks on all cores
    Threads,
}

fn unit(text: &str) -> Result<Unit, String> {
    match text {
        "8" => Ok(Unit::Eight),
        "16" => Ok(Unit::Sixteen),
        "128" => Ok(Unit::Line),
        _ => Err("8, 16 or 128".to_owned()),
    }
}

#[derive(Clone, Copy, Debug)]
struct Dimensions([u32; 3]);

impl FromStr for Dimensions {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = [1; 3];
        let numbers: Vec<&str> = text.split(',').collect();
        if numbers.len() > 3 {
            return Err("at most three numbers: X,Y,Z".to_owned());
        }
        for (to, number) in all.iter_mut().zip(numbers) {
            *to = number
                .trim()
                .parse()
                .map_err(|_| format!("`{number}` is no number of blocks or threads"))?;
        }
        Ok(Dimensions(all))
    }
}

/// The types of numbers that can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Unsigned(usize),
    Signed(usize),
    Float,
    Double,
}

impl Type {
    fn of(name: &str) -> Option<Type> {
        let width = |digits: &str| match digits {
            "8" => Some(1),
            "16" => Some(2),
            "32" => Some(4),
            "64" => Some(8),
            _ => None,
        };
        match name {
            "f32" => Some(Type::Float),
            "f64" => Some(Type::Double),
            _ => match name.split_at_checked(1)? {
                ("u" | "b", digits) => width(digits).map(Type::Unsigned),
                ("s" | "i", digits) => width(digits).map(Type::Signed),
                _ => None,
            },
        }
    }

    fn bytes(self) -> usize {
        match self {
            Type::Unsigned(n) | Type::Signed(n) => n,
            Type::Float => 4,
            Type::Double => 8,
        }
    }

    /// A number's bytes, the lowest first.
    fn encode(self, text: &str) -> Result<[u8; 8], String> {
        let wrong = || format!("`{text}` is no {}", self.name());
        let bits = match self {
            Type::Float => u64::from(text.parse::<f32>().map_err(|_| wrong())?.to_bits()),
            Type::Double => text.parse::<f64>().map_err(|_| wrong())?.to_bits(),
            Type::Unsigned(bytes) => {
                let value = match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => text.parse(),
                };
                let value = value.map_err(|_| wrong())?;
                if bytes < 8 && value >> (8 * bytes) != 0 {
                    return Err(wrong());
                }
                value
            }
            Type::Signed(bytes) => {
                let value: i64 = text.parse().map_err(|_| wrong())?;
                let spare = 64 - 8 * bytes;
                if value << spare >> spare != value {
                    return Err(wrong());
                }
                value as u64
            }
        };
        Ok(bits.to_le_bytes())
    }

    fn name(self) -> String {
        match self {
            Type::Unsigned(n) => format!("u{}", 8 * n),
            Type::Signed(n) => format!("s{}", 8 * n),
            Type::Float => "f32".to_owned(),
            Type::Double => "f64".to_owned(),
        }
    }

    /// A number as people read it.
    fn decode(self, bytes: &[u8]) -> String {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(whole);
        match self {
            Type::Unsigned(_) => bits.to_string(),
            Type::Signed(n) => ((bits << (64 - 8 * n)) as i64 >> (64 - 8 * n)).to_string(),
            Type::Float => f32::from_bits(bits as u32).to_string(),
            Type::Double => f64::from_bits(bits).to_string(),
        }
    }
}

/// A parameter.
#[derive(Clone, Debug)]
enum Argument {
    Number { ty: Type, bytes: [u8; 8] },
    Buffer { ty: Type, data: Vec<u8> },
}

/// More bytes than this are a slip of the hand.
const MAX_BYTES: usize = 1 << 30;

impl FromStr for Argument {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (what, value) = match text.split_once('=') {
            Some((what, value)) => (what, Some(value)),
            None => (text, None),
        };
        let (name, count) = match what.split_once('[') {
            Some((name, rest)) => {
                let count = rest.strip_suffix(']').and_then(|n| n.parse::<usize>().ok());
                (name, Some(count.ok_or_else(|| format!("`{what}`: TYPE[COUNT]"))?))
            }
            None => (what, None),
        };
        let ty = Type::of(name).ok_or_else(|| format!("there is no type `{name}`"))?;
        let Some(count) = count else {
            let value =
                value.ok_or_else(|| format!("`{text}`: a number needs a value, {name}=1"))?;
            return Ok(Argument::Number { ty, bytes: ty.encode(value)? });
        };
        let size = ty.bytes();
        if count.checked_mul(size).is_none_or(|bytes| bytes > MAX_BYTES) {
            return Err(format!("`{what}` is more than {} MiB", MAX_BYTES >> 20));
        }
        let mut data = Vec::with_capacity(count * size);
        for i in 0..count {
            let bytes = match value {
                None => [0; 8],
                Some("0..") => match ty {
                    Type::Float => u64::from((i as f32).to_bits()).to_le_bytes(),
                    Type::Double => (i as f64).to_bits().to_le_bytes(),
                    _ => (i as u64).to_le_bytes(),
                },
                Some(value) => ty.encode(value)?,
            };
            data.extend_from_slice(&bytes[..size]);
        }
        Ok(Argument::Buffer { ty, data })
    }
}

/// A buffer while the kernel runs.
struct Buffer {
    number: usize,
    ty: Type,
    /// The data, at an address that suits every vector.
    memory: Vec<u64>,
    start: usize,
    bytes: usize,
    _mapping: Mapping,
}

impl Buffer {
    /// A multiple of what any access asks for, and of a line.
    const ALIGN: usize = 256;

    fn new(machine: &Machine, number: usize, ty: Type, data: &[u8]) -> Self {
        let mut memory = vec![0u64; (data.len() + Self::ALIGN).div_ceil(8)];
        let base = memory.as_mut_ptr().expose_provenance();
        let start = base.next_multiple_of(Self::ALIGN) - base;
        for (word, bytes) in memory[start / 8..].iter_mut().zip(data.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        let name = format!("argument {number} ({})", ty.name());
        // SAFETY: the memory is the buffer's own, which drops the mapping with it; it is read after the run.
        let mapping = unsafe { machine.map((base + start) as u64, data.len(), &name) };
        Buffer { number, ty, memory, start, bytes: data.len(), _mapping: mapping }
    }

    fn address(&self) -> u64 {
        (self.memory.as_ptr().expose_provenance() + self.start) as u64
    }

    /// Its elements, as text.
    fn elements(&self) -> impl Iterator<Item = String> {
        let bytes: Vec<u8> = self.memory[self.start / 8..]
            .iter()
            // SAFETY: a reference to a word of our own; volatile, as the kernel has written through its address.
            .flat_map(|word| unsafe { std::ptr::read_volatile(word) }.to_le_bytes())
            .take(self.bytes)
            .collect();
        let (ty, size) = (self.ty, self.ty.bytes());
        (0..bytes.len() / size).map(move |i| ty.decode(&bytes[i * size..(i + 1) * size]))
    }
}

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let Ready { name, grid, buffers, .. } = args.launch.prepare(args.kernel.as_deref())?;
    let counts = counts(args, &grid)?;
    let out = if args.json {
        json(args, &name, &buffers, &counts)?
    } else {
        text_of(args, &name, &buffers, &counts)
    };
    io::stdout().lock().write_all(out.as_bytes())?;
    Ok(())
}

fn counts(args: &RunArgs, grid: &Arc<Grid>) -> Result<Counts, Box<Fault>> {
    if args.schedule == Schedule::Threads {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        return Ok(run_on_threads(std::slice::from_ref(grid), cores)?
            .into_iter()
            .next()
            .unwrap_or_default());
    }
    let options = match args.seed {
        None => Options { most_steps: args.most_steps, ..Options::plain() },
        Some(seed) => Options {
            seed,
            schedule: WarpSchedule::Random,
            checks: Some(Checks {
                adversity: Some(Adversity { unit: args.unit, ..Adversity::default() }),
                ..Checks::default()
            }),
            most_steps: args.most_steps,
            clock: None,
            trace: false,
        },
    };
    let mut schedule = Lockstep::new(options);
    schedule.start(grid);
    Ok(schedule.run()?.into_iter().next().map_or_else(Counts::default, |(_, counts)| counts))
}

fn text_of(args: &RunArgs, name: &str, buffers: &[Buffer], counts: &Counts) -> String {
    let dimensions = |d: Dimensions| d.0.map(|n| n.to_string()).join("x");
    let mut out = format!(
        "{name}: {} blocks of {} threads\n",
        dimensions(args.launch.blocks),
        dimensions(args.launch.threads)
    );
    for buffer in buffers {
        let count = buffer.bytes / buffer.ty.bytes();
        let _ = write!(out, "\nargument {}, {}[{count}]:", buffer.number, buffer.ty.name());
        for element in buffer.elements().take(args.show) {
            let _ = write!(out, " {element}");
        }
        out += if count > args.show { " ...\n" } else { "\n" };
    }
    out.push('\n');
    let width = counts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in counts.iter().filter(|(_, value)| *value > 0) {
        let _ = writeln!(out, "{:width$}  {value}", name.replace('_', " "));
    }
    out
}

fn json(
    args: &RunArgs,
    name: &str,
    buffers: &[Buffer],
    counts: &Counts,
) -> Result<String, Failure> {
    let buffers: Vec<_> = buffers
        .iter()
        .map(|b| {
            let elements: Vec<String> = b.elements().take(args.show).collect();
            json!({ "argument": b.number, "type": b.ty.name(), "count": b.bytes / b.ty.bytes(), "elements": elements })
        })
        .collect();
    let counts: serde_json::Map<String, serde_json::Value> =
        counts.iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let all = json!({ "kernel": name, "blocks": args.launch.blocks.0, "threads": args.launch.threads.0, "buffers": buffers, "counts": counts });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}
