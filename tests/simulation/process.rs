//! A node's process: a tokio runtime of its own, which the simulation drives between two steps of the network.
//!
//! turmoil runs each host on a runtime, too, but every host at the same rate, and none of them can stand still. So a turmoil host is only
//! the node's *machine*: it has the sockets, as a kernel has. The process reaches them through pipes. That gives it what real processes
//! have:
//!
//! * **a clock of its own**: its runtime gets some milliseconds more or fewer than the network;
//! * **time that passes while it computes**: a thread that is busy runs no task and sends no heartbeat; what arrives meanwhile waits in the
//!   sockets. When it goes on, all timers that are due fire late.
//!
//! How long an apply takes is not measured, which would differ from run to run: it costs its units of work, at a price that the seed draws.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper::transport::{Connector, Listen};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, copy, duplex, split},
    runtime::{Builder, Runtime},
    sync::{mpsc, oneshot},
    task::{JoinHandle, LocalSet},
    time::{advance, sleep},
};
use turmoil::net::{TcpListener, TcpStream};

use crate::network::{Gates, Line, node_host};

/// One step of a process, as of the network.
const TICK: Duration = Duration::from_millis(1);
/// Bytes of a pipe in each direction, as of a socket's buffer.
const PIPE_BYTES: usize = 64 << 10;
/// Connections that wait to be accepted, or to be opened.
const BACKLOG: usize = 1_024;

/// A connection that was accepted, and who opened it.
type Accepted = (DuplexStream, SocketAddr);

/// What a process asks its machine for: a connection to this address.
struct Dialed {
    address: String,
    stream: oneshot::Sender<io::Result<DuplexStream>>,
}

/// The machine's side of the sockets.
pub(crate) struct Machinery {
    ports: BTreeMap<u16, mpsc::Sender<Accepted>>,
    dialed: mpsc::Receiver<Dialed>,
}

/// The process's side of the sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    ports: BTreeMap<u16, mpsc::Receiver<Accepted>>,
    dialer: Dialer,
}

/// Both sides of new sockets.
pub(crate) fn sockets(ports: &[u16]) -> (Machinery, Sockets) {
    let (dial, dialed) = mpsc::channel(BACKLOG);
    let mut machinery = Machinery { ports: BTreeMap::new(), dialed };
    let mut sockets = Sockets { ports: BTreeMap::new(), dialer: Dialer(dial) };
    for port in ports {
        let (accepted, door) = mpsc::channel(BACKLOG);
        machinery.ports.insert(*port, accepted);
        sockets.ports.insert(*port, door);
    }
    (machinery, sockets)
}

impl Sockets {
    /// The listener of this port. Each port is taken once.
    pub(crate) fn door(&mut self, port: u16) -> Door {
        Door(self.ports.remove(&port).expect("each port is taken once"))
    }

    pub(crate) fn dialer(&self) -> Dialer {
        self.dialer.clone()
    }
}

impl Machinery {
    /// Moves bytes between the network and the pipes, until the process is gone.
    pub(crate) async fn run(mut self, node: u64, gates: Gates) -> turmoil::Result {
        for (port, accepted) in self.ports {
            let listener = TcpListener::bind(("0.0.0.0", port)).await?;
            tokio::spawn(async move {
                while let Ok((stream, from)) = listener.accept().await {
                    let (pipe, other) = duplex(PIPE_BYTES);
                    if accepted.send((other, from)).await.is_err() {
                        return;
                    }
                    tokio::spawn(carry(stream, pipe));
                }
            });
        }
        while let Some(Dialed { address, stream }) = self.dialed.recv().await {
            let gate = gates.between(&node_host(node), address.split(':').next().unwrap_or(&address));
            tokio::spawn(async move {
                let opened = TcpStream::connect(address).await.map(|opened| {
                    let (pipe, other) = duplex(PIPE_BYTES);
                    tokio::spawn(carry(Line::new(opened, gate), pipe));
                    other
                });
                // An error says that the process does not wait for it any more.
                let _ = stream.send(opened);
            });
        }
        std::future::pending().await
    }
}

