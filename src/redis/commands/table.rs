//! The table of the commands: names, arity, flags, and where their keys are.

use std::{collections::BTreeMap, sync::OnceLock};

use super::{Arguments, hashes, keys, lists, server, sets, sorted, strings};
use crate::{
    RedisReply,
    number::parse_integer,
    view::{Stop, UnitView},
};

/// A command of the keyspace.
pub(crate) type DataCommand = fn(&mut UnitView, &Arguments<'_>) -> Result<RedisReply, Stop>;

/// A command.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    /// Its name in lower case.
    pub(crate) name: &'static str,
    /// Number of its arguments, with the name; if it is below zero, the least number.
    pub(crate) arity: i32,
    /// What clients may know of it.
    pub(crate) flags: &'static [Flag],
    /// The places of its keys.
    pub(crate) keys: KeyPlaces,
    /// What runs it.
    pub(crate) run: CommandRunner,
}

/// What runs a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommandRunner {
    /// A function of the keyspace.
    Data(DataCommand),
    /// The connection. Nothing of it has a place in a transaction or in a script.
    Connection,
    /// The connection, and it may be queued in a transaction.
    Local,
    /// The interpreter.
    Script,
}

/// What clients may know of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// It may change keys.
    Write,
    /// It reads keys and changes none.
    ReadOnly,
    /// Its time does not depend on the size of a value, as Redis sees it.
    Fast,
    /// It may wait.
    Blocking,
    /// It may be sent before AUTH.
    NoAuth,
    /// It is refused in a script.
    NoScript,
}

impl Flag {
    /// The word of COMMAND for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::ReadOnly => "readonly",
            Self::Fast => "fast",
            Self::Blocking => "blocking",
            Self::NoAuth => "no_auth",
            Self::NoScript => "noscript",
        }
    }
}

/// The places of the keys among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPlaces {
    /// The command has no keys.
    Nowhere,
    /// From the first to the last place; below zero, the last one counts from the end.
    From { first: usize, last: i32, step: usize },
    /// An argument has the number of keys, and the keys follow it.
    Counted { count_at: usize },
    /// The first argument, and as many as the second says.
    TargetAndCounted,
}

impl CommandSpec {
    /// Whether it has this flag.
    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// Whether it may wait for what others do.
    pub(crate) fn may_wait(&self) -> bool {
        self.has(Flag::Blocking)
    }

    /// Whether its reply depends on a clock.
    pub(crate) fn tells_time(&self) -> bool {
        matches!(self.name, "time" | "expiretime" | "pexpiretime")
    }

    /// The keys among the arguments. Arguments that are wrong name no keys.
    pub(crate) fn keys<'a>(&self, arguments: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let counted = |count_at: usize| {
            let count = arguments.get(count_at).and_then(|count| parse_integer(count));
            let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
            arguments.get(count_at + 1..).unwrap_or_default().iter().take(count).copied()
        };

        match self.keys {
            KeyPlaces::Nowhere => Vec::new(),
            KeyPlaces::Counted { count_at } => counted(count_at).collect(),
            KeyPlaces::TargetAndCounted => arguments.get(1).copied().into_iter().chain(counted(2)).collect(),
            KeyPlaces::From { first, last, step } => {
                let end = if last < 0 {
                    (arguments.len() + 1).saturating_sub(last.unsigned_abs() as usize)
                } else {
                    last.unsigned_abs() as usize + 1
                };
                (first..end.min(arguments.len())).step_by(step).map(|place| arguments[place]).collect()
            }
        }
    }
}

/// Finds a command by its name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    static BY_NAME: OnceLock<BTreeMap<&'static str, &'static CommandSpec>> = OnceLock::new();
    let by_name = BY_NAME.get_or_init(|| COMMANDS.iter().map(|command| (command.name, command)).collect());
    // No name is longer.
    if name.len() > 32 {
        return None;
    }
    by_name.get(std::str::from_utf8(name).ok()?.to_ascii_lowercase().as_str()).copied()
}

/// All commands.
pub(crate) fn all() -> &'static [CommandSpec] {
    COMMANDS
}

/// It names no keys.
const NO_KEYS: KeyPlaces = KeyPlaces::Nowhere;
/// The first argument is the key.
const ONE: KeyPlaces = KeyPlaces::From { first: 1, last: 1, step: 1 };
/// The first two arguments are keys.
const TWO: KeyPlaces = KeyPlaces::From { first: 1, last: 2, step: 1 };
/// All arguments are keys.
const ALL: KeyPlaces = KeyPlaces::From { first: 1, last: -1, step: 1 };
/// The last argument is a timeout.
const ALL_BUT_LAST: KeyPlaces = KeyPlaces::From { first: 1, last: -2, step: 1 };
/// Each key has its value after it.
const PAIRS: KeyPlaces = KeyPlaces::From { first: 1, last: -1, step: 2 };

