//! A helper and peers that break rules: each loses its own connection, is counted, and a good peer notices
//! nothing. The daemon is a stand-in that takes the helper's word, and answers wrongly where a test has it do
//! so.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use vmlane_route::frame::{Frame, VERSION, data_header};
use vmlane_route::{Bounds, Files, Helper, PeerSettings, Settings, authority};
use vmlane_testkit::eventually;
use vmlane_wire::host::Reply;
use vmlane_wire::route::{Op, Record, Refusal};
use zerocopy::IntoBytes;

type Peer = StreamOwned<ClientConnection, TcpStream>;

struct Bed {
    directory: tempfile::TempDir,
    address: SocketAddr,
    control: UnixStream,
    thread: Option<JoinHandle<()>>,
    /// Lines that the helper has written to its log.
    lines: Arc<AtomicUsize>,
    line: OwnedFd,
    _asked: UnixStream,
    /// Where the helper asks for rings.
    listener: UnixListener,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.control.write_all(&[Helper::STOP]);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))), "the helper has not panicked");
    }
}

/// A log that counts its lines.
struct CountedLines(Arc<AtomicUsize>);

impl tracing::Subscriber for CountedLines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

impl Bed {
    /// A helper called "zeta", to which others connect: alpha, beta.
    fn new(handshake: Duration) -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let own = authority::authority(authority::days(30)).unwrap();
        write(&at("authority.pem"), &own.certificate);
        for name in ["zeta", "alpha", "beta", "stranger"] {
            let made = authority::certificate(&own.key, name, authority::days(30)).unwrap();
            write(&at(&format!("{name}.pem")), &made.certificate);
            write(&at(&format!("{name}.key")), &made.key);
        }
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let listener = UnixListener::bind(at("route.sock")).unwrap();
        let settings = Settings {
            name: "zeta".into(),
            socket: at("route.sock"),
            listen: Some(address),
            files: Files {
                certificate: at("zeta.pem"),
                key: at("zeta.key"),
                authority: at("authority.pem"),
                crl: None,
            },
            dead: Duration::from_secs(30),
            bounds: Bounds { handshake, ..Bounds::default() },
            peers: ["alpha", "beta"]
                .map(|name| PeerSettings { name: name.into(), address: None, fingerprints: Vec::new() })
                .into(),
        };
        let (control, helpers_end) = UnixStream::pair().unwrap();
        let again = settings.clone();
        let load = Box::new(move || Ok(again.clone()));
        let helper = Helper::start(settings, load, helpers_end.into()).unwrap();
        let lines = Arc::new(AtomicUsize::new(0));
        let log = CountedLines(lines.clone());
        let thread = std::thread::spawn(move || {
            vmlane_testkit::with_subscriber(log, || helper.run().unwrap());
        });
        let (asked, _) = listener.accept().unwrap();
        let line = greet(&asked);
        Bed { directory, address, control, thread: Some(thread), lines, line, _asked: asked, listener }
    }

    /// Connects as `name`, as far as TLS goes.
    fn connect(&self, name: &str) -> Peer {
        let at = |name: &str| self.directory.path().join(name);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(at("authority.pem")).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_file(at(&format!("{name}.pem"))).unwrap()];
        let key = PrivateKeyDer::from_pem_file(at(&format!("{name}.key"))).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        let tls = ClientConnection::new(Arc::new(config), "zeta".try_into().unwrap()).unwrap();
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
        StreamOwned::new(tls, socket)
    }

    /// A peer that is up.
    fn up(&self, name: &str) -> Peer {
        let mut peer = self.connect(name);
        send(&mut peer, &Frame::Hello { version: VERSION, streams: 100 });
        let mut hello = [0; 20];
        peer.read_exact(&mut hello).unwrap();
        assert_eq!(hello[0], 1);
        peer
    }

    /// The status of a peer, once it is as wanted.
    fn status(&self, name: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut message = vec![0; 16 << 10];
        eventually(&format!("the status of {name:?}"), || {
            loop {
                let (len, _) = rustix::net::recv(&self.line, &mut message[..], RecvFlags::DONTWAIT).ok()?;
                let (_, op, text) = Record::parse(&message[..len]).unwrap();
                assert_eq!(op, Op::Status);
                if text.lines().next().unwrap_or_default() == name && wanted(text) {
                    return Some(text.to_owned());
                }
            }
        })
    }
}

