//! Messages, and the number of their receivers over all nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Topic, names, port, steps::WorkSteps};
use crate::{
    Expiry, LockClaim, RedisStore, RedisStoreError, RedisTxn, RedisWrite,
    commands::glob::{self, GlobMatcher},
};

/// Number of entries that are read at a time.
const PAGE_ENTRIES: usize = 1000;
/// Maximum number of entries that are read, and their bytes: nodes with subscribers, for each channel or pattern.
const ENTRIES_MAX: usize = 100_000;
/// Their bytes.
const ENTRIES_BYTES_MAX: usize = 8 << 20;
/// The steps that it takes to make a matcher of a pattern, about. A plain comparison that takes fewer needs none.
const MATCHER_STEPS: usize = 2048;

/// The number of subscribers that a message of a channel would reach, patterns included.
pub(crate) async fn count_receivers<S: RedisStore>(store: &S, channel: &[u8]) -> Result<u64, RedisStoreError> {
    let own = Topic { is_pattern: false, name: channel.to_vec() };
    let mut count = count_subscribers(store, &own).await?;
    let mut steps = WorkSteps::default();

    for (pattern, subscribers) in list_topics(store, true).await? {
        let plain_steps = pattern.len() * channel.len();
        let is_heard = if plain_steps <= MATCHER_STEPS {
            steps.count(plain_steps).await;
            glob::matches(&pattern, channel)
        } else {
            let matcher = GlobMatcher::new(&pattern);
            steps.count(MATCHER_STEPS + matcher.steps(channel.len())).await;
            matcher.matches(channel)
        };
        if is_heard {
            count += subscribers;
        }
    }
    Ok(count)
}

/// The channels among `channels` whose messages would have receivers. It reads the patterns once for all of them.
pub(crate) async fn channels_with_receivers<S: RedisStore>(
    store: &S,
    channels: BTreeSet<Vec<u8>>,
) -> Result<BTreeSet<Vec<u8>>, RedisStoreError> {
    let mut heard = BTreeSet::new();
    let mut unheard = channels;
    if unheard.is_empty() {
        return Ok(heard);
    }

    let mut steps = WorkSteps::default();
    for pattern in list_topics(store, true).await?.into_keys() {
        let matcher = GlobMatcher::new(&pattern);
        steps.count(MATCHER_STEPS).await;
        for channel in &unheard {
            steps.count(matcher.steps(channel.len())).await;
            if matcher.matches(channel) {
                heard.insert(channel.clone());
            }
        }
        unheard.retain(|channel| !heard.contains(channel));
    }

    for name in unheard {
        let own = Topic { is_pattern: false, name };
        if count_subscribers(store, &own).await? > 0 {
            heard.insert(own.name);
        }
    }
    Ok(heard)
}

/// The number of subscribers of a topic.
pub(crate) async fn count_subscribers<S: RedisStore>(store: &S, topic: &Topic) -> Result<u64, RedisStoreError> {
    let entries = read(store, names::receivers(topic)).await?;
    Ok(entries.iter().map(|(_, value)| number(value)).sum())
}

/// All channels with subscribers, or all patterns, each with their number.
pub(crate) async fn list_topics<S: RedisStore>(
    store: &S,
    are_patterns: bool,
) -> Result<BTreeMap<Vec<u8>, u64>, RedisStoreError> {
    let mut topics = BTreeMap::new();
    for (key, value) in read(store, names::all_receivers(are_patterns)).await? {
        if let Some(name) = names::topic_name(&key, are_patterns) {
            *topics.entry(name.to_vec()).or_default() += number(&value);
        }
    }
    Ok(topics)
}

/// Sends a message to the subscribers of all nodes.
pub(crate) async fn publish<S: RedisStore>(store: &S, channel: &[u8], message: &[u8]) -> Result<(), RedisStoreError> {
    let writes = vec![message_write(channel, message)];
    store.commit(&port(), RedisTxn { writes, ..RedisTxn::default() }).await.map(drop)
}

/// The write of a message. The nodes get the message from the event of this write; the entry itself is never read.
pub(crate) fn message_write(channel: &[u8], message: &[u8]) -> RedisWrite {
    RedisWrite::Put {
        key: names::message(channel),
        value: message.to_vec(),
        expiry: Expiry::AfterMs(1),
        claim: LockClaim::None,
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

async fn read<S: RedisStore>(
    store: &S,
    (mut from, to): (Vec<u8>, Vec<u8>),
) -> Result<Vec<(Vec<u8>, Vec<u8>)>, RedisStoreError> {
    let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut bytes = 0;
    loop {
        let before = entries.len();
        let page = store.list(&port(), from.clone(), to.clone(), PAGE_ENTRIES).await?;
        if let Some((last, _)) = page.entries.last() {
            from = [&last[..], &[0]].concat();
        }
        entries.extend(page.entries.into_iter().map(|(key, entry)| (key, entry.value)));

        if !page.more {
            return Ok(entries);
        }
        bytes += entries[before..].iter().map(|(key, _)| key.len()).sum::<usize>();
        if entries.len() > ENTRIES_MAX || bytes > ENTRIES_BYTES_MAX {
            return Err(RedisStoreError::TooLarge(format!(
                "there are more than {ENTRIES_MAX} subscriptions, or their names have more than {ENTRIES_BYTES_MAX} bytes"
            )));
        }
    }
}
