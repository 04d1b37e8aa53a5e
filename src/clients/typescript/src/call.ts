/**
 * One request, repeated where that is safe, until it is answered or its limit has passed.
 *
 * Attempts go to the leader if it is known, else to the nodes in turn; the leader that an answer names gets the next attempt at once.
 * After a node that does not answer the next one is asked without a pause, until all had their turn. A refusal is never repeated.
 */
import { Backoff } from "./backoff.js";
import { type LockkeeperError, NoCluster, UnknownOutcome, messageOf } from "./errors.js";
import { CallError, type Failure, LEADER_MOVED, TIMED_OUT, failureFrom, isFromOutside } from "./failure.js";
import type { Log } from "./log.js";
import type { Answer, Node, Sent } from "./node.js";
import type { Nodes } from "./nodes.js";
import { type Happening, Once } from "./once.js";
import { after, monotonicMs, sleep } from "./timers.js";

/** How a request is repeated. */
export interface Policy {
  /** Limit of the whole call, milliseconds. `undefined`: none. */
  readonly limitMs: number | undefined;
  /** Limit of one attempt. `undefined`: the call may wait at the node; a broken connection or a change of leader ends the attempt. */
  readonly attemptLimitMs: number | undefined;
  /** Also repeat it when an attempt may have taken effect: it has a request id, or does no more when done twice. */
  readonly repeatUnknown: boolean;
  /** It only reads, so an unknown outcome does not matter. */
  readonly reads: boolean;
}

/** What ends a call early, with the error that it then fails with. */
export type Cancelled = Happening<unknown>;

/** In a call that waits, the shortest time between two changes of leader, lest it runs to and fro between nodes that disagree. */
const LEADER_SETTLES_MS = 100;

type Outcome<A> = { readonly answer: A } | { readonly failure: Failure } | { readonly cancelled: unknown };

export interface CallLimits {
  readonly callLimitMs: number;
  readonly attemptLimitMs: number;
}

export class Caller {
  readonly nodes: Nodes;
  readonly limits: CallLimits;
  readonly log: Log;
  readonly #over = new Once<unknown>();
  readonly #background = new Set<Promise<void>>();

  constructor(nodes: Nodes, limits: CallLimits, log: Log) {
    this.nodes = nodes;
    this.limits = limits;
    this.log = log;
  }

  /** For requests that do no more when done twice. */
  get policy(): Policy {
    const { callLimitMs: limitMs, attemptLimitMs } = this.limits;
    return { limitMs, attemptLimitMs, repeatUnknown: true, reads: false };
  }

  get readPolicy(): Policy {
    return { ...this.policy, reads: true };
  }

  /** For requests that would do more when done twice. */
  get oncePolicy(): Policy {
    return { ...this.policy, repeatUnknown: false, attemptLimitMs: this.limits.callLimitMs };
  }

