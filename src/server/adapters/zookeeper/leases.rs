//! The sessions of this node's connections: they are renewed as their clients are heard of, and vouched for while they surely live.
//!
//! **Vouching.** A client of ZooKeeper trusts its session while its server answers. So a node must stop to answer, and close the
//! connection, before the session could end at the others; it may be cut off from them and not know. The inequality is that of native
//! clients (`lockkeeper-client`, `lease`): the log stamps a renewal after this node *sent* it, and ends the session one TTL after that
//! stamp. So until the sending of the last renewal that was acknowledged, plus the TTL, less a margin for the rates of the two clocks and
//! the time in which the port notices ([`trusted_until`]), nobody can have ended it. Nothing is counted from an acknowledgement, which may
//! be as late as it likes.
//!
//! **A frozen node** answers nothing and closes nothing, and its client waits in silence for two thirds of the timeout before it leaves.
//! The same is true for a client that is cut off from its node as that node was cut off from the leader before. So an answer is safe if
//! the last renewal that was acknowledged was sent a third of the TTL before it, or later. Any other answer waits for that renewal, or
//! for the end of the connection ([`SessionLeases::vouch`]); that is rare. After a frame the session is renewed: at once if its last
//! renewal is a sixth of the TTL old, otherwise when it is, or earlier if no further frame follows ([`SessionLeases::renew_heard`]). So
//! at the next frame, a third later at the most, there was a renewal after this one.
//!
//! **No session ends early**: each renewal is sent after the frames that it is for, the log stamps it later still, and the session lives
//! for its whole time after that stamp.
//!
//! **None ends late.** A client that dies was heard of last at some moment, and its session must end one TTL after that, however much it
//! had sent before. While frames follow each other closely, one renewal each sixth of the TTL suffices; the frame that no other follows for
//! [`QUIET`] is renewed by itself. So the last renewal is sent at most [`QUIET`] and [`HEARD_LOOK`] after the last frame.
//!
//! **Renewals** go over keep-alive streams of the node itself, [`STREAMS`] of them, and share commands of the log at the leader. The
//! sequence number of a renewal is the time of its sending. What a broken stream has not acknowledged is sent again on the next one. A
//! leader that does not know what became of a renewal says nothing, so one that is not acknowledged for a sixth of the TTL is sent again,
//! too: its client may wait for an answer meanwhile, and send nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout_at},
};
use tokio_stream::wrappers::UnboundedReceiverStream;

use lockkeeper_planted::Planted;
use lockkeeper_zookeeper::NumberedSession;

use super::names;
use crate::{
    adapters::keyspace_client::this_node,
    api::{
        Error,
        requests::{KeepAlive, KeepAliveEvent, KeepAliveEventKind},
    },
    service::Service,
    wire::Form,
};

/// The margin is one percent of the TTL, but at least this.
const MARGIN_MIN: Duration = Duration::from_millis(10);
/// Time in which the port closes the connection of a session that the node no longer vouches for. The port checks ten times a second.
const CLOSED_WITHIN: Duration = Duration::from_millis(110);
/// A session is renewed when its client is heard of, this part of its TTL after the last renewal was sent.
const RENEWED_AFTER_PART: u32 = 6;
/// An answer is given for this part of the TTL after the sending of a renewal that was acknowledged.
const FRESH_FOR_PART: u32 = 3;
/// Time without a further frame after which the last one is renewed by itself.
const QUIET: Duration = Duration::from_millis(50);
/// Time between two looks for such frames.
const HEARD_LOOK: Duration = Duration::from_millis(25);
/// Sequence numbers are coarser than moments: a renewal that is acknowledged may seem to be sent this much earlier than it was.
const SEQUENCE_GRAIN: Duration = Duration::from_millis(1);
/// Keep-alive streams. Each has a limit of sessions that it has seen; one that reaches it is begun anew.
const STREAMS: usize = 8;
/// Time that a session is remembered for that is over: its connection still tells its client so, and must not be closed before.
const OVER_KEPT: Duration = Duration::from_secs(10);
/// Pause before a stream is begun again.
const PAUSE: Duration = Duration::from_millis(50);

/// The time until which a renewal that was sent at `sent` lets this node vouch for the session.
fn trusted_until(sent: Instant, ttl: Duration) -> Instant {
    let margin = (ttl / 100).max(MARGIN_MIN);
    sent + ttl.saturating_sub(margin + CLOSED_WITHIN)
}