/// The stand-in's answer to the helper's first record: a line.
fn greet(asked: &UnixStream) -> OwnedFd {
    let mut record = [0; 40];
    let mut asked = asked;
    asked.read_exact(&mut record).unwrap();
    assert_eq!(Record::parse(&record).unwrap().1, Op::Line);
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [theirs.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let reply = Reply::new(0, 0, 0);
    let parts = [std::io::IoSlice::new(reply.as_bytes())];
    rustix::net::sendmsg(asked, &parts, &mut control, SendFlags::empty()).unwrap();
    ours
}

fn send(peer: &mut Peer, frame: &Frame) {
    let mut bytes = Vec::new();
    frame.write(&mut bytes);
    peer.write_all(&bytes).unwrap();
    peer.flush().unwrap();
}

fn count(status: &str, counter: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(counter)?.strip_prefix(' '));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The helper has closed the connection.
fn expect_closed(peer: &mut Peer) {
    let mut rest = [0; 4096];
    while let Ok(1..) = peer.read(&mut rest) {}
}

/// It answers.
fn expect_well(peer: &mut Peer, mark: u64) {
    send(peer, &Frame::Ping(mark));
    let mut frame = [0; 20];
    loop {
        peer.read_exact(&mut frame).unwrap();
        match frame[0] {
            // Its own pings.
            10 => continue,
            11 => break,
            other => panic!("a frame of kind {other}"),
        }
    }
    assert_eq!(frame[12..], mark.to_le_bytes());
}

/// Why the peer is refused this stream.
fn refused(peer: &mut Peer, stream: u32) -> u8 {
    loop {
        let mut header = [0; 12];
        peer.read_exact(&mut header).unwrap();
        let mut body = vec![0; usize::from(header[8])];
        peer.read_exact(&mut body).unwrap();
        match header[0] {
            10 => continue,
            4 => assert_eq!(header[4..8], stream.to_le_bytes()),
            other => panic!("a frame of kind {other}"),
        }
        return body[0];
    }
}

#[test]
fn frames_that_no_peer_may_send_end_their_connection_and_no_other() {
    let bed = Bed::new(Duration::from_secs(20));
    let mut good = bed.up("alpha");
    let ends = [(2000, 1), (1000, 2)];
    let groups = String::from("default");
    let open = |stream| Frame::Open { stream, ends, flags: 0, groups: groups.clone() };
    let raw = |kind: u8, stream: u32, len: u32| {
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend_from_slice(&stream.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes
    };
    let written = |frame: Frame| {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        bytes
    };
    let wrong = [
        ("oversized data", data_header(1, (64 << 10) + 1).to_vec()),
        ("an oversized frame", raw(2, 1, 1 << 20)),
        ("an unknown kind", raw(77, 1, 0)),
        ("data of a stream that never was", data_header(7, 10).to_vec()),
        ("credit of a stream that never was", written(Frame::Credit { stream: 4, bytes: 1 })),
        ("a second HELLO", written(Frame::Hello { version: VERSION, streams: 1 })),
        ("a number of the other end's", written(open(2))),
        ("data without credit", [written(open(1)), data_header(1, 10).to_vec(), vec![0; 10]].concat()),
    ];
    let kinds = wrong.len() as u64;
    for (mark, (what, bytes)) in (1..).zip(wrong) {
        let mut bad = bed.up("beta");
        bad.write_all(&bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        expect_closed(&mut bad);
        expect_well(&mut good, mark);
    }
    let status = bed.status("beta", |status| count(status, "violations") >= kinds);
    assert_eq!(count(&status, "links"), kinds);
    let mut other = bed.connect("beta");
    send(&mut other, &Frame::Hello { version: 999, streams: 1 });
    expect_closed(&mut other);
    bed.status("beta", |status| {
        status.contains("protocol version 999") || count(status, "violations") > kinds
    });
    expect_well(&mut good, 99);
}

#[test]
fn whatever_the_daemon_answers_the_peer_is_notified_and_the_helper_stays() {
    let bed = Bed::new(Duration::from_secs(20));
    let mut peer = bed.up("alpha");
    let reply = |error| Reply::new(error, 0, 0).as_bytes().to_vec();
    let answers = [
        ("it is gone", Vec::new(), Refusal::Refused),
        ("half an answer", vec![0; 7], Refusal::Refused),
        ("no ring", reply(0), Refusal::Refused),
        ("less than an errno", reply(-5), Refusal::Refused),
        ("more than an errno", reply(70_000), Refusal::Refused),
        ("an errno", reply(Errno::ACCESS.raw_os_error()), Refusal::Forbidden),
    ];
    for (stream, (what, answer, why)) in (1..).step_by(2).zip(answers) {
        let open = Frame::Open { stream, ends: [(2000, 1), (1000, 2)], flags: 0, groups: "default".into() };
        send(&mut peer, &open);
        let (mut asked, _) = bed.listener.accept().unwrap();
        let mut message = [0; 4096];
        let len = asked.read(&mut message).unwrap();
        assert_eq!(Record::parse(&message[..len]).unwrap().1, Op::Open, "{what}");
        asked.write_all(&answer).unwrap();
        drop(asked);
        assert_eq!(refused(&mut peer, stream), why as u8, "{what}");
    }
    expect_well(&mut peer, 1);
}

#[test]
fn slow_handshakes_end_and_leave_places_for_others() {
    let bed = Bed::new(Duration::from_secs(2));
    let mut good = bed.up("alpha");
    // It is alpha's address, too, which has four places of its own. Of the others, one address gets as many
    // as it leaves: half of 64.
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(bed.address).unwrap()).collect();
    let status = bed.status("", |status| count(status, "handshakes_late") >= 32);
    assert!(count(&status, "over_handshakes") >= 64, "{status}");
    expect_well(&mut good, 1);
    for mut one in silent {
        one.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
        assert!(matches!(one.read(&mut [0]), Ok(0) | Err(_)));
    }
    // One that proves its name and then sends nothing is as slow.
    let mut mute = bed.connect("beta");
    mute.flush().unwrap();
    expect_closed(&mut mute);
    let mut beta = bed.up("beta");
    expect_well(&mut beta, 2);
    expect_well(&mut good, 3);
}

/// A connection from another address of this host's.
fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

#[test]
fn connections_of_a_foreign_address_leave_places_for_hosts_of_others() {
    let bed = Bed::new(Duration::from_secs(20));
    let mut good = bed.up("alpha");
    let silent: Vec<TcpStream> = (0..200).map(|_| connect_from([127, 0, 0, 9], bed.address)).collect();
    let garbage = connect_from([127, 0, 0, 8], bed.address);
    let mut sender = &garbage;
    let _ = sender.write_all(&[0x16, 3, 1, 0xff, 0xff, 1, 2, 3]);
    bed.status("", |status| {
        count(status, "over_handshakes") >= 168 && count(status, "handshakes_failed") >= 1
    });
    // While all of that address's places are taken, beta has one, and alpha is served.
    let mut beta = bed.up("beta");
    expect_well(&mut beta, 1);
    expect_well(&mut good, 2);
    drop(silent);
    // Their places are free again.
    let mut again = bed.up("beta");
    expect_well(&mut again, 3);
}

#[test]
fn a_peers_address_has_places_while_strangers_of_many_addresses_take_all_others() {
    let bed = Bed::new(Duration::from_secs(20));
    // Where alpha connects from is known from then on.
    let mut good = bed.up("alpha");
    expect_well(&mut good, 99);
    let silent: Vec<TcpStream> = (1..=70)
        .flat_map(|host| std::iter::repeat_n([127, 0, 1, host], 3))
        .map(|source| connect_from(source, bed.address))
        .collect();
    bed.status("", |status| count(status, "over_handshakes") >= 3 * 70 - 64);
    for mark in 0..10 {
        good = bed.up("alpha");
        expect_well(&mut good, mark);
    }
    drop((good, silent));
}

#[test]
fn hellos_that_are_sent_again_and_again_are_answered_a_few_times_a_second() {
    let bed = Bed::new(Duration::from_secs(20));
    let mut good = bed.up("alpha");
    let mut hello = Vec::new();
    bed.connect("stranger").conn.write_tls(&mut hello).unwrap();
    let (begun, mut answered, mut sent) = (Instant::now(), 0, 0);
    while begun.elapsed() < Duration::from_secs(2) {
        let mut socket = connect_from([127, 0, 0, 9], bed.address);
        let _ = socket.write_all(&hello);
        sent += 1;
        answered += usize::from(matches!(socket.read(&mut [0; 8]), Ok(1..)));
    }
    let seconds = begun.elapsed().as_secs_f64();
    // The places that an address may have, each for a second.
    let most = 32.0 * (seconds + 1.0);
    assert!(answered as f64 <= most && sent > 2 * answered, "{answered} of {sent} in {seconds} s");
    expect_well(&mut good, 1);
}

#[test]
fn what_strangers_do_writes_a_line_a_second() {
    let bed = Bed::new(Duration::from_secs(20));
    let mut good = bed.up("alpha");
    expect_well(&mut good, 0);
    let (begun, before) = (Instant::now(), bed.lines.load(Ordering::SeqCst));
    for host in 1..=60 {
        let mut socket = connect_from([127, 0, 1, host], bed.address);
        let _ = socket.write_all(&[0x16, 3, 1, 0xff, 0xff, 1, 2, 3]);
        let _ = socket.read(&mut [0; 8]);
    }
    bed.status("", |status| count(status, "handshakes_failed") >= 60);
    let lines = bed.lines.load(Ordering::SeqCst) - before;
    assert!(lines as f64 <= 1.0 + begun.elapsed().as_secs_f64(), "{lines} lines in {:?}", begun.elapsed());
    expect_well(&mut good, 1);
}

#[test]
fn a_name_that_is_no_peers_is_refused_and_counted() {
    let bed = Bed::new(Duration::from_secs(20));
    let mut stranger = bed.connect("stranger");
    let _ = stranger.write_all(&[0]);
    expect_closed(&mut stranger);
    let status = bed.status("", |status| count(status, "unknown_names") == 1);
    assert!(status.contains("is no [[peer]]'s"), "{status}");
    // Another connection of the same peer takes the place of the first: it was started again.
    let mut first = bed.up("alpha");
    let mut second = bed.up("alpha");
    expect_closed(&mut first);
    expect_well(&mut second, 1);
}
