//! MULTI, EXEC, WATCH.

use std::{mem, time::Duration};

use lockkeeper_planted::NodeLimit;
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::{
    RedisSession,
    answer::{Closes, failure_reply, reply_to_one},
    scripts::FoundScripts,
};
use crate::{
    ConnectionLimits, RedisCaller, RedisReply, RedisStore, RedisStoreError,
    commands::{Arguments, CommandRunner, CommandSpec, Flag},
    key::store_key,
    unit::{CommandUnit, REPLY_BYTES_MAX, UnitCall, UnitOutcome},
    view::Stop,
};

/// Maximum number of bytes of the scripts of a transaction. EVALSHA names a long one by 40 bytes, and the leader's node gets all of it.
const SOURCE_BYTES_MAX: usize = 4 << 20;

/// A transaction that is being queued.
#[derive(Debug, Default)]
pub(super) struct QueuedTransaction {
    /// The commands with their arguments.
    queued: Vec<(&'static CommandSpec, Vec<Vec<u8>>)>,
    /// Number of bytes of their arguments.
    bytes: usize,
    /// A command was refused, so EXEC will be, too.
    is_broken: bool,
}

/// The watched keys of a connection, by their names in the store, with the revisions that they had.
#[derive(Debug, Default)]
pub(super) struct WatchedKeys {
    keys: Vec<(Vec<u8>, u64)>,
    /// Number of bytes that they take.
    bytes: usize,
}

impl WatchedKeys {
    /// Watches none of them any longer.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Number of bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fails if there is no room for these keys.
    fn ensure_room(&self, new: &[Vec<u8>], limits: &ConnectionLimits) -> Result<(), Stop> {
        let ConnectionLimits { watched, watched_bytes: bytes_max, .. } = limits;
        if self.keys.len() + new.len() > *watched {
            NodeLimit::RedisWatched.note();
            return Err(Stop::Refused(format!("ERR a transaction can watch at most {watched} keys: watch fewer")));
        }
        if self.bytes + new.iter().map(|key| watched_bytes(key)).sum::<usize>() > *bytes_max {
            NodeLimit::RedisWatchedBytes.note();
            return Err(Stop::Refused(format!(
                "ERR the watched keys of a connection take at most {bytes_max} bytes: watch fewer keys, or shorter ones"
            )));
        }
        Ok(())
    }

    fn extend(&mut self, keys: impl Iterator<Item = (Vec<u8>, u64)>) {
        for (key, revision) in keys {
            self.bytes += watched_bytes(&key);
            self.keys.push((key, revision));
        }
    }
}

/// Number of bytes that a watched key takes.
fn watched_bytes(key: &[u8]) -> usize {
    key.len() + mem::size_of::<(Vec<u8>, u64)>()
}

/// A queued command when EXEC runs.
enum QueuedCommand {
    /// It has a place in the unit.
    InUnit,
    /// This node answers the command after the unit.
    Local(&'static CommandSpec, Vec<Vec<u8>>),
    /// It is answered already.
    Answered(RedisReply),
}

/// What the commands of a transaction may cost that this node answers. The unit has happened by then, so each of them that costs too much
/// has an error of its own.
struct LocalBounds {
    /// Number of bytes of the replies so far.
    bytes: usize,
    time_max: Duration,
    until: Instant,
}

impl LocalBounds {
    /// Fails if no further command may run.
    fn check(&self) -> Result<(), Stop> {
        if self.bytes > REPLY_BYTES_MAX {
            return Err(Stop::Refused(format!(
                "ERR the command was not run: the replies of the transaction have more than {REPLY_BYTES_MAX} bytes; ask for less at a time"
            )));
        }
        if Instant::now() >= self.until {
            let time_ms = self.time_max.as_millis();
            return Err(Stop::Refused(format!(
                "ERR the command was not run: the commands before it took more than {time_ms} ms; make several transactions of it"
            )));
        }
        Ok(())
    }
}

impl QueuedTransaction {
    /// Number of bytes that the queued commands take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.queued.len() * mem::size_of::<(&CommandSpec, Vec<Vec<u8>>)>()
    }
}

impl<S: RedisStore> RedisSession<S> {
    /// Makes the reply of a refused request. A transaction that is being queued is broken by it.
    pub(super) fn refuse_queued(&mut self, stop: Stop) -> RedisReply {
        if let Some(transaction) = &mut self.transaction {
            // EXEC will run nothing of it.
            *transaction = QueuedTransaction { is_broken: true, ..QueuedTransaction::default() };
        }
        reply_to_one(Err(stop))
    }

