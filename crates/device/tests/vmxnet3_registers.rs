//! Registers of a VMXNET3 NIC: what is there, what is harmless, who owns which words.

use vmlane_device::testing::nic::{DriverSpec, NicDriver, NicMachine, Wish};

/// A frame from the guest to nobody in particular.
fn frame() -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..12].copy_from_slice(&[0xff; 12]);
    frame
}

#[test]
fn a_linux_driver_opens_sends_and_closes() {
    let machine = NicMachine::new(|_| {});
    let mut driver = NicDriver::probe(&machine, DriverSpec::linux(6));
    driver.open(&machine);
    assert!(driver.tx[0].send(&frame(), &[], &Wish::NONE));
    let lent = machine.frames.with(|end| {
        let token = end.fetch().expect("a frame");
        let len = end.lent(token).len();
        end.finish(token);
        end.flush(std::time::Instant::now());
        len
    });
    assert_eq!(lent, Some(60));
    assert_eq!(driver.tx[0].reap(), 1);
    driver.close(&machine);
    assert!(!machine.frames.is_attached());
}
