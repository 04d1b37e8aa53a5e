//! Converts between lines and events.

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    Acquire, Answer, Call, CancelFound, Event, Fact, Function, Mode, Session, Transaction, TxnAnswer, View, What,
    event::Lease,
};

/// A line whose `value` is parsed after `type` and `f` are known.
#[derive(Deserialize)]
struct ParsedLine<'a> {
    time_ns: u64,
    #[serde(borrow)]
    process: std::borrow::Cow<'a, str>,
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    f: std::borrow::Cow<'a, str>,
    op: Option<u64>,
    #[serde(default, deserialize_with = "one_or_many")]
    lock: Vec<String>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

/// A line for writing, with its fields in a readable order.
#[derive(Serialize)]
struct WrittenLine<'a, V> {
    time_ns: u64,
    process: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    f: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<LockField<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<V>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum LockField<'a> {
    One(&'a str),
    Many(&'a [String]),
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct ReasonField {
    reason: String,
}

/// Reads a line. Fails with a message for people.
pub(super) fn parse(line: &str) -> Result<Event, String> {
    let read: ParsedLine<'_> = serde_json::from_str(line).map_err(|error| plain(&error))?;

    let function = read.f.parse::<Function>();
    let value = read.value.map_or("{}", RawValue::get);

    let what = match (&*read.kind, function) {
        ("invoke", Ok(f)) => What::Invoke(call(f, value)?),
        ("ok", Ok(f)) => What::Ok(answer(f, value)?),
        ("fail", Ok(f)) => What::Fail { f, reason: parse_value::<ReasonField>(value)?.reason },
        ("info", Ok(f)) => What::Info { f, why: parse_value::<ReasonField>(value)?.reason },
        ("info", Err(())) => What::Fact(fact(&read.f, line, read.value.is_some())?),
        // An unknown operation must not be ignored: a violation could be missed.
        ("invoke" | "ok" | "fail", Err(())) => return Err(format!("operation {:?} is unknown", read.f)),
        (kind, _) => return Err(format!("type {kind:?} is not one of invoke, ok, fail, info")),
    };

    let event =
        Event { time_ns: read.time_ns, process: read.process.into_owned(), op: read.op, locks: read.lock, what };
    validate_locks(&event)?;
    Ok(event)
}

/// Writes an event as a line, without the line break.
pub(super) fn format(event: &Event) -> Result<String, serde_json::Error> {
    match &event.what {
        What::Invoke(call) => written(event, "invoke", call.function().name(), Some(call)),
        What::Ok(answer) => written(event, "ok", answer.function().name(), Some(answer)),
        What::Fail { f, reason } => written(event, "fail", f.name(), Some(ReasonField { reason: reason.clone() })),
        What::Info { f, why } => written(event, "info", f.name(), Some(ReasonField { reason: why.clone() })),
        What::Fact(Fact::Other { f }) => written(event, "info", f, None::<()>),
        What::Fact(fact) => {
            let fact = serde_json::to_value(fact)?;
            let f = fact.get("f").and_then(serde_json::Value::as_str).unwrap_or_default();
            written(event, "info", f, fact.get("value"))
        }
    }
}

/// The end of a line with an empty value, which is left out.
const EMPTY: &str = r#","value":{}}"#;

fn written(event: &Event, kind: &str, f: &str, value: Option<impl Serialize>) -> Result<String, serde_json::Error> {
    let lock = match &*event.locks {
        [] => None,
        [one] => Some(LockField::One(one)),
        many => Some(LockField::Many(many)),
    };

    let Event { time_ns, process, op, .. } = event;
    let mut text = serde_json::to_string(&WrittenLine { time_ns: *time_ns, process, kind, f, op: *op, lock, value })?;
    if text.ends_with(EMPTY) {
        text.replace_range(text.len() - EMPTY.len().., "}");
    }
    Ok(text)
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }

    Ok(match Option::<OneOrMany>::deserialize(deserializer)? {
        None => Vec::new(),
        Some(OneOrMany::One(lock)) => vec![lock],
        Some(OneOrMany::Many(locks)) => locks,
    })
}

fn parse_value<T: DeserializeOwned>(value: &str) -> Result<T, String> {
    serde_json::from_str(value).map_err(|error| format!("in value: {}", plain(&error)))
}

/// The message of serde without "line 1", which it reports for each line and which would be confusing.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(" at line ") {
        Some((what, _)) => what.to_owned(),
        None => text,
    }
}

