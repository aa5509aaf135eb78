//! The vfio-user server with a real device behind it: any bytes on its socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vmlane_transport::{IrqSet, Session, SessionStats};

use crate::{Input, World};

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let world = World::new();
    let (mut ours, theirs) = UnixStream::pair().expect("socket pair");
    let stats = Arc::new(SessionStats::default());
    let irqs = Arc::new(IrqSet::new(stats.clone()));
    let mut device = world.device(irqs.clone());
    let thread = std::thread::spawn(move || {
        Session::new(theirs, &mut device, irqs, stats, &vmlane_transport::Scope::none())
            .expect("session")
            .run()
    });
    let framed = input.byte() & 3 != 0;
    let mut reader = ours.try_clone().expect("clone");
    let drain = std::thread::spawn(move || {
        let mut sink = [0; 4096];
        while reader.read(&mut sink).is_ok_and(|count| count > 0) {}
    });
    while !input.is_empty() {
        let len = usize::from(input.byte());
        let written = if framed {
            let command = [1, 2, 3, 4, 5, 7, 8, 9, 10, 13][usize::from(input.byte()) % 10];
            let body = input.bytes(len);
            let mut message = input.number::<2>().to_le_bytes()[..2].to_vec();
            message.extend_from_slice(&(command as u16).to_le_bytes());
            message.extend_from_slice(&(16 + body.len() as u32).to_le_bytes());
            message.extend_from_slice(&u32::from(input.byte() & 0x10).to_le_bytes());
            message.extend_from_slice(&[0; 4]);
            message.extend_from_slice(body);
            ours.write_all(&message)
        } else {
            ours.write_all(input.bytes(len))
        };
        if written.is_err() {
            break;
        }
    }
    let _ = ours.shutdown(std::net::Shutdown::Write);
    thread.join().expect("the session never panics");
    let _ = ours.shutdown(std::net::Shutdown::Both);
    drain.join().expect("drained");
    world.check();
}
