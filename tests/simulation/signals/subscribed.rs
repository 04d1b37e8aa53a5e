//! Clients that take a subscription for a lock: whoever is the only subscriber of a channel has it. While such a holder is answered on its
//! connection, nobody else is the only one.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use rand::Rng as _;

use super::WaitingClient;
use crate::{
    contenders::LIMIT,
    network,
    redis::{Connection, Reply},
    system,
};

const CHANNEL: &str = "subscribed/lock";
/// For how long a holder works, milliseconds: often for longer than an entry of a node that is cut off lives.
const HELD_MS: std::ops::Range<u64> = 100..15_000;
const PING_MS: std::ops::Range<u64> = 20..200;

#[derive(Default)]
pub(super) struct SubscribedJudge(Mutex<SubscribersSeen>);

#[derive(Default)]
struct SubscribersSeen {
    /// Who believes to have the lock.
    holders: BTreeMap<String, SubscribedHolder>,
    acquired: u64,
    answered: u64,
    complaints: Vec<String>,
}

/// A client that was the only subscriber.
struct SubscribedHolder {
    /// Its node.
    node: Option<u64>,
    /// Since when another one has been that.
    superseded: Option<Duration>,
}

impl SubscribedJudge {
    /// The node of the holder, if there is one.
    pub(super) fn holder_node(&self) -> Option<u64> {
        self.seen().holders.values().find(|holder| holder.superseded.is_none())?.node
    }

    pub(super) fn complaints(&self) -> Vec<String> {
        self.seen().complaints.clone()
    }

    pub(super) fn counts(&self) -> [(&'static str, u64); 2] {
        let SubscribersSeen { acquired, answered, .. } = &*self.seen();
        [("locks by subscriptions of Redis'", *acquired), ("answers to holders of such locks", *answered)]
    }

    fn seen(&self) -> MutexGuard<'_, SubscribersSeen> {
        self.0.lock().expect("nothing panics while it has the subscribers")
    }
}

impl SubscribersSeen {
    /// A client has the lock from now on. Those before it may have lost it, and not know.
    fn acquire(&mut self, name: &str, node: Option<u64>) {
        let now = system::elapsed();
        self.holders.values_mut().for_each(|holder| holder.superseded = holder.superseded.or(Some(now)));
        self.holders.insert(name.to_owned(), SubscribedHolder { node, superseded: None });
        self.acquired += 1;
    }

    /// A holder was answered to what it had sent then.
    fn answer(&mut self, name: &str, sent: Duration) {
        self.answered += 1;
        if let Some(SubscribedHolder { superseded: Some(superseded), .. }) = self.holders.get(name)
            && *superseded < sent
        {
            let what = format!(
                "{name} was answered as the only subscriber to what it sent at {sent:?}, and another one has been that since {superseded:?}"
            );
            self.complaints.push(what);
        }
    }
}

/// Contends until the run is over.
pub(super) async fn contend(mut client: WaitingClient, judge: &SubscribedJudge) {
    while !client.finish.is_cancelled() {
        hold_once(&mut client, judge).await;
        judge.seen().holders.remove(&client.name);
        client.pause(20..600).await;
    }
}

/// Returns when the lock is not held any more, or was not acquired.
async fn hold_once(client: &mut WaitingClient, judge: &SubscribedJudge) -> Option<()> {
    let mut asks = client.open().await?;
    if count(&mut asks).await? > 0 {
        return None;
    }
    let seat = client.any_seat();
    let node = network::seated(seat);
    let mut connection = client.open_at(seat).await?;
    connection.ask_within(&["SUBSCRIBE", CHANNEL], LIMIT * 3).await?;
    if count(&mut asks).await? > 1 {
        return None;
    }
    judge.seen().acquire(&client.name, node);

    let until = system::elapsed() + Duration::from_millis(client.random.random_range(HELD_MS));
    while system::elapsed() < until && !client.finish.is_cancelled() {
        let sent = system::elapsed();
        connection.ask_within(&["PING"], LIMIT * 10).await?;
        judge.seen().answer(&client.name, sent);
        client.pause(PING_MS).await;
    }
    Some(())
}

/// The number of subscribers.
async fn count(connection: &mut Connection) -> Option<i64> {
    let Reply::Array(Some(counted)) = connection.ask(&["PUBSUB", "NUMSUB", CHANNEL]).await? else { return None };
    let Some(Reply::Number(count)) = counted.last() else { return None };
    Some(*count)
}
