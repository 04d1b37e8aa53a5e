use std::{
    collections::BTreeMap,
    io,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use futures::{FutureExt as _, executor::block_on, future};
use proptest::{collection::vec, prelude::*};

use super::*;

const EXCLUSIVE: Hold = Hold::Exclusive;
const SHARED: Hold = Hold::Shared;

fn admit<S: Store>(fence: &Fence<S>, resource: &str, token: u64, hold: Hold) -> Result<(), Error> {
    block_on(fence.admit(resource, Token(token), hold)).map(drop)
}

fn refusal<S: Store>(fence: &Fence<S>, token: u64, hold: Hold) -> String {
    match admit(fence, "seat", token, hold) {
        Err(Error::Refused(refused)) => refused.to_string(),
        other => panic!("expected a refusal: {other:?}"),
    }
}

fn memory() -> Fence<Memory> {
    Fence::open(Memory).expect("nothing to load")
}

#[test]
fn an_exclusive_token_is_refused_after_any_higher_one() {
    for hold in [EXCLUSIVE, SHARED] {
        let fence = memory();
        admit(&fence, "seat", 42, hold).expect("the first");
        assert!(matches!(admit(&fence, "seat", 41, EXCLUSIVE), Err(Error::Refused(_))), "after a {hold:?} one");
        admit(&fence, "seat", 42, hold).expect("the same again");
        admit(&fence, "seat", 43, EXCLUSIVE).expect("higher");
    }
}

#[test]
fn a_shared_token_is_refused_after_a_higher_exclusive_one_only() {
    let fence = memory();
    admit(&fence, "seat", 10, EXCLUSIVE).expect("the first");
    admit(&fence, "seat", 12, SHARED).expect("higher");
    admit(&fence, "seat", 11, SHARED).expect("sharers are not ordered among themselves");
    assert_eq!(
        refusal(&fence, 9, SHARED),
        "token 9 is refused at \"seat\", which has seen the exclusive token 10: another client got the lock since; stop, or acquire the lock again"
    );
    assert_eq!(
        refusal(&fence, 11, EXCLUSIVE),
        "token 11 is refused at \"seat\", which has seen token 12: another client got the lock since; stop, or acquire the lock again"
    );
}

#[test]
fn resources_are_independent() {
    let fence = memory();
    admit(&fence, "seat A5", 42, EXCLUSIVE).expect("the first there");
    admit(&fence, "seat A6", 41, EXCLUSIVE).expect("the first there");
}

#[test]
fn invalid_input_is_refused() {
    let fence = memory();
    assert!(matches!(admit(&fence, "seat", 0, SHARED), Err(Error::NoToken)));
    assert!(matches!(admit(&fence, "", 1, EXCLUSIVE), Err(Error::Name { bytes: 0 })));
    let long = "x".repeat(RESOURCE_BYTES_MAX + 1);
    assert!(matches!(admit(&fence, &long, 1, EXCLUSIVE), Err(Error::Name { bytes: 513 })));
    admit(&fence, &long[1..], 1, EXCLUSIVE).expect("just short enough");
}

#[test]
fn a_refused_write_is_not_begun() {
    let fence = memory();
    admit(&fence, "seat", 42, EXCLUSIVE).expect("the first");
    let write = || -> future::Ready<()> { panic!("it was begun") };
    block_on(fence.run("seat", Token(41), EXCLUSIVE, write)).expect_err("too late");
}

#[test]
fn a_higher_token_waits_until_the_write_before_it_has_ended() {
    let fence = memory();
    let first = block_on(fence.admit("seat", Token(41), EXCLUSIVE)).expect("the first");
    let mut second = Box::pin(fence.admit("seat", Token(42), EXCLUSIVE));
    assert!(second.as_mut().now_or_never().is_none(), "41 still writes");
    admit(&fence, "another seat", 42, EXCLUSIVE).expect("other resources go on");
    drop(first);
    let second = second.now_or_never().expect("its turn").expect("higher");
    drop(second);
    refusal(&fence, 41, EXCLUSIVE);
}

/// A store that can be loaded again, fails when told to, and records the saves.
#[derive(Clone, Default)]
struct Kept(Arc<KeptState>);

#[derive(Default)]
struct KeptState {
    saved: Mutex<BTreeMap<String, HighestTokens>>,
    calls: Mutex<Vec<HighestTokens>>,
    is_stuck: AtomicBool,
    is_broken: AtomicBool,
}

impl Store for Kept {
    fn load(&mut self) -> io::Result<Vec<(String, HighestTokens)>> {
        Ok(self.0.saved.lock().unwrap().clone().into_iter().collect())
    }

    async fn save(&self, resource: &str, seen: HighestTokens) -> io::Result<()> {
        self.0.calls.lock().unwrap().push(seen);
        if self.0.is_stuck.load(Ordering::SeqCst) {
            future::pending::<()>().await;
        }
        if self.0.is_broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("no room"));
        }
        self.0.saved.lock().unwrap().insert(resource.to_owned(), seen);
        Ok(())
    }
}

impl Kept {
    fn fence(&self) -> Fence<Self> {
        Fence::open(self.clone()).expect("it loads")
    }

    fn calls(&self) -> usize {
        self.0.calls.lock().unwrap().len()
    }
}

#[test]
fn a_token_is_saved_before_the_write_and_only_once() {
    let kept = Kept::default();
    let fence = kept.fence();
    for _ in 0..3 {
        let write = || future::ready(kept.0.saved.lock().unwrap().get("seat").copied());
        let seen = block_on(fence.run("seat", Token(42), EXCLUSIVE, write)).expect("admitted");
        assert_eq!(seen, Some(HighestTokens { highest: Token(42), highest_exclusive: Token(42) }));
    }
    assert_eq!(kept.calls(), 1);
}

