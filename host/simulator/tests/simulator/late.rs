//! Ranks that start late: coarsely simulated calls beside the same ones step by step, and what holds for all.

use ferroccl::{Algorithm, Collective, ProtocolId};
use ferroccl_simulator::{Call, Cluster, Detail, Fault, Options, Outcome};
use proptest::prelude::*;

use crate::support::{all_reduce, cluster, host, with_gpus};

const AROUND: [Collective; 3] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];

/// A call step by step if that takes no more than `exact_steps`, else coarsely.
fn late(cluster: &Cluster, call: &Call, exact_steps: u64, skew_us: f64, seed: u64) -> Outcome {
    let options = Options { exact_steps, skew_us, seed, ..Options::default() };
    cluster.simulate(call, &options).unwrap()
}

/// What late starts add to a call, and by how much a rank ends later by them than it ends step by step: the least and the most, in
/// microseconds.
struct Added {
    exact: f64,
    coarse: f64,
    off: (f64, f64),
    /// How long the call takes with them, step by step.
    all: f64,
}

fn added(punctual: &Cluster, tardy: &Cluster, call: &Call, skew_us: f64, seed: u64) -> Added {
    let of =
        |steps| (late(punctual, call, steps, 0.0, seed), late(tardy, call, steps, skew_us, seed));
    let exact = of(u64::MAX);
    // As closely as coarsely can be.
    let coarse = of(exact.0.steps - 1);
    assert_eq!(exact.1.details, [Detail::Steps]);
    assert!(coarse.1.details == coarse.0.details && coarse.1.details != [Detail::Steps]);
    let by = |(before, after): &(Outcome, Outcome)| -> Vec<f64> {
        after
            .finish_us
            .iter()
            .zip(&before.finish_us)
            .map(|(after, before)| after - before)
            .collect()
    };
    let off = by(&coarse).into_iter().zip(by(&exact)).map(|(coarse, exact)| coarse - exact);
    let off = off.fold((f64::MAX, f64::MIN), |(least, most), off| (least.min(off), most.max(off)));
    let more = |(before, after): &(Outcome, Outcome)| after.time_us - before.time_us;
    let all = exact.1.time_us;
    Added { exact: more(&exact), coarse: more(&coarse), off, all }
}

/// Through one channel no message waits for those of others. So what is coarse is how chunks are cut, by which a rank may end 1 us too early,
/// and the straight lines between the corners of a reach, by which one may end a step between hosts too late.
#[test]
fn late_ranks_end_as_step_by_step_where_links_are_not_shared() {
    let most = 15.0;
    for file in ["dgx-a100.xml", "hgx-h100.xml", "dgx1-v100.xml"] {
        for hosts in [2u32, 7, 32] {
            let one = cluster(&host(file), hosts, "rail", &[("NCCL_MAX_NCHANNELS", "1")], &[]);
            for (i, collective) in (0u64..).zip(AROUND) {
                for (seed, &protocol) in (100 * i + u64::from(hosts)..).zip(ProtocolId::ALL) {
                    for (bytes, skew) in
                        [(8u64, 30.0), (8, 1000.0), (1 << 20, 5.0), (1 << 20, 300.0)]
                    {
                        let call =
                            Call { collective, ..all_reduce(bytes, Algorithm::Ring, protocol) };
                        let Added { exact, coarse, off, .. } = added(&one, &one, &call, skew, seed);
                        let what = format!(
                            "{file}, {hosts} hosts, {collective} of {bytes} B by {protocol}, late by {skew} us, seed {seed}"
                        );
                        println!(
                            "{what}: {exact:.3} us step by step, {coarse:.3} us; ranks {off:.3?}"
                        );
                        assert!((coarse - exact).abs() < 0.3, "{what}: {exact} us, not {coarse}");
                        assert!(off.0 > -1.0 && off.1 < most, "{what}: {off:?}");
                    }
                }
            }
        }
    }
}

/// Through all channels: around a ring what late ranks add to the call is within 1 %. The end of each rank is within 3 % of the call's
/// time. From or to a root both are within 5 % of that.
#[test]
fn late_ranks_end_nearly_as_step_by_step_where_links_are_shared() {
    for file in ["dgx-a100.xml", "hgx-h100.xml"] {
        let system = host(file);
        let whole = cluster(&system, 16, "rail", &[], &[]);
        let one = Fault::Straggler { rank: 53, late_us: 200.0 };
        let tardy = cluster(&system, 16, "rail", &[], &[one]);
        for (seed, collective) in (7u64..).zip([
            Collective::AllReduce,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Broadcast,
            Collective::Reduce,
        ]) {
            for (bytes, protocol) in [
                (8u64, ProtocolId::Ll),
                (1 << 20, ProtocolId::Ll128),
                (64 << 20, ProtocolId::Simple),
            ] {
                let call = Call { collective, ..all_reduce(bytes, Algorithm::Ring, protocol) };
                for (tardy, skew) in [(&whole, 20.0), (&whole, 500.0), (&tardy, 0.0)] {
                    let Added { exact, coarse, off, all } = added(&whole, tardy, &call, skew, seed);
                    let what = format!(
                        "{file}, {collective} of {bytes} B by {protocol}, late by {skew} us, seed {seed}"
                    );
                    println!(
                        "{what}: {exact:.2} us step by step, {coarse:.2} us; of {all:.1} us, ranks {off:.2?}"
                    );
                    let (call_most, rank_most) = if AROUND.contains(&collective) {
                        (0.01 * exact, 0.03 * all)
                    } else {
                        (0.05 * all, 0.05 * all)
                    };
                    let near = (coarse - exact).abs() < 0.3 + call_most;
                    assert!(near, "{what}: {exact} us, not {coarse}");
                    let ranks = off.0.abs().max(off.1.abs());
                    assert!(ranks < 1.0 + rank_most, "{what}: {off:?} of {all}");
                }
            }
        }
    }
}

