//! SUBSCRIBE, PUBLISH and PUBSUB. How nodes hear of messages: `signals`.

use std::collections::BTreeSet;

use lockkeeper_planted::NodeLimit;
use tokio::time::timeout_at;

use super::{
    RedisSession,
    answer::{Closes, failure_reply},
    clients::unknown_subcommand,
};
use crate::{
    RedisReply, RedisStore, RedisStoreError,
    commands::{Arguments, CommandSpec, glob::GlobMatcher, wrong_number},
    key::WAITED_BYTES_MAX,
    reserved,
    resp::Protocol,
    signals::{self, ChannelMessage, Inbox, Outbox, Topic, WorkSteps},
    view::Stop,
};

/// The name of a channel is kept this number of times: here, among the subscribers of the node, and as an entry that is renewed.
const NAME_COPIES: usize = 3;
/// Number of bytes that a subscription takes beyond that.
const TOPIC_COST: usize = 400;

/// The subscriptions of a connection.
pub(super) struct Subscriptions {
    topics: BTreeSet<Topic>,
    outbox: Outbox,
    inbox: Inbox,
}

impl<S: RedisStore> RedisSession<S> {
    /// Whether only commands about subscriptions may follow: RESP2 cannot tell messages from replies.
    pub(super) fn is_subscriber_only(&self) -> bool {
        self.protocol == Protocol::Resp2 && self.topics_count() > 0
    }

