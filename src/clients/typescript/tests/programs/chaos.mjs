// The client for `lockkeeper chaos run --program`: clients in this process contend for locks under faults, and write what they saw into
// the history, which is judged. From time to time the process is stopped for longer than its sessions live, or blocks its event loop.
//
// What a lock claims is written as the client claims it: each deadline is taken from `remainingMs`. So a client that trusts a lock for
// too long is found as one that held it together with another.
// @ts-check
import { spawn } from "node:child_process";
import { appendFileSync } from "node:fs";

import { Client, InvalidArgument, Lost, NoCluster, NotAcquired, Refused } from "@lockkeeper/client";

const { LOCKKEEPER_ENDPOINTS = "", LOCKKEEPER_HISTORY = "", LOCKKEEPER_HISTORY_BASE_NS = "0" } = process.env;
const BASE_NS = BigInt(LOCKKEEPER_HISTORY_BASE_NS);
const CLIENTS = 4;
const TASKS = 2;
const TTLS_MS = [1_200, 1_600, 2_400];
/** A new set of locks now and then keeps the history of each short enough for the search of the checker. */
const ROUND_NS = 3_000_000_000;
const OPERATIONS_MAX = 25;
const LOOK_MS = 20;

let isOver = false;
process.stdin.on("end", () => (isOver = true)).resume();

const now = () => Number(process.hrtime.bigint() - BASE_NS);
/** @param {number} ms */
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
/** @param {number} n */
const below = (n) => Math.floor(Math.random() * n);
/** @template T @param {readonly T[]} list @returns {T} */
const one = (list) => /** @type {T} */ (list[below(list.length)]);

/** What one client did, as a process of the history. */
class Recorder {
  #operations = 0;

  /** @param {string} process */
  constructor(process) {
    this.process = process;
  }

  /** @param {object} event */
  #write(event) {
    const line = JSON.stringify(event, (_, value) => (typeof value === "bigint" ? Number(value) : value));
    appendFileSync(LOCKKEEPER_HISTORY, `${line}\n`);
  }

  /**
   * @param {string} f
   * @param {object} value
   */
  fact(f, value) {
    this.#write({ time_ns: now(), process: this.process, type: "info", f, value });
  }

  /**
   * Begins an operation, and returns what ends it.
   * @param {string} f
   * @param {object} value
   * @param {string | undefined} lock
   * @param {number} at
   */
  begin(f, value, lock = undefined, at = now()) {
    const op = (this.#operations += 1);
    const common = { process: this.process, f, op };
    this.#write({ time_ns: at, ...common, type: "invoke", ...(lock === undefined ? {} : { lock }), value });
    return {
      /** @param {object} value */
      ok: (value) => this.#write({ time_ns: now(), ...common, type: "ok", value }),
      /** @param {unknown} error */
      failed: (error) => {
        const reason = failure(error);
        const end = reason === undefined ? { type: "info", value: { why: String(error) } } : { type: "fail", value: { reason } };
        this.#write({ time_ns: now(), ...common, ...end });
      },
    };
  }
}

/**
 * The reason as a history names it; undefined: the operation may have taken effect.
 * @param {unknown} error
 */
function failure(error) {
  if (error instanceof NotAcquired) {
    return error.placeLost ? "place_lost" : error.waited ? "timed_out" : "busy";
  }
  if (error instanceof Refused) {
    return ["WAIT_CANCELLED", "WAIT_REMOVED", "ABANDONED"].includes(error.reason) ? "cancelled" : error.reason.toLowerCase();
  }
  if (error instanceof NoCluster) {
    return "unavailable";
  }
  return error instanceof InvalidArgument ? "invalid" : undefined;
}

/** @type {Map<string, number>} */
const spent = new Map();
/** @typedef {{ name: string, mode: "exclusive" | "shared" | { permits: number } }} Wanted */

