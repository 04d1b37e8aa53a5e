//! Leases: sessions, with etcd's ids and seconds.
//!
//! A lease has [`TTL_MIN`] to 86,400 seconds (`TTL_MS_MAX`): less is raised, more is refused. An id that the client chooses is kept; one
//! that was in use not long ago counts as in use.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use futures::{
    StreamExt as _,
    stream::{BoxStream, unfold},
};
use lockkeeper_machine::{SessionId, Ttl};
use lockkeeper_planted::Planted;
use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout},
};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    Etcd, EtcdStore, EtcdStoreError, KeptAlive,
    call::requires_leader,
    error::Error,
    key,
    large::LargeAnswer,
    proto::etcdserverpb::{
        LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
        LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
        LeaseTimeToLiveResponse, lease_server::Lease,
    },
    range::ANSWER_BYTES_MAX,
};

/// Seconds of a lease, at the least.
const TTL_MIN: i64 = 1;
/// Seconds of the lease that a lock or a candidate without one gets. etcd's.
pub(crate) const LENT_TTL: i64 = 60;
/// Leases that one answer shows, at the most. Nearly all ids have nine bytes, and three say what they are.
const LEASES_MAX: usize = ANSWER_BYTES_MAX / 12;
/// Attempts to find an id that is not in use.
const ATTEMPTS_MAX: usize = 8;
/// How long renewals wait for a leader.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to find one.
const PAUSE: Duration = Duration::from_millis(50);
/// After this time, a renewal without an answer is sent again: a leader does not answer one that it could not commit.
const AGAIN: Duration = Duration::from_secs(3);
/// How long the answer to a revocation waits for a revision. A client with a short timeout must not take a lease for alive because the
/// leader was lost just then.
const HEADER_PATIENCE: Duration = Duration::from_millis(500);
/// Renewals of one stream that wait for their answers.
const UNANSWERED_MAX: usize = 1024;

#[tonic::async_trait]
impl<S: EtcdStore> Lease for Etcd<S> {
    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        let caller = self.caller(&request)?;
        let LeaseGrantRequest { ttl, id } = request.into_inner();
        let (id, ttl) = self.grant(&caller, id, ttl).await?;
        Ok(Response::new(LeaseGrantResponse { header: self.header_now(), id, ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let caller = self.caller(&request)?;
        self.store.close(&caller, key::session(request.into_inner().id)).await?;

        // A client watches, or reads, from the revision of the answer on, so it must be one at which the lease's keys are gone. This node
        // may not have applied that yet. The lease is revoked by now, and a revision that cannot be read changes nothing about that.
        let after = timeout(HEADER_PATIENCE, self.store.get(&caller, Vec::new(), None)).await;
        let header = match after {
            Ok(Ok(after)) => self.header(after.revision),
            Ok(Err(_)) | Err(_) => self.header_now(),
        };
        Ok(Response::new(LeaseRevokeResponse { header }))
    }

    type LeaseKeepAliveStream = BoxStream<'static, Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let caller = self.caller(&request)?;
        let requires_leader = requires_leader(request.metadata().as_ref());
        let asked = request.into_inner().map(|asked| asked.map(|asked| key::session(asked.id)));
        let kept = self.keep_alive(caller, asked.boxed(), requires_leader);
        Ok(Response::new(kept.boxed()))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let caller = self.caller(&request)?;
        let LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let found = self.store.session(&caller, key::session(id), keys).await?;

        let header = self.header_now();
        let Some(found) = found else {
            return Ok(Response::new(LeaseTimeToLiveResponse { header, id, ttl: -1, ..Default::default() }));
        };

        let keys = found.keys.iter().map(|key| key::shown(key).to_vec()).collect();
        // Rounded down, as etcd does: the client must not rely on a second that has begun.
        let ttl = i64::try_from(found.remaining_ms / 1000).unwrap_or(i64::MAX);
        Ok(Response::new(LeaseTimeToLiveResponse { header, id, ttl, granted_ttl: seconds(found.ttl), keys }))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let caller = self.caller(&request)?;
        let (first, last) = key::sessions();

        // All of them are listed, page by page.
        let mut answered = LargeAnswer::new(self, &caller);
        answered.take_turn().await?;
        let sessions = match self.store.sessions(&caller, first, last, LEASES_MAX).await {
            Err(EtcdStoreError::TooLarge(_)) => Err(Error::TooManyLeases { most: LEASES_MAX }),
            sessions => sessions.map_err(Error::from),
        };

        let leases = sessions?.into_iter().filter_map(key::lease).map(|id| LeaseStatus { id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header: self.header_now(), leases }))
    }
}

