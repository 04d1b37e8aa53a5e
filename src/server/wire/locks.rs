//! The requests of `lockkeeper.v1.Locks`.

use tonic::{Response, Status, transport::Channel};

use super::{Encode, Form, Forward, MESSAGE_BYTES_MAX, ReplyMessage, convert::*, replies::*, views::*};
use crate::api::{Error, requests::*};
use lockkeeper_machine::*;
use lockkeeper_planted::Planted;
use lockkeeper_proto::v1::{
    self, acquire_request, acquire_response,
    busiest_response::{BusyLock as WireBusyLock, LongWait as WireLongWait, Totals as WireTotals},
    locks_client::LocksClient,
    release_request, watch_response,
};

impl Encode for AcquireLocks {
    type Message = v1::AcquireRequest;

    fn encode(self) -> Self::Message {
        let wait = match self.acquire.wait {
            Wait::Never => None,
            Wait::Millis(ms) => Some(acquire_request::Wait::WaitMs(ms)),
            Wait::Forever => Some(acquire_request::Wait::WaitForever(true)),
        };
        v1::AcquireRequest {
            session_id: self.session.to_string(),
            request: self.request.map(show_request),
            locks: self.acquire.wants().iter().map(show_want).collect(),
            lock_delay_ms: self.acquire.lock_delay_ms,
            wait,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let wait = match message.wait {
            None => Wait::Never,
            Some(acquire_request::Wait::WaitMs(ms)) => {
                Wait::from_millis(ms).map_err(Error::invalid_value("wait_ms"))?
            }
            Some(acquire_request::Wait::WaitForever(true)) => Wait::Forever,
            Some(acquire_request::Wait::WaitForever(false)) => Wait::Never,
        };
        let wants = message.locks.into_iter().map(want).collect::<Result<Vec<_>, _>>()?;

        // Checked here, because an error names its field. The errors of `Acquire` are about the locks.
        ensure_lock_delay(message.lock_delay_ms).map_err(Error::invalid_value("lock_delay_ms"))?;
        let acquire = Acquire::new(wants, wait, message.lock_delay_ms).map_err(Error::invalid_value("locks"))?;
        Ok(Self { session: session_id(&message.session_id)?, request: request(message.request)?, acquire })
    }
}

impl Encode for Acquired {
    type Message = v1::AcquireResponse;

    fn encode(self) -> Self::Message {
        let outcome = match self {
            Self::Granted(grant) => acquire_response::Outcome::Granted(show_grant(&grant)),
            Self::Busy(busy) => acquire_response::Outcome::Busy(show_busy(busy)),
            Self::TimedOut(busy) => acquire_response::Outcome::TimedOut(show_busy(busy)),
        };
        v1::AcquireResponse { outcome: Some(outcome) }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(match message.outcome {
            Some(acquire_response::Outcome::Granted(granted)) => Self::Granted(grant(granted)?),
            Some(acquire_response::Outcome::Busy(found)) => Self::Busy(busy(found)?),
            Some(acquire_response::Outcome::TimedOut(found)) => Self::TimedOut(busy(found)?),
            None => return Err(not_set("outcome")),
        })
    }
}

/// Whether an acquire asks to wait.
pub(crate) fn asks_to_wait(message: &v1::AcquireRequest) -> bool {
    use acquire_request::Wait::{WaitForever, WaitMs};
    match message.wait {
        None | Some(WaitMs(0) | WaitForever(false)) => false,
        Some(WaitMs(_) | WaitForever(true)) => true,
    }
}

impl Forward for AcquireLocks {
    fn may_wait(request: &Form<Self>) -> bool {
        match request {
            Form::Typed(request) => request.acquire.wait != Wait::Never,
            Form::Message(message) => asks_to_wait(message),
        }
    }

    fn abandonment(request: &Form<Self>) -> Option<ReleaseLocks> {
        let (session, id) = match request {
            Form::Typed(request) => (request.session, request.request.as_ref()?.id),
            Form::Message(message) => (session_id(&message.session_id).ok()?, message.request.as_ref()?.id),
        };
        Some(ReleaseLocks { session, request: None, target: Target::Acquire(id) })
    }

