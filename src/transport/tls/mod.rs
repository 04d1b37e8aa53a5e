//! TLS for both ends of a connection: who is there, and that nobody else reads or changes it.
//!
//! * [`Tls`]: the certificates of one process. They are read from files, and read again when the files change.
//! * [`TlsConnector`]: opens connections to nodes. It proves who this process is, if it has a certificate.
//! * [`Acceptor`]: accepts connections, at the port of clients or at that of peers.
//! * [`ShownCertificate`]: what the other end of an accepted connection has shown, and whether it still counts.
//! * [`Subject`]: whom a certificate names. `subject` reads it, `files` the files, `verify` decides which certificate counts where.
//! * `rereading`: when the files are read again, and when what they say then is used.
//!
//! Only TLS 1.3, by rustls with *ring*. A port that asks for certificates resumes no session: each handshake verifies. A certificate
//! counts if one of the authorities in the file `ca` signed it, it has not expired, it is for that end (its extended key usage), and its
//! subject is what that end must be:
//!
//! | who asks | what the other end must be |
//! |---|---|
//! | a client, of a node | a node, with the host of its address among its names; of the client's own cluster, if the client has a certificate |
//! | a node, of a peer | the node with the expected id, of its own cluster; its host does not count, since the id says more |
//! | the port of peers | a node of the same cluster |
//! | the port of clients | nothing, a client of the same cluster, or a node of it (which may do no more than join) |
//! | a port of HTTP | nothing: no certificate is asked for |
//!
//! After a restore the cluster has another id, and its clients have certificates of the one before. A client goes on with a node whose
//! certificate says that its cluster continues the client's, and from then on with no node of its old one. The ports of clients take
//! clients of an earlier cluster if the node is told its id ([`Tls::load_accepting`]). Between nodes there is no exception.
//!
//! Deliberately absent: revocation lists. Certificates live a year at most; to withdraw one earlier, replace the authority, whose file may
//! hold the old and the new one meanwhile. Connections that were accepted by the old one end then. Those that this process has opened are
//! verified when they are opened.

mod accepted;
mod files;
mod rereading;
mod shown;
mod subject;
mod verify;

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::SystemTime,
};

use rustls::{
    CertificateError, ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime},
    server::{NoServerSessionStorage, danger::ClientCertVerifier as _},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::Instant,
};
pub use tokio_rustls::server::TlsStream as ServerStream;
use tokio_util::either::Either;

pub use self::{
    accepted::AcceptedStream,
    files::{TlsError, TlsFiles},
    shown::{ShownCertificate, WithdrawnCertificate},
    subject::Subject,
};
use self::{
    files::TlsContents,
    rereading::FileLooks,
    verify::{ClientVerifier, NodeVerifier},
};
use super::{Connector, SPEAKS_NO_TLS};

/// The protocol above TLS between nodes, and of clients: HTTP/2.
const ALPN: &[u8] = b"h2";
/// The protocol name of clients of other protocols.
const ALPN_HTTP: &[u8] = b"http/1.1";

/// The certificates of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Tls {
    shared: Arc<SharedTls>,
}

#[derive(Debug)]
struct SharedTls {
    files: TlsFiles,
    /// The cluster before a restore, whose clients the ports take.
    earlier: Option<String>,
    current: RwLock<Arc<Current>>,
    /// [`Current::generation`], for who only compares it.
    generation: AtomicU64,
    /// Tells who serves a connection that the authorities have changed.
    changes: watch::Sender<()>,
    /// When the files were read for a client last.
    looked: Mutex<Instant>,
    /// Locked while the files are read again.
    looks: Mutex<FileLooks>,
}

/// The content of the files.
#[derive(Debug)]
struct Current {
    contents: TlsContents,
    roots: Arc<RootCertStore>,
    /// How many times the authorities have changed.
    generation: u64,
    own: Option<Own>,
    /// The cluster that a client met in place of its own.
    successor: Arc<OnceLock<String>>,
    /// For each [`Port`], in this order. Without a certificate nothing can be accepted, so there are none.
    servers: Option<[PortServer; 5]>,
}

/// How a port accepts connections.
#[derive(Debug)]
struct PortServer {
    config: Arc<ServerConfig>,
    /// Verifies certificates, where they are asked for.
    verifier: Option<Arc<ClientVerifier>>,
}

/// This process's own certificate.
#[derive(Debug)]
struct Own {
    certified: Arc<CertifiedKey>,
    subject: Subject,
    expires: SystemTime,
}

/// A port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// The port for the nodes of the same cluster.
    Peers,
    /// The port for clients.
    Clients,
    /// A port for clients of other protocols over HTTP/2 or HTTP/1.1.
    EitherHttp,
    /// A port for clients of other protocols over HTTP/1.1. It asks for no certificate: clients authenticate in their requests.
    Http,
    /// The port for browsers, probes and scrapers. It asks for a client's certificate, and takes connections without one.
    Console,
}

