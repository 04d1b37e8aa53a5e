//! The connections of a node: they can be cut, and they can freeze.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::watch,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// A connection of a node.
pub(crate) struct Socket {
    stream: TcpStream,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    frozen: watch::Receiver<bool>,
    /// Ends when the node thaws.
    thawed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Socket {
    /// A connection that breaks with `cut`, and stands still while `frozen` is true.
    pub(crate) fn new(stream: TcpStream, cut: CancellationToken, frozen: watch::Receiver<bool>) -> Self {
        Self { stream, cut: Box::pin(cut.cancelled_owned()), frozen, thawed: None }
    }

    /// Whether it may go on: an error if it was cut, pending while it is frozen.
    fn poll_free(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if self.thawed.is_none() && !*self.frozen.borrow() {
            return Poll::Ready(Ok(()));
        }

        let mut frozen = self.frozen.clone();
        let thawed = self.thawed.get_or_insert_with(|| {
            // An error means that the cluster is gone.
            Box::pin(async move { drop(frozen.wait_for(|frozen| !frozen).await) })
        });
        if thawed.as_mut().poll(context).is_ready() {
            self.thawed = None;
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_free(context))?;
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_free(context))?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_free(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Socket {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
