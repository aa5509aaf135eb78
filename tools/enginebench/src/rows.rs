//! The rows.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::report::Sample;
use crate::report::{GBITS, ROUND_TRIPS, Registry};
use vmlane_guestsim::{Queues, Stream};
use vmlane_stream::{Settings, Worker, Workers};
use vmlane_wire::vmci::queue_header;
use vmlane_wire::vmci_stream::SHUTDOWN_SEND;

use crate::pair::{Pair, RING};
use crate::process;

/// Connections per second.
const CONNECTS: &str = "conn/s";

/// How long a guest takes for an answer.
const THINKING: Duration = Duration::from_micros(50);

/// Adds all rows. Guests are booted here, once; each round opens its own stream.
pub fn register(registry: &mut Registry) -> anyhow::Result<()> {
    for (size, block) in [("4k", 4 << 10), ("64k", 64 << 10)] {
        let beside = ["copy.pages", "copy.ring", "ring", "unix", "tcp"].map(|name| format!("{name}.{size}"));
        let beside: Vec<&str> = beside.iter().map(String::as_str).collect();
        registry.add(&format!("vmci.engine.{size}"), GBITS, &beside[..2], move |length| {
            other(engine(block as u64, length))
        });
        let beside = &beside[1..];
        registry
            .add(&format!("vmci.stream.{size}"), GBITS, beside, move |length| other(stream(block, length)));
        registry.add(&format!("vmci.stream.{size}.processes"), GBITS, beside, move |length| {
            other(process::stream(block, length))
        });
    }
    let beside = ["ring.rr.1", "unix.rr.1", "tcp.rr.1"];
    registry.add("vmci.rr.1", ROUND_TRIPS, &beside, move |length| other(round_trips(Duration::ZERO, length)));
    // Guests that sleep until they are notified, and take some time for an answer, as real ones do.
    registry.add("vmci.rr.thinking", ROUND_TRIPS, &[], move |length| other(round_trips(THINKING, length)));
    registry.add("unix.connect", CONNECTS, &[], unix_connects);
    registry.add("vmci.connect", CONNECTS, &["unix.connect"], move |length| other(connects(length)));
    Ok(())
}

fn other<T>(result: anyhow::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("{error:#}")))
}

/// The engine's own speed: one thread is the worker, and between its rounds it moves the guests' indices by a
/// block, so every round has one block to move. Nothing else runs. No notification announces these blocks, so
/// the worker never sleeps.
fn engine(block: u64, length: Duration) -> anyhow::Result<Sample> {
    let (workers, mut worker) =
        Workers::unstarted(Settings { poll: true, ..Settings::default() }).expect("an event fd");
    let worker = &mut worker[0];
    let pair = Pair::on(workers);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| pair.connect());
        while !connecting.is_finished() {
            worker.step();
        }
        let (client, server) = connecting.join().expect("no panic")?;
        // The guests' own threads do not run; their events wait in their inboxes.
        let sample = client.queues(|from| server.queues(|to| drive(worker, from, to, block, length)));
        let closing = scope.spawn(move || drop((client, server)));
        while !closing.is_finished() {
            worker.step();
        }
        Ok(sample)
    })
}

fn drive(worker: &mut Worker, from: &Queues, to: &Queues, block: u64, length: Duration) -> Sample {
    // Each guest is the only writer of its indices and knows them; it reads the device's.
    let (mut tail, mut head) = (from.own_indices().0, to.own_indices().1);
    let device_head = from.consume.word(queue_header::CONSUMER_HEAD);
    let device_tail = to.consume.word(queue_header::PRODUCER_TAIL);
    let (guest_tail, guest_head) =
        (from.produce.word(queue_header::PRODUCER_TAIL), to.produce.word(queue_header::CONSUMER_HEAD));
    let mut moved = 0;
    let start = Instant::now();
    while start.elapsed() < length {
        for _ in 0..64 {
            // A claims to have written one block, if there is room for it.
            if (tail + RING - device_head.load()) % RING < RING - block {
                tail = (tail + block) % RING;
                guest_tail.store(tail);
            }
            worker.step();
            // B claims to have read whatever is there.
            let ready = device_tail.load();
            moved += (ready + RING - head) % RING;
            if head != ready {
                head = ready;
                guest_head.store(head);
            }
        }
    }
    Sample::gbits(moved, start.elapsed())
}

