//! The seams between devices and what joins them.

mod forwards;
mod frame_port;
mod small_rings;
