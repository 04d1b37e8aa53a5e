//! The keys of the port's own entries. A name is preceded by its length, so that the entries of one are a range that no other name is in.

use super::Topic;
use crate::key::prefix_end;

const WAITERS: &[u8] = b"redis/wait/";
const CHANNELS: &[u8] = b"redis/channel/";
const PATTERNS: &[u8] = b"redis/pattern/";
const MESSAGES: &[u8] = b"redis/message/";

/// What an entry of the feed is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FeedSubject<'a> {
    /// A key of a database.
    Key,
    /// The client that waits for this key.
    Waiter(&'a [u8]),
    /// A message of this channel.
    Message(&'a [u8]),
    /// A key that no client can wait for.
    Other,
}

/// The range of all keys of the port and of its clients.
pub(super) fn all() -> (Vec<u8>, Vec<u8>) {
    range(b"redis/".to_vec())
}

/// The clients that wait for a key.
pub(super) fn waiters(key: &[u8]) -> (Vec<u8>, Vec<u8>) {
    range(with_length(WAITERS, key))
}

pub(super) fn waiter(key: &[u8], id: &str) -> Vec<u8> {
    [&with_length(WAITERS, key), id.as_bytes()].concat()
}

/// The nodes with subscribers of a topic.
pub(super) fn receivers(topic: &Topic) -> (Vec<u8>, Vec<u8>) {
    range(with_length(start(topic.is_pattern), &topic.name))
}

pub(super) fn receiver(topic: &Topic, node: &str) -> Vec<u8> {
    [&with_length(start(topic.is_pattern), &topic.name), node.as_bytes()].concat()
}

/// The nodes with subscribers of all channels, or of all patterns.
pub(super) fn all_receivers(are_patterns: bool) -> (Vec<u8>, Vec<u8>) {
    range(start(are_patterns).to_vec())
}

/// The name of the topic that an entry of [`all_receivers`] is about.
pub(super) fn topic_name(key: &[u8], is_pattern: bool) -> Option<&[u8]> {
    without_length(key.strip_prefix(start(is_pattern))?)
}

/// The topic of which an entry of this node says how many subscribers it has.
pub(super) fn topic(key: &[u8]) -> Option<Topic> {
    let topic = |is_pattern| Some(Topic { is_pattern, name: topic_name(key, is_pattern)?.to_vec() });
    topic(false).or_else(|| topic(true))
}

pub(super) fn message(channel: &[u8]) -> Vec<u8> {
    [MESSAGES, channel].concat()
}

pub(super) fn subject(key: &[u8]) -> FeedSubject<'_> {
    if let Some(channel) = key.strip_prefix(MESSAGES) {
        return FeedSubject::Message(channel);
    }
    if let Some(rest) = key.strip_prefix(WAITERS) {
        return without_length(rest).map_or(FeedSubject::Other, FeedSubject::Waiter);
    }
    match key.strip_prefix(b"redis/") {
        Some([digit, ..]) if digit.is_ascii_digit() => FeedSubject::Key,
        _ => FeedSubject::Other,
    }
}

fn start(is_pattern: bool) -> &'static [u8] {
    if is_pattern { PATTERNS } else { CHANNELS }
}

fn range(start: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    (start.clone(), prefix_end(start))
}

fn with_length(start: &[u8], name: &[u8]) -> Vec<u8> {
    [start, format!("{}/", name.len()).as_bytes(), name, b"/"].concat()
}

fn without_length(bytes: &[u8]) -> Option<&[u8]> {
    let slash = bytes.iter().position(|byte| *byte == b'/')?;
    let length: usize = std::str::from_utf8(&bytes[..slash]).ok()?.parse().ok()?;
    bytes.get(slash + 1..)?.get(..length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waiters_of_one_key_are_in_no_range_of_another() {
        let id = "1";
        for (key, other) in [("a", "a/b"), ("a/", "a"), ("a", "b"), ("", "/"), ("a/1", "a")] {
            let (from, to) = waiters(key.as_bytes());
            assert!((from.clone()..to.clone()).contains(&waiter(key.as_bytes(), id)), "{key}");
            assert!(!(from..to).contains(&waiter(other.as_bytes(), id)), "{key} {other}");
            assert_eq!(subject(&waiter(key.as_bytes(), id)), FeedSubject::Waiter(key.as_bytes()));
        }
    }

    #[test]
    fn entries_are_told_apart() {
        let topic = Topic { is_pattern: true, name: b"a/*".to_vec() };
        assert_eq!(topic_name(&receiver(&topic, "node"), true), Some(&b"a/*"[..]));
        assert_eq!(topic_name(&receiver(&topic, "node"), false), None);
        assert_eq!(super::topic(&receiver(&topic, "node")), Some(topic));
        assert_eq!(subject(&message(b"news")), FeedSubject::Message(b"news"));
        assert_eq!(subject(b"redis/0/key"), FeedSubject::Key);
        assert_eq!(subject(b"redis/script/abc"), FeedSubject::Other);
    }
}