fn call(f: Function, value: &str) -> Result<Call, String> {
    #[derive(Deserialize)]
    struct OfSession {
        session: Session,
    }
    #[derive(Deserialize)]
    struct Open {
        session: Session,
        ttl_ms: u64,
    }
    #[derive(Deserialize)]
    struct Request {
        session: Session,
        request: u64,
    }
    #[derive(Deserialize)]
    struct Cancel {
        session: Session,
        request: Option<u64>,
        op: Option<u64>,
    }

    #[derive(Deserialize)]
    struct Grant {
        session: Session,
        token: u64,
        data: Option<String>,
    }
    #[derive(Deserialize)]
    struct Check {
        token: u64,
    }
    #[derive(Deserialize)]
    struct Force {
        token: Option<u64>,
        #[serde(default)]
        now: bool,
    }

    #[derive(Deserialize)]
    struct Write {
        token: u64,
        #[serde(default)]
        mode: Mode,
        #[serde(default = "yes")]
        fenced: bool,
    }
    #[derive(Deserialize)]
    struct Set {
        from: Option<u64>,
        to: Option<u64>,
    }
    fn yes() -> bool {
        true
    }

    Ok(match f {
        Function::Open => parse_value(value).map(|Open { session, ttl_ms }| Call::Open { session, ttl_ms })?,
        Function::Renew => parse_value(value).map(|OfSession { session }| Call::Renew { session })?,
        Function::Close => parse_value(value).map(|OfSession { session }| Call::Close { session })?,
        Function::Acquire => Call::Acquire(parse_value::<Acquire>(value)?),
        Function::Retry => parse_value(value).map(|Request { session, request }| Call::Retry { session, request })?,
        Function::Cancel => {
            parse_value(value).map(|Cancel { session, request, op }| Call::Cancel { session, request, op })?
        }
        Function::Release => parse_value(value).map(|Grant { session, token, .. }| Call::Release { session, token })?,
        Function::Update => {
            parse_value(value).map(|Grant { session, token, data }| Call::Update { session, token, data })?
        }
        Function::Get => Call::Get {},
        Function::Check => parse_value(value).map(|Check { token }| Call::Check { token })?,
        Function::ForceRelease => parse_value(value).map(|Force { token, now }| Call::ForceRelease { token, now })?,
        Function::Write => {
            parse_value(value).map(|Write { token, mode, fenced }| Call::Write { token, mode, fenced })?
        }
        Function::Read => Call::Read {},
        Function::Set => parse_value(value).map(|Set { from, to }| Call::Set { from, to })?,
        Function::Txn => Call::Txn(transaction(value)?),
    })
}

