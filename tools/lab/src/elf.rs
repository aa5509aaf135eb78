//! Cuts an ELF file to what the kernel loads: the guests' copy needs no debug sections. And gives one another
//! loader.

use anyhow::{Context, Result, ensure};

/// The bytes of `elf` up to the end of its last segment, with the section table unlinked.
/// Anything that is not a 64-bit little-endian ELF file comes back whole.
pub fn loadable(mut elf: Vec<u8>) -> Vec<u8> {
    if let Some(end) = loaded_end(&elf) {
        elf.truncate(end);
        elf[0x28..0x30].fill(0); // e_shoff
        elf[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
    }
    elf
}

/// The program with `loader` in the place of its own, whose name must not be shorter. A relative name is
/// found from where the program is started.
pub fn with_loader(mut elf: Vec<u8>, loader: &str) -> Result<Vec<u8>> {
    let name = interpreter(&elf).context("no dynamic ELF program")?;
    ensure!(loader.len() < name.len(), "the loader's name {loader:?} is too long for the program");
    elf[name.clone()].fill(0);
    elf[name.start..name.start + loader.len()].copy_from_slice(loader.as_bytes());
    Ok(elf)
}

/// Where the loader's name is, by PT_INTERP.
fn interpreter(elf: &[u8]) -> Option<std::ops::Range<usize>> {
    const PT_INTERP: u64 = 3;
    let word = |at: usize, bytes: usize| -> Option<u64> {
        let slice = elf.get(at..at.checked_add(bytes)?)?;
        Some(slice.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    elf.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let (table, entry, count) = (word(0x20, 8)? as usize, word(0x36, 2)? as usize, word(0x38, 2)? as usize);
    let headers = (0..count).map(|index| table.saturating_add(index * entry));
    let header = headers.into_iter().find(|&at| word(at, 4) == Some(PT_INTERP))?;
    let start = word(header.checked_add(8)?, 8)? as usize;
    let end = start.checked_add(word(header.checked_add(0x20)?, 8)? as usize)?;
    (end <= elf.len() && start < end).then_some(start..end)
}

fn loaded_end(elf: &[u8]) -> Option<usize> {
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let u64_at =
        |at: usize| Some(u64::from_le_bytes(elf.get(at..at.checked_add(8)?)?.try_into().ok()?) as usize);
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?)));
    let (table, entry, count) = (u64_at(0x20)?, u16_at(0x36)?, u16_at(0x38)?);
    let mut end = table.checked_add(entry.checked_mul(count)?)?;
    for index in 0..count {
        let header = table + index * entry;
        end = end.max(u64_at(header + 8)?.checked_add(u64_at(header + 0x20)?)?);
    }
    (end <= elf.len() && end >= 0x40).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_another_loader() {
        let mut elf = vec![0; 0x100];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[0x20], elf[0x36], elf[0x38]) = (0x40, 0x38, 1);
        (elf[0x40], elf[0x48], elf[0x60]) = (3, 0x80, 16);
        elf[0x80..0x90].copy_from_slice(b"/lib64/ld-x.so.\0");
        let changed = with_loader(elf.clone(), "lib64/ld-x.so").unwrap();
        assert_eq!(&changed[0x80..0x90], b"lib64/ld-x.so\0\0\0");
        assert!(with_loader(elf.clone(), "/lib64/ld-long.so").is_err());
        elf[0x48] = 0xf8;
        assert!(with_loader(elf, "x").is_err(), "beyond the end");
        assert!(with_loader(b"#!/bin/sh\n".to_vec(), "x").is_err());
    }

    #[test]
    fn this_program_shrinks_and_scripts_stay() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let length = whole.len();
        let cut = loadable(whole);
        assert!(cut.len() < length, "a test binary has sections past its segments");
        assert_eq!(loadable(b"#!/bin/sh\n".to_vec()), b"#!/bin/sh\n");
    }
}
