use serde_json::{Value, json};

use super::description;
use super::*;
use crate::answer::{Done, Pong};
use crate::calls::call;
use crate::capture::CaptureRequest;
use crate::mirror::MirrorRequest;

/// What a client's message asks for.
fn ask(request: &Value) -> Understood {
    understand(request.to_string().as_bytes(), "1.2.3")
}

/// A message without its end.
fn content(mut message: Vec<u8>) -> Vec<u8> {
    assert_eq!(message.pop(), Some(0));
    message
}

/// The answer to a request that asks the framing, or is wrong.
fn answer(request: &Value) -> Value {
    serde_json::from_slice(&content(ask(request).call.unwrap_err())).unwrap()
}

fn survives<M: Method>(call: &M, expected: Call) {
    let understood = understand(&content(request(call)), "1.2.3");
    assert_eq!(understood, Understood { oneway: false, call: Ok(expected) });
}

#[test]
fn what_a_client_asks_is_what_the_daemon_understands() {
    survives(&call::Ping {}, Call::Ping(call::Ping {}));
    let remove = call::VmRemove { name: "a\n\0".into(), force: None };
    survives(&remove, Call::VmRemove(remove.clone()));
    let mirror = MirrorRequest {
        name: "m".into(),
        from: vec!["web/nic0".into()],
        vlan: Some(900),
        ..MirrorRequest::default()
    };
    let add = call::MirrorAdd { mirror };
    survives(&add, Call::MirrorAdd(add.clone()));
    let (vm, at) = ("web".to_owned(), "nic0-port".to_owned());
    let impair =
        call::DebugImpair { vm, at, loss: 10, reorder: 5, delay_us: 300, longest: Some(9), seed: u64::MAX };
    survives(&impair, Call::DebugImpair(impair.clone()));
    let (wire, to) = ("l".to_owned(), Some("web/nic0".to_owned()));
    let set = call::WireSet { wire, to, impair: "loss = 0.5\nrate = \"1M\"".into() };
    survives(&set, Call::WireSet(set.clone()));
    let capture = call::Capture { capture: CaptureRequest { vlan: Some(7), ..CaptureRequest::default() } };
    survives(&capture, Call::Capture(capture.clone()));
}

