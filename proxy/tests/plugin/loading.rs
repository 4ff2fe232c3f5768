//! Which library is loaded, and which table in it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroccl_proxy::net::{Net, PluginNet};

use crate::support::{Counts, VERSIONS, cc, compile, connect, file, load_path};

/// A plugin with two tables is two files in one library.
#[test]
fn the_newest_table_is_taken() {
    for (older, newer) in [(8, 9), (9, 10), (8, 11), (7, 8)] {
        let objects = [older, newer].map(|version| {
            let arguments = ["-c".to_owned(), format!("-DNET_VERSION={version}")];
            file(&format!("two-{older}-{newer}-v{version}.o"), |path| cc(&arguments, path))
        });
        let mut arguments = vec!["-shared".to_owned()];
        arguments.extend(objects.iter().map(|path| path.to_str().unwrap().to_owned()));
        let path = file(&format!("two-{older}-{newer}.so"), |path| cc(&arguments, path));
        assert_eq!(load_path(&path).unwrap().version(), newer);
    }
}

#[test]
fn a_library_without_a_table() {
    let error = |path: &Path| {
        let error = load_path(path).unwrap_err();
        assert_eq!((error.net.as_str(), error.operation), (path.to_str().unwrap(), "load"));
        error.reason
    };
    let all =
        "has none of ncclNetPlugin_v11, ncclNetPlugin_v10, ncclNetPlugin_v9, ncclNetPlugin_v8";
    assert_eq!(error(&compile("no-table", 11, &["NO_TABLE"])), all);
    assert_eq!(error(&compile("too-old", 7, &[])), format!("{all}, only ncclNetPlugin_v7"));
}

/// (Half of a library is not here: glibc maps what is not there, and the process ends with SIGBUS.)
#[test]
fn a_file_that_is_no_library() {
    let contents: [&[u8]; 3] = [b"", b"no library\n", b"\x7fELF\x02\x01\x01 and so on"];
    for (i, contents) in contents.into_iter().enumerate() {
        let path = file(&format!("garbage-{i}.so"), |path| std::fs::write(path, contents).unwrap());
        let error = load_path(&path).unwrap_err();
        assert!(error.reason.starts_with("no library: tried /"), "{error}");
    }
}

#[test]
fn each_user_of_version_11_has_a_context() {
    for version in VERSIONS {
        let path = compile("contexts", version, &[]);
        let nets: Vec<_> = (0..3).map(|_| load_path(&path).unwrap()).collect();
        let counts = Counts::of(&nets[0]);
        let contexts = if version == 11 { 3 } else { 0 };
        assert_eq!(counts.inits.load(Ordering::SeqCst), contexts.max(1));
        assert_eq!(counts.open(), [contexts, 0, 0, 0, 0]);
        // The first is gone while the others go on.
        let [first, second, third]: [Arc<PluginNet>; 3] = nets.try_into().unwrap();
        drop(first);
        let _pair = connect(&second);
        drop((second, third));
        assert_eq!(counts.open()[0], i32::from(version == 11), "the connection has one");
    }
}

/// Names that `dlopen` looks for in its path: that is read when a process begins, so that there has to be another one.
#[test]
fn names_are_resolved_as_by_nccl() {
    let directory = |name: &str| format!("names/{name}/");
    let plugin = |path: &str, version| {
        let built = compile(&format!("names-built-{}", path.replace('/', "-")), version, &[]);
        file(path, |path| {
            std::fs::copy(built, path).unwrap();
        })
    };
    let run = |directory: &Path, name: Option<&str>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "loading::child", "--ignored", "--nocapture"]);
        command.env("LD_LIBRARY_PATH", directory).env_remove("NCCL_NET_PLUGIN");
        command.envs(name.map(|name| ("NCCL_NET_PLUGIN", name)));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let answer = text.lines().find_map(|line| line.split_once("child: ").map(|(_, rest)| rest));
        answer
            .unwrap_or_else(|| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
            .to_owned()
    };
    let full = plugin(&(directory("full") + "libnccl-net.so"), 8);
    plugin(&(directory("full") + "libnccl-net-mine.so"), 9);
    plugin(&(directory("full") + "yours"), 10);
    plugin(&(directory("full") + "libnccl-net-yours.so"), 11);
    let full = full.parent().unwrap();
    assert_eq!(run(full, None), "libnccl-net.so v8");
    assert_eq!(run(full, Some("libnccl-net.so")), "libnccl-net.so v8");
    assert_eq!(run(full, Some("mine")), "libnccl-net-mine.so v9");
    assert_eq!(run(full, Some("yours")), "yours v10");
    assert_eq!(run(full, Some("none")), "no plugin");
    assert_eq!(run(full, Some("")), "no plugin");
    let error = run(full, Some("theirs"));
    assert!(error.starts_with("error theirs: load: no library: tried theirs (theirs: "), "{error}");
    assert!(error.contains("then libnccl-net-theirs.so (libnccl-net-theirs.so: "), "{error}");

    // One that is there and broken is not one that is not there.
    let broken = file(&(directory("broken") + "libnccl-net.so"), |path| {
        std::fs::write(path, "no library").unwrap();
    });
    let error = run(broken.parent().unwrap(), None);
    assert!(error.starts_with("error libnccl-net.so: load: "), "{error}");
}

/// What the test above runs.
#[test]
#[ignore = "for a process of its own"]
fn child() {
    let name = std::env::var("NCCL_NET_PLUGIN").ok();
    match PluginNet::load(name.as_deref(), std::time::Duration::from_secs(10)) {
        Ok(None) => println!("\nchild: no plugin"),
        Ok(Some(net)) => {
            assert_eq!(net.name(), "loopback");
            println!("\nchild: {} v{}", net.library(), net.version());
        }
        Err(error) => println!("\nchild: error {error}"),
    }
}
