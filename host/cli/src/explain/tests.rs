//! The command on a machine that this one is not: 8 GPUs on switches, a PCI switch and a port for each two.

use clap::Parser;
use ferroccl::config::Config;
use ferroccl::topology::{
    Arch, BusId, Cpu, CpuSet, Gpu, LinkKind, Net, Nic, Node, Pci, System, Vendor,
};

use super::report::Report;
use super::scale::Scale;
use super::*;

fn args(line: &str) -> ExplainArgs {
    of("all_reduce", line)
}

fn of(collective: &str, line: &str) -> ExplainArgs {
    let words = ["ferroccl", "explain", collective].into_iter().chain(line.split_whitespace());
    match crate::Cli::try_parse_from(words).unwrap().command {
        crate::Command::Explain(args) => *args,
        other => panic!("{other:?}"),
    }
}

/// Like a DGX A100 with 4 ports of 25 GB/s.
fn system() -> System {
    let mut system = System::default();
    let affinity = CpuSet::from_iter(0..64);
    let (arch, vendor) = (Arch::X86, Vendor::Amd);
    let cpu = Node::Cpu(Cpu { numa: 0, arch, vendor, family: 143, model: 49, affinity });
    let (cpu, nvs) = (system.add(cpu), system.add(Node::Nvs));
    for dev in 0..4 {
        let bus_id = |device| BusId { bus: 0x10 + dev as u8, device, ..BusId::default() };
        let pci = system.add(Node::Pci(Pci { bus_id: bus_id(0), device: [0; 4] }));
        system.connect(cpu, pci, LinkKind::Pci, 24.0);
        for i in 0..2 {
            let gpu = Gpu { dev: 2 * dev + i, rank: None, sm: 80, gdr: true, bus_id: bus_id(1) };
            let gpu = system.add(Node::Gpu(gpu));
            system.connect(gpu, pci, LinkKind::Pci, 24.0);
            system.connect(gpu, nvs, LinkKind::Nvl, 240.0);
        }
        let nic = system.add(Node::Nic(Nic { bus_id: Some(bus_id(2)) }));
        let net = Net {
            dev,
            name: format!("mlx5_{dev}"),
            port: 1,
            guid: u64::from(dev),
            bw: 25.0,
            latency: 0.0,
            max_conn: 1024,
            gdr: true,
            coll: false,
        };
        let net = system.add(Node::Net(net));
        system.connect(pci, nic, LinkKind::Pci, 24.0);
        system.connect(nic, net, LinkKind::Net, 25.0);
    }
    system
}

fn machine(line: &str, variables: &[(&str, &str)]) -> Result<Machine, String> {
    let get = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Machine::new(system(), &args(line), &Config::from_lookup(get).unwrap())
}

fn report(line: &str, variables: &[(&str, &str)]) -> Report {
    report_of("all_reduce", line, variables)
}

fn report_of(collective: &str, line: &str, variables: &[(&str, &str)]) -> Report {
    let (args, machine) = (of(collective, line), machine(line, variables).unwrap());
    let nodes = args.nodes.unwrap_or(1);
    let graphs = machine.graphs(nodes).unwrap();
    let s = machine.situation(&graphs, nodes);
    Report::new(&machine, &s, args.collective, &args.sizes().unwrap()).unwrap()
}

#[test]
fn one_size_shows_every_way_and_why_it_lost() {
    let text = report("--bytes 1K --nodes 16", &[]).to_string();
    assert!(text.starts_with("# all_reduce: 128 ranks on 16 hosts, this machine, "), "{text}");
    assert!(
        text.contains("# 1K: Doubling with LL, 1 channel of 128 threads, chunks of at most 32K"),
        "{text}"
    );
    let line = |a: &str, p: &str| {
        let is = |l: &&str| l.split_whitespace().take(2).eq([a, p]);
        text.lines().find(is).unwrap_or_else(|| panic!("{a} {p} in {text}")).to_owned()
    };
    assert!(line("Doubling*", "LL").ends_with("chosen"), "{text}");
    assert!(line("Tree", "LL").ends_with("times slower"), "{text}");
    assert!(line("Ring", "Simple").ends_with("times slower"), "{text}");
    assert!(line("CollnetChain", "Simple").ends_with("there is no network that reduces"), "{text}");
    assert!(line("OneShot*", "LL").ends_with("memory of one host"), "{text}");
    assert!(!text.contains("Bruck"), "no Bruck does all_reduce: {text}");
    assert_eq!(text.lines().filter(|l| !l.starts_with('#')).count(), 33, "{text}");
    // What may be chosen comes first, ordered by time.
    let times: Vec<f64> = text
        .lines()
        .filter(|l| l.ends_with("slower") || l.ends_with("chosen"))
        .map(|l| l.split_whitespace().nth(2).unwrap().parse().unwrap())
        .collect();
    assert!(times.len() == 15 && times.is_sorted(), "{text}");
    let order: Vec<bool> =
        text.lines().filter(|l| !l.starts_with('#')).map(|l| l.contains(" - ")).collect();
    assert!(order.is_sorted(), "what cannot be done comes last: {text}");
}

