//! One link: a TCP proxy whose two ways can each be held up.

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

/// Bytes that are taken from a socket at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks on their way through a link. When more are coming, the sender has to wait, as on any network.
const CHUNKS_MAX: usize = 32;
/// Connections through one link. More than these wait to be accepted.
const CONNECTIONS_MAX: usize = 256;

/// What happens to the bytes that go one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Way {
    /// They pass.
    #[default]
    Open,
    /// They are held, and pass when the way opens again. The connection stays: nobody is told.
    Held,
    /// They pass late.
    Delayed {
        /// Each by this, at least.
        latency: Duration,
        /// And by up to this more. They do not overtake each other.
        jitter: Duration,
    },
}

/// What a link does now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    /// From who connects to who is connected to.
    forth: Way,
    back: Way,
    /// New connections are reset.
    refuses: bool,
    /// So often were all connections reset.
    resets: u64,
}

/// A way from one process to another, by TCP. Dropped, it takes its connections with it.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    state: watch::Sender<State>,
    _accepting: AbortOnDropHandle<()>,
}

impl Link {
    /// From this listener to that address. `seed` is for the jitter.
    pub fn new(listener: std::net::TcpListener, target: SocketAddr, seed: u64) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = TcpListener::from_std(listener)?;
        let state = watch::Sender::new(State::default());
        let random = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let accepting = tokio::spawn(accept(listener, target, state.subscribe(), random));
        Ok(Self { address, state, _accepting: AbortOnDropHandle::new(accepting) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happens to the bytes of who connects.
    pub fn set_forth(&self, way: Way) {
        self.state.send_modify(|state| state.forth = way);
    }

    /// What happens to the bytes that come back.
    pub fn set_back(&self, way: Way) {
        self.state.send_modify(|state| state.back = way);
    }

    /// Resets all connections, and from now on each new one.
    pub fn refuse(&self) {
        self.state.send_modify(|state| {
            state.refuses = true;
            state.resets += 1;
        });
    }

    /// Resets all connections. What was on its way is lost.
    pub fn reset(&self) {
        self.state.send_modify(|state| state.resets += 1);
    }

    /// All passes again, and what was held comes through.
    pub fn heal(&self) {
        self.state.send_modify(|state| *state = State { resets: state.resets, ..State::default() });
    }

    /// Nothing is wrong with it.
    pub fn is_whole(&self) -> bool {
        let state = *self.state.borrow();
        state == State { resets: state.resets, ..State::default() }
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, state: watch::Receiver<State>, random: Arc<Mutex<StdRng>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => _ = connections.spawn(connect(stream, target, state.clone(), Arc::clone(&random))),
                // Too many open files, say: it may pass.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(
    mut near: TcpStream,
    target: SocketAddr,
    mut state: watch::Receiver<State>,
    random: Arc<Mutex<StdRng>>,
) {
    let State { resets, refuses, .. } = *state.borrow_and_update();
    let far = if refuses { Err(io::ErrorKind::ConnectionRefused.into()) } else { TcpStream::connect(target).await };
    let Ok(mut far) = far else { return reset(&near) };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let ended_well = {
        // Not into owned halves: those say goodbye when they are dropped, and a connection that breaks does not.
        let (near_read, near_write) = near.split();
        let (far_read, far_write) = far.split();
        let forth = carry(near_read, far_write, state.clone(), |state| state.forth, Arc::clone(&random));
        let back = carry(far_read, near_write, state.clone(), |state| state.back, random);
        tokio::select! {
            ended = async { tokio::try_join!(forth, back) } => ended.is_ok(),
            _ = state.wait_for(|state| state.resets != resets) => false,
        }
    };
    if !ended_well {
        reset(&near);
        reset(&far);
    }
}

/// When it is dropped, its other end is told at once that it broke.
fn reset(stream: &TcpStream) {
    // It fails if the connection is gone already.
    let _ = stream.set_zero_linger();
}

/// Bytes of one way, and when they may arrive.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

async fn carry(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    state: watch::Receiver<State>,
    way: fn(&State) -> Way,
    random: Arc<Mutex<StdRng>>,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::try_join!(take(from, sender, state.clone(), way, random), give(to, receiver, state, way))?;
    Ok(())
}

async fn take(
    mut from: ReadHalf<'_>,
    chunks: mpsc::Sender<Chunk>,
    mut state: watch::Receiver<State>,
    way: fn(&State) -> Way,
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
    mut state: watch::Receiver<State>,
    way: fn(&State) -> Way,
) -> io::Result<()> {
    while let Some(chunk) = chunks.recv().await {
        sleep_until(chunk.due).await;
        // It may have been cut after these were taken.
        until_open(&mut state, way).await?;
        to.write_all(&chunk.bytes).await?;
    }
    // The end of what is sent is part of it, and no faster.
    until_open(&mut state, way).await?;
    to.shutdown().await
}

/// Waits until the way is not held, and says what it is then.
async fn until_open(state: &mut watch::Receiver<State>, way: fn(&State) -> Way) -> io::Result<Way> {
    let open = state.wait_for(|state| way(state) != Way::Held).await;
    open.map(|state| way(&state)).map_err(|_| io::Error::from(io::ErrorKind::ConnectionAborted))
}

fn lateness(way: Way, random: &Mutex<StdRng>) -> Duration {
    match way {
        Way::Open | Way::Held => Duration::ZERO,
        Way::Delayed { latency, jitter } => {
            let part: f64 = random.lock().expect("nothing panics while it has the random numbers").random();
            latency + jitter.mul_f64(part)
        }
    }
}

#[cfg(test)]
mod tests;
