// redigo by hand, in the shape of redsync: commanded by a line of input each: acquire, release, others, extend. It answers 1 or 0.
//
// Usage: locks HOST PORT KEY SECONDS
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Scripts are sent by their hash first, and whole where that is not known.
var release = redis.NewScript(1, `
	if redis.call("GET", KEYS[1]) == ARGV[1] then
		return redis.call("DEL", KEYS[1])
	else
		return 0
	end
`)

var extend = redis.NewScript(1, `
	if redis.call("GET", KEYS[1]) == ARGV[1] then
		return redis.call("PEXPIRE", KEYS[1], ARGV[2])
	else
		return 0
	end
`)

func main() {
	address, key := os.Args[1]+":"+os.Args[2], os.Args[3]
	seconds, err := strconv.ParseFloat(os.Args[4], 64)
	if err != nil {
		panic(err)
	}
	milliseconds := int(seconds * 1000)
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		panic(err)
	}
	value := hex.EncodeToString(random)

	// A connection that had an error is not used again.
	limits := []redis.DialOption{redis.DialConnectTimeout(10 * time.Second), redis.DialReadTimeout(10 * time.Second)}
	pool := &redis.Pool{
		MaxIdle: 2,
		Dial:    func() (redis.Conn, error) { return redis.Dial("tcp", address, limits...) },
	}

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		done, err := run(pool, strings.TrimSpace(lines.Text()), key, value, milliseconds)
		switch {
		case err != nil:
			fmt.Println("error", strings.Split(err.Error(), "\n")[0])
		case done:
			fmt.Println("1")
		default:
			fmt.Println("0")
		}
	}
}

func run(pool *redis.Pool, what, key, value string, milliseconds int) (bool, error) {
	connection := pool.Get()
	defer connection.Close()
	switch what {
	case "acquire":
		reply, err := redis.String(connection.Do("SET", key, value, "NX", "PX", milliseconds))
		if err == redis.ErrNil {
			return false, nil
		}
		return reply == "OK", err
	case "release":
		return redis.Bool(release.Do(connection, key, value))
	case "others":
		return redis.Bool(release.Do(connection, key, "another"))
	case "extend":
		return redis.Bool(extend.Do(connection, key, value, milliseconds))
	}
	return false, fmt.Errorf("%q is no command", what)
}
