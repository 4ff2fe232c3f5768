//! Virtual time: kernels of which it is known what they wait for.

use std::cell::RefCell;
use std::sync::Arc;

use ferroccl_ptx::emu::{
    Checks, FaultKind, H100_NVLINK, Launch, LaunchSpan, Lockstep, Machine, Mapping, Options,
    PathStep, Program, Spent, Timing, totals,
};

const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

/// Memory that is a GPU's, or the host's.
struct Words {
    words: Vec<u64>,
    _mapping: Mapping,
}

impl Words {
    fn new(machine: &Machine, gpu: Option<u32>, len: usize) -> Self {
        let mut words = vec![0u64; len + 16];
        let start = words.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the vector is not moved, and outlives the mapping: fields are dropped in order, and nothing runs then.
        let mapping = unsafe { machine.map_on(gpu, start, 8 * (len + 16), "words") };
        Words { words, _mapping: mapping }
    }

    fn address(&self) -> u64 {
        (self.words.as_ptr().expose_provenance() as u64).next_multiple_of(128)
    }
}

/// Launches of one run: the kernel, the GPU, blocks, threads, parameters.
fn run(
    machine: &Machine,
    timing: Timing,
    launches: &[(&str, u32, u32, u32, Vec<u64>)],
) -> Vec<LaunchSpan> {
    run_with(machine, Options::simulated(timing), launches)
}

fn run_with(
    machine: &Machine,
    options: Options,
    launches: &[(&str, u32, u32, u32, Vec<u64>)],
) -> Vec<LaunchSpan> {
    let mut schedule = Lockstep::new(options);
    let mut numbers = Vec::new();
    for (text, gpu, blocks, threads, parameters) in launches {
        let program = Arc::new(Program::load(&format!("{HEAD}{text}"), "k").unwrap());
        let parameters = parameters.iter().flat_map(|p| p.to_le_bytes()).collect();
        let launch = Launch::new(&program, *blocks, *threads, parameters);
        let grid = machine.launch(Launch { device: *gpu, ..launch }).unwrap();
        numbers.push(grid.number());
        schedule.start(&grid);
    }
    schedule.run().unwrap_or_else(|fault| panic!("{fault}"));
    if options.trace {
        let path = schedule.critical_path(0);
        assert!(path.windows(2).all(|two| two[0].end == two[1].start), "{path:?}");
        PATH.set(path);
    }
    numbers.iter().map(|number| schedule.launch_span(*number).unwrap()).collect()
}

thread_local! {
    /// The critical path of the last run that noted it.
    static PATH: RefCell<Vec<PathStep>> = const { RefCell::new(Vec::new()) };
}

/// Nanoseconds of a launch.
fn nanoseconds(span: LaunchSpan) -> f64 {
    (span.end - span.start) as f64 / 1000.0
}

#[track_caller]
fn near(value: f64, wanted: f64, part: f64, what: &str) {
    assert!((value / wanted - 1.0).abs() <= part, "{what}: {value:.1}, not about {wanted:.1}");
}

/// Loads that depend on each other take the latency of where they go, one after the other; independent ones take it once.
#[test]
fn loads_take_the_way_there_and_back() {
    const LOADS: usize = 64;
    let t = H100_NVLINK;
    let l2 = f64::from(t.l2_cycles) * 1000.0 / f64::from(t.clock_mhz);
    for (gpu, wanted) in [(Some(0), l2), (Some(1), t.peer_ns.into()), (None, t.host_ns.into())] {
        let machine = Machine::new();
        let words = Words::new(&machine, gpu, 256);
        // SAFETY: the words are the test's, and nothing runs.
        unsafe { (words.address() as *mut u64).write(words.address()) };
        let chased = "ld.relaxed.sys.global.u64 %a, [%a];\n".repeat(LOADS);
        let beside: String = (0..LOADS)
            .map(|i| format!("ld.relaxed.sys.global.u64 %b{i}, [%a + {}];\n", 8 * i))
            .collect();
        let kernel = |body: &str| {
            format!(
                ".entry k(.param .u64 p) {{ .reg .b64 %a; .reg .b64 %b<{LOADS}>; ld.param.u64 %a, [p]; {body} ret; }}"
            )
        };
        let time = |text: &str| {
            nanoseconds(run(&machine, t, &[(text, 0, 1, 1, vec![words.address()])])[0])
        };
        let each = time(&kernel(&chased)) / LOADS as f64;
        near(each, wanted, 0.03, &format!("{gpu:?}"));
        let used: String = (0..LOADS).map(|i| format!("add.u64 %a, %a, %b{i};\n")).collect();
        let together = time(&kernel(&(beside + &used)));
        assert!(together < wanted + 300.0, "{gpu:?}: {together}");
    }
}

