//! Doorbells in the second page of BAR 0: trapped, so that they wake the worker of an idle NIC.

use std::os::fd::AsRawFd;

use vmlane_device::vmxnet3::Profile;
use vmlane_guestsim::OneByOne;
use vmlane_guestsim::nic::session::{active, deliver, frame};
use vmlane_guestsim::nic::{DriverSpec, NicDriver, NicMachine, TxRequest};
use vmlane_port::{FramePort, Needs};
use vmlane_wire::vmxnet3::regs::{PageReg, Reg};

fn with<T>(machine: &NicMachine, act: impl FnOnce(&mut dyn FramePort) -> T) -> T {
    machine.frames.with(act).expect("something is attached")
}

/// Does its worker wake up?
fn wakes(machine: &NicMachine) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    with(machine, |end| {
        let file = end.doorbell_fd().expect("a doorbell");
        let mut files = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
        poll(&mut files, Some(&Default::default())).expect("a poll") > 0
    })
}

fn send(driver: &mut NicDriver) {
    assert!(driver.tx[0].send(&frame(60), &[], &TxRequest::NONE));
}

#[test]
fn the_first_frame_of_an_idle_nic_is_announced_and_those_of_a_busy_one_are_not() {
    let (machine, mut driver) = active(DriverSpec::linux(7));
    let (kicks, trapped) = (machine.frames.calls()[3], machine.count("trapped_writes"));
    send(&mut driver);
    assert!(!driver.announce(&machine, 0) && !wakes(&machine), "the worker is awake");
    assert!(with(&machine, |end| end.arm()), "a frame that came before");
    with(&machine, |end| {
        end.disarm();
        let token = end.fetch_one().expect("the frame");
        end.finish(&[token]);
        end.flush(std::time::Instant::now());
    });
    assert!(!with(&machine, |end| end.arm()));
    assert_eq!(with(&machine, |end| end.needs()), Needs::Announces);
    send(&mut driver);
    assert!(driver.announce(&machine, 0) && wakes(&machine));
    assert_eq!(with(&machine, |end| end.needs()), Needs::Turn);
    with(&machine, |end| end.disarm());
    assert!(!wakes(&machine), "silent until the next sleep");
    assert_eq!(machine.frames.calls()[3], kicks, "no other port is disturbed");
    assert_eq!(machine.count("trapped_writes"), trapped + 1);
}

#[test]
fn an_event_for_a_masked_vector_is_not_announced() {
    let (machine, _driver) = active(DriverSpec::linux(7));
    machine.write_page(PageReg::Mask(0), 1);
    assert!(deliver(&machine, &frame(60)));
    assert_eq!(with(&machine, |end| (end.arm(), end.needs())), (false, Needs::Turn));
}

#[test]
fn drivers_that_ring_in_the_mapped_page_announce_nothing() {
    let earlier = active(DriverSpec::linux(6)).0;
    assert_eq!(with(&earlier, |end| (end.arm(), end.needs())), (false, Needs::Nothing));
    assert_eq!(with(&earlier, |end| end.doorbell_fd().map(|file| file.as_raw_fd())), None);
    // DPDK's: it takes the revision, and wishes for no large BAR.
    let machine = NicMachine::with_profile(Profile::Full);
    let mut driver = NicDriver::allocate(&machine, DriverSpec::linux(7));
    machine.write(Reg::Revision, 1 << 6);
    machine.write(Reg::Capability(0), machine.read(Reg::Capability(0)) & !(1 << 16));
    driver.open(&machine);
    assert_eq!(with(&machine, |end| (end.arm(), end.needs())), (false, Needs::Nothing));
    // One for revision 1, after one that was granted it.
    machine.write(Reg::Capability(0), 1 << 16);
    let mut old = NicDriver::probe(&machine, DriverSpec::linux(1));
    old.open(&machine);
    assert_eq!(with(&machine, |end| (end.arm(), end.needs())), (false, Needs::Nothing));
}

/// Linux transmits frames of XDP programs by the doorbell of the first page, whatever it was granted.
#[test]
fn a_driver_that_rings_in_both_pages_is_polled() {
    let (machine, driver) = active(DriverSpec::linux(7));
    let page = machine.page().expect("a page that may be mapped");
    page.store_u32(PageReg::TxProducer(0).offset() as usize, 5);
    assert_eq!(with(&machine, |end| (end.arm(), end.needs())), (false, Needs::Nothing));
    assert_eq!(driver.try_activate(&machine), 0);
    assert_eq!(with(&machine, |end| (end.arm(), end.needs())), (false, Needs::Announces), "a new activation");
}
