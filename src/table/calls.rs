//! The calls on this node that wait for the end of a wait.
//!
//! A wait is part of the table on all nodes; the calls that it answers are here, on the node that received them. A call that is dropped
//! before its wait ends has *broken off*; the listener ([`WaitingCalls::breaks`]) is told, and decides whether the wait keeps its place
//! in the queue.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{mpsc, oneshot};

use lockkeeper_machine::{Ticket, WaitEnd};
use lockkeeper_planted::{NodeLimit, Planted};

/// Maximum number of calls that wait for the end of one wait. A client that lost its connections needs a few: the calls on those that this
/// node has not found broken, and the one that it made last.
pub const CALLS_PER_WAIT_MAX: usize = 16;

/// Waiting calls, by ticket.
#[derive(Debug)]
pub struct WaitingCalls {
    per_wait_max: usize,
    waiting: Mutex<HashMap<Ticket, Vec<oneshot::Sender<WaitEnd>>>>,
    // Unbounded, since `drop` cannot wait: it holds at most one message for each admitted call.
    broken: mpsc::UnboundedSender<BrokenCall>,
    breaks: Mutex<Option<mpsc::UnboundedReceiver<BrokenCall>>>,
    /// How often this node broke off all calls.
    times_broken_off: AtomicU64,
}

/// A call broke off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokenCall {
    /// The wait's ticket.
    pub ticket: Ticket,
    /// Whether the client can repeat the request to take up its place again.
    pub is_repeatable: bool,
}

impl Default for WaitingCalls {
    fn default() -> Self {
        Self::new(CALLS_PER_WAIT_MAX)
    }
}

impl WaitingCalls {
    /// No calls yet, and up to this number of them for one wait.
    pub(super) fn new(per_wait_max: usize) -> Self {
        let (broken, breaks) = mpsc::unbounded_channel();
        Self {
            per_wait_max,
            waiting: Mutex::default(),
            broken,
            breaks: Mutex::new(Some(breaks)),
            times_broken_off: AtomicU64::new(0),
        }
    }

    /// Maximum number of calls that wait for the end of one wait.
    pub fn per_wait_max(&self) -> usize {
        self.per_wait_max
    }

    /// Whether the client can repeat the request (`is_repeatable`) is known from the start, since the call may be dropped before anybody
    /// looks at it. Returns `None` if [`per_wait_max`](Self::per_wait_max) calls wait for it already: these wait on.
    pub(super) fn begin(&self, ticket: Ticket, is_repeatable: bool) -> Option<WaitingCall> {
        let (call, end) = oneshot::channel();
        let mut waiting = self.waiting();
        let calls = waiting.entry(ticket).or_default();
        if calls.len() >= self.per_wait_max {
            calls.retain(|call| !call.is_closed());
            if calls.len() >= self.per_wait_max {
                NodeLimit::CallsPerWait.note();
                return None;
            }
        }

        if Planted::WaitLostOnDisconnect.is_on() && calls.iter().any(oneshot::Sender::is_closed) {
            std::mem::forget(call)
        } else {
            calls.push(call)
        }
        Some(WaitingCall { ticket, end, broken: self.broken.clone(), is_repeatable, is_over: false })
    }

    pub(super) fn end(&self, ticket: Ticket, end: &WaitEnd) {
        // Taken out first: the calls are woken without the lock.
        let calls = self.waiting().remove(&ticket).unwrap_or_default();
        for call in calls {
            // An error means that the call broke off: its grant stays with its session.
            let _ = call.send(end.clone());
        }
    }

    /// Ends all calls without a result, for a node that stopped leading. Clients repeat them at the new leader, which would cancel the
    /// wait of a call that it does not see.
    pub fn break_off(&self) {
        // Count before the calls are removed: a caller that finds its call missing, and then reads the number, finds it changed.
        self.times_broken_off.fetch_add(1, Ordering::AcqRel);
        self.waiting().clear();
    }

    /// The number of times this node broke off all calls. If it changed, the node may have lost calls of the reader.
    pub fn times_broken_off(&self) -> u64 {
        self.times_broken_off.load(Ordering::Acquire)
    }

    /// Whether a call waits for the end of this wait.
    pub fn is_awaited(&self, ticket: Ticket) -> bool {
        self.waiting().get(&ticket).is_some_and(|calls| calls.iter().any(|call| !call.is_closed()))
    }

    /// Whether a call came for this wait, and either still waits or broke off without being forgotten.
    pub fn has_come(&self, ticket: Ticket) -> bool {
        self.waiting().contains_key(&ticket)
    }

    /// Forgets the calls of this wait that broke off.
    pub fn forget_broken(&self, ticket: Ticket) {
        let mut waiting = self.waiting();
        if let Some(calls) = waiting.get_mut(&ticket) {
            calls.retain(|call| !call.is_closed());
            if calls.is_empty() {
                waiting.remove(&ticket);
            }
        }
    }

