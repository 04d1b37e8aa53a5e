//! Elections, for clients that leave the recipe to the server.
//!
//! The leader is the oldest key under `NAME/`, and what it proclaims is the value of this key. A candidate brings its lease, or gets one
//! that nobody keeps alive, as for a [lock](super::lock).

use std::{collections::VecDeque, time::Duration};

use futures::{
    StreamExt as _,
    stream::{BoxStream, unfold},
};
use lockkeeper_machine::{Entry, EntryEvent, Key, KeyRange, Revision, Value};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep};
use tonic::{Request, Response, Status};

use crate::{
    Etcd, EtcdStore, EtcdStoreError, WatchedEvents,
    call::requires_leader,
    error::{Error, passes},
    follow::Followed,
    header::{key_value, number},
    key,
    large::LargeAnswer,
    proto::{
        etcdserverpb::{
            RangeRequest,
            range_request::{SortOrder, SortTarget},
        },
        mvccpb::KeyValue,
        v3electionpb::{
            CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
            ProclaimResponse, ResignRequest, ResignResponse, election_server::Election,
        },
    },
    queue::under,
    watch::LEADERLESS_MAX,
};

/// Between two attempts to read who leads.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two checks whether the cluster has a leader.
const CHECK: Duration = Duration::from_secs(1);

/// The leaders of an election, one after the other.
pub(crate) type Leaders = BoxStream<'static, Result<LeaderResponse, Status>>;

