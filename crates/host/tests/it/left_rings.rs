//! Streams between programs and other hosts whose ring the daemon leaves to the helper, with a simulated one:
//! bytes, ends, and what hostile helpers and programs can do.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use vmlane_host::sockets::{Bounds, Routes};
use vmlane_mem::{MapRequest, MemoryMap, Pages};
use vmlane_sock::{Listener, Stream};
use vmlane_testkit::wait_until;
use vmlane_wire::host::{
    ANNOUNCED_CLOSE, ANNOUNCED_SEND, FLAG_RING as WITH_RING, INDEX_PAGE, Op as HostOp, RING, Request, SIGNAL,
    SWITCH, ended, layout, word,
};
use vmlane_wire::route::{FLAG_RING, Op};
use zerocopy::IntoBytes;

use crate::host_world::helper::{FAR, Helper, OWN, answer, routes, world};
use crate::host_world::{SECOND, World};

/// The helper's half: the daemon's of the ring, a copy of its end of the program's signal line, and its own
/// line.
struct Half {
    line: UnixStream,
    signals: Option<UnixStream>,
    there: Pages,
    back: Pages,
    program: Pages,
    own: Pages,
}

impl Half {
    fn of(line: UnixStream) -> Half {
        let (reply, files) = answer(&line).unwrap();
        assert_eq!(reply.error.get(), 0);
        let [memory, signals] = <[OwnedFd; 2]>::try_from(files).unwrap();
        let request = MapRequest { guest: 0, len: layout::file(RING), offset: 0, fd: memory, writable: true };
        let map = MemoryMap::default().map(request).unwrap();
        let pages = |at: u64, len: u64| map.pages(std::iter::once(at), len.trailing_zeros()).unwrap();
        line.set_nonblocking(true).unwrap();
        Half {
            line,
            signals: Some(signals.into()),
            there: pages(layout::PROCESS_DATA, RING),
            back: pages(layout::daemon_data(RING), RING),
            program: pages(layout::process_page(RING), INDEX_PAGE),
            own: pages(layout::daemon_page(RING), INDEX_PAGE),
        }
    }

    fn signal(&self) {
        let mut to = self.signals.as_ref().unwrap_or(&self.line);
        // If the program has gone, there is none to notify.
        let _ = to.write_all(&[SIGNAL]);
    }

    /// The program writes so much: what it is.
    fn read(&self, len: usize) -> Vec<u8> {
        let head = self.own.load_u64(word::HEAD);
        wait_until("bytes", || (self.program.load_u64(word::TAIL) - head) as usize >= len);
        let mut bytes = vec![0; len];
        self.there.read(head as usize, &mut bytes);
        self.own.store_u64(word::HEAD, head + len as u64);
        bytes
    }

    fn write(&self, bytes: &[u8]) {
        let tail = self.own.load_u64(word::TAIL);
        self.back.write(tail as usize, bytes);
        self.own.store_u64(word::TAIL, tail + bytes.len() as u64);
        self.signal();
    }

    fn ends(&self, bits: u64) {
        self.own.store_u64(word::ENDED, self.own.load_u64(word::ENDED) | bits);
        self.signal();
    }

    /// The program announces this, or the daemon in its place.
    fn expect_ends(&self, flags: u64) {
        wait_until("the announced ends", || self.program.load_u64(word::ANNOUNCED) & flags == flags);
    }

    /// The daemon has hung up.
    fn expect_over(&self) {
        let mut bytes = [0; 64];
        wait_until("the line's end", || matches!((&self.line).read(&mut bytes), Ok(0)));
    }

    /// The peer is done, and all that it sent is in the ring.
    fn close(self) {
        self.ends(ended::DETACHED);
    }
}

/// A program that has connected to another host, and the helper's half.
fn connected(world: &World, helper: &Helper<'_>) -> (Stream, Half) {
    std::thread::scope(|scope| {
        let near = scope.spawn(|| Stream::connect_by(&world.host(), FAR, 9, 30 * SECOND).unwrap());
        let (call, op, _) = helper.receive();
        assert_eq!(op, Op::Call);
        let half = Half::of(helper.accept_shared(call.number.get()));
        (near.join().unwrap(), half)
    })
}

