// Lock clients from npm: refusal, release by others, waiting, extension, a dead holder, contention. Usage: see support.py.
"use strict";

const { assert, contend, dieHolding, enter, eventually, now, sleep } = require("./support.cjs");

const GIVEN = process.argv.slice(2);
const [NAME, ENDPOINT, SECONDS] = GIVEN;
const [host, port] = [ENDPOINT.split(":")[0], Number(ENDPOINT.split(":")[1])];

// An error while a leader dies is an event too: without a listener it ends the process.
const quiet = (client) => client.on("error", (error) => console.error(`${NAME}: ${error.message}`)) && client;
function ioredis() {
    const Redis = require("ioredis");
    return quiet(new Redis({ host, port }));
}
async function nodeRedis(version = "redis") {
    return quiet(require(version).createClient({ socket: { host, port } })).connect();
}
// Whether a promise is kept; an error that matches is a refusal, any other one an error.
async function granted(promise, refusal) {
    try {
        await promise;
        return true;
    } catch (error) {
        if (refusal.test(error.constructor.name) || refusal.test(error.message)) {
            return false;
        }
        throw error;
    }
}

// Each makes a lock of this key and lease: acquire() and wait(ms), whether it was had; release(), whether it was the holder's; extend().
const CLIENTS = {
    async "redlock-5"(key, ttl) {
        const { default: Redlock } = require("redlock");
        const client = ioredis();
        const locks = new Redlock([client], { retryCount: 0, automaticExtensionThreshold: 100 });
        const patient = new Redlock([client], { retryCount: 100, retryDelay: 30, retryJitter: 10 });
        let held;
        const by = async (from) => granted(from.acquire([key], ttl).then((lock) => (held = lock)), /quorum|ResourceLocked/);
        return {
            acquire: () => by(locks),
            wait: () => by(patient),
            release: () => held.release().then(() => true),
            async releaseOfOthers() {
                const { Lock } = require("redlock");
                const others = new Lock(locks, [key], "another", [], Date.now() + ttl);
                await granted(others.release(), /quorum/);
            },
            extend: () => held.extend(ttl).then((lock) => !!(held = lock)),
        };
    },
    async "redlock-4"(key, ttl) {
        const Redlock = require("redlock4");
        const client = ioredis();
        const locks = new Redlock([client], { retryCount: 0 });
        const patient = new Redlock([client], { retryCount: 100, retryDelay: 30, retryJitter: 10 });
        let held;
        const by = async (from) => granted(from.lock(key, ttl).then((lock) => (held = lock)), /LockError/);
        return {
            acquire: () => by(locks),
            wait: () => by(patient),
            release: () => held.unlock().then(() => true),
            async releaseOfOthers() {
                const others = new Redlock.Lock(locks, [key], "another", Date.now() + ttl, 1);
                assert(!(await granted(others.unlock(), /LockError/)), "it has released another's");
            },
            extend: () => held.extend(ttl).then((lock) => !!(held = lock)),
        };
    },
    "redis-semaphore-mutex": (key, ttl) => ofRedisSemaphore("Mutex", key, ttl),
    "redis-semaphore": (key, ttl) => ofRedisSemaphore("Semaphore", key, ttl),
    async "redis-lock"(key, ttl) {
        // It takes node-redis 4 alone.
        const client = await nodeRedis("redis4");
        const lock = require("redis-lock")(client, 20);
        let held;
        const wait = () => lock(key, ttl).then((release) => !!(held = release));
        // It cannot be refused, and does not look at the owner.
        return { wait, release: () => held().then(() => true) };
    },
    async "simple-redis-mutex"(key, ttl) {
        const { lock, tryLock } = require("simple-redis-mutex");
        const client = await nodeRedis();
        let held;
        return {
            acquire: async () => {
                const [has, release] = await tryLock(client, key, { timeout: ttl });
                held = release;
                return has;
            },
            wait: async (failAfter) => {
                const options = { timeout: ttl, pollingInterval: 1000, failAfter };
                return granted(lock(client, key, options).then((release) => (held = release)), /could not be acquired/);
            },
            release: () => held().then(() => true),
        };
    },
    async "node-redis"(key, ttl) {
        const client = await nodeRedis();
        const compare = 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call(ARGV[2], KEYS[1], ARGV[3]) else return 0 end';
        const remove = 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end';
        const value = `${process.pid}-${Math.random()}`;
        return {
            acquire: async () => (await client.set(key, value, { NX: true, PX: ttl })) === "OK",
            release: async () => (await client.eval(remove, { keys: [key], arguments: [value] })) === 1,
            releaseOfOthers: async () => {
                assert((await client.eval(remove, { keys: [key], arguments: ["another"] })) === 0, "it has released another's");
            },
            extend: async () => (await client.eval(compare, { keys: [key], arguments: [value, "pexpire", `${ttl}`] })) === 1,
        };
    },
};