/// The sessions of this node's connections.
#[derive(Clone, Debug)]
pub(super) struct SessionLeases {
    shared: Arc<LeaseTable>,
}

#[derive(Debug)]
struct LeaseTable {
    began: Instant,
    sessions: Mutex<HashMap<u64, VouchedSession>>,
    /// The sessions to renew, for each stream.
    due: Vec<mpsc::UnboundedSender<u64>>,
    /// Notified when a renewal is acknowledged.
    acknowledged: Notify,
}

#[derive(Clone, Copy, Debug)]
struct VouchedSession {
    /// The number that the connection of this node has.
    number: u64,
    ttl: Duration,
    /// When the last renewal was sent that was acknowledged, or the request that opened or attached the session.
    acknowledged: Instant,
    /// When the last renewal was sent.
    sent: Instant,
    /// When its client was heard of last.
    heard: Instant,
    /// When the log was seen to have ended it.
    over: Option<Instant>,
}

/// The receiving ends: what [`SessionLeases::renew`] needs.
pub(super) struct DueRenewals(Vec<mpsc::UnboundedReceiver<u64>>);

impl SessionLeases {
    pub(super) fn new() -> (Self, DueRenewals) {
        let (senders, receivers) = (0..STREAMS).map(|_| mpsc::unbounded_channel()).unzip();
        let table =
            LeaseTable { began: Instant::now(), sessions: Mutex::default(), due: senders, acknowledged: Notify::new() };
        (Self { shared: Arc::new(table) }, DueRenewals(receivers))
    }

    /// A session was opened or attached by a request that was sent at this moment.
    pub(super) fn begin(&self, attached: NumberedSession, sent: Instant, ttl: Duration) {
        let session =
            VouchedSession { number: attached.number, ttl, acknowledged: sent, sent, heard: sent, over: None };
        let mut sessions = self.shared.sessions();
        let known = sessions.entry(attached.session).or_insert(session);
        // The answers to two attaches may come in any order.
        if known.number <= attached.number {
            *known = session;
        }
    }

    /// Its client was heard of.
    pub(super) fn note_alive(&self, attached: NumberedSession) {
        let now = Instant::now();
        let mut sessions = self.shared.sessions();
        let Some(session) = sessions.get_mut(&attached.session).filter(|it| it.number == attached.number) else {
            return;
        };
        session.heard = now;
        let is_due = session.is_old(now) && session.take_due(now);
        drop(sessions);
        if is_due {
            self.push(attached.session);
        }
    }

    /// Renews the sessions of which something was heard since their last renewal, where that is old enough or nothing follows, and those
    /// whose last renewal is old and was not acknowledged.
    fn renew_heard(&self) {
        let now = Instant::now();
        let mut sessions = self.shared.sessions();
        sessions.retain(|_, session| session.over.is_none_or(|since| now < since + OVER_KEPT));

        let is_due = |session: &mut VouchedSession| {
            let is_old = session.is_old(now);
            let is_quiet = now >= session.heard + QUIET;
            let has_news = session.heard > session.sent && (is_quiet || is_old);
            let is_lost = session.is_unanswered() && is_old;
            (has_news || is_lost) && session.take_due(now)
        };

        let due: Vec<_> = sessions.iter_mut().filter_map(|(number, it)| is_due(it).then_some(*number)).collect();
        drop(sessions);
        due.into_iter().for_each(|session| self.push(session));
    }

    /// Whether the session cannot have ended elsewhere.
    pub(super) fn vouches_for(&self, attached: NumberedSession) -> bool {
        let sessions = self.shared.sessions();
        let session = sessions.get(&attached.session).filter(|it| it.number == attached.number);
        session.is_some_and(|session| session.is_trusted(Instant::now()))
    }

    /// Whether no connection of this node has a session.
    pub(super) fn is_empty(&self) -> bool {
        self.shared.sessions().is_empty()
    }

    /// Waits until an answer may be given for a session. Returns `false` once the session is not vouched for any more.
    pub(super) async fn vouch(&self, attached: NumberedSession) -> bool {
        loop {
            let mut acknowledged = pin!(self.shared.acknowledged.notified());
            acknowledged.as_mut().enable();

            let session = self.shared.sessions().get(&attached.session).copied();
            let now = Instant::now();
            let Some(session) = session.filter(|it| it.number == attached.number && it.is_trusted(now)) else {
                return false;
            };
            if session.is_fresh(now) {
                return true;
            }
            // After either, the loop checks again.
            let _ = timeout_at(trusted_until(session.acknowledged, session.ttl), acknowledged).await;
        }
    }

