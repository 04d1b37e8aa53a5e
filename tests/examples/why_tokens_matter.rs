//! Why a lock is not enough, and how its fencing token helps.
//!
//! Ann holds a lock, has checked that she still holds it, and is about to write. At that moment her process is paused for longer than her
//! TTL. The lock goes to Bob: otherwise a dead holder would hold it for ever. Bob writes. Then Ann resumes, and writes late. The example
//! shows this twice: with a seat that accepts every write, and with a seat behind a [`Fence`].
//!
//! ```sh
//! cargo build --examples && cargo run -- dev -- target/debug/examples/why_tokens_matter
//! ```
//!
//! The seat and Bob are in this process. Ann is another process (this program runs itself as `… ann`), which sends her writes through
//! pipes. Exits with 0 if all this happened as described, and with 1 if not.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example runs in real time, and shows what happens"
)]

use std::{
    env,
    error::Error,
    fmt::Display,
    io,
    process::{ExitCode, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use lockkeeper::{
    client::{Client, DEFAULT_ENDPOINTS, Session, SessionOptions},
    fence::{self, Fence, Hold, Memory, RefusedToken},
    machine::Token,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time,
};

const LOCK: &str = "examples/why_tokens_matter/A5";
/// Short, since Bob waits until it is over.
const ANN_TTL: Duration = Duration::from_secs(2);
/// Deadline of the whole run, for a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

type Anything = Box<dyn Error>;

fn main() -> ExitCode {
    let outcome = match env::args().nth(1) {
        Some(name) if name == "ann" => run(ann()),
        Some(other) => Err(format!("unknown argument {other:?}: give none").into()),
        None => run(story()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("why_tokens_matter: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(part: impl Future<Output = Result<(), Anything>>) -> Result<(), Anything> {
    // One thread: the kernel kills Ann's process when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async { time::timeout(LIMIT, part).await });
    // Do not wait for the thread that may still read stdin.
    runtime.shutdown_background();
    outcome.map_err(|_| format!("it was not over after {LIMIT:?}"))?
}

async fn story() -> Result<(), Anything> {
    println!("Seat A5 is free. Whoever holds the lock {LOCK:?} may sell it.");

    println!("\nA seat that believes everybody:");
    let seat = Seat::default();
    let refused = ann_is_late(&seat).await?;
    println!("  The seat says {:?}. Bob's sale is lost, and he does not know.", seat.state());
    expect("without a fence, Ann's late write is taken", refused.is_none() && seat.state() == "sold by Ann")?;

    println!("\nA seat behind a fence:");
    let seat = Seat { fence: Some(Fence::open(Memory)?), ..Seat::default() };
    let refused = ann_is_late(&seat).await?;
    println!("  The seat says {:?}, as Bob left it.", seat.state());
    expect("with a fence, Ann's late write is refused", refused.is_some() && seat.state() == "sold by Bob")?;

    println!(
        "\nNo lock service can stop a write that has already begun, and no check before it helps: the pause comes after the check."
    );
    println!("The one who can is the one who is written to. It has to remember one number.");
    Ok(())
}

/// Ann is paused between her check and her write, and Bob sells the seat meanwhile. Returns the seat's refusal of Ann's write, if any.
async fn ann_is_late(seat: &Seat) -> Result<Option<RefusedToken>, Anything> {
    let mut ann = Ann::start()?;
    let inside = ann.hear("inside").await?;
    let (token, remaining_ms) = inside.split_once(' ').ok_or("Ann does not say her token")?;
    let token = Token(token.parse()?);
    println!(
        "  Ann holds the lock, with token {}. She has just checked it: it is hers for {remaining_ms} ms.",
        token.0
    );

    ann.pause()?;
    println!("  She is about to write, and is paused (SIGSTOP).");
    // The order is in her pipe when she resumes: between her check and her write she does nothing else.
    ann.tell("write now").await?;

    let session = open("bob", SessionOptions::default().ttl).await?;
    let asked = Instant::now();
    let held = session.acquire(LOCK).await?;
    println!(
        "  Bob waited for {} ms, until her TTL was over. He has token {}.",
        asked.elapsed().as_millis(),
        held.token().0
    );
    expect("later tokens are higher", held.token() > token)?;
    seat.write(held.token(), "sold by Bob").await?;
    println!("  Bob wrote {:?}.", seat.state());
    held.release().await?;

    ann.resume()?;
    println!("  Ann goes on (SIGCONT), where she was.");
    let state = ann.hear("write").await?;
    let refused = match seat.write(token, &state).await {
        Ok(()) => None,
        Err(fence::Error::Refused(refused)) => Some(refused),
        Err(other) => return Err(other.into()),
    };
    let answer = refused.as_ref().map_or_else(|| "written".to_owned(), RefusedToken::to_string);
    println!("  Ann wrote {state:?}; the seat answered: {answer}.");
    ann.tell(&answer).await?;
    println!("  Ann, who looks at her lock only now: {}.", ann.hear("lock").await?);
    ann.end().await?;
    Ok(refused)
}

/// The protected resource.
#[derive(Default)]
struct Seat {
    state: Mutex<String>,
    fence: Option<Fence<Memory>>,
}

impl Seat {
    async fn write(&self, token: Token, state: &str) -> Result<(), fence::Error> {
        let write = async || {
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state.to_owned();
            Ok(())
        };
        match &self.fence {
            // The only difference between the two seats.
            Some(fence) => fence.run("A5", token, Hold::Exclusive, write).await?,
            None => write().await,
        }
    }

    fn state(&self) -> String {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A handle of Ann's process, which is killed when this is dropped.
struct Ann {
    process: Child,
    pid: Pid,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Ann {
    fn start() -> Result<Self, Anything> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("ann").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let pid = process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).ok_or("Ann has no process id")?;
        let stdin = process.stdin.take().ok_or("Ann has no stdin")?;
        let stdout = process.stdout.take().ok_or("Ann has no stdout")?;
        Ok(Self { process, pid, stdin, stdout: BufReader::new(stdout).lines() })
    }

    /// Pauses her process. Returns once it is stopped.
    fn pause(&self) -> Result<(), Anything> {
        kill_process(self.pid, Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid), options)?;
        expect("Ann is stopped", status.is_some_and(|status| status.stopped()))
    }

    fn resume(&self) -> Result<(), Anything> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    async fn tell(&mut self, line: &str) -> Result<(), Anything> {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }

    async fn hear(&mut self, word: &str) -> Result<String, Anything> {
        let line = self.stdout.next_line().await?.ok_or("Ann is gone")?;
        let said = line.strip_prefix(word).map(|rest| rest.trim_start().to_owned());
        said.ok_or_else(|| format!("Ann was to say {word:?}, and said {line:?}").into())
    }

    async fn end(mut self) -> Result<(), Anything> {
        let status = self.process.wait().await?;
        expect("Ann ends well", status.success())
    }
}

/// Ann's process: a careful program with a lock and without a fence.
async fn ann() -> Result<(), Anything> {
    // Her process ends with its parent, even while it is stopped.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;

    let session = open("ann", ANN_TTL).await?;
    let held = session.acquire(LOCK).await?;
    if let Some(loss) = held.loss() {
        return Err(format!("not inside: {loss}").into());
    }
    println!("inside {} {}", held.token().0, held.remaining().as_millis());
    told().await?;
    println!("write sold by Ann");
    told().await?;
    let loss = held.loss();
    println!("lock {}", loss.as_ref().map_or(&"still mine" as &dyn Display, |loss| loss));
    expect("the lock is lost by now", loss.is_some())
}

async fn open(label: &str, ttl: Duration) -> Result<Session, Anything> {
    let endpoints = env::var("LOCKKEEPER_ENDPOINTS").unwrap_or_else(|_| DEFAULT_ENDPOINTS.to_owned());
    let options = SessionOptions { ttl, label: format!("why_tokens_matter {label}") };
    Ok(Client::new(&endpoints)?.open(options).await?)
}

/// The next line on stdin. Reads on its own thread, so that the session is renewed meanwhile.
async fn told() -> Result<String, Anything> {
    let line = tokio::task::spawn_blocking(|| io::stdin().lines().next()).await?;
    Ok(line.ok_or("the story is gone")??)
}

/// An error if the expectation does not hold.
fn expect(what: &str, is_so: bool) -> Result<(), Anything> {
    if is_so { Ok(()) } else { Err(format!("it was not so that {what}").into()) }
}
