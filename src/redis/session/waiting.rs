//! BLPOP and the others that wait for an item. How nodes agree on whose turn it is: `signals`.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    RedisSession,
    answer::{Closes, as_read, failure_reply, reply_to_one},
};
use crate::{
    RedisCaller, RedisEntry, RedisReply, RedisStore, RedisStoreError,
    commands::{self, Arguments, CommandSpec},
    data::DatumKind,
    key::{WAITED_BYTES_MAX, store_key},
    node::RedisNode,
    signals::LocalPlace,
    unit::{CommandUnit, UnitCall, UnitOutcome},
    view::Stop,
};

/// Maximum number of keys that a client waits for.
const KEYS_MAX: usize = 64;
/// A client looks again after this time, whether it was woken or not.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How much earlier a timeout is answered: some clients give up at the same moment, and then send the command again.
const EARLIER: Duration = Duration::from_millis(30);
/// A short timeout is answered earlier by this part of it.
const EARLIER_PART: u32 = 4;
/// How long it is tried to put an item back, and the pause between two attempts.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(30);
const GIVE_BACK_PAUSE: Duration = Duration::from_millis(200);
/// Timeouts of more seconds wait for ever.
const SECONDS_MAX: f64 = 1e9;

/// A command that waits.
struct BlockingPop {
    command: &'static CommandSpec,
    /// The type of the keys from which it pops.
    kind: DatumKind,
    /// The keys as the client names them.
    keys: Vec<Vec<u8>>,
    /// All arguments that are not keys: the ones before the keys, and the ones after them.
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
    /// When the client is told that nothing came.
    until: Option<Instant>,
}

impl BlockingPop {
    fn new(command: &'static CommandSpec, arguments: &Arguments<'_>) -> Result<Self, Stop> {
        let timeout_place = if command.name == "blmove" { 5 } else { arguments.len() - 1 };
        // Read first: a command that is wrong is refused at once, and not when its turn comes.
        let seconds = commands::timeout_seconds(arguments[timeout_place])?;
        // The commands that move an item wait for the source alone.
        let keys_end =
            if command.name.starts_with("blmove") || command.name == "brpoplpush" { 2 } else { timeout_place };
        if let Some(key) = arguments[1..keys_end].iter().find(|key| key.len() > WAITED_BYTES_MAX) {
            return Err(Stop::Refused(format!(
                "ERR the key has {} bytes, and a client waits for keys of at most {WAITED_BYTES_MAX}: use a shorter key",
                key.len()
            )));
        }
        if keys_end - 1 > KEYS_MAX {
            return Err(Stop::Refused(format!("ERR a client waits for at most {KEYS_MAX} keys: name fewer")));
        }

        let until = (seconds > 0.0 && seconds < SECONDS_MAX).then(|| {
            let timeout = Duration::from_secs_f64(seconds);
            Instant::now() + timeout - EARLIER.min(timeout / EARLIER_PART)
        });
        let owned = |arguments: &[&[u8]]| arguments.iter().map(|argument| argument.to_vec()).collect();
        let kind = if command.name.starts_with("bz") { DatumKind::Sorted } else { DatumKind::List };
        Ok(Self {
            command,
            kind,
            keys: owned(&arguments[1..keys_end]),
            before: owned(&arguments[..1]),
            after: owned(&arguments[keys_end..]),
            until,
        })
    }

    /// The command for some of its keys.
    fn call(&self, keys: impl Iterator<Item = usize>) -> UnitCall {
        let keys = keys.map(|number| self.keys[number].clone());
        UnitCall::Command(self.before.iter().cloned().chain(keys).chain(self.after.iter().cloned()).collect())
    }

