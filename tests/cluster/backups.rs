//! Drills: backups under load, the loss of everything, and clusters made from a backup or from what is left of a node.
//!
//! Resources check tokens by a fence on disk, which persists through all of it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper::{
    client::{Client, Guard, Loss, NewData, Session, SessionOptions},
    fence::{Disk, Error, Fence, Hold, Token},
    local::LocalCluster,
    machine::{Data, LockName, Mode, Want},
    proto::v1::{SaveSnapshotRequest, maintenance_client::MaintenanceClient},
};
use lockkeeper_etcd::proto::{
    etcdserverpb::{
        Compare, LeaseGrantRequest, PutRequest, RequestOp, TxnRequest,
        compare::{CompareTarget, TargetUnion},
        kv_client::KvClient,
        lease_client::LeaseClient,
        request_op::Request as EtcdRequest,
    },
    v3lockpb::{LockRequest, lock_client::LockClient},
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{task::JoinSet, time::timeout};
use tonic::{Code, transport::Channel};

use super::terminal::Terminal;
use crate::{
    redis::{Connection, Reply},
    support::{LONG, client, cluster, cluster_of, cluster_with, leader, lockkeeper, long_session, output, text, until},
    zookeeper::{JuteConnection, JuteRequest, JuteSession},
};

/// The TTL of a holder that is lost with its cluster: its lock stays closed for this time after a restore.
const SHORT: Duration = Duration::from_secs(8);

/// The lease of a client of Redis, milliseconds. It is not over when the test is.
const LEASE_MS: &str = "600000";

/// Runs the program. Returns its exit code, stdout and stderr.
async fn run(arguments: &[&str]) -> (i32, String, String) {
    text(&output(&mut lockkeeper(arguments)).await)
}

/// Runs the program with `-o json`; it must succeed.
async fn document(arguments: &[&str]) -> Value {
    let (code, out, said) = run(&[arguments, &["-o", "json"]].concat()).await;
    assert_eq!(code, 0, "{arguments:?}: {said}");
    serde_json::from_str(&out).expect("a document")
}

fn number(document: &Value, field: &str) -> u64 {
    document[field].as_u64().unwrap_or_else(|| panic!("{field} in {document}"))
}

async fn session_of(client: &Client, ttl: Duration) -> Session {
    client.open(SessionOptions { ttl, label: "drill".to_owned() }).await.expect("a session")
}

fn fence(directory: &TempDir) -> Fence<Disk> {
    Fence::open(Disk::open(directory.path()).expect("its files are in order")).expect("its tokens are read")
}

/// Writes to the resource under this token; it must be admitted.
async fn write(fence: &Fence<Disk>, resource: &str, token: Token) {
    if let Err(error) = fence.admit(resource, token, Hold::Exclusive).await {
        panic!("the new holder's token {token:?} is not above the tokens that {resource} has seen: {error}");
    }
}

/// A write of an earlier holder; it must be refused.
async fn refuses(fence: &Fence<Disk>, resource: &str, token: Token) {
    let late = fence.admit(resource, token, Hold::Exclusive).await;
    assert!(matches!(late, Err(Error::Refused(_))), "the late write of {token:?} at {resource} passed: {late:?}");
}

/// Clients that acquire and release a lock each, for as long as they are not dropped; and the highest token that they got.
struct Load {
    _workers: JoinSet<()>,
    highest: Arc<AtomicU64>,
}

impl Load {
    async fn start(cluster: &LocalCluster) -> Self {
        // Names of its own: those of an earlier load may be held in a cluster that was made from its data, by sessions that live on.
        static LOADS: AtomicU64 = AtomicU64::new(0);
        let load = LOADS.fetch_add(1, Ordering::Relaxed);
        let mut workers = JoinSet::new();
        let highest = Arc::new(AtomicU64::new(0));
        for worker in 0..4 {
            let session = long_session(&client(cluster)).await;
            let highest = Arc::clone(&highest);
            workers.spawn(async move {
                let name = format!("load/{load}/{worker}");
                while let Ok(held) = session.acquire(&name).await {
                    highest.fetch_max(held.token().0, Ordering::SeqCst);
                    if held.release().await.is_err() {
                        break;
                    }
                }
            });
        }
        Self { _workers: workers, highest }
    }

    fn highest(&self) -> u64 {
        self.highest.load(Ordering::SeqCst)
    }

    /// Waits until another 100 grants were made.
    async fn goes_on(&self) {
        let before = self.highest();
        until("further grants", async || (self.highest() >= before + 100).then_some(())).await;
    }
}

/// Ends all nodes as a fire would, with the data of these.
async fn lose(cluster: &mut LocalCluster, ids: &[u64]) {
    cluster.kill().await;
    for id in ids {
        fs::remove_dir_all(&cluster.node(*id).config().data_dir).expect("removed");
    }
}

/// Starts the nodes of a cluster on the directories that the program has made, under the new cluster id.
async fn start_on(cluster: &mut LocalCluster, made: &Value) {
    let new = made["cluster_id"].as_str().expect("an id");
    for node in made["nodes"].as_array().expect("nodes") {
        let node_id = number(node, "node_id");
        let config = cluster.node(node_id).config().clone();
        let _ = fs::remove_dir_all(&config.data_dir);
        fs::rename(node["data_dir"].as_str().expect("a path"), &config.data_dir).expect("on one file system");
        let file = cluster.node(node_id).config_file();
        let text = fs::read_to_string(file).expect("readable");
        let old = text.lines().find(|line| line.starts_with("cluster_id = ")).expect("it names its cluster");
        fs::write(file, text.replace(old, &format!("cluster_id = {new:?}"))).expect("written");
        cluster.node_mut(node_id).spawn().expect("it starts");
    }
    cluster.ready(LONG).await.expect("the new cluster serves");
}

/// A lock is granted again at last; returns the time since `client` first asked for it.
async fn acquire_again(client: &Client, name: &str) -> Guard {
    let session = long_session(client).await;
    timeout(LONG, session.acquire(name).into_future()).await.expect("in time").expect("granted")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_old_holders_are_fenced_out_and_fences_go_on() {
    let mut cluster = cluster().await;
    let aside = tempfile::tempdir().expect("a directory");
    let fences = tempfile::tempdir().expect("a directory");
    let resources = fence(&fences);
    let before = client(&cluster);
    let lasting = long_session(&client(&cluster)).await;
    let load = Load::start(&cluster).await;
    let early = session_of(&before, SHORT).await.acquire("early").data(b"kept").keep_data().await.expect("free");
    write(&resources, "early", early.token()).await;
    load.goes_on().await;

    // Saved in the middle, from a follower.
    let follower = leader(&cluster).await % 3 + 1;
    let known = load.highest();
    let file = aside.path().join("backup");
    let file = file.to_str().expect("text");
    let endpoint = cluster.node(follower).endpoint();
    let saved = document(&["snapshot", "save", file, "--endpoints", &endpoint]).await;
    let inspected = document(&["snapshot", "inspect", file]).await;
    assert_eq!((&saved["log_index"], &saved["bytes"]), (&inspected["log_index"], &inspected["bytes"]));
    assert_eq!(number(&saved, "node_id"), follower);
    let copied = number(&inspected, "last_token");
    assert!(copied >= known, "token {known} was granted before the save, and the backup ends at {copied}");
    assert!(number(&inspected, "locks") >= 1 && number(&inspected, "sessions") >= 6, "{inspected}");

    // The cluster goes on: grants that the backup does not know.
    load.goes_on().await;
    let late = lasting.acquire("late").await.expect("free");
    write(&resources, "late", late.token()).await;
    assert!(late.token().0 > copied);
    let highest = load.highest().max(late.token().0);

    lose(&mut cluster, &[1, 2, 3]).await;
    drop(load);
    drop(resources);
    let made = aside.path().join("made");
    let restore =
        ["snapshot", "restore", file, "--cluster-id", "again", "--now", "--data-dir", made.to_str().expect("text")];
    let made = document(&[&restore[..], &["--member", "1", "--member", "2", "--member", "3"]].concat()).await;
    assert_eq!(number(&made, "copied_last_token"), copied);
    start_on(&mut cluster, &made).await;
    let resources = fence(&fences);

    // A lock that was granted after the backup is free, and its former holder knows that it has lost it.
    let after = client(&cluster);
    let held = acquire_again(&after, "late").await;
    write(&resources, "late", held.token()).await;
    refuses(&resources, "late", late.token()).await;
    assert!(
        held.token().0 >= number(&made, "first_token") && number(&made, "first_token") > highest,
        "{:?}",
        held.token()
    );
    let loss = timeout(LONG, late.lost()).await.expect("it is told");
    assert_eq!(loss, Loss::Unknown, "a session that was alive in the backup has no client any more");

    // A lock that was held in the backup stays closed for the TTL of its holder, and keeps its data.
    assert!(early.loss().is_some() || timeout(LONG, early.lost()).await.is_ok());
    let found = after.get("early").await.expect("it answers").lock;
    assert_eq!(found.data.as_deref(), Some(&b"kept"[..]));
    let held = acquire_again(&after, "early").await;
    write(&resources, "early", held.token()).await;
    refuses(&resources, "early", early.token()).await;
    Load::start(&cluster).await.goes_on().await;
}

/// All files below a directory, with their bytes.
fn content(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files.extend(content(&path));
        } else {
            files.push((path.clone(), fs::read(&path).expect("readable")));
        }
    }
    files.sort();
    files
}

