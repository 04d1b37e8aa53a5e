//! Decodes the values in the leader's replies, for adapters of other protocols on a follower.

use super::convert::{known_mode, lock_name, session_id, token};
use crate::api::Error;
use lockkeeper_machine::*;
use lockkeeper_proto::v1;

/// The error for a reply that lacks a field which every version sets, or has a value that only a later version knows.
pub(crate) fn not_set(field: &str) -> Error {
    Error::invalid(field, "is not set, or is of a kind that only a later version knows")
}

pub(crate) fn ttl(ms: u32) -> Result<Ttl, Error> {
    Ttl::from_millis(ms).map_err(Error::invalid_value("ttl_ms"))
}

pub(super) fn label(text: &str) -> Result<Label, Error> {
    Label::new(text).map_err(Error::invalid_value("label"))
}

pub(super) fn reason(text: &str) -> Result<Reason, Error> {
    Reason::new(text).map_err(Error::invalid_value("reason"))
}

pub(crate) fn reason_unless_empty(text: &str) -> Result<Option<Reason>, Error> {
    (!text.is_empty()).then(|| reason(text)).transpose()
}

pub(super) fn mode(message: Option<v1::Mode>) -> Result<Mode, Error> {
    let known = message.map(|mode| known_mode(mode, "mode.permit.limit")).transpose()?;
    known.flatten().ok_or_else(|| not_set("mode"))
}

pub(crate) fn grant(message: v1::Grant) -> Result<Grant, Error> {
    let names = message.names.iter().map(|name| lock_name("names", name)).collect::<Result<Vec<_>, _>>()?;
    Ok(Grant { token: token(message.token)?, session: session_id(&message.session_id)?, names: names.into() })
}

/// The identity in a field that may be empty.
pub(super) fn identity(field: &'static str, identity: &str) -> Result<Option<Identity>, Error> {
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
