//! Scripts that want more than their share. Each ends soon, with an error for its caller, and the next run is as if it had not been.

use std::{
    panic,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use lockkeeper_redis::{Interpreter, RedisReply, ScriptFailure, ScriptLimits};

use super::{Strings, raised, run, text};
use crate::LuaInterpreter;

/// The time of a run.
const TIME_MAX: Duration = Duration::from_millis(500);

/// A bound on failures: how long after its time a run may go on, on a machine that does much else. The clock is looked at between
/// instructions and before calls, and single ones take a while; without the bounds these scripts go on for a minute or for ever.
const DELAY_MAX: Duration = Duration::from_secs(20);

fn attack(source: &str) -> Result<RedisReply, ScriptFailure> {
    let started = Instant::now();
    let lua = LuaInterpreter::with_time_max(TIME_MAX);
    let limits = ScriptLimits { instructions_max: u64::MAX, ..ScriptLimits::default() };
    let result = lua.run(source.as_bytes(), "SHA", &[], &[], &mut Strings::default(), limits);

    let took = started.elapsed();
    assert!(took < TIME_MAX + DELAY_MAX, "{source}: {took:?}");
    result
}

fn assert_over_limit(source: &str) {
    let result = attack(source);
    assert!(matches!(result, Err(ScriptFailure::OverLimit(_))), "{source}: {result:?}");
}

#[test]
fn loops_end() {
    for source in [
        "while true do end",
        "repeat until false",
        "for i = 1, 1e300 do local x = i * i end",
        "local function f() return f() end return f()",
        "while true do pcall(error) end",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "local function f() return pcall(f) end while true do f() end",
        "while true do pcall(pcall, pcall, pcall, error) end",
        "while true do redis.pcall('get', 'x') end",
        "while true do pcall(redis.call, 'nope') end",
        "while true do pcall(string.rep) end",
        "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) while true do pcall(function() return t[1] end) end",
        "setmetatable(_G, {})",
    ] {
        let result = attack(source);
        assert!(matches!(result, Err(ScriptFailure::OverLimit(_) | ScriptFailure::Raised(_))), "{source}: {result:?}");
    }
    assert_over_limit("while true do pcall(error) end");
}

#[test]
fn coroutines_end() {
    for source in [
        "coroutine.wrap(function() while true do end end)()",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "while true do coroutine.wrap(function() coroutine.yield() end)() end",
        "local f = coroutine.wrap(function() while true do coroutine.yield() end end) while true do f() end",
        "while true do pcall(coroutine.wrap(function() while true do end end)) end",
    ] {
        assert_over_limit(source);
    }

    let nested = "local function f() return coroutine.wrap(f)() end return f()";
    let result = attack(nested);
    assert!(matches!(result, Err(ScriptFailure::OverLimit(_) | ScriptFailure::Raised(_))), "{result:?}");
}

#[test]
fn functions_of_the_library_end() {
    for source in [
        "while true do string.rep('', 2147483647) end",
        "return string.find(string.rep('a', 30000), string.rep('a*', 30) .. 'b')",
        "return string.find(string.rep('a', 100000), '.-.-.-.-b')",
        "return string.gsub(string.rep('a', 100000), '.-.-.-.-b', '')",
        "for w in string.gmatch(string.rep('a', 100000), '.-.-.-b') do end",
        "return string.find(string.rep('(', 1000000), '%b()')",
        "for w in string.gfind(string.rep('a', 30000), string.rep('a*', 30) .. 'b') do end",
        "while true do string.find(string.rep('a', 4e6), string.rep('a', 2e6) .. 'b', 1, true) end",
        // Strings that are alike for a megabyte, and an order for which the library takes the square of the length.
        "local s = string.rep('x', 1e6) local u = {} for i = 1, 8 do u[i] = s .. i end local t = {} for i = 1, 2000 do t[i] = u[i % 2 == 0 and (2000 - i) % 8 + 1 or i % 8 + 1] end while true do table.sort(t) end",
        // An array on which the library's choice of a pivot takes the square of its length.
        "local n = 60000 local t = {} for i = 1, n do t[i] = i % 2 == 0 and n - i or i end while true do table.sort(t) end",
        "table.sort({3, 2, 1}, function() while true do end end)",
        "while true do string.format('%99.99f', 1e308) end",
        "local s = string.rep('x', 1000000) while true do local b = s < s .. 'y' end",
        "local s = string.rep('x', 1000000) while true do local b = s:reverse():upper() end",
        "while true do collectgarbage() end",
        "local t = {} for i = 1, 1000 do t[i] = i end while true do cjson.encode(t) end",
        "local s = '[' .. string.rep('1,', 100000) .. '1]' while true do cjson.decode(s) end",
        "string.gsub('x', 'x', function() while true do end end)",
        "table.foreach({1}, function() while true do end end)",
        "tostring(setmetatable({}, {__tostring = function() while true do end end}))",
    ] {
        assert_over_limit(source);
    }

    // A list of 28 elements, of which the length is said to be a hundred million.
    let powers: Vec<_> = (0..28).map(|power| format!("[{}] = 1", 1_u64 << power)).collect();
    for call in ["table.remove(t, 1)", "table.insert(t, 1, 1)"] {
        assert_over_limit(&format!("local t = {{{}}} return {call}", powers.join(", ")));
    }
}

#[test]
fn memory_ends() {
    for source in [
        "local t = {} while true do t[#t + 1] = {} end",
        "local s = 'x' while true do s = s .. s end",
        "return string.rep('x', 1e9)",
        "local t = {} for i = 1, 1e9 do t[i] = i end",
        "local t = {} for i = 1, 1000 do t[i] = string.rep('x', 100000) end return table.concat(t)",
        "table.insert({}, -2147483648, 1)",
        "local s = string.rep('x', 4000000) return string.gsub(s, 'x', 'xxxxxxxx')",
        "local s = string.rep('x', 1000000) local t = {} while true do t[s .. #t] = #t end",
        "local f = {} for i = 1, 1e9 do f[i] = coroutine.create(function() end) end",
        "collectgarbage('stop') while true do local t = {} end",
    ] {
        assert_over_limit(source);
    }

    // A script may catch a lack of memory. Then it goes on, within its limits.
    assert_eq!(
        text("local ok, e = pcall(string.rep, 'x', 1e9) return tostring(ok) .. ' ' .. e"),
        "false not enough memory"
    );
    assert_over_limit("while true do pcall(string.rep, 'x', 1e9) end");
}

#[test]
fn stacks_end() {
    for source in [
        "local function f() return 1 + f() end return f()",
        "local function f(...) return 1 + f(...) end return f(unpack({1, 2, 3}))",
        "local t = {} for i = 1, 100000 do t[i] = 1 end return unpack(t)",
        "return string.byte(string.rep('x', 100000), 1, -1)",
        "local f = function(s) return s end for i = 1, 300 do local g = f f = function(s) return (string.gsub(s, 'x', g)) end end return f('x')",
        "return string.find(string.rep('a', 100000), string.rep('a?', 100000))",
        "for _ in string.gfind(string.rep('a', 100000), string.rep('a?', 100000)) do end",
        "return string.find('x', string.rep('(', 100))",
        "local t = {} t[1] = t return t",
        "local t = {} t[1] = t return cjson.encode(t)",
        "return cjson.decode(string.rep('[', 1000000))",
        "return cjson.decode(string.rep('{\"a\":', 100000))",
        "local t = setmetatable({}, {}) getmetatable(t).__index = t return t.x",
        "local function f() error(setmetatable({}, {__index = f})) end f()",
        "return setmetatable({}, {__tostring = function(t) return tostring(t) end}) .. ''",
        "xpcall(error, function(e) error(e) end) error(setmetatable({}, {__index = function(t) error(t) end}))",
    ] {
        let result = attack(source);
        assert!(matches!(result, Err(ScriptFailure::OverLimit(_) | ScriptFailure::Raised(_))), "{source}: {result:?}");
    }

    // The syntax has its limits as well.
    let deep = format!("return {}1{}", "(".repeat(100_000), ")".repeat(100_000));
    let deep_result = attack(&deep);
    assert!(matches!(deep_result, Err(ScriptFailure::Compile(_))), "{deep_result:?}");
    let blocks = format!("{}{}", "do ".repeat(100_000), "end ".repeat(100_000));
    assert!(matches!(attack(&blocks), Err(ScriptFailure::Compile(_))));
    let long = format!("return {}", vec!["1"; 300_000].join(" .. "));
    assert!(matches!(attack(&long), Err(ScriptFailure::Compile(_) | ScriptFailure::OverLimit(_))));
}

/// The interpreter's allocator sees what the interpreter keeps, but not what functions in Rust copy for it.
#[test]
fn copies_outside_the_interpreter_end() {
    let before = peak_bytes();
    for source in [
        "string.gsub(string.rep('a', 1e6), '.+', string.rep('%0', 3000))",
        "string.gsub(string.rep('a', 1e6), '(.+)', string.rep('%1', 3000))",
        "local s = string.rep('a', 1e6) local t = {} for i = 1, 3000 do t[i] = s end return redis.call('echo', unpack(t))",
        "local s = string.rep('a', 1e6) local t = {} for i = 1, 3000 do t[i] = s end return cjson.encode(t)",
        "local s = string.rep('a', 1e6) local t = {} for i = 1, 3000 do t[i] = s end return t",
    ] {
        assert_over_limit(source);
    }

    // Each wants three gigabytes. What the tests beside this one take is less than the difference.
    let grown = peak_bytes() - before;
    assert!(grown < 1 << 30, "the process grew by {grown} bytes");
}

/// The most memory that this process ever had.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status of the process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim_end().parse().expect("a number");
    kibibytes * 1024
}