    /// Queues a command.
    pub(super) fn queue(&mut self, command: &'static CommandSpec, arguments: &Arguments<'_>) -> RedisReply {
        let Some(transaction) = &mut self.transaction else { return RedisReply::error("ERR EXEC without MULTI") };
        if transaction.is_broken {
            return RedisReply::Status(b"QUEUED".to_vec());
        }

        let bytes: usize = arguments.iter().map(|argument| argument.len() + mem::size_of::<Vec<u8>>()).sum();
        let ConnectionLimits { queued, queued_bytes, .. } = self.node.options.connection_limits;
        if transaction.queued.len() >= queued || transaction.bytes + bytes > queued_bytes {
            NodeLimit::RedisQueued.note();
            return self.refuse_queued(Stop::Refused(format!(
                "ERR a transaction has at most {queued} commands and {queued_bytes} bytes: make several of it"
            )));
        }
        transaction.bytes += bytes;
        let arguments = arguments.iter().map(|argument| argument.to_vec()).collect();
        transaction.queued.push((command, arguments));
        RedisReply::Status(b"QUEUED".to_vec())
    }

    /// Serves MULTI.
    pub(super) fn begin_transaction(&mut self) -> Result<RedisReply, Stop> {
        if self.transaction.is_some() {
            return Err(Stop::refused("ERR MULTI calls can not be nested"));
        }
        self.transaction = Some(QueuedTransaction::default());
        Ok(RedisReply::ok())
    }

    /// Serves DISCARD. Watched keys are watched no more.
    pub(super) fn discard(&mut self) -> Result<RedisReply, Stop> {
        if self.transaction.take().is_none() {
            return Err(Stop::refused("ERR DISCARD without MULTI"));
        }
        self.watched.clear();
        Ok(RedisReply::ok())
    }

    /// Notes the revisions of keys. Keys that are watched already keep those that they had.
    pub(super) async fn watch(&mut self, arguments: &Arguments<'_>) -> Result<Result<RedisReply, Stop>, Closes> {
        if self.transaction.is_some() {
            return Ok(Err(Stop::refused("ERR WATCH inside MULTI is not allowed")));
        }
        let mut keys: Vec<_> = arguments[1..].iter().map(|key| store_key(self.database, key)).collect();
        keys.sort();
        keys.dedup();
        keys.retain(|key| !self.watched.keys.iter().any(|(watched, _)| watched == key));
        if let Err(stop) = self.watched.ensure_room(&keys, &self.node.options.connection_limits) {
            return Ok(Err(stop));
        }

        match self.node.store().get(&self.caller(), keys.clone()).await {
            Ok(found) => {
                let revisions = found.entries.iter().map(|entry| entry.as_ref().map_or(0, |entry| entry.modified));
                self.watched.extend(keys.into_iter().zip(revisions));
                Ok(Ok(RedisReply::ok()))
            }
            Err(failure) => failure_reply(failure).map(Ok),
        }
    }

