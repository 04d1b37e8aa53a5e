import { mkdtempSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";

import { TokenFile } from "../../src/token-file.js";

describe("a token file", () => {
  const path = join(mkdtempSync(join(tmpdir(), "lockkeeper-token-")), "token");
  const times = { monotonic: 100_000, wall: Math.floor(Date.now() / 1_000) * 1_000 };
  const clocks = { monotonicMs: () => times.monotonic, wallMs: () => times.wall };
  const passBy = (ms: number): void => {
    times.monotonic += ms;
    times.wall += ms;
  };
  const write = (text: string): void => {
    writeFileSync(path, text);
    utimesSync(path, times.wall / 1_000, times.wall / 1_000);
  };
  const opened = (): TokenFile => {
    write("first\n");
    return new TokenFile(path, "first", clocks);
  };

  test("is followed, and not looked at with each request", () => {
    const file = opened();
    write("later\n");
    passBy(500);
    expect(file.token).toBe("first");
    passBy(500);
    expect(file.token).toBe("later");
  });

  test("counts once it is whole", () => {
    const file = opened();
    passBy(1_000);
    write("lat");
    expect(file.token).toBe("first");
    passBy(200);
    write("later");
    expect(file.token).toBe("first");
    passBy(200);
    write("later");
    expect(file.token).toBe("later");
  });

  test("that is missing or has no token leaves the last one in use", () => {
    const file = opened();
    for (const unusable of ["", " \n", "two words"]) {
      write(unusable);
      passBy(2_000);
      expect(file.token).toBe("first");
    }
    rmSync(path);
    passBy(2_000);
    expect(file.token).toBe("first");
    write("later");
    passBy(2_000);
    expect(file.token).toBe("later");
  });
});
