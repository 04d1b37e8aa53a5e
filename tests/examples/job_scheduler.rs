//! Nightly jobs on many hosts: each job is done once a night, whichever host is first, and even if a host dies during a job.
//!
//! All hosts have the same list of jobs. Each job has a lock with *kept data*: the last night for which the job was done. The holder of the
//! lock reads the data first. So a later host finds the job done. If a host dies during a job, the data are unchanged, and the next host
//! does the job once the dead host's session has expired.
//!
//! So a job may *begin* twice, and must be idempotent. But it is *recorded* once: the record is on the lock, and the cluster accepts it
//! from the holder only. A host reads the record after it has acquired the lock, since only then no other host can change it.
//!
//! ```sh
//! cargo build --examples && cargo run -- dev -- target/debug/examples/job_scheduler
//! ```
//!
//! The hosts are processes: this program runs itself as `… host NAME NIGHT`. In the first night, one host is killed during a job.
//! Exits with 0 if every job was recorded once in every night, and with 1 if not.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what happens")]

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    io,
    process::{ExitCode, Stdio},
    time::Duration,
};

use lockkeeper::client::{Client, DEFAULT_ENDPOINTS, NewData, SessionOptions};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    time::timeout,
};

const JOBS: [&str; 3] = ["backup", "invoices", "report"];
const HOSTS: [&str; 3] = ["ann", "bob", "cat"];
const NIGHTS: u32 = 2;
/// In the first night, the host that begins this job is killed during it.
const FATAL_JOB: &str = "invoices";

/// Short, since the others wait for this time after a host has died.
const TTL: Duration = Duration::from_secs(2);
/// Deadline of the whole run, for a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

type Anything = Box<dyn Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(nights()),
        ["host", name, night] => run(host(name, night)),
        _ => Err("give no arguments".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("job_scheduler: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(part: impl Future<Output = Result<(), Anything>>) -> Result<(), Anything> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async { timeout(LIMIT, part).await });
    // Do not wait for the thread that may still read stdin.
    runtime.shutdown_background();
    outcome.map_err(|_| format!("it was not over after {LIMIT:?}"))?
}

async fn nights() -> Result<(), Anything> {
    for number in 1..=NIGHTS {
        println!("Night {number}: {} hosts, each with the same {} jobs.", HOSTS.len(), JOBS.len());
        let mut night = Night { fatal_job: (number == 1).then_some(FATAL_JOB), ..Night::default() };
        night.run(number).await?;
        for job in JOBS {
            match night.recorded.get(job).map_or(&[][..], Vec::as_slice) {
                [_] => {}
                [] => return Err(format!("night {number}: {job} was not done").into()),
                hosts => return Err(format!("night {number}: {job} was recorded by {hosts:?}").into()),
            }
        }
        if night.fatal_job.is_some() {
            return Err(format!("night {number}: no host began {FATAL_JOB}").into());
        }
    }
    println!("Every job was recorded once in every night.");
    Ok(())
}

/// A night, as the parent process sees it.
#[derive(Default)]
struct Night {
    fatal_job: Option<&'static str>,
    hosts: BTreeMap<&'static str, Host>,
    /// By job: the hosts that recorded it.
    recorded: BTreeMap<String, Vec<&'static str>>,
}

/// Killed when this is dropped.
struct Host {
    process: Child,
    stdin: ChildStdin,
}

impl Night {
    async fn run(&mut self, number: u32) -> Result<(), Anything> {
        let (say, mut said) = mpsc::channel(16);
        for name in HOSTS {
            self.hosts.insert(name, Host::start(name, number, say.clone())?);
        }
        drop(say);
        while let Some((name, line)) = said.recv().await {
            self.hear(name, &line).await?;
        }
        // All hosts have closed their stdout.
        for (name, mut host) in std::mem::take(&mut self.hosts) {
            let status = host.process.wait().await?;
            if !status.success() {
                return Err(format!("{name} ended with {status}").into());
            }
        }
        Ok(())
    }

    async fn hear(&mut self, name: &'static str, line: &str) -> Result<(), Anything> {
        println!("  {name} {line}");
        let (word, job) = line.split_once(' ').unwrap_or((line, ""));
        if word == "records" {
            self.recorded.entry(job.to_owned()).or_default().push(name);
        }
        if word == "begins" {
            if self.fatal_job == Some(job) {
                self.fatal_job = None;
                let mut host = self.hosts.remove(name).ok_or("only a host that runs begins a job")?;
                host.process.kill().await?;
                println!("  {name} is killed in the middle of {job}. Its lock opens after {TTL:?}.");
            } else if let Some(host) = self.hosts.get_mut(name) {
                // The job itself: it is done when the host reads this line.
                host.stdin.write_all(b"the work is done\n").await?;
            }
        }
        Ok(())
    }
}

impl Host {
    fn start(name: &'static str, night: u32, say: mpsc::Sender<(&'static str, String)>) -> Result<Self, Anything> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["host", name, &night.to_string()]).kill_on_drop(true);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take().ok_or("it has no stdin")?;
        let mut lines = BufReader::new(process.stdout.take().ok_or("it has no stdout")?).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if say.send((name, line)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, stdin })
    }
}

/// The night's work of one host.
async fn host(name: &str, night: &str) -> Result<(), Anything> {
    let night: u32 = night.parse()?;
    let endpoints = env::var("LOCKKEEPER_ENDPOINTS").unwrap_or_else(|_| DEFAULT_ENDPOINTS.to_owned());
    let client = Client::new(&endpoints)?;
    let session = client.open(SessionOptions { ttl: TTL, label: format!("host {name}") }).await?;
    for job in JOBS {
        let lock = format!("jobs/{job}");
        // The lock keeps its data, however this host ends.
        let held = session.acquire(&lock).keep_data().await?;
        if last_night(&client, &lock).await? >= night {
            println!("finds {job} done");
        } else {
            println!("begins {job}");
            tokio::select! {
                done = work() => done?,
                loss = held.lost() => return Err(format!("stopped in the middle of {job}: {loss}").into()),
            }
            held.update(&lock, NewData::Kept(night.to_string().as_bytes())).await?;
            println!("records {job}");
        }
        held.release().await?;
    }
    Ok(session.close().await?)
}

/// The last night for which a job was done: 0 if there was none.
async fn last_night(client: &Client, lock: &str) -> Result<u32, Anything> {
    let data = client.get(lock).await?.lock.data;
    Ok(data.map_or(Ok(0), |data| String::from_utf8_lossy(&data).parse())?)
}

/// Waits for a line on stdin. Reads on its own thread, so that the session is renewed meanwhile.
async fn work() -> Result<(), Anything> {
    let line = tokio::task::spawn_blocking(|| io::stdin().lines().next()).await?;
    line.ok_or("the parent process has ended")??;
    Ok(())
}
