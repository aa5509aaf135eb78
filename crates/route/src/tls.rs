//! TLS without a socket: bytes of the network in, bytes of frames out, and the other way round.
//!
//! Version 1.3 only, both ends with certificates, no resumption. The library's interface without buffers is
//! used: records are decrypted where they were received, and encrypted to where they are sent from.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::{UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, UnbufferedServerConnection, WebPkiClientVerifier};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};

use crate::buffer::Buffer;
use crate::fingerprint::Fingerprint;
use crate::frame::Violation;
use crate::settings::{Files, PeerSettings};

/// A record adds less than this to the bytes in it.
const OVERHEAD: usize = 64;
const RECORD: usize = 16 << 10;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{}", explain(.0))]
    Tls(rustls::Error),
    #[error("{0}")]
    Violation(#[from] Violation),
    #[error(
        "the name in its certificate is no [[peer]]'s, or that of several; add it, or give it a certificate of its own"
    )]
    Unnamed,
    #[error(
        "the certificate that names {name:?} has the fingerprint {found}, which is none of those in this [[peer]]; if the host \
         has a new certificate, add its fingerprint"
    )]
    Unpinned { name: String, found: Fingerprint },
}

/// Why there is nothing to speak TLS with.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("{path}: {why}; write it as PEM, readable by the helper's user (guide/hosts.md)")]
    Unreadable { path: String, why: String },
    #[error(
        "{path}: the certificate does not name this host, {name:?}, as a subject alternative name: {why}"
    )]
    Name { path: String, name: String, why: String },
    #[error("certificate, key and authority do not go together: {0}")]
    Mismatch(String),
}

/// What both ends of a connection are set up with, and what judges certificates of others. Replaced as a
/// whole when files are read again: connections keep what they were set up with, and their certificates are
/// judged anew.
#[derive(Clone)]
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// Of hosts that have connected to this one.
    clients: Arc<dyn ClientCertVerifier>,
    /// Of hosts that this one has connected to.
    servers: Arc<WebPkiServerVerifier>,
}

