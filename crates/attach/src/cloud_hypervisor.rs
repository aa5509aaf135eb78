//! Cloud Hypervisor: virtio NICs by `--net`, virtio-vsock by `--generic-vhost-user` or by its own device
//! (`--vsock`, a hybrid socket), VMCI and VMXNET3 by `--user-device` (vfio-user).

use std::path::Path;

use vmlane_config::paths::Paths;
use vmlane_config::{NicModel, Role, VmConfig, Vsock};

use crate::qemu::{Lacks, RING};

/// The virtio id of a vsock device.
const VSOCK: u32 = 19;
/// Descriptors of its three rings.
const VSOCK_RING: u16 = 128;

/// The arguments, one string each. Each option is given once: that is how Cloud Hypervisor takes lists.
pub fn arguments(paths: &Paths, vm: &VmConfig, memory_mib: u64) -> Result<Vec<String>, Lacks> {
    let mut arguments = vec!["--memory".to_owned(), format!("size={memory_mib}M,shared=on")];
    let (mut nets, mut devices) = (Vec::new(), Vec::new());
    let (mut vsock, mut own) = (Vec::new(), Vec::new());
    match vm.vsock {
        Vsock::Vmci => devices.push(format!("socket={}", quoted(&paths.vmci(&vm.name)?))),
        Vsock::Virtio { role: Role::Client } => return Err(Lacks::Listening { vm: vm.name.clone() }),
        Vsock::Virtio { role: Role::Server } => {
            let (socket, ring) = (quoted(&paths.vsock(&vm.name)?), VSOCK_RING);
            vsock.push(format!("socket={socket},device_type={VSOCK},queue_sizes=[{ring},{ring},{ring}]"));
        }
        Vsock::Hybrid(_) => {
            own.push(format!("cid={},socket={}", vm.cid, quoted(&vm.hybrid_socket(paths)?)));
        }
        Vsock::None => {}
    }
    for (number, nic) in vm.nics.iter().enumerate() {
        let socket = quoted(&paths.nic(&vm.name, number)?);
        let NicModel::VirtioNet(virtio) = nic.model else {
            devices.push(format!("socket={socket}"));
            continue;
        };
        let queues = 2 * u16::from(nic.queues);
        let mut net =
            format!("vhost_user=true,socket={socket},mac={},num_queues={queues},queue_size={RING}", nic.mac);
        if virtio.role == Role::Client {
            net += ",vhost_mode=server";
        }
        if virtio.announces_mtu {
            net += &format!(",mtu={}", nic.mtu);
        }
        nets.push(net);
    }
    if vm.uml_pci {
        return Err(Lacks::UmlPci { vm: vm.name.clone() });
    }
    for (option, values) in
        [("--net", nets), ("--vsock", own), ("--generic-vhost-user", vsock), ("--user-device", devices)]
    {
        if !values.is_empty() {
            arguments.push(option.to_owned());
            arguments.extend(values);
        }
    }
    Ok(arguments)
}

/// A path as Cloud Hypervisor's option lists take it: what would end it stands in quotes.
fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    if path.contains([',', '"', '[', ']', '=']) {
        return format!("\"{}\"", path.replace('"', "\"\""));
    }
    path.into_owned()
}

#[cfg(test)]
mod tests {
    use vmlane_config::Config;

    use super::*;

    fn vm(keys: &str) -> VmConfig {
        let text = format!("[[vm]]\nname = \"web\"\n{keys}");
        Config::parse(Path::new("t.toml"), &text).unwrap().vms.remove(0)
    }

    #[test]
    fn it_listens_for_nics_only() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let nic = vm("vsock = \"none\"\nnic = [{ model = \"virtio-net\", role = \"client\" }]");
        let arguments = |vm| super::arguments(&paths, vm, 512);
        assert!(arguments(&nic).unwrap()[3].ends_with(",vhost_mode=server"));
        let vsock = vm("cid = 3\nvsock = \"virtio\"\nvsock_role = \"client\"");
        let why = arguments(&vsock).unwrap_err().to_string();
        assert!(why.contains("VM web") && why.contains("remove the key"), "{why}");
    }

    #[test]
    fn every_kind_has_its_option() {
        let nics = "nic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\", queues = 2, mtu = 9000 }, \
                    { model = \"vmxnet3\" }, { model = \"virtio-net\", mac = \"52:54:00:00:00:04\" }]";
        let virtio = vm(&format!("cid = 3\nvsock = \"virtio\"\n{nics}"));
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        assert_eq!(
            arguments(&paths, &virtio, 512).unwrap(),
            [
                "--memory",
                "size=512M,shared=on",
                "--net",
                "vhost_user=true,socket=/run/v/vm/web/nic0.sock,mac=52:54:00:00:00:03,num_queues=4,queue_size=1024,\
                 mtu=9000",
                "vhost_user=true,socket=/run/v/vm/web/nic2.sock,mac=52:54:00:00:00:04,num_queues=2,queue_size=1024",
                "--generic-vhost-user",
                "socket=/run/v/vm/web/vsock.sock,device_type=19,queue_sizes=[128,128,128]",
                "--user-device",
                "socket=/run/v/vm/web/nic1.sock",
            ]
        );
        let hybrid = vm("cid = 3\nvsock = \"hybrid\"");
        assert_eq!(
            arguments(&paths, &hybrid, 512).unwrap()[2..],
            ["--vsock", "cid=3,socket=/run/v/vm/web/hybrid/v.sock"]
        );
        let vmci = vm("cid = 3");
        let odd = Paths::new(Path::new("/run/a,\"b\"")).unwrap();
        assert_eq!(
            arguments(&odd, &vmci, 512).unwrap()[2..],
            ["--user-device", "socket=\"/run/a,\"\"b\"\"/vm/web/vmci.sock\""]
        );
    }
}