/// What a block has loaded it has in L1, until it fences or acquires; what is not weak goes to L2 each time.
#[test]
fn weak_loads_are_cached_until_a_fence() {
    let t = H100_NVLINK;
    let [l1, l2] =
        [t.l1_cycles, t.l2_cycles].map(|c| f64::from(c) * 1000.0 / f64::from(t.clock_mhz));
    for (load, between, wanted) in [
        ("ld.global", "", l1),
        ("ld.volatile.global", "", l2),
        ("ld.relaxed.gpu.global", "", l2),
        ("ld.global", "fence.acq_rel.cta;", l1),
        ("ld.global", "ld.acquire.gpu.global.u64 %b, [%a + 512];", 2.0 * l2),
    ] {
        let machine = Machine::new();
        let words = Words::new(&machine, Some(0), 256);
        // SAFETY: the words are the test's, and nothing runs.
        unsafe { (words.address() as *mut u64).write(words.address()) };
        let body = format!("{load}.u64 %a, [%a]; {between}\n").repeat(64);
        let text = format!(
            ".entry k(.param .u64 p) {{ .reg .b64 %a, %b; ld.param.u64 %a, [p]; {body} ret; }}"
        );
        let time = nanoseconds(run(&machine, t, &[(&text, 0, 1, 1, vec![words.address()])])[0]);
        near(time / 64.0, wanted, 0.4, &format!("{load}; {between}"));
    }
}

/// `%clock64` counts cycles, and a second load of a line that is still on its way does not come before it.
#[test]
fn a_kernel_can_read_the_clock() {
    let machine = Machine::new();
    for (gpu, least) in [(0, H100_NVLINK.l2_cycles), (1, H100_NVLINK.peer_ns)] {
        let words = Words::new(&machine, Some(gpu), 16);
        let times = Words::new(&machine, Some(0), 16);
        let text = "
            .entry k(.param .u64 p, .param .u64 q) {
                .reg .b64 %a, %q, %v<2>, %t<3>;
                ld.param.u64 %a, [p]; ld.param.u64 %q, [q];
                mov.u64 %t0, %clock64;
                ld.global.u64 %v0, [%a];
                ld.global.u64 %v1, [%a + 8];
                add.u64 %v1, %v1, %t0;
                mov.u64 %t1, %clock64;
                add.u64 %v0, %v0, %v1;
                mov.u64 %t2, %clock64;
                sub.u64 %t1, %t1, %t0; sub.u64 %t2, %t2, %t0;
                st.global.v2.u64 [%q], {%t1, %t2};
                ret;
            }";
        run(&machine, H100_NVLINK, &[(text, 0, 1, 1, vec![words.address(), times.address()])]);
        // SAFETY: the words are the test's, and nothing runs.
        let [second, both] = unsafe { (times.address() as *const [u64; 2]).read() };
        assert!(
            second >= least.into() && both < 2 * u64::from(least) + 100,
            "{gpu}: {second}, {both}"
        );
    }
}