function ofRedisSemaphore(kind, key, lockTimeout) {
    const library = require("redis-semaphore");
    const client = ioredis();
    const make = (options) => {
        const all = { lockTimeout, retryInterval: 20, refreshInterval: 0, onLockLost: () => {}, ...options };
        return kind === "Mutex" ? new library.Mutex(client, key, all) : new library.Semaphore(client, key, 1, all);
    };
    let held;
    return {
        acquire: () => (held = make({ acquireAttemptsLimit: 1 })).tryAcquire(),
        wait: (acquireTimeout) => (held = make({ acquireTimeout })).tryAcquire(),
        release: () => held.release().then(() => true),
        releaseOfOthers: () => make({}).release(),
        extend: () => held._refresh(),
    };
}

const open = (name, ttl) => CLIENTS[NAME](`${NAME}-${name}`, ttl);

async function contender(place) {
    // Longer than any election here.
    const ttl = 15_000;
    process.on("unhandledRejection", (error) => console.error(`${NAME}: ${error.message}`));
    let isOver = false;
    process.on("message", () => (isOver = true));
    let lock = await open("contended", ttl);
    while (!isOver) {
        const asked = now();
        let held = false;
        try {
            held = await (lock.wait ? lock.wait(5000) : lock.acquire());
        } catch (error) {
            console.error(`${NAME}: acquire: ${error.message}`);
            process.send("failed");
            await sleep(100);
        }
        if (!held) {
            await sleep(20);
            continue;
        }
        if (now() - asked > ttl * 0.8) {
            process.send("late");
        } else {
            await enter(place);
            process.send("entered");
        }
        try {
            await lock.release();
        } catch (error) {
            console.error(`${NAME}: release: ${error.message}`);
            process.send("failed");
            lock = await open("contended", ttl);
        }
        await sleep(30);
    }
}

async function refuses() {
    const ann = await open("held", 30_000);
    assert(await (ann.acquire ?? ann.wait)(30_000), "it is free");
    let bob = await open("held", 30_000);
    if (bob.acquire) {
        assert(!(await bob.acquire()), "one holds it");
    }
    if (bob.releaseOfOthers) {
        await bob.releaseOfOthers();
        bob = await open("held", 30_000);
        assert(!(await bob.acquire()), "who does not hold it does not release it");
    }
    const others = bob.releaseOfOthers ? "; not released by others" : "";
    if (!bob.wait) {
        await ann.release();
        assert(await bob.acquire(), "it is free");
        console.log(`refused while it is held${others}; free when released`);
        return bob.release();
    }
    let had;
    const waiting = bob.wait(20_000).then((has) => (had = has && now()));
    await sleep(500);
    assert(had === undefined, "it waits");
    await ann.release();
    const released = now();
    await waiting;
    assert(had, "the waiter has it");
    console.log(`refused while it is held${others}; who waits had it ${Math.round(had - released)} ms after the release`);
    await bob.release();
}

async function extended() {
    const ttl = 3000;
    const ann = await open("extended", ttl);
    if (!ann.extend) {
        return;
    }
    const bob = await open("extended", ttl);
    assert(await ann.acquire(), "it is free");
    for (const until = now() + ttl * 1.5; now() < until; await sleep(500)) {
        assert((await ann.extend()) && !(await bob.acquire()), "it is extended");
    }
    await ann.release();
    assert(await bob.acquire(), "it is free");
    await bob.release();
    console.log(`extended beyond its ${ttl / 1000} s`);
}

const DEAD_MS = 2000;

async function endsWithItsHolder() {
    const { asked, died } = await dieHolding(__filename, GIVEN);
    const bob = await open("dead", DEAD_MS);
    await eventually("it is free", () => (bob.acquire ?? bob.wait)(DEAD_MS * 4));
    const free = now();
    assert(free - asked >= DEAD_MS, `it lives for ${DEAD_MS} ms, and was free after ${free - asked}`);
    const [ofAsking, ofDeath] = [asked, died].map((at) => ((free - at) / 1000).toFixed(2));
    console.log(`dead holder of ${DEAD_MS / 1000} s: free ${ofAsking} s after it had asked, ${ofDeath} s after its death`);
    await bob.release();
}

async function main() {
    const place = GIVEN.find((argument) => argument.startsWith("contend="))?.slice("contend=".length);
    if (place !== undefined) {
        return contender(place);
    }
    if (GIVEN.includes("die")) {
        const asked = now();
        const lock = await open("dead", DEAD_MS);
        assert(await (lock.acquire ?? lock.wait)(DEAD_MS), "it is free");
        return process.send(asked, () => process.kill(process.pid, "SIGKILL")) && sleep(60_000);
    }
    await contend(__filename, GIVEN, Number(SECONDS));
    await refuses();
    await extended();
    await endsWithItsHolder();
}

main().then(
    () => process.exit(0),
    (error) => {
        console.error(error);
        process.exit(1);
    },
);
