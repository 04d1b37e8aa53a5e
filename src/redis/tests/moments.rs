//! TIME, and deadlines that are times since 1970: by the clock of the node that leads, and never back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{Api, Memory, NOW_US, RedisNode, RedisOptions, Scripted, words};

const HOUR_US: u64 = 3_600_000_000;

/// The reply to TIME.
fn time_us(us: u64) -> String {
    let parts = [us / 1_000_000, us % 1_000_000].map(|part| part.to_string());
    let shown = parts.map(|part| format!("${}|{part}|", part.len()));
    format!("*2|{}", shown.concat())
}

#[tokio::test(start_paused = true)]
async fn what_depends_on_a_clock_runs_at_the_leader() {
    let store = Memory::default();
    store.follow();
    let mut api = Api::over(store.clone());
    for line in ["TIME", "EXPIRETIME k", "PEXPIRETIME k", "SET k v NX EXAT 4000000000", "SET l v NX PXAT 4000000000000"]
    {
        let before = store.given().len();
        api.call(line).await;
        assert_eq!(store.given().len(), before + 1, "{line}");
    }

    let before = store.given().len();
    api.pipeline(["GET k", "TIME", "GET l"].map(words).to_vec()).await.expect("it goes on");
    assert_eq!(store.given().len(), before + 1, "one unit");
}

/// A holder in a sorted set by time would lose its place early.
#[tokio::test(start_paused = true)]
async fn the_time_is_not_before_what_an_earlier_leader_has_committed() {
    let ahead_us = NOW_US + 5_000_000;
    let script = || vec![b"EVAL".to_vec(), b"time".to_vec(), b"0".to_vec()];
    for (first, told) in [
        (words("TIME"), time_us(ahead_us)),
        (script(), time_us(ahead_us)),
        (words("SET k v PXAT 1735689605000"), "+OK|".to_owned()),
    ] {
        let store = Memory::default();
        let mut api = Api::over(store.clone());
        // This node leads since now, and applies what was committed before with its first read.
        store.commit_at(ahead_us / 1000);
        assert_eq!(api.request(first).await, told);
        // That deadline has passed.
        assert_eq!(api.call("EXISTS k").await, ":0|");

        api.call("SET k v PX 60000").await;
        let end_ms = ahead_us / 1000 + 60_000;
        assert_eq!(api.call("PEXPIRETIME k").await, format!(":{end_ms}|"));
        assert_eq!(api.call("TIME").await, time_us(ahead_us), "it stands still until the clock has come there");
    }
}

/// Otherwise the time would stand still for as long as a clock was wrong.
#[tokio::test(start_paused = true)]
async fn a_clock_that_was_wrong_by_hours_is_not_followed() {
    let store = Memory::default();
    let clock = Arc::new(AtomicU64::new(NOW_US));
    let mut api = with_clock(&store, &clock);
    store.commit_at((NOW_US + 2 * HOUR_US) / 1000);
    assert_eq!(api.call("TIME").await, time_us(NOW_US));

    // When this node's clock comes near, the time must not jump.
    for passed_us in [HOUR_US, HOUR_US + HOUR_US / 2, 2 * HOUR_US] {
        clock.store(NOW_US + passed_us, Ordering::Relaxed);
        assert_eq!(api.call("TIME").await, time_us(NOW_US + passed_us));
    }
}

/// What was told is no less when the log says something impossible.
#[tokio::test(start_paused = true)]
async fn the_time_does_not_go_back_because_another_clock_is_wrong() {
    let store = Memory::default();
    let clock = Arc::new(AtomicU64::new(NOW_US));
    let mut api = with_clock(&store, &clock);
    store.commit_at((NOW_US + HOUR_US) / 1000);
    assert_eq!(api.call("TIME").await, time_us(NOW_US + HOUR_US));
    store.commit_at((NOW_US + HOUR_US) / 1000 + 1);
    assert_eq!(api.call("TIME").await, time_us(NOW_US + HOUR_US));

    // This node's own clock was the wrong one, and was set back.
    clock.store(NOW_US - 1, Ordering::Relaxed);
    assert_eq!(api.call("TIME").await, time_us(NOW_US - 1));
}

fn with_clock(store: &Memory, clock: &Arc<AtomicU64>) -> Api {
    let clock = Arc::clone(clock);
    let options = RedisOptions::new(move || clock.load(Ordering::Relaxed), 7);
    Api::at(store.clone(), Arc::new(RedisNode::new(store.clone(), Arc::new(Scripted), options)))
}
