//! Host sockets: a process of the host talks to VMs by CID and port, through the daemon.
//!
//! ```no_run
//! use std::io::{Read, Write};
//! let mut stream = vmlane_sock::Stream::connect(3, 5000)?;
//! stream.write_all(b"hello\n")?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer)?;
//! # std::io::Result::Ok(())
//! ```
//! The types are like those of `std::net`. With `set_nonblocking(true)` a [`Stream`]'s descriptor polls
//! readable and writable as the stream is: for `poll`, `epoll`, tokio's `AsyncFd`.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod datagram;
mod listener;
pub mod plain;
mod request;
#[doc(hidden)]
pub mod ring;
mod stream;

pub use datagram::Datagram;
pub use listener::{ANY, Listener};
pub use request::{Host, RUNTIME_DIR_VARIABLE, new_runtime_dir, runtime_dir};
pub use stream::{Address, Stream};
