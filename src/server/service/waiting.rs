//! Acquires that wait: the calls behind them, and what happens to a wait whose call broke off.
//!
//! The wait is in the replicated table, and a call listens for its end. When the call breaks off, the leader cancels the wait after
//! [`GRACE`], unless the same request was repeated meanwhile and a call listens again. A new leader does the same for the waits in the
//! table that have no call: their calls were at another node.
//!
//! A request without an id cannot be repeated, so nobody will ever learn of a grant to it. The leader at which its call broke off cancels
//! the wait at once, and so does a new leader as soon as it leads. A grant that comes before the cancellation stays with its session, since
//! a client that looks (`Get`) may already count on it.
//!
//! A leader that is cut off from most members breaks off all calls that wait at it: another node may lead, and would cancel their waits. It
//! notices that it is cut off after [`Replica::silence_max`] at the latest, so a new leader waits that much longer. If it leads on, it acts
//! like a leader that was elected at that moment.
//!
//! A cancellation names how often its sender had seen the request repeated. If the log has a further repetition before the cancellation,
//! the cancellation is void: a caller that came back in time keeps its place.

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    time::Duration,
};

use futures::{StreamExt, stream, stream::FuturesUnordered};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, sleep_until},
};

use super::patience::PATIENCE;
use crate::api::Error;
use lockkeeper_machine::{Command, Machine, Ticket, WaitEnd};
use lockkeeper_raft::{NoReply, Replica};
use lockkeeper_table::calls::{BrokenCall, WaitingCall};

/// How long the place in the queue is kept after its call broke off.
pub const GRACE: Duration = Duration::from_secs(5);

/// Maximum number of cancellations that a new leader has in flight.
const CANCELLATIONS: usize = 64;

/// How often a leader checks whether it is cut off.
const LOOK: Duration = Duration::from_millis(100);

/// Returns when the wait ends, or `denied` returns. Dropping the future breaks off the call.
///
/// A caller that is denied its locks is told so once the wait has ended in the table: it believes then that it holds nothing, and will not
/// release what is granted to it. A grant that comes first is its answer all the same.
pub(super) async fn end_of_wait(
    replica: &Replica,
    mut call: WaitingCall,
    denied: impl Future<Output = Error>,
) -> Result<WaitEnd, Error> {
    let broken_off = || {
        Error::broken_off(
            "this node no longer leads, or is cut off from most members: repeat the request with the same id, here or at \
             another node, to keep its place",
        )
    };

    // Leadership may be lost between the proposal and this line. The waiting calls were then broken off before this one was among them, and
    // the new leader does not know this call: the caller must repeat it there.
    if !replica.leads() {
        return Err(broken_off());
    }
    let refusal = tokio::select! {
        biased;
        end = call.end() => return end.ok_or_else(broken_off),
        refusal = denied => refusal,
    };

    // Boxed, so that a wait does not carry the space for it.
    if !Box::pin(cancel(replica, call.ticket())).await {
        return Err(broken_off());
    }
    match call.end().await {
        Some(WaitEnd::Cancelled) => Err(refusal),
        end => end.ok_or_else(broken_off),
    }
}

/// Ends a wait in the table, if it is still there. Returns whether that is known.
async fn cancel(replica: &Replica, ticket: Ticket) -> bool {
    loop {
        match replica.propose(Command::CancelWait { ticket, repeats: None }, PATIENCE).await {
            Ok(_) => return true,
            Err(NoReply::NotLeader | NoReply::NoQuorum | NoReply::VersionTooLow { .. } | NoReply::Unfit(_)) => {
                return false;
            }
            Err(NoReply::Overloaded | NoReply::DiskSpaceLow(_) | NoReply::Unknown) => sleep(LOOK).await,
        }
    }
}

/// While this node leads and is cut off, breaks off the calls that wait here.
pub(crate) async fn break_off_when_cut_off(replica: Replica) {
    let mut led = replica.led();
    while led.wait_for(Option::is_some).await.is_ok() {
        if replica.cut_off() {
            replica.table().calls().break_off();
        }
        sleep(LOOK).await;
    }
}

