use pcap_file::pcapng::{Block, PcapNgReader};
use vmlane_capture::{Kind, Mark};

use super::*;

fn point(name: &str, kind: &str) -> Point {
    Point::new(&CapturePoint { name: name.into(), kind: kind.into() })
}

fn record(point: u16, mark: Mark, lost: u32) -> Record {
    Record { mark: Mark { point, ..mark }, lost, data: vec![7; 61] }
}

const MARK: Mark = Mark {
    time: 1_700_000_000_123_456_789,
    len: 1514,
    point: 0,
    kind: Kind::Frame,
    direction: Direction::Out,
    dropped: 0,
    partial_checksum: false,
    gso: 0,
};

#[test]
fn what_is_known_of_a_record_is_in_its_block() {
    let mut points = vec![point("web/nic0", "frames"), point("vsock:web", "streams")];
    let mut writer = begin(Vec::new(), &points, 96).unwrap();
    let dropped = DropReason::ForgedSource.number();
    add(&mut writer, &mut points, &record(0, MARK, 0)).unwrap();
    let odd = Mark { direction: Direction::In, dropped, gso: 1448, partial_checksum: true, ..MARK };
    add(&mut writer, &mut points, &record(1, odd, 3)).unwrap();
    assert!(add(&mut writer, &mut points, &record(2, MARK, 0)).is_err(), "there is no such point");
    (points[1].recorded, points[1].lost) = ([1, 1], [2, 3]);
    end(&mut writer, &points, MARK.time).unwrap();

    let bytes = writer.into_inner();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block() {
        blocks.push(block.unwrap().into_owned());
    }
    let [
        Block::InterfaceDescription(frames),
        Block::InterfaceDescription(streams),
        Block::EnhancedPacket(first),
        Block::EnhancedPacket(second),
        Block::InterfaceStatistics(_),
        Block::InterfaceStatistics(counts),
    ] = &blocks[..]
    else {
        panic!("{blocks:?}")
    };
    assert_eq!((frames.linktype, u32::from(streams.linktype)), (DataLink::ETHERNET, VSOCK));
    assert_eq!(frames.snaplen, 96);
    assert!(streams.options.contains(&InterfaceDescriptionOption::IfName("vsock:web".into())));
    assert_eq!((first.timestamp.as_nanos() as u64, first.original_len), (MARK.time, 1514));
    assert_eq!(first.options, [EnhancedPacketOption::Flags(2)]);
    let comment = "dropped: forged_source; gso 1448; checksum not filled in; 3 lost before this one";
    assert_eq!(
        second.options,
        [
            EnhancedPacketOption::Flags(1),
            EnhancedPacketOption::DropCount(3),
            EnhancedPacketOption::Comment(comment.into())
        ]
    );
    for option in [
        InterfaceStatisticsOption::IsbIfRecv(7),
        InterfaceStatisticsOption::IsbOsDrop(5),
        InterfaceStatisticsOption::IsbUsrDeliv(1),
        InterfaceStatisticsOption::Comment("2 lost after the last one".into()),
    ] {
        assert!(counts.options.contains(&option), "{option:?} in {counts:?}");
    }
    let high = (MARK.time >> 32) as u32;
    let at = bytes.windows(4).rposition(|four| four == high.to_ne_bytes()).unwrap();
    assert_eq!(bytes[at + 4..at + 8], (MARK.time as u32).to_ne_bytes(), "the upper half comes first");
}

/// An IPv4 packet of TCP behind its Ethernet header.
fn tcp(vlan: Option<u16>, payload: usize) -> Vec<u8> {
    let mut frame = vec![0x52, 0x54, 0, 0, 0, 4, 0x52, 0x54, 0, 0, 0, 3];
    if let Some(vlan) = vlan {
        frame.extend([0x81, 0, (vlan >> 8) as u8, vlan as u8]);
    }
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(((40 + payload) as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 3, 10, 0, 0, 4]);
    frame.extend([0x13, 0x88, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    frame.resize(frame.len() + payload, 7);
    frame
}

/// `make test` installs tshark; without it there is nothing to compare with.
#[test]
fn tshark_reads_tags_super_frames_and_streams() {
    if std::process::Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("tshark is not installed");
        return;
    }
    let mut points = vec![point("web/nic0", "frames"), point("vsock:web", "streams")];
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = begin(file.reopen().unwrap(), &points, 65_535).unwrap();
    let mut add_frame = |data: Vec<u8>, gso| {
        let mark = Mark { len: data.len() as u32, gso, ..MARK };
        add(&mut writer, &mut points, &Record { mark, lost: 0, data }).unwrap();
    };
    add_frame(tcp(Some(10), 100), 0);
    add_frame(tcp(None, 60_000), 1448);
    let mut stream = [3u64.to_le_bytes(), 4u64.to_le_bytes()].concat();
    stream.extend([5000u32.to_le_bytes(), 6000u32.to_le_bytes()].concat());
    stream.extend([4, 0, 1, 0, 0, 0, 0, 0]);
    stream.extend(b"hello");
    let mark = Mark { len: 37, point: 1, kind: Kind::Stream, ..MARK };
    add(&mut writer, &mut points, &Record { mark, lost: 0, data: stream }).unwrap();
    end(&mut writer, &points, MARK.time).unwrap();

    let fields = [
        "frame.interface_name",
        "frame.comment",
        "vlan.id",
        "tcp.len",
        "vsock.src_cid",
        "vsock.dst_port",
        "vsock.op",
    ];
    let mut tshark = std::process::Command::new("tshark");
    tshark.arg("-r").arg(file.path()).args(["-T", "fields", "-E", "separator=|"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines,
        ["web/nic0||10|100|||", "web/nic0|gso 1448||60000|||", "vsock:web||||3|6000|4"],
        "{err}"
    );
}
