//! AF_VSOCK for programs as they are: `libvmlane_vsock.so`, to be preloaded or linked, the same as an
//! archive, and their header.

/// The shared library. It needs nothing but the C library.
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libvmlane_vsock.so.0"));
/// The library as an archive, for programs that are to carry it. They still need libc as a shared library.
pub static ARCHIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libvmlane_vsock.a"));
/// `vmlane_vsock.h`.
pub static HEADER: &[u8] = include_bytes!("../include/vmlane_vsock.h");
/// The library's file name and SONAME. The number changes when programs have to be linked again.
pub const LIBRARY_NAME: &str = "libvmlane_vsock.so.0";
/// The name by which the linker finds the library: a link.
pub const LINK_NAME: &str = "libvmlane_vsock.so";
/// The archive's file name.
pub const ARCHIVE_NAME: &str = "libvmlane_vsock.a";
/// The header's file name.
pub const HEADER_NAME: &str = "vmlane_vsock.h";
