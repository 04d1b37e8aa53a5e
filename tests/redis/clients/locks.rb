# redis-rb by hand, commanded by a line of input each: acquire, release, others, extend. It answers 1 or 0.
#
# Usage: locks.rb HOST PORT KEY SECONDS
require "redis"
require "securerandom"

$stdout.sync = true
host, port, key, ttl = ARGV
redis = Redis.new(host: host, port: port.to_i, timeout: 10)
value = SecureRandom.hex
milliseconds = (ttl.to_f * 1000).to_i
remove = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

# A release as redis-rb's users write it without scripts.
release = lambda do |owner|
  redis.watch(key) do
    if redis.get(key) == owner
      redis.multi { |transaction| transaction.del(key) } == [1]
    else
      redis.unwatch
      false
    end
  end
end

$stdin.each_line do |line|
  done =
    case line.strip
    when "acquire" then redis.set(key, value, nx: true, px: milliseconds)
    when "release" then release.call(value)
    when "others" then redis.eval(remove, [key], ["another"]) == 1 || release.call("another")
    when "extend" then redis.get(key) == value && redis.pexpire(key, milliseconds)
    end
  puts(done ? "1" : "0")
rescue StandardError => error
  puts("error #{error.class} #{error.message.lines.first}")
end
