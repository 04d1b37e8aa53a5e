/**
 * Elections: one leader at a time, visible to all, with an epoch for each leadership.
 *
 * An election is a lock and its data. Its holder leads, the data are the leader's *value*, usually its address, and the token is the
 * *epoch*. So all that holds for locks holds here: candidates lead in the order of their arrival, a dead leader is replaced after the
 * TTL of its session and never before, and one that resigns at once.
 */
import type { AcquireOptions } from "./acquire.js";
import type { Client } from "./client.js";
import { type Lost, NotAcquired } from "./errors.js";
import type { Lock } from "./lock.js";
import { Once } from "./once.js";
import { sleep } from "./timers.js";
import { type Change, type LockInfo, type WatchMessage } from "./views.js";
import type { Watch } from "./watch.js";

/**
 * The present leader.
 *
 * @example
 * ```ts
 * import type { Election, Leader } from "@lockkeeper/client";
 *
 * export async function whereTo(election: Election): Promise<string | undefined> {
 *   const leader: Leader | null = await election.leader();
 *   return leader === null ? undefined : new TextDecoder().decode(leader.value);
 * }
 * ```
 */
export interface Leader {
  /** Higher than that of any earlier leader: the token of its grant. */
  readonly epoch: bigint;
  /** What it published last; empty if nothing. */
  readonly value: Uint8Array;
  /** The label of its session, for people. */
  readonly label: string;
  readonly sessionId: string;
}

/**
 * How a candidate stands. The default: until it leads.
 *
 * @example
 * ```ts
 * import type { CampaignOptions, Election, Leadership } from "@lockkeeper/client";
 *
 * const soon: CampaignOptions = { waitMs: 5_000 };
 * export const stand = (election: Election): Promise<Leadership> => election.campaign("10.0.0.7:9000", soon);
 * ```
 */
export type CampaignOptions = Pick<AcquireOptions, "waitMs" | "lockDelayMs" | "signal">;

/**
 * Ends an observation.
 *
 * @example
 * ```ts
 * import type { Election, ObserveOptions } from "@lockkeeper/client";
 *
 * export async function forAMinute(election: Election): Promise<void> {
 *   const options: ObserveOptions = { signal: AbortSignal.timeout(60_000) };
 *   for await (const leader of election.observe(options)) console.log(leader?.epoch);
 * }
 * ```
 */
export interface ObserveOptions {
  /** The loop over the observation ends. */
  readonly signal?: AbortSignal;
}

/**
 * A won election. Its end is told as that of a {@link Lock}.
 *
 * @example
 * ```ts
 * import type { Leadership } from "@lockkeeper/client";
 *
 * export async function lead(leadership: Leadership, step: (epoch: bigint) => Promise<void>): Promise<void> {
 *   while (!leadership.signal.aborted) await step(leadership.epoch);
 * }
 * ```
 */
export class Leadership {
  /** The grant that it rests on. */
  readonly lock: Lock;

  /** @internal */
  constructor(lock: Lock) {
    this.lock = lock;
  }

  /** Higher than that of any earlier leader. Send it with all that the leader writes, and let receivers refuse lower ones. */
  get epoch(): bigint {
    return this.lock.token;
  }

  /** Aborted when the leadership is lost or resigned: {@link Lock.signal}. */
  get signal(): AbortSignal {
    return this.lock.signal;
  }

  /** For how long no other leader is possible, milliseconds. 0: the leadership is lost. */
  get remainingMs(): number {
    return this.lock.remainingMs;
  }

  /** How it was lost: {@link Lock.loss}. */
  get loss(): Lost | undefined {
    return this.lock.loss;
  }

  /** Publishes another value, 16 KiB at most. It ends with the leadership. Fails as {@link Lock.update}. */
  async proclaim(value: string | Uint8Array): Promise<void> {
    await this.lock.update(value);
  }

