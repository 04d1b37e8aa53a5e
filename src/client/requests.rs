//! Request ids: they make retried requests idempotent (RIFL: Lee et al., SOSP'15).
//!
//! The session on the server keeps its replies to all ids that may still be retried. So an id is outstanding until its
//! answer has arrived or its caller is gone, and never again after that. The server relies on it, and on each message
//! naming all ids that are outstanding at its sending, future ids included.
//!
//! Usually the lowest outstanding id is enough. An id that lags far behind the newest, such as that of an acquire that
//! waits for hours, is listed separately, so that the lowest of the others can advance.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
};

use lockkeeper_proto::v1::RequestId;
use lockkeeper_types::REPLIES_PER_SESSION_MAX;

/// An outstanding id is listed separately once the newest is further ahead than this. It bounds the replies that the
/// server keeps without need.
const LAG_MAX: u64 = 64;

/// The ids of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Ids>>);

#[derive(Debug, Default)]
struct Ids {
    last: u64,
    outstanding: BTreeSet<u64>,
}

/// A request whose answer may still be requested. Ends on drop.
#[derive(Debug)]
pub(crate) struct Outstanding {
    id: u64,
    requests: Requests,
}

impl Requests {
    pub(crate) fn begin(&self) -> Outstanding {
        let mut ids = self.ids();
        ids.last += 1;
        let id = ids.last;
        ids.outstanding.insert(id);
        Outstanding { id, requests: self.clone() }
    }

    fn ids(&self) -> MutexGuard<'_, Ids> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

impl Outstanding {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The id and the outstanding ids at this moment.
    pub(crate) fn message(&self) -> RequestId {
        let (lowest, kept) = self.requests.ids().wanted();
        RequestId { id: self.id, lowest, kept }
    }
}

impl Ids {
    /// All outstanding ids: those from `lowest` on, and those listed below it.
    fn wanted(&self) -> (u64, Vec<u64>) {
        let lagging = self.outstanding.range(..self.last.saturating_sub(LAG_MAX));
        let kept: Vec<u64> = lagging.take(REPLIES_PER_SESSION_MAX).copied().collect();
        let next = self.outstanding.iter().nth(kept.len()).copied();
        (next.unwrap_or(self.last + 1), kept)
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.requests.ids().outstanding.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_types::OpenIds;

    #[test]
    fn ids_rise_and_the_lowest_is_the_oldest_that_is_still_wanted() {
        let requests = Requests::default();
        let (first, second) = (requests.begin(), requests.begin());
        assert_eq!(second.message(), RequestId { id: 2, lowest: 1, kept: vec![] });
        drop(first);
        assert_eq!(second.message(), RequestId { id: 2, lowest: 2, kept: vec![] });
        drop(second);
        assert_eq!(requests.begin().message(), RequestId { id: 3, lowest: 3, kept: vec![] });
    }

    #[test]
    fn an_id_that_lags_far_behind_is_listed_and_the_lowest_goes_on() {
        let requests = Requests::default();
        let (first, second) = (requests.begin(), requests.begin());
        let most = LAG_MAX + 1;
        (3..=most).for_each(|_| drop(requests.begin()));
        assert_eq!(second.message(), RequestId { id: 2, lowest: 1, kept: vec![] }, "{LAG_MAX} are not far");
        let newest = requests.begin();
        assert_eq!(newest.message(), RequestId { id: most + 1, lowest: 2, kept: vec![1] });
        assert_eq!(first.message(), RequestId { id: 1, lowest: 2, kept: vec![1] }, "a retry says what is so now");
        drop(newest);
        drop(requests.begin());
        // Nothing else is outstanding, but the next request will be.
        assert_eq!(second.message(), RequestId { id: 2, lowest: most + 3, kept: vec![1, 2] });
        drop(first);
        assert_eq!(requests.begin().message(), RequestId { id: most + 3, lowest: most + 3, kept: vec![2] });
    }

    /// More requests than the server lets a client list, and more than it would admit. The message must be correct all
    /// the same.
    #[test]
    fn what_is_outstanding_is_never_left_out() {
        let requests = Requests::default();
        let all: Vec<_> = (0..REPLIES_PER_SESSION_MAX + 100).map(|_| requests.begin()).collect();
        let message = requests.begin().message();
        assert_eq!(message.kept.len(), REPLIES_PER_SESSION_MAX);
        assert!(all.iter().all(|open| open.id() >= message.lowest || message.kept.contains(&open.id())));
    }

    /// The server closes an id that one message leaves out, and refuses an unsorted list.
    #[test]
    fn what_is_listed_is_what_is_outstanding() {
        let requests = Requests::default();
        let mut open = Vec::new();
        let mut closed = Vec::new();
        for turn in 0..500u64 {
            open.push(requests.begin());
            if turn % 11 != 0 {
                let done = open.remove((turn * 7) as usize % open.len());
                closed.push(done.id());
            }
            let RequestId { id, lowest, kept } = requests.begin().message();
            closed.push(id);
            let view = OpenIds::new(lowest, kept).expect("as the server wants it");
            assert!(view.contains(id) && view.contains(id + 1));
            assert!(open.iter().all(|request| view.contains(request.id())), "after {turn}: {view:?}");
            let remembered = closed.iter().filter(|closed| view.contains(**closed)).count() as u64;
            assert!(remembered <= LAG_MAX + 1, "{remembered} closed ids are in {view:?}");
        }
    }
}
