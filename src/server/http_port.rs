//! A port that speaks HTTP/1.1, with TLS or without.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use http::Extensions;

use lockkeeper_http1::{ConnectionSource, HttpListen};
use lockkeeper_transport::{
    Listen, Refusals,
    tls::{AcceptedStream, Acceptor, ShownCertificate},
};

/// A connection of the port. Each request of it carries this as an extension; clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct HttpConnection {
    /// The certificate of its client, if it has shown one.
    pub(crate) certificate: Option<ShownCertificate>,
    shared: Arc<()>,
    must_close: Arc<AtomicBool>,
}

impl HttpConnection {
    fn new(certificate: Option<ShownCertificate>) -> Self {
        let shared = Arc::default();
        let must_close = Arc::default();
        Self { certificate, shared, must_close }
    }

    /// Tells this connection from others, and whether it is open, and does not keep it open.
    pub(crate) fn observe(&self) -> Weak<()> {
        Arc::downgrade(&self.shared)
    }

    /// Has the connection closed after the answer.
    pub(crate) fn finish(&self) {
        self.must_close.store(true, Relaxed);
    }

    /// Whether the connection is to be closed after the answer.
    pub(crate) fn must_finish(&self) -> bool {
        self.must_close.load(Relaxed)
    }
}

/// A listener that leaves the TLS handshake to the task of the connection, so that a slow handshake delays no other connection.
pub(crate) struct HttpPort<L> {
    pub(crate) listener: L,
    /// Without an acceptor, the port takes plain text.
    pub(crate) acceptor: Option<Acceptor>,
}

impl<L: Listen> ConnectionSource for HttpPort<L> {
    type Stream = AcceptedStream<L::Stream>;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<Self::Stream>> + Send + 'static, SocketAddr)> {
        let (stream, client) = self.listener.accept().await?;

        let acceptor = self.acceptor.clone();
        let handshake = async move {
            match acceptor {
                Some(acceptor) => acceptor.accept_any(stream).await,
                None => Ok(AcceptedStream::plain(stream)),
            }
        };
        Ok((handshake, client))
    }

    fn refusals(&self) -> Refusals {
        self.listener.refusals()
    }
}

impl<L: Listen> HttpListen for HttpPort<L> {
    fn describe(stream: &Self::Stream) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(HttpConnection::new(stream.certificate().cloned()));
        extensions
    }
}
