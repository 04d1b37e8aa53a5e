/**
 * A session: the client's lease with the cluster, and what all its requests share.
 *
 * A client opens one with its first acquire, and another one when that is lost. It is renewed in the background until it ends.
 */
import { randomBytes } from "node:crypto";

import { Backoff } from "./backoff.js";
import type { Caller, Cancelled, Policy } from "./call.js";
import type { Clock } from "./clock.js";
import { type Loss, Lost, Refused, UnknownOutcome, messageOf } from "./errors.js";
import { CallError } from "./failure.js";
import type { ReleaseRequest } from "./generated/lockkeeper/v1/locks.js";
import type { CloseSessionResponse, OpenSessionResponse, RenewSessionResponse } from "./generated/lockkeeper/v1/sessions.js";
import { keepAlive, revocation } from "./keep-alive.js";
import { Lease, lossOf } from "./lease.js";
import type { Answer, Node, Sent } from "./node.js";
import { type Outstanding, Requests } from "./requests.js";
import { monotonicMs, sleep } from "./timers.js";

const UNIMPLEMENTED = 12;

export interface SessionOptions {
  readonly ttlMs: number;
  readonly label: string;
}

/** What is told of a grant: by the session, which knows the token alone. */
export type GrantListener = (loss: Loss) => void;

/** The loss of the session that a refusal implies. */
export function sessionLoss(reason: string): Loss | undefined {
  switch (reason) {
    case "SESSION_UNKNOWN":
      return { reason: "unknown" };
    case "SESSION_EXPIRED":
      return { reason: "expired" };
    case "SESSION_CLOSED":
      return { reason: "closed" };
    default:
      return undefined;
  }
}

export class Session {
  readonly id: string;
  readonly ttlMs: number;
  readonly caller: Caller;
  readonly lease: Lease;
  readonly requests = new Requests();
  /** Who wants to hear of a grant. */
  readonly #grants = new Map<bigint, GrantListener>();

  private constructor(caller: Caller, clock: Clock, id: string, sent: number, ttlMs: number) {
    this.caller = caller;
    this.id = id;
    this.ttlMs = ttlMs;
    this.lease = new Lease(
      clock,
      {
        revoked: (token, loss) => {
          this.#log("warn", "revoked", `an operator revoked the grant with token ${token}: ${loss.operatorReason ?? ""}`);
          this.#grants.get(token)?.(loss);
        },
        taken: (token) => {
          void this.#acknowledge(token);
        },
      },
      sent,
      ttlMs,
    );

    this.lease.ended.on((lost) => {
      const isOwn = lost.reason === "closed";
      this.#log(isOwn ? "debug" : "warn", isOwn ? "session-closed" : "session-lost", lost.message);
      for (const listener of [...this.#grants.values()]) {
        listener(lossOf(lost));
      }
      this.#grants.clear();
      if (lost.reason === "out-of-contact") {
        closeInBackground(caller, id);
      }
    });
  }

  /** Opens a session, and keeps it alive. Fails as calls do, or with the value of `cancelled`. */
  static async open(caller: Caller, clock: Clock, options: SessionOptions, cancelled: Cancelled): Promise<Session> {
    const until = monotonicMs() + caller.limits.callLimitMs;
    for (;;) {
      try {
        const session = await Session.#openOnce(caller, clock, options, cancelled);
        session.#log("debug", "session-opened", `a session with a TTL of ${session.ttlMs} ms is open`);
        void keepAlive(session);
        return session;
      } catch (error) {
        // The answer to an open can be lost with a leader that dies. A session with a short TTL can then be over before a repetition
        // reaches the next leader, and its id is used up.
        if (!isOver(error) || cancelled.happened || monotonicMs() >= until) {
          throw error;
        }
      }
    }
  }

  static async #openOnce(caller: Caller, clock: Clock, { ttlMs, label }: SessionOptions, cancelled: Cancelled): Promise<Session> {
    const id = randomBytes(16).toString("hex");
    // Before the first attempt: which one is answered is not known, and the first one gives the earliest deadline.
    const sent = clock.now();
    let answer: OpenSessionResponse;
    try {
      answer = await caller.call(caller.policy, (node) => node.open({ sessionId: id, ttlMs, label }), cancelled);
    } catch (error) {
      if (error instanceof UnknownOutcome || cancelled.happened) {
        // It may exist all the same.
        closeInBackground(caller, id);
      }
      throw error;
    }
    const session = new Session(caller, clock, id, sent, answer.ttlMs);
    try {
      // The open took long: renew now, rather than begin with a lease that is about to end.
      if (session.lease.remainingMs() < answer.ttlMs / 2) {
        await session.renew(cancelled);
      }
    } catch (error) {
      session.lease.end({ reason: "closed" });
      closeInBackground(caller, id);
      throw error;
    }
    return session;
  }

  /** Calls back when this grant is lost by a word of the cluster, or with the session. */
  listen(token: bigint, listener: GrantListener): void {
    this.#grants.set(token, listener);
  }

  /** The grant is released. */
  forget(token: bigint): void {
    this.#grants.delete(token);
    this.lease.forget(token);
  }

