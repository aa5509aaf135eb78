//! The configuration of the helper.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::fingerprint::Fingerprint;

/// See the module's text. `guide/hosts.md` has the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This host's name, which its certificate proves.
    pub name: String,
    /// Where the daemon listens for the helper.
    pub socket: PathBuf,
    /// Where other hosts connect; None: none do.
    pub listen: Option<SocketAddr>,
    pub files: Files,
    /// A peer of which nothing was received for so long is gone.
    pub dead: Duration,
    pub bounds: Bounds,
    /// Names are unique.
    pub peers: Vec<PeerSettings>,
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// This host's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Certificates of those who may vouch for hosts.
    pub authority: PathBuf,
    /// Lists of certificates that were revoked, one of each authority; None: none was.
    pub crl: Option<PathBuf>,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    pub name: String,
    /// None: it connects to this host.
    pub address: Option<SocketAddr>,
    /// Of its certificates; empty: any that proves its name will do.
    pub fingerprints: Vec<Fingerprint>,
}

/// What others can use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Streams of one peer at once.
    pub streams: usize,
    /// Connections that have not proved a name; of one address or IPv6 network, as many as stay free.
    /// Addresses of peers have some of their own.
    pub handshakes: usize,
    /// How long that may take, up to the peer's first frame.
    pub handshake: Duration,
    /// Bytes that wait to be sent to a peer before streams wait for it.
    pub queued: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { streams: 4096, handshakes: 64, handshake: Duration::from_secs(5), queued: 256 << 10 }
    }
}

impl Settings {
    /// Of two hosts the one whose name sorts first connects to the other.
    pub fn dials(&self, peer: &PeerSettings) -> bool {
        self.name < peer.name
    }

    pub fn peer(&self, name: &str) -> Option<&PeerSettings> {
        self.peers.iter().find(|peer| peer.name == name)
    }
}
