//! Proxmox VE: the value of a VM's `args`, which `qm` appends to QEMU's command line.

use vmlane_config::VmConfig;
use vmlane_config::paths::{Paths, TooLong};

use crate::qemu::{self, shell_quoted};

/// The value. Proxmox gives `-m` itself (the VM's `memory` must be `memory_mib`) and splits the value as a
/// shell does.
pub fn args(paths: &Paths, vm: &VmConfig, memory_mib: u64) -> Result<String, TooLong> {
    let mut words = qemu::memory(memory_mib);
    words.extend(qemu::devices(paths, vm, qemu::Qemu::default(), |_| true)?);
    Ok(words.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vmlane_config::Config;

    use super::*;

    #[test]
    fn memory_is_shared_and_its_size_is_proxmoxs() {
        let text = "[[vm]]\nname = \"web\"\ncid = 3\nvsock = \"virtio\"\n";
        let vm = Config::parse(Path::new("t.toml"), text).unwrap().vms.remove(0);
        let args = args(&Paths::new(Path::new("/run/v")).unwrap(), &vm, 512).unwrap();
        assert_eq!(
            args,
            "-object memory-backend-memfd,id=vmlane-mem,size=512M,share=on -machine memory-backend=vmlane-mem \
             -chardev socket,id=vmlane-vsock,path=/run/v/vm/web/vsock.sock \
             -device vhost-user-vsock-pci,chardev=vmlane-vsock"
        );
    }
}
