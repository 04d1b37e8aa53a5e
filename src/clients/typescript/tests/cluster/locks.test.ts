import { afterAll, beforeEach, describe, expect, inject, test } from "vitest";

import { Client, type ClientOptions, type Lock, Lost, NotAcquired, NotEnsured, Refused } from "../../src/index.js";

const clients: Client[] = [];

function newClient(options: Partial<ClientOptions> = {}): Client {
  const client = new Client({ endpoints: inject("endpoints"), ...options });
  clients.push(client);
  return client;
}

const client = newClient();
const other = newClient();
let name = "";
let count = 0;

beforeEach(() => {
  count += 1;
  name = `locks/${process.pid}/${count}`;
});

afterAll(async () => {
  await Promise.all(clients.map((client) => client.close()));
});

/** Waits until it is so. */
async function until(what: string, isSo: () => Promise<boolean>): Promise<void> {
  const by = Date.now() + 20_000;
  while (!(await isSo())) {
    if (Date.now() > by) {
      throw new Error(`not within 20 s: ${what}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const queued = (length: number) => until(`${length} wait`, async () => (await other.get(name)).queueLength === length);
const free = () => until("it is free", async () => isUnused(await other.get(name)));
const isUnused = ({ holderCount, queueLength }: { holderCount: number; queueLength: number }): boolean => holderCount + queueLength === 0;

describe("using", () => {
  test("holds the lock while the body runs, and returns what it returned", async () => {
    let seen: bigint | undefined;
    const result = await client.using(name, {}, async (lock) => {
      seen = lock.token;
      expect((await other.get(name)).holders.map(({ token }) => token)).toEqual([lock.token]);
      expect(lock.remainingMs).toBeGreaterThan(0);
      return 42;
    });
    expect(result).toBe(42);
    expect(seen).toBeGreaterThan(0n);
    expect(isUnused(await other.get(name))).toBe(true);
  });

  test("releases after an exception of the body, which it passes on", async () => {
    const fault = new Error("of the body");
    await expect(client.using(name, {}, () => Promise.reject(fault))).rejects.toBe(fault);
    await expect(
      client.using(name, {}, () => {
        throw fault;
      }),
    ).rejects.toBe(fault);
    expect(isUnused(await other.get(name))).toBe(true);
  });

  test("may release in the body", async () => {
    await client.using(name, {}, (lock) => lock.release());
    expect(isUnused(await other.get(name))).toBe(true);
  });

  test("fails with the loss where the lock was lost before the body returned", async () => {
    const work = client.using(name, {}, async (lock) => {
      const lost = new Promise((resolve) => {
        lock.signal.addEventListener("abort", resolve);
      });
      await other.forceRelease(name, "maintenance");
      await lost;
      expect(lock.loss).toMatchObject({ reason: "revoked", operatorReason: "maintenance" });
      // The time for stopping.
      expect(lock.remainingMs).toBeGreaterThan(0);
      return "done";
    });
    await expect(work).rejects.toMatchObject({
      name: "Lost",
      reason: "revoked",
      message: expect.stringContaining("maintenance") as unknown,
    });
    await free();
  });
});

describe("an acquire", () => {
  test("of `await using` ends with its scope", async () => {
    {
      await using lock = await client.acquire(name);
      expect(lock.names).toEqual([name]);
    }
    expect(isUnused(await other.get(name))).toBe(true);
  });

  test("of a lock that is held fails at once, in time, or waits", async () => {
    const held = await client.acquire(name, { data: "x" });
    expect(await other.tryAcquire(name)).toBeNull();
    const failure: unknown = await other.acquire(name, { waitMs: 50 }).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(NotAcquired);
    expect(failure).toMatchObject({ waited: true, busy: { name, holder: { token: held.token } } });

    const waiting = other.acquire(name);
    await queued(1);
    await held.release();
    const next = await waiting;
    expect(next.token).toBeGreaterThan(held.token);
    await next.release();
  });

  test("shares a lock, and keeps it from those that do not", async () => {
    const readers = await Promise.all([client.acquire(name, { shared: true }), other.acquire(name, { shared: true })]);
    expect(await client.tryAcquire(name)).toBeNull();
    await Promise.all(readers.map((reader) => reader.release()));
  });

  test("takes one of so many permits", async () => {
    const permits = [await client.acquire(name, { permits: 2 }), await client.acquire(name, { permits: 2 })];
    expect(await other.tryAcquire(name, { permits: 2 })).toBeNull();
    await expect(other.tryAcquire(name, { permits: 3 })).rejects.toMatchObject({ reason: "MODE_MISMATCH", details: { limit: "2" } });
    await expect(other.tryAcquire(name)).rejects.toBeInstanceOf(Refused);
    expect((await other.get(name)).mode).toEqual({ permits: 2 });
    await Promise.all(permits.map((permit) => permit.release()));
  });

  test("takes several locks, all or nothing", async () => {
    const both = [`${name}/b`, `${name}/a`];
    const held = await client.acquire(both);
    expect([...held.names].sort()).toEqual([...both].sort());
    expect(await other.tryAcquire([`${name}/c`, `${name}/a`])).toBeNull();
    expect(isUnused(await other.get(`${name}/c`))).toBe(true);
    await expect(held.update("x")).rejects.toThrow("say which one");
    await held.update("x", { name: `${name}/a` });
    await held.release();
  });

  test("keeps data, and acquires only what exists", async () => {
    await expect(client.acquire(name, { mustExist: true })).rejects.toMatchObject({ reason: "LOCK_UNKNOWN" });
    await client.using(name, { data: "é", keepData: true }, () => undefined);
    expect(Buffer.from((await other.get(name)).data ?? []).toString()).toBe("é");
    await client.using(name, { mustExist: true }, (lock) => lock.update(null));
    expect((await other.get(name)).data).toBeUndefined();
  });

  test("of odd names works as of any other", async () => {
    for (const odd of [" ", "a\nb", "🔒", "../..", "ü".repeat(256), `${name}?#%00`]) {
      const lock = await client.acquire(odd);
      expect((await other.get(odd)).holders[0]?.token).toBe(lock.token);
      await lock.release();
    }
    await expect(client.acquire("etcd/mine")).rejects.toBeInstanceOf(Refused);
  });

  test("is told why it is refused", async () => {
    await expect(client.acquire("dynamodb/x")).rejects.toMatchObject({ code: "REFUSED", reason: "INVALID_ARGUMENT" });
  });
});

