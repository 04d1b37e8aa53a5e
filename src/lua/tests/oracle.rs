//! The same scripts beside the same interpreter in `redis-server` (Debian's 7.0.15), whose replies must be the same byte for byte.
//!
//! `cargo test -p lockkeeper-lua -- --ignored` runs it, and says so if there is no `redis-server`. LOCKKEEPER_LUA_SEED and
//! LOCKKEEPER_LUA_PROGRAMS choose the random programs.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use lockkeeper_redis::{CallAborted, Interpreter, RedisReply, ScriptFailure, ScriptHost, ScriptLimits};

use crate::LuaInterpreter;

/// A server of its own, which ends with the test.
pub(super) struct RedisServer {
    process: Child,
    folder: tempfile::TempDir,
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended by itself: some error objects do that to it.
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

impl RedisServer {
    pub(super) fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("socket");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn();
        match process {
            Ok(process) => Some(Self { process, folder }),
            Err(error) => {
                println!("SKIPPED: no redis-server here ({error}); install Debian's package of that name");
                None
            }
        }
    }

    fn connect(&self) -> RedisClient {
        RedisClient(BufReader::new(self.stream()))
    }

    /// A connection, as soon as the server accepts one.
    pub(super) fn stream(&self) -> UnixStream {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match UnixStream::connect(self.folder.path().join("socket")) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket has deadlines");
                    return stream;
                }
                Err(error) => assert!(Instant::now() < deadline, "redis-server does not answer: {error}"),
            }
            std::thread::yield_now();
        }
    }
}

/// A connection in RESP2. As the host of a script it runs the script's commands.
struct RedisClient(BufReader<UnixStream>);

impl RedisClient {
    fn command(&mut self, arguments: &[&[u8]]) -> RedisReply {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request).expect("redis-server reads");
        self.reply()
    }

    fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).expect("redis-server answers");
        assert!(line.ends_with(b"\r\n"), "redis-server closed the connection");
        line.truncate(line.len() - 2);
        line
    }

    fn reply(&mut self) -> RedisReply {
        let line = self.line();
        let (kind, rest) = line.split_first().expect("a kind of reply");
        let number = || String::from_utf8_lossy(rest).parse::<i64>().expect("a number");
        match kind {
            b'+' => RedisReply::Status(rest.to_vec()),
            b'-' => RedisReply::Error(rest.to_vec()),
            b':' => RedisReply::Integer(number()),
            b'$' if number() < 0 => RedisReply::Nil,
            b'$' => {
                let length = usize::try_from(number()).expect("a length");
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes).expect("a string");
                bytes.truncate(length);
                RedisReply::Bulk(bytes)
            }
            b'*' if number() < 0 => RedisReply::NilArray,
            b'*' => RedisReply::Array((0..number()).map(|_| self.reply()).collect()),
            other => panic!("no reply begins with {other}"),
        }
    }
}

impl ScriptHost for RedisClient {
    fn call(&mut self, arguments: &[&[u8]]) -> Result<RedisReply, CallAborted> {
        let reply = self.command(arguments);
        // Within a script, Redis has other texts for these.
        let RedisReply::Error(text) = &reply else { return Ok(reply) };
        let text = String::from_utf8_lossy(text);
        // HSET looks at its pairs by itself, and has one text for both.
        let is_by_itself = arguments[0].eq_ignore_ascii_case(b"hset") && arguments.len() > 3;
        Ok(if text.starts_with("ERR wrong number of arguments") && !is_by_itself {
            RedisReply::error("ERR Wrong number of args calling Redis command from script")
        } else if text.starts_with("ERR unknown command") {
            RedisReply::error("ERR Unknown Redis command called from script")
        } else {
            reply
        })
    }
}

/// What one interpreter answers to a script after the other.
struct OracleWalk {
    redis: RedisClient,
    keyspace: RedisClient,
    programs: u32,
    /// Of these, the ones that ended with an error.
    errors: u32,
}

impl OracleWalk {
    fn new(server: &RedisServer) -> Self {
        let mut keyspace = server.connect();
        assert_eq!(keyspace.command(&[b"SELECT", b"1"]), RedisReply::ok());
        Self { redis: server.connect(), keyspace, programs: 0, errors: 0 }
    }

