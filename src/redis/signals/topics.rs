//! The clients of this node that have subscribed to channels and patterns.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::mpsc;

use crate::{
    RedisStoreError,
    clients::ListedClient,
    commands::glob,
    resp::{Protocol, write_push},
};

/// Messages that wait for a client to read them, and their bytes.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Patterns with subscribers at a node. Each message is compared with all of them, at all nodes.
const PATTERNS_MAX: usize = 1024;
/// Their bytes: the time of a comparison is the product of both lengths.
const PATTERNS_BYTES_MAX: usize = 32 << 10;

/// A channel, or a pattern of channels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Topic {
    pub(crate) is_pattern: bool,
    pub(crate) name: Vec<u8>,
}

/// The subscribers of a node.
#[derive(Default)]
pub(super) struct Topics(Mutex<BTreeMap<Topic, BTreeMap<u64, Outbox>>>);

/// The way of messages to a client.
#[derive(Clone)]
pub(crate) struct Outbox {
    client: Arc<ListedClient>,
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
    channel: Arc<[u8]>,
    text: Arc<[u8]>,
}

impl ChannelMessage {
    pub(crate) fn write(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let channel: &[u8] = &self.channel;
        match &self.pattern {
            Some(pattern) => write_push(&[b"pmessage", &**pattern, channel, &self.text], protocol, out),
            None => write_push(&[b"message", channel, &self.text], protocol, out),
        }
    }

    /// Number of bytes that a client has to read, about.
    fn bytes(&self) -> usize {
        let pattern = self.pattern.as_ref().map_or(0, |pattern| pattern.len());
        size_of::<Self>() + pattern + self.channel.len() + self.text.len()
    }
}

impl Topics {
    /// Adds a subscriber, and returns the number of those of the topic.
    pub(super) fn add(&self, topic: &Topic, outbox: &Outbox) -> usize {
        let mut topics = self.topics();
        let subscribers = topics.entry(topic.clone()).or_default();
        subscribers.insert(outbox.client.id, outbox.clone());
        subscribers.len()
    }

    /// Fails if there is no room for the patterns among these topics.
    pub(super) fn ensure_room(&self, new: &[Topic]) -> Result<(), RedisStoreError> {
        let topics = self.topics();
        let is_new = |topic: &&Topic| topic.is_pattern && !topics.contains_key(topic);
        let new: Vec<_> = new.iter().filter(is_new).collect();

        let present = || topics.range(Topic { is_pattern: true, name: Vec::new() }..).map(|(topic, _)| topic);
        let count = present().count() + new.len();
        let bytes: usize = present().chain(new.iter().copied()).map(|topic| topic.name.len()).sum();

        if !new.is_empty() && (count > PATTERNS_MAX || bytes > PATTERNS_BYTES_MAX) {
            return Err(RedisStoreError::TooLarge(format!(
                "a node keeps {PATTERNS_MAX} patterns with subscribers and {PATTERNS_BYTES_MAX} bytes of them, and no more: subscribe to \
                 channels, or at another node"
            )));
        }
        Ok(())
    }

    /// Removes a subscriber, and returns the number of those that are left.
    pub(super) fn remove(&self, topic: &Topic, client: u64) -> usize {
        let mut topics = self.topics();
        let Some(subscribers) = topics.get_mut(topic) else { return 0 };
        subscribers.remove(&client);
        let count = subscribers.len();
        if count == 0 {
            topics.remove(topic);
        }
        count
    }

    /// Gives a message to all subscribers of its channel: first to those of the channel itself.
    pub(super) fn deliver(&self, channel: &[u8], message: &[u8]) {
        let topics = self.topics();
        let own = topics.get(&Topic { is_pattern: false, name: channel.to_vec() });
        let message = ChannelMessage { pattern: None, channel: channel.into(), text: message.into() };
        for outbox in own.into_iter().flat_map(BTreeMap::values) {
            outbox.send(message.clone());
        }

        let patterns = Topic { is_pattern: true, name: Vec::new() }..;
        for (topic, subscribers) in topics.range(patterns).filter(|(topic, _)| glob::matches(&topic.name, channel)) {
            let message = ChannelMessage { pattern: Some(topic.name.as_slice().into()), ..message.clone() };
            subscribers.values().for_each(|outbox| outbox.send(message.clone()));
        }
    }

    /// Ends the connections of all subscribers.
    pub(super) fn disconnect_all(&self, reason: &str) {
        self.topics().values().flat_map(BTreeMap::values).for_each(|outbox| outbox.disconnect(reason));
    }

    /// Ends the connections of the subscribers of one topic.
    pub(super) fn disconnect(&self, topic: &Topic, reason: &str) {
        let topics = self.topics();
        topics.get(topic).into_iter().flat_map(BTreeMap::values).for_each(|outbox| outbox.disconnect(reason));
    }

    /// The subscribers. No code panics while it holds the lock.
    fn topics(&self) -> MutexGuard<'_, BTreeMap<Topic, BTreeMap<u64, Outbox>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox {
    /// The way of messages to a client.
    pub(crate) fn new(client: Arc<ListedClient>) -> (Self, Inbox) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        (Self { client, sender, bytes: Arc::clone(&bytes) }, Inbox { receiver, bytes })
    }

    fn send(&self, message: ChannelMessage) {
        let bytes = message.bytes();
        let waiting = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if waiting <= WAITING_BYTES_MAX && self.sender.try_send(message).is_ok() {
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
    use std::net::SocketAddr;

    use super::*;
    use crate::clients::ClientList;

    #[test]
    fn all_subscribers_share_the_bytes_of_a_message() {
        let clients = Arc::new(ClientList::new(1));
        let topics = Topics::default();
        let subscribe = |is_pattern, name: &[u8]| {
            let guard = clients.enter(SocketAddr::from(([127, 0, 0, 1], 1)), None);
            let (outbox, inbox) = Outbox::new(Arc::clone(&guard.client));
            topics.add(&Topic { is_pattern, name: name.to_vec() }, &outbox);
            (guard, inbox)
        };
        let mut subscribers = [subscribe(false, b"news"), subscribe(false, b"news"), subscribe(true, b"n*")];
        topics.deliver(b"news", b"text");

        let messages = subscribers.each_mut().map(|(_, inbox)| inbox.try_next().expect("a message"));
        for message in &messages {
            assert!(Arc::ptr_eq(&message.text, &messages[0].text));
        }
        let mut out = Vec::new();
        messages[2].write(Protocol::Resp3, &mut out);
        assert_eq!(out, b">4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n$4\r\nnews\r\n$4\r\ntext\r\n");
    }
}