impl Tls {
    /// Reads the files. Blocks. Fails with the name of the file, and what to do.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        Self::load_accepting(files, None)
    }

    /// The same for a node whose ports also take the certificates of clients of an earlier cluster. What these clients may do, and until
    /// when, is for the node to decide: [`Subject::cluster`] tells it from others.
    pub fn load_accepting(files: TlsFiles, earlier: Option<String>) -> Result<Self, TlsError> {
        let current = Current::from_files(&files, earlier.as_deref(), files.read()?, 0)?;
        let current = RwLock::new(Arc::new(current));
        let generation = AtomicU64::default();
        let changes = watch::Sender::default();
        let looked = Mutex::new(Instant::now());
        let looks = Mutex::default();

        Ok(Self { shared: Arc::new(SharedTls { files, earlier, current, generation, changes, looked, looks }) })
    }

    /// Reads the files again, for who knows that they are whole; `true` if they have changed. New connections use them from then on, and
    /// connections whose certificate no authority in them has signed end ([`ShownCertificate`]). After an error the old ones stay in use.
    /// Blocks.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let _alone = self.shared.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = self.shared.files.read()?;
        if contents == self.current().contents {
            return Ok(false);
        }
        self.put_in_use(contents)?;
        Ok(true)
    }

    /// Only for who holds the lock of [`SharedTls::looks`], so that two changes do not meet.
    fn put_in_use(&self, contents: TlsContents) -> Result<(), TlsError> {
        let before = self.current();
        let has_other_authorities = !contents.has_authorities_of(&before.contents);
        let generation = before.generation + u64::from(has_other_authorities);
        let files = &self.shared.files;
        let next = Current::from_files(files, self.shared.earlier.as_deref(), contents, generation)?;
        let next = next.after(&before).map_err(|what| TlsError::new(files.certificate_or_ca(), what))?;

        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        if has_other_authorities {
            self.shared.generation.store(generation, Ordering::Release);
            self.shared.changes.send_replace(());
        }
        Ok(())
    }

    /// Whom this process's certificate names.
    pub fn subject(&self) -> Option<Subject> {
        Some(self.current().own.as_ref()?.subject.clone())
    }

    /// When this process's certificate expires.
    pub fn expires(&self) -> Option<SystemTime> {
        Some(self.current().own.as_ref()?.expires)
    }

    /// Seconds until this process's certificate expires; negative: since it did.
    pub fn seconds_left(&self) -> Option<i64> {
        #[expect(clippy::disallowed_methods, reason = "certificates are valid by the calendar")]
        let now = SystemTime::now();
        let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Some(match self.expires()?.duration_since(now) {
            Ok(left) => seconds(left),
            Err(over) => -seconds(over.duration()),
        })
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.shared.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Current {
    fn from_files(
        files: &TlsFiles,
        earlier: Option<&str>,
        contents: TlsContents,
        generation: u64,
    ) -> Result<Self, TlsError> {
        let roots = Arc::new(contents.roots(files)?);
        let own = contents.own(files)?;
        let own = own.map(|(certified, subject, expires)| Own { certified: Arc::new(certified), subject, expires });

        let servers = match &own {
            Some(Own { certified, subject: Subject::Node { cluster, .. }, .. }) => {
                let server = |port| PortServer::new(files, port, certified, &roots, cluster, earlier);
                Some([
                    server(Port::Peers)?,
                    server(Port::Clients)?,
                    server(Port::EitherHttp)?,
                    server(Port::Http)?,
                    server(Port::Console)?,
                ])
            }
            Some(Own { subject: Subject::Client { .. }, .. }) | None => None,
        };
        Ok(Self { contents, roots, generation, own, successor: Arc::default(), servers })
    }

    /// Takes the place of what was in use before. Fails if its certificate names somebody else.
    ///
    /// A cluster that was restored has clients of the same names. A client that has met it knows that it continues the client's own, so
    /// there is a certificate of the same client to go on with.
    fn after(self, before: &Self) -> Result<Self, String> {
        let successor = Arc::clone(&before.successor);
        let owns = before.own.as_ref().zip(self.own.as_ref());
        let Some((was, is)) = owns.filter(|(was, is)| was.subject != is.subject) else {
            return Ok(Self { successor, ..self });
        };

        if let Subject::Client { name: before, .. } = &was.subject
            && let Subject::Client { name, cluster } = &is.subject
            && name == before
            && successor.get() == Some(cluster)
        {
            return Ok(self);
        }
        Err(format!("names {}, and the one in use {}: only a restart changes that", is.subject, was.subject))
    }

    /// How a port accepts connections. `None` without a certificate of its own.
    fn server(&self, port: Port) -> Option<&PortServer> {
        let [peers, clients, either, http, console] = self.servers.as_ref()?;
        Some(match port {
            Port::Peers => peers,
            Port::Clients => clients,
            Port::EitherHttp => either,
            Port::Http => http,
            Port::Console => console,
        })
    }

    /// Verifies a chain as a handshake at this port does: the certificate of the other end first.
    fn verify(&self, port: Port, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), rustls::Error> {
        let verifier = self.server(port).and_then(|server| server.verifier.as_ref());
        let Some((verifier, (own, between))) = verifier.zip(chain.split_first()) else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        verifier.verify_client_cert(own, between, now).map(drop)
    }

    /// A configuration that takes `expected` alone at the other end.
    fn client(&self, expected: Expected) -> io::Result<ClientConfig> {
        let subject = self.own.as_ref().map(|own| own.subject.clone());
        let verifier = NodeVerifier::new(Arc::clone(&self.roots), subject, expected, Arc::clone(&self.successor));

        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let builder = builder.map_err(io::Error::other)?.dangerous();
        // Checks all that rustls's own verifier does, except that a peer is known by its id instead of its host.
        let builder = builder.with_custom_certificate_verifier(Arc::new(verifier));

        let mut config = match &self.own {
            Some(own) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&own.certified))))
            }
            None => builder.with_no_client_auth(),
        };

        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

