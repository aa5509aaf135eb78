//! Guest memory: shared files mapped into this process, guest addresses translated, bytes copied.
//! The only crate where guest bytes meet `unsafe`.
mod map;
pub use map::*;
