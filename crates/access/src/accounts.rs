//! Users and groups of the host, from `/etc/passwd` and `/etc/group`. The program is linked statically and
//! asks no other directory of users: accounts that are elsewhere (LDAP) have to be given by number.

use std::fs;

use parking_lot::Mutex;

/// What is read. A confined daemon may still read these very files.
pub const FILES: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// The number that the kernel shows for users and groups that this user namespace lacks.
pub const OVERFLOW: u32 = 65_534;

/// A user of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// As the list has it.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of its first group.
    pub gid: u32,
}

/// The texts of both files.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    passwd: String,
    group: String,
}

/// As they could be read last: programs that add a user replace the file, and a confined daemon may not read
/// the new one.
static LAST: Mutex<Option<Accounts>> = Mutex::new(None);

impl Accounts {
    /// The host's, as they are now or, failing that, as they were when they could be read.
    pub fn host() -> Accounts {
        let mut last = LAST.lock();
        let mut accounts = last.take().unwrap_or_default();
        for (path, text) in FILES.into_iter().zip([&mut accounts.passwd, &mut accounts.group]) {
            if let Ok(now) = fs::read_to_string(path) {
                *text = now;
            }
        }
        *last = Some(accounts.clone());
        accounts
    }

    /// Those of a host whose files have these texts.
    pub fn of(passwd: &str, group: &str) -> Accounts {
        Accounts { passwd: passwd.into(), group: group.into() }
    }

    /// The user of a name or number, if it is listed.
    pub fn user(&self, wanted: &str) -> Option<User> {
        self.passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            let user = User { name: name.into(), uid: uid.parse().ok()?, gid: gid.parse().ok()? };
            (name == wanted || uid == wanted).then_some(user)
        })
    }

    /// The number of a group by its name or number, if it is listed.
    pub fn group(&self, wanted: &str) -> Option<u32> {
        self.group.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _, gid) = (fields.next()?, fields.next()?, fields.next()?);
            (name == wanted || gid == wanted).then(|| gid.parse().ok())?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_by_number() {
        let accounts = Accounts::of(
            "root:x:0:0:root:/root:/bin/sh\nbroken\nvmlane:x:990:991::/:/bin/false\n",
            "root:x:0:\nbroken\nkvm:x:104:a,b\n",
        );
        let user = User { name: "vmlane".into(), uid: 990, gid: 991 };
        assert_eq!(accounts.user("vmlane"), Some(user.clone()));
        assert_eq!(accounts.user("990"), Some(user));
        assert_eq!((accounts.user("nobody"), accounts.user("")), (None, None));
        assert_eq!((accounts.group("kvm"), accounts.group("104")), (Some(104), Some(104)));
        assert_eq!((accounts.group("x"), accounts.group("")), (None, None));
    }
}