#[test]
fn after_a_failed_save_nothing_is_admitted_or_saved_any_more() {
    let kept = Kept::default();
    let fence = kept.fence();
    admit(&fence, "other", 1, EXCLUSIVE).expect("all is well");
    kept.0.is_broken.store(true, Ordering::SeqCst);
    let write = || -> future::Ready<()> { panic!("it was begun") };
    let error = block_on(fence.run("seat", Token(42), EXCLUSIVE, write)).expect_err("not remembered");
    assert!(error.to_string().contains("no room"), "{error}");
    kept.0.is_broken.store(false, Ordering::SeqCst);

    // Neither the token that was not saved, nor any other, nor one that was saved.
    for (resource, token) in [("seat", 42), ("seat", 43), ("other", 1), ("third", 1)] {
        assert!(matches!(admit(&fence, resource, token, EXCLUSIVE), Err(Error::Store(_))), "{resource} {token}");
    }
    assert_eq!(kept.calls(), 2);
    admit(&kept.fence(), "seat", 42, EXCLUSIVE).expect("opened anew");
}

#[test]
fn an_admission_that_was_given_up_while_it_was_saved_is_saved_by_the_next() {
    let kept = Kept::default();
    let fence = kept.fence();
    kept.0.is_stuck.store(true, Ordering::SeqCst);
    assert!(fence.admit("seat", Token(42), EXCLUSIVE).now_or_never().is_none());
    kept.0.is_stuck.store(false, Ordering::SeqCst);

    refusal(&fence, 41, EXCLUSIVE);
    assert!(kept.0.saved.lock().unwrap().is_empty());
    admit(&fence, "seat", 42, EXCLUSIVE).expect("the same again");
    assert_eq!(kept.0.saved.lock().unwrap()["seat"].highest, Token(42));
}

#[cfg(feature = "disk")]
#[test]
fn the_disk_remembers() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let open = || Fence::open(Disk::open(directory.path()).expect("sound")).expect("of a fence");
    {
        let fence = open();
        admit(&fence, "seat", 10, EXCLUSIVE).expect("the first");
        admit(&fence, "seat", 12, SHARED).expect("higher");
        admit(&fence, "other", 7, EXCLUSIVE).expect("the first there");
        assert!(matches!(Disk::open(directory.path()), Err(OpenError::Locked { .. })));
    }
    let fence = open();
    assert!(refusal(&fence, 11, EXCLUSIVE).contains("seen token 12"));
    assert!(refusal(&fence, 9, SHARED).contains("seen the exclusive token 10"));
    admit(&fence, "seat", 11, SHARED).expect("as before");
    admit(&fence, "other", 7, EXCLUSIVE).expect("the same again");
}

/// The events at one resource, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Admitted(u64),
    Written(u64),
}

/// Many threads, tokens out of order. No write of a lower token ends after a higher one was admitted, and the newest write stays.
#[test]
fn no_write_ends_after_a_higher_token_was_admitted() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 200;
    let fence = memory();
    let steps = Mutex::new(Vec::new());
    let write = async |token: u64| {
        steps.lock().unwrap().push(Step::Admitted(token));
        for _ in 0..3 {
            thread::yield_now();
        }
        steps.lock().unwrap().push(Step::Written(token));
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fence, write) = (&fence, &write);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // Every token once and mostly ascending; otherwise all but the first would be refused.
                    let token = 1 + round * THREADS + (thread * 5 + round) % THREADS;
                    let outcome = block_on(fence.run("seat", Token(token), EXCLUSIVE, || write(token)));
                    assert!(matches!(outcome, Ok(()) | Err(Error::Refused(_))), "{outcome:?}");
                }
            });
        }
    });

    let steps = steps.into_inner().expect("no panic");
    let mut highest = 0;
    for step in &steps {
        match *step {
            Step::Admitted(token) => highest = highest.max(token),
            Step::Written(token) => assert_eq!(token, highest, "a late write, in {steps:?}"),
        }
    }
    let admitted = steps.len() / 2;
    assert!(admitted as u64 >= ROUNDS / 2, "only {admitted} were admitted: nothing was tested");
}

/// An input of a fence: a token, or a restart.
#[derive(Clone, Copy, Debug)]
enum Event {
    Shown { resource: usize, token: u64, hold: Hold },
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let hold = prop_oneof![Just(EXCLUSIVE), Just(SHARED)];
    let shown =
        (0..2_usize, 1..12_u64, hold).prop_map(|(resource, token, hold)| Event::Shown { resource, token, hold });
    prop_oneof![12 => shown, 1 => Just(Event::Restart)]
}

proptest! {
    /// Compares with a model of the rule that keeps all admitted tokens, across restarts.
    #[test]
    fn it_decides_like_a_model_that_keeps_all_tokens(events in vec(event(), 0..60)) {
        let kept = Kept::default();
        let mut fence = kept.fence();
        let mut admitted = [const { Vec::new() }; 2];
        for event in events {
            let Event::Shown { resource, token, hold } = event else {
                fence = kept.fence();
                continue;
            };
            let bars = |other: &&(u64, Hold)| other.0 > token && (hold == EXCLUSIVE || other.1 == EXCLUSIVE);
            let expected = admitted[resource].iter().filter(bars).map(|(other, _)| *other).max();
            match admit(&fence, ["seat A5", "seat A6"][resource], token, hold) {
                Ok(()) => {
                    prop_assert_eq!(expected, None);
                    admitted[resource].push((token, hold));
                }
                Err(Error::Refused(refused)) => prop_assert_eq!(expected, Some(refused.seen.0)),
                Err(other) => panic!("{other}"),
            }
        }
    }
}
