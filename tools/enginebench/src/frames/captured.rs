//! The switch while a capture takes 96 bytes of each frame at its sender's port, and a client takes the
//! records.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmlane_capture::{Filter, Reader, Ring, Tap};
use vmlane_port::wrap::FrameTap;

use crate::report::Sample;

use super::drive::flood;
use super::guest::Load;
use super::switched::Switched;

/// Bytes of each frame, and of the ring (those that `vmlane capture` has without `--buffer`).
const SNAP: usize = 96;
const RING: usize = 8 << 20;

pub fn captured(length: Duration) -> io::Result<Sample> {
    let Switched { mut guests, mut worker, _switch: switch } = Switched::new(2, Load::Full, true);
    let ring = Arc::new(Ring::new(RING, 1).map_err(io::Error::other)?);
    let mut reader = Reader::new(&ring.file().try_clone_to_owned()?).map_err(io::Error::other)?;
    let tap: Arc<dyn FrameTap> = Arc::new(Tap::new(ring.clone(), 0, SNAP, Filter::default()));
    switch.add_tap("vm-0", tap);
    worker.step();
    let over = AtomicBool::new(false);
    let (sample, taken) = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut taken = 0u64;
            loop {
                // Checked first: what was written before is taken.
                let over = over.load(Ordering::Acquire);
                while let Ok(Some(_)) = reader.take() {
                    taken += 1;
                }
                if over {
                    return taken;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let counts = flood(&mut guests, 1, length, || {
            worker.step();
        });
        over.store(true, Ordering::Release);
        (counts.gbits(), client.join().expect("no panic"))
    });
    let counts = ring.counts(0);
    if counts.recorded == 0 || taken + 1 < counts.recorded {
        return Err(io::Error::other(format!("{taken} records arrived of {}", counts.recorded)));
    }
    Ok(sample)
}
