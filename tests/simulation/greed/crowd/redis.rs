//! Redis' clients that have their node keep more than it may.

use std::time::Duration;

use futures::future::join_all;
use lockkeeper::machine::Key;
use tokio::time::timeout;

use super::super::{LIMIT, TTL_MS, refusals::RefusalJudge};
use crate::redis::{Connection, Reply};

/// Commands of a transaction, watched keys, and channels.
const COMMANDS: usize = 30;
const WATCHED: usize = 20;
const CHANNELS: usize = 20;
/// Bytes of a value within a transaction, of large values, and their number at one time.
const VALUE_BYTES: usize = 100;
const LARGE_BYTES: usize = 30_000;
const LARGE: usize = 5;
/// How often a large value is asked for at one time.
const READS: usize = 12;
/// What one exchange of many may take.
const EXCHANGES: Duration = Duration::from_secs(2);

/// Comes to the limits of the port at this seat.
pub(super) async fn crowd(refusals: &RefusalJudge, id: u64, seat: u64) {
    let transaction = within(seat, async |connection| queue(connection, refusals, id).await);
    let watched = within(seat, async |connection| watch(connection, id).await);
    let subscribed = within(seat, async |connection| subscribe(connection, id).await);
    let large = join_all((0..LARGE).map(|number| {
        within(seat, async move |connection| put_and_read(connection, refusals, &format!("{id}:large:{number}")).await)
    }));
    tokio::join!(transaction, watched, subscribed, large);
}

/// Does this by a connection of its own, as far as there are answers.
async fn within(seat: u64, exchange: impl AsyncFnOnce(&mut Connection) -> Option<()>) {
    let Ok(Ok(mut connection)) = timeout(LIMIT, Connection::open(seat)).await else { return };
    let _ = timeout(EXCHANGES, exchange(&mut connection)).await;
}

/// Queues commands until one is refused. Then nothing of the transaction may take effect.
async fn queue(connection: &mut Connection, refusals: &RefusalJudge, id: u64) -> Option<()> {
    if connection.ask(&["MULTI"]).await? != Reply::Line("OK".to_owned()) {
        return None;
    }
    let value = "q".repeat(VALUE_BYTES);
    let mut keys = Vec::new();
    let mut is_refused = false;
    while keys.len() < COMMANDS && !is_refused {
        let key = key_of_crowd(&format!("{id}:queued:{}", keys.len()));
        let answer = connection.ask(&["SET", &key, &value, "PX", &TTL_MS.to_string()]).await?;
        is_refused = matches!(answer, Reply::Refusal(_));
        keys.push(key);
    }

    match connection.ask(&["EXEC"]).await? {
        Reply::Refusal(_) if is_refused => keys.iter().for_each(|key| refusals.unmade(stored(key))),
        Reply::Array(Some(answers)) if !is_refused => {
            let done = keys.iter().zip(&answers).filter(|(_, answer)| **answer == Reply::Line("OK".to_owned()));
            done.for_each(|(key, _)| refusals.made_once(stored(key)));
        }
        // It had no effect, or nobody knows.
        Reply::Refusal(_) => {}
        answer @ (Reply::Line(_) | Reply::Number(_) | Reply::Bulk(_) | Reply::Array(_)) => {
            refusals.complain(format!("EXEC was answered by {answer:?}, and a command refused: {is_refused}"))
        }
    }
    Some(())
}

/// Watches keys until one is refused, and gives them up.
async fn watch(connection: &mut Connection, id: u64) -> Option<()> {
    for number in 0..WATCHED {
        let key = key_of_crowd(&format!("{id}:watched:{number}"));
        if matches!(connection.ask(&["WATCH", &key]).await?, Reply::Refusal(_)) {
            break;
        }
    }
    connection.ask(&["UNWATCH"]).await.map(drop)
}

/// Subscribes to channels until one is refused.
async fn subscribe(connection: &mut Connection, id: u64) -> Option<()> {
    for number in 0..CHANNELS {
        let channel = key_of_crowd(&format!("{id}:channel:{number}"));
        if matches!(connection.ask(&["SUBSCRIBE", &channel]).await?, Reply::Refusal(_)) {
            break;
        }
    }
    Some(())
}

/// Puts a large value, and asks for it often before it reads an answer.
async fn put_and_read(connection: &mut Connection, refusals: &RefusalJudge, name: &str) -> Option<()> {
    let key = key_of_crowd(name);
    let value = "v".repeat(LARGE_BYTES);
    match connection.ask(&["SET", &key, &value, "PX", &TTL_MS.to_string()]).await? {
        Reply::Line(_) => refusals.made_once(stored(&key)),
        Reply::Refusal(why) => {
            // Only an answer that says so means that nothing was done.
            if why.contains("nothing was done") || why.contains("take all memory") {
                refusals.unmade(stored(&key));
            }
            return None;
        }
        answer @ (Reply::Number(_) | Reply::Bulk(_) | Reply::Array(_)) => {
            refusals.complain(format!("SET was answered by {answer:?}"));
        }
    }

    for _ in 0..READS {
        connection.send(&["GET", &key]).await.ok()?;
    }
    // Simulated time, in which the node answers all that it has room for and nobody reads.
    tokio::time::sleep(super::super::PAUSE * 5).await;
    for _ in 0..READS {
        connection.reply().await.ok()?;
    }
    Some(())
}

fn key_of_crowd(name: &str) -> String {
    format!("crowd:{name}")
}

/// The key in the store.
fn stored(key: &str) -> Key {
    Key::new(format!("redis/0/{key}").as_bytes()).expect("it is short")
}
