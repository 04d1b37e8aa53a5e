//! Commands of plain locks that have arrived together: each is one transaction, and all of them are under way at the same time.
//!
//! Libraries that share one connection among all tasks of a program send the commands of many locks behind each other. If each waited for
//! the answer to the one before, the connection would be as slow as the log is for one. They take effect in the order in which they came
//! ([`RedisStore::commit_each`]).
//!
//! So none of them is run again: those that follow it have taken effect by then. A script that finds a value of another type fails, as it
//! would in Redis. The interpreter makes its error of the entry that its transaction has found.

use std::{collections::VecDeque, sync::Arc};

use super::{
    RedisSession, TOGETHER_BYTES_MAX, TOGETHER_MAX,
    answer::{Closes, failure_reply, reply_to_one},
    scripts::{invocation, split_keys},
};
use crate::{
    RedisCaller, RedisCommitted, RedisReply, RedisStore, RedisStoreError, RedisTxn,
    commands::{self, CommandRunner, CommandSpec, Flag},
    fast::{ComparedEntry, FastReply, FastTxn},
    resp::RequestWords,
    script::CachedScript,
    unit::{CommandUnit, UnitCall},
    view::Stop,
};

/// A request that is one transaction.
pub(super) struct FastRequest {
    request: RequestWords,
    command: &'static CommandSpec,
    /// The script that it names.
    script: Option<Arc<CachedScript>>,
    fast: FastTxn,
}

/// What a request is as one transaction.
type RecognizedRequest = (&'static CommandSpec, Option<Arc<CachedScript>>, FastTxn);

impl<S: RedisStore> RedisSession<S> {
    /// Takes the first requests that are one transaction each.
    pub(super) async fn take_fast(
        &self,
        requests: &mut VecDeque<RequestWords>,
        caller: &RedisCaller,
    ) -> Vec<FastRequest> {
        let mut taken = Vec::new();
        let mut left = TOGETHER_BYTES_MAX;
        while taken.len() < TOGETHER_MAX
            && let Some(request) = requests.front()
            && let Some((command, script, fast)) = self.as_fast(request, caller).await
        {
            let bytes = bytes_of(request);
            if bytes > left && !taken.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);

            let Some(request) = requests.pop_front() else { break };
            taken.push(FastRequest { request, command, script, fast });
        }
        taken
    }

    /// A request as one transaction, if it is as much.
    async fn as_fast(&self, request: &RequestWords, caller: &RedisCaller) -> Option<RecognizedRequest> {
        if self.transaction.is_some() || !self.is_known() || self.is_subscriber_only() {
            return None;
        }

        let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        let command = commands::find_checked(&arguments).ok()?;
        let now_ms = self.node.engine.wall_us() / 1000;
        let (script, fast) = match command.run {
            CommandRunner::Data(_) => {
                (None, FastTxn::from_command(&arguments, self.database, &self.client().label(), now_ms)?)
            }
            CommandRunner::Script if !command.has(Flag::ReadOnly) => {
                let script = if command.name == "evalsha" {
                    self.node.find_remembered_script(caller, arguments[1]).await?
                } else {
                    CachedScript::check_length(arguments[1]).ok()?;
                    self.node.remember_script(arguments[1])
                };
                let (keys, given) = split_keys(&arguments).ok()?;
                let fast = FastTxn::from_shape(script.shape.as_ref()?, keys, given, self.database, now_ms)?;
                (Some(script), fast)
            }
            CommandRunner::Script | CommandRunner::Connection | CommandRunner::Local => return None,
        };
        Some((command, script, fast))
    }

    /// Commits the transactions, and writes the replies in the order of the requests.
    pub(super) async fn run_fast(
        &mut self,
        requests: Vec<FastRequest>,
        caller: RedisCaller,
        out: &mut Vec<u8>,
    ) -> Result<(), Closes> {
        self.node.clients.note_commands(self.client(), requests.len());
        if let Some(last) = requests.last() {
            self.note_command(last.command);
        }

        let mut requests = VecDeque::from(requests);
        let mut caller = caller;
        while !requests.is_empty() {
            let txns: Vec<RedisTxn> = requests.iter().map(|request| request.fast.txn().clone()).collect();
            let outcomes = self.node.store().commit_each(&caller, txns).await;
            for outcome in outcomes {
                let Some(FastRequest { request, script, fast, .. }) = requests.pop_front() else { break };
                let reply = match self.fast_reply(fast, outcome).await? {
                    FastReply::Known(reply) => reply,
                    FastReply::FailsOver(found) => self.script_error(&request, script, found).await?,
                };
                self.write(&reply, out);
            }
            // Commands that were not begun get a new deadline.
            caller = self.caller();
        }
        Ok(())
    }

    /// The reply to a command that was one transaction.
    async fn fast_reply(
        &self,
        fast: FastTxn,
        outcome: Result<RedisCommitted, RedisStoreError>,
    ) -> Result<FastReply, Closes> {
        let failure = match outcome {
            Ok(outcome) => return Ok(fast.reply(outcome)),
            Err(failure) => failure,
        };

        let is_unknown = matches!(failure, RedisStoreError::Unknown(_));
        if let Some(repeated) = fast.repeated().filter(|_| is_unknown)
            && let Some(is_held) = self.repeat(&self.caller(), repeated).await
        {
            return Ok(fast.reply(RedisCommitted { succeeded: is_held, ..RedisCommitted::default() }));
        }
        failure_reply(failure).map(FastReply::Known)
    }

    /// The error of a script that has found a value of another type.
    async fn script_error(
        &mut self,
        request: &RequestWords,
        script: Option<Arc<CachedScript>>,
        found: ComparedEntry,
    ) -> Result<RedisReply, Closes> {
        let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        let call = script.and_then(|script| {
            let (keys, given) = split_keys(&arguments).ok()?;
            Some(invocation(&script, keys, given, false))
        });
        let Some(call) = call else { return Ok(reply_to_one(Err(Stop::wrong_type()))) };

        let unit = CommandUnit { is_transaction: true, ..self.unit(vec![UnitCall::Script(call)]) };
        let outcome = self.node.engine.run_over(&self.caller(), &unit, found).await;
        self.take_reply(outcome)
    }
}

/// Number of bytes of a request, as far as it is counted here.
pub(super) fn bytes_of(request: &RequestWords) -> usize {
    request.iter().map(|argument| argument.len() + 1).sum()
}
