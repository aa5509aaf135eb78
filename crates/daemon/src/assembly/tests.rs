//! What is held for the next daemon goes with its VM, and with no other.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use vmlane_port::{Side, StreamId};
use vmlane_testkit::wait_until;
use vmlane_vsock::{Call as Connecting, Failed, Key, Remote};

use super::*;

#[derive(Default)]
struct Names(Mutex<BTreeSet<String>>);

impl Store for Names {
    fn put(&self, name: &str, _fd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.lock().insert(name.to_owned());
        Ok(())
    }

    fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    fn remove_all(&self, prefix: &str) {
        self.0.lock().retain(|name| !name.starts_with(prefix));
    }
}

impl Names {
    fn of(&self, vm: &str) -> Vec<String> {
        let names = self.0.lock();
        names.iter().filter(|name| name.starts_with(vm)).cloned().collect()
    }
}

/// A daemon in this directory, which serves this file's VMs, and what it holds for the next one.
fn daemon(base: &Path, change: impl FnOnce(&mut Config)) -> (Daemon, Arc<Names>) {
    let added = vmlane_config::added::AddedVms::open(base, &[]).unwrap();
    let (files, mut config) = Files::load(&base.join("vmlane.toml"), added).unwrap();
    change(&mut config);
    let names = Arc::new(Names::default());
    let uplinks = Uplinks::prepare(&[]).unwrap();
    let (paths, store, found) = (Paths::new(base).unwrap(), names.clone(), Found::default());
    let (placement, extras) = (Placement::of(&config.daemon), Extras::default());
    let builder = Builder { paths, files, config, placement, uplinks, store, found, extras };
    (builder.start(channel().0).unwrap(), names)
}

fn add_vm(daemon: &Daemon, text: &str) -> Result<vmlane_api::VmAdded, Failure> {
    daemon.change(|served, host| change::add_vm(served, host, text))
}

const NIC: &str = "nic = [{ model = \"vmxnet3\" }]\n";

#[test]
fn what_is_held_for_a_vm_stays_when_one_with_the_beginning_of_its_name_goes() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("vmlane.toml");
    let other = format!("[[vm]]\nname = \"web.nicX\"\ncid = 4\n{NIC}");
    let both = format!("[[vm]]\nname = \"web\"\ncid = 3\n{NIC}{other}");
    std::fs::write(&path, &both).unwrap();
    let (daemon, names) = daemon(base.path(), |_| {});
    let before = names.of("web.nicX.");
    let held = |device: &str, all: &[&str]| -> Vec<String> {
        all.iter().map(|name| format!("{device}/{name}")).collect()
    };
    let of_nic = ["counters.device", "counters.port", "counters.session", "listen"];
    let of_vmci = ["counters.device", "counters.session", "listen"];
    assert_eq!(before, [held("web.nicX.nic0", &of_nic), held("web.nicX.vmci", &of_vmci)].concat());
    assert_eq!(names.of("web.nic0"), held("web.nic0", &of_nic));
    std::fs::write(&path, &other).unwrap();
    daemon.reload().unwrap();
    assert_eq!(names.of("web.nic0"), Vec::<String>::new());
    assert_eq!(names.of("web.nicX."), before, "the next daemon serves it");
}

#[test]
fn so_many_vms_are_added_and_no_more() {
    let base = tempfile::tempdir().unwrap();
    std::fs::write(base.path().join("vmlane.toml"), "").unwrap();
    // As if all but one were there.
    let (daemon, _) = daemon(base.path(), |config| {
        for number in 1..vmlane_config::added::MOST_VMS {
            let place = vmlane_config::VmPlace { added: true, ..Default::default() };
            config.places.insert(format!("v{number}"), place);
        }
    });
    add_vm(&daemon, "[[vm]]\nname = \"last\"\ncid = 3\n").unwrap();
    let refused = add_vm(&daemon, "[[vm]]\nname = \"more\"\ncid = 4\n").unwrap_err().to_string();
    assert!(refused.contains("1024 VMs were added already") && refused.contains("remove one"), "{refused}");
    daemon.change(|served, host| change::remove_vm(served, host, "last", false)).unwrap();
    add_vm(&daemon, "[[vm]]\nname = \"more\"\ncid = 4\n").unwrap();
}

#[test]
fn a_vm_that_cannot_be_served_is_not_kept() {
    let base = tempfile::tempdir().unwrap();
    std::fs::write(base.path().join("vmlane.toml"), "").unwrap();
    let (daemon, _) = daemon(base.path(), |_| {});
    // Something else is in the way of its socket's directory.
    std::fs::create_dir_all(base.path().join("vm")).unwrap();
    std::fs::write(base.path().join("vm/web"), "").unwrap();
    let refused = add_vm(&daemon, "[[vm]]\nname = \"web\"\ncid = 3\n").unwrap_err().to_string();
    assert!(refused.contains("vm \"web\""), "{refused}");
    assert!(daemon.views().vms().vms.is_empty() && !base.path().join("vms.d/web.toml").exists());
    std::fs::remove_file(base.path().join("vm/web")).unwrap();
    add_vm(&daemon, "[[vm]]\nname = \"web\"\ncid = 3\n").unwrap();
}

/// A client whose worker waits when it reports that nothing comes of a connection.
#[derive(Default)]
struct Holds {
    gate: Mutex<()>,
    entered: AtomicBool,
}

impl Remote for Holds {
    fn joined(&self, _: Connecting, _: StreamId, _: Side) {}

    fn failed(&self, _: Connecting, _: Failed) {
        self.entered.store(true, Ordering::Release);
        drop(self.gate.lock());
    }
}

#[test]
fn status_of_a_worker_that_does_not_answer_keeps_no_one_from_the_state() {
    let base = tempfile::tempdir().unwrap();
    std::fs::write(base.path().join("vmlane.toml"), "[[vm]]\nname = \"web\"\ncid = 3\nvsock = \"virtio\"\n")
        .unwrap();
    let (daemon, _) = daemon(base.path(), |_| {});
    let client = Arc::new(Holds::default());
    let held = client.gate.lock();
    // No driver is there that would answer.
    let key = Key { client: (2, 1 << 30), server: (3, 1) };
    daemon.host.router.open(key, None, client.clone()).unwrap();
    wait_until("the worker is stuck", || client.entered.load(Ordering::Acquire));
    std::thread::scope(|scope| {
        let status = scope.spawn(|| daemon.views().status());
        while !status.is_finished() {
            // It takes half a second.
            let served = daemon.served.try_lock_for(Duration::from_millis(300));
            assert!(served.is_some(), "the state is locked while a worker is asked");
            drop(served);
            std::thread::yield_now();
        }
        assert_eq!(status.join().unwrap().vms.len(), 1);
    });
    drop(held);
}