/** @returns {Wanted | undefined} */
function choose() {
  const round = Math.floor(now() / ROUND_NS);
  const kinds = /** @type {const} */ (["exclusive", "exclusive", "exclusive", "shared", "permits"]);
  const place = below(kinds.length);
  const kind = kinds[place] ?? "exclusive";
  const name = `typescript/${round}/${kind}/${place}`;
  const operations = (spent.get(name) ?? 0) + 1;
  spent.set(name, operations);
  if (operations > OPERATIONS_MAX) {
    return undefined;
  }
  return { name, mode: kind === "permits" ? { permits: 2 } : kind === "shared" && below(3) === 0 ? "exclusive" : kind };
}

/** A client and its session, from the first acquire to the close. */
class Life {
  /**
   * @param {Client} client
   * @param {Recorder} recorder
   * @param {number} ttlMs
   */
  constructor(client, recorder, ttlMs) {
    this.client = client;
    this.recorder = recorder;
    this.trustedMs = ttlMs - Math.max(ttlMs / 100, 10);
    this.ttlMs = ttlMs;
    this.isClosing = false;
  }

  /** From here on a close is this client's own, and is not told as a loss. Call it before the close. */
  expectClose() {
    this.isClosing = true;
  }

  async run() {
    const { client, recorder } = this;
    const begunNs = now();
    // It is held as long as the session, and nobody else wants it: what it says is what the session says.
    this.own = await client.acquire(`typescript/own/${recorder.process}`);
    this.session = client.sessionId;
    const deadlineNs = this.deadlineNs();
    if (this.session === undefined || deadlineNs === undefined) {
      return;
    }
    const opened = recorder.begin("open", { session: this.session, ttl_ms: this.ttlMs }, undefined, begunNs);
    this.toldNs = deadlineNs;
    opened.ok({ ttl_ms: this.trustedMs, sent_ns: Math.max(begunNs, this.sentNs(deadlineNs)) });
    this.own.signal.addEventListener("abort", () => this.tellLoss(), { once: true });

    const looking = this.look();
    const holds = 4 + below(20);
    await Promise.all(Array.from({ length: TASKS }, () => this.work(holds)));

    this.expectClose();
    const closed = recorder.begin("close", { session: this.session });
    try {
      await client.close();
      closed.ok({});
    } catch (error) {
      closed.failed(error);
    }
    await looking;
  }

  /** Until when the client says that it may be trusted. */
  deadlineNs() {
    const remainingMs = this.own?.remainingMs ?? 0;
    return remainingMs === 0 ? undefined : Math.floor(now() + remainingMs * 1e6);
  }

  /** @param {number} deadlineNs */
  sentNs(deadlineNs) {
    return deadlineNs - this.trustedMs * 1e6;
  }

  tellLoss() {
    const { reason } = this.own?.signal ?? {};
    // A close by somebody else is told: the run's checker asks who began it.
    const isOwn = reason instanceof Lost && (reason.reason === "released" || (reason.reason === "closed" && this.isClosing));
    if (reason instanceof Lost && !isOwn) {
      this.recorder.fact("lost", { session: this.session, why: reason.reason.replaceAll("-", "_") });
    }
  }

  /** Writes each renewal, as soon as the deadline is another one. */
  async look() {
    for (;;) {
      const deadlineNs = this.deadlineNs();
      if (deadlineNs === undefined) {
        return;
      }
      if (deadlineNs > (this.toldNs ?? 0) + 1e6) {
        this.toldNs = deadlineNs;
        this.recorder.fact("renewed", { session: this.session, sent_ns: this.sentNs(deadlineNs) });
      }
      await sleep(LOOK_MS);
    }
  }

  /** @param {number} holds */
  async work(holds) {
    for (let hold = 0; hold < holds && !isOver && this.own?.loss === undefined; hold += 1) {
      const wanted = choose();
      if (wanted === undefined) {
        await sleep(200);
      } else if (below(10) === 0) {
        await this.read(wanted.name);
      } else {
        await this.hold(wanted);
      }
      await sleep(5 + below(55));
    }
  }

