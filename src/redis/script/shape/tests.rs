use proptest::prelude::*;

use super::*;

fn shape(source: &str) -> Option<ScriptShape> {
    ScriptShape::recognize(source.as_bytes())
}

/// The shape of a script that does this, with 1 for done and 0 for not.
fn usual(then_do: ThenDo) -> Option<ScriptShape> {
    let comparison = ValueComparison { key: 0, value: 0 };
    let [done, differs, absent] = [1, 0, 0].map(RedisReply::Integer);
    Some(ScriptShape { comparison, then_do, done, differs, absent })
}

#[test]
fn releases_in_many_words_are_one_shape() {
    for source in [
        r#"if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end"#,
        "if redis.call('GET',KEYS[1])==ARGV[1] then\n\treturn redis.call('DEL',KEYS[1])\nend\nreturn 0",
        "local token = redis.call('get', KEYS[1])\nif not token or token ~= ARGV[1] then\nreturn 0\nend\nredis.call('del', KEYS[1])\nreturn 1",
        "-- release\nlocal key = KEYS[1]; local id = ARGV[1];\nif (id == redis.call('get', key)) then redis.call('unlink', key) return 1; else return 0; end",
        "local v = redis.call('get', KEYS[1]) if v == false then return 0 elseif v == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "--[[ a\ncomment ]] if redis.call('get', KEYS[1]) == ARGV[1] and true then return redis.call('del', KEYS[1]) or 7 end return 0",
    ] {
        assert_eq!(shape(source), usual(ThenDo::Delete), "{source}");
    }
}

#[test]
fn extensions_are_a_shape() {
    let source = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
    assert_eq!(shape(source), usual(ThenDo::Expire { unit_ms: 1, argument: 1 }));
    let source =
        "if ARGV[1] == redis.call('get', KEYS[1]) then return redis.call('expire', KEYS[1], ARGV[2]) end return 0";
    assert_eq!(shape(source), usual(ThenDo::Expire { unit_ms: 1000, argument: 1 }));
}

#[test]
fn replies_may_differ_in_each_case() {
    let source = "local v = redis.call('get', KEYS[2]) if not v then return -1 end if v ~= ARGV[3] then return 'other' end redis.call('del', KEYS[2]) return true";
    let found = shape(source).expect("a shape");
    assert_eq!(found.comparison, ValueComparison { key: 1, value: 2 });
    assert_eq!(found.absent, RedisReply::Integer(-1));
    assert_eq!(found.differs, RedisReply::Bulk(b"other".to_vec()));
    assert_eq!(found.done, RedisReply::Integer(1));
}

#[test]
fn what_does_more_or_less_has_no_shape() {
    for source in [
        "",
        "return 1",
        "return redis.call('del', KEYS[1])",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return 1 end return 0",
        // Another key, another argument, two writes, a write in another case.
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[2]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] or redis.call('get', KEYS[1]) == ARGV[2] then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]) return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) ~= ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "local v = redis.call('get', KEYS[1]) if not v or v == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return redis.call('del', KEYS[1]) end",
        "local v = redis.call('get', KEYS[1]) if not v then return 0 end local same = v == ARGV[1] return redis.call('del', KEYS[1])",
        // What only the interpreter knows.
        "if redis.call('get', KEYS[1]) == tostring(ARGV[1]) then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == 'x' then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == token then return redis.call('del', KEYS[1]) end return 0",
        "if redis.pcall('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], 100) end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2], 'NX') end return 0",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return redis.call('get', KEYS[1])",
        "if redis.call('get', 'k') == ARGV[1] then return redis.call('del', 'k') end return 0",
        "while true do end",
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0 return 1",
    ] {
        assert_eq!(shape(source), None, "{source}");
    }
}

#[test]
fn nesting_is_bounded() {
    assert_eq!(shape(&format!("return {}1", "(".repeat(2000))), None);
    assert_eq!(shape(&"if true then ".repeat(150)), None);
    assert_eq!(shape(&format!("return {}1", "not ".repeat(500))), None);
}

proptest! {
    #[test]
    fn any_text_has_a_shape_or_none(source in "(if|then|end|return|redis.call|\\(|\\)|'get'|,|KEYS\\[1\\]|ARGV|==|not|local v =|0| ){0,40}") {
        let _ = shape(&source);
    }
}
