//! The clients of this node that have subscribed to channels and patterns.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::mpsc;

use super::{
    shares::{PlaceCounts, PlaceOwner, PlaceShare, PlaceShares},
    steps::WorkSteps,
};
use crate::{
    RedisStoreError,
    clients::ListedClient,
    commands::glob::GlobMatcher,
    resp::{Protocol, write_push},
};

/// Messages that wait for a client to read them, and their bytes.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Bytes of the messages that wait at a node for all clients together. Beyond that, fewer wait for each: a client that waits for an item is
/// not written to meanwhile, so a thousand of them could have a thousand times [`WAITING_BYTES_MAX`].
const NODE_BYTES_MAX: usize = 48 << 20;
/// Bytes of the messages that wait for a client then.
const CROWDED_BYTES_MAX: usize = 64 << 10;
/// Steps that it takes to give a message to a subscriber.
const SEND_STEPS: usize = 128;

/// A channel, or a pattern of channels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Topic {
    pub(crate) is_pattern: bool,
    pub(crate) name: Vec<u8>,
}

/// The subscribers of a node.
#[derive(Default)]
pub(super) struct Topics {
    table: Mutex<TopicTable>,
    /// What clients have of the places of this node.
    shares: PlaceShares,
    /// Number of bytes of the messages that wait.
    waiting: Arc<AtomicUsize>,
}

#[derive(Default)]
struct TopicTable {
    topics: BTreeMap<Topic, SubscribedTopic>,
    /// All patterns among them. `None` after a change of these.
    patterns: Option<Arc<[Arc<SubscribedPattern>]>>,
}

/// A topic that has subscribers.
struct SubscribedTopic {
    /// By their ids.
    subscribers: BTreeMap<u64, Outbox>,
    /// How names are compared with it, if it is a pattern.
    pattern: Option<Arc<SubscribedPattern>>,
    /// The subscriber for which the place of the topic counts.
    payer: u64,
    share: PlaceShare,
}

/// A pattern that has subscribers.
struct SubscribedPattern {
    name: Arc<[u8]>,
    matcher: GlobMatcher,
}

impl Topic {
    /// The places that it takes while it has subscribers.
    fn counts(&self) -> PlaceCounts {
        let pattern_bytes = if self.is_pattern { self.name.len() } else { 0 };
        PlaceCounts { places: 1, patterns: usize::from(self.is_pattern), pattern_bytes }
    }
}

impl SubscribedTopic {
    fn new(topic: &Topic, payer: u64, share: PlaceShare) -> Self {
        let pattern =
            || SubscribedPattern { name: topic.name.as_slice().into(), matcher: GlobMatcher::new(&topic.name) };
        let pattern = topic.is_pattern.then(|| Arc::new(pattern()));
        Self { subscribers: BTreeMap::new(), pattern, payer, share }
    }
}

impl TopicTable {
    /// All patterns that have subscribers.
    fn patterns(&mut self) -> Arc<[Arc<SubscribedPattern>]> {
        // They stand behind all channels.
        let all = self.topics.range(Topic { is_pattern: true, name: Vec::new() }..);
        let all = || all.filter_map(|(_, subscribed)| subscribed.pattern.clone()).collect();
        Arc::clone(self.patterns.get_or_insert_with(all))
    }

    /// A topic has its first subscriber, or has lost its last one.
    fn note_change(&mut self, topic: &Topic) {
        if topic.is_pattern {
            self.patterns = None;
        }
    }
}

/// The way of messages to a client.
#[derive(Clone)]
pub(crate) struct Outbox {
    client: Arc<ListedClient>,
    /// Whom the subscriptions of the client count for: who it was when they began.
    owner: PlaceOwner,
    sender: mpsc::Sender<ChannelMessage>,
    bytes: Arc<AtomicUsize>,
}

/// The end of that way.
pub(crate) struct Inbox {
    receiver: mpsc::Receiver<ChannelMessage>,
    bytes: Arc<AtomicUsize>,
}

/// A message on its way to a subscriber. All of them share its bytes: those of a thousand clients that do not read would take a thousand
/// times as much memory.
#[derive(Clone, Debug)]
pub(crate) struct ChannelMessage {
    /// The pattern by which the client gets it, unless it is by the channel itself.
    pattern: Option<Arc<[u8]>>,
    body: Arc<MessageBody>,
}

