//! systemd's `varlinkctl` (257, of Debian 13) reads the description of the control socket and asks a running
//! daemon by it.

use serde_json::Value;
use vmlane_lab::setup::{self, Progress, varlinkctl::Varlinkctl};
use vmlane_testkit::{Daemon, Ran, run};
use vmlane_tests::{alone, kept};

vmlane_tests::tests! {
    long { varlinkctl_introspects_and_calls }
}

const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nnic = [ { model = \"vmxnet3\" } ]\n";

/// A daemon that varlinkctl asks.
struct Asked {
    daemon: Daemon,
    varlinkctl: Varlinkctl,
}

impl Asked {
    fn run(&self, command: &str, words: &[&str]) -> Ran {
        let mut varlinkctl = self.varlinkctl.command();
        let socket = vmlane_api::control_socket(&self.daemon.runtime());
        varlinkctl.args(["--no-pager", command]).arg(socket).args(words);
        run(varlinkctl)
    }

    fn call(&self, method: &str, parameters: &str) -> Value {
        let method = format!("io.vmlane.Control.{method}");
        let text = self.run("call", &["--json=short", &method, parameters]).good();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

fn varlinkctl_introspects_and_calls() {
    let daemon = alone::daemon(CONFIG).with(&["--no-confine"]);
    daemon.start();
    let varlinkctl = setup::varlinkctl::ensure(&Progress(&|_| ())).unwrap();
    let asked = Asked { daemon, varlinkctl };
    let info = asked.run("info", &[]).good();
    assert!(info.contains("vmlane daemon") && info.contains("io.vmlane.Control"), "{info}");

    // It parses the description to show it, and complains of what it cannot parse.
    let shown = asked.run("introspect", &["io.vmlane.Control"]).good();
    for part in ["interface io.vmlane.Control", "method VmAdd", "type VmStatus", "error Forbidden"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let file = asked.daemon.write("description", vmlane_api::varlink::description());
    let mut validate = asked.varlinkctl.command();
    validate.arg("validate-idl").arg(&file);
    let valid = run(validate);
    assert!(valid.succeeded() && valid.err.is_empty(), "{valid:?}");

    assert_eq!(asked.call("Ping", "{}")["pid"], asked.daemon.pid());
    assert_eq!(asked.call("Status", "{}")["vms"][0]["name"], "web");
    assert!(asked.call("Stats", "{}")["vms"][0]["bounds"].as_array().is_some_and(|all| !all.is_empty()));
    let added = asked.call("VmAdd", r#"{"description":"[[vm]]\nname = \"app\"\ncid = 7\n"}"#);
    assert_eq!(added["cid"], 7);
    assert_eq!(asked.call("VmList", "{}")["vms"].as_array().map(Vec::len), Some(2));
    assert_eq!(asked.call("Link", r#"{"vm":"web","nic":"nic0","up":false}"#)["link"], "down");
    assert_eq!(asked.call("VmRemove", r#"{"name":"app"}"#)["name"], "app");

    for (method, parameters, error) in [
        ("VmRemove", r#"{"name":"app"}"#, "io.vmlane.Control."),
        ("Dance", "{}", "MethodNotFound"),
        (
            "Capture",
            r#"{"capture":{"points":[],"vms":[],"snap":64,"buffer":65536}}"#,
            "org.varlink.service.ExpectedMore",
        ),
        ("Release", "{}", "io.vmlane.Control.BadRequest"),
    ] {
        let refused = asked.run("call", &[&format!("io.vmlane.Control.{method}"), parameters]);
        assert!(!refused.succeeded() && refused.err.contains(error), "{method}: {refused:?}");
    }
    kept(
        "operation",
        "varlinkctl of systemd 257 introspects the control socket, validates its description, and adds, lists and \
         removes a VM",
    );
}
