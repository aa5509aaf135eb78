//! The driver's receiving half: `vmci_dispatch_dgs`, both paths, step by step.

use std::time::Instant;

use vmlane_wire::vmci::{
    DATAGRAM_HEADER, DMA_HEADER, DMA_LIST, DatagramHeader, DmaElement, DmaHeader, Handle, INVALID_ID,
    MAX_DATAGRAM, Reg, padded,
};
use vmlane_wire::vmci_stream::{CONTROL_RESOURCE, ControlPacket};
use zerocopy::{FromBytes, IntoBytes};

use vmlane_device::irq::{Interrupts, IrqMode};

use super::TIMEOUT;
use super::driver::{Driver, Path};
use super::ram::PAGE;

/// A datagram that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub dst: Handle,
    pub src: Handle,
    pub payload: Vec<u8>,
}

impl Datagram {
    /// The stream control packet in it, if it is one.
    pub fn control(&self) -> Option<ControlPacket> {
        (self.dst.resource == CONTROL_RESOURCE).then(|| ControlPacket::parse(&self.payload)).flatten()
    }

    /// The number of the event in it, if the device sent it as one.
    pub fn event(&self) -> Option<u32> {
        let event = self.src == Handle::new(0, 0) && self.dst.resource == 0;
        event.then(|| u32::from_le_bytes(self.payload[..4].try_into().expect("four bytes")))
    }
}

impl Driver {
    /// If an interrupt signals that datagrams wait: fetches them.
    pub fn service(&mut self) -> Vec<Datagram> {
        let due = match self.lines.mode() {
            IrqMode::Msix { vectors: 2.. } => self.lines.take(0),
            // One vector for everything: its handler asks for the cause, which acknowledges it.
            _ => self.lines.take(0) && self.read(Reg::Icr) & 1 != 0,
        };
        if due { self.receive() } else { Vec::new() }
    }

    /// Waits for an interrupt and fetches what it announces.
    pub fn await_datagrams(&mut self) -> Vec<Datagram> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let ticket = self.lines.ticket();
            let batch = self.service();
            if !batch.is_empty() {
                return batch;
            }
            let rung = self.lines.wait(ticket, std::time::Duration::ZERO, deadline);
            assert!(rung, "no datagram came for {TIMEOUT:?}");
        }
    }

    /// The handler of vector 0: one or more reads of the device, parsed to the end.
    pub fn receive(&mut self) -> Vec<Datagram> {
        let ports = self.path == Path::Ports;
        let mut datagrams = Vec::new();
        let mut buffer = vec![0; MAX_DATAGRAM];
        let mut size = if ports { PAGE } else { MAX_DATAGRAM };
        self.read_data(&mut buffer[..size]);
        let (mut at, mut left) = (0, size);
        loop {
            let header = header(&buffer[at..]);
            if header.dst().resource == INVALID_ID {
                if !ports || left <= PAGE {
                    return datagrams;
                }
                at = (at + 1).next_multiple_of(PAGE);
                left = size - at;
                continue;
            }
            let whole = padded(DATAGRAM_HEADER + header.payload_size() as usize);
            assert!(whole <= MAX_DATAGRAM, "the device sent a datagram of {whole} bytes");
            if whole > left {
                buffer.copy_within(at..at + left, 0);
                at = 0;
                size = MAX_DATAGRAM;
                self.read_data(&mut buffer[left..]);
            }
            let payload = &buffer[at + DATAGRAM_HEADER..][..header.payload_size() as usize];
            datagrams.push(Datagram { dst: header.dst(), src: header.src(), payload: payload.to_vec() });
            at += whole;
            left = size - at;
            if left < DATAGRAM_HEADER {
                self.read_data(&mut buffer[..size]);
                (at, left) = (0, size);
            }
        }
    }

    fn read_data(&mut self, out: &mut [u8]) {
        if self.path == Path::Ports {
            self.registers.read_bytes(0, Reg::DataIn.offset(), out);
            return;
        }
        let header = DmaHeader::new(0, DMA_LIST, 1);
        let data = self.rx.address + PAGE as u64;
        let element = DmaElement { addr: data.into(), size: (out.len() as u64).into() };
        self.rx.pages.write(0, header.as_bytes());
        self.rx.pages.write(DMA_HEADER, element.as_bytes());
        self.lines.take(2);
        self.write(Reg::DataInLow, self.rx.address as u32);
        if self.path == Path::DmaPosted {
            // Linux checks once, then sleeps until vector 2.
            let deadline = Instant::now() + TIMEOUT;
            loop {
                let ticket = self.lines.ticket();
                if self.lines.take(2) {
                    break;
                }
                let rung = self.lines.wait(ticket, std::time::Duration::ZERO, deadline);
                assert!(rung, "no vector 2 for {TIMEOUT:?} after a receive");
            }
        }
        assert!(self.rx.busy(), "the device has answered and left busy alone");
        self.rx.pages.read(PAGE, out);
    }
}

fn header(bytes: &[u8]) -> DatagramHeader {
    DatagramHeader::read_from_prefix(bytes).expect("24 bytes").0
}