/// The library of C writes beyond its stack for some of these (CVE-2025-46817).
#[test]
fn results_that_no_stack_takes_are_refused() {
    for source in [
        "return unpack({}, 0, 2147483647)",
        "return unpack({}, -2, 2147483647)",
        "return unpack({}, -2147483648, 2147483647)",
        "return unpack({}, -2147483648, 0)",
        "return unpack({}, '0', '2147483647')",
        "return unpack({}, 1, 8000)",
        "local t = {} for i = 1, 8000 do t[i] = i end return unpack(t)",
    ] {
        assert!(raised(source).contains("user_script:1: too many results to unpack"), "{source}");
    }

    assert_eq!(text("return table.concat({unpack({'a', 'b', 'c'}, 2)})"), "bc");
    assert_eq!(text("return table.concat({unpack({'a', 'b', 'c'}, '1', 2.5)})"), "ab");
    assert_eq!(run("return #{unpack({}, 3, 2)}"), Ok(RedisReply::Integer(0)));
    assert_eq!(run("return select('#', unpack({}, 2147483640, 2147483647))"), Ok(RedisReply::Integer(8)));
    assert_eq!(run("return select('#', unpack({}, -2147483648, -2147483640))"), Ok(RedisReply::Integer(9)));
    assert!(raised("return unpack()").contains("bad argument #1 to 'unpack' (table expected, got no value)"));
    assert!(raised("return unpack({}, {})").contains("bad argument #2 to 'unpack' (number expected, got table)"));
    assert!(raised("return unpack({}, 1, 'x')").contains("bad argument #3 to 'unpack' (number expected, got string)"));
}