describe("giving up", () => {
  test("before anything is sent sends nothing", async () => {
    const lazy = newClient();
    await expect(lazy.acquire(name, { signal: AbortSignal.abort("no") })).rejects.toBe("no");
    expect(lazy.sessionId).toBeUndefined();
  });

  test("while it waits leaves no wait behind", async () => {
    const held = await client.acquire(name);
    const controller = new AbortController();
    const waiting = other.acquire(name, { signal: controller.signal });
    await queued(1);
    const reason = new Error("enough");
    controller.abort(reason);
    await expect(waiting).rejects.toBe(reason);
    await queued(0);
    await held.release();
    expect(isUnused(await other.get(name))).toBe(true);
  });

  test("at any moment leaves no grant behind", async () => {
    const outcomes = { granted: 0, aborted: 0 };
    const turn = async (number: number): Promise<void> => {
      const controller = new AbortController();
      const timer = setTimeout(() => {
        controller.abort("enough");
      }, number % 25);
      try {
        const lock = await client.acquire(`${name}/${number % 7}`, { signal: controller.signal });
        outcomes.granted += 1;
        await lock.release();
      } catch (error) {
        expect(error).toBe("enough");
        outcomes.aborted += 1;
      } finally {
        clearTimeout(timer);
      }
    };
    await Promise.all(Array.from({ length: 300 }, (_, number) => turn(number)));
    expect(outcomes.aborted).toBeGreaterThan(0);

    await until("nothing is left", async () => {
      const left: string[] = [];
      for await (const lock of other.list(`${name}/`)) {
        left.push(lock.name);
      }
      return left.length === 0;
    });
  });

  test("while the session is opened does not disturb the others", async () => {
    const fresh = newClient();
    const controller = new AbortController();
    const first = fresh.acquire(`${name}/a`, { signal: controller.signal });
    const second = fresh.acquire(`${name}/b`);
    controller.abort("enough");
    await expect(first).rejects.toBe("enough");
    await (await second).release();
    expect(isUnused(await other.get(`${name}/a`))).toBe(true);
  });
});

