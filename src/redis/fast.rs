//! Commands of plain locks as one transaction, without a read before.
//!
//! What a command decides by is a condition of the transaction: that the key is absent, present, or has a value. If the condition does
//! not hold, the transaction answers with the entry, and that says what the reply is.

use crate::{
    Expiry, LockClaim, RedisCommitted, RedisCondition, RedisEntry, RedisReply, RedisTxn, RedisWrite,
    commands::{Arguments, SetOptions},
    data::{encode_text, text_in_entry},
    key::{lock_name, store_key},
    number::parse_integer,
    script::{ScriptShape, ThenDo, ValueComparison},
};

/// A command as one transaction.
#[derive(Debug)]
pub(crate) struct FastTxn {
    /// The conditions and the writes.
    txn: RedisTxn,
    /// The replies to the client, by the outcome.
    replies: FastReplies,
}

/// What the outcome of a transaction will mean.
#[derive(Debug)]
enum FastReplies {
    /// One reply if the writes were made, and another one if not.
    Either(RedisReply, RedisReply),
    /// Number of entries that were removed.
    Deleted,
    /// One reply if the writes were made, one if the entry has another value, and one if there is no entry. There is no reply if the entry
    /// is not a string: the interpreter then runs the script.
    Compared { done: RedisReply, differs: RedisReply, absent: RedisReply },
}

impl FastTxn {
    /// Makes a transaction of a command. `None` means that the command needs more than that; or that it is wrong, and is to be run to get
    /// its error.
    pub(crate) fn from_command(arguments: &Arguments<'_>, database: u8, holder: &str, now_ms: u64) -> Option<Self> {
        let key = |key: &[u8]| store_key(database, key);

        match (arguments[0].to_ascii_lowercase().as_slice(), &arguments[1..]) {
            (b"set", [name, text, options @ ..]) => {
                let options = SetOptions::read(options, || Ok(now_ms)).ok()?;
                // A time since 1970 is counted by the clock of the node that leads.
                let is_relative = !options.is_absolute;
                let is_lock = options.if_absent && !options.gets && !options.keeps_life && is_relative;
                let life_ms = options.life_ms.map(u64::try_from).transpose().ok()?;
                (is_lock && life_ms != Some(0))
                    .then(|| Self::put_if_absent(key(name), text, life_ms, holder, [RedisReply::ok(), RedisReply::Nil]))
            }
            (b"setnx", [name, text]) => {
                let replies = [RedisReply::Integer(1), RedisReply::Integer(0)];
                Some(Self::put_if_absent(key(name), text, None, holder, replies))
            }
            (b"del" | b"unlink", names) if !names.is_empty() => {
                let mut keys: Vec<_> = names.iter().map(|name| key(name)).collect();
                keys.sort();
                keys.dedup();
                let writes = keys.into_iter().map(|key| RedisWrite::Delete { key }).collect();
                Some(Self { txn: RedisTxn { writes, ..RedisTxn::default() }, replies: FastReplies::Deleted })
            }
            (b"pexpire", [name, ms]) => Some(Self::expire_if_present(key(name), life_ms(ms, 1, now_ms)?)),
            (b"expire", [name, seconds]) => Some(Self::expire_if_present(key(name), life_ms(seconds, 1000, now_ms)?)),
            _ => None,
        }
    }

    /// Makes a transaction of a script with a known shape.
    pub(crate) fn from_shape(
        shape: &ScriptShape,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        database: u8,
        now_ms: u64,
    ) -> Option<Self> {
        let ValueComparison { key, value } = shape.comparison;
        let key = store_key(database, keys.get(key)?);
        let value = encode_text(arguments.get(value)?);
        let write = match shape.then_do {
            ThenDo::Delete => RedisWrite::Delete { key: key.clone() },
            ThenDo::Expire { unit_ms, argument } => {
                let expiry = Expiry::AfterMs(life_ms(arguments.get(argument)?, unit_ms, now_ms)?);
                RedisWrite::Expire { key: key.clone(), expiry }
            }
        };

        let txn = RedisTxn {
            conditions: vec![RedisCondition::Value { key: key.clone(), value }],
            writes: vec![write],
            otherwise_get: vec![key],
        };
        let ScriptShape { done, differs, absent, .. } = shape.clone();
        let replies = FastReplies::Compared { done, differs, absent };
        Some(Self { txn, replies })
    }