async fn etcd_lease(channel: &Channel) -> Option<i64> {
    let granted = LeaseClient::new(channel.clone()).lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await;
    Some(granted.ok()?.into_inner().id)
}

async fn etcd_channel(address: &str) -> Option<Channel> {
    Channel::from_shared(format!("http://{address}")).expect("a URL").connect().await.ok()
}

/// Takes a lock of etcd's lock service.
async fn lock_at_etcd(address: &str, name: &[u8]) -> Option<()> {
    let channel = etcd_channel(address).await?;
    let lease = etcd_lease(&channel).await?;
    LockClient::new(channel).lock(LockRequest { name: name.to_vec(), lease }).await.ok().map(drop)
}

/// Creates a key with a lease if there is none from it on to the end, as etcd's clients lock by hand. Without an end, the key alone counts.
async fn create_at_etcd(address: &str, key: &[u8], end: &[u8]) -> Option<()> {
    let channel = etcd_channel(address).await?;
    let lease = etcd_lease(&channel).await?;
    let never = Some(TargetUnion::CreateRevision(0));
    let absent = Compare {
        key: key.to_vec(),
        range_end: end.to_vec(),
        target: CompareTarget::Create.into(),
        target_union: never,
        ..Compare::default()
    };
    let put = PutRequest { key: key.to_vec(), lease, ..PutRequest::default() };
    let success = vec![RequestOp { request: Some(EtcdRequest::RequestPut(put)) }];
    let txn = TxnRequest { compare: vec![absent], success, ..TxnRequest::default() };
    let answer = KvClient::new(channel).txn(txn).await.ok()?;
    answer.into_inner().succeeded.then_some(())
}

