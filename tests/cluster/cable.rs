//! A client's connections to all nodes, which can be cut: they become black holes, and no side gets an error. After `mend`, new connections
//! work; those that were cut stay cut.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use hyper_util::rt::TokioIo;
use lockkeeper::client::Connect;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tonic::transport::{Endpoint, Uri};

#[derive(Clone, Default)]
pub(crate) struct Cable {
    is_cut: Arc<AtomicBool>,
    /// Number of cuts.
    cuts: Arc<AtomicU64>,
}

impl Cable {
    pub(crate) fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
        self.is_cut.store(true, Ordering::SeqCst);
    }

    pub(crate) fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }

    /// The argument of [`lockkeeper::client::Builder::connect`].
    pub(crate) fn connect(&self) -> Connect {
        let cable = self.clone();
        Arc::new(move |endpoint: Endpoint| {
            let cable = cable.clone();
            endpoint.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| cable.clone().plug_in(uri)))
        })
    }

    async fn plug_in(self, uri: Uri) -> io::Result<TokioIo<Plugged>> {
        let address = uri.authority().map(ToString::to_string).unwrap_or_default();
        let cuts_before = self.cuts.load(Ordering::SeqCst);
        let stream = TcpStream::connect(address).await?;
        Ok(TokioIo::new(Plugged { cable: self, cuts_before, stream }))
    }
}

struct Plugged {
    cable: Cable,
    cuts_before: u64,
    stream: TcpStream,
}

impl Plugged {
    /// Polls unless the stream is cut. A cut stream is never ready again, so it registers no waker.
    fn while_whole<T>(&mut self, poll: impl FnOnce(Pin<&mut TcpStream>) -> Poll<T>) -> Poll<T> {
        let is_cut = self.cable.is_cut.load(Ordering::SeqCst);
        if is_cut || self.cable.cuts.load(Ordering::SeqCst) != self.cuts_before {
            Poll::Pending
        } else {
            poll(Pin::new(&mut self.stream))
        }
    }
}

impl AsyncRead for Plugged {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.while_whole(|stream| stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Plugged {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.while_whole(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.while_whole(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.while_whole(|stream| stream.poll_shutdown(cx))
    }
}
