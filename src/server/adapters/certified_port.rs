//! A port whose connections have the identity of their certificate: for protocols whose clients show no token with each request.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use lockkeeper_accept::{ConnectionSource, Refusals};
use lockkeeper_transport::{
    Listen, pass_writes,
    tls::{AcceptedStream, Acceptor},
};

use crate::{access::Access, api::Caller};

/// A listener that leaves the TLS handshake to the task of the connection.
pub(super) struct CertifiedPort<L> {
    pub(super) listener: L,
    /// Without an acceptor, the port takes plain text.
    pub(super) acceptor: Option<Acceptor>,
    pub(super) access: Arc<Access>,
}

/// A connection, and the identity that its certificate proves.
pub(super) struct CertifiedStream<S> {
    stream: AcceptedStream<S>,
    access: Arc<Access>,
    /// Whom the certificate proves.
    caller: Caller,
}

impl<S> CertifiedStream<S> {
    /// The identity, and what returns once the certificate counts no more: the connection has to be closed then. A certificate of an
    /// earlier cluster proves none.
    pub(super) fn proven(&self) -> Option<(String, BoxFuture<'static, ()>)> {
        let name = self.caller.identity.as_ref()?.as_str().to_owned();
        let withdrawn = Arc::clone(&self.access).withdrawn(self.caller.clone());
        Some((name, withdrawn.map(drop).boxed()))
    }
}

impl<L: Listen> ConnectionSource for CertifiedPort<L> {
    type Stream = CertifiedStream<L::Stream>;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<Self::Stream>> + Send + 'static, SocketAddr)> {
        let (stream, client) = self.listener.accept().await?;

        let acceptor = self.acceptor.clone();
        let access = Arc::clone(&self.access);
        let handshake = async move {
            let stream = match acceptor {
                Some(acceptor) => acceptor.accept_any(stream).await?,
                None => AcceptedStream::plain(stream),
            };

            let identity = access.certificate_identity(stream.certificate());
            // A certificate of an earlier cluster proves nothing here.
            let (identity, is_of_earlier) = identity.map_err(|error| io::Error::other(error.message))?;
            let identity = identity.filter(|_| !is_of_earlier);
            let certificate = stream.certificate().filter(|_| identity.is_some()).cloned();
            Ok(CertifiedStream { stream, access, caller: Caller { identity, certificate, ..Caller::default() } })
        };
        Ok((handshake, client))
    }

    fn refusals(&self) -> Refusals {
        self.listener.refusals()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for CertifiedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

pass_writes!(CertifiedStream, stream);