/// Creates an ephemeral node, as ZooKeeper's clients lock by hand.
async fn create_ephemeral(address: &str, path: &str) -> Option<()> {
    const EPHEMERAL: i32 = 1;
    let session = JuteSession::fresh(40_000);
    let mut connection = JuteConnection::connect(address, &session).await.ok()??;
    let reply = connection.call(&JuteRequest::create(path, b"", EPHEMERAL)).await?;
    reply.answer.ok().map(drop)
}

/// The backup does not know the lock, and its holder, cut off from everything, trusts it for its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_grants_nothing_while_a_holder_of_the_old_one_may_trust_its_lock() {
    let mut cluster = cluster_with(|options| {
        options.nodes = Some(1);
        options.etcd = true;
        options.redis = true;
        options.zookeeper = true;
    })
    .await;
    let aside = tempfile::tempdir().expect("a directory");
    let at = |name: &str| aside.path().join(name).to_str().expect("text").to_owned();
    let file = at("backup");
    let endpoint = cluster.node(1).endpoint();
    until("a lock of Redis' clients", async || {
        let mut redis = Connection::open(&cluster.redis_endpoints()[0]).await?;
        redis.call(&["SET", "kept", "its holder", "NX", "PX", LEASE_MS]).await
    })
    .await;
    document(&["snapshot", "save", &file, "--endpoints", &endpoint]).await;
    let late = session_of(&client(&cluster), SHORT).await.acquire("late").await.expect("free");
    lose(&mut cluster, &[1]).await;

    let restore = async |name: &str, closed: &[&str]| {
        let base = ["snapshot", "restore", &file, "--member", "1", "--cluster-id", "again", "--data-dir"];
        document(&[&base[..], &[&at(name)], closed].concat()).await
    };
    // The longest TTL that any session can have, unless the operator knows better.
    assert_eq!(number(&restore("default", &[]).await, "closed_ms"), 24 * 60 * 60 * 1000);
    assert_eq!(number(&restore("now", &["--now"]).await, "closed_ms"), 0);
    let both = ["snapshot", "restore", &file, "--member", "1", "--now", "--closed-for", "1s"];
    let (code, _, said) = run(&[&both[..], &["--cluster-id", "again", "--data-dir", &at("both")]].concat()).await;
    assert!(code == 2 && said.contains("--closed-for"), "{said}");

    let closed_for = format!("{}ms", SHORT.as_millis());
    let made = restore("made", &["--closed-for", &closed_for]).await;
    assert_eq!(u128::from(number(&made, "closed_ms")), SHORT.as_millis());
    let begun = Instant::now();
    start_on(&mut cluster, &made).await;
    let after = client(&cluster);
    // The holder of a lock that the backup knows may have been late when the cluster was lost: then another one had the lock by then.
    let renewal = async {
        until("a renewal", async || {
            let mut redis = Connection::open(&cluster.redis_endpoints()[0]).await?;
            (redis.call(&["PEXPIRE", "kept", LEASE_MS]).await? == Reply::Number(1)).then_some(())
        })
        .await;
        begun.elapsed()
    };
    // Redis' clients lock with hashes, too, which claim no lock.
    let hash = async {
        until("a hash", async || {
            let mut redis = Connection::open(&cluster.redis_endpoints()[0]).await?;
            let told = redis.call(&["HSET", "late", "holder", "1"]).await?;
            (told == Reply::Number(1)).then_some(())
        })
        .await;
        begun.elapsed()
    };
    // A key that is too long to be a lock's name, or not text, has a name that is made from it.
    let long = "long".repeat(150);
    let queue = async {
        until("a lock of etcd's", async || lock_at_etcd(&cluster.etcd_endpoints()[0], long.as_bytes()).await).await;
        begun.elapsed()
    };
    let key = async {
        until("a key of etcd's clients", async || create_at_etcd(&cluster.etcd_endpoints()[0], b"late\xff", b"").await)
            .await;
        begun.elapsed()
    };
    let range = async {
        until("a key under a range", async || {
            create_at_etcd(&cluster.etcd_endpoints()[0], b"seats/A5", b"seats0").await
        })
        .await;
        begun.elapsed()
    };
    let node = async {
        let path = format!("/{long}");
        until("a node of ZooKeeper's", async || create_ephemeral(&cluster.zookeeper_endpoints()[0], &path).await).await;
        begun.elapsed()
    };
    let lock = async {
        drop(acquire_again(&after, "late").await);
        begun.elapsed()
    };
    let (lock, hash, renewal, queue, key, range, node) = tokio::join!(lock, hash, renewal, queue, key, range, node);
    assert!(lock >= SHORT && hash >= SHORT, "granted after {lock:?}, a hash written after {hash:?}");
    assert!(
        queue >= SHORT && key >= SHORT && node >= SHORT,
        "queue, key and node with a name that is made from them after {queue:?}, {key:?}, {node:?}"
    );
    assert!(range >= SHORT, "a key that a compare of a range names after {range:?}");
    assert!(renewal >= SHORT, "renewed after {renewal:?}");
    drop(late);

    // Operators see them.
    let seen = after.list("", "").await.expect("it answers").locks;
    for (start, mark) in
        [("etcd/longlong", "%#"), ("etcd/late%ff", "%#"), ("etcd/seats/A5", ""), ("zookeeper/longlong", "%#")]
    {
        let mut names = seen.iter().map(|lock| lock.name.as_str());
        assert!(names.any(|name| name.starts_with(start) && name.contains(mark)), "no {start}…{mark} in {seen:?}");
    }
}

