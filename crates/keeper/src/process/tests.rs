use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

/// How long a machine that is busy with other tests may take.
const LONGEST: Duration = Duration::from_secs(120);
const HELD: Duration = Duration::from_secs(1);

/// A keeper in a directory of its own, until the test's end.
struct Keeper {
    _base: TempDir,
    path: PathBuf,
}

impl Keeper {
    fn start() -> Keeper {
        let base = tempfile::tempdir().unwrap();
        let (runtime, (ready, is_ready)) = (base.path().to_owned(), std::sync::mpsc::channel());
        let path = crate::socket(&runtime);
        std::thread::spawn(move || serve(&runtime, None, || ready.send(()).unwrap()).unwrap());
        is_ready.recv_timeout(LONGEST).unwrap();
        Keeper { _base: base, path }
    }

    fn client(&self) -> OwnedFd {
        connect(&self.path)
    }

    /// Letters and names of what it lists.
    fn list(&self) -> Vec<(u8, String)> {
        listed(&self.client())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = send(self.client(), END, "", None);
    }
}

fn connect(path: &Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn listed(client: &OwnedFd) -> Vec<(u8, String)> {
    send(client, LIST, "", None).unwrap();
    answer(client)
}

fn answer(client: &OwnedFd) -> Vec<(u8, String)> {
    let packets = std::iter::from_fn(|| receive(client).unwrap().filter(|packet| packet.what != LISTED));
    packets.map(|packet| (packet.what, packet.name)).collect()
}

/// Has a socket held; the other end is returned.
fn put(daemon: &OwnedFd, name: &str) -> UnixStream {
    let (vmm, held) = UnixStream::pair().unwrap();
    send(daemon, PUT, name, Some(held.as_fd())).unwrap();
    vmm.set_read_timeout(Some(LONGEST)).unwrap();
    vmm
}

fn is_open(mut vmm: &UnixStream) -> bool {
    vmm.set_nonblocking(true).unwrap();
    let is_open = vmm.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    vmm.set_nonblocking(false).unwrap();
    is_open
}

/// The keeper closes the other end, and not before it has been alone for its time.
fn expect_closed_in_time(mut vmm: UnixStream, left_at: Instant) {
    assert_eq!(vmm.read(&mut [0]).unwrap(), 0);
    assert!(left_at.elapsed() >= HELD, "{:?}", left_at.elapsed());
}

fn owned(packets: &[(u8, &str)]) -> Vec<(u8, String)> {
    packets.iter().map(|&(what, name)| (what, name.to_owned())).collect()
}

#[test]
fn the_first_daemon_is_the_one_that_started_it() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("keeper.sock");
    let listener = listen(&path).unwrap();
    let own = std::process::id() as i32;
    let early = connect(&path);
    assert!(accept(&listener, Some(own + 1)).is_none(), "another process of the same user");
    assert!(receive(&early).unwrap().is_none(), "closed, and nothing sent");
    let _right = connect(&path);
    assert!(accept(&listener, Some(own)).is_some());
    let _next = connect(&path);
    assert!(accept(&listener, None).is_some(), "the next daemon's number is not known");
}

#[test]
fn what_no_daemon_has_come_for_in_time_is_closed() {
    let keeper = Keeper::start();
    let daemon = keeper.client();
    let (vmm, vmci) = (put(&daemon, "a.vsock/s/sock"), put(&daemon, "a.vmci/s/sock"));
    for at_most in [Some(HELD), None] {
        send(&daemon, HOLD, &hold("b.vsock/s/", at_most), None).unwrap();
    }
    send(&daemon, HOLD, &hold("a.vsock/s/", Some(HELD)), None).unwrap();
    let other = put(&daemon, "b.vsock/s/sock");
    let left_at = Instant::now();
    drop(daemon);
    expect_closed_in_time(vmm, left_at);
    let rest = owned(&[(PUT, "a.vmci/s/sock"), (PUT, "b.vsock/s/sock"), (HOLD, "1 a.vsock/s/")]);
    assert_eq!(keeper.list(), rest, "and the next daemon is notified");
    assert!(is_open(&vmci) && is_open(&other));
    // Which asks again how long it is to be held.
    let daemon = keeper.client();
    send(&daemon, HOLD, &hold("a.vsock/s/", Some(HELD)), None).unwrap();
    assert_eq!(listed(&daemon), rest[..2]);
    let (vmm, left_at) = (put(&daemon, "a.vsock/s/sock"), Instant::now());
    drop(daemon);
    expect_closed_in_time(vmm, left_at);
}

#[test]
fn a_daemon_that_has_come_keeps_it_and_its_own_end_counts_next() {
    let keeper = Keeper::start();
    let daemon = keeper.client();
    let gone = put(&daemon, "a/s/sock");
    send(&daemon, HOLD, &hold("a/s/", Some(HELD)), None).unwrap();
    // A session's end is not the end of the time.
    send(&daemon, DROP_ALL, "a/s/", None).unwrap();
    let vmm = put(&daemon, "a/s/sock");
    let next = keeper.client();
    send(&next, LIST, "", None).unwrap();
    drop(daemon);
    assert_eq!(answer(&next), owned(&[(PUT, "a/s/sock")]));
    std::thread::sleep(2 * HELD);
    assert!(is_open(&vmm) && !is_open(&gone));
    send(&next, DROP, "none", None).unwrap();
    let left_at = Instant::now();
    drop(next);
    expect_closed_in_time(vmm, left_at);
}

#[test]
fn processes_that_only_see_what_is_there_prolong_nothing() {
    let keeper = Keeper::start();
    let daemon = keeper.client();
    let vmm = put(&daemon, "a/s/sock");
    send(&daemon, HOLD, &hold("a/s/", Some(HELD)), None).unwrap();
    drop(daemon);
    let deadline = Instant::now() + LONGEST;
    while is_open(&vmm) {
        assert!(Instant::now() < deadline);
        crate::find(&keeper.path, "other").unwrap();
        std::thread::sleep(HELD / 50);
    }
}

#[test]
fn letters_of_a_later_version_are_ignored() {
    let keeper = Keeper::start();
    let daemon = keeper.client();
    let vmm = put(&daemon, "a/s/sock");
    send(&daemon, b'Z', "1 a/s/", None).unwrap();
    for wrong in ["", "1", "x a/s/", "-1 a/s/", "1.5 a/s/"] {
        send(&daemon, HOLD, wrong, None).unwrap();
    }
    assert_eq!(listed(&daemon), owned(&[(PUT, "a/s/sock")]));
    drop(daemon);
    std::thread::sleep(2 * HELD);
    assert!(is_open(&vmm));
}