#[test]
fn what_the_daemon_answers_is_what_a_client_understands() {
    let pong = Pong { pid: 7, daemon: "0.1.0".into(), layout: 4 };
    let body = call::Ping {}.answer(pong.clone()).unwrap();
    let bytes = succeeded(&body, false);
    assert_eq!(bytes, b"{\"parameters\":{\"pid\":7,\"daemon\":\"0.1.0\",\"layout\":4}}\0");
    assert_eq!(answered(&content(bytes)), Answered::Ok(pong.clone()));
    assert_eq!(answered(&content(succeeded(&body, true))), Answered::Ok(pong));
    for code in ErrorCode::ALL {
        let failure = Failure { code, message: "no \"such\" thing".into() };
        assert_eq!(answered::<Done>(&content(failed(&failure))), Answered::Refused(failure));
    }
    for (bytes, what) in [
        ("{", "EOF"),
        ("[]", "invalid"),
        ("{}", "missing field `parameters`"),
        (r#"{"parameters":7}"#, "invalid type"),
        (r#"{"error":"org.varlink.service.MethodNotFound","parameters":{"method":"x"}}"#, "MethodNotFound"),
        (r#"{"error":"io.vmlane.Control.Busy"}"#, "missing field `parameters`"),
    ] {
        let Answered::Otherwise(refused) = answered::<Pong>(bytes.as_bytes()) else { panic!("{bytes}") };
        assert!(refused.contains(what), "{bytes}: {refused}");
    }
}

#[test]
fn the_description_has_every_type_that_it_names() {
    let text = description::write().unwrap();
    assert_eq!(text, description::description());
    for expected in [
        "\ninterface io.vmlane.Control\n",
        "\nmethod Ping() -> (\n  pid: int,\n  daemon: string,\n  layout: int\n)\n",
        "\nmethod VmRemove(name: string, force: ?bool) -> (\n  name: string,\n  file: string,\n  warnings: []string\n)\n",
        "\n# Removes a mirror that was added at run time. Needs \"admin\".\nmethod MirrorRemove(name: string) -> ()\n",
        "\nmethod MirrorAdd(mirror: MirrorRequest) -> ()\n",
        "\nmethod Ovn(reports: []OvnReport) -> (\n  entries: []OvnEntry\n)\n",
        "\nmethod Capture(capture: CaptureRequest) -> (\n  points: []CapturePoint\n)\n",
        "\n  vms: []VmStatus,\n",
        "\n  cid: ?int,\n",
        "\n  uptime_seconds: float,\n",
        "\n  queues: []object\n",
        "\nerror Forbidden (message: string)\n",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let defined: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("type ")?.split(' ').next()).collect();
    let words = text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| line.split(": ").skip(1));
    for word in words {
        let word = word.trim_start_matches(['?', '[', ']']).trim_start_matches("string]");
        let name: String = word.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        let plain = ["bool", "int", "float", "string", "object"].contains(&&*name);
        assert!(plain || defined.contains(&&*name), "{name} is not defined");
    }
}

#[test]
fn the_service_describes_itself() {
    let info = answer(&json!({"method": "org.varlink.service.GetInfo"}));
    assert_eq!(info["parameters"]["version"], "1.2.3");
    assert_eq!(info["parameters"]["interfaces"], json!(["org.varlink.service", "io.vmlane.Control"]));
    for interface in ["org.varlink.service", INTERFACE] {
        let request = json!({"method": "org.varlink.service.GetInterfaceDescription", "parameters": {"interface": interface}});
        let text = answer(&request)["parameters"]["description"].as_str().unwrap().to_owned();
        assert!(text.contains(&format!("\ninterface {interface}\n")), "{text}");
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let service = |name: &str| format!("org.varlink.service.{name}");
    let bad = "io.vmlane.Control.BadRequest".to_owned();
    let capture = json!({"capture": {"points": [], "vms": [], "snap": 64, "buffer": 4096}});
    let table = [
        (json!([]), bad.clone(), "no Varlink request"),
        (json!({}), bad.clone(), "missing field `method`"),
        (json!({"method": "Ping"}), service("InterfaceNotFound"), "Ping"),
        (json!({"method": "io.vmlane.Control.Dance"}), service("MethodNotFound"), "io.vmlane.Control.Dance"),
        (json!({"method": "io.vmlane.Control.vm_list"}), service("MethodNotFound"), "vm_list"),
        (
            json!({"method": "io.vmlane.Control.Capture", "parameters": capture}),
            service("ExpectedMore"),
            "{}",
        ),
        (json!({"method": "io.vmlane.Other.Ping"}), service("InterfaceNotFound"), "io.vmlane.Other"),
        (json!({"method": "org.varlink.service.Get"}), service("MethodNotFound"), "service.Get"),
        (
            json!({"method": "org.varlink.service.GetInterfaceDescription"}),
            service("InvalidParameter"),
            "interface",
        ),
        (
            json!({"method": "io.vmlane.Control.Ping", "upgrade": true}),
            service("InvalidParameter"),
            "upgrade",
        ),
        (json!({"method": "io.vmlane.Control.Release"}), bad.clone(), "release: missing field `vm`"),
        (
            json!({"method": "io.vmlane.Control.Release", "parameters": {"vm": 3}}),
            bad.clone(),
            "expected a string",
        ),
        (
            json!({"method": "io.vmlane.Control.Release", "parameters": {"vm": "a", "method": "ping"}}),
            bad.clone(),
            "unknown field `method`",
        ),
        (
            json!({"method": "io.vmlane.Control.Release", "parameters": {"vm": "a", "x": 1}}),
            bad.clone(),
            "unknown field `x`",
        ),
        (json!({"method": "io.vmlane.Control.Release", "parameters": 7}), bad, "invalid type"),
    ];
    for (request, name, text) in table {
        let refused = answer(&request);
        assert_eq!(refused["error"], name, "{request}: {refused}");
        assert!(refused["parameters"].to_string().contains(text), "{request}: {refused}");
    }
}

#[test]
fn a_request_may_want_no_answer() {
    let request = ask(&json!({"method": "io.vmlane.Control.Ping", "oneway": true}));
    assert_eq!(request, Understood { oneway: true, call: Ok(Call::Ping(call::Ping {})) });
    assert!(ask(&json!({"method": "io.vmlane.Control.Dance", "oneway": true})).oneway);
}
