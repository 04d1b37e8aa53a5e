//! The public messages as the table's words, and back. What comes in is checked here, field by field.

use tonic::Status;

use super::errors::{invalid, invalid_value};
use crate::{
    machine::*,
    proto::v1::{self, acquire_request, change, mode, release_request},
};

pub(super) fn session_id(text: &str) -> Result<SessionId, Status> {
    text.parse().map_err(invalid_value("session_id"))
}

pub(super) fn lock_name(field: &str, name: &str) -> Result<LockName, Status> {
    LockName::new(name).map_err(invalid_value(field))
}

pub(super) fn token(token: u64) -> Result<Token, Status> {
    match token {
        0 => Err(invalid("token", "is 0 or missing: give the token of a grant")),
        token => Ok(Token(token)),
    }
}

/// `None` stays `None`: the caller wants no promise.
pub(super) fn request(id: Option<v1::RequestId>) -> Result<Option<Request>, Status> {
    let Some(v1::RequestId { id, lowest, kept }) = id else { return Ok(None) };
    if id == 0 {
        return Err(invalid("request.id", "is 0: number requests from 1"));
    }
    let open = OpenIds::new(lowest, kept).map_err(invalid_value("request.kept"))?;
    if !open.contains(id) {
        let why = format!("is {lowest}, above the request's own id {id}, which is not in `kept`");
        return Err(invalid("request.lowest", why));
    }
    Ok(Some(Request { id, open }))
}

pub(super) fn acquire(message: v1::AcquireRequest) -> Result<Command, Status> {
    let wait = match message.wait {
        None => Wait::Never,
        Some(acquire_request::Wait::WaitMs(ms)) => Wait::from_millis(ms).map_err(invalid_value("wait_ms"))?,
        Some(acquire_request::Wait::WaitForever(true)) => Wait::Forever,
        Some(acquire_request::Wait::WaitForever(false)) => Wait::Never,
    };
    let wants = message.locks.into_iter().map(want).collect::<Result<Vec<_>, _>>()?;
    let acquire = Acquire::new(wants, wait, message.lock_delay_ms).map_err(invalid_value("locks"))?;
    Ok(Command::Session {
        session: session_id(&message.session_id)?,
        request: request(message.request)?,
        operation: Operation::Acquire(acquire),
    })
}

pub(super) fn release(message: v1::ReleaseRequest) -> Result<Command, Status> {
    let target = match message.target {
        Some(release_request::Target::Token(held)) => Target::Grant(token(held)?),
        Some(release_request::Target::AcquireRequestId(0)) | None => {
            return Err(invalid("target", "is missing: name a token, or the request id of an acquire"));
        }
        Some(release_request::Target::AcquireRequestId(id)) => Target::Acquire(id),
    };
    Ok(Command::Session {
        session: session_id(&message.session_id)?,
        request: request(message.request)?,
        operation: Operation::Release(target),
    })
}

pub(super) fn update(message: v1::UpdateRequest) -> Result<Command, Status> {
    let update = Update {
        token: token(message.token)?,
        name: lock_name("name", &message.name)?,
        data: data(message.data)?,
        keep_data: message.keep_data,
    };
    Ok(Command::Session {
        session: session_id(&message.session_id)?,
        request: request(message.request)?,
        operation: Operation::Update(update),
    })
}

pub(super) fn force_release(message: v1::ForceReleaseRequest) -> Result<Command, Status> {
    Ok(Command::ForceRelease(crate::machine::ForceRelease {
        name: lock_name("name", &message.name)?,
        token: (message.token != 0).then_some(Token(message.token)),
        after: Token(message.after_token),
        up_to: (message.up_to_token != 0).then_some(Token(message.up_to_token)),
        reason: crate::machine::Reason::new(&message.reason).map_err(invalid_value("reason"))?,
        now: message.now,
    }))
}

