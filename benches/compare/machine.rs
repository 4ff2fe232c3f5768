//! The machine: what it is, and how busy others keep it.

use std::process::Command;
use std::time::{Duration, Instant};

/// Cores this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// First line that a command prints, or why there is none.
pub(crate) fn said(program: &str, arguments: &[&str]) -> String {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
        }
        Ok(_) | Err(_) => format!("({program} does not say)"),
    }
}

/// Processor model, as the kernel has it.
pub(crate) fn model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.to_owned())
}

/// The first core's caches, as "L1d 48K, L2 2048K, L3 266240K".
pub(crate) fn caches() -> String {
    let read = |index: usize, file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
        std::fs::read_to_string(path).map(|text| text.trim().to_owned()).ok()
    };
    let found: Vec<String> = (0..8)
        .filter_map(|i| {
            let (level, kind) = (read(i, "level")?, read(i, "type")?);
            let suffix = if kind == "Data" { "d" } else { "" };
            (kind != "Instruction").then_some(format!("L{level}{suffix} {}", read(i, "size")?))
        })
        .collect();
    if found.is_empty() { "caches unknown".to_owned() } else { found.join(", ") }
}

/// Sleeps until others use less than a twentieth of the cores, `patience` seconds at most; the part
/// of the cores that they used at the end. Called while the contestants sleep.
pub(crate) fn wait_for_quiet(patience: f64) -> f64 {
    let start = Instant::now();
    loop {
        let before = busy_and_all();
        std::thread::sleep(Duration::from_millis(100));
        let after = busy_and_all();
        let busy = (after.0 - before.0) / (after.1 - before.1).max(1.0);
        if busy < 0.05 || start.elapsed().as_secs_f64() > patience {
            return busy;
        }
    }
}

/// Ticks of all cores since boot: those not idle, and all. Stolen ticks count as busy.
fn busy_and_all() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .take(8) // user nice system idle iowait irq softirq steal; proc(5)
        .filter_map(|word| word.parse().ok())
        .collect();
    let all = ticks.iter().sum();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}
