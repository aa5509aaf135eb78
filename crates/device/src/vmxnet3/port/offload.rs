//! The offload that a frame's first descriptor asks for, checked against the frame.

use vmlane_port::{DropReason, MAX_FRAME, MAX_HEAD, Offload};
use vmlane_wire::ethernet::{HEADER, TAG};
use vmlane_wire::vmxnet3::desc::{OffloadMode, TxDesc};

/// Ethernet, IPv4 and TCP without options.
const MIN_SEGMENT_HEADER: usize = HEADER + 20 + 20;
/// The farthest offset of a checksum field that a driver may name.
const MAX_FIELD: usize = 1024;
/// Segments of one super-frame. TCP's smallest segments (48 bytes) need fewer.
const MAX_SEGMENTS: usize = 2048;

/// What a revision and an MTU allow.
#[derive(Clone, Copy, Debug)]
pub struct TxRules {
    /// Bytes of the longest frame that is not segmented, two in-band tags included.
    pub frame: usize,
    /// Mode 1 means encapsulation (revisions 4 to 6).
    pub encapsulated: bool,
    /// `ext1` means encapsulation (revision 7).
    pub inner: bool,
}

impl TxRules {
    pub fn new(revision: u8, mtu: u16) -> TxRules {
        let frame = usize::from(mtu) + HEADER + 2 * TAG;
        TxRules { frame, encapsulated: (4..=6).contains(&revision), inner: revision >= 7 }
    }

    /// The offload that `first` asks for, of a frame of `len` bytes, or why it cannot be.
    #[inline]
    pub fn check(&self, first: &TxDesc, len: usize) -> Result<Offload, DropReason> {
        let inner = self.inner && first.inner();
        match first.mode() {
            OffloadMode::None => self.limit(len, self.frame).map(|()| Offload::None),
            OffloadMode::Checksum if inner => self.tunnel(first, 0, len),
            OffloadMode::Segment if inner => self.tunnel(first, self.mss(first)?, len),
            OffloadMode::Encapsulated if self.encapsulated => self.tunnel(first, first.mss_or_field(), len),
            OffloadMode::Encapsulated => Err(DropReason::BadOffload),
            OffloadMode::Checksum => self.checksum(first, len),
            OffloadMode::Segment => {
                let (header, mss) = (first.header(), self.mss(first)?);
                self.segments(header, mss, MIN_SEGMENT_HEADER, len)?;
                Ok(Offload::Segment { header, mss })
            }
        }
    }

    #[inline]
    fn limit(&self, len: usize, most: usize) -> Result<(), DropReason> {
        if (HEADER..=most).contains(&len) { Ok(()) } else { Err(DropReason::BadLength) }
    }

    fn mss(&self, first: &TxDesc) -> Result<u16, DropReason> {
        Some(first.mss_or_field()).filter(|&mss| mss > 0).ok_or(DropReason::BadOffload)
    }

    fn checksum(&self, first: &TxDesc, len: usize) -> Result<Offload, DropReason> {
        self.limit(len, self.frame)?;
        let (start, field) = (first.header(), first.mss_or_field());
        let (from, at) = (usize::from(start), usize::from(field));
        let fits = (HEADER..=at).contains(&from) && at <= MAX_FIELD && at + 2 <= len && at + 2 <= MAX_HEAD;
        if fits { Ok(Offload::Checksum { start, field }) } else { Err(DropReason::BadOffload) }
    }

    fn tunnel(&self, first: &TxDesc, mss: u16, len: usize) -> Result<Offload, DropReason> {
        let header = first.header();
        if mss > 0 {
            self.segments(header, mss, MIN_SEGMENT_HEADER, len)?;
        } else {
            self.limit(len, self.frame)?;
            // A packet may be all headers: a SYN, an acknowledgement.
            self.header(header, HEADER + 1, len + 1)?;
        }
        Ok(Offload::Tunnel { header, mss, outer_sum: first.outer_sum() })
    }

