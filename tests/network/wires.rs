//! TCP on the loopback, with names for addresses and scissors.
//!
//! A cut wire is a black hole, the worst kind of failure: nothing arrives, nothing is refused, and nobody is told.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use lockkeeper::transport::Connect;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

#[derive(Clone, Default)]
pub(crate) struct Wires(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    addresses: BTreeMap<String, SocketAddr>,
    isolated: BTreeSet<String>,
    live: Vec<(String, String, Arc<AtomicBool>)>,
}

impl Wires {
    /// The name of a node's port.
    pub(crate) fn name(node_id: u64) -> String {
        format!("node{node_id}:peer")
    }

    pub(crate) fn plug(&self, node_id: u64, address: SocketAddr) {
        self.state().addresses.insert(Self::name(node_id), address);
    }

    /// The connector of a node.
    pub(crate) fn end(&self, node_id: u64) -> End {
        End { name: Self::name(node_id), wires: self.clone() }
    }

    /// Cuts all wires to and from a node.
    pub(crate) fn isolate(&self, node_id: u64) {
        let name = Self::name(node_id);
        let mut state = self.state();
        state.live.retain(|(from, to, cut)| {
            let concerned = *from == name || *to == name;
            cut.fetch_or(concerned, Ordering::Relaxed);
            !concerned
        });
        state.isolated.insert(name);
    }

    /// Lets new wires be laid to and from a node.
    pub(crate) fn heal(&self, node_id: u64) {
        self.state().isolated.remove(&Self::name(node_id));
    }

    /// How many wires lie from one node to another. A wire that is gone has let go of its flag.
    pub(crate) fn laid(&self, from: u64, to: u64) -> usize {
        let (from, to) = (Self::name(from), Self::name(to));
        let mut state = self.state();
        state.live.retain(|(_, _, cut)| Arc::strong_count(cut) > 1);
        state.live.iter().filter(|wire| wire.0 == from && wire.1 == to).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics with the lock held")
    }
}

/// One node's end of the wires.
#[derive(Clone)]
pub(crate) struct End {
    name: String,
    wires: Wires,
}

impl Connect for End {
    type Stream = Wire;

    async fn connect(&self, address: &str) -> io::Result<Wire> {
        let target = {
            let state = self.wires.state();
            let isolated = state.isolated.contains(&self.name) || state.isolated.contains(address);
            state.addresses.get(address).copied().filter(|_| !isolated)
        };
        // Of a black hole one does not hear that nobody is there.
        let Some(target) = target else { return std::future::pending().await };
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        let cut = Arc::new(AtomicBool::new(false));
        self.wires.state().live.push((self.name.clone(), address.into(), cut.clone()));
        Ok(Wire { stream, cut })
    }
}

pub(crate) struct Wire {
    stream: TcpStream,
    cut: Arc<AtomicBool>,
}

impl Wire {
    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if this.is_cut() {
            // Whatever came is lost; nothing more will.
            buffer.set_filled(filled);
            return Poll::Pending;
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_cut() {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
