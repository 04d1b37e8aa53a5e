//! Runs units: load, run, commit under what was read, or again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_accept::{ArrivingBytes, ArrivingRequest, FREE_BYTES};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot},
    task::{spawn_blocking, yield_now},
    time::{sleep, timeout_at},
};

use super::{
    CommandUnit, UnitCall, UnitOutcome,
    messages::UnitMessages,
    running::{RunStop, ScriptBounds, UnitRun},
    turns::UnitTurns,
};
use crate::{
    Interpreter, RedisCaller, RedisReply, RedisStore, RedisStoreError, RedisTxn, RedisWrite, RunApart, ScriptFailure,
    ScriptLimits,
    commands::KEYS_TOGETHER,
    data::DatumKind,
    fast::ComparedEntry,
    key::{database_end, database_start},
    signals,
    view::{Cursors, Loaded, LoadedKey, LoadedRange, RangeNeed, Stop, UnitMoment, UnitNeeds, UnitView},
};
use lockkeeper_planted::Planted;

/// Runs of a unit whose commits find something changed.
const TRIES_MAX: usize = 64;
/// Runs of a unit that need something else each time.
const LOADS_MAX: usize = 256;
/// Maximum number of keys that a unit names.
const KEYS_MAX: usize = 20_000;
/// What the scripts of a unit may cost in a quick place. It is enough for those of lock clients.
const QUICK_INSTRUCTIONS_MAX: u64 = 50_000;
/// Their time.
const QUICK_TIME_MAX: Duration = Duration::from_millis(20);
/// Bytes of the text of each of them: compiling cannot be interrupted.
const QUICK_SOURCE_BYTES_MAX: usize = 8 << 10;
/// Number of units that read ranges, or very many keys, at the same time: each may have some megabytes in memory.
const RANGES_MAX: usize = 8;
/// Number of entries that are read at a time.
const PAGE_ENTRIES: usize = 1000;
/// Number of keys that one transaction removes when a database is emptied.
const FLUSHED_TOGETHER: usize = 200;
/// Time after the deadline in which the store may still say why it did not answer.
const DEADLINE_SLACK: Duration = Duration::from_millis(500);
/// Tries without a pause between them.
const EAGER_TRIES: usize = 4;
/// The longest pause before another try.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// A clock that was further ahead of this node's was wrong: the time does not stand still until this node's has come there.
const AHEAD_US_MAX: u64 = 3_600_000_000;

/// What an engine is made of.
pub(crate) struct EngineParts<S> {
    /// The keyspace.
    pub(crate) store: S,
    /// What runs scripts.
    pub(crate) interpreter: Arc<dyn Interpreter>,
    /// What a run of a script may cost.
    pub(crate) script_limits: ScriptLimits,
    /// Microseconds since 1970.
    pub(crate) wall_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// A seed of random numbers.
    pub(crate) seed: u64,
    /// Number of scripts that run at the same time, and of long ones beside them.
    pub(crate) scripts_max: usize,
    /// Runs long scripts.
    pub(crate) run_apart: RunApart,
    /// Whether scripts run on the thread that asks for them.
    pub(crate) scripts_in_place: bool,
    /// The budget of replies that are not written.
    pub(crate) replies: ArrivingBytes,
}

/// Runs the units of a node.
pub(crate) struct Engine<S> {
    pub(crate) store: S,
    /// What runs scripts.
    interpreter: Arc<dyn Interpreter>,
    /// What a run of a script may cost.
    script_limits: ScriptLimits,
    /// Microseconds since 1970, by the clock of this node.
    wall_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The greatest time that was told.
    last_wall_us: AtomicU64,
    /// The latest time in the log that was not followed, because it was too far ahead.
    wrong_wall_us: AtomicU64,
    /// The seed of the next unit.
    seeds: AtomicU64,
    /// Positions of scans.
    cursors: Arc<Cursors>,
    /// Who writes which keys.
    turns: UnitTurns,
    /// Places for scripts that begin. Nobody has one for long.
    quick_scripts: Arc<Semaphore>,
    /// Places for those that were not over soon.
    long_scripts: Arc<Semaphore>,
    /// Runs these.
    run_apart: RunApart,
    /// Places for units that read ranges, or very many keys.
    ranges: Semaphore,
    /// Whether they run on the thread that asks for them.
    scripts_in_place: bool,
    /// The budget of replies, which those that wait for a commit are in, too.
    replies: ArrivingBytes,
}

