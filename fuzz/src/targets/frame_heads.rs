//! The first bytes of a frame: what it is, whether its sender's requests can be, the headers of its segments,
//! what a receiver with virtio is told. Each is held against a second implementation in `heads`.

use crate::heads::Bench;

thread_local!(static BENCH: std::cell::RefCell<Bench> = std::cell::RefCell::new(Bench::new()));

pub fn run(data: &[u8]) {
    BENCH.with_borrow_mut(|bench| bench.run(data));
}