/// A command that reads.
const READ: &[Flag] = &[Flag::ReadOnly];
/// A command that reads a part of a value.
const READ_FAST: &[Flag] = &[Flag::ReadOnly, Flag::Fast];
/// A command that writes.
const WRITE: &[Flag] = &[Flag::Write];
/// A command that changes a part of a value.
const WRITE_FAST: &[Flag] = &[Flag::Write, Flag::Fast];
/// A command that waits for an item.
const WAITS: &[Flag] = &[Flag::Write, Flag::Blocking, Flag::NoScript];
/// A command without keys.
const PLAIN: &[Flag] = &[Flag::Fast];
/// A command about the connection.
const CONNECTION: &[Flag] = &[Flag::NoScript, Flag::Fast];
/// A command that may come before AUTH.
const BEFORE_AUTH: &[Flag] = &[Flag::NoScript, Flag::NoAuth, Flag::Fast];

/// A command of the keyspace.
const fn data(
    name: &'static str,
    arity: i32,
    flags: &'static [Flag],
    keys: KeyPlaces,
    run: DataCommand,
) -> CommandSpec {
    CommandSpec { name, arity, flags, keys, run: CommandRunner::Data(run) }
}

/// A command that something else runs.
const fn other(
    name: &'static str,
    arity: i32,
    flags: &'static [Flag],
    keys: KeyPlaces,
    run: CommandRunner,
) -> CommandSpec {
    CommandSpec { name, arity, flags, keys, run }
}

