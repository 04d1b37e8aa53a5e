// Holds a lock, and says all the time whether it does, with the time. `stop` on its standard input ends it.
// @ts-check
import { connect } from "@lockkeeper/client";

const name = process.argv[2] ?? "holder";
const client = connect({ ttlMs: 1_000 });
const lock = await client.acquire(name);
const { signal } = lock;
console.log(`token ${lock.token}`);

let isOver = false;
process.stdin.on("data", () => {
  isOver = true;
});
process.stdin.on("end", () => {
  isOver = true;
});
while (!isOver) {
  const isLost = signal.aborted;
  console.log(`${isLost ? "lost" : "held"} ${Date.now()} ${lock.remainingMs}`);
  await new Promise((resolve) => setTimeout(resolve, 5));
}
process.stdin.destroy();
await client.close();