    /// All sessions, by the numbers that connections of this node have.
    pub(super) fn all(&self) -> Vec<NumberedSession> {
        let sessions = self.shared.sessions();
        let alive = sessions.iter().filter(|(_, it)| it.over.is_none());
        alive.map(|(session, it)| NumberedSession { session: *session, number: it.number }).collect()
    }

    /// The sessions of `touched` that have connections at this node.
    pub(super) fn known_of(&self, touched: &BTreeSet<lockkeeper_machine::SessionId>) -> Vec<NumberedSession> {
        if touched.is_empty() {
            return Vec::new();
        }
        let sessions = self.shared.sessions();
        let numbers = touched.iter().filter_map(|session| names::session_number(*session));
        let alive = |session| sessions.get(&session).filter(|it| it.over.is_none()).map(|it| (session, it.number));
        numbers.filter_map(alive).map(|(session, number)| NumberedSession { session, number }).collect()
    }

    /// Notes sessions that are over. Their connections learn it with the next step, and are not closed for another reason before that.
    pub(super) fn note_over(&self, over: &[u64]) {
        if over.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut sessions = self.shared.sessions();
        for number in over {
            if let Some(session) = sessions.get_mut(number) {
                session.over = Some(now);
            }
        }
    }

    /// Others have these now, by these numbers.
    pub(super) fn forget_before(&self, moved: &[NumberedSession]) {
        if moved.is_empty() {
            return;
        }
        let mut sessions = self.shared.sessions();
        for NumberedSession { session, number } in moved {
            if sessions.get(session).is_some_and(|it| it.number < *number) {
                sessions.remove(session);
            }
        }
    }

    fn push(&self, session: u64) {
        let stream = usize::try_from(session % STREAMS as u64).unwrap_or_default();
        // An error means that the node ends.
        let _ = self.shared.due[stream].send(session);
    }

    /// A renewal that was sent at this moment was acknowledged.
    fn acknowledge(&self, session: u64, sent: Instant) {
        if let Some(session) = self.shared.sessions().get_mut(&session) {
            session.acknowledged = session.acknowledged.max(sent);
        }
        self.shared.acknowledged.notify_waiters();
    }

    /// The time since this table began: the sequence number of a renewal that is sent now.
    fn sequence(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Renews the sessions that are due. Does not return.
    pub(super) async fn renew(self, due: DueRenewals, service: Service) {
        let streams =
            due.0.into_iter().map(|due| LeaseStream { leases: self.clone(), due, unacknowledged: BTreeMap::new() });
        let streams = futures::future::join_all(streams.map(|stream| stream.run(service.clone())));

        let looking = async {
            let mut look = interval(HEARD_LOOK);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                look.tick().await;
                self.renew_heard();
            }
        };

        tokio::select! {
            _ = streams => {}
            () = looking => {}
        }
    }
}

impl LeaseTable {
    /// No code panics while it holds the lock.
    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, VouchedSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VouchedSession {
    /// Whether its last renewal is so old that a further frame is one to renew it for.
    fn is_old(&self, now: Instant) -> bool {
        now >= self.sent + self.ttl / RENEWED_AFTER_PART
    }

    /// Whether its last renewal was not acknowledged.
    fn is_unanswered(&self) -> bool {
        self.sent > self.acknowledged + SEQUENCE_GRAIN
    }

    /// Whether it can be renewed now; then it counts as sent. A session that is not vouched for is not renewed: its connection is about
    /// to be closed.
    fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.over.is_none() && self.is_trusted(now);
        if is_due {
            self.sent = now;
        }
        is_due
    }

    /// Whether the client may trust an answer for two thirds of the TTL. The end of a session is reported even if a renewal was
    /// acknowledged.
    fn is_fresh(&self, now: Instant) -> bool {
        let is_fresh = self.over.is_some() || now <= self.acknowledged + self.ttl / FRESH_FOR_PART;
        is_fresh || Planted::VouchesForEver.is_on()
    }

    fn is_trusted(&self, now: Instant) -> bool {
        now < trusted_until(self.acknowledged, self.ttl) || Planted::VouchesForEver.is_on()
    }
}

