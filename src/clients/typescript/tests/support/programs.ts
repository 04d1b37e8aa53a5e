/** Programs that use the built package, as processes of their own. */
import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import { onTestFinished } from "vitest";

const PROGRAMS = fileURLToPath(new URL("../programs", import.meta.url));

/** A program that runs, and the lines that it wrote. */
export class Program {
  readonly child: ChildProcess;
  readonly lines: string[] = [];
  stderr = "";
  readonly #ended: Promise<number | null>;
  readonly #wake = new Set<() => void>();

  constructor(file: string, argument: string, environment: Record<string, string> = {}) {
    const child = spawn(process.execPath, [`${PROGRAMS}/${file}`, argument], {
      stdio: ["pipe", "pipe", "pipe"],
      env: { ...process.env, ...environment },
    });
    this.child = child;
    this.#ended = new Promise((resolve) => child.once("close", resolve));
    createInterface({ input: child.stdout }).on("line", (line) => {
      this.lines.push(line);
      this.#wake.forEach((wake) => {
        wake();
      });
    });
    child.stderr.on("data", (text: Buffer) => {
      this.stderr += text.toString();
    });
    onTestFinished(() => {
      child.kill("SIGKILL");
    });
  }

  signal(signal: NodeJS.Signals): void {
    this.child.kill(signal);
  }

  /** Waits for a line that begins so. */
  async line(beginning: string, limitMs = 20_000): Promise<string> {
    return new Promise((resolve, reject) => {
      const look = (): void => {
        const line = this.lines.find((line) => line.startsWith(beginning));
        if (line !== undefined) {
          clearTimeout(late);
          this.#wake.delete(look);
          resolve(line);
        }
      };
      const late = setTimeout(() => {
        this.#wake.delete(look);
        reject(new Error(`no line "${beginning}" within ${limitMs} ms: ${this.lines.join("; ")}; ${this.stderr}`));
      }, limitMs);
      this.#wake.add(look);
      look();
    });
  }

  /** Waits until it ends by itself, and returns its code. */
  async end(limitMs = 20_000): Promise<number | null> {
    const late = new Promise<never>((_, reject) => {
      setTimeout(() => {
        reject(new Error(`it did not end within ${limitMs} ms: ${this.lines.join("; ")}; ${this.stderr}`));
      }, limitMs).unref();
    });
    return Promise.race([this.#ended, late]);
  }
}
