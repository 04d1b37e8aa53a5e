//! Mutations that make a correct history wrong, each as a broken service would, and none as a client could.

#![expect(clippy::ptr_arg, reason = "all mutations have one type, and some take lines away")]

use std::collections::HashMap;

use lockkeeper::chaos::history::{Answer, Call, Event, Fact, Function, Holder, What};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

/// Changes the events; `None` if there is no event to change.
pub(crate) type Mutation = fn(&mut Vec<Event>, &mut StdRng) -> Option<()>;

pub(crate) const ALL: [(&str, Mutation); 11] = [
    ("two tokens swapped", swap_tokens),
    ("a token given again", repeat_token),
    ("a release that had not happened", drop_release),
    ("a grant before the holder let go", grant_early),
    ("a holder missing in a read", forget_holder),
    ("a holder that had released, in a read", remember_holder),
    ("a wait without an end", drop_end_of_wait),
    ("an old token accepted", accept_old_token),
    ("a retry with another token", retry_differs),
    ("a table that differs", change_table),
    ("a loss that is not told", leave_untold),
];

/// The positions of an operation's begin and end among the events.
#[derive(Clone, Copy)]
struct Pair {
    begin: usize,
    end: usize,
}

fn pairs(events: &[Event]) -> Vec<Pair> {
    let mut open = HashMap::new();
    let mut pairs = Vec::new();
    for (place, event) in events.iter().enumerate() {
        let who = (event.process.clone(), event.op);
        match &event.what {
            What::Invoke(_) => {
                open.insert(who, place);
            }
            What::Ok(_) | What::Fail { .. } | What::Info { .. } => {
                pairs.extend(open.remove(&who).map(|begin| Pair { begin, end: place }));
            }
            What::Fact(_) => {}
        }
    }
    pairs
}

/// The acquires that were granted, and their tokens.
fn grants(events: &[Event]) -> Vec<(Pair, u64)> {
    let token = |pair: Pair| {
        let What::Ok(Answer::Acquire { token, .. }) = &events[pair.end].what else { return None };
        Some((pair, *token))
    };
    pairs(events).into_iter().filter_map(token).collect()
}

fn set_token(event: &mut Event, to: u64) {
    if let What::Ok(Answer::Acquire { token, .. } | Answer::Retry { token }) = &mut event.what {
        *token = to;
    }
}

fn release_of(events: &[Event], of: u64) -> Option<Pair> {
    pairs(events).into_iter().find(|pair| {
        let released = matches!(&events[pair.end].what, What::Ok(Answer::Release {}));
        released && matches!(&events[pair.begin].what, What::Invoke(Call::Release { token, .. }) if *token == of)
    })
}

fn swap_tokens(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let grants = grants(events);
    let (first, token) = *grants.choose(random)?;
    let (second, other) = *grants.choose(random).filter(|(_, other)| *other != token)?;
    set_token(&mut events[first.end], other);
    set_token(&mut events[second.end], token);
    Some(())
}

fn repeat_token(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let grants = grants(events);
    let (_, token) = *grants.choose(random)?;
    let (pair, _) = *grants.choose(random).filter(|(_, other)| *other != token)?;
    set_token(&mut events[pair.end], token);
    Some(())
}

/// The service passed the lock on without a release.
fn drop_release(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let (pair, token) = *grants(events).choose(random)?;
    let release = release_of(events, token)?;
    // Only where an exclusive grant follows within 15 ms: otherwise the mutation may leave no trace.
    let lock = events[pair.begin].locks.clone();
    let freed_ns = events[release.end].time_ns;
    let soon = grants(events).into_iter().any(|(next, _)| {
        let answered_ns = events[next.end].time_ns;
        events[next.begin].locks == lock && answered_ns > freed_ns && answered_ns < freed_ns + 15_000_000
    });
    if !soon || lock[0] == "shared" || lock[0] == "pool" {
        return None;
    }
    events.remove(release.end);
    events.remove(release.begin);
    Some(())
}

/// A waiter for an exclusive lock is granted just before the holder begins its release.
fn grant_early(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let grants = grants(events);
    let (holder, token) = *grants.choose(random)?;
    let release = release_of(events, token)?;
    let lock = events[holder.begin].locks.clone();
    let (waiter, _) = *grants.iter().find(|(next, other)| {
        let waits = next.begin < release.begin && next.end > release.begin;
        *other > token && events[next.begin].locks == lock && waits
    })?;
    if lock[0] == "shared" || lock[0] == "pool" || holder.end >= release.begin {
        return None;
    }
    let mut answer = events.remove(waiter.end);
    let at = release.begin;
    answer.time_ns = events[at].time_ns - 1;
    // Times must not decrease: the answer is inserted after the last event that is not later.
    let at = events[..at].iter().rposition(|event| event.time_ns <= answer.time_ns)? + 1;
    if at <= waiter.begin || at <= holder.end {
        return None;
    }
    events.insert(at, answer);
    Some(())
}

