import { describe, expect, test } from "vitest";

import { LockState } from "../../src/election.js";
import type { Change, Holder, LockInfo, LockMode, WatchMessage } from "../../src/index.js";

const SESSION = "0".repeat(32);
const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

function held(name: string, token: bigint, value: string, mode: LockMode = "exclusive"): LockInfo {
  const holder: Holder = { token, sessionId: SESSION, label: "", mode, since: new Date(0), remainingMs: 0, revokedReason: undefined };
  return {
    name,
    kind: "lock",
    mode,
    holders: [holder],
    holderCount: 1,
    waiters: [],
    queueLength: 0,
    data: bytes(value),
    keepData: false,
    delayRemainingMs: undefined,
    resized: false,
  };
}

function change(name: string, kind: Change["kind"], token: bigint | undefined, data?: string, mode: LockMode = "exclusive"): Change {
  const common = { label: undefined, ticket: undefined, reason: undefined, by: undefined, lockKind: "lock" as const };
  return { name, kind, token, sessionId: SESSION, data: data === undefined ? undefined : bytes(data), mode, ...common };
}

const state = (first: boolean, ...locks: LockInfo[]): WatchMessage => ({ kind: "state", index: 1n, locks, first, last: false });
const changes = (...changes: Change[]): WatchMessage => ({ kind: "changes", index: 2n, changes, more: false });

/** Epoch and value of the leader that is told. */
function told(state: LockState, message: WatchMessage): [bigint, string] | null | undefined {
  const leader = state.hear(message);
  return leader === null || leader === undefined ? leader : [leader.epoch, new TextDecoder().decode(leader.value)];
}

describe("an observer", () => {
  test("sees a new leader with its value and never with the one before", () => {
    const jobs = new LockState("jobs");
    expect(told(jobs, state(true, held("jobs", 1n, "a")))).toEqual([1n, "a"]);
    const handover = [change("jobs", "lost", 1n), change("jobs", "granted", 2n), change("jobs", "data", undefined, "b")];
    expect(told(jobs, changes(...handover))).toEqual([2n, "b"]);
    expect(told(jobs, changes(change("jobs", "data", undefined, "c")))).toEqual([2n, "c"]);
    expect(told(jobs, changes(change("jobs", "released", 2n)))).toBeNull();
  });

  test("waits for the rest of an entry that comes in parts", () => {
    const jobs = new LockState("jobs");
    told(jobs, state(true, held("jobs", 1n, "a")));
    const part: WatchMessage = {
      kind: "changes",
      index: 2n,
      changes: [change("jobs", "lost", 1n), change("jobs", "granted", 2n)],
      more: true,
    };
    expect(told(jobs, part)).toBeUndefined();
    expect(told(jobs, changes(change("jobs", "data", undefined, "b")))).toEqual([2n, "b"]);
  });

  test("leaves out other names under the prefix", () => {
    const jobs = new LockState("jobs");
    expect(told(jobs, state(true, held("jobs/a", 7n, "other")))).toBeNull();
    expect(told(jobs, state(false, held("jobs/b", 8n, "other")))).toBeUndefined();
    expect(told(jobs, changes(change("jobs/a", "granted", 9n)))).toBeUndefined();
  });

  test("never goes back to an earlier epoch", () => {
    const jobs = new LockState("jobs");
    told(jobs, state(true, held("jobs", 5n, "e")));
    expect(told(jobs, state(true, held("jobs", 3n, "c")))).toBeUndefined();
    const handover = [change("jobs", "lost", 3n), change("jobs", "granted", 5n), change("jobs", "data", undefined, "e")];
    expect(told(jobs, changes(...handover))).toEqual([5n, "e"]);
  });

  test("takes one of several for no leader", () => {
    const jobs = new LockState("jobs");
    expect(told(jobs, state(true, held("jobs", 1n, "a", "shared")))).toBeNull();
    expect(told(jobs, changes(change("jobs", "granted", 2n, undefined, { permits: 3 })))).toBeNull();
  });
});
