//! The console in a browser, in each state of a cluster: healthy, amber, without a quorum, with a stuck lock, after an election.

use std::time::Duration;

use lockkeeper::{client::Session, local::Signal};

use super::{DOWN, ENTER, ESCAPE, browser::Browser, follower, hold, page, past::records, session, steady, wait_for};
use crate::{
    support::{client, leader, long_session},
    turns,
};

/// Locks as in a shop: some folders, chains of single folders, a long name, and one that stands alone.
const NAMES: [&str; 12] = [
    "billing/eu/invoices/nightly",
    "billing/eu/invoices/monthly",
    "deploy/production/api",
    "deploy/production/web",
    "deploy/staging/api",
    "jobs/nightly-report",
    "jobs/cleanup",
    "migrations/orders-database-schema-version-2026-11-add-column-shipped-at",
    "search/index/rebuild",
    "seats/hall-1/row-7",
    "seats/hall-2/row-1",
    "leader-of-the-scheduler",
];

async fn held_by(session: &Session) -> Vec<lockkeeper::client::Guard> {
    let mut guards = Vec::new();
    for name in NAMES {
        guards.push(hold(session, name).await);
    }
    guards
}

/// The texts of durations, and of names, that the page cuts though it has room elsewhere.
fn cut_texts(browser: &Browser) -> String {
    let cut = browser.script(
        "return [...document.querySelectorAll('.c-time, .c-lease, .c-queue, .c-lease-bar, .grid th')]
           .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth).map((e) => e.textContent).join('|');",
    );
    cut.as_str().unwrap_or_default().to_owned()
}

fn click_fold(browser: &Browser, text: &str) {
    browser.script(&format!(
        "const fold = [...document.querySelectorAll('#view .fold')].find((e) => e.textContent === {text:?}); fold.focus(); fold.click();"
    ));
}