/// What one run of a unit came to.
type Ran = (Result<Vec<RedisReply>, Stop>, UnitView);

impl<S: RedisStore> Engine<S> {
    /// Makes an engine that has run nothing yet.
    pub(crate) fn new(parts: EngineParts<S>) -> Self {
        let EngineParts { store, interpreter, script_limits, wall_us, .. } = parts;
        let EngineParts { seed, scripts_max, run_apart, scripts_in_place, replies, .. } = parts;
        Self {
            store,
            interpreter,
            script_limits,
            wall_us,
            last_wall_us: AtomicU64::new(0),
            wrong_wall_us: AtomicU64::new(0),
            seeds: AtomicU64::new(seed),
            cursors: Arc::new(Cursors::new(seed)),
            turns: UnitTurns::default(),
            quick_scripts: Arc::new(Semaphore::new(scripts_max)),
            long_scripts: Arc::new(Semaphore::new(scripts_max)),
            run_apart,
            ranges: Semaphore::new(RANGES_MAX),
            scripts_in_place,
            replies,
        }
    }

    /// Compiles a script, and runs nothing.
    pub(crate) async fn check(&self, caller: &RedisCaller, source: &[u8]) -> Result<(), Stop> {
        let is_quick = source.len() <= QUICK_SOURCE_BYTES_MAX;
        let interpreter = Arc::clone(&self.interpreter);
        let owned = source.to_vec();
        let checked = self.run_in_place(caller, is_quick, move || interpreter.check(&owned)).await?;

        match checked {
            Err(ScriptFailure::Compile(text)) => {
                Err(Stop::Refused(format!("ERR Error compiling script (new function): {text}")))
            }
            // Its limits are those of a run.
            Ok(()) | Err(ScriptFailure::Raised(_) | ScriptFailure::OverLimit(_) | ScriptFailure::Aborted) => Ok(()),
        }
    }

