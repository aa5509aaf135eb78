//! What the two programs do, whatever is between them.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::time::{ClockId, clock_gettime};

use crate::report::Sample;

/// An end of a connection.
pub trait End: Read + Write + Send {
    /// Nothing more is written.
    fn finish(&mut self) -> anyhow::Result<()>;
}

/// What connects the programs.
pub trait Link {
    /// A connection, the client's end first. `spin`: an end may look for its peer's bytes before it sleeps.
    fn connect(&mut self, spin: bool) -> anyhow::Result<[Box<dyn End>; 2]>;

    /// CPU time so far of the other processes that take part.
    fn cpu_time(&self) -> anyhow::Result<Duration>;
}

/// What a stream came to.
pub struct Streamed {
    bytes: u64,
    time: Duration,
    cpu: Duration,
}

impl Streamed {
    pub fn speed(&self) -> Sample {
        Sample::gbits(self.bytes, self.time)
    }

    /// CPU time for each KiB, in ns.
    pub fn cost(&self) -> Sample {
        Sample { value: self.cpu.as_nanos() as f64 / (self.bytes as f64 / 1024.0) }
    }
}

fn own_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Writes of `block` bytes until the time is up; the clock stops when the last byte has arrived.
pub fn stream(link: &mut dyn Link, block: usize, length: Duration) -> anyhow::Result<Streamed> {
    let [mut from, mut to] = link.connect(true)?;
    let cpu = || anyhow::Ok(link.cpu_time()? + own_cpu_time());
    let (before, start) = (cpu()?, Instant::now());
    let stop = AtomicBool::new(false);
    let (sent, (bytes, time)) = std::thread::scope(|scope| {
        let stop = &stop;
        let sender = scope.spawn(move || -> anyhow::Result<(u64, Box<dyn End>)> {
            let (data, mut total) = (vec![0xa5; block], 0);
            while !stop.load(Ordering::Relaxed) {
                from.write_all(&data)?;
                total += block as u64;
            }
            from.finish()?;
            Ok((total, from))
        });
        let receiver = scope.spawn(move || -> anyhow::Result<(u64, Duration)> {
            let (mut buffer, mut total) = (vec![0; block], 0);
            loop {
                match to.read(&mut buffer)? {
                    0 => return Ok((total, start.elapsed())),
                    count => total += count as u64,
                }
            }
        });
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let (sent, from) = sender.join().expect("no panic")?;
        let received = receiver.join().expect("no panic")?;
        drop(from);
        anyhow::Ok((sent, received))
    })?;
    ensure!(sent == bytes, "{sent} bytes were sent and {bytes} came");
    Ok(Streamed { bytes, time, cpu: cpu()?.saturating_sub(before) })
}

/// One byte there, one byte back, by programs that sleep.
pub fn round_trips(link: &mut dyn Link, length: Duration) -> anyhow::Result<Sample> {
    let [mut from, mut to] = link.connect(false)?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || -> anyhow::Result<()> {
            let mut byte = [0];
            while to.read(&mut byte)? == 1 {
                to.write_all(&byte)?;
            }
            Ok(())
        });
        let (mut byte, mut count) = ([0], 0);
        let start = Instant::now();
        while start.elapsed() < length {
            from.write_all(&[7])?;
            from.read_exact(&mut byte)?;
            count += 1;
        }
        let sample = Sample::rate(count, start.elapsed());
        from.finish()?;
        echo.join().expect("no panic")?;
        Ok(sample)
    })
}
