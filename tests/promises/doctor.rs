//! The doctor finds faults that were put into real guests, one at a time, and nothing in healthy ones.

mod chance;
mod faults;
mod from_host;
mod ladder;
mod namespaces;
mod pairs;
mod proofs;
mod distinguished;

use std::time::{Duration, Instant};

use chance::{faults_drawn_by_chance_are_named, the_grammar_of_faults_is_consistent};
use faults::{COMMON, Fault, VIRTIO, VMXNET3};
use ladder::{the_ladder_of_2013_is_climbed, the_rungs_can_be_read};
use namespaces::{
    a_proof_shows_what_a_remedy_does_and_puts_it_back, a_server_that_is_stopped_most_of_the_time_is_found,
    a_veth_is_healthy, what_somebody_else_sets_meanwhile_is_left, settings_are_put_back_whichever_process_is_killed,
};
use serde_json::Value;
use distinguished::kernels_whose_programs_need_a_flag_are_distinguished;
use vmlane_lab::{LabSpec, Machine, Running};
use vmlane_tests::{Bed, TIMEOUT, full, kept};

vmlane_tests::tests! {
    plain { the_grammar_of_faults_is_consistent, the_rungs_can_be_read }
    guests {
        faults_between_vmxnet3_cards_are_found,
        a_proof_shows_what_a_remedy_does_and_puts_it_back,
        settings_are_put_back_whichever_process_is_killed,
    }
    long {
        faults_between_virtio_cards_are_found,
        wrong_cards_are_found,
        vsock_is_examined_too,
        two_faults_at_once_are_both_found,
        remedies_are_proven_in_guests,
        user_mode_linux_is_healthy,
        kernels_whose_programs_need_a_flag_are_distinguished,
        the_ladder_of_2013_is_climbed,
        what_somebody_else_sets_meanwhile_is_left,
        a_veth_is_healthy,
        a_server_that_is_stopped_most_of_the_time_is_found,
        faults_drawn_by_chance_are_named,
    }
}

/// Two guests of two CPUs with these devices.
fn lab(what: &str, devices: &[&str]) -> LabSpec {
    LabSpec { cpus: 2, ..vmlane_tests::lab(what, devices) }
}

fn server(bed: &Bed, guest: &str, listen: &str) -> Running {
    let words = ["vmlane", "bench", "server", "--doctor", "--listen", listen];
    let server = bed.guest(guest).spawn(words).unwrap();
    server.wait_for("listening on", TIMEOUT).unwrap();
    server
}

/// What the doctor in guest a reports of the way to b, and its exit code.
fn examine(bed: &Bed, to: &str, quick: bool) -> (Value, i32) {
    let began = Instant::now();
    let mut words = vec!["vmlane", "doctor", "--to", to, "--json"];
    words.extend(quick.then_some("--quick"));
    let output = bed.guest("a").exec(words).unwrap();
    let code = output.exit.code.unwrap_or(-1);
    let report = serde_json::from_str(&output.stdout());
    let report: Value = report.unwrap_or_else(|error| panic!("{error}: {} {}", output.stdout(), output.stderr()));
    println!(
        "  examined{} in {:.1} s ({:.1} s with its start){}",
        if quick { " quickly" } else { "" },
        report["seconds"].as_f64().unwrap(),
        began.elapsed().as_secs_f64(),
        left_out(&report)
    );
    (report, code)
}

/// What there was no time for.
fn left_out(report: &Value) -> String {
    match report["left_out"].as_array() {
        Some(list) if !list.is_empty() => format!(", left out: {}", report["left_out"]),
        _ => String::new(),
    }
}

/// A line for each finding.
fn sentences(report: &Value) -> Vec<String> {
    let list = report["findings"].as_array().expect("a list of findings").iter();
    list.map(|finding| {
        let seen = finding["evidence"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let seen = seen.filter(|line| line.starts_with("seen by ")).map(|line| format!(" ({line})"));
        let (check, what) = (finding["check"].as_str().unwrap(), finding["what"].as_str().unwrap());
        format!("{check}: {what}{}", seen.collect::<String>())
    })
    .collect()
}

/// The lines in which both differ.
fn differing(before: &[String], after: &[String]) -> Vec<String> {
    let lines = before.iter().zip(after).filter(|(one, other)| one != other);
    let mut lines: Vec<String> = lines.map(|(one, other)| format!("{one} -> {other}")).collect();
    if before.len() != after.len() {
        lines.push(format!("{} lines -> {} lines", before.len(), after.len()));
    }
    lines
}

/// The same once they differ in nothing, or have had enough time: drivers and IPv6 may need a moment.
fn still_differing(before: &[String], settings: impl Fn() -> Vec<String>) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let changed = differing(before, &settings());
        if changed.is_empty() || begun.elapsed() > TIMEOUT {
            return changed;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What was measured, for those who search for the reason of a failure.
fn measured(report: &Value) -> String {
    let mut report = report.clone();
    if let Some(report) = report.as_object_mut() {
        report.remove("facts");
        report.remove("findings");
    }
    report.to_string()
}

fn is_healthy(bed: &Bed, to: &str, quick: bool) -> Result<(), String> {
    let (report, code) = examine(bed, to, quick);
    let failed = report["failed"].as_array().unwrap();
    if code == 0 && sentences(&report).is_empty() && failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "a healthy lab has findings, code {code}: {:#?} {failed:?}\n{}",
        sentences(&report),
        measured(&report)
    ))
}

