//! Writes the "newc" archives that the kernel unpacks as its first root file system.

use std::io::{self, Write};

/// A cpio archive under construction. Segments may be concatenated: the kernel unpacks each.
pub struct Archive<W: Write> {
    out: W,
    inode: u32,
    written: usize,
}

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER: u32 = 0o020_000;

impl<W: Write> Archive<W> {
    pub fn new(out: W) -> Self {
        Self { out, inode: 0, written: 0 }
    }

    pub fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[])
    }

    pub fn file(&mut self, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        self.entry(name, REGULAR | mode, (0, 0), data)
    }

    pub fn character_device(&mut self, name: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(name, CHARACTER | 0o600, (major, minor), &[])
    }

    /// Ends the archive on a 4-byte border, so that another may follow.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let size = u32::try_from(data.len())
            .map_err(|_| io::Error::other(format!("{name} is too large for a cpio archive")))?;
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name.len() as u32 + 1, 0];
        let mut header = String::from("070701");
        for field in fields {
            header += &format!("{field:08X}");
        }
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        self.put(data)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let padding = self.written.next_multiple_of(4) - self.written;
        self.put(&[0; 3][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_named() {
        let mut archive = Archive::new(Vec::new());
        archive.file("init", 0o755, b"#!/bin/sh\n").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..115], b"init\0");
        assert_eq!(&bytes[116..126], b"#!/bin/sh\n");
        assert_eq!(&bytes[128..134], b"070701", "the next entry begins on a border");
        assert_eq!(bytes.len() % 4, 0);
    }
}
