//! Two hosts: two daemons, two helpers, programs of each host at both ends. What passes, what is refused,
//! what a killed helper or daemon does to streams between them.

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vmlane_sock::{Listener, Stream};
use vmlane_testkit::{eventually, run, wait_until};

use crate::common::openmetrics;
use crate::common::two_hosts::{ALPHA, BETA, LONG, Node, World, certificate, certificates, plans};
use crate::common::vmlane;

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(next).collect()
}

fn read_all(mut end: &Stream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    end.read_to_end(&mut all).map(|_| all)
}

/// The end gets a reset.
fn is_reset(mut end: &Stream, who: &str) {
    let mut byte = [0];
    let error = loop {
        match end.read(&mut byte) {
            Ok(0) => panic!("{who}: an end in place of a reset"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{who}: {error}");
}

#[test]
fn bytes_pass_whole_both_ways_with_true_addresses_and_halves() {
    let world = World::new();
    let listener = Listener::bind_by(&world.beta.host(), 5000).unwrap();
    let (there, back) = (bytes(5_000_000, 3), bytes(3_000_000, 4));
    let (expected, answer) = (there.clone(), back.clone());
    let server = thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        assert_eq!(peer.cid, ALPHA, "the true source");
        // The client's half is over before this one has begun.
        assert!(read_all(&stream).unwrap() == expected, "whole");
        stream.write_all(&answer).unwrap();
    });
    let mut client = Stream::connect_by(&world.alpha.host(), BETA, 5000, LONG).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client.set_write_timeout(Some(LONG)).unwrap();
    client.write_all(&there).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&client).unwrap() == back, "whole");
    server.join().unwrap();
    drop(client);
    let connect = |cid, port| {
        Stream::connect_by(&world.alpha.host(), cid, port, LONG).err().and_then(|error| error.raw_os_error())
    };
    assert_eq!(connect(BETA, 5001), Some(104), "no program listens: ECONNRESET");
    assert_eq!(connect(2500, 5000), Some(19), "no VM there: ENODEV");
    assert_eq!(connect(5000, 5000), Some(19), "no host there: ENODEV");
    world.nothing_is_left();
    assert_eq!(world.beta.counts("alpha", "established"), 1);
    assert!(world.beta.counts("alpha", "opens_refused") >= 2);
    let sent = eventually("the helper has reported what it sent", || {
        Some(world.alpha.counts("beta", "bytes_sent")).filter(|&sent| sent >= 5_000_000)
    });
    assert!(sent < 6_000_000, "{sent}");
    let shown = world.alpha.daemon.must(&["route", "status"]);
    assert!(shown.contains("beta") && shown.contains("up"), "{shown}");
    let families = openmetrics::parse(&world.alpha.daemon.must(&["metrics"])).unwrap();
    let of_peers = families.iter().filter(|(name, _)| name.starts_with("vmlane_peer_"));
    let empty: Vec<_> =
        of_peers.filter(|(_, family)| family.samples.is_empty()).map(|(name, _)| name).collect();
    assert!(empty.is_empty(), "neither daemon nor helper reports this: {empty:?}");
    assert_eq!(openmetrics::value(&families, "vmlane_peer_up", &[("peer", "beta")]), Some(1.0));
}

#[test]
fn a_program_that_reads_no_more_ends_its_writer_on_the_other_host_and_still_writes() {
    let world = World::new();
    let listener = Listener::bind_by(&world.beta.host(), 5000).unwrap();
    let mut client = Stream::connect_by(&world.alpha.host(), BETA, 5000, LONG).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
    }
    server.shutdown(Shutdown::Read).unwrap();
    let error = std::iter::repeat_with(|| client.write_all(&[7; 4096])).find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    server.write_all(b"still").unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client).unwrap(), b"still");
}

