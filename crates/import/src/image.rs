//! Files of disks: their formats, and the other files that they name.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom};

/// The format of an image. QEMU is always given it: an image whose format QEMU guesses can claim
/// another one, and a backing file of the host with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Raw,
    Vmdk,
    Qcow,
    Qcow2,
    Qed,
    Vdi,
    Vhdx,
    Vpc,
}

impl Format {
    /// As QEMU names it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Vmdk => "vmdk",
            Format::Qcow => "qcow",
            Format::Qcow2 => "qcow2",
            Format::Qed => "qed",
            Format::Vdi => "vdi",
            Format::Vhdx => "vhdx",
            Format::Vpc => "vpc",
        }
    }

    /// Of libvirt's name, or of a file's ending. None: QEMU cannot read it, or should not (`fat` is
    /// a folder of the host).
    pub(crate) fn named(name: &str) -> Option<Format> {
        Some(match name.to_ascii_lowercase().as_str() {
            "raw" | "iso" | "img" => Format::Raw,
            "vmdk" => Format::Vmdk,
            "qcow" => Format::Qcow,
            "qcow2" => Format::Qcow2,
            "qed" => Format::Qed,
            "vdi" => Format::Vdi,
            "vhdx" => Format::Vhdx,
            "vpc" | "vhd" => Format::Vpc,
            _ => return None,
        })
    }

    /// By the ending of a file's name.
    pub(crate) fn of_ending(file: &str) -> Option<Format> {
        Format::named(file.rsplit_once('.')?.1)
    }

    /// May an image of this format name other files, which QEMU opens with it?
    pub fn may_name_files(self) -> bool {
        matches!(self, Format::Vmdk | Format::Qcow | Format::Qcow2 | Format::Qed)
    }
}

/// A file with its format: there is none without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// As the description names it.
    pub file: String,
    pub format: Format,
}

/// Does a name lead out of the folder that it is in: from the root, by `..`, to a drive, or to a
/// protocol of QEMU's?
pub fn is_outside(name: &str) -> bool {
    let name = name.replace('\\', "/");
    let mut parts = name.split('/');
    name.starts_with('/')
        || name.split('/').next().is_some_and(|first| first.contains(':'))
        || parts.any(|part| part == "..")
}

/// Bytes of an image's beginning that are read: qcow2's largest cluster, in which extensions of its header
/// end, and more than QEMU reads of a VMDK's descriptor.
const HEAD: u64 = 2 << 20;
/// Bytes of a name that are read: no file has a longer one.
const LONGEST: u64 = 4096;
const SECTOR: u64 = 512;

/// The other files that QEMU opens with an image: extents and parents of VMDK, backing and data files of
/// qcow2 and QED. The format is the one that the file has, whatever its description has, and names are where
/// QEMU finds them: that may be anywhere in the file.
///
/// # Errors
/// It cannot be read.
pub fn references(image: &mut (impl Read + Seek)) -> io::Result<Vec<String>> {
    let head = read_at(image, 0, HEAD)?;
    let mut names = match head.first_chunk() {
        Some(b"KDMV" | b"COWD") => of_sparse(image, &head)?,
        Some(b"QFI\xfb") => of_qcow2(image, &head)?,
        Some(b"QED\0") => {
            let long = |at: usize| u32::from_le_bytes(number(&head, at));
            name(image, long(56).into(), long(60))?.into_iter().collect()
        }
        // A descriptor needs no heading, but QEMU refuses one without this key.
        _ if c_string(&head).contains("createType") => of_descriptor(&c_string(&head)),
        _ => Vec::new(),
    };
    let mut seen = BTreeSet::new();
    names.retain(|name| !name.is_empty() && seen.insert(name.clone()));
    Ok(names)
}

