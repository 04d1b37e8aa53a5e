//! A task that uses the client library, as an application does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio_util::task::AbortOnDropHandle;

use lockkeeper_client::{self, Guard, Loss, NewData, Session, SessionOptions};
use lockkeeper_machine::{Permits, Token, Want};

use super::{
    TTLS, TasksState,
    locks::{self, EXCLUSIVE, Lock},
    outcomes, percent, some_ms,
    writes::Writes,
};
use crate::{
    history::{self, Answer, Call, Fact, Lease, Mode, Modes, Wait},
    record::Recorder,
};

/// The budget of operations of one hold, on each of its locks.
const OPERATIONS_OF_A_HOLD: u32 = 6;
/// An unlimited wait is dropped after a number of milliseconds in this range.
const DROPPED_AFTER_MS: std::ops::Range<u64> = 20..2_500;
/// The pause after an error, so that an unavailable cluster is not overloaded.
const AFTER_ERROR: Duration = Duration::from_millis(200);

struct Holder {
    shared: Arc<TasksState>,
    random: StdRng,
    registers: Writes,
}

/// Runs until the workload finishes.
pub(super) async fn run(shared: Arc<TasksState>, random: StdRng) {
    let registers = Writes::new(&shared.parts.place, shared.parts.recorder.clone());
    let mut holder = Holder { shared, random, registers };
    while !holder.shared.is_over() {
        match holder.open().await {
            Some(session) => holder.live(&session).await,
            None => holder.shared.pause(AFTER_ERROR).await,
        }
    }
}

impl Holder {
    async fn open(&mut self) -> Option<Session> {
        let ttl = *TTLS.choose(&mut self.random)?;
        let options = SessionOptions { ttl, label: self.shared.parts.name.clone() };

        // The library draws the session id, so it is known only after the open. A session whose open was not acknowledged holds nothing.
        let begun_ns = self.shared.parts.recorder.timeline().now_ns();
        match self.shared.parts.client.open(options).await {
            Ok(session) => {
                self.opened(&session, ttl, begun_ns);
                Some(session)
            }
            Err(_) => None,
        }
    }

    /// Records an open. The library ends the session itself a margin before its TTL, so the recorded lease ends at that moment.
    fn opened(&self, session: &Session, ttl: Duration, begun_ns: u64) {
        let recorder = &self.shared.parts.recorder;
        let renewal = *session.renewals().borrow();
        let trusted = renewal.deadline.0.saturating_sub(renewal.sent.0);
        let sent_ns = recorder.timeline().at_ns(renewal.sent).max(begun_ns);
        let begun = recorder.begin(&[], Call::Open { session: name(session), ttl_ms: millis(ttl) });
        begun.ok(Answer::Open(Lease { ttl_ms: Some(millis(trusted)), sent_ns: Some(sent_ns) }));
    }

    /// Uses a session for several holds, then closes it.
    async fn live(&mut self, session: &Session) {
        let watching = watch(self.shared.parts.recorder.clone(), session);
        for _ in 0..self.random.random_range(4..25) {
            if self.shared.is_over() || session.loss().is_some() {
                break;
            }
            match self.random.random_range(0..10) {
                0 => self.read().await,
                1 => self.hold_several(session).await,
                _ => self.hold_one(session).await,
            }

            let pause = some_ms(&mut self.random, 5..60);
            self.shared.pause(pause).await;
        }

        watching.expect_close();
        let begun = self.shared.parts.recorder.begin(&[], Call::Close { session: name(session) });
        match session.clone().close().await {
            Ok(()) => begun.ok(Answer::Close {}),
            Err(error) => outcomes::end(begun, &error),
        }
    }

    async fn read(&mut self) {
        let lock = locks::lock_at(
            locks::round(self.shared.parts.recorder.timeline()),
            self.random.random_range(0..locks::COUNT),
        );
        self.get(&lock.name).await;
    }

    async fn get(&self, name: &str) {
        let begun = self.shared.parts.recorder.begin(&[name.to_owned()], Call::Get {});
        match self.shared.parts.client.get(name).await {
            Ok(answer) => begun.ok(Answer::Get(outcomes::view(&answer.lock))),
            Err(error) => outcomes::end(begun, &error),
        }
    }

