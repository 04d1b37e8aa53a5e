if redis.call("get",KEYS[1]) == ARGV[1] then
  return redis.call("del",KEYS[1])
else
  return 0
end
----
redis.call('set', KEYS[1], ARGV[1], 'PX', 100000)
local t = redis.call('pttl', KEYS[1])
if not t or t < 0 then return 0 end
return redis.call('pexpire', KEYS[1], ARGV[1] + 100000)
----
for i, key in ipairs(KEYS) do
  if redis.call('exists', key) == 1 then return 0 end
end
for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', 100000) end
return #KEYS
----
local r = redis.pcall('set', KEYS[1], 'x', 'PX', 'y')
return r.err
----
for i, v in pairs(redis.call('mget', unpack(KEYS))) do
  if not v then return KEYS[i] .. i end
end
----
local now = {'1795343189', '134567'}
return now[1] * 1000 + math.floor(now[2] / 1000)
----
local args = {} for i = 1, 5 do table.insert(args, i) table.insert(args, 'm' .. i) end
redis.call('zadd', KEYS[1], unpack(args))
local r = redis.call('zrange', KEYS[1], 0, -1, 'WITHSCORES')
local sum = 0 for i = 2, #r, 2 do sum = sum + r[i] end
return {sum, r, redis.call('type', KEYS[1]).ok}
----
redis.replicate_commands()
return {true, false, 2.9, -2.9, 'x', {1, nil, 3}, {ok = 'A'}, {err = 'B c'}}
----
return ARGV[1] >= '9'
----
return redis.call('zscore', 'none', 'x') == false
----
return {1, 2, {3, 'four', {}}}
----
return foo
----
foo = 1
----
KEYS = 1
----
string.x = 1
----
redis.call = 1
----
rawset(_G, 'x', 1)
----
setmetatable(_G, nil)
----
getmetatable('').__index = 1
----
return {tostring(getmetatable('').__index == string), tostring(_G._G == _G), rawget(_G, 'nope')}
----
local t = {} for k in pairs(string) do t[#t + 1] = k end table.sort(t) return {#t > 10, t[1]}
----
local n = 0 for k in pairs(_G) do n = n + 1 end return n > 10
----
return print
----
return os.time()
----
return redis.call()
----
return redis.call({})
----
return redis.call('set', 'k', true)
----
return redis.call('set', 'k', nil)
----
return redis.call('nope', 1)
----
return redis.call('get')
----
redis.call('set', 'k', 'x') return redis.call('incr', 'k')
----
redis.call('set', 'k', 'x') return redis.pcall('incr', 'k')
----
redis.call('rpush', 'k', 'x') return redis.call('get', 'k')
----
return {pcall(redis.call, 'get')}
----
return {pcall(redis.call)}
----
return {pcall(error, 'x')}
----
return {pcall(error, {err = 'A b'})}
----
return {pcall(error, {x = 1})}
----
return {select('#', pcall(error, {x = 1}))}
----
return {pcall(error)}
----
return {pcall(function() return 1, 2, nil, 4 end)}
----
local b = redis.pcall('get') local t = {} for k, v in pairs(b) do t[#t + 1] = tostring(k) .. '=' .. tostring(v) end table.sort(t) return t
----
local b = redis.pcall() local t = {} for k, v in pairs(b) do t[#t + 1] = tostring(k) .. '=' .. tostring(v) end table.sort(t) return t
----
local b = redis.error_reply('A b') local t = {} for k, v in pairs(b) do t[#t + 1] = tostring(k) .. '=' .. tostring(v) end table.sort(t) return t
----
return redis.error_reply('foo')
----
return redis.error_reply('My Err')
----
return redis.error_reply('-My Err')
----
return redis.error_reply('')
----
return redis.error_reply(1)
----
return redis.error_reply()
----
return redis.error_reply('a\r\nb c\r\n')
----
return redis.status_reply('a b')
----
return redis.status_reply({})
----
return {err = 'a\r\nb'}
----
return {ok = ' a\r\nb '}
----
return redis.sha1hex()
----
return {redis.sha1hex(''), redis.sha1hex(1), redis.sha1hex('abc')}
----
return redis.log(1)
----
return redis.log(9, 'x')
----
return redis.log('x', 'y')
----
return redis.log(redis.LOG_DEBUG, 'x')
----
return redis.setresp()
----
return redis.setresp(4)
----
return redis.setresp(2)
----
return redis.set_repl(redis.REPL_ALL)
----
return redis.set_repl()
----
return redis.set_repl(9)
----
return redis.breakpoint()
----
return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM, redis.REPL_ALL, redis.LOG_WARNING}
----
return {1e15, 1e19, -1e19, 0/0, 1/0, -0.5}
----
redis.call('mset', 'a', 1e15, 'b', 0.1, 'c', 1e17, 'd', 123456789012345678, 'e', -1.5e300, 'f', 1/0, 'g', 3, 'h', -0.0)
return redis.call('mget', 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h')
----
return {tostring(1e15), tostring(1e14), tostring(0.1), tostring(-0.0), 1e15 .. '', 2^53}
----
return {double = 3.5}
----
return {map = {a = 1}}
----
return {set = {a = true}}
----
return {big_number = '12'}
----
return {verbatim_string = {format = 'txt', string = 'hi'}}
----
return function() end
----
return coroutine.create(function() end)
----
error('x')
----
error('x', 0)
----
error({err = 'My E'})
----
error()
----
error(nil)
----
error(12)
----
local a
local b = a.x
----
local a = {}
a.b.c()
----
return 1 + {}
----
return {} .. 'x'
----
return {} < {}
----
return 1 < 'x'
----
nope()
----
x x
----
return (
----
return 'a
----
local function f() return 1 + f() end return f()
----
return string.rep()
----
return ('x'):rep()
----
return ('x').rep(nil, 1)
----
return string.gsub('x', 'x', function() error('in it') end)
----
return string.gsub('hello world', '(o)', '[%1]')
----
return string.gsub('abc', '', '-')
----
return {string.find('a.b', '.', 2, true), string.find('abc', 'b', -1), string.find('', ''), string.find('abc', 'x')}
----
return string.gsub('x', 'x', 1, 2, 3)
----
return string.gsub('x', '(', 'y')
----
return string.gsub('x', 'x', '%2')
----
return string.gsub('x', 'x', true)
----
return string.match('key=value', '(%w+)=(%w+)')
----
return {string.match('2024-01-02', '(%d+)-(%d+)-(%d+)')}
----
local t = {} for k, v in string.gmatch('a=1, b=2', '(%w+)=(%w+)') do t[#t + 1] = k .. v end return t
----
return string.gmatch('x')
----
return string.format('%5d|%-5s|%05.1f|%x|%q|%c|%i|%u|%e|%g', 42, 'ab', 3.14159, 255, 'q"\n', 65, 7, 8, 1e10, 1e-10)
----
return string.format('%d', 'x')
----
return string.format('%100d', 1)
----
return string.format('%y', 1)
----
return string.rep('x', -1)
----
return table.concat({1, {}, 3})
----
return table.concat({1, 2, 3}, ', ', 2, 3)
----
local ok = table.insert(nil, 1)
----
local ok = table.insert({})
----
local ok = table.insert({}, 1, 2, 3)
----
local t = {1, 2, 3} table.insert(t, 5, 'x') table.insert(t, 1, 'y') table.insert(t, -1, 'z') return t
----
local ok = table.sort({1, 'a'})
----
local ok = table.sort(1)
----
local ok = table.sort({1, 2}, 3)
----
local t = {3, 1, 2} table.sort(t, function(a, b) return a > b end) return t
----
local ok = pairs(nil)
----
local ok = ipairs()
----
local ok = next(1)
----
local ok = setmetatable(1, {})
----
local ok = setmetatable({}, 1)
----
local ok = getmetatable()
----
local ok = rawset({}, nil, 1)
----
return unpack({1, 2, 3})
----
local a, b = unpack({1, 2, 3}, 2) return {a, b}
----
return {tonumber('0x10'), tonumber('z', 36), tonumber(' 10 '), tonumber('1e1'), tonumber('') == nil, tonumber('10', 2)}
----
return {math.floor(-2.5), math.ceil(2.1), math.max(1, 5, 3), math.fmod(7, 3), 7 % -3, 2 ^ 10, math.huge, -math.huge, math.pi * 100}
----
return math.random(0)
----
return math.random(2, 1)
----
return math.random(1, 2, 3)
----
return math.floor('x')
----
return coroutine.wrap(function() error('x') end)()
----
return coroutine.wrap(function() error({err = 'x y'}) end)()
----
return {coroutine.resume(coroutine.create(function(a) local b = coroutine.yield(a + 1) return b end), 1)}
----
return coroutine.yield(1)
----
return {xpcall(function() return nope end, function(e) return 'h: ' .. e end)}
----
return {xpcall(function() redis.call('get') end, function(e) return e.err end)}
----
return #ARGV .. table.concat(ARGV, ',')
----
return _VERSION
----
return {gcinfo() > 0, collectgarbage('count') > 0}
----
local t = setmetatable({}, {__index = function(t, k) return k .. '!' end, __call = function(self, x) return x end}) return {t.a, t(3)}
----
return #'\0a\0'
----
return 'a\0b'
----
return {['1'] = 'x', [1] = 'y'}
----
goto = 1
----
return 010 + 0x10
----
local t = {} t[nil] = 1
----
for i = 1, 'x' do end
----
return ...
----
return select(-1, 1, 2, 3)
----
return select(0)
----
#!lua
return 1
----
#!lua flags=no-writes
return nope
----
return cjson.encode({1,2,{a=1}})
----
return cjson.encode({})
----
return cjson.encode({[1]=1,[3]=3})
----
return cjson.encode({[1]=1,[30]=3})
----
return cjson.encode({a=1,[2]=3})
----
return cjson.encode("a/b\"\\\n\t\1\127é")
----
return {cjson.encode(1.5),cjson.encode(1e15),cjson.encode(123456789012345),cjson.encode(0.1),cjson.encode(true),cjson.encode(nil),cjson.encode(cjson.null)}
----
return cjson.encode(0/0)
----
return cjson.encode(1/0)
----
return cjson.encode(function() end)
----
return cjson.encode()
----
return cjson.encode({[true]=1})
----
return tostring(cjson.decode("null"))
----
return cjson.decode("null")==cjson.null
----
return cjson.decode("[1,2,{\"a\":null}]")
----
return cjson.decode("{\"a\":{\"b\":[1.5,true,false]}}").a.b
----
return cjson.decode("")
----
return cjson.decode("{")
----
return cjson.decode("[1,]")
----
return cjson.decode("[1 2]")
----
return cjson.decode("1 2")
----
return cjson.decode("\"\\u00e9\\ud83d\\ude00\"")
----
return cjson.decode("\"\\x\"")
----
return cjson.decode("\"a")
----
return cjson.decode("0x10")
----
return cjson.decode("-12.5e2x")
----
return cjson.decode("nan")
----
return cjson.decode("-Infinity")
----
return cjson.decode("tru")
----
return cjson.decode("{1:2}")
----
return cjson.decode("{\"a\" 2}")
----
return cjson.decode("{\"a\":2 \"b\"}")
----
return cjson.decode("{\"a\":2,}")
----
return cjson.decode(1)
----
return cjson.decode()
----
return cjson.decode({})
----
return cjson.decode("[01]")
----
return cjson.decode("-")
----
return cjson.decode("+1")
----
return cjson.decode("[\"a\nb\"]")
----
return cjson.decode("\"\\ud83d\"")
----
return cjson.decode("\"\\udc00\"")
----
return cjson.decode("\"\\u12\"")
----
return cjson.decode(" [ ] ")
----
return cjson.decode("[1.,.5]")
----
return cjson.decode("1e400")
----
return cjson.encode(cjson.decode('{"b":[1,{"c":"d"}],"a":"x"}'))
----
cjson.x = 1
----
return cjson.decode("1\0")
----
return cjson.decode("1\0\0")
----
return cjson.encode({1, cjson.null, "x"})
----
local t = setmetatable({}, {__index = function() return 1 end}) return cjson.encode(t)
----
return cjson.encode({[1.5]=1})
----
return cjson.encode({[-1]=1})
----
return cjson.encode({[0]=1, 2})
