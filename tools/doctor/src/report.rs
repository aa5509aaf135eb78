//! The doctor's report: as text, and as JSON.

mod remedies;

use serde_json::{Value, json};

use crate::capture::Capture;
use crate::checks;
use crate::evidence::{Evidence, PathEnd, Run, RunKind};
use crate::finding::{self, Basis, Finding, Severity};
use crate::host::Vm;
use crate::text::{printable, rate, size, tame, time};

/// Raised when a key changes its meaning or goes away.
pub const VERSION: u32 = 1;
/// Characters of a line.
const WIDTH: usize = 100;

pub struct Diagnosis {
    pub evidence: Evidence,
    /// Sorted, without the machine's own.
    pub findings: Vec<Finding>,
    /// What the machines are, which no setting of a network changes.
    pub own: Vec<Finding>,
    pub seconds: f64,
}

impl Diagnosis {
    pub fn new(evidence: Evidence, seconds: f64) -> Diagnosis {
        let all = checks::ALL.iter().flat_map(|check| (check.examine)(&evidence)).collect();
        let mut all: Vec<Finding> = finding::settle(all);
        all.extend(checks::unexplained(&evidence, &all));
        finding::sort(&mut all);
        checks::alike::refer(&mut all);
        let (own, findings) = all.into_iter().partition(|finding| finding.severity == Severity::Machine);
        Diagnosis { evidence, findings, own, seconds }
    }

    /// 0: nothing found; 1: findings; 3: the other end, or a capture, could not be examined, and nothing here
    /// explains it.
    pub fn exit_code(&self) -> u8 {
        let is_explained = self.findings.iter().any(|finding| finding.check != checks::unexplained::NAME);
        match (self.findings.is_empty(), self.is_examined()) {
            (_, false) if !is_explained => 3,
            (false, _) => 1,
            (true, _) => 0,
        }
    }

    /// Whether all was examined that should be.
    fn is_examined(&self) -> bool {
        let evidence = &self.evidence;
        // A measurement that failed is no health.
        let ways = [
            (RunKind::RoundTrips, PathEnd::Near),
            (RunKind::Stream, PathEnd::Near),
            (RunKind::Stream, PathEnd::Far),
        ];
        let is_measured = evidence.far.is_none()
            || evidence.failed.is_empty()
                && ways.iter().all(|(kind, from)| evidence.run(*kind, *from).is_some());
        is_measured
            && evidence.unreachable.is_none()
            && self.evidence.captures.iter().all(|capture| capture.examined > 0)
    }

    pub fn json(&self) -> String {
        self.json_with(None)
    }

    /// The same, and what a proof has shown, if there was one.
    pub fn json_with(&self, proof: Option<Value>) -> String {
        let evidence = &self.evidence;
        let listed = |findings: &[Finding]| findings.iter().map(finding_json).collect::<Vec<Value>>();
        let mut value = json!({
            "version": VERSION,
            "to": printable(&evidence.to),
            "seconds": self.seconds,
            "unreachable": evidence.unreachable.as_deref().map(printable),
            "findings": listed(&self.findings),
            "machine": listed(&self.own),
            "measurements": evidence.runs.iter().map(measured).collect::<Vec<Value>>(),
            "loopback_bps": { "near": evidence.loopback_near, "far": evidence.loopback_far },
            "captures": evidence.captures.iter().map(captured).collect::<Vec<Value>>(),
            "failed": evidence.failed.iter().map(|text| printable(text)).collect::<Vec<String>>(),
            "left_out": evidence.left_out.iter().map(|text| printable(text)).collect::<Vec<String>>(),
            "waits": evidence.waits,
            "host": evidence.host.as_ref().map(|host| tame(json!(host))),
            "notes": evidence.notes.iter().map(|text| printable(text)).collect::<Vec<String>>(),
            // Of captures nothing is known but the packets.
            "facts": evidence.captures.is_empty().then(|| json!({ "near": evidence.near, "far": evidence.far })),
        });
        if let Some(proof) = proof {
            insert(&mut value, "proof", proof);
        }
        value.to_string()
    }

