//! An acquire request: its locks, their modes and its time limit.

use std::{future::IntoFuture, pin::Pin, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    Busy, Error, Guard, NotAcquired, Refusal, Session, backoff::Backoff, call::RetryPolicy, core::Core, release,
    requests::Outstanding,
};
use lockkeeper_proto::v1::{
    self, AcquireRequest, AcquireResponse, RequestId, acquire_request, acquire_response::Outcome, mode,
};
use lockkeeper_types::{Data, LockName, Mode, Permits, SessionId, Wait, Want};

impl Session {
    /// Acquires a lock: exclusively and without a time limit, unless the [`Acquire`] says otherwise.
    ///
    /// ```no_run
    /// # use lockkeeper_client::{Error, Session};
    /// # async fn example(session: Session) -> Result<(), Error> {
    /// let guard = session.acquire("reports/nightly").await?;
    /// println!("token {}", guard.token().0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self, name: &str) -> Acquire {
        Acquire::new(self.clone(), [name])
    }

    /// Acquires several locks, all or nothing. Such acquires cannot deadlock among each other, in whatever order they
    /// name the locks.
    ///
    /// The price is a convoy: an acquire of several locks has a place in the queue of each, so a later acquire of one
    /// of them waits behind it, even while that lock is free. Name no more locks than must be held together, and limit
    /// the wait where others must not queue behind it.
    ///
    /// ```no_run
    /// # use lockkeeper_client::{Error, Session};
    /// # async fn example(session: Session) -> Result<(), Error> {
    /// let guard = session.acquire_all(["accounts/ann", "accounts/bob"]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Acquire {
        Acquire::new(self.clone(), names)
    }

    /// As [`Session::acquire_all`], with options for each lock.
    ///
    /// ```no_run
    /// # use lockkeeper_client::types::{LockName, Mode, Want};
    /// # use lockkeeper_client::{Error, Session};
    /// # async fn example(session: Session) -> Result<(), Error> {
    /// let want = |name, mode| -> Result<Want, Error> {
    ///     Ok(Want { name: LockName::new(name)?, mode, data: None, keep_data: false, must_exist: false })
    /// };
    /// let wants = vec![want("schema", Mode::Shared)?, want("tables/users", Mode::Exclusive)?];
    /// let guard = session.acquire_wants(wants).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_wants(&self, wants: Vec<Want>) -> Acquire {
        Acquire::from_wants(self.clone(), wants)
    }
}

