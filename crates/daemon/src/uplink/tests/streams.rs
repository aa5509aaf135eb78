//! Streams of known bytes between a VM and the host, and the gaps in them. Half of them go each way.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use vmlane_testkit::eventually;

/// Streams in all.
const STREAMS: usize = 8;
/// Bytes of a piece, and the time between two.
const PIECE: usize = 16 << 10;
const EVERY: Duration = Duration::from_millis(5);
/// A stream that has moved by so many bytes goes on.
pub const SOME: u64 = 4 << 20;
/// Shorter gaps are not noted.
const GAP: u64 = 10_000_000;

/// Nanoseconds by a clock that all processes share.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The byte of a stream at an offset.
fn byte(stream: u8, at: u64) -> u8 {
    (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (at >> 16) as u8 ^ stream
}

/// Sends until it is `over`. Returns the number of bytes.
fn send(mut socket: &TcpStream, stream: u8, over: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        let piece: Vec<u8> = (sent..sent + PIECE as u64).map(|at| byte(stream, at)).collect();
        socket.write_all(&piece).unwrap();
        sent += PIECE as u64;
        std::thread::sleep(EVERY);
    }
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    sent
}

/// What a stream was: bytes, and where in time nothing came, for how long.
type Received = (u64, Vec<(u64, u64)>);

/// Receives to the end, and checks every byte.
fn receive(mut socket: &TcpStream, stream: u8, count: &AtomicU64) -> Received {
    let (mut buffer, mut at, mut gaps, mut last) = (vec![0; 64 << 10], 0, Vec::new(), now());
    loop {
        let len = socket.read(&mut buffer).unwrap();
        let time = now();
        if time - last > GAP {
            gaps.push((last, time - last));
        }
        last = time;
        if len == 0 {
            return (at, gaps);
        }
        for (offset, got) in (at..).zip(&buffer[..len]) {
            assert_eq!(*got, byte(stream, offset), "stream {stream}, byte {offset}");
        }
        at += len as u64;
        count.store(at, Ordering::Relaxed);
    }
}

/// The VM's side: connects, and ends when standard input does. Says on standard output what came of its
/// streams.
pub fn connect(address: &str) {
    let over = Arc::new(AtomicBool::new(false));
    let running: Vec<JoinHandle<String>> = (0..STREAMS as u8)
        .map(|stream| {
            let (over, address) = (over.clone(), address.to_owned());
            std::thread::spawn(move || {
                let socket = eventually("the host", || TcpStream::connect(&address).ok());
                (&socket).write_all(&[stream]).unwrap();
                if stream.is_multiple_of(2) {
                    return format!("SENT {stream} {}", send(&socket, stream, &over));
                }
                let (bytes, gaps) = receive(&socket, stream, &AtomicU64::new(0));
                let gaps: Vec<String> = gaps.iter().map(|(at, len)| format!("{at} {len}")).collect();
                format!("RECEIVED {stream} {bytes} {}", gaps.join(" "))
            })
        })
        .collect();
    let _ = std::io::stdin().read(&mut [0]);
    over.store(true, Ordering::Relaxed);
    running.into_iter().for_each(|one| println!("{}", one.join().unwrap()));
}

enum Half {
    Sending(JoinHandle<u64>),
    Receiving(JoinHandle<Received>),
}

/// The host's side of all streams.
pub struct Report {
    over: Arc<AtomicBool>,
    counts: Vec<Arc<AtomicU64>>,
    halves: Vec<(u8, Half)>,
}

/// Takes all streams.
pub fn accept(address: &str) -> Report {
    let listener = TcpListener::bind(address).unwrap();
    let mut report = Report { over: Arc::default(), counts: Vec::new(), halves: Vec::new() };
    for _ in 0..STREAMS {
        let mut socket = listener.accept().unwrap().0;
        let mut first = [0];
        socket.read_exact(&mut first).unwrap();
        let [stream] = first;
        let (over, count) = (report.over.clone(), Arc::new(AtomicU64::new(0)));
        let counted = count.clone();
        let half = if stream.is_multiple_of(2) {
            report.counts.push(count);
            Half::Receiving(std::thread::spawn(move || receive(&socket, stream, &counted)))
        } else {
            Half::Sending(std::thread::spawn(move || send(&socket, stream, &over)))
        };
        report.halves.push((stream, half));
    }
    report
}

impl Report {
    /// Bytes that have come so far, of each stream towards the host.
    pub fn received(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Ends the streams, whose other ends `vm` is to end. Every byte that was sent has come.
    pub fn finish(self, vm: &mut Child) -> Gaps {
        self.over.store(true, Ordering::Relaxed);
        let (mut gaps, mut sums) = (Vec::new(), vec![(0, 0); STREAMS]);
        for (stream, half) in self.halves {
            match half {
                Half::Sending(half) => sums[usize::from(stream)].0 = half.join().unwrap(),
                Half::Receiving(half) => {
                    let (bytes, found) = half.join().unwrap();
                    sums[usize::from(stream)].1 = bytes;
                    gaps.push(found);
                }
            }
        }
        for line in BufReader::new(vm.stdout.take().unwrap()).lines().map(Result::unwrap) {
            let mut words = line.split_whitespace();
            let kind = words.find(|word| ["SENT", "RECEIVED"].contains(word));
            let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
            match (kind, &numbers[..]) {
                (Some("SENT"), [stream, bytes]) => sums[*stream as usize].0 = *bytes,
                (Some(_), [stream, bytes, found @ ..]) => {
                    sums[*stream as usize].1 = *bytes;
                    gaps.push(found.chunks(2).map(|gap| (gap[0], gap[1])).collect());
                }
                _ => {}
            }
        }
        assert!(sums.iter().all(|(sent, received)| sent == received && *sent > SOME), "{sums:?}");
        assert_eq!(gaps.len(), STREAMS);
        Gaps(gaps)
    }
}

/// Of each stream.
pub struct Gaps(Vec<Vec<(u64, u64)>>);

impl Gaps {
    /// The longest gap of each stream that began within a time or lasted into it; zero: none was noted.
    pub fn longest(&self, from: u64, to: u64) -> Vec<Duration> {
        let within = |(at, len): &&(u64, u64)| *at < to && at + len > from;
        let longest = |gaps: &Vec<(u64, u64)>| gaps.iter().filter(within).map(|(_, len)| *len).max();
        self.0.iter().map(|gaps| Duration::from_nanos(longest(gaps).unwrap_or(0))).collect()
    }
}
