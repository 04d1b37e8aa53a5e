import { afterEach, describe, expect, test, vi } from "vitest";

import { Lease, type Revocation, deadlineOf } from "../../src/lease.js";

/** A clock that is moved by hand. */
class Hand {
  at = 0;

  now(): number {
    return this.at;
  }
}

function lease(ttlMs = 10_000) {
  const clock = new Hand();
  const listener = { revoked: vi.fn(), taken: vi.fn() };
  const lease = new Lease(clock, listener, 0, ttlMs);
  // No timer is left behind.
  onEnd.push(() => {
    lease.end({ reason: "closed" });
  });
  return { clock, lease, listener };
}

const onEnd: (() => void)[] = [];

afterEach(() => {
  onEnd.splice(0).forEach((end) => {
    end();
  });
});

const renewed = (sent: number) => ({ sent, ttlMs: 10_000, revoked: [], moreRevoked: false });
const revoked = (token: bigint, reason: string, remainingMs: number): Revocation => ({ token, reason, remainingMs });

describe("a lease", () => {
  test("has a margin of a percent, and of ten milliseconds at least", () => {
    expect([deadlineOf(5, 100), deadlineOf(0, 1_000), deadlineOf(0, 60_000)]).toEqual([95, 990, 59_400]);
  });

  test("counts from the sending, and its deadline passes without anybody noticing", () => {
    const { clock, lease: it } = lease();
    clock.at = 4_000;
    expect(it.remainingMs()).toBe(5_900);
    it.renewed(renewed(3_000));
    expect(it.remainingMs()).toBe(8_900);
    clock.at = 12_900;
    expect(it.remainingMs()).toBe(0);
    expect(it.loss()).toEqual({ reason: "out-of-contact" });
  });

  test("is over once its deadline was seen to have passed, whatever arrives later", () => {
    const { clock, lease: it } = lease();
    clock.at = 9_900;
    expect(it.loss()?.reason).toBe("out-of-contact");
    it.renewed(renewed(9_000));
    clock.at = 9_950;
    expect(it.loss()?.reason).toBe("out-of-contact");
    expect(it.remainingMs()).toBe(0);
  });

  test("is put off by an answer that arrived before anybody looked", () => {
    const { clock, lease: it } = lease();
    clock.at = 12_000;
    it.renewed(renewed(3_000));
    expect(it.remainingMs()).toBe(900);
  });

  test("loses nothing by an answer that was overtaken", () => {
    const { lease: it } = lease();
    it.renewed(renewed(3_000));
    it.renewed(renewed(2_000));
    expect(it.remainingMs()).toBe(12_900);
  });

  test("does not extend a grant that is revoked, but the others", () => {
    const { lease: it, listener } = lease();
    it.revoke(revoked(7n, "stuck", 5_000));
    it.renewed(renewed(3_000));
    expect([it.remainingMs(7n), it.remainingMs(8n)]).toEqual([5_000, 12_900]);
    expect(it.loss(7n)).toEqual({ reason: "revoked", operatorReason: "stuck" });
    expect(it.loss(8n)).toBeUndefined();
    expect(listener.revoked).toHaveBeenCalledOnce();
  });

  test("takes a revocation in the answer to a renewal before the extension, counted from the sending", () => {
    const { clock, lease: it } = lease();
    clock.at = 4_000;
    it.renewed({ ...renewed(3_000), revoked: [revoked(7n, "stuck", 60_000), revoked(8n, "stuck", 1_500)] });
    expect([it.remainingMs(7n), it.remainingMs(8n), it.remainingMs(9n)]).toEqual([5_900, 500, 8_900]);
  });

  test("gives no time by an answer that cannot name all", () => {
    const { lease: it } = lease();
    it.renewed({ ...renewed(3_000), revoked: [revoked(7n, "stuck", 0)], moreRevoked: true });
    expect(it.remainingMs()).toBe(9_900);
  });

  test("tells once what is over by force, and what was released no more", () => {
    const { lease: it, listener } = lease();
    it.revoke(revoked(7n, "stuck", 5_000));
    expect(listener.taken).not.toHaveBeenCalled();
    it.revoke(revoked(7n, "stuck", 0));
    it.revoke(revoked(7n, "stuck", 0));
    expect(listener.taken).toHaveBeenCalledExactlyOnceWith(7n);
    it.forget(7n);
    expect(it.loss(7n)).toBeUndefined();
  });

  test("keeps its first reason", () => {
    const { lease: it } = lease();
    it.end({ reason: "expired" });
    it.end({ reason: "closed" });
    expect(it.loss()?.reason).toBe("expired");
  });

  test("ends by its own timer, after the deadline was put off", async () => {
    const clock = { now: () => performance.now() };
    const began = clock.now();
    const it = new Lease(clock, { revoked: vi.fn(), taken: vi.fn() }, began, 150);
    it.renewed({ ...renewed(began + 100), ttlMs: 200 });
    const ended = await new Promise<number>((resolve) =>
      it.ended.on(() => {
        resolve(clock.now());
      }),
    );
    expect(ended - began).toBeGreaterThanOrEqual(290);
  });
});
