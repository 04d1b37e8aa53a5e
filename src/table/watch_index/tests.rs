//! Tests of the index.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedMutRandom as _};

use super::*;

fn key(bytes: &[u8]) -> Key {
    Key::new(bytes).expect("in bounds")
}

/// Of few bytes, those at both ends among them.
fn some_key(random: &mut StdRng) -> Key {
    let length = random.random_range(1..=3);
    key(&(0..length).map(|_| [0, 1, 254, 255][random.random_range(0..4)]).collect::<Vec<_>>())
}

fn some_range(random: &mut StdRng) -> KeyRange {
    let from = some_key(random);
    let to = match random.random_range(0..4) {
        0 => Some(key(&[from.as_bytes(), &[0]].concat())),
        1 => after_prefix(from.as_bytes()).map(|after| key(&after)),
        2 => Some(some_key(random)),
        _ => None,
    };
    let from = (random.random_range(0..8) > 0).then_some(from);
    KeyRange { from, to }
}

#[test]
fn an_event_concerns_the_watches_whose_range_has_its_key() {
    let random = &mut StdRng::seed_from_u64(1);
    let index = WatchIndex::default();
    let mut watches = Vec::new();
    let mut rung = 0;
    for _ in 0..2_000 {
        let range = some_range(random);
        watches.push((index.subscribe(range.clone().into(), "ann").expect("few watches"), range));
        if watches.len() > 40 {
            watches.swap_remove(random.random_range(0..40));
        }
        let key = some_key(random);
        index.turn().wake(key.as_bytes(), 1);
        for (watch, range) in &watches {
            let has_rung = watch.bell.first.swap(NONE, Ordering::Relaxed) != NONE;
            assert_eq!(has_rung, range.contains(&key), "{key:?} {range:?}");
            rung += u32::from(has_rung);
        }
    }
    assert!(rung > 1_000, "{rung}");
    drop(watches);
    let WatchedRanges { keys, prefixes, lengths, others, count, .. } = &index.state().ranges;
    assert_eq!(*count, 0);
    assert!(keys.is_empty() && prefixes.is_empty() && lengths.is_empty() && others.is_empty());
}

fn all(owner: &'static str, index: &WatchIndex) -> Vec<Subscription> {
    std::iter::from_fn(|| index.subscribe(KeyRange::default().into(), owner).ok()).collect()
}

#[test]
fn a_client_has_half_of_what_others_leave_and_one_that_ends_makes_room() {
    let index = WatchIndex::default();
    let mut ann = all("ann", &index);
    assert_eq!(ann.len(), WATCHES_MAX / 2);
    let bob = all("bob", &index);
    assert_eq!(bob.len(), WATCHES_MAX / 4);
    ann.truncate(0);
    assert_eq!(all("cid", &index).len(), (WATCHES_MAX - bob.len()) / 2);
    let others: Vec<_> = (0..17).map(|number| all(["d", "e"][number % 2], &index)).collect();
    assert!(index.subscribe(KeyRange::default().into(), "a further one").is_ok());
    drop((bob, others));
    assert!(index.state().owners.is_empty());
}

#[test]
fn an_event_costs_little_whatever_a_client_watches() {
    let index = WatchIndex::default();
    let key = |length: usize| key(&vec![b'a'; length]);
    let prefix = |length: usize| Shape::Prefix(vec![b'a'; length].into());
    // As many lengths as there are, all of them found.
    let of_lengths: Vec<_> = (1..=1_000).map(|length| index.subscribe(prefix(length), "ann").expect("room")).collect();
    let state = index.state();
    assert_eq!((state.ranges.lengths.len(), state.ranges.others.len()), (LENGTHS_MAX, 1_000 - LENGTHS_MAX));
    drop(state);
    let mut found = Concerned::default();
    index.turn().find(key(500).as_bytes(), 1, &mut found);
    assert_eq!(found.bells.len(), 500);
    // Other ranges have a limit of their own.
    let other = |from: usize| Shape::Other(KeyRange { from: Some(key(from)), to: None });
    let of_ranges: Vec<_> = (1..).map_while(|from| index.subscribe(other(from % 9 + 1), "bob").ok()).collect();
    assert_eq!(of_ranges.len(), (RANGES_MAX - (1_000 - LENGTHS_MAX)) / 2);
    assert!(index.subscribe(other(1), "cid").is_ok());
    assert!(!index.take(|| [(&b"a"[..], 2)].into_iter(), 2), "that is much for the thread that applies");
    let mut found = Concerned::default();
    let mut looks = 0;
    while !found.is_large() {
        index.turn().find(b"b", 2, &mut found);
        looks += 1;
    }
    assert!(looks < 10, "{looks} events in one look");
    drop((of_lengths, of_ranges));
    let WatchedRanges { lengths, lengths_cost, others, .. } = &index.state().ranges;
    assert!(lengths.is_empty() && *lengths_cost == 0 && others.is_empty());
}

