//! What libvirt's hook accepts and refuses, beside a running daemon and without one.

use std::io::Write;
use std::process::Stdio;

use vmlane_testkit::{Daemon, Process, Ran, run};

use crate::common::place;

const CONFIG: &str = "[[vm]]\nname = \"web\"\ncid = 3\nowner = \"500:501\"\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\" }]\n";
const OTHER: &str = "<domain type='kvm'><name>other</name></domain>";

fn domain(daemon: &Daemon) -> String {
    run(daemon.configured(&["libvirt-xml", "web"])).good()
}

/// As libvirt calls it.
fn hook(daemon: &Daemon, domain: &str, operation: &str, part: &str, xml: &str) -> Ran {
    let mut command = daemon.configured(&["libvirt-hook", domain, operation, part, "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut hook = Process(command.spawn().unwrap());
    // It may have ended without reading.
    let _ = hook.0.stdin.take().unwrap().write_all(xml.as_bytes());
    hook.finish()
}

fn refuses(daemon: &Daemon, domain: &str, xml: &str, words: &[&str]) {
    hook(daemon, domain, "prepare", "begin", xml).fails(1, words);
}

fn lets(daemon: &Daemon, domain: &str, operation: &str, part: &str, xml: &str) {
    // libvirt would take what is printed for another domain.
    assert_eq!(hook(daemon, domain, operation, part, xml).good(), "");
}

#[test]
fn a_domain_starts_when_the_daemon_serves_its_vm_as_configured() {
    let daemon = place(CONFIG);
    let xml = domain(&daemon);
    refuses(&daemon, "web", &xml, &["\"web\" does not start", "systemctl start vmlane"]);
    daemon.start();
    lets(&daemon, "web", "prepare", "begin", &xml);
    refuses(&daemon, "other", &xml, &["of VM web", "domain = \"other\""]);
    for changed in [("cid = 3", "cid = 4"), ("virtio-net\"", "virtio-net\", mac = \"52:54:00:00:00:07\"")] {
        daemon.configure(&CONFIG.replace(changed.0, changed.1));
        refuses(&daemon, "web", &domain(&daemon), &["vmlane reload"]);
    }
    daemon.configure(&format!("{CONFIG}[[vm]]\nname = \"new\"\ncid = 9\n"));
    let new =
        xml.replace("vm/web/vsock.sock", "vm/new/vmci.sock").replace("vm/web/nic0.sock", "vm/new/vmci.sock");
    refuses(&daemon, "new", &new, &["does not serve VM new yet"]);
}

#[test]
fn domains_of_others_start_whatever_state_vmlane_is_in() {
    let daemon = place(CONFIG);
    lets(&daemon, "other", "prepare", "begin", OTHER);
    lets(&daemon, "web", "release", "end", "no XML");
    lets(&daemon, "web", "reconnect", "begin", &domain(&daemon));
    let xml = domain(&daemon);
    daemon.configure("nonsense");
    lets(&daemon, "other", "prepare", "begin", OTHER);
    refuses(&daemon, "web", &xml, &["nonsense"]);
    refuses(&daemon, "other", &" ".repeat((1 << 20) + 1), &[]);
}
