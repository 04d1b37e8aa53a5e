//! Elections: candidates lead in the order of their campaigns, epochs rise, and observers see each leader with its own value, also when
//! the node that serves them is lost.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt};
use lockkeeper::{
    client::{Client, Election, Error, Leader, Leadership, Loss, Observe, Refusal, Session, SessionOptions},
    local::LocalCluster,
    machine::Token,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
    time::timeout,
};

use crate::support::{LONG, client, cluster, leader, long_session, program, until};

const NAME: &str = "jobs/leader";

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(LONG, what).await.expect("it happens in time")
}

fn election(client: &Client) -> Election {
    client.election(NAME).expect("a valid name")
}

async fn next(leaders: &mut Observe) -> Option<Leader> {
    soon(leaders.next()).await.expect("the cluster answers")
}

/// The epoch and the value of a leader.
fn told(leader: Option<Leader>) -> Option<(Token, String)> {
    leader.map(|leader| (leader.epoch, String::from_utf8(leader.value).expect("the tests' values are text")))
}

fn is(leadership: &Leadership, value: &str) -> Option<(Token, String)> {
    Some((leadership.epoch(), value.to_owned()))
}

async fn queue_length(client: &Client) -> u64 {
    client.get(NAME).await.expect("the cluster answers").lock.queue_length
}

async fn until_queued(client: &Client, length: u64) {
    until("the queue", async || (queue_length(client).await == length).then_some(())).await;
}

fn campaign(election: &Election, session: &Session, value: &'static str) -> JoinHandle<Result<Leadership, Error>> {
    tokio::spawn(election.campaign(session, value).into_future())
}

