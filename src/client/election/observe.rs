//! Observers of an election.
//!
//! A separate task reads the watch without delay and keeps only the latest state: a slow observer delays no other and
//! never lags. A watch covers a *prefix*, so changes of other locks are filtered out. Only the state after each log entry
//! counts, which can come in several messages. A grant and the leader's value are in one entry: a new leader is never
//! shown with its predecessor's value.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{Stream, StreamExt};
use tokio::{sync::watch, time::sleep};
use tokio_stream::wrappers::WatchStream;

use super::{
    super::{Change, ChangeKind, Client, Error, StatePart, WatchMessage},
    Leader,
};
use lockkeeper_types::{LockName, Mode, Token};

/// The current leader, then every change: another leader, another value, or none.
///
/// Read the changes with [`Observe::next`], or use it as a [`Stream`], which does not end. It starts on the first poll,
/// with the current state. A slow observer gets the latest state and misses intermediate ones. Epochs never decrease.
/// The loss of a node is not visible if another one answers within the client's call limit. Otherwise an error is
/// returned; observation then resumes by itself, and the current leader is reported again, changed or not.
///
/// Changes arrive with a delay: for the leader at this moment call [`super::Election::leader`].
///
/// Locks whose names begin with the name of the election cost it time and traffic: avoid names such as `jobs/leader/…`
/// beside the election `jobs/leader`.
///
/// ```no_run
/// # async fn example(election: lockkeeper_client::Election) -> Result<(), lockkeeper_client::Error> {
/// use futures::TryStreamExt;
///
/// // Waits for the first leader.
/// let mut leaders = std::pin::pin!(election.observe().try_filter_map(async |leader| Ok(leader)));
/// let leader = leaders.try_next().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an observer does nothing before it is polled"]
pub struct Observe {
    client: Client,
    name: LockName,
    seen: Option<WatchStream<ObservedLeader>>,
    /// The state returned last, unless there was none yet, or an error since.
    told: Option<Option<Leader>>,
}

type ObservedLeader = Result<Option<Leader>, Error>;

/// Delay after an error before the next attempt. Some errors come at once.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

impl Observe {
    pub(super) fn new(client: Client, name: LockName) -> Self {
        Self { client, name, seen: None, told: None }
    }

    /// Waits for the next change; the first call returns the current leader. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        match StreamExt::next(self).await {
            Some(seen) => seen,
            // The task ended with its runtime; so does this caller.
            None => std::future::pending().await,
        }
    }
}

impl Stream for Observe {
    type Item = Result<Option<Leader>, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { client, name, seen, told } = self.get_mut();
        let seen = seen.get_or_insert_with(|| start(client.clone(), name.clone()));
        loop {
            let next = ready!(seen.poll_next_unpin(context));
            match &next {
                Some(Ok(leader)) if told.as_ref() == Some(leader) => continue,
                Some(Ok(leader)) => *told = Some(leader.clone()),
                Some(Err(_)) | None => *told = None,
            }
            return Poll::Ready(next);
        }
    }
}

fn start(client: Client, name: LockName) -> WatchStream<ObservedLeader> {
    // The initial value is never shown: the stream begins with the first change.
    let (sender, receiver) = watch::channel(Ok(None));
    tokio::spawn(async move {
        tokio::select! {
            () = follow(&client, name, &sender) => {}
            // The observer is gone.
            () = sender.closed() => {}
        }
    });
    WatchStream::from_changes(receiver)
}

async fn follow(client: &Client, name: LockName, seen: &watch::Sender<ObservedLeader>) {
    let mut messages = client.watch(name.as_str());
    let mut watched = ObservedLock::new(name);

    loop {
        match messages.next().await {
            Ok(message) => {
                if let Some(leader) = watched.hear(message) {
                    seen.send_modify(|seen| *seen = Ok(leader));
                }
            }
            Err(error) => {
                seen.send_modify(|seen| *seen = Err(error));
                sleep(ERROR_PAUSE).await;
                // Starts with the state, which reports the leader even if nothing changed.
                messages = client.watch(watched.name.as_str());
            }
        }
    }
}

/// The state of one lock, according to the messages of a watch.
struct ObservedLock {
    name: LockName,
    /// The holder, without its value.
    holder: Option<Leader>,
    data: Option<Vec<u8>>,
    epoch_max: Token,
    /// An entry has changed the lock, and its last part has not come.
    is_changing: bool,
}

