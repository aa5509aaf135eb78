//! Who owns a VM or an uplink's socket: users and groups as the configuration names them.

use std::ops::RangeInclusive;

use toml::Spanned;
use vmlane_access::{Accounts, OVERFLOW, Owner};

use crate::notes::Notes;

/// Users and groups; the last number means "none".
pub const IDS: RangeInclusive<i64> = 0..=0xffff_fffe;

/// The owner of a VM or of an uplink's socket, if it has one of its own.
pub fn judge(key: &str, value: &Option<Spanned<toml::Value>>, notes: &mut Notes<'_>) -> Option<Owner> {
    let value = value.as_ref()?;
    let outcome = match value.get_ref() {
        toml::Value::String(text) => owner(text, &Accounts::host()),
        toml::Value::Integer(uid) => owner(&uid.to_string(), &Accounts::default()),
        _ => Err("write a text such as \"alice\" or \"alice:kvm\"".into()),
    };
    outcome
        .map_err(|why| notes.problem(value.span(), format!("{key}: owner = {}: {why}", value.get_ref())))
        .ok()
}

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
