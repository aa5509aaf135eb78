//! Packets of a capture file, one after another: pcap and pcapng, of either byte order and any resolution of
//! time.
//!
//! Only headers are examined, and never more of the file is in memory than one buffer holds. A file may come
//! from anyone: a damaged one is read as far as it goes.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{PcapNgReader, RawBlock};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

/// Interfaces of a pcapng file that are distinguished.
pub const MOST_INTERFACES: usize = 256;

/// Types of blocks of pcapng.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// A packet in a form of before 2004, and one without a time.
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// A packet as the file has it.
pub struct Packet<'a> {
    /// The interface of the file that recorded it; a pcap file has one.
    pub interface: u16,
    pub link: DataLink,
    /// Nanoseconds since 1970.
    pub time: i64,
    /// Bytes of the frame, of which perhaps fewer were kept.
    pub length: u32,
    pub bytes: &'a [u8],
}

/// How the reading ended.
#[derive(Debug, Default)]
pub struct FileEnd {
    /// Where the file cannot be read any further, and why; none: it was read as a whole.
    pub early: Option<String>,
    /// Packets that were passed over: without a time, or of no interface.
    pub passed_over: u64,
}

/// Calls `each` with every packet. An error is a file that is no capture at all.
pub fn read(path: &Path, each: &mut dyn FnMut(Packet<'_>)) -> Result<FileEnd, String> {
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    read_from(file, each).map_err(|why| format!("{}: {why}", path.display()))
}

/// The same of anything that can be read.
pub fn read_from(mut file: impl Read, each: &mut dyn FnMut(Packet<'_>)) -> Result<FileEnd, String> {
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(|error| format!("no capture: {error}"))?;
    let whole = io::Cursor::new(magic).chain(file);
    let ended = match u32::from_be_bytes(magic) {
        SECTION => pcapng(whole, each),
        0xa1b2_c3d4 | 0xd4c3_b2a1 | 0xa1b2_3c4d | 0x4d3c_b2a1 => pcap(whole, each),
        other => Err(format!("no capture: it begins with {other:#010x}; pcap and pcapng are read")),
    };
    ended.map_err(|why| format!("not readable as a capture: {why}"))
}

fn pcap(file: impl Read, each: &mut dyn FnMut(Packet<'_>)) -> Result<FileEnd, String> {
    let mut reader = PcapReader::new(file).map_err(|error| error.to_string())?;
    let header = reader.header();
    let unit = if header.ts_resolution == TsResolution::MicroSecond { 1000 } else { 1 };
    let mut count = 0_u64;
    // Not the checked packets: those refuse a packet longer than the file's limit, which any packet is that
    // was cut.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => return Ok(FileEnd { early: Some(early(count, &error)), passed_over: 0 }),
        };
        count += 1;
        each(Packet {
            interface: 0,
            link: header.datalink,
            time: i64::from(packet.ts_sec) * 1_000_000_000 + i64::from(packet.ts_frac) * unit,
            length: packet.orig_len.max(packet.incl_len),
            bytes: &packet.data,
        });
    }
    Ok(FileEnd::default())
}

fn pcapng(file: impl Read, each: &mut dyn FnMut(Packet<'_>)) -> Result<FileEnd, String> {
    let mut reader = PcapNgReader::new(file).map_err(|error| error.to_string())?;
    let mut interfaces: Vec<(DataLink, Clock)> = Vec::new();
    let (mut count, mut passed_over) = (0_u64, 0_u64);
    loop {
        let header = match reader.next_raw_block() {
            None => return Ok(FileEnd { early: None, passed_over }),
            Some(Err(error)) => return Ok(FileEnd { early: Some(early(count, &error)), passed_over }),
            Some(Ok(block)) if block.type_ == ENHANCED_PACKET => {
                // The block borrows the reader, whose interfaces are known from the blocks before.
                count += 1;
                match enhanced(&block, &interfaces) {
                    Some(packet) => each(packet),
                    None => passed_over += 1,
                }
                continue;
            }
            Some(Ok(block)) if matches!(block.type_, OLD_PACKET | SIMPLE_PACKET) => {
                (count, passed_over) = (count + 1, passed_over + 1);
                continue;
            }
            Some(Ok(block)) => block.type_,
        };
        if header == INTERFACE || header == SECTION {
            let known = reader.interfaces();
            if known.len() > MOST_INTERFACES {
                let why = format!("after {count} packets: more than {MOST_INTERFACES} interfaces");
                return Ok(FileEnd { early: Some(why), passed_over });
            }
            let order = reader.section().endianness;
            interfaces = known.iter().map(|one| (one.linktype, Clock::of(order, &one.options))).collect();
        }
    }
}

fn early(count: u64, error: &PcapError) -> String {
    match error {
        PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("after {count} packets, in the middle of one")
        }
        error => format!("after {count} packets: {error}"),
    }
}

/// An enhanced packet block: interface, time (two words), bytes kept, bytes of the frame, then the frame.
/// Options, which follow, play no part.
fn enhanced<'a>(block: &'a RawBlock<'_>, interfaces: &[(DataLink, Clock)]) -> Option<Packet<'a>> {
    let body: &'a [u8] = match &block.body {
        Cow::Borrowed(body) => body,
        Cow::Owned(body) => body,
    };
    // All interfaces of a section have its byte order; a packet without an interface has no meaning.
    let order = interfaces.first()?.1.order;
    let word = |at: usize| -> Option<u32> {
        let word = *body.get(at * 4..)?.first_chunk::<4>()?;
        Some(match order {
            Endianness::Big => u32::from_be_bytes(word),
            Endianness::Little => u32::from_le_bytes(word),
        })
    };
    let number = word(0)?;
    let (link, clock) = *interfaces.get(number as usize)?;
    let kept = word(3)?;
    let frame = body.get(20..)?.get(..kept as usize)?;
    Some(Packet {
        interface: u16::try_from(number).ok()?,
        link,
        time: clock.nanoseconds(u64::from(word(1)?) << 32 | u64::from(word(2)?)),
        length: word(4)?.max(kept),
        bytes: frame,
    })
}

