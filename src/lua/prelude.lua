-- What surrounds a script: its globals, sealed, and the places where it can catch errors.
--
-- Lua 5.1 has no tables that cannot be written; Redis has changed its interpreter for that. Here a sealed table is an empty one that reads
-- from the real one and refuses writes, and the functions of the library that look at tables directly know of it.

local library, native = ...

local error, type, select, tostring = error, type, select, tostring
local pairs, get_metatable, set_metatable = pairs, getmetatable, setmetatable
local raw_pcall, raw_xpcall, raw_resume = pcall, xpcall, coroutine.resume
local caught = native.caught

-- The real table of each sealed one, and the metatable that a script sees for what has one.
local real_of = native.real_of
local shown_metatable_of = native.shown_metatable_of

local function refuse_write()
  error("Attempt to modify a readonly table", 2)
end

local function seal(real)
  local sealed = set_metatable({}, { __index = real, __newindex = refuse_write })
  real_of[sealed] = real
  return sealed
end

-- As Redis' own pcall: an error table of a command is caught as its text.
local function after_pcall(ok, ...)
  if ok then
    return ok, ...
  end
  local value = caught((...))
  if type(value) == "table" then
    local text = value.err
    if type(text) == "string" or type(text) == "number" then
      return false, text
    end
    return false, value, text
  end
  return false, value
end

local function pcall(...)
  if select("#", ...) == 0 then
    error("bad argument #1 to 'pcall' (value expected)", 2)
  end
  return after_pcall(raw_pcall(...))
end

local function after_call(ok, ...)
  if ok then
    return ok, ...
  end
  return ok, caught((...))
end

local function xpcall(...)
  local run, handler = ...
  if select("#", ...) < 2 then
    error("bad argument #2 to 'xpcall' (value expected)", 2)
  end
  return after_call(raw_xpcall(run, function(value)
    return handler(caught(value))
  end))
end

local function resume(...)
  if type((...)) ~= "thread" then
    error("bad argument #1 to 'resume' (coroutine expected)", 2)
  end
  return after_call(raw_resume(...))
end

-- The functions of the base library that Redis leaves to scripts, without those that compile texts.
local globals = {}
local NAMES = {
  "_VERSION", "assert", "collectgarbage", "error", "gcinfo", "ipairs", "rawequal", "select", "tonumber", "tostring", "type",
}
for index = 1, #NAMES do
  globals[NAMES[index]] = library[NAMES[index]]
end
for name, value in pairs(native.base) do
  globals[name] = value
end
globals.pcall = pcall
globals.xpcall = xpcall

-- The functions of a library that are named here, and those that replace or complete them. A name that is not here reaches no script: a
-- library in C may have functions that nobody thought of.
local function chosen(source, names, replacements)
  local library = {}
  for index = 1, #names do
    local value = source[names[index]]
    if value == nil then
      error("the interpreter has no function " .. names[index])
    end
    library[names[index]] = value
  end
  for name, value in pairs(replacements) do
    library[name] = value
  end
  return library
end

local strings = chosen(library.string, { "byte", "char", "format", "len", "lower", "reverse", "sub", "upper" }, native.string)
-- The name that `gmatch` had in Lua 5.0.
strings.gfind = strings.gmatch

local tables = chosen(library.table, { "concat", "foreach", "foreachi", "getn", "maxn", "setn" }, native.table)

local maths = chosen(library.math, {
  "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "deg", "exp", "floor", "fmod", "frexp", "huge", "ldexp", "log", "log10",
  "max", "min", "mod", "modf", "pi", "pow", "rad", "sin", "sinh", "sqrt", "tan", "tanh",
}, native.math)

local coroutines = chosen(library.coroutine, { "create", "running", "status", "yield" }, { resume = resume, wrap = native.wrap })

globals.string = seal(strings)
globals.table = seal(tables)
globals.math = seal(maths)
globals.coroutine = seal(coroutines)
globals.redis = seal(native.redis)
globals.cjson = seal(native.cjson)
globals.KEYS = native.keys
globals.ARGV = native.arguments

-- Methods of strings are those of the sealed table, so that a script cannot change them either.
local own_metatable = get_metatable("")
own_metatable.__index = globals.string
shown_metatable_of[""] = seal(own_metatable)

local function refuse_unknown(_, name)
  if type(name) ~= "string" and type(name) ~= "number" then
    error("Second argument to luaProtectedTableError must be a string or number", 2)
  end
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end

local globals_metatable = { __index = refuse_unknown }
set_metatable(globals, globals_metatable)

local environment = seal(globals)
shown_metatable_of[environment] = seal(globals_metatable)
globals._G = environment

return environment, raw_xpcall, raw_pcall
