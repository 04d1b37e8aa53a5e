//! How a node executes requests about locks.

use tokio::time::Instant;

use super::{
    client_waits::CountedWait,
    local::{Local, Serve, page_size},
    pages::{PageLimit, page_of_locks},
    waiting,
};
use crate::{
    api::{Caller, Error, requests::*},
    wire::Form,
};
use lockkeeper_machine::{Command, ForceRelease, LockName, Page, Released, Reply, Wait, WaitEnd};
use lockkeeper_metrics::WaitOutcome;
use lockkeeper_proto::v1;
use lockkeeper_table::{Applied, Delivery};

/// Maximum number of locks in one page of a list, and of holders and of waiters in one page of a lock.
const PAGE_MAX: usize = 1000;
/// Maximum number of holders and waiters of a lock that is shown while the table is locked. A lock with more is shown from a clone, which
/// delays no apply but costs more than to look at a few.
const FEW: usize = 16;
/// Bytes after which a page of a list is closed.
const PAGE_BYTES: usize = 256 * 1024;

/// The first part of the names of locks that are entries: DynamoDB's items, etcd's keys, Redis' strings, ZooKeeper's nodes.
const OF_ENTRIES: [&str; 4] = ["dynamodb/", "etcd/", "redis/", "zookeeper/"];

/// Refuses names under which entries are shown. The machine shows no entry under the name of one of its locks, so a lock of this name would
/// hide one that another protocol's clients hold. A lock from before this rule is used until it is released, and a retry gets its reply.
fn ensure_not_of_entries(node: &Local, request: &AcquireLocks) -> Result<(), Error> {
    let prefix_of = |name: &LockName| OF_ENTRIES.into_iter().find(|prefix| name.as_str().starts_with(prefix));
    let wants = request.acquire.wants().iter();
    let Some((name, prefix)) = wants.map(|want| &want.name).find_map(|name| Some((name, prefix_of(name)?))) else {
        return Ok(());
    };

    let is_remembered = |id| node.replica.table().read(|applied| applied.machine.remembers(request.session, id));
    if request.request.as_ref().is_some_and(|request| is_remembered(request.id)) {
        return Ok(());
    }

    let why = format!(
        "{name} begins with {prefix}, as the names of locks that are acquired by that protocol: choose another"
    );
    Err(Error::invalid("locks.name", why))
}

/// Counts an acquire that may wait, until what this returns is dropped.
fn count_wait(node: &Local, caller: &Caller, request: &AcquireLocks) -> Result<Option<CountedWait>, Error> {
    let may_wait = request.acquire.wait != Wait::Never;
    may_wait.then(|| node.waits.begin(caller)).transpose()
}

impl Serve for AcquireLocks {
    fn serve(self, node: &Local, caller: &Caller) -> impl Future<Output = Result<Form<Acquired>, Error>> + Send {
        // Proposed out of the future, which does not keep the request then: the table has it while it waits.
        let counted = ensure_not_of_entries(node, &self).and_then(|()| count_wait(node, caller, &self));
        let proposed = counted.map(|counted| (node.propose(self.into()), counted));
        async move {
            let (proposed, _counted) = proposed?;
            let Delivery { reply, wait, .. } = proposed.await?;
            let acquired = match (reply, wait) {
                (Reply::Acquired(end), _) => acquired(end)?,
                (Reply::Busy(busy), _) => Acquired::Busy(busy),
                (Reply::Queued(ticket), Some(call)) => {
                    // The wait is measured however it ends.
                    let began = Instant::now();
                    let end = waiting::end_of_wait(&node.replica, call, node.wait_denied(caller, ticket)).await;
                    node.metrics.waited(outcome_of(end.as_ref().ok()), began.elapsed());
                    if let Some(span) = &node.span {
                        span.part("wait", began, Instant::now());
                    }
                    acquired(end?)?
                }
                (Reply::Queued(_), None) => {
                    return Err(Error::too_many_calls(node.replica.table().calls().per_wait_max()));
                }
                (other, _) => return Err(Error::unexpected(other)),
            };
            Ok(Form::Typed(acquired))
        }
    }
}

/// The outcome of a wait, for the metrics. Without an end, the call broke off.
fn outcome_of(end: Option<&WaitEnd>) -> WaitOutcome {
    match end {
        Some(WaitEnd::Granted(_)) => WaitOutcome::Granted,
        Some(WaitEnd::TimedOut(_)) => WaitOutcome::TimedOut,
        Some(WaitEnd::Cancelled | WaitEnd::Abandoned | WaitEnd::Removed | WaitEnd::SessionEnded(_)) => {
            WaitOutcome::Ended
        }
        None => WaitOutcome::BrokenOff,
    }
}

fn acquired(end: WaitEnd) -> Result<Acquired, Error> {
    match end {
        WaitEnd::Granted(grant) => Ok(Acquired::Granted(grant)),
        WaitEnd::TimedOut(busy) => Ok(Acquired::TimedOut(busy)),
        WaitEnd::Cancelled => Err(Error::wait_cancelled()),
        WaitEnd::Abandoned => Err(Error::wait_abandoned()),
        WaitEnd::Removed => Err(Error::wait_removed()),
        WaitEnd::SessionEnded(end) => Err(Error::session_ended(end)),
    }
}

