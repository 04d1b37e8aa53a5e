//! The console in a real browser, against a real cluster.
//!
//! Pictures of the page, for eyes: `LOCKKEEPER_SCREENSHOTS=DIRECTORY scripts/nightly.sh browser`. With `LOCKKEEPER_RELEASE=PROGRAM`, a
//! release build, the large table is larger: 100,000 locks and 10,000 waiters.

#![expect(clippy::print_stderr, reason = "a test that is skipped, or waits for long, says so")]

mod acts;
mod browser;
mod past;
mod requests;
mod states;

use std::{env, fs, path::PathBuf, time::Duration};

use lockkeeper::{
    client::{Client, Guard, Session, SessionOptions},
    config::AuthConfig,
    local::{ClusterOptions, LocalCluster, Signal},
};
use lockkeeper_etcd::proto::{
    etcdserverpb::{LeaseGrantRequest, lease_client::LeaseClient},
    v3lockpb::{LockRequest, lock_client::LockClient},
};
use lockkeeper_policy::BearerToken;
use lockkeeper_types::Identity;
use tokio::task::JoinHandle;

use self::browser::Browser;
use crate::{
    support::{client, cluster_with, leader, long_session, until},
    turns,
};

const ENTER: char = '\u{E007}';
const ESCAPE: char = '\u{E00C}';
const DOWN: char = '\u{E015}';
const RIGHT: char = '\u{E014}';

/// The elections of such a cluster are those that the test causes.
async fn steady() -> LocalCluster {
    steady_with(|_| {}).await
}

async fn steady_with(change: impl FnOnce(&mut ClusterOptions)) -> LocalCluster {
    cluster_with(|options| {
        options.http = true;
        change(options);
        options.raft.election_timeout_ms_min = 1500;
        options.raft.election_timeout_ms_max = 3000;
    })
    .await
}

fn page(cluster: &LocalCluster, node: u64, at: &str) -> String {
    format!("{}/{at}", cluster.node(node).http_endpoint().expect("it is on"))
}

async fn follower(cluster: &LocalCluster) -> u64 {
    let leads = leader(cluster).await;
    (1..=3).find(|node| *node != leads).expect("three nodes")
}

async fn session(client: &Client, label: &str) -> Session {
    let options = SessionOptions { ttl: Duration::from_secs(600), label: label.to_owned() };
    client.open(options).await.expect("a session")
}

async fn hold(session: &Session, name: &str) -> Guard {
    session.acquire(name).no_wait().await.expect("it is free")
}

