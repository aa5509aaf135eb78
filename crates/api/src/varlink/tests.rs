use serde_json::{Value, json};

use super::description::{self, CALLS};
use super::*;
use crate::calls::samples;
use crate::mirror::MirrorRequest;
use crate::ovn::OvnReport;

fn ask(request: Value) -> Request {
    understand(request.to_string().as_bytes(), "1.2.3")
}

/// The answer to a request that asks the framing, or is wrong.
fn answer(request: Value) -> Value {
    match ask(request).wants {
        Wants::Answered(bytes) => {
            let (end, body) = bytes.split_last().unwrap();
            assert_eq!(*end, 0);
            serde_json::from_slice(body).unwrap()
        }
        Wants::Call(call) => panic!("{call:?}"),
    }
}

#[test]
fn every_call_is_the_same_in_both_framings() {
    for call in samples() {
        let Value::Object(mut parameters) = serde_json::to_value(&call).unwrap() else { panic!("{call:?}") };
        let method = parameters.remove("method").unwrap();
        let name = format!("{INTERFACE}.{}", camel(method.as_str().unwrap()));
        let request = ask(json!({"method": name, "parameters": parameters, "more": true}));
        if method == "capture" {
            let Wants::Answered(bytes) = request.wants else { panic!("a capture was taken") };
            assert!(String::from_utf8_lossy(&bytes).contains("org.varlink.service.MethodNotImplemented"));
        } else {
            assert_eq!(request, Request { oneway: false, wants: Wants::Call(call) });
        }
    }
}

/// The parameters of each call are those of its request type: as many, of the same names and kinds, the same ones optional.
#[test]
fn the_table_of_parameters_is_that_of_the_requests() {
    let described: Vec<&str> = CALLS.iter().map(|call| call.method).collect();
    let mut methods: Vec<&str> = METHODS.to_vec();
    methods.retain(|method| *method != "capture");
    assert_eq!(described.len(), methods.len());
    for call in samples().iter().filter(|call| call.method() != "capture") {
        let takes = CALLS.iter().find(|row| row.method == call.method()).expect("a row").takes;
        let Value::Object(mut request) = serde_json::to_value(call).unwrap() else { panic!("{call:?}") };
        request.remove("method");
        let mut given: Vec<(&str, &str)> =
            request.iter().map(|(name, value)| (&**name, kind(value))).collect();
        let mut told: Vec<(&str, &str)> =
            takes.iter().map(|(name, kind)| (*name, kind.trim_start_matches('?'))).collect();
        given.sort_unstable();
        told.sort_unstable();
        assert_eq!(given, told, "{}", call.method());
        for (name, kind) in takes {
            let mut without = request.clone();
            without.remove(*name);
            let understood = super::call(call.method(), without);
            assert_eq!(
                understood.is_ok(),
                kind.starts_with('?'),
                "{}: {name}: {understood:?}",
                call.method()
            );
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::Number(_) => "int",
        Value::String(_) => "string",
        Value::Object(fields) => {
            let mirror: Result<MirrorRequest, _> = serde_json::from_value(fields.clone().into());
            assert!(mirror.is_ok(), "{fields:?}");
            "MirrorRequest"
        }
        Value::Array(_) => {
            let reports: Result<Vec<OvnReport>, _> = serde_json::from_value(value.clone());
            assert!(reports.is_ok(), "{value}");
            "[]OvnReport"
        }
        Value::Null => panic!("{value}"),
    }
}

#[test]
fn the_description_has_every_type_that_it_names() {
    let text = description::write().unwrap();
    assert_eq!(text, description::description());
    for expected in [
        "\ninterface io.vmlane.Control\n",
        "\nmethod Ping() -> (\n  pid: int,\n  daemon: string,\n  layout: ?int\n)\n",
        "\nmethod VmRemove(name: string, force: ?bool) -> (\n  name: string,\n  file: string,\n  warnings: []string\n)\n",
        "\nmethod MirrorAdd(mirror: MirrorRequest) -> ()\n",
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
fn the_service_says_what_it_is() {
    let info = answer(json!({"method": "org.varlink.service.GetInfo"}));
    assert_eq!(info["parameters"]["version"], "1.2.3");
    assert_eq!(info["parameters"]["interfaces"], json!(["org.varlink.service", "io.vmlane.Control"]));
    for interface in ["org.varlink.service", INTERFACE] {
        let request = json!({"method": "org.varlink.service.GetInterfaceDescription", "parameters": {"interface": interface}});
        let text = answer(request)["parameters"]["description"].as_str().unwrap().to_owned();
        assert!(text.contains(&format!("\ninterface {interface}\n")), "{text}");
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let service = |name: &str| format!("org.varlink.service.{name}");
    let bad = "io.vmlane.Control.BadRequest".to_owned();
    let table = [
        (json!([]), bad.clone(), "no Varlink request"),
        (json!({}), bad.clone(), "missing field `method`"),
        (json!({"method": "Ping"}), service("InterfaceNotFound"), "Ping"),
        (json!({"method": "io.vmlane.Control.Dance"}), service("MethodNotFound"), "io.vmlane.Control.Dance"),
        (json!({"method": "io.vmlane.Control.vm_list"}), service("MethodNotFound"), "vm_list"),
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
        let said = answer(request.clone());
        assert_eq!(said["error"], name, "{request}: {said}");
        assert!(said["parameters"].to_string().contains(text), "{request}: {said}");
    }
}

#[test]
fn a_request_may_want_no_answer() {
    let request = ask(json!({"method": "io.vmlane.Control.Ping", "oneway": true}));
    assert_eq!(request, Request { oneway: true, wants: Wants::Call(Call::Ping) });
    assert!(ask(json!({"method": "io.vmlane.Control.Dance", "oneway": true})).oneway);
}
