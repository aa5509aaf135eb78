//! A libvirt domain. Elements are used for what libvirt has elements for (memory, virtio NICs); vfio-user
//! devices and vhost-user-vsock have none and go through `qemu:commandline`.

use std::fmt::Write as _;

use crate::config::{NicConfig, NicModel, Role, VirtioNet, VmConfig};
use crate::paths::{Paths, TooLong};
use crate::qemu;

/// The domain of `vm`: complete, but for disks and a way to install.
pub fn domain(paths: &Paths, vm: &VmConfig, memory_mib: u64) -> Result<String, TooLong> {
    let mut interfaces = String::new();
    for (number, nic) in vm.nics.iter().enumerate() {
        if let NicModel::VirtioNet(virtio) = nic.model {
            interfaces += &interface(&paths.nic(&vm.name, number)?.to_string_lossy(), nic, virtio);
        }
    }
    let arguments =
        qemu::devices(paths, vm, qemu::Qemu::default(), |nic| !matches!(nic.model, NicModel::VirtioNet(_)))?;
    let name = escaped(&vm.name);
    Ok(format!(
        "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <memory unit='MiB'>{memory_mib}</memory>
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <features>
    <acpi/>
    <apic/>
  </features>
  <cpu mode='host-passthrough'/>
  <devices>
{interfaces}  </devices>
{}</domain>
",
        command_line(&arguments)
    ))
}

fn interface(socket: &str, nic: &NicConfig, virtio: VirtioNet) -> String {
    let NicConfig { mac, mtu, queues, .. } = nic;
    let mut driver = format!("rx_queue_size='{0}' tx_queue_size='{0}'", qemu::RING);
    if *queues > 1 {
        driver = format!("queues='{queues}' {driver}");
    }
    if virtio.packed {
        driver += " packed='on'";
    }
    let mtu = if virtio.announces_mtu { format!("      <mtu size='{mtu}'/>\n") } else { String::new() };
    // QEMU tries again every second when the daemon is away; libvirt knows no shorter time.
    let source = match virtio.role {
        Role::Server => "mode='client'>\n        <reconnect enabled='yes' timeout='1'/>\n      </source>",
        Role::Client => "mode='server'/>",
    };
    format!(
        "    <interface type='vhostuser'>
      <mac address='{mac}'/>
      <source type='unix' path='{}' {source}
      <model type='virtio'/>
      <driver {driver}/>
{mtu}      <rom enabled='no'/>
    </interface>
",
        escaped(socket)
    )
}

fn command_line(arguments: &[String]) -> String {
    if arguments.is_empty() {
        return String::new();
    }
    let mut text = String::from("  <qemu:commandline>\n");
    for argument in arguments {
        // writing to a String cannot fail
        let _ = writeln!(text, "    <qemu:arg value='{}'/>", escaped(argument));
    }
    text + "  </qemu:commandline>\n"
}

/// Text as it may stand in an attribute or an element.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '\'' => out += "&apos;",
            '"' => out += "&quot;",
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn xml(keys: &str) -> String {
        let text = format!("[[vm]]\nname = \"web\"\n{keys}");
        let vm = Config::parse(Path::new("t.toml"), &text).unwrap().vms.remove(0);
        domain(&Paths::new(Path::new("/run/a'&b")).unwrap(), &vm, 512).unwrap()
    }

    #[test]
    fn virtio_nics_are_interfaces() {
        let xml = xml(
            "vsock = \"none\"\nnic = [{ model = \"virtio-net\", mac = \"52:54:00:00:00:03\", queues = 2, \
                       mtu = 9000 }]",
        );
        assert!(
            xml.contains("<source type='unix' path='/run/a&apos;&amp;b/vm/web/nic0.sock' mode='client'>"),
            "{xml}"
        );
        assert!(xml.contains("<driver queues='2' rx_queue_size='1024' tx_queue_size='1024'/>"), "{xml}");
        assert!(xml.contains("<mtu size='9000'/>") && !xml.contains("commandline"), "{xml}");
        assert!(xml.contains("<access mode='shared'/>"), "{xml}");
    }

    #[test]
    fn a_vmm_that_listens_is_told_to() {
        let xml = xml("vsock = \"none\"\nnic = [{ model = \"virtio-net\", role = \"client\" }]");
        assert!(xml.contains("/vm/web/nic0.sock' mode='server'/>") && !xml.contains("reconnect"), "{xml}");
    }

    #[test]
    fn what_libvirt_does_not_know_goes_to_qemu() {
        let xml = xml("cid = 3\nnic = [{ model = \"vmxnet3\" }, { model = \"virtio-net\" }]");
        let devices = xml.matches("&quot;driver&quot;:&quot;vfio-user-pci&quot;").count();
        assert_eq!((devices, xml.matches("<interface").count()), (2, 1), "{xml}");
        assert!(!xml.contains("memory-backend"), "{xml}");
    }
}
