const FIRST_MS = 20;
const LONGEST_MS = 1_000;
const DOUBLINGS_MAX = 16;

/** Pauses that double with each failure in a row. The jitter keeps clients that failed together from trying again together. */
export class Backoff {
  #failures = 0;

  /** The next pause, in ms: a random part of the upper half of the present span. `random`: 0 to 1. */
  next(random: number = Math.random()): number {
    const span = Math.min(FIRST_MS * 2 ** Math.min(this.#failures, DOUBLINGS_MAX), LONGEST_MS);
    this.#failures += 1;
    return span * (0.5 + random / 2);
  }
}
