// Workers that take turns, one of which is ended while it holds the lock.
// @ts-check
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

import { connect } from "@lockkeeper/client";

if (isMainThread) {
  const counter = new Int32Array(new SharedArrayBuffer(8));
  /** @param {string} how */
  const start = (how) => new Worker(new URL(import.meta.url), { workerData: { how, counter } });
  /** @param {Worker} worker */
  const ended = (worker) =>
    new Promise((resolve, reject) => {
      worker.once("error", reject);
      worker.once("exit", resolve);
    });

  const codes = await Promise.all(Array.from({ length: 3 }, () => ended(start("turns"))));
  console.log(`turns ${codes.join()} ${counter[0]} overlaps ${counter[1]}`);

  const holder = start("holds");
  await new Promise((resolve) => holder.once("message", resolve));
  await holder.terminate();
  // Its session is over after its TTL.
  const client = connect();
  const lock = await client.acquire("worker/holds", { waitMs: 20_000 });
  console.log(`passed on ${lock.token}`);
  await client.close();
} else {
  const { how, counter } = workerData;
  const client = connect({ ttlMs: 2_000 });
  if (how === "turns") {
    for (let turn = 0; turn < 5; turn += 1) {
      await client.using("worker/turns", {}, async () => {
        const before = Atomics.load(counter, 0);
        await new Promise((resolve) => setTimeout(resolve, 2));
        Atomics.add(counter, 1, Atomics.compareExchange(counter, 0, before, before + 1) === before ? 0 : 1);
      });
    }
    await client.close();
  } else {
    await client.acquire("worker/holds");
    parentPort?.postMessage("held");
  }
}
