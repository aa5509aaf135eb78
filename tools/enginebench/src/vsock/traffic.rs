//! Traffic between two guests, independent of what serves their devices.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::report::Sample;
use anyhow::{Context as _, ensure};

use super::guest::Guest;

/// The CIDs of the two guests, in the order of their sockets.
pub const CIDS: [u32; 2] = [3, 4];
const PORT: u32 = 5000;
/// Bytes of the stream repeat with a period that no packet has.
const PERIOD: usize = 251;
/// No packet brings more.
const ROOM: usize = 4096;

/// A connection from the first guest to the second.
pub fn connect([mut a, mut b]: [Guest; 2]) -> anyhow::Result<[Guest; 2]> {
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| b.accept(PORT));
        a.connect(1024, (CIDS[1], PORT)).context("the connect")?;
        accepting.join().expect("no panic").context("the accept")
    })?;
    Ok([a, b])
}

/// Writes of `block` bytes until the time is up; the clock stops when the last byte has arrived.
pub fn stream(guests: [Guest; 2], block: usize, length: Duration) -> anyhow::Result<Sample> {
    let [mut a, mut b] = connect(guests)?;
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> anyhow::Result<u64> {
            let data: Vec<u8> = (0..block + PERIOD).map(|at| (at % PERIOD) as u8).collect();
            let mut total = 0;
            while !stop.load(Ordering::Relaxed) {
                let from = (total % PERIOD as u64) as usize;
                a.write_all(&data[from..from + block])?;
                total += block as u64;
            }
            a.shutdown()?;
            Ok(total)
        });
        let receiver = scope.spawn(|| receive(&mut b).map(|total| (total, start.elapsed())));
        let end = start + length;
        while Instant::now() < end && !sender.is_finished() && !receiver.is_finished() {
            std::thread::sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(50)));
        }
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().expect("no panic").context("the sender");
        let received = receiver.join().expect("no panic").context("the receiver");
        let (sent, (received, time)) = (sent?, received?);
        ensure!(sent == received, "{sent} bytes were sent and {received} came");
        Ok(Sample::gbits(received, time))
    })
}

/// Reads to the end. The first and the last byte of each packet must be those of its place in the stream.
fn receive(guest: &mut Guest) -> anyhow::Result<u64> {
    let (mut data, mut total) = ([0; ROOM], 0);
    loop {
        let bytes = guest.read(&mut data)?;
        let Some(last) = bytes.checked_sub(1) else { return Ok(total) };
        for at in [0, last] {
            let place = total + at as u64;
            ensure!(data[at] == (place % PERIOD as u64) as u8, "byte {place} of the stream is another's");
        }
        total += bytes as u64;
    }
}

/// One byte there, one byte back.
pub fn round_trips(guests: [Guest; 2], length: Duration) -> anyhow::Result<Sample> {
    let [mut a, mut b] = connect(guests)?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> anyhow::Result<()> {
            let mut data = [0; ROOM];
            loop {
                match b.read(&mut data)? {
                    0 => return Ok(()),
                    bytes => b.write_all(&data[..bytes])?,
                }
            }
        });
        let (mut data, mut count) = ([0; ROOM], 0);
        let start = Instant::now();
        while start.elapsed() < length {
            let byte = count as u8;
            a.write_all(&[byte])?;
            ensure!(a.read(&mut data)? == 1 && data[0] == byte, "round trip {count} brought another byte");
            count += 1;
        }
        let sample = Sample::rate(count, start.elapsed());
        a.shutdown()?;
        echo.join().expect("no panic").context("the echo")?;
        Ok(sample)
    })
}

/// Attaches both guests to their sockets as soon as a back end listens there. `alive` returns why it never
/// will.
pub fn attach(
    sockets: &[PathBuf; 2],
    mut alive: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<[Guest; 2]> {
    const STARTS: Duration = Duration::from_secs(30);
    let deadline = Instant::now() + STARTS;
    let mut one = |index: usize| loop {
        let socket = &sockets[index];
        match Guest::attach(socket, CIDS[index]) {
            Ok(guest) => return Ok(guest),
            Err(error) if Instant::now() > deadline || !is_early(&error) => {
                return Err(error).with_context(|| format!("attaching to {}", socket.display()));
            }
            Err(_) => alive()?,
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Ok([one(0)?, one(1)?])
}

/// The port has no listener yet.
fn is_early(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused)
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
