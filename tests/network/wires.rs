//! TCP on the loopback, with names for addresses, and with faults.
//!
//! A wire is one connection. A cut wire is a black hole: no data arrive, and neither side gets an error. A held wire loses nothing: data
//! wait in a socket, in one direction or both, until the wire is released.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use lockkeeper::transport::Connector;
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
    gates: BTreeMap<(String, String), Arc<Gate>>,
}

/// Holds the data on all wires that one node opened to another.
#[derive(Default)]
struct Gate(Mutex<Held>);

#[derive(Default)]
struct Held {
    requests: bool,
    answers: bool,
    wakers: Vec<Waker>,
    /// Number of wires on which a request follows `LARGE` bytes of requests and is held.
    large_and_waiting: usize,
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

    /// Allows new wires to and from a node.
    pub(crate) fn heal(&self, node_id: u64) {
        self.state().isolated.remove(&Self::name(node_id));
    }

    /// While `hold`, requests wait on the wires that `from` opened to `to`.
    pub(crate) fn hold_requests(&self, from: u64, to: u64, hold: bool) {
        self.gate(&Self::name(from), &Self::name(to)).change(|held| held.requests = hold);
    }

    /// While `hold`, answers wait on the wires that `from` opened to `to`.
    pub(crate) fn hold_answers(&self, from: u64, to: u64, hold: bool) {
        self.gate(&Self::name(from), &Self::name(to)).change(|held| held.answers = hold);
    }

    /// Whether a request from `from` to `to` is held on a wire that carried a large request before.
    pub(crate) fn holds_something_after_a_large_request(&self, from: u64, to: u64) -> bool {
        self.gate(&Self::name(from), &Self::name(to)).held().large_and_waiting > 0
    }

    fn gate(&self, from: &str, to: &str) -> Arc<Gate> {
        Arc::clone(self.state().gates.entry((from.into(), to.into())).or_default())
    }

    /// Number of wires from one node to another. A closed wire has dropped its flag.
    pub(crate) fn laid(&self, from: u64, to: u64) -> usize {
        let from = Self::name(from);
        let to = Self::name(to);
        let mut state = self.state();
        state.live.retain(|(_, _, cut)| Arc::strong_count(cut) > 1);
        state.live.iter().filter(|wire| wire.0 == from && wire.1 == to).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics with the lock held")
    }
}

impl Gate {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().expect("no code panics with the lock held")
    }

    fn change(&self, change: impl FnOnce(&mut Held)) {
        let mut held = self.held();
        change(&mut held);
        held.wakers.drain(..).for_each(Waker::wake);
    }

    /// Whether data must wait. If so, the task is woken at the next change.
    fn holds(&self, context: &Context<'_>, what: impl FnOnce(&mut Held) -> bool) -> bool {
        let mut held = self.held();
        let holds = what(&mut held);
        if holds {
            held.wakers.push(context.waker().clone());
        }
        holds
    }
}

/// One node's end of the wires.
#[derive(Clone)]
pub(crate) struct End {
    name: String,
    wires: Wires,
}

impl Connector for End {
    type Stream = Wire;

    async fn connect(&self, address: &str) -> io::Result<Wire> {
        let target = {
            let state = self.wires.state();
            let isolated = state.isolated.contains(&self.name) || state.isolated.contains(address);
            state.addresses.get(address).copied().filter(|_| !isolated)
        };
        // A connection attempt to a black hole gets no error.
        let Some(target) = target else { return std::future::pending().await };
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        let cut = Arc::new(AtomicBool::new(false));
        self.wires.state().live.push((self.name.clone(), address.into(), cut.clone()));
        let gate = self.wires.gate(&self.name, address);
        Ok(Wire { stream, cut, gate, written: 0, is_waiting: false })
    }
}

pub(crate) struct Wire {
    stream: TcpStream,
    cut: Arc<AtomicBool>,
    gate: Arc<Gate>,
    written: usize,
    is_waiting: bool,
}

/// Bytes sent on a wire from which it has carried a large request; heartbeats stay far below.
const LARGE: usize = 1 << 20;

impl Wire {
    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.gate.holds(context, |held| held.answers) {
            return Poll::Pending;
        }
        let filled = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if this.is_cut() {
            // Received data are discarded, and no more arrive.
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
        let is_large = this.written >= LARGE;
        let was_waiting = this.is_waiting;
        this.is_waiting = this.gate.holds(context, |held| {
            if is_large && held.requests && !was_waiting {
                held.large_and_waiting += 1;
            }
            held.requests
        });
        if this.is_waiting {
            return Poll::Pending;
        }
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = &written {
            this.written += bytes;
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
