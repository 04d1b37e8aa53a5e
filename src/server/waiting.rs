//! Acquires that wait: the calls behind them, and what becomes of those whose call broke off.
//!
//! A wait lives in the table; a call only listens for its end. When the call breaks off, the wait is cancelled after [`GRACE`],
//! unless the same request came again meanwhile and listens. A new leader does the same for the waits that it finds: their calls
//! were with another node.

use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::{sync::oneshot, time::sleep};
use tonic::{Code, Status};

use super::{PATIENCE, errors::unknown};
use crate::{
    machine::{Command, Ticket, WaitEnd},
    raft::{NoReply, Replica},
};

/// How long the place of a broken call is kept.
pub const GRACE: Duration = Duration::from_secs(5);

/// Cancellations that a new leader has in flight.
const CANCELLATIONS: usize = 64;

/// Waits for the end of a wait. Dropping the future is how a call breaks off.
pub(super) async fn end_of_wait(
    replica: &Replica,
    ticket: Ticket,
    end: oneshot::Receiver<WaitEnd>,
    repeatable: bool,
) -> Result<WaitEnd, Status> {
    let broken_off = || {
        unknown(Code::Unavailable, "this node no longer leads: repeat the request with the same id to keep its place")
    };
    // Leadership was lost between the proposal and here: the calls that wait were told before this one began to. The new leader
    // does not see it, so it must be repeated there.
    if !replica.leads() {
        return Err(broken_off());
    }
    // Without a request id nobody can come back for the place.
    let grace = if repeatable { GRACE } else { Duration::ZERO };
    let mut call = Call { replica: replica.clone(), ticket, grace, broken: true };
    let end = end.await;
    call.broken = false;
    end.map_err(|_| broken_off())
}

/// A call that waits.
struct Call {
    replica: Replica,
    ticket: Ticket,
    grace: Duration,
    broken: bool,
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.broken {
            let (replica, ticket, grace) = (self.replica.clone(), self.ticket, self.grace);
            tokio::spawn(async move {
                sleep(grace).await;
                replica.table().forget_broken(ticket);
                cancel_unless_awaited(&replica, ticket).await;
            });
        }
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
        let tickets = replica.table().read(|applied| applied.machine.clone());
        let cancellations = tickets.waits().map(|ticket| cancel_unless_awaited(&replica, ticket));
        stream::iter(cancellations).buffer_unordered(CANCELLATIONS).collect::<()>().await;
        if led.changed().await.is_err() {
            return;
        }
    }
}

async fn cancel_unless_awaited(replica: &Replica, ticket: Ticket) {
    while !replica.table().is_awaited(ticket) {
        match replica.propose(Command::CancelWait { ticket }, PATIENCE).await {
            // The next leader finds it.
            Ok(_) | Err(NoReply::NotLeader) => return,
            Err(NoReply::NoQuorum | NoReply::Overloaded | NoReply::Unknown) => sleep(Duration::from_millis(100)).await,
        }
    }
}