/// `if_tsresol`: a power of ten, or of two if the top bit is set.
#[derive(Clone, Copy)]
struct Clock {
    order: Endianness,
    units_per_second: u64,
}

impl Clock {
    fn of(order: Endianness, options: &[InterfaceDescriptionOption<'_>]) -> Clock {
        let resolution = options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        let resolution = resolution.unwrap_or(6);
        let power = u32::from(resolution & 0x7f);
        let units = if resolution & 0x80 == 0 { 10_u64.checked_pow(power) } else { 1_u64.checked_shl(power) };
        Clock { order, units_per_second: units.unwrap_or(1_000_000).max(1) }
    }

    fn nanoseconds(self, units: u64) -> i64 {
        let nanoseconds = u128::from(units) * 1_000_000_000 / u128::from(self.units_per_second);
        i64::try_from(nanoseconds).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(bytes: &[u8]) -> Result<(usize, bool), String> {
        let mut packets = 0;
        let end = read_from(bytes, &mut |_| packets += 1)?;
        Ok((packets, end.early.is_none()))
    }

    fn pcap_of(packets: &[&[u8]]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 64, 1] {
            file.extend(word.to_le_bytes());
        }
        for packet in packets {
            for word in [7, 5, packet.len() as u32, 9000] {
                file.extend(word.to_le_bytes());
            }
            file.extend(*packet);
        }
        file
    }

    #[test]
    fn a_file_is_read_as_far_as_it_goes() {
        let file = pcap_of(&[&[1; 60], &[2; 60]]);
        let mut seen = Vec::new();
        read_from(&file[..], &mut |packet| seen.push((packet.time, packet.length, packet.bytes.len())))
            .unwrap();
        assert_eq!(seen, [(7_000_005_000, 9000, 60); 2], "cut ones, too");
        assert_eq!(count(&file[..file.len() - 7]), Ok((1, false)));
        assert!(count(b"PK\x03\x04").is_err() && count(b"").is_err() && count(&file[..20]).is_err());
    }

    #[test]
    fn times_of_any_resolution_are_nanoseconds() {
        let clock =
            |resolution| Clock::of(Endianness::Big, &[InterfaceDescriptionOption::IfTsResol(resolution)]);
        assert_eq!(clock(6).nanoseconds(1_500_000), 1_500_000_000);
        assert_eq!(clock(9).nanoseconds(42), 42);
        assert_eq!(clock(0x80 | 10).nanoseconds(512), 500_000_000);
        assert_eq!(clock(0x7f).nanoseconds(5), 5000, "what cannot be is taken for the default");
        assert_eq!(clock(0).nanoseconds(u64::MAX), i64::MAX);
    }

    /// A block without a time, one of an interface that there is not, and one of before 2004.
    #[test]
    fn packets_that_are_passed_over_are_counted() {
        let mut words = vec![SECTION, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
        words.extend([INTERFACE, 20, 1, 0, 20]);
        words.extend([SIMPLE_PACKET, 20, 4, 7, 20]);
        words.extend([ENHANCED_PACKET, 32, 5, 0, 0, 0, 0, 32]);
        words.extend([OLD_PACKET, 32, 0, 0, 0, 0, 0, 32]);
        words.extend([ENHANCED_PACKET, 32, 0, 0, 0, 0, 0, 32]);
        let file: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let mut packets = 0;
        let end = read_from(&file[..], &mut |_| packets += 1).unwrap();
        assert_eq!((packets, end.passed_over, end.early), (1, 3, None));
    }

    #[test]
    fn a_file_of_too_many_interfaces_is_read_until_there() {
        let file = |interfaces: usize| {
            let mut words = vec![SECTION, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
            words.extend([INTERFACE, 20, 1, 0, 20].repeat(interfaces));
            words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
        };
        assert_eq!(count(&file(MOST_INTERFACES)), Ok((0, true)));
        assert_eq!(count(&file(MOST_INTERFACES + 1)), Ok((0, false)));
    }
}
