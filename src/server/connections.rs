//! Counts the connections of each port, whatever protocol the port speaks.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, ReadBuf};

pub(crate) use lockkeeper_metrics::MeteredPort as CountedPort;
use lockkeeper_metrics::{Metrics, OpenConnection};
use lockkeeper_transport::{Listen, Refusals, pass_writes};

/// A listener whose connections are counted.
#[derive(Debug)]
pub(crate) struct Counted<L> {
    listener: L,
    port: CountedPort,
    metrics: Metrics,
}

impl<L> Counted<L> {
    pub(crate) fn new(listener: L, port: CountedPort, metrics: &Metrics) -> Self {
        Self { listener, port, metrics: metrics.clone() }
    }
}

impl<L: Listen> Listen for Counted<L> {
    type Stream = CountedStream<L::Stream>;

    async fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)> {
        let (stream, remote) = self.listener.accept().await?;
        Ok((CountedStream { stream, _open: self.metrics.connected(self.port) }, remote))
    }

    fn refusals(&self) -> Refusals {
        let metrics = self.metrics.clone();
        let port = self.port;
        Refusals::told_to(Arc::new(move || metrics.refused_connection(port)))
    }
}

/// A connection that counts as open until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedStream<S> {
    stream: S,
    _open: OpenConnection,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

pass_writes!(CountedStream, stream);
