//! A connection that was accepted, with or without TLS, and the certificate that its other end has shown.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::either::Either;

use super::{ServerStream, ShownCertificate};

/// An accepted connection.
#[derive(Debug)]
pub struct AcceptedStream<S> {
    stream: Either<S, ServerStream<S>>,
    certificate: Option<ShownCertificate>,
}

impl<S> AcceptedStream<S> {
    /// One of a port without TLS.
    pub fn plain(stream: S) -> Self {
        Self { stream: Either::Left(stream), certificate: None }
    }

    pub(super) fn encrypted(stream: ServerStream<S>, certificate: Option<ShownCertificate>) -> Self {
        Self { stream: Either::Right(stream), certificate }
    }

    /// The certificate of the other end. Plain text has none.
    pub fn certificate(&self) -> Option<&ShownCertificate> {
        self.certificate.as_ref()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for AcceptedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

crate::pass_writes!(AcceptedStream, stream);