    forwarded_by!(LocksClient, acquire);
}

impl Encode for ReleaseLocks {
    type Message = v1::ReleaseRequest;

    fn encode(self) -> Self::Message {
        let target = match self.target {
            Target::Grant(held) => release_request::Target::Token(held.0),
            Target::Acquire(id) => release_request::Target::AcquireRequestId(id),
        };
        v1::ReleaseRequest {
            session_id: self.session.to_string(),
            request: self.request.map(show_request),
            target: Some(target),
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let target = match message.target {
            Some(release_request::Target::Token(held)) => Target::Grant(token(held)?),
            Some(release_request::Target::AcquireRequestId(0)) | None => {
                return Err(Error::invalid("target", "is missing: name a token, or the request id of an acquire"));
            }
            Some(release_request::Target::AcquireRequestId(id)) => Target::Acquire(id),
        };
        Ok(Self { session: session_id(&message.session_id)?, request: request(message.request)?, target })
    }
}

impl Encode for Released {
    type Message = v1::ReleaseResponse;

    fn encode(self) -> Self::Message {
        let released = match self {
            Self::Grant => v1::Released::Grant,
            Self::Wait => v1::Released::Wait,
            Self::Nothing => v1::Released::Nothing,
        };
        v1::ReleaseResponse { released: released.into() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(match message.released() {
            v1::Released::Grant => Self::Grant,
            v1::Released::Wait => Self::Wait,
            v1::Released::Nothing => Self::Nothing,
            v1::Released::Unspecified => return Err(not_set("released")),
        })
    }
}

impl Forward for ReleaseLocks {
    forwarded_by!(LocksClient, release);
}

impl Encode for UpdateData {
    type Message = v1::UpdateRequest;

    fn encode(self) -> Self::Message {
        let Update { token, name, data, keep_data } = self.update;
        v1::UpdateRequest {
            session_id: self.session.to_string(),
            request: self.request.map(show_request),
            token: token.0,
            name: name.to_string(),
            data: data.map(|data| data.as_bytes().to_vec()),
            keep_data,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let update = Update {
            token: token(message.token)?,
            name: lock_name("name", &message.name)?,
            data: data(message.data)?,
            keep_data: message.keep_data,
        };
        Ok(Self { session: session_id(&message.session_id)?, request: request(message.request)?, update })
    }
}

impl Encode for DataUpdated {
    type Message = v1::UpdateResponse;

    fn encode(self) -> Self::Message {
        v1::UpdateResponse {}
    }

    fn decode(v1::UpdateResponse {}: Self::Message) -> Result<Self, Error> {
        Ok(Self)
    }
}

impl Forward for UpdateData {
    forwarded_by!(LocksClient, update);
}

impl Encode for CheckToken {
    type Message = v1::CheckRequest;

    fn encode(self) -> Self::Message {
        v1::CheckRequest { name: self.name.to_string(), token: self.token.0 }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { name: lock_name("name", &message.name)?, token: token(message.token)? })
    }
}

impl Encode for TokenChecked {
    type Message = v1::CheckResponse;

    fn encode(self) -> Self::Message {
        v1::CheckResponse {
            held: self.holder.is_some(),
            holder: self.holder.map(show_holder),
            last_token: self.last_token.0,
            index: self.index,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let holder = message.holder.map(holder).transpose()?;
        Ok(Self { holder, last_token: Token(message.last_token), index: message.index })
    }
}

impl Forward for CheckToken {
    forwarded_by!(LocksClient, check);
}

impl Encode for GetLock {
    type Message = v1::GetRequest;

    fn encode(self) -> Self::Message {
        v1::GetRequest {
            name: self.name.to_string(),
            page_size: show_page_size(self.page.size),
            holders_after: self.page.holders_after.0,
            waiters_after: self.page.waiters_after.0,
            stale: self.stale,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let page = Page {
            size: message.page_size as usize,
            holders_after: Token(message.holders_after),
            waiters_after: Ticket(message.waiters_after),
        };
        Ok(Self { name: lock_name("name", &message.name)?, page, stale: message.stale })
    }
}

impl Encode for LockFound {
    type Message = v1::GetResponse;

