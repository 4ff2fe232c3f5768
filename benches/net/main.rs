//! What the way over a network costs, part by part: against others where somebody else does the same, on the same path.
//!
//! ```text
//! cargo bench --bench net                     all parts, some fifteen minutes
//! cargo bench --bench net -- sockets          a part or several:
//!     sockets   the socket network against iperf3, and a short message's latency against plain sockets
//!     proxy     from a kernel's tail to the network's isend; what waiting costs
//!     reduce    all-reduce over two hosts against OpenMPI over TCP
//!     ranks     groups of 8 to 1024 ranks: how long until they are connected, and what they hold
//! cargo bench --bench net -- ranks 64 256     so many ranks
//! ```
//!
//! Hosts are network namespaces on a switch (tests/hosts): it takes root, `ip`, and iperf3 and OpenMPI for the parts that
//! compare; `scripts/setup` installs them. What is compared takes turns within a round, another order in each; factors
//! are taken within a round. Printed as tables for benches/records.

#[path = "../compare/ferro.rs"]
#[allow(dead_code, reason = "the bench `compare` uses the rest")]
mod ferro;
#[path = "../../tests/support/hosts/mod.rs"]
mod hosts;
#[path = "../compare/machine.rs"]
mod machine;
#[path = "../compare/peer.rs"]
#[allow(dead_code, reason = "the bench `compare` uses the rest")]
mod peer;
mod proxy;
mod ranks;
mod reduce;
mod sockets;
mod stats;
#[path = "../compare/worker.rs"]
mod worker;

use hosts::Hosts;

/// Whatever went wrong; this program reports it and ends.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T> = Result<T, Failure>;

const PARTS: [&str; 4] = ["sockets", "proxy", "reduce", "ranks"];

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = arguments.iter().position(|a| a == "--worker") {
        return worker::run(arguments.get(at + 1).ok_or("--worker RANK/RANKS")?);
    }
    if let Some(at) = arguments.iter().position(|a| a == "--member") {
        return ranks::member(arguments.get(at + 1).ok_or("--member HOST/HOSTS/RANKS")?);
    }
    if !arguments.iter().any(|a| a == "--bench") {
        println!("net: run as `cargo bench --bench net`"); // `cargo test` starts benches too
        return Ok(());
    }
    let words: Vec<&String> = arguments.iter().filter(|a| *a != "--bench").collect();
    let numbers: Vec<u32> = words.iter().filter_map(|w| w.parse().ok()).collect();
    let parts: Vec<&str> =
        words.iter().filter(|w| w.parse::<u32>().is_err()).map(|w| w.as_str()).collect();
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(part)) {
        let parts = PARTS.join(", ");
        return Err(format!("{unknown}: not a part ({parts}) nor a number of ranks").into());
    }
    if !numbers.is_empty() && !parts.contains(&"ranks") {
        return Err("numbers are of ranks: `cargo bench --bench net -- ranks 64`".into());
    }
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    head();
    if wanted("sockets") {
        sockets::run()?;
    }
    if wanted("proxy") {
        proxy::run()?;
    }
    if wanted("reduce") {
        reduce::run()?;
    }
    if wanted("ranks") {
        ranks::run(&numbers)?;
    }
    println!("\nothers on the machine now: {:.0} %", machine::wait_for_quiet(0.0) * 100.0);
    Ok(())
}

/// What was measured where.
fn head() {
    let said = machine::said;
    let directory = env!("CARGO_MANIFEST_DIR");
    let commit = said("git", &["-C", directory, "describe", "--always", "--dirty", "--abbrev=12"]);
    let (cores, caches) = (machine::cores(), machine::caches());
    println!("| | |\n|---|---|");
    println!("| date | {} |", said("date", &["-u", "+%F %H:%M UTC"]));
    println!("| commit | {commit} |");
    println!("| processor | {}, {cores} cores, {caches} |", machine::model());
    println!("| kernel | {} |", said("uname", &["-sr"]));
    println!("| compiler | {} |", said("rustc", &["--version"]));
    println!("| congestion control | {} |", said("sysctl", &["-n", CONGESTION]));
    println!("| iperf3, MPI | {}, {} |", said("iperf3", &["--version"]), said("mpirun", &["-V"]));
    let busy = machine::wait_for_quiet(10.0) * 100.0;
    println!("| others on the machine | {busy:.0} % of the cores at the start |");
}

const CONGESTION: &str = "net.ipv4.tcp_congestion_control";

/// Hosts, or what is missing for them.
fn hosts(n: usize) -> Outcome<Hosts> {
    Ok(Hosts::new(n).map_err(|why| format!("{n} hosts: {why}"))?)
}
