import { InvalidArgument, type Loss, Lost, NotEnsured, Refused, UnknownOutcome } from "./errors.js";
import { checkData, checkName } from "./limits.js";
import { Once } from "./once.js";
import type { Session } from "./session.js";
import { sleep } from "./timers.js";

/**
 * How data are set on a lock that is held.
 *
 * @example
 * ```ts
 * import type { Lock, UpdateOptions } from "@lockkeeper/client";
 *
 * export async function halfDone(lock: Lock): Promise<void> {
 *   const options: UpdateOptions = { keep: true };
 *   await lock.update("half done", options);
 * }
 * ```
 */
export interface UpdateOptions {
  /** Which lock, of a grant of several. */
  readonly name?: string;
  /** Keep the data when the grant ends. */
  readonly keep?: boolean;
}

/**
 * Locks that are held, by one grant.
 *
 * The cluster gives them to nobody else before {@link Lock.remainingMs} is 0. A process that is paused inside a write does not notice
 * that moment: for that case the resource checks {@link Lock.token}, which goes with each write.
 *
 * It is released by {@link Lock.release}, at the end of the scope of an `await using`, or with {@link Client.close}. One that is only
 * dropped stays held, since the work that it protects may still be under way.
 *
 * @example
 * ```ts
 * import type { Client } from "@lockkeeper/client";
 *
 * export async function sell(client: Client, seat: string, write: (fence: bigint) => Promise<void>): Promise<void> {
 *   await using lock = await client.acquire(`seats/${seat}`, { waitMs: 5_000 });
 *   await lock.ensure(2_000); // enough time for what comes
 *   await write(lock.token);
 * }
 * ```
 */
export class Lock {
  /** The fencing token of the grant: higher than that of any earlier one in the whole cluster, for ever. */
  readonly token: bigint;
  /** The names of the locks, sorted as the cluster sorts them. */
  readonly names: readonly string[];
  /**
   * Whether the acquire lost its place in a queue before it was granted. The cluster cancels a wait whose call was broken for too long;
   * it is then queued again at the end, so later ones may have been served first.
   */
  readonly placeLost: boolean;
  readonly #session: Session;
  readonly #lost = new Once<Loss>();
  #controller: AbortController | undefined;
  #released: Promise<void> | undefined;

  /** @internal */
  constructor(session: Session, token: bigint, names: readonly string[], placeLost: boolean) {
    this.#session = session;
    this.token = token;
    this.names = names;
    this.placeLost = placeLost;
    session.listen(token, (loss) => {
      this.#lose(loss);
    });
  }

