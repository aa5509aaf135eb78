//! The first bytes of a frame: what it is, whether its sender's requests can be, the headers of its segments,
//! what a receiver with virtio is told. Each is held against a second implementation in `vmlane_fuzz::heads`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vmlane_fuzz::heads::Bench;

thread_local!(static BENCH: std::cell::RefCell<Bench> = std::cell::RefCell::new(Bench::new()));

fuzz_target!(|data: &[u8]| BENCH.with_borrow_mut(|bench| bench.run(data)));
