//! A link: a TCP proxy with fault injection in each direction.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;

/// Maximum number of bytes of one read from a socket.
const CHUNK_BYTES: usize = 16 * 1024;
/// Maximum number of chunks in flight in one direction. Beyond it, backpressure stops the sender.
const CHUNKS_MAX: usize = 32;
/// Maximum number of concurrent connections of one link. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 256;

/// The state of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// Data pass.
    #[default]
    Open,
    /// Data are held, and pass when the direction opens again. The connection stays open and no error is reported.
    Held,
    /// Data pass late.
    Delayed {
        /// Minimum delay of each chunk.
        latency: Duration,
        /// Maximum additional delay. Chunks are not reordered.
        jitter: Duration,
    },
}

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LinkState {
    /// The direction from the connecting side.
    forward: Direction,
    backward: Direction,
    /// Whether new connections are reset.
    refuses: bool,
    /// Number of times that all connections were reset.
    resets: u64,
}

/// A TCP link from one process to another. Drop closes its connections.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    state: watch::Sender<LinkState>,
    _accepting: AbortOnDropHandle<()>,
}

impl Link {
    /// Makes a link from this listener to that address. `seed` is for the jitter.
    pub fn new(listener: std::net::TcpListener, target: SocketAddr, seed: u64) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = TcpListener::from_std(listener)?;
        let state = watch::Sender::new(LinkState::default());
        let random = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let accepting = tokio::spawn(accept(listener, target, state.subscribe(), random));
        Ok(Self { address, state, _accepting: AbortOnDropHandle::new(accepting) })
    }

    /// The address of its listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the direction from the connecting side.
    pub fn set_forward(&self, way: Direction) {
        self.state.send_modify(|state| state.forward = way);
    }

    /// Sets the direction to the connecting side.
    pub fn set_backward(&self, way: Direction) {
        self.state.send_modify(|state| state.backward = way);
    }

    /// Resets all connections, and each new one until it is healed.
    pub fn refuse(&self) {
        self.state.send_modify(|state| {
            state.refuses = true;
            state.resets += 1;
        });
    }

    /// Resets all connections. Data in flight are lost.
    pub fn reset(&self) {
        self.state.send_modify(|state| state.resets += 1);
    }

    /// Opens both directions; held data pass.
    pub fn heal(&self) {
        self.state.send_modify(|state| *state = LinkState { resets: state.resets, ..LinkState::default() });
    }

    /// Whether the link has no fault.
    pub fn is_whole(&self) -> bool {
        let state = *self.state.borrow();
        state == LinkState { resets: state.resets, ..LinkState::default() }
    }
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    state: watch::Receiver<LinkState>,
    random: Arc<Mutex<StdRng>>,
) {
    let mut connections = JoinSet::new();

    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connect(stream, target, state.clone(), Arc::clone(&random)));
                }
                // The process may have too many open files for a moment.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(
    mut near: TcpStream,
    target: SocketAddr,
    mut state: watch::Receiver<LinkState>,
    random: Arc<Mutex<StdRng>>,
) {
    let LinkState { resets, refuses, .. } = *state.borrow_and_update();
    let far = if refuses { Err(io::ErrorKind::ConnectionRefused.into()) } else { TcpStream::connect(target).await };
    let Ok(mut far) = far else { return reset(&near) };
    let _ = near.set_nodelay(true);
    let _ = far.set_nodelay(true);

    let ended_well = {
        // Borrow the halves: owned halves shut down the connection when they are dropped, which a broken connection must not do.
        let (near_read, near_write) = near.split();
        let (far_read, far_write) = far.split();
        let forward = carry(near_read, far_write, state.clone(), |state| state.forward, Arc::clone(&random));
        let back = carry(far_read, near_write, state.clone(), |state| state.backward, random);

        tokio::select! {
            ended = async { tokio::try_join!(forward, back) } => ended.is_ok(),
            _ = state.wait_for(|state| state.resets != resets) => false,
        }
    };

    if !ended_well {
        reset(&near);
        reset(&far);
    }
}

/// Makes the drop of the stream reset the connection, so that the other end notices at once.
fn reset(stream: &TcpStream) {
    // Fails if the connection is already gone.
    let _ = stream.set_zero_linger();
}

/// Data of one direction, and their earliest delivery.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

async fn carry(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    state: watch::Receiver<LinkState>,
    way: fn(&LinkState) -> Direction,
    random: Arc<Mutex<StdRng>>,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::try_join!(take(from, sender, state.clone(), way, random), give(to, receiver, state, way))?;
    Ok(())
}

async fn take(
    mut from: ReadHalf<'_>,
    chunks: mpsc::Sender<Chunk>,
    mut state: watch::Receiver<LinkState>,
    way: fn(&LinkState) -> Direction,
    random: Arc<Mutex<StdRng>>,
) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let now = until_open(&mut state, way).await?;
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }

        let chunk = Chunk { due: Instant::now() + lateness(now, &random), bytes: bytes[..count].to_vec() };
        if chunks.send(chunk).await.is_err() {
            return Ok(());
        }
    }
}

async fn give(
    mut to: WriteHalf<'_>,
    mut chunks: mpsc::Receiver<Chunk>,
    mut state: watch::Receiver<LinkState>,
    way: fn(&LinkState) -> Direction,
) -> io::Result<()> {
    while let Some(chunk) = chunks.recv().await {
        sleep_until(chunk.due).await;
        // The direction may have been held after the chunk was read.
        until_open(&mut state, way).await?;
        to.write_all(&chunk.bytes).await?;
    }

    // The end of the stream is held and delayed like data.
    until_open(&mut state, way).await?;
    to.shutdown().await
}

/// Waits until the direction is not held, and returns its state.
async fn until_open(state: &mut watch::Receiver<LinkState>, way: fn(&LinkState) -> Direction) -> io::Result<Direction> {
    let open = state.wait_for(|state| way(state) != Direction::Held).await;
    open.map(|state| way(&state)).map_err(|_| io::Error::from(io::ErrorKind::ConnectionAborted))
}

fn lateness(way: Direction, random: &Mutex<StdRng>) -> Duration {
    match way {
        Direction::Open | Direction::Held => Duration::ZERO,
        Direction::Delayed { latency, jitter } => {
            let part: f64 = random.lock().expect("no code panics while it holds this lock").random();
            latency + jitter.mul_f64(part)
        }
    }
}

#[cfg(test)]
mod tests;
