import { hostname } from "node:os";
import { basename } from "node:path";
import { argv, execPath, pid } from "node:process";

import { type AcquireOptions, acquireIn, checkAcquire } from "./acquire.js";
import { Caller, type CallLimits, type Cancelled } from "./call.js";
import { CertificateFiles, type TlsFiles } from "./certificate-files.js";
import { type Clock, systemClock } from "./clock.js";
import { type TlsOptions, connections } from "./credentials.js";
import { Election } from "./election.js";
import { Lost, Malformed, NotAcquired, UnknownOutcome } from "./errors.js";
import type { ForceReleaseResponse_Forced } from "./generated/lockkeeper/v1/locks.js";
import {
  checkBearerToken,
  checkEndpoints,
  checkLabel,
  checkLimit,
  checkName,
  checkPrefix,
  checkReason,
  checkToken,
  checkTtl,
  cutLabel,
} from "./limits.js";
import type { Lock } from "./lock.js";
import { type Log, logger } from "./log.js";
import { Nodes } from "./nodes.js";
import { Once } from "./once.js";
import { Session, type SessionOptions } from "./session.js";
import { sleep } from "./timers.js";
import { TokenFile, readFile } from "./token-file.js";
import { type CheckAnswer, type Forced, type LockInfo, checkView, forcedView, lockView } from "./views.js";
import { Watch, type WatchOptions } from "./watch.js";

/**
 * How a client is made.
 *
 * @example
 * ```ts
 * import { readFileSync } from "node:fs";
 * import { Client, type ClientOptions } from "@lockkeeper/client";
 *
 * export function secure(): Client {
 *   const options: ClientOptions = {
 *     endpoints: ["10.0.0.1:7101", "10.0.0.2:7101", "10.0.0.3:7101"],
 *     tls: { ca: readFileSync("ca.pem"), cert: readFileSync("client-shop.pem"), key: readFileSync("client-shop-key.pem") },
 *     ttlMs: 30_000,
 *   };
 *   return new Client(options);
 * }
 * ```
 */
export interface ClientOptions {
  /** The nodes: host:port, as a list or separated by commas. One that answers is enough; more of them help when that one is down. */
  readonly endpoints: string | readonly string[];
  /** Connect by TLS. */
  readonly tls?: TlsOptions;
  /**
   * Connect by TLS with what these files have. They are read again when a request is sent, each two seconds at the most: certificates are
   * replaced in place, and new connections have what was written into them. Without effect beside `tls`.
   */
  readonly tlsFiles?: TlsFiles;
  /** A bearer token to show with each request. */
  readonly bearerToken?: string;
  /**
   * A file with a bearer token, which is read again each second: tokens are replaced in place. While it is missing or empty, the last token
   * is shown. Without effect beside `bearerToken`.
   */
  readonly bearerTokenFile?: string;
  /**
   * How long the session lives without a renewal, and so the locks of a client that died: 100 ms to a day, default 10 s. A longer one
   * survives longer outages of the cluster, and longer blocks of the event loop.
   */
  readonly ttlMs?: number;
  /** A name of this client, for people. Default: `host process-id program`. */
  readonly label?: string;
  /** Limit of a call, repetitions included: default 10 s. */
  readonly callLimitMs?: number;
  /** How long one node has to answer before the next one is asked: default 2 s. */
  readonly attemptLimitMs?: number;
  /** Hears what the client does, for people who look for a fault. Without it, `NODE_DEBUG=lockkeeper` writes that to stderr. */
  readonly log?: Log;
  /** Asked before each request for the trace that it belongs to: the value of `traceparent` (W3C Trace Context). */
  readonly traceparent?: () => string | undefined;
}

/**
 * How locks are read.
 *
 * @example
 * ```ts
 * import type { Client, ReadOptions } from "@lockkeeper/client";
 *
 * const fast: ReadOptions = { stale: true };
 * export const queue = async (client: Client): Promise<number> => (await client.get("reports/nightly", fast)).queueLength;
 * ```
 */
export interface ReadOptions {
  /** Any node, also one that lags or is cut off, answers from its own table. Without it reads are linearizable. */
  readonly stale?: boolean;
}

/**
 * How locks are taken back.
 *
 * @example
 * ```ts
 * import type { Client, ForceReleaseOptions } from "@lockkeeper/client";
 *
 * export async function bury(client: Client, token: bigint): Promise<void> {
 *   const options: ForceReleaseOptions = { token, now: true };
 *   await client.forceRelease("reports/nightly", "host 7 is gone", options);
 * }
 * ```
 */
export interface ForceReleaseOptions {
  /** Only this grant. */
  readonly token?: bigint;
  /** Open the lock at once. Only for holders that are known to be dead: a live one could still be working. */
  readonly now?: boolean;
}