fn want(message: v1::Want) -> Result<Want, Status> {
    let name = lock_name("locks.name", &message.name)?;
    Ok(Want {
        mode: mode(&name, message.mode)?,
        name,
        data: data(message.data)?,
        keep_data: message.keep_data,
        must_exist: message.must_exist,
    })
}

fn mode(name: &LockName, message: Option<v1::Mode>) -> Result<Mode, Status> {
    let Some(v1::Mode { kind }) = message else { return Ok(Mode::Exclusive) };
    match kind {
        // A kind that only a later version knows is read as none: its number is lost with it. Who asks for it would take the lock
        // from all others, and not know.
        None => {
            let why = format!(
                "of the lock {:?} is empty, or of a kind that this server does not know: choose exclusive, shared or permit",
                name.as_str()
            );
            Err(invalid("locks.mode", why))
        }
        Some(mode::Kind::Exclusive(_)) => Ok(Mode::Exclusive),
        Some(mode::Kind::Shared(_)) => Ok(Mode::Shared),
        Some(mode::Kind::Permit(permit)) => {
            Permits::new(permit.limit).map(Mode::Permit).map_err(invalid_value("locks.mode.permit.limit"))
        }
    }
}

fn data(bytes: Option<Vec<u8>>) -> Result<Option<Data>, Status> {
    bytes.map(|bytes| Data::new(&bytes).map_err(invalid_value("data"))).transpose()
}

pub(super) fn show_mode(mode: Mode) -> v1::Mode {
    let kind = match mode {
        Mode::Exclusive => mode::Kind::Exclusive(mode::Exclusive {}),
        Mode::Shared => mode::Kind::Shared(mode::Shared {}),
        Mode::Permit(permits) => mode::Kind::Permit(mode::Permit { limit: permits.get() }),
    };
    v1::Mode { kind: Some(kind) }
}

pub(super) fn show_grant(grant: &Grant) -> v1::Grant {
    v1::Grant {
        token: grant.token.0,
        session_id: grant.session.to_string(),
        names: grant.names.iter().map(LockName::to_string).collect(),
    }
}

pub(super) fn show_busy(busy: Busy) -> v1::Busy {
    v1::Busy {
        name: busy.name.to_string(),
        holder: busy.holder.map(show_holder),
        queue_length: busy.queue_length,
        delay_remaining_ms: busy.delay_remaining_ms,
    }
}

pub(super) fn show_holder(holder: HolderView) -> v1::Holder {
    v1::Holder {
        token: holder.token.0,
        session_id: holder.session.to_string(),
        label: holder.label.as_str().to_string(),
        mode: Some(show_mode(holder.mode)),
        since_unix_ms: holder.since.0,
        remaining_ms: holder.remaining_ms,
        revoked_reason: holder.revoked.map_or_else(String::new, |reason| reason.as_str().to_string()),
    }
}

pub(super) fn show_waiter(waiter: WaiterView) -> v1::Waiter {
    v1::Waiter {
        ticket: waiter.ticket.0,
        session_id: waiter.session.to_string(),
        label: waiter.label.as_str().to_string(),
        mode: Some(show_mode(waiter.mode)),
        since_unix_ms: waiter.since.0,
        remaining_ms: waiter.remaining_ms,
    }
}

pub(super) fn show_lock(lock: LockView) -> v1::LockInfo {
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
    }
}

pub(super) fn show_session(session: SessionView) -> v1::SessionInfo {
    v1::SessionInfo {
        session_id: session.session.to_string(),
        label: session.label.as_str().to_string(),
        ttl_ms: session.ttl.as_millis(),
        remaining_ms: session.remaining_ms,
        opened_unix_ms: session.opened.0,
        grants: session.grants,
        waits: session.waits,
        bytes: session.bytes,
        address: session.address.map_or_else(String::new, |address| address.to_string()),
    }
}

pub(super) fn show_revocation(revocation: Revocation) -> v1::Revocation {
    v1::Revocation {
        token: revocation.token.0,
        reason: revocation.reason.as_str().to_string(),
        remaining_ms: revocation.remaining_ms,
    }
}

