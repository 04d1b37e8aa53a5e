//! The client's promises to a holder of a lock, against a scripted node and a connection whose answers the test can hold back.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper::client::{Client, Clock, Loss, Moment, Session, SessionOptions};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::alone::{Gate, soon};
use crate::client::fake::{Call, Node};

/// The keep-alive stream renews after each third of it.
const TTL: Duration = Duration::from_secs(3);
/// The TTL minus the client's margin for clocks that run at different rates.
const TRUSTED: Duration = Duration::from_millis(2970);

/// A clock that the test advances.
#[derive(Debug, Default)]
struct Hand(Mutex<Duration>);

impl Hand {
    fn advance(&self, by: Duration) {
        *self.0.lock().expect("nothing panics while it has the time") += by;
    }
}

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment(*self.0.lock().expect("nothing panics while it has the time"))
    }
}

/// A connection to a node whose answers the test can hold back.
struct Way {
    node: Node,
    answers: Gate,
    client: Client,
    hand: Arc<Hand>,
}

impl Way {
    async fn to_a_node() -> Self {
        let (node, answers, hand) = (Node::start(), Gate::default(), Arc::new(Hand::default()));
        let address = forward(node.address.clone(), answers.clone()).await;
        let limits = Client::builder(&address.to_string()).attempt_limit(Duration::from_secs(60));
        let client = limits.call_limit(Duration::from_secs(60)).clock(Arc::clone(&hand) as Arc<dyn Clock>).build();
        Self { node, answers, client: client.expect("an address"), hand }
    }

    async fn open(&self) -> Session {
        soon(self.client.open(SessionOptions { ttl: TTL, label: "test".to_owned() })).await.expect("it answers")
    }

    /// The number of calls of this kind that the node got.
    fn count(&self, is_it: impl Fn(&Call) -> bool) -> usize {
        self.node.calls().iter().filter(|call| is_it(call)).count()
    }

    /// Waits until the node gets one more call of this kind, then releases its answer 1 s later by the client's clock.
    async fn answered_late(&self, is_it: impl Fn(&Call) -> bool, before: usize) {
        soon(async {
            while self.count(&is_it) == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        self.hand.advance(Duration::from_secs(1));
        self.answers.open();
    }
}

/// A proxy to the node: forwards requests at once, and answers when the gate is open. Returns its address.
async fn forward(node: String, answers: Gate) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (node, answers) = (TcpStream::connect(&node).await.expect("it listens"), answers.clone());
            let ((mut asks, mut hears), (mut answer, mut ask)) = (client.into_split(), node.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut asks, &mut ask).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 16 * 1024];
                while let Ok(count @ 1..) = answer.read(&mut bytes).await {
                    answers.pass().await;
                    if hears.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// The client's clock advances by 1 s between the request and its answer. The deadline must count from the sending, as the cluster's lease
/// may begin before that second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_counts_from_the_sending() {
    let way = Way::to_a_node().await;
    let must_end_by = |session: &Session, sent: Moment, by: &str| {
        let deadline = session.renewals().borrow().deadline;
        assert!(
            deadline.0 <= sent.0 + TRUSTED,
            "by {by}, sent at {sent:?}: trusted for longer than the cluster keeps it"
        );
    };

    // A renewal in the background would hide a wrong deadline.
    way.node.falls_silent(true);
    way.answers.shut();
    let sent = way.hand.now();
    let client = way.client.clone();
    let opens = tokio::spawn(async move { client.open(SessionOptions { ttl: TTL, label: "test".to_owned() }).await });
    way.answered_late(|call| matches!(call, Call::Open(_)), 0).await;
    let session = soon(opens).await.expect("it did not panic").expect("it answers");
    must_end_by(&session, sent, "opening it");

    // On the keep-alive stream: the renewal after the next, a third of the TTL later.
    let mut renewals = session.renewals();
    let known = way.hand.now();
    way.node.falls_silent(false);
    soon(renewals.wait_for(|renewal| renewal.sent >= known)).await.expect("the session lives");
    let is_renewal = |call: &Call| matches!(call, Call::KeepAlive(_));
    way.answers.shut();
    way.hand.advance(Duration::from_millis(100));
    let (sent, before) = (way.hand.now(), way.count(is_renewal));
    way.answered_late(is_renewal, before).await;
    soon(renewals.wait_for(|renewal| renewal.sent >= sent)).await.expect("the session lives");
    must_end_by(&session, sent, "a renewal in the background");

    // By an explicit renewal.
    way.node.falls_silent(true);
    let is_renewal = |call: &Call| matches!(call, Call::Renew(_));
    way.answers.shut();
    way.hand.advance(Duration::from_millis(100));
    let (sent, before) = (way.hand.now(), way.count(is_renewal));
    let renewing = session.clone();
    let renews = tokio::spawn(async move { renewing.renew().await });
    way.answered_late(is_renewal, before).await;
    soon(renews).await.expect("it did not panic").expect("it answers");
    must_end_by(&session, sent, "a renewal by hand");
}

/// The lock is free as soon as the cluster applies a release; before its answer arrives, another session may hold the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_or_closed_grant_is_not_trusted() {
    let way = Way::to_a_node().await;
    let session = way.open().await;
    let guard = Arc::new(soon(session.acquire("jobs").into_future()).await.expect("it grants"));
    let other = soon(session.acquire("more").into_future()).await.expect("it grants");
    way.answers.shut();

    let releasing = Arc::clone(&guard);
    let releases = tokio::spawn(async move { releasing.release().await });
    way.node.asked_to_release().await;
    let trusted = (guard.loss(), guard.remaining());
    assert_eq!(trusted, (Some(Loss::Released), Duration::ZERO), "it trusts a lock that it has released: {trusted:?}");

    let closing = session.clone();
    let closes = tokio::spawn(async move { closing.close().await });
    way.node.asked_to_close().await;
    let trusted = (other.loss(), other.remaining());
    assert_eq!(trusted, (Some(Loss::Closed), Duration::ZERO), "it trusts a session that it has closed: {trusted:?}");
    way.answers.open();
    soon(releases).await.expect("it did not panic").ok();
    soon(closes).await.expect("it did not panic").ok();
}
