//! VMMs that come and go in a loop, and VMMs that send and never read an answer, at every point of a session.

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vmlane_guestsim::Ram;
use vmlane_guestsim::vfio_user::{Client, access};
use vmlane_guestsim::vhost_user::Front;
use vmlane_testkit::{Daemon, wait_until};
use vmlane_wire::vfio_user::Command;
use vmlane_wire::vhost_user::{Header, request};
use zerocopy::IntoBytes;

use super::world::{CONFIG_REGION, FEATURES, Nic, attach, attach_vmxnet3, config, replace, socket};
use crate::common;

/// An honest pair, a and b, beside hostile VMs: c has a vfio-user card, d a vhost-user one.
fn beside_an_honest_pair() -> (Daemon, Nic, Nic) {
    let daemon = common::daemon(&config(&["virtio-net", "virtio-net", "vmxnet3", "virtio-net"]));
    let (mut from, mut to) = (Nic::new(0), Nic::new(1));
    from.attach(&daemon, "a");
    to.attach(&daemon, "b");
    from.reach(&mut to);
    (daemon, from, to)
}

/// One session of VM d that ends after `point` of its steps.
fn begin_and_leave(daemon: &Daemon, point: u64, ram: &Ram) -> std::io::Result<()> {
    let stream = UnixStream::connect(socket(daemon, "d"))?;
    if point == 0 {
        return Ok(());
    }
    let mut front = Front::over(stream, FEATURES)?;
    if point == 1 {
        return Ok(());
    }
    front.set_memory(ram)?;
    if point == 2 {
        // Half a message.
        return front.send(request::SET_VRING_NUM, &[0; 3], &[]);
    }
    front.get(request::GET_QUEUE_NUM).map(drop)
}

#[test]
fn vmms_that_reconnect_in_a_loop_hold_up_no_other_vm() {
    let (daemon, mut from, mut to) = beside_an_honest_pair();
    let (over, served) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if over.load(Ordering::Acquire) {
                    break;
                }
                // The session before may not be over yet: then this one is turned away.
                let vmm = UnixStream::connect(socket(&daemon, "c")).map(Client::new);
                let asked = vmm.is_ok_and(|mut vmm| round % 2 == 0 && vmm.version().is_ok());
                served.fetch_add(asked.into(), Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let ram = Ram::new(1 << 20);
            for round in 0.. {
                if over.load(Ordering::Acquire) {
                    break;
                }
                let served_now = begin_and_leave(&daemon, round % 4, &ram).is_ok();
                served.fetch_add(served_now.into(), Ordering::Relaxed);
            }
        });
        // They have come and gone that often, and the others have done their work meanwhile.
        let mut frames = 0;
        wait_until("many sessions beside honest work", || {
            from.reach(&mut to);
            to.reach(&mut from);
            frames += 2;
            frames >= 200 && served.load(Ordering::Relaxed) >= 200
        });
        // A session of an honest VM that ends and begins among them is served.
        to.attach(&daemon, "b");
        over.store(true, Ordering::Release);
    });
    let mut vmm = attach_vmxnet3(&daemon, "c");
    assert_eq!(vmm.read_u16(CONFIG_REGION, 0).unwrap(), 0x15ad, "what is left of it is a VM");
}

/// Sends `message` until the daemon takes no more, because it waits for its answers to be read.
fn send_until_it_is_full(stream: &UnixStream, message: &[u8]) {
    stream.set_nonblocking(true).unwrap();
    let (mut at, mut idle) = (0, 0);
    while idle < 50 {
        match (&*stream).write(&message[at..]) {
            Ok(sent) => (at, idle) = ((at + sent) % message.len(), 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                idle += 1;
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            // The daemon may end such a session.
            Err(_) => return,
        }
    }
}

#[test]
fn a_vmm_that_stops_reading_after_any_message_holds_up_no_other_vm() {
    let (daemon, mut from, mut to) = beside_an_honest_pair();
    let ram = Ram::new(1 << 20);
    // vfio-user: after the version, after memory, after interrupts.
    for point in 1..4 {
        let mut vmm = attach_vmxnet3(&daemon, "c");
        if point > 1 {
            vmm.map(0, 1 << 20, Some((ram.fd().as_fd(), 0)), true).unwrap();
        }
        if point > 2 {
            vmm.enable_msix(&[vmlane_guestsim::eventfd().unwrap().as_fd()]).unwrap();
        }
        let question = access(CONFIG_REGION, 0, 64);
        let message = vmm.message(Command::RegionRead.code(), question.as_bytes(), false);
        send_until_it_is_full(vmm.stream(), &message);
        from.reach(&mut to);
        to.reach(&mut from);
    }
    // vhost-user: before and after each step of its set-up.
    for point in 0..4 {
        let (stream, _front) = attach(&daemon, "d", |stream| {
            let kept = stream.try_clone()?;
            let mut front = None;
            if point > 0 {
                let mut begun = Front::over(stream, FEATURES)?;
                if point > 1 {
                    begun.set_memory(&ram)?;
                }
                if point > 2 {
                    begun.get_inflight(2, 16)?;
                }
                front = Some(begun);
            }
            Ok((kept, front))
        });
        let question = Header::request(request::GET_FEATURES, 0, false);
        send_until_it_is_full(&stream, question.as_bytes());
        from.reach(&mut to);
        to.reach(&mut from);
    }
    // Nor does one hold up the end of its daemon, and the next one.
    let mut vmm = attach_vmxnet3(&daemon, "c");
    let question = access(CONFIG_REGION, 0, 64);
    let message = vmm.message(Command::RegionRead.code(), question.as_bytes(), false);
    send_until_it_is_full(vmm.stream(), &message);
    replace(&daemon);
    let (mut from, mut to) = (Nic::new(0), Nic::new(1));
    from.attach(&daemon, "a");
    to.attach(&daemon, "b");
    from.reach(&mut to);
}