/// The binding panics where the stack of a function in Rust has no room, or where no reference to a value can be kept. A panic ends a node.
#[test]
fn no_number_of_arguments_panics() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() == Some("panics-counted") {
            PANICS.fetch_add(1, Relaxed);
        }
        before(info);
    }));

    let run = || {
        // Each level adds 200 arguments.
        let grown = "local function grow(n, f, ...) if n == 0 then return pcall(f, ...) end return grow(n - 1, f, FIRST ...) end";
        let functions = "local functions = {} for _, library in pairs({string, table, math, coroutine, cjson, redis, _G}) do for _, value in \
                         pairs(library) do if type(value) == 'function' then functions[#functions + 1] = value end end end";
        for first in ["1,", "'x',", "{},", "print_me,"] {
            let first = first.repeat(200);
            let source = format!(
                "local print_me = function() end {} {functions} local wrapped = coroutine.wrap(function() end) functions[#functions + 1] = \
                 wrapped functions[#functions + 1] = string.gmatch('x', 'x') for _, f in ipairs(functions) do if f ~= coroutine.yield then \
                 for n = 38, 41 do grow(n, f) grow(n, f, {{}}) grow(n, f, function() end) end end end return 1",
                grown.replace("FIRST", &first)
            );
            let result = attack(&source);
            assert!(
                matches!(result, Ok(_) | Err(ScriptFailure::OverLimit(_) | ScriptFailure::Raised(_))),
                "{result:?}"
            );
        }

        // Right below the most that there is room for.
        let many = "local t = {} for i = 1, 7900 do t[i] = 1 end ";
        for count in 60..160 {
            let ones = "1,".repeat(count);
            for call in
                ["table.sort({}, nil,", "coroutine.wrap(function() end,", "string.gsub('x', '()', function() end, nil,"]
            {
                let result = attack(&format!("{many} {call} {ones} unpack(t))"));
                assert!(!matches!(result, Err(ScriptFailure::Compile(_))), "{call}: {result:?}");
            }
        }
        // A script that has taken all memory, and as many strings as references are left for.
        let full = "local s = {} for i = 1, 7900 do s[i] = 'x' .. i end local t = {} pcall(function() local n = 1 while true do t[n] = {} n = \
                    n + 1 end end) for k = 1, 7800, 100 do pcall(table.sort, {}, nil, unpack(s, 1, k)) end for k = 7700, 7900 do \
                    pcall(table.sort, {}, nil, unpack(s, 1, k)) pcall(redis.call, 'echo', unpack(s, 1, k)) end return 1";
        let result = attack(full);
        assert!(matches!(result, Ok(_) | Err(ScriptFailure::OverLimit(_) | ScriptFailure::Raised(_))), "{result:?}");
    };
    let thread = thread::Builder::new().name("panics-counted".to_owned()).spawn(run).expect("a thread");
    thread.join().expect("no test failed");
    assert_eq!(PANICS.load(Relaxed), 0);
}