describe("a thousand acquires at once", () => {
  test("of one lock are served one after the other, in one session", async () => {
    const fresh = newClient({ ttlMs: 30_000, callLimitMs: 60_000 });
    let holders = 0;
    const tokens: bigint[] = [];
    await Promise.all(
      Array.from({ length: 1_000 }, () =>
        fresh.using(name, {}, (lock) => {
          holders += 1;
          expect(holders).toBe(1);
          tokens.push(lock.token);
          holders -= 1;
        }),
      ),
    );
    expect(tokens).toHaveLength(1_000);
    expect(new Set(tokens).size).toBe(1_000);
    await free();
  }, 120_000);

  test("of a thousand locks are all held together", async () => {
    const fresh = newClient({ ttlMs: 30_000 });
    const locks = await Promise.all(Array.from({ length: 1_000 }, (_, number) => fresh.acquire(`${name}/${number}`)));
    expect(new Set(locks.map(({ token }) => token)).size).toBe(1_000);
    await fresh.close();
    expect(locks.every((lock) => lock.signal.aborted && lock.remainingMs === 0)).toBe(true);
    await until("all are free", async () => {
      let left = 0;
      for await (const lock of other.list(`${name}/`)) {
        left += lock.holderCount;
      }
      return left === 0;
    });
  }, 120_000);
});

describe("a lock", () => {
  test("is ensured without a request, by a renewal, or not", async () => {
    const lock = await client.acquire(name);
    expect(await lock.ensure(1_000)).toBeGreaterThan(1_000);
    expect(await lock.ensure(9_000)).toBeGreaterThan(9_000);
    await expect(lock.ensure(11_000)).rejects.toBeInstanceOf(NotEnsured);
    await lock.release();
    await expect(lock.ensure(1)).rejects.toMatchObject({ reason: "released" });
  });

  test("counts as released from the call on, and a second release has the outcome of the first", async () => {
    const lock = await client.acquire(name);
    const { signal } = lock;
    const released = lock.release();
    expect([signal.aborted, lock.remainingMs, lock.loss?.reason]).toEqual([true, 0, "released"]);
    await Promise.all([released, lock.release()]);
    await lock.release();
  });

  test("is seen to be lost on the first line after the event loop was blocked past the deadline", async () => {
    const blocked = newClient({ ttlMs: 1_000 });
    const lock = await blocked.acquire(name);
    const { signal } = lock;
    let isTold = false;
    signal.addEventListener("abort", () => {
      isTold = true;
    });
    const real = new AbortController();
    expect(AbortSignal.any([signal, real.signal]).aborted).toBe(false);

    const end = Date.now() + 1_100;
    while (Date.now() < end) {
      // Blocked.
    }
    // Not a single callback ran in between, and the signal was taken before.
    expect(signal.aborted).toBe(true);
    expect(isTold).toBe(true);
    expect(signal.reason).toBeInstanceOf(Lost);
    expect(() => {
      signal.throwIfAborted();
    }).toThrow(Lost);
    expect([lock.remainingMs, lock.loss?.reason]).toEqual([0, "out-of-contact"]);
    await expect(lock.release()).rejects.toMatchObject({ reason: "out-of-contact" });

    // The next acquire opens another session.
    const next = await blocked.acquire(name);
    expect(next.token).toBeGreaterThan(lock.token);
    await next.release();
  });

  test("of a session that lives is kept over many deadlines", async () => {
    const brief = newClient({ ttlMs: 1_500 });
    const lock = await brief.acquire(name);
    await new Promise((resolve) => setTimeout(resolve, 4_000));
    expect(lock.loss).toBeUndefined();
    expect((await other.check(name, lock.token)).held).toBe(true);
    await lock.release();
  });

  test("stays a signal that the platform takes", async () => {
    const lock = await client.acquire(name);
    const answer = fetch("http://127.0.0.1:9/", { signal: lock.signal }).catch((error: unknown) => error);
    await lock.release();
    await expect(answer).resolves.toBeInstanceOf(Error);
    await expect(fetch("http://127.0.0.1:9/", { signal: lock.signal })).rejects.toBeInstanceOf(Lost);
  });
});

describe("closing", () => {
  test("while acquires wait rejects them and leaves nothing", async () => {
    const held = await client.acquire(name);
    const closing = newClient();
    const waiting = Array.from({ length: 5 }, () => closing.acquire(name));
    const refused = Promise.all(waiting.map((wait) => expect(wait).rejects.toMatchObject({ reason: "closed" })));
    await queued(5);
    await closing.close();
    await refused;
    await queued(0);
    await held.release();
    await expect(closing.acquire(name)).rejects.toMatchObject({ reason: "closed" });
    await closing.close();
  });

  test("while the session is opened leaves no session", async () => {
    const closing = newClient({ label: `closing ${name}` });
    const refused = expect(closing.acquire(name)).rejects.toMatchObject({ reason: "closed" });
    await closing.close();
    await refused;
    expect(isUnused(await other.get(name))).toBe(true);
  });
});

