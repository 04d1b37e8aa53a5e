/**
 * Until when a session may be trusted, and how it was lost.
 *
 * The deadline is the moment at which the last acknowledged open or renewal was *sent*, plus the TTL, less a margin for the rates of
 * clocks. The cluster stamps that request after the sending and ends the session one TTL after the stamp: later than the client stops
 * trusting it.
 *
 * Each look compares the deadline with the clock. So a program whose event loop was blocked hears of the loss on the first line that
 * asks, before any timer ran; and a session whose deadline was seen to have passed is over, whatever arrives later.
 */
import type { Clock } from "./clock.js";
import { type Loss, Lost } from "./errors.js";
import { Once } from "./once.js";
import { after } from "./timers.js";

/** The margin is one percent of the TTL, but at least this. */
const MARGIN_MS_MIN = 10;

/** The longest timer. Timers stop while the machine is suspended; the deadline does not. */
const LOOK_MS = 250;

/** Until when an open or a renewal that was sent at `sent` may be trusted. */
export function deadlineOf(sent: number, ttlMs: number): number {
  return sent + Math.max(0, ttlMs - Math.max(ttlMs / 100, MARGIN_MS_MIN));
}

/** A grant that an operator revoked, as the cluster tells it. */
export interface Revocation {
  readonly token: bigint;
  readonly reason: string;
  /** Time to stop. 0: the grant is over. */
  readonly remainingMs: number;
}

/** The whole answer to a renewal: nobody may apply the extension without the revocations. */
export interface Renewed {
  /** When the renewal was sent, on the client's clock. */
  readonly sent: number;
  readonly ttlMs: number;
  readonly revoked: readonly Revocation[];
  /** There are more than the answer names. Then it extends nothing, since it would extend those too. */
  readonly moreRevoked: boolean;
}

interface Revoked {
  readonly loss: Loss;
  deadline: number;
  /** It is over, and this was told before. */
  isTaken: boolean;
}

/** What a lease tells, synchronously. */
export interface LeaseListener {
  revoked(token: bigint, loss: Loss): void;
  /** A grant is over by force: the cluster wants to hear that the client knows. Once for each. */
  taken(token: bigint): void;
}

export class Lease {
  readonly ended = new Once<Lost>();
  readonly #clock: Clock;
  readonly #listener: LeaseListener;
  #deadline: number;
  /** Revoked grants that are not released yet. One without a holder is possible: the answer that grants it may be on its way. */
  readonly #revoked = new Map<bigint, Revoked>();
  #stopLooking: () => void = () => undefined;

  constructor(clock: Clock, listener: LeaseListener, sent: number, ttlMs: number) {
    this.#clock = clock;
    this.#listener = listener;
    this.#deadline = deadlineOf(sent, ttlMs);
    this.#watch();
  }

  now(): number {
    return this.#clock.now();
  }

  /** Applies the answer to a renewal. Answers may come late, twice and in any order; the deadline never moves back. */
  renewed({ sent, ttlMs, revoked, moreRevoked }: Renewed): void {
    // Before the deadline: a revoked grant must not get the extension. The cluster computed what is left after the sending.
    for (const revocation of revoked) {
      this.#revoke(revocation, sent);
    }
    if (!moreRevoked) {
      this.#deadline = Math.max(this.#deadline, deadlineOf(sent, ttlMs));
    }
  }

  /** An operator revoked a grant. */
  revoke(revocation: Revocation): void {
    this.#revoke(revocation, this.#clock.now());
  }

  /** The earliest deadline counts, and the first reason. */
  #revoke({ token, reason, remainingMs }: Revocation, told: number): void {
    const deadline = Math.min(told + remainingMs, this.#deadline);
    let known = this.#revoked.get(token);
    const isNews = known === undefined;
    known ??= { loss: { reason: "revoked", operatorReason: reason }, deadline, isTaken: false };
    known.deadline = Math.min(known.deadline, deadline);
    this.#revoked.set(token, known);

    const isTakenNow = remainingMs === 0 && !known.isTaken;
    known.isTaken ||= isTakenNow;
    if (isNews) {
      this.#listener.revoked(token, known.loss);
    }
    if (isTakenNow) {
      this.#listener.taken(token);
    }
  }

  /** The grant was released: the cluster tells of it no longer. */
  forget(token: bigint): void {
    this.#revoked.delete(token);
  }

  /** Ends the session. The first reason stays. */
  end(loss: Loss): void {
    if (!this.ended.happened) {
      this.#stopLooking();
      this.ended.fire(new Lost(loss));
    }
  }

  /** How long the session, or this grant of it, may still be trusted, milliseconds. 0: it is lost. */
  remainingMs(token?: bigint): number {
    const now = this.#look();
    if (this.ended.happened) {
      return 0;
    }
    const revoked = token === undefined ? undefined : this.#revoked.get(token);
    return Math.max(0, Math.min(this.#deadline, revoked?.deadline ?? Infinity) - now);
  }

  /** How the session, or this grant of it, was lost. A revoked grant is lost at once, although its locks stay closed for a while. */
  loss(token?: bigint): Loss | undefined {
    this.#look();
    const revoked = token === undefined ? undefined : this.#revoked.get(token);
    const ended = this.ended.value;
    return revoked?.loss ?? (ended === undefined ? undefined : lossOf(ended));
  }

  /** Ends the session if its deadline has passed. Returns the time. */
  #look(): number {
    const now = this.#clock.now();
    if (this.#deadline <= now) {
      this.end({ reason: "out-of-contact" });
    }
    return now;
  }

  /** Looks at the deadline, also while nobody asks. */
  #watch(): void {
    const left = Math.max(1, this.#deadline - this.#clock.now());
    this.#stopLooking = after(Math.min(left, LOOK_MS), () => {
      this.#look();
      if (!this.ended.happened) {
        this.#watch();
      }
    });
  }
}

export function lossOf({ reason, operatorReason }: Lost): Loss {
  return operatorReason === undefined ? { reason } : { reason, operatorReason };
}
