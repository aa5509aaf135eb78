//! Who owns a VM or an uplink's socket, and who may what at the control socket: users and groups as the configuration names them.

use toml::Spanned;
use vmlane_access::Owner;
use vmlane_access::{Accounts, OVERFLOW};
use vmlane_api::May;

use super::check::{Checker, IDS};
use super::raw::{RawControl, RawVm};
use super::{ControlRule, NicModel, Role, VmConfig};

/// Why a user or group cannot be an owner: what is wrong, and the way out.
fn owner(text: &str, accounts: &Accounts) -> Result<Owner, String> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    if group == Some("") || (user.is_empty() && group.is_none()) {
        return Err("write \"USER\", \"USER:GROUP\" or \":GROUP\", each a name or a number".into());
    }
    let numbered = |text: &str| text.parse::<u32>().ok().filter(|id| IDS.contains(&i64::from(*id)));
    let uid = (!user.is_empty()).then(|| {
        let id = numbered(user).or_else(|| accounts.user(user).map(|user| user.uid));
        id.ok_or_else(|| unknown("user", "/etc/passwd", user, "useradd --system", "id -u"))
    });
    let gid = group.map(|group| {
        let id = numbered(group).or_else(|| accounts.group(group));
        id.ok_or_else(|| unknown("group", "/etc/group", group, "groupadd --system", "getent group"))
    });
    let owner = Owner { uid: uid.transpose()?, gid: gid.transpose()? };
    if owner.uid == Some(OVERFLOW) || owner.gid == Some(OVERFLOW) {
        return Err(format!(
            "number {OVERFLOW} (nobody, nogroup) stands for everybody whom the kernel cannot name; use an account \
             of its own"
        ));
    }
    Ok(owner)
}

fn unknown(kind: &str, file: &str, name: &str, make: &str, ask: &str) -> String {
    format!(
        "there is no {kind} {name:?} in {file}; make it (`{make} {name}`), or give its number (`{ask} {name}`); a daemon \
         that was started before must be restarted to know it by name"
    )
}

impl Checker<'_> {
    /// The owner of a VM or of an uplink's socket, if it has one of its own.
    pub(crate) fn owner(&mut self, key: &str, value: Option<&Spanned<toml::Value>>) -> Option<Owner> {
        let value = value?;
        let outcome = match value.get_ref() {
            toml::Value::String(text) => owner(text, &Accounts::host()),
            toml::Value::Integer(uid) => owner(&uid.to_string(), &Accounts::default()),
            _ => Err("write a text such as \"alice\" or \"alice:kvm\"".into()),
        };
        outcome
            .map_err(|why| self.problem(value.span(), format!("{key}: owner = {}: {why}", value.get_ref())))
            .ok()
    }

    /// An owner cannot make sockets where the daemon expects them.
    pub(crate) fn owner_and_roles(&mut self, vm: &VmConfig, raw: &RawVm) {
        let Some(owner) = &raw.owner else { return };
        let client = |role| role == Role::Client;
        let calls = vm.vsock.virtio().is_some_and(client)
            || vm.nics.iter().any(|nic| matches!(nic.model, NicModel::VirtioNet(net) if client(net.role)));
        if calls {
            let text = format!(
                "vm {:?}: owner = {}: with a role \"client\" the VMM would have to make its socket in a directory \
                 that only the daemon may write; use the role \"server\", or leave owner out",
                vm.name,
                owner.get_ref()
            );
            self.problem(owner.span(), text);
        }
    }

    /// One permission at the control socket.
    pub(crate) fn control(&mut self, number: usize, spanned: &Spanned<RawControl>) -> ControlRule {
        self.mark(format!("control {}", number - 1), spanned.span());
        let raw = spanned.get_ref();
        let uid = raw.uid.as_ref().map(|uid| self.number("control: uid", uid, IDS) as u32);
        let gid = raw.gid.as_ref().map(|gid| self.number("control: gid", gid, IDS) as u32);
        if uid.is_none() && gid.is_none() {
            let text = format!(
                "control number {number}: it names neither a user nor a group; add uid = NUMBER or gid = NUMBER"
            );
            self.problem(spanned.span(), text);
        }
        let may = raw.may.as_ref().map(|may| (may, may.get_ref().as_str()));
        let may = match may {
            Some((_, "observe")) => May::Observe,
            Some((_, "own")) => May::Own,
            Some((_, "admin")) => May::Admin,
            Some((value, other)) => {
                let text =
                    format!("control: may = {other:?} is unknown; use \"observe\", \"own\" or \"admin\"");
                self.problem(value.span(), text);
                May::Own
            }
            None => {
                let text =
                    format!("control number {number}: may is missing; add \"observe\", \"own\" or \"admin\"");
                self.problem(spanned.span(), text);
                May::Own
            }
        };
        ControlRule { uid, gid, may }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_named_or_numbered() {
        let accounts = Accounts::of("alice:x:1000:100::/:/bin/sh\n", "kvm:x:104:\n");
        let is = |text, uid, gid| assert_eq!(owner(text, &accounts), Ok(Owner { uid, gid }), "{text}");
        is("alice", Some(1000), None);
        is("alice:kvm", Some(1000), Some(104));
        is(":kvm", None, Some(104));
        is("7:8", Some(7), Some(8));
        for (text, words) in [
            ("", &["USER:GROUP"][..]),
            (":", &["USER:GROUP"]),
            ("alice:", &["USER:GROUP"]),
            ("bob", &["no user \"bob\" in /etc/passwd", "useradd --system bob", "id -u bob"]),
            ("alice:wheel", &["no group \"wheel\" in /etc/group"]),
            ("65534", &["nobody", "account of its own"]),
            (":65534", &["nogroup"]),
            ("4294967295", &["no user \"4294967295\""]),
            ("-1", &["no user \"-1\""]),
        ] {
            let error = owner(text, &accounts).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }
}
