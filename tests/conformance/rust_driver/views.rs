//! The steps that look: locks, leaders, changes.

use lockkeeper_client::{Change, ChangeKind, Client, Error, Leader, StatePart, WatchMessage};
use serde_json::{Value, json};

use super::text;

fn shown(data: Option<&[u8]>) -> Option<String> {
    data.map(|data| String::from_utf8_lossy(data).into_owned())
}

pub(super) async fn get(client: &Client, step: &Value) -> Result<Value, Error> {
    let lock = client.get(&text(step, "name")).await?.lock;
    let holders: Vec<u64> = lock.holders.iter().map(|holder| holder.token.0).collect();
    Ok(
        json!({ "outcome": "lock", "holders": holders, "queue": lock.queue_length, "data": shown(lock.data.as_deref()) }),
    )
}

pub(super) async fn leader(client: &Client, step: &Value) -> Result<Value, Error> {
    let leader = client.election(&text(step, "name"))?.leader().await?;
    let mut outcome = show_leader(leader.as_ref());
    outcome["outcome"] = json!("leader");
    Ok(outcome)
}

fn show_leader(leader: Option<&Leader>) -> Value {
    let value = leader.map(|leader| String::from_utf8_lossy(&leader.value).into_owned());
    json!({ "epoch": leader.map(|leader| leader.epoch.0), "value": value })
}

pub(super) fn observe(client: &Client, step: &Value) -> Result<Value, Error> {
    let mut observed = client.election(&text(step, "name"))?.observe();
    let of = text(step, "as");
    tokio::spawn(async move {
        loop {
            match observed.next().await {
                Ok(leader) => {
                    let mut event = show_leader(leader.as_ref());
                    event["event"] = json!("leader");
                    event["of"] = json!(of);
                    println!("{event}");
                }
                Err(error) => eprintln!("observer {of}: {error}"),
            }
        }
    });
    Ok(json!({ "outcome": "observing" }))
}

pub(super) fn watch(client: &Client, step: &Value) -> Value {
    let mut watched = client.watch(&text(step, "prefix"));
    let of = text(step, "as");
    tokio::spawn(async move {
        let mut names: Vec<String> = Vec::new();
        loop {
            match watched.next().await {
                Ok(WatchMessage::State(part)) => tell_state(&of, &mut names, &part),
                Ok(WatchMessage::Changes(changes)) => {
                    changes.changes.iter().for_each(|change| tell_change(&of, change))
                }
                Ok(_) => {}
                Err(error) => eprintln!("watch {of}: {error}"),
            }
        }
    });
    json!({ "outcome": "watching" })
}

/// Tells the state once its last part has come.
fn tell_state(of: &str, names: &mut Vec<String>, part: &StatePart) {
    if part.first {
        names.clear();
    }
    let held = part.locks.iter().filter(|lock| lock.holder_count > 0);
    names.extend(held.map(|lock| lock.name.as_str().to_owned()));
    if part.last {
        println!("{}", json!({ "event": "state", "of": of, "names": names }));
    }
}

fn tell_change(of: &str, change: &Change) {
    let kind = match change.kind {
        ChangeKind::Granted => "granted",
        ChangeKind::Released => "released",
        ChangeKind::Lost => "lost",
        ChangeKind::Revoked => "revoked",
        ChangeKind::Queued => "queued",
        ChangeKind::Left => "left",
        ChangeKind::Data => "data",
        ChangeKind::Delayed => "delayed",
        ChangeKind::Opened => "opened",
        ChangeKind::Resized => "resized",
        ChangeKind::Other(_) | _ => "other",
    };
    let token = change.token.map(|token| token.0);
    println!("{}", json!({ "event": "change", "of": of, "kind": kind, "name": change.name.as_str(), "token": token }));
}
