//! Plugins that do something wrong.

use ferroccl_proxy::net::Net;

use crate::support::{Counts, VERSIONS, compile, connect, load, load_path, until};

/// The error of loading a plugin with this macro, in these versions, after the plugin's name or file.
fn load_error(versions: &[u32], test: &str, name: &str, expected: &str) {
    for &version in versions {
        let path = compile(test, version, &[name]);
        // Twice: what failed is not taken for done.
        for _ in 0..2 {
            let error = load_path(&path).unwrap_err().to_string();
            let at = error.rfind("-v").map_or(0, |at| at + 1); // of the file
            let said =
                error.get(at..).and_then(|error| error.split_once(": ")).map(|(_, said)| said);
            assert_eq!(said, Some(expected), "{name} v{version}: {error}");
        }
        let open = Counts::in_file(path.to_str().unwrap()).open();
        assert_eq!(open, [0; 5], "{name} v{version}: a context is left");
    }
}

#[test]
fn one_that_does_not_want_to() {
    for (versions, number, name) in [
        (&VERSIONS[..], 2, "ncclSystemError"),
        (&[8], 1, "ncclUnhandledCudaError"),
        (&[9], 3, "ncclInternalError"),
        (&[10], 7, "ncclInProgress"),
        (&[11], -1, "result -1, which is no ncclResult_t"),
    ] {
        let test = format!("init{number}");
        load_error(versions, &test, &format!("INIT_RESULT={number}"), &format!("init: {name}"));
    }
}

#[test]
fn one_that_lacks_something() {
    load_error(&VERSIONS, "no-name", "NAME=NULL", "load: its name is NULL");
    load_error(&VERSIONS, "no-init", "NO_INIT", "load: has no function init in its table");
    load_error(&VERSIONS, "no-isend", "NO_ISEND", "load: has no function isend in its table");
}

#[test]
fn counts_of_devices() {
    for (count, version) in ["0", "-1", "641", "2147483647"].into_iter().zip(VERSIONS) {
        let expected = format!("devices: {count} devices, not 1 to 640");
        let macro_ = format!("DEVICES={count}");
        load_error(&[version], &format!("devices{count}"), &macro_, &expected);
    }
}

const UNPACKS: &str = "netDeviceType is 1: kernels have to unpack what it receives, and ours can't";

#[test]
fn properties() {
    for (version, field, said) in [
        (8, "MAX_RECVS=0", "maxRecvs is 0, less than 1"),
        (9, "MAX_RECVS=0", "maxRecvs is 0, less than 1"),
        (10, "MAX_RECVS=-7", "maxRecvs is -7, less than 1"),
        (11, "SPEED=-1", "speed is -1, less than 0"),
        (8, "SPEED=-1", "speed is -1, less than 0"),
        (9, "PORT=-2", "port is -2, less than 0"),
        (10, "POINTERS=2", "ptrSupport is 2, without the host"),
        (8, "DEVICE_NAME=NULL", "name is NULL"),
        (11, "DEVICE_NAME=NULL", "name is NULL"),
        (8, "DEVICE_TYPE=1", UNPACKS),
        (11, "DEVICE_TYPE=1", UNPACKS),
        (9, "MAX_P2P_BYTES=0", "maxP2pBytes is 0, not 1 to 2^40"),
        (11, "MAX_P2P_BYTES=(1ull<<40)+1", "maxP2pBytes is 1099511627777, not 1 to 2^40"),
    ] {
        let net = load(&field.replace(['(', ')', '<'], "_"), version, &[field]);
        let expected = format!("loopback: getProperties: device 1: {said}");
        for error in [
            net.properties(1).unwrap_err(),
            net.listen(1).map(|_| ()).unwrap_err(),
            net.connect(1, &[0; 128]).map(|_| ()).unwrap_err(),
        ] {
            assert_eq!(error.to_string(), expected, "v{version}");
        }
    }
}

#[test]
fn properties_that_are_less() {
    for version in [8, 11] {
        let net = load("no-iflush", version, &["GPU", "NO_IFLUSH"]);
        let properties = net.properties(0).unwrap();
        assert!(!properties.cuda && !properties.dma_buf, "nothing can be flushed");
        let net = load("no-path", version, &["PCI_PATH=\"\"", "MAX_RECVS=1000"]);
        let properties = net.properties(0).unwrap();
        assert_eq!((properties.pci_path, properties.max_receives), (None, 32));
    }
}

#[test]
fn virtual_devices_that_cannot_be() {
    for version in [9, 11] {
        let net = load("makes", version, &["MAKES=7"]);
        let error = net.make_virtual_device(&[0, 1]).unwrap_err().to_string();
        assert_eq!(error, "loopback: makeVDevice: it makes device 7, and has 2");
        let net = load("members", version, &["MEMBERS=5"]);
        let error = net.properties(0).unwrap_err().to_string();
        assert_eq!(error, "loopback: getProperties: device 0: vProps.ndevs is 5, not 0 to 4");
        let net = load("none", version, &["NO_VIRTUAL_DEVICES"]);
        assert_eq!(net.max_devices_per_nic(), 1);
        let error = net.make_virtual_device(&[0, 1]).unwrap_err().to_string();
        assert_eq!(error, "loopback: makeVDevice: the plugin has no such function");
    }
}

#[test]
fn no_listener() {
    for version in [8, 11] {
        let net = load("no-listener", version, &["NO_LISTENER"]);
        let error = net.listen(0).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error, "loopback: listen: it gave no listener");
    }
}

#[test]
fn sizes_that_cannot_be() {
    for (size, said) in [("(bytes)+1", 11), ("-(bytes)", -10)] {
        for version in [8, 11] {
            let test = format!("sizes{said}");
            let net = load(&test, version, &[&format!("SIZE_OF(bytes)={size}")]);
            let mut pair = connect(&net);
            let (message, mut buffer) = (pair.message(vec![1; 10]), pair.buffer(10));
            let (_, received) = (pair.isend(&message, 0), pair.irecv(&mut buffer));
            let sent_too = pair.isend(&message, 0);
            until(|| pair.sender.test(sent_too).unwrap().then_some(()));
            let error = until(|| pair.receiver.test(received, &mut [0]).err());
            assert_eq!(
                error.to_string(),
                format!("loopback: test: {said} bytes in a buffer of 10")
            );
            // The connection is broken; it is closed all the same.
            assert_eq!(pair.receiver.test(received, &mut [0]), Err(error));
            drop(pair);
            assert_eq!(Counts::of(&net).open()[1..], [0; 4]);
        }
    }
}