/// The commands, by families.
const COMMANDS: &[CommandSpec] = &[
    // Strings.
    data("append", 3, WRITE_FAST, ONE, strings::append),
    data("decr", 2, WRITE_FAST, ONE, strings::decrement),
    data("decrby", 3, WRITE_FAST, ONE, strings::decrement_by),
    data("get", 2, READ_FAST, ONE, strings::get),
    data("getdel", 2, WRITE_FAST, ONE, strings::get_and_delete),
    data("getex", -2, WRITE_FAST, ONE, strings::get_and_expire),
    data("getrange", 4, READ, ONE, strings::part),
    data("getset", 3, WRITE_FAST, ONE, strings::get_and_set),
    data("incr", 2, WRITE_FAST, ONE, strings::increment),
    data("incrby", 3, WRITE_FAST, ONE, strings::increment_by),
    data("incrbyfloat", 3, WRITE_FAST, ONE, strings::increment_by_float),
    data("mget", -2, READ_FAST, ALL, strings::get_many),
    data("mset", -3, WRITE, PAIRS, strings::set_many),
    data("msetnx", -3, WRITE, PAIRS, strings::set_many_if_absent),
    data("psetex", 4, WRITE, ONE, strings::set_for_milliseconds),
    data("set", -3, WRITE, ONE, strings::set),
    data("setex", 4, WRITE, ONE, strings::set_for_seconds),
    data("setnx", 3, WRITE_FAST, ONE, strings::set_if_absent),
    data("strlen", 2, READ_FAST, ONE, strings::length),
    data("substr", 4, READ, ONE, strings::part),
    // Keys.
    data("dbsize", 1, READ_FAST, NO_KEYS, keys::count),
    data("del", -2, WRITE, ALL, keys::delete),
    data("exists", -2, READ_FAST, ALL, keys::exists),
    data("expire", -3, WRITE_FAST, ONE, keys::expire),
    data("expireat", -3, WRITE_FAST, ONE, keys::expire_at),
    data("expiretime", 2, READ_FAST, ONE, keys::expire_time),
    data("flushall", -1, WRITE, NO_KEYS, keys::flush_all),
    data("flushdb", -1, WRITE, NO_KEYS, keys::flush_database),
    data("keys", 2, READ, NO_KEYS, keys::keys),
    data("persist", 2, WRITE_FAST, ONE, keys::persist),
    data("pexpire", -3, WRITE_FAST, ONE, keys::expire_milliseconds),
    data("pexpireat", -3, WRITE_FAST, ONE, keys::expire_at_millisecond),
    data("pexpiretime", 2, READ_FAST, ONE, keys::expire_time_milliseconds),
    data("pttl", 2, READ_FAST, ONE, keys::milliseconds_to_live),
    data("randomkey", 1, READ, NO_KEYS, keys::random_key),
    data("rename", 3, WRITE, TWO, keys::rename),
    data("renamenx", 3, WRITE_FAST, TWO, keys::rename_if_absent),
    data("scan", -2, READ, NO_KEYS, keys::scan),
    data("touch", -2, READ_FAST, ALL, keys::exists),
    data("ttl", 2, READ_FAST, ONE, keys::time_to_live),
    data("type", 2, READ_FAST, ONE, keys::type_name),
    data("unlink", -2, WRITE_FAST, ALL, keys::delete),
    // Lists.
    data("blmove", 6, WAITS, TWO, lists::blocking_move),
    data("blpop", -3, WAITS, ALL_BUT_LAST, lists::blocking_pop_left),
    data("brpop", -3, WAITS, ALL_BUT_LAST, lists::blocking_pop_right),
    data("brpoplpush", 4, WAITS, TWO, lists::blocking_pop_and_push),
    data("lindex", 3, READ, ONE, lists::item),
    data("linsert", 5, WRITE, ONE, lists::insert),
    data("llen", 2, READ_FAST, ONE, lists::length),
    data("lmove", 5, WRITE, TWO, lists::move_item),
    data("lpop", -2, WRITE_FAST, ONE, lists::pop_left),
    data("lpos", -3, READ, ONE, lists::position),
    data("lpush", -3, WRITE_FAST, ONE, lists::push_left),
    data("lpushx", -3, WRITE_FAST, ONE, lists::push_left_if_present),
    data("lrange", 4, READ, ONE, lists::range),
    data("lrem", 4, WRITE, ONE, lists::remove),
    data("lset", 4, WRITE, ONE, lists::set_item),
    data("ltrim", 4, WRITE, ONE, lists::trim),
    data("rpop", -2, WRITE_FAST, ONE, lists::pop_right),
    data("rpoplpush", 3, WRITE, TWO, lists::pop_and_push),
    data("rpush", -3, WRITE_FAST, ONE, lists::push_right),
    data("rpushx", -3, WRITE_FAST, ONE, lists::push_right_if_present),
    // Hashes.
    data("hdel", -3, WRITE_FAST, ONE, hashes::delete),
    data("hexists", 3, READ_FAST, ONE, hashes::exists),
    data("hget", 3, READ_FAST, ONE, hashes::get),
    data("hgetall", 2, READ, ONE, hashes::get_all),
    data("hincrby", 4, WRITE_FAST, ONE, hashes::increment),
    data("hincrbyfloat", 4, WRITE_FAST, ONE, hashes::increment_by_float),
    data("hkeys", 2, READ, ONE, hashes::names),
    data("hlen", 2, READ_FAST, ONE, hashes::length),
    data("hmget", -3, READ_FAST, ONE, hashes::get_many),
    data("hmset", -4, WRITE_FAST, ONE, hashes::set_many),
    data("hscan", -3, READ, ONE, hashes::scan),
    data("hset", -4, WRITE_FAST, ONE, hashes::set),
    data("hsetnx", 4, WRITE_FAST, ONE, hashes::set_if_absent),
    data("hstrlen", 3, READ_FAST, ONE, hashes::value_length),
    data("hvals", 2, READ, ONE, hashes::values),
    // Sets.
    data("sadd", -3, WRITE_FAST, ONE, sets::add),
    data("scard", 2, READ_FAST, ONE, sets::length),
    data("sismember", 3, READ_FAST, ONE, sets::contains),
    data("smembers", 2, READ, ONE, sets::members),
    data("smismember", -3, READ_FAST, ONE, sets::contains_many),
    data("spop", -2, WRITE_FAST, ONE, sets::pop),
    data("srem", -3, WRITE_FAST, ONE, sets::remove),
    data("sscan", -3, READ, ONE, sets::scan),
    // Sorted sets.
    data("bzpopmax", -3, WAITS, ALL_BUT_LAST, sorted::blocking_pop_greatest),
    data("bzpopmin", -3, WAITS, ALL_BUT_LAST, sorted::blocking_pop_least),
    data("zadd", -4, WRITE_FAST, ONE, sorted::add),
    data("zcard", 2, READ_FAST, ONE, sorted::length),
    data("zcount", 4, READ_FAST, ONE, sorted::count),
    data("zincrby", 4, WRITE_FAST, ONE, sorted::increment),
    data("zinterstore", -4, WRITE, KeyPlaces::TargetAndCounted, sorted::store_intersection),
    data("zmscore", -3, READ_FAST, ONE, sorted::scores),
    data("zpopmax", -2, WRITE_FAST, ONE, sorted::pop_greatest),
    data("zpopmin", -2, WRITE_FAST, ONE, sorted::pop_least),
    data("zrange", -4, READ, ONE, sorted::range),
    data("zrangebyscore", -4, READ, ONE, sorted::range_by_score),
    data("zrank", 3, READ_FAST, ONE, sorted::rank),
    data("zrem", -3, WRITE_FAST, ONE, sorted::remove),
    data("zremrangebyrank", 4, WRITE, ONE, sorted::remove_by_rank),
    data("zremrangebyscore", 4, WRITE, ONE, sorted::remove_by_score),
    data("zrevrange", -4, READ, ONE, sorted::reverse_range),
    data("zrevrangebyscore", -4, READ, ONE, sorted::reverse_range_by_score),
    data("zrevrank", 3, READ_FAST, ONE, sorted::reverse_rank),
    data("zscan", -3, READ, ONE, sorted::scan),
    data("zscore", 3, READ_FAST, ONE, sorted::score_of_member),
    data("zunionstore", -4, WRITE, KeyPlaces::TargetAndCounted, sorted::store_union),
    // The server, as transactions and scripts may ask it.
    data("echo", 2, PLAIN, NO_KEYS, server::echo),
    data("ping", -1, PLAIN, NO_KEYS, server::ping),
    data("publish", 3, PLAIN, NO_KEYS, server::publish),
    data("select", 2, PLAIN, NO_KEYS, server::select),
    data("time", 1, PLAIN, NO_KEYS, server::time),
    // Scripts.
    other("eval", -3, &[Flag::NoScript], KeyPlaces::Counted { count_at: 2 }, CommandRunner::Script),
    other("eval_ro", -3, &[Flag::NoScript, Flag::ReadOnly], KeyPlaces::Counted { count_at: 2 }, CommandRunner::Script),
    other("evalsha", -3, &[Flag::NoScript], KeyPlaces::Counted { count_at: 2 }, CommandRunner::Script),
    other(
        "evalsha_ro",
        -3,
        &[Flag::NoScript, Flag::ReadOnly],
        KeyPlaces::Counted { count_at: 2 },
        CommandRunner::Script,
    ),
    other("script", -2, &[Flag::NoScript], NO_KEYS, CommandRunner::Local),
    // The connection.
    other("auth", -2, BEFORE_AUTH, NO_KEYS, CommandRunner::Local),
    other("client", -2, CONNECTION, NO_KEYS, CommandRunner::Local),
    other("cluster", -2, PLAIN, NO_KEYS, CommandRunner::Local),
    other("command", -1, PLAIN, NO_KEYS, CommandRunner::Local),
    other("config", -2, CONNECTION, NO_KEYS, CommandRunner::Local),
    other("discard", 1, CONNECTION, NO_KEYS, CommandRunner::Connection),
    other("exec", 1, CONNECTION, NO_KEYS, CommandRunner::Connection),
    other("hello", -1, BEFORE_AUTH, NO_KEYS, CommandRunner::Local),
    other("info", -1, PLAIN, NO_KEYS, CommandRunner::Local),
    other("multi", 1, CONNECTION, NO_KEYS, CommandRunner::Connection),
    other("psubscribe", -2, CONNECTION, NO_KEYS, CommandRunner::Connection),
    other("pubsub", -2, CONNECTION, NO_KEYS, CommandRunner::Local),
    other("punsubscribe", -1, CONNECTION, NO_KEYS, CommandRunner::Connection),
    other("quit", -1, BEFORE_AUTH, NO_KEYS, CommandRunner::Connection),
    other("reset", 1, BEFORE_AUTH, NO_KEYS, CommandRunner::Connection),
    other("role", 1, CONNECTION, NO_KEYS, CommandRunner::Local),
    other("sentinel", -2, CONNECTION, NO_KEYS, CommandRunner::Local),
    other("subscribe", -2, CONNECTION, NO_KEYS, CommandRunner::Connection),
    other("unsubscribe", -1, CONNECTION, NO_KEYS, CommandRunner::Connection),
    other("unwatch", 1, CONNECTION, NO_KEYS, CommandRunner::Local),
    other("watch", -2, CONNECTION, ALL, CommandRunner::Connection),
];
