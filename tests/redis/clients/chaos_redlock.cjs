// A client for `lockkeeper chaos run --program`: npm's `redlock` over ioredis contends for locks, and is judged. What it writes is told in
// chaos_redis.py.
"use strict";

const { default: Redis } = require("ioredis");
const { default: Redlock } = require("redlock");

const { add, hold, now, run, sleep, start } = require("../../dynamodb/clients/chaos_history.cjs");

const ENDPOINTS = process.env.LOCKKEEPER_REDIS_ENDPOINTS.split(",");
const LEASE_MS = 2000;
const HOLDERS = 3;

// One client at one endpoint, until an error.
async function work(name, endpoint, tenures) {
    const [host, port] = endpoint.split(":");
    const client = new Redis({ host, port: Number(port), maxRetriesPerRequest: 3 });
    client.on("error", (error) => console.error(`${name}: ${error.message}`));
    const locks = new Redlock([client], { retryCount: 0 });
    try {
        while (!run.isOver) {
            const key = Math.random() < 0.5 ? "ra" : "rb";
            const at = now();
            let lock;
            try {
                lock = await locks.acquire([key], LEASE_MS);
            } catch (error) {
                if (!/quorum/.test(error.message)) {
                    throw error;
                }
                await sleep(Math.random() * 50);
                continue;
            }
            // ioredis sends a command again by itself, and does not say when it sent it last; and its time may be over by now.
            const [[, value], [, token]] = await client.pipeline().get(key).get(`lockkeeper:token:${key}`).exec();
            if (value !== lock.value || now() - at > LEASE_MS * 0.8e6) {
                await lock.release().catch(() => undefined);
                continue;
            }
            const session = `${name}/${tenures.count++}`;
            add(name, "invoke", "open", { at, session, ttl_ms: LEASE_MS });
            add(name, "ok", "open", { at });
            add(name, "invoke", "acquire", { at, lock: `redis/0/${key}`, session });
            add(name, "ok", "acquire", { lock: `redis/0/${key}`, token: Number(token) });
            await sleep([0, 10, 50, LEASE_MS * 0.4][Math.floor(Math.random() * 4)]);
            add(name, "invoke", "release", { session, token: Number(token) });
            try {
                await lock.release();
                add(name, "ok", "release");
            } catch (error) {
                // Lost, over by now, or sent again by itself after it had taken effect.
                add(name, "info", "release", { reason: error.name });
            }
            await sleep(10);
        }
    } finally {
        client.disconnect();
    }
}

start(async () => {
    const holder = (_, number) => hold(`redlock-${number}`, "redis", ENDPOINTS, number, work);
    await Promise.all(Array.from({ length: HOLDERS }, holder));
});
