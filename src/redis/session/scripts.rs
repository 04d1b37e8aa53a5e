//! EVAL, EVALSHA and SCRIPT.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    RedisSession,
    answer::{Closes, as_read, failure_reply},
    clients::unknown_subcommand,
};
use crate::{
    Expiry, LockClaim, RedisCaller, RedisReply, RedisStore, RedisStoreError, RedisTxn, RedisWrite,
    commands::{Arguments, CommandSpec, Flag, wrong_number},
    key::{FLUSHED, script_key, script_range},
    number::parse_integer,
    script::CachedScript,
    sha1,
    unit::{CommandUnit, ScriptInvocation, UnitCall},
    view::Stop,
};

/// Number of scripts that are kept in the store, and their bytes. Those that were loaded first are forgotten first.
const STORED_MAX: usize = 500;
/// Their bytes.
const STORED_BYTES_MAX: usize = 4 << 20;

/// The scripts that were asked for by a request, by their SHA-1s as the client wrote them. Those that nobody knows are among them.
pub(super) type FoundScripts = BTreeMap<Vec<u8>, Option<Arc<CachedScript>>>;

impl<S: RedisStore> RedisSession<S> {
    /// Serves EVAL and EVALSHA by the interpreter.
    pub(super) async fn run_script(
        &mut self,
        command: &'static CommandSpec,
        arguments: &Arguments<'_>,
        caller: &RedisCaller,
    ) -> Result<RedisReply, Closes> {
        let call = match self.script_call(command, arguments, caller, &mut FoundScripts::default()).await {
            Ok(Ok(call)) => call,
            Ok(Err(stop)) => return Ok(super::reply_to_one(Err(stop))),
            Err(failure) => return failure_reply(failure),
        };

        let unit = CommandUnit { is_transaction: true, ..self.unit(vec![UnitCall::Script(call)]) };
        let outcome = self.node.engine.run(caller, unit).await;
        self.take_reply(outcome)
    }

    /// The script that EVAL or EVALSHA names, with its arguments. Fails if the store does not say whether it knows the script.
    pub(super) async fn script_call(
        &self,
        command: &CommandSpec,
        arguments: &Arguments<'_>,
        caller: &RedisCaller,
        found: &mut FoundScripts,
    ) -> Result<Result<ScriptInvocation, Stop>, RedisStoreError> {
        let (keys, given) = match split_keys(arguments) {
            Ok(split) => split,
            Err(stop) => return Ok(Err(stop)),
        };
        let script = if command.name.starts_with("evalsha") {
            let Some(script) = self.find_once(arguments[1], caller, found).await? else {
                return Ok(Err(Stop::refused("NOSCRIPT No matching script. Please use EVAL.")));
            };
            script
        } else {
            if let Err(stop) = CachedScript::check_length(arguments[1]) {
                return Ok(Err(stop));
            }
            self.node.remember_script(arguments[1])
        };

        Ok(Ok(invocation(&script, keys, given, command.has(Flag::ReadOnly))))
    }

    /// The script with this SHA-1, as it was found before if it was asked for before.
    async fn find_once(
        &self,
        sha1: &[u8],
        caller: &RedisCaller,
        found: &mut FoundScripts,
    ) -> Result<Option<Arc<CachedScript>>, RedisStoreError> {
        if let Some(script) = found.get(sha1) {
            return Ok(script.clone());
        }
        let script = self.node.find_script(caller, sha1).await.map_err(as_read)?;
        found.insert(sha1.to_vec(), script.clone());
        Ok(script)
    }

    /// Serves SCRIPT with its subcommands.
    pub(super) async fn script_command(
        &mut self,
        arguments: &Arguments<'_>,
    ) -> Result<Result<RedisReply, Stop>, Closes> {
        let subcommand = arguments[1].to_ascii_lowercase();

        match (subcommand.as_slice(), &arguments[2..]) {
            (b"load", [source]) => self.load_script(source).await,
            (b"exists", hashes) if !hashes.is_empty() => {
                let known = self.node.known_scripts(&self.caller(), hashes).await;
                Ok(match known {
                    Ok(known) => Ok(RedisReply::Array(known.into_iter().map(RedisReply::flag).collect())),
                    Err(failure) => return failure_reply(failure).map(Ok),
                })
            }
            (b"flush", how) => {
                let is_right = matches!(how, [])
                    || matches!(how, [how] if how.eq_ignore_ascii_case(b"async") || how.eq_ignore_ascii_case(b"sync"));
                if !is_right {
                    return Ok(Err(Stop::refused("ERR SCRIPT FLUSH only support SYNC|ASYNC option")));
                }
                self.flush_scripts().await
            }
            (b"kill", []) => Ok(Err(Stop::refused("NOTBUSY No scripts in execution right now."))),
            (b"load" | b"exists" | b"kill", _) => {
                Ok(Err(wrong_number(&format!("script|{}", String::from_utf8_lossy(&subcommand)))))
            }
            _ => Ok(Err(unknown_subcommand("SCRIPT", arguments[1]))),
        }
    }

