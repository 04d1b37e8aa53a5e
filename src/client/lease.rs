//! Until when a session may be trusted, and how it was lost.
//!
//! The client's deadline is the moment at which it *sent* its last acknowledged open or renewal, plus the TTL, less a
//! margin for clock rates. The cluster stamps that command after the sending and ends the session one TTL after the
//! stamp: later than the client stops trusting it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::sleep};

use super::{Clock, Danger, Loss, Moment, Revocation};
use lockkeeper_planted::Planted;
use lockkeeper_types::Token;

/// The margin is one percent of the TTL, but at least this.
const MARGIN_MIN: Duration = Duration::from_millis(10);

/// Longest timer. Timers stop while the machine is suspended; the deadline does not.
pub(super) const TIMER_MAX: Duration = Duration::from_millis(250);

/// The time until which a renewal that was sent at `sent` may be trusted.
pub(super) fn deadline(sent: Moment, ttl: Duration) -> Moment {
    let margin = (ttl / 100).max(MARGIN_MIN);
    sent.after(ttl.saturating_sub(margin))
}

/// The start of the TTL for an open or renewal that was sent at `sent` and is answered now: the sending, unless
/// [`Planted::DeadlineFromReceipt`] is on.
pub(super) fn counted_from(sent: Moment, clock: &dyn Clock) -> Moment {
    if Planted::DeadlineFromReceipt.is_on() { clock.now() } else { sent }
}

/// An open or a renewal that the cluster acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcknowledgedLease {
    /// When it was sent, on the client's clock ([`super::Clock`]).
    pub sent: Moment,
    /// The time until which this acknowledgement lets the session be trusted.
    pub deadline: Moment,
}

/// The whole answer to a renewal: a caller must not apply the extension without the revocations.
#[derive(Debug)]
pub(crate) struct RenewalAnswer {
    /// When the renewal was sent, on the client's clock.
    pub(crate) sent: Moment,
    /// How long the session lives without another renewal.
    pub(crate) ttl: Duration,
    /// Grants that an operator revoked.
    pub(crate) revoked: Vec<Revocation>,
    /// There are more revoked grants than one answer names. Such an answer extends nothing, since it would also extend
    /// the grants that it does not name.
    pub(crate) more_revoked: bool,
}

impl RenewalAnswer {
    fn acknowledged(&self) -> AcknowledgedLease {
        AcknowledgedLease { sent: self.sent, deadline: deadline(self.sent, self.ttl) }
    }
}

/// A session's lease, as its client may trust it.
#[derive(Debug)]
pub(crate) struct Lease {
    clock: Arc<dyn Clock>,
    state: watch::Sender<LeaseState>,
    acknowledged: watch::Sender<AcknowledgedLease>,
}

#[derive(Debug)]
struct LeaseState {
    deadline: Moment,
    /// A caller has seen that the deadline had passed. A later answer no longer extends the lease, because that caller acts on the loss.
    is_lapsed: bool,
    ended: Option<Loss>,
    /// Grants that an operator revoked and that are not released yet, by token. A token without a guard is possible:
    /// the answer that grants it may be on its way.
    revoked: BTreeMap<u64, Revoked>,
    /// The tokens among them whose grant is over. The cluster reports these until the client has released them.
    to_acknowledge: BTreeSet<u64>,
}

#[derive(Debug)]
struct Revoked {
    reason: String,
    deadline: Moment,
    /// The grant is over, and this was reported before.
    is_taken: bool,
}

impl LeaseState {
    /// Looks at the clock.
    fn look(&mut self, now: Moment) {
        self.is_lapsed |= self.deadline <= now;
    }

    fn loss(&self, token: Option<u64>) -> Option<Loss> {
        if let Some(revoked) = token.and_then(|token| self.revoked.get(&token)) {
            return Some(Loss::Revoked { reason: revoked.reason.clone() });
        }
        self.ended.clone().or(self.is_lapsed.then_some(Loss::OutOfContact))
    }

