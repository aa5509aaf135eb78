//! The seams between devices and what joins them.

mod checksums;
mod forwards;
mod frame_port;
mod small_rings;