#[test]
fn settings_are_heard_and_named() {
    let text = report("--bytes 1K --nodes 16", &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "^LL")])
        .to_string();
    assert!(text.contains("# 1K: Ring with LL128, "), "{text}");
    assert!(
        text.contains("not allowed by NCCL_ALGO") && text.contains("not allowed by NCCL_PROTO"),
        "{text}"
    );
}

/// Every collective is explained, each by its own algorithms.
#[test]
fn every_collective_is_explained() {
    for (collective, small, ways) in [
        ("all_reduce", "OneShot* LL", 33),
        ("all_gather", "OneShot* LL", 18),
        ("reduce_scatter", "OneShot* LL", 21),
        ("broadcast", "Ring LL", 9),
        ("reduce", "Ring LL", 9),
        ("sendrecv", "Ring LL", 3),
    ] {
        let text = report_of(collective, "--bytes 64", &[]).to_string();
        let rows: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(rows.len(), ways, "{text}");
        assert!(rows[0].split_whitespace().take(2).eq(small.split(' ')), "{text}");
        let table = report_of(collective, "", &[]).to_string();
        assert_eq!(table.lines().filter(|l| !l.starts_with('#')).count(), 10, "{table}");
    }
    let barrier = report_of("barrier", "", &[]).to_string();
    assert!(barrier.contains("# 1: OneShot with LL, "), "{barrier}");
    assert_eq!(of("barrier", "--bytes 8").sizes(), Err("a barrier has no size".to_owned()));
    let windows = report_of("all_gather", "--bytes 64M --windows", &[]).to_string();
    assert!(windows.contains("# 64M: Direct with Simple, "), "{windows}");
    let windows = report_of("all_reduce", "--bytes 64M --windows", &[]).to_string();
    assert!(windows.contains("sm_80 has no multicast objects"), "{windows}");
    let none = report_of("all_gather", "--bytes 64M", &[]).to_string();
    assert!(none.contains("the buffers are in no window"), "{none}");
    let tree = report_of("broadcast", "--bytes 64", &[("NCCL_ALGO", "ring;broadcast:tree")]);
    assert!(tree.to_string().contains("# 64: Tree with LL, "), "{tree}");
}

#[test]
fn several_sizes_are_a_table_with_switch_points() {
    let text = report("-b 8 -e 8G -f 8 --nodes 16", &[]).to_string();
    let rows: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(rows.len(), 11, "{text}");
    assert!(rows[0].split_whitespace().take(3).eq(["8", "Doubling*", "LL"]), "{text}");
    assert!(rows[10].split_whitespace().take(3).eq(["8G", "Ring", "Simple"]), "{text}");
    let points: Vec<&str> = text.lines().filter(|l| l.starts_with("# from ")).collect();
    assert_eq!(points[0], "# from 0 bytes on: Doubling with LL");
    assert!(points.last().unwrap().ends_with("on: Ring with Simple"), "{text}");
    // Numbers end where their headings do.
    let end = |line: &str, word: &str| line.find(word).map(|at| at + word.len());
    let heading = text.lines().find(|l| l.contains("(us)")).unwrap();
    let busy = rows[10].split_whitespace().collect::<Vec<_>>();
    assert_eq!(end(heading, "(us)"), end(rows[10], busy[5]), "{text}");
    assert_eq!(heading.rfind("(GB/s)").map(|at| at + 6), end(rows[10], busy[7]), "{text}");
}

