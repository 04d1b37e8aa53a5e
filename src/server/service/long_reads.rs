//! Limits reads that visit much: they share a runtime with renewals. And large answers while they are made: they take memory.
//!
//! One read goes on at a time, or a few answers, and a limited number of others wait. Owners take turns: however many reads one of them
//! sends, another one waits for one of them at the most. If all places are taken, the owner with the most gives one up to an owner with
//! fewer.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::api::{Caller, Error};
use lockkeeper_accept::origin;
use lockkeeper_machine::Identity;
use lockkeeper_planted::NodeLimit;
use lockkeeper_raft::NoReply;

/// Maximum number of reads that have a place: the one that goes on, and those that wait for it. Each keeps an old copy of the table alive.
pub(super) const LONG_READS_MAX: usize = 64;
/// Number of keys, sessions or places in queues that a read visits before it yields, and without a turn. It takes less than a millisecond.
pub(super) const VISITS_PER_TURN: usize = 1000;

/// The limits of reads that visit much. Only a simulation has other ones than [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongReadLimits {
    /// Reads that have a place.
    pub reads: usize,
    /// What a read visits before it yields, and without a turn.
    pub visits_per_turn: usize,
}

impl LongReadLimits {
    /// The limits of every real node.
    pub const REAL: Self = Self { reads: LONG_READS_MAX, visits_per_turn: VISITS_PER_TURN };
}

impl Default for LongReadLimits {
    fn default() -> Self {
        Self::REAL
    }
}

/// The turns of reads that visit much, or of answers that are large.
#[derive(Debug)]
pub(crate) struct LongReads {
    limits: LongReadLimits,
    /// Number of them that go on at the same time.
    at_once: usize,
    queue: Mutex<LongReadQueue>,
}

impl Default for LongReads {
    fn default() -> Self {
        Self::new(LongReadLimits::REAL)
    }
}

/// Whose reads take turns with those of others.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ReadOwner {
    Identity(Identity),
    /// All anonymous clients of an address.
    Host(IpAddr),
    /// This node, or a client that an older peer does not name.
    Unnamed,
}

#[derive(Debug, Default)]
struct LongReadQueue {
    under_way: usize,
    waiting: usize,
    /// The owners of reads that wait, in the order of their turns, each with its reads in the order of arrival.
    owners: VecDeque<(ReadOwner, VecDeque<oneshot::Sender<ReadTurn>>)>,
}

/// The turn of a read. Dropping it begins the next one.
#[derive(Debug)]
pub(crate) struct ReadTurn(Arc<LongReads>);

impl From<&Caller> for ReadOwner {
    fn from(caller: &Caller) -> Self {
        match (&caller.identity, caller.remote) {
            (Some(identity), _) => Self::Identity(identity.clone()),
            (None, Some(remote)) => Self::Host(origin(remote.ip())),
            (None, None) => Self::Unnamed,
        }
    }
}

impl LongReads {
    /// Turns one after the other.
    pub(crate) fn new(limits: LongReadLimits) -> Self {
        Self { limits, at_once: 1, queue: Mutex::default() }
    }

    /// Turns for this number at the same time.
    pub(crate) fn at_once(at_once: usize) -> Self {
        Self { at_once, ..Self::default() }
    }

    /// What a read visits before it yields, and without a turn.
    pub(super) fn visits_per_turn(&self) -> usize {
        self.limits.visits_per_turn
    }

    /// Waits for a turn, unless this number of visits needs none.
    pub(super) async fn turn_for(self: &Arc<Self>, caller: &Caller, visits: usize) -> Result<Option<ReadTurn>, Error> {
        if visits <= self.limits.visits_per_turn {
            return Ok(None);
        }
        self.turn(caller).await.map(Some)
    }

