//! The vfio-user server with a VMCI device or a NIC behind it, in any state: well-formed messages in any
//! order, memory and interrupts coming and going, descriptors with them or without, now and then a byte
//! changed or a message cut in two. Every message that wants an answer gets one, in order.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

use vmlane_guestsim::eventfd;
use vmlane_guestsim::nic::NicMachine;
use vmlane_guestsim::vfio_user::Client;
use vmlane_mem::memfd;
use vmlane_testkit::LONGEST;
use vmlane_transport::{IrqSet, Scope, Session, SessionStats};

use crate::{Input, World};

const REPLY: u8 = 1;
const HEADER: usize = 16;

/// Descriptors that come with messages: memory of two sizes, events, something else.
static FDS: LazyLock<[OwnedFd; 4]> = LazyLock::new(|| {
    let pipe = UnixStream::pair().expect("sockets").0;
    [
        memfd("large", 1 << 20).expect("memory"),
        memfd("small", 4096).expect("memory"),
        eventfd().expect("an event descriptor"),
        pipe.into(),
    ]
});

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

/// Where memory is announced and looked for.
fn place(input: &mut Input<'_>) -> (u64, u64) {
    let address = u64::from(input.byte() % 8) << 20;
    let len = [1 << 20, 4096, 1 << 12 | 1, 0, 2 << 20, u64::MAX][usize::from(input.byte()) % 6];
    (address, len)
}

/// A command and its payload, as a VMM would send them.
fn message(input: &mut Input<'_>) -> (u16, Vec<u8>) {
    match input.byte() % 16 {
        0 => (1, [&[0; 4][..], b"{\"capabilities\":{\"max_msg_fds\":8}}\0"].concat()),
        1..=3 => {
            let (address, len) = place(input);
            let offset = u64::from(input.byte() & 1) << 12;
            (2, [halves(&[32, u32::from(input.byte() & 3)]), words(&[offset, address, len])].concat())
        }
        4 => {
            let (address, len) = place(input);
            (3, [halves(&[24, u32::from(input.byte() & 3)]), words(&[address, len])].concat())
        }
        5 => (4, halves(&[16, 0, 0, 0])),
        6 => (5, [halves(&[32, 0, u32::from(input.byte()) % 10, 0]), words(&[0, 0])].concat()),
        7 => (7, halves(&[16, 0, u32::from(input.byte()) % 6, 0])),
        8..=10 => {
            let flags = 1 << (input.byte() % 3) | 1 << (3 + input.byte() % 3);
            let (index, start, count) = (input.byte() % 5, input.byte() % 30, input.byte() % 30);
            let mut payload = halves(&[20, flags, index.into(), start.into(), count.into()]);
            if flags & 2 != 0 {
                payload.extend(input.bytes(count.into()));
            }
            (8, payload)
        }
        11 => (13, Vec::new()),
        kind => {
            let region = [0u32, 1, 1, 2, 7, 7, 9][usize::from(input.byte()) % 7];
            let offset = match input.byte() % 4 {
                0 => 0x20000 + 4 * u64::from(input.byte()),
                1 => u64::from(input.byte()),
                _ => 8 * u64::from(input.byte()),
            };
            let len = [4, 4, 1, 2, 8, 64, 0][usize::from(input.byte()) % 7];
            let mut payload = [words(&[offset]), halves(&[region, len])].concat();
            if kind < 14 {
                return (9, payload);
            }
            payload.extend((0..len).map(|_| input.byte()));
            (10, payload)
        }
    }
}

/// Writes a session's messages; returns how many answers there must be, if that is known.
fn write(input: &mut Input<'_>, stream: UnixStream) -> Option<Vec<u16>> {
    let mut expected = Some(Vec::new());
    let mut client = Client::new(stream.try_clone().expect("another descriptor"));
    for _ in 0..40 {
        if input.is_empty() {
            break;
        }
        let (command, payload) = message(input);
        let kinds = input.byte();
        let silent = kinds & 7 == 7;
        let mut bytes = client.message(command, &payload, silent);
        if kinds & 0x38 == 0x38 {
            let at = usize::from(input.byte()) % bytes.len();
            bytes[at] ^= 1 + input.byte() % 255;
            expected = None;
        }
        let count = if matches!(command, 2 | 8) { usize::from(input.byte()) % 4 } else { 0 };
        let which = usize::from(input.byte());
        let fds: Vec<BorrowedFd<'_>> = (0..count).map(|at| FDS[(which >> (2 * at)) & 3].as_fd()).collect();
        let cut = if kinds & 0xc0 == 0xc0 { usize::from(input.byte()) % bytes.len() } else { 0 };
        let (first, rest) = bytes.split_at(cut);
        let sent = match cut {
            0 => client.send(rest, &fds),
            _ => client.send(first, &fds).and_then(|()| client.send(rest, &[])),
        };
        if sent.is_err() {
            expected = None;
            break;
        }
        if let Some(expected) = expected.as_mut().filter(|_| !silent) {
            expected.push(u16::from_le_bytes([bytes[0], bytes[1]]));
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Write);
    expected
}

/// The answers, each whole; their numbers.
fn answers(mut stream: UnixStream) -> Vec<u16> {
    let mut bytes = Vec::new();
    let _ = stream.set_read_timeout(Some(LONGEST));
    // A connection closed with bytes unread ends in a reset.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the server closes in the end");
    }
    let (mut rest, mut ids) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        assert!(rest.len() >= HEADER, "half a header");
        let len = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
        assert!((HEADER..=rest.len()).contains(&len), "an answer of {len} bytes, {} are there", rest.len());
        assert_eq!(rest[8] & 15, REPLY, "only answers come");
        ids.push(u16::from_le_bytes([rest[0], rest[1]]));
        rest = &rest[len..];
    }
    ids
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let stats = Arc::new(SessionStats::default());
    let irqs = Arc::new(IrqSet::new(stats.clone()));
    let nic = input.byte() & 1 == 1;
    let reading = ours.try_clone().expect("another descriptor");
    let reader = std::thread::spawn(move || answers(reading));
    let expected = write(&mut input, ours);
    if nic {
        let machine = NicMachine::new(|_| {});
        let mut device = machine.device.lock();
        Session::new(theirs, &mut *device, irqs, stats.clone(), &Scope::none()).expect("a session").run();
    } else {
        let world = World::new();
        let mut device = world.device(irqs.clone());
        Session::new(theirs, &mut device, irqs, stats.clone(), &Scope::none()).expect("a session").run();
        drop(device);
        world.check();
    }
    let got = reader.join().expect("the reader is well");
    if let Some(expected) = expected {
        assert_eq!(got, expected);
    }
    assert_eq!(stats.panics(), 0);
}
