//! Tells systemd how far the daemon or the keeper is, when systemd asked for it.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

/// Connected while the daemon might still do that.
static CONNECTED: OnceLock<UnixDatagram> = OnceLock::new();

/// Connects to the socket that `NOTIFY_SOCKET` names: a confined daemon's user may not be allowed to.
pub fn prepare() {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    let connected = UnixDatagram::unbound().and_then(|socket| {
        socket.connect_addr(&address(name.as_bytes())?)?;
        Ok(socket)
    });
    if let Ok(socket) = connected {
        let _ = CONNECTED.set(socket);
    }
}

/// Sends `state` (such as `READY=1`) to the socket that `NOTIFY_SOCKET` names, if it does.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    let sent = match CONNECTED.get() {
        Some(socket) => socket.send(state.as_bytes()).map(drop),
        None => send(name.as_bytes(), state),
    };
    if let Err(error) = sent {
        tracing::warn!("NOTIFY_SOCKET = {name:?}: {error}");
    }
}

fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path)),
    }
}

fn send(name: &[u8], state: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address(name)?).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_are_reached() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        // Other containers may share the network and its names.
        let unique = directory.path().file_name().unwrap().to_string_lossy().into_owned();
        let abstract_name = format!("vmlane-test-{unique}");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
        let names = [path.as_os_str().as_bytes().to_vec(), format!("@{abstract_name}").into_bytes()];
        for (socket, name) in [by_path, by_name].iter().zip(names) {
            send(&name, "READY=1").unwrap();
            let mut text = [0; 16];
            let length = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1");
        }
        assert!(send(b"/nonexistent/notify", "READY=1").is_err());
    }
}
