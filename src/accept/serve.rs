//! The loop of a port: accepts connections, and gives each of them a slot and a task.
//!
//! The caller brings the protocol of the connections and the listener: a port has TLS or not, and a simulation has its own network. A
//! handshake runs in the task of its connection, so that one client delays no other.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{JoinSet, yield_now},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{ReadState, Refusals, Slot, Slots};

/// Time that connections have to end when the port stops.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(5);
/// Arrivals have half of all slots, and this many at the most. It is a larger part than at the ports of gRPC: probes, and clients that ask
/// once, are among them.
const ARRIVALS_MAX: usize = 256;

/// A source of connections. The part of an accept that takes time, such as a handshake, is a future of its own.
pub trait ConnectionSource: Send + 'static {
    /// A connection that can be served.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection and its client's address. Dropping the future loses none.
    fn accept(
        &mut self,
    ) -> impl Future<Output = io::Result<(impl Future<Output = io::Result<Self::Stream>> + Send + 'static, SocketAddr)>> + Send;

    /// The receiver of reports about connections that are refused because no slot is free.
    fn refusals(&self) -> Refusals {
        Refusals::default()
    }
}

impl ConnectionSource for TcpListener {
    type Stream = TcpStream;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<TcpStream>> + Send + 'static, SocketAddr)> {
        let (stream, client) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((std::future::ready(Ok(stream)), client))
    }
}

/// What a port accepts.
#[derive(Clone, Copy, Debug)]
pub struct AcceptLimits {
    /// Connections at a time: half of them, at most 256, for those without a request.
    pub connections_max: usize,
    /// Time for the handshake.
    pub handshake_timeout: Duration,
    /// Whether a new connection is refused while all slots have a request under way and no address has more than half of them: see
    /// [`Slots::refusing_nobody`].
    pub refuses: bool,
    /// Whether connections that come all at once wait for each other: see [`Slots`]. For clients that stay connected, and
    /// come together when another node dies. Others, such as probes, wait for nobody.
    pub settles_arrivals: bool,
}

/// An accepted connection whose handshake is complete.
#[derive(Debug)]
pub struct AcceptedConnection<S> {
    /// Its bytes.
    pub stream: S,
    /// The address of its client.
    pub client: SocketAddr,
    /// Its slot, which it has until it was served.
    pub slot: Arc<Slot>,
    /// Cancelled when the port stops.
    pub stopping: CancellationToken,
}

/// Accepts connections until `stopping` is cancelled, and then gives those that are open 5 s to end. `serve` has each connection whose
/// handshake succeeds, in the connection's task; what it returns must end soon after `stopping`, and when its slot says so.
///
/// Never fails: an error of one connection does not affect others. Dropping the future closes all connections.
pub async fn serve_connections<L, F, C>(mut source: L, limits: AcceptLimits, stopping: CancellationToken, serve: F)
where
    L: ConnectionSource,
    F: Fn(AcceptedConnection<L::Stream>) -> C + Clone + Send + 'static,
    C: Future<Output = ()> + Send + 'static,
{
    let AcceptLimits { connections_max, handshake_timeout, refuses, settles_arrivals } = limits;
    let arrivals_max = (connections_max / 2).min(ARRIVALS_MAX);
    let slots = if refuses {
        Slots::with_arrivals(arrivals_max, connections_max, source.refusals())
    } else {
        Slots::refusing_nobody(arrivals_max, connections_max)
    };

    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = async {
                if settles_arrivals {
                    slots.settle_arrivals().await;
                }
                source.accept().await
            } => accepted,
        };
        let (handshake, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                slots.note_failed_accept(&error).await;
                continue;
            }
        };

        let slot_guard = slots.admit(client.ip(), ReadState::new(usize::MAX));
        let serve = serve.clone();
        let stopping = stopping.clone();
        connections.spawn(async move {
            let slot = Arc::clone(&slot_guard.0);
            let handshake = tokio::select! {
                handshake = timeout(handshake_timeout, handshake) => handshake,
                () = slot.must_end() => return,
            };
            if let Ok(Ok(stream)) = handshake {
                serve(AcceptedConnection { stream, client, slot, stopping }).await;
            }
            drop(slot_guard);
        });
        // Each connection has a turn before the next one is accepted: a request that is there already is read before a flood of arrivals
        // can displace it.
        yield_now().await;
    }

    drop(source);
    let _ = timeout(CLOSING_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, future::pending};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        time::sleep,
    };

    use super::*;

    /// Slots of arrivals: half of them all.
    const ARRIVALS: usize = 8;
    const LIMITS: AcceptLimits = AcceptLimits {
        connections_max: 2 * ARRIVALS,
        handshake_timeout: Duration::from_secs(5),
        refuses: true,
        settles_arrivals: true,
    };

    /// Connections that wait to be accepted. Each takes some time before its first request is read.
    struct Queue(VecDeque<DuplexStream>);

    impl ConnectionSource for Queue {
        type Stream = DuplexStream;

        async fn accept(
            &mut self,
        ) -> io::Result<(impl Future<Output = io::Result<DuplexStream>> + Send + 'static, SocketAddr)> {
            let Some(stream) = self.0.pop_front() else { return pending().await };
            let handshake = async {
                sleep(Duration::from_millis(10)).await;
                Ok(stream)
            };
            Ok((handshake, ([10, 0, 0, 1], 1).into()))
        }
    }

    /// As after the death of another node, whose clients come all at once.
    #[tokio::test(start_paused = true)]
    async fn clients_that_come_together_do_not_displace_each_other() {
        let (mut clients, queue): (Vec<_>, VecDeque<_>) = (0..ARRIVALS * 10).map(|_| duplex(1)).unzip();
        let stopping = CancellationToken::new();
        let echo = |AcceptedConnection { mut stream, slot, .. }: AcceptedConnection<DuplexStream>| async move {
            let Ok(byte) = stream.read_u8().await else { return };
            let _call = slot.call().expect("there is room");
            let _ = stream.write_u8(byte).await;
        };
        let serving = tokio::spawn(serve_connections(Queue(queue), LIMITS, stopping.clone(), echo));

        for client in &mut clients {
            client.write_u8(7).await.expect("it is open");
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.read_u8().await.ok(), Some(7), "the client {number}");
        }
        stopping.cancel();
        serving.await.expect("it ends");
    }
}
