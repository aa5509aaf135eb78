//! Puts a VM's devices into an existing domain. What is there already stays as it is, so a second time
//! changes nothing; what cannot go together is refused.

use vmlane_access::Accounts;
use vmlane_config::NicModel;
use vmlane_config::paths::TooLong;

use super::document::{Edits, Element, QEMU, Space, XmlError, parse};
use super::{
    Attach, Domain, Interface, command_line, emulator, has_vfio_user, label, qemu, seclabel, sockets,
};

/// Why a domain cannot attach a VM.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("the domain's XML: {0}")]
    Xml(#[from] XmlError),
    #[error(
        "its outermost element is <{0}> and not <domain>: give the output of `virsh dumpxml --inactive DOMAIN`"
    )]
    NoDomain(String),
    #[error("the domain is of type {0:?}: only type kvm and qemu have devices by vhost-user and vfio-user")]
    Type(String),
    #[error(
        "the domain has no <{0}>, so it is none that libvirt could start; give the output of `virsh dumpxml --inactive DOMAIN`"
    )]
    Lacks(&'static str),
    #[error(
        "the domain has <vsock>, the host kernel's device, and VM {vm} has one of vmlane's: remove <vsock>, or give the VM vsock = \"none\""
    )]
    Vsock { vm: String },
    #[error(
        "the domain uses {socket}, which belongs to VM {other} and not to {vm}: remove the device, or name that VM"
    )]
    OtherVm { socket: String, other: String, vm: String },
    #[error(
        "the domain's machine is {machine}, and {what} needs q35: change machine= of <os><type>, or {instead}"
    )]
    Machine { machine: String, what: String, instead: &'static str },
    #[error(
        "the domain runs as {has} (<seclabel model='dac'>), and the owner of VM {vm} is {wanted}: make one of them the other"
    )]
    Label { has: String, wanted: String, vm: String },
    #[error("the domain uses the prefix qemu for {0:?} and not for {QEMU}: rename that prefix")]
    Prefix(String),
    #[error(transparent)]
    Path(#[from] TooLong),
}

/// What a NIC's element keeps beside what is put into it.
const KEPT: [&str; 4] = ["address", "alias", "boot", "acpi"];

