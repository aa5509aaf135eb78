//! A libvirt domain: one for a VM, an existing one that is to attach a VM (`into`), or one that is about to
//! start (`hook`).
//!
//! Elements are used for what libvirt has elements for (memory, virtio NICs, the user of QEMU); vfio-user
//! devices and vhost-user-vsock have none and go through `qemu:commandline`.

mod document;
pub mod hook;
mod into;
mod label;
mod sockets;
#[cfg(test)]
mod tests;

use std::path::Path;

use vmlane_access::Accounts;
use vmlane_config::paths::{Paths, TooLong};
use vmlane_config::{Config, NicConfig, NicModel, Role, VirtioNet, VmConfig};

pub use self::document::{MOST_BYTES, XmlError};
use self::document::{QEMU, escaped, indented};
pub use self::into::Refused;
pub use self::label::Label;
use crate::qemu;

/// A VM that a domain is to attach.
#[derive(Clone, Copy, Debug)]
pub struct Attach<'a> {
    pub config: &'a Config,
    pub paths: &'a Paths,
    pub vm: &'a VmConfig,
    /// The QEMU that is to run the domain; None: libvirt's choice, or the domain's.
    pub emulator: Option<&'a Path>,
}

/// A domain, and what its administrator should know of it.
#[derive(Debug)]
pub struct Domain {
    pub xml: String,
    pub notes: Vec<String>,
}

impl Attach<'_> {
    /// The domain of the VM: complete, but for disks and a way to install.
    ///
    /// # Errors
    /// A socket's path is too long.
    pub fn domain(&self, memory_mib: u64) -> Result<Domain, TooLong> {
        let emulator = self.emulator.map_or_else(String::new, |path| format!("    {}\n", emulator(path)));
        let mut interfaces = String::new();
        for interface in self.interfaces()? {
            interfaces += &indented("    ", &interface.xml);
        }
        let mut notes = Vec::new();
        let label = self.label(&mut notes);
        let label = label.map_or_else(String::new, |label| format!("  {}\n", seclabel(label)));
        self.note_emulator(self.emulator.is_some(), &mut notes);
        let arguments = self.arguments()?;
        let command_line = match arguments.as_slice() {
            [] => String::new(),
            some => {
                format!(
                    "  <qemu:commandline>\n{}  </qemu:commandline>\n",
                    indented("  ", &command_line("qemu:", some))
                )
            }
        };
        let name = escaped(&self.vm.name);
        let xml = format!(
            "<domain type='kvm' xmlns:qemu='{QEMU}'>
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
{emulator}{interfaces}  </devices>
{label}{command_line}</domain>
"
        );
        Ok(Domain { xml, notes })
    }

    /// The VM's virtio NICs.
    fn interfaces(&self) -> Result<Vec<Interface<'_>>, TooLong> {
        let mut interfaces = Vec::new();
        for (number, nic) in self.vm.nics.iter().enumerate() {
            if let NicModel::VirtioNet(virtio) = nic.model {
                let socket = self.paths.nic(&self.vm.name, number)?.to_string_lossy().into_owned();
                let xml = interface(&socket, nic, virtio);
                interfaces.push(Interface { socket, nic, xml });
            }
        }
        Ok(interfaces)
    }

    /// QEMU's words for all other devices.
    fn arguments(&self) -> Result<Vec<String>, TooLong> {
        let other = |nic: &NicConfig| !matches!(nic.model, NicModel::VirtioNet(_));
        let mut words = qemu::devices(self.paths, self.vm, qemu::Qemu::default(), other)?;
        // libvirt writes its devices as JSON, and QEMU makes such devices last: others would have taken their
        // slots.
        let mut of_device = false;
        for word in &mut words {
            if of_device && !word.starts_with('{') {
                *word = as_json(word);
            }
            of_device = word == "-device";
        }
        Ok(words)
    }

    /// The label, and notes if there is none, or if others have it, too.
    fn label(&self, notes: &mut Vec<String>) -> Option<Label> {
        let accounts = Accounts::host();
        let label = label::of(self.vm, &accounts).map_err(|why| notes.push(why)).ok()?;
        let others = label::shared_with(self.config, self.vm);
        if !others.is_empty() {
            notes.push(format!(
                "VM {}: its owner is that of other VMs, too: the domain of {} may open the sockets of this VM; give each VM a \
                 user of its own",
                self.vm.name,
                others.join(", ")
            ));
        }
        notes.extend(label::of_all_domains(self.vm, &accounts));
        Some(label)
    }

    /// What libvirt's default QEMU may lack.
    fn note_emulator(&self, named: bool, notes: &mut Vec<String>) {
        if has_vfio_user(self.vm) && !named {
            notes.push(format!(
                "VM {} has VMCI or VMXNET3 devices, which need QEMU >= 10.1 as the domain's <emulator>: name it with \
                 --emulator PATH, unless the host's own is as new",
                self.vm.name
            ));
        }
    }
}

/// A device's words, `driver,key=value...`, as JSON.
fn as_json(words: &str) -> String {
    let mut device = serde_json::Map::new();
    for word in words.split(',') {
        let (key, value) = word.split_once('=').unwrap_or(("driver", word));
        let value = match value {
            "on" => true.into(),
            _ => value.parse::<u64>().map_or_else(|_| value.into(), serde_json::Value::from),
        };
        device.insert(key.to_owned(), value);
    }
    serde_json::Value::Object(device).to_string()
}

/// A virtio NIC as libvirt's element.
struct Interface<'a> {
    socket: String,
    nic: &'a NicConfig,
    xml: String,
}

/// It has devices that need vfio-user of QEMU.
fn has_vfio_user(vm: &VmConfig) -> bool {
    vm.vsock.is_vmci() || vm.nics.iter().any(|nic| nic.model == NicModel::Vmxnet3)
}

fn emulator(path: &Path) -> String {
    format!("<emulator>{}</emulator>", escaped(&path.to_string_lossy()))
}

/// As whom QEMU runs. With `relabel`, libvirt gives that user the domain's disks while it runs.
fn seclabel(label: Label) -> String {
    format!("<seclabel type='static' model='dac' relabel='yes'><label>{label}</label></seclabel>")
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
    let mtu = if virtio.announces_mtu { format!("  <mtu size='{mtu}'/>\n") } else { String::new() };
    // QEMU tries again every second when the daemon is away; libvirt knows no shorter time.
    let source = match virtio.role {
        Role::Server => "mode='client'>\n    <reconnect enabled='yes' timeout='1'/>\n  </source>",
        Role::Client => "mode='server'/>",
    };
    format!(
        "<interface type='vhostuser'>
  <mac address='{mac}'/>
  <source type='unix' path='{}' {source}
  <model type='virtio'/>
  <driver {driver}/>
{mtu}  <rom enabled='no'/>
</interface>
",
        escaped(socket)
    )
}

/// Arguments for QEMU, one a line; the prefix has its colon.
fn command_line(prefix: &str, arguments: &[String]) -> String {
    arguments.iter().map(|argument| format!("  <{prefix}arg value='{}'/>\n", escaped(argument))).collect()
}
