//! The way out of a socket error, for the end of its message.

use std::io;

use crate::address::Address;

pub fn connect(to: &Address, cause: &io::Error) -> String {
    let missing = format!(": is `vmlane bench server --listen {}` running there?", listen_example(to));
    match (to, cause.raw_os_error().unwrap_or(0)) {
        (_, libc::ECONNREFUSED) => missing,
        // vsock answers RST where TCP says "refused".
        (Address::Vsock { .. }, libc::ECONNRESET) | (Address::Unix(_), libc::ENOENT) => missing,
        (
            Address::Vsock { .. },
            libc::ENODEV | libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT | libc::ENETUNREACH,
        ) => ": no vsock device here leads to that CID (in a VMCI guest: modprobe vmw_vsock_vmci_transport)"
            .into(),
        (Address::Tcp { .. }, libc::EADDRNOTAVAIL) => {
            ": all local ports wait out TIME_WAIT; use a shorter -l or fewer -n".into()
        }
        (Address::Vsock { .. }, libc::EHOSTUNREACH) => {
            ": no VM with that CID can be reached from here".into()
        }
        (_, libc::ETIMEDOUT) => ": no answer from there; check the address".into(),
        _ => String::new(),
    }
}

fn listen_example(to: &Address) -> String {
    match to {
        Address::Tcp { port, .. } => format!("tcp:0.0.0.0:{port}"),
        Address::Vsock { port, .. } => format!("vsock:any:{port}"),
        Address::Unix(_) => to.to_string(),
    }
}

pub fn listen(address: &Address, cause: &io::Error) -> &'static str {
    match (address, cause.raw_os_error().unwrap_or(0)) {
        (_, libc::EADDRINUSE) => ": something listens there already; choose another port or path, or stop it",
        (Address::Vsock { .. }, libc::EAFNOSUPPORT) => ": this kernel has no vsock (modprobe vsock)",
        (_, libc::EACCES) => ": not allowed here; choose a port above 1023 or a directory of yours",
        _ => "",
    }
}