impl ObservedLock {
    fn new(name: LockName) -> Self {
        Self { name, holder: None, data: None, epoch_max: Token::default(), is_changing: false }
    }

    /// The leader after this message, if the message concerns the lock.
    fn hear(&mut self, message: WatchMessage) -> Option<Option<Leader>> {
        match message {
            WatchMessage::State(state) if state.first => {
                self.is_changing = false;
                self.begin(state);
            }
            WatchMessage::Changes(changes) => {
                let ours = |change: &Change| change.name == self.name;
                let has_more = changes.more;
                let changes: Vec<Change> = changes.changes.into_iter().filter(ours).collect();
                self.is_changing |= !changes.is_empty();
                changes.into_iter().for_each(|change| self.change(change));

                // The value of a new leader may be in the next part.
                if has_more || !self.is_changing {
                    return None;
                }
                self.is_changing = false;
            }
            WatchMessage::State(_) | WatchMessage::Progress { .. } | WatchMessage::TooOld { .. } => return None,
        }

        let leader = self.leader();
        let epoch = leader.as_ref().map_or(self.epoch_max, |leader| leader.epoch);
        // Servers do not go back behind a delivered state. If one did, nothing is reported until it has caught up.
        (epoch >= self.epoch_max).then(|| {
            self.epoch_max = epoch;
            leader
        })
    }

    fn leader(&self) -> Option<Leader> {
        let value = self.data.clone().unwrap_or_default();
        self.holder.clone().map(|holder| Leader { value, ..holder })
    }

    /// The state is sorted by name, and the lock is the first of all names with this prefix: it is in the first part or
    /// absent.
    fn begin(&mut self, state: StatePart) {
        let lock = state.locks.into_iter().next().filter(|lock| lock.name == self.name);
        self.data = lock.as_ref().and_then(|lock| lock.data.clone());
        self.holder = lock.and_then(Leader::from_lock);
    }

