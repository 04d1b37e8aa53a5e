//! What a walk sends: commands, pipelines, transactions and scripts, drawn at random.

/// One step of a walk.
pub(super) enum Step {
    /// Milliseconds in which deadlines pass.
    Wait(u64),
    /// Requests of one of the clients, in one write.
    Send(usize, Vec<Vec<Vec<u8>>>),
}

/// Draws steps.
pub(super) struct Programs {
    random: u64,
    /// A short deadline was set, and passes before anything else happens: which of the two servers is first at it is not known.
    is_short: bool,
}

/// Commands. `k` is a key, `v` a value, `n` an integer, `f` a field, `s` a score, `b` a bound of scores, `i` an index, `t` a time of life.
const COMMANDS: &[&str] = &[
    "SET $k $v",
    "SET $k $v NX PX $t",
    "SET $k $v XX PX $t",
    "SET $k $v NX EX $t",
    "SET $k $v GET",
    "SET $k $v NX GET",
    "SET $k $v KEEPTTL",
    "SET $k $v XX",
    "SET $k $v PX $t GET",
    "SET $k $n",
    "SET $k $v EXAT 4000000000",
    "SET $k $v PXAT 4000000000000",
    "SET $k $v EX 5 PX 5",
    "SETNX $k $v",
    "SETEX $k $t $v",
    "PSETEX $k $t $v",
    "GET $k",
    "GETSET $k $v",
    "GETDEL $k",
    "GETEX $k",
    "GETEX $k PX $t",
    "GETEX $k PERSIST",
    "GETEX $k EX $t",
    "MGET $k $k $k",
    "MSET $k $v $k $v",
    "MSET $k $v $k",
    "MSETNX $k $v $k $v",
    "INCR $k",
    "DECR $k",
    "INCRBY $k $n",
    "DECRBY $k $n",
    "APPEND $k $v",
    "STRLEN $k",
    "GETRANGE $k $i $i",
    "SUBSTR $k $i $i",
    "DEL $k",
    "DEL $k $k",
    "UNLINK $k $k",
    "EXISTS $k $k",
    "TOUCH $k",
    "TYPE $k",
    "EXPIRE $k $t",
    "PEXPIRE $k $t",
    "EXPIRE $k $t NX",
    "PEXPIRE $k $t XX",
    "EXPIRE $k $t GT",
    "PEXPIRE $k $t LT",
    "EXPIRE $k $t NX XX",
    "EXPIRE $k $t GT LT",
    "EXPIRE $k $t WHAT",
    "EXPIREAT $k 4000000000",
    "PEXPIREAT $k 4000000000000",
    "EXPIREAT $k 1",
    "EXPIRE $k -1",
    "PEXPIRE $k 0",
    "PERSIST $k",
    "TTL $k",
    "PTTL $k",
    "PEXPIRETIME $k",
    "EXPIRETIME $k",
    "RENAME $k $k",
    "RENAMENX $k $k",
    "KEYS *",
    "KEYS k*",
    "KEYS [ab]?",
    "DBSIZE",
    "SCAN 0 COUNT 1000",
    "SCAN 0 MATCH k* COUNT 1000",
    "SCAN 0 TYPE hash COUNT 1000",
    "LPUSH $k $v",
    "RPUSH $k $v $v",
    "LPUSHX $k $v",
    "RPUSHX $k $v",
    "LPOP $k",
    "RPOP $k",
    "LPOP $k 2",
    "RPOP $k 0",
    "LPOP $k $i",
    "LLEN $k",
    "LINDEX $k $i",
    "LRANGE $k $i $i",
    "LRANGE $k 0 -1",
    "LREM $k $i $v",
    "LTRIM $k $i $i",
    "LSET $k $i $v",
    "LINSERT $k BEFORE $v $v",
    "LINSERT $k AFTER $v $v",
    "LINSERT $k WHERE $v $v",
    "LPOS $k $v",
    "LPOS $k $v RANK $i",
    "LPOS $k $v COUNT $i",
    "LPOS $k $v COUNT 0 MAXLEN 2",
    "LMOVE $k $k LEFT RIGHT",
    "LMOVE $k $k RIGHT LEFT",
    "LMOVE $k $k UP DOWN",
    "RPOPLPUSH $k $k",
    "HSET $k $f $v",
    "HSET $k $f $v $f $v",
    "HSET $k $f",
    "HSETNX $k $f $v",
    "HGET $k $f",
    "HMGET $k $f $f",
    "HMSET $k $f $v",
    "HGETALL $k",
    "HDEL $k $f",
    "HDEL $k $f $f",
    "HEXISTS $k $f",
    "HINCRBY $k $f $n",
    "HINCRBYFLOAT $k $f 0.5",
    "HINCRBYFLOAT $k $f $d",
    "HKEYS $k",
    "HVALS $k",
    "HLEN $k",
    "HSTRLEN $k $f",
    "HSCAN $k 0",
    "HSCAN $k 0 MATCH f* COUNT 5",
    "SADD $k $v",
    "SADD $k $v $v",
    "SREM $k $v",
    "SMEMBERS $k",
    "SISMEMBER $k $v",
    "SMISMEMBER $k $v $v",
    "SCARD $k",
    "SPOP $k 100",
    "SPOP $k -1",
    "SSCAN $k 0",
    "ZADD $k $s $v",
    "ZADD $k $s $v $s $v",
    "ZADD $k NX $s $v",
    "ZADD $k XX CH $s $v",
    "ZADD $k GT CH $s $v",
    "ZADD $k LT $s $v",
    "ZADD $k INCR $s $v",
    "ZADD $k NX INCR $s $v",
    "ZADD $k XX INCR $s $v",
    "ZADD $k GT NX $s $v",
    "ZADD $k NX XX $s $v",
    "ZADD $k INCR $s $v $s $v",
    "ZADD $k GT LT $s $v",
    "ZREM $k $v",
    "ZREM $k $v $v",
    "ZSCORE $k $v",
    "ZMSCORE $k $v $v",
    "ZCARD $k",
    "ZCOUNT $k $b $b",
    "ZINCRBY $k $s $v",
    "ZRANGE $k $i $i",
    "ZRANGE $k 0 -1 WITHSCORES",
    "ZRANGE $k $b $b BYSCORE",
    "ZRANGE $k $b $b BYSCORE REV",
    "ZRANGE $k $b $b BYSCORE LIMIT $i $i",
    "ZRANGE $k $i $i REV WITHSCORES",
    "ZRANGE $k 0 1 LIMIT 0 1",
    "ZREVRANGE $k $i $i WITHSCORES",
    "ZREVRANGE $k 0 1 REV",
    "ZRANGEBYSCORE $k $b $b",
    "ZRANGEBYSCORE $k $b $b WITHSCORES LIMIT $i $i",
    "ZREVRANGEBYSCORE $k $b $b",
    "ZREMRANGEBYSCORE $k $b $b",
    "ZREMRANGEBYRANK $k $i $i",
    "ZRANK $k $v",
    "ZREVRANK $k $v",
    "ZPOPMIN $k",
    "ZPOPMAX $k",
    "ZPOPMIN $k 2",
    "ZPOPMIN $k $i",
    "ZSCAN $k 0",
    "ZINTERSTORE $k 2 $k $k",
    "ZINTERSTORE $k 2 $k $k WEIGHTS 1 0",
    "ZUNIONSTORE $k 2 $k $k AGGREGATE MAX",
    "ZINTERSTORE $k 0 $k",
    "ZUNIONSTORE $k 3 $k $k",
    "ZINTERSTORE $k 2 $k $k WEIGHTS 1 x",
    "ZINTERSTORE $k 1 $k AGGREGATE ALL",
    "ECHO $v",
    "PING",
    "PING $v",
    "SELECT 0",
    "SELECT 99",
    "SELECT x",
    "NONE $k $v",
    "BLMOVE $k $k LEFT LEFT x",
    "BLPOP $k -1",
    "BLPOP $k x",
    "EVALSHA abc 0",
    "UNWATCH",
    "HELLO 7",
    "HELLO x",
    "FLUSHDB WHAT",
    "LOLWUT\r\n $v",
    "",
];

