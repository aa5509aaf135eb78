//! Results as lines of text: while a sweep goes, and at its end.

use crate::rows::Row;
use crate::summary::{Key, OURS, Summary};
use crate::units::{number, size, unit};

/// A line of columns; the heading has the same widths.
fn line(cells: &[String]) -> String {
    let mut text = String::new();
    for (at, cell) in cells.iter().enumerate() {
        // After the devices' columns come their ratios'.
        let device = if at % 2 == 1 || at == 4 { 15 } else { 7 };
        let width = [6, 8, 7, 8].get(at).copied().unwrap_or(device);
        text += &format!("{cell:>width$}  ");
    }
    text.trim_end().to_owned()
}

/// The column names; devices are named as the lab names them.
pub fn heading(others: &[&str]) -> String {
    let mut cells: Vec<String> = ["test", "sessions", "buffer", "message"].map(str::to_owned).to_vec();
    cells.push(format!("{OURS} Mbit/s"));
    for other in others {
        cells.push((*other).to_owned());
        cells.push("ratio".to_owned());
    }
    line(&cells)
}

/// One combination: medians and ratios.
pub fn combination(summary: &Summary, key: &Key, others: &[&str]) -> String {
    let (name, scale) = unit(&key.test);
    let shown = |device: &str| match summary.get(key, device) {
        Some(spread) if scale == 1.0 => format!("{} {name}", number(spread.median)),
        Some(spread) => number(spread.median / scale),
        None if summary.was_tried(key, device) => "failed".into(),
        None => "-".into(),
    };
    let buffer = key.send_buffer.map_or("default".into(), size);
    let mut cells = vec![key.test.clone(), key.sessions.to_string(), buffer, size(key.message_bytes)];
    cells.push(shown(OURS));
    for other in others {
        cells.push(shown(other));
        cells.push(summary.ratio(key, other).map_or("-".into(), |ratio| format!("{}x", number(ratio))));
    }
    line(&cells)
}

/// Everything, and what the numbers are.
pub fn whole(rows: &[Row]) -> String {
    let summary = Summary::of(rows);
    let others: Vec<&str> = summary.others().collect();
    let mut text = heading(&others) + "\n";
    for test in ["stream", "rr"] {
        let mut before: Option<&Key> = None;
        for key in summary.keys(test) {
            if before.is_some_and(|b| (b.sessions, b.send_buffer) != (key.sessions, key.send_buffer)) {
                text.push('\n');
            }
            text += &(combination(&summary, key, &others) + "\n");
            before = Some(key);
        }
    }
    let runs = rows.iter().map(|row| row.run).max().unwrap_or(0);
    text += &format!(
        "\nMedians of {runs} runs in Mbit/s (rr: transactions per second). Ratio: {OURS} / the device before it.\n"
    );
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

    #[test]
    fn a_line_has_medians_and_ratios_and_says_what_failed() {
        let row = |device: &str, bps: Option<f64>| Row {
            device: device.into(),
            test: "stream".into(),
            message_bytes: 4096,
            send_buffer: Some(65536),
            sessions: 5,
            throughput_bps: bps,
            failed: bps.is_none().then(|| "why".into()),
            ..Row::default()
        };
        let elsewhere = Row { sessions: 1, ..row("qemu-c", Some(1e8)) };
        let text = whole(&[row("vmci", Some(9e8)), row("qemu-a", Some(3e8)), row("qemu-b", None), elsewhere]);
        let words: Vec<&str> = text.lines().nth(3).unwrap().split_whitespace().collect();
        assert_eq!(words, ["stream", "5", "64k", "4k", "900", "300", "3.00x", "failed", "-", "-", "-"]);
        assert!(text.ends_with("1 of 4 runs failed.\n"), "{text}");
    }
}
