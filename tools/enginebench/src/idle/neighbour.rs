//! A program that takes 5 % of a core, in slices of 1 ms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::baseline::Cpus;

const SLICE: Duration = Duration::from_millis(1);
const EVERY: Duration = Duration::from_millis(20);

/// It runs until this is dropped.
pub struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// On the `index`th CPU.
    pub fn start(cpus: Cpus, index: usize) -> std::io::Result<Neighbour> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("neighbour".into()).spawn(move || {
            let _placed = cpus.pin(index);
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(EVERY - SLICE);
                let start = Instant::now();
                while start.elapsed() < SLICE {
                    std::hint::spin_loop();
                }
            }
        })?;
        Ok(Neighbour { stop, thread: Some(thread) })
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it does not panic
        }
    }
}