    /// Waits for a turn. Fails if too many reads wait, and no owner has more of them than this one.
    pub(crate) async fn turn(self: &Arc<Self>, caller: &Caller) -> Result<ReadTurn, Error> {
        let waiting = {
            let mut queue = self.queue();
            if queue.under_way < self.at_once {
                queue.under_way += 1;
                return Ok(ReadTurn(Arc::clone(self)));
            }
            queue.enqueue(ReadOwner::from(caller), self.limits.reads)
        };

        let overloaded = || Error::no_reply(NoReply::Overloaded);
        waiting.ok_or_else(overloaded)?.await.map_err(|_| overloaded())
    }

    /// No code panics while it holds this lock.
    fn queue(&self) -> MutexGuard<'_, LongReadQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LongReadQueue {
    /// Adds a read, if there is a place for it among this number of them.
    fn enqueue(&mut self, owner: ReadOwner, reads_max: usize) -> Option<oneshot::Receiver<ReadTurn>> {
        if self.waiting + 1 >= reads_max {
            self.forget_broken();
        }
        if self.waiting + 1 >= reads_max {
            self.evict_for(&owner)?;
        }

        let (turn, waiting) = oneshot::channel();
        match self.owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, reads)) => reads.push_back(turn),
            None => self.owners.push_back((owner, VecDeque::from([turn]))),
        }
        self.waiting += 1;
        Some(waiting)
    }

    /// Takes the youngest read out of the owner with the most of them, if `owner` has fewer.
    fn evict_for(&mut self, owner: &ReadOwner) -> Option<()> {
        let has = self.owners.iter().find(|(known, _)| known == owner).map_or(0, |(_, reads)| reads.len());
        let (_, reads) = self.owners.iter_mut().max_by_key(|(_, reads)| reads.len())?;
        // With one read more, the newcomer would have as many as the other has then.
        if reads.len() <= has + 1 {
            NodeLimit::LongReads.note();
            return None;
        }

        reads.pop_back()?;
        NodeLimit::LongReadsGaveWay.note();
        self.waiting -= 1;
        Some(())
    }

    /// Takes out the reads whose callers are gone.
    fn forget_broken(&mut self) {
        self.owners.retain_mut(|(_, reads)| {
            reads.retain(|read| !read.is_closed());
            !reads.is_empty()
        });
        self.waiting = self.owners.iter().map(|(_, reads)| reads.len()).sum();
    }

    /// Takes out the read whose turn is next. Without one, one less is under way.
    fn next(&mut self) -> Option<oneshot::Sender<ReadTurn>> {
        let next = self.owners.pop_front().and_then(|(owner, mut reads)| {
            let next = reads.pop_front();
            if !reads.is_empty() {
                self.owners.push_back((owner, reads));
            }
            next
        });

        // It takes the place of the one whose turn has ended.
        match next {
            Some(_) => self.waiting -= 1,
            None => self.under_way -= 1,
        }
        next
    }
}