impl Identity {
    /// Reads certificates and key.
    pub fn load(files: &Files, name: &str) -> Result<Identity, FilesError> {
        let chain = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|why| unreadable(&files.key, &why))?;
        if let Some(own) = chain.first() {
            let proved = proves(own, name);
            proved.map_err(|why| FilesError::Name {
                path: shown(&files.certificate),
                name: name.into(),
                why,
            })?;
        }
        let mut roots = RootCertStore::empty();
        for root in certificates(&files.authority)? {
            roots.add(root).map_err(|why| unreadable(&files.authority, &why))?;
        }
        let roots = Arc::new(roots);
        let revoked = match &files.crl {
            Some(path) => {
                pem_items::<CertificateRevocationListDer<'static>>(path, "list of revoked certificates")?
            }
            None => Vec::new(),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mismatch = |why: &dyn std::fmt::Display| FilesError::Mismatch(why.to_string());
        let unlisted = |why: &dyn std::fmt::Display| match &files.crl {
            Some(path) => unreadable(path, why),
            None => FilesError::Mismatch(why.to_string()),
        };
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let clients = clients.with_crls(revoked.clone()).build().map_err(|why| unlisted(&why))?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        let servers = servers.with_crls(revoked).build().map_err(|why| unlisted(&why))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|why| mismatch(&why))?
            .with_client_cert_verifier(clients.clone())
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|why| mismatch(&why))?;
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|why| mismatch(&why))?
            .with_webpki_verifier(servers.clone())
            .with_client_auth_cert(chain, key)
            .map_err(|why| mismatch(&why))?;
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Identity { client: Arc::new(client), server: Arc::new(server), clients, servers })
    }

    /// The peer whose certificate the other end has: `expected`, if that is known. It is judged by the time,
    /// the authorities and the lists of now, which may be others than those when the connection began.
    pub fn judge(
        &self,
        tls: &Tls,
        peers: &[PeerSettings],
        expected: Option<&str>,
    ) -> Result<String, TlsError> {
        let chain = tls.chain().unwrap_or_default();
        let (own, between) =
            chain.split_first().ok_or(TlsError::Tls(rustls::Error::NoCertificatesPresented))?;
        let peer = named(own, peers).filter(|peer| expected.is_none_or(|name| name == peer.name));
        let peer = peer.ok_or(TlsError::Unnamed)?;
        let now = UnixTime::now();
        let judged = match tls {
            Tls::Server(_) => self.clients.verify_client_cert(own, between, now).map(drop),
            Tls::Client(_) => {
                let name = ServerName::try_from(peer.name.as_str()).map_err(|_| TlsError::Unnamed)?;
                self.servers.verify_server_cert(own, between, &name, &[], now).map(drop)
            }
        };
        judged.map_err(TlsError::Tls)?;
        let found = Fingerprint::of(own);
        if !peer.fingerprints.is_empty() && !peer.fingerprints.contains(&found) {
            return Err(TlsError::Unpinned { name: peer.name.clone(), found });
        }
        Ok(peer.name.clone())
    }

    /// The end that has connected to `peer`.
    pub fn dial(&self, peer: &str) -> Result<Tls, TlsError> {
        let name = ServerName::try_from(peer.to_owned());
        let name = name.map_err(|_| TlsError::Tls(rustls::Error::General("no name of a host".into())))?;
        let connection = UnbufferedClientConnection::new(self.client.clone(), name).map_err(TlsError::Tls)?;
        Ok(Tls::Client(Box::new(connection)))
    }

    /// The end that was connected to.
    pub fn answer(&self) -> Result<Tls, TlsError> {
        let connection = UnbufferedServerConnection::new(self.server.clone()).map_err(TlsError::Tls)?;
        Ok(Tls::Server(Box::new(connection)))
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> FilesError {
    FilesError::Unreadable { path: shown(path), why: why.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FilesError> {
    pem_items(path, "certificate")
}

/// All of one kind that a file has.
fn pem_items<T: PemObject>(path: &Path, what: &str) -> Result<Vec<T>, FilesError> {
    let read = T::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read.map_err(|why| unreadable(path, &why))? {
        none if none.is_empty() => Err(unreadable(path, &format!("there is no {what} in it"))),
        some => Ok(some),
    }
}

/// The one peer whose name the certificate has.
fn named<'p>(certificate: &CertificateDer<'_>, peers: &'p [PeerSettings]) -> Option<&'p PeerSettings> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let mut named = peers.iter().filter(|peer| names(&parsed, &peer.name).is_ok());
    let first = named.next()?;
    // One for several would let a host speak for another.
    named.next().is_none().then_some(first)
}

/// Does this certificate have `name` among its subject alternative names?
pub fn proves(certificate: &CertificateDer<'_>, name: &str) -> Result<(), String> {
    let parsed = ParsedCertificate::try_from(certificate).map_err(|why| why.to_string())?;
    names(&parsed, name)
}

fn names(parsed: &ParsedCertificate<'_>, name: &str) -> Result<(), String> {
    let name = ServerName::try_from(name).map_err(|why| why.to_string())?;
    rustls::client::verify_server_name(parsed, &name).map_err(|why| explain(&why))
}

/// Text for an operator, with what can be done.
pub fn explain(error: &rustls::Error) -> String {
    use rustls::Error::{AlertReceived, InvalidCertRevocationList, InvalidCertificate};
    let text = match error {
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired, or this host's clock is wrong; renew it, and compare the clocks"
        }
        InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "its certificate is not valid yet; compare the clocks of both hosts"
        }
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is of a foreign authority, none of those in `authority`"
        }
        InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate has another name than the configuration has for it",
        InvalidCertificate(CertificateError::Revoked) => {
            "its certificate was revoked: it is in the list `crl`"
        }
        InvalidCertificate(CertificateError::UnknownRevocationStatus) => {
            "`crl` has no list of its certificate's authority; add the one of each authority to that file"
        }
        InvalidCertRevocationList(_) => {
            "`crl` has a list that was not signed by its certificate's authority, or cannot be understood; replace it"
        }
        AlertReceived(AlertDescription::CertificateRevoked) => {
            "it reports that this host's certificate was revoked"
        }
        AlertReceived(AlertDescription::CertificateExpired) => {
            "it reports that this host's certificate has expired (or its clock is wrong); renew it, and reload its helper"
        }
        AlertReceived(AlertDescription::UnknownCA) => {
            "it reports that this host's certificate is of a foreign authority"
        }
        AlertReceived(AlertDescription::BadCertificate | AlertDescription::CertificateUnknown) => {
            "it does not accept this host's certificate; its log has the reason"
        }
        rustls::Error::NoCertificatesPresented => "it has no certificate",
        other => return format!("TLS: {other}"),
    };
    text.into()
}

/// What of a handshake's failures is counted by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateFault {
    Expired,
    NotYet,
    Foreign,
    Revoked,
    Other,
}

