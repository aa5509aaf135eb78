//! How QEMU attaches a configured VM: 10.1 or later for vfio-user, 7.2 or later for vhost-user.

mod kind;
mod ports;

use std::path::Path;

use vmlane_config::paths::{Paths, TooLong};
use vmlane_config::{NicConfig, NicModel, Role, VirtioNet, VmConfig};

use self::ports::{Port, Ports};
pub(crate) use kind::without_port;
pub use kind::{Accel, Lacks, Machine, Qemu, Version, check_sockets};

/// Milliseconds QEMU waits for an answer. Its default of 5 s is fatal to the guest when the host
/// is suspended or the daemon is stopped in a debugger.
const MESSAGE_TIMEOUT_MS: u32 = 60_000;

/// Under ACPI's hotplug, which is q35's default, guests do not see the numbers of slots.
pub const NATIVE_HOTPLUG: &str = "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off";

/// Waking from S3 resets devices, and Linux's VMCI driver does not set its own up again: connects fail with
/// EINVAL from then on. For machines with ICH9, as q35 is one.
pub const NO_SLEEP: &str = "ICH9-LPC.disable_s3=1";

/// Descriptors of a virtio NIC's rings: the most that QEMU has.
pub const RING: u16 = 1024;
/// What a guest is shown as the speed of a virtio NIC.
const SPEED_MBPS: u32 = 10_000;

/// The arguments, one string each. They add to what the caller has: a machine type, an
/// accelerator, disks. QEMU merges several `-machine` options into one.
///
/// # Errors
/// The VM has a device that this QEMU does not, or a socket's path is too long.
pub fn arguments(paths: &Paths, vm: &VmConfig, memory_mib: u64, qemu: Qemu) -> Result<Vec<String>, Lacks> {
    qemu.check(vm)?;
    let mut arguments = memory(memory_mib);
    arguments.extend(["-m".into(), format!("{memory_mib}M")]);
    if qemu.machine == Machine::Microvm {
        // Registers of virtio 0.9 are QEMU's default there, and vhost-user-vsock has none.
        arguments.extend(["-global".into(), "virtio-mmio.force-legacy=false".into()]);
    }
    arguments.extend(devices(paths, vm, qemu, |_| true)?);
    Ok(arguments)
}

/// Memory that the daemon can map: it copies from and to it, so it must be a file.
pub fn memory(memory_mib: u64) -> Vec<String> {
    let memory = format!("memory-backend-memfd,id=vmlane-mem,size={memory_mib}M,share=on");
    ["-object", &memory, "-machine", "memory-backend=vmlane-mem"].map(str::to_owned).to_vec()
}

/// The vsock device and those NICs that `which` chooses.
pub fn devices(
    paths: &Paths,
    vm: &VmConfig,
    qemu: Qemu,
    which: impl Fn(&NicConfig) -> bool,
) -> Result<Vec<String>, TooLong> {
    let mut arguments = Vec::new();
    if vm.vsock.is_vmci() {
        arguments.extend(["-global".into(), NO_SLEEP.into()]);
        // With posted writes a guest would continue before its command has been carried out.
        arguments.extend(["-device".into(), json(&paths.vmci(&vm.name)?, true, None).to_string()]);
    }
    if let Some(role) = vm.vsock.virtio() {
        if vm.movable {
            arguments.extend(["-device".into(), VSOCK_PORT.into()]);
        }
        // What QEMU cannot migrate is unplugged before, and plugged in again behind the same port.
        if !qemu.incoming {
            arguments.extend(virtio_vsock(&paths.vsock(&vm.name)?, role, vm.movable, qemu));
        }
    }
    let nics = || vm.nics.iter().enumerate().filter(|(_, nic)| which(nic));
    if qemu.machine == Machine::Q35 && nics().any(|(number, _)| vm.port_slot(number).is_some()) {
        arguments.extend(["-global".into(), NATIVE_HOTPLUG.into()]);
    }
    let mut ports = Ports::of(vm);
    for (number, nic) in nics() {
        let port = if qemu.machine == Machine::Q35 { ports.next(number) } else { None };
        if let Some(port) = port {
            arguments.extend(["-device".into(), port.device()]);
        }
        let socket = paths.nic(&vm.name, number)?;
        match nic.model {
            NicModel::VirtioNet(virtio) => {
                arguments.extend(virtio_net(&socket, (number, nic), virtio, port, qemu))
            }
            // A NIC's mapped doorbell page keeps QEMU from posting writes by itself.
            NicModel::Vmxnet3 => {
                arguments.extend(["-device".into(), json(&socket, nic.trapped, port).to_string()]);
            }
        }
    }
    Ok(arguments)
}