/// The whole path: A's thread writes every byte, B's reads every byte, the worker is a third.
fn stream(block: usize, length: Duration) -> anyhow::Result<Sample> {
    let pair = Pair::new()?;
    let (client, server) = pair.connect()?;
    one_way(client, server, block, length)
}

/// Streams until the time is up; the clock stops when the last byte has arrived.
fn one_way(client: Stream, server: Stream, block: usize, length: Duration) -> anyhow::Result<Sample> {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let data = vec![0xa5; block];
            while !stop.load(Ordering::Relaxed) {
                client.send_all(&data)?;
            }
            client.shutdown(SHUTDOWN_SEND);
            Ok(())
        });
        let receiver = scope.spawn(|| {
            let mut buffer = vec![0; block];
            let mut total = 0;
            loop {
                match server.recv(&mut buffer)? {
                    0 => return Ok((total, start.elapsed())),
                    count => total += count as u64,
                }
            }
        });
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let describe = |error: vmlane_guestsim::SocketError| anyhow::anyhow!("{error}");
        sender.join().expect("no panic").map_err(describe)?;
        let (bytes, time) = receiver.join().expect("no panic").map_err(describe)?;
        Ok(Sample::gbits(bytes, time))
    })
}

/// One byte there, one byte back, each guest on its thread; B thinks for so long, and if it does, no guest
/// polls for what comes.
fn round_trips(thinking: Duration, length: Duration) -> anyhow::Result<Sample> {
    let pair = Pair::new()?;
    if !thinking.is_zero() {
        [&pair.a, &pair.b].iter().for_each(|guest| guest.set_spin(Duration::ZERO));
    }
    let (client, server) = pair.connect()?;
    let describe = |error: vmlane_guestsim::SocketError| anyhow::anyhow!("{error}");
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), vmlane_guestsim::SocketError> {
            let mut byte = [0];
            while server.recv(&mut byte)? == 1 {
                let asked = Instant::now();
                while asked.elapsed() < thinking {
                    std::hint::spin_loop();
                }
                server.send_all(&byte)?;
            }
            Ok(())
        });
        let (mut byte, mut count) = ([0], 0);
        let start = Instant::now();
        while start.elapsed() < length {
            client.send_all(&[7]).map_err(describe)?;
            client.recv(&mut byte).map_err(describe)?;
            count += 1;
        }
        let sample = Sample::rate(count, start.elapsed());
        client.shutdown(SHUTDOWN_SEND);
        echo.join().expect("no panic").map_err(describe)?;
        Ok(sample)
    })
}

/// Connect, accept, close, one after the other.
fn connects(length: Duration) -> anyhow::Result<Sample> {
    let pair = Pair::new()?;
    let mut count = 0;
    let start = Instant::now();
    while start.elapsed() < length {
        drop(pair.connect()?);
        count += 1;
    }
    Ok(Sample::rate(count, start.elapsed()))
}

/// The same over Unix sockets, for the scale.
fn unix_connects(length: Duration) -> io::Result<Sample> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    let name = format!("vmlane-enginebench-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name.as_bytes())?;
    let listener = UnixListener::bind_addr(&address)?;
    let mut count = 0;
    let start = Instant::now();
    while start.elapsed() < length {
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().map(|_| ()));
            UnixStream::connect_addr(&address)?;
            accepting.join().expect("no panic")
        })?;
        count += 1;
    }
    Ok(Sample::rate(count, start.elapsed()))
}