  /** Work that nobody waits for, but that a client which is closed has to finish. It does not fail. */
  inBackground(work: Promise<void>): void {
    this.#background.add(work);
    void work.finally(() => this.#background.delete(work));
  }

  /** Waits for the work in the background. */
  async finish(): Promise<void> {
    await Promise.all(this.#background);
  }

  /** Ends all calls with this error, and all connections. */
  end(error: unknown): void {
    this.#over.fire(error);
    this.nodes.close();
  }

  /** Sends the request until a node answers. `send` builds it anew for each attempt. */
  async call<A>(policy: Policy, send: (node: Node) => Sent<A>, ...causes: readonly (Cancelled | undefined)[]): Promise<A> {
    const cancelled = [this.#over, ...causes];
    const until = policy.limitMs === undefined ? Infinity : monotonicMs() + policy.limitMs;
    const progress = new Progress(policy);
    let said: string | undefined;
    for (;;) {
      const ended = cancelled.find((cause) => cause?.happened === true);
      if (ended !== undefined) {
        throw ended.value;
      }
      const node = this.nodes.preferred();
      const outcome = await this.#attempt(node, policy, until, send, cancelled);
      if ("answer" in outcome) {
        return outcome.answer;
      }
      if ("cancelled" in outcome) {
        throw outcome.cancelled;
      }

      const refused = progress.note(outcome.failure, this.nodes.isLedByOtherThan(node));
      if (refused !== undefined) {
        throw refused;
      }
      let why = `${node.address}: ${"why" in outcome.failure ? outcome.failure.why : ""}`;
      this.log({ level: "debug", event: "attempt-failed", message: why, node: node.address });
      if (progress.isUnknown && !policy.repeatUnknown) {
        throw new UnknownOutcome(why);
      }

      // An attempt that the limit cut short says less than the one before it.
      if (monotonicMs() >= until && said !== undefined) {
        why = said;
      }
      const pause = progress.pause(this.nodes.count);
      if (monotonicMs() + pause >= until) {
        throw progress.giveUp(why);
      }
      said = why;
      if (pause > 0) {
        await sleep(pause, ...cancelled);
      }
    }
  }

  /** The first of: an answer, an error, the limit, another leader, the end of the caller. */
  #attempt<A>(
    node: Node,
    { attemptLimitMs }: Policy,
    until: number,
    send: (node: Node) => Sent<A>,
    cancelled: readonly (Cancelled | undefined)[],
  ): Promise<Outcome<A>> {
    return new Promise((resolve) => {
      const sent = send(node);
      const cleanups: (() => void)[] = [];
      let isOver = false;
      const end = (outcome: Outcome<A>): void => {
        isOver = true;
        cleanups.forEach((cleanup) => {
          cleanup();
        });
        if (!("answer" in outcome)) {
          sent.cancel();
        }
        resolve(outcome);
      };

      sent.answer.then(
        ({ message, leader }: Answer<A>) => {
          // Also an answer that nobody waits for any more says who leads.
          this.nodes.noteLeader(leader);
          if (!isOver) {
            end({ answer: message });
          }
        },
        (error: unknown) => {
          if (isOver) {
            return;
          }
          const failed = error instanceof CallError ? error : new CallError(2, String(error));
          const failure = failureFrom(failed);
          if (failure.kind === "again") {
            this.nodes.passOver(node);
          }
          // After that, since it may name another node, or the same one again.
          this.nodes.noteLeader(failed.leader);
          end({ failure });
        },
      );

      const limitMs = Math.min(attemptLimitMs ?? Infinity, until - monotonicMs());
      if (limitMs !== Infinity) {
        cleanups.push(
          after(limitMs, () => {
            this.nodes.passOver(node);
            end({ failure: TIMED_OUT });
          }),
        );
      }
      if (attemptLimitMs === undefined) {
        cleanups.push(
          this.#onceLedByOther(node, () => {
            end({ failure: LEADER_MOVED });
          }),
        );
      }
      for (const once of cancelled) {
        if (once !== undefined) {
          cleanups.push(
            once.on((error) => {
              if (!isOver) {
                end({ cancelled: error });
              }
            }),
          );
        }
      }
    });
  }

  #onceLedByOther(node: Node, callback: () => void): () => void {
    let stop = (): void => undefined;
    const cancelTimer = after(LEADER_SETTLES_MS, () => {
      if (this.nodes.isLedByOtherThan(node)) {
        callback();
        return;
      }
      stop = this.nodes.onLeader((leader) => {
        if (leader !== node) {
          stop();
          callback();
        }
      });
    });
    return () => {
      cancelTimer();
      stop();
    };
  }
}

/** What is known of a call after its attempts so far. */
export class Progress {
  /** At least one attempt may have taken effect. */
  isUnknown = false;
  readonly #reads: boolean;
  /** Nodes that were passed over since the last pause. */
  #passedOver = 0;
  /** The last node named another one as the leader. */
  #leaderNamed = false;
  /** Leaders that were followed since the last pause. */
  #followed = 0;
  readonly #backoff = new Backoff();

  constructor({ reads }: Pick<Policy, "reads">) {
    this.#reads = reads;
  }

  /** Returns the error that the call fails with now, if any. */
  note(failure: Failure, leaderNamed: boolean): LockkeeperError | undefined {
    this.#leaderNamed = leaderNamed;
    switch (failure.kind) {
      case "refused":
        // The same as below, and another attempt would be answered the same.
        return this.isUnknown && isFromOutside(failure.error) ? new UnknownOutcome(messageOf(failure.error)) : failure.error;
      case "not-now":
        // An earlier attempt may have taken effect: then this does not say that nothing happened.
        return this.isUnknown ? undefined : failure.error;
      case "again":
        this.isUnknown ||= failure.isUnknown && !this.#reads;
        this.#passedOver += failure.nodeAnswers ? 0 : 1;
        return undefined;
    }
  }

  /** None after a node that did not answer or that named the leader, but only so often in a row. Milliseconds. */
  pause(nodes: number, random?: number): number {
    if (this.#leaderNamed && this.#followed === 0) {
      this.#followed = 1;
      return 0;
    }
    if (this.#passedOver > 0 && this.#passedOver < nodes) {
      return 0;
    }
    this.#passedOver = 0;
    this.#followed = 0;
    return this.#backoff.next(random);
  }

  giveUp(why: string): LockkeeperError {
    return this.isUnknown ? new UnknownOutcome(why) : new NoCluster(why);
  }
}