    fn change(&mut self, change: Change) {
        let Change { kind, token, session_id, label, data, mode, .. } = change;
        match (kind, token, session_id) {
            (ChangeKind::Granted, Some(epoch), Some(session_id)) if mode == Some(Mode::Exclusive) => {
                let label = label.unwrap_or_default();
                self.holder = Some(Leader { epoch, value: Vec::new(), label, session_id });
            }
            (ChangeKind::Released | ChangeKind::Lost, Some(token), _) => {
                self.holder.take_if(|holder| holder.epoch == token);
            }
            (ChangeKind::Data, _, _) => self.data = data,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_types::SessionId;

    use super::{
        super::super::{Changes, Holder, LockInfo, LockKind},
        *,
    };

    const EXCLUSIVE: Option<Mode> = Some(Mode::Exclusive);

    fn watched() -> ObservedLock {
        ObservedLock::new(LockName::new("jobs").unwrap())
    }

    fn state(first: bool, locks: Vec<LockInfo>) -> WatchMessage {
        WatchMessage::State(StatePart { locks, index: 1, first, last: false })
    }

    fn changes(changes: Vec<Change>) -> WatchMessage {
        WatchMessage::Changes(Changes { index: 2, changes, more: false })
    }

    fn held(name: &str, token: u64, value: &str) -> LockInfo {
        let holder = Holder { token: Token(token), session_id: SessionId(1), mode: EXCLUSIVE, ..Holder::default() };
        LockInfo {
            name: LockName::new(name).unwrap(),
            kind: LockKind::Lock,
            mode: EXCLUSIVE,
            holders: vec![holder],
            holder_count: 1,
            waiters: Vec::new(),
            queue_length: 0,
            data: Some(value.into()),
            keep_data: false,
            delay_remaining: None,
            resized: false,
        }
    }

    fn change(name: &str, kind: ChangeKind, token: u64) -> Change {
        Change {
            name: LockName::new(name).unwrap(),
            lock_kind: LockKind::Lock,
            kind,
            token: Some(Token(token)),
            session_id: Some(SessionId(1)),
            label: None,
            ticket: None,
            reason: None,
            by: None,
            data: None,
            mode: EXCLUSIVE,
        }
    }

    fn data(value: &str) -> Change {
        let mode = None;
        Change { token: None, session_id: None, mode, data: Some(value.into()), ..change("jobs", ChangeKind::Data, 0) }
    }

    /// Epoch and value of the reported leader.
    fn told(leader: Option<Option<Leader>>) -> Option<(u64, String)> {
        leader.expect("it is told").map(|leader| (leader.epoch.0, String::from_utf8(leader.value).unwrap()))
    }

    #[test]
    fn a_new_leader_is_seen_with_its_value_and_never_with_the_one_before() {
        let mut watched = watched();
        assert_eq!(told(watched.hear(state(true, vec![held("jobs", 1, "a")]))), Some((1, "a".into())));
        let handover = [change("jobs", ChangeKind::Lost, 1), change("jobs", ChangeKind::Granted, 2), data("b")];
        assert_eq!(told(watched.hear(changes(handover.to_vec()))), Some((2, "b".into())));
        assert_eq!(told(watched.hear(changes(vec![data("c")]))), Some((2, "c".into())));
        assert_eq!(told(watched.hear(changes(vec![change("jobs", ChangeKind::Released, 2)]))), None);
    }

    #[test]
    fn an_entry_in_several_parts_is_told_once_it_is_whole() {
        let part = |changes: Vec<Change>, more| WatchMessage::Changes(Changes { index: 2, changes, more });
        let mut watched = watched();
        assert_eq!(told(watched.hear(state(true, vec![held("jobs", 1, "a")]))), Some((1, "a".into())));
        let handover = vec![change("jobs", ChangeKind::Lost, 1), change("jobs", ChangeKind::Granted, 2)];
        assert_eq!(watched.hear(part(handover, true)), None, "its value has not come");
        assert_eq!(watched.hear(part(vec![data("b")], true)), None);
        let others = vec![change("jobs/a", ChangeKind::Granted, 3)];
        assert_eq!(told(watched.hear(part(others.clone(), false))), Some((2, "b".into())));
        assert_eq!(watched.hear(part(others, false)), None, "another entry");
    }

    #[test]
    fn other_names_under_the_prefix_are_none_of_its_business() {
        let mut watched = watched();
        let others = vec![held("jobs/a", 7, "other"), held("jobs/b", 8, "other")];
        assert_eq!(told(watched.hear(state(true, others.clone()))), None);
        assert_eq!(watched.hear(state(false, others)), None);
        assert_eq!(watched.hear(changes(vec![change("jobs/a", ChangeKind::Granted, 9)])), None);
        let mixed = vec![change("jobs", ChangeKind::Granted, 10), change("jobs/a", ChangeKind::Released, 9), data("a")];
        assert_eq!(told(watched.hear(changes(mixed))), Some((10, "a".into())));
    }

    #[test]
    fn the_state_takes_the_place_of_all_that_was_known() {
        let mut watched = watched();
        assert!(told(watched.hear(state(true, vec![held("jobs", 1, "a")]))).is_some());
        assert_eq!(told(watched.hear(state(true, vec![held("jobs/a", 7, "other")]))), None);
        assert_eq!(told(watched.hear(changes(vec![change("jobs", ChangeKind::Granted, 9)]))), Some((9, String::new())));
    }

    #[test]
    fn epochs_never_go_back() {
        let mut watched = watched();
        assert!(told(watched.hear(state(true, vec![held("jobs", 5, "e")]))).is_some());
        assert_eq!(watched.hear(state(true, vec![held("jobs", 3, "c")])), None);
        assert_eq!(watched.hear(changes(vec![data("d")])), None);
        let handover = vec![change("jobs", ChangeKind::Lost, 3), change("jobs", ChangeKind::Granted, 5), data("e")];
        assert_eq!(told(watched.hear(changes(handover))), Some((5, "e".into())));
    }

    #[test]
    fn one_of_several_leads_nobody() {
        let mut watched = watched();
        let shared = Some(Mode::Shared);
        let mut lock = held("jobs", 1, "a");
        lock.holders[0].mode = shared;
        assert_eq!(told(watched.hear(state(true, vec![lock]))), None);
        let granted = Change { mode: shared, ..change("jobs", ChangeKind::Granted, 2) };
        assert_eq!(told(watched.hear(changes(vec![granted]))), None);
    }
}