/// Two GPUs that wait for each other's flag, which is in the memory of the one that waits: a round trip is two ways, and what
/// the polls add.
#[test]
fn ping_pong_over_nvlink() {
    const ROUNDS: u64 = 50;
    let machine = Machine::new();
    let flags = [0, 1].map(|gpu| Words::new(&machine, Some(gpu), 16));
    let text = "
        .entry k(.param .u64 mine, .param .u64 theirs, .param .u64 first, .param .u64 rounds) {
            .reg .b64 %m, %t, %v, %n, %end; .reg .pred %p, %q;
            ld.param.u64 %m, [mine]; ld.param.u64 %t, [theirs];
            ld.param.u64 %n, [first]; ld.param.u64 %end, [rounds];
            setp.ne.u64 %q, %n, 0;
            @%q bra SEND;
        WAIT:
            ld.relaxed.sys.global.u64 %v, [%m];
            setp.le.u64 %p, %v, %n;
            @%p bra WAIT;
            mov.u64 %n, %v;
        SEND:
            setp.gt.u64 %p, %n, %end;
            st.relaxed.sys.global.u64 [%t], %n;
            @%p bra DONE;
            bra WAIT;
        DONE:
            ret;
        }";
    // Each adds nothing: who begins sends 1, gets it back, and would wait for more; so the values are sent by both in turn.
    let text = text.replace("mov.u64 %n, %v;", "add.u64 %n, %v, 1;");
    let parameters = |gpu: usize| {
        let first = u64::from(gpu == 0);
        vec![flags[gpu].address(), flags[1 - gpu].address(), first, 2 * ROUNDS]
    };
    let options = Options { trace: true, ..Options::simulated(H100_NVLINK) };
    let launches = [(&*text, 0, 1, 1, parameters(0)), (&*text, 1, 1, 1, parameters(1))];
    let spans = run_with(&machine, options, &launches);
    let hop = nanoseconds(spans[0]) / (2 * ROUNDS) as f64;
    // The store's way, up to a poll's period until the next one comes by, and the answer's way.
    let t = H100_NVLINK;
    let (way, poll) =
        (f64::from(t.peer_ns) / 2.0, f64::from(t.l2_cycles) * 1000.0 / f64::from(t.clock_mhz));
    assert!((way + poll / 2.0..way + 1.5 * poll + 40.0).contains(&hop), "a hop: {hop}");
    // All of that is on the critical path, which goes from warp to warp with the flag.
    let path = PATH.take();
    let last = spans.iter().map(|span| span.end).max().unwrap();
    let (first, end) = (path.first().unwrap(), path.last().unwrap());
    assert_eq!(first.start, 0);
    assert!(end.end <= last && last - end.end < 1_000_000, "{end:?}, {last}");
    let ways: Vec<&PathStep> = path.iter().filter(|s| s.spent == Spent::StoreToPeer).collect();
    assert!(
        (2 * ROUNDS as usize - 1..2 * ROUNDS as usize + 3).contains(&ways.len()),
        "{}",
        ways.len()
    );
    let waited: u64 = ways.iter().map(|step| step.end - step.start).sum();
    near(waited as f64 / 1000.0, hop * (2 * ROUNDS) as f64, 0.1, "ns on the way");
    assert_eq!(totals(&path)[0], (Spent::StoreToPeer, ways.len(), waited));
}

/// The last one to come to a barrier is who the others have waited for.
#[test]
fn a_barrier_is_waited_for_where_the_last_one_comes_from() {
    let machine = Machine::new();
    let words = Words::new(&machine, Some(1), 16);
    let text = "
        .entry k(.param .u64 p) {
            .reg .b64 %a, %v; .reg .b32 %t; .reg .pred %q;
            ld.param.u64 %a, [p]; mov.u32 %t, %tid.x;
            setp.ne.u32 %q, %t, 64;
            @%q bra MEET;
            ld.relaxed.sys.global.u64 %v, [%a];
            st.global.u64 [%a], %v;
        MEET:
            bar.sync 0;
            ret;
        }";
    let options = Options { trace: true, ..Options::simulated(H100_NVLINK) };
    run_with(&machine, options, &[(text, 0, 1, 128, vec![words.address()])]);
    let path = PATH.take();
    let spent: Vec<(u32, Spent)> = path.iter().map(|step| (step.site.warp, step.spent)).collect();
    let far = path.iter().position(|step| step.spent == Spent::Peer);
    let barrier = path.iter().position(|step| step.spent == Spent::Barrier);
    assert!(far.is_some() && far < barrier, "{spent:?}");
    assert!(path[..=far.unwrap()].iter().all(|step| step.site.warp == 2), "{spent:?}");
}

/// Blocks that copy to another GPU's memory are as fast as what joins the two, and no faster than L2 within one.
#[test]
fn copies_are_as_fast_as_the_link() {
    const BYTES: u64 = 4 << 20;
    let text = "
        .entry k(.param .u64 from, .param .u64 to, .param .u64 bytes) {
            .reg .b64 %f, %t, %n, %at, %step; .reg .b32 %i, %j, %k; .reg .b64 %v<8>; .reg .pred %p;
            ld.param.u64 %f, [from]; ld.param.u64 %t, [to]; ld.param.u64 %n, [bytes];
            mov.u32 %i, %ctaid.x; mov.u32 %j, %ntid.x; mov.u32 %k, %tid.x;
            mad.lo.u32 %i, %i, %j, %k;
            mul.wide.u32 %at, %i, 16;
            mov.u32 %i, %nctaid.x; mul.wide.u32 %step, %i, %j; shl.b64 %step, %step, 4;
        LOOP:
            setp.ge.u64 %p, %at, %n;
            @%p bra DONE;
            add.u64 %v4, %f, %at; add.u64 %v5, %t, %at;
            ld.global.v2.u64 {%v0, %v1}, [%v4];
            add.u64 %at, %at, %step;
            add.u64 %v6, %f, %at;
            st.global.v2.u64 [%v5], {%v0, %v1};
            bra LOOP;
        DONE:
            ret;
        }";
    for (to, gbs) in [(1, H100_NVLINK.peer_gbs), (0, 0)] {
        let machine = Machine::new();
        let source = Words::new(&machine, Some(0), BYTES as usize / 8);
        let target = Words::new(&machine, Some(to), BYTES as usize / 8);
        let parameters = vec![source.address(), target.address(), BYTES];
        let span = run(&machine, H100_NVLINK, &[(text, 0, 64, 512, parameters)])[0];
        let rate = BYTES as f64 / nanoseconds(span);
        if gbs > 0 {
            near(rate, gbs.into(), 0.15, "GB/s to another GPU");
        } else {
            assert!((1000.0..5500.0).contains(&rate), "within one: {rate} GB/s");
        }
    }
}

