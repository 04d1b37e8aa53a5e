//! The messages for a watch's events: each is made when the one before it was sent.
//!
//! One revision may have a thousand events of hundreds of kilobytes each. As events they are a part of the table's history, and take no
//! memory of their own. In messages they are copied. So only one message of a watch is in memory at a time, whatever its client's pace.
//!
//! A client that takes no fragments gets a whole revision in one message, however large: it goes on after the last revision that it has
//! seen, and would miss the rest.

use std::{iter::Peekable, vec};

use lockkeeper_machine::{EntryEvent, Revision};
use prost::{Message as _, length_delimiter_len};

use crate::{
    Etcd, EtcdStore,
    header::{key_value, number},
    key,
    proto::{
        etcdserverpb::{WatchCreateRequest, WatchResponse},
        mvccpb::{Event, KeyValue, event::EventType},
    },
};

/// Bytes after which a message is closed, at the end of a revision or, for a client that takes fragments, anywhere. Below the limit of a
/// message that clients have by default, 4 MiB.
const MESSAGE_BYTES: usize = 1 << 20;

/// Events that are to be told, and how.
pub(crate) struct UntoldEvents {
    watch_id: i64,
    events: Peekable<vec::IntoIter<EntryEvent>>,
    /// The watch is complete up to this revision once all of them are told.
    complete: Revision,
    with_previous: bool,
    takes_fragments: bool,
}

impl UntoldEvents {
    /// Events of whole revisions, for a watch with this request.
    pub(crate) fn new(
        watch_id: i64,
        request: &WatchCreateRequest,
        events: Vec<EntryEvent>,
        complete: Revision,
    ) -> Self {
        let events = events.into_iter().peekable();
        let WatchCreateRequest { prev_kv: with_previous, fragment: takes_fragments, .. } = *request;
        Self { watch_id, events, complete, with_previous, takes_fragments }
    }

    /// Makes the next message. There is none once all events are told.
    pub(crate) fn next_message<S: EtcdStore>(&mut self, etcd: &Etcd<S>) -> Option<WatchResponse> {
        let mut message = WatchResponse { watch_id: self.watch_id, ..WatchResponse::default() };
        let mut bytes = 0;

        while let Some(event) = self.events.next() {
            let shown = shown(&event, self.with_previous);
            bytes += size(&shown);
            message.events.push(shown);

            // The last message has the revision up to which the watch is complete.
            let Some(next) = self.events.peek() else { break };
            let is_whole = next.revision > event.revision;
            if bytes >= MESSAGE_BYTES && (is_whole || self.takes_fragments) {
                // A client goes on after the revision of the header.
                message.header = etcd.header(event.revision);
                message.fragment = !is_whole;
                return Some(message);
            }
        }

        if message.events.is_empty() {
            return None;
        }
        message.header = etcd.header(self.complete);
        Some(message)
    }
}

/// An event as etcd's messages have it.
fn shown(event: &EntryEvent, with_previous: bool) -> Event {
    let EntryEvent { revision, key, before, after } = event;
    let prev_kv = before.as_ref().filter(|_| with_previous).map(|before| key_value(key, before));

    let (r#type, kv) = match after {
        Some(after) => (EventType::Put, key_value(key, after)),
        None => {
            let deleted =
                KeyValue { key: key::shown(key).to_vec(), mod_revision: number(*revision), ..KeyValue::default() };
            (EventType::Delete, deleted)
        }
    };

    Event { r#type: r#type.into(), kv: Some(kv), prev_kv }
}

/// What an event adds to a message: the number of the field, its length, and itself.
fn size(event: &Event) -> usize {
    let bytes = event.encoded_len();
    1 + length_delimiter_len(bytes) + bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkeeper_machine::{Entry, Key, Value};

    use super::*;
    use crate::tests::Memory;

    fn etcd() -> Etcd<Memory> {
        Etcd { store: Memory::default(), shown: Arc::default(), leases: Arc::default() }
    }

    /// Events of one revision, one for each key.
    fn events(count: usize, entry: &Arc<Entry>) -> Vec<EntryEvent> {
        let key = |n: usize| Key::new(format!("etcd/{n:06}").as_bytes()).expect("short");
        let event = |n| EntryEvent { revision: Revision(7), key: key(n), before: None, after: Some(entry.clone()) };
        (0..count).map(event).collect()
    }

    fn entry(bytes: usize) -> Arc<Entry> {
        let value = Value::new(&vec![7; bytes]).expect("in bounds");
        Arc::new(Entry {
            created: Revision(7),
            modified: Revision(7),
            version: 1,
            lease: None,
            until: None,
            claim: None,
            is_expired: false,
            is_revoked: false,
            is_temporary: false,
            kin: None,
            value,
        })
    }

    fn untold(events: Vec<EntryEvent>, fragment: bool) -> UntoldEvents {
        UntoldEvents::new(3, &WatchCreateRequest { fragment, ..Default::default() }, events, Revision(9))
    }

    #[test]
    fn a_message_is_made_when_it_is_asked_for_and_its_events_are_let_go() {
        let etcd = etcd();
        let entry = entry(300 << 10);
        let mut untold = untold(events(9, &entry), true);

        let mut told = Vec::new();
        let mut left = 9;
        while let Some(message) = untold.next_message(&etcd) {
            left -= message.events.len();
            assert_eq!(Arc::strong_count(&entry), 1 + left, "the others are as they were");
            told.push((message.events.len(), message.fragment, message.header.map(|header| header.revision)));
        }
        assert_eq!(told, [(4, true, Some(7)), (4, true, Some(7)), (1, false, Some(9))]);
    }

    #[test]
    fn messages_are_closed_by_the_bytes_that_they_have() {
        let etcd = etcd();
        let entry = entry(1);
        let mut in_parts = untold(events(60_000, &entry), true);
        let first = in_parts.next_message(&etcd).expect("a message");
        let before_last = &first.events[..first.events.len() - 1];
        let header = WatchResponse { events: Vec::new(), ..first.clone() }.encoded_len();
        assert!(first.encoded_len() - header >= MESSAGE_BYTES);
        assert!(before_last.iter().map(size).sum::<usize>() < MESSAGE_BYTES);

        let whole = untold(events(60_000, &entry), false).next_message(&etcd).expect("a message");
        assert_eq!((whole.events.len(), whole.fragment), (60_000, false));
    }
}
