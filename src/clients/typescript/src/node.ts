/** One node of the cluster: its channel, single calls, and streams. Connects on first use, and again after each broken connection. */
import { Buffer } from "node:buffer";

import {
  type ChannelOptions,
  Client as Channel,
  type ClientDuplexStream,
  type ClientReadableStream,
  Metadata,
  type ServiceError,
} from "@grpc/grpc-js";

import type { Connection } from "./credentials.js";
import { CallError, callError, leaderOf } from "./failure.js";
import { LocksDefinition } from "./generated/lockkeeper/v1/locks.js";
import { SessionsDefinition } from "./generated/lockkeeper/v1/sessions.js";
import { Pipeline } from "./pipeline.js";

/** An answer of a node. */
export interface Answer<A> {
  readonly message: A;
  /** Where the leader is, as the node says: host:port. */
  readonly leader: string | undefined;
}

/** A request under way. Its answer is rejected with a {@link CallError}; after `cancel`, nobody may wait for it. */
export interface Sent<A> {
  readonly answer: Promise<Answer<A>>;
  cancel(): void;
}

/** What all nodes of a client are reached by. */
export interface Dial {
  readonly connection: (address: string) => Connection;
  /** The bearer token to show now. */
  readonly bearerToken: (() => string) | undefined;
  /** The trace that a request belongs to (W3C Trace Context). */
  readonly traceparent: (() => string | undefined) | undefined;
}

interface Codec<M> {
  encode(message: M): { finish(): Uint8Array };
  decode(bytes: Uint8Array): M;
}

interface Method<Q, A> {
  readonly name: string;
  readonly requestType: Codec<Q>;
  readonly responseType: Codec<A>;
}

const path = (service: { fullName: string }, method: { name: string }): string => `/${service.fullName}/${method.name}`;

const toBuffer =
  <M>(codec: Codec<M>) =>
  (message: M): Buffer => {
    const bytes = codec.encode(message).finish();
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  };

/** The longest message of the protocol, with room to spare. */
const MESSAGE_BYTES_MAX = 4 * 1024 * 1024;

/**
 * A waiting call can be idle for long. HTTP/2 pings find a dead connection early enough to repeat the wait before the cluster gives
 * its place up. A node that is back is connected to within a second.
 */
const CHANNEL: ChannelOptions = {
  "grpc.keepalive_time_ms": 2_000,
  "grpc.keepalive_timeout_ms": 2_000,
  "grpc.keepalive_permit_without_calls": 0,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.dns_min_time_between_resolutions_ms": 1_000,
  "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
  // What may be repeated is decided here, not by the library.
  "grpc.enable_retries": 0,
  "grpc.service_config_disable_resolution": 1,
  // Its own connections: closing the client closes them.
  "grpc.use_local_subchannel_pool": 1,
  // A lock service is reached directly. As the Rust client does it.
  "grpc.enable_http_proxy": 0,
};

const LOCKS = LocksDefinition.methods;
const SESSIONS = SessionsDefinition.methods;

export class Node {
  /** host:port */
  readonly address: string;
  readonly pipeline: Pipeline;
  readonly #dial: Dial;
  #channel: Channel | undefined;
  /** How the channel was made. */
  #connection: Connection | undefined;
  #isClosed = false;

  constructor(address: string, dial: Dial) {
    this.address = address;
    this.#dial = dial;
    this.pipeline = new Pipeline(this);
  }

  /** Whether requests belong to a trace, whose context is metadata of a call and has no place in a stream. */
  get isTraced(): boolean {
    return this.#dial.traceparent?.() !== undefined;
  }