/// The bytes of a message. They are counted as long as it waits for somebody.
#[derive(Debug)]
struct MessageBody {
    channel: Box<[u8]>,
    text: Box<[u8]>,
    /// The bytes of all messages that wait.
    waiting: Arc<AtomicUsize>,
}

impl ChannelMessage {
    pub(crate) fn write(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let MessageBody { channel, text, .. } = &*self.body;
        match &self.pattern {
            Some(pattern) => write_push(&[b"pmessage", &**pattern, channel, text], protocol, out),
            None => write_push(&[b"message", channel, text], protocol, out),
        }
    }

    /// Number of bytes that a client has to read, about.
    fn bytes(&self) -> usize {
        let pattern = self.pattern.as_ref().map_or(0, |pattern| pattern.len());
        size_of::<Self>() + pattern + self.body.bytes()
    }
}

impl MessageBody {
    fn new(channel: &[u8], text: &[u8], waiting: &Arc<AtomicUsize>) -> Self {
        let body = Self { channel: channel.into(), text: text.into(), waiting: Arc::clone(waiting) };
        waiting.fetch_add(body.bytes(), Ordering::Relaxed);
        body
    }

    fn bytes(&self) -> usize {
        self.channel.len() + self.text.len()
    }
}

impl Drop for MessageBody {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

impl Topics {
    /// No subscribers. Their places are among those of the shares.
    pub(super) fn new(shares: PlaceShares) -> Self {
        Self { shares, ..Self::default() }
    }

    /// Adds a subscriber of these topics, each of which is named once, and returns the numbers of those that each has then. Callers that
    /// add and remove subscribers take turns. Fails if the client may have no further places; then nothing was done.
    pub(super) fn add(&self, topics: &[Topic], outbox: &Outbox) -> Result<Vec<usize>, RedisStoreError> {
        let new = {
            let table = self.table();
            let is_new = |topic: &&Topic| !table.topics.contains_key(topic);
            topics.iter().filter(is_new).collect::<Vec<_>>()
        };
        let shares = new.iter().map(|topic| self.shares.take(&outbox.owner, topic.counts()));
        let shares = shares.collect::<Result<Vec<_>, _>>()?;
        // Patterns are read without the lock: it may take long.
        let made = |(topic, share): (&Topic, _)| (topic.clone(), SubscribedTopic::new(topic, outbox.client.id, share));
        let made: Vec<_> = new.into_iter().zip(shares).map(made).collect();

        let mut table = self.table();
        for (topic, subscribed) in made {
            table.note_change(&topic);
            table.topics.insert(topic, subscribed);
        }
        let mut counts = Vec::with_capacity(topics.len());
        for topic in topics {
            let Some(subscribed) = table.topics.get_mut(topic) else { continue };
            subscribed.subscribers.insert(outbox.client.id, outbox.clone());
            counts.push(subscribed.subscribers.len());
        }
        Ok(counts)
    }

    /// Removes a subscriber, and returns the number of those that are left.
    pub(super) fn remove(&self, topic: &Topic, client: u64) -> usize {
        let mut table = self.table();
        let Some(subscribed) = table.topics.get_mut(topic) else { return 0 };
        subscribed.subscribers.remove(&client);
        let Some((first, outbox)) = subscribed.subscribers.first_key_value() else {
            table.topics.remove(topic);
            table.note_change(topic);
            return 0;
        };

        if subscribed.payer == client {
            subscribed.payer = *first;
            subscribed.share.move_to(&outbox.owner);
        }
        subscribed.subscribers.len()
    }

    /// Gives a message to all subscribers of its channel: first to those of the channel itself. It is compared with the patterns without
    /// the lock, and others have turns meanwhile. Whoever leaves in that time does not get it.
    pub(super) async fn deliver(&self, channel: &[u8], message: &[u8], steps: &mut WorkSteps) {
        let body = MessageBody::new(channel, message, &self.waiting);
        let message = ChannelMessage { pattern: None, body: Arc::new(body) };
        let own = Topic { is_pattern: false, name: channel.to_vec() };
        steps.count(channel.len() + self.send(&own, &message) * SEND_STEPS).await;

        let patterns = self.table().patterns();
        for SubscribedPattern { name, matcher } in patterns.iter().map(|pattern| &**pattern) {
            steps.count(matcher.steps(channel.len())).await;
            if matcher.matches(channel) {
                let topic = Topic { is_pattern: true, name: name.to_vec() };
                let message = ChannelMessage { pattern: Some(Arc::clone(name)), ..message.clone() };
                steps.count(self.send(&topic, &message) * SEND_STEPS).await;
            }
        }
    }

