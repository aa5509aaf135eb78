//! Counters of VMs and their NICs go on with the next daemon: `kill -9` and `--replace` under traffic between
//! synthetic guests.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Instant;

use vmlane_guestsim::vfio_user::Client;
use vmlane_guestsim::virtio_nic::Nic;
use vmlane_guestsim::vsock_vm::VsockVm;
use vmlane_testkit::{Daemon, LONGEST, Process, contains_all, eventually, wait_until};

use crate::common::openmetrics::{Families, parse, value};
use crate::common::{CONTROL, daemon, vmm};

const CONFIG: &str = "\
[[vm]]
name = \"a\"
cid = 3
vsock = \"virtio\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\" } ]
[[vm]]
name = \"b\"
cid = 4
vsock = \"virtio\"
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:02\" } ]
[[vm]]
name = \"web\"
cid = 5
[[uplink]]
name = \"lan\"
vhost_user = \"/nonexistent/switch.sock\"
";
/// The one connection of a, and of b.
const ENDS: [(u32, u32, u32); 2] = [(1000, 4, 2000), (2000, 3, 1000)];

/// Two guests, what they have between them, and a VMM with VMCI.
struct World {
    daemon: Daemon,
    vsock: [VsockVm; 2],
    nics: [Nic; 2],
    web: Client,
    frames: u64,
}

impl World {
    fn new() -> World {
        let daemon = daemon(CONFIG);
        let vsock = [(3, "a"), (4, "b")]
            .map(|(cid, vm)| VsockVm::attach(cid, &daemon.socket(vm, "vsock.sock"), false));
        let web = vmm(&daemon, "web");
        let mut world = World { daemon, vsock, nics: [Nic::new(false), Nic::new(false)], web, frames: 0 };
        world.vsock[0].connect(ENDS[0]);
        world.attach();
        world
    }

    /// Front ends of cards connect to each daemon.
    fn attach(&mut self) {
        for (nic, vm) in self.nics.iter_mut().zip(["a", "b"]).rev() {
            nic.attach(&self.daemon.socket(vm, "nic0.sock"));
        }
    }

    /// Moves `bytes` more over vsock, and frames meanwhile.
    fn traffic(&mut self, bytes: u64) {
        let enough = self.received() + bytes;
        let since = Instant::now();
        let mut frames = 0;
        while self.received() < enough || frames < 200 {
            self.vsock[0].ends.entry(ENDS[0]).and_modify(|end| end.wanted = end.sent + (1 << 20));
            self.vsock.iter_mut().for_each(|vm| _ = vm.turn());
            let [from, to] = &mut self.nics;
            self.frames += u64::from(from.send(self.frames));
            from.settle();
            frames += to.receive().len();
            assert!(since.elapsed() < LONGEST, "nothing moves");
        }
        self.web.read_u32(1, CONTROL).unwrap();
    }

    fn received(&self) -> u64 {
        self.vsock[1].ends.values().map(|end| end.received).sum()
    }

    /// The page of metrics, from the first daemon that answers.
    fn page(&self) -> Families {
        let text = eventually("a page of metrics", || {
            let ran = self.daemon.ask(&["metrics"]);
            ran.succeeded().then_some(ran.out)
        });
        parse(&text).unwrap()
    }
}

/// Each series of a counter that goes on, by name and labels.
fn counted(page: &Families) -> BTreeMap<String, f64> {
    let goes_on = |labels: &BTreeMap<String, String>| {
        ["vm", "uplink"].iter().any(|label| labels.contains_key(*label)) && !labels.contains_key("bound")
    };
    let counters = page.values().filter(|family| family.kind == "counter");
    let samples = counters.flat_map(|family| &family.samples).filter(|sample| goes_on(&sample.labels));
    samples.map(|sample| (format!("{} {:?}", sample.name, sample.labels), sample.value)).collect()
}

