//! The C library of host programs (`libvmlane_vsock.so`) between a program that calls it in any order and a
//! daemon that answers, sends and writes into the shared rings whatever it likes: no byte outside the
//! program's buffers and the ring, no descriptor kept, no call that does not end. The world around the
//! library is C as well (`host_library/`).
#![allow(unsafe_code)] // a call into C

unsafe extern "C" {
    fn host_library_run(data: *const u8, len: usize) -> i32;
}

pub fn run(data: &[u8]) {
    // SAFETY: it reads `len` bytes at `data` during the call, and one thread of a process calls it.
    unsafe { host_library_run(data.as_ptr(), data.len()) };
}