/** What returns the certificates of the moment. */
function tlsSource({ tls, tlsFiles }: ClientOptions): (() => TlsOptions) | undefined {
  if (tls !== undefined) {
    return () => tls;
  }
  if (tlsFiles === undefined) {
    return undefined;
  }
  const files = new CertificateFiles(tlsFiles);
  return () => files.tls;
}

/** What returns the bearer token of the moment. */
function bearerSource({ bearerToken, bearerTokenFile }: ClientOptions): (() => string) | undefined {
  if (bearerToken !== undefined) {
    const given = checkBearerToken(bearerToken);
    return () => given;
  }
  if (bearerTokenFile === undefined) {
    return undefined;
  }
  const file = new TokenFile(bearerTokenFile, checkBearerToken(readFile(bearerTokenFile).trim()));
  return () => file.token;
}

const TTL_MS = 10_000;
const CALL_LIMIT_MS = 10_000;
const ATTEMPT_LIMIT_MS = 2_000;

/**
 * A client of a cluster: locks, elections, watches. It connects on first use, and opens one session with its first acquire, which is
 * kept alive in the background and holds all its locks.
 *
 * Close it at the end ({@link Client.close}, or `await using`): until then its connections keep the process alive.
 *
 * A call asks one node after the other until one answers, the leader first if it is known. Calls fail with {@link InvalidArgument},
 * {@link Refused}, {@link NoCluster}, {@link UnknownOutcome} or {@link Malformed}; those that need the session, also with {@link Lost}.
 *
 * @example
 * ```ts
 * import { Client } from "@lockkeeper/client";
 *
 * await using client = new Client({ endpoints: "10.0.0.1:7101,10.0.0.2:7101,10.0.0.3:7101" });
 * await client.using("reports/nightly", { waitMs: 60_000 }, async (lock) => {
 *   await fetch("http://reports/build", { method: "POST", headers: { fence: String(lock.token) }, signal: lock.signal });
 * });
 * ```
 */
export class Client {
  readonly #caller: Caller;
  readonly #options: SessionOptions;
  readonly #clock: Clock;
  /** Fires when the client is closed; the error of all that is under way. */
  readonly #closed = new Once<Lost>();
  /** Fires when nobody waits any more for the session that is being opened. */
  readonly #unwanted = new Once<Lost>();
  #session: Session | undefined;
  #opening: Promise<Session> | undefined;
  #closing: Promise<void> | undefined;

  /** Sends nothing. Fails with {@link InvalidArgument}. */
  constructor(options: ClientOptions) {
    const limits: CallLimits = {
      callLimitMs: checkLimit("callLimitMs", options.callLimitMs ?? CALL_LIMIT_MS),
      attemptLimitMs: checkLimit("attemptLimitMs", options.attemptLimitMs ?? ATTEMPT_LIMIT_MS),
    };
    this.#options = {
      ttlMs: checkTtl(options.ttlMs ?? TTL_MS),
      label: options.label === undefined ? usualLabel() : checkLabel(options.label),
    };
    this.#clock = systemClock();