/// An acquire that is not sent yet: `await` it. Mode, data and delay apply to all its locks.
///
/// ```no_run
/// # use std::time::Duration;
/// # use lockkeeper_client::{Error, Session};
/// # async fn example(session: Session) -> Result<(), Error> {
/// let seat = session.acquire("seats/A5").data(b"buyer 17").wait_at_most(Duration::from_secs(5));
/// match seat.await {
///     Ok(guard) => println!("held, token {}", guard.token().0),
///     Err(Error::NotAcquired(why)) => println!("{why}"),
///     Err(error) => return Err(error),
/// }
/// let reader = session.acquire("catalogue").shared().await?;
/// let one_of_three = session.acquire("printers").permits(3).no_wait().await?;
/// # Ok(())
/// # }
/// ```
///
/// Fails with [`Error::NotAcquired`] if the locks were not available, or not in time; with [`Error::Invalid`] if a name
/// or an option is out of range; with [`Error::Lost`] if the session is over; and as the calls of [`super::Client`] do.
///
/// A wait survives a broken connection and a change of leader, and keeps its place in the queue. If the future is
/// dropped before it completes, the acquire is released in the background.
#[derive(Clone, Debug)]
#[must_use = "an acquire does nothing before it is awaited"]
pub struct Acquire {
    session: Session,
    wants: Result<Vec<Want>, Error>,
    wait: WaitLimit,
    lock_delay: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitLimit {
    None,
    AtMost(Duration),
    Forever,
}

impl Acquire {
    pub(super) fn new<'a>(session: Session, names: impl IntoIterator<Item = &'a str>) -> Self {
        let want = |name| {
            let name = LockName::new(name)?;
            Ok(Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false })
        };
        Self { wants: names.into_iter().map(want).collect(), ..Self::from_wants(session, Vec::new()) }
    }

    pub(super) fn from_wants(session: Session, wants: Vec<Want>) -> Self {
        Self { session, wants: Ok(wants), wait: WaitLimit::Forever, lock_delay: Duration::ZERO }
    }

    /// Hold the locks in shared mode, together with any number of other sharers.
    pub fn shared(self) -> Self {
        self.each(|want| {
            want.mode = Mode::Shared;
            Ok(())
        })
    }

    /// Hold one of `permits` permits (a semaphore). All users of a name must give the same number, or are refused with
    /// [`Refusal::ModeMismatch`]; once an operator has [resized](super::Client::resize) the semaphore, the operator's
    /// size counts for all, whatever number they give.
    pub fn permits(self, permits: u32) -> Self {
        self.each(|want| {
            want.mode = Mode::Permit(Permits::new(permits)?);
            Ok(())
        })
    }

    /// Set this data on the locks when they are granted.
    pub fn data(self, data: &[u8]) -> Self {
        self.each(|want| {
            want.data = Some(Data::new(data)?);
            Ok(())
        })
    }

    /// Keep the data on the lock when this grant ends.
    pub fn keep_data(self) -> Self {
        self.each(|want| {
            want.keep_data = true;
            Ok(())
        })
    }

    /// Acquire existing locks only. Fails with [`Error::Refused`] and [`Refusal::LockUnknown`] if the lock, when the
    /// request arrives, has no holder, no waiter, no lock-delay and no data. For locks that are set up beforehand, with
    /// kept data.
    pub fn must_exist(self) -> Self {
        self.each(|want| {
            want.must_exist = true;
            Ok(())
        })
    }

    /// If this holder is lost, keep the locks closed for `delay`. For resources that cannot check tokens.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Do not wait: fail with [`Error::NotAcquired`] if the locks are not available at once.
    pub fn no_wait(mut self) -> Self {
        self.wait = WaitLimit::None;
        self
    }

    /// Wait for at most `limit`, then fail with [`Error::NotAcquired`].
    pub fn wait_at_most(mut self, limit: Duration) -> Self {
        self.wait = WaitLimit::AtMost(limit);
        self
    }

    /// Wait without a time limit.
    pub fn wait_forever(mut self) -> Self {
        self.wait = WaitLimit::Forever;
        self
    }

    fn each(mut self, change: impl Fn(&mut Want) -> Result<(), lockkeeper_types::Invalid>) -> Self {
        self.wants = self.wants.and_then(|mut wants| match wants.iter_mut().try_for_each(change) {
            Ok(()) => Ok(wants),
            Err(invalid) => Err(invalid.into()),
        });
        self
    }

    async fn run(self) -> Result<Guard, Error> {
        let wait = match self.wait {
            WaitLimit::None => Wait::Never,
            WaitLimit::AtMost(limit) => Wait::from_millis(millis(limit))?,
            WaitLimit::Forever => Wait::Forever,
        };
        let lock_delay_ms = u32::try_from(self.lock_delay.as_millis()).unwrap_or(u32::MAX);
        let acquire = lockkeeper_types::Acquire::new(self.wants?, wait, lock_delay_ms)?;

        let mut pending = PendingAcquire::new(self.session.core());
        let answer = pending.send_until_decided(&acquire).await?;
        match answer.outcome {
            Some(Outcome::Granted(grant)) => {
                pending.settled();
                let place_lost = pending.place_lost;
                Ok(Guard::new(self.session, grant.token, acquire.wants(), place_lost))
            }
            Some(Outcome::Busy(busy)) => Err(pending.not_acquired(false, busy)),
            Some(Outcome::TimedOut(busy)) => Err(pending.not_acquired(true, busy)),
            // A later version may encode a grant differently: `pending` releases it.
            None => Err(Error::Unknown { why: "the answer has no outcome".to_owned() }),
        }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// An acquire whose outcome is not known. On drop it is released by its request id, whether it was granted, is queued
/// or never arrived.
struct PendingAcquire {
    core: Arc<Core>,
    request: Option<Outstanding>,
    /// The cluster cancelled its wait; it was queued again.
    place_lost: bool,
}

impl PendingAcquire {
    fn new(core: &Arc<Core>) -> Self {
        Self { core: core.clone(), request: None, place_lost: false }
    }

    /// The cluster cancels a wait whose call was broken for too long. The caller still wants the locks, so the acquire
    /// is sent again and goes to the end of the queue.
    async fn send_until_decided(&mut self, acquire: &lockkeeper_types::Acquire) -> Result<AcquireResponse, Error> {
        let began = Instant::now();
        let mut backoff = Backoff::default();

        loop {
            match self.send(acquire, began).await {
                Err(Error::Refused(refused))
                    if refused.reason == Refusal::WaitCancelled && in_time(acquire.wait, began) =>
                {
                    self.place_lost = true;
                    sleep(backoff.next(self.core.client.caller.jitter())).await;
                }
                answer => return answer,
            }
        }
    }

    async fn send(&mut self, acquire: &lockkeeper_types::Acquire, began: Instant) -> Result<AcquireResponse, Error> {
        let request = &*self.request.insert(self.core.requests.begin());
        let caller = &self.core.client.caller;
        let call = caller.call(waiting_policy(caller.policy(), acquire.wait), |node| {
            // The first attempt that arrives sets the wait's limit; a retry must not extend it.
            let message = message(self.core.id, request.message(), acquire, began.elapsed());
            node.pipeline.acquire(message)
        });
        let answer = self.core.while_alive(call).await;

        // An answer that tells the outcome is settled by the caller. One that is unknown may be a grant, which is released on drop.
        let undecided = matches!(answer, Ok(_) | Err(Error::Unknown { .. }));
        if !undecided {
            self.settled();
        }
        answer
    }

    /// Nothing is left to release here.
    fn settled(&mut self) {
        self.request = None;
    }

    fn not_acquired(&mut self, waited: bool, busy: v1::Busy) -> Error {
        self.settled();
        not_acquired(waited, self.place_lost, busy)
    }
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            release::abandon(&self.core, request);
        }
    }
}

