import { createServer } from "node:net";
import { describe, expect, inject, onTestFinished, test } from "vitest";

import { Client } from "../../src/index.js";
import { Program } from "../support/programs.js";

const environment = (): Record<string, string> => ({
  LOCKKEEPER_ENDPOINTS: inject("endpoints"),
  LOCKKEEPER_PROFILE: "",
  XDG_CONFIG_HOME: "/nonexistent",
});

describe("a process", () => {
  test.each(["unused", "held", "waiting", "no-cluster"])("ends by itself after its client was closed: %s", async (how) => {
    const program = new Program("exits.mjs", how, environment());
    expect(await program.end(), program.stderr).toBe(0);
    expect(program.lines).toContain("closed");
    expect(program.lines).toContain("resources []");
  });

  test("uses the package by require", async () => {
    const program = new Program("required.cjs", "", environment());
    expect(await program.end(), program.stderr).toBe(0);
    expect(program.lines).toEqual(["token bigint function"]);
  });

  test("that was stopped beyond its TTL never says again that it holds the lock", async () => {
    const name = `stopped/${process.pid}`;
    const program = new Program("holder.mjs", name, environment());
    await program.line("held");
    program.signal("SIGSTOP");

    // Once somebody else has it, the stopped one has lost it.
    await using client = new Client({ endpoints: inject("endpoints") });
    await using lock = await client.acquire(name, { waitMs: 20_000 });
    const granted = Date.now();
    program.signal("SIGCONT");
    await program.line("lost");
    program.child.stdin?.end();
    expect(await program.end(), program.stderr).toBe(0);

    const held = program.lines.filter((line) => line.startsWith("held")).map((line) => Number(line.split(" ")[1]));
    expect(held.length).toBeGreaterThan(0);
    expect(Math.max(...held)).toBeLessThan(granted);
    expect(lock.token).toBeGreaterThan(BigInt((await program.line("token")).split(" ")[1] ?? ""));
  });

  test("has a client in each of its worker threads", async () => {
    const program = new Program("worker.mjs", "", environment());
    expect(await program.end(40_000), program.stderr).toBe(0);
    expect(program.lines[0]).toBe("turns 0,0,0 15 overlaps 0");
    expect(program.lines[1]).toMatch(/^passed on \d+$/);
  });
});

describe("nodes that hang", () => {
  test("are passed over, and a client whose nodes all hang gives up in time", async () => {
    // It accepts connections, and never says a word.
    const sockets = new Set<import("node:net").Socket>();
    const server = createServer((socket) => {
      sockets.add(socket);
      socket.on("error", () => undefined);
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    onTestFinished(() => {
      sockets.forEach((socket) => socket.destroy());
      server.close();
    });
    const address = server.address();
    const hanging = `127.0.0.1:${typeof address === "object" ? address?.port : ""}`;

    // Whichever is asked first.
    for (let turn = 0; turn < 4; turn += 1) {
      await using client = new Client({ endpoints: [hanging, inject("endpoints")], attemptLimitMs: 300 });
      await client.using(`hanging/${process.pid}`, {}, (lock) => {
        expect(lock.token).toBeGreaterThan(0n);
      });
    }

    await using alone = new Client({ endpoints: hanging, attemptLimitMs: 200, callLimitMs: 700 });
    const began = performance.now();
    await expect(alone.get("a")).rejects.toMatchObject({ code: "NO_CLUSTER" });
    expect(performance.now() - began).toBeLessThan(3_000);
    await expect(alone.acquire("a")).rejects.toMatchObject({ code: "UNKNOWN_OUTCOME" });
  });

  test("that are not there are told from requests that may have happened", async () => {
    await using client = new Client({ endpoints: "127.0.0.1:1", callLimitMs: 500 });
    await expect(client.acquire("a")).rejects.toMatchObject({
      code: "NO_CLUSTER",
      message: expect.stringMatching(/ECONNREFUSED.*nothing was changed/) as unknown,
    });
  });
});
