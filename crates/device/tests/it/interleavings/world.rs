//! Everything that is shared or private in the model, at one moment: 64 bits when packed.

use super::guests::{Guest, PLACES};

/// What is on its way, at most one of each kind (rule M8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Message {
    WroteFromA = 1,
    WaitingWriteFromA = 2,
    ReadFromB = 4,
    WaitingReadFromB = 8,
    ReadToA = 16,
    WaitingReadToA = 32,
    WroteToB = 64,
    WaitingWriteToB = 128,
}

impl Message {
    pub const ALL: [Message; 8] = [
        Message::WroteFromA,
        Message::WaitingWriteFromA,
        Message::ReadFromB,
        Message::WaitingReadFromB,
        Message::ReadToA,
        Message::WaitingReadToA,
        Message::WroteToB,
        Message::WaitingWriteToB,
    ];
}

/// One state of the model. The guests' own indices are their byte counts modulo the ring size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    pub written: u8,
    pub read: u8,
    /// The device's words: the head that A sees, the tail that B sees.
    pub head_a: u8,
    pub tail_b: u8,
    pub writer: Guest,
    pub reader: Guest,
    /// Bits of [`Message`].
    pub messages: u8,
    /// Older protocol: announcements that the device has got and not acted on.
    pub a_waits: bool,
    pub b_waits: bool,
    /// State of the device's table.
    pub device: u32,
}

const FIELDS: [u32; 5] = [4, 4, 3, 3, 8];
const GUEST: [u32; 2] = [3, 3];
/// What the other fields leave of 64 bits.
const DEVICE_BITS: u32 = 22;

struct Packer(u64);

impl Packer {
    fn put(&mut self, bits: u32, value: u64) {
        debug_assert!(value < 1 << bits);
        self.0 = self.0 << bits | value;
    }

    fn take(&mut self, bits: u32) -> u64 {
        let value = self.0 & ((1 << bits) - 1);
        self.0 >>= bits;
        value
    }

    fn put_guest(&mut self, guest: &Guest) {
        self.put(GUEST[0], guest.at as u64);
        self.put(GUEST[1], guest.len.into());
        for flag in [guest.woken, guest.announced, guest.peer_waits] {
            self.put(1, flag.into());
        }
    }

    fn take_guest(&mut self) -> Guest {
        let [peer_waits, announced, woken] = [(); 3].map(|()| self.take(1) != 0);
        let len = self.take(GUEST[1]) as u8;
        let at = PLACES[self.take(GUEST[0]) as usize];
        Guest { at, len, woken, announced, peer_waits }
    }
}

impl World {
    pub const NEW: World = World {
        written: 0,
        read: 0,
        head_a: 0,
        tail_b: 0,
        writer: Guest::NEW,
        reader: Guest::NEW,
        messages: 0,
        a_waits: false,
        b_waits: false,
        device: 0,
    };

    pub fn send(&mut self, message: Message) {
        self.messages |= message as u8;
    }

    pub fn receive(&mut self, message: Message) {
        self.messages &= !(message as u8);
    }

    /// Is any of these on its way?
    pub fn has(&self, messages: &[Message]) -> bool {
        messages.iter().any(|&message| self.messages & message as u8 != 0)
    }

    pub fn pack(&self) -> u64 {
        assert!(self.device < 1 << DEVICE_BITS, "the device has too many states for a packed one");
        let mut packer = Packer(self.device.into());
        let values = [self.written, self.read, self.head_a, self.tail_b, self.messages];
        for (bits, value) in FIELDS.into_iter().zip(values) {
            packer.put(bits, value.into());
        }
        packer.put(1, self.a_waits.into());
        packer.put(1, self.b_waits.into());
        packer.put_guest(&self.writer);
        packer.put_guest(&self.reader);
        packer.0
    }

    pub fn unpack(packed: u64) -> World {
        let mut packer = Packer(packed);
        let reader = packer.take_guest();
        let writer = packer.take_guest();
        let b_waits = packer.take(1) != 0;
        let a_waits = packer.take(1) != 0;
        let mut values = [0; FIELDS.len()];
        for (value, bits) in values.iter_mut().zip(FIELDS).rev() {
            *value = packer.take(bits) as u8;
        }
        let [written, read, head_a, tail_b, messages] = values;
        let device = packer.0 as u32;
        World { written, read, head_a, tail_b, writer, reader, messages, a_waits, b_waits, device }
    }
}
