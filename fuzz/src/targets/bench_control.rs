//! The benchmark's control messages: whatever a client or a server says is refused or understood, and a
//! report can be made of any result, never a panic.

pub fn run(bytes: &[u8]) {
    vmlane_bench::control::fuzz(bytes);
}
