//! Errors of the Rust client as outcomes.

use lockkeeper_client::{Error, Loss};
use serde_json::{Value, json};

/// The outcome of a step that failed.
pub(super) fn failure(error: &Error) -> Value {
    let text = error.to_string();
    let failed = |kind: &str, reason: Option<String>| json!({ "outcome": "failed", "kind": kind, "reason": reason, "text": text });
    match error {
        Error::NotAcquired(why) => json!({
            "outcome": "not-acquired",
            "waited": why.waited,
            "name": why.busy.name.as_str(),
            "holder": why.busy.holder.as_ref().map(|holder| holder.token.0),
            "queue": why.busy.queue_length,
        }),
        Error::NotEnsured { left, .. } => {
            json!({ "outcome": "not-ensured", "remaining_ms": super::locks::millis(*left) })
        }
        Error::Refused(refused) => {
            let reason = refused.reason.to_string();
            failed("refused", Some(reason.trim_start_matches("REASON_").to_owned()))
        }
        Error::Lost(loss) => failed("lost", Some(loss_name(loss).to_owned())),
        Error::NoCluster { .. } => failed("no-reply", None),
        Error::Unknown { .. } | Error::Malformed { .. } => failed("unknown", None),
        Error::Invalid(_)
        | Error::Endpoint(_)
        | Error::NoAuthorities(_)
        | Error::BearerToken
        | Error::TokenFile { .. } => failed("invalid", None),
    }
}

/// The name of a loss.
pub(super) fn loss_name(loss: &Loss) -> &'static str {
    match loss {
        Loss::Closed => "closed",
        Loss::Expired => "expired",
        Loss::Unknown => "unknown",
        Loss::OutOfContact => "out-of-contact",
        Loss::Revoked { .. } => "revoked",
        Loss::Released => "released",
    }
}

/// The event of a loss.
pub(super) fn loss_event(lock: &str, loss: &Loss) -> Value {
    let text = if let Loss::Revoked { reason } = loss { Some(reason) } else { None };
    json!({ "event": "lost", "lock": lock, "reason": loss_name(loss), "text": text })
}