    pub fn text(&self) -> String {
        let evidence = &self.evidence;
        let mut text = String::new();
        let mut line = |indent: usize, words: &str| wrap(&mut text, indent, words);
        if let Some(why) = &evidence.unreachable {
            line(0, &format!("The other machine could not be asked: {why}"));
        }
        for words in evidence.runs.iter().filter_map(|run| spoken(evidence, run)) {
            line(0, &words);
        }
        for vm in evidence.host.iter().flat_map(|host| &host.vms) {
            line(0, &spoken_vm(vm));
        }
        for note in &evidence.notes {
            line(0, &format!("note: {note}"));
        }
        for words in evidence.captures.iter().flat_map(spoken_capture) {
            line(0, &words);
        }
        for end in PathEnd::BOTH {
            if let Some(bps) = evidence.loopback(end) {
                line(0, &format!("loopback of {}: {}", evidence.name(end), rate(bps)));
            }
        }
        for failed in &evidence.failed {
            line(0, &format!("not measured: {failed}"));
        }
        if !evidence.left_out.is_empty() {
            line(0, &format!("not measured, because time was short: {}", evidence.left_out.join("; ")));
        }
        for (end, facts) in evidence.ends() {
            for unread in &facts.limits.unread {
                line(0, &format!("not read on {}: {unread}", evidence.name(end)));
            }
        }
        for capture in evidence.captures.iter().filter(|capture| capture.examined == 0) {
            line(0, "");
            line(0, &format!("{}: no packet in it could be examined.", capture.file));
        }
        if self.findings.is_empty() && self.is_examined() {
            line(0, "");
            line(0, &checks::health(evidence));
        }
        let mut remedies = remedies::Remedies::of(evidence);
        for (number, finding) in (1..).zip(&self.findings) {
            let (severity, confidence) = (finding.severity.name(), finding.confidence.name());
            line(0, "");
            line(0, &format!("{number}. {} [{severity}, {confidence}]", finding.what));
            for shown in &finding.evidence {
                line(3, &format!("seen: {shown}"));
            }
            let basis = match finding.cost.basis {
                Basis::Measured => "measured",
                Basis::Estimated => "estimated",
            };
            line(3, &format!("cost, {basis}: {}", finding.cost.text));
            for (indent, words) in remedies.lines(number, finding) {
                line(indent, &words);
            }
            line(3, &format!("more: {}", finding.guide()));
        }
        if !self.own.is_empty() {
            line(0, "");
            line(0, "The machines themselves, which no setting of the network changes:");
        }
        for finding in &self.own {
            line(0, &format!("- {} {}", finding.what, finding.evidence.join("; ")));
        }
        line(0, "");
        line(0, &format!("Examined in {:.1} s.", self.seconds));
        text
    }
}

fn finding_json(finding: &Finding) -> Value {
    let mut value = serde_json::to_value(finding).unwrap_or_default();
    insert(&mut value, "guide", finding.guide().into());
    value
}

/// Adds an entry to an object.
pub fn insert(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

/// Connections of a capture that a report lists.
const LISTED: usize = 5;

/// The file's name and the directions that matter most.
fn captured(capture: &Capture) -> Value {
    let mut value = serde_json::to_value(capture).unwrap_or_default();
    insert(&mut value, "ways", json!(capture.ways.iter().take(32).collect::<Vec<_>>()));
    tame(value)
}

fn spoken_vm(vm: &Vm) -> String {
    let cards = vm.nics.iter().map(|nic| {
        format!("{}: {} frames sent, {} received", nic.name, nic.count("tx_frames"), nic.count("rx_frames"))
    });
    let cards: Vec<String> = cards.collect();
    format!("VM {}: {}", vm.name, if cards.is_empty() { "no cards".to_owned() } else { cards.join("; ") })
}

fn spoken_capture(capture: &Capture) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {} packets, {} in {:.1} s; {} connections of TCP",
        capture.file,
        capture.packets,
        size(capture.bytes),
        capture.seconds,
        capture.connections
    )];
    lines.extend(capture.notes.iter().map(|note| format!("note: {note}")));
    for way in capture.ways.iter().take(LISTED) {
        let again = way.seen.again;
        lines.push(format!(
            "{}: {} acknowledged, {}, {} segments sent again",
            way.name(),
            size(way.seen.delivered),
            rate(way.bps()),
            again.lost() + again.spurious
        ));
    }
    lines
}