    async fn hold_one(&mut self, session: &Session) {
        let place = self.random.random_range(0..locks::COUNT);
        let mut locks = self.locks(&[place]).await;
        if let Some(lock) = locks.first_mut()
            && lock.mode == Mode::Shared
            && percent(&mut self.random, 30)
        {
            lock.mode = Mode::Exclusive;
        }
        self.hold(session, &locks).await;
    }

    async fn hold_several(&mut self, session: &Session) {
        let first = self.random.random_range(EXCLUSIVE);
        let second = (first + self.random.random_range(1..EXCLUSIVE.len())) % EXCLUSIVE.len();
        let locks = self.locks(&[first, second]).await;
        self.hold(session, &locks).await;
    }

    /// Returns the locks at these places if the budget allows it. Otherwise returns none, after a pause.
    async fn locks(&mut self, places: &[usize]) -> Vec<Lock> {
        let round = locks::round(self.shared.parts.recorder.timeline());
        if self.shared.budget.spend(round, places, OPERATIONS_OF_A_HOLD) {
            return places.iter().map(|place| locks::lock_at(round, *place)).collect();
        }
        self.shared.pause(AFTER_ERROR).await;
        Vec::new()
    }

    async fn hold(&mut self, session: &Session, locks: &[Lock]) {
        if locks.is_empty() {
            return;
        }
        let Some(guard) = self.acquire(session, locks).await else { return };
        tell_of_loss(self.shared.parts.recorder.clone(), &guard);
        self.inside(&guard, locks).await;

        let session = name(session);
        let token = guard.token().0;
        let begun = self.shared.parts.recorder.begin(&names(locks), Call::Release { session, token });
        match guard.release().await {
            Ok(()) => begun.ok(Answer::Release {}),
            Err(error) => outcomes::end(begun, &error),
        }
    }

    async fn acquire(&mut self, session: &Session, locks: &[Lock]) -> Option<Guard> {
        let wait = self.wait();
        let lock_delay = if percent(&mut self.random, 5) { Duration::from_millis(200) } else { Duration::ZERO };
        let acquire = session.acquire_wants(wants(locks)?).lock_delay(lock_delay);
        let acquire = match wait {
            Wait::None => acquire.no_wait(),
            Wait::AtMostMs(ms) => acquire.wait_at_most(Duration::from_millis(ms)),
            Wait::Forever => acquire,
        };

        let call = history::Acquire {
            session: name(session),
            request: None,
            mode: Modes::Each(locks.iter().map(|lock| lock.mode).collect()),
            wait,
            lock_delay_ms: millis(lock_delay),
        };

        let begun = self.shared.parts.recorder.begin(&names(locks), Call::Acquire(call));
        let drop_after = some_ms(&mut self.random, DROPPED_AFTER_MS);
        let granted = tokio::select! {
            granted = acquire => granted,
            // The dropped acquire is released in the background, whatever its state.
            () = self.shared.pause(drop_after), if wait == Wait::Forever => {
                begun.unknown("given up");
                return None;
            }
        };

        match granted {
            Ok(guard) => {
                begun.ok(Answer::Acquire { token: guard.token().0, place_lost: guard.place_lost() });
                Some(guard)
            }
            Err(error) => {
                outcomes::end(begun, &error);
                if !matches!(error, lockkeeper_client::Error::NotAcquired(_)) {
                    self.shared.pause(AFTER_ERROR).await;
                }
                None
            }
        }
    }

    fn wait(&mut self) -> Wait {
        match self.random.random_range(0..10) {
            0..3 => Wait::None,
            3..7 => Wait::AtMostMs(self.random.random_range(10..1_500)),
            _ => Wait::Forever,
        }
    }

    /// The critical section. It writes without checking the lock.
    async fn inside(&mut self, guard: &Guard, locks: &[Lock]) {
        let token = guard.token().0;
        self.registers.write_all(locks, token).await;

        let hold = if percent(&mut self.random, 8) { 300..1_200 } else { 0..80 };
        let hold = some_ms(&mut self.random, hold);
        self.shared.pause(hold).await;

        let Some(first) = locks.first() else { return };
        match self.random.random_range(0..10) {
            0 => self.get(&first.name).await,
            1 => self.check(&first.name, token).await,
            2 if first.mode == Mode::Exclusive => self.update(guard, &first.name).await,
            _ => {}
        }

        self.registers.write_all(locks, token).await;
    }

