//! The sockets to serve at: one that is made here, or those that systemd passed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, bail, ensure};

/// Where an exporter is served by default.
pub const DEFAULT: &str = "127.0.0.1:10977";
const PORT: u16 = 10977;
/// The first descriptor that systemd passes, and how many are examined.
const FIRST: i32 = 3;
const MOST: i32 = 16;

/// Understands `IP:PORT`, `IP`, `localhost:PORT`, `localhost` and `PORT`.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let local = IpAddr::from(Ipv4Addr::LOCALHOST);
    let (host, port) = match text.rsplit_once(':') {
        Some(("localhost", port)) => (Some(local), port.parse().ok()),
        _ if text == "localhost" => (Some(local), Some(PORT)),
        _ => match (text.parse::<SocketAddr>(), text.parse::<IpAddr>(), text.parse::<u16>()) {
            (Ok(both), ..) => (Some(both.ip()), Some(both.port())),
            (_, Ok(ip), _) => (Some(ip), Some(PORT)),
            (.., Ok(port)) => (Some(local), Some(port)),
            _ => (None, None),
        },
    };
    match (host, port) {
        (Some(host), Some(port)) => Ok(SocketAddr::new(host, port)),
        _ => Err(format!("give an address such as {DEFAULT}, [::1]:{PORT} or localhost")),
    }
}

/// What to serve at; nothing if neither an address was given nor systemd passed a socket.
pub fn listeners(wanted: Option<SocketAddr>, allow_remote: bool) -> anyhow::Result<Vec<TcpListener>> {
    let passed = passed()?;
    let listeners = match wanted {
        Some(_) if !passed.is_empty() => {
            bail!("systemd passed sockets to serve at: leave --listen away, or start it without them");
        }
        Some(address) => {
            check(address, allow_remote)?;
            vec![TcpListener::bind(address).with_context(|| format!("listening at {address}"))?]
        }
        None => passed,
    };
    for listener in &listeners {
        check(listener.local_addr()?, allow_remote)?;
    }
    Ok(listeners)
}

/// Other hosts are served only on request.
fn check(address: SocketAddr, allow_remote: bool) -> anyhow::Result<()> {
    ensure!(
        allow_remote || address.ip().to_canonical().is_loopback(),
        "{address} is no loopback address: every host that reaches it could read names and traffic of all VMs; use \
         {DEFAULT}, or add --allow-remote and have a firewall or a proxy with TLS decide who may"
    );
    Ok(())
}

/// Sockets that systemd passed to this process.
fn passed() -> anyhow::Result<Vec<TcpListener>> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS").unwrap_or(0).min(MOST as u32) as i32;
    (FIRST..FIRST + count).map(take).collect()
}

#[allow(unsafe_code)] // a descriptor by number, as the protocol has it
fn take(raw: i32) -> anyhow::Result<TcpListener> {
    // SAFETY: systemd passed it to this process, and no other code here knows of it; this runs once for each.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
        .with_context(|| format!("LISTEN_FDS: descriptor {raw}"))?;
    ensure!(
        rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or(false),
        "LISTEN_FDS: descriptor {raw} is no listening socket; in the unit, use ListenStream= and Accept=no"
    );
    let listener = TcpListener::from(socket);
    listener.local_addr().with_context(|| {
        format!("LISTEN_FDS: descriptor {raw} is no TCP socket; use ListenStream=IP:PORT")
    })?;
    listener.set_nonblocking(false)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_be_short() {
        for (text, full) in [
            (DEFAULT, DEFAULT),
            ("127.0.0.1", DEFAULT),
            ("localhost", DEFAULT),
            ("localhost:80", "127.0.0.1:80"),
            ("9500", "127.0.0.1:9500"),
            ("::1", "[::1]:10977"),
            ("[::1]:80", "[::1]:80"),
            ("0.0.0.0:80", "0.0.0.0:80"),
        ] {
            assert_eq!(address(text).map(|address| address.to_string()).as_deref(), Ok(full), "{text}");
        }
        for text in ["", "host", "host:80", "localhost:", "localhost:99999", "1.2.3.4:x", "65536"] {
            assert!(address(text).unwrap_err().contains(DEFAULT), "{text}");
        }
    }

    #[test]
    fn other_hosts_are_served_on_request_only() {
        for text in ["127.0.0.1", "127.8.8.8:1", "::1", "[::ffff:127.0.0.1]:80"] {
            assert!(check(address(text).unwrap(), false).is_ok(), "{text}");
        }
        for text in ["0.0.0.0", "::", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
            let error = check(address(text).unwrap(), false).unwrap_err().to_string();
            assert!(error.contains("--allow-remote"), "{text}: {error}");
            assert!(check(address(text).unwrap(), true).is_ok(), "{text}");
        }
    }
}
