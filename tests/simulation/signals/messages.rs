//! Subscribers of channels. As long as a connection lasts, no message is missing, and all subscribers see the same order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use rand::{Rng as _, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep_until, timeout};

use super::{SETTLED, WaitingClient};
use crate::{
    contenders::{LIMIT, in_time},
    redis::{Connection, Reply},
    system,
};

const CHANNELS: [&str; 2] = ["messages/a", "messages/b"];
const PATTERN: &str = "messages/*";
/// A subscriber leaves after so many milliseconds.
const STAYS_MS: std::ops::Range<u64> = 500..20_000;
/// Subscriptions that were ended by their node or by the network; there need not be any.
pub(super) const ENDED: &str = "subscriptions of Redis' that broke off";

#[derive(Default)]
pub(super) struct MessagesJudge(Mutex<MessagesSeen>);

#[derive(Default)]
struct MessagesSeen {
    /// By their numbers.
    published: BTreeMap<u64, Published>,
    subscriptions: Vec<Subscription>,
    ended: u64,
    complaints: Vec<String>,
}

/// A message, by simulated time.
#[derive(Clone, Copy, Debug)]
struct Published {
    channel: &'static str,
    /// Whether it is sent after the last fault.
    is_last: bool,
    sent: Duration,
    outcome: PublishOutcome,
}

#[derive(Clone, Copy, Debug)]
enum PublishOutcome {
    /// It was answered at this time, with a number of receivers.
    Acknowledged {
        at: Duration,
        receivers: i64,
    },
    Refused,
    Unknown,
}

/// A connection with a subscription.
#[derive(Clone, Debug)]
struct Subscription {
    name: String,
    channels: &'static [&'static str],
    acknowledged: Duration,
    received: Vec<u64>,
}

impl Published {
    /// A message that is about to be sent.
    fn now(channel: &'static str, is_last: bool) -> Self {
        Self { channel, is_last, sent: system::elapsed(), outcome: PublishOutcome::Unknown }
    }
}

impl MessagesJudge {
    pub(super) fn complaints(&self) -> Vec<String> {
        let seen = self.seen();
        let each = seen.subscriptions.iter().flat_map(|subscription| seen.judge(subscription));
        let pairs = seen
            .subscriptions
            .iter()
            .enumerate()
            .flat_map(|(number, one)| seen.subscriptions[..number].iter().filter_map(|other| differ(one, other)));
        seen.complaints.iter().cloned().chain(each).chain(pairs).collect()
    }

    pub(super) fn counts(&self) -> [(&'static str, u64); 3] {
        let seen = self.seen();
        let received = seen.subscriptions.iter().map(|subscription| subscription.received.len() as u64).sum();
        let subscriptions = seen.subscriptions.len() as u64;
        [("messages of Redis' received", received), ("subscriptions of Redis'", subscriptions), (ENDED, seen.ended)]
    }

    fn seen(&self) -> MutexGuard<'_, MessagesSeen> {
        self.0.lock().expect("nothing panics while it has the messages")
    }
}

impl MessagesSeen {
    /// What this subscriber cannot have seen, or must have.
    fn judge(&self, subscription: &Subscription) -> Vec<String> {
        let Subscription { name, channels, acknowledged, received } = subscription;
        let mut complaints = Vec::new();
        let mut known = BTreeSet::new();
        // Whatever was acknowledged before this is before it in the log.
        let mut latest_sent = Duration::ZERO;
        for number in received {
            let published = self.published.get(number).filter(|message| channels.contains(&message.channel));
            let Some(Published { sent, outcome, .. }) = published else {
                complaints.push(format!("{name} received message {number}, and nobody sent it there"));
                continue;
            };
            if !known.insert(*number) {
                complaints.push(format!("{name} received message {number} twice"));
            }
            let is_late = match outcome {
                // To nobody, it was not sent at all.
                PublishOutcome::Acknowledged { at, receivers } => *at < latest_sent || *receivers == 0,
                PublishOutcome::Refused => true,
                PublishOutcome::Unknown => false,
            };
            if is_late {
                complaints.push(format!(
                    "{name} received message {number} ({outcome:?}) after one that was sent at {latest_sent:?}"
                ));
            }
            latest_sent = latest_sent.max(*sent);
        }

        let is_missing = |(number, message): &(&u64, &Published)| {
            let is_before = matches!(message.outcome, PublishOutcome::Acknowledged { at, .. } if at < latest_sent);
            channels.contains(&message.channel) && message.sent > *acknowledged && is_before && !known.contains(number)
        };
        let missing = self.published.iter().filter(is_missing);
        complaints.extend(missing.map(|(number, message)| {
            format!("{name} subscribed at {acknowledged:?} and has not received message {number}, {message:?}, but later ones")
        }));
        complaints
    }
}

/// Between the first and the last message that both have, two subscribers of the same channels have all of them in the same order.
fn differ(one: &Subscription, other: &Subscription) -> Option<String> {
    if one.channels != other.channels {
        return None;
    }
    let common = |of: &Subscription, with: &Subscription| {
        let is_common = |number: &u64| with.received.contains(number);
        let first = of.received.iter().position(is_common)?;
        let last = of.received.iter().rposition(is_common)?;
        Some(of.received[first..=last].to_vec())
    };
    let (ours, theirs) = (common(one, other)?, common(other, one)?);
    (ours != theirs).then(|| format!("{} received {ours:?}, and {} received {theirs:?}", one.name, other.name))
}