impl<S: EtcdStore> Etcd<S> {
    /// Grants a lease, with an id of the caller's or, for 0, of our own. Returns the id and the TTL, in seconds.
    pub(crate) async fn grant(&self, caller: &S::Caller, id: i64, ttl: i64) -> Result<(i64, i64), Error> {
        let seconds = ttl.max(TTL_MIN);
        let milliseconds = u32::try_from(seconds).ok().and_then(|seconds| seconds.checked_mul(1000));
        let ttl = milliseconds.and_then(|ms| Ttl::from_millis(ms).ok()).ok_or(Error::TtlTooLarge)?;

        if id != 0 {
            match self.store.open(caller, key::session(id), ttl).await {
                Err(EtcdStoreError::SessionExists) if Planted::LeaseGrantedAgain.is_on() => {}
                opened => opened?,
            }
            return Ok((id, seconds));
        }

        for _ in 0..ATTEMPTS_MAX {
            let id = self.next_lease();
            match self.store.open(caller, key::session(id), ttl).await {
                Ok(()) => return Ok((id, seconds)),
                Err(EtcdStoreError::SessionExists) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::LeaseExists)
    }

    /// An id that is not in use, most likely: from a random one on they rise by one, so that leases of one millisecond are listed in the
    /// order in which this node granted them. Positive, since clients write it in hexadecimal into their keys.
    fn next_lease(&self) -> i64 {
        let number = self.leases.fetch_add(1, Ordering::Relaxed) & i64::MAX.cast_unsigned();
        number.cast_signed().max(1)
    }

    /// The lease of a lock or of a candidate: the caller's own, or a new one of [`LENT_TTL`] that nobody keeps alive.
    pub(crate) async fn lease_or_lent(&self, caller: &S::Caller, id: i64) -> Result<LeaseOfCall<S>, Error> {
        if id != 0 {
            return Ok(LeaseOfCall { id, lent: None });
        }
        let (id, _) = self.grant(caller, 0, LENT_TTL).await?;
        Ok(LeaseOfCall { id, lent: Some((self.clone(), caller.clone())) })
    }

    /// The answers to a stream of renewals.
    pub(crate) fn keep_alive(
        &self,
        caller: S::Caller,
        asked: BoxStream<'static, Result<SessionId, Status>>,
        requires_leader: bool,
    ) -> impl futures::Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send + use<S> {
        let mut look = interval(AGAIN);
        // After a pause of the process one look is enough: each one sends the renewals again that are still without an answer.
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);

        let keeper = Keeper {
            etcd: self.clone(),
            caller,
            asked: Some(asked),
            unanswered: BTreeMap::new(),
            waiting: 0,
            look,
            open: None,
            leaderless_since: None,
            requires_leader,
        };

        unfold(Some(keeper), |keeper| async {
            let mut keeper = keeper?;
            match keeper.next().await {
                Ok(None) => None,
                Ok(Some(answer)) => Some((Ok(answer), Some(keeper))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}

/// The lease of a request for a lock or a candidacy. A lease that was granted for the request ends with it, unless it is kept: no client
/// knows the lease if the request had no answer.
pub(crate) struct LeaseOfCall<S: EtcdStore> {
    id: i64,
    /// Who lent it to whom. A lease that the caller brought is not lent.
    lent: Option<(Etcd<S>, S::Caller)>,
}

impl<S: EtcdStore> LeaseOfCall<S> {
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// The request succeeds with it.
    pub(crate) fn keep(mut self) -> i64 {
        self.lent = None;
        self.id
    }
}

impl<S: EtcdStore> Drop for LeaseOfCall<S> {
    fn drop(&mut self) {
        let Some((etcd, caller)) = self.lent.take() else { return };
        // At the end of the process there is no runtime. The lease then expires within a minute.
        let Ok(runtime) = Handle::try_current() else { return };

        let session = key::session(self.id);
        runtime.spawn(async move {
            if let Err(error) = etcd.patiently(|| etcd.store.close(&caller, session)).await {
                tracing::debug!(%error, "a lease that was lent to a request which failed stays until it ends");
            }
        });
    }
}

/// A stream of renewals. It outlives a change of leader: renewals without an answer are sent again to the next one.
struct Keeper<S: EtcdStore> {
    etcd: Etcd<S>,
    caller: S::Caller,
    /// The client's requests, until it sends no more.
    asked: Option<BoxStream<'static, Result<SessionId, Status>>>,
    /// Renewals without an answer, by session.
    unanswered: BTreeMap<SessionId, Unanswered>,
    /// Their sum.
    waiting: usize,
    /// The interval at which it looks for renewals to send again.
    look: Interval,
    /// The stream to the leader.
    open: Option<OpenRenewals>,
    leaderless_since: Option<Instant>,
    requires_leader: bool,
}

struct Unanswered {
    times: usize,
    /// When the last one was sent.
    sent: Instant,
}

struct OpenRenewals {
    renewals: mpsc::Sender<SessionId>,
    kept: BoxStream<'static, Result<KeptAlive, EtcdStoreError>>,
    /// The time when it was opened.
    since: Instant,
}

impl<S: EtcdStore> Keeper<S> {
    /// The next answer, if there are more.
    async fn next(&mut self) -> Result<Option<LeaseKeepAliveResponse>, Status> {
        loop {
            if self.asked.is_none() && self.waiting == 0 {
                return Ok(None);
            }

            let open = match &mut self.open {
                Some(open) => open,
                None => {
                    self.reopen().await?;
                    continue;
                }
            };

            tokio::select! {
                kept = open.kept.next() => match kept {
                    Some(Ok(kept)) => {
                        self.leaderless_since = None;
                        if let Some(answer) = self.answer(kept) {
                            return Ok(Some(answer));
                        }
                    }
                    Some(Err(EtcdStoreError::NoLeader | EtcdStoreError::LeaderChanged)) | None => {
                        // There was a leader, even if it got no renewal to answer: the wait for the next one begins now.
                        if open.since.elapsed() > PAUSE {
                            self.leaderless_since = None;
                        }
                        self.open = None;
                    }
                    Some(Err(error)) => return Err(error.into()),
                },

                asked = next_of(&mut self.asked), if self.waiting < UNANSWERED_MAX => match asked {
                    Some(session) => {
                        let session = session?;
                        // Each request gets an answer of its own, several for one lease too.
                        let unanswered = self.unanswered.entry(session);
                        let unanswered = unanswered.or_insert(Unanswered { times: 0, sent: Instant::now() });
                        *unanswered = Unanswered { times: unanswered.times + 1, sent: Instant::now() };
                        self.waiting += 1;
                        // The queue has room for all waiting sessions. If the stream has ended, they are sent on the next one.
                        let _ = open.renewals.try_send(session);
                    }
                    None => self.asked = None,
                },

                _ = self.look.tick(), if self.waiting > 0 => {
                    for (session, unanswered) in &mut self.unanswered {
                        if unanswered.sent.elapsed() >= AGAIN {
                            unanswered.send(*session, &open.renewals);
                        }
                    }
                }
            }
        }
    }

    /// Opens a stream to the leader, and asks for what was not answered.
    async fn reopen(&mut self) -> Result<(), Status> {
        if let Some(since) = self.leaderless_since {
            let is_leaderless = self.etcd.store.leader().is_none();
            if since.elapsed() > PATIENCE || self.requires_leader && is_leaderless {
                return Err(Error::NoLeader.into());
            }
            sleep(PAUSE).await;
        }

        self.leaderless_since.get_or_insert_with(Instant::now);
        // Room for each renewal without an answer, and for its repetition.
        let (renewals, to_renew) = mpsc::channel(2 * UNANSWERED_MAX);
        let to_renew = unfold(to_renew, |mut to_renew| async { Some((to_renew.recv().await?, to_renew)) });

        match self.etcd.store.keep_alive(&self.caller, to_renew.boxed()).await {
            Ok(kept) => {
                for (session, unanswered) in &mut self.unanswered {
                    unanswered.send(*session, &renewals);
                }
                self.open = Some(OpenRenewals { renewals, kept, since: Instant::now() });
                Ok(())
            }
            Err(EtcdStoreError::NoLeader | EtcdStoreError::LeaderChanged) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn answer(&mut self, kept: KeptAlive) -> Option<LeaseKeepAliveResponse> {
        let (session, ttl) = match kept {
            KeptAlive::Renewed(session, ttl) => (session, seconds(ttl)),
            KeptAlive::Ended(session) if Planted::EndedLeaseRenewed.is_on() => (session, 1),
            KeptAlive::Ended(session) => (session, 0),
        };

        match self.unanswered.get_mut(&session) {
            Some(unanswered) => {
                unanswered.times -= 1;
                self.waiting -= 1;
                if unanswered.times == 0 {
                    self.unanswered.remove(&session);
                }
            }
            // It was sent again, and both were answered.
            None if ttl > 0 => return None,
            None => {}
        }

        let id = key::lease(session)?;
        Some(LeaseKeepAliveResponse { header: self.etcd.header_now(), id, ttl })
    }
}

impl Unanswered {
    fn send(&mut self, session: SessionId, renewals: &mpsc::Sender<SessionId>) {
        self.sent = Instant::now();
        for _ in 0..self.times {
            // As above.
            let _ = renewals.try_send(session);
        }
    }
}

/// The next item; never, if there is no stream.
async fn next_of<T>(stream: &mut Option<BoxStream<'static, T>>) -> Option<T> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// Whole seconds, rounded up: a lease of less than one is not over.
fn seconds(ttl: Ttl) -> i64 {
    i64::from(ttl.as_millis().div_ceil(1000))
}