/// A function of the library in C that is not known here could run for ever, so there is none.
#[test]
fn libraries_have_the_functions_that_are_known() {
    let names = |library: &str| {
        text(&format!(
            "local names = {{}} for name in pairs({library}) do names[#names + 1] = name end table.sort(names) return              table.concat(names, ' ')"
        ))
    };
    assert_eq!(names("string"), "byte char find format gfind gmatch gsub len lower match rep reverse sub upper");
    assert_eq!(names("table"), "concat foreach foreachi getn insert maxn remove setn sort");
    assert_eq!(names("coroutine"), "create resume running status wrap yield");
    assert_eq!(
        names("math"),
        "abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp huge ldexp log log10 max min mod modf pi pow rad random \
         randomseed sin sinh sqrt tan tanh"
    );
}

#[test]
fn many_arguments_and_results_pass_or_fail_cleanly() {
    let count = "local t = {} for i = 1, 7000 do t[i] = 'x' .. i end return #redis.call('echo', unpack(t))";
    assert_eq!(attack(count), Ok(RedisReply::Integer(7000)));

    let result = "local t = {} for i = 1, 100000 do t[i] = i end return t";
    assert!(matches!(attack(result), Ok(RedisReply::Array(parts)) if parts.len() == 100_000));
    assert_over_limit("local t = {} local s = string.rep('x', 100000) for i = 1, 100 do t[i] = s end return t");
}

#[test]
fn nothing_of_a_run_reaches_the_next() {
    let before = text(
        "local names = {} for name in pairs(_G) do names[#names + 1] = name end table.sort(names) return table.concat(names, ' ')",
    );
    for source in [
        "rawset(_G, 'x', 1)",
        "getmetatable('').__index = nil",
        "getmetatable(_G).__index = nil",
        "string.x = 1",
        "table.insert(_G, 1)",
        "redis.call = nil",
        "rawset(string, 'rep', nil)",
        "KEYS.x = 1 return 1",
        "setmetatable(KEYS, {__index = function() return 1 end}) return 1",
        "coroutine.wrap(function() coroutine.yield() end)() return 1",
        "math.randomseed(7) return 1",
    ] {
        // Whether it is refused or changes its own interpreter makes no difference to the next.
        drop(run(source));
        let after = text(
            "local names = {} for name in pairs(_G) do names[#names + 1] = name end table.sort(names) return table.concat(names, ' ')",
        );
        assert_eq!(after, before, "{source}");
        assert_eq!(run("return KEYS.x or ('x'):rep(2)"), Ok(RedisReply::Bulk(b"xx".to_vec())), "{source}");
        assert_eq!(run("return math.random(1, 1000)"), Ok(RedisReply::Integer(397)), "{source}");
    }
}

#[test]
fn what_reaches_beyond_the_run_is_missing() {
    for name in [
        "load",
        "loadstring",
        "loadfile",
        "dofile",
        "print",
        "require",
        "module",
        "package",
        "os",
        "io",
        "debug",
        "newproxy",
        "setfenv",
        "getfenv",
    ] {
        let error = raised(&format!("return {name}"));
        assert!(error.contains(&format!("nonexistent global variable '{name}'")), "{error}");
    }
    assert_eq!(run("return string.dump"), Ok(RedisReply::Nil));
    assert!(matches!(run("\u{1b}Lua"), Err(ScriptFailure::Compile(_))));
}

#[test]
fn no_script_catches_the_end_that_the_host_wants() {
    for source in [
        "redis.call('abort')",
        "redis.pcall('abort') return 1",
        "pcall(redis.call, 'abort') return 1",
        "while true do pcall(redis.call, 'abort') end",
        "coroutine.resume(coroutine.create(function() redis.call('abort') end)) return 1",
        "xpcall(function() redis.call('abort') end, function() return 1 end) return 1",
        "string.gsub('x', 'x', function() redis.call('abort') end) return 1",
        "table.sort({2, 1}, function() redis.call('abort') end) return 1",
    ] {
        assert_eq!(attack(source), Err(ScriptFailure::Aborted), "{source}");
    }
}

#[test]
fn instructions_are_counted() {
    let limits = ScriptLimits { instructions_max: 100_000, ..ScriptLimits::default() };
    let lua = LuaInterpreter::default();
    let count_to = |count: u32| {
        let source = format!("local n = 0 for i = 1, {count} do n = n + 1 end return n");
        lua.run(source.as_bytes(), "SHA", &[], &[], &mut Strings::default(), limits)
    };

    assert_eq!(count_to(40_000), Ok(RedisReply::Integer(40_000)));
    let text = "the script ran more than 100000 instructions; make it shorter, or its loops";
    assert_eq!(count_to(60_000), Err(ScriptFailure::OverLimit(text.to_owned())));
}
