//! Contenders for a lock, and its holders, with `etcd-client` as it is: as `../contenders.py`, where CLIENT is `lock` or `election`. In
//! place of `contend` or `hold`, `offers` runs through what else the client offers.

mod offers;

use std::{
    collections::BTreeSet,
    env, io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use etcd_client::{Client, Error, LeaderKey, LockOptions, ResignOptions};
use serde_json::json;
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{Instant, sleep, timeout},
};

const CONTENDERS: usize = 8;
const TTL_SECONDS: i64 = 3;
const TTL: Duration = Duration::from_secs(TTL_SECONDS as u64);
/// The longest attempt, a tenure, and the pause after it.
const ATTEMPT: Duration = Duration::from_secs(1);
const TENURE: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_millis(300);
/// A bound on failures.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
enum Kind {
    Lock,
    Election,
}

/// The key of a place in the queue: of a lock that is held, or of a leader.
enum Held {
    Lock(Vec<u8>),
    Leader(LeaderKey),
}

/// A lease that is renewed until this is dropped.
struct Lease {
    id: i64,
    is_lost: Arc<AtomicBool>,
    renews: AbortHandle,
}

impl Lease {
    async fn new(client: &mut Client) -> Result<Self, Error> {
        let id = client.lease_grant(TTL_SECONDS, None).await?.id();
        let is_lost = Arc::new(AtomicBool::new(false));
        let (mut keeper, mut answers) = client.lease_keep_alive(id).await?;
        let lost = Arc::clone(&is_lost);
        let renewing = tokio::spawn(async move {
            loop {
                let answer = tokio::select! {
                    answer = answers.message() => answer,
                    () = sleep(TTL / 3) => match keeper.keep_alive().await {
                        Ok(()) => continue,
                        Err(error) => Err(error),
                    },
                };
                if !matches!(answer, Ok(Some(answer)) if answer.ttl() > 0) {
                    return lost.store(true, SeqCst);
                }
            }
        });
        Ok(Self { id, is_lost, renews: renewing.abort_handle() })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renews.abort();
    }
}

type Attempt = Pin<Box<dyn Future<Output = Result<Held, Error>> + Send>>;

struct Contender {
    client: Client,
    kind: Kind,
    name: String,
    lease: Lease,
    attempt: Option<Attempt>,
    held: Option<Held>,
}

impl Contender {
    async fn new(endpoint: &str, kind: Kind, name: String) -> Result<Self, Error> {
        let mut client = Client::connect([endpoint], None).await?;
        let lease = Lease::new(&mut client).await?;
        Ok(Self { client, kind, name, lease, attempt: None, held: None })
    }

    /// Waits at the most for as long as an attempt, and goes on with the next one.
    async fn acquire(&mut self) -> Result<bool, Error> {
        let (mut client, name, lease) = (self.client.clone(), self.name.clone(), self.lease.id);
        let kind = self.kind;
        let attempt = self.attempt.get_or_insert_with(|| {
            Box::pin(async move {
                match kind {
                    Kind::Lock => {
                        let locked = client.lock(name, Some(LockOptions::new().with_lease(lease))).await?;
                        Ok(Held::Lock(locked.key().to_vec()))
                    }
                    Kind::Election => {
                        let mut elected = client.campaign(name, "one", lease).await?;
                        Ok(Held::Leader(elected.take_leader().unwrap_or_default()))
                    }
                }
            })
        });
        let Ok(outcome) = timeout(ATTEMPT, attempt).await else { return Ok(false) };
        self.attempt = None;
        self.held = Some(outcome?);
        Ok(true)
    }

    fn has_lost(&self) -> bool {
        self.lease.is_lost.load(SeqCst)
    }

    async fn release(&mut self) -> Result<(), Error> {
        match self.held.take() {
            Some(Held::Lock(key)) => _ = self.client.unlock(key).await?,
            Some(Held::Leader(leader)) => {
                let leader = ResignOptions::new().with_leader(leader);
                _ = self.client.resign(Some(leader)).await?;
            }
            None => {}
        }
        Ok(())
    }

    /// Drops the call that waits. Its key is deleted, although its lease lives.
    async fn cancel(&mut self) -> Result<()> {
        self.attempt = None;
        let key = format!("{}/{:x}", self.name, self.lease.id);
        let gone = async {
            while self.client.get(&*key, None).await?.count() > 0 {
                sleep(Duration::from_millis(20)).await;
            }
            Ok::<_, Error>(())
        };
        timeout(PATIENCE, gone).await.context("its key stays")??;
        ensure!(!self.has_lost(), "the lease ended, and its key with it");
        Ok(())
    }
}

