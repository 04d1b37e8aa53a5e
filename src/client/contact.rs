//! Whether the cluster has answered a client yet. With it a program can report that no node answers.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

/// Shared by all calls of a client.
#[derive(Debug, Default)]
pub(super) struct ClusterContact(Mutex<ContactState>);

#[derive(Debug, Default)]
enum ContactState {
    /// No request was sent that must be answered soon.
    #[default]
    Unknown,
    Silent {
        since: Instant,
        last: Option<String>,
    },
    Answered,
}

/// No node has answered a request yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Silence {
    /// Time since the first request was sent.
    pub lasts: Duration,
    /// Why the last attempt failed, if one has.
    pub last: Option<String>,
}

impl ClusterContact {
    /// An attempt begins. A call that may wait on the server says nothing by its silence.
    pub(super) fn asked(&self, may_wait: bool) {
        let mut state = self.state();
        if matches!(*state, ContactState::Unknown) && !may_wait {
            *state = ContactState::Silent { since: Instant::now(), last: None };
        }
    }

    /// An attempt that began at `began` failed.
    pub(super) fn failed(&self, began: Instant, why: &str) {
        let mut state = self.state();
        match &mut *state {
            ContactState::Unknown => *state = ContactState::Silent { since: began, last: Some(why.to_owned()) },
            ContactState::Silent { last, .. } => *last = Some(why.to_owned()),
            ContactState::Answered => {}
        }
    }

    /// A waiting attempt has run for a while and its connection has not failed.
    pub(super) fn waits(&self) {
        let mut state = self.state();
        if matches!(*state, ContactState::Silent { .. }) {
            *state = ContactState::Unknown;
        }
    }

    pub(super) fn answered(&self) {
        *self.state() = ContactState::Answered;
    }

    /// How long there was no answer. Fails once a node has answered; this never changes back.
    pub(super) fn silence(&self) -> Result<Option<Silence>, Answered> {
        match &*self.state() {
            ContactState::Unknown => Ok(None),
            ContactState::Silent { since, last } => Ok(Some(Silence { lasts: since.elapsed(), last: last.clone() })),
            ContactState::Answered => Err(Answered),
        }
    }

    fn state(&self) -> MutexGuard<'_, ContactState> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

/// The cluster has answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answered;

#[cfg(test)]
mod tests {
    use super::*;

    fn last(contact: &ClusterContact) -> Option<Option<String>> {
        contact.silence().expect("no answer yet").map(|silence| silence.last)
    }

    #[test]
    fn silence_is_what_follows_a_question_until_the_first_answer() {
        let contact = ClusterContact::default();
        assert_eq!(last(&contact), None, "nothing was asked");
        contact.asked(false);
        assert_eq!(last(&contact), Some(None));
        contact.failed(Instant::now(), "refused");
        assert_eq!(last(&contact), Some(Some("refused".to_owned())));
        contact.answered();
        contact.failed(Instant::now(), "broken");
        assert_eq!(contact.silence(), Err(Answered));
    }

    #[test]
    fn who_waits_for_a_lock_is_not_told_that_nobody_answers() {
        let contact = ClusterContact::default();
        contact.asked(true);
        assert_eq!(last(&contact), None);
        contact.failed(Instant::now(), "refused");
        assert!(last(&contact).is_some());
        contact.waits();
        assert_eq!(last(&contact), None);
    }
}
