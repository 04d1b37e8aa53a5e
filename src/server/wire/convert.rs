//! Converts the values in requests and replies: decodes and checks requests, encodes replies.

use crate::api::Error;
use lockkeeper_machine::*;
use lockkeeper_proto::v1::{self, change, mode};

pub(crate) fn session_id(text: &str) -> Result<SessionId, Error> {
    text.parse().map_err(Error::invalid_value("session_id"))
}

pub(crate) fn lock_name(field: &str, name: &str) -> Result<LockName, Error> {
    LockName::new(name).map_err(Error::invalid_value(field))
}

pub(crate) fn token(token: u64) -> Result<Token, Error> {
    if token == 0 {
        return Err(Error::invalid("token", "is 0 or missing: give the token of a grant"));
    }
    Ok(Token(token))
}

/// The id of a request, if it has one. Without one, a repeated request may take effect twice.
pub(crate) fn request(id: Option<v1::RequestId>) -> Result<Option<Request>, Error> {
    let Some(v1::RequestId { id, lowest, kept }) = id else { return Ok(None) };
    if id == 0 {
        return Err(Error::invalid("request.id", "is 0: number requests from 1"));
    }

    let open = OpenIds::new(lowest, kept).map_err(Error::invalid_value("request.kept"))?;
    if !open.contains(id) {
        let why = format!("is {lowest}, above the request's own id {id}, which is not in `kept`");
        return Err(Error::invalid("request.lowest", why));
    }
    Ok(Some(Request { id, open }))
}

pub(crate) fn show_request(request: Request) -> v1::RequestId {
    let Request { id, open } = request;
    v1::RequestId { id, lowest: open.lowest(), kept: open.kept().to_vec() }
}

pub(crate) fn want(message: v1::Want) -> Result<Want, Error> {
    let name = lock_name("locks.name", &message.name)?;
    Ok(Want {
        mode: mode(&name, message.mode)?,
        name,
        data: data(message.data)?,
        keep_data: message.keep_data,
        must_exist: message.must_exist,
    })
}

pub(crate) fn show_want(want: &Want) -> v1::Want {
    v1::Want {
        name: want.name.to_string(),
        mode: Some(show_mode(want.mode)),
        data: want.data.as_ref().map(|data| data.as_bytes().to_vec()),
        keep_data: want.keep_data,
        must_exist: want.must_exist,
    }
}

/// The name in a field that may be empty.
pub(crate) fn name_unless_empty(field: &str, name: &str) -> Result<Option<LockName>, Error> {
    if name.is_empty() { Ok(None) } else { lock_name(field, name).map(Some) }
}

/// The error for a page token that does not come from a previous page.
pub(crate) fn not_a_page_token() -> Error {
    Error::invalid(
        "page_token",
        "is not the next_page_token of a page: use the one of the page before, or none for the first page",
    )
}

