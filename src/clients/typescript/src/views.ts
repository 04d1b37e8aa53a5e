/** What the cluster answers, in types of this package: the messages of the protocol are no part of its interface. */
import { Malformed } from "./errors.js";
import {
  type Busy as WireBusy,
  type Change as WireChange,
  Change_Kind,
  type CheckResponse,
  type ForceReleaseResponse_Forced,
  type Holder as WireHolder,
  type LockInfo as WireLockInfo,
  LockKind,
  type Mode as WireMode,
  type Waiter as WireWaiter,
  type WatchResponse,
} from "./generated/lockkeeper/v1/locks.js";

/**
 * How a lock is held: by one, by any number of sharers, or by so many at a time.
 *
 * @example
 * ```ts
 * import type { Client } from "@lockkeeper/client";
 *
 * export async function size(client: Client): Promise<number | undefined> {
 *   const { mode } = await client.get("printers");
 *   return typeof mode === "object" ? mode.permits : undefined;
 * }
 * ```
 */
export type LockMode = "exclusive" | "shared" | { readonly permits: number };

/**
 * A holder of a lock.
 *
 * @example
 * ```ts
 * import type { Client, Holder } from "@lockkeeper/client";
 *
 * export async function oldest(client: Client): Promise<Holder | undefined> {
 *   return (await client.get("printers")).holders[0];
 * }
 * ```
 */
export interface Holder {
  /** The token of its grant. */
  readonly token: bigint;
  /** Its session: 32 hexadecimal digits. */
  readonly sessionId: string;
  /** The label of its session, for people. */
  readonly label: string;
  /** `undefined`: a mode that this version does not know. */
  readonly mode: LockMode | undefined;
  /** The time of the grant, by the wall clock of the leader at that time. For people only. */
  readonly since: Date;
  /** Time left until it is lost if its session is not renewed, milliseconds. */
  readonly remainingMs: number;
  /** The operator's reason, if the grant is revoked. */
  readonly revokedReason: string | undefined;
}

/**
 * An acquire that waits for a lock.
 *
 * @example
 * ```ts
 * import type { Client, Waiter } from "@lockkeeper/client";
 *
 * export async function next(client: Client): Promise<Waiter | undefined> {
 *   return (await client.get("printers")).waiters[0];
 * }
 * ```
 */
export interface Waiter {
  /** Its place in the order of arrival: lower tickets are served first. */
  readonly ticket: bigint;
  /** Its session: 32 hexadecimal digits. */
  readonly sessionId: string;
  /** The label of its session, for people. */
  readonly label: string;
  /** `undefined`: a mode that this version does not know. */
  readonly mode: LockMode | undefined;
  /** The time of arrival, by the wall clock of the leader at that time. For people only. */
  readonly since: Date;
  /** Time left until it gives up, milliseconds; `undefined`: its wait has no limit. */
  readonly remainingMs: number | undefined;
}

/**
 * A lock, its holders and its queue.
 *
 * @example
 * ```ts
 * import type { Client, LockInfo } from "@lockkeeper/client";
 *
 * export async function show(client: Client): Promise<void> {
 *   const lock: LockInfo = await client.get("reports/nightly");
 *   for (const holder of lock.holders) {
 *     console.log(`${holder.label} for another ${holder.remainingMs} ms, by token ${holder.token}; ${lock.queueLength} wait`);
 *   }
 * }
 * ```
 */
export interface LockInfo {
  readonly name: string;
  /** `entry`: held by an entry that a client of another protocol writes, such as an item of a lock client of DynamoDB. */
  readonly kind: "lock" | "entry";
  /** The mode in use; `undefined` while the lock is free, and for a mode that this version does not know. */
  readonly mode: LockMode | undefined;
  /** The first holders, in the order of their tokens: 1,000 of {@link Client.get}, 16 of {@link Client.list} and of a watch. */
  readonly holders: readonly Holder[];
  /** Number of all holders. */
  readonly holderCount: number;
  /** The first waiters, in the order of the queue; as many as of the holders. */
  readonly waiters: readonly Waiter[];
  /** Number of all waiters. */
  readonly queueLength: number;
  /** Its data, 16 KiB at most. */
  readonly data: Uint8Array | undefined;
  /** Whether the data stay when the present grants end. */
  readonly keepData: boolean;
  /** Time left of its lock-delay, milliseconds; `undefined`: it has none. */
  readonly delayRemainingMs: number | undefined;
  /** An operator gave this semaphore its size, which `mode` shows: the sizes that acquires name do not count. */
  readonly resized: boolean;
}

/**
 * Why an acquire did not get its locks.
 *
 * @example
 * ```ts
 * import type { Busy, NotAcquired } from "@lockkeeper/client";
 *
 * export function show({ busy }: NotAcquired): string {
 *   const { name, holder, queueLength }: Busy = busy;
 *   return `${name}: ${holder?.label ?? "nobody"}, ${queueLength} wait`;
 * }
 * ```
 */
