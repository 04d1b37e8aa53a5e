//! A port that speaks HTTP/1.1, with TLS or without.

use std::{future::Future, io, net::SocketAddr, sync::Arc};

use http::Extensions;

use lockkeeper_transport::{
    Listen, Refusals,
    tls::{self, Acceptor, PlainOrTls, Subject},
};

/// Whom the certificate of a connection names; each of its requests has it.
#[derive(Clone, Debug)]
pub(crate) struct Shown(pub(crate) Option<Arc<Subject>>);

/// A listener whose handshakes are not the business of the one that accepts.
pub(crate) struct HttpPort<L> {
    pub(crate) listener: L,
    /// `None`: plain text.
    pub(crate) acceptor: Option<Acceptor>,
}

impl<L: Listen> lockkeeper_http1::Listen for HttpPort<L> {
    type Stream = PlainOrTls<L::Stream>;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<Self::Stream>> + Send + 'static, SocketAddr)> {
        let (stream, client) = self.listener.accept().await?;
        let acceptor = self.acceptor.clone();
        let handshake = async move {
            match acceptor {
                Some(acceptor) => acceptor.accept_any(stream).await,
                None => Ok(PlainOrTls::Left(stream)),
            }
        };
        Ok((handshake, client))
    }

    fn describe(stream: &Self::Stream) -> Extensions {
        let mut known = Extensions::new();
        known.insert(Shown(tls::subject(stream).map(Arc::new)));
        known
    }

    fn refusals(&self) -> Refusals {
        self.listener.refusals()
    }
}