/// Commands with subcommands, whose arity Redis checks when they are queued, and the port when they run. So they are not queued here.
const ALONE: &[&str] = &[
    "SCRIPT EXISTS abc",
    "SCRIPT WHAT",
    "SCRIPT KILL",
    "SCRIPT LOAD",
    "SCRIPT FLUSH WHAT",
    "CLIENT WHAT",
    "CLIENT SETNAME",
    "CLIENT SETNAME a",
    "CLIENT SETNAME \u{e9}",
    "CLIENT GETNAME",
    "CLIENT KILL 1.2.3.4:5",
    "CLIENT KILL ID x",
    "CONFIG GET",
    "CONFIG GET nothing-of-this-name",
    "COMMAND COUNT 1",
    "COMMAND GETKEYS SET a b",
    "COMMAND GETKEYS ZINTERSTORE a 2 b c",
    "COMMAND GETKEYS PING",
    "ROLE x",
    "AUTH x",
    "AUTH default x",
    "AUTH ann x",
    "HELLO 2 WHAT",
    "EXEC",
    "DISCARD",
    "WATCH",
];

/// Scripts as lock clients send them, each with its keys and arguments.
const SCRIPTS: &[(&str, &str)] = &[
    ("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end", "1 $k $v"),
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end",
        "1 $k $v $t",
    ),
    (
        "local t = redis.call('get', KEYS[1]) if not t or t ~= ARGV[1] then return 0 end redis.call('del', KEYS[1]) return 1",
        "1 $k $v",
    ),
    (
        "local t = redis.call('get', KEYS[1]) if not t or t ~= ARGV[1] then return 0 end local e = redis.call('pttl', KEYS[1]) if not e then e = 0 end if e < 0 then return 0 end redis.call('pexpire', KEYS[1], 100000) return 1",
        "1 $k $v",
    ),
    (
        "for i, k in ipairs(KEYS) do if redis.call('exists', k) == 1 then return 0 end end for i, k in ipairs(KEYS) do redis.call('set', k, ARGV[1], 'PX', ARGV[2]) end return #KEYS",
        "2 $k $k $v $t",
    ),
    ("local r = {} for i, k in ipairs(KEYS) do r[i] = redis.call('get', k) end return r", "3 $k $k $k"),
    ("return redis.call('type', KEYS[1]).ok", "1 $k"),
    ("return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])", "1 $k $v $t"),
    (
        "if redis.call('setnx', KEYS[1], ARGV[1]) == 1 then redis.call('pexpire', KEYS[1], ARGV[2]) return redis.call('incr', KEYS[1] .. ':token') end return false",
        "1 $k $v 100000",
    ),
    (
        "redis.call('zremrangebyscore', KEYS[1], '-inf', ARGV[1]) if redis.call('zcard', KEYS[1]) < 3 then redis.call('zadd', KEYS[1], ARGV[1], ARGV[2]) return 1 end return 0",
        "1 $k $p $v",
    ),
    ("return redis.call('zrange', KEYS[1], 0, -1, 'WITHSCORES')", "1 $k"),
    ("return redis.call('hgetall', KEYS[1])", "1 $k"),
    ("return redis.call('hincrby', KEYS[1], ARGV[1], 1) * 1.5", "1 $k $f"),
    ("local t = {} for _, k in ipairs(redis.call('keys', 'k*')) do table.insert(t, k) end table.sort(t) return t", "0"),
    (
        "for i, v in pairs(redis.call('mget', unpack(KEYS))) do if v == false then redis.call('set', KEYS[i], ARGV[1]) return KEYS[i] end end",
        "3 $k $k $k $v",
    ),
    ("return redis.error_reply('MY failure')", "0"),
    ("return redis.status_reply('FINE')", "0"),
    ("return redis.pcall('get', KEYS[1])", "1 $k"),
    ("local r = redis.pcall('incr', KEYS[1]) if type(r) == 'table' then return r.err end return r", "1 $k"),
    ("return redis.call('get', KEYS[1])", "1 $k"),
    ("return redis.call('nothing')", "0"),
    ("return redis.call('get')", "0"),
    ("return redis.call('multi')", "0"),
    ("return redis.call('lrange', KEYS[1], 0, -1)", "1 $k"),
    ("return {1, 2.9, 'x', false, 4}", "0"),
    ("return {1, {2, {3, 'a'}}, true}", "0"),
    ("return redis.call('lpop', KEYS[1])", "1 $k"),
    ("return redis.call('zscore', KEYS[1], ARGV[1])", "1 $k $v"),
    (
        "redis.call('select', 1) redis.call('set', KEYS[1], ARGV[1]) redis.call('select', 0) return redis.call('get', KEYS[1])",
        "1 $k $v",
    ),
    (
        "redis.call('del', KEYS[1]) redis.call('lpush', KEYS[1], 1) redis.call('pexpire', KEYS[1], 100000) return redis.call('llen', KEYS[1])",
        "1 $k",
    ),
    ("this is no program", "0"),
    ("return x", "0"),
    ("error('stop')", "0"),
    ("return tonumber(ARGV[1]) + tonumber(redis.call('strlen', KEYS[1]))", "1 $k $n"),
    ("return redis.sha1hex(ARGV[1])", "0 $v"),
    ("return redis.call('exists', KEYS[1], KEYS[2])", "2 $k $k"),
    ("return redis.call('zadd', KEYS[1], 'INCR', ARGV[1], ARGV[2])", "1 $k $s $v"),
    ("return redis.call('hmset', KEYS[1], 'a', 1, 'b', 2.5)", "1 $k"),
    ("return redis.call('smembers', KEYS[1])[1] == nil", "1 $k"),
    ("return redis.call('blpop', KEYS[1], 0)", "1 $k"),
];