impl Attach<'_> {
    /// `existing` with the VM's devices.
    ///
    /// # Errors
    /// It is no domain, or one that these devices do not go with.
    pub fn put_into(&self, existing: &str) -> Result<Domain, Refused> {
        let root = parse(existing)?;
        if root.name != "domain" {
            return Err(Refused::NoDomain(root.name));
        }
        let devices = self.check(&root)?;
        let (mut edits, mut notes) = (Edits::of(existing), Vec::new());
        memory(&root, &mut edits, &mut notes);
        self.put_emulator(devices, &mut edits, &mut notes);
        self.put_interfaces(devices, &mut edits, &mut notes)?;
        let mut last = String::new();
        self.put_label(&root, &mut edits, &mut notes, &mut last)?;
        self.put_command_line(&root, existing, &mut edits, &mut last)?;
        if !last.is_empty() {
            edits.append(&root, &last);
        }
        let xml = edits.apply();
        parse(&xml)?;
        Ok(Domain { xml, notes })
    }

    /// The checks before anything is changed. Returns the element of the devices.
    fn check<'r>(&self, root: &'r Element) -> Result<&'r Element, Refused> {
        let vm = &self.vm.name;
        match root.attribute("type") {
            Some("kvm" | "qemu") => {}
            other => return Err(Refused::Type(other.unwrap_or_default().to_owned())),
        }
        root.first("name").ok_or(Refused::Lacks("name"))?;
        let devices = root.first("devices").ok_or(Refused::Lacks("devices"))?;
        if devices.first("vsock").is_some() && self.vm.vsock.is_device() {
            return Err(Refused::Vsock { vm: vm.clone() });
        }
        for socket in sockets::named(root, self.paths) {
            if let Some(other) = sockets::vm_of(&socket, self.paths).filter(|other| other != vm) {
                let (socket, other) = (socket.display().to_string(), other.to_owned());
                return Err(Refused::OtherVm { socket, other, vm: vm.clone() });
            }
        }
        let machine = root.first("os").and_then(|os| os.of_first("type", "machine")).unwrap_or("pc");
        let refuse =
            |what: String, instead| Err(Refused::Machine { machine: machine.to_owned(), what, instead });
        let mut vmxnet3 = self.vm.nics.iter().enumerate().filter(|(_, nic)| nic.model == NicModel::Vmxnet3);
        let port = vmxnet3.find(|(number, _)| self.vm.port_slot(*number).is_some());
        if let Some((number, _)) = port.filter(|_| !machine.contains("q35")) {
            let what = format!("NIC {number}, which is behind a port of PCI Express,");
            return refuse(what, qemu::without_port(self.vm, number));
        }
        if machine.contains("microvm") && has_vfio_user(self.vm) {
            return refuse("a PCI device (VMCI, VMXNET3)".into(), "use virtio devices");
        }
        Ok(devices)
    }

    fn put_emulator(&self, devices: &Element, edits: &mut Edits<'_>, notes: &mut Vec<String>) {
        let has = devices.first("emulator");
        self.note_emulator(self.emulator.is_some() || has.is_some(), notes);
        match (self.emulator, has) {
            (None, Some(has)) if has_vfio_user(self.vm) => notes.push(format!(
                "VM {} has VMCI or VMXNET3 devices: the domain's emulator, {}, must be QEMU >= 10.1",
                self.vm.name,
                has.text.trim()
            )),
            (Some(path), Some(has)) if has.text.trim() != path.to_string_lossy() => {
                edits.exchange(has, &emulator(path));
            }
            _ => {}
        }
    }

    /// Interfaces, in the place of those that have their socket or their address; other ones of the VM go.
    fn put_interfaces(
        &self,
        devices: &Element,
        edits: &mut Edits<'_>,
        notes: &mut Vec<String>,
    ) -> Result<(), Refused> {
        let mut wanted: Vec<_> = self.interfaces()?.into_iter().map(|wanted| (wanted, false)).collect();
        let ours = self.paths.vm(&self.vm.name);
        for has in devices.all("interface") {
            let socket = has.of_first("source", "path").unwrap_or_default();
            let mac = has.of_first("mac", "address").unwrap_or_default();
            let kind = has.attribute("type").unwrap_or_default();
            let is_mac = |nic: &vmlane_config::NicConfig| nic.mac.to_string().eq_ignore_ascii_case(mac);
            let found = wanted.iter().position(|(wanted, _)| wanted.socket == socket);
            let found = found.or_else(|| wanted.iter().position(|(wanted, _)| is_mac(wanted.nic)));
            if let Some((wanted, there @ false)) = found.and_then(|number| wanted.get_mut(number)) {
                *there = true;
                change(has, wanted, edits, notes)?;
            } else if std::path::Path::new(socket).starts_with(&ours) || self.vm.nics.iter().any(is_mac) {
                notes.push(format!("the interface of type {kind} with {mac} {socket} is taken out: the VM has another device for it"));
                edits.remove(has);
            }
        }
        let mut new: String = String::new();
        if let (Some(path), None) = (self.emulator, devices.first("emulator")) {
            new = emulator(path) + "\n";
        }
        new.extend(wanted.iter().filter(|(_, there)| !there).map(|(wanted, _)| wanted.xml.as_str()));
        if !new.is_empty() {
            edits.append(devices, &new);
        }
        Ok(())
    }

    fn put_label(
        &self,
        root: &Element,
        edits: &mut Edits<'_>,
        notes: &mut Vec<String>,
        last: &mut String,
    ) -> Result<(), Refused> {
        let Some(wanted) = self.label(notes) else { return Ok(()) };
        let accounts = Accounts::host();
        let Some(has) = root.all("seclabel").find(|label| label.attribute("model") == Some("dac")) else {
            *last += &format!("{}\n", seclabel(wanted));
            return Ok(());
        };
        match has.first("label").map(|label| label.text.trim()) {
            Some(text) if label::Label::parse(text, &accounts) == Some(wanted) => {}
            Some(text) => {
                let (has, wanted, vm) = (text.to_owned(), wanted.to_string(), self.vm.name.clone());
                return Err(Refused::Label { has, wanted, vm });
            }
            None => edits.exchange(has, &seclabel(wanted)),
        }
        Ok(())
    }

    fn put_command_line(
        &self,
        root: &Element,
        source: &str,
        edits: &mut Edits<'_>,
        last: &mut String,
    ) -> Result<(), Refused> {
        let wanted = self.arguments()?;
        let is = |child: &&Element| child.space == Space::Qemu && child.name == "commandline";
        let Some(has) = root.children.iter().find(is) else {
            if wanted.is_empty() {
                return Ok(());
            }
            let declared = root.prefixes.iter().find(|(_, space)| space == QEMU);
            let prefix = declared.map_or("qemu", |(prefix, _)| prefix);
            if declared.is_none() {
                if let Some((_, other)) = root.prefixes.iter().find(|(name, _)| name == prefix) {
                    return Err(Refused::Prefix(other.clone()));
                }
                edits.set(root, "xmlns:qemu", QEMU);
            }
            let arguments = command_line(&format!("{prefix}:"), &wanted);
            *last += &format!("<{prefix}:commandline>\n{arguments}</{prefix}:commandline>\n");
            return Ok(());
        };
        let arguments: Vec<&Element> =
            has.children.iter().filter(|child| child.space == Space::Qemu && child.name == "arg").collect();
        let ours = self.ours(&arguments);
        let values: Vec<&str> = ours.iter().filter_map(|argument| argument.attribute("value")).collect();
        if values != wanted {
            ours.into_iter().for_each(|argument| edits.remove(argument));
            let prefix = source[has.start.start + 1..].split("commandline").next().unwrap_or_default();
            if !wanted.is_empty() {
                let lines = command_line(prefix, &wanted);
                edits.append(
                    has,
                    &lines.lines().map(|line| line.trim_start().to_owned() + "\n").collect::<String>(),
                );
            }
        }
        Ok(())
    }

    /// Those of QEMU's arguments that were put in for this VM, also by hand from `vmlane attach`.
    fn ours<'r>(&self, arguments: &[&'r Element]) -> Vec<&'r Element> {
        let mut ours = Vec::new();
        let mut rest = arguments;
        while let [option, behind @ ..] = rest
            && let [value, behind_both @ ..] = behind
        {
            let text = value.attribute("value").unwrap_or_default();
            if option.attribute("value").is_some_and(|option| option.starts_with('-')) && self.is_ours(text) {
                ours.extend([*option, *value]);
                rest = behind_both;
            } else {
                rest = behind;
            }
        }
        ours
    }

    fn is_ours(&self, value: &str) -> bool {
        if let Ok(json) = serde_json::from_str::<serde_json::Value>(value) {
            let text =
                |pointer: &str| json.pointer(pointer).and_then(|text| text.as_str()).unwrap_or_default();
            let ours = self.paths.vm(&self.vm.name);
            let named = |pointer| text(pointer).starts_with("vmlane-");
            let is_ours = || std::path::Path::new(text("/socket/path")).starts_with(&ours);
            let vfio_user = text("/driver") == "vfio-user-pci" && is_ours();
            return vfio_user || named("/id") || named("/chardev");
        }
        let named = |word: &str| {
            ["id=vmlane-", "chardev=vmlane-", "netdev=vmlane-", "memory-backend=vmlane-"]
                .iter()
                .any(|start| word.starts_with(start))
        };
        value == crate::qemu::NATIVE_HOTPLUG
            || value == crate::qemu::NO_SLEEP && self.vm.vsock.is_vmci()
            || value.split(',').any(named)
    }
}

