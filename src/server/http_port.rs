//! A port that speaks HTTP/1.1, with TLS or without.

use std::{future::Future, io, net::SocketAddr};

use http::Extensions;

use lockkeeper_http1::{ConnectionSource, HttpListen};
use lockkeeper_transport::{
    Listen, Refusals,
    tls::{AcceptedStream, Acceptor, ShownCertificate},
};

/// A connection's certificate, if it has one. Each request of the connection carries it as an extension.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionCertificate(pub(crate) Option<ShownCertificate>);

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
        extensions.insert(ConnectionCertificate(stream.certificate().cloned()));
        extensions
    }
}
