//! Messages to commands of the table, and replies of the table to messages.

use std::collections::HashMap;

use lockkeeper_machine::{
    Acquire, Busy, Change, ChangeKind, Command, Data, Grant, HolderView, Label, LockName, LockView, Mode, OpenIds,
    Operation, Permits, Refusal, Request, Revocation, SessionEnd, SessionId, Target, Token, Ttl, Update, Wait, WaitEnd,
    WaiterView, Want,
};
use lockkeeper_proto::v1::{self, acquire_request, acquire_response::Outcome, change::Kind, mode, release_request};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

const DOMAIN: &str = "lockkeeper.v1";

/// An error with details.
pub(crate) fn refusal(code: Code, reason: &str, retry: &str) -> Status {
    refusal_about(code, reason, [("retry".to_owned(), retry.to_owned())])
}

pub(crate) fn refusal_about(code: Code, reason: &str, about: impl IntoIterator<Item = (String, String)>) -> Status {
    let about: HashMap<String, String> = about.into_iter().collect();
    Status::with_error_details(code, reason, ErrorDetails::with_error_info(reason, DOMAIN, about))
}

fn invalid(why: impl ToString) -> Status {
    let about = [("retry".to_owned(), "no".to_owned()), ("why".to_owned(), why.to_string())];
    refusal_about(Code::InvalidArgument, "INVALID_ARGUMENT", about)
}

pub(crate) fn session_id(text: &str) -> Result<SessionId, Status> {
    text.parse().map_err(invalid)
}

pub(crate) fn open_command(request: &v1::OpenSessionRequest) -> Result<(SessionId, Command), Status> {
    let session = session_id(&request.session_id)?;
    let ttl = Ttl::from_millis(request.ttl_ms).map_err(invalid)?;
    let label = Label::new(&request.label).map_err(invalid)?;
    Ok((session, Command::Open { session, ttl, label, address: None, owner: None }))
}

fn request_id(id: Option<v1::RequestId>) -> Result<Option<Request>, Status> {
    let Some(v1::RequestId { id, lowest, kept }) = id else { return Ok(None) };
    let open = OpenIds::new(lowest, kept).map_err(invalid)?;
    if id == 0 || !open.contains(id) {
        return Err(invalid("the id is 0, or not open by its own view"));
    }
    Ok(Some(Request { id, open }))
}

pub(crate) fn acquire_command(message: v1::AcquireRequest) -> Result<Command, Status> {
    let wants = message.locks.into_iter().map(want).collect::<Result<Vec<_>, _>>()?;
    let wait = match message.wait {
        None | Some(acquire_request::Wait::WaitForever(false)) => Wait::Never,
        Some(acquire_request::Wait::WaitMs(ms)) => Wait::from_millis(ms).map_err(invalid)?,
        Some(acquire_request::Wait::WaitForever(true)) => Wait::Forever,
    };
    let acquire = Acquire::new(wants, wait, message.lock_delay_ms).map_err(invalid)?;
    session_command(&message.session_id, message.request, Operation::Acquire(acquire))
}

pub(crate) fn release_command(message: v1::ReleaseRequest) -> Result<Command, Status> {
    let target = match message.target {
        Some(release_request::Target::Token(token)) => Target::Grant(Token(token)),
        Some(release_request::Target::AcquireRequestId(id)) => Target::Acquire(id),
        None => return Err(invalid("there is no target")),
    };
    session_command(&message.session_id, message.request, Operation::Release(target))
}

pub(crate) fn update_command(message: v1::UpdateRequest) -> Result<Command, Status> {
    let name = LockName::new(&message.name).map_err(invalid)?;
    let data = message.data.map(|data| Data::new(&data)).transpose().map_err(invalid)?;
    let update = Update { token: Token(message.token), name, data, keep_data: message.keep_data };
    session_command(&message.session_id, message.request, Operation::Update(update))
}

fn session_command(session: &str, request: Option<v1::RequestId>, operation: Operation) -> Result<Command, Status> {
    Ok(Command::Session { session: session_id(session)?, request: request_id(request)?, operation })
}

fn want(message: v1::Want) -> Result<Want, Status> {
    let mode = match message.mode {
        None => Mode::Exclusive,
        Some(v1::Mode { kind: Some(mode::Kind::Exclusive(_)) }) => Mode::Exclusive,
        Some(v1::Mode { kind: Some(mode::Kind::Shared(_)) }) => Mode::Shared,
        Some(v1::Mode { kind: Some(mode::Kind::Permit(permit)) }) => {
            Mode::Permit(Permits::new(permit.limit).map_err(invalid)?)
        }
        Some(v1::Mode { kind: None }) => return Err(invalid("the mode is empty")),
    };
    Ok(Want {
        name: LockName::new(&message.name).map_err(invalid)?,
        mode,
        data: message.data.map(|data| Data::new(&data)).transpose().map_err(invalid)?,
        keep_data: message.keep_data,
        must_exist: message.must_exist,
    })
}