pub(crate) fn show_page_size(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

fn mode(name: &LockName, message: Option<v1::Mode>) -> Result<Mode, Error> {
    let Some(message) = message else { return Ok(Mode::Exclusive) };

    // Protobuf drops a kind that only a later version knows. Taken for an exclusive lock, it would exclude all others, against the caller's
    // intention.
    known_mode(message, "locks.mode.permit.limit")?.ok_or_else(|| {
        let why = format!(
            "of the lock {:?} is empty, or of a kind that this server does not know: choose exclusive, shared or permit",
            name.as_str()
        );
        Error::invalid("locks.mode", why)
    })
}

/// The mode, unless it is empty or of an unknown kind. `limit` is the name of the field that has the number of permits.
pub(crate) fn known_mode(message: v1::Mode, limit: &str) -> Result<Option<Mode>, Error> {
    Ok(match message.kind {
        None => None,
        Some(mode::Kind::Exclusive(_)) => Some(Mode::Exclusive),
        Some(mode::Kind::Shared(_)) => Some(Mode::Shared),
        Some(mode::Kind::Permit(permit)) => {
            Some(Mode::Permit(Permits::new(permit.limit).map_err(Error::invalid_value(limit))?))
        }
    })
}

pub(crate) fn data(bytes: Option<Vec<u8>>) -> Result<Option<Data>, Error> {
    bytes.map(|bytes| Data::new(&bytes).map_err(Error::invalid_value("data"))).transpose()
}

pub(crate) fn show_mode(mode: Mode) -> v1::Mode {
    let kind = match mode {
        Mode::Exclusive => mode::Kind::Exclusive(mode::Exclusive {}),
        Mode::Shared => mode::Kind::Shared(mode::Shared {}),
        Mode::Permit(permits) => mode::Kind::Permit(mode::Permit { limit: permits.get() }),
    };
    v1::Mode { kind: Some(kind) }
}

pub(crate) fn show_grant(grant: &Grant) -> v1::Grant {
    v1::Grant {
        token: grant.token.0,
        session_id: grant.session.to_string(),
        names: grant.names.iter().map(LockName::to_string).collect(),
    }
}

pub(crate) fn show_busy(busy: Busy) -> v1::Busy {
    v1::Busy {
        name: busy.name.to_string(),
        holder: busy.holder.map(show_holder),
        queue_length: busy.queue_length,
        delay_remaining_ms: busy.delay_remaining_ms,
    }
}

pub(crate) fn show_holder(holder: HolderView) -> v1::Holder {
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

pub(crate) fn show_waiter(waiter: WaiterView) -> v1::Waiter {
    v1::Waiter {
        ticket: waiter.ticket.0,
        session_id: waiter.session.to_string(),
        label: waiter.label.as_str().to_string(),
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
        kind: show_lock_kind(lock.kind).into(),
    }
}

fn show_lock_kind(kind: LockKind) -> v1::LockKind {
    match kind {
        LockKind::Lock => v1::LockKind::Unspecified,
        LockKind::Entry => v1::LockKind::Entry,
    }
}

pub(crate) fn show_session(session: SessionView) -> v1::SessionInfo {
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
        owner: show_identity(session.owner.as_ref()),
    }
}

fn show_identity(identity: Option<&Identity>) -> String {
    identity.map_or_else(String::new, |identity| identity.as_str().to_string())
}

pub(crate) fn show_revocation(revocation: Revocation) -> v1::Revocation {
    v1::Revocation {
        token: revocation.token.0,
        reason: revocation.reason.as_str().to_string(),
        remaining_ms: revocation.remaining_ms,
    }
}

pub(crate) fn show_end(end: SessionEnd) -> v1::SessionEnded {
    let why = match end {
        SessionEnd::Closed => v1::SessionEnd::Closed,
        SessionEnd::Expired => v1::SessionEnd::Expired,
        SessionEnd::Unknown => v1::SessionEnd::Unknown,
    };
    v1::SessionEnded { why: why.into() }
}

pub(crate) fn show_forced(forced: Forced) -> v1::force_release_response::Forced {
    v1::force_release_response::Forced {
        token: forced.token.0,
        session_id: forced.session.to_string(),
        label: forced.label.as_str().to_string(),
        remaining_ms: forced.remaining_ms,
        lock_delay_ms: forced.lock_delay_ms,
    }
}

pub(crate) fn show_change(changed: &Change) -> v1::Change {
    v1::Change { lock_kind: show_lock_kind(changed.of).into(), ..show_change_of_lock(changed) }
}

fn show_change_of_lock(changed: &Change) -> v1::Change {
    use change::Kind;
    let name = changed.name.to_string();
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

    match &changed.kind {
        ChangeKind::Granted { token, session, label, mode, ticket } => v1::Change {
            ticket: ticket.map_or(0, |ticket| ticket.0),
            label: label.as_str().to_string(),
            mode: Some(show_mode(*mode)),
            ..of_grant(Kind::Granted, token, session)
        },
        ChangeKind::Released { token, session, since } => {
            v1::Change { since_unix_ms: since.0, ..of_grant(Kind::Released, token, session) }
        }
        ChangeKind::Lost { token, session, since, reason, by } => v1::Change {
            since_unix_ms: since.0,
            reason: reason.as_ref().map_or_else(String::new, |reason| reason.as_str().to_string()),
            by: show_identity(by.as_ref()),
            ..of_grant(Kind::Lost, token, session)
        },
        ChangeKind::Revoked { token, session, reason, by } => v1::Change {
            reason: reason.as_str().to_string(),
            by: show_identity(by.as_ref()),
            ..of_grant(Kind::Revoked, token, session)
        },
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

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn an_unknown_mode_is_refused() {
        let name = LockName::new("seat").expect("a name");
        assert_eq!(mode(&name, None).expect("unset"), Mode::Exclusive);
        // Empty; and field 4, a message, which a later version may add.
        for bytes in [&[][..], &[0x22, 0]] {
            let message = v1::Mode::decode(bytes).expect("a message");
            let refused = mode(&name, Some(message)).expect_err("an unknown mode");
            assert_eq!(refused.reason, crate::api::FailureReason::InvalidArgument);
            let message = refused.message;
            assert!(message.contains("locks.mode") && message.contains("\"seat\""), "{message}");
        }
    }
}
