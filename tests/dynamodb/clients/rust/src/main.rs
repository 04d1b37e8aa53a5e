//! `dynamodb-lease`, and the AWS SDK for Rust itself. Usage and output are those of the programs beside this one: see `../support.py`.

use std::{
    env,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aws_sdk_dynamodb::{
    Client, Config,
    config::{Credentials, Region},
    types::{
        AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
        TimeToLiveSpecification,
    },
};

const TABLE: &str = "rust-dynamodb-lease";
/// The client counts in whole seconds.
const LEASE_SECONDS: u32 = 2;
const LEASE: Duration = Duration::from_secs(LEASE_SECONDS as u64);
/// A bound on failures.
const PATIENCE: Duration = Duration::from_secs(90);

fn sdk(endpoint: &str) -> Client {
    let config = Config::builder()
        .behavior_version_latest()
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("AKIDLOCK", "secret", None, None, "test"))
        .endpoint_url(endpoint)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    Client::from_conf(config)
}

async fn leases(endpoint: &str) -> Result<dynamodb_lease::Client> {
    dynamodb_lease::Client::builder()
        .table_name(TABLE)
        .lease_ttl_seconds(LEASE_SECONDS)
        .extend_every(Duration::from_millis(500))
        .acquire_cooldown(Duration::from_millis(20))
        .build_and_check_db(sdk(endpoint))
        .await
}

async fn create_table(sdk: &Client) -> Result<()> {
    let key = AttributeDefinition::builder().attribute_name("key").attribute_type(ScalarAttributeType::S).build()?;
    let schema = KeySchemaElement::builder().attribute_name("key").key_type(KeyType::Hash).build()?;
    let create = sdk.create_table().table_name(TABLE).billing_mode(BillingMode::PayPerRequest);
    create.attribute_definitions(key).key_schema(schema).send().await?;
    let expiry = TimeToLiveSpecification::builder().attribute_name("lease_expiry").enabled(true).build()?;
    sdk.update_time_to_live().table_name(TABLE).time_to_live_specification(expiry).send().await?;
    Ok(())
}

#[derive(Default)]
struct Counts {
    over: AtomicBool,
    entered: [AtomicU64; 2],
    late: AtomicU64,
    failed: AtomicU64,
}

impl Counts {
    fn sum(&self) -> u64 {
        self.entered.iter().map(|count| count.load(SeqCst)).sum()
    }
}

async fn contender(endpoint: String, n: usize, place: PathBuf, counts: Arc<Counts>) -> Result<()> {
    let leases = leases(&endpoint).await?;
    while !counts.over.load(SeqCst) {
        // A lease counts from before it was asked for; the client does not watch it.
        let sent = Instant::now();
        let tried = leases.try_acquire("contended").await;
        if let Ok(Some(lease)) = tried {
            if sent.elapsed() > LEASE.mul_f64(0.8) {
                counts.late.fetch_add(1, SeqCst);
            } else {
                enter(&place).await?;
                counts.entered[n].fetch_add(1, SeqCst);
            }
            if lease.release().await.is_err() {
                counts.failed.fetch_add(1, SeqCst);
            }
        } else if tried.is_err() {
            counts.failed.fetch_add(1, SeqCst);
        }
        // Its authors' advice: whoever releases and acquires at once has an advantage.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A place for one.
async fn enter(place: &Path) -> Result<()> {
    File::create_new(place).context("two were inside")?;
    tokio::time::sleep(Duration::from_millis(5)).await;
    fs::remove_file(place)?;
    Ok(())
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        ensure!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn contend(endpoint: &str, seconds: f64) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let counts = Arc::new(Counts::default());
    let start = |n| contender(endpoint.to_owned(), n, directory.path().join("inside"), Arc::clone(&counts));
    let contenders = [tokio::spawn(start(0)), tokio::spawn(start(1))];
    eventually("both have entered", || counts.entered.iter().all(|count| count.load(SeqCst) > 0)).await?;
    println!("contending");
    tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new())).await??;
    let (before, started) = (counts.sum(), Instant::now());
    let is_over = || started.elapsed().as_secs_f64() > seconds && counts.sum() > before + 5;
    eventually("entered again", is_over).await?;
    let took = started.elapsed().as_secs_f64();
    counts.over.store(true, SeqCst);
    for contender in contenders {
        contender.await??;
    }
    let [one, other] = [0, 1].map(|n| counts.entered[n].load(SeqCst));
    let (last, late, failed) = (counts.sum() - before, counts.late.load(SeqCst), counts.failed.load(SeqCst));
    println!(
        "contended: {one} + {other} tenures, {last} of them in the last {took:.1} s, {late} came too late, {failed} calls failed"
    );
    Ok(())
}

async fn version(sdk: &Client, key: &str) -> Result<Option<AttributeValue>> {
    let get = sdk.get_item().table_name(TABLE).key("key", AttributeValue::S(key.to_owned())).consistent_read(true);
    Ok(get.send().await?.item.and_then(|mut item| item.remove("lease_version")))
}

async fn main_of(endpoint: &str, seconds: f64) -> Result<()> {
    let sdk = sdk(endpoint);
    create_table(&sdk).await?;
    contend(endpoint, seconds).await?;

    let (one, other) = (leases(endpoint).await?, leases(endpoint).await?);
    let lease = one.acquire("renewed").await?;
    let first = version(&sdk, "renewed").await?;
    tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
    let later = version(&sdk, "renewed").await?;
    ensure!(lease.is_healthy() && first.is_some() && later.is_some() && first != later, "renewed");
    ensure!(other.try_acquire("renewed").await?.is_none(), "one holds it");
    lease.release().await?;
    ensure!(version(&sdk, "renewed").await?.is_none(), "a release deletes");
    other.try_acquire("renewed").await?.context("it was free")?.release().await?;
    println!("renewed for longer than its lease; released with deletion; acquired by another");

    let scanned = sdk.scan().table_name(TABLE).send().await?;
    ensure!(scanned.count == 0, "{scanned:?}");
    let status = Command::new(env::current_exe()?).args([endpoint, "0", "die"]).status()?;
    ensure!(!status.success(), "it was to die");
    let came = Instant::now();
    let taken = one.acquire("dead").await?;
    let took = came.elapsed().as_secs_f64();
    println!(
        "dead holder: lease {LEASE_SECONDS} s; a caller that came 0.0 s after its death had the lock {took:.2} s later"
    );
    taken.release().await
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [endpoint, seconds, flags @ ..] = &arguments[..] else {
        anyhow::bail!("usage: dynamodb-clients ENDPOINT SECONDS [plain]");
    };
    if flags.iter().any(|flag| flag == "die") {
        let _lease = leases(endpoint).await?.acquire("dead").await?;
        io::stdout().flush()?;
        process::exit(1);
    }
    main_of(endpoint, seconds.parse()?).await
}
