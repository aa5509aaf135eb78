//! A NIC whose driver has opened it, and frames to it by hand.

use std::time::Instant;

use crate::nic::{DriverSpec, NicDriver, NicMachine, Received};
use crate::one_by_one::OneByOne;
use crate::{Placement, Ram};
use vmlane_mem::Spans;
use vmlane_port::{ChecksumStatus, DropReason, Layers, RxFrame};

/// `len` bytes, a broadcast.
pub fn frame(len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|at| at as u8).collect();
    frame[..6].fill(0xff);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// A machine of the profile `vmxnet3` (`full` from revision 7 on) whose driver has opened its NIC.
pub fn active(spec: DriverSpec) -> (NicMachine, NicDriver) {
    use vmlane_device::vmxnet3::Profile;
    let profile = if spec.revision > 6 { Profile::Full } else { Profile::Vmxnet3 };
    let queues = spec.tx_queues.max(spec.rx_queues).max(8);
    let machine = NicMachine::new(|config| (config.profile, config.max_queues) = (profile, queues));
    let mut driver = NicDriver::probe(&machine, spec);
    driver.open(&machine);
    (machine, driver)
}

/// Gives a frame to the guest. False: nothing is attached.
pub fn deliver(machine: &NicMachine, frame: &[u8]) -> bool {
    machine.frames.is_attached() && {
        try_deliver(machine, frame).expect("there is room");
        true
    }
}

/// The same, or why not; something is attached.
pub fn try_deliver(machine: &NicMachine, frame: &[u8]) -> Result<(), DropReason> {
    deliver_as(machine, frame, Layers::default())
}

pub fn deliver_as(machine: &NicMachine, frame: &[u8], layers: Layers) -> Result<(), DropReason> {
    let sender = Ram::new(1 << 16);
    let page = sender.alloc(1, Placement::Scattered)[0];
    sender.write(page, frame);
    let mut spans = Spans::new(sender.device_map(), false);
    spans.push(page, frame.len()).expect("a page of this memory");
    let head = &frame[..frame.len().min(64)];
    let packet = RxFrame {
        head,
        body: &spans,
        body_at: head.len(),
        body_len: frame.len() - head.len(),
        tag: None,
        layers,
        checksum: ChecksumStatus::Unknown,
        aggregate: None,
        partial_checksum: None,
    };
    let delivered = machine.frames.with(|end| {
        let delivered = end.deliver_one(&packet);
        end.flush(Instant::now());
        delivered
    });
    delivered.expect("something is attached")
}

/// The next packet of queue 0.
pub fn receive(driver: &mut NicDriver) -> Option<Received> {
    driver.rx[0].receive()
}