/// A flag nearby that is stored behind data far away is there at once, and with a fence between them when the data has arrived.
#[test]
fn a_fence_waits_for_what_was_stored() {
    let timing = Timing { peer_ns: 3000, ..H100_NVLINK };
    let fence_sys = f64::from(timing.fence_sys_cycles) * 1000.0 / f64::from(timing.clock_mhz);
    for (order, least, most) in [
        ("st.relaxed.sys", 0.0, 700.0),
        ("fence.acq_rel.gpu; st.relaxed.sys", 3000.0, 3000.0 + fence_sys + 700.0),
        ("st.release.sys", 3000.0 + fence_sys, 3000.0 + fence_sys + 700.0),
        ("fence.acq_rel.cta; st.relaxed.sys", 0.0, 700.0),
    ] {
        let machine = Machine::new();
        let far = Words::new(&machine, Some(1), 16);
        let near_by = Words::new(&machine, Some(0), 16);
        let writer = format!(
            ".entry k(.param .u64 data, .param .u64 flag) {{ .reg .b64 %d, %f;
                ld.param.u64 %d, [data]; ld.param.u64 %f, [flag];
                st.global.u64 [%d], 7; {order}.global.u64 [%f], 7; ret; }}"
        );
        let reader = "
            .entry k(.param .u64 flag) {
                .reg .b64 %f, %v; .reg .pred %p;
                ld.param.u64 %f, [flag];
            WAIT:
                ld.acquire.sys.global.u64 %v, [%f];
                setp.ne.u64 %p, %v, 7;
                @%p bra WAIT;
                ret;
            }";
        let (data, flag) = (far.address(), near_by.address());
        let launches = [(&*writer, 0, 1, 1, vec![data, flag]), (reader, 0, 1, 1, vec![flag])];
        let spans = run(&machine, timing, &launches);
        let seen = nanoseconds(spans[1]);
        assert!((least..most).contains(&seen), "{order}: after {seen}");
        let whole = nanoseconds(spans[0]);
        assert!(whole >= 3000.0, "{order}: all has arrived at the end, {whole}");
    }
}

/// The same each time, to the picosecond, also with the checks of races, and with an adversary for one seed.
#[test]
fn a_run_is_the_same_every_time() {
    let timed = Options::simulated(H100_NVLINK);
    let races = Checks { races: true, uninitialised: true, adversity: None };
    let seeded = Options { clock: timed.clock, ..Options::seeded(5) };
    let all = [timed, timed, Options { checks: Some(races), ..timed }, seeded, seeded];
    let runs = all.map(|options| {
        let machine = Machine::new();
        let sum = Words::new(&machine, Some(0), 16);
        let text = "
            .entry k(.param .u64 p) {
                .reg .b64 %a; .reg .b32 %r; .reg .f32 %x;
                ld.param.u64 %a, [p];
                atom.relaxed.gpu.global.add.u32 %r, [%a], 1;
                bar.sync 0;
                red.relaxed.gpu.global.add.u32 [%a + 4], %r;
                ret;
            }";
        let spans = run_with(&machine, options, &[(text, 0, 7, 96, vec![sum.address()])]);
        // SAFETY: the words are the test's, and nothing runs.
        let sums = unsafe { (sum.address() as *const u64).read() };
        (spans, sums)
    });
    assert_eq!((&runs[0], &runs[0], &runs[3]), (&runs[1], &runs[2], &runs[4]));
    assert_eq!(runs[0].1 & 0xffff_ffff, 7 * 96);
}

