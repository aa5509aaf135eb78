//! Cuts an ELF file to what the kernel loads: the guests' copy needs no debug sections.

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
    fn this_program_shrinks_and_scripts_stay() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let length = whole.len();
        let cut = loadable(whole);
        assert!(cut.len() < length, "a test binary has sections past its segments");
        assert_eq!(loadable(b"#!/bin/sh\n".to_vec()), b"#!/bin/sh\n");
    }
}
