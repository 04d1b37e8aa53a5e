/**
 * A bearer token in a file, which is replaced while the client runs: Kubernetes writes a new token into the same file before the one of
 * before ends.
 *
 * A request reads the file again if the last look at it was {@link REREAD_MS} ago. The file is local and small: that takes microseconds.
 * What is copied over a file comes in parts, so a change counts once the file is {@link SETTLING_MS} old, or reads the same twice. A file
 * that is missing, empty or without a token leaves the last good token in use.
 */
import { readFileSync, statSync } from "node:fs";

import { InvalidArgument, messageOf } from "./errors.js";
import { isBearerToken } from "./limits.js";
import { monotonicMs } from "./timers.js";

/** Shortest time between two looks at the file. */
const REREAD_MS = 1_000;
/** Age at which a file is whole, and time after which one that is younger is read once more. */
const SETTLING_MS = 200;
/** No node takes a header of this size. */
const FILE_BYTES_MAX = 64 * 1024;

/** The two clocks of a {@link TokenFile}, in milliseconds. */
export interface TokenClocks {
  monotonicMs(): number;
  /** As the times of files have it. */
  wallMs(): number;
}

/** The text of a file. Fails with {@link InvalidArgument}. */
export function readFile(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new InvalidArgument(`cannot read ${path}: ${messageOf(error)}`, { cause: error });
  }
}

export class TokenFile {
  readonly #path: string;
  readonly #clocks: TokenClocks;
  #token: string;
  #changed: string | undefined;
  #dueMs: number;

  /** `token` is what the file has now. */
  constructor(path: string, token: string, clocks: TokenClocks = { monotonicMs, wallMs: () => Date.now() }) {
    this.#path = path;
    this.#token = token;
    this.#clocks = clocks;
    this.#dueMs = clocks.monotonicMs() + REREAD_MS;
  }

  /** The token that the file has now, or the last good one that it had. */
  get token(): string {
    const now = this.#clocks.monotonicMs();
    if (now >= this.#dueMs) {
      this.#dueMs = now + REREAD_MS;
      this.#look(now);
    }
    return this.#token;
  }

  #look(now: number): void {
    const read = this.#read();
    if (read === undefined || read.token === this.#token) {
      this.#changed = undefined;
    } else if (read.token === this.#changed || read.ageMs >= SETTLING_MS) {
      this.#token = read.token;
      this.#changed = undefined;
    } else {
      this.#changed = read.token;
      this.#dueMs = now + SETTLING_MS;
    }
  }

  #read(): { token: string; ageMs: number } | undefined {
    try {
      const status = statSync(this.#path);
      // What comes through a pipe comes once, and its end would be waited for.
      if (!status.isFile() || status.size > FILE_BYTES_MAX) {
        return undefined;
      }
      const token = readFileSync(this.#path, "utf8").trim();
      return isBearerToken(token) ? { token, ageMs: this.#clocks.wallMs() - status.mtimeMs } : undefined;
    } catch {
      // It is not there for a moment.
      return undefined;
    }
  }
}