  /**
   * Aborted when the lock is lost or released; the reason is a {@link Lost}. Pass it to what must stop then, such as `fetch`.
   *
   * It asks the clock whenever its `aborted` is read, so it is right also on the first line after an event loop was blocked.
   */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      lookBefore(this.#controller.signal, () => {
        this.#look();
      });
      const loss = this.loss;
      if (loss !== undefined) {
        this.#controller.abort(loss);
      }
    }
    return this.#controller.signal;
  }

  /**
   * How the lock was lost; `undefined`: it is held. One that an operator revoked counts as lost at once, although it stays closed to
   * others for {@link Lock.remainingMs}: that is the time for stopping.
   */
  get loss(): Lost | undefined {
    this.#look();
    const loss = this.#lost.value;
    return loss === undefined ? undefined : new Lost(loss);
  }

  /** For how long the lock may still be trusted, milliseconds. 0: it is lost. */
  get remainingMs(): number {
    this.#look();
    return this.#released === undefined ? this.#session.lease.remainingMs(this.token) : 0;
  }

  /** Throws a {@link Lost} if the lock is lost. */
  throwIfLost(): void {
    const loss = this.loss;
    if (loss !== undefined) {
      throw loss;
    }
  }

  /**
   * Makes sure that the lock may be trusted for so many milliseconds from now, and returns for how many it may. Renews the session at
   * once if it must; else nothing is sent.
   *
   * Fails with {@link Lost}, with {@link NotEnsured} if the TTL is too short, or as the calls of {@link Client} do.
   */
  async ensure(minLeftMs: number): Promise<number> {
    if (!(minLeftMs >= 0)) {
      throw new InvalidArgument(`ensure was asked for ${minLeftMs} ms: give 0 or more`);
    }
    if (this.loss === undefined && this.remainingMs < minLeftMs) {
      await this.#session.renew();
    }
    this.throwIfLost();

    const left = this.remainingMs;
    if (left < minLeftMs) {
      throw new NotEnsured(left, minLeftMs);
    }
    return left;
  }

  /**
   * Sets data on the lock, 16 KiB at most, or removes them (`null`). All clients can read them.
   *
   * Fails with {@link Lost}, with {@link Refused} and the reason `NOT_HELD`, or as the calls of {@link Client} do.
   */
  async update(data: string | Uint8Array | null, options: UpdateOptions = {}): Promise<void> {
    const name = checkName(options.name ?? this.#onlyName());
    const bytes = data === null ? undefined : checkData(data);
    this.throwIfLost();

    const session = this.#session;
    const request = session.requests.begin();
    try {
      await session.whileAlive(session.caller.policy, (node) =>
        node.update({
          sessionId: session.id,
          request: request.message(),
          token: this.token,
          name,
          data: bytes,
          keepData: options.keep ?? false,
        }),
      );
    } catch (error) {
      if (error instanceof Lost && error.reason === "revoked") {
        // This answer can come before the word of the keep-alive stream.
        session.lease.revoke({ token: this.token, reason: error.operatorReason ?? "", remainingMs: 0 });
      }
      throw error;
    } finally {
      request.end();
    }
  }

  /**
   * Releases the locks. From now on they count as lost, with the reason `released`. A second call returns the outcome of the first.
   *
   * Fails with {@link Lost}, or with {@link Refused} and the reason `NOT_HELD`, if they were lost before; with {@link UnknownOutcome}
   * if nothing was confirmed within the limit of a call. The release goes on in the background until it is confirmed or the session is
   * over.
   */
  async release(): Promise<void> {
    this.#released ??= this.#begin();
    const { caller } = this.#session;
    const confirmed = new Once<void>();
    const done = this.#released.finally(() => {
      confirmed.fire();
    });
    const late = sleep(caller.limits.callLimitMs, confirmed).then((isLate) => {
      if (isLate) {
        throw new UnknownOutcome("no confirmation within the limit of the call; the release goes on in the background");
      }
      return done;
    });
    // Whichever comes second has no reader.
    done.catch(() => undefined);
    late.catch(() => undefined);
    await Promise.race([done, late]);
  }

  /** Releases the locks, at the end of the scope of an `await using`. A lock that was lost before is no error here: its signal told. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      const { caller, id } = this.#session;
      caller.log({ level: "debug", event: "release-failed", message: String(error), sessionId: id });
    }
  }

  #begin(): Promise<void> {
    const session = this.#session;
    const before = this.loss;
    // Before anything is sent: on arrival, the locks may be granted to others.
    this.#lose({ reason: "released" });
    const released = this.#release(before);
    released
      .catch(() => undefined)
      .finally(() => {
        session.forget(this.token);
      });
    return released;
  }

  async #release(before: Lost | undefined): Promise<void> {
    if (before !== undefined && before.reason !== "revoked") {
      throw before;
    }
    try {
      await this.#session.release({ $case: "token", value: this.token });
    } catch (error) {
      // A grant that was taken by force is not held. Once that is acknowledged, the cluster tells it no more.
      throw before !== undefined && error instanceof Refused && error.reason === "NOT_HELD" ? before : error;
    }
  }

  #look(): void {
    const loss = this.#lost.happened ? undefined : this.#session.lease.loss(this.token);
    if (loss !== undefined) {
      this.#lose(loss);
    }
  }

  #lose(loss: Loss): void {
    if (!this.#lost.happened) {
      this.#lost.fire(loss);
      this.#controller?.abort(new Lost(loss));
    }
  }

  #onlyName(): string {
    const [name] = this.names;
    if (name === undefined || this.names.length > 1) {
      throw new InvalidArgument(`the grant is of ${this.names.length} locks: say which one (options.name)`);
    }
    return name;
  }
}

/** Lets a signal look at the clock before it answers. It stays the platform's own: `fetch` and others take it. */
function lookBefore(signal: AbortSignal, look: () => void): void {
  const prototype = Object.getPrototypeOf(signal) as object;
  for (const property of ["aborted", "reason"]) {
    Object.defineProperty(signal, property, {
      configurable: true,
      get(): unknown {
        look();
        return Reflect.get(prototype, property, signal) as unknown;
      },
    });
  }
  Object.defineProperty(signal, "throwIfAborted", {
    configurable: true,
    value(): void {
      if (signal.aborted) {
        throw signal.reason;
      }
    },
  });
}
