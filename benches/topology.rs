//! What a topology costs: reading, paths, the search for channels, and joining thousands of hosts.
//!
//! `cargo bench --bench topology`. The figures that are wanted: a search for a host of 8 GPUs and 8 ports under
//! 50 ms; rings and trees for 24,576 GPUs under 2 s.

use std::hint::black_box;
use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ferroccl::graph::search::{Wanted, search};
use ferroccl::graph::{GraphId, HostGraphs, SearchSettings, connect};
use ferroccl::topology::{self, Assume, Paths, Policy, System};

const FILES: [(&str, &str); 7] = [
    ("dgx1-v100", ""),
    ("dgx-a100", ""),
    ("hgx-h100", ""),
    ("azure-ndv4-topo", "sm=80,nvswitch=12"),
    ("azure-ncv4-topo", ""),
    ("aws-p4d-24xl-topo", "sm=80,nvswitch=12"),
    ("pcie-4gpu-no-nic", ""),
];

fn load(name: &str, assume: &str) -> System {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/topology_files/{name}.xml"));
    let assume: Assume =
        if assume.is_empty() { Assume::default() } else { assume.parse().unwrap() };
    topology::load_file(&path, &assume).unwrap()
}

/// One host: from its file to its channels.
fn host(c: &mut Criterion) {
    for (name, assume) in FILES {
        let mut group = c.benchmark_group(name);
        let system = load(name, assume);
        let paths = Paths::new(&system, &Policy::default());
        group.bench_function("read", |b| {
            b.iter(|| black_box(load(name, assume)));
        });
        group.bench_function("paths", |b| {
            b.iter(|| Paths::new(black_box(&system), &Policy::default()));
        });
        for id in [GraphId::Ring, GraphId::Tree, GraphId::CollNet] {
            for network in [false, true] {
                let wanted = Wanted { network, ..Wanted::new(id) };
                if search(&system, &paths, &wanted).is_none() {
                    continue; // no network, or none that reduces
                }
                let what = format!("search {id:?}{}", if network { " with network" } else { "" });
                group.bench_function(what, |b| {
                    b.iter(|| search(&system, &paths, black_box(&wanted)));
                });
            }
        }
        group.finish();
    }
}

/// Many hosts of 8: rings and trees over all ranks.
fn hosts(c: &mut Criterion) {
    let system = load("hgx-h100", "");
    let paths = Paths::new(&system, &Policy::default());
    let mut group = c.benchmark_group("hosts");
    for hosts in [1u32, 4, 16, 64, 256, 1024, 3072] {
        let graphs =
            HostGraphs::search(&system, &paths, &SearchSettings::default(), hosts).unwrap();
        group.throughput(Throughput::Elements(u64::from(hosts) * 8));
        group.sample_size(10);
        group.bench_with_input(BenchmarkId::new("rings", hosts), &hosts, |b, &hosts| {
            b.iter(|| connect::rings(&connect::alike([&graphs.ring; 2], hosts, 8)).unwrap());
        });
        group.bench_with_input(BenchmarkId::new("trees", hosts), &hosts, |b, &hosts| {
            b.iter(|| {
                connect::trees(&connect::alike([graphs.tree.as_ref().unwrap(); 2], hosts, 8))
                    .unwrap()
            });
        });
        group.bench_with_input(BenchmarkId::new("all", hosts), &hosts, |b, &hosts| {
            b.iter(|| {
                let paths = Paths::new(&system, &Policy::default());
                let graphs =
                    HostGraphs::search(&system, &paths, &SearchSettings::default(), hosts).unwrap();
                let rings = connect::rings(&connect::alike([&graphs.ring; 2], hosts, 8)).unwrap();
                let trees =
                    connect::trees(&connect::alike([graphs.tree.as_ref().unwrap(); 2], hosts, 8))
                        .unwrap();
                (rings, trees)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, host, hosts);
criterion_main!(benches);