    const dial = {
      connection: connections(tlsSource(options)),
      bearerToken: bearerSource(options),
      traceparent: options.traceparent,
    };
    const addresses = checkEndpoints(options.endpoints, options.tls !== undefined || options.tlsFiles !== undefined);
    this.#caller = new Caller(new Nodes(addresses, dial), limits, logger(options.log));
  }

  /** The nodes that it was made with: host:port. */
  get endpoints(): readonly string[] {
    return this.#caller.nodes.endpoints;
  }

  /** The id of its session, 32 hexadecimal digits; `undefined` before the first acquire, and after a loss. */
  get sessionId(): string | undefined {
    return this.#session?.lease.loss() === undefined ? this.#session?.id : undefined;
  }

  /**
   * Holds the locks while `body` runs: acquires, runs it, releases, and returns what it returned.
   *
   * `body` gets the {@link Lock}: its `signal` for what must stop when the lock is lost, its `token` for what it writes. If the lock was
   * lost before `body` returned, `using` fails with {@link Lost}: the work may have overlapped with that of another holder.
   *
   * Fails as {@link Client.acquire}, and with what `body` throws.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * const sold = await client.using("seats/A5", { waitMs: 5_000, data: "buyer 17" }, async (lock) => {
   *   await lock.ensure(2_000);
   *   return `sold under token ${lock.token}`;
   * });
   * console.log(sold);
   * ```
   */
  async using<T>(names: string | readonly string[], options: AcquireOptions, body: (lock: Lock) => Promise<T> | T): Promise<T> {
    const lock = await this.acquire(names, options);
    let result: T;
    try {
      result = await body(lock);
    } catch (error) {
      await lock[Symbol.asyncDispose]();
      throw error;
    }

    const loss = lock.loss;
    if (loss?.reason === "released") {
      return result;
    }
    try {
      await lock.release();
    } catch (error) {
      // What is not confirmed yet goes on in the background, and the work was done in time.
      if (!(error instanceof UnknownOutcome) || loss !== undefined) {
        throw loss ?? error;
      }
    }
    if (loss !== undefined) {
      throw loss;
    }
    return result;
  }

  /**
   * Acquires one lock, or several at once, all or nothing. Such acquires cannot deadlock among each other. While one waits, it has a
   * place in the queue of each of its locks, so later ones wait behind it: name no more locks than must be held together.
   *
   * A wait survives a broken connection and a change of leader, and keeps its place in the queue.
   *
   * Fails with {@link NotAcquired} if the locks were not available, or not in time; with the reason of `options.signal`; and else as
   * all calls.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * await using transfer = await client.acquire(["accounts/ann", "accounts/bob"], { waitMs: 5_000 });
   * console.log(transfer.token, transfer.remainingMs);
   * ```
   */
  async acquire(names: string | readonly string[], options: AcquireOptions = {}): Promise<Lock> {
    return this.#acquire(names, options, Infinity);
  }

  /**
   * As {@link Client.acquire}, but without waiting unless `waitMs` says so, and with `null` where the locks were not available.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * const lock = await client.tryAcquire("jobs/nightly");
   * if (lock !== null) {
   *   await using held = lock;
   *   console.log("mine", held.token);
   * }
   * ```
   */
  async tryAcquire(names: string | readonly string[], options: AcquireOptions = {}): Promise<Lock | null> {
    try {
      return await this.#acquire(names, options, 0);
    } catch (error) {
      if (error instanceof NotAcquired) {
        return null;
      }
      throw error;
    }
  }

  async #acquire(names: string | readonly string[], options: AcquireOptions, usualWaitMs: number): Promise<Lock> {
    const acquire = checkAcquire(names, options, usualWaitMs);
    const { signal } = options;
    signal?.throwIfAborted();

    const cancelled = new Once<unknown>();
    const cancel = (): void => {
      cancelled.fire(signal?.reason);
    };
    signal?.addEventListener("abort", cancel, { once: true });
    const stop = this.#closed.on((lost) => {
      cancelled.fire(lost);
    });
    try {
      const session = await this.#opened(cancelled);
      return await acquireIn(session, acquire, cancelled);
    } finally {
      stop();
      signal?.removeEventListener("abort", cancel);
    }
  }

  /** The session, which is opened once for all that ask for it meanwhile. Who is cancelled does not stop it for the others. */
  async #opened(cancelled: Cancelled): Promise<Session> {
    if (cancelled.happened) {
      throw cancelled.value;
    }
    if (this.#session !== undefined && this.#session.lease.loss() === undefined) {
      return this.#session;
    }

    this.#opening ??= this.#open();
    const opening = this.#opening;
    return new Promise((resolve, reject) => {
      const stop = cancelled.on(reject);
      opening.then(resolve, reject).finally(stop);
    });
  }

  async #open(): Promise<Session> {
    try {
      this.#session = await Session.open(this.#caller, this.#clock, this.#options, this.#unwanted);
      return this.#session;
    } finally {
      this.#opening = undefined;
    }
  }

  /**
   * An election: its leader is the holder of the lock of this name. Sends nothing. Fails with {@link InvalidArgument}.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * for await (const leader of client.election("schedulers").observe()) console.log(leader?.label ?? "nobody leads");
   * ```
   */
  election(name: string): Election {
    return new Election(this, checkName(name));
  }

  /**
   * Watches the locks under a prefix: their present state, then every change. Sends nothing before it is read.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * for await (const message of client.watch("reports/")) {
   *   if (message.kind === "changes") console.log(message.changes);
   * }
   * ```
   */
  watch(prefix: string, options: WatchOptions = {}): Watch {
    return new Watch(this.#caller, checkPrefix(prefix), options, this.#closed);
  }

  /**
   * One lock: its first 1,000 holders and waiters, and its data. One that does not exist is shown as free.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * console.log((await client.get("reports/nightly")).holders);
   * ```
   */
  async get(name: string, options: ReadOptions = {}): Promise<LockInfo> {
    const request = { name: checkName(name), pageSize: 0, holdersAfter: 0n, waitersAfter: 0n, stale: options.stale ?? false };
    const { lock } = await this.#caller.call(this.#caller.readPolicy, (node) => node.pipeline.get(request), this.#closed);
    if (lock === undefined) {
      throw new Malformed("lock", "");
    }
    return lockView(lock);
  }

  /**
   * The locks under a prefix, in the order of their names. They are asked for page by page, as the loop goes on; each page is
   * linearizable, several are no one snapshot.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * for await (const lock of client.list("reports/")) console.log(lock.name, lock.holderCount);
   * ```
   */
  async *list(prefix = "", options: ReadOptions = {}): AsyncGenerator<LockInfo, void, undefined> {
    const request = { prefix: checkPrefix(prefix), pageToken: "", pageSize: 0, stale: options.stale ?? false };
    do {
      const page = await this.#caller.call(this.#caller.readPolicy, (node) => node.list(request), this.#closed);
      request.pageToken = page.nextPageToken;
      yield* page.locks.map(lockView);
    } while (request.pageToken !== "");
  }

  /**
   * Whether this token holds this lock now. The answer can be out of date when it arrives: a resource that remembers tokens is not.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * if (!(await client.check("reports/nightly", 42n)).held) console.log("token 42 does not hold it");
   * ```
   */
  async check(name: string, token: bigint): Promise<CheckAnswer> {
    const request = { name: checkName(name), token: checkToken(token) };
    return checkView(await this.#caller.call(this.#caller.readPolicy, (node) => node.pipeline.check(request), this.#closed));
  }

  /**
   * Takes a lock back from its holders: an operator's act. `reason` is told to them and is logged. A holder has until its present
   * deadline to release; then, or with `now` at once, the lock is open. Returns the grants that are revoked; none, if nobody holds it.
   *
   * Without a token it is not repeated once its outcome is unknown: the lock may have another holder by then.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * await using client = connect();
   * for (const { label, remainingMs } of await client.forceRelease("reports/nightly", "maintenance at 9")) {
   *   console.log(`${label} has ${remainingMs} ms to stop`);
   * }
   * ```
   */
  async forceRelease(name: string, reason: string, options: ForceReleaseOptions = {}): Promise<Forced[]> {
    const { token, now = false } = options;
    const request = {
      name: checkName(name),
      reason: checkReason(reason),
      token: token === undefined ? 0n : checkToken(token),
      now,
      afterToken: 0n,
      upToToken: 0n,
    };
    const policy = token === undefined ? this.#caller.oncePolicy : this.#caller.policy;

    const forced: ForceReleaseResponse_Forced[] = [];
    for (;;) {
      const part = await this.#caller.call(policy, (node) => node.forceRelease(request), this.#closed);
      forced.push(...part.forced);
      const last = part.forced.at(-1);
      if (part.moreUpToToken === 0n || last === undefined) {
        // At the end: a value that is malformed must not leave later grants unrevoked.
        return forced.map(forcedView);
      }
      request.afterToken = last.token;
      request.upToToken = part.moreUpToToken;
    }
  }

  /**
   * Releases all that it holds, ends all that is under way, and closes its connections: nothing of it keeps the process alive after
   * that. From the call on all its locks count as lost, with the reason `closed`.
   *
   * Fails if the cluster did not confirm within the limit of a call; then the session expires by itself. A second call returns the
   * outcome of the first.
   *
   * @example
   * ```ts
   * import { connect } from "@lockkeeper/client";
   *
   * const client = connect();
   * process.once("SIGTERM", () => void client.close());
   * ```
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  /** Closes it, at the end of the scope of an `await using`. That the cluster did not confirm is logged, and no error. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.close();
    } catch (error) {
      this.#caller.log({ level: "warn", event: "not-closed", message: String(error) });
    }
  }

  async #close(): Promise<void> {
    const opening = this.#opening;
    this.#closed.fire(new Lost({ reason: "closed" }));
    try {
      if (opening !== undefined) {
        await this.#awaitOpening(opening);
      }
      await this.#session?.close();
      await this.#caller.finish();
    } finally {
      this.#caller.end(new Lost({ reason: "closed" }));
    }
  }

  /** A session that is being opened may exist at the cluster already: its answer is awaited for a while, so that it can be closed. */
  async #awaitOpening(opening: Promise<Session>): Promise<void> {
    const opened = new Once<undefined>();
    const settled = opening
      .catch(() => undefined)
      .then(() => {
        opened.fire(undefined);
      });
    await sleep(this.#caller.limits.attemptLimitMs, opened);
    this.#unwanted.fire(new Lost({ reason: "closed" }));
    await settled;
  }
}

/** `host process-id program`. */
function usualLabel(): string {
  return cutLabel(`${hostname()} ${pid} ${basename(argv[1] ?? execPath)}`);
}