fn views(events: &[Event], wanted: impl Fn(&[Holder]) -> bool) -> Vec<usize> {
    let fits = |event: &Event| matches!(&event.what, What::Ok(Answer::Get(view)) if wanted(&view.holders));
    events.iter().enumerate().filter(|(_, event)| fits(event)).map(|(place, _)| place).collect()
}

fn forget_holder(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let place = *views(events, |holders| !holders.is_empty()).choose(random)?;
    if let What::Ok(Answer::Get(view)) = &mut events[place].what {
        view.holders.remove(0);
    }
    Some(())
}

fn remember_holder(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let read = *views(events, |_| true).choose(random)?;
    let begin = pairs(events).into_iter().find(|pair| pair.end == read)?.begin;
    let lock = events[begin].locks.clone();
    let gone = grants(events).into_iter().find(|(pair, token)| {
        let released = release_of(events, *token).is_some_and(|release| release.end < begin);
        released && events[pair.begin].locks == lock
    });
    let (grant, token) = gone?;
    let session = events[grant.begin].process.clone();
    if let What::Ok(Answer::Get(view)) = &mut events[read].what {
        view.holders.insert(0, Holder { token, session, mode: Default::default() });
    }
    Some(())
}

fn drop_end_of_wait(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let timed_out = |pair: &Pair| matches!(&events[pair.end].what, What::Fail { f: Function::Acquire, reason } if reason == "timed_out");
    let waits: Vec<_> = pairs(events).into_iter().filter(timed_out).collect();
    let wait = waits.choose(random)?;
    // The client waits without a limit: its other events go, and its renewals stay.
    let process = events[wait.end].process.clone();
    let from = wait.end;
    let mut place = 0;
    events.retain(|event| {
        place += 1;
        let renewed = matches!(&event.what, What::Fact(Fact::Renewed { .. }));
        place <= from || event.process != process || renewed
    });
    Some(())
}

fn accept_old_token(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let written = |pair: &Pair| matches!(&events[pair.end].what, What::Ok(Answer::Write { .. }));
    let writes: Vec<_> = pairs(events).into_iter().filter(written).collect();
    let exclusive = |pair: &&Pair| matches!(&*events[pair.begin].locks[0], "a" | "b");
    let last = *writes.iter().filter(exclusive).collect::<Vec<_>>().choose(random)?;
    let lock = events[last.begin].locks.clone();
    writes.iter().find(|pair| pair.end < last.begin && events[pair.begin].locks == lock)?;
    if let What::Invoke(Call::Write { token, .. }) = &mut events[last.begin].what {
        *token = 0;
    }
    Some(())
}

fn retry_differs(events: &mut Vec<Event>, random: &mut StdRng) -> Option<()> {
    let granted: Vec<_> = grants(events);
    let ((pair, token), new) = (*granted.choose(random)?, random.random_range(1_000..2_000));
    let What::Invoke(Call::Acquire(acquire)) = &events[pair.begin].what else { return None };
    let retry = Call::Retry { session: acquire.session.clone(), request: acquire.request? };
    let after = events[pair.end].clone();
    let op = Some(9_000_000 + token);
    let told = |what: What| Event { op, locks: vec![], what, ..after.clone() };
    events.insert(pair.end + 1, told(What::Ok(Answer::Retry { token: new })));
    events.insert(pair.end + 1, told(What::Invoke(retry)));
    Some(())
}

fn change_table(events: &mut Vec<Event>, _: &mut StdRng) -> Option<()> {
    let table = events.iter_mut().find_map(|event| {
        let What::Fact(Fact::Table { hash, .. }) = &mut event.what else { return None };
        Some(hash)
    });
    *table? += 1;
    Some(())
}

fn leave_untold(events: &mut Vec<Event>, _: &mut StdRng) -> Option<()> {
    let told = |event: &Event| matches!(event.what, What::Fact(Fact::Lost { token: Some(_), .. }));
    let place = events.iter().position(told)?;
    events.remove(place);
    Some(())
}