    /// Puts a string under the condition that there is no entry. With a deadline it is a lock.
    fn put_if_absent(
        key: Vec<u8>,
        text: &[u8],
        life_ms: Option<u64>,
        holder: &str,
        [done, refused]: [RedisReply; 2],
    ) -> Self {
        let claim = match life_ms {
            Some(_) => LockClaim::New { name: lock_name(&key), holder: holder.to_owned() },
            None => LockClaim::None,
        };

        let expiry = life_ms.map_or(Expiry::None, Expiry::AfterMs);
        let write = RedisWrite::Put { key: key.clone(), value: encode_text(text), expiry, claim };
        let conditions = vec![RedisCondition::Modified { key, revision: 0 }];
        let txn = RedisTxn { conditions, writes: vec![write], otherwise_get: Vec::new() };
        Self { txn, replies: FastReplies::Either(done, refused) }
    }

    /// The same again, if it takes a lock: it does nothing where it was done already, and then answers with the entry that is there.
    pub(crate) fn repeated(&self) -> Option<RepeatedClaim> {
        let [RedisWrite::Put { key, value, claim: LockClaim::New { holder, .. }, .. }] = &self.txn.writes[..] else {
            return None;
        };
        let txn = RedisTxn { otherwise_get: vec![key.clone()], ..self.txn.clone() };
        Some(RepeatedClaim { txn, value: value.clone(), holder: holder.clone() })
    }

    /// Changes the deadline of an entry that is there.
    fn expire_if_present(key: Vec<u8>, life_ms: u64) -> Self {
        let conditions = vec![RedisCondition::Present { key: key.clone() }];
        let writes = vec![RedisWrite::Expire { key, expiry: Expiry::AfterMs(life_ms) }];
        let txn = RedisTxn { conditions, writes, otherwise_get: Vec::new() };
        Self { txn, replies: FastReplies::Either(RedisReply::Integer(1), RedisReply::Integer(0)) }
    }

    /// The transaction.
    pub(crate) fn txn(&self) -> &RedisTxn {
        &self.txn
    }
}

/// A transaction that takes a lock, and may have been done already.
///
/// The text of its holder names the one request that is repeated ([`ListedClient::label`](crate::clients::ListedClient::label)). So an
/// entry with that text is what the request has written, and no other client was ever told that it holds the lock.
#[derive(Debug)]
pub(crate) struct RepeatedClaim {
    pub(crate) txn: RedisTxn,
    value: Vec<u8>,
    holder: String,
}

impl RepeatedClaim {
    /// Whether the lock is held by the request that was repeated: since now, or since it was first sent.
    pub(crate) fn is_held(&self, outcome: &RedisCommitted) -> bool {
        let is_own = |entry: &RedisEntry| entry.holder.as_ref() == Some(&self.holder) && entry.value == self.value;
        outcome.succeeded || outcome.found.first().and_then(Option::as_ref).is_some_and(is_own)
    }
}

/// What a client is told of a command that was one transaction.
#[derive(Debug)]
pub(crate) enum FastReply {
    /// This is the reply.
    Known(RedisReply),
    /// The script fails, since the entry that it reads has another type. The error names the line of the script, which the interpreter
    /// knows.
    FailsOver(ComparedEntry),
}

/// The entry that a transaction has compared.
#[derive(Debug)]
pub(crate) struct ComparedEntry {
    /// Its key in the store.
    pub(crate) key: Vec<u8>,
    /// The entry, as of the transaction.
    pub(crate) entry: RedisEntry,
    /// The cluster time of the transaction.
    pub(crate) now_ms: u64,
}

impl FastTxn {
    /// The reply to the command.
    pub(crate) fn reply(self, outcome: RedisCommitted) -> FastReply {
        FastReply::Known(match self.replies {
            FastReplies::Deleted => RedisReply::Integer(i64::try_from(outcome.deleted).unwrap_or(i64::MAX)),
            FastReplies::Either(done, _) | FastReplies::Compared { done, .. } if outcome.succeeded => done,
            FastReplies::Either(_, refused) => refused,
            FastReplies::Compared { differs, absent, .. } => {
                let Some(entry) = outcome.found.into_iter().next().flatten() else {
                    return FastReply::Known(absent);
                };
                let key = self.txn.otherwise_get.into_iter().next();
                match key.filter(|_| text_in_entry(&entry.value).is_none()) {
                    Some(key) => return FastReply::FailsOver(ComparedEntry { key, entry, now_ms: outcome.now_ms }),
                    None => differs,
                }
            }
        })
    }
}

/// Reads a time of life above zero. `None` for any other.
fn life_ms(argument: &[u8], unit_ms: i64, now_ms: u64) -> Option<u64> {
    let ms = parse_integer(argument)?.checked_mul(unit_ms)?;
    ms.checked_add(i64::try_from(now_ms).ok()?)?;
    u64::try_from(ms).ok().filter(|ms| *ms > 0)
}