#[test]
fn json_has_all_of_it() {
    let json: serde_json::Value =
        serde_json::from_str(&report("--bytes 8,1M --nodes 4", &[]).json()).unwrap();
    assert_eq!(
        (&json["version"], &json["ranks"], &json["nodes"]),
        (&1.into(), &32.into(), &4.into())
    );
    let sizes = json["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), 2);
    let others = sizes[0]["alternatives"].as_array().unwrap();
    assert_eq!(others.len(), 38);
    let bruck = others.iter().find(|o| o["algorithm"] == "Bruck").unwrap();
    assert_eq!(bruck["exists"], false);
    assert!(others.iter().all(|o| !o["lost"].as_str().unwrap().is_empty()));
    let ring = others.iter().find(|o| o["algorithm"] == "Ring" && o["protocol"] == "LL").unwrap();
    assert!(ring["time_us"].as_f64() > sizes[0]["time_us"].as_f64(), "{json}");
    assert_eq!(ring["allowed"], true);
    assert_eq!(json["graphs"][0]["for"], "ring");
    assert_eq!(json["switch_points"][0]["bytes"], 0);
}

#[test]
fn ranks_that_do_not_fit_are_refused() {
    let of = |line: &str| machine(line, &[]).map(|m| m.local_ranks);
    assert_eq!(of("--nodes 2"), Ok(8));
    assert_eq!(of("--nodes 2 --ranks 4"), Ok(2));
    assert_eq!(of("--nodes 2 --ranks 3"), Err("3 ranks do not spread evenly over 2 hosts".into()));
    assert_eq!(of("--ranks 9"), Err("9 ranks on a host that has 8 GPUs".into()));
    assert_eq!(machine("--nodes 2 --ranks 4", &[]).unwrap().system.gpus().len(), 2);
}

#[test]
fn sizes_are_read_like_perf_reads_them() {
    let of = |line: &str| args(line).sizes();
    assert_eq!(of("--bytes 8,1K,1M"), Ok(vec![8, 1 << 10, 1 << 20]));
    assert_eq!(of("-b 8 -e 64"), Ok(vec![8, 16, 32, 64]));
    assert_eq!(of("-b 8 -e 24 -i 8"), Ok(vec![8, 16, 24]));
    assert_eq!(of("-e 16"), Ok(vec![8, 16]));
    assert_eq!(of("-b 1M"), Ok(vec![1 << 20]));
    assert_eq!(of("").unwrap().len(), 10);
    assert!(of("-b 1 -e 1G -i 1").unwrap_err().contains("10000 sizes"));
    assert!(of("-b 9 -e 8").is_err());
    let both = ["ferroccl", "explain", "all_reduce", "--bytes", "8", "-b", "8"];
    assert!(crate::Cli::try_parse_from(both).is_err());
}

/// 1 to 3072 hosts of 8: a ring's time grows with the hosts, a tree's with their logarithm.
#[test]
fn trees_gain_at_scale_and_the_plot_shows_it() {
    let machine = machine("--bytes 8,1M", &[("NCCL_ALGO", "Ring")]).unwrap();
    let scale = Scale::new(&machine, Collective::AllReduce, &[8, 1 << 20], None).unwrap();
    let json: serde_json::Value = serde_json::from_str(&scale.json()).unwrap();
    let points = json["curves"][0]["points"].as_array().unwrap();
    let nodes: Vec<u64> = points.iter().map(|p| p["nodes"].as_u64().unwrap()).collect();
    assert_eq!((nodes[..6].to_vec(), nodes.last()), (vec![1, 2, 3, 4, 6, 8], Some(&3072)));
    let time = |i: usize, what: &str| points[i][what]["time_us"].as_f64().unwrap();
    let last = points.len() - 1;
    // LL: 6.6 + 43008 x 2.0 + 6142 x 2.7 against 6.8 + 2 (7 x 0.6 + 11 x 5), and 8 bytes.
    assert!((time(last, "ring") - 102_606.0).abs() < 1.0, "{}", time(last, "ring"));
    assert!((time(last, "tree") - 125.2).abs() < 0.1, "{}", time(last, "tree"));
    for i in 1..points.len() {
        assert!(time(i, "ring") > time(i - 1, "ring") && time(i, "tree") >= time(i - 1, "tree"));
    }
    let text = scale.to_string();
    assert!(
        text.contains("With 24576 ranks a tree gains a factor of 820 at most, at 8 B."),
        "{text}"
    );
    assert!(text.contains("2 x 24575 of the ring and 2 x 18 of the tree"), "{text}");
    // (102606 + 447) / (125.2 + 447) = 180.
    assert!(text.contains("447.3 us of that in both"), "{text}");

    let svg = scale.svg().unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for word in ["hosts", "predicted time (us)", "8 B ring", "8 B tree", "1 MiB ring", "1 MiB tree"]
    {
        assert!(svg.contains(word), "{word} in {svg}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}