    /// Runs a script on both, and compares.
    fn compare(&mut self, source: &str) {
        self.redis.command(&[b"FLUSHALL"]);
        let theirs = self.redis.command(&[b"EVAL", source.as_bytes(), b"2", b"k1", b"k2", b"10", b"abc", b""]);
        let keys_there = self.redis.command(&[b"SORT", b"dump", b"BY", b"nosort"]);

        let RedisReply::Bulk(sha1) = self.redis.command(&[b"SCRIPT", b"LOAD", source.as_bytes()]) else {
            // It does not compile, and has no name in its error.
            return self.compare_with(source, "", &theirs, &keys_there);
        };
        self.compare_with(source, &String::from_utf8(sha1).expect("digits"), &theirs, &keys_there);
    }

    fn compare_with(&mut self, source: &str, sha1: &str, theirs: &RedisReply, keys_there: &RedisReply) {
        let keys = [b"k1".to_vec(), b"k2".to_vec()];
        let arguments = [b"10".to_vec(), b"abc".to_vec(), b"".to_vec()];
        let lua = LuaInterpreter::default();
        let ours = lua.run(source.as_bytes(), sha1, &keys, &arguments, &mut self.keyspace, ScriptLimits::default());
        let ours = match ours {
            Ok(reply) => as_resp2(reply),
            Err(ScriptFailure::Compile(text)) => {
                RedisReply::error(format!("ERR Error compiling script (new function): {text}"))
            }
            Err(ScriptFailure::Raised(text)) => RedisReply::Error(text),
            Err(other) => panic!("{source}: {other}"),
        };

        let keys_here = self.keyspace.command(&[b"SORT", b"dump", b"BY", b"nosort"]);
        assert_eq!(shown(&ours), shown(theirs), "{source}");
        assert_eq!(shown(&keys_here), shown(keys_there), "{source}");
        self.programs += 1;
        self.errors += u32::from(matches!(ours, RedisReply::Error(_)));
    }
}

/// A reply as it is written to a connection that speaks RESP2.
fn as_resp2(reply: RedisReply) -> RedisReply {
    let all = |parts: Vec<RedisReply>| parts.into_iter().map(as_resp2).collect();
    match reply {
        RedisReply::Array(parts) | RedisReply::Set(parts) => RedisReply::Array(all(parts)),
        RedisReply::Map(pairs) => {
            RedisReply::Array(all(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()))
        }
        RedisReply::Double(number) => RedisReply::Bulk(number.to_string().into_bytes()),
        RedisReply::Verbatim(text) => RedisReply::Bulk(text),
        other => other,
    }
}

fn shown(reply: &RedisReply) -> String {
    match reply {
        RedisReply::Status(text) => format!("+{}", text.escape_ascii()),
        RedisReply::Error(text) => format!("-{}", text.escape_ascii()),
        RedisReply::Bulk(text) => format!("{:?}", text.escape_ascii().to_string()),
        RedisReply::Array(parts) => format!("[{}]", parts.iter().map(shown).collect::<Vec<_>>().join(", ")),
        other => format!("{other:?}"),
    }
}

/// What lock clients' scripts do, one family each, and each place where the two could differ.
const SCRIPTS: &str = include_str!("scripts.lua");

#[test]
#[ignore = "needs redis-server"]
fn known_scripts_answer_as_in_redis() {
    let Some(server) = RedisServer::start() else { return };
    let mut beside = OracleWalk::new(&server);
    for source in SCRIPTS.split("\n----\n") {
        beside.compare(source.trim_end_matches('\n'));
    }
    println!("{} scripts", beside.programs);
}

#[test]
#[ignore = "needs redis-server"]
fn random_programs_answer_as_in_redis() {
    let Some(server) = RedisServer::start() else { return };
    let from_environment =
        |name: &str, default: u64| std::env::var(name).map_or(default, |value| value.parse().expect("a number"));
    let seed = from_environment("LOCKKEEPER_LUA_SEED", 1);
    let count = from_environment("LOCKKEEPER_LUA_PROGRAMS", 20_000);

    let mut beside = OracleWalk::new(&server);
    for number in 0..count {
        let mut writer = ProgramWriter::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        beside.compare(&writer.program());
    }
    println!("{} programs of seed {seed}, of which {} ended with an error", beside.programs, beside.errors);
}

/// Writes random programs.
struct ProgramWriter {
    state: u64,
}

