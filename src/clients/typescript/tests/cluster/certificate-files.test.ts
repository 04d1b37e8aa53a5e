import { execFileSync } from "node:child_process";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { env } from "node:process";
import { describe, expect, inject, test } from "vitest";

import { CertificateFiles } from "../../src/certificate-files.js";
import { Client } from "../../src/index.js";

const folder = mkdtempSync(join(tmpdir(), "lockkeeper-certificates-"));

/** Certificates of a cluster that nobody runs, with the clients ann and ops. */
const made = join(folder, "made");
execFileSync(env["LOCKKEEPER_PROGRAM"] ?? "lockkeeper", [
  "certs",
  "init",
  "other",
  "--nodes",
  "127.0.0.1",
  "--clients",
  "ann,ops",
  "--dir",
  made,
]);

const files = { ca: join(folder, "ca.pem"), cert: join(folder, "cert.pem"), key: join(folder, "key.pem") };
const ofClient = (name: string) => ({
  ca: join(made, "ca.pem"),
  cert: join(made, `client-${name}.pem`),
  key: join(made, `client-${name}-key.pem`),
});
const pem = (path: string): string => readFileSync(path, "utf8");

/** Replaces the files as somebody who did it some time ago. */
function replace(from: Partial<typeof files>, ageMs = 60_000, nowMs = Date.now()): void {
  for (const name of ["ca", "cert", "key"] as const) {
    const source = from[name];
    if (source !== undefined) {
      copyFileSync(source, files[name]);
      utimesSync(files[name], (nowMs - ageMs) / 1_000, (nowMs - ageMs) / 1_000);
    }
  }
}

describe("certificate files", () => {
  const times = { monotonic: 100_000, wall: Math.floor(Date.now() / 1_000) * 1_000 };
  const clocks = { monotonicMs: () => times.monotonic, wallMs: () => times.wall };
  const passBy = (ms: number): void => {
    times.monotonic += ms;
    times.wall += ms;
  };
  const opened = (): CertificateFiles => {
    replace(ofClient("ann"), 60_000, times.wall);
    return new CertificateFiles(files, clocks);
  };

  test("are followed, and not looked at with each request", () => {
    const followed = opened();
    const ann = followed.tls;
    expect(ann.cert).toBe(pem(ofClient("ann").cert));
    replace(ofClient("ops"), 60_000, times.wall);
    expect(followed.tls).toBe(ann);
    passBy(2_000);
    expect(followed.tls.cert).toBe(pem(ofClient("ops").cert));
    const ops = followed.tls;
    passBy(2_000);
    expect(followed.tls).toBe(ops);
  });

  test("count once they are whole", () => {
    const followed = opened();
    passBy(2_000);
    replace(ofClient("ops"), 0, times.wall);
    expect(followed.tls.cert).toBe(pem(ofClient("ann").cert));
    passBy(200);
    replace(ofClient("ops"), 0, times.wall);
    expect(followed.tls.cert).toBe(pem(ofClient("ops").cert));
  });

  test("that cannot be used together leave the last ones in use", () => {
    const followed = opened();
    const ann = followed.tls;
    replace({ cert: ofClient("ops").cert }, 60_000, times.wall);
    passBy(2_000);
    expect(followed.tls).toBe(ann);
    for (const unusable of ["", "no certificate"]) {
      writeFileSync(files.cert, unusable);
      passBy(2_000);
      expect(followed.tls).toBe(ann);
    }
    rmSync(files.cert);
    passBy(2_000);
    expect(followed.tls).toBe(ann);
    replace(ofClient("ops"), 60_000, times.wall);
    passBy(2_000);
    expect(followed.tls.cert).toBe(pem(ofClient("ops").cert));
  });
});

describe("a client of certificate files", () => {
  test("connects by what is written into them, and keeps what it holds", async () => {
    const { endpoints, ca, cert, key } = inject("tls");
    replace(ofClient("ann"));
    await using client = new Client({ endpoints, callLimitMs: 1_000, tlsFiles: files });
    await expect(client.get("files")).rejects.toMatchObject({ code: "NO_CLUSTER" });

    replace({ ca, cert, key });
    await expect.poll(() => client.get("files").then((lock) => lock.holders.length), { timeout: 30_000 }).toBe(0);
    await client.using("files", {}, async (lock) => {
      // A line more, which changes nothing but the bytes.
      writeFileSync(files.ca, `${pem(files.ca)}\n`);
      utimesSync(files.ca, 1_000, 1_000);
      const renewed = lock.remainingMs;
      await expect.poll(async () => (await client.get("files")).holders[0]?.token, { timeout: 30_000 }).toBe(lock.token);
      await expect.poll(() => lock.remainingMs > renewed - 500, { timeout: 30_000 }).toBe(true);
      expect(lock.signal.aborted).toBe(false);
    });
  });
});