    /// The calls that break off, from the start of the node. For one listener: later calls return `None`.
    pub fn breaks(&self) -> Option<mpsc::UnboundedReceiver<BrokenCall>> {
        self.breaks.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// No code panics while it holds this lock.
    fn waiting(&self) -> MutexGuard<'_, HashMap<Ticket, Vec<oneshot::Sender<WaitEnd>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting call. Dropping it breaks it off.
#[derive(Debug)]
pub struct WaitingCall {
    ticket: Ticket,
    end: oneshot::Receiver<WaitEnd>,
    broken: mpsc::UnboundedSender<BrokenCall>,
    is_repeatable: bool,
    is_over: bool,
}

impl WaitingCall {
    /// The wait's ticket.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The end of the wait, or `None` if this node no longer leads. Dropping the future loses nothing; once it has returned, it must not be
    /// called again.
    pub async fn end(&mut self) -> Option<WaitEnd> {
        let end = (&mut self.end).await;
        // A repeatable call goes on at the node that leads next. Of another one its client learns only that it broke off.
        self.is_over = end.is_ok() || self.is_repeatable;
        end.ok()
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        if !self.is_over {
            // Before the listener hears of it: a call that it still saw here would keep the place.
            self.end.close();
            // The receiver is gone when the node stops.
            let _ = self.broken.send(BrokenCall { ticket: self.ticket, is_repeatable: self.is_repeatable });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKET: Ticket = Ticket(7);

    #[tokio::test]
    async fn a_call_that_is_dropped_before_it_is_awaited_has_broken_off() {
        let calls = WaitingCalls::default();
        let mut breaks = calls.breaks().expect("the only listener");
        assert!(calls.breaks().is_none());
        drop(calls.begin(TICKET, true));
        let second = calls.begin(TICKET, false).expect("there is room");
        assert!(calls.is_awaited(TICKET));
        drop(second);
        let broken = |is_repeatable| Some(BrokenCall { ticket: TICKET, is_repeatable });
        assert_eq!((breaks.recv().await, breaks.recv().await), (broken(true), broken(false)));
        assert!(!calls.is_awaited(TICKET) && calls.has_come(TICKET));
        calls.forget_broken(TICKET);
        assert!(!calls.has_come(TICKET));
    }

    #[tokio::test]
    async fn as_many_calls_wait_for_one_wait_as_its_client_may_need() {
        let calls = WaitingCalls::default();
        let mut waiting: Vec<_> = (0..CALLS_PER_WAIT_MAX).filter_map(|_| calls.begin(TICKET, true)).collect();
        assert_eq!(waiting.len(), CALLS_PER_WAIT_MAX);
        assert!(calls.begin(TICKET, true).is_none() && calls.begin(Ticket(8), true).is_some());

        waiting.pop();
        waiting.extend(calls.begin(TICKET, true));
        assert_eq!(waiting.len(), CALLS_PER_WAIT_MAX, "one had broken off");
        calls.end(TICKET, &WaitEnd::Cancelled);
        for mut call in waiting {
            assert_eq!(call.end().await, Some(WaitEnd::Cancelled));
        }
    }

    #[tokio::test]
    async fn a_call_that_has_turned_to_something_else_is_told_the_end_all_the_same() {
        let calls = WaitingCalls::default();
        let mut breaks = calls.breaks().expect("the only listener");
        let mut call = calls.begin(TICKET, true).expect("there is room");
        tokio::select! {
            biased;
            end = call.end() => panic!("it has not ended: {end:?}"),
            () = async {} => {}
        }

        assert!(calls.is_awaited(TICKET));
        calls.end(TICKET, &WaitEnd::Cancelled);
        assert_eq!(call.end().await, Some(WaitEnd::Cancelled));
        drop(call);
        assert!(breaks.try_recv().is_err());
    }

    #[tokio::test]
    async fn an_answered_or_redirected_call_has_not_broken_off() {
        let calls = WaitingCalls::default();
        let mut breaks = calls.breaks().expect("the only listener");
        let mut call = calls.begin(TICKET, true).expect("there is room");
        calls.end(TICKET, &WaitEnd::Cancelled);
        assert_eq!(call.end().await, Some(WaitEnd::Cancelled));
        drop(call);
        let mut call = calls.begin(TICKET, true).expect("there is room");
        calls.break_off();
        assert_eq!(call.end().await, None);
        drop(call);
        assert!(breaks.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_call_that_cannot_be_repeated_has_broken_off_also_when_the_node_broke_it_off() {
        let calls = WaitingCalls::default();
        let mut breaks = calls.breaks().expect("the only listener");
        let mut call = calls.begin(TICKET, false).expect("there is room");
        assert_eq!(calls.times_broken_off(), 0);
        calls.break_off();
        assert_eq!((call.end().await, calls.times_broken_off()), (None, 1));
        drop(call);
        assert_eq!(breaks.try_recv(), Ok(BrokenCall { ticket: TICKET, is_repeatable: false }));
    }
}
