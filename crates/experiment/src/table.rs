//! Results as lines of text: while a sweep goes, and at its end.

use crate::rows::Row;
use crate::summary::{Key, OURS, Summary};
use crate::units::{number, size, unit};

/// Terminals are often no wider.
const WIDEST: usize = 119;
/// The column of the message size.
const FIRST: usize = 9;

/// A name in two lines, broken where it is narrowest.
fn halves(name: &str) -> [String; 2] {
    let breaks = name.match_indices(['-', ':', ',']).map(|(at, _)| at + 1);
    let best = breaks.min_by_key(|at| (*at).max(name.len() - at));
    match best.filter(|_| name.len() > 10) {
        Some(at) => [name[..at].to_owned(), name[at..].to_owned()],
        None => [String::new(), name.to_owned()],
    }
}

/// The columns of devices that fit side by side: the widths of each, its two blanks in front included.
fn blocks<'d>(devices: &[&'d str]) -> Vec<Vec<(&'d str, usize)>> {
    let width = |name: &str| halves(name).map(|half| half.len()).into_iter().fold(12, usize::max) + 2;
    let mut blocks: Vec<Vec<(&str, usize)>> = vec![Vec::new()];
    let mut used = FIRST + width(OURS);
    for name in devices {
        let wide = width(name);
        if used + wide > WIDEST && blocks.last().is_some_and(|block| !block.is_empty()) {
            blocks.push(Vec::new());
            used = FIRST + width(OURS);
        }
        used += wide;
        blocks.last_mut().expect("there is always one").push((name, wide));
    }
    blocks
}

/// What a device did in a combination, and our ratio to it.
fn cell(summary: &Summary, key: &Key, device: &str) -> String {
    let (_, scale) = unit(&key.test);
    let Some(spread) = summary.get(key, device) else {
        return if summary.was_tried(key, device) { "failed".into() } else { "-".into() };
    };
    let ratio = summary.ratio(key, device).filter(|_| device != OURS);
    let ratio = ratio.map_or(String::new(), |ratio| format!(" {:>5}", format!("{}x", number(ratio))));
    number(spread.median / scale) + &ratio
}

/// What the rows of one part of the table have in common.
fn heading(key: &Key) -> String {
    let sessions =
        if key.sessions == 1 { "1 session".to_owned() } else { format!("{} sessions", key.sessions) };
    let buffer =
        key.send_buffer.map_or("default buffers".into(), |count| format!("buffers of {}", size(count)));
    format!("{}, {sessions}, {buffer}, {}:", key.test, unit(&key.test).0)
}

fn line(first: &str, cells: impl Iterator<Item = (String, usize)>) -> String {
    let mut text = format!("{first:>FIRST$}");
    for (cell, width) in cells {
        text += &format!("{cell:>width$}");
    }
    text.trim_end().to_owned() + "\n"
}

/// Everything, and what the numbers are; no line is wider than a terminal of 120 columns.
pub fn whole(rows: &[Row]) -> String {
    let summary = Summary::of(rows);
    let others: Vec<&str> = summary.others().collect();
    let mut text = String::new();
    for mut block in blocks(&others) {
        block.insert(0, (OURS, 14));
        for half in 0..2 {
            let names = block.iter().map(|(name, width)| (halves(name)[half].clone(), *width));
            text += &line(if half == 1 { "message" } else { "" }, names);
        }
        for test in ["stream", "rr"] {
            let mut before: Option<String> = None;
            for key in summary.keys(test) {
                let heading = heading(key);
                if before.as_ref() != Some(&heading) {
                    text += &format!("{heading}\n");
                }
                let cells = block.iter().map(|(device, width)| (cell(&summary, key, device), *width));
                text += &line(&size(key.message_bytes), cells);
                before = Some(heading);
            }
        }
        text.push('\n');
    }
    let runs = rows.iter().map(|row| row.run).max().unwrap_or(0);
    text += &format!("Medians of {runs} runs; behind each, how many times as much {OURS} moved.\n");
    let failed = rows.iter().filter(|row| row.failed.is_some()).count();
    if failed > 0 {
        text += &format!("{failed} of {} runs failed.\n", rows.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers() {
        assert_eq!([0, 512, 4096, 1536, 2 << 20].map(size), ["0", "512", "4k", "1536", "2M"]);
        assert_eq!([1.234, 9.999, 12.34, 99.96, 4321.4].map(number), ["1.23", "10.0", "12.3", "100", "4321"]);
    }

    fn row(device: &str, bps: Option<f64>) -> Row {
        Row {
            device: device.into(),
            test: "stream".into(),
            message_bytes: 4096,
            send_buffer: Some(65536),
            sessions: 5,
            throughput_bps: bps,
            failed: bps.is_none().then(|| "why".into()),
            ..Row::default()
        }
    }

    #[test]
    fn a_line_has_medians_and_ratios_and_says_what_failed() {
        let elsewhere = Row { sessions: 1, ..row("qemu-c", Some(1e8)) };
        let text = whole(&[row("vmci", Some(9e8)), row("qemu-a", Some(3e8)), row("qemu-b", None), elsewhere]);
        assert!(text.contains("stream, 5 sessions, buffers of 64k, Mbit/s:"), "{text}");
        let words: Vec<&str> = text.lines().nth(5).unwrap().split_whitespace().collect();
        assert_eq!(words, ["4k", "900", "300", "3.00x", "failed", "-"]);
        assert!(text.ends_with("1 of 4 runs failed.\n"), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_a_terminal_whatever_the_devices_are_called() {
        let names = [
            "vmci",
            "virtio-vsock",
            "vmxnet3",
            "virtio-net",
            "qemu-virtio-net",
            "qemu-vmxnet3",
            "qemu-e1000",
            "vmxnet3:profile=vmxnet2-class,queues=8",
            "vhost-device-vsock",
            "qemu-e1000e",
            "uml-vector",
        ];
        for count in 1..=names.len() {
            let rows: Vec<Row> = names[..count].iter().map(|name| row(name, Some(1.234e13))).collect();
            let text = whole(&rows);
            assert!(text.lines().all(|line| line.len() < 120), "{text}");
            // Each has its column, whatever block it stands in.
            assert_eq!(text.matches("1.00x").count(), count - 1, "{text}");
        }
    }
}
