//! What plugins log.

use std::fmt::{Debug, Write as _};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferroccl_proxy::net::{Net, PluginNet};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{VERSIONS, compile, load_path};

/// Keeps the events of a thread.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        matches!(metadata.target(), "ferroccl::net" | "ferroccl::init")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

/// More arguments than there are registers for, of both kinds.
#[test]
fn the_format_and_all_its_arguments() {
    for version in VERSIONS {
        let events = Events::default();
        let path = compile("logs", version, &["INIT_RESULT=2"]);
        tracing::subscriber::with_default(events.clone(), || load_path(&path).unwrap_err());
        let events = events.0.lock().unwrap().clone();
        let find = |part: &str| events.iter().find(|event| event.contains(part)).unwrap();
        let numbers =
            "1.5 1099511627776 2.25 -3 3.125 c 4 abc 5 6 6.5 7 7.5 8 8.5 9 9.5 end 1.000000e-10";
        let info = find(&format!(" message=net v {version} {numbers}"));
        assert!(info.starts_with("INFO ") && info.contains(" from=\"init\" line="), "{info}");
        assert!(info.contains(" subsystems=16"), "{info}");
        let warning = find(" message=init fails with 2");
        assert!(warning.starts_with("WARN ") && warning.contains("net.c\" line="), "{warning}");
    }
}

/// C can't be unwound: a subscriber's panic must not come out of the plugin.
#[test]
fn a_subscriber_that_panics() {
    struct Panics;
    impl Subscriber for Panics {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "ferroccl::net" && *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            panic!("on purpose");
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
    let path = compile("panics", 11, &["INIT_RESULT=2"]);
    let error = tracing::subscriber::with_default(Panics, || load_path(&path).unwrap_err());
    assert_eq!(error.to_string(), "loopback: init: ncclSystemError");
}

const PLUGIN: &str = "FERROCCL_TEST_PLUGIN";

/// The warnings come from a thread of their own, so that this takes a process with a subscriber for all threads.
#[test]
fn a_function_that_does_not_return_is_warned_of() {
    let path = compile("slow", 11, &["LISTEN_TAKES_MS=1500"]);
    for (after, wanted) in [("0.1", &["0.1 s", "0.2 s", "returned"][..]), ("0", &[])] {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "logs::slow_child", "--ignored", "--nocapture"])
            .envs([(PLUGIN, path.to_str().unwrap()), ("AFTER", after)])
            .output()
            .unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        assert!(run.status.success(), "{text}");
        let events: Vec<_> =
            text.lines().filter(|line| line.contains("listen of loopback")).collect();
        assert_eq!(events.len() >= 3, !wanted.is_empty(), "{text}");
        for wanted in wanted {
            assert!(events.iter().any(|event| event.contains(wanted)), "{wanted}: {text}");
        }
        assert_eq!(
            text.contains("thread logs::slow_child is held up"),
            !wanted.is_empty(),
            "{text}"
        );
    }
}

/// What the test above runs.
#[test]
#[ignore = "for a process of its own"]
fn slow_child() {
    let events = Events::default();
    tracing::subscriber::set_global_default(events.clone()).unwrap();
    let after = std::env::var("AFTER").unwrap().parse().unwrap();
    let path = std::env::var(PLUGIN).unwrap();
    let net = PluginNet::load(Some(&path), Duration::from_secs_f64(after)).unwrap().unwrap();
    drop(net.listen(0).unwrap());
    for event in &*events.0.lock().unwrap() {
        println!("{event}");
    }
}
