//! Two threads and a bare ring of bytes between them, both spinning, each on a CPU of its own: no system
//! call, no wake-up, no device.

use std::io;
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};

use super::one_way::{RING, one_way};
use super::place::Cpus;
use crate::report::Sample;

/// How many round trips between two readings of the clock.
const BATCH: u64 = 256;

/// How to wait. Yielding helps only where the other thread needs this very CPU: elsewhere it gives the
/// CPU to other programs for milliseconds.
#[derive(Clone, Copy)]
enum Wait {
    Spin,
    Yield,
}

impl Wait {
    fn on(cpus: &Cpus) -> Wait {
        if cpus.are_several() { Wait::Spin } else { Wait::Yield }
    }

    fn once(self) {
        match self {
            Wait::Spin => std::hint::spin_loop(),
            Wait::Yield => std::thread::yield_now(),
        }
    }
}

fn gone() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

fn write_all(producer: &mut Producer<u8>, mut bytes: &[u8], wait: Wait) -> io::Result<()> {
    while !bytes.is_empty() {
        let (written, rest) = producer.push_partial_slice(bytes);
        if written.is_empty() {
            if producer.is_abandoned() {
                return Err(gone());
            }
            wait.once();
        }
        bytes = rest;
    }
    Ok(())
}

/// Waits for bytes; 0 when the producer is gone and everything is read.
fn read(consumer: &mut Consumer<u8>, buffer: &mut [u8], wait: Wait) -> usize {
    loop {
        match consumer.pop_partial_slice(buffer).0.len() {
            0 if consumer.is_abandoned() => return consumer.pop_partial_slice(buffer).0.len(),
            0 => wait.once(),
            count => return count,
        }
    }
}

/// Messages of `message` bytes from one thread's buffer through the ring into the other's.
pub fn ring_stream(message: usize, length: Duration) -> io::Result<Sample> {
    let cpus = Cpus::allowed();
    let (wait, _sender) = (Wait::on(&cpus), cpus.pin(0));
    let (mut producer, mut consumer) = RingBuffer::new(RING);
    let bytes = vec![0xa5; message];
    let batch = (RING / message).max(1);
    let send = move || (0..batch).try_for_each(|_| write_all(&mut producer, &bytes, wait));
    one_way(length, send, move || {
        let _receiver = cpus.pin(1);
        let mut buffer = vec![0; message];
        let mut total = 0;
        loop {
            match read(&mut consumer, &mut buffer, wait) {
                0 => return Ok(total),
                count => total += count as u64,
            }
        }
    })
}

/// One byte there, one byte back.
pub fn ring_round_trips(length: Duration) -> io::Result<Sample> {
    let cpus = Cpus::allowed();
    let (wait, _asker) = (Wait::on(&cpus), cpus.pin(0));
    let (mut ask, mut asked) = RingBuffer::new(RING);
    let (mut answer, mut answered) = RingBuffer::new(RING);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _answerer = cpus.pin(1);
            let mut byte = [0];
            while read(&mut asked, &mut byte, wait) == 1 {
                if write_all(&mut answer, &byte, wait).is_err() {
                    break;
                }
            }
        });
        let (mut byte, mut count) = ([0], 0);
        let start = Instant::now();
        while start.elapsed() < length {
            for _ in 0..BATCH {
                write_all(&mut ask, &[7], wait)?;
                if read(&mut answered, &mut byte, wait) == 0 {
                    return Err(gone());
                }
            }
            count += BATCH;
        }
        let sample = Sample::rate(count, start.elapsed());
        drop(ask); // the other thread ends when it sees this
        Ok(sample)
    })
}
