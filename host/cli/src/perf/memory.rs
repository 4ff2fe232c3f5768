//! `-M`: the host's memory that the process of rank 0 takes, as the kernel counts it (proc(5), `VmRSS` and `VmHWM`).

use std::fmt;

/// Bytes before the communicators are made, and with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessMemory {
    before: u64,
    connected: u64,
    /// Ranks of the process.
    ranks: u32,
}

/// A field of the kernel's list, in bytes; 0 where there is none.
fn field(name: &str) -> u64 {
    parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), name)
}

fn parse(status: &str, name: &str) -> u64 {
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    let kibibytes = fields
        .find(|(field, _)| *field == name)
        .and_then(|(_, value)| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

/// Bytes of this process that are in memory.
pub(crate) fn resident() -> u64 {
    field("VmRSS")
}

impl ProcessMemory {
    /// What so many ranks take, which were not there when it was `before`.
    pub(crate) fn connected(before: u64, ranks: u32) -> ProcessMemory {
        ProcessMemory { before, connected: resident(), ranks }
    }
}

/// In MiB; the most is of all the time until it is shown.
impl fmt::Display for ProcessMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessMemory { before, connected, ranks } = *self;
        let mebi = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let each = mebi(connected.saturating_sub(before)) / f64::from(ranks.max(1));
        let (before, connected, most) = (mebi(before), mebi(connected), mebi(field("VmHWM")));
        write!(
            f,
            "# Host memory of process 0: {before:.1} MiB before the communicators, {connected:.1} with them ({each:.1} a rank), {most:.1} at most\n#"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_kibibytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t      12 kB\nThreads:\t1\n";
        assert_eq!((parse(status, "VmHWM"), parse(status, "VmRSS")), (2 << 20, 12 << 10));
        assert_eq!(
            (parse(status, "Threads"), parse(status, "VmSwap"), parse("", "VmRSS")),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_rank_takes_what_came_with_the_communicators() {
        let shown = ProcessMemory { before: 10 << 20, connected: 30 << 20, ranks: 4 }.to_string();
        assert!(
            shown.contains("10.0 MiB before the communicators, 30.0 with them (5.0 a rank)"),
            "{shown}"
        );
        assert!(resident() > 0);
    }
}
