//! Tests that need an RDMA device, in a virtual machine that has one (`tests/rdma/vm`).
//!
//! Such tests are ignored. One test of their binary starts it anew, in the VM, to run those. Where there is a device of the
//! machine's own, `cargo test ... -- --ignored` runs them there.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

/// Runs this binary's ignored tests whose names contain one of these in a VM. What is lacking for one, if anything, is
/// returned.
pub(crate) fn in_a_vm(names: &[&str]) -> Result<(), String> {
    run(&["run"], names)
}

/// Runs the ignored tests whose names contain this in each of two VMs, at the same time.
#[allow(dead_code, reason = "each test binary uses its part")]
pub(crate) fn in_two_vms(name: &str) -> Result<(), String> {
    run(&["hosts", "2"], &[name])
}

fn run(how: &[&str], names: &[&str]) -> Result<(), String> {
    // A machine at a time, also of other test programs, which are in the same folder: each emulates as many processors as there are,
    // and the ranks in each wait by looking. The lock ends with the file.
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let place = me.with_file_name("vm.lock");
    let one = File::create(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    one.lock().map_err(|e| format!("{}: {e}", place.display()))?;
    let run = |command: &mut Command| {
        let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
        let (out, err) = (&output.stdout, &output.stderr);
        let text = format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err));
        Ok::<_, String>((output.status, text))
    };
    let (status, text) = run(script().arg("ready"))?;
    if !status.success() {
        return Err(text.trim().replace('\n', "; "));
    }
    let mut command = script();
    command.args(how).arg("--").arg(me).args(names);
    command.args(["--ignored", "--nocapture", "--test-threads=1"]);
    let (status, text) = run(&mut command)?;
    println!("{text}");
    assert!(status.success(), "in the VM: {status}");
    assert!(text.contains("test result: ok.") && !text.contains(" 0 passed"), "nothing ran");
    Ok(())
}

fn script() -> Command {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let workspace = if root.join("tests/rdma/vm").exists() { root } else { root.join("..") };
    Command::new(workspace.join("tests/rdma/vm"))
}