impl PortServer {
    fn new(
        files: &TlsFiles,
        port: Port,
        certified: &Arc<CertifiedKey>,
        roots: &Arc<RootCertStore>,
        cluster: &str,
        earlier: Option<&str>,
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let wrong = |error: rustls::Error| TlsError::new(files.certificate_or_ca(), error.to_string());
        let builder = builder.map_err(wrong)?;
        let resolver = Arc::new(SingleCertAndKey::from(Arc::clone(certified)));

        let (mut config, verifier) = match port {
            Port::Http => (builder.with_no_client_auth().with_cert_resolver(resolver), None),
            Port::Peers | Port::Clients | Port::EitherHttp | Port::Console => {
                let earlier = earlier.map(str::to_owned);
                let verifier = ClientVerifier::new(Arc::clone(roots), cluster.to_owned(), earlier, port);
                let verifier = Arc::new(verifier.map_err(|error| TlsError::new(&files.ca, error))?);
                let builder = builder.with_client_cert_verifier(Arc::clone(&verifier) as _);
                let mut config = builder.with_cert_resolver(resolver);
                // A session that is resumed has the certificate of the handshake before, which rustls does not verify again: who has
                // connected once would be let in after its certificate has expired.
                config.session_storage = Arc::new(NoServerSessionStorage {});
                config.send_tls13_tickets = 0;
                (config, Some(verifier))
            }
        };

        config.alpn_protocols = match port {
            Port::Peers | Port::Clients => vec![ALPN.to_vec()],
            Port::EitherHttp => vec![ALPN.to_vec(), ALPN_HTTP.to_vec()],
            Port::Http | Port::Console => vec![ALPN_HTTP.to_vec()],
        };
        Ok(Self { config: Arc::new(config), verifier })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Who must be at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    /// A node that has the host of the address among its names.
    Host,
    /// A node of this process's own cluster.
    AnyNode,
    /// The cluster's node with this id.
    Node(u64),
    /// Anyone: an attacker checks nothing.
    #[cfg(test)]
    Blind,
}

/// Opens connections with TLS over those of `C`.
#[derive(Clone, Debug)]
pub struct TlsConnector<C> {
    inner: C,
    /// The TLS to use. Without it, the connection is plain text.
    tls: Option<Tls>,
    expected: Expected,
}

impl<C> TlsConnector<C> {
    /// The connector of a client, which knows a node by the host of its address. Changed files are read before it connects.
    pub fn for_client(inner: C, tls: Tls) -> Self {
        Self { inner, tls: Some(tls), expected: Expected::Host }
    }

    /// The connector of a node, which knows its peers by the cluster and the ids in their certificates. Without `tls`, it is plain text.
    pub fn for_node(inner: C, tls: Option<Tls>) -> Self {
        Self { inner, tls, expected: Expected::AnyNode }
    }
}

impl<C: Connector> Connector for TlsConnector<C> {
    type Stream = Either<C::Stream, ClientStream<C::Stream>>;

    async fn connect(&self, address: &str) -> io::Result<Self::Stream> {
        // A node's own files are followed by a task of it.
        if let Some(tls) = self.tls.as_ref().filter(|_| self.expected == Expected::Host) {
            tls.look_before_connecting().await;
        }

        let stream = self.inner.connect(address).await?;
        let Some(tls) = &self.tls else { return Ok(Either::Left(stream)) };
        let config = tls.current().client(self.expected)?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = server_name(address).map_err(|invalid| io::Error::new(io::ErrorKind::InvalidInput, invalid))?;
        let stream = connector.connect(name, stream).await.map_err(explained)?;
        Ok(Either::Right(ClientStream(stream)))
    }