fn open_folders(browser: &Browser) -> u64 {
    browser.value("document.querySelectorAll('#view .fold[aria-expanded=true]').length").as_u64().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn folders_stay_open_chains_are_joined_and_the_focus_stays() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady().await;
    let ann = session(&client(&cluster), "report-worker-7").await;
    let mut guards = held_by(&ann).await;
    browser.open(&page(&cluster, 1, ""));
    browser.shows("#view", "deploy/").await;
    // A folder that has nothing but another folder in it is no step.
    browser.shows("#view", "billing/eu/invoices/").await;
    browser.shows("#view", "search/index/").await;
    browser.until("document.title.includes(': healthy') && document.title.endsWith('– Lockkeeper')").await;
    assert!(browser.text("#members-note").contains("1 can be lost"));

    for folder in
        ["billing/eu/invoices/", "jobs/", "migrations/", "search/index/", "seats/", "hall-1/", "hall-2/", "deploy/"]
    {
        browser
            .until(&format!("[...document.querySelectorAll('#view .fold')].some((e) => e.textContent === {folder:?})"))
            .await;
        click_fold(&browser, folder);
    }
    browser.shows("#view", "staging/").await;
    browser.shows("#view", "row-1").await;
    assert_eq!(open_folders(&browser), 8, "the ninth would stay open too");
    assert_eq!(browser.value("document.activeElement.textContent"), "deploy/");
    browser.pictures("healthy");
    for width in [390, 768, 1440] {
        browser.size(width, 900);
        assert_eq!(cut_texts(&browser), "", "at {width}");
    }
    browser.size(768, 1024);
    let share = browser.value(
        "document.querySelector('#view .tree td').clientWidth / document.querySelector('#view .tree').clientWidth",
    );
    assert!(share.as_f64().is_some_and(|share| share > 0.35), "the name has {share} of the table");
    browser.size(1440, 900);

    // A lock above goes, and the folders are joined otherwise: what has the focus, and what is open, stays.
    guards.remove(0).release().await.expect("it was held");
    browser.until("![...document.querySelectorAll('#view a')].some((e) => e.textContent === 'nightly')").await;
    assert_eq!(browser.value("document.activeElement.textContent"), "deploy/");
    let _other = hold(&ann, "billing/us").await;
    browser.until("[...document.querySelectorAll('#view .fold')].some((e) => e.textContent === 'eu/invoices/')").await;
    browser.shows("#view", "monthly").await;
    assert_eq!(open_folders(&browser), 9);
    assert_eq!(browser.value("document.activeElement.textContent"), "deploy/");
    browser.assert_clean(&[]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn the_search_filters_as_somebody_types() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady().await;
    let ann = session(&client(&cluster), "ann").await;
    let _guards = held_by(&ann).await;
    browser.open(&page(&cluster, 1, ""));
    browser.shows("#view", "deploy/").await;
    let before = browser.value("history.length").as_u64().expect("a number");
    browser.press("/");
    browser.press("dep");
    browser.shows("#view [aria-label='Found locks']", "deploy/production/web").await;
    browser.press("loy/s");
    browser.until("document.querySelectorAll('#view [aria-label=\"Found locks\"] tbody tr').length === 1").await;
    browser.shows("#view h1", "“deploy/s”").await;
    assert_eq!(browser.value("document.activeElement.id"), "search-text", "whoever types goes on typing");
    assert!(browser.value("location.hash").as_str().is_some_and(|hash| hash == "#/search/deploy%2Fs"));
    let after = browser.value("history.length").as_u64().expect("a number");
    assert_eq!(after, before + 1, "the texts in between are no places to come back to");
    browser.press(&format!("{DOWN}{ENTER}"));
    browser.shows("#view h1", "deploy/staging/api").await;
    browser.script("history.back()");
    browser.shows("#view h1", "“deploy/s”").await;
    assert_eq!(browser.value("document.querySelector('#search-text').value"), "deploy/s");
    browser.press(&format!("/{ESCAPE}"));
    browser.shows("#view", "leader-of-the-scheduler").await;
    browser.assert_clean(&[]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn a_stuck_lock_says_why_and_what_can_be_done() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady().await;
    let client = client(&cluster);
    let dead = session(&client, "report-worker-7").await;
    let next = session(&client, "report-worker-8").await;
    let last = session(&client, "report-worker-9").await;
    let guard = dead.acquire("jobs/nightly").no_wait().lock_delay(Duration::from_secs(300)).await.expect("it is free");
    let waits = wait_for(&next, "jobs/nightly");
    let node = follower(&cluster).await;
    browser.open(&page(&cluster, node, "#/lock/jobs%2Fnightly"));
    browser.shows("#view [aria-label=Queue]", "report-worker-8").await;
    let waits_too = wait_for(&last, "jobs/nightly");
    browser.shows("#view [aria-label=Queue]", "report-worker-9").await;
    browser.shows("#view .why", "Why this lock is stuck").await;
    for part in [
        "report-worker-7",
        "TTL 10 min 0 s",
        "2; report-worker-8 for",
        "Deadline unless renewed",
        "Its client is alive",
    ] {
        assert!(browser.text("#view .why").contains(part), "{part}: {}", browser.text("#view .why"));
    }
    browser.pictures("stuck");
    browser.size(390, 844);
    assert_eq!(browser.small_targets(), "");
    assert_eq!(cut_texts(&browser), "");
    browser.size(1440, 900);

    // The second in the queue is removed; its client is told.
    browser.script(
        "[...document.querySelectorAll('#view [aria-label=Queue] tbody tr')].at(-1).querySelector('button').click()",
    );
    browser.shows("#act", "report-worker-9 no longer waits").await;
    browser.pictures("act-remove");
    browser.size(390, 844);
    assert_eq!(browser.small_targets(), "");
    browser.size(1440, 900);
    browser.click("#act-go");
    browser.until("!document.querySelector('#act').open").await;
    browser.until("document.querySelectorAll('#view [aria-label=Queue] tbody tr').length === 1").await;
    assert!(waits_too.await.expect_err("its acquire failed").is_panic());

    // Its holder is lost by force: the lock-delay that it asked for keeps the lock closed, until it is lifted.
    browser.click("#view .acts button:not([hidden])");
    browser.until("document.querySelector('#force').open").await;
    browser.press("the host burned down");
    browser.click("#force-now");
    browser.click("#force-go");
    browser.shows("#view .why", "A lock-delay keeps the lock closed").await;
    browser.pictures("delayed");
    browser.size(1440, 900);
    browser.script(
        "[...document.querySelectorAll('#view .acts button')].find((e) => e.textContent.startsWith('Lift')).click()",
    );
    browser.shows("#act", "Only if its last holder is known to be dead").await;
    browser.click("#act-go");
    browser.shows("#view [aria-label=Holders]", "report-worker-8").await;
    let held = waits.await.expect("no panic");

    // A session is closed on its own page, with a reason.
    browser.click("#view [aria-label=Holders] a");
    browser.shows("#view h1", "report-worker-8").await;
    browser.click("#view .head button");
    browser.shows("#act", "Its lock opens at once").await;
    browser.click("#act-go");
    assert_eq!(browser.value("document.querySelector('#act').open"), true, "without a reason nothing happens");
    browser.press("it hangs");
    browser.pictures("act-close");
    browser.size(1440, 900);
    browser.click("#act-go");
    browser.shows("#view", "This session is not open").await;
    browser.assert_clean(&[]);
    drop((guard, held));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn amber_before_red_and_the_last_known_state_without_a_quorum() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let mut cluster = steady().await;
    let client = client(&cluster);
    let ann = session(&client, "report-worker-7").await;
    let leads = leader(&cluster).await;
    let node = follower(&cluster).await;
    records(&cluster, node).await;
    let guards = held_by(&ann).await;
    let bob = session(&client, "report-worker-8").await;
    let waits = wait_for(&bob, "jobs/cleanup");
    let other = 6 - leads - node;

    // An election, before anybody looks.
    cluster.node_mut(leads).kill().await;
    browser.open(&page(&cluster, node, ""));
    browser.shows("#pill", "next loss stops it").await;
    browser.shows("#banner", &format!("2 of 3 voters are well, 2 are needed: node {leads} is missing")).await;
    browser.until("document.title.startsWith('⚠ ') && document.title.includes(': next loss stops it')").await;
    browser.shows("#feed", "granted").await;
    browser.until("document.querySelectorAll('#graphs .election').length >= 2 * 4").await;
    browser.until("[...document.querySelectorAll('#feed .k-leader')].length >= 2").await;
    browser.until("document.querySelector('#graphs .lead').getAttribute('d').includes('L')").await;
    browser.pictures("amber-after-an-election");
    browser.size(390, 844);
    assert_eq!(browser.small_targets(), "");
    browser.size(1440, 900);

    // And the next one.
    cluster.node(other).pause().await;
    browser.shows("#banner", "nothing can be changed").await;
    browser.shows("#banner", "It says since ").await;
    browser.until("document.title.startsWith('⚠ ') && document.title.includes(': no leader')").await;
    browser.pictures("no-quorum");
    browser.size(1440, 900);
    browser.script("location.hash = '#/lock/jobs%2Fcleanup'");
    browser.shows("#view [aria-label=Holders]", "report-worker-7").await;
    browser.shows("#view [aria-label=Queue]", "report-worker-8").await;
    browser.shows("#view .why", "This is what the node knew last").await;
    let offered = browser.value("[...document.querySelectorAll('#view button.danger')].filter((e) => e.checkVisibility() && !e.disabled).length");
    assert_eq!(offered, 0, "nothing that cannot be done is offered");
    browser.pictures("no-quorum-lock");

    cluster.node(other).signal(Signal::CONT);
    browser.shows("#pill", "next loss stops it").await;
    // Its own node starts again while the page is open: the graphs keep what they have.
    let marks = browser.value("document.querySelectorAll('#graphs .election').length").as_u64();
    cluster.node_mut(leads).spawn().expect("it starts");
    browser.until("document.querySelector('#banner').hidden").await;
    cluster.node_mut(node).kill().await;
    browser.shows("#banner", &format!("No answer from node {node}")).await;
    browser.until(&format!("document.title.includes('node {node} lost')")).await;
    cluster.node_mut(node).spawn().expect("it starts");
    browser.until("document.querySelector('#banner').hidden").await;
    browser.until("document.title.includes(': healthy')").await;
    let now = browser.value("document.querySelectorAll('#graphs .election').length").as_u64();
    assert!(now >= marks, "{now:?} of {marks:?}");
    waits.abort();
    drop((guards, long_session(&client).await));
    browser.assert_clean(&["Failed to load resource", "net::ERR_"]);
}

/// The times of samples are ages by a clock that does not jump, so the page and its node may disagree about the time of day.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: a browser"]
async fn a_wall_clock_that_jumps_leaves_the_graphs_as_they_are() {
    let _turn = turns::whole_machine().await;
    let Some(browser) = Browser::start().await else { return };
    let cluster = steady().await;
    let ann = session(&client(&cluster), "ann").await;
    let _guard = hold(&ann, "jobs/nightly").await;
    browser.open(&page(&cluster, 1, ""));
    browser.until("document.querySelector('#graphs .lead').getAttribute('d').includes('L')").await;
    browser.script("const real = Date.now.bind(Date); Date.now = () => real() + 3 * 3600 * 1000;");
    let points =
        || browser.value("document.querySelector('#graphs .lead').getAttribute('d').split(/[ML]/).length").as_u64();
    let before = points();
    browser
        .until(&format!(
            "document.querySelector('#graphs .lead').getAttribute('d').split(/[ML]/).length > {}",
            before.unwrap_or_default()
        ))
        .await;
    // Times are the node's: what has just happened is not hours ago.
    browser.shows("#view", "jobs/").await;
    browser.script("location.hash = '#/lock/jobs%2Fnightly'");
    browser.shows("#view .why", "Why this lock is held").await;
    let held = browser.text("#view [aria-label=Holders] .c-time");
    assert!(!held.contains(" h "), "{held}");
    browser.assert_clean(&[]);
}
