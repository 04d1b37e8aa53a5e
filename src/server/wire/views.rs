//! The views of the table and its changes as messages, and back: each pair side by side, so that a new field of a view is one place here.

use super::{
    convert::{data, lock_name, session_id, show_identity, show_mode, token},
    replies::{identity, label, mode, not_set, reason, reason_unless_empty, ttl},
};
use crate::api::Error;
use lockkeeper_machine::*;
use lockkeeper_proto::v1::{self, change};

pub(crate) fn show_holder(holder: HolderView) -> v1::Holder {
    v1::Holder {
        token: holder.token.0,
        session_id: holder.session.to_string(),
        label: holder.label.as_str().to_string(),
        mode: Some(show_mode(holder.mode)),
        since_unix_ms: holder.since.0,
        remaining_ms: holder.remaining_ms,
        revoked_reason: holder.revoked.map_or_else(String::new, |reason| reason.as_str().to_string()),
        address: show_address(holder.origin.address),
    }
}

pub(crate) fn holder(message: v1::Holder) -> Result<HolderView, Error> {
    Ok(HolderView {
        token: token(message.token)?,
        session: session_id(&message.session_id)?,
        label: label(&message.label)?,
        mode: mode(message.mode)?,
        since: WallTime(message.since_unix_ms),
        remaining_ms: message.remaining_ms,
        revoked: reason_unless_empty(&message.revoked_reason)?,
        origin: HolderOrigin { address: address(&message.address)? },
    })
}

pub(crate) fn show_busy(busy: Busy) -> v1::Busy {
    v1::Busy {
        name: busy.name.to_string(),
        holder: busy.holder.map(show_holder),
        queue_length: busy.queue_length,
        delay_remaining_ms: busy.delay_remaining_ms,
    }
}

pub(crate) fn busy(message: v1::Busy) -> Result<Busy, Error> {
    Ok(Busy {
        name: lock_name("name", &message.name)?,
        holder: message.holder.map(holder).transpose()?,
        queue_length: message.queue_length,
        delay_remaining_ms: message.delay_remaining_ms,
    })
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

pub(crate) fn waiter(message: v1::Waiter) -> Result<WaiterView, Error> {
    Ok(WaiterView {
        ticket: Ticket(message.ticket),
        session: session_id(&message.session_id)?,
        label: label(&message.label)?,
        mode: mode(message.mode)?,
        since: WallTime(message.since_unix_ms),
        remaining_ms: message.remaining_ms,
    })
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

pub(crate) fn lock(message: v1::LockInfo) -> Result<LockView, Error> {
    Ok(LockView {
        name: lock_name("name", &message.name)?,
        kind: lock_kind(message.kind),
        mode: message.mode.map(|kind| mode(Some(kind))).transpose()?,
        holders: message.holders.into_iter().map(holder).collect::<Result<_, _>>()?,
        holder_count: message.holder_count,
        waiters: message.waiters.into_iter().map(waiter).collect::<Result<_, _>>()?,
        queue_length: message.queue_length,
        data: data(message.data)?,
        keep_data: message.keep_data,
        delay_remaining_ms: message.delay_remaining_ms,
        resized: message.resized,
    })
}

fn show_lock_kind(kind: LockKind) -> v1::LockKind {
    match kind {
        LockKind::Lock => v1::LockKind::Unspecified,
        LockKind::Entry => v1::LockKind::Entry,
    }
}

/// Reads a kind of lock. One that this version does not know is shown as any lock.
fn lock_kind(number: i32) -> LockKind {
    match v1::LockKind::try_from(number) {
        Ok(v1::LockKind::Entry) => LockKind::Entry,
        Ok(v1::LockKind::Unspecified) | Err(_) => LockKind::Lock,
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
        address: show_address(session.address),
        owner: show_identity(session.owner.as_ref()),
    }
}

pub(crate) fn session(message: v1::SessionInfo) -> Result<SessionView, Error> {
    Ok(SessionView {
        session: session_id(&message.session_id)?,
        label: label(&message.label)?,
        ttl: ttl(message.ttl_ms)?,
        remaining_ms: message.remaining_ms,
        opened: WallTime(message.opened_unix_ms),
        grants: message.grants,
        waits: message.waits,
        bytes: message.bytes,
        address: address(&message.address)?,
        owner: identity("owner", &message.owner)?,
    })
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

pub(crate) fn change(message: v1::Change) -> Result<Change, Error> {
    use change::Kind;
    let session = || session_id(&message.session_id);
    let ticket = Ticket(message.ticket);
    let token = || token(message.token);
    let since = WallTime(message.since_unix_ms);

    let kind = match message.kind() {
        Kind::Granted => ChangeKind::Granted {
            token: token()?,
            session: session()?,
            label: label(&message.label)?,
            mode: mode(message.mode)?,
            ticket: (ticket != Ticket(0)).then_some(ticket),
        },
        Kind::Released => ChangeKind::Released { token: token()?, session: session()?, since },
        Kind::Lost => {
            let reason = reason_unless_empty(&message.reason)?;
            let by = identity("by", &message.by)?;
            ChangeKind::Lost { token: token()?, session: session()?, since, reason, by }
        }
        Kind::Revoked => {
            let reason = reason(&message.reason)?;
            let by = identity("by", &message.by)?;
            ChangeKind::Revoked { token: token()?, session: session()?, reason, by }
        }
        Kind::Queued => {
            ChangeKind::Queued { ticket, session: session()?, label: label(&message.label)?, mode: mode(message.mode)? }
        }
        Kind::Left => ChangeKind::Left { ticket, session: session()? },
        Kind::Data => ChangeKind::Data(data(message.data)?),
        Kind::Delayed => ChangeKind::Delayed,
        Kind::Opened => ChangeKind::Opened,
        Kind::Resized => match mode(message.mode)? {
            Mode::Permit(permits) => ChangeKind::Resized(permits),
            Mode::Exclusive | Mode::Shared => return Err(not_set("mode")),
        },
        Kind::Unspecified => return Err(not_set("kind")),
    };

    Ok(Change { name: lock_name("name", &message.name)?, of: lock_kind(message.lock_kind), kind })
}

/// The address in a field that is empty if it is not known.
fn address(text: &str) -> Result<Option<Address>, Error> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(Error::invalid_value("address")) }
}

fn show_address(address: Option<Address>) -> String {
    address.map_or_else(String::new, |address| address.to_string())
}