pub(super) fn show_end(end: SessionEnd) -> v1::SessionEnded {
    let why = match end {
        SessionEnd::Closed => v1::SessionEnd::Closed,
        SessionEnd::Expired => v1::SessionEnd::Expired,
        SessionEnd::Unknown => v1::SessionEnd::Unknown,
    };
    v1::SessionEnded { why: why.into() }
}

pub(super) fn show_forced(forced: Forced) -> v1::force_release_response::Forced {
    v1::force_release_response::Forced {
        token: forced.token.0,
        session_id: forced.session.to_string(),
        label: forced.label.as_str().to_string(),
        remaining_ms: forced.remaining_ms,
        lock_delay_ms: forced.lock_delay_ms,
    }
}

pub(super) fn show_change(happened: &Change) -> v1::Change {
    use change::Kind;
    let name = happened.name.to_string();
    let of_grant = |kind: Kind, token: &Token, session: &SessionId| v1::Change {
        name: name.clone(),
        kind: kind.into(),
        token: token.0,
        session_id: session.to_string(),
        ..v1::Change::default()
    };
    let of_wait = |kind: Kind, ticket: &Ticket, session: &SessionId| v1::Change {
        name: name.clone(),
        kind: kind.into(),
        ticket: ticket.0,
        session_id: session.to_string(),
        ..v1::Change::default()
    };
    let of_lock = |kind: Kind| v1::Change { name: name.clone(), kind: kind.into(), ..v1::Change::default() };
    match &happened.kind {
        ChangeKind::Granted { token, session, label, mode, ticket } => v1::Change {
            ticket: ticket.map_or(0, |ticket| ticket.0),
            label: label.as_str().to_string(),
            mode: Some(show_mode(*mode)),
            ..of_grant(Kind::Granted, token, session)
        },
        ChangeKind::Released { token, session } => of_grant(Kind::Released, token, session),
        ChangeKind::Lost { token, session, reason } => v1::Change {
            reason: reason.as_ref().map_or_else(String::new, |reason| reason.as_str().to_string()),
            ..of_grant(Kind::Lost, token, session)
        },
        ChangeKind::Revoked { token, session, reason } => {
            v1::Change { reason: reason.as_str().to_string(), ..of_grant(Kind::Revoked, token, session) }
        }
        ChangeKind::Queued { ticket, session, label, mode } => v1::Change {
            label: label.as_str().to_string(),
            mode: Some(show_mode(*mode)),
            ..of_wait(Kind::Queued, ticket, session)
        },
        ChangeKind::Left { ticket, session } => of_wait(Kind::Left, ticket, session),
        ChangeKind::Data(data) => {
            v1::Change { data: data.as_ref().map(|data| data.as_bytes().to_vec()), ..of_lock(Kind::Data) }
        }
        ChangeKind::Delayed => of_lock(Kind::Delayed),
        ChangeKind::Opened => of_lock(Kind::Opened),
        ChangeKind::Resized(permits) => {
            v1::Change { mode: Some(show_mode(Mode::Permit(*permits))), ..of_lock(Kind::Resized) }
        }
    }
}

/// What a caller asked for, within what it may have.
pub(super) fn page_size(asked: u32, most: usize) -> usize {
    match asked as usize {
        0 => most,
        asked => asked.min(most),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_mode_that_is_not_known_is_none_to_guess() {
        let name = LockName::new("seat").expect("a name");
        assert_eq!(mode(&name, None).expect("unset"), Mode::Exclusive);
        // Empty; and field 4, a message, as a later version may have one.
        for bytes in [&[][..], &[0x22, 0]] {
            let message = v1::Mode::decode(bytes).expect("a message");
            let refused = mode(&name, Some(message)).expect_err("it is not known");
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            let said = refused.message();
            assert!(said.contains("locks.mode") && said.contains("\"seat\""), "{said}");
        }
    }
}
