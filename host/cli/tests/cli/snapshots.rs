//! What each machine's file leads to, as text: paths, rings, trees, choices. A change of the search or of the model
//! shows as a change of these texts. To accept one: `INSTA_UPDATE=always cargo test -p ferroccl-cli --test cli`.

use std::process::Command;

use super::support::ROOT;

/// A file, what it leaves to the machine, and hosts besides one.
const FILES: [(&str, &str, u32); 7] = [
    ("dgx1-v100", "", 2),
    ("dgx-a100", "", 4),
    ("hgx-h100", "", 4),
    ("azure-ndv4-topo", "sm=80,nvswitch=12", 4),
    ("azure-ncv4-topo", "", 2),
    ("aws-p4d-24xl-topo", "sm=80,nvswitch=12", 4),
    ("pcie-4gpu-no-nic", "", 1),
];

fn output(command: &[&str], file: &str, assume: &str, hosts: u32) -> String {
    let path = format!("{ROOT}/tests/topology_files/{file}.xml");
    let mut ferroccl = Command::new(env!("CARGO_BIN_EXE_ferroccl"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("NCCL_") || name.starts_with("FERROCCL_") {
            ferroccl.env_remove(&*name);
        }
    }
    ferroccl.args(command).args(["--file", &path, "--nodes", &hosts.to_string()]);
    if !assume.is_empty() {
        ferroccl.args(["--assume", assume]);
    }
    let output = ferroccl.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&path, &format!("{file}.xml"));
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{file}: {stderr}");
    stderr + &text(&output.stdout)
}

fn snapshots(name: &str, command: &[&str]) {
    for (file, assume, hosts) in FILES {
        for hosts in if hosts == 1 { vec![1] } else { vec![1, hosts] } {
            insta::assert_snapshot!(
                format!("{file}.{hosts}.{name}"),
                output(command, file, assume, hosts)
            );
        }
    }
}

#[test]
fn topologies() {
    snapshots("topo", &["topo"]);
}

#[test]
fn choices() {
    snapshots("explain", &["explain", "all_reduce", "-b", "8", "-e", "1G", "-f", "16"]);
}