impl ProgramWriter {
    fn new(seed: u64) -> Self {
        Self { state: seed | 1 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.state >> 33).expect("31 bits") % end
    }

    fn pick<'a>(&mut self, among: &[&'a str]) -> &'a str {
        among[self.below(among.len())]
    }

    fn program(&mut self) -> String {
        // An address is not the same in two processes.
        let mut program = "local S = function(x) local t = type(x) return (t == 'table' or t == 'function') and t or tostring(x) end\n".to_owned();
        // An error that is caught lets the program go on, and is compared as well.
        program += "local E = function(f) local ok, r = pcall(f) if ok then return r end return 'E:' .. S(r) end\n";
        program += "local a, b, c = 3, 'x10', {1, 2, 'z'}\n";
        for _ in 0..=self.below(5) {
            program += &self.statement(2);
            program.push('\n');
        }
        program + "return {S(a), S(b), S(c), " + &self.value(2) + ", " + &self.value(1) + "}"
    }

    fn statement(&mut self, depth: usize) -> String {
        let variable = self.pick(&["a", "b", "c"]);
        match self.below(if depth == 0 { 5 } else { 10 }) {
            0 | 1 => format!("{variable} = {}", self.value(2)),
            2 => format!("{variable} = E(function() return {} end)", self.command()),
            3 => format!("c = {{{}, {}}}", self.expression(1), self.expression(1)),
            4 => self
                .pick(&["a = #KEYS", "b = KEYS[1]", "b = ARGV[2]", "a = ARGV[1] + 1", "foo = 1", "string.x = 1"])
                .to_owned(),
            5 => format!(
                "if {} then {} else {} end",
                self.expression(2),
                self.statement(depth - 1),
                self.statement(depth - 1)
            ),
            6 => format!("for i = 1, {} do {} end", self.below(5), self.statement(depth - 1)),
            7 => format!(
                "for k, v in {}(c) do b = S(v) {} end",
                self.pick(&["pairs", "ipairs"]),
                self.statement(depth - 1)
            ),
            8 => format!("a, b = pcall(function() {} return {} end)", self.statement(depth - 1), self.expression(2)),
            _ => format!(
                "{variable} = (function(...) {} return {} end)({})",
                self.statement(depth - 1),
                self.expression(1),
                self.expression(1)
            ),
        }
    }

    /// An expression, whose error is mostly caught.
    fn value(&mut self, depth: usize) -> String {
        let expression = self.expression(depth);
        if self.below(12) == 0 { expression } else { format!("E(function() return {expression} end)") }
    }

    fn command(&mut self) -> String {
        let function = self.pick(&["redis.call", "redis.pcall"]);
        let command = self.pick(&[
            "'set', 'k1', %",
            "'get', 'k1'",
            "'incr', 'k1'",
            "'incrby', 'k1', %",
            "'del', 'k1', 'k2'",
            "'rpush', 'k2', %, %",
            "'lrange', 'k2', 0, -1",
            "'hset', 'h', %, %",
            "'hgetall', 'h'",
            "'exists', 'k1'",
            "'type', 'k1'",
            "'zadd', 'z', 1, %",
            "'zscore', 'z', %",
            "'mget', 'k1', 'k2', 'k3'",
            "'get'",
            "'nope', %",
            "'pexpire', 'k1', 100000",
            "'append', 'k1', %",
            "'rpush', 'dump', %",
            "%",
            "",
        ]);
        let mut parts = command.split('%');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            filled += &self.expression(1);
            filled += part;
        }
        format!("{function}({filled})")
    }

    fn expression(&mut self, depth: usize) -> String {
        if depth == 0 || self.below(4) == 0 {
            return self.atom();
        }
        let left = self.expression(depth - 1);
        let right = self.expression(depth - 1);
        match self.below(4) {
            0 => format!(
                "({left} {} {right})",
                self.pick(&["+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", "<=", ">", "and", "or"])
            ),
            1 => format!("({}{left})", self.pick(&["-", "not ", "#"])),
            2 => self.library_call(&left, &right),
            _ => self.string_call(&left),
        }
    }

    fn atom(&mut self) -> String {
        self.pick(&[
            "0",
            "1",
            "-1",
            "2.5",
            "1e15",
            "1e300",
            "-7",
            "0/0",
            "1/0",
            "''",
            "'abc'",
            "'10'",
            "' 12 '",
            "'0x1F'",
            "'1e2'",
            "'a,b,c'",
            "nil",
            "true",
            "false",
            "a",
            "b",
            "c",
            "{}",
            "{1, nil, 3}",
            "{ok='FINE'}",
            "{err='MY error'}",
            "KEYS",
            "ARGV[1]",
            "foo",
            "'\\0x'",
            "'(a(b)c)'",
            "'THE (quick) fox'",
        ])
        .to_owned()
    }

    fn library_call(&mut self, left: &str, right: &str) -> String {
        let call = self.pick(&[
            "S(L)",
            "tonumber(L)",
            "tonumber(L, 16)",
            "type(L)",
            "math.floor(L)",
            "math.ceil(L)",
            "math.max(L, R)",
            "math.min(L, R)",
            "math.abs(L)",
            "math.fmod(L, R)",
            "math.pow(L, R)",
            "math.sqrt(L)",
            "select('#', L, R)",
            "select(L, R)",
            "unpack(L)",
            "next(L)",
            "rawget(L, R)",
            "rawequal(L, R)",
            "table.concat(L, R)",
            "table.insert({L}, R)",
            "table.insert({L}, 1, R)",
            "table.insert({L}, 2, R)",
            "table.remove(L)",
            "table.sort(L)",
            "table.getn(L)",
            "table.maxn(L)",
            "pcall(S, L)",
            "pcall(error, L)",
            "pcall(L, R)",
            "select(2, pcall(error, {err = 'AN e'}))",
            "setmetatable({}, {__index = function(t, k) return k end})[L]",
            "redis.error_reply(L)",
            "redis.status_reply(L)",
            "redis.sha1hex(L)",
            "assert(L, R)",
            "xpcall(function() return L .. R end, function(e) return e end)",
            "coroutine.wrap(function() coroutine.yield(L) end)()",
            "select('#', pcall(error))",
            "getmetatable(L)",
            "pairs(L)",
        ]);
        call.replace('L', left).replace('R', right).replace(&format!("A{right}GV"), "ARGV")
    }

    fn string_call(&mut self, subject: &str) -> String {
        let call = self.pick(&[
            "string.sub(L, N, N)", "string.rep(L, N)", "string.find(L, P)", "string.find(L, P, N)", "string.find(L, P, N, true)", "string.match(L, P)",
            "string.match(L, P, N)", "string.gsub(L, P, '<%0>')", "string.gsub(L, P, '%1', N)", "string.gsub(L, P, {a = 'A', b = false})",
            "string.gsub(L, P, function(m) return m .. '!' end)", "string.format('%5.2f|%d|%s|%q', N, N, L, L)", "string.format(L, N)",
            "string.byte(L, N)", "string.char(N, N)", "string.upper(L)", "string.lower(L)", "string.reverse(L)", "string.len(L)", "('x'):rep(N)",
            "(function() local t = {} for x, y in string.gmatch(L, P) do t[#t + 1] = S(x) .. '/' .. S(y) end return table.concat(t, ',') end)()",
            "string.gsub(L, P, N)", "string.find(L)", "string.gsub(L, P)", "string.gsub(L, P, function() return {} end)",
        ]);
        let mut filled = String::new();
        for part in call.split_inclusive(['N', 'P', 'L']) {
            let (text, last) = part.split_at(part.len() - 1);
            filled += text;
            match last {
                "N" => filled += self.pick(&["0", "1", "2", "-1", "3", "7", "-3", "2.7", "'2'", "nil"]),
                "P" => filled += &self.pattern(),
                "L" => filled += subject,
                other => filled += other,
            }
        }
        filled
    }

    fn pattern(&mut self) -> String {
        let mut pattern = String::new();
        for _ in 0..=self.below(4) {
            pattern += self.pick(&[
                "a", "b", "%a", "%d", "%s", "%w", "%A", "%x", "%p", "%z", ".", "[abc]", "[^a]", "[a-c]", "[%d,]",
                "[]]", "%b()", "%f[%a]", "()", "(a)", "(.)", "(%w*)", "%1", "%2", "(", ")", "^", "$", "%", "[", "%.",
                "x?",
            ]);
            pattern += self.pick(&["", "", "*", "+", "-", "?"]);
        }
        format!("'{}'", pattern)
    }
}