impl Serve for ReleaseLocks {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<Released>, Error> {
        let reply = node.apply(self.into()).await?;
        let Reply::Released(released) = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(released))
    }
}

impl Serve for UpdateData {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<DataUpdated>, Error> {
        let reply = node.apply(self.into()).await?;
        let Reply::Updated = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(DataUpdated))
    }
}

impl Serve for CheckToken {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<TokenChecked>, Error> {
        let Self { name, token } = self;
        let look = |applied: &Applied| TokenChecked {
            holder: applied.machine.holder(&name, token),
            last_token: applied.machine.last_token(),
            index: applied.index(),
        };
        node.read(false, look).await.map(Form::Typed)
    }
}

impl Serve for GetLock {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<LockFound>, Error> {
        let page = Page { size: page_size(self.page.size, PAGE_MAX), ..self.page };
        let look = |applied: &Applied| {
            let machine = &applied.machine;
            let found = machine.lock_of_few(&self.name, page, FEW).ok_or_else(|| machine.clone());
            (found, applied.index())
        };

        let (found, index) = node.read(self.stale, look).await?;
        let lock = found.unwrap_or_else(|machine| machine.lock(&self.name, page));
        Ok(Form::Typed(LockFound { lock, index }))
    }
}

impl Serve for ListLocks {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<ListedLocks>, Error> {
        let limit = PageLimit { locks: page_size(self.page_size, PAGE_MAX), bytes: PAGE_BYTES };
        let (machine, index) = node.frozen(self.stale).await?;
        let (locks, next_page_token) = page_of_locks(&machine, &self.prefix, self.after.as_ref(), limit);
        Ok(Form::Message(v1::ListResponse { locks, next_page_token, index }))
    }
}

impl Serve for ForceRelease {
    async fn serve(mut self, node: &Local, caller: &Caller) -> Result<Form<GrantsForced>, Error> {
        let name = self.name.clone();
        let reason = self.reason.clone();
        let now = self.now;
        self.by = caller.identity.clone();
        let reply = node.apply(Command::ForceRelease(self)).await?;

        let Reply::Forced { grants, more_up_to } = reply else { return Err(Error::unexpected(reply)) };
        if let (Some(first), Some(last)) = (grants.first(), grants.last()) {
            let from = caller.shown();
            let reason = reason.as_str();
            let count = grants.len();
            let first = first.token.0;
            let last = last.token.0;
            tracing::info!(lock = %name, %from, reason, now, count, first, last, "an operator took grants back");
        }
        Ok(Form::Typed(GrantsForced { forced: grants, more_up_to }))
    }
}

impl Serve for RemoveWaiter {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<WaiterRemoved>, Error> {
        let Self { name, ticket } = self;
        let reply =
            node.apply(Command::RemoveWaiter { name: name.clone(), ticket, by: caller.identity.clone() }).await?;
        let Reply::WaiterRemoved(removed) = reply else { return Err(Error::unexpected(reply)) };
        if let Some(waiter) = &removed {
            let from = caller.shown();
            let ticket = waiter.ticket.0;
            let session = waiter.session;
            let label = waiter.label.as_str();
            tracing::info!(lock = %name, %from, ticket, %session, label, "an operator removed a waiter");
        }
        Ok(Form::Typed(WaiterRemoved(removed)))
    }
}

impl Serve for LiftDelay {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<DelayLifted>, Error> {
        let reply = node.apply(Command::LiftDelay { name: self.name.clone(), by: caller.identity.clone() }).await?;
        let Reply::DelayLifted(lifted_ms) = reply else { return Err(Error::unexpected(reply)) };
        if let Some(lifted_ms) = lifted_ms {
            tracing::info!(lock = %self.name, from = %caller.shown(), lifted_ms, "an operator lifted a lock-delay");
        }
        Ok(Form::Typed(DelayLifted(lifted_ms)))
    }
}

impl Serve for DropData {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<DataDropped>, Error> {
        let Self { prefix, after } = self;
        let reply =
            node.apply(Command::DropData { prefix: prefix.clone(), after, by: caller.identity.clone() }).await?;
        let Reply::DataDropped { dropped, more_after } = reply else { return Err(Error::unexpected(reply)) };
        if dropped > 0 {
            tracing::info!(prefix, from = %caller.shown(), dropped, "an operator dropped the data of locks that nobody holds");
        }
        Ok(Form::Typed(DataDropped { dropped, more_after }))
    }
}

impl Serve for ResizeSemaphore {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<SemaphoreResized>, Error> {
        let Self { name, permits } = self;
        let reply = node.apply(Command::Resize { name: name.clone(), permits, by: caller.identity.clone() }).await?;
        let Reply::Resized { before, holders, waiters } = reply else { return Err(Error::unexpected(reply)) };
        let from = caller.shown();
        let permits = permits.get();
        let size_before = before.get();
        tracing::info!(lock = %name, %from, permits, before = size_before, holders, waiters, "an operator resized a semaphore");
        Ok(Form::Typed(SemaphoreResized { before, holders, waiters }))
    }
}
