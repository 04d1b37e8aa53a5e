//! Three processes campaign in one election. The leader is killed: the second leads once the first one's lease is over, and not before. The
//! second resigns: the third leads at once. Each has a higher epoch than its predecessor, and an observer sees every change.
//!
//! ```sh
//! cargo build --bins --examples
//! target/debug/lockkeeper dev -- target/debug/examples/leader_election
//! ```
//!
//! It checks its results and fails if they are wrong. Read [`lead`]: it shows a program that leads; [`story`] kills it and makes it resign.

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
    process::{ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use lockkeeper::client::{Client, DEFAULT_ENDPOINTS, Leader, Observe, SessionOptions};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
    time::{sleep, timeout},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The longest time for which a dead leader delays the next one.
const TTL: Duration = Duration::from_secs(4);

/// Deadline of each step.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => story().await,
        ["candidate", election, label] => lead(election, label).await,
        _ => Err("it takes no arguments".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn client() -> Result<Client> {
    let endpoints = env::var("LOCKKEEPER_ENDPOINTS").unwrap_or_else(|_| DEFAULT_ENDPOINTS.to_owned());
    Ok(Client::new(&endpoints)?)
}

/// A candidate: leads when its turn comes, until it is told to resign or loses its leadership.
async fn lead(election: &str, label: &str) -> Result<()> {
    let mut orders = orders();
    let client = client()?;
    let session = client.open(SessionOptions { ttl: TTL, label: label.to_owned() }).await?;
    let leadership = tokio::select! {
        leadership = client.election(election)?.campaign(&session, format!("ask {label}")) => leadership?,
        // The parent process has ended. Dropping the campaign withdraws it.
        _ = orders.recv() => return Ok(()),
    };
    // From here on it sends its epoch as fencing token with all its writes.
    println!("{}", leadership.epoch().0);
    loop {
        tokio::select! {
            order = orders.recv() => match order.as_deref() {
                Some("how long") => println!("{}", leadership.remaining().as_millis()),
                Some(_) | None => break,
            },
            loss = leadership.lost() => return Err(loss.into()),
        }
    }
    leadership.resign().await?;
    Ok(session.close().await?)
}

/// The lines on stdin.
fn orders() -> mpsc::Receiver<String> {
    let (sender, orders) = mpsc::channel(1);
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(|line| line.ok()) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    orders
}

async fn story() -> Result<()> {
    let client = client()?;
    // A name that no other run of this example uses.
    let name = format!("examples/leader-election/{}", std::process::id());
    let mut leaders = client.election(&name)?.observe();
    check(next(&mut leaders).await?.is_none(), "nobody leads before anyone stands")?;

    let mut ann = Candidate::start(&name, "ann")?;
    let ann_leads = ann.leads(&mut leaders).await?;
    println!("ann leads, epoch {}: a number for whatever it writes", ann_leads.epoch.0);
    let mut bob = Candidate::start(&name, "bob")?;
    until_queued(&client, &name, 1).await?;
    let mut cid = Candidate::start(&name, "cid")?;
    until_queued(&client, &name, 2).await?;
    println!("bob and cid stand too, in this order, and wait");

    let asked = Instant::now();
    let left = Duration::from_millis(ann.ask("how long").await?);
    ann.child.kill().await?;
    println!("ann is killed; it had {left:.1?} left, in which nobody else leads");
    let bob_leads = bob.leads(&mut leaders).await?;
    let took = asked.elapsed();
    check(took >= left, format!("the next one leads after {left:?}, not after {took:?}"))?;
    check(bob_leads.epoch > ann_leads.epoch, "epochs rise")?;
    println!("bob leads, epoch {}, after {took:.1?}: what ann wrote late would be refused", bob_leads.epoch.0);

    let asked = Instant::now();
    bob.tell("resign").await?;
    let cid_leads = cid.leads(&mut leaders).await?;
    let took = asked.elapsed();
    check(took < TTL, format!("nobody waits {took:?} for one that resigned"))?;
    check(cid_leads.epoch > bob_leads.epoch, "epochs rise")?;
    println!("bob resigns; cid leads, epoch {}, after {took:.1?}: nobody had to wait for that", cid_leads.epoch.0);

    cid.tell("resign").await?;
    check(next(&mut leaders).await?.is_none(), "nobody is left to lead")?;
    for candidate in [&mut bob, &mut cid] {
        let status = soon("its end", candidate.child.wait()).await??;
        check(status.success(), format!("{} ends in peace, not with {status}", candidate.label))?;
    }
    println!("cid resigns; nobody leads");
    Ok(())
}

/// A candidate's process, which takes orders on stdin. It is killed when this is dropped, and ends by itself when this process is killed.
struct Candidate {
    label: &'static str,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Candidate {
    fn start(election: &str, label: &'static str) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["candidate", election, label])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or("its stdin is piped")?;
        let answers = BufReader::new(child.stdout.take().ok_or("its stdout is piped")?).lines();
        Ok(Self { label, child, orders, answers })
    }

    /// Waits until the candidate reports that it leads and the observer sees it.
    async fn leads(&mut self, leaders: &mut Observe) -> Result<Leader> {
        let epoch = self.answer().await?;
        let seen = next(leaders).await?.ok_or("no leader is seen")?;
        check(seen.label == self.label, format!("{} leads, and not {}", self.label, seen.label))?;
        check(seen.epoch.0 == epoch, "the leader and the observer agree on the epoch")?;
        check(seen.value == format!("ask {}", self.label).as_bytes(), "a leader comes with its own value")?;
        Ok(seen)
    }

    async fn ask(&mut self, what: &str) -> Result<u64> {
        self.tell(what).await?;
        self.answer().await
    }

    async fn tell(&mut self, order: &str) -> Result<()> {
        Ok(self.orders.write_all(format!("{order}\n").as_bytes()).await?)
    }

    async fn answer(&mut self) -> Result<u64> {
        let line = soon("an answer", self.answers.next_line()).await??;
        Ok(line.ok_or_else(|| format!("{} ended", self.label))?.parse()?)
    }
}

/// The next change that an observer sees.
async fn next(leaders: &mut Observe) -> Result<Option<Leader>> {
    Ok(soon("a change", leaders.next()).await??)
}

async fn until_queued(client: &Client, name: &str, length: u64) -> Result<()> {
    let queued = async {
        while client.get(name).await?.lock.queue_length != length {
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    soon("a candidate in the queue", queued).await?
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    Ok(timeout(PATIENCE, future).await.map_err(|_| format!("waited {PATIENCE:?} in vain for {what}"))?)
}

fn check(holds: bool, what: impl Display) -> Result<()> {
    if holds { Ok(()) } else { Err(format!("this does not hold: {what}").into()) }
}
