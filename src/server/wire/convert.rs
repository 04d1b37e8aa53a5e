//! Converts the values in requests and replies: decodes and checks requests, encodes replies.

use crate::api::Error;
use lockkeeper_machine::*;
use lockkeeper_planted::Planted;
use lockkeeper_proto::v1::{self, mode};

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
            let least = u32::from(Planted::NoPermitsAsOne.is_on());
            Some(Mode::Permit(Permits::new(permit.limit.max(least)).map_err(Error::invalid_value(limit))?))
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

pub(super) fn show_identity(identity: Option<&Identity>) -> String {
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
