//! Datagrams by byte ports: Linux before 5.18, FreeBSD, old drivers.
//!
//! Out: the bytes of one datagram after the other, framed by nothing but their own headers. In: an
//! endless stream in pages of 4096 bytes, where a datagram starts only where every known driver expects one
//! for one (`docs/devices/vmci.md`, "Port path").

use vmlane_state::{Reader, Writer};
use vmlane_wire::vmci::{
    CID_HYPERVISOR, DATAGRAM_HEADER, DatagramHeader, MAX_DATAGRAM, MAX_DATAGRAM_PAYLOAD, MAX_HYPERCALL,
};
use zerocopy::FromBytes;

use super::inbox::Inbox;

const PAGE: usize = 4096;

/// What a byte completed.
#[derive(Debug, PartialEq, Eq)]
pub enum Assembled {
    /// Nothing yet.
    More,
    /// A datagram: take it from [`Assembler::take`].
    Datagram,
    /// A header with a size that is not allowed; its payload will be discarded.
    TooLarge,
}

/// Collects the bytes written to DATA_OUT. A read of the result, or a reset, starts it afresh, so a
/// driver that lost count heals itself.
#[derive(Debug, Default)]
pub struct Assembler {
    bytes: Vec<u8>,
    /// Payload bytes to swallow.
    skip: u64,
}

impl Assembler {
    /// One byte more.
    pub fn push(&mut self, byte: u8) -> Assembled {
        if self.skip > 0 {
            self.skip -= 1;
            return Assembled::More;
        }
        self.bytes.push(byte);
        if self.bytes.len() < DATAGRAM_HEADER {
            return Assembled::More;
        }
        let Ok((header, _)) = DatagramHeader::read_from_prefix(&self.bytes) else { return Assembled::More };
        let limit = if header.dst().context == CID_HYPERVISOR { MAX_HYPERCALL } else { MAX_DATAGRAM_PAYLOAD };
        if self.bytes.len() == DATAGRAM_HEADER && header.payload_size() > limit as u64 {
            self.skip = header.payload_size();
            self.bytes.clear();
            return Assembled::TooLarge;
        }
        let whole = self.bytes.len() as u64 == DATAGRAM_HEADER as u64 + header.payload_size();
        if whole { Assembled::Datagram } else { Assembled::More }
    }

    /// Part of a datagram is here.
    pub fn is_interrupted(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The complete datagram; the buffer is handed out to be given back for the next one.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Adds what the next daemon must know.
    pub fn record(&self, out: &mut Writer) {
        out.u64(self.skip).bytes(&self.bytes);
    }

    pub fn from_record(from: &mut Reader<'_>) -> Option<Assembler> {
        let (skip, bytes) = (from.u64()?, from.bytes()?);
        let mut assembler = Assembler { skip: 0, bytes: Vec::new() };
        // As they came the first time: part of one datagram, and no more.
        let part = bytes.iter().all(|byte| assembler.push(*byte) == Assembled::More);
        (part && (skip == 0 || bytes.is_empty())).then_some(Assembler { skip, ..assembler })
    }

    /// Starts afresh, keeping a buffer of moderate size.
    pub fn restart(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        buffer.shrink_to(PAGE);
        *self = Assembler { bytes: buffer, skip: 0 };
    }

    pub fn reset(&mut self) {
        let buffer = self.take();
        self.restart(buffer);
    }
}

/// What DATA_IN reads return.
#[derive(Debug, Default)]
pub struct Stream {
    current: Vec<u8>,
    served: usize,
    /// Bytes served modulo a page.
    at: usize,
    /// Serving 0xff up to the end of the page.
    filling: bool,
}

impl Stream {
    /// The next byte.
    pub fn next(&mut self, inbox: &Inbox) -> u8 {
        if self.at == 0 {
            self.filling = false;
            inbox.fetching();
        }
        if self.served == self.current.len() && !self.filling {
            self.current.clear();
            self.served = 0;
            let room = if self.at == 0 { usize::MAX } else { PAGE - self.at };
            self.filling = !inbox.pop_into(&mut self.current, room);
        }
        let byte = self.current.get(self.served).copied();
        self.served += usize::from(byte.is_some());
        self.at = (self.at + 1) % PAGE;
        if self.at == 0 {
            inbox.fetched();
        }
        byte.unwrap_or(0xff)
    }

    /// Adds what the next daemon must know.
    pub fn record(&self, out: &mut Writer) {
        out.u32(self.at as u32).flag(self.filling).bytes(self.current.get(self.served..).unwrap_or_default());
    }

    pub fn from_record(from: &mut Reader<'_>) -> Option<Stream> {
        let (at, filling) = (from.u32()? as usize % PAGE, from.flag()?);
        let current = from.bytes()?;
        (current.len() <= MAX_DATAGRAM).then(|| Stream { current: current.to_vec(), served: 0, at, filling })
    }

    pub fn reset(&mut self) {
        *self = Stream::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmlane_wire::vmci::{Handle, datagram};

    fn feed(assembler: &mut Assembler, bytes: &[u8]) -> Vec<Assembled> {
        bytes.iter().map(|byte| assembler.push(*byte)).filter(|step| *step != Assembled::More).collect()
    }

    #[test]
    fn a_datagram_is_complete_with_its_last_byte() {
        let mut assembler = Assembler::default();
        for size in [0, 1, 8, 4072, MAX_DATAGRAM_PAYLOAD] {
            let bytes = datagram(Handle::new(4, 5), Handle::new(3, 9), &vec![7; size]);
            assert_eq!(feed(&mut assembler, &bytes[..bytes.len() - 1]), []);
            assert_eq!(assembler.push(bytes[bytes.len() - 1]), Assembled::Datagram);
            let taken = assembler.take();
            assert_eq!(taken, bytes);
            assembler.restart(taken);
        }
    }

    #[test]
    fn an_oversized_header_is_swallowed_until_the_result_is_read() {
        let mut assembler = Assembler::default();
        let huge = DatagramHeader::new(Handle::new(4, 5), Handle::new(3, 9), MAX_DATAGRAM_PAYLOAD + 1);
        let bytes = zerocopy::IntoBytes::as_bytes(&huge).to_vec();
        assert_eq!(feed(&mut assembler, &bytes), [Assembled::TooLarge]);
        assert_eq!(feed(&mut assembler, &[1; 100]), []);
        assembler.reset();
        let good = datagram(Handle::new(4, 5), Handle::new(3, 9), &[1]);
        assert_eq!(feed(&mut assembler, &good), [Assembled::Datagram]);
    }
}