    /// Whether the first key that is there has another type than the command is for.
    fn finds_another_type(&self, entries: &[Option<RedisEntry>]) -> bool {
        let first = entries.iter().flatten().next();
        first.and_then(|entry| DatumKind::from_entry(&entry.value)).is_some_and(|kind| kind != self.kind)
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Whether a client has to wait longer.
enum PopAttempt {
    /// It has its answer.
    Answered(RedisReply),
    /// There was no item for the client.
    Nothing,
    /// The store could not say.
    Failed(RedisStoreError),
}

impl PopAttempt {
    fn is_wrong_type(&self) -> bool {
        matches!(self, Self::Answered(RedisReply::Error(text)) if text == Stop::WRONG_TYPE.as_bytes())
    }
}

impl<S: RedisStore> RedisSession<S> {
    /// Runs a command that waits for an item.
    pub(super) async fn wait_for_item(
        &mut self,
        command: &'static CommandSpec,
        arguments: &Arguments<'_>,
    ) -> Result<RedisReply, Closes> {
        let pop = match BlockingPop::new(command, arguments) {
            Ok(pop) => pop,
            Err(stop) => return Ok(reply_to_one(Err(stop))),
        };
        let stored: Vec<_> = pop.keys.iter().map(|key| store_key(self.database, key)).collect();

        // A client that comes while others wait has to wait behind them.
        match self.node.signals.has_waiters(&stored, pop.kind).await {
            // Its places are the port's own entries. Who may not read the keys must not take those of others.
            Ok(true) => match self.node.store().get(&self.caller(), stored.clone()).await {
                Ok(found) if pop.finds_another_type(&found.entries) => {
                    return Ok(reply_to_one(Err(Stop::wrong_type())));
                }
                Ok(_) => {}
                Err(failure) => return failure_reply(as_read(failure)),
            },
            Ok(false) => match self.try_pop(&pop, vec![pop.call(0..pop.keys.len())]).await? {
                PopAttempt::Answered(reply) => return Ok(reply),
                PopAttempt::Nothing => {}
                PopAttempt::Failed(failure) => return failure_reply(failure),
            },
            Err(failure) => return failure_reply(failure),
        }
        if pop.is_over() {
            return Ok(RedisReply::NilArray);
        }

        // Without an item, a pop needs no right to take one.
        let caller = self.caller();
        if let Err(failure) = self.node.store().ensure_may_pop(&caller, &stored) {
            return failure_reply(failure);
        }
        match self.node.signals.enter(self.client(), &stored, pop.kind, caller.deadline).await {
            Ok(place) => self.wait_for_turn(&pop, &stored, &place).await,
            Err(failure) => failure_reply(failure),
        }
    }

    /// Waits in the queues of the keys, which are named as in the store.
    async fn wait_for_turn(
        &self,
        pop: &BlockingPop,
        stored: &[Vec<u8>],
        place: &LocalPlace,
    ) -> Result<RedisReply, Closes> {
        loop {
            let attempt = match self.node.signals.standing(place).await {
                Ok(standing) if standing.first_for.is_empty() => PopAttempt::Nothing,
                Ok(standing) => self.try_turn(pop, standing.first_for).await?,
                Err(failure) => PopAttempt::Failed(failure),
            };
            let failed = match attempt {
                PopAttempt::Answered(reply) => return Ok(reply),
                PopAttempt::Nothing => None,
                PopAttempt::Failed(failure @ (RedisStoreError::Unavailable(_) | RedisStoreError::Overloaded(_))) => {
                    Some(failure)
                }
                // It was a read that had no answer.
                PopAttempt::Failed(RedisStoreError::Unknown(_)) => Some(no_answer()),
                PopAttempt::Failed(failure) => return failure_reply(failure),
            };

            // Without a timeout the branch is disabled, so any moment will do.
            let until = pop.until.unwrap_or_else(|| Instant::now() + 2 * LOOK_AGAIN);
            tokio::select! {
                biased;
                () = sleep_until(until), if pop.until.is_some() => {
                    // Without a leader it is unknown whether an item came.
                    return failed.map_or(Ok(RedisReply::NilArray), failure_reply);
                }
                () = place.woken() => {}
                () = sleep(LOOK_AGAIN) => {}
            }

            // Without an item, nothing else asks whether the client still has the right to wait.
            if let Err(failure) = self.node.store().ensure_may_pop(&self.caller(), stored) {
                return failure_reply(failure);
            }
        }
    }

    /// Tries to pop for a client that waits. A key that has become one of another type is to it as one without items, and the other keys
    /// are tried all the same.
    async fn try_turn(&self, pop: &BlockingPop, keys: Vec<usize>) -> Result<PopAttempt, Closes> {
        if keys.len() > 1 {
            let attempt = self.try_pop(pop, vec![pop.call(keys.iter().copied())]).await?;
            if !attempt.is_wrong_type() {
                return Ok(attempt);
            }
        }

        for key in keys {
            // An error that is not due to the type of this key is the answer: the target of BLMOVE may have another type.
            let ask_type = UnitCall::Command(vec![b"type".to_vec(), pop.keys[key].clone()]);
            let attempt = self.try_pop(pop, vec![pop.call([key].into_iter()), ask_type]).await?;
            if !matches!(attempt, PopAttempt::Nothing) {
                return Ok(attempt);
            }
        }
        Ok(PopAttempt::Nothing)
    }

    /// Tries to pop, as a plain command. If TYPE is asked behind it, another type than the command is for is nothing. Nothing is lost if
    /// this future is dropped.
    async fn try_pop(&self, pop: &BlockingPop, calls: Vec<UnitCall>) -> Result<PopAttempt, Closes> {
        let unit = self.unit(calls);
        // In a task of its own: this future is dropped when the client goes away, and a pop that is half done would be an item that nobody
        // has.
        let awaited = AwaitedPop::start(&self.node, self.caller(), pop.command.name, unit);

        match awaited.outcome().await {
            UnitOutcome::Done { replies, .. } => {
                let mut replies = replies.into_iter();
                let attempt = match replies.next() {
                    None | Some(RedisReply::Nil | RedisReply::NilArray) => PopAttempt::Nothing,
                    // An error of the command is an answer, too.
                    Some(reply) => PopAttempt::Answered(reply),
                };
                let is_other = |kind: RedisReply| kind != RedisReply::Status(pop.kind.name().as_bytes().to_vec());
                let is_ignored = attempt.is_wrong_type() && replies.next().is_some_and(is_other);
                Ok(if is_ignored { PopAttempt::Nothing } else { attempt })
            }
            // Nothing was changed: whoever waits tries again at its next turn.
            UnitOutcome::Abandoned => Ok(PopAttempt::Nothing),
            UnitOutcome::Refused(text) => Ok(PopAttempt::Answered(RedisReply::error(text))),
            // An item may have been taken, and nobody knows which.
            UnitOutcome::Failed(failure @ RedisStoreError::Unknown(_)) => {
                failure_reply(failure).map(PopAttempt::Answered)
            }
            UnitOutcome::Failed(failure) => Ok(PopAttempt::Failed(failure)),
        }
    }
}

fn no_answer() -> RedisStoreError {
    RedisStoreError::Unavailable("the queue of waiting clients could not be read in time".to_owned())
}

/// A pop that runs in a task of its own. If the client goes away before it has the item, the item is put back.
struct AwaitedPop<S: RedisStore> {
    outcome: oneshot::Receiver<UnitOutcome>,
    give_back: GiveBack<S>,
}

/// The values that are needed to put an item back.
struct GiveBack<S> {
    node: Arc<RedisNode<S>>,
    caller: RedisCaller,
    command: &'static str,
    database: u8,
    holder: String,
}

impl<S> Clone for GiveBack<S> {
    fn clone(&self) -> Self {
        let Self { node, caller, command, database, holder } = self;
        Self { node: Arc::clone(node), caller: caller.clone(), command, database: *database, holder: holder.clone() }
    }
}

impl<S: RedisStore> AwaitedPop<S> {
    fn start(node: &Arc<RedisNode<S>>, caller: RedisCaller, command: &'static str, unit: CommandUnit) -> Self {
        let give_back = GiveBack {
            node: Arc::clone(node),
            caller: caller.clone(),
            command,
            database: unit.database,
            holder: unit.holder.clone(),
        };

        let (sender, outcome) = oneshot::channel();
        let lost = give_back.clone();
        tokio::spawn(async move {
            let outcome = lost.node.engine.run(&caller, unit).await;
            if let Err(unsent) = sender.send(outcome) {
                lost.give_back(unsent).await;
            }
        });
        Self { outcome, give_back }
    }

    async fn outcome(mut self) -> UnitOutcome {
        let deadline = self.give_back.caller.deadline + Duration::from_secs(2);
        let late = || RedisStoreError::Unknown("no answer in time".to_owned()).into();
        match timeout_at(deadline, &mut self.outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => late(),
        }
    }
}

impl<S: RedisStore> Drop for AwaitedPop<S> {
    fn drop(&mut self) {
        // From now on the task notices that nobody takes the item. What it has sent already is found here.
        self.outcome.close();
        if let Ok(outcome) = self.outcome.try_recv() {
            let lost = self.give_back.clone();
            tokio::spawn(async move { lost.give_back(outcome).await });
        }
    }
}

impl<S: RedisStore> GiveBack<S> {
    async fn give_back(self, outcome: UnitOutcome) {
        let UnitOutcome::Done { replies, .. } = outcome else { return };
        let Some(RedisReply::Array(parts)) = replies.into_iter().next() else { return };
        // In RESP3 a score is a double; the command that puts it back needs a text.
        let parts: Vec<_> = parts.into_iter().map(RedisReply::into_resp2).filter_map(bytes).collect();

        // What was moved is in its target, where it was to be.
        let arguments = match (self.command, &parts[..]) {
            ("blpop", [key, item]) => vec![b"lpush".to_vec(), key.clone(), item.clone()],
            ("brpop", [key, item]) => vec![b"rpush".to_vec(), key.clone(), item.clone()],
            ("bzpopmin" | "bzpopmax", [key, member, score]) => {
                vec![b"zadd".to_vec(), key.clone(), score.clone(), member.clone()]
            }
            _ => return,
        };
        let unit = CommandUnit {
            database: self.database,
            holder: self.holder,
            watched: Vec::new(),
            is_transaction: false,
            calls: vec![UnitCall::Command(arguments)],
        };

        // A write that has certainly not happened is tried again, for longer than an election takes.
        let until = Instant::now() + GIVE_BACK_TIMEOUT;
        loop {
            let deadline = Instant::now() + self.node.options.command_timeout;
            let caller = RedisCaller { deadline, ..self.caller.clone() };
            match self.node.engine.run(&caller, unit.clone()).await {
                UnitOutcome::Done { .. } => return,
                UnitOutcome::Failed(RedisStoreError::Unavailable(_) | RedisStoreError::Overloaded(_))
                    if Instant::now() < until =>
                {
                    sleep(GIVE_BACK_PAUSE).await;
                }
                outcome @ (UnitOutcome::Abandoned | UnitOutcome::Refused(_) | UnitOutcome::Failed(_)) => {
                    tracing::warn!(?outcome, command = self.command, "an item whose client has gone may be lost");
                    return;
                }
            }
        }
    }
}

fn bytes(reply: RedisReply) -> Option<Vec<u8>> {
    if let RedisReply::Bulk(bytes) = reply { Some(bytes) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Memory, Scripted, options};

    #[tokio::test(start_paused = true)]
    async fn an_item_of_a_client_that_has_gone_is_put_back() {
        let store = Memory::default();
        let node = Arc::new(RedisNode::new(store, Arc::new(Scripted), options()));
        let unit = |line: &str| CommandUnit {
            database: 0,
            holder: String::new(),
            watched: Vec::new(),
            is_transaction: false,
            calls: vec![UnitCall::Command(line.split(' ').map(|word| word.as_bytes().to_vec()).collect())],
        };
        let run = |line: &str| {
            let node = Arc::clone(&node);
            let unit = unit(line);
            async move { node.engine.run(&crate::signals::port(), unit).await }
        };

        for (push, command, pop, look, left) in [
            ("rpush q a b", "blpop", "blpop q 0", "lrange q 0 -1", 2),
            ("rpush r a b", "brpop", "brpop r 0", "lrange r 0 -1", 2),
            ("zadd z 1 a", "bzpopmin", "bzpopmin z 0", "zrange z 0 -1", 1),
        ] {
            let before = run(push).await;
            assert!(matches!(before, UnitOutcome::Done { .. }), "{before:?}");
            let whole = run(look).await;
            for steps in 0..20 {
                let awaited = AwaitedPop::start(&node, crate::signals::port(), command, unit(pop));
                // The client goes away at each step of the way.
                for _ in 0..steps {
                    tokio::task::yield_now().await;
                }
                drop(awaited);
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(run(look).await, whole, "{pop} after {steps} steps, {left} items");
            }
        }
    }
}