  /** Gives the leadership up; the next candidate leads at once. Fails as {@link Lock.release}. */
  async resign(): Promise<void> {
    await this.lock.release();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.lock[Symbol.asyncDispose]();
  }
}

/**
 * An election, by its name, which is the name of its lock: {@link Client.election}.
 *
 * @example
 * ```ts
 * import { type Client, type Election, Lost } from "@lockkeeper/client";
 *
 * export async function schedule(client: Client, work: (epoch: bigint, signal: AbortSignal) => Promise<void>): Promise<void> {
 *   const election: Election = client.election("schedulers");
 *   for (;;) {
 *     try {
 *       await using leadership = await election.campaign("10.0.0.7:9000");
 *       await work(leadership.epoch, leadership.signal);
 *     } catch (error) {
 *       if (!(error instanceof Lost)) throw error; // else stand again
 *     }
 *   }
 * }
 * ```
 */
export class Election {
  readonly name: string;
  readonly #client: Client;

  /** @internal */
  constructor(client: Client, name: string) {
    this.#client = client;
    this.name = name;
  }

  /**
   * Stands for election, and leads after all earlier candidates are gone. `value`, 16 KiB at most, is shown to observers; it may be
   * empty. Fails as {@link Client.acquire}.
   */
  async campaign(value: string | Uint8Array, options: CampaignOptions = {}): Promise<Leadership> {
    return new Leadership(await this.#client.acquire(this.name, { ...options, data: value }));
  }

  /** As {@link Election.campaign}, without waiting unless `waitMs` says so; `null`: another one leads. */
  async tryCampaign(value: string | Uint8Array, options: CampaignOptions = {}): Promise<Leadership | null> {
    try {
      return await this.campaign(value, { waitMs: 0, ...options });
    } catch (error) {
      if (error instanceof NotAcquired) {
        return null;
      }
      throw error;
    }
  }

  /** The present leader; `null`: there is none. Linearizable. Fails as {@link Client.get}. */
  async leader(): Promise<Leader | null> {
    return leaderFrom(await this.#client.get(this.name));
  }

  /**
   * The present leader, then each change: another leader, another value, or none. Who reads slowly is told the latest. Epochs never
   * go down, and a new leader is never shown with the value of the one before.
   *
   * The loss of a node is not seen. While no node answers nothing is told, and it goes on by itself.
   */
  observe(options: ObserveOptions = {}): AsyncIterableIterator<Leader | null, undefined, undefined> {
    return new Observation(this.#client.watch(this.name, options), this.name);
  }
}

/** A pause after an error: some come at once. */
const ERROR_PAUSE_MS = 1_000;

/**
 * Reads the watch without delay and keeps the latest state alone. It begins with the first `next`, and ends with `return`.
 *
 * A watch is of a *prefix*: changes of other locks are left out.
 */
class Observation implements AsyncIterableIterator<Leader | null, undefined, undefined> {
  readonly #watch: Watch;
  readonly #state: LockState;
  #latest: Leader | null | undefined;
  #told: Leader | null | undefined;
  readonly #over = new Once<void>();
  #isRunning = false;
  #failed: { readonly error: unknown } | undefined;
  #wake: (() => void)[] = [];

  constructor(watch: Watch, name: string) {
    this.#watch = watch;
    this.#state = new LockState(name);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Leader | null, undefined>> {
    if (!this.#isRunning && !this.#over.happened) {
      this.#isRunning = true;
      void this.#run();
    }
    for (;;) {
      const latest = this.#latest;
      if (latest !== undefined && !isSame(latest, this.#told)) {
        this.#told = latest;
        return { done: false, value: latest };
      }
      if (this.#failed !== undefined) {
        throw this.#failed.error;
      }
      if (this.#over.happened) {
        return { done: true, value: undefined };
      }
      await new Promise<void>((resolve) => this.#wake.push(resolve));
    }
  }

  async return(): Promise<IteratorResult<Leader | null, undefined>> {
    this.#over.fire();
    this.#wakeAll();
    await this.#watch.return();
    return { done: true, value: undefined };
  }

  async #run(): Promise<void> {
    while (!this.#over.happened) {
      try {
        const { done, value } = await this.#watch.next();
        if (done === true) {
          break;
        }
        const told = this.#state.hear(value);
        this.#latest = told === undefined ? this.#latest : told;
      } catch (error) {
        if (isFinal(error)) {
          this.#failed = { error };
          break;
        }
        await sleep(ERROR_PAUSE_MS, this.#over);
      }
      this.#wakeAll();
    }
    this.#over.fire();
    this.#wakeAll();
  }

  #wakeAll(): void {
    const wake = this.#wake;
    this.#wake = [];
    for (const resolve of wake) {
      resolve();
    }
  }
}

/** A refusal, such as of a client that may not read. A watch that finds no node goes on. */
function isFinal(error: unknown): boolean {
  return error instanceof Error && error.name === "Refused";
}

function isSame(a: Leader | null, b: Leader | null | undefined): boolean {
  if (a === null || b === null || b === undefined) {
    return a === b;
  }
  return a.epoch === b.epoch && a.value.length === b.value.length && a.value.every((byte, place) => byte === b.value[place]);
}

/** A sharer or the holder of a permit is one of several, and no leader. */
export function leaderFrom(lock: LockInfo): Leader | null {
  const [holder] = lock.holders;
  if (holder?.mode !== "exclusive") {
    return null;
  }
  const { token, label, sessionId } = holder;
  return { epoch: token, value: lock.data ?? new Uint8Array(), label, sessionId };
}

/**
 * One lock of a watch. Only the state after each message counts: a grant and the leader's value are in one entry of the log, and so
 * in one message.
 */
export class LockState {
  readonly #name: string;
  #holder: Leader | null = null;
  #data: Uint8Array = new Uint8Array();
  #highest = 0n;
  /** An entry of the log began with a change of this lock, and goes on in the next message. */
  #isWithin = false;

  constructor(name: string) {
    this.#name = name;
  }

  /** The leader after this message; `undefined`: it says nothing of this lock, or less than is known. */
  hear(message: WatchMessage): Leader | null | undefined {
    let isConcerned = this.#isWithin;
    if (message.kind === "state" && message.first) {
      this.#isWithin = false;
      this.#begin(message.locks);
      isConcerned = true;
    } else if (message.kind === "changes") {
      for (const change of message.changes.filter(({ name }) => name === this.#name)) {
        this.#change(change);
        isConcerned = true;
      }
      // A new leader and its value may be in two parts of one entry: nothing is told in between.
      this.#isWithin = isConcerned && message.more;
    }
    if (this.#isWithin) {
      return undefined;
    }

    // A node that lags shows an earlier leader after a later one.
    if (!isConcerned || (this.#holder !== null && this.#holder.epoch < this.#highest)) {
      return undefined;
    }
    this.#highest = this.#holder?.epoch ?? this.#highest;
    return this.#holder === null ? null : { ...this.#holder, value: this.#data };
  }

  /** The state is sorted by name, and the lock is the first of all names with this prefix: it is in the first part, or nowhere. */
  #begin(locks: readonly LockInfo[]): void {
    const lock = locks.find(({ name }) => name === this.#name);
    this.#data = lock?.data ?? new Uint8Array();
    this.#holder = lock === undefined ? null : leaderFrom(lock);
  }

  #change({ kind, token, sessionId, label, data, mode }: Change): void {
    switch (kind) {
      case "granted":
        if (mode === "exclusive" && token !== undefined && sessionId !== undefined) {
          this.#holder = { epoch: token, value: new Uint8Array(), label: label ?? "", sessionId };
        }
        return;
      case "released":
      case "lost":
        this.#holder = this.#holder?.epoch === token ? null : this.#holder;
        return;
      case "data":
        this.#data = data ?? new Uint8Array();
        return;
      default:
        return;
    }
  }
}
