//! Where a server listens (`tcp:HOST[:PORT]`, `vsock:CID[:PORT]`, `unix:PATH`), and where a client sends to:
//! there, or as datagrams with `udp:HOST[:PORT]` and `vsock-dgram:CID[:PORT]`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::Error;

/// The same number for TCP and vsock. Above 1023, so that a vsock listener needs no privilege.
pub const DEFAULT_PORT: u16 = 12900;

/// `VMADDR_CID_ANY`: listen on whatever CID this machine has.
pub const CID_ANY: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An empty host means every local address, for listeners only.
    Tcp {
        host: String,
        port: u16,
    },
    Vsock {
        cid: u32,
        port: u32,
    },
    Unix(PathBuf),
}

/// The family of sockets a test runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Tcp,
    Vsock,
    Unix,
}

impl Family {
    pub fn name(self) -> &'static str {
        match self {
            Family::Tcp => "tcp",
            Family::Vsock => "vsock",
            Family::Unix => "unix",
        }
    }
}

impl Address {
    pub fn family(&self) -> Family {
        match self {
            Address::Tcp { .. } => Family::Tcp,
            Address::Vsock { .. } => Family::Vsock,
            Address::Unix(_) => Family::Unix,
        }
    }

    fn is_only_for_listening(&self) -> bool {
        match self {
            Address::Tcp { host, .. } => host.is_empty(),
            Address::Vsock { cid, .. } => *cid == CID_ANY,
            Address::Unix(_) => false,
        }
    }
}

/// Where a client measures to. Datagrams need a stream beside them, on which both ends agree what to do: TCP
/// beside UDP, a vsock stream beside vsock datagrams, at the same address and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where the server listens.
    pub control: Address,
    pub datagrams: bool,
}

impl Target {
    /// The transport's name in reports.
    pub fn transport(&self) -> &'static str {
        match (self.control.family(), self.datagrams) {
            (Family::Tcp, true) => "udp",
            (Family::Vsock, true) => "vsock-dgram",
            (family, _) => family.name(),
        }
    }
}

impl From<Address> for Target {
    fn from(control: Address) -> Target {
        Target { control, datagrams: false }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (control, datagrams) = match text.split_once(':') {
            Some(("udp", rest)) => (tcp(text, rest)?, true),
            Some(("vsock-dgram", rest)) => (vsock(text, rest)?, true),
            _ => (text.parse::<Address>()?, false),
        };
        if control.is_only_for_listening() {
            return Err(usage(
                text,
                "it names no machine: write tcp:HOST, udp:HOST, vsock:CID, vsock-dgram:CID or unix:PATH",
            ));
        }
        Ok(Target { control, datagrams })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = self.control.to_string();
        match (stream.split_once(':'), self.datagrams) {
            (Some((_, rest)), true) => write!(f, "{}:{rest}", self.transport()),
            _ => f.write_str(&stream),
        }
    }
}

fn usage(text: &str, why: &str) -> Error {
    Error::Usage(format!("address \"{text}\": {why}"))
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = "write tcp:HOST[:PORT], vsock:CID[:PORT] or unix:PATH";
        let (family, rest) = text.split_once(':').ok_or_else(|| usage(text, known))?;
        match family {
            "tcp" => tcp(text, rest),
            "vsock" => vsock(text, rest),
            "unix" if rest.is_empty() => Err(usage(text, "the path is missing: write unix:PATH")),
            "unix" => Ok(Address::Unix(rest.into())),
            "udp" => {
                Err(usage(text, "a server listens on tcp:, and serves UDP to those who ask for it there"))
            }
            "vsock-dgram" => Err(usage(
                text,
                "a server listens on vsock:, and serves datagrams to those who ask for them there",
            )),
            _ => Err(usage(text, known)),
        }
    }
}

fn tcp(text: &str, rest: &str) -> Result<Address, Error> {
    let (host, port) = if let Some(inner) = rest.strip_prefix('[') {
        let (host, tail) = inner.split_once(']').ok_or_else(|| usage(text, "the closing ] is missing"))?;
        match tail.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if tail.is_empty() => (host, None),
            None => return Err(usage(text, "after ] only :PORT may follow")),
        }
    } else if rest.matches(':').count() > 1 {
        (rest, None) // a bare IPv6 address; with a port it needs brackets
    } else {
        match rest.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        }
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| usage(text, "the port must be a number from 0 to 65535"))?,
        None => DEFAULT_PORT,
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

fn vsock(text: &str, rest: &str) -> Result<Address, Error> {
    let (cid, port) = match rest.split_once(':') {
        Some((cid, port)) => (cid, Some(port)),
        None => (rest, None),
    };
    let cid = match cid {
        "" | "any" => CID_ANY,
        "local" => 1,
        "host" => 2,
        number => number.parse().map_err(|_| usage(text, "the CID must be a number, any, local or host"))?,
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| usage(text, "the port must be a number below 4294967295"))?,
        None => DEFAULT_PORT.into(),
    };
    Ok(Address::Vsock { cid, port })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Address::Vsock { cid: CID_ANY, port } => write!(f, "vsock:any:{port}"),
            Address::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Which version of IP, where a name has addresses of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    V4,
    V6,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints() {
        for (text, printed) in [
            ("tcp:10.77.0.2", "tcp:10.77.0.2:12900"),
            ("tcp:db:5000", "tcp:db:5000"),
            ("tcp:", "tcp::12900"),
            ("tcp:[fd77::2]:9", "tcp:[fd77::2]:9"),
            ("tcp:fd77::2", "tcp:[fd77::2]:12900"),
            ("vsock:4", "vsock:4:12900"),
            ("vsock:4:4294967294", "vsock:4:4294967294"),
            ("vsock:", "vsock:any:12900"),
            ("vsock:any:7", "vsock:any:7"),
            ("vsock:host", "vsock:2:12900"),
            ("unix:/run/b.sock", "unix:/run/b.sock"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), printed, "{text}");
            assert_eq!(printed.parse::<Address>().unwrap(), address);
        }
    }

    #[test]
    fn refuses_with_the_way_out() {
        for (text, part) in [
            ("4:5000", "write tcp:HOST"),
            ("host", "write tcp:HOST"),
            ("udp:host", "listens on tcp:"),
            ("vsock-dgram:4", "listens on vsock:"),
            ("tcp:host:70000", "0 to 65535"),
            ("tcp:[::1", "closing ]"),
            ("vsock:x", "CID must be a number"),
            ("vsock:4:-1", "port must be a number"),
            ("unix:", "path is missing"),
        ] {
            let message = text.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(part) && message.contains(text), "{message}");
        }
        assert!("vsock:".parse::<Target>().unwrap_err().to_string().contains("names no machine"));
        assert!("tcp:".parse::<Target>().is_err() && "udp:".parse::<Target>().is_err());
    }

    #[test]
    fn targets_of_datagrams() {
        for (text, printed, transport) in [
            ("udp:10.77.0.2", "udp:10.77.0.2:12900", "udp"),
            ("udp:[fd77::2]:9", "udp:[fd77::2]:9", "udp"),
            ("vsock-dgram:4", "vsock-dgram:4:12900", "vsock-dgram"),
            ("vsock:4", "vsock:4:12900", "vsock"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.to_string().as_str(), target.transport()), (printed, transport));
        }
    }
}
