// The driver for the conformance suite: does what it is told on its standard input, a JSON object a line, and writes outcomes and
// events to its standard output. src/clients/conformance/README.md has the protocol.
// @ts-check
import { createInterface } from "node:readline";

import { Client, InvalidArgument, Lost, Malformed, NoCluster, NotAcquired, NotEnsured, Refused, UnknownOutcome } from "@lockkeeper/client";

/** @typedef {Record<string, any>} Step */

/** @type {Client | undefined} */
let client;
/** @type {Map<string, import("@lockkeeper/client").Lock>} */
const locks = new Map();
/** @type {Map<number, AbortController>} */
const acquires = new Map();
const ending = new AbortController();
const CANCELLED = new Error("cancelled by a step");

/** @param {object} outcome */
const say = (outcome) =>
  process.stdout.write(`${JSON.stringify(outcome, (_, value) => (typeof value === "bigint" ? Number(value) : value))}\n`);

/** @returns {Client} */
function connected() {
  if (client === undefined) {
    throw new Error("the first step is connect");
  }
  return client;
}

/** @param {string} name */
function lockOf(name) {
  const lock = locks.get(name);
  if (lock === undefined) {
    throw new Error(`there is no lock ${name}`);
  }
  return lock;
}

/** @param {Uint8Array | undefined} data */
const text = (data) => (data === undefined ? null : new TextDecoder().decode(data));

/** @param {number | null | undefined} waitMs */
const wait = (waitMs) => (waitMs === null || waitMs === undefined ? Infinity : waitMs);

/**
 * Tells the loss of a lock, once, unless the program released it.
 * @param {string} name
 * @param {import("@lockkeeper/client").Lock} lock
 */
function tellLoss(name, lock) {
  locks.set(name, lock);
  const tell = () => {
    const loss = lock.signal.reason;
    if (loss instanceof Lost && loss.reason !== "released") {
      say({ event: "lost", lock: name, reason: loss.reason, ...(loss.operatorReason === undefined ? {} : { text: loss.operatorReason }) });
    }
  };
  if (lock.signal.aborted) {
    tell();
  } else {
    lock.signal.addEventListener("abort", tell, { once: true });
  }
}

/**
 * @param {Step} step
 * @param {(signal: AbortSignal) => Promise<import("@lockkeeper/client").Lock>} acquire
 */
async function acquired(step, acquire) {
  const controller = new AbortController();
  acquires.set(step.step, controller);
  try {
    const lock = await acquire(controller.signal);
    say({ step: step.step, outcome: "granted", token: lock.token, place_lost: lock.placeLost });
    tellLoss(step.lock, lock);
  } catch (error) {
    if (error === CANCELLED) {
      say({ step: step.step, outcome: "cancelled" });
      return;
    }
    throw error;
  } finally {
    acquires.delete(step.step);
  }
}

