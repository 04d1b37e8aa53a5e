//! Request ids: what makes a repeated request happen once (RIFL: Lee et al., SOSP'15).
//!
//! The session on the server remembers its replies from the lowest id on that may still be asked for. So an id stays outstanding until
//! its answer is here or nobody wants it any more, and not one moment longer.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::proto::v1::RequestId;

/// The ids of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<Ids>>);

#[derive(Debug, Default)]
struct Ids {
    last: u64,
    outstanding: BTreeSet<u64>,
}

/// A request whose answer may still be asked for. It is not, once this is dropped.
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
        self.0.lock().expect("nothing panics while it has the ids")
    }
}

impl Outstanding {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// As it goes out now.
    pub(crate) fn message(&self) -> RequestId {
        let lowest = self.requests.ids().outstanding.first().copied().unwrap_or(self.id);
        RequestId { id: self.id, lowest }
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

    #[test]
    fn ids_rise_and_the_lowest_is_the_oldest_that_is_still_wanted() {
        let requests = Requests::default();
        let (first, second) = (requests.begin(), requests.begin());
        assert_eq!(second.message(), RequestId { id: 2, lowest: 1 });
        drop(first);
        assert_eq!(second.message(), RequestId { id: 2, lowest: 2 });
        drop(second);
        assert_eq!(requests.begin().message(), RequestId { id: 3, lowest: 3 });
    }
}
