//! Firecracker: its own virtio-vsock device, whose hybrid socket is the daemon's way to the guest. It has no
//! device that could be ours.

use serde::Serialize;
use vmlane_config::VmConfig;
use vmlane_config::paths::Paths;

use crate::qemu::Lacks;

/// What concerns us in the file of `--config-file`; with the names of its API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineConfig {
    pub vsock: Vsock,
}

/// The body of `PUT /vsock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vsock {
    pub guest_cid: u32,
    pub uds_path: String,
}

/// The part of Firecracker's configuration that attaches `vm`.
///
/// # Errors
/// The VM has a device of ours, or a path is too long.
pub fn config(paths: &Paths, vm: &VmConfig) -> Result<MachineConfig, Lacks> {
    let lacks = |instead| Lacks::Firecracker { vm: vm.name.clone(), instead };
    if vm.vsock.hybrid().is_none() {
        return Err(lacks("use vsock = \"hybrid\""));
    }
    if !vm.nics.is_empty() {
        return Err(lacks(
            "remove its NICs here, and give Firecracker TAP interfaces on the bridge that an uplink leads to",
        ));
    }
    let uds_path = vm.hybrid_socket(paths)?.display().to_string();
    Ok(MachineConfig { vsock: Vsock { guest_cid: vm.cid, uds_path } })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use vmlane_config::Config;

    use super::*;

    fn config_of(keys: &str) -> Result<MachineConfig, Lacks> {
        let text = format!("[[vm]]\nname = \"web\"\n{keys}");
        let vm = Config::parse(Path::new("t.toml"), &text).unwrap().vms.remove(0);
        config(&Paths::new(Path::new("/run/v")).unwrap(), &vm)
    }

    #[test]
    fn it_is_what_its_api_takes() {
        let json = serde_json::to_value(config_of("cid = 3\nvsock = \"hybrid\"").unwrap()).unwrap();
        let expected =
            serde_json::json!({ "vsock": { "guest_cid": 3, "uds_path": "/run/v/vm/web/hybrid/v.sock" } });
        assert_eq!(json, expected);
        let own = config_of("cid = 3\nvsock = \"hybrid\"\nuds_path = \"/srv/v.sock\"").unwrap();
        assert_eq!(own.vsock.uds_path, "/srv/v.sock");
    }

    #[test]
    fn devices_of_ours_are_refused_with_the_way_out() {
        for (keys, word) in [
            ("cid = 3", "vsock = \"hybrid\""),
            ("cid = 3\nvsock = \"hybrid\"\nnic = [{ model = \"virtio-net\" }]", "TAP"),
        ] {
            let error = config_of(keys).unwrap_err().to_string();
            assert!(error.contains("VM web") && error.contains(word), "{error}");
        }
    }
}
