//! Scripts and their replies.

use lockkeeper_redis::{Interpreter, RedisReply, ScriptFailure, ScriptLimits};

use super::{Strings, raised, run};
use crate::LuaInterpreter;

#[test]
fn a_script_compares_and_deletes() {
    let source = b"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    let mut host = Strings::default();
    host.0.insert(b"lock".to_vec(), b"mine".to_vec());
    let lua = LuaInterpreter::default();
    let mut release = |token: &[u8]| {
        lua.run(source, "SHA", &[b"lock".to_vec()], &[token.to_vec()], &mut host, ScriptLimits::default())
    };

    assert_eq!(release(b"another's"), Ok(RedisReply::Integer(0)));
    assert_eq!(release(b"mine"), Ok(RedisReply::Integer(1)));
    assert_eq!(release(b"mine"), Ok(RedisReply::Integer(0)));
}

/// Recorded from Redis 7.0.15, with the SHA1 left out.
#[test]
fn errors_have_the_texts_of_redis() {
    for (source, expected) in [
        ("return foo", "ERR user_script:1: Script attempted to access nonexistent global variable 'foo'"),
        ("foo = 1", "ERR user_script:1: Attempt to modify a readonly table"),
        ("string.x = 1", "ERR user_script:1: Attempt to modify a readonly table"),
        ("rawset(_G, 'x', 1)", "ERR Attempt to modify a readonly table"),
        ("return redis.call()", "ERR Please specify at least one argument for this redis lib call"),
        ("return redis.call({})", "ERR Lua redis lib command arguments must be strings or integers"),
        ("return redis.call('nope')", "ERR Unknown Redis command called from script"),
        ("error({err = 'MY text'})", "MY text"),
        ("error('x')", "ERR user_script:1: x"),
        ("error()", "ERR nil"),
        ("return string.rep()", "ERR user_script:1: bad argument #1 to 'rep' (string expected, got no value)"),
        ("return pairs(nil)", "ERR user_script:1: bad argument #1 to 'pairs' (table expected, got nil)"),
        ("return table.sort({1, 'a'})", "ERR attempt to compare string with number"),
        ("return string.find('x', '(')", "ERR user_script:1: unfinished capture"),
        ("return coroutine.wrap(function() error('x') end)()", "ERR user_script:1: user_script:1: x"),
    ] {
        assert_eq!(raised(source), format!("{expected} script: SHA, on @user_script:1."), "{source}");
    }
    assert!(raised("local a\n\nreturn a.x").ends_with("on @user_script:3."));
}

#[test]
fn values_are_converted_as_in_redis() {
    let integer = RedisReply::Integer;
    let bulk = |text: &str| RedisReply::Bulk(text.as_bytes().to_vec());
    for (source, expected) in [
        ("return 2.9", integer(2)),
        ("return -2.9", integer(-2)),
        ("return 0/0", integer(i64::MIN)),
        ("return true", integer(1)),
        ("return false", RedisReply::Nil),
        ("return", RedisReply::Nil),
        ("return {ok = 'FINE'}", RedisReply::Status(b"FINE".to_vec())),
        ("return redis.error_reply('MY text')", RedisReply::Error(b"MY text".to_vec())),
        ("return redis.error_reply('text')", RedisReply::Error(b"ERR text".to_vec())),
        ("return {1, 'x', nil, 3}", RedisReply::Array(vec![integer(1), bulk("x")])),
        ("return redis.call('get', 'none') == false", integer(1)),
        ("redis.call('set', 'k', 1e15) return redis.call('get', 'k')", bulk("1000000000000000")),
        ("redis.call('set', 'k', 0.1) return redis.call('get', 'k')", bulk("0.10000000000000001")),
        ("return redis.call('set', 'k', 'v').ok", bulk("OK")),
        ("return redis.pcall('nope').err", bulk("ERR Unknown Redis command called from script")),
        ("return '10' + 1", integer(11)),
    ] {
        assert_eq!(run(source), Ok(expected), "{source}");
    }
}

#[test]
fn a_script_that_is_none_is_told_why() {
    let text = "user_script:1: '=' expected near 'x'".to_owned();
    assert_eq!(LuaInterpreter::default().check(b"x x"), Err(ScriptFailure::Compile(text.clone())));
    assert_eq!(run("x x"), Err(ScriptFailure::Compile(text)));
    assert_eq!(LuaInterpreter::default().check(b"return 1"), Ok(()));
}

/// Prints how long a run takes: `cargo test -p lockkeeper-lua --lib cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_run() {
    let source = b"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    let runs = 2000;
    let started = std::time::Instant::now();
    for _ in 0..runs {
        let mut host = Strings::default();
        let keys = [b"lock".to_vec()];
        let result = LuaInterpreter::default().run(source, "SHA", &keys, &keys, &mut host, ScriptLimits::default());
        assert_eq!(result, Ok(RedisReply::Integer(0)));
    }
    println!("{:?} a run", started.elapsed() / runs);
}