  /** @param {Wanted} wanted */
  async hold({ name, mode }) {
    const { client, recorder, session } = this;
    const wait = one(["none", "some", "some", "forever"]);
    const atMostMs = 10 + below(1_500);
    const controller = new AbortController();
    const giveUp = wait === "forever" ? setTimeout(() => controller.abort("given up"), 20 + below(2_500)) : undefined;

    const historyWait = wait === "some" ? { at_most_ms: atMostMs } : wait;
    const lockDelayMs = below(20) === 0 ? 200 : 0;
    const acquired = recorder.begin("acquire", { session, mode, wait: historyWait, lock_delay_ms: lockDelayMs }, name);
    let lock;
    try {
      lock = await client.acquire(name, {
        ...(mode === "shared" ? { shared: true } : {}),
        ...(typeof mode === "object" ? mode : {}),
        waitMs: wait === "none" ? 0 : wait === "some" ? atMostMs : Infinity,
        lockDelayMs,
        signal: controller.signal,
      });
    } catch (error) {
      acquired.failed(error);
      if (!(error instanceof NotAcquired)) {
        await sleep(200);
      }
      return;
    } finally {
      clearTimeout(giveUp);
    }

    const { token } = lock;
    acquired.ok({ token, place_lost: lock.placeLost });
    lock.signal.addEventListener("abort", () => {
      const { reason } = lock.signal;
      if (reason instanceof Lost && reason.reason === "revoked") {
        recorder.fact("lost", { session, why: "revoked", token });
      }
    });
    await sleep(below(12) === 0 ? 300 + below(900) : below(80));
    if (below(5) === 0) {
      await this.read(name);
    }

    const released = recorder.begin("release", { session, token }, name);
    try {
      await lock.release();
      released.ok({});
    } catch (error) {
      released.failed(error);
    }
  }

  /** @param {string} name */
  async read(name) {
    const read = this.recorder.begin("get", {}, name);
    try {
      const lock = await this.client.get(name);
      read.ok({
        holders: lock.holders.map(({ token, sessionId, mode }) => ({ token, session: sessionId, mode: mode ?? "exclusive" })),
        waiters: lock.waiters.map(({ sessionId, ticket }) => ({ session: sessionId, ticket })),
        delayed: lock.delayRemainingMs !== undefined,
      });
    } catch (error) {
      read.failed(error);
    }
  }
}

/** @param {number} number */
async function live(number) {
  for (let generation = 1; !isOver; generation += 1) {
    const ttlMs = one(TTLS_MS);
    const process = `typescript-${number}.${generation}`;
    const client = new Client({ endpoints: LOCKKEEPER_ENDPOINTS, ttlMs, callLimitMs: 3_000, attemptLimitMs: 700, label: process });
    const life = new Life(client, new Recorder(process), ttlMs);
    try {
      await life.run();
    } catch (error) {
      console.error(`${process}: ${error}`);
      await sleep(200);
    }
    // Also after an error, which may have come before the close of its own.
    life.expectClose();
    await client.close().catch((error) => console.error(`${process}: ${error}`));
  }
}

/** Stops this process for longer than a session lives, or blocks its event loop for as long. */
async function pause() {
  while (!isOver) {
    await sleep(3_000 + below(4_000));
    const ms = 500 + below(2_500);
    if (isOver) {
      return;
    }
    if (below(2) === 0) {
      spawn("sh", ["-c", `kill -STOP ${process.pid}; sleep ${ms / 1_000}; kill -CONT ${process.pid}`], { stdio: "ignore" });
      await sleep(100);
    } else {
      const end = Date.now() + ms;
      while (Date.now() < end) {
        // Blocked.
      }
    }
  }
}

await Promise.all([pause(), ...Array.from({ length: CLIENTS }, (_, number) => live(number + 1))]);
