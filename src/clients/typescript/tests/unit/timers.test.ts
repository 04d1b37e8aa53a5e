import { type AddressInfo, type Socket, connect, createServer } from "node:net";
import { expect, onTestFinished, test } from "vitest";

import { Once } from "../../src/once.js";
import { after, sleep } from "../../src/timers.js";

/** Two ends of a connection within this process. */
async function connection(): Promise<[Socket, Socket]> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const accepted = new Promise<Socket>((resolve) => server.once("connection", resolve));
  const near = connect((server.address() as AddressInfo).port, "127.0.0.1");
  const far = await accepted;
  onTestFinished(() => {
    near.destroy();
    far.destroy();
    server.close();
  });
  return [near, far];
}

function block(ms: number): void {
  const end = Date.now() + ms;
  while (Date.now() < end) {
    // Blocked.
  }
}

test("what has arrived while the event loop was blocked is heard before a timer that is due", async () => {
  const [near, far] = await connection();
  const order: string[] = [];
  near.on("data", () => order.push("answer"));

  const late = new Promise<void>((resolve) => {
    after(10, () => {
      order.push("late");
      resolve();
    });
  });
  await new Promise((resolve) => setTimeout(resolve, 1));
  far.write("x");
  block(50);
  await late;
  expect(order).toEqual(["answer", "late"]);
});

test("a timer never fires early, and not at all once it is cancelled", async () => {
  const began = performance.now();
  let isCalled = false;
  const cancel = after(5, () => {
    isCalled = true;
  });
  cancel();
  expect(await sleep(20.7)).toBe(true);
  expect(performance.now() - began).toBeGreaterThanOrEqual(20.7);
  expect(isCalled).toBe(false);
});

test("a sleep ends early by what happens, or has happened", async () => {
  const once = new Once<number>();
  const sleeping = sleep(60_000, undefined, once);
  once.fire(7);
  expect(await sleeping).toBe(false);
  expect(await sleep(60_000, once)).toBe(false);
  once.fire(8);
  expect(once.value).toBe(7);
});