    /// Runs the queued commands as one unit.
    pub(super) async fn execute(&mut self) -> Result<RedisReply, Closes> {
        let Some(transaction) = self.transaction.take() else {
            return Ok(RedisReply::error("ERR EXEC without MULTI"));
        };
        let watched = mem::take(&mut self.watched).keys;
        if transaction.is_broken {
            return Ok(RedisReply::error("EXECABORT Transaction discarded because of previous errors."));
        }

        let caller = self.caller();
        let mut calls = Vec::new();
        let prepared = timeout_at(caller.deadline, self.prepare_all(transaction.queued, &caller, &mut calls));
        let late = || RedisStoreError::Unavailable("the scripts of the transaction were not found in time".to_owned());
        let queued = match prepared.await.unwrap_or_else(|_| Err(late())) {
            Ok(queued) => queued,
            Err(failure) => return failure_reply(failure),
        };
        if source_bytes(&calls) > SOURCE_BYTES_MAX {
            return Ok(RedisReply::error(format!(
                "ERR the scripts of the transaction have more than {SOURCE_BYTES_MAX} bytes: make several of it"
            )));
        }
        let replies = if calls.is_empty() && watched.is_empty() {
            Vec::new()
        } else {
            let unit = CommandUnit { watched, is_transaction: true, ..self.unit(calls) };
            match self.node.engine.run(&caller, unit).await {
                UnitOutcome::Done { replies, database } => {
                    self.database = database;
                    replies
                }
                UnitOutcome::Abandoned => return Ok(RedisReply::NilArray),
                UnitOutcome::Refused(text) => return Ok(RedisReply::error(text)),
                UnitOutcome::Failed(failure) => return failure_reply(failure),
            }
        };
        self.merge(queued, replies).await.map(RedisReply::Array)
    }

    /// Gives all queued commands their places. Fails if the store does not say whether it knows one of the scripts.
    async fn prepare_all(
        &self,
        commands: Vec<(&'static CommandSpec, Vec<Vec<u8>>)>,
        caller: &RedisCaller,
        calls: &mut Vec<UnitCall>,
    ) -> Result<Vec<QueuedCommand>, RedisStoreError> {
        let mut scripts = FoundScripts::new();
        let mut queued = Vec::with_capacity(commands.len());
        for (command, arguments) in commands {
            queued.push(self.prepare(command, arguments, caller, &mut scripts, calls).await?);
        }
        Ok(queued)
    }

    /// Gives a queued command its place: in the unit, or elsewhere.
    async fn prepare(
        &self,
        command: &'static CommandSpec,
        arguments: Vec<Vec<u8>>,
        caller: &RedisCaller,
        scripts: &mut FoundScripts,
        calls: &mut Vec<UnitCall>,
    ) -> Result<QueuedCommand, RedisStoreError> {
        Ok(match command.run {
            CommandRunner::Data(_) => {
                calls.push(UnitCall::Command(arguments));
                QueuedCommand::InUnit
            }

            CommandRunner::Script => {
                let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                match self.script_call(command, &arguments, caller, scripts).await? {
                    Ok(script) => {
                        calls.push(UnitCall::Script(script));
                        QueuedCommand::InUnit
                    }
                    Err(stop) => QueuedCommand::Answered(reply_to_one(Err(stop))),
                }
            }
            CommandRunner::Local | CommandRunner::Connection => QueuedCommand::Local(command, arguments),
        })
    }

    /// Brings the replies of a unit and those of this node into the order of the commands.
    async fn merge(&mut self, queued: Vec<QueuedCommand>, replies: Vec<RedisReply>) -> Result<Vec<RedisReply>, Closes> {
        let mut bounds = LocalBounds {
            bytes: replies.iter().map(RedisReply::bytes).sum(),
            time_max: self.node.options.command_timeout,
            until: Instant::now() + self.node.options.command_timeout,
        };
        let mut replies = replies.into_iter();
        let mut merged = Vec::with_capacity(queued.len());

        for queued in queued {
            merged.push(match queued {
                QueuedCommand::InUnit => replies.next().unwrap_or(RedisReply::Nil),
                QueuedCommand::Answered(reply) => reply,
                QueuedCommand::Local(command, arguments) => {
                    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                    debug_assert!(!command.has(Flag::Write), "this node answers only what writes nothing");
                    // Most of them wait for nothing: thousands of CLIENT LIST would hold up the thread for all of their time.
                    yield_now().await;
                    let result = match bounds.check() {
                        Ok(()) => self.run_local(command.name, &arguments).await?,
                        Err(stop) => Err(stop),
                    };
                    let reply = reply_to_one(result);
                    bounds.bytes += reply.bytes();
                    reply
                }
            });
        }
        Ok(merged)
    }
}

/// Number of bytes of the scripts, each as often as it is called.
fn source_bytes(calls: &[UnitCall]) -> usize {
    let source = |call: &UnitCall| if let UnitCall::Script(script) = call { script.source.len() } else { 0 };
    calls.iter().map(source).sum()
}