    fn to_node(&self, id: u64) -> Self {
        Self { expected: Expected::Node(id), ..self.clone() }
    }
}

/// The host of an address host:port.
fn server_name(address: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    ServerName::try_from(host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

/// A connection to a node. In TLS 1.3 the other end refuses a certificate after the handshake: then reading fails, and says so.
#[derive(Debug)]
pub struct ClientStream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(context, buffer).map_err(explained)
    }
}

crate::pass_writes!(ClientStream, 0);

/// Errors of TLS that have a usual cause, with that cause.
fn explained(error: io::Error) -> io::Error {
    use rustls::{AlertDescription as Alert, Error as E, InvalidMessage};
    let Some(cause) = error.get_ref().and_then(|inner| inner.downcast_ref::<E>()) else { return error };
    if let E::InvalidCertificate(CertificateError::Other(wrong)) = cause {
        return io::Error::new(error.kind(), wrong.0.to_string());
    }

    let hints = [
        (E::InvalidMessage(InvalidMessage::InvalidContentType), SPEAKS_NO_TLS),
        (E::AlertReceived(Alert::UnknownCA), "the other end does not trust the authority that signed this certificate"),
        (E::AlertReceived(Alert::CertificateRequired), "the other end asks for a certificate: name one with its key"),
        (
            E::AlertReceived(Alert::CertificateExpired),
            "this certificate has expired: make another one with `lockkeeper certs`",
        ),
        (
            E::AlertReceived(Alert::CertificateUnknown),
            "the other end refuses this certificate: it names another cluster, such as the one before a restore, or a client where a node \
             is wanted; `lockkeeper certs` makes another one",
        ),
        (
            E::AlertReceived(Alert::UnsupportedCertificate),
            "the other end refuses this certificate: it is for the other end of a connection",
        ),
    ];

    let Some((_, hint)) = hints.into_iter().find(|(known, _)| known == cause) else { return error };
    io::Error::new(error.kind(), format!("{cause}: {hint}"))
}

/// Accepts connections at a port.
#[derive(Clone, Debug)]
pub struct Acceptor {
    tls: Tls,
    port: Port,
    /// The runtime for handshakes, if it is not the one that serves the port.
    #[cfg(feature = "serve")]
    runtime: Option<tokio::runtime::Handle>,
}

impl Acceptor {
    /// Fails if there is no certificate, or one that does not name a node.
    pub fn new(tls: Tls, port: Port) -> Result<Self, TlsError> {
        match tls.current().servers {
            Some(_) => Ok(Self {
                tls,
                port,
                #[cfg(feature = "serve")]
                runtime: None,
            }),
            None => {
                let what = match tls.subject() {
                    Some(subject) => {
                        format!("names {subject}, which accepts no connections: name a node's certificate")
                    }
                    None => "is not set: a node needs one, which `lockkeeper certs node` makes".to_owned(),
                };
                Err(TlsError::new(tls.shared.files.certificate_or_ca(), what))
            }
        }
    }

    /// The handshake, for a port of another protocol than gRPC. Needs a time limit of the caller's. Cancel safe: the connection is closed.
    pub async fn accept_any<S>(&self, stream: S) -> io::Result<AcceptedStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (stream, certificate) = self.accept(stream).await?;
        Ok(AcceptedStream::encrypted(stream, certificate))
    }

    /// The same, with its handshakes on this runtime, which must outlive the port. A handshake computes for a good part of a
    /// millisecond, and anyone may begin one: on the runtime that serves the port, many would delay what is served there.
    #[cfg(feature = "serve")]
    #[must_use]
    pub fn on(self, runtime: tokio::runtime::Handle) -> Self {
        Self { runtime: Some(runtime), ..self }
    }

    #[cfg(feature = "serve")]
    pub(super) fn runtime(&self) -> Option<&tokio::runtime::Handle> {
        self.runtime.as_ref()
    }

    /// The handshake. Needs a time limit of the caller's. Cancel safe: the connection is closed.
    pub(super) async fn accept<S>(&self, stream: S) -> io::Result<(ServerStream<S>, Option<ShownCertificate>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let current = self.tls.current();
        let server = current.server(self.port).ok_or_else(|| io::Error::other("no certificate"))?;
        // Before the handshake, so that no certificate which it finds good has expired by then.
        let accepted = UnixTime::now();
        let stream = tokio_rustls::TlsAcceptor::from(Arc::clone(&server.config)).accept(stream).await?;

        let chain = stream.get_ref().1.peer_certificates();
        let shown = ShownCertificate::new(&self.tls, self.port, current.generation, accepted, chain);
        let shown = shown.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok((stream, shown))
    }
}

#[cfg(test)]
mod tests;
