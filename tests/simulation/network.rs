//! The simulated network: turmoil replaces TCP.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::{Channel, Endpoint, Uri};
use turmoil::net::TcpStream;

/// The ports on which nodes listen for clients and for peers.
pub(crate) const CLIENT_PORT: u16 = 7101;
pub(crate) const PEER_PORT: u16 = 7201;

/// Gates hold back one direction of a connection, in the socket of its opener. turmoil can only hold all messages between two hosts;
/// delayed answers with undelayed requests, or the reverse, are another fault.
#[derive(Clone, Default, Debug)]
pub(crate) struct Gates(Arc<Mutex<BTreeMap<Hosts, Arc<Mutex<Gate>>>>>);

/// From the opener of connections to the one that accepts them.
type Hosts = (String, String);

/// What it holds back.
#[derive(Default, Debug)]
pub(crate) struct Gate {
    /// Hold data from the opener of the connections.
    requests: bool,
    /// Hold the answers to the opener.
    answers: bool,
    wakers: Vec<Waker>,
}

/// A direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Requests,
    Answers,
}

impl Gates {
    /// The gate of the connections that `from` opens to `to`.
    pub(crate) fn between(&self, from: &str, to: &str) -> Arc<Mutex<Gate>> {
        let mut gates = self.0.lock().expect("nothing panics while it has the gates");
        Arc::clone(gates.entry((from.to_owned(), to.to_owned())).or_default())
    }

    /// Holds or releases this direction of the connections that `from` opened to `to`.
    pub(crate) fn hold(&self, from: &str, to: &str, way: Way, hold: bool) {
        let gate = self.between(from, to);
        let mut gate = gate.lock().expect("nothing panics while it has a gate");
        match way {
            Way::Requests => gate.requests = hold,
            Way::Answers => gate.answers = hold,
        }
        gate.wakers.drain(..).for_each(Waker::wake);
    }
}

/// A connection, through its gate.
#[derive(Debug)]
pub(crate) struct Line {
    stream: TcpStream,
    gate: Arc<Mutex<Gate>>,
}

impl Line {
    pub(crate) fn new(stream: TcpStream, gate: Arc<Mutex<Gate>>) -> Self {
        Self { stream, gate }
    }

    fn must_wait(&self, way: Way, context: &Context<'_>) -> bool {
        let mut gate = self.gate.lock().expect("nothing panics while it has a gate");
        let waits = match way {
            Way::Requests => gate.requests,
            Way::Answers => gate.answers,
        };
        if waits {
            gate.wakers.push(context.waker().clone());
        }
        waits
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.must_wait(Way::Answers, context) {
            Poll::Pending
        } else {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.must_wait(Way::Requests, context) {
            Poll::Pending
        } else {
            Pin::new(&mut self.stream).poll_write(context, bytes)
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A client's channel to a node.
pub(crate) fn dial(endpoint: Endpoint) -> Channel {
    dial_unless(endpoint, Arc::default())
}

/// The same for a client that opens no connections while it is cut off.
pub(crate) fn dial_unless(endpoint: Endpoint, is_cut_off: Arc<AtomicBool>) -> Channel {
    let connect = move |uri: Uri| {
        let is_cut_off = is_cut_off.load(Ordering::Relaxed);
        async move {
            let authority = uri.authority().ok_or(io::ErrorKind::InvalidInput)?;
            if is_cut_off {
                return Err(io::ErrorKind::NetworkUnreachable.into());
            }
            open(authority.as_str()).await.map(TokioIo::new)
        }
    };
    endpoint.connect_with_connector_lazy(tower::service_fn(connect))
}

/// The members behind the clients' endpoints. A process has one simulation.
static SEATED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// An endpoint of clients: a fixed name, behind which there is a member, as with names in DNS.
pub(crate) fn seat_address(seat: u64) -> String {
    format!("seat{seat}:{CLIENT_PORT}")
}

/// The same for the port at which nodes forward requests to each other.
pub(crate) fn peer_seat_address(seat: u64) -> String {
    format!("seat{seat}:{PEER_PORT}")
}

/// Opens a connection to an endpoint of clients.
pub(crate) async fn open(address: &str) -> io::Result<TcpStream> {
    TcpStream::connect(behind(address)).await
}

/// Sets the members behind the clients' endpoints: connections that are opened from now on reach them.
pub(crate) fn seat(members: &[u64]) {
    *SEATED.lock().expect("nothing panics while it has the seats") = members.to_vec();
}

/// The member behind a seat, for connections that are opened from now on.
pub(crate) fn seated(seat: u64) -> Option<u64> {
    let seated = SEATED.lock().expect("nothing panics while it has the seats");
    (!seated.is_empty()).then(|| seated[seat as usize % seated.len()])
}

/// The address behind an endpoint of clients. Other addresses stay as they are.
fn behind(address: &str) -> String {
    let parts = address.strip_prefix("seat").and_then(|rest| rest.split_once(':'));
    let seat = parts.and_then(|(seat, port)| Some((seat.parse::<u64>().ok()?, port)));
    let node = seat.and_then(|(seat, port)| Some((seated(seat)?, port)));
    node.map_or_else(|| address.to_owned(), |(node, port)| format!("{}:{port}", node_host(node)))
}

/// The name of a node's host.
pub(crate) fn node_host(node: u64) -> String {
    format!("node{node}")
}

/// A node's address for clients.
pub(crate) fn client_address(node: u64) -> String {
    format!("{}:{CLIENT_PORT}", node_host(node))
}

/// A node's address for its peers.
pub(crate) fn peer_address(node: u64) -> String {
    format!("{}:{PEER_PORT}", node_host(node))
}