#[test]
fn counters_go_on_when_a_daemon_is_killed_or_replaced() {
    let mut world = World::new();
    let of = |page: &Families, name, vm| value(page, name, &[("vm", vm)]).unwrap();
    let since = |page: &Families| {
        let of_uplink = value(page, "vmlane_uplink_counted_since_seconds", &[("uplink", "lan")]).unwrap();
        (["a", "b", "web"].map(|vm| of(page, "vmlane_vm_counted_since_seconds", vm)), of_uplink)
    };
    world.traffic(256 << 10);
    let mut before = world.page();
    let begun = since(&before);
    let mut replacement = None;
    for round in 0..6 {
        if round % 3 == 2 {
            let mut next = world.daemon.daemon_command();
            next.arg("--replace").stdout(Stdio::null());
            let next = Process(next.spawn().unwrap());
            // Cards that connect to the one before would not connect again.
            wait_until("the replacement answers", || {
                let ran = world.daemon.ask(&["status", "--json"]);
                ran.succeeded() && ran.out.contains(&format!("\"pid\":{},", next.id()))
            });
            replacement = Some(next);
        } else {
            drop(replacement.take());
            world.daemon.kill();
            world.daemon.launch();
        }
        world.attach();
        // Some more than is asked for below: what one end was given may have been counted before it takes it.
        world.traffic(256 << 10);
        let now = world.page();
        let (was, is) = (counted(&before), counted(&now));
        assert!(was.len() > 100 && was.keys().eq(is.keys()));
        for (series, value) in &is {
            assert!(*value >= was[series], "round {round}: {series} was {}, and is {value}", was[series]);
        }
        for (name, vm, least) in [
            ("vmlane_vm_stream_sent_bytes_total", "a", 128e3),
            ("vmlane_vm_stream_received_bytes_total", "b", 128e3),
            ("vmlane_vm_packets_sent_total", "a", 10.0),
            ("vmlane_nic_sent_frames_total", "a", 100.0),
            ("vmlane_nic_received_frames_total", "b", 100.0),
        ] {
            let grown = of(&now, name, vm) - of(&before, name, vm);
            assert!(grown >= least, "round {round}: {name} of {vm} has grown by {grown}");
        }
        assert_eq!(since(&now), begun, "round {round}");
        before = now;
    }
    // A step before a death may be counted twice or not at all, and what is under way is not counted yet:
    // what a socket takes each.
    let sent = world.vsock[0].ends[&ENDS[0]].sent as f64;
    let shown = of(&before, "vmlane_vm_stream_sent_bytes_total", "a");
    println!("{shown} bytes are shown of {sent}");
    assert!((shown - sent).abs() <= 7.0 * 65_536.0, "{shown} bytes are shown of {sent}");
    let device = |name, device| value(&before, name, &[("vm", "web"), ("device", device)]);
    assert_eq!(device("vmlane_device_sessions_total", "vsock"), Some(1.0), "its VMM has connected once");
    assert_eq!(device("vmlane_device_register_reads_total", "vsock"), Some(7.0));
    assert_eq!(of(&before, "vmlane_vm_faults_total", "a"), 0.0);
    drop(replacement);
}

/// A VM that has gone, and comes again, counts from 0.
#[test]
fn counters_end_with_their_vm() {
    let (with, without) = ("[[vm]]\nname = \"web\"\ncid = 5\n", "");
    let daemon = daemon(with);
    let mut web = vmm(&daemon, "web");
    web.read_u32(1, CONTROL).unwrap();
    let reads = || daemon.stats("web")["session"]["reads"].clone();
    assert_eq!(reads(), 1);
    drop(web);
    wait_until("its end", || daemon.vm("web")["attached"] == false);
    for text in [without, with] {
        daemon.configure(text);
        daemon.must(&["reload"]);
    }
    assert_eq!(reads(), 0);
    // Removed while no daemon runs.
    vmm(&daemon, "web").read_u32(1, CONTROL).unwrap();
    for text in [without, with] {
        daemon.kill();
        daemon.configure(text);
        daemon.launch();
        wait_until("a daemon", || daemon.ask(&["status"]).succeeded());
    }
    assert_eq!(reads(), 0);
}

/// The error names what to do where no daemon runs; the doctor finds it.
#[test]
fn sessions_that_wait_for_a_daemon_are_named() {
    let mut world = World::new();
    world.traffic(1);
    world.daemon.kill();
    let held = [
        "the keeper holds the sessions of a/vsock, b/vsock, web/vmci",
        "systemctl start vmlane",
        "no daemon",
    ];
    world.daemon.ask(&["status"]).fails(1, &held);
    let found = world.daemon.ask(&["doctor", "a", "web"]);
    assert_eq!(found.code, 1, "{found:?}");
    contains_all(
        // Without the ends of its lines.
        &found.out.split_whitespace().collect::<Vec<_>>().join(" "),
        &[
            "sessions of VM a (vsock)",
            "sessions of VM web (vmci)",
            "now: systemctl start vmlane",
            "as under 1",
        ],
    );
    world.daemon.ask(&["doctor", "none"]).fails(3, &["no daemon"]);
    world.daemon.launch();
    world.attach();
    world.traffic(1);
}