/// Gives a NIC's element what it lacks, and takes out what belongs to another kind of interface.
fn change(
    has: &Element,
    wanted: &Interface<'_>,
    edits: &mut Edits<'_>,
    notes: &mut Vec<String>,
) -> Result<(), Refused> {
    let model = parse(&wanted.xml)?;
    let kind = has.attribute("type").unwrap_or_default();
    let was_ours = kind == "vhostuser";
    if !was_ours {
        notes.push(format!(
            "the interface of type {kind} with {} is joined to vmlane's switch now",
            wanted.nic.mac
        ));
    }
    edits.set(has, "type", "vhostuser");
    let mut missing = String::new();
    for child in &model.children {
        let lines = outdented(&wanted.xml[child.start.start..child.end]);
        match has.first(&child.name) {
            Some(old) if covers(old, child) => {}
            Some(old) => edits.exchange(old, &lines),
            None => missing += &(lines + "\n"),
        }
    }
    for child in has.children.iter().filter(|child| child.space == Space::Libvirt) {
        let name = child.name.as_str();
        // What libvirt adds to a vhost-user interface of its own accord stays.
        let stays = model.first(name).is_some() || KEPT.contains(&name) || was_ours && name != "mtu";
        if !stays {
            edits.remove(child);
        }
    }
    if !missing.is_empty() {
        edits.append(has, &missing);
    }
    Ok(())
}

