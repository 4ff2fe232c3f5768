//! Streams by themselves: order, functions of the host, events and the errors that go with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferroccl::runtime::Event;
use ferroccl::{Device, Error};

use crate::stand_in::{alone, ready};

fn error(text: &str) -> Error {
    Error::argument("test", text)
}

#[test]
fn what_is_put_in_runs_in_order() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let steps = Arc::new(AtomicU32::new(0));
    let step = |expected: u32| {
        let steps = Arc::clone(&steps);
        Box::new(move || {
            let found = steps.fetch_add(1, Ordering::SeqCst);
            assert_eq!(found, expected);
        })
    };
    let go = Event::new();
    first.ops().wait(&go);
    first.ops().host_function(step(0));
    let event = Event::new();
    first.ops().record(&event, false);
    second.ops().wait(&event);
    second.ops().host_function(step(1));
    assert!(!first.query().unwrap() && !second.query().unwrap());
    go.complete(Ok(()));
    second.synchronize().unwrap();
    first.synchronize().unwrap();
    assert_eq!(steps.load(Ordering::SeqCst), 2);
    assert!(first.query().unwrap() && second.query().unwrap());
}

/// An event takes the error of its stream along, if it is told to.
#[test]
fn errors_go_with_events() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    for with_error in [false, true] {
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        first.ops().host_function(Box::new(|| panic!("on purpose")));
        let event = Event::new();
        first.ops().record(&event, with_error);
        second.ops().wait(&event);
        // The one that has it has it once.
        let (with, without) = if with_error { (&second, &first) } else { (&first, &second) };
        without.synchronize().unwrap();
        let error = with.synchronize().unwrap_err().to_string();
        assert!(error.contains("on purpose"), "{error}");
        with.synchronize().unwrap();
    }
}

/// What the host says a stream waits for, and its error becomes the stream's.
#[test]
fn streams_wait_for_the_host() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let stream = device.stream().unwrap();
    let event = Event::new();
    stream.ops().wait(&event);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!stream.query().unwrap());
    event.complete(Ok(()));
    stream.synchronize().unwrap();
    // Before it is waited for, and after.
    for late in [false, true] {
        let event = Event::new();
        if !late {
            event.complete(Err(error("no")));
        }
        stream.ops().wait(&event);
        if late {
            event.complete(Err(error("no")));
        }
        let found = stream.synchronize().unwrap_err().to_string();
        assert!(found.contains("test: no"), "{found}");
        stream.synchronize().unwrap();
    }
}
