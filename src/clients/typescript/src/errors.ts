/** The errors of the client. Each says what happened to the state of the cluster, and what to do. */
import type { Busy } from "./views.js";

/** What an error of any kind says. */
export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/**
 * What went wrong, for programs that cannot use `instanceof`, such as those in which two copies of this package are loaded.
 *
 * @example
 * ```ts
 * import type { ErrorCode, LockkeeperError } from "@lockkeeper/client";
 *
 * const AGAIN: readonly ErrorCode[] = ["NOT_ACQUIRED", "NO_CLUSTER"];
 * export const mayTryAgain = (error: LockkeeperError): boolean => AGAIN.includes(error.code);
 * ```
 */
export type ErrorCode =
  "INVALID_ARGUMENT" | "NOT_ACQUIRED" | "REFUSED" | "LOST" | "NOT_ENSURED" | "NO_CLUSTER" | "UNKNOWN_OUTCOME" | "MALFORMED";

/**
 * The base of all errors of this package.
 *
 * @example
 * ```ts
 * import { type Client, LockkeeperError } from "@lockkeeper/client";
 *
 * export async function tryOnce(client: Client): Promise<void> {
 *   try {
 *     await client.using("reports/nightly", { waitMs: 5_000 }, async () => undefined);
 *   } catch (error) {
 *     if (error instanceof LockkeeperError) console.error(error.code, error.message);
 *     else throw error;
 *   }
 * }
 * ```
 */
export abstract class LockkeeperError extends Error {
  abstract readonly code: ErrorCode;
}

/**
 * An argument, an option or a setting cannot be used. Nothing was sent.
 *
 * @example
 * ```ts
 * import { Client, InvalidArgument } from "@lockkeeper/client";
 *
 * try {
 *   new Client({ endpoints: "10.0.0.1" });
 * } catch (error) {
 *   if (error instanceof InvalidArgument) console.error(error.message); // …is not of the form host:port…
 * }
 * ```
 */
export class InvalidArgument extends LockkeeperError {
  override readonly name = "InvalidArgument";
  readonly code = "INVALID_ARGUMENT";
}

/**
 * The locks were not available, or not in time. Nothing is held, and nothing waits.
 *
 * @example
 * ```ts
 * import { type Client, NotAcquired } from "@lockkeeper/client";
 *
 * export async function whoHolds(client: Client): Promise<string | undefined> {
 *   try {
 *     await using lock = await client.acquire("seats/A5", { waitMs: 0 });
 *     return `token ${lock.token}`;
 *   } catch (error) {
 *     if (error instanceof NotAcquired) return error.busy.holder?.label;
 *     throw error;
 *   }
 * }
 * ```
 */
export class NotAcquired extends LockkeeperError {
  override readonly name = "NotAcquired";
  readonly code = "NOT_ACQUIRED";
  /** Whether its wait came to its end. `false`: it was not to wait. */
  readonly waited: boolean;
  /** Its place in the queue was lost meanwhile: see {@link Lock.placeLost}. */
  readonly placeLost: boolean;
  /** The first of the locks that was not available. */
  readonly busy: Busy;

  constructor(waited: boolean, placeLost: boolean, busy: Busy) {
    super(describeBusy(waited, busy));
    this.waited = waited;
    this.placeLost = placeLost;
    this.busy = busy;
  }
}

function describeBusy(waited: boolean, { name, holder, delayRemainingMs, queueLength }: Busy): string {
  let why = "others wait for it";
  if (holder !== undefined) {
    why = `held by ${JSON.stringify(holder.label)} with token ${holder.token}`;
  } else if (delayRemainingMs !== undefined) {
    why = `closed for another ${delayRemainingMs} ms by its lock-delay`;
  }

  const inTime = waited ? " in time" : "";
  const queue = queueLength === 0 ? "" : `, ${queueLength} in the queue`;
  return `lock ${JSON.stringify(name)} was not acquired${inTime}: ${why}${queue}`;
}

/**
 * The cluster refused the request, which changed nothing.
 *
 * @example
 * ```ts
 * import { type Client, Refused } from "@lockkeeper/client";
 *
 * export async function enter(client: Client): Promise<void> {
 *   try {
 *     await client.using("printers", { permits: 3 }, async () => undefined);
 *   } catch (error) {
 *     if (error instanceof Refused && error.reason === "MODE_MISMATCH") console.error(`size in use: ${error.details["limit"]}`);
 *     else throw error;
 *   }
 * }
 * ```
 */
export class Refused extends LockkeeperError {
  override readonly name = "Refused";
  readonly code = "REFUSED";
  /** The reason as the protocol names it without `REASON_`, such as `MODE_MISMATCH`. Empty: none was given, as by a proxy. */
  readonly reason: string;
  /** The values concerned, by name: `lock`, `token`, `session_id`, `limit`. */
  readonly details: Readonly<Record<string, string>>;

  constructor(reason: string, message: string, details: Readonly<Record<string, string>>) {
    super(message === "" ? `REASON_${reason === "" ? "UNSPECIFIED" : reason}` : message);
    this.reason = reason;
    this.details = details;
  }
}

/**
 * How a lock was lost.
 *
 * - `expired`: the cluster heard no renewal within the TTL; the locks are open to others.
 * - `closed`: the session was closed, by this client or by an operator.
 * - `unknown`: the cluster does not know the session; it ended long ago.
 * - `out-of-contact`: no renewal was acknowledged before the deadline; the locks may be open to others.
 * - `revoked`: an operator took the lock back.
 * - `released`: the holder released it.
 *
 * @example
 * ```ts
 * import type { Lock, LossReason } from "@lockkeeper/client";
 *
 * export const why = (lock: Lock): LossReason | undefined => lock.loss?.reason;
 * ```
 */
