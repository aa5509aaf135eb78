//! What the comparison says of small samples with known answers, and of real runs.

use super::*;

/// A series of runs of one build over TCP loopback, on two CPUs that other programs shared: as they were made.
const SERIES: &str = include_str!("loopback.jsonl");

fn series() -> Vec<Report> {
    SERIES.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn with_values(values: &[f64]) -> Vec<Report> {
    let like = series().remove(0);
    values.iter().map(|value| Report { throughput_bps: Some(*value), ..like.clone() }).collect()
}

fn judged(before: &[f64], after: &[f64]) -> Comparison {
    compare((&with_values(before), &with_values(after)), Value::Result, Level::P99, 0.0).unwrap()
}

/// A generator of coin flips; the same seed gives the same trial.
struct Flips(u64);

impl Flips {
    fn next(&mut self) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 & (1 << 33) != 0
    }
}

/// The series as two sides that were measured in turns: of every two runs that follow each other, a coin says which
/// is whose.
fn split(seed: u64) -> (Vec<Report>, Vec<Report>) {
    let mut flips = Flips(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..64).for_each(|_| {
        flips.next();
    });
    series()
        .chunks_exact(2)
        .map(
            |two| {
                if flips.next() { (two[0].clone(), two[1].clone()) } else { (two[1].clone(), two[0].clone()) }
            },
        )
        .unzip()
}

/// The same run with so much more CPU time for what it did.
fn slowed(mut report: Report, times: f64) -> Report {
    for end in [&mut report.cpu_process.local, &mut report.cpu_process.remote] {
        *end = end.map(|busy| busy * times);
    }
    report
}

/// How many of twenty trials find the second side worse, and how many find any difference.
fn trials(times: f64) -> (u32, u32) {
    let (mut worse, mut any) = (0, 0);
    for seed in 1..=20 {
        let (before, after) = split(seed);
        let after: Vec<Report> = after.into_iter().map(|report| slowed(report, times)).collect();
        let told = compare((&before, &after), Value::Cpu, Level::P99, 0.0).unwrap();
        worse += u32::from(told.verdict == Verdict::Worse);
        any += u32::from(told.verdict != Verdict::NoDifference);
    }
    (worse, any)
}

#[test]
fn real_runs_show_an_injected_slow_down_of_five_percent_and_equal_builds_none() {
    let (worse, _) = trials(1.05);
    assert!(worse >= 19, "{worse} of 20 trials found the slow-down");
    let (_, any) = trials(1.0);
    assert!(any <= 1, "{any} of 20 trials found a difference between equal builds");
}

#[test]
fn the_interval_of_a_known_sample() {
    // Two samples of three, apart by a factor of two, whose logarithms have the standard deviation 0.01.
    let step = 0.01_f64.exp();
    let told = judged(&[1e9 / step, 1e9, 1e9 * step], &[2e9 / step, 2e9, 2e9 * step]);
    assert!((told.change_percent - 100.0).abs() < 1e-6, "{told:?}");
    // t of 4 degrees of freedom at 99 %: 4.604; times 0.01 * sqrt(2 / 3).
    let half = 4.604 * 0.01 * (2.0_f64 / 3.0).sqrt();
    assert!((told.interval_percent.0 - 100.0 * (2.0 * (-half).exp() - 1.0)).abs() < 1e-3, "{told:?}");
    assert!((told.interval_percent.1 - 100.0 * (2.0 * half.exp() - 1.0)).abs() < 1e-3, "{told:?}");
    assert_eq!(told.verdict, Verdict::Better);
    // 69.3 standard deviations, by Hedges a fifth less for six runs.
    assert!((told.effect_size.unwrap() - 69.315 * 0.8).abs() < 0.01, "{told:?}");
}

#[test]
fn which_side_comes_first_only_turns_the_answer_round() {
    let (a, b) = ([9.0, 10.0, 11.0, 10.5], [6.0, 6.4, 6.1, 6.3]);
    let (there, back) = (judged(&a, &b), judged(&b, &a));
    assert_eq!((there.verdict, back.verdict), (Verdict::Worse, Verdict::Better));
    let product = (1.0 + there.change_percent / 100.0) * (1.0 + back.change_percent / 100.0);
    assert!((product - 1.0).abs() < 1e-12);
}

