//! Two machines on one page.

use super::*;
use crate::rows::PlanSource;

/// What a machine of this speed would have measured; no files are needed.
fn side(name: &str, speed: f64, plans: &[&str]) -> Side {
    let mut side = Side { results: BTreeMap::new() };
    for plan in plans {
        let path = format!("{}/../../experiments/{plan}/plan.toml", env!("CARGO_MANIFEST_DIR"));
        let plan = Plan::parse(&std::fs::read_to_string(path).unwrap(), false).unwrap();
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
                (row.setup.cpu_model, row.setup.cpus) = (name.into(), 8);
                rows.push(row);
            }
        }
        rows[0].plan_source = Some(PlanSource { text: plan.source, quick: false });
        side.results.insert(plan.name, rows);
    }
    side
}

#[test]
fn each_figure_has_a_series_for_each_machine() {
    let sides = [
        side("Fast <CPU>", 2.0, &["vmci-sockets-2009", "esxi-throughput-2013"]),
        side("Slow CPU", 1.0, &["vmci-sockets-2009"]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let page = std::fs::read_to_string(draw(&sides, dir.path()).unwrap()).unwrap();
    for part in [
        "Fast &lt;CPU&gt;, 8 CPUs",
        "Slow CPU, 8 CPUs",
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
            && names.contains(&"esxi-throughput-2013-2.svg".to_owned())
    );
}

#[test]
fn ratios_are_taken_within_one_machine() {
    let sides = [side("x", 2.0, &["vmci-sockets-2009"]), side("y", 1.0, &["vmci-sockets-2009"])];
    let experiment = &experiments(&sides).unwrap()[0];
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
fn one_machine_is_drawn_and_too_many_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let one = side("x", 1.0, &["vsock-siblings"]);
    let page = std::fs::read_to_string(draw(std::slice::from_ref(&one), dir.path()).unwrap()).unwrap();
    assert!(!page.contains("machine B") && page.contains("machine A"));
    let error = draw(&vec![one; 7], dir.path()).unwrap_err().to_string();
    assert!(error.contains("7 directories"), "{error}");
}

#[test]
fn the_directory_of_one_experiment_and_that_of_a_set_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let set = side("x", 1.0, &["vsock-siblings", "esxi-throughput-2013"]);
    for (name, rows) in &set.results {
        let mut file = rows::Writer::create(&dir.path().join(name)).unwrap();
        rows.iter().for_each(|row| file.add(row).unwrap());
    }
    let read = Side::read(dir.path()).unwrap();
    assert_eq!(read.results, set.results);
    let one = Side::read(&dir.path().join("vsock-siblings")).unwrap();
    assert_eq!(one.results.len(), 1);
    let page = std::fs::read_to_string(draw(&[read, one], &dir.path().join("both")).unwrap()).unwrap();
    assert!(page.contains("<td class=\"text\">x, 8 CPUs</td>"), "what the rows have of a machine is shown");
    let empty = tempfile::tempdir().unwrap();
    assert!(Side::read(empty.path()).unwrap_err().to_string().contains("no rows in"));
}
