//! Streams between hosts: real guests exchange them; and they end when what carries them does, with an error,
//! soon, and without a trace.

mod world;

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use vmlane_lab::LabSpec;
use vmlane_sock::{Listener, Stream};
use vmlane_tests::alone::own_memory;
use vmlane_tests::{Bed, TIMEOUT, full, kept, open_many_files, python, serve, wait_until};
use world::{CIDS, DEAD_S, World};

vmlane_tests::tests! {
    long {
        guests_of_two_hosts_exchange_streams_with_their_true_cids,
        two_thousand_streams_end_with_resets_and_nothing_stays,
    }
}

const STREAMS: usize = 2000;
const PORT: u32 = 5000;
/// Memory that an allocator may keep of so many streams, in KiB.
const SLACK: i64 = 8192;

/// What ends.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Helper(usize),
    Daemon(usize),
    Silence,
}

fn two_thousand_streams_end_with_resets_and_nothing_stays() {
    open_many_files();
    let mut world = World::new(["", ""]);
    let rounds = if full() { 10 } else { 2 };
    let fates = [Fate::Helper(0), Fate::Helper(1), Fate::Daemon(0), Fate::Daemon(1), Fate::Silence];
    for fate in fates {
        let mut longest = Duration::ZERO;
        let mut first = None;
        for round in 0..rounds {
            longest = longest.max(end(&mut world, fate));
            // What is started anew each time has nothing to compare with; the first round makes pools that
            // stay.
            match &first {
                None => first = Some(used(&world, fate)),
                Some(first) => nothing_stays(first, &world, fate, round),
            }
        }
        let what = match fate {
            Fate::Silence => format!("the link silent, dead after {DEAD_S} s"),
            Fate::Helper(_) => "the helper killed".into(),
            Fate::Daemon(_) => "the daemon killed".into(),
        };
        let most = longest.as_secs_f64();
        kept(
            "hosts",
            &format!(
                "{what}, {rounds} times: {STREAMS} streams reset at both ends, the last one after {most:.2} s; \
                 nothing stays ({fate:?})"
            ),
        );
    }
}

fn guests_of_two_hosts_exchange_streams_with_their_true_cids() {
    const BYTES: usize = 4 << 20;
    let lab = |host: &str, device: &str| {
        let mut spec = LabSpec::new(&format!("{host}-{}", std::process::id())).device(device).unwrap();
        (spec.guests, spec.boot_seconds, spec.mem_mib) = (1, 300, 256);
        spec.kernels = vec!["6.12".into()];
        spec
    };
    let (vmci, virtio) = (CIDS[0] + 1, CIDS[1] + 1);
    let vm = |cid: u32| format!("[[vm]]\nname = \"a\"\ncid = {cid}\n");
    let specs = [lab("alpha", "vmci"), lab("beta", "virtio-vsock")];
    let (world, beds) = World::of_labs(specs, [&vm(vmci), &vm(virtio)]);
    let [alpha, beta] = [&beds[0], &beds[1]].map(|bed| bed.guest("a"));
    let serving = [&alpha, &beta].map(|guest| serve(guest, &format!("far serve {PORT}")));
    for (client, own, server) in [(&alpha, vmci, virtio), (&beta, virtio, vmci)] {
        let result = python(client, &format!("far ask {server} {PORT} {BYTES}"));
        assert_eq!(result["whole"], BYTES, "CID {own} to {server}");
    }
    for (service, client) in serving.iter().zip([virtio, vmci]) {
        let line = format!("from {client} {BYTES}");
        assert!(service.printed().lines().any(|printed| printed == line), "{line}: {}", service.printed());
    }
    // What no one serves, and what no host owns.
    for cid in [virtio, 5000] {
        let script = format!("far ask {cid} {} 1", PORT + 1);
        let words = format!("python3 /t/{}", script.replacen("far", "far.py", 1));
        let output = alpha.exec(words.split(' ').collect::<Vec<_>>()).unwrap();
        assert!(!output.success() && output.stderr().contains("Error"), "{cid}: {}", output.stderr());
    }
    kept(
        "hosts",
        &format!(
            "a guest with VMCI (CID {vmci}) and one with virtio-vsock (CID {virtio}) on two hosts sent each other \
             {BYTES} bytes and their end, got all of them back, and saw each other's CID"
        ),
    );
    drop((serving, world));
    beds.into_iter().for_each(Bed::finish);
}