/// Checks see what they see without a clock: what nothing orders is a race, also where time has put it in order; what is ordered is
/// none, whatever the seed, and the times are those of a run without checks.
#[test]
fn a_race_is_found_with_the_clock_on() {
    let text = |store: &str, load: &str| {
        format!(
            ".entry k(.param .u64 p) {{
                .reg .b64 %a, %v, %d; .reg .b32 %b; .reg .pred %q, %r;
                ld.param.u64 %a, [p]; mov.u32 %b, %ctaid.x; setp.ne.u32 %q, %b, 0;
                @%q bra WAIT;
                st.global.u64 [%a], 7;
                {store}.global.u64 [%a + 128], 1;
                ret;
            WAIT:
                {load}.global.u64 %v, [%a + 128];
                setp.eq.u64 %r, %v, 0;
                @%r bra WAIT;
                ld.global.u64 %d, [%a];
                st.global.u64 [%a + 256], %d;
                ret;
            }}"
        )
    };
    let run = |store: &str, load: &str, options: Options| {
        let machine = Machine::new();
        let words = Words::new(&machine, Some(0), 64);
        let program = Program::load(&format!("{HEAD}{}", text(store, load)), "k").unwrap();
        let launch = Launch::new(&Arc::new(program), 2, 1, words.address().to_le_bytes().to_vec());
        let grid = machine.launch(launch).unwrap();
        let mut schedule = Lockstep::new(options);
        schedule.start(&grid);
        let ended = schedule.run().map(|_| schedule.launch_span(grid.number()).unwrap());
        ended.map_err(|fault| fault.kind)
    };
    let timed = Options::simulated(H100_NVLINK);
    let races = Options { checks: Some(Checks { adversity: None, ..Checks::default() }), ..timed };
    let seeded = |seed| Options { clock: timed.clock, ..Options::seeded(seed) };
    let ordered = ("st.release.gpu", "ld.acquire.gpu");
    let plain = run(ordered.0, ordered.1, timed).unwrap();
    assert_eq!(run(ordered.0, ordered.1, races), Ok(plain));
    for seed in 0..8 {
        let first = run(ordered.0, ordered.1, seeded(seed));
        assert!(first.is_ok(), "seed {seed}: {first:?}");
        assert_eq!(run(ordered.0, ordered.1, seeded(seed)), first, "seed {seed}");
    }
    for (store, load) in [
        ("st.relaxed.gpu", "ld.acquire.gpu"),
        ("st.release.gpu", "ld.relaxed.gpu"),
        ("st.release.cta", "ld.acquire.cta"),
    ] {
        assert!(run(store, load, timed).is_ok(), "nobody looks");
        for options in [races, seeded(3)] {
            let found = run(store, load, options);
            assert!(matches!(found, Err(FaultKind::Race { .. })), "{store}, {load}: {found:?}");
        }
    }
}

/// What is noted for a path and a trace is the same every time as well, and each warp's waits follow each other.
#[test]
fn what_is_noted_is_the_same_every_time() {
    let noted = || {
        let machine = Machine::new();
        let far = Words::new(&machine, Some(1), 64);
        let text = "
            .entry k(.param .u64 p) {
                .reg .b64 %a, %v; .reg .b32 %t;
                ld.param.u64 %a, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %v, %t, 8; add.u64 %a, %a, %v;
                ld.relaxed.sys.global.u64 %v, [%a];
                add.u64 %v, %v, 1;
                bar.sync 0;
                st.release.sys.global.u64 [%a], %v;
                ret;
            }";
        let program = Arc::new(Program::load(&format!("{HEAD}{text}"), "k").unwrap());
        let launch = Launch::new(&program, 2, 64, far.address().to_le_bytes().to_vec());
        let mut schedule =
            Lockstep::new(Options { trace: true, ..Options::simulated(H100_NVLINK) });
        schedule.start(&machine.launch(launch).unwrap());
        schedule.run().unwrap();
        (schedule.critical_path(0), schedule.waits(0))
    };
    let (path, waits) = noted();
    assert_eq!((&path, &waits), (&noted().0, &noted().1));
    let warps: std::collections::BTreeSet<_> =
        waits.iter().map(|wait| (wait.site.block, wait.site.warp)).collect();
    assert_eq!(warps.into_iter().collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 0), (1, 1)]);
    for two in waits.windows(2) {
        let same = |wait: &PathStep| (wait.site.block, wait.site.warp);
        assert!(same(&two[0]) < same(&two[1]) || two[0].end <= two[1].start, "{two:?}");
    }
    for spent in [Spent::Peer, Spent::Fence, Spent::Barrier] {
        assert!(waits.iter().any(|wait| wait.spent == spent), "{spent:?}");
    }
}
