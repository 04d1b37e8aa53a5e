/**
 * Short, frequent requests to one node, multiplexed on one stream, which costs a fraction of single calls.
 *
 * The stream is opened with the first request, and again after each break. Requests that were under way at a break fail with an
 * unknown outcome, as when a connection breaks under a call, whatever the error that ended the stream: it is about the stream, and a
 * node may have executed a request whose answer did not get out any more. If a node does not know the stream (an older version, or a
 * proxy that does not pass it), single calls are made. So are those that belong to a trace.
 */
import { type ClientDuplexStream, type ServiceError, status as Code } from "@grpc/grpc-js";

import { CallError, callError, interruption } from "./failure.js";
import type {
  AcquireRequest,
  AcquireResponse,
  CheckRequest,
  CheckResponse,
  GetRequest,
  GetResponse,
  PipelineRequest,
  PipelineResponse,
  ReleaseRequest,
  ReleaseResponse,
} from "./generated/lockkeeper/v1/locks.js";
import type { Answer, Node, Sent } from "./node.js";

/** As a number: codes of nodes may be others than those of the library. */
const UNIMPLEMENTED: number = Code.UNIMPLEMENTED;

type Asked = Exclude<NonNullable<PipelineRequest["what"]>, { $case: "cancel" }>;
type Told = NonNullable<PipelineResponse["what"]>;

interface Pending {
  resolve(answer: Answer<Told>): void;
  reject(error: CallError): void;
}

/** An open stream, and what is under way on it. */
class OpenStream {
  readonly #call: ClientDuplexStream<PipelineRequest, PipelineResponse>;
  readonly #pending = new Map<number, Pending>();
  #last = 0;
  isOver = false;

  constructor(call: ClientDuplexStream<PipelineRequest, PipelineResponse>) {
    this.#call = call;
    call.on("data", (response: PipelineResponse) => {
      this.#hear(response);
    });
    let isOpen = false;
    call.on("metadata", () => {
      isOpen = true;
    });
    call.on("error", (error: ServiceError) => {
      const why = callError(error);
      this.end(isOpen ? interruption(why) : why);
    });
    call.on("end", () => {
      this.end(new CallError(Code.UNAVAILABLE, "the stream of answers broke off"));
    });
  }

  send(what: Asked): Sent<Told> {
    this.#last += 1;
    const number = this.#last;
    const answer = new Promise<Answer<Told>>((resolve, reject) => {
      this.#pending.set(number, { resolve, reject });
    });
    answer.catch(() => undefined);
    this.#call.write({ number: BigInt(number), what });

    const cancel = (): void => {
      if (this.#pending.delete(number)) {
        this.#call.write({ number: BigInt(number), what: { $case: "cancel", value: {} } });
      }
    };
    return { answer, cancel };
  }

  end(why: CallError): void {
    if (this.isOver) {
      return;
    }
    this.isOver = true;
    this.#call.cancel();
    for (const pending of this.#pending.values()) {
      pending.reject(why);
    }
    this.#pending.clear();
  }

  #hear({ number, what, leader: named }: PipelineResponse): void {
    const pending = this.#pending.get(Number(number));
    if (pending === undefined) {
      return;
    }
    this.#pending.delete(Number(number));

    const leader = named === "" ? undefined : named;
    if (what === undefined) {
      pending.reject(new CallError(Code.UNKNOWN, "the answer is empty: it may be one that only a later version knows"));
    } else if (what.$case === "failure") {
      pending.reject(new CallError(what.value.code, what.value.message, what.value.details, leader));
    } else {
      pending.resolve({ message: what, leader });
    }
  }
}

export class Pipeline {
  readonly #node: Node;
  #open: OpenStream | undefined;
  #isUnknownThere = false;

  constructor(node: Node) {
    this.#node = node;
  }

  acquire(request: AcquireRequest): Sent<AcquireResponse> {
    return this.#ask(
      { $case: "acquire", value: request },
      (told) => (told.$case === "acquire" ? told.value : undefined),
      () => this.#node.acquire(request),
    );
  }

  release(request: ReleaseRequest): Sent<ReleaseResponse> {
    return this.#ask(
      { $case: "release", value: request },
      (told) => (told.$case === "release" ? told.value : undefined),
      () => this.#node.release(request),
    );
  }

  check(request: CheckRequest): Sent<CheckResponse> {
    return this.#ask(
      { $case: "check", value: request },
      (told) => (told.$case === "check" ? told.value : undefined),
      () => this.#node.check(request),
    );
  }

  get(request: GetRequest): Sent<GetResponse> {
    return this.#ask(
      { $case: "get", value: request },
      (told) => (told.$case === "get" ? told.value : undefined),
      () => this.#node.get(request),
    );
  }

  close(): void {
    this.#open?.end(new CallError(Code.CANCELLED, "the client is closed"));
    this.#open = undefined;
  }

  #ask<A>(what: Asked, pick: (told: Told) => A | undefined, single: () => Sent<A>): Sent<A> {
    if (this.#isUnknownThere || this.#node.isTraced) {
      return single();
    }

    let under: Sent<unknown> | undefined;
    let isCancelled = false;
    const ask = async (): Promise<Answer<A>> => {
      const sent = this.#stream().send(what);
      under = sent;
      try {
        const { message, leader } = await sent.answer;
        const answer = pick(message);
        if (answer === undefined) {
          throw new CallError(Code.UNKNOWN, "the answer is to another kind of request");
        }
        return { message: answer, leader };
      } catch (error) {
        if (!(error instanceof CallError && error.code === UNIMPLEMENTED) || isCancelled) {
          throw error;
        }
        this.#isUnknownThere = true;
        const instead = single();
        under = instead;
        return instead.answer;
      }
    };

    const answer = ask();
    answer.catch(() => undefined);
    const cancel = (): void => {
      isCancelled = true;
      under?.cancel();
    };
    return { answer, cancel };
  }

  #stream(): OpenStream {
    if (this.#open === undefined || this.#open.isOver) {
      this.#open = new OpenStream(this.#node.openPipeline());
    }
    return this.#open;
  }
}