/// Lines of an element that was indented by two letters.
fn outdented(lines: &str) -> String {
    lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// An element has all that another one has, and no number or kind of rings beside it.
fn covers(has: &Element, wanted: &Element) -> bool {
    let value_of = |name: &str| has.attribute(name).unwrap_or_default();
    let same = wanted
        .attributes
        .iter()
        .all(|attribute| value_of(&attribute.name).eq_ignore_ascii_case(&attribute.value));
    let no_more = ["queues", "packed"]
        .iter()
        .all(|name| wanted.attribute(name).is_some() || has.attribute(name).is_none());
    let children =
        wanted.children.iter().all(|child| has.first(&child.name).is_some_and(|old| covers(old, child)));
    same && no_more && children
}

/// The daemon maps the guest's memory, so it must be shared, all of it.
fn memory(root: &Element, edits: &mut Edits<'_>, notes: &mut Vec<String>) {
    const SOURCE: &str = "<source type='memfd'/>\n";
    const ACCESS: &str = "<access mode='shared'/>\n";
    if let Some(backing) = root.first("memoryBacking") {
        let mut missing = String::new();
        match backing.first("source").map(|source| (source, source.attribute("type"))) {
            Some((_, Some("memfd" | "file"))) => {}
            Some((source, _)) => {
                notes.push("<memoryBacking>: its source is memfd now, which can be shared".into());
                edits.set(source, "type", "memfd");
            }
            // Hugepages are files by themselves.
            None if backing.first("hugepages").is_some() => {}
            None => missing += SOURCE,
        }
        match backing.first("access") {
            Some(access) => edits.set(access, "mode", "shared"),
            None => missing += ACCESS,
        }
        if !missing.is_empty() {
            edits.append(backing, &missing);
        }
    } else {
        let names = ["currentMemory", "memory", "maxMemory", "uuid", "name"];
        if let Some(before) = names.iter().find_map(|name| root.first(name)) {
            edits.after(before, &format!("<memoryBacking>\n  {SOURCE}  {ACCESS}</memoryBacking>"));
        }
    }
    let cells =
        root.first("cpu").and_then(|cpu| cpu.first("numa")).into_iter().flat_map(|numa| numa.all("cell"));
    for cell in cells.filter(|cell| cell.attribute("memAccess").is_some()) {
        edits.set(cell, "memAccess", "shared");
    }
    let modules = root.first("devices").into_iter().flat_map(|devices| devices.all("memory"));
    for module in modules.filter(|module| module.attribute("access").is_some()) {
        edits.set(module, "access", "shared");
    }
}
