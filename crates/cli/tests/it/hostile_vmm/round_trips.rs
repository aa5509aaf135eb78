//! Round trips of one owner's VMs, with and without the hostile VMMs of another owner beside them: figures,
//! no promise of time. What is promised is that those VMMs open nothing of the first owner's.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::process::{Gid, Uid};
use vmlane_guestsim::vfio_user::{Client, access};
use vmlane_guestsim::vhost_user::Front;
use vmlane_testkit::{Daemon, skipped, wait_until};
use vmlane_wire::vfio_user::Command;
use zerocopy::IntoBytes;

use super::fuse::{self, Answers, StallingFile};
use super::userfault::Stalling;
use super::world::{CONFIG_REGION, FEATURES, Nic, config, obstruct, socket};
use crate::common;

/// Rounds, each with and without the hostile VMMs, and round trips in each.
const ROUNDS: usize = 10;
const TRIPS: usize = 2000;
/// Numbers of users that no account has.
const OWNER: u32 = 20_001;
const HOSTILE: u32 = 20_003;

/// Makes the calling thread one of another user: its connections are that user's.
fn become_user(user: u32) {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(group, group, group).unwrap();
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
}

/// `owner` for each VM of `config`.
fn owned(config: &str, owners: &[u32]) -> String {
    let mut owners = owners.iter();
    let line = |line: &str| {
        let owner = line.starts_with("name").then(|| owners.next().expect("an owner for each VM"));
        format!("{line}\n{}", owner.map_or(String::new(), |owner| format!("owner = \"{owner}\"\n")))
    };
    config.lines().map(line).collect()
}

/// What the hostile VMMs have done.
#[derive(Default)]
struct Harm {
    over: AtomicBool,
    vfio_user: AtomicU64,
    vhost_user: AtomicU64,
    /// Sockets that are not theirs and that they were let in at.
    opened: AtomicU64,
}

impl Harm {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn try_sockets_of_others(&self, daemon: &Daemon) {
        let others =
            [socket(daemon, "a"), socket(daemon, "b"), daemon.run("control.sock"), daemon.run("keeper.sock")];
        let opened = others.iter().filter(|socket| UnixStream::connect(socket).is_ok()).count();
        self.opened.fetch_add(opened as u64, Ordering::Relaxed);
    }
}

/// All that a VMM does here at once with VM c, a vfio-user card: it maps and cuts short, passes files that
/// stall, reconnects, does not read, and tries the sockets of others.
fn harass_by_vfio_user(daemon: &Daemon, harm: &Harm) {
    let stalling = StallingFile::open(Answers::Closing);
    become_user(HOSTILE);
    while !harm.is_over() {
        harm.try_sockets_of_others(daemon);
        let Ok(stream) = UnixStream::connect(socket(daemon, "c")) else { continue };
        let mut vmm = Client::new(stream);
        if vmm.version().is_err() {
            continue;
        }
        harm.vfio_user.fetch_add(1, Ordering::Relaxed);
        if let Some(file) = &stalling {
            let _ = vmm.map(0, fuse::SIZE, Some((file.file.as_fd(), 0)), true);
        }
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
        while vmm.send(&message, &[]).is_ok() && !harm.is_over() {}
    }
}

/// With VM d, a vhost-user card: floods, event fds that cannot be written, and, in the first session, memory
/// whose file is locked by a write that never ends.
fn harass_by_vhost_user(daemon: &Daemon, harm: &Harm) {
    let mut locked = Some(Nic::new(3));
    let hole = vmlane_mem::memfd("nothing in it", 1 << 20).unwrap();
    let Some((source, faults)) = Stalling::map(&hole, 1 << 20) else { return };
    let ram = locked.as_ref().expect("just made").rx.ram.clone();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| source.write_to(ram.fd()));
        wait_until("a write that waits", || faults.are_there() || write.is_finished());
        become_user(HOSTILE);
        while !harm.is_over() {
            flood(daemon, harm, locked.take().unwrap_or_else(|| Nic::new(3)));
        }
        drop(faults);
    });
}

/// One session of VM d.
fn flood(daemon: &Daemon, harm: &Harm, mut nic: Nic) {
    let begun = UnixStream::connect(socket(daemon, "d")).and_then(|stream| {
        let mut front = Front::over(stream, FEATURES)?;
        front.set_memory(&nic.rx.ram)?;
        let events = [front.start(0, &nic.rx.setup())?, front.start(1, &nic.tx.setup())?];
        Ok((front, events))
    });
    let Ok((front, events)) = begun else { return };
    harm.vhost_user.fetch_add(1, Ordering::Relaxed);
    let lines: Vec<OwnedFd> =
        events.iter().map(|events| events.call.as_fd().try_clone_to_owned().unwrap()).collect();
    nic.adopt(front, events);
    lines.iter().for_each(obstruct);
    for frame in 0..1000 {
        nic.send([0, 1, 0xff][frame % 3]);
        while nic.tx.take().is_some() {}
        if harm.is_over() {
            break;
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
/// `cargo test --release -p vmlane-cli --test it round_trips -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn round_trips_beside_hostile_vmms_of_another_owner_and_without_them() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can be several users");
    }
    let cards = config(&["virtio-net", "virtio-net", "vmxnet3", "virtio-net"]);
    let daemon = common::daemon(&owned(&cards, &[OWNER, OWNER, HOSTILE, HOSTILE]));
    let (mut from, mut to) = (Nic::new(0), Nic::new(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            become_user(OWNER);
            from.attach(&daemon, "a");
            to.attach(&daemon, "b");
        });
    });
    let (mut alone, mut beside, mut done) = (Vec::new(), Vec::new(), [0; 3]);
    for _ in 0..ROUNDS {
        alone.extend(round_trips(&mut from, &mut to));
        let harm = Harm::default();
        std::thread::scope(|scope| {
            scope.spawn(|| harass_by_vfio_user(&daemon, &harm));
            scope.spawn(|| harass_by_vhost_user(&daemon, &harm));
            let begun =
                || harm.vfio_user.load(Ordering::Relaxed) > 0 && harm.vhost_user.load(Ordering::Relaxed) > 0;
            wait_until("hostile sessions", begun);
            beside.extend(round_trips(&mut from, &mut to));
            harm.over.store(true, Ordering::Release);
        });
        let counts = [harm.vfio_user, harm.vhost_user, harm.opened].map(AtomicU64::into_inner);
        done.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert_eq!((alone.len(), beside.len()), (ROUNDS * TRIPS, ROUNDS * TRIPS));
    let [vfio_user, vhost_user, opened] = done;
    assert_eq!(opened, 0, "sockets of another owner");
    println!("hostile sessions: {vfio_user} by vfio-user, {vhost_user} by vhost-user");
    for share in [0.5, 0.99, 0.999, 1.0] {
        let (alone, beside) = (percentile(&mut alone, share), percentile(&mut beside, share));
        println!("{:5.1} %: {alone:?} alone, {beside:?} beside them", share * 100.0);
    }
}