/// The error of an acquire that was answered by `busy`.
pub(super) fn not_acquired(waited: bool, place_lost: bool, busy: v1::Busy) -> Error {
    match Busy::from_wire(busy) {
        Ok(busy) => Error::NotAcquired(Box::new(NotAcquired { waited, place_lost, busy })),
        Err(malformed) => malformed,
    }
}

/// A waiting call gets the usual limit on top of its wait: time to find a leader and to receive the answer.
pub(super) fn waiting_policy(usual: RetryPolicy, wait: Wait) -> RetryPolicy {
    match wait {
        Wait::Never => usual,
        Wait::Millis(ms) => {
            let limit = usual.limit.map(|limit| limit.saturating_add(Duration::from_millis(ms)));
            RetryPolicy { limit, attempt_limit: None, ..usual }
        }
        Wait::Forever => RetryPolicy { limit: None, attempt_limit: None, ..usual },
    }
}

/// Whether a waiting acquire has time left.
pub(super) fn in_time(wait: Wait, began: Instant) -> bool {
    match wait {
        Wait::Never => false,
        Wait::Millis(ms) => began.elapsed() < Duration::from_millis(ms),
        Wait::Forever => true,
    }
}

/// The message of an acquire that began `elapsed` ago.
pub(super) fn message(
    session: SessionId,
    request: RequestId,
    acquire: &lockkeeper_types::Acquire,
    elapsed: Duration,
) -> AcquireRequest {
    let wait = match acquire.wait {
        Wait::Never => None,
        // Zero would mean "do not wait".
        Wait::Millis(ms) => Some(acquire_request::Wait::WaitMs(ms.saturating_sub(millis(elapsed)).max(1))),
        Wait::Forever => Some(acquire_request::Wait::WaitForever(true)),
    };

    AcquireRequest {
        session_id: session.to_string(),
        request: Some(request),
        locks: acquire.wants().iter().map(want).collect(),
        wait,
        lock_delay_ms: acquire.lock_delay_ms,
    }
}

fn want(want: &Want) -> v1::Want {
    let kind = match want.mode {
        Mode::Exclusive => mode::Kind::Exclusive(mode::Exclusive {}),
        Mode::Shared => mode::Kind::Shared(mode::Shared {}),
        Mode::Permit(permits) => mode::Kind::Permit(mode::Permit { limit: permits.get() }),
    };
    v1::Want {
        name: want.name.as_str().to_owned(),
        mode: Some(v1::Mode { kind: Some(kind) }),
        data: want.data.as_ref().map(|data| data.as_bytes().to_vec()),
        keep_data: want.keep_data,
        must_exist: want.must_exist,
    }
}

/// Rounds up: a wait of half a millisecond must not become a wait of zero, which means "do not wait".
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_given_the_usual_time_on_top_and_one_without_a_limit_none() {
        let usual = RetryPolicy {
            limit: Some(Duration::from_secs(10)),
            attempt_limit: Some(Duration::from_secs(2)),
            repeat_unknown: true,
            reads: false,
        };
        assert_eq!(waiting_policy(usual, Wait::Never).limit, usual.limit);
        assert_eq!(waiting_policy(usual, Wait::Millis(500)).limit, Some(Duration::from_millis(10_500)));
        assert_eq!(waiting_policy(usual, Wait::Forever).limit, None);
        assert_eq!(waiting_policy(usual, Wait::Forever).attempt_limit, None);
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