    fn encode(self) -> Self::Message {
        v1::GetResponse { lock: Some(show_lock(self.lock)), index: self.index }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let found = message.lock.ok_or_else(|| not_set("lock"))?;
        Ok(Self { lock: lock(found)?, index: message.index })
    }
}

impl Forward for GetLock {
    fn is_stale(request: &Form<Self>) -> bool {
        match request {
            Form::Typed(request) => request.stale,
            Form::Message(message) => message.stale,
        }
    }

    forwarded_by!(LocksClient, get);
}

impl Encode for ListLocks {
    type Message = v1::ListRequest;

    fn encode(self) -> Self::Message {
        v1::ListRequest {
            prefix: self.prefix,
            page_size: show_page_size(self.page_size),
            page_token: self.after.map_or_else(String::new, |name| name.to_string()),
            stale: self.stale,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let after = match message.page_token.as_str() {
            "" => None,
            token => Some(LockName::new(token).map_err(|_| not_a_page_token())?),
        };
        Ok(Self { prefix: message.prefix, after, page_size: message.page_size as usize, stale: message.stale })
    }
}

impl Encode for ListedLocks {
    type Message = v1::ListResponse;

    fn encode(self) -> Self::Message {
        v1::ListResponse {
            locks: self.locks.into_iter().map(show_lock).collect(),
            next_page_token: self.more_after.map_or_else(String::new, |name| name.to_string()),
            index: self.index,
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let locks = message.locks.into_iter().map(lock).collect::<Result<_, _>>()?;
        Ok(Self {
            locks,
            more_after: name_unless_empty("next_page_token", &message.next_page_token)?,
            index: message.index,
        })
    }
}

impl Forward for ListLocks {
    fn is_stale(request: &Form<Self>) -> bool {
        match request {
            Form::Typed(request) => request.stale,
            Form::Message(message) => message.stale,
        }
    }

    forwarded_by!(LocksClient, list);
}

impl Encode for ShowBusiest {
    type Message = v1::BusiestRequest;

    fn encode(self) -> Self::Message {
        let Self { prefix, size, after_index } = self;
        v1::BusiestRequest { prefix, size: show_page_size(size), after_index }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let v1::BusiestRequest { prefix, size, after_index } = message;
        Ok(Self { prefix, size: size as usize, after_index })
    }
}

impl Encode for BusiestLocks {
    type Message = v1::BusiestResponse;

    fn encode(self) -> Self::Message {
        let show_busy = |BusyLockView { lock, grants }| WireBusyLock { lock: Some(show_lock(lock)), grants };
        let show_wait = |LongWaitView { name, waiter, holder, queue_length }| WireLongWait {
            name: name.to_string(),
            waiter: Some(show_waiter(waiter)),
            holder: holder.map(show_holder),
            queue_length,
        };

        v1::BusiestResponse {
            locks: self.locks.into_iter().map(show_busy).collect(),
            waits: self.waits.into_iter().map(show_wait).collect(),
            more_waits: self.more_waits,
            counted_after_index: self.counted_after,
            index: self.index,
            node_id: self.node_id,
            totals: Some(WireTotals {
                granted: self.totals.granted,
                released: self.totals.released,
                expired: self.totals.expired,
                forced: self.totals.forced,
                queued: self.totals.queued,
                waits_ended: self.totals.waits_ended,
                sessions_closed: self.totals.sessions_closed,
                sessions_expired: self.totals.sessions_expired,
            }),
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let busy = |busy: WireBusyLock| {
            let shown = busy.lock.ok_or_else(|| Error::invalid("locks.lock", "is not set"))?;
            Ok(BusyLockView { lock: lock(shown)?, grants: busy.grants })
        };
        let wait = |wait: WireLongWait| {
            let shown = wait.waiter.ok_or_else(|| Error::invalid("waits.waiter", "is not set"))?;
            let waiter = waiter(shown)?;
            let holder = wait.holder.map(holder).transpose()?;
            Ok(LongWaitView {
                name: lock_name("waits.name", &wait.name)?,
                waiter,
                holder,
                queue_length: wait.queue_length,
            })
        };

        let totals = message.totals.unwrap_or_default();
        Ok(Self {
            locks: message.locks.into_iter().map(busy).collect::<Result<_, _>>()?,
            waits: message.waits.into_iter().map(wait).collect::<Result<_, _>>()?,
            more_waits: message.more_waits,
            counted_after: message.counted_after_index,
            index: message.index,
            node_id: message.node_id,
            totals: TableTotals {
                granted: totals.granted,
                released: totals.released,
                expired: totals.expired,
                forced: totals.forced,
                queued: totals.queued,
                waits_ended: totals.waits_ended,
                sessions_closed: totals.sessions_closed,
                sessions_expired: totals.sessions_expired,
            },
        })
    }
}

/// Each node shows its own table, so people see what a node knows even when it has lost its leader.
impl Forward for ShowBusiest {
    fn is_stale(_request: &Form<Self>) -> bool {
        true
    }

