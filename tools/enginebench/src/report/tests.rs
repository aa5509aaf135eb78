//! The order of the runs, the choice of rows and the arithmetic, with benchmarks made of numbers.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;

fn fixed(values: &'static [f64]) -> impl FnMut(Duration) -> io::Result<Sample> {
    let mut values = values.iter().cycle();
    move |_| Ok(Sample { value: *values.next().expect("a cycle has no end") })
}

fn options(only: &str, rounds: usize) -> Options {
    Options { only: Only::parse(only), rounds, length: Duration::from_millis(5) }
}

fn registry() -> Registry {
    let mut all = Registry::default();
    all.add("vmci.64k", GBITS, &["copy", "ring"], fixed(&[90.0, 10.0, 80.0]));
    all.add("copy", GBITS, &[], fixed(&[160.0]));
    all.add("ring", GBITS, &["copy"], fixed(&[40.0]));
    all
}

#[test]
fn medians_and_ratios() {
    let report = registry().run(&options("vmci.", 3), |_, _| ()).unwrap();
    assert_eq!(report.rows.len(), 1);
    let row = &report.rows[0];
    assert_eq!((row.value, row.min, row.max), (80.0, 10.0, 90.0));
    let copy = &row.beside[0];
    assert_eq!((copy.name.as_str(), copy.value, copy.ratio), ("copy", 160.0, 0.5));
    assert_eq!((copy.ratios.as_slice(), row.beside[1].ratio), ([0.5625, 0.0625, 0.5].as_slice(), 2.0));
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!((&json["version"], &json["rows"][0]["unit"]), (&1.into(), &"Gbit/s".into()));
    assert!(report.table().contains("copy 0.500, ring 2.000"), "{}", report.table());
    assert!(report.made.cpus > 0 && json["made"]["cpu_model"].as_str().is_some_and(|name| !name.is_empty()));
    let where_and_when = report.made.to_string();
    assert!(where_and_when.contains(&report.made.kernel) && report.table().starts_with(&where_and_when));
}

#[test]
fn a_ratio_is_the_median_of_each_rounds_ratio() {
    let mut all = Registry::default();
    all.add("ours", GBITS, &["theirs"], fixed(&[10.0, 30.0, 20.0]));
    let mut round = 0;
    all.add("theirs", GBITS, &[], move |_| {
        round += 1;
        if round == 2 {
            Err(io::Error::other("no frame came"))
        } else {
            Ok(Sample { value: f64::from(round) })
        }
    });
    let report = all.run(&options("ours", 3), |_, _| ()).unwrap();
    let theirs = &report.rows[0].beside[0];
    // The second round has nothing to compare with. The ratio of the medians would be 10.
    assert_eq!(theirs.ratios, [10.0, 20.0 / 3.0]);
    assert_eq!(theirs.ratio, (10.0 + 20.0 / 3.0) / 2.0);
}

#[test]
fn rounds_interleave_what_the_chosen_rows_need() {
    let calls = Rc::new(RefCell::new(Vec::new()));
    let report =
        registry().run(&options("ring", 2), |round, name| calls.borrow_mut().push((round, name.to_owned())));
    let order: Vec<_> = calls.borrow().iter().map(|(round, name)| format!("{round}{name}")).collect();
    assert_eq!(order, ["0copy", "0ring", "1copy", "1ring"]);
    assert_eq!(report.unwrap().rows.len(), 1);
}

#[test]
fn what_cannot_be_measured_leaves_the_other_rows() {
    let mut all = registry();
    let mut round = 0;
    all.add("now and then", GBITS, &["copy"], move |_| {
        round += 1;
        if round == 2 { Err(io::Error::other("no frame came")) } else { Ok(Sample { value: 20.0 }) }
    });
    all.add("never", GBITS, &[], |_| Err(io::Error::other("no such program")));
    all.add("beside", GBITS, &["never", "copy"], fixed(&[40.0]));
    let report = all.run(&options("", 3), |_, _| ()).unwrap();
    let named = |name: &str| report.rows.iter().find(|row| row.name == name);
    assert_eq!((named("now and then").unwrap().value, named("never").is_none()), (20.0, true));
    assert_eq!(named("beside").unwrap().beside.iter().map(|other| &other.name).collect::<Vec<_>>(), ["copy"]);
    assert_eq!(report.failed.len(), 4);
    assert!(report.table().contains("failed: now and then in round 2: no frame came"), "{}", report.table());
}

#[test]
fn mistakes_are_named() {
    let error_of =
        |registry: Registry, only| registry.run(&options(only, 1), |_, _| ()).unwrap_err().to_string();
    assert!(error_of(registry(), "nothing").contains("ONLY=nothing: no row begins so"));
    let mut twice = registry();
    twice.add("copy", GBITS, &[], fixed(&[1.0]));
    assert!(error_of(twice, "").contains("twice"));
    let mut lonely = registry();
    lonely.add("x", GBITS, &["y"], fixed(&[1.0]));
    assert!(error_of(lonely, "").contains("no row y"));
    assert!(error_of(registry(), "copy,nothing").contains("ONLY=nothing: no row begins so"));
}

#[test]
fn rows_are_chosen_by_several_words() {
    let report = registry().run(&options("ring, copy", 1), |_, _| ()).unwrap();
    assert_eq!(report.rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), ["copy", "ring"]);
}

#[test]
fn the_file_gets_its_folders() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out/bench/latest.json");
    let report = registry().run(&options("", 1), |_, _| ()).unwrap();
    report.write(&path).unwrap();
    let back: Report = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(back, report);
}
