/**
 * Timers that let the network speak first.
 *
 * When an event loop goes on after it was blocked, or after the process was stopped, Node runs the timers that are due before it
 * reads the sockets. An answer that has arrived meanwhile would then be taken for one that is missing. So what a timer does here
 * happens after the sockets were read.
 */
import { clearTimeout, setImmediate, setTimeout } from "node:timers";
import { hrtime } from "node:process";

import type { Happening } from "./once.js";

/** Node fires a timer beyond this at once. */
const TIMER_MS_MAX = 2_147_483_647;

/** Monotonic milliseconds, for limits of calls. Deadlines of sessions are read from a {@link Clock}, which counts suspension. */
export function monotonicMs(): number {
  return Number(hrtime.bigint()) / 1e6;
}

/** Calls back after this time, and after the sockets were read. Returns a function that prevents it. */
export function after(ms: number, callback: () => void): () => void {
  let isOver = false;
  const due = monotonicMs() + ms;

  const fire = (): void => {
    if (isOver) {
      return;
    }
    const left = due - monotonicMs();
    if (left > 0) {
      timer = setTimeout(fire, Math.min(Math.ceil(left), TIMER_MS_MAX));
      return;
    }

    // Once around the loop: immediates run right after the poll phase, and the second one after a whole one.
    setImmediate(() => {
      setImmediate(() => {
        if (!isOver) {
          isOver = true;
          callback();
        }
      });
    });
  };

  let timer = setTimeout(fire, Math.min(Math.max(0, Math.ceil(ms)), TIMER_MS_MAX));
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

/** Waits, or until one of these happens. Returns whether it waited to the end. */
export function sleep(ms: number, ...untils: readonly (Happening<unknown> | undefined)[]): Promise<boolean> {
  if (untils.some((until) => until?.happened === true)) {
    return Promise.resolve(false);
  }
  return new Promise((resolve) => {
    const cleanups: (() => void)[] = [];
    const end = (waited: boolean): void => {
      cleanups.forEach((cleanup) => {
        cleanup();
      });
      resolve(waited);
    };

    cleanups.push(
      after(ms, () => {
        end(true);
      }),
    );
    for (const until of untils) {
      if (until !== undefined) {
        cleanups.push(
          until.on(() => {
            end(false);
          }),
        );
      }
    }
  });
}