    forwarded_by!(LocksClient, busiest);
}

impl Encode for ForceRelease {
    type Message = v1::ForceReleaseRequest;

    fn encode(self) -> Self::Message {
        v1::ForceReleaseRequest {
            name: self.name.to_string(),
            token: self.token.map_or(0, |token| token.0),
            reason: self.reason.as_str().to_owned(),
            now: self.now,
            after_token: self.after.0,
            up_to_token: self.up_to.map_or(0, |token| token.0),
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self {
            name: lock_name("name", &message.name)?,
            token: (message.token != 0).then_some(Token(message.token)),
            after: Token(message.after_token),
            up_to: (message.up_to_token != 0).then_some(Token(message.up_to_token)),
            reason: Reason::new(&message.reason).map_err(Error::invalid_value("reason"))?,
            now: message.now,
            by: None,
        })
    }
}

impl Encode for GrantsForced {
    type Message = v1::ForceReleaseResponse;

    fn encode(self) -> Self::Message {
        v1::ForceReleaseResponse {
            forced: self.forced.into_iter().map(show_forced).collect(),
            more_up_to_token: self.more_up_to.map_or(0, |token| token.0),
        }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let more_up_to = (message.more_up_to_token != 0).then_some(Token(message.more_up_to_token));
        Ok(Self { forced: message.forced.into_iter().map(forced).collect::<Result<_, _>>()?, more_up_to })
    }
}

impl Forward for ForceRelease {
    forwarded_by!(LocksClient, force_release);
}

impl Encode for RemoveWaiter {
    type Message = v1::RemoveWaiterRequest;

    fn encode(self) -> Self::Message {
        v1::RemoveWaiterRequest { name: self.name.to_string(), ticket: self.ticket.0 }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { name: lock_name("name", &message.name)?, ticket: Ticket(message.ticket) })
    }
}

impl Encode for WaiterRemoved {
    type Message = v1::RemoveWaiterResponse;

    fn encode(self) -> Self::Message {
        v1::RemoveWaiterResponse { removed: self.0.map(show_waiter) }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        message.removed.map(waiter).transpose().map(Self)
    }
}

impl Forward for RemoveWaiter {
    forwarded_by!(LocksClient, remove_waiter);
}

impl Encode for LiftDelay {
    type Message = v1::LiftDelayRequest;

    fn encode(self) -> Self::Message {
        v1::LiftDelayRequest { name: self.name.to_string() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { name: lock_name("name", &message.name)? })
    }
}

impl Encode for DelayLifted {
    type Message = v1::LiftDelayResponse;

