import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, test, vi } from "vitest";

import { checkAcquire } from "../../src/acquire.js";
import { Client, InvalidArgument, NotAcquired, connect } from "../../src/index.js";
import { cutLabel } from "../../src/limits.js";

const said = (act: () => unknown): string => {
  try {
    act();
  } catch (error) {
    expect(error).toBeInstanceOf(InvalidArgument);
    return (error as Error).message;
  }
  throw new Error("nothing was refused");
};

describe("names", () => {
  const acquire = (names: string | string[]) => () => checkAcquire(names, {}, 0);

  test("may be any text of 1 to 512 bytes", () => {
    for (const name of [" ", "ü".repeat(256), "🔒", "../..", "a\nb", "\u200b"]) {
      expect(acquire(name)().locks[0]?.name).toBe(name);
    }
  });

  test("that the cluster would refuse, or take for another one, are refused", () => {
    expect(said(acquire(""))).toContain("empty");
    expect(said(acquire("a\0b"))).toContain("NUL");
    expect(said(acquire("\ud800"))).toContain("surrogate");
    expect(said(acquire("ü".repeat(257)))).toContain("514 bytes, more than 512");
    expect(said(acquire([]))).toContain("1 to 64");
    expect(said(acquire(Array.from({ length: 65 }, String)))).toContain("1 to 64");
    expect(said(acquire(["a", "b", "a"]))).toContain("twice");
    expect(said(() => checkAcquire(7 as unknown as string, {}, 0))).toBeTruthy();
  });
});

describe("options", () => {
  test("out of range are refused, with the range", () => {
    const refused = (options: object) => said(() => checkAcquire("a", options, 0));
    expect(refused({ permits: 0 })).toContain("from 1 to 1000000");
    expect(refused({ permits: 1.5 })).toContain("whole number");
    expect(refused({ shared: true, permits: 3 })).toContain("exclude each other");
    expect(refused({ waitMs: -1 })).toContain("from 0");
    expect(refused({ waitMs: NaN })).toContain("from 0");
    expect(refused({ waitMs: 604_800_001 })).toContain("604800000 ms");
    expect(refused({ lockDelayMs: 3_600_001 })).toContain("3600000 ms");
    expect(refused({ data: "x".repeat(16_385) })).toContain("more than 16384");
  });

  test("a wait of a part of a millisecond is not turned into none", () => {
    expect(checkAcquire("a", { waitMs: 0.1 }, 0).waitMs).toBe(1);
    expect(checkAcquire("a", { waitMs: Infinity }, 0).waitMs).toBe(Infinity);
  });

  test("of a client", () => {
    const client = (options: object) => () => new Client({ endpoints: "a:1", ...options });
    expect(client({ endpoints: " a:1, http://b:2/,a:1," })().endpoints).toEqual(["a:1", "b:2"]);
    expect(client({ endpoints: ["[::1]:7101"] })().endpoints).toEqual(["[::1]:7101"]);
    for (const endpoints of ["a", "a:port", ":1", "a:1,ftp://b:2", "a:65536", "a b:1", "me@a:1"]) {
      expect(said(client({ endpoints }))).toContain("host:port");
    }
    expect(said(client({ endpoints: "" }))).toContain("no endpoint");
    expect(said(client({ endpoints: "https://a:1" }))).toContain("asks for TLS");
    expect(said(client({ ttlMs: 99 }))).toContain("100 to 86400000");
    expect(said(client({ label: "ü".repeat(129) }))).toContain("more than 256");
    expect(said(client({ bearerToken: "two words" }))).not.toContain("two words");
    expect(said(client({ tls: { ca: "no pem" } }))).toContain("tls.ca has no certificate");
    expect(said(client({ tls: { ca: "", cert: "x" } }))).toContain("belong together");
  });

  test("a usual label fits, however long the name of the program", () => {
    expect(Buffer.byteLength(cutLabel("ö".repeat(500)))).toBeLessThanOrEqual(256);
    expect(cutLabel("host 1 \ud800")).toBe("host 1 \ufffd");
  });
});

describe("connect", () => {
  afterEach(() => {
    vi.unstubAllEnvs();
  });

  const folder = mkdtempSync(join(tmpdir(), "lockkeeper-client-"));
  const profile = (text: string): string => {
    const file = join(folder, "profile.toml");
    writeFileSync(file, text);
    vi.stubEnv("LOCKKEEPER_PROFILE", file);
    return file;
  };
  const clean = (): void => {
    for (const name of ["ENDPOINTS", "CA", "CERT", "KEY", "BEARER_TOKEN", "BEARER_TOKEN_FILE", "PROFILE"]) {
      vi.stubEnv(`LOCKKEEPER_${name}`, undefined);
    }
    vi.stubEnv("XDG_CONFIG_HOME", join(folder, "empty"));
  };

  test("takes options, then the environment, then the profile, then this machine", () => {
    clean();
    expect(connect().endpoints).toEqual(["127.0.0.1:7101", "127.0.0.1:7102", "127.0.0.1:7103"]);
    profile('endpoints = "profile:1"');
    expect(connect().endpoints).toEqual(["profile:1"]);
    vi.stubEnv("LOCKKEEPER_ENDPOINTS", "http://environment:1");
    expect(connect().endpoints).toEqual(["environment:1"]);
    expect(connect({ endpoints: "option:1" }).endpoints).toEqual(["option:1"]);
  });

  test("says where a wrong setting comes from", () => {
    clean();
    vi.stubEnv("LOCKKEEPER_ENDPOINTS", "nowhere");
    expect(said(() => connect())).toContain("(from LOCKKEEPER_ENDPOINTS)");
    const file = profile('endpoint = "a:1"');
    expect(said(() => connect())).toContain(`the profile ${file} cannot be used: it has an unknown key "endpoint"`);
    profile("endpoints = ");
    expect(said(() => connect())).toContain("cannot be used");
    vi.stubEnv("LOCKKEEPER_PROFILE", join(folder, "missing.toml"));
    expect(said(() => connect())).toContain("ENOENT");
  });

  test("reads what the profile names, relative to it", () => {
    clean();
    profile('endpoints = "a:1"\nbearer_token_file = "token"');
    expect(said(() => connect())).toContain(join(folder, "token"));
    writeFileSync(join(folder, "token"), "s3cret\n");
    connect();
    writeFileSync(join(folder, "token"), "two words");
    expect(said(() => connect())).toContain("the bearer token is empty, or has a blank");
    expect(said(() => connect({ bearerTokenFile: join(folder, "none") }))).toContain(`cannot read ${join(folder, "none")}`);
    profile('endpoints = "a:1"\nca = "ca.pem"');
    expect(said(() => connect())).toContain(join(folder, "ca.pem"));
    profile('endpoints = "a:1"\ncert = "c.pem"');
    expect(said(() => connect())).toContain("needs its key");
    profile('endpoints = "a:1"\ncert = "c.pem"\nkey = "k.pem"');
    expect(said(() => connect())).toContain("needs LOCKKEEPER_CA");
  });
});

test("an acquire that failed names the obstacle", () => {
  const busy = { name: "jobs", holder: undefined, queueLength: 2, delayRemainingMs: undefined };
  expect(new NotAcquired(false, false, busy).message).toBe('lock "jobs" was not acquired: others wait for it, 2 in the queue');
  const delayed = { ...busy, queueLength: 0, delayRemainingMs: 7 };
  expect(new NotAcquired(true, false, delayed).message).toBe(
    'lock "jobs" was not acquired in time: closed for another 7 ms by its lock-delay',
  );
});
