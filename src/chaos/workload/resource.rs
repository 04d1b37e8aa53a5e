//! The protected resources: for each lock a fenced register, which checks tokens, and an unfenced one, which accepts every write.
//!
//! They live in the runner and outlive the clients, as a real storage would, so a late write arrives even if its client is dead. Clients
//! use a
//! Unix socket, with one line per write and one line per answer. Simulated clients call directly.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use lockkeeper_fence::{Error, Fence, HighestTokens, Hold, Memory};
use lockkeeper_machine::Token;

use crate::history::Mode;

/// Maximum number of concurrent client connections.
const CONNECTIONS_MAX: usize = 1_024;
/// Time limit of an answer to a client.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Serialize, Deserialize, Debug)]
struct Write {
    lock: String,
    token: u64,
    mode: Mode,
    fenced: bool,
}

/// The answer of a register to a write.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum WriteAnswer {
    /// The register accepted the write. This is the number of writes accepted so far.
    Accepted(u64),
    /// The register refused the write, because its token is too old.
    Refused,
}

/// A server of the registers.
#[derive(Debug)]
pub(crate) struct Resource {
    registers: Arc<Registers>,
    _serving: AbortOnDropHandle<()>,
}

/// The registers.
pub struct Registers {
    fence: Fence<Memory>,
    fenced: Mutex<HashMap<String, u64>>,
    open: Mutex<HashMap<String, (u64, HighestTokens)>>,
    late: AtomicU64,
    refused: AtomicU64,
}

impl Resource {
    /// Serves on this socket until it is dropped.
    pub(crate) fn serve(socket: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let registers = Arc::new(Registers::new()?);
        let serving = tokio::spawn(accept(listener, Arc::clone(&registers)));
        Ok(Self { registers, _serving: AbortOnDropHandle::new(serving) })
    }

    /// Number of writes that fenced registers refused.
    pub(crate) fn refused(&self) -> u64 {
        self.registers.refused()
    }

    /// Number of late writes that unfenced registers accepted. Each overwrote a newer write.
    pub(crate) fn late(&self) -> u64 {
        self.registers.late()
    }
}

async fn accept(listener: UnixListener, registers: Arc<Registers>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(serve(stream, Arc::clone(&registers)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: UnixStream, registers: Arc<Registers>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = registers.write(serde_json::from_str(&line)?).await?;
        writer.write_all(format!("{}\n", serde_json::to_string(&answer)?).as_bytes()).await?;
    }
    Ok(())
}

impl Registers {
    /// Makes empty registers. Fails only if the fence cannot be opened.
    pub fn new() -> io::Result<Self> {
        let fence = Fence::open(Memory).map_err(io::Error::other)?;
        let fenced = Mutex::default();
        let open = Mutex::default();
        Ok(Self { fence, fenced, open, late: AtomicU64::new(0), refused: AtomicU64::new(0) })
    }

    /// Number of writes that fenced registers refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Number of late writes that unfenced registers accepted. Each overwrote a newer write.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    async fn write(&self, write: Write) -> io::Result<WriteAnswer> {
        if !write.fenced {
            return Ok(WriteAnswer::Accepted(self.write_open(write)));
        }
        let Some(hold) = hold(write.mode) else { return Err(io::Error::other("permits are not ordered")) };

        let count = async || {
            let mut counts = self.fenced.lock().expect("no code panics while it holds this lock");
            let count = counts.entry(write.lock.clone()).or_default();
            *count += 1;
            *count
        };

        match self.fence.run(&write.lock, Token(write.token), hold, count).await {
            Ok(count) => Ok(WriteAnswer::Accepted(count)),
            Err(Error::Refused(_)) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Ok(WriteAnswer::Refused)
            }
            Err(error @ (Error::NoToken | Error::Name { .. } | Error::Store(_))) => Err(io::Error::other(error)),
        }
    }

    fn write_open(&self, write: Write) -> u64 {
        let mut registers = self.open.lock().expect("no code panics while it holds this lock");
        let (count, seen) = registers.entry(write.lock).or_default();
        *count += 1;
        if let Some(hold) = hold(write.mode) {
            let late = seen.bars(Token(write.token), hold).is_some();
            self.late.fetch_add(late.into(), Ordering::Relaxed);
            *seen = seen.with(Token(write.token), hold);
        }
        *count
    }
}

/// The mode for the fence, which has none for permits.
fn hold(mode: Mode) -> Option<Hold> {
    match mode {
        Mode::Exclusive => Some(Hold::Exclusive),
        Mode::Shared => Some(Hold::Shared),
        Mode::Permits(_) => None,
    }
}

impl std::fmt::Debug for Registers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registers").finish_non_exhaustive()
    }
}

/// The location of the registers.
#[derive(Clone, Debug)]
pub enum RegisterPlace {
    /// The registers are in another process, at this socket.
    Socket(PathBuf),
    /// The registers are in this process.
    Here(Arc<Registers>),
}

/// A client's access to the registers.
#[derive(Debug)]
pub(super) enum RegisterAccess {
    Socket(RegisterConnection),
    Here(Arc<Registers>),
}

impl RegisterAccess {
    pub(super) async fn open(place: &RegisterPlace) -> io::Result<Self> {
        match place {
            RegisterPlace::Socket(socket) => RegisterConnection::open(socket).await.map(Self::Socket),
            RegisterPlace::Here(registers) => Ok(Self::Here(Arc::clone(registers))),
        }
    }

    /// Writes to a register. Fails if there is no answer: the write may have been accepted, and this access must not be used again.
    pub(super) async fn write(&mut self, lock: &str, token: u64, mode: Mode, fenced: bool) -> io::Result<WriteAnswer> {
        let write = Write { lock: lock.to_owned(), token, mode, fenced };
        match self {
            Self::Socket(connection) => connection.write(&write).await,
            Self::Here(registers) => registers.write(write).await,
        }
    }
}

/// A connection to the socket.
#[derive(Debug)]
pub(super) struct RegisterConnection {
    writer: OwnedWriteHalf,
    answers: Lines<BufReader<OwnedReadHalf>>,
}

impl RegisterConnection {
    async fn open(socket: &Path) -> io::Result<Self> {
        let (reader, writer) = UnixStream::connect(socket).await?.into_split();
        Ok(Self { writer, answers: BufReader::new(reader).lines() })
    }

    async fn write(&mut self, write: &Write) -> io::Result<WriteAnswer> {
        self.writer.write_all(format!("{}\n", serde_json::to_string(write)?).as_bytes()).await?;
        match timeout(ANSWER_TIMEOUT, self.answers.next_line()).await {
            Ok(answer) => Ok(serde_json::from_str(&answer?.ok_or(io::ErrorKind::UnexpectedEof)?)?),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_older_token_is_refused_by_the_one_and_taken_and_counted_by_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let resource = Resource::serve(&socket).unwrap();
        let mut access = RegisterAccess::open(&RegisterPlace::Socket(socket)).await.unwrap();
        for fenced in [true, false] {
            let mut write = async |token, mode| access.write("jobs", token, mode, fenced).await.unwrap();
            assert_eq!(write(2, Mode::Exclusive).await, WriteAnswer::Accepted(1));
            assert_eq!(write(3, Mode::Shared).await, WriteAnswer::Accepted(2));
            let late = write(1, Mode::Shared).await;
            assert_eq!(late, if fenced { WriteAnswer::Refused } else { WriteAnswer::Accepted(3) });
        }
        assert_eq!((resource.refused(), resource.late()), (1, 1));
    }
}