/// Renewals over one stream after the other.
struct LeaseStream {
    leases: SessionLeases,
    due: mpsc::UnboundedReceiver<u64>,
    /// The sessions whose renewal was sent and not acknowledged, with its sequence number.
    unacknowledged: BTreeMap<u64, u64>,
}

impl LeaseStream {
    async fn run(mut self, service: Service) {
        loop {
            let ended = self.run_one(&service).await;
            if let Err(error) = ended {
                tracing::debug!(%error, "a stream of renewals ended; it is begun again");
            }
            if self.due.is_closed() {
                // The node ends.
                return std::future::pending().await;
            }
            sleep(PAUSE).await;
        }
    }

    /// Runs until the stream ends. Waits for the first session before it begins one.
    async fn run_one(&mut self, service: &Service) -> Result<(), Error> {
        if self.unacknowledged.is_empty() {
            let Some(first) = self.due.recv().await else { return Ok(()) };
            self.unacknowledged.insert(first, 0);
        }

        let (renewals, sent) = mpsc::unbounded_channel();
        for session in std::mem::take(&mut self.unacknowledged).into_keys() {
            self.send(session, &renewals);
        }
        let sent = UnboundedReceiverStream::new(sent).map(|renewal| Ok(Form::Typed(renewal)));
        let node = this_node();
        // Boxed, since the compiler cannot otherwise name the bounds of the stream in the future.
        let events = service.keep_alive(&node, sent).boxed().await?;
        let mut events = events.map(|event| event.and_then(Form::typed));

        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => self.note(event?),
                    None => return Ok(()),
                },
                session = self.due.recv() => match session {
                    Some(session) => self.send(session, &renewals),
                    None => return Ok(()),
                },
            }
        }
    }

    fn send(&mut self, session: u64, renewals: &mpsc::UnboundedSender<KeepAlive>) {
        let sequence = self.leases.sequence();
        self.unacknowledged.insert(session, sequence);
        // An error means that the stream has ended: it is sent on the next one.
        let _ = renewals.send(KeepAlive { session: names::session_id(session), sequence });
    }

    fn note(&mut self, event: KeepAliveEvent) {
        let KeepAliveEvent { session, kind } = event;
        let Some(session) = names::session_number(session) else { return };

        match kind {
            KeepAliveEventKind::Renewed { sequence, .. } => {
                self.leases.acknowledge(session, self.leases.shared.began + Duration::from_micros(sequence));
                if self.unacknowledged.get(&session).is_some_and(|last| *last <= sequence) {
                    self.unacknowledged.remove(&session);
                }
            }
            // The copy of the table tells its connection, once its entries are gone.
            KeepAliveEventKind::Ended(_) => {
                self.unacknowledged.remove(&session);
            }
            KeepAliveEventKind::Revoked(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TTL: Duration = Duration::from_secs(6);
    const ANN: NumberedSession = NumberedSession { session: 7, number: 1 };

    /// A table with one session that was opened at this moment.
    fn opened() -> (SessionLeases, DueRenewals) {
        let (leases, due) = SessionLeases::new();
        leases.begin(ANN, Instant::now(), TTL);
        (leases, due)
    }

    fn renewals(due: &mut DueRenewals) -> usize {
        due.0.iter_mut().map(|due| std::iter::from_fn(|| due.try_recv().ok()).count()).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_vouched_for_from_the_sending_of_what_was_acknowledged() {
        let (leases, _due) = opened();
        advance(Duration::from_secs(2)).await;
        let sent = Instant::now();
        advance(Duration::from_secs(3)).await;
        // The acknowledgement came late, and gives no more time than an early one.
        leases.acknowledge(ANN.session, sent);
        advance(Duration::from_millis(2_800)).await;
        assert!(leases.vouches_for(ANN));
        advance(Duration::from_millis(100)).await;
        assert!(!leases.vouches_for(ANN), "a margin before it could end elsewhere");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_without_acknowledgements_is_not_vouched_for_and_not_renewed() {
        let (leases, mut due) = opened();
        for _ in 0..5 {
            advance(TTL / 5).await;
            leases.note_alive(ANN);
        }
        assert!(!leases.vouches_for(ANN), "nothing was acknowledged");
        assert_eq!(renewals(&mut due), 4, "one for each frame while it was vouched for");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_a_renewal_of_the_last_third() {
        let (leases, _due) = opened();
        advance(TTL / 3).await;
        assert!(leases.vouch(ANN).await, "just so");
        advance(Duration::from_millis(1)).await;
        let mut answer = pin!(leases.vouch(ANN));
        assert!(futures::poll!(answer.as_mut()).is_pending());
        // One that was sent before the last third, and one of another session.
        leases.acknowledge(ANN.session, Instant::now() - TTL / 3 - Duration::from_millis(1));
        leases.acknowledge(ANN.session + 1, Instant::now());
        assert!(futures::poll!(answer.as_mut()).is_pending());
        leases.acknowledge(ANN.session, Instant::now());
        assert!(answer.await);

        // Without one, it ends with the trust in the session.
        let began = Instant::now();
        advance(TTL / 2).await;
        assert!(!leases.vouch(ANN).await);
        assert_eq!(began.elapsed().as_millis() / 10, (trusted_until(began, TTL) - began).as_millis() / 10);
    }

    #[tokio::test(start_paused = true)]
    async fn many_frames_are_one_renewal() {
        let (leases, mut due) = opened();
        for _ in 0..100 {
            advance(TTL / 100).await;
            leases.acknowledge(ANN.session, Instant::now());
            leases.note_alive(ANN);
        }
        assert!((5..=6).contains(&renewals(&mut due)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_frame_before_a_silence_renews_soon() {
        let (leases, mut due) = opened();
        // A client that is busy: its last renewal is young all the time.
        for _ in 0..20 {
            advance(QUIET / 2).await;
            leases.note_alive(ANN);
            leases.renew_heard();
        }
        assert_eq!(renewals(&mut due), 0, "frames follow each other");
        advance(QUIET).await;
        leases.renew_heard();
        leases.renew_heard();
        assert_eq!(renewals(&mut due), 1, "the last one");
        leases.acknowledge(ANN.session, Instant::now());
        advance(TTL / 6).await;
        leases.renew_heard();
        assert_eq!(renewals(&mut due), 0, "nothing was heard since");
    }

    /// The client has sent a request, whose answer waits for the renewal.
    #[tokio::test(start_paused = true)]
    async fn a_renewal_of_which_the_leader_says_nothing_is_sent_again() {
        let (leases, mut due) = opened();
        advance(TTL / 3 + Duration::from_millis(1)).await;
        leases.note_alive(ANN);
        let mut answer = pin!(leases.vouch(ANN));
        assert!(futures::poll!(answer.as_mut()).is_pending());
        assert_eq!(renewals(&mut due), 1);
        advance(TTL / 6 - Duration::from_millis(1)).await;
        leases.renew_heard();
        assert_eq!(renewals(&mut due), 0, "its acknowledgement may be on its way");
        advance(Duration::from_millis(1)).await;
        leases.renew_heard();
        assert_eq!(renewals(&mut due), 1, "it was lost");
        leases.acknowledge(ANN.session, Instant::now() - Duration::from_micros(1));
        assert!(answer.await);

        advance(TTL / 6).await;
        leases.renew_heard();
        assert_eq!(renewals(&mut due), 0, "a client that is silent is not renewed for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_never_silent_is_renewed_in_time() {
        let (leases, mut due) = opened();
        for _ in 0..100 {
            advance(QUIET / 2).await;
            leases.note_alive(ANN);
            leases.renew_heard();
        }
        assert_eq!(renewals(&mut due), 2, "within 2.5 s of 6, one each second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_over_is_told_once_and_its_connection_not_closed_before_its_answer() {
        let (leases, mut due) = opened();
        assert_eq!(leases.all(), [ANN]);
        leases.note_over(&[ANN.session]);
        assert_eq!(leases.all(), []);
        advance(TTL / 2).await;
        leases.note_alive(ANN);
        assert!(leases.vouches_for(ANN) && renewals(&mut due) == 0);
        advance(OVER_KEPT).await;
        leases.renew_heard();
        assert!(!leases.vouches_for(ANN), "it is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_lost_its_session_is_not_vouched_for() {
        let (leases, _due) = opened();
        let later = NumberedSession { number: 2, ..ANN };
        leases.begin(later, Instant::now(), TTL);
        assert!(leases.vouches_for(later) && !leases.vouches_for(ANN));
        leases.begin(ANN, Instant::now(), TTL);
        assert!(leases.vouches_for(later), "an earlier attach that is answered late");
        leases.forget_before(&[NumberedSession { number: 3, ..ANN }]);
        assert!(!leases.vouches_for(later), "it is attached elsewhere");
    }
}