    /// Microseconds since 1970, by this node's clock. They do not go back, neither behind what was told here, nor behind the clocks of
    /// earlier leaders when they committed what this node has applied: the time stands still until this node's clock has come there.
    pub(crate) fn wall_us(&self) -> u64 {
        let own_us = (self.wall_us)();
        let is_near =
            |other_us: u64| other_us.saturating_sub(own_us) <= AHEAD_US_MAX || Planted::WrongClockFollowed.is_on();

        // A clock that was wrong stays wrong when this node's comes near to what it said: the time must not jump there then.
        let mut least_us = self.store.committed_wall_ms().saturating_mul(1000);
        let was_wrong = !is_near(least_us) || self.wrong_wall_us.load(Ordering::Relaxed) == least_us;
        if was_wrong || Planted::TimeGoesBack.is_on() {
            self.wrong_wall_us.store(least_us, Ordering::Relaxed);
            least_us = 0;
        }

        let after = |told_us: u64| own_us.max(least_us).max(if is_near(told_us) { told_us } else { 0 });
        let told = self.last_wall_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |told_us| Some(after(told_us)));
        after(told.unwrap_or_else(|told_us| told_us))
    }

    /// A seed of random numbers.
    fn next_seed(&self) -> u64 {
        // Odd numbers of this sequence meet each seed once.
        self.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    /// Runs a unit where that costs least: one that only reads keys here, and any other at the leader.
    pub(crate) async fn run(&self, caller: &RedisCaller, unit: CommandUnit) -> UnitOutcome {
        if unit.is_read_of_keys() {
            return self.run_here(caller, &unit).await;
        }
        let outcome = self.store.run_at_leader(caller, || unit.encode());

        match timeout_at(caller.deadline + DEADLINE_SLACK, outcome).await {
            Ok(Ok(None)) => self.run_here(caller, &unit).await,
            Ok(Ok(Some(outcome))) => UnitOutcome::decode(&outcome).unwrap_or_else(|| {
                let why = "the leader's node has another version, and its answer cannot be read";
                RedisStoreError::Unknown(why.to_owned()).into()
            }),
            Ok(Err(failure)) => failure.into(),
            Err(_) => RedisStoreError::Unknown("the leader did not answer in time".to_owned()).into(),
        }
    }

    /// Runs a unit on this node.
    pub(crate) async fn run_here(&self, caller: &RedisCaller, unit: &CommandUnit) -> UnitOutcome {
        let ran = timeout_at(caller.deadline + DEADLINE_SLACK, self.try_to_commit(caller, unit)).await;
        ran.unwrap_or_else(|_| RedisStoreError::Unknown("no answer in time".to_owned()).into())
    }

    /// Runs a script over the entry that its transaction has found, at that moment. It must write nothing and need nothing else: nothing is
    /// committed.
    pub(crate) async fn run_over(&self, caller: &RedisCaller, unit: &CommandUnit, found: ComparedEntry) -> UnitOutcome {
        let ComparedEntry { key, entry, now_ms } = found;
        let entries = BTreeMap::from([(key, Some(Arc::new(entry)))]);
        let loaded = Arc::new(Loaded { entries, now_ms, ..Loaded::default() });
        let moment = UnitMoment { wall_us: Some(self.wall_us()), seed: self.next_seed() };
        let view = UnitView::new(loaded, Arc::clone(&self.cursors), moment, unit.database);

        match self.run_calls(caller, unit, view).await {
            (Ok(replies), view) if !view.has_effects() => UnitOutcome::Done { replies, database: view.database },
            (Ok(_) | Err(Stop::Missing), _) => UnitOutcome::Refused(Stop::WRONG_TYPE.to_owned()),
            (Err(Stop::Refused(text) | Stop::Over(text)), _) => UnitOutcome::Refused(text),
        }
    }

    /// Removes all keys of a database: in one transaction, or in several if they are too many for one. Each has a caller, and so a
    /// deadline, of its own: very many keys take longer than a command may. `has_begun` tells whether some were removed if it fails.
    pub(crate) async fn flush(
        &self,
        caller: impl Fn() -> RedisCaller,
        database: u8,
        has_begun: &mut bool,
    ) -> Result<(), RedisStoreError> {
        let mut from = database_start(database);
        let to = database_end(database);
        let writes = vec![RedisWrite::DeleteRange { from: from.clone(), to: to.clone() }];
        match self.store.commit(&caller(), RedisTxn { writes, ..RedisTxn::default() }).await {
            Ok(_) => {
                *has_begun = true;
                return Ok(());
            }
            Err(RedisStoreError::TooLarge(_)) => {}
            Err(failure) => return Err(failure),
        }

        loop {
            let page = self.store.list(&caller(), from.clone(), to.clone(), FLUSHED_TOGETHER).await?;
            // From key to key, and not from the beginning each time: others that write meanwhile must not keep it from its end.
            if let Some((last, _)) = page.entries.last() {
                from = [&last[..], &[0]].concat();
            }
            let writes: Vec<_> = page.entries.into_iter().map(|(key, _)| RedisWrite::Delete { key }).collect();
            if !writes.is_empty() {
                self.store.commit(&caller(), RedisTxn { writes, ..RedisTxn::default() }).await?;
                *has_begun = true;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    /// Runs a unit until its commit finds everything as it was read.
    async fn try_to_commit(&self, caller: &RedisCaller, unit: &CommandUnit) -> UnitOutcome {
        let mut needs = unit.first_needs();
        // Units of this node on the same keys go one after the other. Without turns each commit would make all others run again, and of a
        // hundred contenders for one lock the last would run a hundred times.
        let _turn = if unit.may_write() {
            let Ok(turn) = timeout_at(caller.deadline, self.turns.take(&needs.keys)).await else {
                let why = "other units on the same keys took all the time".to_owned();
                return RedisStoreError::Overloaded(why).into();
            };
            Some(turn)
        } else {
            None
        };

        for tries in 0..TRIES_MAX {
            let ran = match self.load_and_run(caller, unit, &mut needs).await {
                Ok(ran) => ran,
                Err(outcome) => return outcome,
            };
            let LoadedRun { replies, mut view, is_of_one_moment, place: _place } = ran;
            // A unit with replies that cannot wait is refused before it takes effect.
            let _held = match self.hold_replies(caller, &replies) {
                Ok(held) => held,
                Err(failure) => return failure.into(),
            };
            let has_writes = view.has_writes();
            let mut messages = UnitMessages::new(view.take_published(), has_writes);

            let database = view.database;
            // A transaction that read at several moments needs the store to say that nothing has changed between them.
            let is_unheard = !has_writes && messages.are_unheard();
            let is_read = is_unheard && (is_of_one_moment || !unit.is_transaction);
            let mut revision = 0;
            if !is_read {
                let txn = view.into_txn(&unit.holder);
                match messages.commit_with_first(&self.store, caller, txn).await {
                    Ok(committed) if committed.succeeded => revision = committed.revision,
                    // A commit of another node, or a client of another protocol, came in between.
                    Ok(_) => {
                        pause(tries).await;
                        continue;
                    }
                    Err(failure) => return failure.into(),
                }
            }

            // Whoever subscribed before all of this was read must get what is published. Nothing has happened yet: the next run counts
            // these subscribers, and commits the message together with what was read.
            if is_unheard {
                match messages.are_heard_now(&self.store).await {
                    Ok(false) => {}
                    Ok(true) => {
                        pause(tries).await;
                        continue;
                    }
                    Err(failure) => return failure.into(),
                }
            } else {
                messages.publish_rest(&self.store).await;
            }
            let replies = replies.into_iter().map(|reply| reply.at_revision(revision)).collect();
            return UnitOutcome::Done { replies, database };
        }
        UnitOutcome::Refused(format!(
            "ERR other clients changed the same keys during each of {TRIES_MAX} tries, and nothing was done: try again"
        ))
    }

    /// Counts replies that wait for the log, or for another node. Small ones are free.
    fn hold_replies(
        &self,
        caller: &RedisCaller,
        replies: &[RedisReply],
    ) -> Result<Option<ArrivingRequest>, RedisStoreError> {
        let bytes: usize = replies.iter().map(RedisReply::bytes).sum();
        if bytes <= FREE_BYTES {
            return Ok(None);
        }

        let mut held = self.replies.request(caller.address.ip());
        match held.hold(bytes) {
            Ok(()) => Ok(Some(held)),
            Err(_) => Err(RedisStoreError::Overloaded(format!(
                "replies that are not read take all memory for them, and {bytes} bytes have no room: read the replies, or ask for less"
            ))),
        }
    }

    /// Loads what a unit needs and runs it, until nothing is missing.
    async fn load_and_run(
        &self,
        caller: &RedisCaller,
        unit: &CommandUnit,
        needs: &mut UnitNeeds,
    ) -> Result<LoadedRun<'_>, UnitOutcome> {
        // One time and one seed for all loads of a try: a script that reads TIME or draws a number must come to the same keys again when
        // it is run anew.
        let seed = self.next_seed();
        let mut wall_us = None;
        let mut place = None;
        let mut receivers = BTreeMap::new();
        for _ in 0..LOADS_MAX {
            if place.is_none() && (!needs.ranges.is_empty() || needs.keys.len() > KEYS_TOGETHER) {
                let Ok(taken) = timeout_at(caller.deadline, self.ranges.acquire()).await else {
                    let why = "other commands that read many keys took all the time".to_owned();
                    return Err(RedisStoreError::Overloaded(why).into());
                };
                place = taken.ok();
            }
            // Count the receivers once for each channel, because a unit may ask for another channel in each of its runs.
            for channel in &needs.receivers {
                if !receivers.contains_key(channel) {
                    receivers.insert(channel.clone(), signals::count_receivers(&self.store, channel).await?);
                }
            }
            let (mut loaded, is_of_one_moment) = self.load(caller, needs).await?;
            loaded.receivers.clone_from(&receivers);
            if wall_us.is_none() && needs.has_read() {
                wall_us = Some(self.wall_us());
            }
            let is_changed = |(key, revision): &(Vec<u8>, u64)| {
                let entry = loaded.entries.get(key).and_then(Option::as_ref);
                entry.map_or(0, |entry| entry.modified) != *revision
            };
            // Check after each read. The keys are among those that the commit compares, so a later change is found as well.
            if unit.watched.iter().any(is_changed) {
                return Err(UnitOutcome::Abandoned);
            }

            let moment = UnitMoment { wall_us, seed };
            let mut view = UnitView::new(Arc::new(loaded), Arc::clone(&self.cursors), moment, unit.database);
            view.watch(&unit.watched);
            let (result, view) = self.run_calls(caller, unit, view).await;
            match result {
                // The writes may come after the count by which a script decides: only now it shows that the count has to be compared.
                Ok(_) if view.has_uncompared_count() && view.has_effects() => {
                    needs.counts.clear();
                    needs.compares_counts = true;
                }
                Ok(replies) => return Ok(LoadedRun { replies, view, is_of_one_moment, place }),
                Err(Stop::Refused(text) | Stop::Over(text)) => return Err(UnitOutcome::Refused(text)),
                // Which keys a script reads shows only as it runs. It runs again from its start, with what it asked for.
                Err(Stop::Missing) => needs.add(view.needs()),
            }
            if needs.keys.len() > KEYS_MAX {
                break;
            }
        }
        Err(UnitOutcome::Refused(format!(
            "ERR the commands read more than {KEYS_MAX} keys, or further keys after each of {LOADS_MAX} reads: read fewer, or declare the \
             keys of the script"
        )))
    }

    /// Loads entries and ranges. Returns whether all of them are of one moment.
    async fn load(&self, caller: &RedisCaller, needs: &UnitNeeds) -> Result<(Loaded, bool), RedisStoreError> {
        let mut loaded = Loaded { compares_counts: needs.compares_counts, ..Loaded::default() };
        let mut calls = 0;
        for range in &needs.ranges {
            calls += self.load_range(caller, range, &mut loaded).await?;
        }
        for database in &needs.counts {
            let from = database_start(*database);
            let to = database_end(*database);
            loaded.counts.insert(*database, self.store.count(caller, from, to).await?);
            calls += 1;
        }

        // Commands without keys, such as PING, are answered without a leader.
        if !needs.keys.is_empty() {
            let keys: Vec<_> = needs.keys.iter().cloned().collect();
            let found = self.store.get(caller, keys.clone()).await?;
            loaded.now_ms = found.now_ms;
            let mut entries = keys.into_iter().zip(found.entries.into_iter().map(|entry| entry.map(Arc::new)));
            loaded.entries = entries.by_ref().take(KEYS_TOGETHER).collect();
            // Other connections have turns on this thread while very many entries are taken.
            while entries.len() > 0 {
                yield_now().await;
                loaded.entries.extend(entries.by_ref().take(KEYS_TOGETHER));
            }
            calls += 1;
        }

        // Any read will do: the leader has confirmed that it leads, and has applied what was committed before.
        if needs.time && calls == 0 {
            let port = RedisCaller { is_port: true, ..caller.clone() };
            self.store.get(&port, Vec::new()).await?;
        }
        Ok((loaded, calls <= 1))
    }

    /// Loads the keys of a range, in pages. Returns their number.
    async fn load_range(
        &self,
        caller: &RedisCaller,
        range: &RangeNeed,
        loaded: &mut Loaded,
    ) -> Result<usize, RedisStoreError> {
        let mut pages = 0;
        let mut from = range.from.clone();
        let mut keys = Vec::new();
        let mut more = true;

        while more && keys.len() < range.limit {
            let limit = (range.limit - keys.len()).min(PAGE_ENTRIES);
            let page = self.store.list(caller, from, range.to.clone(), limit).await?;
            // The writes of others are noticed from the first page on.
            if loaded.range_revision == 0 {
                loaded.range_revision = page.revision;
            }
            loaded.now_ms = page.now_ms;
            pages += 1;
            more = page.more;
            from = page.entries.last().map_or_else(|| range.to.clone(), |(last, _)| [&last[..], &[0]].concat());
            keys.extend(page.entries.into_iter().map(|(key, entry)| {
                let kind = DatumKind::from_entry(&entry.value);
                LoadedKey { key, modified: entry.modified, kind }
            }));
        }
        loaded.ranges.insert(range.clone(), LoadedRange { keys, more });
        Ok(pages)
    }

    /// Runs the calls of a unit over a view.
    ///
    /// Scripts run on a thread that may be busy: first in a place that all leave soon. What is not over by then begins again in one of the
    /// places for long scripts. So scripts that do not end take the time of each other, and not that of short ones.
    async fn run_calls(&self, caller: &RedisCaller, unit: &CommandUnit, view: UnitView) -> Ran {
        let has_script = unit.calls.iter().any(|call| matches!(call, UnitCall::Script(_)));
        if !has_script || self.scripts_in_place {
            let mut view = view;
            let bounds = ScriptBounds { limits: self.script_limits, is_quick: false };
            let result = UnitRun::new(&unit.calls, &mut view, &*self.interpreter, bounds).in_turns().await;
            return (result.map_err(Stop::from), view);
        }

        let limits = self.script_limits;
        let quick = ScriptLimits {
            instructions_max: limits.instructions_max.min(QUICK_INSTRUCTIONS_MAX),
            time_max: limits.time_max.min(QUICK_TIME_MAX),
            ..limits
        };
        let calls: Arc<[UnitCall]> = unit.calls.clone().into();
        let is_long =
            |call: &UnitCall| matches!(call, UnitCall::Script(script) if script.source.len() > QUICK_SOURCE_BYTES_MAX);
        if !calls.iter().any(is_long) {
            let bounds = ScriptBounds { limits: quick, is_quick: true };
            let (result, ran) = self.run_scripts(caller, &calls, view.clone(), bounds).await;
            match result {
                Ok(replies) => return (Ok(replies), ran),
                Err(RunStop::Stopped(stop)) => return (Err(stop), ran),
                Err(RunStop::TooLong) => {}
            }
        }

        let bounds = ScriptBounds { limits, is_quick: false };
        let (result, ran) = self.run_scripts(caller, &calls, view, bounds).await;
        (result.map_err(Stop::from), ran)
    }

    /// Runs calls on another thread once there is a place.
    async fn run_scripts(
        &self,
        caller: &RedisCaller,
        calls: &Arc<[UnitCall]>,
        view: UnitView,
        bounds: ScriptBounds,
    ) -> (Result<Vec<RedisReply>, RunStop>, UnitView) {
        let spare = view.clone();
        let calls = Arc::clone(calls);
        let interpreter = Arc::clone(&self.interpreter);
        let run = move || {
            let mut view = view;
            let result = UnitRun::new(&calls, &mut view, &*interpreter, bounds).run_to_end();
            (result, view)
        };

        let ran = self.run_in_place(caller, bounds.is_quick, run).await;
        ran.unwrap_or_else(|stop| (Err(stop.into()), spare))
    }

    /// Runs work of the interpreter on another thread once there is a place.
    async fn run_in_place<T: Send + 'static>(
        &self,
        caller: &RedisCaller,
        is_quick: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stop> {
        if self.scripts_in_place {
            return Ok(work());
        }
        let places = if is_quick { &self.quick_scripts } else { &self.long_scripts };
        let Ok(Ok(place)) = timeout_at(caller.deadline, Arc::clone(places).acquire_owned()).await else {
            let text = "ERR Lockkeeper is overloaded, and nothing was done: other scripts took all the time";
            return Err(Stop::Over(text.to_owned()));
        };

        let (done, result) = oneshot::channel();
        let work = move || {
            let _place: OwnedSemaphorePermit = place;
            // The caller may have stopped waiting.
            let _ = done.send(work());
        };
        if is_quick {
            spawn_blocking(work);
        } else {
            (self.run_apart)(Box::new(work));
        }
        // What runs on is ended by its own limit of time. Its writes are only in its view.
        match timeout_at(caller.deadline, result).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(Stop::Over("ERR the script ended without a result".to_owned())),
            Err(_) => Err(Stop::Over("ERR the script did not end in time, and nothing was done".to_owned())),
        }
    }
}

/// The result of a run for which everything was loaded.
struct LoadedRun<'a> {
    /// A reply for each call.
    replies: Vec<RedisReply>,
    /// What the calls wrote.
    view: UnitView,
    /// Whether all that was read is of one moment.
    is_of_one_moment: bool,
    /// Its place among those that read ranges, or very many keys.
    place: Option<SemaphorePermit<'a>>,
}

/// Waits a little before another try. The first ones follow at once.
async fn pause(tries: usize) {
    if tries < EAGER_TRIES {
        yield_now().await;
    } else {
        let ms = u64::try_from(tries).unwrap_or(u64::MAX);
        sleep(Duration::from_millis(ms).min(PAUSE_MAX)).await;
    }
}