/// Carries bytes in both directions, until the process closes its end or the connection breaks.
async fn carry(stream: impl AsyncRead + AsyncWrite, pipe: DuplexStream) {
    let (mut from_network, mut to_network) = split(stream);
    let (mut from_process, mut to_process) = split(pipe);
    let inwards = async {
        copy(&mut from_network, &mut to_process).await?;
        to_process.shutdown().await?;
        // The other side sends no more; the process may still answer.
        std::future::pending::<io::Result<()>>().await
    };
    let outwards = async {
        copy(&mut from_process, &mut to_network).await?;
        to_network.shutdown().await
    };
    // A process that has closed its end reads nothing any more. If what comes were still taken, the other side would never learn of it: a
    // connection of which a message was lost has a gap, and nothing behind the gap is read.
    let _ = tokio::select! {
        broken = inwards => broken,
        closed = outwards => closed,
    };
}

/// Opens a process's connections.
#[derive(Clone, Debug)]
pub(crate) struct Dialer(mpsc::Sender<Dialed>);

impl std::fmt::Debug for Dialed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.address)
    }
}

impl Connector for Dialer {
    type Stream = DuplexStream;

    async fn connect(&self, address: &str) -> io::Result<DuplexStream> {
        let gone = || io::Error::from(io::ErrorKind::NetworkDown);
        let (stream, opened) = oneshot::channel();
        self.0.send(Dialed { address: address.to_owned(), stream }).await.map_err(|_| gone())?;
        opened.await.map_err(|_| gone())?
    }
}

/// Accepts a process's connections.
pub(crate) struct Door(mpsc::Receiver<Accepted>);

impl Listen for Door {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<Accepted> {
        self.0.recv().await.ok_or_else(|| io::ErrorKind::NetworkDown.into())
    }
}

/// What a process has computed: one of its threads is busy for as long.
#[derive(Default, Debug)]
pub(crate) struct Load {
    /// What its runtime has to compute yet.
    owed_ns: AtomicU64,
    /// The same of the thread that applies.
    applying_ns: AtomicU64,
    /// The entry that was applied last.
    entry_ns: AtomicU64,
    longest: LongestLoads,
}

#[derive(Default, Debug)]
struct LongestLoads {
    units: AtomicU64,
    apply_ns: AtomicU64,
    turn_ns: AtomicU64,
}

/// The longest of what a process has computed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Longest {
    /// Units of work of one entry.
    pub(crate) units: u64,
    pub(crate) apply: Duration,
    /// The time without a turn for other tasks.
    pub(crate) turn: Duration,
}

impl Load {
    /// Adds the work of one entry of the log, at this price.
    pub(crate) fn apply(&self, units: u64, unit_ns: u64) {
        self.entry_ns.fetch_add(units * unit_ns, Ordering::Relaxed);
        self.longest.units.fetch_max(units, Ordering::Relaxed);
    }

    /// The entry was applied by the runtime, or by a thread beside it: then this returns how long that still is busy.
    pub(crate) fn applied(&self, in_place: bool) -> Duration {
        let entry_ns = self.entry_ns.swap(0, Ordering::Relaxed);
        self.longest.apply_ns.fetch_max(entry_ns, Ordering::Relaxed);
        if in_place {
            self.owed_ns.fetch_add(entry_ns, Ordering::Relaxed);
            return Duration::ZERO;
        }
        // Timers have whole milliseconds.
        let owed_ns = self.applying_ns.load(Ordering::Relaxed) + entry_ns;
        self.applying_ns.store(owed_ns % 1_000_000, Ordering::Relaxed);
        Duration::from_millis(owed_ns / 1_000_000)
    }

    /// Takes whole milliseconds of what is owed.
    fn take_ms(&self) -> u32 {
        let owed_ns = self.owed_ns.load(Ordering::Relaxed);
        self.longest.turn_ns.fetch_max(owed_ns, Ordering::Relaxed);
        let ms = owed_ns / 1_000_000;
        self.owed_ns.fetch_sub(ms * 1_000_000, Ordering::Relaxed);
        u32::try_from(ms).expect("no apply takes weeks")
    }

    /// The longest since the first start of its process.
    pub(crate) fn longest(&self) -> Longest {
        let LongestLoads { units, apply_ns, turn_ns } = &self.longest;
        Longest {
            units: units.load(Ordering::Relaxed),
            apply: Duration::from_nanos(apply_ns.load(Ordering::Relaxed)),
            turn: Duration::from_nanos(turn_ns.load(Ordering::Relaxed)),
        }
    }
}