/// QEMU makes this device only of a socket that is connected already, so it cannot connect again.
fn virtio_vsock(socket: &Path, role: Role, movable: bool, qemu: Qemu) -> [String; 4] {
    let path = socket.to_string_lossy().replace(',', ",,");
    // As server it waits for the daemon before the guest starts.
    let listens = if role == Role::Client { ",server=on" } else { "" };
    let place = if movable { ",id=vmlane-vsock,bus=vmlane-vsock-port" } else { "" };
    [
        "-chardev".into(),
        format!("socket,id=vmlane-vsock,path={path}{listens}"),
        "-device".into(),
        format!("{},chardev=vmlane-vsock{place}", qemu.virtio("vhost-user-vsock")),
    ]
}

/// A virtio NIC whose rings the daemon serves. QEMU keeps trying when the daemon is away.
fn virtio_net(
    socket: &Path,
    (number, nic): (usize, &NicConfig),
    virtio: VirtioNet,
    port: Option<Port>,
    qemu: Qemu,
) -> Vec<String> {
    let NicConfig { mac, mtu, queues, .. } = nic;
    let path = socket.to_string_lossy().replace(',', ",,");
    let end = match virtio.role {
        Role::Server => qemu.reconnect(),
        Role::Client => "server=on".to_owned(),
    };
    let chardev = format!("socket,id=vmlane-nic{number},path={path},{end}");
    let mut netdev = format!("vhost-user,id=vmlane-net{number},chardev=vmlane-nic{number}");
    // As JSON, because QEMU makes devices that are JSON after all others: NICs of both models keep their
    // order.
    let mut device = serde_json::json!({
        "driver": qemu.virtio("virtio-net"),
        "netdev": format!("vmlane-net{number}"),
        "mac": mac.to_string(),
        "rx_queue_size": RING,
        "tx_queue_size": RING,
        // That of VMXNET3; without any, a bond with LACP leaves the NIC out.
        "speed": SPEED_MBPS,
        "duplex": "full",
    });
    let mut set = |key: &str, value: serde_json::Value| {
        if let Some(keys) = device.as_object_mut() {
            keys.insert(key.to_owned(), value);
        }
    };
    let pci = qemu.machine != Machine::Microvm;
    if *queues > 1 {
        netdev += &format!(",queues={queues}");
        set("mq", true.into());
        if pci && qemu.has_msi_x() {
            // A vector each for every ring, the control queue and changes of the configuration.
            set("vectors", (2 * u16::from(*queues) + 2).into());
        }
    }
    if virtio.announces_mtu {
        set("host_mtu", (*mtu).into());
    }
    if virtio.packed {
        set("packed", true.into());
    }
    if pci {
        if !qemu.has_msi_x() {
            set("vectors", 0.into());
        }
        set("romfile", "".into());
        port.iter().for_each(|port| set("bus", port.id().into()));
    }
    [("-chardev", chardev), ("-netdev", netdev), ("-device", device.to_string())]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect()
}

/// Where the virtio-vsock device of a movable VM is plugged in: a chassis of its own, apart from those of
/// NICs.
const VSOCK_PORT: &str = "pcie-root-port,id=vmlane-vsock-port,chassis=201,slot=0";

/// A structured property such as `socket` can only be given as JSON.
fn json(socket: &Path, no_posted_writes: bool, port: Option<Port>) -> serde_json::Value {
    let mut device = serde_json::json!({
        "driver": "vfio-user-pci",
        "socket": { "type": "unix", "path": socket.to_string_lossy() },
        "x-msg-timeout": MESSAGE_TIMEOUT_MS,
    });
    if let Some(keys) = device.as_object_mut() {
        keys.extend(no_posted_writes.then(|| ("x-no-posted-writes".into(), true.into())));
        keys.extend(port.map(|port| ("bus".into(), port.id().into())));
    }
    device
}

