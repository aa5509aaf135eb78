//! The daemon's end as client of a vhost-user socket: it connects whenever a VMM listens.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vmlane_device::virtio::vhost::{Setup, VhostDevice};
use vmlane_transport::{Caller, RingLines, Server, VhostEnd};
use vmlane_wire::vhost_user::{HEADER, Header, request};
use vmlane_wire::virtio::feature;
use zerocopy::{FromBytes, IntoBytes};

struct Toy;

impl VhostDevice for Toy {
    fn features(&self) -> u64 {
        feature::VERSION_1
    }

    fn queues(&self) -> u16 {
        1
    }

    fn config(&self) -> Vec<u8> {
        Vec::new()
    }

    fn run(&mut self, _: Setup) {}

    fn stop(&mut self) {}
}

fn calls(path: &Path) -> Server {
    let lines = Arc::new(RingLines::new(1).unwrap());
    let caller = Caller::new(path).unwrap();
    VhostEnd::Calls(caller).serve("toy", Box::new(Toy), lines, Arc::default()).unwrap()
}

/// The next connection, once the device has answered on it.
fn greeted(listener: &UnixListener) -> UnixStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(Header::request(request::GET_FEATURES, 0, false).as_bytes()).unwrap();
    let mut answer = [0; HEADER + 8];
    stream.read_exact(&mut answer).unwrap();
    let features = u64::read_from_bytes(&answer[HEADER..]).unwrap();
    assert_ne!(features & feature::VERSION_1, 0);
    stream
}

#[test]
fn it_connects_whenever_a_vmm_listens() {
    let dir = tempfile::tempdir().unwrap();
    // It makes the directory where the VMM's socket is to be.
    let path = dir.path().join("vm/a/nic0.sock");
    let server = calls(&path);
    assert!(!server.connected());
    for _ in 0..3 {
        let listener = UnixListener::bind(&path).unwrap();
        // Two VMMs, one after the other, behind one listener; then a listener of its own.
        drop(greeted(&listener));
        let stream = greeted(&listener);
        assert!(server.connected());
        drop(listener);
        drop(stream);
        std::fs::remove_file(&path).unwrap();
    }
    server.stop();
}

#[test]
fn only_one_connection_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let server = calls(&path);
    let first = greeted(&listener);
    listener.set_nonblocking(true).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    assert!(listener.accept().is_err(), "a second connection beside the first");
    listener.set_nonblocking(false).unwrap();
    drop(first);
    let _second = greeted(&listener);
    // The VMM's name stays when the device goes.
    server.stop();
    assert!(path.exists());
}

#[test]
fn what_is_no_listening_socket_is_tried_again_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    std::fs::write(&path, "a file").unwrap();
    let server = calls(&path);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let _stream = greeted(&listener);
    server.stop();
}

#[test]
fn it_ends_without_a_listener_and_while_none_accepts() {
    let dir = tempfile::tempdir().unwrap();
    calls(&dir.path().join("absent")).stop();
    let path = dir.path().join("full");
    let listener = UnixListener::bind(&path).unwrap();
    // Other connections wait, as many as fit.
    listener.set_nonblocking(true).unwrap();
    let others: Vec<UnixStream> = (0..2).map(|_| UnixStream::connect(&path).unwrap()).collect();
    calls(&path).stop();
    drop(others);
}
