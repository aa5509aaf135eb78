//! A plain rustls connection over TCP: the version, the provider and the certificates that the helpers have, and so the same cipher.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};

use super::hosts::{Directory, NAMES};
use super::work::{End, Link};

/// Bytes that are asked of the socket at once: without it, rustls asks for 4 KiB.
const READ: usize = 128 << 10;

pub struct Pipe {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Pipe {
    pub fn new(directory: &Directory) -> anyhow::Result<Pipe> {
        let file = |name: &str| directory.path().join(name);
        let own = |name: &str| {
            let chain = vec![CertificateDer::from_pem_file(file(&format!("{name}.pem")))?];
            anyhow::Ok((chain, PrivateKeyDer::from_pem_file(file(&format!("{name}.key")))?))
        };
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file("authority.pem"))?)?;
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
        let [client, server] = NAMES;
        let (chain, key) = own(server)?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        let (chain, key) = own(client)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        Ok(Pipe { client: Arc::new(client), server: Arc::new(server) })
    }
}

impl Link for Pipe {
    fn connect(&mut self, _: bool) -> anyhow::Result<[Box<dyn End>; 2]> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let from = TcpStream::connect(listener.local_addr()?)?;
        let (to, _) = listener.accept()?;
        let client = ClientConnection::new(self.client.clone(), NAMES[1].try_into()?)?;
        let server = ServerConnection::new(self.server.clone())?;
        let (mut from, mut to) = (Tls::new(from, client.into())?, Tls::new(to, server.into())?);
        std::thread::scope(|scope| {
            let greeting = scope.spawn(|| to.greet());
            from.greet()?;
            greeting.join().expect("no panic")
        })
        .context("the handshake")?;
        Ok([Box::new(from), Box::new(to)])
    }

    fn cpu_time(&self) -> anyhow::Result<Duration> {
        Ok(Duration::ZERO)
    }
}

struct Tls {
    tls: Connection,
    incoming: BufReader<TcpStream>,
    socket: TcpStream,
}

impl Tls {
    fn new(socket: TcpStream, mut tls: Connection) -> io::Result<Tls> {
        socket.set_nodelay(true)?;
        tls.set_buffer_limit(None);
        Ok(Tls { tls, incoming: BufReader::with_capacity(READ, socket.try_clone()?), socket })
    }

    fn greet(&mut self) -> io::Result<()> {
        while self.tls.is_handshaking() {
            self.tls_out()?;
            if self.tls.wants_read() && self.tls.is_handshaking() {
                self.tls_in()?;
            }
        }
        self.tls_out()
    }

    fn tls_out(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    fn tls_in(&mut self) -> io::Result<()> {
        self.tls.read_tls(&mut self.incoming)?;
        self.tls.process_new_packets().map_err(io::Error::other)?;
        Ok(())
    }
}

impl Read for Tls {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.tls_in()?,
                other => return other,
            }
        }
    }
}

impl Write for Tls {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let len = self.tls.writer().write(data)?;
        self.tls_out()?;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl End for Tls {
    fn finish(&mut self) -> anyhow::Result<()> {
        self.tls.send_close_notify();
        self.tls_out()?;
        Ok(self.socket.shutdown(Shutdown::Write)?)
    }
}