    async fn check(&self, lock: &str, token: u64) {
        let begun = self.shared.parts.recorder.begin(&[lock.to_owned()], Call::Check { token });
        match self.shared.parts.client.check(lock, Token(token)).await {
            Ok(answer) => begun.ok(Answer::Check { held: answer.held }),
            Err(error) => outcomes::end(begun, &error),
        }
    }

    async fn update(&mut self, guard: &Guard, lock: &str) {
        let data = format!("{:x}", self.random.random::<u32>());
        let session = name(guard.session());
        let token = guard.token().0;
        let call = Call::Update { session, token, data: Some(data.clone()) };
        let begun = self.shared.parts.recorder.begin(&[lock.to_owned()], call);
        match guard.update(lock, NewData::Held(data.as_bytes())).await {
            Ok(()) => begun.ok(Answer::Update {}),
            Err(error) => outcomes::end(begun, &error),
        }
    }
}

/// Records that an operator revoked the grant, when its holder is told.
pub(crate) fn tell_of_loss(recorder: Recorder, guard: &Guard) {
    let session = name(guard.session());
    let token = Some(guard.token().0);
    guard.on_danger(Duration::ZERO, move |danger| {
        if let Some(Loss::Revoked { .. }) = danger.loss {
            recorder.fact(Fact::Lost { session, why: "revoked".to_owned(), token });
        }
    });
}

/// Records the renewals of a session and its loss, until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct SessionWatch {
    task: AbortOnDropHandle<()>,
    /// Whether the holder closes the session itself.
    is_closing: Arc<AtomicBool>,
}

impl SessionWatch {
    /// From now on, a closed session does not count as a loss: its holder closes it, and records that. Call it before the close.
    pub(crate) fn expect_close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
    }

    /// Waits until the loss is recorded.
    pub(crate) async fn recorded(self) {
        // If the task panicked, stderr has the panic.
        let _ = self.task.await;
    }
}

/// Records the session's renewals and its loss. A close by somebody else is one: before [`SessionWatch::expect_close`] nothing in this
/// process ends the session, since the watch has a clone of it.
pub(crate) fn watch(recorder: Recorder, session: &Session) -> SessionWatch {
    let mut renewals = session.renewals();
    // The task keeps only a clone, which it drops when the session is lost.
    let session = session.clone();
    let is_closing = Arc::new(AtomicBool::new(false));
    let is_own = Arc::clone(&is_closing);

    let task = tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                changed = renewals.changed() => if changed.is_err() { return },
                lost = session.lost() => {
                    // The cluster's end of a session that is about to be closed is not told from the close.
                    let is_closed = lost == Loss::Closed && is_own.load(Ordering::SeqCst);
                    if let Some(why) = outcomes::loss(&lost).filter(|_| !is_closed) {
                        recorder.fact(Fact::Lost { session: name(&session), why: why.to_owned(), token: None });
                    }
                    return;
                }
            }
            let renewal = *renewals.borrow_and_update();
            let sent_ns = recorder.timeline().at_ns(renewal.sent);
            recorder.fact(Fact::Renewed { session: name(&session), sent_ns, ttl_ms: None });
        }
    });
    SessionWatch { task: AbortOnDropHandle::new(task), is_closing }
}

fn name(session: &Session) -> String {
    session.id().to_string()
}

fn names(locks: &[Lock]) -> Vec<String> {
    locks.iter().map(|lock| lock.name.clone()).collect()
}

fn wants(locks: &[Lock]) -> Option<Vec<Want>> {
    locks.iter().map(want).collect()
}

fn want(lock: &Lock) -> Option<Want> {
    let mode = match lock.mode {
        Mode::Exclusive => lockkeeper_machine::Mode::Exclusive,
        Mode::Shared => lockkeeper_machine::Mode::Shared,
        Mode::Permits(limit) => lockkeeper_machine::Mode::Permit(Permits::new(limit).ok()?),
    };
    let name = lockkeeper_machine::LockName::new(&lock.name).ok()?;
    Some(Want { name, mode, data: None, keep_data: false, must_exist: false })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
