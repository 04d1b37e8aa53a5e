//! Clients that wait for items of lists. An item is given to one of them, or is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use futures::future::join_all;
use lockkeeper::transport::KEEP_ALIVE;
use rand::{Rng as _, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep};

use super::{SETTLED, WaitingClient};
use crate::{
    contenders::LIMIT,
    redis::{Connection, Reply},
};

/// Lists whose items are popped.
const POPPED: [&str; 2] = ["items/a", "items/b"];
/// A list whose items are moved, so that no answer that is lost loses one.
const MOVED: &str = "items/moved";
/// Where they are moved to.
const TARGET: &str = "items/target";
/// A list for clients that come one after the other.
const IN_TURN: &str = "items/in-turn";
const WAITERS_IN_TURN: u64 = 3;
/// In which a client has its place in a queue, when there are no faults.
const PLACED: Duration = Duration::from_secs(1);

/// How a client waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WayToPop {
    FirstOfBoth,
    Last,
    Move,
    /// It goes away before it is answered.
    Leave,
}

impl WayToPop {
    const ALL: [Self; 4] = [Self::FirstOfBoth, Self::Last, Self::Move, Self::Leave];
}

/// What became of a push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pushed {
    Done,
    Refused,
    Unknown,
}

#[derive(Default)]
pub(super) struct ItemsJudge(Mutex<ItemsSeen>);

