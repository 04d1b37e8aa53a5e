import { describe, expect, test } from "vitest";

import { Backoff } from "../../src/backoff.js";
import { Progress } from "../../src/call.js";
import { Requests } from "../../src/requests.js";

const message = (id: bigint, lowest: bigint, kept: bigint[] = []) => ({ id, lowest, kept });

describe("request ids", () => {
  test("rise, and the lowest is the oldest that is still wanted", () => {
    const requests = new Requests();
    const first = requests.begin();
    const second = requests.begin();
    expect(second.message()).toEqual(message(2n, 1n));
    first.end();
    expect(second.message()).toEqual(message(2n, 2n));
    second.end();
    expect(requests.begin().message()).toEqual(message(3n, 3n));
  });

  test("that lag far behind are listed, and the lowest goes on", () => {
    const requests = new Requests();
    const first = requests.begin();
    const second = requests.begin();
    for (let id = 3; id <= 65; id += 1) {
      requests.begin().end();
    }
    expect(second.message()).toEqual(message(2n, 1n));
    const newest = requests.begin();
    expect(newest.message()).toEqual(message(66n, 2n, [1n]));
    expect(first.message()).toEqual(message(1n, 2n, [1n]));
    newest.end();
    requests.begin().end();
    expect(second.message()).toEqual(message(2n, 68n, [1n, 2n]));
  });

  test("that are outstanding are never left out, however many", () => {
    const requests = new Requests();
    const all = Array.from({ length: 1_124 }, () => requests.begin());
    const { lowest, kept } = requests.begin().message();
    expect(kept).toHaveLength(1_024);
    expect(all.every(({ id }) => BigInt(id) >= lowest || kept.includes(BigInt(id)))).toBe(true);
  });
});

describe("pauses", () => {
  test("double up to a second, less up to half", () => {
    const backoff = new Backoff();
    expect(Array.from({ length: 8 }, () => backoff.next(1))).toEqual([20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    expect(new Backoff().next(0)).toBe(10);
  });

  const down = { kind: "again", isUnknown: true, nodeAnswers: false, why: "" } as const;

  test("come only once all nodes that are down had their turn", () => {
    const progress = new Progress({ reads: false });
    const fail = (): number => {
      progress.note(down, false);
      return progress.pause(3, 1);
    };
    expect([fail(), fail(), fail()]).toEqual([0, 0, 20]);
    expect([fail(), fail(), fail()]).toEqual([0, 0, 40]);
  });

  test("are left out after the name of a leader, but not in circles", () => {
    const progress = new Progress({ reads: false });
    const misled = (): number => {
      progress.note({ ...down, isUnknown: false, nodeAnswers: true }, true);
      return progress.pause(3, 1);
    };
    expect([misled(), misled()]).toEqual([0, 20]);
  });

  test("one attempt of unknown outcome makes the whole unknown, unless it reads", () => {
    const progress = new Progress({ reads: false });
    expect(progress.giveUp("").code).toBe("NO_CLUSTER");
    progress.note(down, false);
    progress.note({ ...down, isUnknown: false }, false);
    expect(progress.giveUp("").code).toBe("UNKNOWN_OUTCOME");

    const reads = new Progress({ reads: true });
    reads.note(down, false);
    expect(reads.giveUp("").code).toBe("NO_CLUSTER");
  });
});