/// Waits until a campaign has won.
async fn won(campaign: JoinHandle<Result<Leadership, Error>>) -> Leadership {
    soon(campaign).await.expect("no panic").expect("elected")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_proclaims_values_and_resigns() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let election = election(&client);
    assert_eq!(election.leader().await.expect("the cluster answers"), None);

    let leadership = election.campaign(&session, "").await.expect("no other candidate");
    let leader = election.leader().await.expect("the cluster answers").expect("one leads");
    assert_eq!((leader.epoch, &*leader.value, &*leader.label), (leadership.epoch(), &[][..], "test"));
    assert_eq!(leader.session_id, session.id());
    assert!(leadership.loss().is_none() && leadership.remaining() > Duration::from_secs(500));

    let largest = vec![7; 16 * 1024];
    leadership.proclaim(&largest).await.expect("it leads");
    assert_eq!(election.leader().await.expect("the cluster answers").expect("one leads").value, largest);
    let refused = leadership.proclaim([7; 16 * 1024 + 1]).await.expect_err("too large");
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    let refused = election.campaign(&session, vec![7; 16 * 1024 + 1]).await.expect_err("too large");
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");

    let other = long_session(&client).await;
    let refused = election.campaign(&other, "b").no_wait().await.expect_err("taken");
    assert!(matches!(&refused, Error::NotAcquired(why) if !why.waited), "{refused:?}");
    assert!(refused.to_string().contains(&leadership.epoch().0.to_string()), "{refused}");
    let refused = election.campaign(&other, "b").wait_at_most(Duration::from_millis(50)).await.expect_err("taken");
    assert!(matches!(&refused, Error::NotAcquired(why) if why.waited), "{refused:?}");

    leadership.resign().await.expect("it led");
    assert_eq!(election.leader().await.expect("the cluster answers"), None);
    let lock = client.get(NAME).await.expect("the cluster answers").lock;
    assert_eq!(lock.data, None, "the value goes with the leader");
    assert!(client.election("").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn candidates_lead_in_their_order_and_each_is_seen_with_its_value() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let election = election(&client);
    let mut leaders = election.observe();
    assert_eq!(next(&mut leaders).await, None);
    // Another election under the same prefix, whose changes the observer must not see.
    let neighbour = client.election("jobs/leader/of-the-opposition").expect("a valid name");
    let opposition = neighbour.campaign(&long_session(&client).await, "x").await.expect("no other candidate");

    let sessions = [long_session(&client).await, long_session(&client).await, long_session(&client).await];
    let first = election.campaign(&sessions[0], "a").await.expect("no other candidate");
    assert_eq!(told(next(&mut leaders).await), is(&first, "a"));
    let second = campaign(&election, &sessions[1], "b");
    until_queued(&client, 1).await;
    let third = campaign(&election, &sessions[2], "c");
    until_queued(&client, 2).await;
    opposition.proclaim("y").await.expect("it leads there");
    first.proclaim("a, again").await.expect("it leads");
    assert_eq!(told(next(&mut leaders).await), is(&first, "a, again"));

    let epoch = first.epoch();
    first.resign().await.expect("it led");
    let second = won(second).await;
    assert!(second.epoch() > epoch);
    assert_eq!(told(next(&mut leaders).await), is(&second, "b"));
    let epoch = second.epoch();
    drop(second);
    let third = won(third).await;
    assert!(third.epoch() > epoch);
    assert_eq!(told(next(&mut leaders).await), is(&third, "c"));
    third.resign().await.expect("it led");
    assert_eq!(next(&mut leaders).await, None);
    opposition.resign().await.expect("it led there");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_survives_the_loss_of_its_node_and_sees_no_change_twice() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let election = election(&client);
    let mut leaders = election.observe();
    assert_eq!(next(&mut leaders).await, None);
    let mut leadership = election.campaign(&session, "a").await.expect("no other candidate");
    assert_eq!(told(next(&mut leaders).await), is(&leadership, "a"));
    for round in 0..3 {
        let leading = leader(&cluster).await;
        cluster.node_mut(leading).kill().await;
        // The cluster's next leader must not repeat the known leader of this election: the observer's next change is this value.
        let value = format!("round {round}");
        soon(leadership.proclaim(&value)).await.expect("it leads still");
        assert_eq!(told(next(&mut leaders).await), is(&leadership, &value));
        let epoch = leadership.epoch();
        let next_session = long_session(&client).await;
        let successor = campaign(&election, &next_session, "next");
        until_queued(&client, 1).await;
        leadership.resign().await.expect("it led");
        leadership = won(successor).await;
        assert!(leadership.epoch() > epoch);
        assert_eq!(told(next(&mut leaders).await), is(&leadership, "next"));
        cluster.node_mut(leading).spawn().expect("it starts again");
        cluster.ready(LONG).await.expect("it serves again");
    }
    leadership.resign().await.expect("it led");
    assert_eq!(next(&mut leaders).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_observer_sees_the_newest() {
    // Each term makes two changes.
    const TERMS: u64 = 40;
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let election = election(&client);
    let mut slow = election.observe();
    assert_eq!(next(&mut slow).await, None);
    let mut attentive = Box::pin(election.observe().filter_map(async |seen| seen.ok().flatten()));
    let mut epoch = Token(0);
    for _ in 0..TERMS {
        let leadership = election.campaign(&session, [0; 16 * 1024]).await.expect("no other candidate");
        epoch = leadership.epoch();
        leadership.resign().await.expect("it led");
    }
    let last = election.campaign(&session, "last").await.expect("no other candidate");
    assert!(last.epoch() > epoch);
    // The attentive observer sees all changes in order. Once it has seen the last one, the slow observer must skip old ones.
    while soon(attentive.next()).await.expect("it does not end").epoch < last.epoch() {}
    let mut seen = 0;
    until("the newest", async || {
        let leader = slow.next().now_or_never()?.expect("the cluster answers");
        seen += 1;
        (told(leader) == is(&last, "last")).then_some(())
    })
    .await;
    assert!(seen < TERMS, "it was told of {seen} changes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_that_is_dropped_leaves_no_candidate() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let election = election(&client);
    let sessions = [long_session(&client).await, long_session(&client).await];
    let leadership = election.campaign(&sessions[0], "a").await.expect("no other candidate");
    let dropped = campaign(&election, &sessions[1], "b");
    until_queued(&client, 1).await;
    dropped.abort();
    until_queued(&client, 0).await;
    leadership.resign().await.expect("it led");
    assert_eq!(election.leader().await.expect("the cluster answers"), None, "the other one does not stand any more");
    assert!(sessions[1].loss().is_none(), "its session lives on");
    // A dropped leadership ends as well.
    drop(election.campaign(&sessions[1], "b").await.expect("no other candidate"));
    until("a vacancy", async || election.leader().await.expect("the cluster answers").is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_removed_by_an_operator_learns_of_it_and_cannot_proclaim() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let election = election(&client);
    let leadership = election.campaign(&session, "a").await.expect("no other candidate");
    client.force_release(NAME, "stuck").token(leadership.epoch()).now().await.expect("the cluster answers");
    assert_eq!(election.leader().await.expect("the cluster answers"), None);
    assert_eq!(soon(leadership.lost()).await, Loss::Revoked { reason: "stuck".to_owned() });
    let refused = leadership.proclaim("b").await.expect_err("it leads no more");
    assert!(matches!(&refused, Error::Refused(why) if why.reason == Refusal::NotHeld), "{refused:?}");
    let again = election.campaign(&session, "a").await.expect("its session lives");
    assert!(again.epoch() > leadership.epoch());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_dies_is_replaced_after_its_ttl_and_not_before() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let election = election(&client);
    // The leader runs in this process, so its death is simulated: a second runtime, which is shut down with all its tasks.
    let ttl = Duration::from_secs(2);
    let mortal = tokio::runtime::Runtime::new().expect("a runtime");
    let mortals_client = self::client(&cluster);
    let mortals_election = election.clone();
    let candidacy = mortal.spawn(async move {
        let options = SessionOptions { ttl, label: "mortal".to_owned() };
        let session = mortals_client.open(options).await.expect("a session");
        mortals_election.campaign(&session, "a").await.expect("no other candidate")
    });
    let leadership = soon(candidacy).await.expect("no panic");
    let mut leaders = election.observe();
    assert_eq!(told(next(&mut leaders).await), is(&leadership, "a"));
    let session = long_session(&client).await;
    let successor = campaign(&election, &session, "b");
    until_queued(&client, 1).await;

    mortal.shutdown_background();
    let died = Instant::now();
    let left = leadership.remaining();
    let successor = won(successor).await;
    assert!(died.elapsed() >= left, "{:?} after its death, with {left:?} left", died.elapsed());
    assert_eq!(leadership.remaining(), Duration::ZERO);
    assert!(successor.epoch() > leadership.epoch());
    assert_eq!(told(next(&mut leaders).await), is(&successor, "b"));
}

/// A process of the program, and the lines that it prints.
struct Elect {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Elect {
    fn start(cluster: &LocalCluster, arguments: &[&str]) -> Self {
        let mut child = Command::new(program())
            .arg("elect")
            .args(arguments)
            .env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program runs");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> String {
        soon(self.lines.next_line()).await.expect("it can be read").expect("a line")
    }

    async fn document(&mut self) -> serde_json::Value {
        serde_json::from_str(&self.line().await).expect("a document on each line")
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).expect("it runs");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits for its end. Returns its exit code.
    async fn ends(mut self) -> Option<i32> {
        soon(self.child.wait()).await.expect("its status").code()
    }
}

/// Prints its epoch and its election, and then waits for SIGTERM. Ends by itself if its parent is killed.
const LEAD: [&str; 4] = [
    "--",
    "sh",
    "-c",
    r#"trap 'exit 3' TERM; echo "$LOCKKEEPER_TOKEN $LOCKKEEPER_LOCK"; while kill -0 $PPID; do sleep 0.05; done"#,
];

#[tokio::test(flavor = "multi_thread")]
async fn the_program_leads_and_observes() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let mut text = Elect::start(&cluster, &["--observe", NAME]);
    let mut json = Elect::start(&cluster, &["--observe", NAME, "-o", "json"]);
    assert!(text.line().await.ends_with("  no leader"));
    let nobody = json.document().await;
    assert!(nobody["leader"].is_null() && nobody["name"] == NAME, "{nobody}");

    let mut first = Elect::start(&cluster, &[&[NAME, "--value", "here", "--label", "ann"][..], &LEAD].concat());
    let said = first.line().await;
    let epoch = election(&client).leader().await.expect("the cluster answers").expect("it leads").epoch.0;
    assert_eq!(said, format!("{epoch} {NAME}"));
    let line = text.line().await;
    assert!(line.ends_with(&format!("  epoch {epoch}  ann  here")), "{line}");
    let document = json.document().await["leader"].take();
    assert_eq!((&document["epoch"], &document["label"]), (&epoch.into(), &"ann".into()), "{document}");
    assert_eq!((&document["value_text"], &document["value_hex"]), (&"here".into(), &"68657265".into()), "{document}");

    let busy = Elect::start(&cluster, &[&[NAME, "--try"][..], &LEAD].concat());
    assert_eq!(busy.ends().await, Some(10));
    let mut second = Elect::start(&cluster, &[&[NAME, "--label", "bob"][..], &LEAD].concat());
    until_queued(&client, 1).await;
    first.signal(Signal::TERM);
    assert_eq!(first.ends().await, Some(3));
    second.line().await;
    assert!(text.line().await.ends_with("  bob"), "no value, no column");
    assert_eq!(json.document().await["leader"]["value_text"], "");

    client.force_release(NAME, "enough").await.expect("the cluster answers");
    assert_eq!(second.ends().await, Some(11));
    assert!(text.line().await.ends_with("  no leader"));
    assert!(json.document().await["leader"].is_null());
    for (observer, signal) in [(text, Signal::TERM), (json, Signal::INT)] {
        observer.signal(signal);
        assert_eq!(observer.ends().await, Some(0));
    }
}
