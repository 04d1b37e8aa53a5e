//! Decodes the values in the leader's replies, for adapters of other protocols on a follower.

use super::convert::{data, known_mode, lock_name, session_id, token};
use crate::api::Error;
use lockkeeper_machine::*;
use lockkeeper_proto::v1::{self, change};

/// The error for a reply that lacks a field which every version sets, or has a value that only a later version knows.
pub(crate) fn not_set(field: &str) -> Error {
    Error::invalid(field, "is not set, or is of a kind that only a later version knows")
}

pub(crate) fn ttl(ms: u32) -> Result<Ttl, Error> {
    Ttl::from_millis(ms).map_err(Error::invalid_value("ttl_ms"))
}

fn label(text: &str) -> Result<Label, Error> {
    Label::new(text).map_err(Error::invalid_value("label"))
}

fn reason(text: &str) -> Result<Reason, Error> {
    Reason::new(text).map_err(Error::invalid_value("reason"))
}

pub(crate) fn reason_unless_empty(text: &str) -> Result<Option<Reason>, Error> {
    (!text.is_empty()).then(|| reason(text)).transpose()
}

pub(crate) fn grant(message: v1::Grant) -> Result<Grant, Error> {
    let names = message.names.iter().map(|name| lock_name("names", name)).collect::<Result<Vec<_>, _>>()?;
    Ok(Grant { token: token(message.token)?, session: session_id(&message.session_id)?, names: names.into() })
}

pub(crate) fn busy(message: v1::Busy) -> Result<Busy, Error> {
    Ok(Busy {
        name: lock_name("name", &message.name)?,
        holder: message.holder.map(holder).transpose()?,
        queue_length: message.queue_length,
        delay_remaining_ms: message.delay_remaining_ms,
    })
}

fn mode(message: Option<v1::Mode>) -> Result<Mode, Error> {
    let known = message.map(|mode| known_mode(mode, "mode.permit.limit")).transpose()?;
    known.flatten().ok_or_else(|| not_set("mode"))
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
    })
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
        address: if message.address.is_empty() {
            None
        } else {
            Some(message.address.parse().map_err(Error::invalid_value("address"))?)
        },
        owner: identity("owner", &message.owner)?,
    })
}

/// The identity in a field that may be empty.
fn identity(field: &'static str, identity: &str) -> Result<Option<Identity>, Error> {
    if identity.is_empty() { Ok(None) } else { identity.parse().map(Some).map_err(Error::invalid_value(field)) }
}

pub(crate) fn revocation(message: v1::Revocation) -> Result<Revocation, Error> {
    Ok(Revocation {
        token: token(message.token)?,
        reason: reason(&message.reason)?,
        remaining_ms: message.remaining_ms,
    })
}

pub(crate) fn session_end(message: &v1::SessionEnded) -> SessionEnd {
    match message.why() {
        v1::SessionEnd::Closed => SessionEnd::Closed,
        v1::SessionEnd::Expired => SessionEnd::Expired,
        v1::SessionEnd::Unknown | v1::SessionEnd::Unspecified => SessionEnd::Unknown,
    }
}

pub(crate) fn forced(message: v1::force_release_response::Forced) -> Result<Forced, Error> {
    Ok(Forced {
        token: token(message.token)?,
        session: session_id(&message.session_id)?,
        label: label(&message.label)?,
        remaining_ms: message.remaining_ms,
        lock_delay_ms: message.lock_delay_ms,
    })
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

/// Reads a kind of lock. One that this version does not know is shown as any lock.
fn lock_kind(number: i32) -> LockKind {
    match v1::LockKind::try_from(number) {
        Ok(v1::LockKind::Entry) => LockKind::Entry,
        Ok(v1::LockKind::Unspecified) | Err(_) => LockKind::Lock,
    }
}