    /// Gives a message to the subscribers of one topic, and returns their number.
    fn send(&self, topic: &Topic, message: &ChannelMessage) -> usize {
        let table = self.table();
        let Some(subscribed) = table.topics.get(topic) else { return 0 };
        subscribed.subscribers.values().for_each(|outbox| outbox.send(message.clone()));
        subscribed.subscribers.len()
    }

    /// Ends the connections of all subscribers.
    pub(super) fn disconnect_all(&self, reason: &str) {
        let table = self.table();
        let all = table.topics.values().flat_map(|subscribed| subscribed.subscribers.values());
        all.for_each(|outbox| outbox.disconnect(reason));
    }

    /// Ends the connections of the subscribers of one topic.
    pub(super) fn disconnect(&self, topic: &Topic, reason: &str) {
        let table = self.table();
        let all = table.topics.get(topic).into_iter().flat_map(|subscribed| subscribed.subscribers.values());
        all.for_each(|outbox| outbox.disconnect(reason));
    }

    /// The subscribers. No code panics while it holds the lock.
    fn table(&self) -> MutexGuard<'_, TopicTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox {
    /// The way of messages to a client.
    pub(crate) fn new(client: Arc<ListedClient>) -> (Self, Inbox) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        let owner = PlaceOwner::from_client(&client);
        (Self { client, owner, sender, bytes: Arc::clone(&bytes) }, Inbox { receiver, bytes })
    }

    fn send(&self, message: ChannelMessage) {
        let bytes = message.bytes();
        let waiting = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_crowded = message.body.waiting.load(Ordering::Relaxed) > NODE_BYTES_MAX;
        let most = if is_crowded { CROWDED_BYTES_MAX } else { WAITING_BYTES_MAX };
        if waiting <= most && self.sender.try_send(message).is_ok() {
            return;
        }

        // As in Redis: a subscriber that does not read would hold up the others, or take all memory.
        self.disconnect("it does not read its messages");
    }

    fn disconnect(&self, reason: &str) {
        if !self.client.kill.is_cancelled() {
            tracing::info!(client = %self.client.address, reason, "a subscriber is disconnected");
            self.client.kill.cancel();
        }
    }
}