/// Cancels the waits whose calls broke off and did not come back.
pub(crate) async fn give_up_places(replica: Replica) {
    let Some(mut breaks) = replica.table().calls().breaks() else { return };

    // All places are kept for the same time, so they fall due in the order in which their calls broke off. If a call of the same wait broke
    // off again, only the last time counts.
    let mut kept: VecDeque<(Instant, Ticket)> = VecDeque::new();
    let mut last: HashMap<Ticket, Instant> = HashMap::new();
    let mut cancelling = FuturesUnordered::new();

    loop {
        let next = kept.front().map(|(due, _)| *due);
        let due = async {
            match next {
                Some(due) => sleep_until(due).await,
                None => pending().await,
            }
        };

        let given_up = tokio::select! {
            broken = breaks.recv() => match broken {
                Some(BrokenCall { ticket, is_repeatable: true }) => {
                    let due = Instant::now() + GRACE;
                    kept.push_back((due, ticket));
                    last.insert(ticket, due);
                    continue;
                }
                // A request without an id cannot be repeated.
                Some(BrokenCall { ticket, is_repeatable: false }) => ticket,
                None => return,
            },
            () = due => match kept.pop_front().filter(|(due, ticket)| last.get(ticket) == Some(due)) {
                Some((_, ticket)) => ticket,
                None => continue,
            },
            Some(()) = cancelling.next() => continue,
        };

        last.remove(&given_up);
        replica.table().calls().forget_broken(given_up);
        cancelling.push(cancel_unless_awaited(&replica, given_up));
    }
}

/// Cancels the waits without a call on this node. Those without a request id are cancelled as soon as this node leads; the others once it
/// has led for long enough, without being cut off, for their requests to be repeated: see the [module](self).
pub(crate) async fn sweep(replica: Replica) {
    let mut led = replica.led();
    let patience = replica.silence_max() + GRACE;
    while led.wait_for(Option::is_some).await.is_ok() {
        let reign = Reign::at_present(&replica);
        if reign.lasts_for(&replica, Duration::ZERO).await {
            cancel_all_unless_awaited(&replica, |machine| machine.waits_without_request().collect()).await;
        }

        if reign.lasts_for(&replica, patience).await {
            cancel_all_unless_awaited(&replica, |machine| machine.waits().collect()).await;
            while reign.lasts_for(&replica, LOOK).await {}
        }

        // This node may still lead while it is cut off.
        sleep(LOOK).await;
    }
}

/// A period in which this node leads, in one term, and breaks off no calls.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reign {
    /// The term, if this node leads.
    term: Option<u64>,
    /// Counts how often this node broke off its calls. A node that was cut off for a moment may lead on in the same term; the calls that it
    /// broke off are then treated like those of another leader.
    times_broken_off: u64,
}

impl Reign {
    fn at_present(replica: &Replica) -> Self {
        let term = replica.led().borrow().as_ref().map(|led| led.term);
        Self { term, times_broken_off: replica.table().calls().times_broken_off() }
    }

    /// Whether the reign lasts for this time from now on, without being cut off. Returns as soon as it does not.
    async fn lasts_for(self, replica: &Replica, time: Duration) -> bool {
        let began = Instant::now();
        loop {
            let lasts = self.term.is_some() && Self::at_present(replica) == self && !replica.cut_off();
            if !lasts || began.elapsed() >= time {
                return lasts;
            }
            sleep(LOOK.min(time)).await;
        }
    }
}

/// Cancels the waits in the table that are among these and have had no call on this node.
async fn cancel_all_unless_awaited(replica: &Replica, waits: impl FnOnce(&Machine) -> Vec<Ticket>) {
    let table = replica.table();
    let found = table.read(Clone::clone);
    calls_are_known(replica, found.index()).await;

    // If a wait had a call here that broke off, its time counts from then, not from the election.
    let left = waits(&found.machine).into_iter().filter(|ticket| !table.calls().has_come(*ticket));
    let cancellations = left.map(|ticket| cancel_unless_awaited(replica, ticket));
    stream::iter(cancellations).buffer_unordered(CANCELLATIONS).collect::<()>().await;
}

/// Returns when the calls of all waits that began up to this entry are registered.
async fn calls_are_known(replica: &Replica, index: u64) {
    while replica.table().notified() < index {
        yield_now().await;
    }
}

async fn cancel_unless_awaited(replica: &Replica, ticket: Ticket) {
    loop {
        // The count comes first: the check below may miss a call that comes after it, but that repetition makes the cancellation void.
        let (repeats, index) = replica.table().read(|applied| (applied.machine.repeats(ticket), applied.index()));
        let Some(repeats) = repeats else { return };
        calls_are_known(replica, index).await;
        if replica.table().calls().is_awaited(ticket) {
            return;
        }

        match replica.propose(Command::CancelWait { ticket, repeats: Some(repeats) }, PATIENCE).await {
            // The next leader finds the wait; so does this one, when it is no longer cut off.
            Ok(_) | Err(NoReply::NotLeader | NoReply::NoQuorum | NoReply::VersionTooLow { .. } | NoReply::Unfit(_)) => {
                return;
            }
            Err(NoReply::Overloaded | NoReply::DiskSpaceLow(_) | NoReply::Unknown) => sleep(LOOK).await,
        }
    }
}
