//! What holds in every scenario: A2, A3 and A4 of `src/clients/conformance/README.md`.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::Instant;

use crate::fake::arrivals::{Arrival, Method};

/// A2 and A3: ids of requests and of sessions, and sequence numbers.
pub(crate) fn check_arrivals(arrivals: &[Arrival]) -> Result<(), String> {
    check_contents(arrivals)?;
    check_views(arrivals)?;
    check_sequences(arrivals)?;
    check_sessions(arrivals)
}

/// No id is used for two requests.
fn check_contents(arrivals: &[Arrival]) -> Result<(), String> {
    let mut known: BTreeMap<(&str, u64), (Method, &str)> = BTreeMap::new();
    for arrival in arrivals {
        let (Some(request), Some(session)) = (&arrival.request, arrival.fields.get("session")) else { continue };
        let asked = (arrival.method, &*arrival.content);
        let first = *known.entry((session, request.id)).or_insert(asked);
        if first != asked {
            return Err(format!("A2: the id {} is used for two requests: {first:?}, {asked:?}", request.id));
        }
    }
    Ok(())
}

/// Ids begin at 1, and each view of the open ids has the request's own.
fn check_views(arrivals: &[Arrival]) -> Result<(), String> {
    for arrival in arrivals {
        let requests = [Method::Acquire, Method::Release, Method::Update];
        if !requests.contains(&arrival.method) {
            continue;
        }
        let Some(request) = &arrival.request else {
            return Err(format!("A2: a request of a session has no id: {}", arrival.show()));
        };
        let is_own_open = request.lowest <= request.id || request.kept.contains(&request.id);
        let is_sorted = request.kept.windows(2).all(|pair| pair[0] < pair[1]);
        let is_below = request.kept.iter().all(|kept| *kept < request.lowest);
        if request.id == 0 || !is_own_open || !is_sorted || !is_below {
            return Err(format!("A2: the id and its view do not fit: {}", arrival.show()));
        }
    }
    Ok(())
}

fn check_sequences(arrivals: &[Arrival]) -> Result<(), String> {
    let mut last: BTreeMap<(Option<u64>, &str), u64> = BTreeMap::new();
    for arrival in arrivals.iter().filter(|arrival| arrival.method == Method::KeepAlive) {
        let session = arrival.fields.get("session").map(String::as_str).unwrap_or_default();
        let sequence = arrival.fields.get("sequence").and_then(|sequence| sequence.parse().ok()).unwrap_or_default();
        let before = last.insert((arrival.stream, session), sequence);
        if before.is_some_and(|before| before >= sequence) {
            return Err(format!("A2: sequence numbers do not rise on a stream: {}", arrival.show()));
        }
    }
    Ok(())
}

/// Sessions have ids of their own, drawn by the client.
fn check_sessions(arrivals: &[Arrival]) -> Result<(), String> {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for arrival in arrivals.iter().filter(|arrival| arrival.method == Method::Open) {
        let session = arrival.fields.get("session").map(String::as_str).unwrap_or_default();
        if session.len() != 32 || !session.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("A3: {session:?} is no session id that the client drew"));
        }
        let first = *known.entry(session).or_insert(&*arrival.content);
        if first != arrival.content {
            return Err(format!("A3: the session id {session} is used for two sessions"));
        }
    }
    Ok(())
}

/// A4: no loss is told twice, and none of a lock that the program has released.
pub(crate) fn check_losses(events: &[(Value, Instant)], released: &BTreeMap<String, Instant>) -> Result<(), String> {
    let mut told = BTreeMap::new();
    for (event, at) in events.iter().filter(|(event, _)| event["event"] == "lost") {
        let lock = event["lock"].as_str().unwrap_or_default();
        if told.insert(lock.to_owned(), ()).is_some() {
            return Err(format!("A4: the loss of {lock} is told twice: {event}"));
        }
        // A loss just before the release is no mistake: both may be under way.
        let slack = std::time::Duration::from_secs(1);
        if released.get(lock).is_some_and(|began| *at > *began + slack) {
            return Err(format!("A4: the loss of {lock} is told after its release: {event}"));
        }
    }
    Ok(())
}