/// A word as a shell must read it.
pub fn shell_quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+,./:@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
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
    fn the_device_is_json_with_the_socket_and_the_timeouts() {
        let paths = Paths::new(Path::new("/run/with \"quotes\"")).unwrap();
        let arguments = arguments(&paths, &vm("cid = 3"), 512, Qemu::default()).unwrap();
        assert_eq!(
            arguments[..9],
            [
                "-object",
                "memory-backend-memfd,id=vmlane-mem,size=512M,share=on",
                "-machine",
                "memory-backend=vmlane-mem",
                "-m",
                "512M",
                "-global",
                "ICH9-LPC.disable_s3=1",
                "-device",
            ]
        );
        let device: serde_json::Value = serde_json::from_str(&arguments[9]).unwrap();
        assert_eq!(
            device,
            serde_json::json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": "/run/with \"quotes\"/vm/web/vmci.sock" },
                "x-no-posted-writes": true,
                "x-msg-timeout": 60000,
            })
        );
    }

    #[test]
    fn nics_follow_and_only_trapped_ones_need_writes_that_wait() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let nics =
            "vsock = \"none\"\nnic = [{ model = \"vmxnet3\" }, { model = \"vmxnet3\", trapped = true }]";
        let arguments = arguments(&paths, &vm(nics), 64, Qemu::default()).unwrap();
        let devices: Vec<serde_json::Value> =
            arguments.iter().filter_map(|word| serde_json::from_str(word).ok()).collect();
        let sockets: Vec<_> =
            devices.iter().map(|device| device["socket"]["path"].as_str().unwrap()).collect();
        assert_eq!(sockets, ["/run/v/vm/web/nic0.sock", "/run/v/vm/web/nic1.sock"]);
        assert_eq!(devices[0].get("x-no-posted-writes"), None);
        assert_eq!(devices[1]["x-no-posted-writes"], true);
    }

    #[test]
    fn a_slot_is_a_root_port_with_its_number() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let nics = "vsock = \"none\"\nnic = [{ model = \"vmxnet3\", slot = 192 }, { model = \"virtio-net\", slot = 224 }]";
        let words = arguments(&paths, &vm(nics), 64, Qemu::default()).unwrap();
        let port = |slot| format!("pcie-root-port,id=vmlane-slot{slot},chassis=202,slot={slot}");
        assert_eq!((&words[9], words.contains(&port(224))), (&port(192), true));
        let device: serde_json::Value = serde_json::from_str(&words[11]).unwrap();
        assert_eq!(device["bus"], "vmlane-slot192");
        let device: serde_json::Value = serde_json::from_str(words.last().unwrap()).unwrap();
        assert_eq!((&device["romfile"], &device["bus"]), (&"".into(), &"vmlane-slot224".into()));
        let microvm = Qemu { machine: Machine::Microvm, ..Qemu::default() };
        let virtio = vm("vsock = \"none\"\nnic = [{ model = \"virtio-net\", slot = 224 }]");
        assert!(!arguments(&paths, &virtio, 64, microvm).unwrap().concat().contains("slot"));
    }

    #[test]
    fn each_of_sixty_four_nics_has_its_devices() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let nics = "{ model = \"vmxnet3\" }, { model = \"virtio-net\" }, ".repeat(32);
        let words = arguments(&paths, &vm(&format!("vsock = \"none\"\nnic = [{nics}]")), 64, Qemu::default())
            .unwrap();
        let line = words.join(" ").replace(['"', '{', '}'], "");
        for number in 0..64 {
            assert_eq!(line.matches(&format!("/nic{number}.sock")).count(), 1, "{number}");
            let port = line.matches(&format!("id=vmlane-slot{number},")).count();
            let behind = line.matches(&format!("bus:vmlane-slot{number},")).count();
            let expected = usize::from(number >= 10);
            assert_eq!((port, behind), (expected, expected), "{number}: {line}");
        }
        assert_eq!(words.iter().filter(|word| *word == NATIVE_HOTPLUG).count(), 1);
    }

    #[test]
    fn virtio_devices_are_behind_vhost_user() {
        let paths = Paths::new(Path::new("/run/v,1")).unwrap();
        let keys = "cid = 3\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\", \
                    queues = 2, mtu = 9000, packed = true }]";
        let mut arguments = arguments(&paths, &vm(keys), 64, Qemu::default()).unwrap();
        let device: serde_json::Value = serde_json::from_str(&arguments.pop().unwrap()).unwrap();
        assert_eq!(
            device,
            serde_json::json!({
                "driver": "virtio-net-pci", "netdev": "vmlane-net0", "mac": "52:54:00:00:00:03",
                "rx_queue_size": 1024, "tx_queue_size": 1024, "speed": 10_000, "duplex": "full",
                "mq": true, "vectors": 6, "host_mtu": 9000, "packed": true, "romfile": "",
            })
        );
        assert_eq!(
            arguments[6..],
            [
                "-chardev",
                "socket,id=vmlane-vsock,path=/run/v,,1/vm/web/vsock.sock",
                "-device",
                "vhost-user-vsock-pci,chardev=vmlane-vsock",
                "-chardev",
                "socket,id=vmlane-nic0,path=/run/v,,1/vm/web/nic0.sock,reconnect-ms=200",
                "-netdev",
                "vhost-user,id=vmlane-net0,chardev=vmlane-nic0,queues=2",
                "-device",
            ]
        );
    }

    #[test]
    fn what_moves_can_be_unplugged_and_is_not_there_when_it_arrives() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let keys = "cid = 3\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\" }]\n";
        let movable = vm(&format!("{keys}movable = true"));
        let words = arguments(&paths, &movable, 64, Qemu::default()).unwrap();
        assert_eq!(
            words[6..12],
            [
                "-device",
                "pcie-root-port,id=vmlane-vsock-port,chassis=201,slot=0",
                "-chardev",
                "socket,id=vmlane-vsock,path=/run/v/vm/web/vsock.sock",
                "-device",
                "vhost-user-vsock-pci,chardev=vmlane-vsock,id=vmlane-vsock,bus=vmlane-vsock-port",
            ]
        );
        let incoming = Qemu { incoming: true, ..Qemu::default() };
        assert_eq!(arguments(&paths, &movable, 64, incoming).unwrap(), [&words[..8], &words[12..]].concat());

        let microvm = Qemu { machine: Machine::Microvm, ..Qemu::default() };
        let vmxnet3 = "vsock = \"none\"\nnic = [{ model = \"vmxnet3\" }]";
        let many = vm(&format!("vsock = \"none\"\nnic = [{}]", "{ model = \"virtio-net\" }, ".repeat(25)));
        for (vm, qemu, expected) in [
            (vm(keys), incoming, ["its virtio-vsock", "movable = true"]),
            (vm("cid = 3"), incoming, ["its VMCI device", "vsock = \"virtio\""]),
            (vm(vmxnet3), incoming, ["NIC 0", "model = \"virtio-net\""]),
            (movable, microvm, ["cannot be unplugged", "q35"]),
            (many, microvm, ["24 virtio devices", "this VM has 25"]),
        ] {
            let text = arguments(&paths, &vm, 64, qemu).unwrap_err().to_string();
            assert!(expected.iter().all(|expected| text.contains(expected)), "{text}");
        }
    }

    #[test]
    fn a_vmm_that_listens_is_configured_to_listen() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let keys = "cid = 3\nvsock = \"virtio\"\nvsock_role = \"client\"\nnic = [{ model = \"virtio-net\", \
                    role = \"client\" }]";
        let arguments = arguments(&paths, &vm(keys), 64, Qemu::default()).unwrap();
        let chardevs: Vec<_> = arguments.iter().filter(|word| word.starts_with("socket,")).collect();
        assert_eq!(
            chardevs,
            [
                "socket,id=vmlane-vsock,path=/run/v/vm/web/vsock.sock,server=on",
                "socket,id=vmlane-nic0,path=/run/v/vm/web/nic0.sock,server=on",
            ]
        );
    }

    #[test]
    fn an_old_qemu_counts_seconds_and_a_microvm_has_no_pci() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let keys = "cid = 3\nvsock = \"virtio\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\", \
                    queues = 2 }]";
        let qemu = Qemu {
            version: "7.2.19".parse().unwrap(),
            machine: "microvm".parse().unwrap(),
            ..Qemu::default()
        };
        let mut arguments = arguments(&paths, &vm(keys), 64, qemu).unwrap();
        let device: serde_json::Value = serde_json::from_str(&arguments.pop().unwrap()).unwrap();
        assert_eq!((&device["driver"], device.get("romfile")), (&"virtio-net-device".into(), None));
        assert_eq!(
            arguments[6..],
            [
                "-global",
                "virtio-mmio.force-legacy=false",
                "-chardev",
                "socket,id=vmlane-vsock,path=/run/v/vm/web/vsock.sock",
                "-device",
                "vhost-user-vsock-device,chardev=vmlane-vsock",
                "-chardev",
                "socket,id=vmlane-nic0,path=/run/v/vm/web/nic0.sock,reconnect=1",
                "-netdev",
                "vhost-user,id=vmlane-net0,chardev=vmlane-nic0,queues=2",
                "-device",
            ]
        );
    }

    #[test]
    fn only_an_old_qemu_that_emulates_has_no_msi_x() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let keys = "vsock = \"none\"\nnic = [{ model = \"virtio-net\", queues = 2 }]";
        let device = |version: &str, accel: &str| {
            let (version, accel) = (version.parse().unwrap(), accel.parse().unwrap());
            let qemu = Qemu { version, accel, ..Qemu::default() };
            arguments(&paths, &vm(keys), 64, qemu).unwrap().pop().unwrap()
        };
        let has = |device: &str| (device.contains("\"vectors\":6"), device.contains("\"vectors\":0"));
        assert_eq!(has(&device("7.2", "tcg")), (false, true));
        assert_eq!(has(&device("7.2", "kvm")), (true, false));
        assert_eq!(has(&device("10.1", "tcg")), (true, false));
    }

    #[test]
    fn what_a_qemu_lacks_is_reported_with_the_way_out() {
        let paths = Paths::new(Path::new("/run/v")).unwrap();
        let vmxnet3 = "vsock = \"none\"\nnic = [{ model = \"virtio-net\" }, { model = \"vmxnet3\" }]";
        let old = Qemu { version: Version(7, 2), ..Qemu::default() };
        let microvm = Qemu { machine: Machine::Microvm, ..Qemu::default() };
        let pc = Qemu { machine: Machine::Pc, ..Qemu::default() };
        let slot =
            "vsock = \"none\"\nnic = [{ model = \"virtio-net\" }, { model = \"virtio-net\", slot = 9 }]";
        let many = format!("vsock = \"none\"\nnic = [{}]", "{ model = \"vmxnet3\" }, ".repeat(11));
        for (keys, qemu, words) in [
            ("cid = 3", old, ["its VMCI device", "needs QEMU >= 10.1", "this is 7.2", "vsock = \"virtio\""]),
            ("cid = 3", microvm, ["its VMCI device", "no PCI", "q35", "vsock = \"virtio\""]),
            (vmxnet3, old, ["NIC 1", "needs QEMU >= 10.1", "this is 7.2", "model = \"virtio-net\""]),
            (vmxnet3, microvm, ["NIC 1", "no PCI", "q35", "model = \"virtio-net\""]),
            (slot, pc, ["NIC 1", "PCI Express", "q35", "remove slot"]),
            (&many, pc, ["NIC 10", "PCI Express", "q35", "at most ten NICs"]),
        ] {
            let text = arguments(&paths, &vm(keys), 64, qemu).unwrap_err().to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        let text =
            arguments(&paths, &vm("cid = 3\numl_pci = true"), 64, Qemu::default()).unwrap_err().to_string();
        assert!(text.contains("User Mode Linux") && text.contains("remove the key"), "{text}");
        assert!("7.1".parse::<Version>().unwrap_err().contains("too old"));
        assert!("new".parse::<Version>().unwrap_err().contains("7.2 or 11.1"));
    }

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for word in ["", "plain-1.0/x=y,z:1", "two words", "it's", "{\"a\":1}", "$HOME `id` \\ \n*", "~"] {
            let script = format!("printf %s {}", shell_quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
        assert_eq!(shell_quoted("-m"), "-m");
    }
}