fn answer(f: Function, value: &str) -> Result<Answer, String> {
    #[derive(Deserialize)]
    struct Granted {
        token: u64,
        #[serde(default)]
        place_lost: bool,
    }
    #[derive(Deserialize)]
    struct Cancelled {
        found: CancelFound,
    }
    #[derive(Deserialize)]
    struct Checked {
        held: bool,
    }

    #[derive(Deserialize)]
    struct Forced {
        revoked: Vec<u64>,
    }
    #[derive(Deserialize)]
    struct Written {
        seq: Option<u64>,
    }
    #[derive(Deserialize)]
    struct Shown {
        value: Option<u64>,
    }

    Ok(match f {
        Function::Open => Answer::Open(parse_value::<Lease>(value)?),
        Function::Renew => Answer::Renew(parse_value::<Lease>(value)?),
        Function::Close => Answer::Close {},
        Function::Acquire => {
            parse_value(value).map(|Granted { token, place_lost }| Answer::Acquire { token, place_lost })?
        }
        Function::Retry => parse_value(value).map(|Granted { token, .. }| Answer::Retry { token })?,
        Function::Cancel => parse_value(value).map(|Cancelled { found }| Answer::Cancel { found })?,
        Function::Release => Answer::Release {},
        Function::Update => Answer::Update {},
        Function::Get => Answer::Get(parse_value::<View>(value)?),
        Function::Check => parse_value(value).map(|Checked { held }| Answer::Check { held })?,
        Function::ForceRelease => parse_value(value).map(|Forced { revoked }| Answer::ForceRelease { revoked })?,
        Function::Write => parse_value(value).map(|Written { seq }| Answer::Write { seq })?,
        Function::Read => parse_value(value).map(|Shown { value }| Answer::Read { value })?,
        Function::Set => Answer::Set {},
        Function::Txn => Answer::Txn(parse_value::<TxnAnswer>(value)?),
    })
}

fn transaction(value: &str) -> Result<Transaction, String> {
    let transaction = parse_value::<Transaction>(value)?;
    transaction.validate().map(|()| transaction)
}

const FACTS: [&str; 24] = [
    "meta",
    "renewed",
    "lost",
    "bystander",
    "died",
    "fault",
    "heal",
    "killed",
    "started",
    "stopped",
    "joined",
    "removed",
    "transferred",
    "elected",
    "snapshot_installed",
    "table",
    "speaks",
    "watching",
    "watched",
    "watch_progress",
    "watch_ended",
    "refused_entry",
    "longest_turn",
    "longest_apply",
];

fn fact(f: &str, line: &str, has_value: bool) -> Result<Fact, String> {
    match f {
        "end" => Ok(Fact::End),
        "restored" => Ok(Fact::Restored),
        "heal" if !has_value => Ok(Fact::Heal { name: None }),
        known if FACTS.contains(&known) => {
            serde_json::from_str(line).map_err(|error| format!("in the fact {f:?}: {}", plain(&error)))
        }
        other => Ok(Fact::Other { f: other.to_owned() }),
    }
}

/// Checks that the locks of a call fit the call.
fn validate_locks(event: &Event) -> Result<(), String> {
    let What::Invoke(call) = &event.what else { return Ok(()) };
    let locks = &event.locks;
    match call {
        Call::Acquire(Acquire { mode, .. }) => {
            let mut sorted: Vec<_> = locks.iter().collect();
            sorted.sort_unstable();

            if locks.is_empty() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err("an acquire names at least one lock, and each once".to_owned());
            }

            if (0..locks.len()).all(|place| mode.mode_at(place).is_some()) {
                Ok(())
            } else {
                Err(format!("an acquire of {} locks needs one mode, or one for each lock", locks.len()))
            }
        }
        Call::Get {} | Call::Check { .. } | Call::ForceRelease { .. } | Call::Write { .. } | Call::Update { .. }
            if locks.len() != 1 =>
        {
            Err(format!("{} names exactly one lock", call.function()))
        }
        Call::Read {} | Call::Set { .. } if locks.len() != 1 => {
            Err(format!("{} names exactly one register, as its lock", call.function()))
        }
        Call::Open { .. }
        | Call::Renew { .. }
        | Call::Close { .. }
        | Call::Retry { .. }
        | Call::Cancel { .. }
        | Call::Release { .. }
        | Call::Get {}
        | Call::Check { .. }
        | Call::ForceRelease { .. }
        | Call::Write { .. }
        | Call::Read {}
        | Call::Set { .. }
        | Call::Txn(_)
        | Call::Update { .. } => Ok(()),
    }
}