describe("operators and readers", () => {
  test("see a lock, its holder and its queue", async () => {
    const label = `a label ${count}`;
    const labelled = newClient({ label });
    const held: Lock = await labelled.acquire(name, { data: new Uint8Array([1, 2, 3]) });
    const controller = new AbortController();
    const waiting = expect(client.acquire(name, { waitMs: 60_000, signal: controller.signal })).rejects.toBeDefined();
    await queued(1);

    const lock = await other.get(name, { stale: true });
    expect(lock).toMatchObject({ name, kind: "lock", mode: "exclusive", holderCount: 1, queueLength: 1, keepData: false });
    expect(lock.holders[0]).toMatchObject({ token: held.token, label, sessionId: labelled.sessionId });
    expect([...(lock.data ?? [])]).toEqual([1, 2, 3]);
    expect(lock.waiters[0]?.remainingMs).toBeGreaterThan(0);
    expect(await other.check(name, held.token)).toMatchObject({ held: true, holder: { label } });
    expect(await other.check(name, held.token + 1n)).toMatchObject({ held: false, holder: undefined });

    controller.abort();
    await waiting;
    await queued(0);
    const forced = await other.forceRelease(name, "gone", { now: true, token: held.token });
    expect(forced).toMatchObject([{ token: held.token, label, remainingMs: 0 }]);
    expect(await other.forceRelease(name, "gone")).toEqual([]);
    await until("its holder hears of it", () => Promise.resolve(held.loss !== undefined));
    await expect(held.release()).rejects.toMatchObject({ reason: "revoked", operatorReason: "gone" });
  });

  test("list all pages", async () => {
    const fresh = newClient({ ttlMs: 30_000 });
    const names = Array.from({ length: 1_200 }, (_, number) => `${name}/${String(number).padStart(4, "0")}`);
    for (let from = 0; from < names.length; from += 60) {
      await fresh.acquire(names.slice(from, from + 60));
    }
    const seen: string[] = [];
    for await (const lock of other.list(`${name}/`)) {
      seen.push(lock.name);
    }
    expect(seen).toEqual(names);
    await fresh.close();
  }, 120_000);

  test("watch the state and every change, and stop", async () => {
    const held = await client.acquire(`${name}/a`);
    const controller = new AbortController();
    const watch = other.watch(`${name}/`, { signal: controller.signal });
    const seen: string[] = [];
    for await (const message of watch) {
      if (message.kind === "state") {
        expect(message.locks.map((lock) => lock.name)).toEqual([`${name}/a`]);
        void held.release();
      } else if (message.kind === "changes") {
        seen.push(...message.changes.map(({ kind, token }) => `${kind} ${token}`));
        break;
      }
    }
    expect(seen).toEqual([`released ${held.token}`]);
    expect(watch.index).toBeGreaterThan(0n);

    // Goes on where it stopped, in another watch too.
    const next = await client.acquire(`${name}/b`);
    const later = other.watch(`${name}/`, { after: watch.index });
    const message = await later.next();
    expect(message.value).toMatchObject({ kind: "changes", changes: [{ kind: "granted", name: `${name}/b` }] });
    await later.return();
    await next.release();

    controller.abort();
    expect(await watch.next()).toEqual({ done: true, value: undefined });
  });
});

describe("an election", () => {
  test("has one leader, which observers see with its value", async () => {
    const election = other.election(name);
    const first = await client.election(name).campaign("10.0.0.7:9000");
    expect(await election.tryCampaign("10.0.0.8:9000")).toBeNull();
    expect(await election.leader()).toMatchObject({ epoch: first.epoch });

    const seen: string[] = [];
    const next = election.campaign("10.0.0.8:9000");
    await queued(1);
    for await (const leader of client.election(name).observe()) {
      seen.push(`${leader?.epoch} ${Buffer.from(leader?.value ?? []).toString()}`);
      if (seen.length === 1) {
        await first.proclaim("10.0.0.7:9001");
      } else if (seen.length === 2) {
        await first.resign();
      } else if (leader !== null) {
        break;
      }
    }
    const second = await next;
    const third = `${second.epoch} 10.0.0.8:9000`;
    expect([seen[0], seen[1], seen.at(-1)]).toEqual([`${first.epoch} 10.0.0.7:9000`, `${first.epoch} 10.0.0.7:9001`, third]);
    expect([first.signal.aborted, first.loss?.reason]).toEqual([true, "released"]);
    expect(second.remainingMs).toBeGreaterThan(0);
    await second.resign();
    expect(await election.leader()).toBeNull();
  });
});