    fn segments(&self, header: u16, mss: u16, least: usize, len: usize) -> Result<(), DropReason> {
        self.limit(len, MAX_FRAME)?;
        self.header(header, least, len)?;
        let segments = (len - usize::from(header)).div_ceil(usize::from(mss));
        if segments <= MAX_SEGMENTS { Ok(()) } else { Err(DropReason::BadOffload) }
    }

    /// Headers end before byte `len`.
    fn header(&self, header: u16, least: usize, len: usize) -> Result<(), DropReason> {
        let header = usize::from(header);
        let fits = header >= least && header <= MAX_HEAD && header < len;
        if fits { Ok(()) } else { Err(DropReason::BadOffload) }
    }
}

#[cfg(test)]
mod tests {
    use vmlane_guestsim::nic::desc::{TxFields as _, tx_desc};

    use super::*;

    fn asking(mode: OffloadMode, header: u16, mss: u16) -> TxDesc {
        tx_desc(0, 1).with_offload(mode, header, mss)
    }

    #[test]
    fn offloads_that_cannot_be_are_refused() {
        let rules = TxRules::new(4, 1500);
        let checksum = |start, field, len| rules.check(&asking(OffloadMode::Checksum, start, field), len);
        assert_eq!(checksum(34, 50, 52), Ok(Offload::Checksum { start: 34, field: 50 }));
        for (start, field, len) in
            [(34, 51, 52), (51, 50, 60), (0, 50, 60), (34, 600, 1500), (34, 1025, 1500)]
        {
            assert_eq!(checksum(start, field, len), Err(DropReason::BadOffload), "{start} {field} {len}");
        }
        let segment = |header, mss, len| rules.check(&asking(OffloadMode::Segment, header, mss), len);
        assert_eq!(segment(54, 1448, 65000), Ok(Offload::Segment { header: 54, mss: 1448 }));
        for (header, mss, len) in
            [(54, 0, 1000), (54, 100, 54), (40, 100, 1000), (600, 100, 1000), (54, 1, 60000)]
        {
            assert_eq!(segment(header, mss, len), Err(DropReason::BadOffload), "{header} {mss} {len}");
        }
        assert_eq!(segment(54, 1448, MAX_FRAME + 1), Err(DropReason::BadLength));
    }

    #[test]
    fn cve_2015_8744_a_frame_shorter_than_its_header() {
        let rules = TxRules::new(1, 1500);
        for len in 1..HEADER {
            assert_eq!(rules.check(&tx_desc(0, len), len), Err(DropReason::BadLength));
        }
        assert_eq!(rules.check(&tx_desc(0, 14), HEADER), Ok(Offload::None));
    }

    #[test]
    fn encapsulation_by_revision() {
        let old = asking(OffloadMode::Encapsulated, 104, 1400);
        for revision in 1..=7 {
            let got = TxRules::new(revision, 1500).check(&old, 20000);
            assert_eq!(got.is_ok(), (4..=6).contains(&revision), "revision {revision}");
        }
        let new = asking(OffloadMode::Segment, 104, 1400).with_inner().with_outer_sum();
        let tunnel = Offload::Tunnel { header: 104, mss: 1400, outer_sum: true };
        assert_eq!(TxRules::new(7, 1500).check(&new, 20000), Ok(tunnel));
        assert_eq!(TxRules::new(6, 1500).check(&new, 20000), Ok(Offload::Segment { header: 104, mss: 1400 }));
        let sum = asking(OffloadMode::Checksum, 104, 120).with_inner();
        let tunnel = Offload::Tunnel { header: 104, mss: 0, outer_sum: false };
        for len in [104, 1000] {
            assert_eq!(TxRules::new(7, 1500).check(&sum, len), Ok(tunnel), "{len}");
        }
        assert_eq!(TxRules::new(7, 1500).check(&sum, 103), Err(DropReason::BadOffload));
    }
}
