//! Two machines on one page.

use std::collections::BTreeMap;

use super::*;
use crate::machine::Machine;
use crate::paper::Settings;

/// What a machine of this speed would send; no files are needed.
fn pack(name: &str, speed: f64, plans: &[&str]) -> Pack {
    let machine =
        Machine { cpu_model: name.into(), cores: 8, governor: "powersave".into(), ..Machine::default() };
    let mut results = BTreeMap::new();
    for plan in plans {
        let plan = Settings::default().plans(&[(*plan).to_owned()]).unwrap().remove(0);
        let mut rows: Vec<Row> = Vec::new();
        for (number, factors) in plan.combinations.iter().enumerate() {
            for run in 1..=3 {
                let mut row = Row { version: 1, run, wall_seconds: 61.0, ..Row::default() };
                row.describe(factors, &plan.named);
                row.accelerator = "kvm".into();
                let value = speed * (number + 1) as f64 * (1.0 + 0.01 * f64::from(run));
                match factors.test.is_transactional() {
                    true => row.transactions_per_second = Some(value * 1e3),
                    false => row.throughput_bps = Some(value * 1e9),
                }
                row.host_cpu_seconds = Some(10.0);
                row.setup.plan.clone_from(&plan.name);
                row.setup.cpu_model = name.into();
                rows.push(row);
            }
        }
        results.insert(plan.name, rows);
    }
    let about = About::new(Settings::default(), machine, None);
    Pack { path: PathBuf::from(format!("{name}.tar.gz")), about, results }
}

#[test]
fn each_figure_has_a_series_for_each_machine() {
    let packs = [
        pack("Fast <CPU>", 2.0, &["vmci-sockets-2009", "esxi-throughput-2013"]),
        pack("Slow CPU", 1.0, &["vmci-sockets-2009"]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let page = std::fs::read_to_string(draw(&packs, dir.path()).unwrap()).unwrap();
    for part in [
        "Fast &lt;CPU&gt;, 8 cores",
        "Slow CPU, 8 cores",
        "the governor of cpufreq is powersave (serious)",
        "Experiments: esxi-throughput-2013, vmci-sockets-2009.",
        "vmci, 64 KiB buffers, machine A",
        "vmci, 64 KiB buffers, machine B",
        "<th>B / A</th>",
        "<td>0.50</td>",
        "<th>machine B</th>",
        "outperform TCP",
        "not measured",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    for part in ["NaN", "<script", "Fast <CPU>"] {
        assert!(!page.contains(part), "{part}");
    }
    let figures = std::fs::read_dir(dir.path().join(FIGURES)).unwrap().flatten();
    let names: Vec<String> = figures.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(
        names.contains(&"vmci-sockets-2009-1.svg".to_owned())
            && names.contains(&"esxi-throughput-2013-2.png".to_owned())
    );
}

#[test]
fn ratios_are_taken_within_one_machine() {
    let packs = [pack("x", 2.0, &["vmci-sockets-2009"]), pack("y", 1.0, &["vmci-sockets-2009"])];
    let experiment = &experiments(&packs).unwrap()[0];
    let data = Data::new(&experiment.rows, Some(&experiment.plan));
    let ratio = experiment
        .plan
        .figures
        .iter()
        .find(|figure| figure.title == "VMCI's throughput divided by TCP's")
        .unwrap();
    let drawn = data.draw(ratio, "f");
    let series = &drawn.charts[0].series;
    assert_eq!((series.len(), drawn.mixed), (8, false));
    let text = |at: usize| format!("{:?}", series[at].values);
    assert!(series[0].label.ends_with("machine A") && series[1].label.ends_with("machine B"));
    assert_eq!(text(0), text(1), "the machines' ratios are alike, their speeds are not");
}

#[test]
fn one_pack_is_drawn_and_too_many_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let one = pack("x", 1.0, &["vsock-siblings"]);
    let page = std::fs::read_to_string(draw(std::slice::from_ref(&one), dir.path()).unwrap()).unwrap();
    assert!(!page.contains("machine B") && page.contains("machine A"));
    let error = draw(&vec![one; 7], dir.path()).unwrap_err().to_string();
    assert!(error.contains("7 files"), "{error}");
    let none = Pack { results: BTreeMap::new(), ..pack("x", 1.0, &[]) };
    assert!(draw(&[none], dir.path()).unwrap_err().to_string().contains("no rows in x.tar.gz"));
}
