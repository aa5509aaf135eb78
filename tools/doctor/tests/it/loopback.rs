//! A whole examination of this machine by itself, over the loopback; and servers that answer nothing, or
//! malformed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use vmlane_bench::server::{Examiner, Running};
use vmlane_bench::{Address, Options, Server};
use vmlane_doctor::evidence::{Evidence, PathEnd, RunKind};
use vmlane_doctor::{Diagnosis, Plan, examine, examiner};

fn serve(examiner: Option<Examiner>) -> (Running, Address) {
    let server = Server::bind(&["tcp:127.0.0.1:0".parse().unwrap()]).unwrap();
    let server = match examiner {
        Some(examiner) => server.with_examiner(examiner),
        None => server,
    };
    let running = server.spawn().unwrap();
    let address = running.addresses()[0].clone();
    (running, address)
}

fn ask(to: &Address) -> Result<Evidence, vmlane_bench::Error> {
    examine(to, &Options::default(), Plan::quick(), &|_| ())
}

#[test]
fn a_machine_can_be_examined_by_itself() {
    let (_server, to) = serve(Some(examiner()));
    // Nothing is left out on a busy machine.
    let plan = Plan::quick().within(60.0);
    let evidence = examine(&to, &Options::default(), plan, &|_| ()).unwrap();
    assert_eq!(evidence.failed, [""; 0]);
    for from in [PathEnd::Near, PathEnd::Far] {
        let stream = evidence.run(RunKind::Stream, from).expect("each direction alone");
        assert!(stream.bps() > 1e6, "{from:?}: {}", stream.bps());
        assert!(stream.tcp().unwrap().busy_us > 0, "the kernel reports how long a connection was busy");
        let (bytes, probe) = evidence.probes().find(|(_, run)| run.from == from).expect("datagrams");
        assert!(bytes >= 1500 && probe.lost() < 1.0, "{bytes} {:?}", probe.report.datagrams);
    }
    assert_eq!(evidence.near.path_interface().unwrap().name, "lo");
    let diagnosis = Diagnosis::new(evidence, 1.0);
    assert!(diagnosis.text().contains("Examined in 1.0 s."), "{}", diagnosis.text());
    let json: Value = serde_json::from_str(&diagnosis.json()).unwrap();
    assert_eq!(json["version"], 1);
    assert!(json["facts"]["far"]["machine"]["cpus"].as_u64().unwrap() >= 1);
}

#[test]
fn a_server_without_doctor_answers_no_questions() {
    let (_server, to) = serve(None);
    let error = ask(&to).unwrap_err().to_string();
    assert!(error.contains("vmlane bench server --doctor"), "{error}");
}

#[test]
fn a_malformed_answer_is_an_error_and_a_hostile_name_is_escaped() {
    for malformed in [
        Value::Null,
        serde_json::json!({ "version": 77 }),
        serde_json::json!({ "version": 1, "interfaces": "x" }),
    ] {
        let (_server, to) = serve(Some(Arc::new(move |_| Ok(malformed.clone()))));
        ask(&to).unwrap_err();
    }
    let hostile = serde_json::json!({ "version": 1, "machine": { "host": "\u{1b}]0;owned\u{7}\n" }, "interfaces": [{ "name": "\u{1b}[2J" }] });
    let (_server, to) = serve(Some(Arc::new(move |_| Ok(hostile.clone()))));
    let diagnosis = Diagnosis::new(ask(&to).unwrap(), 1.0);
    assert!(!diagnosis.text().contains(['\u{1b}', '\u{7}']), "{}", diagnosis.text());
}

#[test]
fn what_there_was_no_time_for_is_reported() {
    let honest = examiner();
    let late: Examiner = Arc::new(move |asked| {
        if asked.request["about"] == "counters" {
            std::thread::sleep(Duration::from_millis(3200));
        }
        honest(asked)
    });
    let (_server, to) = serve(Some(late));
    let diagnosis = Diagnosis::new(ask(&to).unwrap(), 1.0);
    assert!(diagnosis.text().contains("not measured, because time was short: "), "{}", diagnosis.text());
    assert_eq!(diagnosis.evidence.failed, [""; 0]);
}

#[test]
fn a_machine_that_does_not_answer_is_evidence() {
    // No one listens there any more.
    let (server, to) = serve(None);
    drop(server);
    let began = Instant::now();
    let evidence = ask(&to).unwrap();
    assert!(evidence.unreachable.is_some() && began.elapsed() < Duration::from_secs(60));
    assert!(!evidence.near.machine.kernel.is_empty());
}