/// Waits for a lock in the background.
fn wait_for(session: &Session, name: &'static str) -> JoinHandle<Guard> {
    let session = session.clone();
    tokio::spawn(async move { session.acquire(name).await.expect("granted some day") })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn it_shows_who_leads_and_a_queue_that_changes_without_a_reload() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady().await;
    let leads = leader(&cluster).await;
    let node = follower(&cluster).await;
    browser.prefers("light");
    browser.open(&page(&cluster, node, ""));
    browser.shows("#view", "No lock is held").await;
    browser.shows("#pill", &format!("node {node} follows node {leads}")).await;
    browser.until("document.querySelectorAll('#members tbody tr').length === 3").await;
    browser.shows(&format!("#members tbody tr:nth-child({leads})"), "leads").await;
    browser.picture("empty-1440-light");
    browser.script("window.isTheSamePage = true");

    let client = client(&cluster);
    let ann = session(&client, "ann").await;
    let bob = session(&client, "bob").await;
    let cid = session(&client, "cid").await;
    let guard = hold(&ann, "jobs/nightly").await;
    browser.shows("#view", "jobs/").await;
    browser.shows("#feed", "jobs/nightly").await;
    let waits = wait_for(&bob, "jobs/nightly");
    browser.shows("#feed", "waits").await;
    let waits_too = wait_for(&cid, "jobs/nightly");
    browser.click("#view button.fold");
    browser.shows("#view", "nightly").await;
    browser.click("#view a[href='#/lock/jobs%2Fnightly']");
    browser.shows("#view", "held by 1").await;
    browser.shows("#view [aria-label=Holders]", "ann").await;
    browser.until("document.querySelectorAll('#view [aria-label=Queue] tbody tr').length === 2").await;
    assert!(browser.text("#view [aria-label=Queue] tbody tr:first-child").contains("bob"));
    browser.picture("lock-1440-light");

    guard.release().await.expect("released");
    browser.shows("#view [aria-label=Holders]", "bob").await;
    browser.until("document.querySelectorAll('#view [aria-label=Queue] tbody tr').length === 1").await;
    browser.shows("#feed", "released").await;
    // Bob's page says what he holds, and Cid's what he waits for.
    browser.click("#view [aria-label=Holders] a");
    browser.shows("#view [aria-label=Grants]", "jobs/nightly").await;
    browser.script("location.hash = '#/sessions'");
    browser.until("document.querySelectorAll('#view tbody tr').length === 3").await;
    browser.picture("sessions-1440-light");
    for (width, height) in [(390, 844), (768, 1024)] {
        browser.size(width, height);
        browser.script("location.hash = '#/lock/jobs%2Fnightly'");
        browser.shows("#view [aria-label=Holders]", "bob").await;
        browser.picture(&format!("lock-{width}-light"));
        let fits = browser.value("document.documentElement.scrollWidth <= window.innerWidth");
        assert_eq!(fits, true, "the page is wider than {width}");
    }
    assert_eq!(browser.value("window.isTheSamePage"), true);
    browser.assert_clean(&[]);
    drop((waits.await, waits_too));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn names_are_text_whatever_they_contain() {
    const MARKUP: &str = "<img src=x onerror=\"window.hacked=1\"></td><script>window.hacked=1</script>'\">&amp;{{7*7}}";
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady().await;
    let client = client(&cluster);
    let holder = session(&client, MARKUP).await;
    let name = format!("odd/{MARKUP}");
    browser.open(&page(&cluster, 1, ""));
    browser.until("document.querySelector('#feed')").await;
    let guard = holder.acquire(&name).no_wait().data(MARKUP.as_bytes()).await.expect("it is free");
    let backwards = holder.acquire("odd/\u{202e}sthgir-ot-tfel\n").no_wait().await.expect("it is free");
    browser.shows("#view", "odd/").await;
    browser.shows("#feed", "<img src=x").await;
    // The level ends at the slash of `</td>`.
    browser.click("#view button.fold");
    browser.shows("#view", "<img src=x onerror=\"window.hacked=1\"></").await;
    browser.shows("#view", "\\u{202e}sthgir-ot-tfel\\u{a}").await;
    browser.script(&format!("location.hash = '#/lock/' + encodeURIComponent({name:?})"));
    browser.shows("#view h1", MARKUP).await;
    browser.shows("#view [aria-label=Holders]", MARKUP).await;
    browser.shows("#view pre", MARKUP).await;
    browser.click("#view [aria-label=Holders] a");
    browser.shows("#view h1", MARKUP).await;
    browser.shows("#view [aria-label=Grants]", MARKUP).await;
    browser.script(&format!("location.hash = '#/search/' + encodeURIComponent({MARKUP:?})"));
    browser.shows("#view [aria-label='Found locks']", MARKUP).await;
    client.force_release(&name, MARKUP).now().await.expect("forced");
    browser.shows("#feed", &format!("“{MARKUP}”")).await;
    browser.picture("odd-names");
    assert_eq!(browser.value("window.hacked ?? null"), serde_json::Value::Null);
    assert_eq!(browser.value("document.querySelectorAll('img, script:not([src])').length"), 0);
    browser.assert_clean(&[]);
    drop((guard, backwards));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn a_lock_is_taken_back_with_a_reason() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady().await;
    let client = client(&cluster);
    let dead = session(&client, "dead-host").await;
    let next = session(&client, "next").await;
    let guard = hold(&dead, "jobs/nightly").await;
    let waits = wait_for(&next, "jobs/nightly");
    // A follower: the release is the leader's to do.
    browser.open(&page(&cluster, follower(&cluster).await, "#/lock/jobs%2Fnightly"));
    browser.shows("#view [aria-label=Holders]", "dead-host").await;
    browser.shows("#view [aria-label=Queue]", "next").await;
    browser.click("#view [aria-label=Holders] button.danger");
    browser.until("document.querySelector('#force').open").await;
    // Without a reason nothing happens.
    browser.click("#force-go");
    assert_eq!(browser.value("document.querySelector('#force').open"), true);
    browser.press("the host burned down");
    browser.click("#force-now");
    browser.picture("force");
    browser.click("#force-go");
    browser.until("!document.querySelector('#force').open").await;
    browser.shows("#feed", "taken back").await;
    browser.shows("#feed", "“the host burned down”").await;
    browser.shows("#view [aria-label=Holders]", "next").await;
    let loss = guard.lost().await.to_string();
    assert!(loss.contains("the host burned down"), "{loss}");
    let granted = waits.await.expect("no panic");
    assert!(granted.token() > guard.token());
    browser.assert_clean(&[]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn a_lock_of_another_protocol_opens_at_once_and_the_dialog_says_so() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady_with(|options| options.etcd = true).await;
    let endpoint = format!("http://{}", cluster.etcd_endpoints()[0]);
    let mut leases = LeaseClient::connect(endpoint.clone()).await.expect("it listens");
    let mut lock = async || {
        let granted = leases.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await.expect("a lease").into_inner();
        let mut client = LockClient::connect(endpoint.clone()).await.expect("it listens");
        let request = LockRequest { name: b"jobs".into(), lease: granted.id };
        (granted.id, tokio::spawn(async move { client.lock(request).await }))
    };
    let (first, held) = lock().await;
    held.await.expect("it runs").expect("it is free");
    let (second, waits) = lock().await;
    browser.open(&page(&cluster, follower(&cluster).await, "#/lock/etcd%2Fjobs"));
    browser.shows("#view", "entry of another protocol").await;
    browser.shows("#view [aria-label=Holders]", &format!("etcd lease {first:x}")).await;
    browser.shows("#view [aria-label=Queue]", &format!("etcd lease {second:x}")).await;
    browser.click("#view [aria-label=Holders] button.danger");
    browser.until("document.querySelector('#force').open").await;
    browser.shows("#force", "The lock opens at once: its holder is not told").await;
    browser.shows("#force", "Reason the audit trail gets it").await;
    assert_eq!(browser.value("Boolean(document.querySelector('#force-now').offsetParent)"), false, "nothing to choose");
    browser.press("it hangs");
    browser.picture("force-entry");
    browser.click("#force-go");
    browser.until("!document.querySelector('#force').open").await;
    waits.await.expect("it runs").expect("its turn");
    browser.shows("#view [aria-label=Holders]", &format!("etcd lease {second:x}")).await;
    browser.shows("#feed", "“it hangs”").await;
    browser.assert_clean(&[]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn it_says_that_it_lost_its_node_or_the_node_its_leader_and_recovers() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let mut cluster = steady().await;
    let client = client(&cluster);
    let ann = session(&client, "ann").await;
    let guard = hold(&ann, "jobs/nightly").await;
    let leads = leader(&cluster).await;
    let node = follower(&cluster).await;
    let other = 6 - leads - node;
    browser.prefers("dark");
    browser.open(&page(&cluster, node, ""));
    browser.shows("#view", "jobs/").await;
    browser.script("window.isTheSamePage = true");

    // The leader dies: another one is elected, and the page tells of both.
    cluster.node_mut(leads).kill().await;
    browser.shows("#feed", "leader").await;
    // One more loss stops it: amber.
    browser.shows("#pill", "next loss stops it").await;
    browser.shows(&format!("#members tbody tr:nth-child({leads})"), "answer").await;
    browser.picture("member-lost-1440-dark");

    // The other one too: no majority.
    cluster.node(other).pause().await;
    browser.shows("#banner", "nothing can be changed").await;
    browser.shows("#view", "jobs/").await;
    browser.picture("no-leader-1440-dark");
    cluster.node(other).signal(Signal::CONT);
    browser.shows("#pill", "next loss stops it").await;

    // The node of the page.
    cluster.node_mut(node).kill().await;
    browser.shows("#banner", &format!("No answer from node {node}")).await;
    browser.shows("#view", "jobs/").await;
    browser.picture("node-lost-1440-dark");
    browser.size(390, 844);
    browser.picture("node-lost-390-dark");
    cluster.node_mut(node).spawn().expect("it starts");
    cluster.node_mut(leads).spawn().expect("it starts");
    browser.until("document.querySelector('#banner').hidden").await;
    browser
        .until(
            "[...document.querySelectorAll('#members tbody tr')].every((row) => /leads|follows/.test(row.innerText))",
        )
        .await;
    // Its feed too.
    guard.release().await.expect("released");
    browser.shows("#feed", "released").await;
    assert_eq!(browser.value("window.isTheSamePage"), true);
    browser.assert_clean(&["Failed to load resource", "net::ERR_"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn it_is_used_by_keyboard() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady().await;
    let ann = long_session(&client(&cluster)).await;
    let _guards = (hold(&ann, "a/one").await, hold(&ann, "a/two").await, hold(&ann, "b").await);
    browser.open(&page(&cluster, 1, ""));
    browser.shows("#view", "a/").await;
    browser.press(&DOWN.to_string());
    assert_eq!(browser.value("document.activeElement.textContent"), "a/");
    browser.press(&RIGHT.to_string());
    browser.shows("#view", "two").await;
    // A focused row stays focused when the list is drawn again.
    browser.press(&format!("{DOWN}{DOWN}"));
    let drawn = browser.value("performance.getEntriesByName(location.origin + '/console/api/level').length");
    browser
        .until(&format!("performance.getEntriesByName(location.origin + '/console/api/level').length > {drawn} + 2"))
        .await;
    assert_eq!(browser.value("document.activeElement.textContent"), "two");
    let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid", "the focus is seen");
    browser.press(&ENTER.to_string());
    browser.shows("#view h1", "a/two").await;
    browser.press(&ESCAPE.to_string());
    browser.shows("#view", "b").await;
    browser.press("/");
    assert_eq!(browser.value("document.activeElement.id"), "search-text");
    browser.press(&format!("ONE{ENTER}"));
    browser.shows("#view", "a/one").await;
    assert!(!browser.text("#view").contains("two"));
    browser.press(&DOWN.to_string());
    assert_eq!(browser.value("document.activeElement.textContent"), "a/one");
    // What comes after the last of the page's elements is not lost: each can be reached by Tab, and is seen there.
    let hidden = browser.value(
        "[...document.querySelectorAll('a, button, input, select')].filter((e) => e.offsetParent && e.tabIndex < 0).length",
    );
    assert_eq!(hidden, 0);
    browser.assert_clean(&[]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn with_a_policy_it_asks_who_is_there_and_shows_what_they_may_see() {
    const POLICY: &str = r#"
[[rule]]
who = ["ops"]
may = ["acquire", "read", "watch", "force-release", "administer"]

[[rule]]
who = ["shop"]
may = ["acquire", "read", "watch"]
prefix = "seats/"
"#;
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let secret = |byte| BearerToken::from_random([byte; 32]);
    let entry = |name: &str, byte| secret(byte).entry(&Identity::new(name).expect("valid"));
    let auth = AuthConfig {
        tokens: directory.path().join("tokens.toml"),
        policy: directory.path().join("policy.toml"),
        ..AuthConfig::default()
    };
    fs::write(&auth.tokens, entry("ops", 1) + &entry("shop", 2)).expect("written");
    fs::write(&auth.policy, POLICY).expect("written");
    let cluster = steady_with(|options| options.auth = auth).await;
    let with_token = Client::builder(&cluster.endpoints().join(",")).token(secret(1).reveal());
    let ops = long_session(&with_token.build().expect("valid")).await;
    let _guards = (hold(&ops, "seats/1").await, hold(&ops, "vault").await);

    browser.open(&page(&cluster, 1, ""));
    browser.shows("#banner", "You are anonymous here").await;
    browser.shows("#view", "may not read all locks").await;
    assert!(!browser.text("body").contains("vault"));
    browser.click("#banner-action");
    browser.until("document.querySelector('#who').open").await;
    browser.picture("who");
    browser.press(&format!("wrong{ENTER}"));
    browser.shows("#banner", "not one of this node's").await;
    let become_ = |byte| {
        browser.click("#identity");
        browser.press(&format!("{}{ENTER}", secret(byte).reveal()));
    };
    become_(1);
    browser.shows("#identity", "ops").await;
    browser.shows("#view", "vault").await;
    browser.script("location.hash = '#/lock/vault'");
    browser.until("document.querySelector('#view button.danger')?.offsetParent").await;

    become_(2);
    browser.shows("#identity", "shop").await;
    browser.shows("#view", "only under \"seats/\"").await;
    browser.script("location.hash = '#/locks'");
    browser.shows("#view", "shop may not read all locks").await;
    assert!(!browser.text("#view").contains("vault"));
    browser.script("location.hash = '#/locks/seats%2F'");
    browser.shows("#view", "1").await;
    browser.script("location.hash = '#/lock/seats%2F1'");
    browser.shows("#view", "held by 1").await;
    assert_eq!(browser.value("Boolean(document.querySelector('#view button.danger')?.offsetParent)"), false);
    // Forgotten with the tab, and at once if asked.
    browser.click("#identity");
    browser.click("#who-forget");
    browser.shows("#identity", "anonymous").await;
    browser.shows("#banner", "You are anonymous here").await;
    browser.assert_clean(&["401", "403"]);
}

/// What is shown stays a page of it, and what it costs too.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn many_locks_and_a_long_queue_are_shown_a_page_at_a_time() {
    // Debug builds check the whole table now and then: that alone would take minutes with more of them.
    let release = env::var_os("LOCKKEEPER_RELEASE").map(PathBuf::from);
    let (locks, waiters) = if release.is_some() { (100_000, 10_000) } else { (20_000, 2_000) };
    let grouped = |number: usize| format!("{},{:03}", number / 1000, number % 1000);
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    // A check of the whole table, which debug builds make now and then, is no reason to elect.
    let cluster = cluster_with(|options| {
        options.http = true;
        options.program = release.unwrap_or_else(|| options.program.clone());
        options.raft.election_timeout_ms_min = 10_000;
        options.raft.election_timeout_ms_max = 20_000;
    })
    .await;
    let client = client(&cluster);
    let one = long_session(&client).await;
    let two = long_session(&client).await;
    let names: Vec<String> = (0..locks).map(|number| format!("shop/{:03}/{number:06}", number % 250)).collect();
    let mut guards = Vec::new();
    for (number, some) in names.chunks(64).enumerate() {
        let session = if number % 2 == 0 { &one } else { &two };
        guards.push(session.acquire_all(some.iter().map(String::as_str)).await.expect("granted"));
    }
    let _hot = hold(&long_session(&client).await, "hot").await;
    let mut waits = Vec::new();
    for _ in 0..waiters / 1000 {
        let session = long_session(&client).await;
        waits.extend((0..1000).map(|_| wait_for(&session, "hot")));
    }
    until("all who wait", async || {
        let leader = cluster.node(leader(&cluster).await).status().await.ok()?;
        (leader.waiters == waiters as u64).then_some(())
    })
    .await;

    browser.open(&page(&cluster, leader(&cluster).await, ""));
    browser.shows("#view", "shop/").await;
    browser.shows("#view", "1,000+ locks").await;
    browser.shows("#count-locks", &grouped(locks + 1)).await;
    let elements = || browser.value("document.querySelectorAll('*').length").as_u64().expect("a number");
    browser.click("#view button.fold");
    browser.shows("#view", &format!("{} locks", locks / 250)).await;
    browser.shows("#view", "page 1").await;
    browser.picture("many-1440");
    assert_eq!(browser.value("document.querySelectorAll('#view tr.pager-row').length"), 1);
    browser.script(
        "[...document.querySelectorAll('#view .pager button')].find((b) => b.textContent.includes('next')).click()",
    );
    browser.shows("#view", "page 2").await;
    browser.shows("#view", "100/").await;
    // All that can be opened is.
    for _ in 0..12 {
        browser.script("[...document.querySelectorAll('#view .fold[aria-expanded=false]')].at(-1)?.click()");
    }
    browser.until("document.querySelectorAll('#view tr').length > 300").await;
    assert!(elements() < 25_000, "{}", elements());
    assert_eq!(
        browser.value("document.querySelectorAll('#view .fold[aria-expanded=true]').length"),
        13,
        "all stay open"
    );

    browser.script("location.hash = '#/lock/hot'");
    browser.until("document.querySelectorAll('#view [aria-label=Queue] tbody tr').length === 100").await;
    browser.shows("#view", &grouped(waiters)).await;
    assert!(elements() < 2_000, "{}", elements());
    browser.script(
        "[...document.querySelectorAll('#view .pager button')].find((b) => b.textContent.includes('next')).click()",
    );
    browser.until("document.querySelector('#view [aria-label=Queue] tbody td').innerText === '101'").await;
    browser.picture("queue-1440");

    // A search finds one of them, and what it looks through in one call is bounded.
    browser.script(&format!("location.hash = '#/search/{:06}'", locks - 1));
    browser.shows("#view", names.last().expect("there are some")).await;
    browser.shows("#view", &format!("{} names", grouped(locks + 1))).await;
    let answers =
        "performance.getEntriesByType('resource').filter((e) => e.name.includes('/console/api/') && e.encodedBodySize)";
    let largest = browser.value(&format!("Math.max(...{answers}.map((e) => e.encodedBodySize))"));
    assert!(largest.as_u64().expect("a number") < 200_000, "an answer of {largest} bytes");
    browser.assert_clean(&[]);
    waits.iter().for_each(JoinHandle::abort);
}