/** @type {Record<string, (step: Step) => object | Promise<object | undefined> | undefined>} */
const STEPS = {
  connect: ({ endpoints, ttl_ms, call_limit_ms, attempt_limit_ms, label }) => {
    client = new Client({
      endpoints,
      ttlMs: ttl_ms,
      callLimitMs: call_limit_ms,
      attemptLimitMs: attempt_limit_ms,
      label,
      log: ({ event, message, node }) => console.error(`${performance.now().toFixed(0)} ${event} ${node ?? ""} ${message}`),
    });
    return { outcome: "connected" };
  },
  acquire: async (step) => {
    const { names, mode, permits, wait_ms, data, keep_data, lock_delay_ms, must_exist } = step;
    await acquired(step, (signal) =>
      connected().acquire(names, {
        shared: mode === "shared",
        ...(mode === "permits" ? { permits } : {}),
        waitMs: wait(wait_ms),
        ...(data === undefined || data === null ? {} : { data }),
        keepData: keep_data ?? false,
        mustExist: must_exist ?? false,
        lockDelayMs: lock_delay_ms ?? 0,
        signal,
      }),
    );
    return undefined;
  },
  cancel: ({ of }) => {
    acquires.get(of)?.abort(CANCELLED);
    return { outcome: "done" };
  },
  release: async ({ lock }) => {
    await lockOf(lock).release();
    return { outcome: "released" };
  },
  remaining: ({ lock }) => {
    const { remainingMs, loss } = lockOf(lock);
    return { outcome: "remaining", remaining_ms: Math.floor(remainingMs), lost: loss?.reason ?? null };
  },
  ensure: async ({ lock, min_left_ms }) => ({
    outcome: "ensured",
    remaining_ms: Math.floor(await lockOf(lock).ensure(min_left_ms)),
  }),
  update: async ({ lock, name, data, keep_data }) => {
    await lockOf(lock).update(data, { name, keep: keep_data ?? false });
    return { outcome: "updated" };
  },
  get: async ({ name }) => {
    const lock = await connected().get(name);
    return { outcome: "lock", holders: lock.holders.map(({ token }) => token), queue: lock.queueLength, data: text(lock.data) };
  },
  "force-release": async ({ name, token, reason }) => {
    const options = token === null || token === undefined ? {} : { token: BigInt(token) };
    return { outcome: "forced", count: (await connected().forceRelease(name, reason, options)).length };
  },
  campaign: async (step) => {
    await acquired(step, async (signal) => {
      const leadership = await connected()
        .election(step.name)
        .campaign(step.value, { waitMs: wait(step.wait_ms), signal });
      return leadership.lock;
    });
    return undefined;
  },
  proclaim: async ({ lock, value }) => {
    await lockOf(lock).update(value);
    return { outcome: "proclaimed" };
  },
  resign: async ({ lock }) => {
    await lockOf(lock).release();
    return { outcome: "released" };
  },
  leader: async ({ name }) => {
    const leader = await connected().election(name).leader();
    return { outcome: "leader", epoch: leader?.epoch ?? null, value: text(leader?.value) };
  },
  observe: (step) => {
    void observe(step);
    return { outcome: "observing" };
  },
  watch: (step) => {
    void watch(step);
    return { outcome: "watching" };
  },
  close: async () => {
    await connected().close();
    return { outcome: "closed" };
  },
};

/** @param {Step} step */
async function observe({ as, name }) {
  for await (const leader of connected().election(name).observe({ signal: ending.signal })) {
    say({ event: "leader", of: as, epoch: leader?.epoch ?? null, value: text(leader?.value) });
  }
}

/** @param {Step} step */
async function watch({ as, prefix }) {
  const watch = connected().watch(prefix, { signal: ending.signal });
  /** @type {string[]} */
  let held = [];
  for (;;) {
    try {
      for await (const message of watch) {
        if (message.kind === "state") {
          held = message.first ? [] : held;
          held.push(...message.locks.filter(({ holderCount }) => holderCount > 0).map(({ name }) => name));
          if (message.last) {
            say({ event: "state", of: as, names: [...held].sort() });
          }
        } else if (message.kind === "changes") {
          for (const { kind, name, token } of message.changes) {
            say({ event: "change", of: as, kind, name, token: token ?? null });
          }
        }
      }
      return;
    } catch (error) {
      console.error(`the watch goes on after: ${error}`);
    }
  }
}

/** @param {unknown} error */
function failed(error) {
  const failure = { outcome: "failed", reason: null, text: error instanceof Error ? error.message : String(error) };
  if (error instanceof NotAcquired) {
    const { name, holder, queueLength } = error.busy;
    return { outcome: "not-acquired", waited: error.waited, name, holder: holder?.token ?? null, queue: queueLength };
  }
  if (error instanceof NotEnsured) {
    return { outcome: "not-ensured", remaining_ms: Math.floor(error.remainingMs) };
  }
  if (error instanceof Refused) {
    return { ...failure, kind: "refused", reason: error.reason };
  }
  if (error instanceof Lost) {
    return { ...failure, kind: "lost", reason: error.reason };
  }
  if (error instanceof NoCluster) {
    return { ...failure, kind: "no-reply" };
  }
  if (error instanceof UnknownOutcome || error instanceof Malformed) {
    return { ...failure, kind: "unknown" };
  }
  if (error instanceof InvalidArgument) {
    return { ...failure, kind: "invalid" };
  }
  throw error;
}

/** @param {Step} step */
async function obey(step) {
  const run = STEPS[step.do];
  if (run === undefined) {
    say({ step: step.step, outcome: "unsupported" });
    return;
  }
  try {
    const outcome = await run(step);
    if (outcome !== undefined) {
      say({ step: step.step, ...outcome });
    }
  } catch (error) {
    say({ step: step.step, ...failed(error) });
  }
}

const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => void obey(JSON.parse(line)));
lines.on("close", async () => {
  ending.abort();
  try {
    await client?.close();
  } catch (error) {
    console.error(`not closed: ${error}`);
  }
});