/// The answer to an acquire that is over.
pub(crate) fn show_end(end: WaitEnd) -> Result<v1::AcquireResponse, Status> {
    let outcome = match end {
        WaitEnd::Granted(grant) => Outcome::Granted(show_grant(&grant)),
        WaitEnd::TimedOut(busy) => Outcome::TimedOut(show_busy(busy)),
        WaitEnd::Cancelled => return Err(refusal(Code::Cancelled, "WAIT_CANCELLED", "no")),
        WaitEnd::Abandoned => return Err(refusal(Code::FailedPrecondition, "ABANDONED", "no")),
        WaitEnd::Removed => return Err(refusal(Code::FailedPrecondition, "WAIT_REMOVED", "no")),
        WaitEnd::SessionEnded(end) => return Err(session_over(end)),
    };
    Ok(v1::AcquireResponse { outcome: Some(outcome) })
}

pub(crate) fn session_over(end: SessionEnd) -> Status {
    let reason = match end {
        SessionEnd::Closed => "SESSION_CLOSED",
        SessionEnd::Expired => "SESSION_EXPIRED",
        SessionEnd::Unknown => "SESSION_UNKNOWN",
    };
    refusal(Code::NotFound, reason, "no")
}

/// The error for a refusal of the table.
pub(crate) fn show_refusal(refusal_of_table: Refusal) -> Status {
    let about = |name: &str, value: String| (name.to_owned(), value);
    let (code, reason, about) = match refusal_of_table {
        Refusal::SessionEnded(end) => return session_over(end),
        Refusal::SessionExists => (Code::AlreadyExists, "SESSION_EXISTS", vec![]),
        Refusal::NotHeld => (Code::FailedPrecondition, "NOT_HELD", vec![]),
        Refusal::Revoked { token, reason } => {
            let reason = about("revoked_reason", reason.as_str().to_owned());
            (Code::FailedPrecondition, "REVOKED", vec![about("token", token.0.to_string()), reason])
        }
        Refusal::ModeMismatch { name, .. } => {
            (Code::FailedPrecondition, "MODE_MISMATCH", vec![about("lock", name.to_string())])
        }
        Refusal::LockUnknown { name } => (Code::NotFound, "LOCK_UNKNOWN", vec![about("lock", name.to_string())]),
        Refusal::Abandoned => (Code::FailedPrecondition, "ABANDONED", vec![]),
        Refusal::RequestStale { .. } => (Code::FailedPrecondition, "REQUEST_STALE", vec![]),
        Refusal::RequestReused => (Code::FailedPrecondition, "REQUEST_REUSED", vec![]),
        Refusal::NotSemaphore { .. } => (Code::FailedPrecondition, "NOT_SEMAPHORE", vec![]),
        Refusal::Limit(limit) => (Code::ResourceExhausted, "LIMIT_REACHED", vec![about("limit", format!("{limit:?}"))]),
        Refusal::SessionMoved { .. } | Refusal::TxnFailed { .. } => (Code::Internal, "INTERNAL", vec![]),
        Refusal::RevisionFuture { .. } | Refusal::Closed { .. } => (Code::Internal, "INTERNAL", vec![]),
    };
    refusal_about(code, reason, about.into_iter().chain([("retry".to_owned(), "no".to_owned())]))
}

fn show_grant(grant: &Grant) -> v1::Grant {
    let names = grant.names.iter().map(LockName::to_string).collect();
    v1::Grant { token: grant.token.0, session_id: grant.session.to_string(), names }
}

pub(crate) fn show_busy(busy: Busy) -> v1::Busy {
    v1::Busy {
        name: busy.name.to_string(),
        holder: busy.holder.map(show_holder),
        queue_length: busy.queue_length,
        delay_remaining_ms: busy.delay_remaining_ms,
    }
}

fn show_mode(mode: Mode) -> v1::Mode {
    let kind = match mode {
        Mode::Exclusive => mode::Kind::Exclusive(mode::Exclusive {}),
        Mode::Shared => mode::Kind::Shared(mode::Shared {}),
        Mode::Permit(permits) => mode::Kind::Permit(mode::Permit { limit: permits.get() }),
    };
    v1::Mode { kind: Some(kind) }
}