    /// The error or the reply of a command that comes on a connection which is for messages.
    pub(super) fn answer_as_subscriber(&self, command: &CommandSpec, arguments: &Arguments<'_>) -> Option<RedisReply> {
        match command.name {
            "subscribe" | "psubscribe" | "unsubscribe" | "punsubscribe" | "quit" | "reset" => None,
            "ping" => {
                let message = arguments.get(1).map(|message| message.to_vec()).unwrap_or_default();
                Some(RedisReply::bulks([b"pong".to_vec(), message]))
            }
            name => Some(RedisReply::error(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            ))),
        }
    }

    /// Tells others what the connection has subscribed to.
    fn note_topics(&self) {
        let topics = self.subscriptions.iter().flat_map(|subscriptions| &subscriptions.topics);
        let patterns = topics.filter(|topic| topic.is_pattern).count();
        let channels = self.topics_count() - patterns;
        self.client().tell(|told| {
            told.channels = channels;
            told.patterns = patterns;
        });
    }

    /// Number of bytes that the subscriptions take, about.
    pub(super) fn subscribed_bytes(&self) -> usize {
        let topics = self.subscriptions.iter().flat_map(|subscriptions| &subscriptions.topics);
        topics.map(|topic| NAME_COPIES * topic.name.len() + TOPIC_COST).sum()
    }

    fn topics_count(&self) -> usize {
        self.subscriptions.as_ref().map_or(0, |subscriptions| subscriptions.topics.len())
    }

    /// The next message for this connection. Dropping the future loses none.
    pub(crate) async fn next_message(&mut self) -> ChannelMessage {
        match &mut self.subscriptions {
            Some(subscriptions) => subscriptions.inbox.next().await,
            None => std::future::pending().await,
        }
    }

    /// Writes a message.
    pub(crate) fn write_message(&self, message: &ChannelMessage, out: &mut Vec<u8>) {
        message.write(self.protocol, out);
    }

    /// Writes messages that are there, until there is no room: a number of bytes. The last one may exceed it.
    pub(crate) fn write_messages(&mut self, out: &mut Vec<u8>, room: usize) {
        let bytes_max = out.len().saturating_add(room);
        while out.len() < bytes_max
            && let Some(message) = self.subscriptions.as_mut().and_then(|subscriptions| subscriptions.inbox.try_next())
        {
            self.write_message(&message, out);
        }
    }

    /// Serves SUBSCRIBE and the others, and writes a reply for each name.
    pub(super) async fn serve_subscription(
        &mut self,
        command: &str,
        arguments: &Arguments<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Closes> {
        if self.transaction.is_some() {
            let text = format!("ERR {command} has no place in a transaction");
            let reply = self.refuse_queued(Stop::Refused(text));
            self.write(&reply, out);
            return Ok(());
        }

        if command.ends_with("unsubscribe") {
            self.unsubscribe(command, arguments, out).await;
            return Ok(());
        }
        self.subscribe(command, arguments, out).await
    }

    async fn subscribe(&mut self, command: &str, arguments: &Arguments<'_>, out: &mut Vec<u8>) -> Result<(), Closes> {
        if let Some(name) = arguments[1..].iter().find(|name| name.len() > WAITED_BYTES_MAX) {
            self.write(&long_name(name), out);
            return Ok(());
        }

        let is_pattern = command == "psubscribe";
        let topics: Vec<_> = arguments[1..].iter().map(|name| Topic { is_pattern, name: name.to_vec() }).collect();

        let client = self.client().clone();
        let subscriptions = self.subscriptions.get_or_insert_with(|| {
            let (outbox, inbox) = Outbox::new(client);
            Subscriptions { topics: BTreeSet::new(), outbox, inbox }
        });
        let new: BTreeSet<_> = topics.iter().filter(|topic| !subscriptions.topics.contains(topic)).cloned().collect();
        let topics_max = self.node.options.connection_limits.topics;
        if subscriptions.topics.len() + new.len() > topics_max {
            NodeLimit::RedisTopics.note();
            let text = format!(
                "ERR a connection has at most {topics_max} subscriptions: use patterns, or several connections"
            );
            self.write(&RedisReply::error(text), out);
            return Ok(());
        }

        // Note the subscriptions before they are made, so that the end of the connection ends them in every case.
        let before = subscriptions.topics.len();
        subscriptions.topics.extend(new.iter().cloned());
        let outbox = subscriptions.outbox.clone();
        self.note_topics();

        let deadline = self.caller().deadline;
        let added: Vec<_> = new.iter().cloned().collect();
        let subscribed = self.node.signals.subscribe(&added, &outbox, deadline).await;
        if let Err(failure @ RedisStoreError::TooLarge(_)) = subscribed {
            // Nothing was done.
            if let Some(subscriptions) = &mut self.subscriptions {
                subscriptions.topics.retain(|topic| !new.contains(topic));
            }
            self.note_topics();
            let reply = failure_reply(failure)?;
            self.write(&reply, out);
            return Ok(());
        }
        if let Err(failure) = subscribed {
            // Redis has no reply for a part of the names.
            tracing::debug!(%failure, "a connection is closed, since its subscriptions could not be made");
            return Err(Closes);
        }

        let mut count = before;
        let mut acknowledged = BTreeSet::new();
        for topic in topics {
            count += usize::from(new.contains(&topic) && acknowledged.insert(topic.clone()));
            let reply = note(command, Some(topic.name), count);
            self.write(&reply, out);
        }
        Ok(())
    }

    /// Without names, all subscriptions end.
    async fn unsubscribe(&mut self, command: &str, arguments: &Arguments<'_>, out: &mut Vec<u8>) {
        let is_pattern = command == "punsubscribe";
        let subscribed = self.subscriptions.as_ref().map(|subscriptions| &subscriptions.topics);
        let topics: Vec<_> = if arguments.len() == 1 {
            subscribed.into_iter().flatten().filter(|topic| topic.is_pattern == is_pattern).cloned().collect()
        } else {
            arguments[1..].iter().map(|name| Topic { is_pattern, name: name.to_vec() }).collect()
        };

        let is_own = |topic: &&Topic| subscribed.is_some_and(|subscribed| subscribed.contains(topic));
        let left: Vec<_> = topics.iter().filter(is_own).cloned().collect();
        let client = self.client().id;
        let deadline = self.caller().deadline;
        if let Err(failure) = self.node.signals.unsubscribe(&left, client, deadline).await {
            // This node sends no more messages; others may count it until its entry ends.
            tracing::debug!(%failure, "a subscription is counted for some seconds after its end");
        }

        // What was delivered until then comes before the acknowledgement. In RESP2 a message after the last one would be taken for the
        // reply to the next command, and each later reply for that to another command.
        self.write_messages(out, usize::MAX);
        if topics.is_empty() {
            let reply = note(command, None, self.topics_count());
            self.write(&reply, out);
        }
        for topic in topics {
            if let Some(subscriptions) = &mut self.subscriptions {
                subscriptions.topics.remove(&topic);
            }
            let reply = note(command, Some(topic.name), self.topics_count());
            self.write(&reply, out);
        }
        if self.topics_count() == 0 {
            self.subscriptions = None;
        }
        self.note_topics();
    }

    /// PUBLISH outside of a transaction.
    pub(super) async fn publish(&self, arguments: &Arguments<'_>) -> Result<RedisReply, Closes> {
        if arguments[1].len() > WAITED_BYTES_MAX {
            return Ok(long_name(arguments[1]));
        }
        if reserved::is_reserved(arguments[1]) {
            return Ok(RedisReply::error(reserved::refusal(arguments[1])));
        }

        let store = self.node.store();
        let receivers = match signals::count_receivers(store, arguments[1]).await {
            Ok(receivers) => receivers,
            Err(failure) => return failure_reply(failure),
        };
        // Whoever subscribes from now on is acknowledged later, and does not expect this message.
        if receivers > 0
            && let Err(failure) = signals::publish(store, arguments[1], arguments[2]).await
        {
            return failure_reply(failure);
        }
        Ok(RedisReply::Integer(i64::try_from(receivers).unwrap_or(i64::MAX)))
    }

    /// PUBSUB: what is subscribed to, over all nodes.
    pub(super) async fn pubsub(&self, arguments: &Arguments<'_>) -> Result<Result<RedisReply, Stop>, Closes> {
        let store = self.node.store();
        let reply = match (arguments[1].to_ascii_lowercase().as_slice(), &arguments[2..]) {
            (b"channels", [pattern]) if pattern.len() > WAITED_BYTES_MAX => return Ok(Ok(long_name(pattern))),
            (b"channels", patterns @ ([] | [_])) => {
                let pattern = patterns.first().copied().unwrap_or(b"*");
                self.list_channels(pattern).await
            }
            (b"numsub", channels) => {
                let counted = timeout_at(self.caller().deadline, self.count_subscribers(channels)).await;
                counted.unwrap_or_else(|_| {
                    let text = format!("{} channels could not be counted in time: ask for fewer", channels.len());
                    Err(RedisStoreError::TooLarge(text))
                })
            }
            (b"numpat", []) => {
                signals::list_topics(store, true).await.map(|patterns| RedisReply::count(patterns.len()))
            }
            (b"channels" | b"numpat", _) => {
                let name = String::from_utf8_lossy(arguments[1]).to_ascii_lowercase();
                return Ok(Err(wrong_number(&format!("pubsub|{name}"))));
            }
            _ => return Ok(Err(unknown_subcommand("PUBSUB", arguments[1]))),
        };

        match reply {
            Ok(reply) => Ok(Ok(reply)),
            Err(failure) => failure_reply(failure).map(Ok),
        }
    }

    async fn list_channels(&self, pattern: &[u8]) -> Result<RedisReply, RedisStoreError> {
        let channels = signals::list_topics(self.node.store(), false).await?;
        let matcher = GlobMatcher::new(pattern);
        let mut steps = WorkSteps::default();
        let mut asked = Vec::new();
        for channel in channels.into_keys() {
            steps.count(matcher.steps(channel.len())).await;
            if matcher.matches(&channel) {
                asked.push(channel);
            }
        }
        Ok(RedisReply::bulks(asked))
    }

    async fn count_subscribers(&self, channels: &[&[u8]]) -> Result<RedisReply, crate::RedisStoreError> {
        let mut counts = Vec::new();
        for channel in channels {
            let topic = Topic { is_pattern: false, name: channel.to_vec() };
            let count = signals::count_subscribers(self.node.store(), &topic).await?;
            counts.push((
                RedisReply::Bulk(channel.to_vec()),
                RedisReply::Integer(i64::try_from(count).unwrap_or(i64::MAX)),
            ));
        }
        Ok(RedisReply::Array(counts.into_iter().flat_map(|(channel, count)| [channel, count]).collect()))
    }

    /// Ends all subscriptions.
    pub(super) fn drop_subscriptions(&mut self) {
        if let Some(subscriptions) = self.subscriptions.take() {
            let topics: Vec<_> = subscriptions.topics.into_iter().collect();
            self.node.signals.drop_subscriptions(&topics, self.client().id);
        }
        self.note_topics();
    }
}

impl<S> Drop for RedisSession<S> {
    fn drop(&mut self) {
        if let Some(subscriptions) = self.subscriptions.take() {
            let topics: Vec<_> = subscriptions.topics.into_iter().collect();
            self.node.signals.drop_subscriptions(&topics, self.guard.client.id);
        }
    }
}

fn long_name(name: &[u8]) -> RedisReply {
    RedisReply::error(format!(
        "ERR the name of a channel has at most {WAITED_BYTES_MAX} bytes, and this one has {}: use a shorter one",
        name.len()
    ))
}

/// The reply to a subscription, or to its end.
fn note(command: &str, name: Option<Vec<u8>>, count: usize) -> RedisReply {
    RedisReply::Push(vec![RedisReply::text(command), RedisReply::bulk_or_nil(name), RedisReply::count(count)])
}