  /** A call of the session: it fails with the loss as soon as the session is lost, and learns of a loss from a refusal. */
  async whileAlive<A>(policy: Policy, send: (node: Node) => Sent<A>, ...cancelled: readonly (Cancelled | undefined)[]): Promise<A> {
    try {
      return await this.caller.call(policy, send, this.lease.ended, ...cancelled);
    } catch (error) {
      throw this.#learn(error);
    }
  }

  #learn(error: unknown): unknown {
    if (error instanceof Refused) {
      const loss = sessionLoss(error.reason);
      if (loss !== undefined) {
        this.lease.end(loss);
        return new Lost(loss);
      }
    }
    // A new one, with the stack of this call.
    return error === this.lease.ended.value && error instanceof Lost ? new Lost(lossOf(error)) : error;
  }

  /** Renews it once, by a call of its own. */
  async renew(...cancelled: readonly (Cancelled | undefined)[]): Promise<void> {
    let sent = this.lease.now();
    const answer: RenewSessionResponse = await this.whileAlive(
      this.caller.policy,
      (node) => {
        // An answer belongs to the last attempt, so its sending counts.
        sent = this.lease.now();
        return node.renew({ sessionId: this.id });
      },
      ...cancelled,
    );
    this.lease.renewed({ sent, ttlMs: answer.ttlMs, revoked: answer.revoked.map(revocation), moreRevoked: answer.moreRevoked });
  }

  /** Releases the target, again and again for as long as the session lives: nothing may stay held by accident. */
  async release(target: NonNullable<ReleaseRequest["target"]>): Promise<void> {
    const request = this.requests.begin();
    const policy: Policy = { ...this.caller.policy, limitMs: undefined };
    const backoff = new Backoff();
    try {
      for (;;) {
        try {
          await this.whileAlive(policy, (node) => node.pipeline.release({ sessionId: this.id, request: request.message(), target }));
          return;
        } catch (error) {
          const mayBeHeld = mayHold(error) || (error instanceof Refused && !NOTHING_IS_HELD.has(error.reason));
          if (!mayBeHeld) {
            throw error;
          }
          // A refusal that leaves the grant held.
          this.#log("warn", "release-refused", `${messageOf(error)}; it is tried again`);
          await sleep(backoff.next(), this.lease.ended);
        }
      }
    } finally {
      request.end();
    }
  }

  /** Releases an acquire whose caller is gone. Its id stays outstanding until then, so that the cluster keeps the reply. */
  abandon(acquire: Outstanding): void {
    const released = this.release({ $case: "acquireRequestId", value: BigInt(acquire.id) });
    released
      .catch((error: unknown) => {
        this.#log("debug", "abandoned", `the acquire ${acquire.id} was over: ${String(error)}`);
      })
      .finally(() => {
        acquire.end();
      });
  }

  /** Releases a grant that was taken by force, which tells the cluster that the holder knows. */
  async #acknowledge(token: bigint): Promise<void> {
    try {
      await this.release({ $case: "token", value: token });
    } catch (error) {
      // Acknowledged, released by its holder meanwhile, or the session is over: nothing is left to do.
      this.#log("debug", "acknowledged", `token ${token}: ${String(error)}`);
    }
  }

  /** Ends it here at once, and tells the cluster. */
  async close(): Promise<void> {
    const wasOpen = !this.lease.ended.happened;
    this.lease.end({ reason: "closed" });
    if (wasOpen) {
      await close(this.caller, this.id);
    }
  }

  #log(level: "debug" | "warn", event: string, message: string): void {
    this.caller.log({ level, event, message, sessionId: this.id });
  }
}

/** Nothing is held, or a repetition would always be refused. */
const NOTHING_IS_HELD: ReadonlySet<string> = new Set(["NOT_HELD", "INVALID_ARGUMENT", "REQUEST_STALE", "REQUEST_REUSED"]);

async function close(caller: Caller, id: string): Promise<void> {
  try {
    await caller.call(caller.policy, (node) => closeAt(node, { sessionId: id, reason: "" }));
  } catch (error) {
    // It was over before, as wanted.
    if (!(error instanceof Refused && sessionLoss(error.reason) !== undefined)) {
      throw error;
    }
  }
}

/** So that its locks open before the TTL has passed at the cluster. Best effort. */
function closeInBackground(caller: Caller, id: string): void {
  const closed = close(caller, id).catch((error: unknown) => {
    const message = `${messageOf(error)}; the session expires by itself`;
    caller.log({ level: "debug", event: "not-closed", message, sessionId: id });
  });
  caller.inBackground(closed);
}

function isOver(error: unknown): boolean {
  return (error instanceof Refused && sessionLoss(error.reason) !== undefined) || (error instanceof Lost && error.reason !== "closed");
}

/** A node of the version before knows the call by its former name alone, and says that it does not know the new one. */
function closeAt(node: Node, request: { sessionId: string; reason: string }): Sent<CloseSessionResponse> {
  let under = node.closeSession(request);
  const answer = under.answer.catch((error: unknown): Promise<Answer<CloseSessionResponse>> => {
    if (!(error instanceof CallError && error.code === UNIMPLEMENTED)) {
      throw error;
    }
    under = node.closeFormerly(request);
    return under.answer;
  });
  return {
    answer,
    cancel: () => {
      under.cancel();
    },
  };
}

/** Whether an acquire that failed with this may hold something all the same. */
export function mayHold(error: unknown): boolean {
  return error instanceof UnknownOutcome;
}