#[derive(Default)]
struct ItemsSeen {
    /// By list and item.
    pushed: BTreeMap<(&'static str, String), Pushed>,
    popped: BTreeSet<(&'static str, String)>,
    /// Clients that may have taken an item of which nobody knows, by list.
    unknown_pops: BTreeMap<&'static str, usize>,
    timeouts: u64,
    complaints: Vec<String>,
}

impl ItemsJudge {
    pub(super) fn complaints(&self) -> Vec<String> {
        self.seen().complaints.clone()
    }

    pub(super) fn counts(&self) -> [(&'static str, u64); 3] {
        let seen = self.seen();
        let taken =
            |are_moved: bool| seen.popped.iter().filter(|(list, _)| (*list == MOVED) == are_moved).count() as u64;
        [
            ("items of Redis' lists popped", taken(false)),
            ("items of Redis' lists moved", taken(true)),
            ("waits for items of Redis' that timed out", seen.timeouts),
        ]
    }

    fn seen(&self) -> MutexGuard<'_, ItemsSeen> {
        self.0.lock().expect("nothing panics while it has the items")
    }
}

impl ItemsSeen {
    fn take(&mut self, list: &'static str, item: &str) {
        let key = (list, item.to_owned());
        if !matches!(self.pushed.get(&key), Some(Pushed::Done | Pushed::Unknown)) {
            self.complaints.push(format!("{item} was taken from {list}, and nobody had put it there"));
        }
        if !self.popped.insert(key) {
            self.complaints.push(format!("{item} of {list} was given to two clients"));
        }
    }

    /// What is in the lists at the end. Returns what cannot be.
    fn compare(&self, left: &BTreeMap<&'static str, Vec<String>>, moved: &[String]) -> Vec<String> {
        let mut complaints = Vec::new();
        for list in POPPED.into_iter().chain([MOVED]) {
            let left = left.get(list).map(Vec::as_slice).unwrap_or_default();
            let pushed =
                || self.pushed.iter().filter(|((other, _), _)| *other == list).map(|((_, item), how)| (item, *how));

            let mut gone = 0;
            for (item, how) in pushed() {
                let taken = if list == MOVED {
                    moved.iter().filter(|other| *other == item).count()
                } else {
                    usize::from(self.popped.contains(&(list, item.clone())))
                };
                let places = taken + left.iter().filter(|other| *other == item).count();
                if places > 1 || (places == 1 && how == Pushed::Refused) {
                    complaints.push(format!("{item} of {list}, {how:?}, is there {places} times"));
                }
                gone += usize::from(places == 0 && how == Pushed::Done);
            }
            let unknown = if list == MOVED { 0 } else { self.unknown_pops.get(list).copied().unwrap_or_default() };
            if gone > unknown {
                complaints.push(format!("{gone} items of {list} are gone, and {unknown} clients may have taken one"));
            }
        }

        let told = self.popped.iter().filter(|(list, _)| *list == MOVED).map(|(_, item)| item);
        let untrue = told.filter(|item| !moved.contains(*item));
        complaints.extend(untrue.map(|item| format!("{item} was said to be moved, and is not in its target")));
        complaints
    }
}

/// Puts items into the lists until the run is over.
pub(super) async fn push(mut client: WaitingClient, judge: &ItemsJudge) {
    let mut number = 0;
    while !client.finish.is_cancelled() {
        if let Some(mut connection) = client.open().await {
            while !client.finish.is_cancelled() {
                number += 1;
                let list = *[POPPED[0], POPPED[1], MOVED].choose(&mut client.random).expect("it is not empty");
                let item = format!("{}-{number}", client.name);
                judge.seen().pushed.insert((list, item.clone()), Pushed::Unknown);

                let reply = connection.ask(&["RPUSH", list, &item]).await;
                let how = match &reply {
                    Some(Reply::Number(_)) => Pushed::Done,
                    Some(_) => Pushed::Refused,
                    None => break,
                };
                judge.seen().pushed.insert((list, item), how);
                client.pause(100..900).await;
            }
        }
        client.pause(50..250).await;
    }
}

/// Waits for items until the run is over.
pub(super) async fn pop(mut client: WaitingClient, judge: &ItemsJudge) {
    while !client.finish.is_cancelled() {
        if let Some(mut connection) = client.open().await {
            while !client.finish.is_cancelled() && pop_once(&mut client, &mut connection, judge).await.is_some() {
                client.pause(5..150).await;
            }
        }
        client.pause(50..250).await;
    }
}

/// `None`: no further request may be sent on this connection.
async fn pop_once(client: &mut WaitingClient, connection: &mut Connection, judge: &ItemsJudge) -> Option<()> {
    let way = *WayToPop::ALL.choose(&mut client.random).expect("it is not empty");
    let timeout = Duration::from_millis(client.random.random_range(100..3_000));
    let seconds = timeout.as_secs_f64().to_string();
    let patience = timeout + LIMIT;
    let reply = match way {
        WayToPop::FirstOfBoth => connection.ask_within(&["BLPOP", POPPED[0], POPPED[1], &seconds], patience).await,
        WayToPop::Last => connection.ask_within(&["BRPOP", POPPED[0], &seconds], patience).await,
        WayToPop::Move => connection.ask_within(&["BLMOVE", MOVED, TARGET, "LEFT", "RIGHT", &seconds], patience).await,
        WayToPop::Leave => {
            let until = Duration::from_millis(client.random.random_range(1..2_000));
            connection.ask_within(&["BLPOP", POPPED[1], "0"], until).await
        }
    };

    let mut seen = judge.seen();
    match reply {
        Some(Reply::Array(Some(parts))) => {
            let [Reply::Bulk(Some(list)), Reply::Bulk(Some(item))] = &parts[..] else { return None };
            let list = POPPED.into_iter().find(|name| name == list)?;
            seen.take(list, item);
        }
        Some(Reply::Bulk(Some(item))) => seen.take(MOVED, &item),
        Some(Reply::Array(None) | Reply::Bulk(None)) => seen.timeouts += 1,
        // Nothing was done.
        Some(Reply::Refusal(_)) => {}
        Some(Reply::Line(_) | Reply::Number(_)) | None => {
            let asked: &[&'static str] = match way {
                WayToPop::FirstOfBoth => &POPPED,
                WayToPop::Last => &POPPED[..1],
                WayToPop::Leave => &POPPED[1..],
                WayToPop::Move => &[MOVED],
            };
            asked.iter().for_each(|list| *seen.unknown_pops.entry(list).or_default() += 1);
            return None;
        }
    }
    Some(())
}

/// Finds each item once, after the last fault. What a client of a dead connection was given comes back within some seconds.
pub(super) async fn look_at_all(mut client: WaitingClient, judge: &ItemsJudge) {
    let until = Instant::now() + SETTLED;
    loop {
        let mut left = BTreeMap::new();
        for list in POPPED.into_iter().chain([MOVED, TARGET]) {
            let Some(Reply::Array(Some(items))) = client.insist(&["LRANGE", list, "0", "-1"]).await else {
                judge.seen().complaints.push(format!("{list} could not be read at the end"));
                return;
            };
            let text = |item: Reply| if let Reply::Bulk(text) = item { text } else { None };
            left.insert(list, items.into_iter().filter_map(text).collect::<Vec<_>>());
        }

        let moved = left.remove(TARGET).unwrap_or_default();
        let complaints = judge.seen().compare(&left, &moved);
        if complaints.is_empty() || Instant::now() > until {
            judge.seen().complaints.extend(complaints);
            break;
        }
        sleep(Duration::from_millis(500)).await;
    }
    client.insist(&["DEL", POPPED[0], POPPED[1], MOVED, TARGET]).await;
}

/// Clients at any nodes that come one after the other are served in that order, when there are no faults.
pub(super) async fn wait_in_turn(mut client: WaitingClient, judge: &ItemsJudge) {
    // A connection between nodes that a fault has cut is known to be dead by then.
    sleep(KEEP_ALIVE * 2).await;
    let seats: Vec<_> = (0..WAITERS_IN_TURN).map(|_| client.random.random_range(1..=client.seats)).collect();
    let waiters = join_all((0..).zip(&seats).map(|(number, seat)| async move {
        sleep(PLACED * number).await;
        let mut connection = Connection::open(*seat).await.ok()?;
        connection.ask_within(&["BLPOP", IN_TURN, "15"], SETTLED).await
    }));
    let pushes = async {
        sleep(PLACED * (WAITERS_IN_TURN as u32)).await;
        for number in 0..WAITERS_IN_TURN {
            client.insist(&["RPUSH", IN_TURN, &number.to_string()]).await;
        }
    };

    let (replies, ()) = tokio::join!(waiters, pushes);
    for (number, reply) in replies.into_iter().enumerate() {
        let bulk = |text: String| Reply::Bulk(Some(text));
        let expected = Reply::Array(Some(vec![bulk(IN_TURN.to_owned()), bulk(number.to_string())]));
        if reply.as_ref() != Some(&expected) {
            let what = format!(
                "of {WAITERS_IN_TURN} clients that waited at the nodes {seats:?}, number {number} was answered {reply:?}"
            );
            judge.seen().complaints.push(what);
        }
    }
}