fn read_at(image: &mut (impl Read + Seek), at: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    image.seek(SeekFrom::Start(at))?;
    image.by_ref().take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of a number.
fn number<const N: usize>(head: &[u8], at: usize) -> [u8; N] {
    head.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Text up to the first zero.
fn c_string(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}

fn name(image: &mut (impl Read + Seek), at: u64, length: u32) -> io::Result<Option<String>> {
    if at == 0 || length == 0 {
        return Ok(None);
    }
    let bytes = read_at(image, at, LONGEST.min(length.into()))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Its descriptor has a parent in any case, and extents where the image itself has no capacity.
fn of_sparse(image: &mut (impl Read + Seek), head: &[u8]) -> io::Result<Vec<String>> {
    let mut names = parents(&c_string(&read_at(image, SECTOR, HEAD)?));
    let (capacity, descriptor) = (u64::from_le_bytes(number(head, 12)), u64::from_le_bytes(number(head, 28)));
    if head.starts_with(b"KDMV") && capacity == 0 && descriptor > 0 {
        let descriptor = read_at(image, descriptor.wrapping_mul(SECTOR), HEAD)?;
        names.extend(of_descriptor(&c_string(&descriptor)));
    }
    Ok(names)
}

/// `RW 4192256 SPARSE "disk-s001.vmdk"`, and parents.
fn of_descriptor(descriptor: &str) -> Vec<String> {
    let extents = descriptor.lines().filter(|line| {
        let access = line.split_whitespace().next();
        access.is_some_and(|access| ["RW", "RDONLY", "NOACCESS"].contains(&access))
    });
    let extents = extents.filter_map(|line| line.split('"').nth(1)).map(str::to_owned);
    extents.chain(parents(descriptor)).collect()
}

/// `parentFileNameHint="base.vmdk"`. QEMU takes what follows two letters behind the key, wherever that is.
fn parents(descriptor: &str) -> Vec<String> {
    let hints = descriptor.split("parentFileNameHint").skip(1);
    hints
        .flat_map(|behind| {
            let after_two = behind.char_indices().nth(2).and_then(|(at, _)| behind.get(at..));
            let quoted = behind.split_once('"').map(|(_, quoted)| quoted);
            [after_two, quoted].into_iter().flatten()
        })
        .filter_map(|name| name.split_once('"').map(|(name, _)| name.to_owned()))
        .collect()
}

fn of_qcow2(image: &mut (impl Read + Seek), head: &[u8]) -> io::Result<Vec<String>> {
    let long = |at: usize| u32::from_be_bytes(number(head, at));
    let backing = name(image, u64::from_be_bytes(number(head, 8)), long(16))?;
    let mut names: Vec<String> = backing.into_iter().collect();
    // Extensions of the header: a kind, a length, and that many bytes, filled up to eight. One names a file
    // with the data.
    let mut at = match long(4) {
        1 => return Ok(names),
        2 => 72,
        _ => long(100) as usize,
    };
    while long(at) != 0 {
        let (kind, length, from) = (long(at), long(at + 4), at + 8);
        if kind == 0x4441_5441 {
            names.extend(name(image, from as u64, length)?);
        }
        at = from + (length as usize).next_multiple_of(8);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_seen() {
        for name in [
            "/etc/passwd",
            "../a",
            "a/../../b",
            "C:\\a.vmdk",
            "..\\a.vmdk",
            "nbd://host/x",
            "json:{}",
            "fat:rw:/",
        ] {
            assert!(is_outside(name), "{name}");
        }
        for name in ["a.vmdk", "sub/a.vmdk", "a..b.vmdk", "./a.vmdk", "a/b:c"] {
            assert!(!is_outside(name), "{name}");
        }
    }

    fn references(image: &[u8]) -> Vec<String> {
        super::references(&mut io::Cursor::new(image)).unwrap()
    }

    const DESCRIPTOR: &str = "# Disk DescriptorFile\nversion=1\ncreateType=\"monolithicFlat\"\n\
        parentFileNameHint=\"/old/base.vmdk\"\nRW 63 FLAT \"/etc/shadow\" 0\nRW 8 ZERO\nRDONLY 4 SPARSE \"d-s002.vmdk\"\n";
    const NAMES: [&str; 3] = ["/etc/shadow", "d-s002.vmdk", "/old/base.vmdk"];

    #[test]
    fn vmdk_names_extents_and_parents() {
        assert_eq!(references(DESCRIPTOR.as_bytes()), NAMES);
        assert!(references(b"RW 63 FLAT \"/etc/shadow\" 0\n").is_empty(), "a raw disk");
        // QEMU finds a parent anywhere in a line, and a descriptor anywhere in a sparse image.
        assert_eq!(references(b"createType=x parentFileNameHint=?/etc/shadow\""), ["/etc/shadow"]);
        let mut sparse = vec![0; 3 << 20];
        sparse[..4].copy_from_slice(b"KDMV");
        sparse[29] = 0x10;
        sparse.splice(2 << 20.., DESCRIPTOR.bytes());
        assert_eq!(references(&sparse), NAMES);
        // With a capacity, it is an extent itself, and has a parent only.
        sparse[12] = 1;
        assert!(references(&sparse).is_empty());
        sparse.splice(512..512 + DESCRIPTOR.len(), DESCRIPTOR.bytes());
        assert_eq!(references(&sparse), ["/old/base.vmdk"]);
    }

    #[test]
    fn qcow2_names_backing_and_data_files() {
        let mut qcow2 = vec![0; 4096];
        qcow2[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        (qcow2[14], qcow2[19], qcow2[103]) = (2, 11, 104);
        qcow2[512..523].copy_from_slice(b"/etc/shadow");
        qcow2[104..117].copy_from_slice(b"DATA\0\0\0\x05/data");
        assert_eq!(references(&qcow2), ["/etc/shadow", "/data"]);
        for cut in 0..600 {
            drop(references(&qcow2[..cut]));
        }
        // The name of the backing file may be far behind the header.
        qcow2.resize(5 << 20, 0);
        (qcow2[13], qcow2[14]) = (0x40, 0);
        qcow2.splice(4 << 20..(4 << 20) + 11, *b"/etc/passwd");
        assert_eq!(references(&qcow2), ["/etc/passwd", "/data"]);
    }
}
