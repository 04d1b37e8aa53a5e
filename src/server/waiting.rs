//! Acquires that wait: the calls behind them, and what becomes of those whose call broke off.
//!
//! A wait lives in the table; a call only listens for its end. When the call breaks off, the wait is cancelled after [`GRACE`],
//! unless the same request came again meanwhile and listens. A new leader does the same for the waits that it finds, and for which no
//! call came to it: theirs were with another node.
//!
//! A leader that is cut off from most members breaks off all calls that wait at it: another node may lead by then, and gives their
//! places away. It notices that at the latest when it has heard nobody for [`Replica::silence_max`], so a new leader waits that much
//! longer. Should it go on to lead itself, it is as one that was elected then.
//!
//! What cancels a wait says how often it had seen its request come again. A repetition that comes before the cancellation in the log
//! makes it void, however late that one was decided: so whoever came back in time has the place.

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
use tonic::{Code, Status};

use super::{PATIENCE, errors::unknown};
use crate::{
    machine::{Command, Ticket, WaitEnd},
    raft::{
        NoReply, Replica,
        calls::{Broken, Call},
    },
};

/// How long the place of a broken call is kept.
pub const GRACE: Duration = Duration::from_secs(5);

/// Cancellations that a new leader has in flight.
const CANCELLATIONS: usize = 64;

/// How often a leader looks whether it is cut off.
const LOOK: Duration = Duration::from_millis(100);

/// Waits for the end of a wait. Dropping the future is how a call breaks off.
pub(super) async fn end_of_wait(replica: &Replica, mut call: Call, repeatable: bool) -> Result<WaitEnd, Status> {
    let broken_off = || {
        let why = "this node no longer leads, or is cut off from most members: repeat the request with the same id, here or at \
                   another node, to keep its place";
        unknown(Code::Unavailable, why)
    };
    if !repeatable {
        call.is_not_repeatable();
    }
    // Leadership was lost between the proposal and here: the calls that wait were told before this one began to. The new leader
    // does not see it, so it must be repeated there.
    if !replica.leads() {
        return Err(broken_off());
    }
    call.end().await.ok_or_else(broken_off)
}

/// Breaks off the calls that wait here for as long as this node leads and is cut off.
pub(super) async fn break_off_when_cut_off(replica: Replica) {
    let mut led = replica.led();
    while led.wait_for(Option::is_some).await.is_ok() {
        if replica.cut_off() {
            replica.table().calls().break_off();
        }
        sleep(LOOK).await;
    }
}

/// Cancels the waits whose calls broke off and did not come back.
pub(super) async fn give_up_places(replica: Replica) {
    let Some(mut breaks) = replica.table().calls().breaks() else { return };
    // All are kept equally long: who broke off first is due first. Of one that broke off again meanwhile, only the last time counts.
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
                Some(Broken { ticket, is_repeatable: true }) => {
                    let due = Instant::now() + GRACE;
                    kept.push_back((due, ticket));
                    last.insert(ticket, due);
                    continue;
                }
                // Without a request id nobody can come back for the place.
                Some(Broken { ticket, is_repeatable: false }) => ticket,
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

/// Cancels the waits that nobody came back for, once this node has led for long enough without being cut off: see the [module](self).
pub(super) async fn sweep(replica: Replica) {
    let mut led = replica.led();
    let patience = replica.silence_max() + GRACE;
    while led.wait_for(Option::is_some).await.is_ok() {
        if serves_for(&replica, patience).await {
            cancel_all_unless_awaited(&replica).await;
            while serves_for(&replica, LOOK).await {}
        }
        // It leads, perhaps, and is cut off.
        sleep(LOOK).await;
    }
}

/// Whether this node leads, in one term and not cut off, from now on for so long. Returns as soon as it does not.
async fn serves_for(replica: &Replica, time: Duration) -> bool {
    let term = || replica.led().borrow().as_ref().map(|led| led.term);
    let (began, began_in) = (Instant::now(), term());
    loop {
        let serves = began_in.is_some() && term() == began_in && !replica.cut_off();
        if !serves || began.elapsed() >= time {
            return serves;
        }
        sleep(LOOK.min(time)).await;
    }
}

/// The waits in the table that no call came for.
async fn cancel_all_unless_awaited(replica: &Replica) {
    let table = replica.table();
    let found = table.read(Clone::clone);
    calls_are_known(replica, found.index()).await;
    // For one that came and broke off, it is not the time since the election that counts.
    let left = found.machine.waits().filter(|ticket| !table.calls().has_come(*ticket));
    let cancellations = left.map(|ticket| cancel_unless_awaited(replica, ticket));
    stream::iter(cancellations).buffer_unordered(CANCELLATIONS).collect::<()>().await;
}

/// Returns when the calls behind all that is in the table up to this entry are known.
async fn calls_are_known(replica: &Replica, index: u64) {
    while replica.table().told() < index {
        yield_now().await;
    }
}

async fn cancel_unless_awaited(replica: &Replica, ticket: Ticket) {
    loop {
        // The count first: a call that comes after it is not seen below, perhaps, but then it makes the cancellation void.
        let (repeats, index) = replica.table().read(|applied| (applied.machine.repeats(ticket), applied.index()));
        let Some(repeats) = repeats else { return };
        calls_are_known(replica, index).await;
        if replica.table().calls().is_awaited(ticket) {
            return;
        }
        match replica.propose(Command::CancelWait { ticket, repeats: Some(repeats) }, PATIENCE).await {
            // The next leader finds it; so does this one, when it is not cut off any more.
            Ok(_) | Err(NoReply::NotLeader | NoReply::NoQuorum) => return,
            Err(NoReply::Overloaded | NoReply::Unknown) => sleep(LOOK).await,
        }
    }
}
