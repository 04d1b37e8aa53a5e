//! Converts answers of clients and nodes into history events.

use tonic::Status;
use tonic_types::StatusExt as _;

use lockkeeper_client::{Error, LockInfo, Loss};
use lockkeeper_machine as machine;
use lockkeeper_proto::v1::{self, GetResponse, Reason, mode::Kind};

use crate::{
    history::{self, Mode, View},
    record::Begun,
};

/// Ends an operation that failed.
pub(crate) fn end(begun: Begun, error: &Error) {
    match error {
        Error::Invalid(_)
        | Error::Endpoint(_)
        | Error::NoAuthorities(_)
        | Error::BearerToken
        | Error::TokenFile { .. } => begun.failed("invalid"),
        Error::Refused(refused) => begun.failed(reason(&refused.reason.to_string())),
        // The client lost its place in the queue for a while, so this operation says nothing about the order of grants.
        Error::NotAcquired(not) if not.place_lost => begun.failed("place_lost"),
        Error::NotAcquired(not) => begun.failed(if not.waited { "timed_out" } else { "busy" }),
        Error::NotEnsured { .. } => begun.failed("not_ensured"),
        Error::NoCluster { .. } => begun.failed("unavailable"),
        // The operation may have taken effect before the session ended.
        Error::Lost(loss) => begun.unknown(loss.to_string()),
        Error::Unknown { why } => begun.unknown(why.clone()),
        Error::Malformed { .. } => begun.unknown(error.to_string()),
    }
}

/// Ends an operation that was one call to one node.
pub(crate) fn end_call(begun: Begun, status: &Status) {
    match retry(status).as_deref() {
        Some("safe") => begun.failed("unavailable"),
        // The request was executed, and its grant is over.
        Some("no") if reason_of(status) == Reason::Revoked => begun.unknown(status.message()),
        Some("no") => begun.failed(reason(reason_of(status).as_str_name())),
        _ => begun.unknown(status.message()),
    }
}

/// Whether the request was not executed and may be retried.
pub(super) fn is_safe(status: &Status) -> bool {
    retry(status).as_deref() == Some("safe")
}

/// Whether the refusal is final: a retry would get it again.
pub(crate) fn is_decided(status: &Status) -> bool {
    retry(status).as_deref() == Some("no")
}

/// The reason of a refusal.
pub(super) fn reason_of(status: &Status) -> Reason {
    let info = status.get_details_error_info();
    info.and_then(|info| Reason::from_str_name(&format!("REASON_{}", info.reason))).unwrap_or_default()
}

fn retry(status: &Status) -> Option<String> {
    let info = status.get_details_error_info().filter(|info| info.domain == "lockkeeper.v1")?;
    Some(info.metadata.get("retry").map_or("no", String::as_str).to_owned())
}

/// The reason as a history names it, from the name in the protocol.
fn reason(name: &str) -> String {
    match name {
        "REASON_WAIT_CANCELLED" | "REASON_WAIT_REMOVED" | "REASON_ABANDONED" => "cancelled".to_owned(),
        _ => name.trim_start_matches("REASON_").to_lowercase(),
    }
}

/// The reason of a session's loss. That of a grant that its holder released is none.
pub(crate) fn loss(loss: &Loss) -> Option<&'static str> {
    match loss {
        Loss::Released => None,
        Loss::Closed => Some("closed"),
        Loss::Expired => Some("expired"),
        Loss::Unknown => Some("unknown"),
        Loss::OutOfContact => Some("out_of_contact"),
        Loss::Revoked { .. } => Some("revoked"),
    }
}

/// The view that a linearizable read of the client returns.
pub(crate) fn view(lock: &LockInfo) -> View {
    let holder = |holder: &lockkeeper_client::Holder| history::Holder {
        token: holder.token.0,
        session: holder.session_id.to_string(),
        mode: match holder.mode {
            None | Some(machine::Mode::Exclusive) => Mode::Exclusive,
            Some(machine::Mode::Shared) => Mode::Shared,
            Some(machine::Mode::Permit(permits)) => Mode::Permits(permits.get()),
        },
    };

    let waiter = |waiter: &lockkeeper_client::Waiter| history::Waiter {
        session: waiter.session_id.to_string(),
        ticket: Some(waiter.ticket.0),
    };

    View {
        holders: lock.holders.iter().map(holder).collect(),
        waiters: lock.waiters.iter().map(waiter).collect(),
        delayed: lock.delay_remaining.is_some(),
        last_token: None,
    }
}

/// The view that a linearizable read of one node returns.
pub(crate) fn view_of_node(answer: &GetResponse) -> View {
    let empty = v1::LockInfo::default();
    let lock = answer.lock.as_ref().unwrap_or(&empty);

    let holder = |holder: &v1::Holder| history::Holder {
        token: holder.token,
        session: holder.session_id.clone(),
        mode: mode(holder.mode.as_ref()),
    };
    let waiter =
        |waiter: &v1::Waiter| history::Waiter { session: waiter.session_id.clone(), ticket: Some(waiter.ticket) };

    View {
        holders: lock.holders.iter().map(holder).collect(),
        waiters: lock.waiters.iter().map(waiter).collect(),
        delayed: lock.delay_remaining_ms > 0,
        last_token: None,
    }
}

fn mode(mode: Option<&v1::Mode>) -> Mode {
    match mode.and_then(|mode| mode.kind.as_ref()) {
        None | Some(Kind::Exclusive(_)) => Mode::Exclusive,
        Some(Kind::Shared(_)) => Mode::Shared,
        Some(Kind::Permit(permit)) => Mode::Permits(permit.limit),
    }
}