fn expect_reset(mut near: &Stream) {
    let error = near.read(&mut [0; 64]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

fn nothing_is_left(world: &World, helper: &Helper<'_>) {
    wait_until("no stream is left", || helper.view().streams == 0);
    world.assert_clean();
}

#[test]
fn program_and_helper_share_a_ring_and_no_worker_moves_its_bytes() {
    let world = world(Bounds::default());
    let helper = Helper::with(&world, FLAG_RING);
    let (mut near, half) = connected(&world, &helper);
    near.write_all(b"there").unwrap();
    assert_eq!(half.read(5), b"there");
    half.write(b"back");
    let mut text = [0; 4];
    near.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"back");
    near.shutdown(Shutdown::Write).unwrap();
    half.expect_ends(ANNOUNCED_SEND);
    half.write(b"the last words");
    half.close();
    let mut text = Vec::new();
    near.read_to_end(&mut text).unwrap();
    assert_eq!(text, b"the last words");
    assert_eq!(near.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    drop(near);
    // The other way round; the program goes first, and what it has written counts.
    let program = Listener::bind_by(&world.host(), 700).unwrap();
    let line = helper.open_shared((FAR, 5), (OWN, 700), "beta\ntest");
    let (mut far, from) = program.accept().unwrap();
    let half = Half::of(line);
    assert_eq!((from.cid, from.port), (FAR, 5));
    far.write_all(b"and gone").unwrap();
    drop(far);
    half.expect_ends(ANNOUNCED_CLOSE);
    assert_eq!(half.read(8), b"and gone");
    assert_eq!(helper.view().streams, 1, "the helper's part goes on");
    half.close();
    nothing_is_left(&world, &helper);
    assert_eq!((helper.count("established"), world.stats.bytes.get()), (2, 0));
}

#[test]
fn a_helper_that_is_gone_resets_its_programs() {
    let world = world(Bounds::default());
    let helper = Helper::with(&world, FLAG_RING);
    let (near, half) = connected(&world, &helper);
    half.write(b"before");
    drop(half);
    let mut text = [0; 6];
    (&near).read_exact(&mut text).unwrap();
    expect_reset(&near);
    // One that sleeps meanwhile.
    let (near, half) = connected(&world, &helper);
    near.set_spin(Duration::ZERO);
    std::thread::scope(|scope| {
        let asleep = scope.spawn(|| expect_reset(&near));
        wait_until("it sleeps", || half.program.load_u64(word::WANTS_BYTES) != 0);
        drop(half);
        asleep.join().unwrap();
    });
    nothing_is_left(&world, &helper);
}

#[test]
fn a_reload_that_forbids_a_peer_ends_its_streams_whatever_the_helper_does() {
    let world = world(Bounds::default());
    let helper = Helper::with(&world, FLAG_RING);
    let (near, half) = connected(&world, &helper);
    near.set_spin(Duration::ZERO);
    let none = Routes { peers: Vec::new(), ..routes() };
    world.sockets().set_routes(&world.dir.path().join("route.sock"), Some(none)).unwrap();
    half.expect_over();
    // A hostile helper denies it; but the program's line has ended.
    half.own.store_u64(word::ENDED, 0);
    expect_reset(&near);
    drop((near, half));
    world.assert_clean();
}

#[test]
fn a_daemon_that_stops_ends_its_streams() {
    let mut world = world(Bounds::default());
    let (near, half) = connected(&world, &Helper::with(&world, FLAG_RING));
    near.set_spin(Duration::ZERO);
    drop(world.sockets.take());
    half.expect_over();
    drop(half);
    let mut byte = [0];
    assert!(matches!((&near).read(&mut byte), Ok(0) | Err(_)));
}

#[test]
fn hostile_indices_of_a_helper_break_its_own_stream_only() {
    let world = world(Bounds::default());
    let helper = Helper::with(&world, FLAG_RING);
    let (mut other, kept) = connected(&world, &helper);
    for (index, reads) in [(word::TAIL, true), (word::HEAD, false)] {
        for value in [RING, u64::MAX, 1 << 63] {
            let (mut near, half) = connected(&world, &helper);
            half.own.store_u64(index, value);
            half.signal();
            let broken = if reads { near.read(&mut [0]) } else { near.write(b"x") };
            assert_eq!(broken.unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }
    other.write_all(b"still there").unwrap();
    assert_eq!(kept.read(11), b"still there");
    drop((other, kept));
    nothing_is_left(&world, &helper);
}

#[test]
fn a_helper_that_floods_its_line_or_switches_unasked_hurts_its_own_stream_only() {
    let world = world(Bounds::default());
    let helper = Helper::with(&world, FLAG_RING);
    let (mut other, kept) = connected(&world, &helper);
    let (near, half) = connected(&world, &helper);
    let _ = (&half.line).write(&[SWITCH; 4096]);
    while (&half.line).write(&[0xff; 4096]).is_ok_and(|len| len > 0) {}
    drop((near, half));
    other.write_all(b"still there").unwrap();
    assert_eq!(kept.read(11), b"still there");
    drop((other, kept));
    nothing_is_left(&world, &helper);
}

#[test]
fn an_accept_that_cannot_take_the_ring_is_refused() {
    let world = world(Bounds::default());
    let helper = Helper::with(&world, FLAG_RING);
    std::thread::scope(|scope| {
        let near = scope.spawn(|| Stream::connect_by(&world.host(), FAR, 9, 30 * SECOND).map(|_| ()));
        let (call, _, _) = helper.receive();
        let line = Helper::ask(&world, Op::Accept, call.number.get(), Default::default(), "");
        assert!(answer(&line).is_none_or(|(reply, files)| reply.error.get() != 0 && files.is_empty()));
        assert_eq!(near.join().unwrap().unwrap_err().raw_os_error(), Some(104));
    });
    nothing_is_left(&world, &helper);
}

/// A program that does what the library does, by hand: its socket.
fn by_hand(world: &World, helper: &Helper<'_>) -> (UnixStream, Half) {
    let mut near = UnixStream::connect(world.dir.path().join("host.sock")).unwrap();
    near.write_all(Request::new(HostOp::Connect, FAR, 9, 30_000, WITH_RING).as_bytes()).unwrap();
    let (call, _, _) = helper.receive();
    let half = Half::of(helper.accept_shared(call.number.get()));
    assert_eq!(answer(&near).unwrap().1.len(), 1);
    (near, half)
}

fn switch(near: &mut UnixStream) {
    let mut byte = [SIGNAL];
    while byte != [SWITCH] {
        near.read_exact(&mut byte).unwrap();
    }
}

#[test]
fn a_program_that_leaves_its_ring_to_the_daemon_goes_on_through_its_socket() {
    let world = world(Bounds::default());
    let helper = Helper::with(&world, FLAG_RING);
    let (mut near, mut half) = by_hand(&world, &helper);
    half.write(b"in the ring ");
    near.write_all(&[SIGNAL, SWITCH]).unwrap();
    // The helper reads it, and announces that.
    let mut signals = half.signals.take().unwrap();
    let mut bytes = [0; 2];
    signals.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [SIGNAL, SWITCH]);
    drop(signals);
    (&half.line).write_all(&[SWITCH]).unwrap();
    switch(&mut near);
    half.write(b"and behind it");
    let mut text = [0; 25];
    near.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"in the ring and behind it");
    near.write_all(b"plain").unwrap();
    assert_eq!(half.read(5), b"plain");
    near.shutdown(Shutdown::Write).unwrap();
    half.expect_ends(ANNOUNCED_SEND);
    drop(near);
    half.expect_ends(ANNOUNCED_CLOSE);
    half.close();
    // One whose helper has gone meanwhile: the daemon reads its signals.
    let (mut near, half) = by_hand(&world, &helper);
    half.write(b"the rest");
    half.close();
    wait_until("the helper's part is over", || helper.view().streams == 0);
    near.write_all(&[SWITCH]).unwrap();
    switch(&mut near);
    let mut text = Vec::new();
    near.read_to_end(&mut text).unwrap();
    assert_eq!(text, b"the rest");
    drop(near);
    nothing_is_left(&world, &helper);
}