    fn deadline(&self, token: Option<u64>) -> Moment {
        let revoked = token.and_then(|token| self.revoked.get(&token));
        revoked.map_or(self.deadline, |revoked| revoked.deadline.min(self.deadline))
    }

    /// The earliest deadline counts, and the first reason. Earlier renewals do not extend a revoked grant either.
    fn revoke(&mut self, revocation: Revocation, told: Moment) {
        let Revocation { token: Token(token), reason, remaining } = revocation;
        let deadline = told.after(remaining).min(self.deadline);
        let known = self.revoked.entry(token).or_insert(Revoked { reason, deadline, is_taken: false });
        known.deadline = known.deadline.min(deadline);
        if remaining.is_zero() && !known.is_taken {
            known.is_taken = true;
            self.to_acknowledge.insert(token);
        }
    }

    fn revoked_besides(&self, known: &BTreeSet<u64>) -> Option<(u64, String)> {
        let (token, revoked) = self.revoked.iter().find(|(token, _)| !known.contains(token))?;
        Some((*token, revoked.reason.clone()))
    }
}

impl Lease {
    /// The lease of a session that was opened by a request sent at `sent`.
    pub(crate) fn new(clock: Arc<dyn Clock>, sent: Moment, ttl: Duration) -> Self {
        Self::begun(clock, AcknowledgedLease { sent, deadline: deadline(sent, ttl) })
    }

    /// The lease of an existing session that was renewed just now.
    pub(crate) fn from_renewal(clock: Arc<dyn Clock>, renewed: RenewalAnswer) -> Self {
        let lease = Self::begun(clock, renewed.acknowledged());
        lease.renewed(renewed);
        lease
    }