impl TlsError {
    pub fn certificate_fault(&self) -> CertificateFault {
        use rustls::Error::InvalidCertificate;
        match self {
            TlsError::Tls(InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => CertificateFault::Expired,
            TlsError::Tls(InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            )) => CertificateFault::NotYet,
            TlsError::Tls(InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => CertificateFault::Foreign,
            TlsError::Tls(InvalidCertificate(CertificateError::Revoked)) | TlsError::Unpinned { .. } => {
                CertificateFault::Revoked
            }
            _ => CertificateFault::Other,
        }
    }
}

/// One connection's TLS.
pub enum Tls {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// What can be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// More bytes of the peer are needed; the handshake is not through.
    Handshaking,
    /// The handshake is through.
    Open,
    /// The peer announces its end.
    Closed,
}

enum Step {
    Again,
    Ready(Ready),
}

impl Tls {
    /// Takes what has come in `incoming`, hands on its plain text to `sink`, and puts what is to be sent
    /// behind `outgoing`.
    pub fn receive(
        &mut self,
        incoming: &mut Buffer,
        outgoing: &mut Buffer,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Violation>,
    ) -> Result<Ready, TlsError> {
        loop {
            let (discard, step) = match self {
                Tls::Client(tls) => handle(tls.process_tls_records(incoming.filled()), outgoing, sink),
                Tls::Server(tls) => handle(tls.process_tls_records(incoming.filled()), outgoing, sink),
            };
            incoming.take(discard);
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Ready(ready)) => return Ok(ready),
                Err(error) => {
                    self.flush_alert(outgoing);
                    return Err(error);
                }
            }
        }
    }

    /// Encodes the library's alert to the peer about an error.
    fn flush_alert(&mut self, outgoing: &mut Buffer) {
        let none = &mut |_: &[u8]| Ok(());
        let _ = match self {
            Tls::Client(tls) => handle(tls.process_tls_records(&mut []), outgoing, none),
            Tls::Server(tls) => handle(tls.process_tls_records(&mut []), outgoing, none),
        };
    }

    /// Encrypts `plain` behind `outgoing`, if the handshake is through.
    pub fn send(&mut self, plain: &[u8], outgoing: &mut Buffer) -> Result<(), TlsError> {
        match self {
            Tls::Client(tls) => encrypt(tls.process_tls_records(&mut []), plain, outgoing),
            Tls::Server(tls) => encrypt(tls.process_tls_records(&mut []), plain, outgoing),
        }
    }

    /// The other end's certificate, and those between it and its authority.
    fn chain(&self) -> Option<&[CertificateDer<'static>]> {
        match self {
            Tls::Client(tls) => tls.peer_certificates(),
            Tls::Server(tls) => tls.peer_certificates(),
        }
    }
}

/// One step, as the status asks. How many bytes it has used up.
fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outgoing: &mut Buffer,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Violation>,
) -> (usize, Result<Step, TlsError>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Err(error) => Err(TlsError::Tls(error)),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut outcome = Ok(Step::Again);
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        if let Err(violation) = sink(record.payload) {
                            outcome = Err(violation.into());
                            break;
                        }
                    }
                    Err(error) => {
                        outcome = Err(TlsError::Tls(error));
                        break;
                    }
                }
            }
            outcome
        }
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let mut wanted = RECORD;
            loop {
                match data.encode(outgoing.room(wanted)) {
                    Ok(len) => {
                        outgoing.add(len);
                        break Ok(Step::Again);
                    }
                    Err(EncodeError::InsufficientSize(more)) => wanted = more.required_size,
                    Err(EncodeError::AlreadyEncoded) => break Ok(Step::Again),
                }
            }
        }
        // It is in `outgoing`, which is sent.
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::Ready(Ready::Handshaking)),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Ready(Ready::Open)),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Ready(Ready::Closed)),
        // No early data is allowed.
        Ok(_) => Ok(Step::Ready(Ready::Closed)),
    };
    (discard, step)
}

fn encrypt<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plain: &[u8],
    outgoing: &mut Buffer,
) -> Result<(), TlsError> {
    let mut traffic = match status.state {
        Ok(ConnectionState::WriteTraffic(traffic)) => traffic,
        Ok(_) => return Err(TlsError::Tls(rustls::Error::HandshakeNotComplete)),
        Err(error) => return Err(TlsError::Tls(error)),
    };
    let room = plain.len() + (plain.len() / RECORD + 1) * OVERHEAD;
    match traffic.encrypt(plain, outgoing.room(room)) {
        Ok(len) => {
            outgoing.add(len);
            Ok(())
        }
        Err(EncryptError::EncryptExhausted) => Err(TlsError::Tls(rustls::Error::EncryptError)),
        Err(EncryptError::InsufficientSize(_)) => Err(TlsError::Tls(rustls::Error::EncryptError)),
    }
}