  readonly open = this.#unary(SessionsDefinition, SESSIONS.open);
  readonly renew = this.#unary(SessionsDefinition, SESSIONS.renew);
  readonly closeSession = this.#unary(SessionsDefinition, SESSIONS.closeSession);
  /** The former name, for a node of the version before. */
  readonly closeFormerly = this.#unary(SessionsDefinition, { ...SESSIONS.closeSession, name: "Close" });
  readonly acquire = this.#unary(LocksDefinition, LOCKS.acquire);
  readonly release = this.#unary(LocksDefinition, LOCKS.release);
  readonly update = this.#unary(LocksDefinition, LOCKS.update);
  readonly check = this.#unary(LocksDefinition, LOCKS.check);
  readonly get = this.#unary(LocksDefinition, LOCKS.get);
  readonly list = this.#unary(LocksDefinition, LOCKS.list);
  readonly forceRelease = this.#unary(LocksDefinition, LOCKS.forceRelease);

  readonly keepAlive = this.#duplex(SessionsDefinition, SESSIONS.keepAlive);
  readonly openPipeline = this.#duplex(LocksDefinition, LOCKS.pipeline);
  readonly watch = this.#readable(LocksDefinition, LOCKS.watch);

  /** Ends all that is under way on it, and its connection. */
  close(): void {
    this.#isClosed = true;
    this.pipeline.close();
    this.#channel?.close();
    this.#channel = undefined;
  }

  #connected(): Channel {
    if (this.#isClosed) {
      throw new CallError(14, "No connection established: the client is closed");
    }
    const connection = this.#dial.connection(this.address);
    if (this.#channel === undefined || this.#connection !== connection) {
      // A channel connects again with the certificates that it was made with. What is under way on it goes on until it ends.
      this.#channel?.close();
      this.#connection = connection;
      this.#channel = new Channel(`dns:${this.address}`, connection.credentials, { ...CHANNEL, ...connection.options });
    }
    return this.#channel;
  }

  #metadata(): Metadata {
    const metadata = new Metadata();
    const { bearerToken, traceparent } = this.#dial;
    if (bearerToken !== undefined) {
      metadata.set("authorization", `Bearer ${bearerToken()}`);
    }
    const trace = traceparent?.();
    if (trace !== undefined) {
      metadata.set("traceparent", trace);
    }
    return metadata;
  }

  #unary<Q, A>(service: { fullName: string }, method: Method<Q, A>): (request: Q) => Sent<A> {
    const name = path(service, method);
    const serialize = toBuffer(method.requestType);
    const deserialize = (bytes: Buffer): A => method.responseType.decode(bytes);
    return (request) => {
      let cancel = (): void => undefined;
      const answer = new Promise<Answer<A>>((resolve, reject) => {
        let leader: string | undefined;
        const done = (error: ServiceError | null, message?: A): void => {
          if (error !== null || message === undefined) {
            reject(callError(error ?? { details: "the answer is empty" }));
          } else {
            resolve({ message, leader });
          }
        };
        const call = this.#connected().makeUnaryRequest(name, serialize, deserialize, request, this.#metadata(), done);
        call.on("metadata", (metadata) => {
          leader = leaderOf(metadata);
        });
        cancel = () => {
          call.cancel();
        };
      });
      // A call that was cancelled has no reader any more.
      answer.catch(() => undefined);
      return {
        answer,
        cancel: () => {
          cancel();
        },
      };
    };
  }

  #duplex<Q, A>(service: { fullName: string }, method: Method<Q, A>): () => ClientDuplexStream<Q, A> {
    const name = path(service, method);
    const serialize = toBuffer(method.requestType);
    const deserialize = (bytes: Buffer): A => method.responseType.decode(bytes);
    return () => this.#connected().makeBidiStreamRequest(name, serialize, deserialize, this.#metadata());
  }

  #readable<Q, A>(service: { fullName: string }, method: Method<Q, A>): (request: Q) => ClientReadableStream<A> {
    const name = path(service, method);
    const serialize = toBuffer(method.requestType);
    const deserialize = (bytes: Buffer): A => method.responseType.decode(bytes);
    return (request) => this.#connected().makeServerStreamRequest(name, serialize, deserialize, request, this.#metadata());
  }
}
