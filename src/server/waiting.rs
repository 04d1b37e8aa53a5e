//! Acquires that wait: the calls behind them, and what becomes of those whose call broke off.
//!
//! A wait lives in the table; a call only listens for its end. When the call breaks off, the wait is cancelled after [`GRACE`],
//! unless the same request came again meanwhile and listens. A new leader does the same for the waits that it finds, and for which no
//! call came to it: theirs were with another node.

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

/// Waits for the end of a wait. Dropping the future is how a call breaks off.
pub(super) async fn end_of_wait(replica: &Replica, mut call: Call, repeatable: bool) -> Result<WaitEnd, Status> {
    let broken_off = || {
        unknown(Code::Unavailable, "this node no longer leads: repeat the request with the same id to keep its place")
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

/// Cancels, each time this node has led for [`GRACE`], the waits that nobody came back for.
pub(super) async fn sweep(replica: Replica) {
    let mut led = replica.led();
    loop {
        let leads = led.borrow_and_update().is_some();
        tokio::select! {
            changed = led.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = sleep(GRACE), if leads => {}
        }
        let table = replica.table();
        let found = table.read(Clone::clone);
        // By then, the calls behind all that is found are known.
        while table.told() < found.index() {
            yield_now().await;
        }
        // For one that came and broke off, it is not the time since the election that counts.
        let left = found.machine.waits().filter(|ticket| !table.calls().has_come(*ticket));
        let cancellations = left.map(|ticket| cancel_unless_awaited(&replica, ticket));
        stream::iter(cancellations).buffer_unordered(CANCELLATIONS).collect::<()>().await;
        if led.changed().await.is_err() {
            return;
        }
    }
}

async fn cancel_unless_awaited(replica: &Replica, ticket: Ticket) {
    while !replica.table().calls().is_awaited(ticket) {
        match replica.propose(Command::CancelWait { ticket }, PATIENCE).await {
            // The next leader finds it.
            Ok(_) | Err(NoReply::NotLeader) => return,
            Err(NoReply::NoQuorum | NoReply::Overloaded | NoReply::Unknown) => sleep(Duration::from_millis(100)).await,
        }
    }
}