/// Publishes until the run is over.
pub(super) async fn publish(mut client: WaitingClient, judge: &MessagesJudge) {
    let mut number = 0;
    while !client.finish.is_cancelled() {
        if let Some(mut connection) = client.open().await {
            while !client.finish.is_cancelled() {
                number += 1;
                let channel = *CHANNELS.choose(&mut client.random).expect("it is not empty");
                let is_scripted = client.percent(30);
                let message = Published::now(channel, false);
                if publish_one(&mut connection, judge, number, message, is_scripted).await.is_none() {
                    break;
                }
                client.pause(20..400).await;
            }
        }
        client.pause(50..250).await;
    }
}

/// `None`: it is not known whether the message was published.
async fn publish_one(
    connection: &mut Connection,
    judge: &MessagesJudge,
    number: u64,
    message: Published,
    is_scripted: bool,
) -> Option<()> {
    judge.seen().published.insert(number, message);

    let text = number.to_string();
    let script = "return redis.call('publish', KEYS[1], ARGV[1])";
    let words: &[&str] =
        if is_scripted { &["EVAL", script, "1", message.channel, &text] } else { &["PUBLISH", message.channel, &text] };
    let outcome = match connection.ask(words).await? {
        Reply::Refusal(_) => PublishOutcome::Refused,
        Reply::Number(receivers) => PublishOutcome::Acknowledged { at: system::elapsed(), receivers },
        Reply::Line(_) | Reply::Bulk(_) | Reply::Array(_) => return None,
    };
    judge.seen().published.insert(number, Published { outcome, ..message });
    Some(())
}

/// Publishes the last messages, after the last fault: whoever is connected must receive them.
pub(super) async fn publish_last(mut client: WaitingClient, judge: &MessagesJudge) {
    let mut published = 0;
    let first = judge.seen().published.keys().max().copied().unwrap_or_default() + 1_000;
    let mut numbers = first..first + 1_000;
    let until = Instant::now() + SETTLED;
    for channel in CHANNELS {
        // One of which nothing is known, or that was refused, may be missing.
        while Instant::now() < until
            && let Some(number) = numbers.next()
        {
            if let Some(mut connection) = client.open().await {
                let message = Published::now(channel, true);
                publish_one(&mut connection, judge, number, message, false).await;
                if matches!(judge.seen().published[&number].outcome, PublishOutcome::Acknowledged { .. }) {
                    published += 1;
                    break;
                }
            }
            client.pause(50..100).await;
        }
    }

    if published < CHANNELS.len() {
        judge.seen().complaints.push("the last messages could not be published".to_owned());
    }
}

/// Subscribes again and again, until the run is over.
pub(super) async fn subscribe(mut client: WaitingClient, judge: &MessagesJudge) {
    while !client.finish.is_cancelled() {
        if let Some(connection) = client.open().await {
            stay(&mut client, connection, judge).await;
        }
        client.pause(10..200).await;
    }
}

/// Receives messages until it leaves, the connection ends, or the last message is there.
async fn stay(client: &mut WaitingClient, mut connection: Connection, judge: &MessagesJudge) {
    let is_pattern = client.percent(40);
    let (words, channels): (&[&str], &'static [&'static str]) =
        if is_pattern { (&["PSUBSCRIBE", PATTERN], &CHANNELS) } else { (&["SUBSCRIBE", CHANNELS[0]], &CHANNELS[..1]) };
    let Some(Reply::Array(Some(_))) = connection.ask_within(words, LIMIT * 3).await else { return };
    let place = {
        let mut seen = judge.seen();
        let name = format!("{}#{}", client.name, seen.subscriptions.len());
        let acknowledged = system::elapsed();
        seen.subscriptions.push(Subscription { name, channels, acknowledged, received: Vec::new() });
        seen.subscriptions.len() - 1
    };

    let mut leaves = Instant::now() + Duration::from_millis(client.random.random_range(STAYS_MS));
    let mut is_last = client.finish.is_cancelled();
    loop {
        let received = {
            let reply = connection.reply();
            tokio::pin!(reply);
            tokio::select! {
                reply = &mut reply => reply,
                () = sleep_until(leaves) => break,
                () = client.finish.cancelled(), if !is_last => {
                    // From now on it waits for the last message.
                    is_last = true;
                    leaves = Instant::now() + SETTLED;
                    match timeout(SETTLED, reply).await {
                        Ok(reply) => reply,
                        Err(_) => break,
                    }
                }
            }
        };
        let Ok(Reply::Array(Some(parts))) = received else {
            judge.seen().ended += 1;
            return;
        };
        let Some(Reply::Bulk(Some(text))) = parts.last() else { return };
        let Ok(number) = text.parse() else { return };
        let mut seen = judge.seen();
        seen.subscriptions[place].received.push(number);
        if is_last && seen.published.get(&number).is_some_and(|message| message.is_last) {
            return;
        }
    }

    // Who is still answered was to receive the last message, if it was sent after the subscription was there.
    if is_last
        && connection.send(&["PING"]).await.is_ok()
        && in_time(async { connection.reply().await.ok() }).await.is_some()
    {
        let mut seen = judge.seen();
        let subscription = &seen.subscriptions[place];
        let is_owed = |message: &&Published| {
            message.is_last && channels.contains(&message.channel) && message.sent >= subscription.acknowledged
        };
        let Some(owed) = seen.published.values().find(is_owed) else { return };
        let what = format!("{subscription:?} is connected, and has not received the last message, {owed:?}");
        seen.complaints.push(what);
    }
}