#[tokio::test]
async fn what_was_found_is_woken_after_the_look_and_nothing_is_missed_meanwhile() {
    let index = WatchIndex::default();
    let subscribe = || index.subscribe(Shape::Key((*b"a").into()), "ann").expect("room");
    let mut early = subscribe();
    let mut found = Concerned::default();
    index.turn().find(b"a", 7, &mut found);
    // One that looks or comes before the others are woken sees the event itself.
    let mut late = subscribe();
    assert_eq!(early.next(3), Next::Nothing { up_to: 3 });
    assert_eq!(late.next(3), Next::Look { after: 3 });
    found.wake().await;
    index.complete(7);
    early.woken().await;
    assert_eq!(early.next(3), Next::Look { after: 3 });
    assert_eq!(late.next(7), Next::Nothing { up_to: 7 });
    // One that was woken, and has not looked, is not found again.
    index.turn().find(b"a", 8, &mut Concerned::default());
    let mut found = Concerned::default();
    index.turn().find(b"a", 8, &mut found);
    found.wake().await;
    let mut again = Concerned::default();
    index.turn().find(b"a", 9, &mut again);
    assert_eq!(again.bells.len(), 0);
    assert_eq!((early.next(7), late.next(7)), (Next::Look { after: 7 }, Next::Look { after: 7 }));
}

#[test]
fn ranges_of_one_key_or_prefix_are_found_by_a_hash() {
    let shape = |from: &[u8], to: &[u8]| Shape::from(KeyRange { from: Some(key(from)), to: Some(key(to)) });
    assert_eq!(shape(b"a", b"a\0"), Shape::Key((*b"a").into()));
    assert_eq!(shape(b"a/", b"a0"), Shape::Prefix((*b"a/").into()));
    assert_eq!(shape(b"a\xff", b"b"), Shape::Prefix((*b"a\xff").into()));
    assert_eq!(Shape::from(KeyRange::default()), Shape::Prefix([].into()));
    for (from, to) in [(&b"a"[..], &b"c"[..]), (b"a", b"a\0\0"), (b"b", b"a"), (b"a/", b"b")] {
        assert!(matches!(shape(from, to), Shape::Other(_)), "{from:?} {to:?}");
    }
    assert!(matches!(Shape::from(KeyRange { from: Some(key(b"\xff")), to: None }), Shape::Other(_)));
}
/// A watch as its task handles it: it looks until there is nothing, and then again when it is woken.
struct TestWatch {
    subscription: Subscription,
    range: KeyRange,
    seen: u64,
    waits: bool,
}

impl TestWatch {
    /// Looks, if it does not wait in vain. `events` are all that happened.
    async fn look(&mut self, events: &[(Key, u64)]) {
        let is_woken = tokio::select! {
            biased;
            () = self.subscription.woken(), if self.waits => true,
            () = std::future::ready(()) => !self.waits,
        };
        if !is_woken {
            return;
        }
        loop {
            let next = self.subscription.next(self.seen);
            let (Next::Nothing { up_to: passed } | Next::Look { after: passed }) = next;
            self.miss_none(events, passed);
            self.waits = matches!(next, Next::Nothing { .. });
            if self.waits {
                self.seen = passed;
                return;
            }
            self.seen = events.last().map_or(passed, |(_, position)| passed.max(*position));
        }
    }

    /// What it passes over is not for it.
    fn miss_none(&self, events: &[(Key, u64)], up_to: u64) {
        let missed = events.iter().find(|(key, at)| *at > self.seen && *at <= up_to && self.range.contains(key));
        assert_eq!(missed, None, "{:?} has seen all up to {}, and passes to {up_to}", self.range, self.seen);
    }
}

/// What the dispatcher does in one turn.
async fn dispatch(index: &WatchIndex, events: &[(Key, u64)], most: usize) -> bool {
    let mut found = Concerned::default();
    let mut last = None;
    {
        let mut turn = index.turn();
        let dispatched = turn.dispatched();
        for (key, position) in events.iter().filter(|(_, position)| *position > dispatched).take(most) {
            turn.find(key.as_bytes(), *position, &mut found);
            last = Some(*position);
        }
    }
    found.wake().await;
    last.inspect(|position| index.complete(*position)).is_some()
}

/// Whatever is left to the dispatcher, and whenever it has its turn.
#[tokio::test]
async fn no_watch_misses_an_event() {
    let mut taken = 0;
    for seed in 0..100 {
        let random = &mut StdRng::seed_from_u64(seed);
        let index = WatchIndex::default();
        let mut events = Vec::new();
        let mut watches = Vec::<TestWatch>::new();
        for position in 1..60 {
            let key = some_key(random);
            events.push((key.clone(), position));
            if random.random() {
                taken += u32::from(index.take(|| [(key.as_bytes(), position)].into_iter(), position));
            } else {
                index.leave(position);
            }
            if random.random_range(0..4) == 0 {
                dispatch(&index, &events, random.random_range(1..4)).await;
            }
            if random.random_range(0..5) == 0 {
                let range = some_range(random);
                let subscription = index.subscribe(range.clone().into(), "ann").expect("few watches");
                let seen = random.random_range(0..=position);
                watches.push(TestWatch { subscription, range, seen, waits: false });
            }
            if let Some(watch) = watches.choose_mut(random) {
                watch.look(&events).await;
            }
        }
        while dispatch(&index, &events, 3).await {}
        for watch in &mut watches {
            watch.look(&events).await;
            watch.miss_none(&events, u64::MAX);
        }
    }
    assert!(taken > 100, "{taken}");
}
