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
    for (start, field, len) in [(34, 51, 52), (51, 50, 60), (0, 50, 60), (34, 600, 1500), (34, 1025, 1500)] {
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