impl Programs {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, is_short: false }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % bound as u64).expect("it is small")
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// The next step.
    pub(super) fn next(&mut self) -> Step {
        if std::mem::take(&mut self.is_short) {
            return Step::Wait(60);
        }
        let who = usize::from(self.below(8) == 0);
        let requests: Vec<Vec<Vec<u8>>> = match self.below(100) {
            0..=8 => (0..2 + self.below(8)).map(|_| self.command_or_script()).collect(),
            9..=16 => self.transaction(),
            17..=33 => vec![self.script()],
            // Redis adds in 80 bits, which shows with large numbers: so this counter has no other value.
            34 => ["SET float 10", "INCRBYFLOAT float $d", "INCRBYFLOAT float 0.1", "DEL float"]
                .map(|form| self.fill(form))
                .to_vec(),
            35 => {
                let form = self.pick(ALONE);
                vec![self.fill(form)]
            }
            _ => vec![self.command()],
        };
        self.is_short = requests.iter().flatten().any(|word| word == b"40");
        Step::Send(who, requests)
    }

    /// MULTI, commands and EXEC in one write, sometimes with watched keys before.
    fn transaction(&mut self) -> Vec<Vec<Vec<u8>>> {
        let mut requests = Vec::new();
        if self.below(3) == 0 {
            requests.push(self.fill("WATCH $k $k"));
            // The own change of a watched key abandons the transaction.
            if self.below(3) == 0 {
                requests.push(self.command());
            }
        }
        requests.push(self.fill("MULTI"));
        for _ in 0..self.below(5) {
            requests.push(self.command_or_script());
        }
        let end = if self.below(8) == 0 { "DISCARD" } else { "EXEC" };
        requests.push(self.fill(end));
        requests
    }

    fn command_or_script(&mut self) -> Vec<Vec<u8>> {
        if self.below(5) == 0 { self.script() } else { self.command() }
    }

    fn command(&mut self) -> Vec<Vec<u8>> {
        loop {
            let form = self.pick(COMMANDS);
            let mut words = self.fill(form);
            // Too few arguments, and too many.
            match self.below(40) {
                0 => drop(words.pop()),
                1 => words.push(b"extra".to_vec()),
                _ => {}
            }
            let Some(name) = words.first_mut() else { continue };
            if self.below(4) == 0 {
                name.make_ascii_lowercase();
            }
            if !name.is_empty() {
                return words;
            }
        }
    }

    fn script(&mut self) -> Vec<Vec<u8>> {
        let (source, arguments) = SCRIPTS[self.below(SCRIPTS.len())];
        let mut words = vec![b"EVAL".to_vec(), source.as_bytes().to_vec()];
        words.extend(self.fill(arguments));
        words
    }

    /// Fills the places of a form.
    fn fill(&mut self, form: &str) -> Vec<Vec<u8>> {
        let words = form.split(' ').filter(|word| !word.is_empty());
        words.map(|word| self.word(word).as_bytes().to_vec()).collect()
    }

    fn word<'a>(&mut self, word: &'a str) -> &'a str {
        match word {
            "$k" => self.pick(&["a", "b", "k1", "k2", "k3"]),
            "$v" => self.pick(&["x", "y", "z", "1", "7", "-3", "", "x y", "1.5", "\r\n", "\u{e9}"]),
            "$n" => {
                self.pick(&["0", "1", "-1", "5", "9223372036854775807", "-9223372036854775808", "x", "1.0", " 1", "+1"])
            }
            "$f" => self.pick(&["f1", "f2", "f3", "", "f4"]),
            "$s" => self.pick(&[
                "0",
                "1",
                "2",
                "-1.5",
                "3.25",
                "1e3",
                "inf",
                "-inf",
                "0.1",
                "nan",
                "x",
                "1795343189134",
                "+inf",
                "1e400",
                "",
            ]),
            // A script that fails after it has written keeps its writes in Redis, so this one does not fail.
            "$p" => self.pick(&["0", "1", "2", "-1.5", "3.25", "inf"]),
            "$d" => self.pick(&["0", "1", "-1.5", "3.25", "1e3", "inf", "0.1", "x", "", "100.75"]),
            "$b" => self.pick(&["-inf", "+inf", "inf", "0", "(1", "1", "2", "(2", "3.25", "x", "(", "1000"]),
            "$i" => self.pick(&["0", "1", "2", "-1", "-2", "10", "-10", "x", "9223372036854775807"]),
            "$t" => {
                self.pick(&["40", "100000", "100000", "200000", "0", "-5", "x", "9223372036854775807", "10000000000"])
            }
            other => other,
        }
    }
}