    fn encode(self) -> Self::Message {
        v1::LiftDelayResponse { lifted_ms: self.0 }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self(message.lifted_ms))
    }
}

impl Forward for LiftDelay {
    forwarded_by!(LocksClient, lift_delay);
}

/// Refuses a prefix that no name of a lock can have.
fn ensure_prefix(prefix: &str) -> Result<(), Error> {
    let refused_below = usize::from(Planted::LongestPrefixRefused.is_on());
    match prefix.len() {
        bytes if bytes + refused_below <= NAME_BYTES_MAX => Ok(()),
        bytes => Err(Error::invalid(
            "prefix",
            format!("has {bytes} bytes: the limit is {NAME_BYTES_MAX}, that of a lock's name"),
        )),
    }
}

impl Encode for DropData {
    type Message = v1::DropDataRequest;

    fn encode(self) -> Self::Message {
        let after = self.after.map_or_else(String::new, |name| name.to_string());
        v1::DropDataRequest { prefix: self.prefix, after }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        ensure_prefix(&message.prefix)?;
        Ok(Self { after: name_unless_empty("after", &message.after)?, prefix: message.prefix })
    }
}

impl Encode for DataDropped {
    type Message = v1::DropDataResponse;

    fn encode(self) -> Self::Message {
        let more_after = self.more_after.map_or_else(String::new, |name| name.to_string());
        v1::DropDataResponse { dropped: self.dropped, more_after }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        Ok(Self { dropped: message.dropped, more_after: name_unless_empty("more_after", &message.more_after)? })
    }
}

impl Forward for DropData {
    forwarded_by!(LocksClient, drop_data);
}

impl Encode for ResizeSemaphore {
    type Message = v1::ResizeRequest;

    fn encode(self) -> Self::Message {
        v1::ResizeRequest { name: self.name.to_string(), permits: self.permits.get() }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let name = lock_name("name", &message.name)?;
        Ok(Self { name, permits: Permits::new(message.permits).map_err(Error::invalid_value("permits"))? })
    }
}

impl Encode for SemaphoreResized {
    type Message = v1::ResizeResponse;

    fn encode(self) -> Self::Message {
        v1::ResizeResponse { permits_before: self.before.get(), holder_count: self.holders, queue_length: self.waiters }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        let before = Permits::new(message.permits_before).map_err(Error::invalid_value("permits_before"))?;
        Ok(Self { before, holders: message.holder_count, waiters: message.queue_length })
    }
}

impl Forward for ResizeSemaphore {
    forwarded_by!(LocksClient, resize);
}

impl Encode for WatchLocks {
    type Message = v1::WatchRequest;

    fn encode(self) -> Self::Message {
        v1::WatchRequest { prefix: self.prefix, after_index: self.after_index }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        // It is kept for as long as the watch goes on.
        ensure_prefix(&message.prefix)?;
        Ok(Self { prefix: message.prefix, after_index: message.after_index })
    }
}

impl Encode for WatchEvent {
    type Message = v1::WatchResponse;

    fn encode(self) -> Self::Message {
        use watch_response::{Changes, Progress, State, TooOld, What};
        let what = match self {
            Self::State { locks, index, first, last } => {
                What::State(State { locks: locks.into_iter().map(show_lock).collect(), index, first, last })
            }
            Self::Changes { index, changes, more } => {
                What::Changes(Changes { index, changes: changes.iter().map(show_change).collect(), more })
            }
            Self::Progress { index } => What::Progress(Progress { index }),
            Self::TooOld { after_index } => What::TooOld(TooOld { after_index }),
        };
        v1::WatchResponse { what: Some(what) }
    }

    fn decode(message: Self::Message) -> Result<Self, Error> {
        use watch_response::{Changes, Progress, State, TooOld, What};
        Ok(match message.what {
            Some(What::State(State { locks, index, first, last })) => {
                Self::State { locks: locks.into_iter().map(lock).collect::<Result<_, _>>()?, index, first, last }
            }
            Some(What::Changes(Changes { index, changes, more })) => {
                Self::Changes { index, changes: changes.into_iter().map(change).collect::<Result<_, _>>()?, more }
            }
            Some(What::Progress(Progress { index })) => Self::Progress { index },
            Some(What::TooOld(TooOld { after_index })) => Self::TooOld { after_index },
            None => return Err(not_set("what")),
        })
    }
}
