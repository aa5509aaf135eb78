//! Round trips of an honest pair, with and without a hostile VMM beside it: figures, no promise of time.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use vmlane_guestsim::vfio_user::{Client, access};
use vmlane_guestsim::vhost_user::Front;
use vmlane_wire::vfio_user::Command;
use zerocopy::IntoBytes;

use crate::world::{CONFIG_REGION, Daemon, FEATURES, Nic, config, obstruct};

/// Rounds, each with and without the hostile VMM, and round trips in each.
const ROUNDS: usize = 10;
const TRIPS: usize = 2000;

/// All that a VMM does here at once with VM c, a vfio-user card: it maps and cuts short, reconnects, does not read.
fn harass_by_vfio_user(daemon: &Daemon, over: &AtomicBool, sessions: &AtomicU64) {
    while !over.load(Ordering::Acquire) {
        let Ok(stream) = UnixStream::connect(daemon.socket("c")) else { continue };
        let mut vmm = Client::new(stream);
        if vmm.version().is_err() {
            continue;
        }
        sessions.fetch_add(1, Ordering::Relaxed);
        let sparse = rustix::fs::memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&sparse, 1 << 46).unwrap();
        for region in 0..64u64 {
            let _ = vmm.map(region << 21, 1 << 20, Some((sparse.as_fd(), region << 21)), true);
        }
        let line = vmlane_guestsim::eventfd().unwrap();
        let _ = vmm.enable_msix(&[line.as_fd()]);
        obstruct(&line);
        rustix::fs::ftruncate(&sparse, 0).unwrap();
        let question = access(CONFIG_REGION, 0, 64);
        let message = vmm.message(Command::RegionRead.code(), question.as_bytes(), false);
        vmm.stream().set_nonblocking(true).unwrap();
        while vmm.send(&message, &[]).is_ok() && !over.load(Ordering::Acquire) {}
    }
}

/// With VM d, a vhost-user card: floods, event fds that cannot be written, memory cut short.
fn harass_by_vhost_user(daemon: &Daemon, over: &AtomicBool, sessions: &AtomicU64) {
    while !over.load(Ordering::Acquire) {
        let mut nic = Nic::new(3);
        let begun = UnixStream::connect(daemon.socket("d")).and_then(|stream| {
            let mut front = Front::over(stream, FEATURES)?;
            front.set_memory(&nic.rx.ram)?;
            let events = [front.start(0, &nic.rx.setup())?, front.start(1, &nic.tx.setup())?];
            Ok((front, events))
        });
        let Ok((front, events)) = begun else { continue };
        sessions.fetch_add(1, Ordering::Relaxed);
        let lines: Vec<OwnedFd> =
            events.iter().map(|events| events.call.as_fd().try_clone_to_owned().unwrap()).collect();
        nic.adopt(front, events);
        lines.iter().for_each(obstruct);
        for frame in 0..1000 {
            nic.send([0, 1, 0xff][frame % 3]);
            while nic.tx.take().is_some() {}
            if over.load(Ordering::Acquire) {
                break;
            }
        }
    }
}

/// Nanoseconds of each round trip.
fn round_trips(from: &mut Nic, to: &mut Nic) -> Vec<u64> {
    let trip = |_| {
        let begin = Instant::now();
        from.exchange(to);
        begin.elapsed().as_nanos() as u64
    };
    (0..TRIPS).map(trip).collect()
}

fn percentile(trips: &mut [u64], share: f64) -> Duration {
    trips.sort_unstable();
    Duration::from_nanos(trips[((trips.len() - 1) as f64 * share) as usize])
}

/// Prints the figures. Run it by name, on a machine that does nothing else:
/// `cargo test --release -p vmlane-cli --test hostile_vmm round_trips -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn round_trips_beside_a_hostile_vmm_and_without_one() {
    let daemon = Daemon::start(&config(&["virtio-net", "virtio-net", "vmxnet3", "virtio-net"]));
    let (mut from, mut to) = (Nic::new(0), Nic::new(1));
    from.attach(&daemon, "a");
    to.attach(&daemon, "b");
    let (sessions, cards) = (AtomicU64::new(0), AtomicU64::new(0));
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.extend(round_trips(&mut from, &mut to));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| harass_by_vfio_user(&daemon, &over, &sessions));
            scope.spawn(|| harass_by_vhost_user(&daemon, &over, &cards));
            beside.extend(round_trips(&mut from, &mut to));
            over.store(true, Ordering::Release);
        });
    }
    assert_eq!((alone.len(), beside.len()), (ROUNDS * TRIPS, ROUNDS * TRIPS));
    let hostile = [sessions.into_inner(), cards.into_inner()];
    assert!(hostile.iter().all(|sessions| *sessions > 0), "{hostile:?}");
    println!("hostile sessions: {hostile:?}");
    for share in [0.5, 0.99, 0.999, 1.0] {
        let (alone, beside) = (percentile(&mut alone, share), percentile(&mut beside, share));
        println!("{:5.1} %: {alone:?} alone, {beside:?} beside it", share * 100.0);
    }
}