pub(crate) fn show_holder(holder: HolderView) -> v1::Holder {
    v1::Holder {
        token: holder.token.0,
        session_id: holder.session.to_string(),
        label: holder.label.as_str().to_owned(),
        mode: Some(show_mode(holder.mode)),
        since_unix_ms: holder.since.0,
        remaining_ms: holder.remaining_ms,
        revoked_reason: holder.revoked.map_or_else(String::new, |reason| reason.as_str().to_owned()),
        address: holder.origin.address.map_or_else(String::new, |address| address.to_string()),
    }
}

fn show_waiter(waiter: WaiterView) -> v1::Waiter {
    v1::Waiter {
        ticket: waiter.ticket.0,
        session_id: waiter.session.to_string(),
        label: waiter.label.as_str().to_owned(),
        mode: Some(show_mode(waiter.mode)),
        since_unix_ms: waiter.since.0,
        remaining_ms: waiter.remaining_ms,
    }
}

pub(crate) fn show_lock(lock: LockView) -> v1::LockInfo {
    v1::LockInfo {
        name: lock.name.to_string(),
        mode: lock.mode.map(show_mode),
        holders: lock.holders.into_iter().map(show_holder).collect(),
        holder_count: lock.holder_count,
        waiters: lock.waiters.into_iter().map(show_waiter).collect(),
        queue_length: lock.queue_length,
        data: lock.data.map(|data| data.as_bytes().to_vec()),
        keep_data: lock.keep_data,
        delay_remaining_ms: lock.delay_remaining_ms,
        resized: lock.resized,
        kind: v1::LockKind::Unspecified.into(),
    }
}

pub(crate) fn show_revocation(revocation: &Revocation) -> v1::Revocation {
    v1::Revocation {
        token: revocation.token.0,
        reason: revocation.reason.as_str().to_owned(),
        remaining_ms: revocation.remaining_ms,
    }
}

pub(crate) fn show_session_end(end: SessionEnd) -> v1::SessionEnd {
    match end {
        SessionEnd::Closed => v1::SessionEnd::Closed,
        SessionEnd::Expired => v1::SessionEnd::Expired,
        SessionEnd::Unknown => v1::SessionEnd::Unknown,
    }
}

pub(crate) fn show_change(change: &Change) -> v1::Change {
    let shown = v1::Change { name: change.name.to_string(), ..v1::Change::default() };
    match &change.kind {
        ChangeKind::Granted { token, session, label, mode, ticket } => v1::Change {
            kind: Kind::Granted.into(),
            token: token.0,
            session_id: session.to_string(),
            label: label.as_str().to_owned(),
            ticket: ticket.map_or(0, |ticket| ticket.0),
            mode: Some(show_mode(*mode)),
            ..shown
        },
        ChangeKind::Released { token, session, .. } => {
            v1::Change { kind: Kind::Released.into(), token: token.0, session_id: session.to_string(), ..shown }
        }
        ChangeKind::Lost { token, session, reason, .. } => v1::Change {
            kind: Kind::Lost.into(),
            token: token.0,
            session_id: session.to_string(),
            reason: reason.as_ref().map_or_else(String::new, |reason| reason.as_str().to_owned()),
            ..shown
        },
        ChangeKind::Revoked { token, session, reason, .. } => v1::Change {
            kind: Kind::Revoked.into(),
            token: token.0,
            session_id: session.to_string(),
            reason: reason.as_str().to_owned(),
            ..shown
        },
        ChangeKind::Queued { ticket, session, label, mode } => v1::Change {
            kind: Kind::Queued.into(),
            ticket: ticket.0,
            session_id: session.to_string(),
            label: label.as_str().to_owned(),
            mode: Some(show_mode(*mode)),
            ..shown
        },
        ChangeKind::Left { ticket, session } => {
            v1::Change { kind: Kind::Left.into(), ticket: ticket.0, session_id: session.to_string(), ..shown }
        }
        ChangeKind::Data(data) => {
            let data = data.as_ref().map(|data| data.as_bytes().to_vec());
            v1::Change { kind: Kind::Data.into(), data, ..shown }
        }
        ChangeKind::Delayed => v1::Change { kind: Kind::Delayed.into(), ..shown },
        ChangeKind::Opened => v1::Change { kind: Kind::Opened.into(), ..shown },
        ChangeKind::Resized(permits) => {
            v1::Change { kind: Kind::Resized.into(), mode: Some(show_mode(Mode::Permit(*permits))), ..shown }
        }
    }
}