#[tonic::async_trait]
impl<S: EtcdStore> Election for Etcd<S> {
    async fn campaign(&self, request: Request<CampaignRequest>) -> Result<Response<CampaignResponse>, Status> {
        let caller = self.caller(&request)?;
        let CampaignRequest { name, lease, value } = request.into_inner();
        let lease = self.lease_or_lent(&caller, lease).await?;
        let turn = self.turn(&caller, &name, lease.id(), &value).await?;
        let key = key::shown(&turn.key).to_vec();
        let rev = number(turn.created);

        // A lent lease would be revoked with the end of this call. It belongs to the leader now.
        let leader = LeaderKey { name, key, rev, lease: lease.keep() };
        Ok(Response::new(CampaignResponse { header: self.header(turn.revision), leader: Some(leader) }))
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Result<Response<ProclaimResponse>, Status> {
        let caller = self.caller(&request)?;
        let ProclaimRequest { leader, value } = request.into_inner();
        let (key, created, lease) = named(leader)?;
        let value = Value::new(&value).map_err(|_| Error::TooLarge)?;
        let revision = self.proclaim(&caller, &key, created, lease, &value).await?;
        Ok(Response::new(ProclaimResponse { header: self.header(revision) }))
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Response<LeaderResponse>, Status> {
        let caller = self.caller(&request)?;
        let (leader, revision) = self.first(&caller, &request.into_inner().name, None).await?;
        let kv = Some(leader.ok_or(Error::NobodyLeads)?);
        Ok(Response::new(LeaderResponse { header: self.header(revision), kv }))
    }

    type ObserveStream = Leaders;

    async fn observe(&self, request: Request<LeaderRequest>) -> Result<Response<Leaders>, Status> {
        let caller = self.caller(&request)?;
        let requires_leader = requires_leader(request.metadata().as_ref());
        Ok(Response::new(self.leaders(caller, request.into_inner().name, requires_leader)?))
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        let caller = self.caller(&request)?;
        let (key, created, _) = named(request.into_inner().leader)?;
        // If the caller no longer leads, there is nothing to give up.
        let revision = self.leave(&caller, &key, created).await?;
        Ok(Response::new(ResignResponse { header: self.header(revision) }))
    }
}

/// The key of a leader, its create revision and its lease.
fn named(leader: Option<LeaderKey>) -> Result<(Key, Revision, i64), Error> {
    let LeaderKey { key, rev, lease, .. } = leader.ok_or(Error::LeaderMissing)?;

    // Refuse 0: no key has this create revision, and in a comparison it would mean that the key is absent.
    let created = u64::try_from(rev).ok().filter(|created| *created > 0).ok_or(Error::NotLeader)?;
    Ok((key::from_wire(&key)?, Revision(created), lease))
}

impl<S: EtcdStore> Etcd<S> {
    /// The leader of an election, now or as of a revision, and the present revision.
    async fn first(
        &self,
        caller: &S::Caller,
        name: &[u8],
        at: Option<Revision>,
    ) -> Result<(Option<KeyValue>, Revision), Error> {
        let request = RangeRequest {
            key: [name, b"/"].concat(),
            // `0` is the byte after `/`: the range ends where the keys under the name do.
            range_end: [name, b"0"].concat(),
            limit: 1,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            ..RangeRequest::default()
        };

        let (answer, revision) = self.read_at(&mut LargeAnswer::new(self, caller), &request, at).await?;
        Ok((answer.kvs.into_iter().next(), revision))
    }

    /// The leader of an election, what it proclaims, and those after it.
    pub(crate) fn leaders(&self, caller: S::Caller, name: Vec<u8>, requires_leader: bool) -> Result<Leaders, Error> {
        let mut ticks = interval_at(Instant::now() + CHECK, CHECK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

        let observer = ElectionObserver {
            etcd: self.clone(),
            caller,
            range: under(&name)?.1,
            name,
            ready: VecDeque::new(),
            at: None,
            following: None,
            leaderless_since: None,
            requires_leader,
            ticks,
        };

        let leaders = unfold(Some(observer), |observer| async {
            let mut observer = observer?;
            match observer.next().await {
                Ok(leader) => Some((Ok(leader), Some(observer))),
                Err(error) => Some((Err(error.into()), None)),
            }
        });
        Ok(leaders.boxed())
    }
}

/// Watches an election.
struct ElectionObserver<S: EtcdStore> {
    etcd: Etcd<S>,
    caller: S::Caller,
    name: Vec<u8>,
    range: KeyRange,
    ready: VecDeque<LeaderResponse>,
    /// The end of the last leader, unless none was seen yet or it is forgotten.
    at: Option<Revision>,
    /// The key that is followed. It is unset as long as the leader has to be read.
    following: Option<Following>,
    leaderless_since: Option<Instant>,
    requires_leader: bool,
    ticks: Interval,
}

struct Following {
    events: Followed,
    /// Whether the followed events are those of the leader's key. Otherwise the election has no leader, and they are those of all its keys.
    is_led: bool,
}

impl<S: EtcdStore> ElectionObserver<S> {
    async fn next(&mut self) -> Result<LeaderResponse, Error> {
        loop {
            // Events come by revisions, and one message may have several values that were proclaimed.
            if let Some(leader) = self.ready.pop_front() {
                return Ok(leader);
            }

            let Some(following) = &mut self.following else {
                self.look().await?;
                continue;
            };

            let told = tokio::select! {
                // The store's stream ends without an error only with the node.
                told = following.events.next() => told.unwrap_or(Err(EtcdStoreError::Stopping)),
                _ = self.ticks.tick() => {
                    self.check()?;
                    continue;
                }
            };

            let is_led = following.is_led;
            match told {
                Ok(WatchedEvents { events, .. }) if is_led => self.led(&events),
                Ok(WatchedEvents { events, .. }) => self.taken(&events)?,
                // The events since then are compacted. Begin again with the present leader; the leaders between are not shown.
                Err(EtcdStoreError::Compacted { .. }) => (self.following, self.at) = (None, None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads who leads.
    async fn look(&mut self) -> Result<(), Error> {
        let found = self.etcd.first(&self.caller, &self.name, self.at).await;
        let (leader, present) = match found {
            Ok(found) => found,
            Err(Error::Compacted) => {
                self.at = None;
                return Ok(());
            }
            Err(error) if passes(&error) => {
                self.check()?;
                sleep(PAUSE).await;
                return Ok(());
            }
            Err(error) => return Err(error),
        };

        // Events are followed from the revision of this very read on: a change right after it is not missed.
        let revision = self.at.unwrap_or(present);
        match leader {
            Some(leader) => self.lead(leader, revision),
            // The key that is put first will lead.
            None => {
                self.follow(self.range.clone(), revision, false);
                Ok(())
            }
        }
    }

    /// Shows a new leader, and follows it.
    fn lead(&mut self, leader: KeyValue, revision: Revision) -> Result<(), Error> {
        self.follow(key::range(&leader.key, &[])?, revision, true);
        self.show(leader, revision);
        Ok(())
    }

    fn follow(&mut self, range: KeyRange, after: Revision, is_led: bool) {
        let events = self.etcd.follow(&self.caller, range, Some(Revision(after.0 + 1)), false);
        self.following = Some(Following { events, is_led });
    }

    fn show(&mut self, leader: KeyValue, revision: Revision) {
        self.ready.push_back(LeaderResponse { header: self.etcd.header(revision), kv: Some(leader) });
    }

    /// The events of the leader's key.
    fn led(&mut self, events: &[EntryEvent]) {
        for EntryEvent { revision, key, after, .. } in events {
            let Some(after) = after else {
                // Continue at the revision at which this leader ended, because the next one may have ended by now.
                (self.following, self.at) = (None, Some(*revision));
                return;
            };
            self.show(key_value(key, after), *revision);
        }
    }

    /// Takes the events of an election without a leader: the key that is put first leads.
    fn taken(&mut self, events: &[EntryEvent]) -> Result<(), Error> {
        let put = |event: &EntryEvent| -> Option<(KeyValue, Revision)> {
            let after: &Entry = event.after.as_deref()?;
            Some((key_value(&event.key, after), event.revision))
        };
        match events.iter().find_map(put) {
            Some((leader, revision)) => self.lead(leader, revision),
            None => Ok(()),
        }
    }

    /// Notes how long the cluster has had no leader. A client that requires a leader gets an error after a while; others wait.
    fn check(&mut self) -> Result<(), Error> {
        if self.etcd.store.leader().is_some() {
            self.leaderless_since = None;
            return Ok(());
        }

        let since = self.leaderless_since.get_or_insert_with(Instant::now);
        if self.requires_leader && since.elapsed() >= LEADERLESS_MAX { Err(Error::NoLeader) } else { Ok(()) }
    }
}
