//! AF_VSOCK for programs as they are: `libvmlane_vsock.so`, to be preloaded or linked, and its header.

/// The shared library. It needs nothing but the C library.
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libvmlane_vsock.so"));
/// `vmlane_vsock.h`.
pub static HEADER: &[u8] = include_bytes!("../include/vmlane_vsock.h");
/// The library's file name.
pub const LIBRARY_NAME: &str = "libvmlane_vsock.so";
/// The header's file name.
pub const HEADER_NAME: &str = "vmlane_vsock.h";
