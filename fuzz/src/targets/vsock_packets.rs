//! Packets between three VMs with virtio-vsock and the daemon's own ends: whatever their drivers send.

use std::sync::Arc;
use std::time::Duration;

use vmlane_guestsim::vsock::{Bench, vm};
use vmlane_stream::Inline;
use vmlane_vsock::Forward;
use vmlane_vsock::Vm as VsockVm;
use vmlane_wire::virtio_vsock::Header;

use crate::Input;
use crate::virtio::act;

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let packed = input.byte() & 1 != 0;
    let mut bench = Bench::new(Arc::new(Inline::default()));
    let forwards = vec![Forward { port: 1, to_cid: 4, to_port: 1 }];
    let mut guests = [
        bench.guest(VsockVm { forwards, parent: Some(9), ..vm(3) }, packed),
        bench.guest(vm(4), packed),
        bench.guest(VsockVm { group: "two".into(), ..vm(5) }, packed),
    ];
    for _ in 0..150 {
        if input.is_empty() {
            break;
        }
        let guest = &mut guests[usize::from(input.byte()) % 3];
        if guest.rx.ram.free_pages() < 64 {
            break;
        }
        match input.byte() % 8 {
            0..=3 => {
                let to = [2, 3, 4, 5, 9, 77][usize::from(input.byte()) % 6];
                let ports = (u32::from(input.byte() % 3), u32::from(input.byte() % 3));
                let (kind, op) = (u16::from(input.byte() % 4), u16::from(input.byte() % 9));
                let count = usize::from(input.byte());
                let payload = input.bytes(count);
                let len =
                    if input.byte() & 7 == 0 { input.number::<4>() as u32 } else { payload.len() as u32 };
                let header = Header::new((guest.cid, ports.0), (to, ports.1), kind, op);
                let header = Header {
                    len: len.into(),
                    flags: u32::from(input.byte() & 7).into(),
                    buf_alloc: (input.number::<4>() as u32).into(),
                    fwd_cnt: (input.number::<4>() as u32).into(),
                    ..header
                };
                guest.send(&header, payload);
            }
            4 => guest.post_buffers(1 + usize::from(input.byte() % 8), 44 + usize::from(input.byte()) * 16),
            5 => {
                let ring = if input.byte() & 1 != 0 { &mut guest.rx } else { &mut guest.tx };
                act(&mut input, ring);
            }
            6 => {
                bench.detach(guest);
                if input.byte() & 1 != 0 {
                    bench.gone(guest);
                }
                bench.attach(guest);
            }
            _ => bench.now += Duration::from_millis(u64::from(input.byte())),
        }
        bench.arm();
        assert!(bench.run(), "packets never come to rest");
    }
}
