//! Where nothing is contended for, a call takes `alpha` for each step and `1 / beta` for each byte, and the simulator has to say the same as
//! the formula, within 2 %.

use ferroccl::graph::tuning::StepFigures;
use ferroccl::{Algorithm, Collective, ProtocolId};
use ferroccl_simulator::Call;

use crate::support::{all_reduce, cluster, host, run, with_gpus};

/// One channel, as contention between channels is not what this is about.
const ONE: &[(&str, &str)] = &[("NCCL_MAX_NCHANNELS", "1")];

fn assert_near(what: &str, simulated: f64, formula: f64) {
    let off = simulated / formula - 1.0;
    println!(
        "{what}: simulated {simulated:.3} us, by the formula {formula:.3} us, {:+.2} %",
        100.0 * off
    );
    assert!(off.abs() < 0.02, "{what}: {simulated} us, not {formula}");
}

/// A ring of hosts with one GPU each: every step goes over the network, and is the step before of the previous rank, and one way.
///
/// `T = base + 2 (k - 1) (alpha + n / k (1 / block + wire / port))`
#[test]
fn a_ring_of_single_gpus_takes_its_steps_one_after_the_other() {
    let one = with_gpus(&host("dgx-a100.xml"), 1);
    for hosts in [2u32, 3, 5, 16] {
        for bytes in [64u64, 4096, 16384] {
            let cluster = cluster(&one, hosts, "rail:hosts=64", ONE, &[]);
            let outcome = run(&cluster, &all_reduce(bytes, Algorithm::Ring, ProtocolId::Ll));
            let s = cluster.situation();
            let figures = StepFigures::of(&s, Algorithm::Ring, ProtocolId::Ll, 1).unwrap();
            let k = f64::from(hosts);
            // The chunks are of 16 bytes and more.
            let chunk = ((bytes as f64 / 4.0 / k / 4.0).ceil() * 16.0).min(bytes as f64);
            let port = one.nets().iter().map(|(_, net)| net.bw).fold(f64::INFINITY, f64::min);
            let path = cluster_bandwidth(&one).min(port);
            let beta = 1.0 / figures.block_bw + figures.wire / path;
            let steps = 2.0 * (k - 1.0);
            let proxied = figures.inter_us + chunk * beta / 1e3;
            // The last step only receives: its copy is the last thing that is done, and so is its part of the kernel.
            let last = figures.intra_us / 2.0 + chunk / figures.block_bw / 1e3;
            let formula = figures.base_us + steps * proxied + last;
            assert_near(&format!("ring of {hosts}, {bytes} B"), outcome.time_us, formula);
        }
    }
}

/// The least bandwidth between the GPU and a port.
fn cluster_bandwidth(system: &ferroccl::topology::System) -> f64 {
    let policy = ferroccl::config::Config::from_lookup(|_| None).unwrap().policy();
    let paths = ferroccl::topology::Paths::new(system, &policy);
    paths.gpu_net(0, 0).bw.min(paths.net_gpu(0, 0).bw)
}

/// A broadcast along a chain of GPUs is a pipeline: all steps of one slice, and then a slice each.
///
/// `T = base + (k - 1) (alpha + slice / rate) + (slices - 1) slice / rate`, with `rate` the slower of a block and the link.
#[test]
fn a_broadcast_is_a_pipeline() {
    let system = host("hgx-h100.xml");
    for (gpus, bytes) in [(2usize, 1u64 << 20), (4, 1 << 20), (8, 4 << 20), (8, 64 << 20)] {
        let cluster = cluster(&with_gpus(&system, gpus), 1, "rail", ONE, &[]);
        let (collective, algorithm) = (Collective::Broadcast, Some(Algorithm::Ring));
        let protocol = Some(ProtocolId::Simple);
        let call = Call { collective, bytes, algorithm, protocol };
        let outcome = run(&cluster, &call);
        let s = cluster.situation();
        let figures = StepFigures::of(&s, Algorithm::Ring, ProtocolId::Simple, 1).unwrap();
        // 512 KiB in 8 slots.
        let slice = f64::from(64u32 << 10);
        let slices = (bytes as f64 / slice).ceil();
        // A block has half of a step for itself in each slice.
        let kernel = figures.intra_us / 2.0;
        let each = kernel + slice / figures.block_bw / 1e3;
        let hops = gpus as f64 - 1.0;
        let formula = figures.base_us + hops * (each + kernel) + slices * each;
        assert_near(&format!("broadcast to {gpus}, {bytes} B"), outcome.time_us, formula);
    }
}

/// A tree of few bytes takes a step down and up for each level, by the tuner's count of them.
#[test]
fn a_tree_of_few_bytes_takes_a_step_for_each_level() {
    let one = with_gpus(&host("dgx-a100.xml"), 1);
    for hosts in [2u32, 4, 16, 64, 256] {
        let cluster = cluster(&one, hosts, "rail:hosts=1024", ONE, &[]);
        let outcome = run(&cluster, &all_reduce(8, Algorithm::Tree, ProtocolId::Ll));
        let s = cluster.situation();
        let figures = StepFigures::of(&s, Algorithm::Tree, ProtocolId::Ll, 1).unwrap();
        // Host 0 stands above a tree of all others: as deep as a binary number is long.
        let levels = f64::from(hosts.ilog2());
        let formula = figures.base_us + 2.0 * levels * figures.inter_us + figures.intra_us / 2.0;
        assert_near(&format!("tree of {hosts}, 8 B"), outcome.time_us, formula);
    }
}

/// Large calls are limited by the fullest link, whatever the steps take.
#[test]
fn a_large_ring_takes_what_its_fullest_link_needs() {
    let system = host("dgx-a100.xml");
    for hosts in [1u32, 2, 4] {
        let cluster = cluster(&system, hosts, "rail", &[], &[]);
        let outcome = run(&cluster, &all_reduce(1 << 30, Algorithm::Ring, ProtocolId::Simple));
        assert!(outcome.time_us >= outcome.bound_us);
        assert_near(&format!("1 GiB on {hosts} hosts"), outcome.time_us, outcome.bound_us);
    }
}