    fn begun(clock: Arc<dyn Clock>, acknowledged: AcknowledgedLease) -> Self {
        let state = LeaseState {
            deadline: acknowledged.deadline,
            is_lapsed: false,
            ended: None,
            revoked: BTreeMap::new(),
            to_acknowledge: BTreeSet::new(),
        };
        Self { clock, state: watch::Sender::new(state), acknowledged: watch::Sender::new(acknowledged) }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Applies the answer to a renewal. Answers may arrive out of order; the deadline never moves back. An answer that
    /// was received while this process was stopped may save the session, unless somebody has seen before that it was lost.
    pub(crate) fn renewed(&self, renewed: RenewalAnswer) {
        let renewal = renewed.acknowledged();
        let mut is_extended = false;
        self.state.send_if_modified(|state| {
            let is_any_revoked = !renewed.revoked.is_empty();
            // Revocations before the deadline: a revoked grant must not get the extended deadline.
            for revocation in renewed.revoked {
                // The cluster computed the remaining time after the sending.
                state.revoke(revocation, renewal.sent);
            }
            is_extended = !renewed.more_revoked && !state.is_lapsed;
            if is_extended {
                state.deadline = state.deadline.max(renewal.deadline);
            }
            // Without a revocation no waiting task has to wake earlier.
            is_any_revoked
        });

        self.acknowledged.send_if_modified(|known| {
            let is_newer = known.deadline < renewal.deadline && is_extended;
            *known = if is_newer { renewal } else { *known };
            is_newer
        });
    }

    /// The acknowledged renewal with the latest deadline, and each later one.
    pub(crate) fn renewals(&self) -> watch::Receiver<AcknowledgedLease> {
        self.acknowledged.subscribe()
    }

    /// An operator revoked a grant. Its locks open at the deadline that the session had then; the client's deadline is
    /// earlier.
    pub(crate) fn revoked(&self, revocation: Revocation) {
        let told = self.now();
        self.state.send_modify(|state| state.revoke(revocation, told));
    }

    /// Waits for a grant that is over by force and is not yet acknowledged to the cluster. Each is returned once.
    pub(crate) async fn next_taken(&self) -> u64 {
        let mut changes = self.state.subscribe();
        loop {
            changes.mark_unchanged();

            let mut taken = None;
            self.state.send_if_modified(|state| {
                taken = state.to_acknowledge.pop_first();
                false
            });
            if let Some(token) = taken {
                return token;
            }
            // This lease owns the sender, so the channel stays open.
            let _ = changes.changed().await;
        }
    }

    /// Waits for a revoked grant that is not in `known`: its token and the reason.
    pub(crate) async fn revoked_besides(&self, known: &BTreeSet<u64>) -> (u64, String) {
        let mut changes = self.state.subscribe();
        loop {
            let other = changes.borrow_and_update().revoked_besides(known);
            if let Some(other) = other {
                return other;
            }
            // This lease owns the sender, so the channel stays open.
            let _ = changes.changed().await;
        }
    }

    /// The grant was released: its revocation is dropped.
    pub(crate) fn forget(&self, token: u64) {
        self.state.send_if_modified(|state| {
            state.revoked.remove(&token);
            state.to_acknowledge.remove(&token);
            false
        });
    }

    /// Ends the session. The first reason stays.
    pub(crate) fn end(&self, loss: Loss) {
        self.state.send_if_modified(|state| {
            let first = state.ended.is_none();
            state.ended.get_or_insert(loss);
            first
        });
    }

    /// The time until which the session, or this grant of it, may be trusted, unless it is lost earlier.
    pub(crate) fn deadline(&self, token: Option<u64>) -> Moment {
        self.state.borrow().deadline(token)
    }

    /// How long the session, or this grant of it, may still be trusted. Zero: it is lost.
    pub(crate) fn remaining(&self, token: Option<u64>) -> Duration {
        self.look(|state, now| {
            let is_over = state.ended.is_some() || state.is_lapsed;
            if is_over { Duration::ZERO } else { state.deadline(token).since(now) }
        })
    }

    /// Looks at the clock and then at the state.
    fn look<T>(&self, at: impl FnOnce(&LeaseState, Moment) -> T) -> T {
        let now = self.clock.now();
        {
            // Each call of each task looks, and nearly always there is nothing to note.
            let state = self.state.borrow();
            if now < state.deadline || state.is_lapsed {
                return at(&state, now);
            }
        }

        let mut seen = None;
        self.state.send_if_modified(|state| {
            state.look(now);
            seen = Some(at(state, now));
            // Do not wake waiters: each waiter has its own timer.
            false
        });
        seen.expect("the closure was called")
    }

    /// How the session, or this grant of it, was lost. A revoked grant counts as lost as soon as the client is told,
    /// although its locks stay closed for [`Lease::remaining`].
    pub(crate) fn loss(&self, token: Option<u64>) -> Option<Loss> {
        self.look(|state, _| state.loss(token))
    }

    /// Waits until the session, or this grant of it, is lost.
    pub(crate) async fn lost(&self, token: Option<u64>) -> Loss {
        let mut changes = self.state.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(loss) = self.loss(token) {
                return loss;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep(self.remaining(token).min(TIMER_MAX)) => {}
            }
        }
    }

