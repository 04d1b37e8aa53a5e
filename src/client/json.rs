//! The views as JSON, with the feature `serde`: the form that `lockkeeper -o json` prints. Fields are added, and keep their names and
//! meanings.
//!
//! Times are whole milliseconds and ids are texts, since numbers of JSON are not exact beyond 2^53. Data are complete in hexadecimal, and
//! also text if they are valid text.
//!
//! These functions are for `serialize_with`, in the views and in documents of programs that show parts of them.

use std::{fmt::Display, time::Duration};

use lockkeeper_types::{Mode, Ticket, Token, WallTime};
use serde::{Serialize, Serializer};

use crate::{ChangeKind, Role};

/// A mode, by its kind.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum ModeForm {
    Exclusive,
    Shared,
    Permit { limit: u32 },
}

/// Data, in both forms.
#[derive(Serialize)]
struct DataForm<'a> {
    data_hex: Option<String>,
    data_text: Option<&'a str>,
}

/// The cluster versions that a program supports.
#[derive(Serialize)]
struct VersionsForm {
    cluster_version_min: Option<u32>,
    cluster_version_max: Option<u32>,
}

/// Whether a member may be taken down, and if not, why.
#[derive(Serialize)]
struct MayStopForm<'a> {
    safe_to_stop: Option<bool>,
    unsafe_reason: Option<&'a str>,
}

/// Writes a value as its text.
///
/// Fails as the serializer does, as all of these functions.
pub fn text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Writes a value as its text, or `null`.
pub fn some_text<S: Serializer>(value: &Option<impl Display>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

/// Writes a time in whole milliseconds.
pub fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(whole_millis(*time))
}

/// Writes a time in whole milliseconds, or `null`.
pub fn some_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(whole_millis).serialize(serializer)
}

/// Writes a time in whole milliseconds, or 0.
pub fn millis_or_zero<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.map_or(0, whole_millis))
}

/// Writes a time in whole microseconds.
pub fn micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Writes a time of a wall clock, as milliseconds since 1970.
pub fn unix_millis<S: Serializer>(time: &WallTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.0)
}

/// Writes a time of a wall clock, as milliseconds since 1970, or `null`.
pub fn some_unix_millis<S: Serializer>(time: &Option<WallTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.0).serialize(serializer)
}

/// Writes a token as its number.
pub fn token<S: Serializer>(token: &Token, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(token.0)
}

/// Writes a token as its number, or `null`.
pub fn some_token<S: Serializer>(token: &Option<Token>, serializer: S) -> Result<S::Ok, S::Error> {
    token.map(|token| token.0).serialize(serializer)
}

/// Writes a token as its number, or 0: no token is 0.
pub fn token_or_zero<S: Serializer>(token: &Option<Token>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(token.map_or(0, |token| token.0))
}

/// Writes a hash as 16 hexadecimal digits, or `null`.
pub fn some_hash<S: Serializer>(hash: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    hash.map(|hash| format!("{hash:016x}")).serialize(serializer)
}

/// Writes a role as its name.
pub fn role<S: Serializer>(role: &Role, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(role.name())
}

/// Writes the cluster versions of a program as two fields, to be flattened: `cluster_version_min` and `cluster_version_max`.
pub fn cluster_versions<S: Serializer>(versions: &Option<(u32, u32)>, serializer: S) -> Result<S::Ok, S::Error> {
    let cluster_version_min = versions.map(|(lowest, _)| lowest);
    let cluster_version_max = versions.map(|(_, highest)| highest);
    VersionsForm { cluster_version_min, cluster_version_max }.serialize(serializer)
}

/// Writes whether a member may be taken down as two fields, to be flattened: `safe_to_stop`, and `unsafe_reason` if it may not. Both are
/// `null` if it is not known.
pub fn may_stop<S: Serializer>(may_stop: &Option<Result<(), String>>, serializer: S) -> Result<S::Ok, S::Error> {
    let safe_to_stop = may_stop.as_ref().map(Result::is_ok);
    let unsafe_reason = may_stop.as_ref().and_then(|may_stop| may_stop.as_ref().err()).map(String::as_str);
    MayStopForm { safe_to_stop, unsafe_reason }.serialize(serializer)
}

/// Writes a ticket as its number.
pub fn ticket<S: Serializer>(ticket: &Ticket, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(ticket.0)
}

/// Writes a ticket as its number, or `null`.
pub fn some_ticket<S: Serializer>(ticket: &Option<Ticket>, serializer: S) -> Result<S::Ok, S::Error> {
    ticket.map(|ticket| ticket.0).serialize(serializer)
}

/// Writes the kind of a change as its name.
pub fn change_kind<S: Serializer>(kind: &ChangeKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

/// Writes a mode as its kind, with the limit of permits, or `null`.
pub fn mode<S: Serializer>(mode: &Option<Mode>, serializer: S) -> Result<S::Ok, S::Error> {
    let form = mode.map(|mode| match mode {
        Mode::Exclusive => ModeForm::Exclusive,
        Mode::Shared => ModeForm::Shared,
        Mode::Permit(permits) => ModeForm::Permit { limit: permits.get() },
    });
    form.serialize(serializer)
}

/// Writes data as two fields, to be flattened: `data_hex`, and `data_text` if they are valid text. Both are `null` without data.
pub fn data<S: Serializer>(data: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    let data = data.as_deref();
    let data_hex = data.map(|data| data.iter().map(|byte| format!("{byte:02x}")).collect());
    let data_text = data.and_then(|data| std::str::from_utf8(data).ok());
    DataForm { data_hex, data_text }.serialize(serializer)
}

/// A time beyond the range is written as the largest number.
fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
