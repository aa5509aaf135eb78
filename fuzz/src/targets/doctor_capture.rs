//! Captures: any file is refused or judged, in bounded memory, and what is said of it is text without control
//! characters. The first byte chooses whether the rest is a file or frames, which a file is then made of.

use vmlane_doctor::Diagnosis;
use vmlane_doctor::capture::read_bytes;
use vmlane_doctor::evidence::Evidence;

pub fn run(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let made = if kind % 4 == 0 { rest.to_vec() } else { of_frames(*kind, rest) };
    let Ok(capture) = read_bytes("fuzz", &made) else { return };
    assert!(capture.ways.len() <= 512 && capture.conflicts.len() <= 16);
    // The same once more is the other end's.
    let captures = vec![capture.clone(), capture];
    let diagnosis = Diagnosis::new(Evidence { captures, ..Evidence::default() }, 0.0);
    let text = diagnosis.text();
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
    serde_json::from_str::<serde_json::Value>(&diagnosis.json()).expect("a line of JSON");
}

/// Segments of one connection: each takes ten bytes, which say when it comes and what it is. Most of what a
/// mutation changes then is the connection and not the file.
fn of_frames(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 128, 1] {
        file.extend(word.to_le_bytes());
    }
    let mut time = 0_u64;
    for step in bytes.chunks_exact(10) {
        let [what, wait, a, b, c, d, window, size, id, option] = *step else { continue };
        time += u64::from(wait) << (what >> 4);
        let from = usize::from(what & 1);
        let payload = u16::from(size) << (kind >> 4);
        let options: Vec<u8> = match option % 4 {
            0 => Vec::new(),
            1 => vec![2, 4, 5, 0xb4, 3, 3, option >> 4, 0],
            2 => vec![1, 1, 5, 10, 0, 0, a, b, 0, 0, c, d],
            _ => vec![option, size, a, b],
        };
        let header = 20 + options.len();
        let total = (20 + header) as u16 + payload;
        let mut frame = vec![2, 0, 0, 0, 0, 1 - from as u8, 2, 0, 0, 0, 0, from as u8, 8, 0];
        let [high, low] = total.to_be_bytes();
        frame.extend([0x45, 0, high, low, 0, id, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([10, 0, 0, from as u8, 10, 0, 0, 1 - from as u8]);
        let ports = if from == 0 { [0, 7, 0, 9] } else { [0, 9, 0, 7] };
        frame.extend(ports);
        frame.extend([0, 0, a, b, 0, 0, c, d, ((header / 4) as u8) << 4, what & 0x17, window, 0, 0, 0, 0, 0]);
        frame.extend(&options);
        let words =
            [(time / 1_000_000) as u32, (time % 1_000_000) as u32, frame.len() as u32, 14 + u32::from(total)];
        file.extend(words.into_iter().flat_map(u32::to_le_bytes));
        file.extend(frame);
    }
    file
}