export type LossReason = "expired" | "closed" | "unknown" | "out-of-contact" | "revoked" | "released";

/** A loss, before it becomes an error. */
export interface Loss {
  readonly reason: LossReason;
  /** The operator's reason, of one that is `revoked`. */
  readonly operatorReason?: string;
}

const LOSSES: Readonly<Record<LossReason, string>> = {
  expired: "the session expired: the cluster heard no renewal within the TTL",
  closed: "the session was closed",
  unknown: "the cluster does not know the session: it ended long ago",
  "out-of-contact": "no contact with the cluster until the deadline: no renewal was acknowledged",
  revoked: "an operator revoked the lock",
  released: "the lock was released",
};

/**
 * The lock, or the session of the client, is over: stop the work that it protected. The next acquire opens a new session.
 *
 * It is the `reason` of {@link Lock.signal}, and what calls fail with that need the lock.
 *
 * @example
 * ```ts
 * import { type Client, Lost } from "@lockkeeper/client";
 *
 * export async function work(client: Client, steps: (() => Promise<void>)[]): Promise<void> {
 *   await client.using("reports/nightly", {}, async (lock) => {
 *     lock.signal.addEventListener("abort", () => {
 *       if (lock.signal.reason instanceof Lost) console.error(`stop: ${lock.signal.reason.message}`);
 *     });
 *     for (const step of steps) {
 *       lock.signal.throwIfAborted();
 *       await step();
 *     }
 *   });
 * }
 * ```
 */
export class Lost extends LockkeeperError {
  override readonly name = "Lost";
  readonly code = "LOST";
  readonly reason: LossReason;
  /** What the operator gave as the reason, if the lock was revoked. */
  readonly operatorReason: string | undefined;

  constructor({ reason, operatorReason }: Loss) {
    super(operatorReason === undefined ? LOSSES[reason] : `${LOSSES[reason]}: ${operatorReason}`);
    this.reason = reason;
    this.operatorReason = operatorReason;
  }
}

/**
 * The lock is held, but may not be trusted for as long as {@link Lock.ensure} was asked for: the TTL is too short.
 *
 * @example
 * ```ts
 * import { type Lock, NotEnsured } from "@lockkeeper/client";
 *
 * export async function hasTimeFor(lock: Lock, ms: number): Promise<boolean> {
 *   try {
 *     await lock.ensure(ms);
 *     return true;
 *   } catch (error) {
 *     if (error instanceof NotEnsured) return false;
 *     throw error;
 *   }
 * }
 * ```
 */
export class NotEnsured extends LockkeeperError {
  override readonly name = "NotEnsured";
  readonly code = "NOT_ENSURED";
  /** For how long the lock may be trusted, milliseconds. */
  readonly remainingMs: number;

  constructor(remainingMs: number, minLeftMs: number) {
    const left = Math.floor(remainingMs);
    super(`the lock may be trusted for another ${left} ms, not for ${minLeftMs} ms: give the client a longer ttlMs`);
    this.remainingMs = remainingMs;
  }
}

/**
 * No node answered before the limit of the call: none could be reached, or none knew a leader. Nothing was changed.
 *
 * @example
 * ```ts
 * import { type Client, NoCluster } from "@lockkeeper/client";
 *
 * export const isUp = async (client: Client): Promise<boolean> => {
 *   try {
 *     await client.get("any");
 *     return true;
 *   } catch (error) {
 *     if (error instanceof NoCluster) return false;
 *     throw error;
 *   }
 * };
 * ```
 */
export class NoCluster extends LockkeeperError {
  override readonly name = "NoCluster";
  readonly code = "NO_CLUSTER";

  /** `why`: the error of the last attempt. */
  constructor(why: string) {
    super(`no node of the cluster answered before the deadline of the call (last: ${why}); nothing was changed: try again later`);
  }
}

/**
 * No answer before the limit of the call. The request may have taken effect, or may still: look before you try again.
 *
 * An acquire that fails with it leaves nothing behind: it is released in the background.
 *
 * @example
 * ```ts
 * import { type Lock, UnknownOutcome } from "@lockkeeper/client";
 *
 * export async function letGo(lock: Lock): Promise<void> {
 *   try {
 *     await lock.release();
 *   } catch (error) {
 *     if (!(error instanceof UnknownOutcome)) throw error;
 *     console.error("not confirmed yet; the release goes on in the background");
 *   }
 * }
 * ```
 */
export class UnknownOutcome extends LockkeeperError {
  override readonly name = "UnknownOutcome";
  readonly code = "UNKNOWN_OUTCOME";

  /** `why`: the error of the last attempt. */
  constructor(why: string) {
    super(`no answer in time (last: ${why}); the request may still take effect: look before trying again`);
  }
}

/** Characters of a value that an error shows. */
const VALUE_MAX = 64;

/**
 * The cluster answered with a value that this client does not understand. The request was executed.
 *
 * @example
 * ```ts
 * import { LockkeeperError, Malformed } from "@lockkeeper/client";
 *
 * export const needsUpdate = (error: LockkeeperError): boolean => error instanceof Malformed;
 * ```
 */
export class Malformed extends LockkeeperError {
  override readonly name = "Malformed";
  readonly code = "MALFORMED";
  /** The field of the reply, such as `holder.session_id`. */
  readonly field: string;

  constructor(field: string, value: string) {
    const shown = JSON.stringify(Array.from(value).slice(0, VALUE_MAX).join(""));
    super(
      `the request was executed, but this client does not understand the reply: ${field} is ${shown}: use a client of the nodes' version`,
    );
    this.field = field;
  }
}