/// The name of a measurement in reports.
pub fn name(kind: RunKind) -> &'static str {
    match kind {
        RunKind::RoundTrips => "round trips",
        RunKind::Stream => "throughput",
        RunKind::Loaded => "round trips under load",
        RunKind::Probe { .. } => "datagrams",
        RunKind::SmallRequests => "requests of one segment",
        RunKind::LargeRequests => "requests of many segments",
        RunKind::SlowSegments => "single segments at a low rate",
        RunKind::SlowPairs => "pairs of segments at a low rate",
        RunKind::Streams => "throughput of several connections",
        RunKind::Datagrams => "datagrams without a pause",
    }
}

fn measured(run: &Run) -> Value {
    let bytes = match run.kind {
        RunKind::Probe { bytes } => Some(bytes),
        _ => None,
    };
    json!({
        "what": name(run.kind),
        "from": run.from,
        "bytes": bytes,
        "throughput_bps": run.report.throughput_bps,
        "transactions_per_second": run.report.transactions_per_second,
        "rtt_us_p50": run.median_us(),
        "retransmitted": run.retransmitted(),
        "timeouts": run.timeouts(),
        "lost": run.lost(),
        "near": run.near,
        "far": run.far,
    })
}

fn spoken(evidence: &Evidence, run: &Run) -> Option<String> {
    let way = evidence.way(run.from);
    Some(match run.kind {
        RunKind::RoundTrips => {
            let (usual, longest) = run.report.rtt_us.map(|times| (time(times.p50), time(times.p99)))?;
            format!("round trips: {usual} in the median, {longest} at the 99th percentile")
        }
        RunKind::Loaded => format!("round trips under load {way}: {} in the median", time(run.median_us()?)),
        RunKind::Stream | RunKind::SlowSegments | RunKind::SlowPairs => {
            format!("{} {way}: {}, {} segments sent again", name(run.kind), rate(run.bps()), run.sent_again())
        }
        RunKind::Probe { bytes } => {
            let loss = run.report.datagrams?;
            format!("datagrams of {bytes} bytes {way}: {} of {} lost", loss.lost, loss.counts.sent)
        }
        RunKind::Streams => format!("{} {way}: {}", name(run.kind), rate(run.bps())),
        RunKind::Datagrams => {
            format!("{} {way}: {} arrive, {:.1} % lost", name(run.kind), rate(run.bps()), run.lost() * 100.0)
        }
        RunKind::SmallRequests | RunKind::LargeRequests => {
            let per_second = run.per_second();
            format!("{} {way}: {per_second:.1} a second", name(run.kind))
        }
    })
}

/// Adds the words as lines of at most [`WIDTH`] characters; a single word may be longer.
fn wrap(text: &mut String, indent: usize, words: &str) {
    let mut line = " ".repeat(indent);
    let mut is_empty = true;
    for word in printable_words(words) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.push_str(&line);
            text.push('\n');
            line = " ".repeat(indent + 2);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(&word);
        is_empty = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn printable_words(words: &str) -> Vec<String> {
    words.split(' ').filter(|word| !word.is_empty()).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_and_control_characters_shown() {
        let mut text = String::new();
        wrap(&mut text, 2, &format!("{}\u{1b}[31m end", "word ".repeat(30)));
        assert!(
            text.lines().count() == 2 && text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        assert!(text.contains("\\u{1b}[31m"), "{text}");
    }

    #[test]
    fn the_exit_code_shows_whether_something_was_found() {
        let mut diagnosis =
            Diagnosis { evidence: Evidence::default(), findings: Vec::new(), own: Vec::new(), seconds: 0.0 };
        assert_eq!(diagnosis.exit_code(), 0);
        diagnosis.evidence.unreachable = Some("no route".to_owned());
        assert_eq!(diagnosis.exit_code(), 3);
        assert!(diagnosis.text().contains("no route"));
    }

    #[test]
    fn a_capture_without_a_packet_that_could_be_examined_is_no_result() {
        let of = |counts: &[u64]| {
            let capture = |examined: &u64| Capture { packets: 9, examined: *examined, ..Capture::default() };
            let captures = counts.iter().map(capture).collect();
            Diagnosis::new(Evidence { captures, ..Evidence::default() }, 0.0)
        };
        for (examined, code) in [(&[9][..], 0), (&[0], 3), (&[9, 0], 3)] {
            let diagnosis = of(examined);
            assert_eq!(diagnosis.exit_code(), code, "{examined:?}");
            assert_eq!(diagnosis.text().contains("Nothing found."), code == 0, "{}", diagnosis.text());
            assert_eq!(diagnosis.text().contains("no packet in it could be examined"), code == 3);
        }
    }
}
