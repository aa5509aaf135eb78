//! The C library of host programs (`libvmlane_vsock.so`) between a program that calls it in any order and a daemon that
//! answers, sends and writes into the shared rings whatever it likes: no byte outside the program's buffers and the
//! ring, no descriptor kept, no call that does not end.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| vmlane_fuzz::host_library::run(data));
