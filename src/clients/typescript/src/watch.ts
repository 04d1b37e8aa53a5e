import type { ClientReadableStream, ServiceError } from "@grpc/grpc-js";

import { Backoff } from "./backoff.js";
import type { Caller, Cancelled } from "./call.js";
import { callError, leaderOf } from "./failure.js";
import type { WatchResponse } from "./generated/lockkeeper/v1/locks.js";
import type { Answer, Node, Sent } from "./node.js";
import { type Happening, Once } from "./once.js";
import { after, sleep } from "./timers.js";
import { type WatchMessage, watchView } from "./views.js";

/**
 * Where a watch begins, and what ends it.
 *
 * @example
 * ```ts
 * import type { Client, WatchOptions } from "@lockkeeper/client";
 *
 * export async function forAMinute(client: Client): Promise<void> {
 *   const options: WatchOptions = { signal: AbortSignal.timeout(60_000) };
 *   for await (const message of client.watch("reports/", options)) console.log(message.kind);
 * }
 * ```
 */
export interface WatchOptions {
  /** Go on after this index, without the state: the {@link Watch.index} of an earlier watch of the same prefix. */
  readonly after?: bigint;
  /** Ends the watch: the loop over it ends. */
  readonly signal?: AbortSignal;
}

/** The longest silence of an open stream. The node sends its progress every second. */
const SILENCE_MS_MAX = 10_000;

/** Messages that are read before the program asks for them. Then the stream is paused, and at last the node. */
const AHEAD_MAX = 16;

/** A stream that is open. */
class OpenWatch {
  readonly #stream: ClientReadableStream<WatchResponse>;
  readonly #messages: WatchResponse[] = [];
  readonly over = new Once<string>();
  #changed: (() => void) | undefined;
  #stopSilence: () => void = () => undefined;

  constructor(stream: ClientReadableStream<WatchResponse>) {
    this.#stream = stream;
    this.#expect();
    stream.on("data", (message: WatchResponse) => {
      this.#messages.push(message);
      this.#stopSilence();
      if (this.#messages.length >= AHEAD_MAX) {
        stream.pause();
      } else {
        this.#expect();
      }
      this.#changed?.();
    });
    stream.on("error", (error: ServiceError) => {
      this.end(callError(error).message);
    });
    stream.on("end", () => {
      this.end("it ended the stream");
    });
  }

  /** The next message; `undefined`: the stream is over, or one of these happened. */
  async next(...untils: readonly Happening<unknown>[]): Promise<WatchResponse | undefined> {
    for (;;) {
      const message = this.#messages.shift();
      if (message !== undefined) {
        if (this.#stream.isPaused() && !this.over.happened) {
          this.#expect();
          this.#stream.resume();
        }
        return message;
      }
      if ([this.over, ...untils].some(({ happened }) => happened)) {
        return undefined;
      }
      await new Promise<void>((resolve) => {
        this.#changed = resolve;
        const stops = [this.over, ...untils].map((once) =>
          once.on(() => {
            resolve();
          }),
        );
        this.#changed = () => {
          stops.forEach((stop) => {
            stop();
          });
          resolve();
        };
      });
    }
  }

  end(why: string): void {
    if (!this.over.happened) {
      this.#stopSilence();
      this.#stream.cancel();
      this.over.fire(why);
    }
  }

  #expect(): void {
    this.#stopSilence();
    this.#stopSilence = after(SILENCE_MS_MAX, () => {
      this.end("it is silent");
    });
  }
}

/**
 * The locks under a prefix: their present state, then every change. Read it by `for await`, which sends the first request.
 *
 * It survives the loss of a node and a change of leader: it goes on after the last entry of the log whose changes it has delivered.
 * If that is too long ago, or if the reader is too slow, the state comes again.
 *
 * `next()` fails with {@link Malformed} for a message that this client does not understand, with {@link NoCluster} if no node answers
 * within the limit of a call, and with {@link Refused}. An error ends a `for await`, not the watch: another loop over it goes on
 * where the first one stopped.
 *
 * @example
 * ```ts
 * import type { Client, Watch } from "@lockkeeper/client";
 *
 * export async function follow(client: Client): Promise<void> {
 *   const watch: Watch = client.watch("reports/");
 *   for await (const message of watch) {
 *     if (message.kind !== "changes") continue;
 *     for (const change of message.changes) console.log(change.name, change.kind, change.token);
 *   }
 * }
 * ```
 */
