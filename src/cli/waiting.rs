//! Progress of a wait on a terminal: one line on stderr, updated in place about once a second, and erased after the
//! wait.
//!
//! Nothing is shown if stderr is not a terminal, since a log cannot update a line and `lockkeeper get` gives the same
//! information; nor in the background, where it would disturb the foreground program; nor during the first second.

use std::{
    io::{self, IsTerminal as _},
    pin::pin,
    time::Duration,
};

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::{show, terminal::ProgressLine};
use crate::{
    client::{Client, LockInfo, Session},
    machine::SessionId,
};

/// Interval of the updates, and delay of the first one.
const BETWEEN: Duration = Duration::from_secs(1);

/// How long the cluster may take to answer. Later answers are dropped.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Runs `wait`, for these locks and this session, and shows its progress. Cancel safe if `wait` is.
pub(super) async fn shown<T>(client: &Client, session: &Session, names: &[String], wait: impl Future<Output = T>) -> T {
    if !io::stderr().is_terminal() {
        return wait.await;
    }
    let mut wait = pin!(wait);
    let session = session.id();
    let began = Instant::now();
    let mut line = ProgressLine::default();

    loop {
        let look = async {
            sleep(BETWEEN).await;
            obstacle(client, session, names).await
        };
        tokio::select! {
            biased;
            over = &mut wait => return over,
            obstacle = look => {
                let waited = show::duration(Duration::from_secs(began.elapsed().as_secs()));
                line.show(&format!("lockkeeper: waiting for {waited}: {obstacle}"));
            }
        }
    }
}

/// Describes the first lock that is not available.
async fn obstacle(client: &Client, session: SessionId, names: &[String]) -> String {
    let locks = join_all(names.iter().map(|name| client.get(name)));
    match timeout(ANSWER_MAX, locks).await {
        Ok(answers) => {
            let locks = answers.into_iter().filter_map(|answer| Some(answer.ok()?.lock));
            let told = locks.filter_map(|lock| why_unavailable(&lock, session)).next();
            told.unwrap_or_else(|| "all locks are available now".to_owned())
        }
        Err(_) => "the cluster does not answer".to_owned(),
    }
}

/// Describes why this lock is not available; `None` if it is.
fn why_unavailable(lock: &LockInfo, session: SessionId) -> Option<String> {
    let ours = lock.waiters.iter().find(|waiter| waiter.session_id == session).map(|waiter| waiter.ticket);
    let ahead = ours.map(|ours| lock.waiters.iter().filter(|waiter| waiter.ticket < ours).count());
    let state = match (lock.holders.first(), lock.delay_remaining) {
        (Some(holder), _) => {
            let others = lock.holder_count.saturating_sub(1);
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            format!("held by {}{others}", show::cell(&holder.label))
        }
        (None, Some(left)) => format!("closed for another {}", show::duration(left)),
        (None, None) if ahead.is_some_and(|ahead| ahead > 0) => "free".to_owned(),
        (None, None) => return None,
    };

    let place = match ahead {
        Some(ahead) => format!("place {} of {}", ahead + 1, lock.queue_length),
        None => format!("{} in the queue", lock.queue_length),
    };

    Some(format!("{} is {state}; {place}", show::cell(lock.name.as_str())))
}

#[cfg(test)]
mod tests {
    use super::{
        super::views::tests::{holder, lock_without_holders, waiter},
        *,
    };

    const US: SessionId = SessionId(1);
    const BOB: SessionId = SessionId(2);

    fn lock(holders: &[&str], waiters: &[SessionId]) -> LockInfo {
        LockInfo {
            holders: holders.iter().map(|label| holder(7, label)).collect(),
            holder_count: holders.len() as u64,
            waiters: waiters.iter().zip(1..).map(|(session, ticket)| waiter(ticket, *session)).collect(),
            queue_length: waiters.len() as u64,
            ..lock_without_holders("jobs")
        }
    }

    #[test]
    fn who_holds_it_and_how_many_are_ahead() {
        let for_us = |lock: &LockInfo| why_unavailable(lock, US);
        assert_eq!(for_us(&lock(&["ann"], &[BOB, US])).unwrap(), "jobs is held by ann; place 2 of 2");
        let shared = lock(&["ann\x1b", "bob"], &[US]);
        assert_eq!(for_us(&shared).unwrap(), "jobs is held by ann\\u{1b} and 1 more; place 1 of 1");
        let delayed = LockInfo { delay_remaining: Some(Duration::from_secs(2)), ..lock(&[], &[US]) };
        assert_eq!(for_us(&delayed).unwrap(), "jobs is closed for another 2.0 s; place 1 of 1");
        assert_eq!(for_us(&lock(&[], &[BOB, US])).unwrap(), "jobs is free; place 2 of 2");
    }

    #[test]
    fn a_lock_that_is_ours_for_the_taking_is_no_obstacle() {
        assert_eq!(why_unavailable(&lock(&[], &[]), US), None);
        assert_eq!(why_unavailable(&lock(&[], &[US]), US), None);
    }
}
