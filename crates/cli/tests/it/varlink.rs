//! The control socket, asked by a client written here: what a running daemon answers is what its description
//! has, member by member.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use vmlane_testkit::Daemon;

use crate::common::place;

const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nnic = [ { model = \"vmxnet3\" } ]\n\
    [[vm]]\nname = \"db\"\ncid = 4\nvsock = \"virtio\"\nnic = [ { model = \"virtio-net\" } ]\n\
    [[mirror]]\nname = \"ids\"\nfrom = [\"web/nic0\"]\nto = \"db/nic0\"\n";

/// A connection to the daemon.
struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(daemon: &Daemon) -> Client {
        Client(BufReader::new(UnixStream::connect(daemon.run("control.sock")).unwrap()))
    }

    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.send(&json!({"method": method, "parameters": parameters}))
    }

    fn send(&mut self, request: &Value) -> Value {
        let method = &request["method"];
        let request = format!("{request}\0");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        self.0.read_until(0, &mut answer).unwrap();
        assert_eq!(answer.pop(), Some(0), "{method}");
        serde_json::from_slice(&answer).unwrap()
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        let mut answer = self.ask(&format!("io.vmlane.Control.{method}"), parameters);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["parameters"].take()
    }
}

/// A description, as far as answers need it: members of types and of what methods give, with their kinds.
struct Description(BTreeMap<String, BTreeMap<String, String>>);

impl Description {
    fn parse(text: &str) -> Description {
        let mut types = BTreeMap::new();
        let text: String = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ");
        for (word, start) in [("type ", "type "), ("method ", "-> ")] {
            for part in text.split(word).skip(1) {
                let name: String = part.chars().take_while(char::is_ascii_alphanumeric).collect();
                let body = if start == "-> " { part.split_once("-> ").expect("an arrow").1 } else { part };
                let body = body.split_once('(').expect("members").1.split_once(')').expect("their end").0;
                let members = body.split(',').filter_map(|member| member.trim().split_once(": "));
                types.insert(name, members.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect());
            }
        }
        Description(types)
    }

    /// Every member of a value is there and of its kind, and none is there that is not described.
    fn holds(&self, name: &str, value: &Value, place: &str) {
        let members = self.0.get(name).unwrap_or_else(|| panic!("{place}: no type {name}"));
        let value = value.as_object().unwrap_or_else(|| panic!("{place}: no object"));
        for name in value.keys() {
            assert!(members.contains_key(name), "{place}: {name} is not described");
        }
        for (name, kind) in members {
            let place = format!("{place}.{name}");
            match value.get(name) {
                Some(value) => self.is(kind, value, &place),
                None => assert!(kind.starts_with('?'), "{place} is missing"),
            }
        }
    }

    fn is(&self, kind: &str, value: &Value, place: &str) {
        if let Some(kind) = kind.strip_prefix('?') {
            return if value.is_null() {
            } else {
                self.is(kind, value, place)
            };
        }
        if let Some(kind) = kind.strip_prefix("[]") {
            let list = value.as_array().unwrap_or_else(|| panic!("{place}: no list"));
            return list.iter().for_each(|value| self.is(kind, value, place));
        }
        if let Some(kind) = kind.strip_prefix("[string]") {
            let map = value.as_object().unwrap_or_else(|| panic!("{place}: no map"));
            return map.values().for_each(|value| self.is(kind, value, place));
        }
        let is = match kind {
            "bool" => value.is_boolean(),
            "int" => value.is_i64() || value.is_u64(),
            "float" => value.is_number(),
            "string" => value.is_string(),
            "object" => value.is_object(),
            name => return self.holds(name, value, place),
        };
        assert!(is, "{place} is {value}, not {kind}");
    }
}

#[test]
fn a_daemon_answers_as_described() {
    let daemon = place(CONFIG).with(&["--no-confine"]);
    daemon.start();
    let mut client = Client::connect(&daemon);

    let asked = json!({"interface": "io.vmlane.Control"});
    let reply = client.ask("org.varlink.service.GetInterfaceDescription", &asked);
    let description = Description::parse(reply["parameters"]["description"].as_str().expect("a text"));
    assert!(description.0.len() > 30, "{:?}", description.0.keys());
    let added = "[[vm]]\nname = \"app\"\ncid = 7\n";
    let mirror = json!({"mirror": {"name": "more", "from": ["web/nic0"], "to": "db/nic0"}});
    for (method, parameters) in [
        ("Ping", json!({})),
        ("VmAdd", json!({"description": added})),
        ("MirrorAdd", mirror),
        ("Link", json!({"vm": "web", "nic": "nic0", "up": false})),
        ("Status", json!({})),
        ("Stats", json!({})),
        ("Ports", json!({})),
        ("VmList", json!({})),
        ("MirrorRemove", json!({"name": "more"})),
        ("VmRemove", json!({"name": "app"})),
        ("Reload", json!({})),
    ] {
        let answer = client.call(method, &parameters);
        description.holds(method, &answer, method);
    }
    let capture = json!({"capture": {"points": ["web/nic0"], "vms": [], "snap": 64, "buffer": 65536}});
    let mut capturing = Client::connect(&daemon);
    let request = json!({"method": "io.vmlane.Control.Capture", "parameters": capture, "more": true});
    let answer = capturing.send(&request);
    assert_eq!(answer["continues"], true);
    description.holds("Capture", &answer["parameters"], "Capture");
    // Any further byte ends it.
    let last = capturing.send(&json!({}));
    assert_eq!((&last["parameters"], &last["continues"]), (&answer["parameters"], &Value::Null));
    let answer = client.ask("io.vmlane.Control.VmRemove", &json!({"name": "app"}));
    assert!(
        answer["error"].as_str().is_some_and(|error| error.starts_with("io.vmlane.Control.")),
        "{answer}"
    );
    assert!(answer["parameters"]["message"].as_str().is_some_and(|text| text.contains("app")), "{answer}");
    client.call("Shutdown", &json!({}));
}
