//! The events of a range in whole revisions, until the receiver is dropped.
//!
//! The store's watch ends when its node has no leader for long, and tells the events of one revision in parts. Here it begins again after
//! the last complete revision, and no part is shown: whoever stops at any revision has seen all of it.

use std::{mem, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    stream::{BoxStream, unfold},
};
use lockkeeper_machine::{EntryEvent, KeyRange, Revision};
use tokio::time::sleep;

use crate::{Etcd, EtcdStore, EtcdStoreError, WatchedEvents, error::passes};

/// Between two attempts to watch.
const PAUSE: Duration = Duration::from_millis(50);

/// Events in whole revisions. An error ends them.
pub(crate) type Followed = BoxStream<'static, Result<WatchedEvents, EtcdStoreError>>;

impl<S: EtcdStore> Etcd<S> {
    /// The events of a range from a revision on, included, or from now on without one. The first item comes at once, and tells where they
    /// begin: after its [`WatchedEvents::complete`], unless it has some. Errors that pass are not told.
    pub(crate) fn follow(
        &self,
        caller: &S::Caller,
        range: KeyRange,
        from: Option<Revision>,
        with_previous: bool,
    ) -> Followed {
        let store = self.store.clone();
        let caller = caller.clone();
        let follower = Follower { store, caller, range, from, with_previous, open: None, parts: Vec::new() };

        unfold(Some(follower), |follower| async {
            let mut follower = follower?;
            let next = follower.next().await;
            let follower = next.is_ok().then_some(follower);
            Some((next, follower))
        })
        .boxed()
    }
}

struct Follower<S: EtcdStore> {
    store: S,
    caller: S::Caller,
    range: KeyRange,
    /// The first revision that was not shown.
    from: Option<Revision>,
    with_previous: bool,
    open: Option<BoxStream<'static, Result<WatchedEvents, EtcdStoreError>>>,
    /// Events of a revision whose others are still to come.
    parts: Vec<EntryEvent>,
}

impl<S: EtcdStore> Follower<S> {
    async fn next(&mut self) -> Result<WatchedEvents, EtcdStoreError> {
        loop {
            let told = match &mut self.open {
                // A watch that ends without a reason is opened again, as after the loss of a leader.
                Some(open) => open.next().await.unwrap_or(Err(EtcdStoreError::NoLeader)),
                None => {
                    // Boxed, so that a watch which is open does not carry the space for its opening.
                    let open = self.store.watch(&self.caller, self.range.clone(), self.from, self.with_previous);
                    match open.boxed().await {
                        Ok(open) => {
                            self.open = Some(open);
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
            };

            match told {
                Ok(WatchedEvents { events, complete }) => {
                    self.parts.extend(events);
                    let rest = self.parts.split_off(self.parts.partition_point(|event| event.revision <= complete));
                    self.from = Some(Revision(complete.0 + 1));
                    return Ok(WatchedEvents { events: mem::replace(&mut self.parts, rest), complete });
                }
                Err(error) if passes(&error.clone().into()) => {
                    self.open = None;
                    // The parts come again.
                    self.parts.clear();
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
