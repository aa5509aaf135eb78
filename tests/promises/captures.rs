//! `vmlane doctor --pcap` before a capture of one gigabyte: judged in bounded memory, and the one fault in it
//! found.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use vmlane_tests::alone::vmlane;
use vmlane_tests::kept;

vmlane_tests::tests! {
    long { a_large_capture_is_judged_in_bounded_memory }
}

const GIB: u64 = 1 << 30;
/// Bytes of memory that the doctor may have at most.
const MEMORY: u64 = 200 << 20;
const CONNECTIONS: u32 = 20_000;
/// Bytes of a frame that are kept; of those of a jumbo frame, half a gigabyte holds five million.
const KEPT: usize = 96;

/// Transfers of many connections at a time, and of one of them each hundredth segment is lost and sent again.
struct Writer {
    file: BufWriter<File>,
    written: u64,
    microseconds: u64,
}

impl Writer {
    fn segment(
        &mut self,
        connection: u32,
        from_a: bool,
        sequence: u32,
        acknowledged: u32,
        bytes: u16,
        kept: usize,
    ) {
        self.microseconds += 2;
        let [one, other] = if from_a { [1, 2] } else { [2, 1] };
        let mut frame = vec![2, 0, 0, 0, 0, other, 2, 0, 0, 0, 0, one, 8, 0];
        let [high, low] = (40 + bytes).to_be_bytes();
        let id = (self.microseconds as u16).to_be_bytes();
        frame.extend([0x45, 0, high, low, id[0], id[1], 0x40, 0, 64, 6, 0, 0]);
        // Different machines: 256 in each of 256 networks would be many more than are followed.
        let [_, net, machine, _] = (connection << 8).to_be_bytes();
        frame.extend([10, net, machine, one, 10, net, machine, other]);
        let ports = if from_a { [40_000_u16, 5001] } else { [5001, 40_000] };
        frame.extend(ports.into_iter().flat_map(u16::to_be_bytes));
        frame.extend(sequence.to_be_bytes());
        frame.extend(acknowledged.to_be_bytes());
        frame.extend([0x50, 0x10, 0x72, 0x10, 0, 0, 0, 0]);
        let length = 54 + u32::from(bytes);
        frame.resize(kept.min(length as usize), 0);
        let head = [
            (self.microseconds / 1_000_000) as u32,
            (self.microseconds % 1_000_000) as u32,
            frame.len() as u32,
            length,
        ];
        for word in head {
            self.file.write_all(&word.to_le_bytes()).unwrap();
        }
        self.file.write_all(&frame).unwrap();
        self.written += 16 + frame.len() as u64;
    }
}

fn write(path: &Path, size: u64) {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.write_all(&word.to_le_bytes()).unwrap();
    }
    let mut writer = Writer { file, written: 24, microseconds: 0 };
    let mut sequence = 1_u32;
    let mut round = 0_u32;
    while writer.written < size {
        // One connection has most of the traffic; the others, thousands of them, come and go.
        for number in 0..64_u32 {
            // A tenth of the frames is in the file as a whole.
            let kept = if number % 10 == 0 { 1514 } else { KEPT };
            let at = sequence.wrapping_add(number * 1460);
            let is_lost = number == 20;
            if !is_lost {
                writer.segment(0, true, at, 1, 1460, kept);
            }
        }
        let lost = sequence.wrapping_add(20 * 1460);
        writer.microseconds += 500;
        for _ in 0..4 {
            writer.segment(0, false, 1, lost, 0, KEPT);
        }
        writer.segment(0, true, lost, 1, 1460, KEPT);
        sequence = sequence.wrapping_add(64 * 1460);
        writer.segment(0, false, 1, sequence, 0, KEPT);
        for _ in 0..16 {
            round += 1;
            let connection = 1 + round % CONNECTIONS;
            let at = 1 + round / CONNECTIONS * 100;
            writer.segment(connection, true, at, 1, 100, KEPT);
            writer.segment(connection, false, 1, at + 100, 0, KEPT);
        }
    }
    writer.file.flush().unwrap();
}

/// The doctor's report on a file of this size; its seconds and its memory.
fn judge(size: u64) -> (Value, f64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pcap");
    write(&path, size);
    let began = Instant::now();
    let mut doctor = vmlane();
    doctor.args(["doctor", "--json", "--pcap"]).arg(&path).stdout(Stdio::piped());
    let child = doctor.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    // The peak is there for as long as the program runs; it prints nothing before its end.
    let watch = std::thread::spawn(move || {
        let mut peak = 0;
        while let Ok(text) = std::fs::read_to_string(&status) {
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let Some(kib) = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()) else {
                break;
            };
            peak = peak.max(kib << 10);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        peak
    });
    let output = child.wait_with_output().unwrap();
    let seconds = began.elapsed().as_secs_f64();
    let peak = watch.join().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    (serde_json::from_slice(&output.stdout).unwrap(), seconds, peak)
}

fn a_large_capture_is_judged_in_bounded_memory() {
    let (report, seconds, peak) = judge(GIB);
    let first = &report["findings"][0];
    assert_eq!(first["check"], "retransmits", "{}", report["findings"]);
    assert!(first["evidence"][0].as_str().unwrap().contains("after duplicate or selective"), "{first}");
    let capture = &report["captures"][0];
    assert!(capture["forgotten"].as_u64().unwrap() > 0, "more connections than are followed at a time");
    assert!(peak > 0 && peak < MEMORY, "{peak} bytes");
    println!("{} packets", capture["packets"]);
    kept(
        "doctor",
        &format!(
            "a capture of 1 GiB is judged in {seconds:.1} s and {} MiB (bar: 30 s, 200 MiB)",
            peak >> 20
        ),
    );
}
