/** Two clusters of one node for the tests that need one, the second with TLS: `lockkeeper dev`, which `LOCKKEEPER_PROGRAM` names. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { createInterface } from "node:readline";

import type { TestProject } from "vitest/node";

declare module "vitest" {
  export interface ProvidedContext {
    endpoints: string;
    tls: { endpoints: string; ca: string; cert: string; key: string };
  }
}

interface Started {
  readonly child: ChildProcess;
  readonly endpoints: string;
  readonly directory: string;
}

const START_MS_MAX = 60_000;

async function start(program: string, ...options: string[]): Promise<Started> {
  const child = spawn(program, ["dev", "--nodes", "1", "-o", "json", ...options], { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stderr.on("data", (text: Buffer) => {
    said += text.toString();
  });

  const line = await new Promise<string>((resolve, reject) => {
    const late = setTimeout(() => {
      child.kill();
      reject(new Error(`no cluster within ${START_MS_MAX} ms: ${said}`));
    }, START_MS_MAX);
    child.once("error", reject);
    child.once("exit", (code) => {
      reject(new Error(`${program} dev ended with ${code}: ${said}`));
    });
    createInterface({ input: child.stdout }).once("line", (line) => {
      clearTimeout(late);
      child.removeAllListeners("exit");
      resolve(line);
    });
  });
  const report = JSON.parse(line) as { endpoints: string[]; directory: string };
  return { child, endpoints: report.endpoints.join(","), directory: report.directory };
}

async function end({ child }: Started): Promise<void> {
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  await ended;
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const program = resolve(process.env["LOCKKEEPER_PROGRAM"] ?? "../../../target/debug/lockkeeper");
  if (!existsSync(program)) {
    throw new Error(`there is no ${program}: build it (cargo build), or name it by LOCKKEEPER_PROGRAM`);
  }

  const clusters = await Promise.all([start(program), start(program, "--tls")]);
  const [plain, secure] = clusters;
  const certs = `${secure.directory}/certs`;
  project.provide("endpoints", plain.endpoints);
  project.provide("tls", {
    endpoints: secure.endpoints,
    ca: `${certs}/ca.pem`,
    cert: `${certs}/client-local.pem`,
    key: `${certs}/client-local-key.pem`,
  });
  return async () => {
    await Promise.all(clusters.map(end));
  };
}
