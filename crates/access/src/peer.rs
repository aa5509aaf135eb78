//! Credentials of a connected process, as the kernel noted them when it connected.
#![allow(unsafe_code)] // getsockopt(): rustix has no SO_PEERGROUPS, and no PID 0 in SO_PEERCRED

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `SO_PEERGROUPS` of asm-generic/socket.h.
const SO_PEERGROUPS: libc::c_int = 59;
/// The most groups that a process can have (`NGROUPS_MAX` of Linux).
const MOST_GROUPS: usize = 65_536;

/// The process at the other end of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// 0: a process that this PID namespace does not show.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
}

impl Peer {
    /// Who connected to, or at, `socket`. Later changes of that process do not matter.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let mut found = [libc::ucred { pid: 0, uid: 0, gid: 0 }];
        match option(&socket, libc::SO_PEERCRED, &mut found) {
            Ok(1) => {}
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err((error, _)) => return Err(error),
        }
        let [libc::ucred { pid, uid, gid }] = found;
        Ok(Peer { pid, uid, gid, groups: groups(&socket)? })
    }

    /// Does it have this group, as primary or supplementary one?
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Reads an option of `SOL_SOCKET` whose value is a row of `T`, plain numbers of any value. Returns how many
/// of them were written, or else how many there are.
fn option<T>(socket: impl AsFd, name: libc::c_int, out: &mut [T]) -> Result<usize, (io::Error, usize)> {
    let mut bytes = size_of_val(out) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to the buffer, which has as many, and their number to
    // `bytes`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            out.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    let count = bytes as usize / size_of::<T>();
    if outcome == 0 { Ok(count) } else { Err((io::Error::last_os_error(), count)) }
}

fn groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 32];
    loop {
        match option(&socket, SO_PEERGROUPS, &mut groups) {
            Ok(count) => {
                groups.truncate(count);
                return Ok(groups);
            }
            Err((error, count))
                if error.raw_os_error() == Some(libc::ERANGE)
                    && count > groups.len()
                    && count <= MOST_GROUPS =>
            {
                groups.resize(count, 0);
            }
            Err((error, _)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_is_known() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = Peer::of(&near).unwrap();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.pid, std::process::id() as i32);
        assert!(peer.is_in(rustix::process::getegid().as_raw()));
        let mut own: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(|gid| gid.as_raw()).collect();
        own.sort_unstable();
        let mut seen = peer.groups;
        seen.sort_unstable();
        assert_eq!(seen, own);
    }

    #[test]
    fn more_groups_than_expected_are_known_too() {
        if !rustix::process::geteuid().is_root() {
            return vmlane_testkit::skipped("only root can have groups of its choice");
        }
        // Groups are a thread's in the kernel.
        let many = std::thread::spawn(|| {
            let groups: Vec<_> = (5000..5100).map(rustix::process::Gid::from_raw).collect();
            rustix::thread::set_thread_groups(&groups).unwrap();
            let (near, _far) = UnixStream::pair().unwrap();
            Peer::of(&near).unwrap()
        });
        assert_eq!(many.join().unwrap().groups, (5000..5100).collect::<Vec<u32>>());
    }
}