/// At full size, all channels: a late rank keeps those up that wait for it, and no others.
#[test]
fn a_full_ring_waits_for_its_late_rank() {
    let system = host("dgx-a100.xml");
    let call = all_reduce(8, Algorithm::Ring, ProtocolId::Ll);
    let of = |faults: &[Fault]| {
        let outcome =
            cluster(&system, 3072, "rail", &[], faults).simulate(&call, &Options::default());
        let outcome = outcome.unwrap();
        assert_eq!(outcome.details, [Detail::Folded { hosts: 1, of: 3072 }]);
        outcome
    };
    let rank = 8 * 1500 + 3;
    let (before, after) = (of(&[]), of(&[Fault::Straggler { rank, late_us: 1000.0 }]));
    let more = after.time_us - before.time_us;
    assert!((980.0..1000.1).contains(&more), "{more}");
    let by = |rank: u32| after.finish_us[rank as usize] - before.finish_us[rank as usize];
    // Messages of 2 us each limit the ring. A host further on has caught up with what its ranks' steps take less than that.
    assert!(by(rank) > 950.0, "{}", by(rank));
    for (near, far) in [(8, 8 * 20), (8 * 20, 8 * 60), (8 * 60, 8 * 110)] {
        assert!(by(rank + near) > by(rank + far) + 50.0, "{} {}", by(rank + near), by(rank + far));
    }
    assert!(by(rank + 8 * 1000).abs() < 1e-6 && by(rank - 8 * 1000).abs() < 1e-6);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// No rank ends earlier because one starts later, and none that starts with the others changes nothing.
    #[test]
    fn late_starts_make_no_rank_end_earlier(
        hosts in 2u32..9,
        gpus in 1usize..5,
        bytes in 1u64..4_000_000,
        which in 0usize..3,
        protocol in 0usize..3,
        rank in any::<u32>(),
        late_us in prop_oneof![0.0f64..5.0, 0.0f64..2000.0],
        more in 0.0f64..500.0,
        coarse in any::<bool>(),
    ) {
        let system = with_gpus(&host("dgx-a100.xml"), gpus);
        let settings: &[(&str, &str)] = &[("NCCL_MAX_NCHANNELS", "1")];
        let rank = rank % (hosts * gpus as u32);
        // With another one always on time no start is the first.
        let of = |late_us| {
            let fault = Fault::Straggler { rank, late_us };
            let cluster = cluster(&system, hosts, "rail", settings, &[fault]);
            let call = Call { collective: AROUND[which], ..all_reduce(bytes, Algorithm::Ring, ProtocolId::ALL[protocol]) };
            late(&cluster, &call, if coarse { 1 } else { u64::MAX }, 0.0, 0)
        };
        let (none, late, later) = (of(0.0), of(late_us), of(late_us + more));
        for rank in 0..none.finish_us.len() {
            let times = [&none, &late, &later].map(|outcome| outcome.finish_us[rank]);
            prop_assert!(times.is_sorted_by(|a, b| *a <= b + 1e-6), "rank {rank}: {times:?}");
        }
        prop_assert!(later.time_us <= none.time_us + late_us + more + 1e-6);
    }

    /// Starts that are late by nothing, or all by as much, are no late starts.
    #[test]
    fn a_skew_of_nothing_is_no_skew(hosts in 2u32..9, bytes in 1u64..4_000_000, seed in any::<u64>(), coarse in any::<bool>()) {
        let system = host("dgx-a100.xml");
        let steps = if coarse { 1 } else { u64::MAX };
        let call = all_reduce(bytes, Algorithm::Ring, ProtocolId::Ll128);
        let all: Vec<Fault> = (0..hosts * 8).map(|rank| Fault::Straggler { rank, late_us: 64.0 }).collect();
        let [none, late] = [&[][..], &all].map(|faults| {
            let cluster = cluster(&system, hosts, "rail", &[], faults);
            late(&cluster, &call, steps, 0.0, seed)
        });
        prop_assert_eq!(&none, &late);
        // By next to nothing they are simulated as late starts, and end as those that are not. In queues they may change who is first.
        prop_assume!(coarse);
        let cluster = cluster(&system, hosts, "rail", &[], &[]);
        let nearly = super::late::late(&cluster, &call, steps, 1e-7, seed);
        for (a, b) in none.finish_us.iter().zip(&nearly.finish_us) {
            prop_assert!((a - b).abs() < 1e-3, "{a} {b}");
        }
    }
}
