/** An acquire, from its options to the grant. */
import { Backoff } from "./backoff.js";
import type { Cancelled, Policy } from "./call.js";
import { InvalidArgument, type LockkeeperError, Lost, NotAcquired, Refused, UnknownOutcome } from "./errors.js";
import type { AcquireRequest, AcquireResponse, Mode as WireMode, RequestId, Want } from "./generated/lockkeeper/v1/locks.js";
import { checkData, checkLockDelay, checkNames, checkPermits, checkWait } from "./limits.js";
import { Lock } from "./lock.js";
import type { Outstanding } from "./requests.js";
import type { Session } from "./session.js";
import { monotonicMs, sleep } from "./timers.js";
import { busyView } from "./views.js";

/**
 * How locks are acquired. The default: exclusively, however long that takes.
 *
 * @example
 * ```ts
 * import type { AcquireOptions, Client } from "@lockkeeper/client";
 *
 * const seat: AcquireOptions = { waitMs: 5_000, data: "buyer 17" };
 * const reader: AcquireOptions = { shared: true };
 * const oneOfThree: AcquireOptions = { permits: 3, waitMs: 0 };
 *
 * export async function all(client: Client): Promise<void> {
 *   await client.using("seats/A5", seat, async () => undefined);
 *   await client.using("catalogue", reader, async () => undefined);
 *   await client.using("printers", oneOfThree, async () => undefined);
 * }
 * ```
 */
export interface AcquireOptions {
  /** Hold the locks together with any number of other sharers. */
  readonly shared?: boolean;
  /** Hold one of so many permits (a semaphore), up to 1,000,000. All users of a name give the same number. */
  readonly permits?: number;
  /**
   * How long to wait, milliseconds, up to a week. 0: not at all. `Infinity` (the default): as long as the session lives. The cluster
   * counts it from the arrival; nothing is polled.
   */
  readonly waitMs?: number;
  /** Data to set on the locks when they are granted: 16 KiB at most, readable by all clients. Left out: the present ones stay. */
  readonly data?: string | Uint8Array;
  /** Keep the data when the grant ends. */
  readonly keepData?: boolean;
  /** Acquire only locks that exist: that are held, awaited or delayed, or carry data. Else {@link Refused}, `LOCK_UNKNOWN`. */
  readonly mustExist?: boolean;
  /** If this holder is lost, keep the locks closed for so long, milliseconds, up to an hour. For resources that check no tokens. */
  readonly lockDelayMs?: number;
  /** Gives up. The promise is rejected with the reason of the signal, and no wait and no grant is left behind. */
  readonly signal?: AbortSignal;
}

/** An acquire whose options were checked. */
export interface Acquire {
  readonly locks: readonly Want[];
  readonly waitMs: number;
  readonly lockDelayMs: number;
}

export function checkAcquire(names: string | readonly string[], options: AcquireOptions, usualWaitMs: number): Acquire {
  const { shared = false, permits, data, keepData = false, mustExist = false } = options;
  if (shared && permits !== undefined) {
    throw new InvalidArgument("shared and permits exclude each other: give one of them");
  }

  const mode = wireMode(shared, permits);
  const bytes = data === undefined ? undefined : checkData(data);
  return {
    locks: checkNames(names).map((name) => ({ name, mode, data: bytes, keepData, mustExist })),
    waitMs: checkWait(options.waitMs ?? usualWaitMs),
    lockDelayMs: checkLockDelay(options.lockDelayMs ?? 0),
  };
}

function wireMode(shared: boolean, permits: number | undefined): WireMode {
  if (permits !== undefined) {
    return { kind: { $case: "permit", value: { limit: checkPermits(permits) } } };
  }
  return { kind: shared ? { $case: "shared", value: {} } : { $case: "exclusive", value: {} } };
}

