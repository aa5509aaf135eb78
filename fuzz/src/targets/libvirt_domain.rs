//! `vmlane libvirt-xml --into` and libvirt's hook: any text is refused, or becomes a domain that another
//! parser takes if it took the text, in which nothing has changed but the VM's devices, which a second time
//! does not change, and which the hook lets start.

use std::path::Path;
use std::sync::LazyLock;

use vmlane_access::Accounts;
use vmlane_attach::libvirt::Attach;
use vmlane_attach::libvirt::hook::{self, Operation, Start};
use vmlane_config::Config;
use vmlane_config::paths::Paths;

use crate::domain::others;

/// VMs of each kind of device.
const VMS: [&str; 5] = [
    "cid = 3\nowner = \"500:501\"\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\", queues = 2 }, \
     { model = \"vmxnet3\", mac = \"52:54:00:00:00:04\" }]",
    "cid = 3\nowner = \"500:501\"\nnic = [{ model = \"vmxnet3\", mac = \"52:54:00:00:00:03\", slot = 192 }]",
    "vsock = \"none\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\", mtu = 9000 }, \
     { model = \"virtio-net\", mac = \"52:54:00:00:00:04\", role = \"client\" }]",
    "cid = 3\nvsock = \"virtio\"",
    "vsock = \"none\"\nowner = \"500\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\", packed = true }]",
];
/// Its letters need escaping in XML.
const RUNTIME: &str = "/run/a'&b";
const EMULATOR: &str = "/opt/q&a/qemu";

static CONFIGS: LazyLock<Vec<Config>> = LazyLock::new(|| {
    let config = |keys: &&str| {
        let text =
            format!("[[vm]]\nname = \"web\"\n{keys}\n[[vm]]\nname = \"db\"\ncid = 99\nowner = \"7:8\"\n");
        Config::parse(Path::new("fuzz.toml"), &text).expect("it is right")
    };
    VMS.iter().map(config).collect()
});

pub fn run(data: &[u8]) {
    let text = crate::text(data);
    let (kind, existing) = text.split_at_checked(1).unwrap_or_default();
    let kind = usize::from(kind.bytes().next().unwrap_or_default());
    let config = &CONFIGS[kind % VMS.len()];
    let paths = Paths::new(Path::new(RUNTIME)).expect("an absolute path");
    let emulator = (kind / VMS.len() % 2 == 1).then_some(Path::new(EMULATOR));
    let attach = Attach { config, paths: &paths, vm: config.vm("web").expect("it is there"), emulator };

    let accounts = Accounts::host();
    let start = |name, xml| {
        hook::judge(config, &paths, &accounts, Start { name, operation: Operation::Prepare, xml })
    };
    let _ = start("other", existing);
    hook::concerns(existing, &paths);
    let Ok(domain) = attach.put_into(existing) else { return };
    let again = attach.put_into(&domain.xml).expect("what was printed is taken");
    assert_eq!(again.xml, domain.xml, "a second time changes something");
    if let Some(before) = others(existing, attach) {
        let after = others(&domain.xml, attach).expect("another parser takes it");
        assert_eq!(before, after, "more than the VM's devices has changed\n{}", domain.xml);
    }
    match start("web", &domain.xml) {
        Ok(vm) => assert!(vm.is_some(), "the hook does not know the VM\n{}", domain.xml),
        Err(why) => panic!("the hook: {why}\n{}", domain.xml),
    }
}