export interface Busy {
  /** The first of the locks that was not available. */
  readonly name: string;
  /** One of its holders. */
  readonly holder: Holder | undefined;
  /** How many wait for it. */
  readonly queueLength: number;
  /** Time left of its lock-delay, milliseconds; `undefined`: it has none. */
  readonly delayRemainingMs: number | undefined;
}

/**
 * Whether a token holds a lock: the answer of {@link Client.check}.
 *
 * @example
 * ```ts
 * import type { CheckAnswer, Client } from "@lockkeeper/client";
 *
 * export async function isHeld(client: Client, token: bigint): Promise<boolean> {
 *   const answer: CheckAnswer = await client.check("reports/nightly", token);
 *   return answer.held;
 * }
 * ```
 */
export interface CheckAnswer {
  /** The token holds the lock at `index`. */
  readonly held: boolean;
  /** The holder with this token. */
  readonly holder: Holder | undefined;
  /** The highest token so far in the whole cluster; `undefined`: none was granted yet. */
  readonly lastToken: bigint | undefined;
  /** The index of the log at which the cluster read the answer. */
  readonly index: bigint;
}

/**
 * A grant that a forced release revoked.
 *
 * @example
 * ```ts
 * import type { Client, Forced } from "@lockkeeper/client";
 *
 * export async function free(client: Client): Promise<void> {
 *   const forced: Forced[] = await client.forceRelease("reports/nightly", "host 7 is gone");
 *   for (const grant of forced) console.log(`${grant.label} has ${grant.remainingMs} ms to let go of token ${grant.token}`);
 * }
 * ```
 */
export interface Forced {
  readonly token: bigint;
  readonly sessionId: string;
  readonly label: string;
  /** Time that the holder has to release it, milliseconds; 0: it is over. */
  readonly remainingMs: number;
  /** For how long lock-delays keep the lock closed after that, milliseconds; 0: it is open then. */
  readonly lockDelayMs: number;
}

/**
 * What happened to a lock: an item of {@link WatchMessage}.
 *
 * @example
 * ```ts
 * import type { Change } from "@lockkeeper/client";
 *
 * export const describe = (change: Change): string => `${change.name}: ${change.kind} ${change.token ?? ""}`;
 * ```
 */
export interface Change {
  readonly name: string;
  /**
   * `granted`, `released` by its holder, `lost` by it, `revoked` by an operator; `queued`, `left` the queue without a grant; `data`
   * changed; a lock-delay began (`delayed`) or ended (`opened`); a semaphore was `resized`. `other`: a kind that this version does
   * not know.
   */
  readonly kind: "granted" | "released" | "lost" | "revoked" | "queued" | "left" | "data" | "delayed" | "opened" | "resized" | "other";
  readonly lockKind: "lock" | "entry";
  /** The grant concerned. */
  readonly token: bigint | undefined;
  /** The session of the grant or the wait. */
  readonly sessionId: string | undefined;
  /** The label of the session, of `queued` and `granted`. */
  readonly label: string | undefined;
  /** The waiter concerned; of `granted`, the wait that the grant ends. */
  readonly ticket: bigint | undefined;
  /** The operator's reason, of `revoked`, and of `lost` by force. */
  readonly reason: string | undefined;
  /** The operator's identity, of the same, where it is known. */
  readonly by: string | undefined;
  /** The data after the change, of `data`; `undefined`: none. */
  readonly data: Uint8Array | undefined;
  /** Of `queued` and `granted`; of `resized`, the new size. */
  readonly mode: LockMode | undefined;
}

/**
 * What a watch tells.
 *
 * - `state`: a part of the present state; the `first` one takes the place of all that was known, changes follow the `last` one.
 * - `changes`: those of one entry of the log. `more`: the next message goes on with the same entry.
 * - `progress`: there were no changes up to this index.
 * - `too-old`: the changes after the index from which the watch was to go on are kept no longer; the state follows.
 *
 * @example
 * ```ts
 * import type { WatchMessage } from "@lockkeeper/client";
 *
 * export function count(message: WatchMessage): number {
 *   if (message.kind === "state") return message.locks.length;
 *   return message.kind === "changes" ? message.changes.length : 0;
 * }
 * ```
 */
export type WatchMessage =
  | { readonly kind: "state"; readonly index: bigint; readonly locks: readonly LockInfo[]; readonly first: boolean; readonly last: boolean }
  | { readonly kind: "changes"; readonly index: bigint; readonly changes: readonly Change[]; readonly more: boolean }
  | { readonly kind: "progress"; readonly index: bigint }
  | { readonly kind: "too-old"; readonly afterIndex: bigint };

const SESSION_ID = /^[0-9a-f]{32}$/;

function sessionId(field: string, wire: string): string {
  if (!SESSION_ID.test(wire)) {
    throw new Malformed(field, wire);
  }
  return wire;
}