impl Drop for ReadTurn {
    fn drop(&mut self) {
        let next = self.0.queue().next();
        if let Some(read) = next {
            // If its caller is gone, the turn comes back and is dropped here, which begins the one after it.
            let _ = read.send(Self(Arc::clone(&self.0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::BoxFuture};

    use super::*;
    use crate::api::FailureReason;

    fn caller(name: &str) -> Caller {
        Caller { identity: Some(Identity::new(name).expect("an identity")), ..Caller::default() }
    }

    /// A read that waits for its turn. It has its place when this returns.
    fn waits(long_reads: &Arc<LongReads>, caller: Caller) -> BoxFuture<'static, Result<ReadTurn, Error>> {
        let long_reads = Arc::clone(long_reads);
        let mut read = async move { long_reads.turn(&caller).await }.boxed();
        assert!((&mut read).now_or_never().is_none(), "another read is under way");
        read
    }

    async fn is_refused(read: impl Future<Output = Result<ReadTurn, Error>>) -> bool {
        read.await.is_err_and(|error| error.reason == FailureReason::Overloaded)
    }

    #[tokio::test]
    async fn an_owner_waits_for_one_read_of_another_one_however_many_there_are() {
        let long_reads = Arc::<LongReads>::default();
        let first = long_reads.turn(&caller("eve")).await.expect("the first");
        let mut eves: Vec<_> = (0..10).map(|_| waits(&long_reads, caller("eve"))).collect();
        let ann = waits(&long_reads, caller("ann"));

        drop(first);
        let turn = eves.remove(0).await.expect("eve came first");
        assert!((&mut eves[0]).now_or_never().is_none());
        drop(turn);
        drop(ann.now_or_never().expect("it is ann's turn").expect("a turn"));
        for read in eves {
            drop(read.now_or_never().expect("nobody else waits").expect("a turn"));
        }
        assert_eq!(long_reads.queue().under_way, 0);
    }

    #[tokio::test]
    async fn an_owner_with_all_places_gives_half_of_them_up_to_another_one() {
        let long_reads = Arc::<LongReads>::default();
        let first = long_reads.turn(&caller("eve")).await.expect("the first");
        let eves: Vec<_> = (1..LONG_READS_MAX).map(|_| waits(&long_reads, caller("eve"))).collect();
        assert!(is_refused(long_reads.turn(&caller("eve"))).await, "it has all places");

        let anns: Vec<_> = (0..LONG_READS_MAX / 2 - 1).map(|_| waits(&long_reads, caller("ann"))).collect();
        assert!(is_refused(long_reads.turn(&caller("ann"))).await, "both have a half");
        drop(first);
        let is_left =
            |read: BoxFuture<'static, Result<ReadTurn, Error>>| read.now_or_never().is_none_or(|turn| turn.is_ok());
        assert_eq!(eves.into_iter().filter_map(|read| is_left(read).then_some(())).count(), LONG_READS_MAX / 2);
        assert!(anns.into_iter().all(is_left));
    }

    #[tokio::test]
    async fn the_turn_of_a_read_that_was_given_up_goes_to_the_next() {
        let long_reads = Arc::<LongReads>::default();
        let first = long_reads.turn(&caller("eve")).await.expect("the first");
        let mut reads: Vec<_> = (0..4).map(|_| waits(&long_reads, caller("eve"))).collect();
        let last = reads.pop().expect("there are four");
        // One is gone before its turn comes, the next one while it has it and has not seen that, and one is next when that happens.
        drop(reads.remove(0));
        drop(first);
        drop(reads);
        drop(last.now_or_never().expect("nobody else waits").expect("a turn"));
        assert_eq!(long_reads.queue().under_way, 0);
    }

    #[tokio::test]
    async fn a_few_go_on_at_the_same_time() {
        let answers = Arc::new(LongReads::at_once(2));
        let first = answers.turn(&caller("eve")).await.expect("the first");
        let second = answers.turn(&caller("eve")).await.expect("the second");
        let eve = waits(&answers, caller("eve"));
        let mut ann = waits(&answers, caller("ann"));

        drop(second);
        let third = eve.now_or_never().expect("it came first").expect("a turn");
        assert!((&mut ann).now_or_never().is_none(), "two are under way");
        drop(first);
        drop(ann.now_or_never().expect("nobody else waits").expect("a turn"));
        drop(third);
        assert_eq!(answers.queue().under_way, 0);
        assert_eq!(answers.queue().waiting, 0);
    }

    #[test]
    fn the_anonymous_clients_of_a_host_are_one_owner() {
        let from = |address: &str| ReadOwner::from(&Caller { remote: address.parse().ok(), ..Caller::default() });
        assert_eq!(from("10.0.0.1:1000"), from("10.0.0.1:2000"));
        assert_ne!(from("10.0.0.1:1000"), from("10.0.0.2:1000"));
        let named = Caller { remote: "10.0.0.1:1000".parse().ok(), ..caller("ann") };
        assert_eq!(ReadOwner::from(&named), ReadOwner::from(&caller("ann")), "an identity is one wherever it is");
    }
}