#[test]
fn what_is_better_depends_on_the_value_and_some_may_be_tolerated() {
    let (before, after) = split(1);
    let slower: Vec<Report> = after.iter().map(|report| slowed(report.clone(), 1.5)).collect();
    let judge = |before: &[Report], after: &[Report], tolerated| {
        compare((before, after), Value::Cpu, Level::P95, tolerated).unwrap().verdict
    };
    assert_eq!(judge(&before, &slower, 0.0), Verdict::Worse);
    assert_eq!(judge(&before, &slower, 60.0), Verdict::Tolerated);
    assert_eq!(judge(&slower, &before, 0.0), Verdict::Better);
}

#[test]
fn runs_without_any_spread_and_with_very_much_are_judged_too() {
    assert_eq!(judged(&[5.0; 3], &[5.0; 4]).verdict, Verdict::NoDifference);
    let told = judged(&[5.0; 3], &[4.0; 3]);
    assert_eq!((told.verdict, told.effect_size), (Verdict::Worse, None));
    assert_eq!(judged(&[1.0, 1e9, 3.0], &[2.0, 1e8, 1e-3]).verdict, Verdict::NoDifference);
}

#[test]
fn runs_of_a_report_with_a_confidence_count_each() {
    let mut report = with_values(&[1e9]).remove(0);
    let target: crate::confidence::ConfidenceTarget = "95,5".parse().unwrap();
    report.confidence = Some(target.judge(&[1e9, 1.01e9, 0.99e9]));
    let told =
        compare((std::slice::from_ref(&report), &with_values(&[5e8; 5])), Value::Result, Level::P99, 0.0);
    let told = told.unwrap();
    assert_eq!((told.before.runs, told.after.runs, told.verdict), (3, 5, Verdict::Worse));
}

#[test]
fn what_cannot_be_compared_is_refused_with_the_reason() {
    let runs = with_values(&[1e9; 3]);
    let refused = |before: &[Report], after: &[Report], value| {
        compare((before, after), value, Level::P99, 0.0).unwrap_err().to_string()
    };
    assert!(
        refused(&runs[..2], &runs, Value::Result)
            .contains("before: 2 runs have \"result\", and 3 are the fewest")
    );
    assert!(refused(&runs, &runs, Value::RttP99).contains("0 runs have \"rtt-p99\""));
    let zero = with_values(&[1.0, 0.0, 1.0]);
    assert!(refused(&runs, &zero, Value::Result).contains("after: a run has the value 0"));
    let other: Vec<Report> = runs.iter().map(|run| Report { message_bytes: 512, ..run.clone() }).collect();
    assert!(
        refused(&runs, &other, Value::Result).contains("message_bytes is 65536 in one and 512 in another")
    );
}

#[test]
fn files_and_directories_are_read_and_errors_name_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<&str> = SERIES.lines().take(3).collect();
    std::fs::write(dir.path().join("a.json"), lines[0]).unwrap();
    std::fs::write(dir.path().join("b.jsonl"), lines[1..].join("\n\n")).unwrap();
    std::fs::write(dir.path().join("notes.txt"), "not a report").unwrap();
    assert_eq!(read(dir.path()).unwrap().len(), 3);
    assert_eq!(read(&dir.path().join("a.json")).unwrap().len(), 1);
    let bad = dir.path().join("bad");
    std::fs::write(&bad, format!("{}\n{{}}\n", lines[0])).unwrap();
    assert!(read(&bad).unwrap_err().to_string().contains("bad, line 2: missing field"));
    std::fs::write(&bad, lines[0].replacen("\"version\":1", "\"version\":7", 1)).unwrap();
    assert!(read(&bad).unwrap_err().to_string().contains("line 1: version 7"));
    std::fs::write(&bad, "\n").unwrap();
    assert!(read(&bad).unwrap_err().to_string().contains("no reports"));
    assert!(read(&dir.path().join("none")).unwrap_err().is_usage());
}

#[test]
fn the_text_and_the_json_say_the_same() {
    let told = judged(&[1e9, 1.1e9, 1.05e9], &[4e8, 4.1e8, 4.2e8]);
    let json: serde_json::Value = serde_json::from_str(&crate::report::one_line(&told)).unwrap();
    assert_eq!((json["verdict"].as_str(), json["version"].as_u64()), (Some("worse"), Some(1)));
    assert_eq!(json["before"]["runs"], 3);
    let text = told.text();
    for part in ["stream over tcp, result", "1.049 G bit/s (3 runs", "worse: the difference is real"] {
        assert!(text.contains(part), "{text}");
    }
}