/// A running process.
pub(crate) struct Process {
    runtime: Runtime,
    local: LocalSet,
    main: Option<JoinHandle<turmoil::Result>>,
    load: Arc<Load>,
    /// Milliseconds of the process for each one of the network.
    rate: f64,
    /// Milliseconds that it may still run.
    credit: f64,
    /// Milliseconds for which it goes on computing, and those that it has computed since its tasks ran.
    busy: u32,
    missed: u32,
}

impl Process {
    /// Starts a process.
    pub(crate) fn start<F>(main: impl FnOnce() -> F, load: Arc<Load>, rate: f64) -> Self
    where
        F: Future<Output = turmoil::Result> + 'static,
    {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without sockets needs nothing of the system");
        let local = LocalSet::new();
        // Timers have whole milliseconds.
        runtime.block_on(async { sleep(TICK).await });
        #[expect(clippy::async_yields_async, reason = "the task begins within the runtime, and goes on after this")]
        let main = runtime.block_on(local.run_until(async { tokio::task::spawn_local(main()) }));
        Self { runtime, local, main: Some(main), load, rate, credit: 0.0, busy: 0, missed: 0 }
    }

    /// Lets time pass while the process is stopped.
    pub(crate) fn stand_still(&mut self) -> Option<turmoil::Result> {
        self.credit += self.rate;
        while self.credit >= 1.0 {
            self.credit -= 1.0;
            self.missed += 1;
        }
        None
    }

    /// Lets the process run for as long as one step of the network takes. Returns its result if it has ended.
    pub(crate) fn step(&mut self) -> Option<turmoil::Result> {
        self.credit += self.rate;
        while self.credit >= 1.0 {
            self.credit -= 1.0;
            if self.busy > 0 {
                self.busy -= 1;
                self.missed += 1;
                continue;
            }
            let missed = TICK * std::mem::take(&mut self.missed);
            self.runtime.block_on(self.local.run_until(async {
                if missed > Duration::ZERO {
                    advance(missed).await;
                }
                sleep(TICK).await;
            }));
            self.busy += self.load.take_ms();
        }

        let main = self.main.take_if(|main| main.is_finished())?;
        // It is aborted by nobody, and a panic ends the simulation.
        self.runtime.block_on(main).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Steps a process that notes at which of its own milliseconds it had a turn.
    fn turns(rate: f64, steps: usize, work: impl Fn(&Load, u64) + 'static) -> Vec<u64> {
        let load = Arc::new(Load::default());
        let turns = Arc::new(Mutex::new(Vec::new()));
        let main = {
            let load = Arc::clone(&load);
            let turns = Arc::clone(&turns);
            move || async move {
                let began = tokio::time::Instant::now();
                loop {
                    sleep(TICK).await;
                    let now = began.elapsed().as_millis() as u64;
                    turns.lock().expect("nobody panics").push(now);
                    work(&load, now);
                }
            }
        };
        let mut process = Process::start(main, load, rate);
        (0..steps).for_each(|_| assert!(process.step().is_none()));
        let turns = turns.lock().expect("nobody panics");
        turns.clone()
    }

    #[test]
    fn a_clock_may_be_fast_or_slow() {
        for (rate, right) in [(1.0, 1_000), (1.01, 1_010), (0.99, 990)] {
            let last = turns(rate, 1_000, |_, _| {}).last().copied();
            // It begins within a millisecond, and whole ones are counted.
            assert!(last.is_some_and(|last| (right - 2..=right).contains(&last)), "at {rate}: {last:?}");
        }
    }

    #[test]
    fn while_a_process_computes_its_time_passes_and_no_task_runs() {
        let turns = turns(1.0, 100, |load, now| {
            if now == 10 {
                load.apply(50_000, 1_000);
                assert_eq!(load.applied(true), Duration::ZERO);
            }
        });
        let gap = turns.windows(2).find(|turns| turns[1] - turns[0] > 1).expect("there was a gap");
        assert_eq!((gap[0], gap[1], turns.last().copied()), (10, 61, Some(99)), "{turns:?}");
    }
    #[test]
    fn a_thread_that_applies_delays_no_other_task() {
        let load = Load::default();
        let lasted = [1_500, 400, 100, 50_000].map(|units| {
            load.apply(units, 1_000);
            load.applied(false).as_millis()
        });
        assert_eq!(lasted, [1, 0, 1, 50]);
        assert_eq!(load.take_ms(), 0);
        let Longest { units, apply, turn } = load.longest();
        assert_eq!((units, apply, turn), (50_000, Duration::from_millis(50), Duration::ZERO));
    }
}