#[derive(Default)]
struct Seen {
    round: u64,
    /// Who had the lock in this round.
    had: Vec<usize>,
    inside: u64,
    is_last: bool,
    tenures: u64,
    overlaps: u64,
    late: u64,
    errors: u64,
}

impl Seen {
    fn is_over(&self) -> bool {
        let different: BTreeSet<_> = self.had.iter().collect();
        self.had.len() >= CONTENDERS && different.len() >= CONTENDERS / 2
    }
}

struct Contention {
    endpoint: String,
    kind: Kind,
    name: String,
    is_apart: bool,
    seen: Mutex<Seen>,
}

impl Contention {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("nothing panics with it")
    }

    async fn tenure(&self, number: usize, contender: &mut Option<Contender>) -> Result<bool, Error> {
        let contender = match contender {
            Some(contender) => contender,
            None => {
                let name = if self.is_apart { format!("{}-{number}", self.name) } else { self.name.clone() };
                contender.insert(Contender::new(&self.endpoint, self.kind, name).await?)
            }
        };
        let (asked, began) = (self.seen().round, Instant::now());
        if !contender.acquire().await? {
            return Ok(false);
        }
        if began.elapsed() < TTL.mul_f64(0.8) {
            {
                let mut seen = self.seen();
                seen.inside += 1;
                seen.overlaps += u64::from(seen.inside > 1);
            }
            sleep(TENURE).await;
            let mut seen = self.seen();
            seen.inside -= 1;
            seen.tenures += 1;
            if asked == seen.round {
                seen.had.push(number);
            }
        } else {
            self.seen().late += 1;
        }
        contender.release().await?;
        Ok(true)
    }

    async fn contend_as(self: Arc<Self>, number: usize) {
        let mut contender = None;
        while !self.seen().is_last {
            match self.tenure(number, &mut contender).await {
                Ok(true) => sleep(PAUSE).await,
                Ok(false) => {}
                Err(error) => {
                    // There was no leader, or a connection broke. Its lease, which is renewed no more, ends what it may have.
                    eprintln!("contender {number}: {error}");
                    self.seen().errors += 1;
                    contender = None;
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Whether a line was read.
fn line() -> JoinHandle<io::Result<bool>> {
    tokio::task::spawn_blocking(|| Ok(io::stdin().read_line(&mut String::new())? > 0))
}

async fn contend(endpoint: &str, kind: Kind, name: &str, is_apart: bool) -> Result<()> {
    let contention =
        Contention { endpoint: endpoint.to_owned(), kind, name: name.to_owned(), is_apart, seen: Mutex::default() };
    let contention = Arc::new(contention);
    let contenders: Vec<_> =
        (0..CONTENDERS).map(|number| tokio::spawn(Arc::clone(&contention).contend_as(number))).collect();
    loop {
        while !contention.seen().is_over() {
            sleep(Duration::from_millis(10)).await;
        }
        {
            let seen = contention.seen();
            let Seen { tenures, overlaps, late, errors, .. } = *seen;
            println!("{}", json!({"tenures": tenures, "overlaps": overlaps, "late": late, "errors": errors}));
        }
        if !line().await?? {
            break;
        }
        let mut seen = contention.seen();
        seen.round += 1;
        seen.had.clear();
    }
    contention.seen().is_last = true;
    for contender in contenders {
        timeout(PATIENCE, contender).await.context("a contender does not end")??;
    }
    Ok(())
}

async fn hold(endpoint: &str, kind: Kind, name: &str) -> Result<()> {
    let told = line();
    let mut contender = Contender::new(endpoint, kind, name.to_owned()).await?;
    println!("waiting");
    while !contender.acquire().await? {
        if told.is_finished() {
            contender.cancel().await?;
            println!("cancelled");
            return Ok(());
        }
    }
    println!("held");
    while !told.is_finished() {
        if contender.has_lost() {
            println!("lost");
            // The thread that reads would be waited for.
            std::process::exit(0);
        }
        sleep(Duration::from_millis(100)).await;
    }
    contender.release().await?;
    println!("released");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kind, endpoint, role, name, more @ ..] = &arguments[..] else {
        bail!("usage: etcd-clients lock|election HOST:PORT contend|hold|offers NAME [apart]");
    };
    let kind = match kind.as_str() {
        "lock" => Kind::Lock,
        "election" => Kind::Election,
        other => bail!("{other} is neither `lock` nor `election`"),
    };
    match role.as_str() {
        "contend" => contend(endpoint, kind, name, more.iter().any(|word| word == "apart")).await,
        "hold" => hold(endpoint, kind, name).await,
        "offers" => offers::run(endpoint, name).await,
        other => bail!("{other} is none of `contend`, `hold` and `offers`"),
    }
}
