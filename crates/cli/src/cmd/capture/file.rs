//! Records as blocks of a pcapng file.

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::{PcapError, PcapResult};
use vmlane_api::CapturePoint;
use vmlane_capture::{Direction, DropReason, Kind, Record};

/// LINKTYPE_VSOCK.
const VSOCK: u32 = 271;
/// `if_tsresol`: nanoseconds.
const NANOSECONDS: u8 = 9;

/// A point as an interface of the file, and what was counted there.
#[derive(Clone, Debug)]
pub struct Point {
    pub name: String,
    streams: bool,
    /// Written to any file.
    pub written: u64,
    /// Recorded and lost, as the daemon counts; those of daemons before this one first.
    pub recorded: [u64; 2],
    pub lost: [u64; 2],
    /// Of those lost, how many a packet has reported.
    reported_lost: u64,
    /// Its last state.
    pub present: bool,
}

impl Point {
    pub fn new(point: &CapturePoint) -> Point {
        Point {
            name: point.name.clone(),
            streams: point.kind == "streams",
            written: 0,
            recorded: [0; 2],
            lost: [0; 2],
            reported_lost: 0,
            present: true,
        }
    }

    pub fn all_lost(&self) -> u64 {
        self.lost.iter().sum()
    }
}

/// An error of the file, without the words of the library around it.
pub fn plain(error: PcapError) -> anyhow::Error {
    match error {
        PcapError::IoError(error) => error.into(),
        other => other.into(),
    }
}

/// Begins a file: its section, an interface for each point.
pub fn begin<W: Write>(writer: W, points: &[Point], snap: u32) -> PcapResult<PcapNgWriter<W>> {
    let mut writer = PcapNgWriter::new(writer)?;
    for point in points {
        writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: if point.streams { DataLink::from(VSOCK) } else { DataLink::ETHERNET },
            snaplen: snap,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(&point.name)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
    }
    Ok(writer)
}

/// Adds a record. Returns the bytes that it takes.
pub fn add<W: Write>(
    writer: &mut PcapNgWriter<W>,
    points: &mut [Point],
    record: &Record,
) -> anyhow::Result<usize> {
    let mark = &record.mark;
    let point = points.get_mut(usize::from(mark.point)).context("a record of a point that there is not")?;
    let mut options = vec![EnhancedPacketOption::Flags(match mark.direction {
        Direction::In => 1,
        Direction::Out => 2,
    })];
    if record.lost > 0 {
        options.push(EnhancedPacketOption::DropCount(record.lost.into()));
    }
    let comment = comment(record);
    if !comment.is_empty() {
        options.push(EnhancedPacketOption::Comment(Cow::Owned(comment)));
    }
    let block = EnhancedPacketBlock {
        interface_id: mark.point.into(),
        timestamp: Duration::from_nanos(mark.time),
        original_len: mark.len,
        data: Cow::Borrowed(&record.data),
        options,
    };
    let bytes = writer.write_pcapng_block(block).map_err(plain)?;
    point.written += 1;
    point.reported_lost += u64::from(record.lost);
    Ok(bytes)
}

/// What is known about a record and has no field in the file.
pub fn comment(record: &Record) -> String {
    let mark = &record.mark;
    let mut parts = Vec::new();
    match mark.kind {
        Kind::Frame | Kind::Stream => {}
        Kind::Datagram => parts.push("datagram".into()),
        Kind::OfDaemon => parts.push("sent by the daemon".into()),
    }
    if mark.dropped > 0 {
        let reason = DropReason::from_number(mark.dropped).map_or("unknown", DropReason::name);
        parts.push(format!("dropped: {reason}"));
    }
    if mark.gso > 0 {
        parts.push(format!("gso {}", mark.gso));
    }
    if mark.partial_checksum {
        parts.push("checksum not filled in".into());
    }
    if record.lost > 0 {
        parts.push(format!("{} lost before this one", record.lost));
    }
    parts.join("; ")
}

/// Ends a file: what was counted at each point so far.
pub fn end<W: Write>(writer: &mut PcapNgWriter<W>, points: &[Point], now: u64) -> PcapResult<()> {
    for (number, point) in (0..).zip(points) {
        let (recorded, lost) = (point.recorded.iter().sum::<u64>(), point.all_lost());
        let mut options = vec![
            InterfaceStatisticsOption::IsbIfRecv(recorded + lost),
            InterfaceStatisticsOption::IsbOsDrop(lost),
            InterfaceStatisticsOption::IsbUsrDeliv(point.written),
        ];
        if let Some(unreported @ 1..) = lost.checked_sub(point.reported_lost) {
            let text = format!("{unreported} lost after the last one");
            options.push(InterfaceStatisticsOption::Comment(Cow::Owned(text)));
        }
        // The format has the upper half first, in either byte order; the library writes one word.
        let timestamp = if cfg!(target_endian = "little") { now.rotate_left(32) } else { now };
        writer.write_pcapng_block(InterfaceStatisticsBlock { interface_id: number, timestamp, options })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