/// Puts the fault in, examines, and takes it out. The place of the right finding, from 1.
fn find(bed: &Bed, to: &str, fault: &Fault) -> Result<usize, String> {
    fault.put_into(bed);
    let (report, code) = examine(bed, to, !fault.is_long);
    fault.take_out_of(bed);
    let sentences = sentences(&report);
    match sentences.iter().position(|sentence| fault.is_in(sentence)) {
        Some(at) if at < 2 && code == 1 => {
            println!("{}: {} of {}: {}", fault.name, at + 1, sentences.len(), sentences[at]);
            if std::env::var("VMLANE_FAULT").is_ok_and(|only| !only.is_empty()) {
                println!("{}", measured(&report));
            }
            Ok(at + 1)
        }
        at => Err(format!(
            "{}: \"{}\" is not first or second (found at {at:?}, code {code}): {sentences:#?}\n{}",
            fault.name,
            fault.check,
            measured(&report)
        )),
    }
}

/// All faults one after another; everything that went wrong is reported at the end.
fn find_all(bed: &Bed, to: &str, faults: &[&Fault]) -> usize {
    let mut first = 0;
    let mut wrong = Vec::new();
    let only = std::env::var("VMLANE_FAULT").unwrap_or_default();
    for fault in faults.iter().filter(|fault| fault.name.contains(&only)) {
        match find(bed, to, fault) {
            Ok(place) => first += usize::from(place == 1),
            Err(why) => {
                println!("NOT FOUND {why}");
                wrong.push(why);
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} faults:\n{}", wrong.len(), faults.len(), wrong.join("\n"));
    first
}

fn healthy_runs(bed: &Bed, to: &str, runs: usize) {
    let wrong: Vec<String> = (0..runs).filter_map(|run| is_healthy(bed, to, run % 2 == 1).err()).collect();
    assert!(wrong.is_empty(), "{} of {runs} runs:\n{}", wrong.len(), wrong.join("\n"));
}

/// Round trips of the control connections are what takes the time then.
fn a_long_way(bed: &Bed) {
    let fault = COMMON.iter().find(|fault| fault.name == "a delay of 80 ms").expect("a fault");
    fault.put_into(bed);
    let report: Vec<(Value, i32)> = (0..5).map(|_| examine(bed, TO, true)).collect();
    fault.take_out_of(bed);
    let found =
        report.iter().filter(|(report, _)| sentences(report).iter().any(|line| line.starts_with(fault.check)));
    let seconds = report.iter().filter_map(|(report, _)| report["seconds"].as_f64()).fold(0.0, f64::max);
    assert_eq!(found.count(), 5, "{:?}", sentences(&report[0].0));
    assert!(seconds < 5.0, "it has no more time: {seconds}");
    kept("doctor", &format!("80 ms of delay: found in 5 of 5 quick examinations, in at most {seconds:.1} s"));
}

const TO: &str = "tcp:10.77.0.2";

fn faults_between_vmxnet3_cards_are_found() {
    let bed = Bed::up(&lab("doctor", &["vmxnet3:queues=2", "vmxnet3"]));
    let server = server(&bed, "b", "tcp:0.0.0.0");
    if full() {
        healthy_runs(&bed, TO, 5);
        let faults: Vec<&Fault> = VMXNET3.iter().chain(COMMON).collect();
        let first = find_all(&bed, TO, &faults);
        healthy_runs(&bed, TO, 1);
        distinguished::a_sender_that_is_the_limit(&bed);
        a_long_way(&bed);
        kept(
            "doctor",
            &format!(
                "vmxnet3: {} faults found, {first} of them first; 6 healthy runs without a finding",
                faults.len()
            ),
        );
    } else {
        // On a busy machine, a guest may get no CPU for a moment, which resembles a program that uses it, or
        // a long way.
        let wrong: Vec<String> = (0..3).map_while(|_| is_healthy(&bed, TO, true).err()).collect();
        assert!(wrong.len() < 3, "{}", wrong.join("\n"));
        find_all(&bed, TO, &[&VMXNET3[0], &COMMON[0], &COMMON[1]]);
    }
    drop(server);
    from_host::a_lab_and_its_vms(&bed);
    from_host::what_the_switch_limits_is_found(&bed);
    bed.finish();
}

fn faults_between_virtio_cards_are_found() {
    let bed = Bed::up(&lab("doctorv", &["virtio-net:queues=2"]));
    let server = server(&bed, "b", "tcp:0.0.0.0");
    healthy_runs(&bed, TO, 5);
    let faults: Vec<&Fault> = VIRTIO.iter().chain(COMMON).collect();
    let first = find_all(&bed, TO, &faults);
    healthy_runs(&bed, TO, 1);
    kept(
        "doctor",
        &format!(
            "virtio-net: {} faults found, {first} of them first; 6 healthy runs without a finding",
            faults.len()
        ),
    );
    drop(server);
    bed.finish();
}

fn wrong_cards_are_found() {
    for (device, phrase) in
        [("qemu-e1000", "(e1000)"), ("qemu-e1000e", "(e1000e)"), ("qemu-vmxnet3", "revision 1 or 2")]
    {
        let bed = Bed::up(&vmlane_tests::lab("doctorn", &[device]));
        let server = server(&bed, "b", "tcp:0.0.0.0");
        find_all(
            &bed,
            TO,
            &[&Fault { name: device, check: "nic-model", phrase, put: &[], undo: &[], is_long: false, symptom: None }],
        );
        drop(server);
        bed.lab_down();
    }
}

fn vsock_is_examined_too() {
    for (device, module) in
        [("vmci", "vmw_vsock_vmci_transport"), ("virtio-vsock", "vmw_vsock_virtio_transport")]
    {
        let bed = Bed::up(&lab("doctors", &[device]));
        let server = server(&bed, "b", "vsock:");
        healthy_runs(&bed, "vsock:4", 5);
        bed.guest("a").sh(&format!("rmmod {module}")).unwrap();
        let (report, code) = examine(&bed, "vsock:4", true);
        bed.guest("a").sh(&format!("modprobe {module}")).unwrap();
        let sentences = sentences(&report);
        assert!(
            code == 1 && sentences[0].starts_with("vsock-transport") && sentences[0].contains(module),
            "{sentences:?}"
        );
        println!("{module} unloaded: {}", sentences[0]);
        distinguished::the_own_cid(&bed);
        from_host::vms_that_answer_questions(&bed);
        healthy_runs(&bed, "vsock:4", 1);
        kept(
            "doctor",
            &format!("{device}: a module that is not loaded is found; 6 healthy runs without a finding"),
        );
        drop(server);
        bed.finish();
    }
}

fn two_faults_at_once_are_both_found() {
    let bed = Bed::up(&lab("doctor2", &["vmxnet3:queues=2", "vmxnet3"]));
    let server = server(&bed, "b", "tcp:0.0.0.0");
    let faults: Vec<&Fault> = VMXNET3.iter().chain(COMMON).collect();
    let (whole, all) = pairs::find_pairs(&bed, &faults, |quick| sentences(&examine(&bed, TO, quick).0));
    kept("doctor", &format!("two faults at once, chosen at random: both found in {whole} of {all} pairs"));
    drop(server);
    bed.finish();
}

fn remedies_are_proven_in_guests() {
    for (device, special) in [("vmxnet3:queues=2", VMXNET3), ("virtio-net:queues=2", VIRTIO)] {
        let devices: &[&str] = if device.starts_with("vmxnet3") { &[device, "vmxnet3"] } else { &[device] };
        let bed = Bed::up(&lab("doctorp", devices));
        let faults: Vec<&Fault> = special.iter().chain(COMMON).collect();
        let (tried, helped) = proofs::prove_all(&bed, &faults);
        kept(
            "doctor",
            &format!(
                "{device}: {tried} remedies tried in the guest that has the fault, {helped} shown to help, one interrupted by Ctrl-C, all settings as before"
            ),
        );
        bed.finish();
    }
}

/// User Mode Linux: no card of PCI, one CPU.
fn user_mode_linux_is_healthy() {
    let bed = Bed::up(&LabSpec { cpus: 1, machines: vec![Machine::Uml], ..lab("doctoru", &["virtio-net"]) });
    let server = server(&bed, "b", "tcp:0.0.0.0");
    healthy_runs(&bed, TO, 5);
    kept("doctor", "User Mode Linux: 5 healthy runs without a finding");
    drop(server);
    bed.finish();
}
