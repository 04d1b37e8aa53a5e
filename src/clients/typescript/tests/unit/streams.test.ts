/** A node that is played, for what can be seen from the other side alone: what is sent along, and which streams are open. */
import {
  Metadata,
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServerUnaryCall,
  type ServerWritableStream,
  type UntypedHandleCall,
  status as Code,
} from "@grpc/grpc-js";
import { describe, expect, onTestFinished, test } from "vitest";

import { Client } from "../../src/index.js";
import {
  GetRequest,
  GetResponse,
  LocksDefinition,
  PipelineRequest,
  PipelineResponse,
  WatchRequest,
  WatchResponse,
  type WatchResponse as Message,
} from "../../src/generated/lockkeeper/v1/locks.js";

interface Codec<M> {
  encode(message: M): { finish(): Uint8Array };
  decode(bytes: Uint8Array): M;
}

const method = <Q, A>(name: string, request: Codec<Q>, response: Codec<A>, responseStream: boolean) => ({
  path: `/${LocksDefinition.fullName}/${name}`,
  requestStream: false,
  responseStream,
  requestSerialize: (message: Q) => Buffer.from(request.encode(message).finish()),
  requestDeserialize: (bytes: Buffer) => request.decode(bytes),
  responseSerialize: (message: A) => Buffer.from(response.encode(message).finish()),
  responseDeserialize: (bytes: Buffer) => response.decode(bytes),
});

/** Without a pipeline, it is a node that does not know it. */
async function start({ get, watch, pipeline }: Partial<Record<"get" | "watch" | "pipeline", UntypedHandleCall>>): Promise<string> {
  const server = new Server();
  const service = { get: method("Get", GetRequest, GetResponse, false), watch: method("Watch", WatchRequest, WatchResponse, true) };
  server.addService(service, { get: get ?? (() => undefined), watch: watch ?? (() => undefined) });
  if (pipeline !== undefined) {
    const definition = { ...method("Pipeline", PipelineRequest, PipelineResponse, true), requestStream: true };
    server.addService({ pipeline: definition }, { pipeline });
  }
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) => {
      if (error === null) {
        resolve(port);
      } else {
        reject(error);
      }
    });
  });
  onTestFinished(() => {
    server.forceShutdown();
  });
  return `127.0.0.1:${port}`;
}

const FREE = {
  name: "jobs",
  mode: undefined,
  holders: [],
  holderCount: 0n,
  waiters: [],
  queueLength: 0n,
  data: undefined,
  keepData: false,
  delayRemainingMs: 0n,
  resized: false,
  kind: 0,
};

async function until(isSo: () => boolean): Promise<void> {
  const by = Date.now() + 10_000;
  while (!isSo()) {
    expect(Date.now(), "in time").toBeLessThan(by);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

describe("a request", () => {
  test("carries the bearer token and the trace of its caller, and goes alone then", async () => {
    const seen: unknown[] = [];
    const endpoints = await start({
      get: (call: ServerUnaryCall<unknown, GetResponse>, answer: (error: null, response: GetResponse) => void) => {
        seen.push(call.metadata.get("authorization")[0], call.metadata.get("traceparent")[0]);
        answer(null, { lock: FREE, index: 1n });
      },
    });
    const traces: (string | undefined)[] = [];
    await using client = new Client({ endpoints, bearerToken: "s3cret", traceparent: () => traces[0] });
    expect((await client.get("jobs")).holderCount).toBe(0);
    const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    traces.push(trace);
    await client.get("jobs");
    expect(seen).toEqual(["Bearer s3cret", undefined, "Bearer s3cret", trace]);
  });
});

describe("a stream", () => {
  /** A token that was withdrawn ends it. */
  test("of a pipeline that is refused while it is open is opened again for what was under way", async () => {
    const asked: PipelineRequest[] = [];
    const endpoints = await start({
      pipeline: (call: ServerDuplexStream<PipelineRequest, PipelineResponse>) => {
        call.sendMetadata(new Metadata());
        call.on("data", (request: PipelineRequest) => {
          asked.push(request);
          if (asked.length === 1) {
            call.emit("error", { code: Code.UNAUTHENTICATED, details: "the bearer token was withdrawn" });
          } else {
            call.write({ number: request.number, what: { $case: "get", value: { lock: FREE, index: 1n } }, leader: "" });
          }
        });
      },
    });
    await using client = new Client({ endpoints });
    expect((await client.get("jobs")).holderCount).toBe(0);
    expect(asked).toHaveLength(2);
  });

  async function watched() {
    const streams = { open: 0, opened: 0 };
    const endpoints = await start({
      watch: (call: ServerWritableStream<unknown, Message>) => {
        streams.open += 1;
        streams.opened += 1;
        call.on("close", () => {
          streams.open -= 1;
        });
        call.write({ what: { $case: "state", value: { locks: [], index: 7n, first: true, last: true } } });
      },
    });
    return { streams, client: new Client({ endpoints }) };
  }

  test("of a watch is open while it is read, and ends with its reader", async () => {
    const { streams, client } = await watched();
    const watch = client.watch("");
    expect(streams.opened).toBe(0);
    for await (const message of watch) {
      expect(message).toMatchObject({ kind: "state", index: 7n });
      expect(streams.open).toBe(1);
      break;
    }
    await until(() => streams.open === 0);

    // Also while it waits for a message; and another reader goes on.
    const first = await watch.next();
    const waiting = watch.next();
    expect(first.done).toBe(false);
    await watch.return();
    expect(await waiting).toEqual({ done: true, value: undefined });
    await until(() => streams.open === 0);
    expect([streams.opened, watch.index]).toEqual([2, 7n]);
    await client.close();
  });

  test("of an observation ends with its reader", async () => {
    const { streams, client } = await watched();
    for await (const leader of client.election("jobs").observe()) {
      expect(leader).toBeNull();
      break;
    }
    await until(() => streams.open === 0);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(streams).toEqual({ open: 0, opened: 1 });
    await client.close();
  });

  test("of both ends by a signal", async () => {
    const { streams, client } = await watched();
    const controller = new AbortController();
    const { signal } = controller;
    const reading = (async () => {
      for await (const message of client.watch("", { signal })) {
        expect(message.kind).toBe("state");
      }
      return "ended";
    })();
    const observing = (async () => {
      for await (const leader of client.election("jobs").observe({ signal })) {
        expect(leader).toBeNull();
      }
      return "ended";
    })();
    await until(() => streams.open === 2);
    controller.abort();
    expect(await Promise.all([reading, observing])).toEqual(["ended", "ended"]);
    await until(() => streams.open === 0);
    await client.close();
  });
});
