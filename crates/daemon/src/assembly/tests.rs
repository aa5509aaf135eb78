//! What is held for the next daemon goes with its VM, and with no other.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;

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

const NIC: &str = "nic = [{ model = \"vmxnet3\" }]\n";

#[test]
fn what_is_held_for_a_vm_stays_when_one_with_the_beginning_of_its_name_goes() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("vmlane.toml");
    let other = format!("[[vm]]\nname = \"web.nicX\"\ncid = 4\n{NIC}");
    let both = format!("[[vm]]\nname = \"web\"\ncid = 3\n{NIC}{other}");
    std::fs::write(&path, &both).unwrap();
    let paths = Paths::new(base.path()).unwrap();
    let config = Config::load(&path).unwrap();
    let names = Arc::new(Names::default());
    let uplinks = Uplinks::prepare(&[]).unwrap();
    let (events, _inbox) = channel();
    let store = (names.clone() as Arc<dyn Store>, Found::default());
    let daemon = Daemon::start(paths, path.clone(), config, events, store, uplinks).unwrap();
    let before = names.of("web.nicX.");
    assert_eq!(before, ["web.nicX.nic0/listen", "web.nicX.vmci/listen"]);
    assert_eq!(names.of("web.nic0"), ["web.nic0/listen"]);
    std::fs::write(&path, &other).unwrap();
    daemon.reload().unwrap();
    assert_eq!(names.of("web.nic0"), Vec::<String>::new());
    assert_eq!(names.of("web.nicX."), before, "the next daemon serves it");
}
