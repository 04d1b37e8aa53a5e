/**
 * Renews a session in the background, and hears of its losses.
 *
 * One stream to one node, and a renewal each third of the TTL. If the node does not answer one in time, ends the stream or knows no
 * leader, the next node gets a stream. So a session survives the loss of a node, if the cluster elects a leader within the rest of
 * the TTL.
 */
import type { ServiceError } from "@grpc/grpc-js";

import { Backoff } from "./backoff.js";
import type { Caller } from "./call.js";
import { callError, leaderOf } from "./failure.js";
import { type KeepAliveResponse, SessionEnd, type Revocation as WireRevocation } from "./generated/lockkeeper/v1/sessions.js";
import type { Lease, Revocation } from "./lease.js";
import type { Node } from "./node.js";
import { Once } from "./once.js";
import { after, sleep } from "./timers.js";

/** A renewal comes up to a tenth of the interval early, so that clients that lost a node together do not stay in step. */
const JITTER = 0.1;
const ANSWER_MS_MAX = 2_000;
const ENDED = "the session has ended";

/** Sent renewals whose answers are still expected. */
const UNANSWERED_MAX = 8;

/** What is kept alive: a session. */
interface Renewable {
  readonly id: string;
  readonly ttlMs: number;
  readonly caller: Caller;
  readonly lease: Lease;
}

export const revocation = ({ token, reason, remainingMs }: WireRevocation): Revocation => ({
  token,
  reason,
  remainingMs: Number(remainingMs),
});

const intervalMs = (ttlMs: number): number => (ttlMs / 3) * (1 - JITTER * Math.random());

/** How long an answer may take before the next node is asked. With the interval, it leaves time for three more nodes. */
const answerMs = (ttlMs: number): number => Math.min(ttlMs / 6, ANSWER_MS_MAX);

/** Renews the session until it has ended, on each node for as long as that answers. Does not fail. */
export async function keepAlive(session: Renewable): Promise<void> {
  const { caller, lease, ttlMs } = session;
  let backoff = new Backoff();
  let failed = 0;
  while (!lease.ended.happened) {
    const node = caller.nodes.preferred();
    const stream = new Renewals(session, node);
    const why = await stream.run();
    if (why === ENDED) {
      return;
    }

    caller.log({ level: "debug", event: "stream-ended", message: why, sessionId: session.id, node: node.address });
    caller.nodes.passOver(node);
    if (stream.wasAnswered) {
      backoff = new Backoff();
      failed = 0;
    } else {
      failed += 1;
    }
    if (failed >= caller.nodes.count) {
      failed = 0;
      await sleep(Math.min(backoff.next(), ttlMs / 3), lease.ended);
    }
  }
}

/** The renewals of one stream. */
class Renewals {
  readonly #session: Renewable;
  readonly #node: Node;
  readonly #over = new Once<string>();
  /** Sequence and sending of the renewals that are not answered, the oldest first. */
  #unanswered: { readonly sequence: bigint; readonly sent: number }[] = [];
  #sequence = 0n;
  #stopRenewing: () => void = () => undefined;
  #stopExpecting: (() => void) | undefined;
  wasAnswered = false;

  constructor(session: Renewable, node: Node) {
    this.#session = session;
    this.#node = node;
  }

  /** Runs until the stream is of no more use, or the session has ended. Returns why. */
  async run(): Promise<string> {
    const { caller, lease } = this.#session;
    let call: ReturnType<Node["keepAlive"]>;
    try {
      call = this.#node.keepAlive();
    } catch (error) {
      return String(error);
    }

    call.on("metadata", (metadata) => {
      caller.nodes.noteLeader(leaderOf(metadata));
    });
    call.on("data", (response: KeepAliveResponse) => {
      this.#hear(response);
    });
    call.on("error", (error: ServiceError) => {
      const { message, leader } = callError(error);
      caller.nodes.noteLeader(leader);
      this.#over.fire(message);
    });
    call.on("end", () => {
      this.#over.fire("it ended the stream");
    });

    const renew = (): void => {
      this.#sequence += 1n;
      // The clock before the sending: in the other order, the deadline would be too late.
      const sent = lease.now();
      call.write({ sessionId: this.#session.id, sequence: this.#sequence });
      this.#unanswered = [...this.#unanswered.slice(1 - UNANSWERED_MAX), { sequence: this.#sequence, sent }];
      this.#expect();
      this.#stopRenewing = after(intervalMs(this.#session.ttlMs), renew);
    };
    renew();

    const stopListening = lease.ended.on(() => {
      this.#over.fire(ENDED);
    });
    const why = await new Promise<string>((resolve) => this.#over.on(resolve));
    stopListening();
    this.#stopRenewing();
    this.#stopExpecting?.();
    call.cancel();
    return why;
  }

  /** The oldest renewal must be answered in time. */
  #expect(): void {
    this.#stopExpecting ??= after(answerMs(this.#session.ttlMs), () => {
      this.#over.fire("it did not answer in time");
    });
  }

  #hear({ sessionId, what }: KeepAliveResponse): void {
    const { caller, lease } = this.#session;
    if (sessionId !== this.#session.id) {
      return;
    }
    switch (what?.$case) {
      case "renewed": {
        const { sequence, ttlMs, members } = what.value;
        if (members.length > 0) {
          caller.nodes.noteMembers(members);
        }
        this.#acknowledge(sequence, ttlMs);
        return;
      }
      case "revoked":
        lease.revoke(revocation(what.value));
        return;
      case "ended":
        lease.end({ reason: REASONS[what.value.why] ?? "unknown" });
        return;
      case undefined:
        // Of a kind that only a later version knows.
        return;
    }
  }

  #acknowledge(sequence: bigint, ttlMs: number): void {
    const answered = this.#unanswered.find((renewal) => renewal.sequence === sequence);
    if (answered === undefined) {
      return;
    }
    this.wasAnswered = true;
    // Revocations were told before this answer, on the same stream.
    this.#session.lease.renewed({ sent: answered.sent, ttlMs, revoked: [], moreRevoked: false });

    this.#unanswered = this.#unanswered.filter((renewal) => renewal.sequence > sequence);
    this.#stopExpecting?.();
    this.#stopExpecting = undefined;
    if (this.#unanswered.length > 0) {
      this.#expect();
    }
  }
}

const REASONS: Partial<Record<SessionEnd, "closed" | "expired">> = {
  [SessionEnd.CLOSED]: "closed",
  [SessionEnd.EXPIRED]: "expired",
};
