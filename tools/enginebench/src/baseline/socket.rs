//! Streams and round trips through the kernel: Unix stream sockets and TCP over the loopback device.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::one_way::{RING, one_way};
use super::place::Cpus;
use crate::report::Sample;

/// Before each round trip of rows that begin with everything asleep: longer than a worker polls ports
/// after the last frame.
pub const PAUSE: Duration = Duration::from_millis(30);

pub fn unix_stream(message: usize, length: Duration) -> io::Result<Sample> {
    let (from, to) = UnixStream::pair()?;
    stream(from, to, message, length)
}

pub fn tcp_stream(message: usize, length: Duration) -> io::Result<Sample> {
    let (from, to) = tcp_pair()?;
    stream(from, to, message, length)
}

pub fn unix_round_trips(length: Duration) -> io::Result<Sample> {
    let (from, to) = UnixStream::pair()?;
    round_trips(from, to, length)
}

/// Round trips whose answering thread has slept for [`PAUSE`], and is woken by the kernel. The asking one
/// spins until the answer is there; only that time counts. Each has a CPU of its own: a kernel that wakes the
/// one where the other spins leaves it there for milliseconds, though a CPU is idle.
pub fn unix_round_trips_asleep(length: Duration) -> io::Result<Sample> {
    let (mut from, to) = UnixStream::pair()?;
    let cpus = Cpus::allowed();
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            let _placed = cpus.pin(0);
            echo(to)
        });
        let _placed = cpus.pin(1);
        from.set_nonblocking(true)?;
        let (mut count, mut talked) = (0, Duration::ZERO);
        let start = Instant::now();
        while start.elapsed() < length {
            std::thread::sleep(PAUSE);
            let began = Instant::now();
            from.write_all(&[7])?;
            loop {
                match from.read(&mut [0]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                    other => {
                        other?;
                        break;
                    }
                }
            }
            talked += began.elapsed();
            count += 1;
        }
        let sample = Sample::rate(count, talked);
        drop(from); // the other thread ends when it reads this end
        Ok(sample)
    })
}

pub fn tcp_round_trips(length: Duration) -> io::Result<Sample> {
    let (from, to) = tcp_pair()?;
    round_trips(from, to, length)
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let from = TcpStream::connect(listener.local_addr()?)?;
    let (to, _) = listener.accept()?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    Ok((from, to))
}

fn stream(
    mut from: impl Write,
    mut to: impl Read + Send,
    message: usize,
    length: Duration,
) -> io::Result<Sample> {
    let bytes = vec![0xa5; message];
    let batch = (RING / message).max(1);
    // `from` moves in: dropping the sender is what ends the stream.
    let send = move || (0..batch).try_for_each(|_| from.write_all(&bytes));
    one_way(length, send, move || {
        let mut buffer = vec![0; message];
        let mut total = 0;
        loop {
            match to.read(&mut buffer)? {
                0 => return Ok(total),
                count => total += count as u64,
            }
        }
    })
}

/// Sends each byte back until the other end is dropped.
fn echo(mut socket: impl Read + Write) -> io::Result<()> {
    let mut byte = [0];
    while socket.read(&mut byte)? == 1 {
        socket.write_all(&byte)?;
    }
    Ok(())
}

fn round_trips<S: Read + Write + Send>(mut from: S, to: S, length: Duration) -> io::Result<Sample> {
    std::thread::scope(|scope| {
        scope.spawn(move || echo(to));
        let (mut byte, mut count) = ([0], 0);
        let start = Instant::now();
        while start.elapsed() < length {
            from.write_all(&[7])?;
            from.read_exact(&mut byte)?;
            count += 1;
        }
        let sample = Sample::rate(count, start.elapsed());
        drop(from); // the other thread ends when it reads this end
        Ok(sample)
    })
}
