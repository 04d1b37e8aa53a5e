//! The commands of the keyspace: the bytes of their replies.

use std::time::Duration;

use tokio::time::advance;

use super::Api;

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value|";
const NOT_INTEGER: &str = "-ERR value is not an integer or out of range|";

#[tokio::test(start_paused = true)]
async fn strings() {
    let mut api = Api::new();
    api.expect(&[
        ("GET k", "$-1|"),
        ("SET k v", "+OK|"),
        ("get k", "$1|v|"),
        ("SET k w NX", "$-1|"),
        ("SET k w XX GET", "$1|v|"),
        ("SET k x NX GET", "$1|w|"),
        ("GET k", "$1|w|"),
        ("SET k v NX XX", "-ERR syntax error|"),
        ("SET k v EX 1 PX 1", "-ERR syntax error|"),
        ("SET k v EX 0", "-ERR invalid expire time in 'set' command|"),
        ("SET k v PX x", NOT_INTEGER),
        ("SET k v PX", "-ERR syntax error|"),
        ("SET k v EX 9223372036854775807", "-ERR invalid expire time in 'set' command|"),
        ("APPEND k abc", ":4|"),
        ("GETRANGE k 1 -1", "$3|abc|"),
        ("GETRANGE k 1 -10", "$0||"),
        ("STRLEN k", ":4|"),
        ("GETSET k n", "$4|wabc|"),
        ("GETDEL k", "$1|n|"),
        ("GETDEL k", "$-1|"),
        ("INCR n", ":1|"),
        ("INCRBY n 41", ":42|"),
        ("DECRBY n 2", ":40|"),
        ("INCRBYFLOAT n 0.5", "$4|40.5|"),
        ("INCR n", NOT_INTEGER),
        ("SET n 9223372036854775807", "+OK|"),
        ("INCR n", "-ERR increment or decrement would overflow|"),
        ("DECRBY n -9223372036854775808", "-ERR decrement would overflow|"),
        ("MSET a 1 b 2", "+OK|"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command|"),
        ("MGET a none b", "*3|$1|1|$-1|$1|2|"),
        ("MSETNX c 1 a 2", ":0|"),
        ("EXISTS c", ":0|"),
        ("MSETNX c 1 d 2", ":1|"),
        ("LPUSH list x", ":1|"),
        ("GET list", WRONG_TYPE),
        ("MGET list", "*1|$-1|"),
        ("SET list v", "+OK|"),
        ("NONE a b", "-ERR unknown command 'NONE', with args beginning with: 'a' 'b' |"),
        ("GET", "-ERR wrong number of arguments for 'get' command|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn keys_and_their_lives() {
    let mut api = Api::new();
    api.expect(&[
        ("PTTL k", ":-2|"),
        ("EXPIRE k 10", ":0|"),
        ("SET k v", "+OK|"),
        ("TTL k", ":-1|"),
        ("EXPIRE k 10", ":1|"),
        ("PTTL k", ":10000|"),
        ("PEXPIRE k 5000 GT", ":0|"),
        ("PEXPIRE k 5000 LT", ":1|"),
        ("PEXPIRE k 1 NX", ":0|"),
        ("PEXPIRE k 1 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible|"),
        ("PEXPIRE k 1 ZZ", "-ERR Unsupported option ZZ|"),
        ("EXPIRE k 9223372036854775807", "-ERR invalid expire time in 'expire' command|"),
        ("PEXPIRETIME k", ":1735689605000|"),
        ("PERSIST k", ":1|"),
        ("PERSIST k", ":0|"),
        ("PEXPIREAT k 1735689600300", ":1|"),
        ("PTTL k", ":300|"),
        ("INCR n", ":1|"),
        ("RENAME k moved", "+OK|"),
        ("PTTL moved", ":300|"),
        ("RENAME k x", "-ERR no such key|"),
        ("RENAMENX moved n", ":0|"),
        ("TYPE n", "+string|"),
        ("TYPE none", "+none|"),
        ("EXISTS n n none", ":2|"),
        ("DEL n n none", ":1|"),
        ("EXPIRE moved -1", ":1|"),
        ("EXISTS moved", ":0|"),
        ("SET k v PX 100", "+OK|"),
        ("SET k w KEEPTTL", "+OK|"),
    ])
    .await;
    advance(Duration::from_millis(99)).await;
    api.expect(&[("GET k", "$1|w|"), ("PTTL k", ":1|")]).await;
    advance(Duration::from_millis(1)).await;
    api.expect(&[("GET k", "$-1|"), ("PTTL k", ":-2|"), ("DBSIZE", ":0|"), ("RANDOMKEY", "$-1|")]).await;
}

#[tokio::test(start_paused = true)]
async fn lists() {
    let mut api = Api::new();
    api.expect(&[
        ("RPUSH l a b c", ":3|"),
        ("LPUSH l z", ":4|"),
        ("LRANGE l 0 -1", "*4|$1|z|$1|a|$1|b|$1|c|"),
        ("LINDEX l -1", "$1|c|"),
        ("LINDEX l 9", "$-1|"),
        ("LPOS l b", ":2|"),
        ("LPOS l none", "$-1|"),
        ("LPOS l b COUNT 0", "*1|:2|"),
        ("LREM l 0 b", ":1|"),
        ("LTRIM l 0 1", "+OK|"),
        ("LLEN l", ":2|"),
        ("LPOP l", "$1|z|"),
        ("RPOP l 5", "*1|$1|a|"),
        ("EXISTS l", ":0|"),
        ("LPOP l", "$-1|"),
        ("LPOP l 1", "*-1|"),
        ("LPUSHX l a", ":0|"),
        ("RPUSH l a b", ":2|"),
        ("LMOVE l m RIGHT LEFT", "$1|b|"),
        ("RPOPLPUSH l l", "$1|a|"),
        ("LINSERT l AFTER a x", ":2|"),
        ("LSET l 0 y", "+OK|"),
        ("LSET l 9 y", "-ERR index out of range|"),
        ("BLPOP none m 1", "*2|$1|m|$1|b|"),
        ("LPOP l x", "-ERR value is out of range, must be positive|"),
        ("LPOP l -1", "-ERR value is out of range, must be positive|"),
        ("SET s v", "+OK|"),
        ("LPUSH s a", WRONG_TYPE),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn hashes() {
    let mut api = Api::new();
    api.expect(&[
        ("HSET h a 1 b 2", ":2|"),
        ("HSET h a 3 c 4", ":1|"),
        ("HSET h a", "-ERR wrong number of arguments for 'hset' command|"),
        ("HSET h a 1 b", "-ERR wrong number of arguments for 'hset' command|"),
        ("HGETALL h", "*6|$1|a|$1|3|$1|b|$1|2|$1|c|$1|4|"),
        ("HGET h a", "$1|3|"),
        ("HGET h z", "$-1|"),
        ("HMGET h a z", "*2|$1|3|$-1|"),
        ("HMSET h d 5", "+OK|"),
        ("HSETNX h d 6", ":0|"),
        ("HINCRBY h d 5", ":10|"),
        ("HINCRBYFLOAT h d 0.1", "$4|10.1|"),
        ("HINCRBY h d 1", "-ERR hash value is not an integer|"),
        ("HDEL h a b z", ":2|"),
        ("HKEYS h", "*2|$1|c|$1|d|"),
        ("HVALS h", "*2|$1|4|$4|10.1|"),
        ("HLEN h", ":2|"),
        ("HEXISTS h c", ":1|"),
        ("HSTRLEN h d", ":4|"),
        ("HSCAN h 0 MATCH c", "*2|$1|0|*2|$1|c|$1|4|"),
        ("HDEL h c d", ":2|"),
        ("TYPE h", "+none|"),
        ("HGETALL h", "*0|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn sets() {
    let mut api = Api::new();
    api.expect(&[
        ("SADD s a b a", ":2|"),
        ("SADD s a", ":0|"),
        ("SCARD s", ":2|"),
        ("SISMEMBER s a", ":1|"),
        ("SMISMEMBER s a z", "*2|:1|:0|"),
        ("SMEMBERS s", "*2|$1|a|$1|b|"),
        ("SREM s b z", ":1|"),
        ("SPOP s", "$1|a|"),
        ("SPOP s", "$-1|"),
        ("SPOP s 2", "*0|"),
        ("TYPE s", "+none|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn sorted_sets() {
    let mut api = Api::new();
    api.expect(&[
        ("ZADD z 1 a 2 b 3 c", ":3|"),
        ("ZADD z XX CH 5 a 9 none", ":1|"),
        ("ZADD z NX 7 a", ":0|"),
        ("ZADD z GT CH 4 a", ":0|"),
        ("ZADD z INCR 1.5 b", "$3|3.5|"),
        ("ZADD z NX INCR 1 b", "$-1|"),
        ("ZADD z NX GT 1 a", "-ERR GT, LT, and/or NX options at the same time are not compatible|"),
        ("ZADD z 1", "-ERR wrong number of arguments for 'zadd' command|"),
        ("ZADD z 1 a 2", "-ERR syntax error|"),
        ("ZADD z x a", "-ERR value is not a valid float|"),
        ("ZRANGE z 0 -1 WITHSCORES", "*6|$1|c|$1|3|$1|b|$3|3.5|$1|a|$1|5|"),
        ("ZRANGE z (3 +inf BYSCORE LIMIT 1 1", "*1|$1|a|"),
        ("ZRANGE z +inf 3.5 BYSCORE REV", "*2|$1|a|$1|b|"),
        ("ZREVRANGE z 0 0", "*1|$1|a|"),
        ("ZRANGEBYSCORE z -inf 3.5 WITHSCORES", "*4|$1|c|$1|3|$1|b|$3|3.5|"),
        ("ZREVRANGEBYSCORE z 4 0 LIMIT 0 1", "*1|$1|b|"),
        (
            "ZRANGE z 0 1 LIMIT 0 1",
            "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX|",
        ),
        ("ZRANGE z a 1", NOT_INTEGER),
        ("ZCOUNT z (3 5", ":2|"),
        ("ZCOUNT z x 5", "-ERR min or max is not a float|"),
        ("ZSCORE z a", "$1|5|"),
        ("ZSCORE z none", "$-1|"),
        ("ZRANK z a", ":2|"),
        ("ZREVRANK z a", ":0|"),
        ("ZINCRBY z 1795343189134 m", "$13|1795343189134|"),
        ("ZREM z m none", ":1|"),
        ("ZREMRANGEBYRANK z 0 0", ":1|"),
        ("ZREMRANGEBYSCORE z 5 5", ":1|"),
        ("ZPOPMIN z", "*2|$1|b|$3|3.5|"),
        ("ZPOPMIN z", "*0|"),
        ("TYPE z", "+none|"),
        ("ZADD one 1 a 2 b", ":2|"),
        ("ZADD two 10 b 20 c", ":2|"),
        ("ZINTERSTORE out 2 one two WEIGHTS 1 0", ":1|"),
        ("ZRANGE out 0 -1 WITHSCORES", "*2|$1|b|$1|2|"),
        ("ZUNIONSTORE out 2 one two AGGREGATE MAX", ":3|"),
        ("ZRANGE out 0 -1 WITHSCORES", "*6|$1|a|$1|1|$1|b|$2|10|$1|c|$2|20|"),
        ("ZINTERSTORE out 0 one", "-ERR at least 1 input key is needed for 'zinterstore' command|"),
        ("ZADD inf inf a -inf b", ":2|"),
        ("ZADD inf INCR -inf a", "-ERR resulting score is not a number (NaN)|"),
        ("BZPOPMIN none inf 0", "*3|$3|inf|$1|b|$4|-inf|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_third_version_of_the_protocol_has_its_own_forms() {
    let mut api = Api::new();
    let hello = api.call("HELLO 3").await;
    assert!(hello.starts_with("%7|$6|server|$5|redis|$7|version|$6|7.0.15|$5|proto|:3|"), "{hello}");
    api.expect(&[
        ("HSET h a 1", ":1|"),
        ("HGETALL h", "%1|$1|a|$1|1|"),
        ("SADD s a", ":1|"),
        ("SMEMBERS s", "~1|$1|a|"),
        ("ZADD z 1.5 a", ":1|"),
        ("ZSCORE z a", ",1.5|"),
        ("ZRANGE z 0 -1 WITHSCORES", "*1|*2|$1|a|,1.5|"),
        ("ZPOPMIN z", "*2|$1|a|,1.5|"),
        ("GET none", "_|"),
        ("LPOP none 2", "_|"),
        ("HELLO 4", "-NOPROTO unsupported protocol version|"),
        ("RESET", "+RESET|"),
        ("GET none", "$-1|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn databases_are_apart_and_are_emptied_apart() {
    let mut api = Api::new();
    api.expect(&[
        ("SET k zero", "+OK|"),
        ("SELECT 1", "+OK|"),
        ("GET k", "$-1|"),
        ("SET k one", "+OK|"),
        ("SELECT 16", "-ERR DB index is out of range|"),
        ("FLUSHDB", "+OK|"),
        ("GET k", "$-1|"),
        ("SELECT 0", "+OK|"),
        ("GET k", "$4|zero|"),
        ("FLUSHALL ASYNC", "+OK|"),
        ("GET k", "$-1|"),
        ("FLUSHALL NOW", "-ERR syntax error|"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn more_keys_than_one_transaction_removes_are_flushed() {
    let mut api = Api::new();
    for number in 0..1500 {
        api.store.put(&format!("redis/0/{number}"), b"sv");
    }
    api.expect(&[("DBSIZE", ":1500|"), ("FLUSHDB", "+OK|"), ("DBSIZE", ":0|")]).await;
}

#[tokio::test(start_paused = true)]
async fn a_scan_shows_each_key_once_and_ends() {
    let mut api = Api::new();
    for number in 0..250 {
        api.store.put(&format!("redis/0/key:{number:03}"), b"sv");
    }
    api.call("LPUSH other x").await;

    for options in ["", "COUNT 100", "MATCH key:* COUNT 7", "TYPE string"] {
        let mut found = Vec::new();
        let mut cursor = "0".to_owned();
        for step in 0..300 {
            let reply = api.call(&format!("SCAN {cursor} {options}")).await;
            let parts: Vec<&str> = reply.split('|').collect();
            cursor = parts[2].to_owned();
            found.extend(parts.iter().filter(|part| part.starts_with("key:")).map(|part| (*part).to_owned()));
            // A key that comes and goes behind the scan changes nothing of the others.
            api.call(if step % 2 == 0 { "SET key:000a v" } else { "DEL key:000a" }).await;
            if cursor == "0" {
                break;
            }
        }
        found.retain(|key| key != "key:000a");
        let unique: std::collections::BTreeSet<_> = found.iter().collect();
        assert_eq!((found.len(), unique.len(), cursor.as_str()), (250, 250, "0"), "{options}");
    }
    api.expect(&[("SCAN x", "-ERR invalid cursor|"), ("SCAN 0 COUNT 0", "-ERR syntax error|")]).await;
    let keys = api.call("KEYS key:00*").await;
    assert!(keys.starts_with("*10|") || keys.starts_with("*11|"), "{keys}");
}

#[tokio::test(start_paused = true)]
async fn patterns_that_take_long_are_refused() {
    let mut api = Api::new();
    let name = "a".repeat(20_000);
    let pattern = format!("*{}b", "a".repeat(10_000));
    api.call(&format!("HSET h {name} v")).await;
    api.call(&format!("SADD s {name}")).await;
    api.call(&format!("ZADD z 1 {name}")).await;
    for number in 0..300 {
        api.store.put(&format!("redis/0/{number}{}", &name[..1_000]), b"sx");
    }
    for command in ["HSCAN h 0 MATCH", "SSCAN s 0 MATCH", "ZSCAN z 0 MATCH", "KEYS", "SCAN 0 COUNT 1000 MATCH"] {
        let reply = api.call(&format!("{command} {pattern}")).await;
        assert!(reply.starts_with("-ERR the commands take more than 2097152 units of work"), "{command}: {reply}");
        let reply = api.call(&format!("{command} *a")).await;
        assert!(reply.contains(&name[..1_000]), "{command}: {reply}");
    }
}

const TOO_MUCH_WORK: &str = "-ERR the commands take more than 2097152 units of work";

#[tokio::test(start_paused = true)]
async fn the_bytes_of_a_reply_are_paid_for_before_they_are_copied() {
    let mut api = Api::new();
    let value = "v".repeat(390_000);
    api.call(&format!("HSET h f {value}")).await;
    let reply = api.call(&format!("HMGET h{}", " f".repeat(200))).await;
    assert!(reply.starts_with(TOO_MUCH_WORK), "{}", &reply[..100]);
    let reply = api.call(&format!("HMGET h{}", " f".repeat(20))).await;
    assert_eq!(reply, format!("*20|{}", format!("$390000|{value}|").repeat(20)));
}

/// Each of them shows a long text: whoever runs it demands that it was paid for.
#[tokio::test(start_paused = true)]
async fn every_command_that_shows_stored_bytes_pays_for_them() {
    let mut api = Api::new();
    let long = |letter: &str| letter.repeat(100_000);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(long);
    let fill = [
        format!("SET text {a}"),
        format!("RPUSH list {a} {b} {c} {d} {a} {b} {c} {d}"),
        format!("HSET hash {a} {b}"),
        format!("SADD set {a} {b} {c}"),
        format!("ZADD sorted 1 {a} 2 {b} 3 {c} 4 {d}"),
        format!("SET {} key", &a[..2_000]),
    ];
    for line in fill {
        let reply = api.call(&line).await;
        assert!(!reply.starts_with('-'), "{reply}");
    }

    for (line, bytes_min) in [
        ("GET text", 100_000),
        ("MGET text text none", 200_000),
        ("GETRANGE text 1 -1", 99_999),
        ("GETEX text", 100_000),
        ("SET text x GET", 100_000),
        ("LRANGE list 0 -1", 800_000),
        ("LINDEX list 1", 100_000),
        ("LPOP list", 100_000),
        ("RPOP list 2", 200_000),
        ("LMOVE list other LEFT RIGHT", 100_000),
        ("LMOVE list list LEFT RIGHT", 100_000),
        ("BRPOP none list 0", 100_000),
        ("HGET hash none", 0),
        ("HGETALL hash", 200_000),
        ("HKEYS hash", 100_000),
        ("HVALS hash", 100_000),
        ("HSCAN hash 0", 200_000),
        ("SMEMBERS set", 300_000),
        ("SSCAN set 0", 300_000),
        ("SPOP set", 100_000),
        ("SPOP set 2", 200_000),
        ("ZRANGE sorted 0 -1", 400_000),
        ("ZRANGEBYSCORE sorted 1 3 WITHSCORES", 300_000),
        ("ZSCAN sorted 0", 400_000),
        ("ZPOPMIN sorted", 100_000),
        ("ZPOPMAX sorted 2", 200_000),
        ("BZPOPMIN sorted 0", 100_000),
        ("KEYS a*", 2_000),
        ("SCAN 0", 2_000),
        ("RANDOMKEY", 0),
    ] {
        let reply = api.call(line).await;
        assert!(!reply.starts_with('-') && reply.len() > bytes_min, "{line}: {} bytes", reply.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_join_of_many_sources_pays_for_the_bytes_of_each() {
    let mut api = Api::new();
    let member = "m".repeat(390_000);
    api.call(&format!("ZADD z 1 {member}")).await;
    api.call(&format!("SADD s {member}")).await;
    for command in ["ZUNIONSTORE", "ZINTERSTORE"] {
        for source in [" z", " s"] {
            let reply = api.call(&format!("{command} t 300{}", source.repeat(300))).await;
            assert!(reply.starts_with(TOO_MUCH_WORK), "{command}{source}: {reply}");
            assert_eq!(api.call(&format!("{command} t 100{}", source.repeat(100))).await, ":1|");
        }
    }
    api.expect(&[
        ("ZRANGE t 0 -1 WITHSCORES", &format!("*2|$390000|{member}|$3|100|")),
        // The types of all sources come first, and they cost nothing.
        ("SET text x", "+OK|"),
        (&format!("ZUNIONSTORE t 301{} text", " z".repeat(300)), WRONG_TYPE),
        ("ZUNIONSTORE t 2 z text WEIGHTS x", WRONG_TYPE),
        ("ZUNIONSTORE t 2 z none WEIGHTS x", "-ERR syntax error|"),
    ])
    .await;
}