function lockName(field: string, wire: string): string {
  if (wire === "" || wire.includes("\0")) {
    throw new Malformed(field, wire);
  }
  return wire;
}

/** What the protocol writes as an empty text, or as 0. */
const given = (text: string): string | undefined => (text === "" ? undefined : text);
const set = (value: bigint): bigint | undefined => (value === 0n ? undefined : value);
const setMs = (ms: bigint): number | undefined => (ms === 0n ? undefined : Number(ms));

function mode(wire: WireMode | undefined): LockMode | undefined {
  switch (wire?.kind?.$case) {
    case "exclusive":
      return "exclusive";
    case "shared":
      return "shared";
    case "permit":
      return { permits: wire.kind.value.limit };
    case undefined:
      return undefined;
  }
}

const kind = (wire: LockKind): "lock" | "entry" => (wire === LockKind.ENTRY ? "entry" : "lock");

export function holderView(wire: WireHolder): Holder {
  return {
    token: wire.token,
    sessionId: sessionId("holder.session_id", wire.sessionId),
    label: wire.label,
    mode: mode(wire.mode),
    since: new Date(Number(wire.sinceUnixMs)),
    remainingMs: Number(wire.remainingMs),
    revokedReason: given(wire.revokedReason),
  };
}

function waiterView(wire: WireWaiter): Waiter {
  return {
    ticket: wire.ticket,
    sessionId: sessionId("waiter.session_id", wire.sessionId),
    label: wire.label,
    mode: mode(wire.mode),
    since: new Date(Number(wire.sinceUnixMs)),
    remainingMs: wire.remainingMs === undefined ? undefined : Number(wire.remainingMs),
  };
}

export function lockView(wire: WireLockInfo): LockInfo {
  return {
    name: lockName("lock.name", wire.name),
    kind: kind(wire.kind),
    mode: mode(wire.mode),
    holders: wire.holders.map(holderView),
    holderCount: Number(wire.holderCount),
    waiters: wire.waiters.map(waiterView),
    queueLength: Number(wire.queueLength),
    data: wire.data,
    keepData: wire.keepData,
    delayRemainingMs: setMs(wire.delayRemainingMs),
    resized: wire.resized,
  };
}

export function busyView(wire: WireBusy): Busy {
  return {
    name: lockName("busy.name", wire.name),
    holder: wire.holder === undefined ? undefined : holderView(wire.holder),
    queueLength: Number(wire.queueLength),
    delayRemainingMs: setMs(wire.delayRemainingMs),
  };
}

export function checkView(wire: CheckResponse): CheckAnswer {
  return {
    held: wire.held,
    holder: wire.holder === undefined ? undefined : holderView(wire.holder),
    lastToken: set(wire.lastToken),
    index: wire.index,
  };
}

export function forcedView(wire: ForceReleaseResponse_Forced): Forced {
  return {
    token: wire.token,
    sessionId: sessionId("forced.session_id", wire.sessionId),
    label: wire.label,
    remainingMs: Number(wire.remainingMs),
    lockDelayMs: Number(wire.lockDelayMs),
  };
}

const CHANGES: Readonly<Partial<Record<Change_Kind, Change["kind"]>>> = {
  [Change_Kind.GRANTED]: "granted",
  [Change_Kind.RELEASED]: "released",
  [Change_Kind.LOST]: "lost",
  [Change_Kind.REVOKED]: "revoked",
  [Change_Kind.QUEUED]: "queued",
  [Change_Kind.LEFT]: "left",
  [Change_Kind.DATA]: "data",
  [Change_Kind.DELAYED]: "delayed",
  [Change_Kind.OPENED]: "opened",
  [Change_Kind.RESIZED]: "resized",
};

function changeView(wire: WireChange): Change {
  return {
    name: lockName("change.name", wire.name),
    // A kind of a later version has a number that is not in the table.
    kind: CHANGES[wire.kind] ?? "other",
    lockKind: kind(wire.lockKind),
    token: set(wire.token),
    sessionId: wire.sessionId === "" ? undefined : sessionId("change.session_id", wire.sessionId),
    label: given(wire.label),
    ticket: set(wire.ticket),
    reason: given(wire.reason),
    by: given(wire.by),
    data: wire.data,
    mode: mode(wire.mode),
  };
}

/** `undefined`: a kind of message that only a later version knows. */
export function watchView({ what }: WatchResponse): WatchMessage | undefined {
  switch (what?.$case) {
    case "state": {
      const { index, locks, first, last } = what.value;
      return { kind: "state", index, locks: locks.map(lockView), first, last };
    }
    case "changes":
      return { kind: "changes", index: what.value.index, changes: what.value.changes.map(changeView), more: what.value.more };
    case "progress":
      return { kind: "progress", index: what.value.index };
    case "tooOld":
      return { kind: "too-old", afterIndex: what.value.afterIndex };
    case undefined:
      return undefined;
  }
}