/// One round: streams, an end, all is well again. How long the last reset took.
fn end(world: &mut World, fate: Fate) -> Duration {
    let ends = streams(world);
    let start = Instant::now();
    match fate {
        Fate::Helper(site) => world.sites[site].helper = None,
        Fate::Daemon(site) => world.sites[site].kill_daemon(),
        Fate::Silence => world.set_silent(true),
    }
    let took = all_reset(&ends, start);
    drop(ends);
    if let Fate::Silence = fate {
        world.set_silent(false);
    }
    world.sites.iter_mut().for_each(world::Site::start);
    world.connected();
    wait_until("no stream is left", || world.sites.iter().all(|site| site.peer("streams") == Some(0.into())));
    took
}

/// Both ends of so many streams, each of which has carried something.
fn streams(world: &World) -> Vec<Stream> {
    let [alpha, beta] = &world.sites;
    let listener = Listener::bind_by(&beta.host(), PORT).unwrap();
    listener.set_timeout(Some(TIMEOUT)).unwrap();
    let send = |mut stream: &Stream, word: &[u8; 5]| stream.write_all(word).unwrap();
    let receive = |mut stream: &Stream, word: &[u8; 5]| {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut received = [0; 5];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(&received, word);
    };
    let connect = |_| {
        let timeout = Duration::from_secs(50);
        let stream = Stream::connect_by(&alpha.host(), CIDS[1], PORT, timeout).unwrap();
        send(&stream, b"there");
        // So that no more wait than a listener has places for.
        receive(&stream, b"heard");
        stream
    };
    let accept = |_| {
        let (stream, from) = listener.accept().unwrap();
        assert_eq!(from.cid, CIDS[0]);
        receive(&stream, b"there");
        send(&stream, b"heard");
        stream
    };
    let mut ends = std::thread::scope(|scope| {
        let connect_some = || (0..STREAMS / 4).map(connect).collect::<Vec<_>>();
        let connecting: Vec<_> = (0..4).map(|_| scope.spawn(connect_some)).collect();
        let mut ends: Vec<Stream> = (0..STREAMS).map(accept).collect();
        connecting.into_iter().for_each(|one| ends.extend(one.join().unwrap()));
        ends
    });
    ends.iter_mut().for_each(|end| end.set_nonblocking(true).unwrap());
    ends
}

/// Every end gets a reset. After how long the last one did.
fn all_reset(ends: &[Stream], start: Instant) -> Duration {
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (number, end) in ends.iter().enumerate() {
        epoll::add(&waiting, end.as_fd(), epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)
            .unwrap();
    }
    let mut left = ends.len();
    let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 256];
    while left > 0 {
        assert!(start.elapsed() < TIMEOUT, "{left} of {} ends got no reset", ends.len());
        let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
        let (events, _) = epoll::wait(&waiting, &mut space, Some(&wait)).unwrap();
        for event in events.iter() {
            let end = &ends[event.data.u64() as usize];
            match (&mut &*end).read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    epoll::delete(&waiting, end.as_fd()).unwrap();
                    left -= 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => panic!("in place of a reset: {other:?}"),
            }
        }
    }
    start.elapsed()
}

/// What the processes that live on have: descriptors, mappings, memory in KiB.
fn used(world: &World, fate: Fate) -> BTreeMap<String, [i64; 3]> {
    let killed = match fate {
        Fate::Helper(site) => world.sites[site].processes()[1].1,
        Fate::Daemon(site) => world.sites[site].processes()[0].1,
        Fate::Silence => 0,
    };
    let own = [("the test".to_owned(), std::process::id())];
    let all = world.sites.iter().flat_map(|site| site.processes()).chain(own);
    all.filter(|(_, pid)| *pid != killed).map(|(name, pid)| (name, use_of(pid))).collect()
}

fn use_of(process: u32) -> [i64; 3] {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let mappings = fs::read_to_string(format!("/proc/{process}/maps")).unwrap().lines().count();
    [descriptors as i64, mappings as i64, own_memory(process) as i64]
}

/// The processes soon have no more than they had after the first round.
fn nothing_stays(first: &BTreeMap<String, [i64; 3]>, world: &World, fate: Fate, round: usize) {
    let mut reported = None;
    wait_until("no process has more than after the first round", || {
        let more = more(first, &used(world, fate));
        if more.is_some() && more != reported {
            println!("{fate:?}, round {round}: {more:?}");
        }
        reported = more;
        reported.is_none()
    });
}

fn more(first: &BTreeMap<String, [i64; 3]>, now: &BTreeMap<String, [i64; 3]>) -> Option<String> {
    // A few come and go: connections of `status`, an attempt of the helper to reach its daemon, the
    // allocator's arenas.
    let slack = [("descriptors", 8), ("mappings", 64), ("KiB", SLACK)];
    now.iter().find_map(|(name, now)| {
        let before = first[name];
        let which = (0..3).find(|&which| now[which] > before[which] + slack[which].1)?;
        Some(format!("{name} has {} {}, and had {}", now[which], slack[which].0, before[which]))
    })
}