    /// Waits until the session is lost or may be trusted for at most `left`.
    pub(crate) async fn endangered(&self, left: Duration) -> Danger {
        loop {
            let danger = Danger { left: self.remaining(None), loss: self.loss(None) };
            if danger.loss.is_some() || danger.left <= left {
                return danger;
            }
            tokio::select! {
                _ = self.lost(None) => {}
                () = sleep((danger.left - left).min(TIMER_MAX)) => {}
            }
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state.borrow().ended.is_some()
    }

    /// Waits until the session has ended. A passed deadline alone does not end it.
    pub(crate) async fn ended(&self) {
        // This lease owns the sender, so the channel stays open.
        let _ = self.state.subscribe().wait_for(|state| state.ended.is_some()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Hand(Mutex<Duration>);

    impl Clock for Hand {
        fn now(&self) -> Moment {
            Moment(*self.0.lock().unwrap())
        }
    }

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// For a session with a TTL of 10 s.
    fn renewed(sent_ms: u64) -> RenewalAnswer {
        RenewalAnswer { sent: at(sent_ms), ttl: ms(10_000), revoked: Vec::new(), more_revoked: false }
    }

    fn revoked(token: u64, reason: &str, remaining_ms: u64) -> Revocation {
        Revocation { token: Token(token), reason: reason.into(), remaining: ms(remaining_ms) }
    }

    fn lease(ttl: Duration) -> (Arc<Hand>, Lease) {
        let clock = Arc::new(Hand::default());
        (clock.clone(), Lease::new(clock, at(0), ttl))
    }

    #[test]
    fn the_margin_is_a_percent_and_at_least_ten_milliseconds() {
        assert_eq!(deadline(at(5), ms(100)), at(95));
        assert_eq!(deadline(at(0), ms(1_000)), at(990));
        assert_eq!(deadline(at(0), ms(60_000)), at(59_400));
    }

    #[test]
    fn the_deadline_counts_from_the_sending_and_passes_without_anyone_noticing() {
        let (clock, lease) = lease(ms(10_000));
        *clock.0.lock().unwrap() = ms(4_000);
        assert_eq!(lease.remaining(None), ms(5_900));
        lease.renewed(renewed(3_000));
        assert_eq!(lease.remaining(None), ms(8_900));
        *clock.0.lock().unwrap() = ms(12_900);
        assert_eq!(lease.remaining(None), Duration::ZERO);
        assert_eq!(lease.loss(None), Some(Loss::OutOfContact));
    }

    #[tokio::test]
    async fn danger_comes_before_the_deadline_and_a_renewal_puts_it_off() {
        let (clock, lease) = lease(ms(10_000));
        let mut danger = std::pin::pin!(lease.endangered(ms(2_000)));
        *clock.0.lock().unwrap() = ms(7_800);
        assert!(futures::poll!(&mut danger).is_pending(), "2.1 s are left");
        lease.renewed(renewed(1_000));
        *clock.0.lock().unwrap() = ms(8_800);
        assert!(futures::poll!(&mut danger).is_pending(), "2.1 s are left");
        *clock.0.lock().unwrap() = ms(8_901);
        assert_eq!(danger.await, Danger { left: ms(1_999), loss: None });
    }

    #[test]
    fn a_loss_that_was_seen_is_final_and_an_answer_before_the_look_saves() {
        let (clock, lease) = lease(ms(10_000));
        *clock.0.lock().unwrap() = ms(10_500);
        lease.renewed(renewed(3_300));
        assert_eq!((lease.loss(None), lease.remaining(None)), (None, ms(2_700)));

        *clock.0.lock().unwrap() = ms(13_300);
        let mut renewals = lease.renewals();
        renewals.mark_unchanged();
        assert_eq!(lease.loss(Some(7)), Some(Loss::OutOfContact));
        lease.renewed(renewed(6_600));
        assert_eq!((lease.loss(None), lease.remaining(Some(8))), (Some(Loss::OutOfContact), Duration::ZERO));
        assert!(!renewals.has_changed().unwrap());
    }

    #[test]
    fn an_answer_that_was_overtaken_takes_nothing_away() {
        let (_, lease) = lease(ms(10_000));
        lease.renewed(renewed(3_000));
        lease.renewed(renewed(2_000));
        assert_eq!(lease.remaining(None), ms(12_900));
    }

    #[test]
    fn only_renewals_that_put_the_deadline_off_are_told() {
        let (_, lease) = lease(ms(10_000));
        let mut renewals = lease.renewals();
        assert_eq!(*renewals.borrow_and_update(), AcknowledgedLease { sent: at(0), deadline: at(9_900) });
        lease.renewed(renewed(3_000));
        lease.renewed(renewed(2_000));
        assert!(renewals.has_changed().unwrap());
        assert_eq!(*renewals.borrow_and_update(), AcknowledgedLease { sent: at(3_000), deadline: at(12_900) });
        lease.renewed(renewed(3_000));
        assert!(!renewals.has_changed().unwrap());
    }

    #[test]
    fn renewals_do_not_extend_a_revoked_grant_but_the_others() {
        let (_, lease) = lease(ms(10_000));
        lease.revoked(revoked(7, "stuck", 5_000));
        lease.renewed(renewed(3_000));
        assert_eq!(lease.remaining(Some(7)), ms(5_000));
        assert_eq!(lease.remaining(Some(8)), ms(12_900));
        assert_eq!(lease.loss(Some(7)), Some(Loss::Revoked { reason: "stuck".into() }));
        assert_eq!(lease.loss(Some(8)), None);
    }

    #[test]
    fn a_renewal_tells_first_what_it_does_not_extend() {
        let (clock, lease) = lease(ms(10_000));
        *clock.0.lock().unwrap() = ms(4_000);
        let revoked = |token, remaining_ms| revoked(token, "stuck", remaining_ms);
        lease.renewed(RenewalAnswer { revoked: vec![revoked(7, 60_000), revoked(8, 1_500)], ..renewed(3_000) });
        assert_eq!(lease.deadline(Some(7)), at(9_900), "what was known before the renewal");
        assert_eq!(lease.deadline(Some(8)), at(4_500), "counted from the sending, not from the answer");
        assert_eq!(lease.deadline(Some(9)), at(12_900));
        let clock = Arc::new(Hand::default());
        let lease = Lease::from_renewal(clock, RenewalAnswer { revoked: vec![revoked(7, 1_000)], ..renewed(0) });
        assert_eq!((lease.deadline(Some(7)), lease.deadline(None)), (at(1_000), at(9_900)));
    }

    #[test]
    fn a_revoked_grant_ends_at_the_deadline_that_we_knew_at_the_latest() {
        let (_, lease) = lease(ms(10_000));
        lease.revoked(revoked(7, "stuck", 60_000));
        assert_eq!(lease.remaining(Some(7)), ms(9_900));
        lease.renewed(renewed(3_000));
        lease.revoked(revoked(7, "still stuck", 60_000));
        assert_eq!(lease.remaining(Some(7)), ms(9_900));
    }

    #[test]
    fn a_renewal_that_cannot_name_all_gives_no_time() {
        let (_, lease) = lease(ms(10_000));
        let mut renewals = lease.renewals();
        renewals.mark_unchanged();
        lease.renewed(RenewalAnswer { revoked: vec![revoked(7, "stuck", 0)], more_revoked: true, ..renewed(3_000) });
        assert_eq!((lease.deadline(None), renewals.has_changed().unwrap()), (at(9_900), false));
        assert_eq!(lease.loss(Some(7)), Some(Loss::Revoked { reason: "stuck".into() }));
    }

    #[tokio::test]
    async fn what_is_over_is_acknowledged_once_and_not_what_is_held_or_released() {
        let (_, lease) = lease(ms(10_000));
        for (token, left) in [(7, 5_000), (8, 0), (9, 0), (10, 0)] {
            lease.revoked(revoked(token, "stuck", left));
        }
        lease.forget(9);
        assert_eq!((lease.next_taken().await, lease.next_taken().await), (8, 10));
        lease.revoked(revoked(8, "stuck", 0));
        lease.revoked(revoked(7, "stuck", 0));
        assert_eq!(lease.next_taken().await, 7, "its deadline has come, and 8 was acknowledged before");
        assert!(futures::poll!(std::pin::pin!(lease.next_taken())).is_pending());
    }

    #[test]
    fn the_first_reason_stays() {
        let (_, lease) = lease(ms(10_000));
        lease.end(Loss::Expired);
        lease.end(Loss::Closed);
        assert_eq!(lease.loss(None), Some(Loss::Expired));
        assert_eq!(lease.remaining(None), Duration::ZERO);
    }
}
