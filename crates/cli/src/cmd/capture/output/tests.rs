use vmlane_api::CapturePoint;
use vmlane_capture::{Direction, Kind, Mark};

use super::*;

fn files(size: Option<u64>, count: Option<u32>, path: PathBuf) -> Files {
    Files { path, size, count }
}

fn names(files: &Files, count: u64) -> Vec<String> {
    (0..count).map(|number| files.name(number).display().to_string()).collect()
}

fn record() -> Record {
    let mark = Mark {
        time: 1,
        len: 1000,
        point: 0,
        kind: Kind::Frame,
        direction: Direction::In,
        dropped: 0,
        partial_checksum: false,
        gso: 0,
    };
    Record { mark, lost: 0, data: vec![1; 1000] }
}

fn points() -> Vec<Point> {
    vec![Point::new(&CapturePoint { name: "lan".into(), kind: "frames".into() })]
}

#[test]
fn files_are_named_as_tcpdump_names_them() {
    let path = || PathBuf::from("x.pcapng");
    assert_eq!(names(&files(Some(1), None, path()), 3), ["x.pcapng", "x.pcapng1", "x.pcapng2"]);
    assert_eq!(names(&files(Some(1), Some(2), path()), 3), ["x.pcapng0", "x.pcapng1", "x.pcapng0"]);
    assert_eq!(names(&files(Some(1), Some(11), path()), 2), ["x.pcapng00", "x.pcapng01"]);
    assert_eq!(names(&files(Some(1), Some(1), path()), 2), ["x.pcapng", "x.pcapng"]);
}

#[test]
fn a_ring_of_files_has_so_many_and_each_can_be_read_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut output =
        Output::new(files(Some(5000), Some(3), folder.path().join("x")), points(), 65_535).unwrap();
    for _ in 0..23 {
        assert!(output.add(&record()).unwrap());
    }
    output.finish().unwrap();
    let mut packets = Vec::new();
    for number in 0..3 {
        let bytes = std::fs::read(folder.path().join(format!("x{number}"))).unwrap();
        let mut reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]).unwrap();
        let mut count = 0;
        let mut counted = false;
        while let Some(block) = reader.next_block() {
            let block = block.unwrap();
            count += usize::from(matches!(block, pcap_file::pcapng::Block::EnhancedPacket(_)));
            counted |= matches!(block, pcap_file::pcapng::Block::InterfaceStatistics(_));
        }
        assert!(counted, "each file has its counts");
        packets.push(count);
    }
    assert_eq!(packets, [5, 3, 5], "five a file, the fourth and fifth in place of the first and second");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_full_disk_ends_it_with_the_name_of_the_file() {
    let files = files(None, None, "/dev/full".into());
    let mut output = Output::new(files, points(), 65_535).unwrap();
    let error = (0..1000).find_map(|_| output.add(&record()).err()).unwrap();
    assert!(format!("{error:#}").contains("No space left"), "{error:#}");
    assert_eq!(output.place(), "/dev/full");
    let error =
        Output::new(Files { path: "/nowhere/x".into(), size: None, count: None }, points(), 1).err().unwrap();
    assert!(format!("{error:#}").contains("creating /nowhere/x"), "{error:#}");
}