/** Acquires in this session. `cancelled` ends it early, and then nothing is left behind. */
export async function acquireIn(session: Session, acquire: Acquire, cancelled: Cancelled): Promise<Lock> {
  const began = monotonicMs();
  const backoff = new Backoff();
  let placeLost = false;
  for (;;) {
    try {
      return await acquireOnce(session, acquire, began, placeLost, cancelled);
    } catch (error) {
      // The cluster cancels a wait whose call was broken for too long. The caller still wants the locks: to the end of the queue.
      const isInTime = monotonicMs() - began < acquire.waitMs;
      if (!(error instanceof Refused && error.reason === "WAIT_CANCELLED" && isInTime)) {
        throw error;
      }
      placeLost = true;
      await sleep(backoff.next(), session.lease.ended, cancelled);
    }
  }
}

async function acquireOnce(session: Session, acquire: Acquire, began: number, placeLost: boolean, cancelled: Cancelled): Promise<Lock> {
  const pending = new Pending(session);
  try {
    const answer = await send(session, acquire, began, pending, cancelled);
    const lock = outcome(session, acquire, answer, placeLost, pending);
    if (cancelled.happened) {
      throw cancelled.value;
    }
    pending.settle();
    return lock();
  } finally {
    pending.end();
  }
}

async function send(session: Session, acquire: Acquire, began: number, pending: Pending, cancelled: Cancelled): Promise<AcquireResponse> {
  const policy = waitingPolicy(session.caller.policy, acquire.waitMs);
  const message = (): AcquireRequest => ({
    sessionId: session.id,
    request: pending.message(),
    locks: [...acquire.locks],
    // The first attempt that arrives sets the limit of the wait; a repetition must not put it off.
    wait: wireWait(acquire.waitMs, monotonicMs() - began),
    lockDelayMs: acquire.lockDelayMs,
  });
  try {
    return await session.whileAlive(policy, (node) => node.pipeline.acquire(message()), cancelled);
  } catch (error) {
    // Whatever else ends it says that nothing is held, or that all is over with the session.
    const isUnknown = error instanceof UnknownOutcome || (cancelled.happened && error === cancelled.value);
    if (!isUnknown) {
      pending.settle();
    }
    throw error;
  }
}

/** An acquire whose outcome is not known. At its end it is released by its request id, whether it was granted, waits or never arrived. */
class Pending {
  readonly #session: Session;
  readonly #request: Outstanding;
  #isSettled = false;

  constructor(session: Session) {
    this.#session = session;
    this.#request = session.requests.begin();
  }

  message(): RequestId {
    return this.#request.message();
  }

  /** Nothing is left to release here. */
  settle(): void {
    this.#isSettled = true;
    this.#request.end();
  }

  end(): void {
    if (!this.#isSettled) {
      this.#session.abandon(this.#request);
    }
  }
}

/** Throws if nothing was granted. The lock is made by the function that it returns. */
function outcome(session: Session, acquire: Acquire, { outcome }: AcquireResponse, placeLost: boolean, pending: Pending): () => Lock {
  switch (outcome?.$case) {
    case "granted": {
      const { token, names } = outcome.value;
      // The grant may have come too late: the event loop may have been blocked past the deadline.
      const loss = session.lease.loss();
      if (loss !== undefined) {
        pending.settle();
        throw new Lost(loss);
      }
      const known = names.length > 0 ? names : acquire.locks.map(({ name }) => name);
      return () => new Lock(session, token, known, placeLost);
    }
    case "busy":
    case "timedOut": {
      pending.settle();
      throw new NotAcquired(outcome.$case === "timedOut", placeLost, busyView(outcome.value)) satisfies LockkeeperError;
    }
    case undefined:
      // A later version may tell a grant in another way: it is released.
      throw new UnknownOutcome("the answer has no outcome");
  }
}

/** A waiting call gets the usual limit on top of its wait: time to find a leader, and for the answer. */
function waitingPolicy(usual: Policy, waitMs: number): Policy {
  if (waitMs === 0) {
    return usual;
  }
  const limitMs = waitMs === Infinity || usual.limitMs === undefined ? undefined : usual.limitMs + waitMs;
  return { ...usual, limitMs, attemptLimitMs: undefined };
}

function wireWait(waitMs: number, elapsedMs: number): AcquireRequest["wait"] {
  if (waitMs === 0) {
    return undefined;
  }
  if (waitMs === Infinity) {
    return { $case: "waitForever", value: true };
  }
  return { $case: "waitMs", value: BigInt(Math.max(1, Math.ceil(waitMs - elapsedMs))) };
}