impl Inbox {
    /// The next message. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> ChannelMessage {
        let Some(message) = self.receiver.recv().await else { return std::future::pending().await };
        self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
        message
    }

    /// The next message, if it is there.
    pub(crate) fn try_next(&mut self) -> Option<ChannelMessage> {
        let message = self.receiver.try_recv().ok()?;
        self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        pin::pin,
        slice,
        task::{Context, Waker},
    };

    use super::*;
    use crate::clients::{ClientGuard, ClientList};

    /// A client that has subscribed to these topics.
    fn subscribe(clients: &Arc<ClientList>, topics: &Topics, names: &[Topic]) -> (ClientGuard, Inbox) {
        let guard = clients.enter(SocketAddr::from(([127, 0, 0, 1], 1)), None);
        let (outbox, inbox) = Outbox::new(Arc::clone(&guard.client));
        topics.add(names, &outbox).expect("there is room");
        (guard, inbox)
    }

    fn topic(is_pattern: bool, name: &str) -> Topic {
        Topic { is_pattern, name: name.as_bytes().to_vec() }
    }

    /// These patterns cost the most. Others have turns, and may subscribe and leave, while a message is compared with them.
    #[tokio::test]
    async fn a_message_that_is_compared_with_many_patterns_holds_up_nobody() {
        let clients = Arc::new(ClientList::new(1));
        let topics = Topics::default();
        let mut names: Vec<_> =
            (0..32).map(|number| topic(true, &format!("*{}{number:02}", "a".repeat(1000)))).collect();
        names.push(topic(true, "a*"));
        let [(_stays, mut inbox), (leaves, mut left)] = [(); 2].map(|()| subscribe(&clients, &topics, &names));

        let channel = "a".repeat(1024);
        let mut steps = WorkSteps::default();
        let mut delivered = pin!(topics.deliver(channel.as_bytes(), b"text", &mut steps));
        let mut context = Context::from_waker(Waker::noop());
        assert!(delivered.as_mut().poll(&mut context).is_pending(), "nobody else has a turn");
        topics.remove(&topic(true, "a*"), leaves.client.id);
        delivered.await;

        let message = inbox.try_next().expect("a message");
        assert_eq!(message.pattern.as_deref(), Some(&b"a*"[..]));
        assert!(inbox.try_next().is_none() && left.try_next().is_none());
    }

    #[tokio::test]
    async fn a_pattern_is_compared_from_its_first_subscriber_to_its_last() {
        let clients = Arc::new(ClientList::new(1));
        let topics = Topics::default();
        let pattern = topic(true, "n*");
        for _ in 0..2 {
            let (guard, mut inbox) = subscribe(&clients, &topics, slice::from_ref(&pattern));
            topics.deliver(b"news", b"text", &mut WorkSteps::default()).await;
            assert!(inbox.try_next().is_some());
            assert_eq!(topics.remove(&pattern, guard.client.id), 0);
            topics.deliver(b"news", b"text", &mut WorkSteps::default()).await;
            assert!(inbox.try_next().is_none());
        }
    }

    /// Each reads nothing and has messages of its own.
    #[tokio::test]
    async fn messages_that_wait_take_a_bounded_part_of_the_memory_of_a_node() {
        let clients = Arc::new(ClientList::new(1));
        let topics = Topics::default();
        let mut steps = WorkSteps::default();
        let mut reads = subscribe(&clients, &topics, &[topic(false, "read")]);
        let text = vec![b'x'; 500_000];
        let mut silent = Vec::new();
        for number in 0..200 {
            let channel = number.to_string();
            silent.push(subscribe(&clients, &topics, &[topic(false, &channel)]));
            topics.deliver(channel.as_bytes(), &text, &mut steps).await;
        }
        let waiting = topics.waiting.load(Ordering::Relaxed);
        assert!(waiting <= NODE_BYTES_MAX + 2 * text.len(), "{waiting} bytes wait");

        // Whoever reads gets all messages that are not large.
        for _ in 0..100 {
            topics.deliver(b"read", &[b'x'; 10_000], &mut steps).await;
            assert!(reads.1.try_next().is_some() && !reads.0.client.kill.is_cancelled());
        }
        drop(silent);
        assert_eq!(topics.waiting.load(Ordering::Relaxed), 0);
    }

    /// Otherwise a client could take places for others that stay, and go.
    #[test]
    fn the_place_of_a_topic_counts_for_one_of_its_subscribers() {
        let clients = Arc::new(ClientList::new(1));
        let topics = Topics::default();
        let names: Vec<_> = (0..1024).map(|number| topic(true, &number.to_string())).collect();
        let guards = [("ann", 0), ("ann", 1), ("bob", 1)].map(|(name, first)| {
            let guard = clients.enter(SocketAddr::from(([127, 0, 0, 1], 1)), Some(name.to_owned()));
            let (outbox, _) = Outbox::new(Arc::clone(&guard.client));
            topics.add(&names[first..], &outbox).expect("places that are there cost nothing");
            (guard, outbox)
        });

        let [(first, _), (second, ann), (_, bob)] = &guards;
        let more = || [topic(true, "more")];
        topics.add(&more(), ann).expect_err("she has all that she may have");
        for name in &names {
            topics.remove(name, first.client.id);
        }
        topics.add(&more(), ann).expect("one of them has no subscribers any more");
        topics.remove(&more()[0], second.client.id);
        for name in &names {
            topics.remove(name, second.client.id);
        }
        topics.add(&more(), bob).expect("he has one fewer");
        topics.add(&[topic(true, "another")], bob).expect_err("he has all that he may have");
    }

    #[tokio::test]
    async fn all_subscribers_share_the_bytes_of_a_message() {
        let clients = Arc::new(ClientList::new(1));
        let topics = Topics::default();
        let names = [topic(false, "news"), topic(false, "news"), topic(true, "n*")];
        let mut subscribers = names.map(|name| subscribe(&clients, &topics, &[name]));
        topics.deliver(b"news", b"text", &mut WorkSteps::default()).await;

        let messages = subscribers.each_mut().map(|(_, inbox)| inbox.try_next().expect("a message"));
        for message in &messages {
            assert!(Arc::ptr_eq(&message.body, &messages[0].body));
        }
        let mut out = Vec::new();
        messages[2].write(Protocol::Resp3, &mut out);
        assert_eq!(out, b">4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n$4\r\nnews\r\n$4\r\ntext\r\n");
    }
}
