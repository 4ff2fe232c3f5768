//! The examples: on the CPU under adversaries, where weakened orders are found, and as PTX in the emulator under all checks.

use std::sync::Arc;

use ferroccl::Device;
use ferroccl::conformance::seeds;
use ferroccl::device::orders::{self, Published, Side};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::runtime::ptx::{Options, PtxRuntime, Unit, checks};
use ferroccl_fused::cases::{CASES, Case, Form, ONE_HOST};
use ferroccl_fused::team::Places;
use ferroccl_fused::{PTX, sizes};

/// Ranks and a size of a seed.
fn shape(seed: u64, most: usize) -> (usize, usize) {
    (1 + (seed % 4) as usize, 1 + (seed as usize * 7) % most)
}

/// Hosts of as many ranks each.
const HOSTS: [&[usize]; 3] = [&[1, 1], &[2, 2], &[1, 1, 1]];

/// A run under the CPU's adversary, with all ranks on a host, or on several.
fn under_adversary(
    case: Case,
    seed: u64,
    several: bool,
    weaken: Option<(Published, Side)>,
) -> Result<(), String> {
    in_form(Form::Fused, case, seed, several, weaken)
}

fn in_form(
    form: Form,
    case: Case,
    seed: u64,
    several: bool,
    weaken: Option<(Published, Side)>,
) -> Result<(), String> {
    let adversity = Adversity { races: true, weaken, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let (n, size) = shape(seed, 40);
    let hosts = if several { HOSTS[seed as usize % HOSTS.len()] } else { &[n] };
    let devices = vec![Device::new(runtime.clone()); hosts.iter().sum()];
    let places = Places { devices: &devices, hosts };
    case(&places, size, form, &|| {}).map_err(|e| e.to_string())?;
    runtime.race().map_or(Ok(()), Err)
}

/// The library's calls take what this build has kernels of: it is without `reduce`, of which a hierarchical all-reduce is made.
#[test]
fn kernels_and_calls_are_right_over_several_hosts() {
    for (_, case, _) in CASES {
        seeds(6, |seed| in_form(Form::Apart, case, seed, true, None));
    }
}

#[test]
fn all_are_right_under_an_adversary() {
    for (_, case, _) in CASES.into_iter().chain(ONE_HOST) {
        seeds(40, |seed| under_adversary(case, seed, false, None));
    }
}

#[test]
fn all_are_right_over_several_hosts() {
    for (_, case, _) in CASES {
        seeds(40, |seed| under_adversary(case, seed, true, None));
    }
}

/// What each of them stands on: without it some seed must notice.
#[test]
fn weakened_orders_are_found() {
    let stand_on = [orders::BARRIER, orders::SIGNAL, orders::SIGNAL, orders::SIGNAL];
    for ((name, case, _), order) in CASES.into_iter().zip(stand_on) {
        for side in [Side::Release, Side::Acquire] {
            let run = |seed| under_adversary(case, seed, false, Some((order, side)));
            let found = (0..200).find_map(|seed| Some((seed, run(seed).err()?)));
            println!("{name}, {} {side:?}: {found:?}", order.name());
            assert!(found.is_some(), "{name}: no seed notices {} {side:?}", order.name());
        }
    }
}

/// Over several hosts each of them stands on its requests being whole.
#[test]
fn weakened_requests_are_found() {
    for (name, case, _) in CASES {
        let weaken = Some((orders::PUT_REQUEST, Side::Release));
        let run = |seed| under_adversary(case, seed, true, weaken);
        let found = (0..100).find_map(|seed| Some((seed, run(seed).err()?)));
        println!("{name}: {found:?}");
        assert!(found.is_some(), "{name}: no seed notices");
    }
}

#[test]
fn all_are_right_in_the_emulator() {
    if PTX.is_empty() {
        return println!("skipped: there is no PTX");
    }
    let several = CASES.map(|(_, case, _)| (case, true));
    let one = ONE_HOST.map(|(_, case, _)| (case, false));
    for (case, several) in several.into_iter().chain(one) {
        seeds(8, |seed| {
            let options = Options { checks: Some(checks(Unit::Eight)), ..Options::seeded(seed) };
            let runtime =
                PtxRuntime::lockstep(options).with_threads(64).map_err(|e| e.to_string())?;
            let (n, size) = shape(seed, 30);
            let on_one = !several || seed.is_multiple_of(2);
            let hosts = if on_one { &[n] } else { HOSTS[seed as usize / 2 % 3] };
            let devices = vec![Device::new(Arc::new(runtime)); hosts.iter().sum()];
            let places = Places { devices: &devices, hosts };
            case(&places, size, Form::Fused, &|| {}).map_err(|e| e.to_string())
        });
    }
}

#[test]
fn kernels_and_calls_give_the_same() {
    let devices = vec![Device::cpu(); 4];
    let places = Places { devices: &devices, hosts: &[4] };
    for (name, case, _) in CASES.into_iter().chain(ONE_HOST) {
        for size in sizes(name) {
            for form in [Form::Fused, Form::Apart] {
                case(&places, *size, form, &|| {}).unwrap_or_else(|e| panic!("{name} {size}: {e}"));
            }
        }
    }
}

#[test]
fn threads_of_several_hosts_give_the_same() {
    let devices = vec![Device::cpu(); 4];
    let places = Places { devices: &devices, hosts: &[2, 2] };
    for (name, case, _) in CASES {
        for size in sizes(name) {
            case(&places, *size, Form::Fused, &|| {})
                .unwrap_or_else(|e| panic!("{name} {size}: {e}"));
        }
    }
}