/// Last night's backup, restored on Monday and again on Tuesday: a holder of Monday's cluster that was paused does not pass on Tuesday.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_backup_restored_twice_makes_two_clusters_that_issue_nothing_twice() {
    let mut cluster = cluster_of(1).await;
    let aside = tempfile::tempdir().expect("a directory");
    let fences = tempfile::tempdir().expect("a directory");
    let at = |name: &str| aside.path().join(name).to_str().expect("text").to_owned();
    let file = at("backup");
    let endpoint = cluster.node(1).endpoint();
    document(&["snapshot", "save", &file, "--endpoints", &endpoint]).await;

    let mut tokens = Vec::new();
    let mut indexes = Vec::new();
    for day in ["monday", "tuesday"] {
        lose(&mut cluster, &[1]).await;
        let made = at(day);
        let made = ["snapshot", "restore", &file, "--member", "1", "--cluster-id", day, "--now", "--data-dir", &made];
        let made = document(&made).await;
        start_on(&mut cluster, &made).await;
        tokens.push(acquire_again(&client(&cluster), "held").await.token());
        indexes.push(number(&made, "log_index"));
    }
    assert!(tokens[0] < tokens[1] && indexes[0] < indexes[1], "{tokens:?}, {indexes:?}");
    assert!(
        tokens[1].0 < 1 << 53 && indexes[1] < 1 << 50,
        "JSON and new members take no more: {tokens:?}, {indexes:?}"
    );

    let resources = fence(&fences);
    write(&resources, "held", tokens[1]).await;
    refuses(&resources, "held", tokens[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_its_majority_is_made_anew_from_the_node_that_is_left() {
    let mut cluster = cluster().await;
    let aside = tempfile::tempdir().expect("a directory");
    let fences = tempfile::tempdir().expect("a directory");
    let resources = fence(&fences);
    let before = client(&cluster);
    let load = Load::start(&cluster).await;
    let old = session_of(&before, SHORT).await.acquire("held").data(b"kept").keep_data().await.expect("free");
    write(&resources, "held", old.token()).await;
    load.goes_on().await;
    let data_dir = |cluster: &LocalCluster, id| cluster.node(id).config().data_dir.to_str().expect("text").to_owned();
    let (code, _, said) = run(&["recover", "--data-dir", &data_dir(&cluster, 1), "--inspect"]).await;
    assert!(code == 2 && said.contains("is in use by another process: stop the node first"), "{said}");

    // Of all copies, the one with the highest term and then index has all that was acknowledged. It is the one that is left.
    cluster.kill().await;
    let highest = load.highest();
    drop((load, resources));
    let mut found = Vec::new();
    for id in 1..=3 {
        found.push(document(&["recover", "--data-dir", &data_dir(&cluster, id), "--inspect"]).await);
    }
    found.sort_by_key(|found| (number(found, "log_term"), number(found, "log_index")));
    let best = found.pop().expect("there are three");
    assert!(number(&best, "last_token") >= highest, "token {highest} was granted, and the best copy is {best}");
    assert!(
        number(&best, "committed_index") <= number(&best, "log_index") && best["shortfall"] == Value::Null,
        "{best}"
    );
    let left = number(&best, "node_id");
    let lost: Vec<u64> = (1..=3).filter(|id| *id != left).collect();
    lose(&mut cluster, &lost).await;

    let directory = data_dir(&cluster, left);
    let into = aside.path().join("made");
    let files = content(Path::new(&directory));
    let force = [
        "recover",
        "--data-dir",
        &directory,
        "--force-new-cluster",
        "--cluster-id",
        "again",
        "--now",
        "-o",
        "json",
        "--into",
    ];
    let members = ["--member", "1", "--member", "2", "--member", "3"];
    let (code, out, said) = run(&[&force[..], &[into.to_str().expect("text")], &members[..]].concat()).await;
    assert!(code == 0 && said.contains("entries that were acknowledged after it are lost"), "{said}");
    assert!(content(Path::new(&directory)) == files, "the old directory was changed");
    let made: Value = serde_json::from_str(&out).expect("a document");
    start_on(&mut cluster, &made).await;

    let resources = fence(&fences);
    let held = acquire_again(&client(&cluster), "held").await;
    write(&resources, "held", held.token()).await;
    refuses(&resources, "held", old.token()).await;
    assert!(held.token().0 >= number(&made, "first_token") && number(&made, "first_token") > highest);
    Load::start(&cluster).await.goes_on().await;
}

/// An older copy of one node, started with the one that was away, while the third, which has all that was acknowledged, is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_disagree_are_compared_and_the_newest_makes_the_new_cluster() {
    let mut cluster = cluster().await;
    let aside = tempfile::tempdir().expect("a directory");
    let data_dir = |cluster: &LocalCluster, id| cluster.node(id).config().data_dir.to_str().expect("text").to_owned();
    let kept = leader(&cluster).await;
    let copied = kept % 3 + 1;
    let away = (kept + 1) % 3 + 1;
    let hold = async |cluster: &LocalCluster, name: &str| {
        let session = session_of(&client(cluster), SHORT).await;
        std::mem::forget(session.acquire(name).data(b"kept").keep_data().await.expect("free"));
    };
    hold(&cluster, "first").await;
    for id in [away, copied] {
        cluster.node_mut(id).stop().await.expect("it ran");
    }
    let older = aside.path().join("older").to_str().expect("text").to_owned();
    let copy = async |from: &str, to: &str| {
        let copied = tokio::process::Command::new("cp").args(["-r", from, to]).status().await.expect("it runs");
        assert!(copied.success(), "{from} to {to}");
    };
    copy(&data_dir(&cluster, copied), &older).await;
    cluster.node_mut(copied).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("two of three serve");
    hold(&cluster, "second").await;
    until("both have applied it", async || {
        let statuses = cluster.statuses().await;
        let one = statuses.get(&kept)?;
        let other = statuses.get(&copied)?;
        (one.applied_index >= other.committed_index.max(one.committed_index)).then_some(())
    })
    .await;

    cluster.kill().await;
    fs::remove_dir_all(data_dir(&cluster, copied)).expect("removed");
    copy(&older, &data_dir(&cluster, copied)).await;
    for id in [copied, away] {
        cluster.node_mut(id).spawn().expect("it starts");
    }
    cluster.ready(LONG).await.expect("nobody knows better");
    hold(&cluster, "third").await;
    // Either finds out: the copy lacks a start that the other remembers, or the other has applied what the leader lacks.
    cluster.node_mut(kept).spawn().expect("it starts");
    let (ended, status) = timeout(LONG, cluster.next_death()).await.expect("two tables are not served");
    let tail = cluster.node(ended).log_tail();
    assert!(status.code() == Some(25) && [kept, copied].contains(&ended), "node {ended}: {status}: {tail}");
    assert!(tail.contains("`lockkeeper recover --data-dir DIR --inspect`"), "{tail}");

    cluster.kill().await;
    let own = document(&["recover", "--data-dir", &data_dir(&cluster, copied), "--inspect"]).await;
    let newest = document(&["recover", "--data-dir", &data_dir(&cluster, kept), "--inspect"]).await;
    let remembered = newest["remembered"].as_array().expect("members").iter();
    let remembered = remembered.clone().find(|peer| number(peer, "node_id") == copied).expect("it acknowledged");
    assert!(remembered["start"].is_string() && remembered["start"] != own["start"], "{newest} {own}");
    let made = aside.path().join("made").to_str().expect("text").to_owned();
    let from = data_dir(&cluster, kept);
    let members = ["--member", "1", "--member", "2", "--member", "3"];
    let recover =
        ["recover", "--data-dir", &from, "--force-new-cluster", "--cluster-id", "again", "--now", "--into", &made];
    let made = document(&[&recover[..], &members].concat()).await;
    start_on(&mut cluster, &made).await;
    let found = client(&cluster).get("second").await.expect("it answers").lock;
    assert_eq!(found.data.as_deref(), Some(&b"kept"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_restored_is_refused_and_nothing_is_changed() {
    let cluster = cluster_of(1).await;
    let aside = tempfile::tempdir().expect("a directory");
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire("held").await.expect("free");
    let at = |name: &str| aside.path().join(name).to_str().expect("text").to_owned();
    let file = at("backup");
    let made = at("made");
    let endpoint = cluster.node(1).endpoint();
    document(&["snapshot", "save", &file, "--endpoints", &endpoint]).await;

    // The file is not overwritten by chance.
    let bytes = fs::read(&file).expect("readable");
    let (code, _, said) = run(&["snapshot", "save", &file, "--endpoints", &endpoint]).await;
    assert!(code == 2 && said.contains("exists: name another file, or replace it with --force"), "{said}");
    assert_eq!(fs::read(&file).expect("readable"), bytes);
    document(&["snapshot", "save", &file, "--force", "--stale", "--endpoints", &endpoint]).await;
    let (code, piped, _) = run(&["snapshot", "save", "-", "--endpoints", &endpoint]).await;
    assert!(code == 0 && piped.len() > 100);
    assert_eq!(fs::read_dir(aside.path()).expect("readable").count(), 1, "something was left behind");

    let restore = async |arguments: &[&str]| {
        let base = ["snapshot", "restore", "--member", "1", "--data-dir", &made];
        run(&[&base[..], arguments].concat()).await
    };
    let own = cluster.node(1).config().cluster_id.clone();
    for (arguments, code, says) in [
        (&[&*file, "--cluster-id", &own][..], 2, "is the id of the copied cluster"),
        (&[&*file, "--cluster-id", "a b"], 2, "a cluster id is 1 to 64 of a-z"),
        (&[&*file, "--cluster-id", "new", "--first-token", "1"], 2, "the first token 1 is not above 1, the last token"),
        (&[&*file, "--cluster-id", "new", "--member", "7"], 2, "the copy has no member 7: give its addresses"),
        (&["--cluster-id", "new", "--empty"], 2, "--first-token"),
        (&["/nonexistent", "--cluster-id", "new"], 2, "cannot read /nonexistent"),
    ] {
        let (exit, _, said) = restore(arguments).await;
        assert!(exit == code && said.contains(says), "{arguments:?}: {exit}: {said}");
        assert!(!Path::new(&made).exists());
    }
    let mut damaged = fs::read(&file).expect("readable");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let bad = at("bad");
    fs::write(&bad, &damaged).expect("written");
    let (code, _, said) = restore(&[&bad, "--cluster-id", "new"]).await;
    assert!(code == 1 && said.contains("is damaged: from byte 8 on, a checksum does not match"), "{said}");
    let (code, _, said) = run(&["snapshot", "inspect", "/bin/sh"]).await;
    assert!(code == 2 && said.contains("/bin/sh is not a backup"), "{said}");

    // A directory with anything in it stays as it is.
    fs::create_dir(&made).expect("made");
    fs::write(Path::new(&made).join("photo"), "precious").expect("written");
    let (code, _, said) = restore(&[&file, "--cluster-id", "new"]).await;
    assert!(code == 2 && said.contains("is not empty: name another one"), "{said}");
    assert_eq!(content(Path::new(&made)).len(), 1);
    assert!(held.loss().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_cluster_begins_with_the_first_token_that_it_was_given() {
    let mut cluster = cluster_of(1).await;
    let aside = tempfile::tempdir().expect("a directory");
    let config = cluster.node(1).config().clone();
    lose(&mut cluster, &[1]).await;
    let made = aside.path().join("made");
    let member = format!("1={},{}", config.peer_listen, config.client_listen);
    let empty = ["snapshot", "restore", "--empty", "--first-token", "1000000", "--cluster-id", "anew", "--now"];
    let made = [&empty[..], &["--member", &member, "--data-dir", made.to_str().expect("text")]].concat();
    let made = document(&made).await;
    start_on(&mut cluster, &made).await;
    let held = acquire_again(&client(&cluster), "first").await;
    assert_eq!(held.token(), Token(1_000_000));
    // It is a data directory like any other.
    held.release().await.expect("it was held");
    cluster.stop().await;
    cluster.node_mut(1).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("it serves again");
    assert_eq!(acquire_again(&client(&cluster), "second").await.token(), Token(1_000_001));
}

/// Two backups that nobody reads keep others out, but not the rest of the service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_sends_two_backups_at_a_time() {
    const LOCKS: usize = 64;
    let cluster = cluster_of(1).await;
    let session = long_session(&client(&cluster)).await;
    // More than the windows of a connection hold.
    let held: Vec<_> = futures::future::join_all((0..16).map(async |part| {
        let want = |number| Want {
            name: LockName::new(&format!("big/{part}/{number}")).expect("short"),
            mode: Mode::Exclusive,
            data: Some(Data::new(&[7; 16 * 1024]).expect("as much as there may be")),
            keep_data: false,
            must_exist: false,
        };
        session.acquire_wants((0..LOCKS).map(want).collect()).await.expect("free")
    }))
    .await;
    let mut asked = MaintenanceClient::new(cluster.node(1).channel().await.expect("it serves"));
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(asked.save_snapshot(SaveSnapshotRequest::default()).await.expect("it is sent").into_inner());
    }
    let refused = asked.save_snapshot(SaveSnapshotRequest::default()).await.expect_err("a third one");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("sends 2 backups already, the limit"), "{refused:?}");
    session.acquire("small").await.expect("free").release().await.expect("it was held");

    // One of them is read after all, and its place becomes free.
    let mut bytes = 0;
    let mut pieces = open.pop().expect("there are two");
    while let Some(piece) = pieces.message().await.expect("it goes on") {
        assert!(piece.data.len() <= 256 * 1024);
        bytes += piece.data.len();
    }
    assert!(bytes > 16 * LOCKS * 16 * 1024, "{bytes}");
    until("a free place", async || asked.save_snapshot(SaveSnapshotRequest::default()).await.ok()).await;
    drop((open, held));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_shows_its_progress_on_a_terminal_and_nowhere_else() {
    let cluster = cluster_of(1).await;
    let session = long_session(&client(&cluster)).await;
    // More than a pipe holds, and the streams before it.
    let mut held = Vec::new();
    for number in 0..64 {
        let name = format!("large/{number}");
        let guard = session.acquire(&name).await.expect("it is free");
        guard.update(&name, NewData::Held(&[b'd'; 16 * 1024])).await.expect("it is held");
        held.push(guard);
    }
    // The reader takes nothing before a line is typed: the save is under way for as long.
    let script = "$LOCKKEEPER snapshot save - | { read line < /dev/tty; wc -c; }; echo over";
    let Some(mut terminal) = Terminal::open(&cluster, script).await else { return };
    terminal.shows("lockkeeper: saving: ").await;
    terminal.shows(" a second").await;
    terminal.types("go\n").await;
    terminal.shows("over").await;
    terminal.ends_with(0).await;

    // Longer than the second after which a line would be shown.
    let script = "($LOCKKEEPER snapshot save - 2>&3 | { sleep 2; cat >/dev/null; }) 3>&1 | { read said || echo nothing was said; }";
    let Some(mut terminal) = Terminal::open(&cluster, script).await else { return };
    terminal.shows("nothing was said").await;
}