#[test]
fn a_slow_reader_holds_up_its_own_writer_and_no_other() {
    let world = World::new();
    let (mut slow, unread) = world.pair(6000);
    slow.set_nonblocking(true).unwrap();
    let piece = bytes(64 << 10, 5);
    let mut sent = 0usize;
    // Rings of 256 KiB at four places, and what is on its way: far less than 8 MiB.
    let mut quiet = 0;
    while quiet < 50 {
        match slow.write(&piece) {
            Ok(len) => (sent, quiet) = (sent + len, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                quiet += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 8 << 20, "nothing holds the writer back");
    }
    let (mut client, mut server) = world.pair(6001);
    let data = bytes(8 << 20, 6);
    let expected = data.clone();
    let reader = thread::spawn(move || {
        let mut all = vec![0; expected.len()];
        server.read_exact(&mut all).unwrap();
        assert!(all == expected);
    });
    client.write_all(&data).unwrap();
    reader.join().unwrap();
    // What was held up is not lost.
    drop(slow);
    assert_eq!(read_all(&unread).unwrap().len(), sent);
    drop((unread, client));
    world.nothing_is_left();
}

#[test]
fn a_killed_helper_or_daemon_resets_streams_between_hosts_and_nothing_stays() {
    let mut world = World::new();
    let (client, server) = world.pair(7000);
    world.beta.helper = None;
    is_reset(&server, "beta's, whose helper was killed");
    is_reset(&client, "alpha's");
    drop((client, server));
    wait_until("alpha knows", || !world.alpha.is_up("beta"));
    let refused = Stream::connect_by(&world.alpha.host(), BETA, 7000, LONG).map(|_| ()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(19), "the other host is not there: ENODEV");
    world.beta.start_helper();
    world.connected();

    let (client, server) = world.pair(7001);
    world.beta.daemon.kill();
    is_reset(&client, "alpha's, where beta's daemon was killed");
    is_reset(&server, "beta's");
    drop((client, server));
    world.beta.daemon.start();
    world.connected();
    let (client, server) = world.pair(7002);
    drop(server);
    assert!(read_all(&client).unwrap().is_empty());
    drop(client);
    world.nothing_is_left();
}

/// The cases of `crates/preload/tests/streams.c`, which polls, forks, duplicates and passes on its streams:
/// to another host.
#[test]
fn an_unmodified_program_finds_what_it_expects_of_streams_to_another_host() {
    let world = World::new();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("streams");
    let source = format!("{}/../preload/tests/streams.c", env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc").args(["-O2", &source, "-lpthread", "-o"]).arg(&program).status().unwrap();
    assert!(built.success());
    let listener = Listener::bind_by(&world.beta.host(), 6200).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    let accepting = thread::spawn(move || {
        let mut echoes = Vec::new();
        while let Ok((stream, _)) = listener.accept()
            && !ended.load(Ordering::SeqCst)
        {
            echoes.push(thread::spawn(move || echo(&stream)));
        }
        echoes.into_iter().for_each(|echo| echo.join().unwrap());
    });
    let mut command = world.alpha.daemon.command(&["run"]);
    command.arg("--").arg(&program).args([&BETA.to_string(), "6200"]);
    let ran = run(command);
    over.store(true, Ordering::SeqCst);
    drop(Stream::connect_by(&world.alpha.host(), BETA, 6200, LONG).unwrap());
    accepting.join().unwrap();
    assert_eq!(ran.good(), "done\n");
    world.nothing_is_left();
}

/// Sends back what comes, to the end.
fn echo(mut stream: &Stream) {
    let mut chunk = vec![0; 100_000];
    while let Ok(len @ 1..) = stream.read(&mut chunk) {
        if stream.write_all(&chunk[..len]).is_err() {
            return;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

#[test]
fn whatever_is_killed_at_the_clients_host_both_ends_see_a_reset() {
    let mut world = World::new();
    for killed in ["the helper", "the daemon"] {
        let (mut client, server) = world.pair(7200);
        client.write_all(&bytes(100_000, 8)).unwrap();
        match killed {
            "the helper" => world.alpha.helper = None,
            _ => world.alpha.daemon.kill(),
        }
        is_reset(&client, killed);
        is_reset(&server, killed);
        drop((client, server));
        match killed {
            "the helper" => world.alpha.start_helper(),
            _ => world.alpha.daemon.start(),
        }
        world.connected();
        world.nothing_is_left();
    }
}

#[test]
fn a_reload_that_forbids_ends_streams_that_are_open() {
    let world = World::new();
    for (node, peer) in [(&world.alpha, "beta"), (&world.beta, "alpha")] {
        let (mut client, server) = world.pair(7300);
        client.write_all(b"still allowed").unwrap();
        (&server).read_exact(&mut [0; 13]).unwrap();
        node.reconfigure("groups = [\"default\"]", "groups = [\"tenant\"]");
        is_reset(&client, peer);
        is_reset(&server, peer);
        node.reconfigure("groups = [\"tenant\"]", "groups = [\"default\"]");
        drop((client, server));
        world.connected();
        world.nothing_is_left();
    }
}

#[test]
fn a_host_that_is_silent_is_dead_after_a_while() {
    let world = World::new();
    let (client, server) = world.pair(7100);
    world.beta.signal_helper(Signal::STOP);
    is_reset(&client, "alpha's");
    let problem = eventually("the operator is notified", || {
        world.alpha.peer("beta").filter(|peer| peer["state"] != "up" && peer["problem"] != "")
    });
    assert!(
        problem["problem"].as_str().unwrap().contains("nothing was received from it for 5 s"),
        "{problem}"
    );
    world.beta.signal_helper(Signal::CONT);
    is_reset(&server, "beta's");
    world.connected();
    drop((client, server));
    world.nothing_is_left();
}

#[test]
fn what_a_host_does_not_own_or_may_not_reach_is_refused_and_counted() {
    // Beta announces other CIDs than alpha has for it, and sends for one of them.
    let world = World::with(plans(|_, beta| (beta.cids, beta.cid) = ("3000-3999", 3000)));
    world.connected();
    let listener = Listener::bind_by(&world.alpha.host(), 8000).unwrap();
    let refused = Stream::connect_by(&world.beta.host(), ALPHA, 8000, LONG).map(|_| ()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(19));
    assert_eq!(world.alpha.counts("beta", "forged"), 1);
    assert!(
        world.alpha.daemon.log().contains("it asks for a stream from CID 3000"),
        "{}",
        world.alpha.daemon.log()
    );
    drop((listener, world));

    let world = World::with(plans(|_, beta| beta.groups = "tenant"));
    world.connected();
    let listener = Listener::bind_by(&world.alpha.host(), 8001).unwrap();
    let refused = Stream::connect_by(&world.beta.host(), ALPHA, 8001, LONG).map(|_| ()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(19));
    assert_eq!(world.alpha.counts("beta", "forbidden"), 1);
    assert_eq!(world.alpha.counts("beta", "established"), 0);
    drop(listener);
}

#[test]
fn certificates_are_renewed_while_streams_are_open_and_bad_ones_are_named() {
    let mut world = World::new();
    let (mut client, mut server) = world.pair(9000);
    certificates(world.pki.path(), &["alpha", "beta"], (-1, 60));
    for node in [&world.alpha, &world.beta] {
        node.signal_helper(Signal::HUP);
    }
    let read_again = "the configuration and the certificates were read again";
    wait_until("both have read them", || {
        [&world.alpha, &world.beta].iter().all(|node| node.daemon.log().contains(read_again))
    });
    client.write_all(b"still there").unwrap();
    let mut text = [0; 11];
    server.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"still there");
    drop((client, server));

    // An expired certificate: both ends report it.
    certificates(world.pki.path(), &["alpha"], (-9, -2));
    world.alpha.helper = None;
    world.alpha.start_helper();
    wait_until("alpha gets the error that its certificate has expired", || {
        is_logged(&world.alpha, "beta", "this host's certificate has expired")
    });
    wait_until("beta reports it to its operator", || is_logged(&world.beta, "", "has expired"));
    assert!(world.beta.counts("", "certificates_expired") >= 1);

    // One that is not valid yet: whose clock is wrong?
    certificates(world.pki.path(), &["alpha"], (2, 9));
    world.alpha.signal_helper(Signal::HUP);
    wait_until("beta reports clocks", || is_logged(&world.beta, "", "compare the clocks"));

    // One of a foreign authority.
    let foreign = tempfile::tempdir().unwrap();
    certificates(foreign.path(), &["alpha"], (-1, 30));
    for file in ["alpha.pem", "alpha.key"] {
        fs::copy(foreign.path().join(file), world.pki.path().join(file)).unwrap();
    }
    world.alpha.signal_helper(Signal::HUP);
    wait_until("beta reports a foreign authority", || is_logged(&world.beta, "", "foreign authority"));
    assert!(world.beta.counts("", "certificates_foreign") >= 1);
    assert!(!world.alpha.is_up("beta") && !world.beta.is_up("alpha"));

    // All is well again, without a restart.
    certificates(world.pki.path(), &["alpha"], (-1, 30));
    world.alpha.signal_helper(Signal::HUP);
    world.connected();
}

fn is_logged(node: &Node, peer: &str, words: &str) -> bool {
    node.peer(peer).is_some_and(|peer| peer["problem"].as_str().is_some_and(|text| text.contains(words)))
}

#[test]
fn a_host_whose_certificates_are_revoked_is_out_at_once_and_a_new_certificate_lets_it_in() {
    let world = World::new();
    let (client, server) = world.pair(9100);
    let pki = world.pki.path().display().to_string();
    let revoked = vmlane(&["route", "revoke", "alpha", "--directory", &pki]).good();
    assert!(revoked.contains("1 certificate"), "{revoked}");
    world.beta.reconfigure("dead_s = 5\n", &format!("dead_s = 5\ncrl = \"{pki}/crl.pem\"\n"));
    world.beta.signal_helper(Signal::HUP);
    is_reset(&server, "beta's");
    is_reset(&client, "alpha's");
    drop((client, server));
    wait_until("beta reports why", || is_logged(&world.beta, "alpha", "its certificate was revoked"));
    wait_until("alpha knows it", || is_logged(&world.alpha, "beta", "this host's certificate was revoked"));
    assert!(world.beta.counts("alpha", "certificates_revoked") >= 1);
    let made = vmlane(&["route", "certificate", "alpha", "--directory", &pki]).good();
    world.alpha.signal_helper(Signal::HUP);
    world.connected();
    let (client, server) = world.pair(9101);

    // Its certificate is pinned: to another one, and then to its own.
    let zeros = "00".repeat(32);
    let line = |fingerprint: &str| format!("groups = [\"default\"]\nfingerprints = [{fingerprint:?}]\n");
    world.beta.reconfigure("groups = [\"default\"]\n", &line(&zeros));
    world.beta.signal_helper(Signal::HUP);
    is_reset(&server, "beta's");
    is_reset(&client, "alpha's");
    drop((client, server));
    let own = made.split("fingerprint ").nth(1).unwrap().trim();
    wait_until("beta shows the fingerprint", || {
        is_logged(&world.beta, "alpha", own) && is_logged(&world.beta, "alpha", "has the fingerprint")
    });
    wait_until("it gets no other connection", || is_logged(&world.beta, "", own));
    world.beta.reconfigure(&line(&zeros), &line(own));
    world.beta.signal_helper(Signal::HUP);
    world.connected();

    // All certificates that it has had are revoked, those before the list among them.
    let revoked = vmlane(&["route", "revoke", "alpha", "--directory", &pki]).good();
    assert!(revoked.contains("1 certificate"), "{revoked}");
    world.beta.signal_helper(Signal::HUP);
    wait_until("beta reports why", || is_logged(&world.beta, "alpha", "its certificate was revoked"));
    vmlane(&["route", "revoke", "gamma", "--directory", &pki]).fails(1, &["names \"gamma\""]);
}

#[test]
fn streams_end_with_the_authority_that_they_began_with() {
    let world = World::new();
    let (client, server) = world.pair(9200);
    let new = tempfile::tempdir().unwrap();
    certificates(new.path(), &["alpha"], (-1, 30));
    fs::copy(new.path().join("authority.pem"), world.pki.path().join("authority.pem")).unwrap();
    world.beta.signal_helper(Signal::HUP);
    is_reset(&server, "beta's");
    is_reset(&client, "alpha's");
    wait_until("beta reports why", || is_logged(&world.beta, "alpha", "foreign authority"));
    assert!(world.beta.counts("alpha", "certificates_foreign") >= 1);
}

#[test]
fn streams_end_with_the_certificate_that_they_began_with() {
    let mut world = World::new();
    let key = fs::read_to_string(world.pki.path().join("authority.key")).unwrap();
    let now = std::time::SystemTime::now();
    let valid = (now - Duration::from_secs(3600), now + Duration::from_secs(15));
    certificate(world.pki.path(), &key, "alpha", valid);
    world.alpha.helper = None;
    world.alpha.start_helper();
    wait_until("alpha has connected with it", || world.beta.counts("alpha", "links") >= 2);
    world.connected();
    let (client, server) = world.pair(9300);
    is_reset(&server, "beta's");
    is_reset(&client, "alpha's");
    wait_until("beta reports why", || is_logged(&world.beta, "alpha", "its certificate has expired"));
}

#[test]
fn a_helper_that_is_out_of_descriptors_reports_it_once_a_second_and_serves_what_is_open() {
    let mut port = 0;
    let world = World::with(plans(|_, beta| port = beta.port));
    world.connected();
    let (mut client, mut server) = world.pair(9400);
    let helper = world.beta.helper.as_ref().unwrap().id();
    let open = fs::read_dir(format!("/proc/{helper}/fd")).unwrap();
    let open: HashSet<u64> = open.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse().ok()).collect();
    let free = (0..).find(|fd| !open.contains(fd));
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = |current| {
        let pid = rustix::process::Pid::from_raw(helper as i32);
        let limit = rustix::process::Rlimit { current, ..own };
        rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap()
    };
    limit(free);
    let strangers: Vec<_> = (0..20).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let lines = || -> Vec<String> {
        let log = world.beta.daemon.log();
        log.lines()
            .filter(|line| line.contains("another host's connection cannot be accepted"))
            .map(str::to_owned)
            .collect()
    };
    wait_until("it reports it twice", || lines().len() >= 2);
    // What was held back between the two: it tries again a few times a second.
    let second = lines()[1].clone();
    let held_back =
        second.split("held_back=").nth(1).and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    assert!(held_back.is_some_and(|lines| lines < 20), "{second}");
    client.write_all(b"still there").unwrap();
    let mut text = [0; 11];
    server.read_exact(&mut text).unwrap();
    limit(own.maximum);
    drop((strangers, client, server));
    let (client, server) = world.pair(9401);
    drop((client, server));
    world.nothing_is_left();
}

/// A long way: what one end sends comes to the other so much later. `most`: bytes that were on the way there
/// at once.
fn long_way(to: u16, delay: Duration, most: Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        while let Ok((from, _)) = listener.accept() {
            let Ok(to) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            one_way(from.try_clone().unwrap(), to.try_clone().unwrap(), delay, most.clone());
            one_way(to, from, delay, Arc::default());
        }
    });
    port
}

fn one_way(mut from: TcpStream, mut to: TcpStream, delay: Duration, most: Arc<AtomicUsize>) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    let under_way = Arc::new(AtomicUsize::new(0));
    let count = under_way.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            most.fetch_max(count.fetch_add(len, Ordering::SeqCst) + len, Ordering::SeqCst);
            if sender.send((Instant::now() + delay, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            under_way.fetch_sub(bytes.len(), Ordering::SeqCst);
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[test]
fn over_a_long_way_a_stream_has_more_than_its_ring_under_way() {
    let most = Arc::new(AtomicUsize::new(0));
    let world = World::with(plans(|alpha, _| {
        alpha.peer.2 = long_way(alpha.peer.2, Duration::from_millis(20), most.clone());
    }));
    world.connected();
    let (mut client, mut server) = world.pair(6100);
    let data = bytes(32 << 20, 7);
    let expected = data.clone();
    let reader = thread::spawn(move || {
        let mut all = vec![0; expected.len()];
        server.read_exact(&mut all).unwrap();
        assert!(all == expected, "whole");
        server
    });
    client.write_all(&data).unwrap();
    let server = reader.join().unwrap();
    let most = most.load(Ordering::SeqCst);
    assert!(most >= 1 << 20, "at most {most} bytes were under way at once");
    drop((client, server));
    world.nothing_is_left();
}
