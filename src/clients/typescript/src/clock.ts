/**
 * The clock of all deadlines.
 *
 * It must go on while the machine is suspended, since the cluster's clock does. Node offers no clock that does so everywhere:
 * `CLOCK_BOOTTIME` is not among those of `process.hrtime`, which stops during suspension on Linux. What it offers:
 *
 * - **Linux**: `os.uptime()` reads `/proc/uptime`, which is `CLOCK_BOOTTIME` in steps of 10 ms. This clock is `process.hrtime`, plus
 *   what `os.uptime()` has gained on it. The gain is read at each look, so a lock is known to be lost on the first line that asks
 *   after a resume, and a suspension counts for 10 ms too long at most, never too short.
 * - **Elsewhere**: whether `process.hrtime` counts sleep depends on the versions of the system and of Node. So the wall clock is
 *   compared too: what it gains at once, by more than a second, counts as a suspension. A wall clock that is set forward makes a lock
 *   count as lost too early, which is safe; one that is set back while the machine sleeps can hide the sleep, if `process.hrtime` does
 *   not count it. For that case there is the token.
 */
import { existsSync } from "node:fs";
import { uptime } from "node:os";
import { platform } from "node:process";

import { monotonicMs } from "./timers.js";

/** The client's source of time: it never runs backwards, counts suspension, and its rate is off by less than one percent. */
export interface Clock {
  /** Milliseconds since a fixed start. */
  now(): number;
}

/** The clocks that {@link SuspensionClock} is made from, in milliseconds. */
export interface Readings {
  monotonicMs(): number;
  /** A clock that counts suspension. */
  countingMs(): number;
}

/** How a clock that counts suspension is read. */
export interface Steps {
  /** The clock advances in steps of this size, and shows the beginning of a step. */
  stepMs: number;
  /** It counts since a fixed start. Otherwise people may set it, and only what it gains at once says something. */
  isFixed: boolean;
}

const PROC_UPTIME = "/proc/uptime";

/** A wall clock must gain this much at once to tell of a suspension: corrections of the time are smaller, or rare. */
const WALL_GAIN_MS_MIN = 1_000;

export class SuspensionClock implements Clock {
  readonly #readings: Readings;
  readonly #steps: Steps;
  /** What the counting clock is ahead of the monotonic one. */
  #aheadMs: number | undefined;
  #lastMs = 0;

  constructor(readings: Readings, steps: Steps) {
    this.#readings = readings;
    this.#steps = steps;
  }

  now(): number {
    const before = this.#readings.monotonicMs();
    const counting = this.#readings.countingMs();
    const after = this.#readings.monotonicMs();

    // The counting clock was read between the two, and may be a step behind.
    const aheadAtLeast = counting - after;
    const aheadAtMost = counting + this.#steps.stepMs - before;
    this.#note(aheadAtLeast, aheadAtMost);

    // Never backwards, whatever the system's clocks do.
    this.#lastMs = Math.max(this.#lastMs, after + this.#sinceStart());
    return this.#lastMs;
  }

  #suspendedMs = 0;

  #sinceStart(): number {
    return this.#steps.isFixed ? (this.#aheadMs ?? 0) : this.#suspendedMs;
  }

  #note(atLeast: number, atMost: number): void {
    const known = this.#aheadMs;
    if (!this.#steps.isFixed) {
      if (known !== undefined && atLeast - known > WALL_GAIN_MS_MIN) {
        this.#suspendedMs += atLeast - known;
      }
      this.#aheadMs = atLeast;
      return;
    }

    if (known === undefined) {
      this.#aheadMs = atLeast;
    } else if (atLeast > known + this.#steps.stepMs) {
      // A suspension: rounded up, since a deadline must not pass unnoticed.
      this.#aheadMs = atMost;
    } else if (atLeast > known) {
      // The first look was in the middle of a step. From then on this is what it gains by being exact.
      this.#aheadMs = atLeast;
    }
  }
}

/** The clock of this machine. */
export function systemClock(): Clock {
  if (platform === "linux") {
    // Without /proc, Node reads CLOCK_BOOTTIME itself, and cuts it to whole seconds.
    const stepMs = existsSync(PROC_UPTIME) ? 10 : 1_000;
    return new SuspensionClock({ monotonicMs, countingMs: () => uptime() * 1_000 }, { stepMs, isFixed: true });
  }
  return new SuspensionClock({ monotonicMs, countingMs: () => Date.now() }, { stepMs: 0, isFixed: false });
}
