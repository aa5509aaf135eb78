//! The DAC label of a domain: the user and group as whom libvirt runs its QEMU.

use vmlane_access::Accounts;
use vmlane_config::{Config, VmConfig};

/// As whom a VM's QEMU has to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub uid: u32,
    pub gid: u32,
}

impl std::fmt::Display for Label {
    /// As libvirt writes numbers.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "+{}:+{}", self.uid, self.gid)
    }
}

impl Label {
    /// Understands `+107:+104` and `libvirt-qemu:kvm`, as libvirt does.
    pub fn parse(text: &str, accounts: &Accounts) -> Option<Label> {
        let (user, group) = text.trim().split_once(':')?;
        let number = |text: &str| text.strip_prefix('+')?.parse::<u32>().ok();
        // libvirt takes a name for a name, and a number that is no name for a number.
        let uid = number(user).or_else(|| accounts.user(user).map(|user| user.uid)).or(user.parse().ok());
        let gid = number(group).or_else(|| accounts.group(group)).or(group.parse().ok());
        Some(Label { uid: uid?, gid: gid? })
    }
}

/// The label of a VM, or why it has none.
pub fn of(vm: &VmConfig, accounts: &Accounts) -> Result<Label, String> {
    let name = &vm.name;
    let Some(owner) = vm.owner else {
        return Err(format!(
            "VM {name} has no owner, so only root and the daemon's user may open its sockets, and libvirt runs QEMU as \
             another: give the VM a user of its own (useradd --system --groups kvm,libvirt-qemu vm-{name}) and \
             owner = \"vm-{name}\""
        ));
    };
    let Some(uid) = owner.uid else {
        return Err(format!(
            "VM {name} is owned by a group, and a domain's label needs a user: write owner = \"USER:GROUP\""
        ));
    };
    let gid = owner.gid.or_else(|| accounts.user(&uid.to_string()).map(|user| user.gid));
    gid.map(|gid| Label { uid, gid }).ok_or_else(|| {
        format!("VM {name}: its owner, user {uid}, is not in /etc/passwd, so its group is not known; write owner = \"{uid}:GROUP\"")
    })
}

/// Other VMs whose owner may open the sockets of this one, too.
pub fn shared_with<'a>(config: &'a Config, vm: &VmConfig) -> Vec<&'a str> {
    let Some(owner) = vm.owner else { return Vec::new() };
    let same = |other: &&VmConfig| {
        let both = |mine: Option<u32>, its: Option<u32>| mine.is_some() && mine == its;
        other.name != vm.name
            && other.owner.is_some_and(|its| both(owner.uid, its.uid) || both(owner.gid, its.gid))
    };
    config.vms.iter().filter(same).map(|other| other.name.as_str()).collect()
}

/// Domains without a label run as one of these (Debian, Fedora), in one of these groups.
const USERS: [&str; 2] = ["libvirt-qemu", "qemu"];
const GROUPS: [&str; 3] = ["kvm", "libvirt-qemu", "qemu"];

/// What is wrong if the VM's owner is what libvirt's domains are by default.
pub fn of_all_domains(vm: &VmConfig, accounts: &Accounts) -> Option<String> {
    let owner = vm.owner?;
    let is_user = |name: &&str| accounts.user(name).is_some_and(|user| Some(user.uid) == owner.uid);
    let is_group = |name: &&str| owner.gid.is_some() && accounts.group(name) == owner.gid;
    let user = USERS.into_iter().find(is_user).map(|name| format!("user {name}"));
    let what = user.or_else(|| GROUPS.into_iter().find(is_group).map(|name| format!("group {name}")))?;
    let name = &vm.name;
    Some(format!(
        "VM {name} is owned by {what}, which all domains without a label of their own have: each of them may open its sockets; \
         give the VM a user of its own, owner = \"vm-{name}\""
    ))
}
