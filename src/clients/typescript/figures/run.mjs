// Pairs of acquire and release a second, and their latency: this client and the Rust client on one cluster of three nodes, and redlock on
// one Redis, in one run, by turns. And the processor time of a thousand locks that are held.
//
//   LOCKKEEPER_PROGRAM=… node figures/run.mjs [SECONDS] [REPETITIONS]
//
// What is compared differs: Lockkeeper has each grant on the disks of a majority before it answers, Redis keeps it in memory. The
// processor time of the client says least about the machine and most about the client.
// @ts-check
import { execFileSync, spawn } from "node:child_process";
import { createServer } from "node:net";
import { createInterface } from "node:readline";

import { Client } from "../dist/index.mjs";

const PROGRAM = process.env.LOCKKEEPER_PROGRAM ?? "lockkeeper";
const SECONDS = Number(process.argv[2] ?? 5);
const REPETITIONS = Number(process.argv[3] ?? 3);
const WARM_UP_MS = 1_000;
const WORKERS = [1, 64];
const HELD = 1_000;

/** @typedef {{ perSecond: number, p50Us: number, p99Us: number, cpuUs: number }} Figures */

/** @param {number} ms */
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Pairs by so many workers at once, after a warm-up.
 * @param {number} workers
 * @param {(worker: number) => Promise<void>} pair
 * @returns {Promise<Figures>}
 */
async function measure(workers, pair) {
  let isOver = false;
  let isMeasured = false;
  /** @type {number[]} */
  const latencies = [];
  const work = async (/** @type {number} */ worker) => {
    while (!isOver) {
      const began = process.hrtime.bigint();
      await pair(worker);
      if (isMeasured) {
        latencies.push(Number(process.hrtime.bigint() - began) / 1e3);
      }
    }
  };
  const working = Promise.all(Array.from({ length: workers }, (_, worker) => work(worker)));
  await sleep(WARM_UP_MS);
  isMeasured = true;
  const began = process.hrtime.bigint();
  const cpu = process.cpuUsage();
  await sleep(SECONDS * 1_000);
  isMeasured = false;
  const seconds = Number(process.hrtime.bigint() - began) / 1e9;
  const { user, system } = process.cpuUsage(cpu);
  isOver = true;
  await working;

  latencies.sort((a, b) => a - b);
  const at = (/** @type {number} */ part) => latencies[Math.floor(part * (latencies.length - 1))] ?? NaN;
  const count = latencies.length;
  return { perSecond: count / seconds, p50Us: at(0.5), p99Us: at(0.99), cpuUs: (user + system) / count };
}

/**
 * @param {number} workers
 * @param {string} endpoints
 * @returns {Figures}
 */
function rust(workers, endpoints) {
  const options = ["--warm-up", `${WARM_UP_MS}ms`, "--duration", `${SECONDS}s`, "--repetitions", "1", "-o", "json"];
  const told = execFileSync(PROGRAM, ["bench", "uncontended", "--workers", `${workers}`, "--endpoints", endpoints, ...options], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  const [figures] = JSON.parse(told.toString()).series[0].repetitions;
  const { per_second, p50_us, p99_us, generator_cpus } = figures;
  return { perSecond: per_second, p50Us: p50_us, p99Us: p99_us, cpuUs: (generator_cpus * 1e6) / per_second };
}

/** @param {number[]} numbers */
const median = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? NaN;

/**
 * @param {string} name
 * @param {number} workers
 * @param {Figures[]} figures
 */
function print(name, workers, figures) {
  const of = (/** @type {keyof Figures} */ key) => Math.round(median(figures.map((figure) => figure[key])));
  const rates = figures.map(({ perSecond }) => Math.round(perSecond));
  const row = [name, workers, `${of("perSecond")} [${Math.min(...rates)}..${Math.max(...rates)}]`, of("p50Us"), of("p99Us"), of("cpuUs")];
  console.log(`| ${row.join(" | ")} |`);
}

/** @returns {Promise<{ port: number, end: () => void } | undefined>} */
async function startRedis() {
  const free = createServer();
  await new Promise((resolve) => free.listen(0, "127.0.0.1", () => resolve(undefined)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (free.address());
  await new Promise((resolve) => free.close(resolve));
  const redis = spawn("redis-server", ["--port", `${port}`, "--save", "", "--appendonly", "no"], { stdio: "ignore" });
  const isThere = await new Promise((resolve) => {
    redis.once("error", () => resolve(false));
    redis.once("spawn", () => resolve(true));
  });
  return isThere ? { port, end: () => redis.kill() } : undefined;
}

const dev = spawn(PROGRAM, ["dev", "-o", "json"], { stdio: ["ignore", "pipe", "ignore"] });
const report = await new Promise((resolve) => createInterface({ input: dev.stdout }).once("line", (line) => resolve(JSON.parse(line))));
const endpoints = report.endpoints.join(",");
const redis = await startRedis();
const client = new Client({ endpoints, ttlMs: 30_000 });
/** @type {Record<string, (workers: number) => Promise<Figures> | Figures>} */
const contenders = {
  "TypeScript client": (workers) =>
    measure(workers, async (worker) => {
      const lock = await client.acquire(`figures/${worker}`);
      await lock.release();
    }),
  "Rust client": (workers) => rust(workers, endpoints),
};
/** @type {import("ioredis").Redis | undefined} */
let connection;
if (redis === undefined) {
  console.error("!!! SKIPPED: redlock: redis-server is not installed");
} else {
  const [{ Redis }, { default: Redlock }] = await Promise.all([import("ioredis"), import("redlock")]);
  connection = new Redis({ port: redis.port });
  const redlock = new Redlock([connection], { retryCount: 0 });
  contenders["redlock on Redis"] = (workers) =>
    measure(workers, async (worker) => {
      const lock = await redlock.lock(`figures/${worker}`, 10_000);
      await lock.unlock();
    });
}

console.log(`Node ${process.version}, ${SECONDS} s each, median of ${REPETITIONS}`);
console.log("| client | workers | pairs/s | p50, µs | p99, µs | CPU of the client for a pair, µs |");
console.log("|---|---|---|---|---|---|");
for (const workers of WORKERS) {
  /** @type {Record<string, Figures[]>} */
  const all = {};
  for (let repetition = 0; repetition < REPETITIONS; repetition += 1) {
    for (const [name, run] of Object.entries(contenders)) {
      (all[name] ??= []).push(await run(workers));
    }
  }
  for (const [name, figures] of Object.entries(all)) {
    print(name, workers, figures);
  }
}

const locks = await Promise.all(Array.from({ length: HELD }, (_, number) => client.acquire(`held/${number}`)));
await sleep(WARM_UP_MS);
const cpu = process.cpuUsage();
await sleep(SECONDS * 1_000);
const { user, system } = process.cpuUsage(cpu);
const held = locks.filter(({ loss }) => loss === undefined).length;
console.log(`${held} locks held, TTL 30 s: ${((user + system) / 1e4 / SECONDS).toFixed(2)} % of one processor`);

await client.close();
connection?.disconnect();
redis?.end();
dev.kill("SIGTERM");