export class Watch implements AsyncIterableIterator<WatchMessage, undefined, undefined> {
  readonly #caller: Caller;
  readonly #prefix: string;
  readonly #options: WatchOptions;
  readonly #closed: Cancelled;
  readonly #ended = new Once<unknown>();
  /** Fires when the present reader leaves, also while a message is awaited. */
  #left = new Once<unknown>();
  /** Takes away what listens for the end, while the watch is read. */
  #stopListening: (() => void) | undefined;
  readonly #backoff: { current: Backoff } = { current: new Backoff() };
  #index: bigint;
  #open: OpenWatch | undefined;
  /** Calls of `next` are served one after the other. */
  #turn: Promise<unknown> = Promise.resolve();

  /** @internal */
  constructor(caller: Caller, prefix: string, options: WatchOptions, closed: Cancelled) {
    this.#caller = caller;
    this.#prefix = prefix;
    this.#index = options.after ?? 0n;
    this.#options = options;
    this.#closed = closed;
  }

  /** The index of the log up to which all changes were delivered. 0: none yet, or the state is not complete. */
  get index(): bigint {
    return this.#index;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<WatchMessage, undefined>> {
    // The reader that asks now, not the one that is there when its turn comes.
    const left = this.#left;
    const turn = this.#turn.then(() => this.#next(left));
    this.#turn = turn.catch(() => undefined);
    const message = await turn;
    return message === undefined ? { done: true, value: undefined } : { done: false, value: message };
  }

  /** Ends the watch and closes its stream, as leaving a `for await` does. Another loop begins anew after {@link Watch.index}. */
  return(): Promise<IteratorResult<WatchMessage, undefined>> {
    this.#left.fire(undefined);
    this.#left = new Once();
    this.#stopListening?.();
    this.#stopListening = undefined;
    this.#open?.end("the reader has left");
    this.#open = undefined;
    return Promise.resolve({ done: true, value: undefined });
  }

  async #next(left: Once<unknown>): Promise<WatchMessage | undefined> {
    const isOver = (): boolean => this.#ended.happened || left.happened;
    if (!isOver()) {
      this.#stopListening ??= this.#listen();
    }
    while (!isOver()) {
      const open = this.#open ?? (await this.#begin(left));
      if (open === undefined) {
        break;
      }
      this.#open = open;
      const message = await open.next(this.#ended, left);
      if (message !== undefined) {
        this.#backoff.current = new Backoff();
        // Before the conversion: a message that is malformed must not come again and again.
        this.#note(message);
        const view = watchView(message);
        if (view !== undefined) {
          return view;
        }
      } else if (open.over.happened && !isOver()) {
        const why = String(open.over.value);
        this.#caller.log({ level: "debug", event: "watch-broke", message: `${why}; watching anew after ${this.#index}` });
        this.#open = undefined;
        await sleep(this.#backoff.current.next(), this.#ended, left);
      }
    }
    if (this.#ended.happened) {
      void this.return();
    }
    return undefined;
  }

  /** Nothing listens while nobody reads: a client outlives its watches. */
  #listen(): () => void {
    const { signal } = this.#options;
    const end = (): void => {
      this.#end();
    };
    const stop = this.#closed.on(end);
    signal?.addEventListener("abort", end, { once: true });
    if (signal?.aborted === true) {
      end();
    }
    return () => {
      stop();
      signal?.removeEventListener("abort", end);
    };
  }

  async #begin(left: Once<unknown>): Promise<OpenWatch | undefined> {
    const request = { prefix: this.#prefix, afterIndex: this.#index };
    const send = (node: Node): Sent<OpenWatch> => opened(node.watch(request));
    try {
      return await this.#caller.call(this.#caller.readPolicy, send, this.#ended, left);
    } catch (error) {
      if (this.#ended.happened || left.happened) {
        return undefined;
      }
      throw error;
    }
  }

  /** Notes from where to go on. In the middle of a state there is no such index. */
  #note({ what }: WatchResponse): void {
    switch (what?.$case) {
      case "state":
        this.#index = what.value.last ? what.value.index : 0n;
        return;
      case "changes":
        // The rest of the entry follows; a watch that begins anew gets the whole entry again.
        this.#index = what.value.more ? this.#index : what.value.index;
        return;
      case "progress":
        this.#index = what.value.index;
        return;
      case "tooOld":
        this.#index = 0n;
        return;
      case undefined:
        return;
    }
  }

  #end(): void {
    this.#ended.fire(undefined);
    void this.return();
  }
}

/** The stream counts as open with the first word of the node. */
function opened(stream: ClientReadableStream<WatchResponse>): Sent<OpenWatch> {
  const answer = new Promise<Answer<OpenWatch>>((resolve, reject) => {
    stream.once("metadata", (metadata) => {
      stream.removeAllListeners("error");
      resolve({ message: new OpenWatch(stream), leader: leaderOf(metadata) });
    });
    stream.on("error", (error: ServiceError) => {
      reject(callError(error));
    });
  });
  answer.catch(() => undefined);
  return {
    answer,
    cancel: () => {
      stream.cancel();
    },
  };
}