    /// Serves `SCRIPT LOAD source`: the hash. The script is known to all nodes then.
    async fn load_script(&self, source: &[u8]) -> Result<Result<RedisReply, Stop>, Closes> {
        if let Err(stop) = CachedScript::check_length(source) {
            return Ok(Err(stop));
        }
        if let Err(stop) = self.node.engine.check(&self.caller(), source).await {
            return Ok(Err(stop));
        }

        match self.store_script(source).await {
            Ok(()) => {
                self.node.remember_script(source);
                Ok(Ok(RedisReply::text(sha1::hexadecimal(source))))
            }
            Err(failure) => failure_reply(failure).map(Ok),
        }
    }

    /// Keeps a script in the store, where all nodes find it.
    async fn store_script(&self, source: &[u8]) -> Result<(), RedisStoreError> {
        let port = RedisCaller { is_port: true, ..self.caller() };
        let store = self.node.store();
        let key = script_key(&sha1::hexadecimal(source));
        let found = store.get(&port, vec![key.clone()]).await?;
        if found.entries.iter().any(Option::is_some) {
            return Ok(());
        }

        let (from, to) = script_range();
        let mut kept = store.list(&port, from, to, STORED_MAX + 1).await?.entries;
        kept.sort_by_key(|(_, entry)| entry.modified);
        let mut bytes = source.len() + kept.iter().map(|(_, entry)| entry.value.len()).sum::<usize>();
        let mut count = kept.len() + 1;
        let mut writes = Vec::new();
        for (key, entry) in kept {
            if bytes <= STORED_BYTES_MAX && count <= STORED_MAX {
                break;
            }
            bytes -= entry.value.len();
            count -= 1;
            writes.push(RedisWrite::Delete { key });
        }

        writes.push(RedisWrite::Put { key, value: source.to_vec(), expiry: Expiry::None, claim: LockClaim::None });
        store.commit(&port, RedisTxn { writes, ..RedisTxn::default() }).await.map(drop)
    }

    /// Serves `SCRIPT FLUSH`. Other nodes forget their scripts within a second.
    async fn flush_scripts(&self) -> Result<Result<RedisReply, Stop>, Closes> {
        let port = RedisCaller { is_port: true, ..self.caller() };
        let (from, to) = script_range();
        let flushed =
            RedisWrite::Put { key: FLUSHED.to_vec(), value: Vec::new(), expiry: Expiry::None, claim: LockClaim::None };
        let writes = vec![RedisWrite::DeleteRange { from, to }, flushed];
        match self.node.store().commit(&port, RedisTxn { writes, ..RedisTxn::default() }).await {
            Ok(committed) => {
                self.node.note_flush(committed.revision).await;
                Ok(Ok(RedisReply::ok()))
            }
            Err(failure) => failure_reply(failure).map(Ok),
        }
    }
}

/// A call of a script.
pub(super) fn invocation(
    script: &CachedScript,
    keys: &Arguments<'_>,
    given: &Arguments<'_>,
    is_read_only: bool,
) -> ScriptInvocation {
    let owned = |arguments: &Arguments<'_>| arguments.iter().map(|argument| argument.to_vec()).collect();
    ScriptInvocation {
        source: Arc::clone(&script.source),
        sha1: script.sha1.clone(),
        keys: owned(keys),
        arguments: owned(given),
        is_read_only,
    }
}

/// The keys of EVAL or EVALSHA, and the arguments after them.
pub(super) fn split_keys<'a, 'b>(arguments: &'a Arguments<'b>) -> Result<(&'a Arguments<'b>, &'a Arguments<'b>), Stop> {
    let rest = &arguments[3..];
    let count = parse_integer(arguments[2]);
    let count = count.ok_or_else(|| Stop::refused("ERR value is not an integer or out of range"))?;
    let count = usize::try_from(count).map_err(|_| Stop::refused("ERR Number of keys can't be negative"))?;
    rest.split_at_checked(count).ok_or_else(|| Stop::refused("ERR Number of keys can't be greater than number of args"))
}
